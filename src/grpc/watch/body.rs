//! Response body of one watch, which its connection polls.
//!
//! Order in which data is sent: first a chunk that is ready; then the end of the stream, once it is decided; then the initial
//! events; then the events of the [`CacheWatcher`], missed or published; and when that is at the head, a bookmark that is due. So a
//! bookmark never overtakes an event, and the body notices a drain and timeouts at every poll.

mod attached;
mod bookmark;
mod bounded_body;

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::{Buf, BytesMut};
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::Status;

pub(in super::super) use self::attached::{AttachedWatch, Detached, LaneKey, Standing};
use super::{
    super::{
        bulk_scheduler::BulkPermit,
        frame::{self, CHUNK_BYTES, WireFrame},
        quotas::QuotaPermit,
        resource::ServedResource,
        service::Service,
        status::ApiError,
        views::OpenView,
        watch_end::WatchEnd,
        watchers::{WatchAccess, WatcherEntry},
    },
    initial_events::{InitialEvents, InitialProgress},
    timer::{BookmarkTimer, MIN_BOOKMARK_INTERVAL},
};
use crate::{
    cache::{CacheWatcher, Joined, ProgressGuard, SyncState, WatchStep, WatcherStage},
    model::{MAX_MESSAGE_BYTES, Namespaces, ResourceVersion},
    proto::{BookmarkLines, pb},
    transport::{Chunk, Room, UNKNOWN},
    turns::FairPermit,
    watch::{Frames, Subscribe, TooLarge},
};

/// First part of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Begin {
    /// An ADDED event for each object, and a bookmark at their end.
    InitialEvents,
    /// A bookmark at the version where the watch joined.
    Bookmark,
    /// An ADDED event for each object of this version, and then the next event after it.
    #[cfg_attr(not(feature = "kubernetes-api"), expect(dead_code, reason = "others resume from versions of batches"))]
    At(ResourceVersion),
    /// The next event after this version.
    After(ResourceVersion),
}

/// Response body of one watch.
pub(in super::super) struct WatchBody {
    service: Service,
    resource: Arc<ServedResource>,
    /// State at which the watch joined, until all of it is sent.
    initial: Option<Box<Initial>>,
    watch: CacheWatcher<WireFrame>,
    /// True if the watch was resumed and has not caught up: the client may have events after its version, of a connection before.
    is_resuming: bool,
    /// Namespaces of the state that the client has: others than those of the selection while they change.
    namespaces: Option<Namespaces>,
    /// State of the source that the client last received.
    reported_state: SyncState,
    /// Demand for progress: the client wants to learn of the upstream's progress at once.
    waiting: Option<ProgressGuard>,
    bookmarks: BookmarkTimer,
    bookmark_lines: BookmarkLines,
    ends_at: Option<Pin<Box<Sleep>>>,
    /// Signal of the drain, for all stages but the live one: a live watch is notified through its cursor.
    drained: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    /// Number of notifications that the watch has seen.
    notify_seq: u64,
    /// True if the watch was notified, and the state of the source may have changed since the last bookmark.
    status_changed: bool,
    /// Time at which this watch ends; set once the server drains.
    drain_at: Option<Pin<Box<Sleep>>>,
    /// Chunk that is encoded, and not yet handed to the connection.
    ready: Option<Chunk>,
    end: Option<Status>,
    is_over: bool,
    watcher: WatcherEntry,
    quota: QuotaPermit,
    open_view: Option<Box<OpenView>>,
}

/// Watch that has passed all checks, as it joins. The body is made of it.
pub(super) struct WatchPlan {
    pub(super) service: Service,
    pub(super) resource: Arc<ServedResource>,
    pub(super) subscribe: Subscribe<WireFrame>,
    pub(super) begin: Begin,
    /// Version that the state has to have reached with which the watch begins.
    pub(super) min_version: Option<ResourceVersion>,
    /// True if the client reads initial events in batches.
    pub(super) has_batches: bool,
    pub(super) bookmark_interval: Duration,
    /// Bookmarks that the client reads, if its messages are lines.
    pub(super) bookmark_lines: BookmarkLines,
    /// Start of the intervals of its bookmarks, if they come together with those of other watches.
    pub(super) aligned_to: Option<Instant>,
    /// Time after which the watch ends with a bookmark and status OK.
    pub(super) timeout: Option<Duration>,
    pub(super) watcher: WatcherEntry,
    pub(super) stream_quota: QuotaPermit,
    pub(super) bulk_quota: QuotaPermit,
    pub(super) open_view: Option<Box<OpenView>>,
}

/// Initial events, or those of a change of the namespaces, and the permit to encode them. Few watches are at them, so they are
/// boxed.
struct Initial {
    events: InitialEvents,
    permit: BulkPermit,
    _quota: QuotaPermit,
}

/// Result of one step of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepResult {
    /// There may be data to hand out.
    Progress,
    /// The next data does not fit into the room; it needs this many bytes.
    TooLarge(usize),
}

// === impl WatchBody ===

impl WatchBody {
    /// Begins a watch that has joined; the permit is that of the state of the past with which it begins.
    pub(super) fn new(plan: WatchPlan, joined: Joined<WireFrame>, permit: Option<FairPermit>) -> Self {
        let WatchPlan { service, resource, subscribe, begin, watcher, .. } = plan;
        let is_bookmark_first = begin == Begin::Bookmark;
        let is_resumed = matches!(begin, Begin::At(_) | Begin::After(_));
        let (watch, snapshot) = CacheWatcher::new(resource.informer.clone(), subscribe, joined);
        let initial = matches!(begin, Begin::InitialEvents | Begin::At(_)).then(|| {
            let held = resource.calls.snapshots().hold(&snapshot, watcher.stream()).with_permit(permit);
            let events = InitialEvents::new(snapshot, watch.subscribe(), &service, plan.has_batches);
            let events = if let Begin::At(version) = begin { events.at(version) } else { events }.holding(held);
            let permit = service.bulk_scheduler().begin(watcher.caller());
            Box::new(Initial { events, permit, _quota: plan.bulk_quota })
        });
        let mut body = Self {
            namespaces: watch.subscribe().selection.namespaces.clone(),
            service,
            reported_state: resource.informer.state(),
            waiting: (plan.bookmark_interval <= MIN_BOOKMARK_INTERVAL).then(|| resource.informer.demand().wait()),
            resource,
            initial,
            watch,
            is_resuming: is_resumed,
            // The first bookmark of a resumed watch shows its client that it has caught up.
            bookmarks: BookmarkTimer::new(plan.bookmark_interval, plan.aligned_to, is_resumed),
            bookmark_lines: plan.bookmark_lines,
            ends_at: plan.timeout.map(|timeout| Box::pin(tokio::time::sleep(timeout))),
            drained: None,
            notify_seq: 0,
            status_changed: false,
            drain_at: None,
            ready: None,
            end: None,
            is_over: false,
            watcher,
            quota: plan.stream_quota,
            open_view: plan.open_view,
        };
        body.enters_stage();
        if is_bookmark_first {
            let bookmark = body.bookmark(pb::Bookmark::default());
            body.send(&[bookmark]);
        }
        body
    }

    /// Returns the version to resume from; none while the initial events are incomplete.
    fn position(&self) -> Option<&ResourceVersion> {
        let has_state = self.initial.as_ref().is_none_or(|initial| initial.events.is_reselection());
        has_state.then(|| self.watch.version())
    }

    /// Returns the id of the watch among the open ones.
    #[cfg(test)]
    pub(in crate::grpc) fn id(&self) -> u64 {
        self.watcher.id()
    }

    /// Counts events as sent.
    #[cfg(test)]
    pub(in super::super) fn watcher_sent(&self, events: u64) {
        self.watcher.sent(events, 0, None);
    }

    /// Returns the namespaces to which the caller's rights limit the state that the client has.
    pub(in super::super) fn namespaces(&self) -> Option<&Namespaces> {
        self.namespaces.as_ref()
    }

    /// Returns true while the namespaces change: the client has the state of neither the former nor the present ones.
    fn is_changing(&self) -> bool {
        self.namespaces != self.watch.subscribe().selection.namespaces
    }

    /// Returns the stage of the watch; none while the initial events are incomplete.
    fn stage(&self) -> Option<WatcherStage> {
        self.initial.is_none().then(|| self.watch.stage())
    }

    /// Returns the state of the watch for operators.
    fn state(&self) -> pb::WatcherState {
        match self.stage() {
            None => pb::WatcherState::InitialEvents,
            Some(WatcherStage::Replay) => pb::WatcherState::CatchingUp,
            Some(WatcherStage::Reselecting) => pb::WatcherState::Parked,
            Some(WatcherStage::Live) => pb::WatcherState::Live,
        }
    }

    /// Shows operators the stage and the cursor.
    fn enters_stage(&self) {
        self.watcher.reads(self.watch.cursor());
        self.watcher.enters(self.state());
    }

    /// Encodes responses, to be handed out after a chunk that is ready.
    fn send(&mut self, responses: &[pb::WatchResponse]) {
        let mut buffer = BytesMut::new();
        for response in responses {
            self.append(&mut buffer, response);
        }
        // A bookmark is progress, also of a watch without events.
        let bookmark = |response: &&pb::WatchResponse| response.r#type() == pb::EventType::Bookmark;
        let version = responses.iter().rfind(bookmark).and_then(|response| response.resource_version.parse().ok());
        match version {
            Some(version) => self.watcher.sent(0, buffer.len(), Some(&version)),
            None => self.watcher.sent_bytes(buffer.len()),
        }
        let before = self.ready.take().unwrap_or_default();
        let chunk: Chunk = before.pieces().cloned().chain([buffer.freeze()]).collect();
        self.ready = Some(chunk).filter(Buf::has_remaining);
    }

    /// Ends the stream: with a bookmark, an ERROR as the last message, and the same status for the RPC.
    fn end_with(&mut self, refusal: &ApiError) {
        // Takes precedence over any other reason: the client must not resume with its version in the rewritten history.
        let refusal = match refusal {
            _ if self.watch.is_history_rewritten() => &ApiError::HistoryRewritten,
            // Its namespaces have changed, and the objects that leave or enter can no longer be found.
            ApiError::VersionExpired { .. } if self.is_changing() => &ApiError::AccessChanged,
            refusal => refusal,
        };
        if matches!(refusal, ApiError::HistoryRewritten | ApiError::AccessChanged) {
            // No bookmark: there is no version to resume from.
            self.send(&[frame::error(None, refusal.to_proto())]);
        } else {
            let draining = *refusal == ApiError::Draining;
            let bookmark = self.last_bookmark(draining);
            let error = frame::error(self.position(), refusal.to_proto());
            self.send(&[bookmark, error]);
        }
        self.end_by(refusal);
    }

    /// Ends the RPC with the status of an error.
    fn end_by(&mut self, refusal: &ApiError) {
        self.watcher.ends(refusal);
        self.set_end(refusal.to_status());
    }

    /// Ends the stream early, before it is polled again.
    fn end_now(&mut self, refusal: &ApiError) {
        // A chunk that is ready has not reached the client, and the position is past it.
        if self.ready.take().is_none() {
            return self.end_with(refusal);
        }
        self.send(&[frame::error(None, refusal.to_proto())]);
        self.end_by(refusal);
    }

    /// Acts on a change of the caller's rights: ends the stream, or changes the namespaces.
    fn change_access(&mut self) {
        let Some(access) = self.watcher.take_access().filter(|_| self.end.is_none()) else { return };
        let present = &self.watch.subscribe().selection.namespaces;
        if matches!(&access, WatchAccess::Namespaces(namespaces) if namespaces == present) {
            return;
        }
        let refusal = match access {
            WatchAccess::Ended(refusal) => refusal,
            WatchAccess::Namespaces(namespaces) => {
                let is_gradual = self.watch.subscribe().format.lines.is_none();
                let has_state = is_gradual && self.ready.is_none() && self.initial.is_none() && !self.is_resuming;
                if has_state && self.watch.reselect(namespaces) {
                    self.enters_stage();
                    // Until the change is complete, the client has a state from which it cannot resume.
                    let relisted = self.watch.take_gap();
                    let bookmark = self.bookmark(pb::Bookmark::default());
                    return self.send(&[pb::WatchResponse { relisted, ..bookmark }]);
                }
                ApiError::AccessChanged
            }
        };
        self.end_now(&refusal);
    }

    /// Returns true if the server has begun to drain.
    fn poll_drained(&mut self, cx: &mut Context<'_>) -> bool {
        if self.stage() == Some(WatcherStage::Live) {
            self.drained = None;
            return self.service.draining().is_cancelled();
        }
        let drained = || Box::pin(self.service.draining().clone().cancelled_owned());
        self.drained.get_or_insert_with(drained).as_mut().poll(cx).is_ready()
    }

    /// Returns true if the watch was notified since the last call of this function.
    fn check_notified(&mut self) -> bool {
        let notify_seq = self.resource.informer.notify_seq();
        let is_notified = std::mem::replace(&mut self.notify_seq, notify_seq) != notify_seq;
        self.status_changed |= is_notified;
        is_notified
    }

    /// Ends the stream if it drains or its timeout has passed, unless it has ended.
    fn poll_end(&mut self, cx: &mut Context<'_>) {
        if self.has_ended() {
            return;
        }
        if self.drain_at.is_none() && self.poll_drained(cx) {
            self.drain_at =
                Some(Box::pin(tokio::time::sleep(self.watcher.drain_delay(self.service.config().drain_period))));
        }
        if let Some(drain_at) = &mut self.drain_at
            && drain_at.as_mut().poll(cx).is_ready()
        {
            self.end_with(&ApiError::Draining);
            return;
        }
        if let Some(ends_at) = &mut self.ends_at
            && ends_at.as_mut().poll(cx).is_ready()
        {
            if self.watch.is_history_rewritten() {
                self.end_with(&ApiError::HistoryRewritten);
                return;
            }
            let bookmark = self.last_bookmark(false);
            self.send(&[bookmark]);
            self.watcher.ends(WatchEnd::timeout());
            self.set_end(Status::ok(""));
        }
    }

    /// Encodes the next piece, moves to the next stage, or parks.
    fn poll_next(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<StepResult> {
        let (is_notified, is_timed) = (self.check_notified(), self.ends_at.is_some() || self.drain_at.is_some());
        if is_notified && self.watcher.has_new_access() {
            // Since the poll began: the notification, which this watch has seen now, would not wake it again.
            self.change_access();
            if self.ready.is_some() {
                return Poll::Ready(StepResult::Progress);
            }
        }
        if self.stage() != Some(WatcherStage::Live) || is_timed || is_notified {
            self.poll_end(cx);
        }
        if self.end.is_some() {
            return Poll::Ready(StepResult::Progress);
        }
        match self.stage() {
            None if room.is_shut() => Poll::Ready(StepResult::TooLarge(self.bookmark_bytes())),
            Some(WatcherStage::Replay) if room.is_shut() && self.watch.has_backlog() => {
                Poll::Ready(StepResult::TooLarge(self.bookmark_bytes()))
            }
            None => self.poll_initial_events(cx, room),
            Some(_) => self.poll_watch(cx, room),
        }
    }

    fn poll_initial_events(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<StepResult> {
        let end_bytes = self.bookmark_bytes();
        let Some(Initial { events, permit, .. }) = self.initial.as_deref_mut() else {
            return Poll::Ready(StepResult::Progress);
        };
        ready!(permit.poll(cx));
        let Subscribe { selection, format, .. } = self.watch.subscribe();
        let service = (&self.service, self.watcher.caller());
        let (mut buffer, count, went) = events.next(cx, (selection, format), service, room.without(end_bytes));
        match went {
            InitialProgress::TooLarge(needed) => return Poll::Ready(StepResult::TooLarge(needed + end_bytes)),
            InitialProgress::Waiting => return Poll::Pending,
            InitialProgress::Failed => {
                self.end_with(&ApiError::Internal);
                return Poll::Ready(StepResult::Progress);
            }
            InitialProgress::More | InitialProgress::Done => {}
        }
        permit.release();
        // On a Subscribe stream they would be one message. Without events left, the next turn has the bookmark alone.
        let is_end_alone = count > 0 && buffer.len() + end_bytes > MAX_MESSAGE_BYTES / 2;
        let is_complete = went == InitialProgress::Done && !is_end_alone;
        if is_complete {
            let end = self.initial.take().map(|initial| initial.events.end()).unwrap_or_default();
            self.namespaces.clone_from(&self.watch.subscribe().selection.namespaces);
            self.watch.end_initial_events();
            self.watcher.enters(self.state());
            let end = self.bookmark(end);
            self.append(&mut buffer, &end);
        }
        self.watcher.sent(count, buffer.len(), is_complete.then(|| self.watch.version()));
        self.hand_out(buffer, cx)
    }

    /// Sends what the watch has next: missed or published events, a gap, or its end.
    fn poll_watch(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<StepResult> {
        let before = self.watch.stage();
        let polled = self.watch.poll_next(cx, CHUNK_BYTES.min(room.bytes), room.is_strict);
        let stage = self.watch.stage();
        if stage != before {
            self.enters_stage();
        }
        match polled {
            Poll::Ready(Ok(WatchStep::Events { frames, count, is_relisted })) => {
                let bytes = frames.iter().map(|frame| frame.0.len()).sum();
                self.watcher.sent(count, bytes, Some(self.watch.version()));
                if is_relisted && self.watch.is_history_rewritten() {
                    // A bookmark would be of the new history, and no event may lead over the relist without it.
                    self.send_events(frames, false);
                    self.end_with(&ApiError::HistoryRewritten);
                    return Poll::Ready(StepResult::Progress);
                }
                if frames.is_empty() && !is_relisted && stage == WatcherStage::Replay {
                    return yield_now(cx);
                }
                self.send_events(frames, is_relisted);
            }
            Poll::Ready(Ok(WatchStep::Dropped { count, after })) => {
                self.watcher.dropped(count);
                let dropped = frame::dropped(self.watch.version(), count, &after);
                self.send(&[dropped]);
            }
            Poll::Ready(Ok(WatchStep::Reselected(reselection))) => {
                let held = self.resource.calls.snapshots().hold(&reselection.snapshot, self.watcher.stream());
                let events = InitialEvents::of_reselection(reselection).holding(held);
                let permit = self.service.bulk_scheduler().begin(self.watcher.caller());
                // No quota: the client has not requested them.
                self.initial = Some(Box::new(Initial { events, permit, _quota: None }));
            }
            Poll::Ready(Ok(WatchStep::Ended(end))) => {
                let refusal = self.resource.or_ended(ApiError::end(&end, self.watch.version()));
                self.end_with(&refusal);
            }
            Poll::Ready(Ok(WatchStep::NotResumed(error))) => {
                let refusal = ApiError::join(error, Some(self.watch.version()), &self.resource.name);
                let refusal = self.resource.or_ended(refusal);
                self.end_with(&refusal);
            }
            Poll::Ready(Err(TooLarge(needed))) => return Poll::Ready(StepResult::TooLarge(needed.unwrap_or(UNKNOWN))),
            Poll::Pending if stage == WatcherStage::Live => {
                return self.poll_quiet(cx, room);
            }
            Poll::Pending => return Poll::Pending,
        }
        Poll::Ready(StepResult::Progress)
    }

    /// Hands out events, and a bookmark if a relist without an event follows them.
    fn send_events(&mut self, frames: Frames<WireFrame>, is_relisted: bool) {
        let mut relisted = BytesMut::new();
        if is_relisted {
            let bookmark = self.bookmark(pb::Bookmark::default());
            self.append(&mut relisted, &pb::WatchResponse { relisted: true, ..bookmark });
        }
        let pieces = frames.into_iter().map(|frame| frame.0).chain(is_relisted.then(|| relisted.freeze()));
        self.ready = Some(pieces.collect::<Chunk>()).filter(Buf::has_remaining);
    }

    /// Hands out the encoded bytes; if there are none, many objects were checked in vain, and the body yields.
    fn hand_out(&mut self, buffer: BytesMut, cx: &mut Context<'_>) -> Poll<StepResult> {
        if buffer.is_empty() {
            return yield_now(cx);
        }
        self.ready = Some(buffer.freeze().into());
        Poll::Ready(StepResult::Progress)
    }
}

/// Yields: wakes this task again, after the others that are due.
fn yield_now(cx: &Context<'_>) -> Poll<StepResult> {
    cx.waker().wake_by_ref();
    Poll::Pending
}
