//! List of another protocol: the objects of one snapshot, page by page, in pieces that the caller encodes.

use std::{
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::BytesMut;
use prost::Message;

use crate::{
    cache::{Scan, Snapshot},
    grpc::{
        access::Access,
        audited_call::AuditedCall,
        bulk_scheduler::BulkPermit,
        call::Call,
        held_snapshots::HeldSnapshot,
        page::Continued,
        past::{AtVersion, ReadState},
        query::{self, Parts, parts},
        quotas::QuotaPermit,
        service::Service,
        status::ApiError,
        time_slice::TimeSlice,
    },
    model::{Evaluations, Object, ObjectKey, ResourceVersion, Selection},
    proto::{PayloadFormat, pb},
    transport::Origin,
};

/// Objects of a list that are still to be sent.
#[derive(Debug)]
pub(crate) struct Listing {
    service: Service,
    snapshot: Arc<Snapshot>,
    scan: Scan,
    selection: Selection,
    payload: PayloadFormat,
    /// Hash of the query, which page tokens contain.
    query: u64,
    origin: Option<Origin>,
    last_checked: Option<ObjectKey>,
    page: Page,
    evaluations: Evaluations,
    permit: BulkPermit,
    audited: Option<AuditedCall>,
    _held: HeldSnapshot,
    _quotas: [QuotaPermit; 2],
}

/// Objects of a page.
#[derive(Debug)]
struct Page {
    last_sent: Option<ObjectKey>,
    /// Number of objects up to that one, those of earlier pages included.
    sent: u64,
    /// Number of objects that the page may still have.
    room: Option<u64>,
    has_more: bool,
}

/// Progress of a list after one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ListProgress {
    More,
    Done,
}

/// End of a page.
#[derive(Debug)]
pub(crate) struct ListEnd {
    pub(crate) version: ResourceVersion,
    /// Token of the next page, if there is one.
    pub(crate) next: Option<String>,
    /// Number of objects after this page, where it is known without reading them.
    pub(crate) remaining: Option<u64>,
}

// === impl Listing ===

impl Listing {
    /// Begins a list, whose page size and token are those of the request.
    pub(super) async fn begin(
        mut access: Access<'_>,
        mut request: pb::ListRequest,
        call: Call,
    ) -> Result<Self, ApiError> {
        let (page_size, page_token) = (std::mem::take(&mut request.page_size), std::mem::take(&mut request.page_token));
        let (version, history) =
            (std::mem::take(&mut request.min_resource_version), std::mem::take(&mut request.history));
        let matching = std::mem::take(&mut request.resource_version_match);
        let at = AtVersion::parse("resourceVersion", &version, matching, history)?;
        let caller = call.caller();
        let parts = Parts { index: None, ..parts!(request, caller) };
        let selection = query::selection(&mut access, parts).await?;
        access.check_whole()?;
        let Access { service, resource, format, .. } = access;
        let key = (call.user(), format.payload);
        let query = service.inner.pages.query_hash(&("HTTP", resource.calls.id(), request.encode_to_vec(), key));
        let quotas = [service.quotas().stream(&call)?, service.quotas().bulk_response(&call)?];
        let (ReadState { snapshot, permit }, after, sent) = if page_token.is_empty() {
            (service.state(&resource, &at, &call).await?, None, 0)
        } else {
            let Continued { snapshot, after } = service.inner.pages.resume(&page_token, query)?;
            let (after, sent) = position(&after).ok_or(ApiError::PageTokenExpired)?;
            (ReadState { snapshot, permit: None }, Some(after), sent)
        };
        if let Some(audited) = &call.audited {
            audited.begins(&selection, &format, resource.is_secret);
        }
        Ok(Self {
            service: service.clone(),
            _held: resource.calls.snapshots().hold(&snapshot, call.stream).with_permit(permit),
            snapshot,
            scan: Scan::of(&selection),
            selection,
            payload: format.payload,
            query,
            origin: caller.origin(),
            last_checked: after.clone(),
            page: Page {
                last_sent: after,
                sent,
                room: (page_size > 0).then_some(u64::from(page_size)),
                has_more: false,
            },
            evaluations: Evaluations::default(),
            permit: service.bulk_scheduler().begin(caller),
            audited: call.audited,
            _quotas: quotas,
        })
    }

    /// Returns the part of the objects that the caller may read.
    pub(crate) fn payload(&self) -> PayloadFormat {
        self.payload
    }

    /// Encodes the next objects, about as many bytes as there is room for, but for no longer than a slice of time.
    pub(crate) fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut BytesMut,
        bytes: usize,
        mut encode: impl FnMut(&Object, &mut BytesMut),
    ) -> Poll<ListProgress> {
        ready!(self.permit.poll(cx));
        let (snapshot, before) = (Arc::clone(&self.snapshot), self.page.sent);
        let after = self.last_checked.take();
        let mut objects = self.scan.objects(&snapshot, after.as_ref());
        let (slice, mut last) = (TimeSlice::begin(), None);
        let progress = loop {
            let Some(object) = objects.next() else { break ListProgress::Done };
            if self.selection.matches_counted(object, &mut self.evaluations) {
                let page = &mut self.page;
                if page.room == Some(0) {
                    page.has_more = true;
                    break ListProgress::Done;
                }
                encode(object, buffer);
                page.room = page.room.map(|room| room - 1);
                page.sent += 1;
                page.last_sent = Some(object.key().clone());
            }
            last = Some(object.key().clone());
            if buffer.len() >= bytes || slice.is_over() {
                break ListProgress::More;
            }
        };
        drop(objects);
        self.last_checked = last.or(after);
        self.permit.release();
        if let Some(audited) = &self.audited {
            audited.sends(self.page.sent - before);
        }
        Poll::Ready(progress)
    }

    /// Ends the page.
    pub(crate) fn end(&self) -> ListEnd {
        let Self { service, snapshot, selection, query, origin, page, .. } = self;
        let Page { last_sent, sent, has_more, .. } = page;
        let next = last_sent.as_ref().filter(|_| *has_more).map(|last| {
            let after = format!("{}\0{}\0{sent}", last.namespace(), last.name());
            service.inner.pages.token(snapshot, *query, &after, *origin)
        });
        let remaining =
            next.as_ref().filter(|_| selection.selects_all()).map(|_| (snapshot.len() as u64).saturating_sub(*sent));
        ListEnd { version: snapshot.safe_version().clone(), next, remaining }
    }
}

/// Parses the position in a page token: the last key, and the number of objects up to it.
fn position(text: &str) -> Option<(ObjectKey, u64)> {
    let mut parts = text.splitn(3, '\0');
    let key = ObjectKey::new(parts.next()?, parts.next()?).ok()?;
    Some((key, parts.next()?.parse().ok()?))
}
