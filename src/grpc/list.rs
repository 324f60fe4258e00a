//! List and ByIndex: one snapshot, streamed in chunks that are made when the client asks for them.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use prost::Message;
use tokio_stream::{Stream, StreamExt};
use tonic::{Code, Status, codegen::BoxStream};

use super::{
    metrics::RpcObserver,
    page::{Continued, query_hash},
    query::{self, Parts},
    scan::Scan,
    service::{ServedResource, Service},
    status::Refusal,
};
use crate::{
    cache::{HealthReport, Snapshot},
    model::{ObjectKey, Selection},
    planted::planted,
    proto::{self, PayloadFormat, pb},
};

/// Makes the chunks of one answer.
#[derive(Debug)]
struct Chunks {
    service: Service,
    snapshot: Arc<Snapshot>,
    scan: Arc<Scan>,
    selection: Selection,
    format: PayloadFormat,
    /// What a page token is bound to.
    query: u64,
    /// How many objects the page may still have.
    room: Option<usize>,
    /// The last object that was looked at.
    looked_at: Option<ObjectKey>,
    /// The last object that was sent.
    sent: Option<ObjectKey>,
    chunk: Chunk,
    has_answered: bool,
    is_done: bool,
    observer: RpcObserver,
}

#[derive(Debug, Default)]
struct Chunk {
    objects: Vec<pb::Object>,
    bytes: usize,
    next_page_token: String,
}

/// When a chunk is sent: small enough that making one keeps nobody waiting on the same thread, large enough that the
/// messages' own cost does not count.
const CHUNK_BYTES: usize = 64 << 10;
/// What a chunk never exceeds, unless by one object that is larger by itself.
const MAX_CHUNK_BYTES: usize = 1 << 20;
/// How many objects are looked at before other tasks get their turn.
const SCAN_OBJECTS: usize = 256;

/// Answers List.
pub(super) async fn list(
    service: &Service,
    mut request: pb::ListRequest,
    wait: Duration,
    observer: RpcObserver,
) -> Result<BoxStream<pb::ListResponse>, Refusal> {
    let (page_size, page_token) = (std::mem::take(&mut request.page_size), std::mem::take(&mut request.page_token));
    let resource = service.resource(&request.resource)?;
    let selection = query::selection(
        resource,
        Parts {
            namespace: &request.namespace,
            name: "",
            label_selector: &request.label_selector,
            field_selector: &request.field_selector,
            expression: &request.expression,
            index: request.index.as_ref(),
        },
    )?;
    let format = query::format(request.format)?;
    let min_version = query::version("min_resource_version", &request.min_resource_version)?;
    let query = query_hash(&("List", request.encode_to_vec()));
    let (snapshot, after) = start(service, resource, &page_token, query, min_version.as_ref(), wait).await?;
    let chunks = Chunks {
        service: service.clone(),
        snapshot,
        scan: Arc::new(Scan::of(&selection)),
        selection,
        format,
        query,
        room: (page_size > 0).then_some(page_size as usize),
        sent: after.clone(),
        looked_at: after,
        chunk: Chunk::default(),
        has_answered: false,
        is_done: false,
        observer,
    };

    let version = chunks.snapshot.version().to_string();
    let HealthReport { state, seen_at, .. } = resource.informer.health().report();
    Ok(Box::pin(chunks.map(move |chunk| {
        Ok::<_, Status>(pb::ListResponse {
            resource_version: version.clone(),
            objects: chunk.objects,
            next_page_token: chunk.next_page_token,
            source: proto::sync_state(state).into(),
            source_seen_at: seen_at.map(proto::timestamp),
        })
    })))
}

/// Answers ByIndex: a List by one value of one index.
pub(super) async fn by_index(
    service: &Service,
    request: pb::ByIndexRequest,
    wait: Duration,
    observer: RpcObserver,
) -> Result<BoxStream<pb::ByIndexResponse>, Refusal> {
    let indexers = service.resource(&request.resource)?.informer.indexers();
    if indexers.get(&request.index).is_none() {
        return Err(Refusal::index("index", &request.index, indexers.names()));
    }
    let request = pb::ListRequest {
        resource: request.resource,
        namespace: request.namespace,
        label_selector: request.label_selector,
        field_selector: request.field_selector,
        expression: request.expression,
        format: request.format,
        page_size: request.page_size,
        page_token: request.page_token,
        min_resource_version: request.min_resource_version,
        index: Some(pb::IndexMatch { name: request.index, values: vec![request.value] }),
    };
    let responses = list(service, request, wait, observer).await?;
    Ok(Box::pin(responses.map(|response| {
        response.map(|pb::ListResponse { resource_version, objects, next_page_token, source, source_seen_at }| {
            pb::ByIndexResponse { resource_version, objects, next_page_token, source, source_seen_at }
        })
    })))
}

/// The snapshot to answer from, and the key to go on after.
async fn start(
    service: &Service,
    resource: &ServedResource,
    page_token: &str,
    query: u64,
    min_version: Option<&crate::model::ResourceVersion>,
    wait: Duration,
) -> Result<(Arc<Snapshot>, Option<ObjectKey>), Refusal> {
    if page_token.is_empty() {
        return Ok((service.snapshot(resource, min_version, wait).await?, None));
    }
    let Continued { mut snapshot, after } = service.pages().resume(page_token, query)?;
    if let Some(now) = resource.informer.snapshot().filter(|_| planted!(PageFromTheStateOfNow)) {
        snapshot = now;
    }
    let key = after.split_once('\0').and_then(|(namespace, name)| ObjectKey::new(namespace, name).ok());
    // Tokens are made below, of a key; that of an object without one cannot be had.
    Ok((snapshot, Some(key.ok_or(Refusal::PageTokenExpired)?)))
}

// === impl Chunks ===

impl Chunks {
    /// Looks at the next objects, until the chunk is full, the page ends, or others should have their turn.
    fn fill(&mut self) {
        let snapshot = Arc::clone(&self.snapshot);
        let after = self.looked_at.clone();
        let scan = Arc::clone(&self.scan);
        let mut objects = scan.objects(&snapshot, after.as_ref()).take(SCAN_OBJECTS).peekable();
        self.is_done = objects.peek().is_none();
        for object in objects {
            if self.selection.matches(object) {
                if self.room == Some(0) {
                    self.is_done = true;
                    if !planted!(PageForgetsThatThereIsMore) {
                        self.chunk.next_page_token = self.next_page_token();
                    }
                    return;
                }
                let message = proto::object(object, object.version(), self.format);
                let bytes = message.encoded_len();
                if !self.chunk.objects.is_empty() && self.chunk.bytes + bytes > MAX_CHUNK_BYTES {
                    // Looked at again for the next chunk.
                    self.chunk.bytes = MAX_CHUNK_BYTES;
                    return;
                }
                self.chunk.bytes += bytes;
                self.chunk.objects.push(message);
                self.room = self.room.map(|room| room - 1);
                if self.sent.is_none() || self.room != Some(0) || !planted!(PageRepeatsTheLastObject) {
                    self.sent = Some(object.key().clone());
                }
            }
            self.looked_at = Some(object.key().clone());
            if self.chunk.bytes >= CHUNK_BYTES {
                return;
            }
        }
    }

    /// Where the next page begins.
    fn next_page_token(&self) -> String {
        let after = self.sent.as_ref().map(|sent| format!("{}\0{}", sent.namespace(), sent.name()));
        self.service.pages().token(&self.snapshot, self.query, &after.unwrap_or_default())
    }
}

impl Stream for Chunks {
    type Item = Chunk;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Chunk>> {
        let this = &mut *self;
        if this.is_done {
            return Poll::Ready(None);
        }
        this.fill();
        if this.is_done {
            this.observer.ends(Code::Ok);
            // An answer without objects is one chunk: it carries the version.
            let is_needed =
                !this.has_answered || !this.chunk.objects.is_empty() || !this.chunk.next_page_token.is_empty();
            return Poll::Ready(is_needed.then(|| std::mem::take(&mut this.chunk)));
        }
        if this.chunk.bytes >= CHUNK_BYTES {
            this.has_answered = true;
            return Poll::Ready(Some(std::mem::take(&mut this.chunk)));
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}
