//! List and ByIndex: one snapshot, streamed in chunks that are encoded when the client has room for them.
//!
//! They bypass the generated trait, as Watch does: a response may contain all objects of a resource, and building messages of
//! them first would cost more than everything else. Both responses have the same fields under the same numbers.

mod fill;
mod message;
mod position;

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::{Buf, Bytes, BytesMut};
use http_body::Frame as BodyFrame;
use prost::Message;
use tonic::Status;

use self::position::Position;
use super::{
    access::{Access, Wanted},
    audited_call::AuditedCall,
    bulk_scheduler::BulkPermit,
    call::{Call, Caller},
    compressed_objects::{CompressedForm, Use},
    compression::Compressed,
    encoder::{Encoding, Failed, NextObject},
    frame::{self, CHUNK_BYTES},
    held_snapshots::HeldSnapshot,
    page::Continued,
    past::{AtVersion, ReadState},
    query::{self, Parts, parts},
    quotas::QuotaPermit,
    resource::ServedResource,
    service::Service,
    status::{ApiError, final_frames, trailers},
    time_slice::TimeSlice,
    views::OpenView,
};
use crate::{
    auth::Operation,
    cache::{HealthReport, Scan, Snapshot},
    model::{IndexFunc, IndexMatch, Namespaces, Object, ObjectKey, Selection},
    proto::{ObjectFormat, pb},
    transport::{BoundedBody, BoundedFrame, Chunk, Exceeded, FinalFrames, Origin, Room},
};

/// Body of one response.
pub(super) struct ListBody {
    service: Service,
    snapshot: Arc<Snapshot>,
    _held: HeldSnapshot,
    /// Name of the history that the snapshot belongs to.
    history: String,
    source: HealthReport,
    scan: Arc<Scan>,
    selection: Selection,
    format: ObjectFormat,
    /// Hash of the query, which page tokens contain.
    query: u64,
    /// Number of objects that the page may still have.
    room: Option<usize>,
    position: Position,
    /// Next object, while it is encoded on a bulk thread.
    next: NextObject,
    /// Encoded objects of the next message, if it is not compressed, or has a view.
    objects: BytesMut,
    /// Cache of compressed messages; none if they are not compressed.
    compressed: Option<CompressedForm>,
    /// The objects of the next message, if it is compressed: nearly always, another client has had it encoded.
    collected: Vec<Arc<Object>>,
    /// Size of the objects of the next message before its compression, in bytes.
    bytes: usize,
    /// Objects of the next message, while they are compressed on a bulk thread.
    compressing: Option<Encoding<MessageObjects>>,
    /// Message that is not handed out yet.
    ready: Option<Chunk>,
    /// Size of the index values of an object, in bytes: unlike those of a request, they have no limit.
    value_bytes: usize,
    /// Token of the next page, once the page is full.
    next_page_token: String,
    /// Origin in whose share the snapshot is kept for the next page.
    origin: Option<Origin>,
    caller: Caller,
    has_answered: bool,
    stage: Stage,
    permit: BulkPermit,
    audited: Option<AuditedCall>,
    _quotas: [QuotaPermit; 2],
    _view: Option<Box<OpenView>>,
}

/// Objects of a message.
#[derive(Debug)]
enum MessageObjects {
    Plain(Bytes),
    Compressed(Arc<Compressed>),
}

/// Object whose values of an index select.
struct Like {
    func: IndexFunc,
    key: ObjectKey,
}

/// Progress of a response.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// There may be more objects.
    Objects,
    /// The next message is complete, and there may be more objects.
    Message,
    /// There are no more objects, but perhaps one more message.
    Last,
    /// Everything but the status has been sent.
    Trailers,
    /// Work has panicked.
    Failed,
    Over,
}

/// Result of encoding the next objects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Filled {
    /// The next object does not fit into the room, and the message has no other; it needs this many bytes.
    Nothing(usize),
    /// The message is large enough, or there is no room for more.
    Enough,
    /// The slice of time is over; other tasks come first.
    Some,
    /// A bulk thread encodes the next object.
    Waiting,
    /// A bulk thread has failed to do so.
    Failed,
    /// The page has no more objects.
    All,
}

/// Approximate maximum size of a message without its objects, in bytes.
const HEAD_BYTES: usize = 1 << 10;

/// Answers ByIndex: a List by one value of one index, or by the values of one object.
pub(super) async fn by_index(service: &Service, request: pb::ByIndexRequest, call: Call) -> Result<ListBody, ApiError> {
    let objects = Wanted::objects(Operation::List, &request.resource, &request.namespace, request.format);
    let mut access = service.access(&call, Wanted { view: request.view.as_ref(), ..objects }).await?;
    let indexers = access.resource.informer.indexers();
    let Some(func) = indexers.get(&request.index) else {
        return Err(ApiError::index("index", &request.index, indexers.names()));
    };
    if func.reads_body() {
        access.require_bodies("index by other than namespace and labels").await?;
    }
    let like = match &request.like {
        Some(_) if !request.value.is_empty() => {
            let message = "cannot be given together with value; leave out one of them".to_owned();
            return Err(ApiError::Invalid { reason: "INDEX_VALUES_INVALID", field: "like", message });
        }
        Some(like) => {
            // Its values of the index become known.
            access.require_object(&like.namespace, &like.name).await?;
            Some(Like { func: func.clone(), key: query::key("like.name", &like.namespace, &like.name)? })
        }
        None => None,
    };
    let values = if like.is_some() { Vec::new() } else { vec![request.value] };
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
        resource_version_match: request.resource_version_match,
        history: request.history,
        index: Some(pb::IndexMatch { name: request.index, values }),
        view: request.view,
        shard: request.shard,
    };
    answer(access, request, like, call).await
}

/// Answers List.
pub(super) async fn list(service: &Service, request: pb::ListRequest, call: Call) -> Result<ListBody, ApiError> {
    let objects = Wanted::objects(Operation::List, &request.resource, &request.namespace, request.format);
    let access = service.access(&call, Wanted { view: request.view.as_ref(), ..objects }).await?;
    answer(access, request, None, call).await
}

/// Answers a List. With `like`, its index has no values yet: they are those of that object in the snapshot.
async fn answer(
    mut access: Access<'_>,
    mut request: pb::ListRequest,
    like: Option<Like>,
    call: Call,
) -> Result<ListBody, ApiError> {
    let (page_size, page_token) = (std::mem::take(&mut request.page_size), std::mem::take(&mut request.page_token));
    let caller = call.caller();
    let index = request.index.as_ref().filter(|_| like.is_none());
    let parts = Parts { index, ..parts!(request, caller) };
    let mut selection = query::selection(&mut access, parts).await?;
    let Access { service, resource, mut format, .. } = access;
    let pb::ListRequest { min_resource_version: version, resource_version_match: matching, history, .. } = &mut request;
    let at = AtVersion::parse("min_resource_version", version, *matching, std::mem::take(history))?;
    let key = like.as_ref().map(|like| &like.key);
    let rights = (call.user(), &selection.namespaces);
    let query = service.inner.pages.query_hash(&("List", resource.calls.id(), request.encode_to_vec(), key, rights));
    let quotas = [service.quotas().stream(&call)?, service.quotas().bulk_response(&call)?];
    let view = resource.views.read(&resource.name, caller, &mut format)?;
    let (ReadState { snapshot, permit }, after) = start(service, &resource, (&page_token, query), &at, &call).await?;
    let mut value_bytes = 0;
    if let Some((Like { func, key }, index)) = like.zip(request.index) {
        // An object of another namespace is not found, whether it exists or not.
        let is_readable = |object: &&Arc<Object>| {
            selection.namespaces.as_ref().is_none_or(|namespaces| namespaces.contains(object.key().namespace()))
        };
        let object = snapshot.get(&key).filter(is_readable).ok_or_else(|| ApiError::object(&resource.name, &key))?;
        let values = func.values(object);
        value_bytes = values.iter().map(|value| size_of::<String>() + value.capacity()).sum();
        selection.index = Some(IndexMatch { name: index.name, func, values: values.into_iter().collect() });
    }
    if let Some(audited) = &call.audited {
        audited.begins(&selection, &format, resource.is_secret);
    }
    Ok(ListBody {
        service: service.clone(),
        origin: caller.origin(),
        history: resource.informer.history(snapshot.history_id(), selection.namespaces.as_ref()),
        _held: resource.calls.snapshots().hold(&snapshot, call.stream).with_permit(permit),
        snapshot,
        source: resource.informer.report(),
        scan: Arc::new(Scan::of(&selection)),
        selection,
        compressed: service.compressed().form(&format, Use::List),
        format,
        query,
        room: (page_size > 0).then_some(page_size as usize),
        position: Position { sent: after.clone(), last_checked: after, ..Position::default() },
        next: NextObject::default(),
        objects: BytesMut::new(),
        compressing: None,
        collected: Vec::new(),
        bytes: 0,
        ready: None,
        value_bytes,
        next_page_token: String::new(),
        caller,
        has_answered: false,
        stage: Stage::Objects,
        permit: service.bulk_scheduler().begin(caller),
        audited: call.audited,
        _quotas: quotas,
        _view: view,
    })
}

/// Returns the snapshot to answer from, and the key after which to continue.
async fn start(
    service: &Service,
    resource: &ServedResource,
    (page_token, query): (&str, u64),
    at: &AtVersion,
    call: &Call,
) -> Result<(ReadState, Option<ObjectKey>), ApiError> {
    if page_token.is_empty() {
        return Ok((service.state(resource, at, call).await?, None));
    }
    let Continued { snapshot, after } = service.inner.pages.resume(page_token, query)?;
    let key = after.split_once('\0').and_then(|(namespace, name)| ObjectKey::new(namespace, name).ok());
    // This server writes a key into each token, so another token was not issued by it.
    Ok((ReadState { snapshot, permit: None }, Some(key.ok_or(ApiError::PageTokenExpired)?)))
}

// === impl ListBody ===

impl ListBody {
    /// Returns the token of the next page.
    fn next_page_token(&self) -> String {
        let after = self.position.sent.as_ref().map(|sent| format!("{}\0{}", sent.namespace(), sent.name()));
        self.service.inner.pages.token(&self.snapshot, self.query, &after.unwrap_or_default(), self.origin)
    }

    /// Returns the namespaces that the next message names: the first one those to which the answer is limited.
    fn namespaces(&self) -> Option<&Namespaces> {
        self.selection.namespaces.as_ref().filter(|_| !self.has_answered)
    }

    /// Returns the approximate maximum size of the next message without its objects, in bytes.
    fn head_bytes(&self) -> usize {
        HEAD_BYTES + frame::namespaces_len(self.namespaces())
    }

    /// Returns true if the last message of the page has something besides objects.
    fn has_end(&self) -> bool {
        !self.next_page_token.is_empty() || self.position.has_failures()
    }

    /// Ends the response after work that has panicked.
    fn fail(&mut self) -> BodyFrame<Chunk> {
        self.stage = Stage::Over;
        BodyFrame::trailers(trailers(&ApiError::Internal.to_status()))
    }
}

impl BoundedBody for ListBody {
    fn poll_bounded(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<Option<Result<BoundedFrame, Status>>> {
        let head_bytes = self.head_bytes();
        // The size of a compressed message is known once it is complete.
        let limit = match &self.compressed {
            Some(_) => Room { bytes: usize::MAX, is_strict: false },
            None => room.without(head_bytes),
        };
        let slice = TimeSlice::begin();
        let data = |messages: Vec<Bytes>| BodyFrame::data(messages.into_iter().collect());
        // A message that was compressed for another client costs less than a turn: as many as fit into the room come in one.
        let (mut messages, mut bytes): (Vec<Bytes>, _) = (Vec::new(), 0);
        let frame = loop {
            let is_first = messages.is_empty();
            if let Some(message) = &self.ready {
                let length = bytes + message.remaining();
                if is_first && !room.allows(length) {
                    return Poll::Ready(Some(Ok(BoundedFrame::TooLarge(length))));
                }
                if is_first || length <= CHUNK_BYTES.min(room.bytes) {
                    messages.extend(message.pieces().cloned());
                    (bytes, self.ready) = (length, None);
                }
                if self.compressed.is_none() || self.ready.is_some() || slice.is_over() {
                    break data(messages);
                }
                continue;
            }
            match self.stage {
                Stage::Objects => {
                    if room.is_shut() {
                        return Poll::Ready(Some(Ok(BoundedFrame::TooLarge(head_bytes))));
                    }
                    if is_first {
                        ready!(self.permit.poll(cx));
                    }
                    let filled = self.fill(cx, limit, &slice);
                    if let Filled::Nothing(needed) = filled {
                        return Poll::Ready(Some(Ok(BoundedFrame::TooLarge(needed + head_bytes))));
                    }
                    self.permit.release();
                    match filled {
                        Filled::Nothing(_) => {}
                        Filled::Some | Filled::Waiting if !is_first => break data(messages),
                        Filled::Some => {
                            cx.waker().wake_by_ref();
                            return Poll::Pending;
                        }
                        Filled::Waiting => return Poll::Pending,
                        Filled::Failed => self.stage = Stage::Failed,
                        Filled::Enough => self.stage = Stage::Message,
                        Filled::All => self.stage = Stage::Last,
                    }
                }
                Stage::Message => match self.poll_message(cx) {
                    Poll::Ready(Ok(message)) => (self.ready, self.stage) = (Some(message), Stage::Objects),
                    Poll::Ready(Err(Failed)) => self.stage = Stage::Failed,
                    Poll::Pending if is_first => return Poll::Pending,
                    Poll::Pending => break data(messages),
                },
                _ if !is_first => break data(messages),
                // A response without objects is one message, which carries the version.
                Stage::Last if self.has_answered && self.bytes == 0 && !self.has_end() => {
                    self.stage = Stage::Trailers;
                }
                Stage::Last if self.bytes == 0 && !room.allows(head_bytes) => {
                    return Poll::Ready(Some(Ok(BoundedFrame::TooLarge(head_bytes))));
                }
                Stage::Last => match ready!(self.poll_message(cx)) {
                    Ok(message) => (self.ready, self.stage) = (Some(message), Stage::Trailers),
                    Err(Failed) => self.stage = Stage::Failed,
                },
                Stage::Failed => break self.fail(),
                Stage::Trailers => {
                    self.stage = Stage::Over;
                    break BodyFrame::trailers(trailers(&Status::ok("")));
                }
                Stage::Over => return Poll::Ready(None),
            }
        };
        Poll::Ready(Some(Ok(BoundedFrame::Frame(frame))))
    }

    fn encoded_bytes(&self) -> usize {
        let compressing = if self.compressing.is_some() { self.bytes } else { 0 };
        let ready = self.ready.as_ref().map_or(0, Buf::remaining);
        self.objects.capacity() + self.next.bytes() + compressing + ready + self.value_bytes
    }

    fn exhausted(&mut self, _: usize, exceeded: Exceeded) -> FinalFrames {
        self.stage = Stage::Over;
        final_frames(exceeded)
    }
}

http_body!(ListBody, body => body.stage == Stage::Over);

debug_fields!(ListBody { selection, position, stage });

#[cfg(test)]
mod tests;
