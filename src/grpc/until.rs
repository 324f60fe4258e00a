//! Until: a watch that this process reads until its events have met the conditions.
//!
//! It uses the watch of `watch/` from opening to end, so a waiting client is parked, replayed from the history, drained and
//! rejected exactly as a watching one; only its frames are decoded in the server. Dropping the call drops the watch.

use std::{collections::HashSet, convert::Infallible};

use bytes::Bytes;
use futures_util::FutureExt;
use http_body_util::BodyExt;
use prost::Message;
use tonic::{Code, Status};

use super::{
    access::Access,
    bulk_scheduler::BulkPermit,
    call::{Call, Caller},
    frame::next_message,
    query,
    service::Service,
    status::ApiError,
    time_slice::TimeSlice,
    watch,
};
use crate::{
    model::{Condition, EventView},
    proto::{self, ObjectFormat, PayloadFormat, pb},
    watch::{FullChannelPolicy, QueueOptions, Until},
};

/// The conditions, and the state that they refer to besides an event.
struct Waiting {
    conditions: Until<Condition>,
    /// Number of objects that the watch has delivered and not deleted.
    count: u64,
    /// Keys of objects that still exist, but can no longer be served; each was delivered by this watch.
    not_served: HashSet<(String, String)>,
    is_synced: bool,
}

/// Maximum number of conditions; each is tested on every event when its turn has come.
const MAX_CONDITIONS: usize = 32;

/// Waits until the conditions are met. Rejects watch options that would start elsewhere, lose events or end early.
pub(super) async fn until(
    service: &Service,
    request: pb::UntilRequest,
    call: Call,
) -> Result<pb::UntilResponse, Status> {
    let (refuse, caller) = (|refusal: ApiError| service.metrics().refuse(&refusal), call.caller());
    let pb::UntilRequest { watch: request, conditions } = request;
    let request = pb::WatchRequest { batch_initial_events: false, ..request.unwrap_or_default() };
    let checked = async {
        let mut access = watch::access(service, &request, &call).await?;
        check(&request)?;
        let conditions = self::conditions(&mut access, &conditions, caller).await?;
        Ok((access, conditions))
    };
    let (mut access, conditions) = checked.await.map_err(refuse)?;
    let mut waiting = Waiting { conditions, count: 0, not_served: HashSet::new(), is_synced: false };

    let queue = QueueOptions { policy: FullChannelPolicy::Replay, length: access.resource.queue.length };
    // Conditions read whole bodies; without the right to read them, no condition does.
    let internal = if access.has_bodies() { PayloadFormat::Raw } else { PayloadFormat::Metadata };
    let format = std::mem::replace(&mut access.format, internal.into());
    let watch = watch::open_with(access, &request, queue, call).await;
    let mut watch = std::pin::pin!(watch.map_err(refuse)?);
    let mut last = None;
    // Each turn has one slice of time: a publish cycle wakes all waiting calls, and each may have costly conditions.
    let mut pace: Option<(BulkPermit, TimeSlice)> = None;
    loop {
        let ready = watch.frame().now_or_never();
        let next_frame = if let Some(frame) = ready {
            frame
        } else {
            pace = None;
            watch.frame().await
        };
        let Some(frame) = next_frame else { break };
        let (permit, slice) = if let Some(pace) = &mut pace {
            pace
        } else {
            let mut permit = service.bulk_scheduler().begin(caller);
            permit.ready().await;
            pace.insert((permit, TimeSlice::begin()))
        };
        let mut messages = match frame?.into_data() {
            Ok(messages) => messages,
            Err(trailers) => {
                last = trailers.trailers_ref().and_then(Status::from_header_map);
                break;
            }
        };
        while let Some(event) = next_message(&mut messages).and_then(|message| pb::WatchResponse::decode(message).ok())
        {
            if slice.is_over() {
                permit.release();
                permit.ready().await;
                slice.end().await;
            }
            if waiting.see(&event) {
                watch.meets_conditions();
                let namespaces = proto::namespaces(watch.namespaces());
                return Ok(pb::UntilResponse { event: Some(in_format(event, &format)), namespaces });
            }
        }
    }
    // A watch without a timeout never ends with OK.
    Err(last.filter(|status| status.code() != Code::Ok).unwrap_or_else(|| ApiError::Internal.to_status()))
}

// === impl Waiting ===

impl Waiting {
    /// Returns true if the event meets the last condition. Tests only events and the end of the initial events, and no object
    /// that can no longer be served.
    fn see(&mut self, event: &pb::WatchResponse) -> bool {
        let key = || event.object.as_ref().map(|object| (object.namespace.clone(), object.name.clone()));
        let event_type = match event.r#type() {
            pb::EventType::Bookmark if event.bookmark.as_ref().is_some_and(|bookmark| bookmark.initial_events_end) => {
                self.is_synced = true;
                EventView::SYNCED
            }
            pb::EventType::Added => {
                let is_back = !self.not_served.is_empty() && key().is_some_and(|key| self.not_served.remove(&key));
                self.count += u64::from(!is_back);
                EventView::ADDED
            }
            pb::EventType::Modified => EventView::MODIFIED,
            // The object still exists.
            pb::EventType::Deleted if event.cause() == pb::Cause::NotServed => {
                self.not_served.extend(key());
                return false;
            }
            pb::EventType::Deleted => {
                self.count = self.count.saturating_sub(1);
                EventView::DELETED
            }
            _ => return false,
        };
        let object = event.object.as_ref().filter(|object| object.media_type == "application/json");
        let body = object.and_then(|object| match &object.body {
            // A copy: the expression keeps its input for a while, and this is a part of a large frame.
            Some(pb::object::Body::Raw(bytes)) => Some(Bytes::copy_from_slice(bytes)),
            _ => None,
        });
        let count = self.is_synced.then_some(self.count);
        let view = EventView { event_type, body: body.as_ref(), count };
        let Ok(is_last) = self.conditions.see(|condition| Ok::<_, Infallible>(condition.is_met(view)));
        is_last
    }
}

fn check(request: &pb::WatchRequest) -> Result<(), ApiError> {
    let invalid = |field: &'static str, message: &str| {
        let message = format!("not allowed in Until, which {message}; leave it out");
        Err(ApiError::Invalid { reason: "UNTIL_INVALID", field, message })
    };
    if request.queue.is_some() {
        return invalid("watch.queue", "uses REPLAY and misses nothing");
    }
    if request.timeout.is_some() {
        return invalid("watch.timeout", "waits until the deadline of the call");
    }
    if !request.resource_version.is_empty() {
        return invalid("watch.resource_version", "always begins with the initial events");
    }
    if request.initial_events == i32::from(pb::InitialEvents::None) {
        return invalid("watch.initial_events", "always begins with the initial events");
    }
    Ok(())
}

async fn conditions(access: &mut Access<'_>, texts: &[String], caller: Caller) -> Result<Until<Condition>, ApiError> {
    if texts.is_empty() || texts.len() > MAX_CONDITIONS {
        let message = format!("expected 1 to {MAX_CONDITIONS} conditions, found {}", texts.len());
        return Err(ApiError::Invalid { reason: "CONDITIONS_INVALID", field: "conditions", message });
    }
    let mut conditions = Vec::new();
    for (at, text) in texts.iter().enumerate() {
        conditions.push(query::condition(access, at, text, caller).await?);
    }
    Ok(Until::new(conditions))
}

fn in_format(mut event: pb::WatchResponse, format: &ObjectFormat) -> pb::WatchResponse {
    event.object = event.object.map(|object| proto::in_format(object, format));
    event
}
