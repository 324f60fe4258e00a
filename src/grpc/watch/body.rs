//! Response body of one watch, which its connection polls.
//!
//! Order in which data is sent: first a chunk that is ready; then the end of the stream, once it is decided; then the data of
//! the current stage: initial events, missed events, or frames from the cursor; and when the cursor is at the head, a bookmark
//! that is due. So a bookmark never overtakes an event, and the body notices a drain and timeouts at every poll.
//!
//! ```text
//!   InitialEvents ──▶ Live ◀──────────────── Replay ◀──┐
//!                      │ parked                │ more   │
//!                      └─────▶ Joining ◀───────┘        │
//!                                 └─────────────────────┘
//! ```

mod bounded_body;
mod stage;

use std::{
    fmt,
    pin::Pin,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::BytesMut;
use tokio::time::{Instant, Sleep};
use tokio_util::sync::WaitForCancellationFutureOwned;
use tonic::Status;

pub(super) use self::stage::Begin;
use self::stage::Stage;
use super::{
    super::{
        frame::{self, CHUNK_BYTES, WireFrame},
        resource::ServedResource,
        service::Service,
        status::ApiError,
        watchers::WatcherEntry,
    },
    initial_events::{InitialEvents, InitialProgress},
    timer::BookmarkTimer,
};
use crate::{
    cache::{Joined, ProgressGuard, Start, SyncState},
    model::{HistoryPosition, ResourceVersion},
    proto::{self, pb},
    transport::{Chunk, Room, UNKNOWN},
    watch::{BacklogReader, Cursor, End, Subscribe, Taken, TooLarge},
};

/// Response body of one watch.
pub(in super::super) struct WatchBody {
    service: Service,
    resource: Arc<ServedResource>,
    /// Options with which the watch joined, and with which it joins again.
    subscribe: Subscribe<WireFrame>,
    stage: Stage,
    /// Cursor into the published events; none while the watch holds only a version and reads the history.
    cursor: Option<Cursor<WireFrame>>,
    /// Number of the history that the client's versions belong to.
    history_id: u64,
    /// State of the source that the client last received.
    reported_state: SyncState,
    /// Demand for progress: the client wants to learn of the upstream's progress at once.
    _waiting: Option<ProgressGuard>,
    bookmarks: BookmarkTimer,
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
}

/// A call that has been checked and joined.
pub(super) struct Opened {
    pub(super) service: Service,
    pub(super) resource: Arc<ServedResource>,
    pub(super) subscribe: Subscribe<WireFrame>,
    pub(super) begin: Begin,
    pub(super) joined: Joined<WireFrame>,
    pub(super) bookmark_interval: Duration,
    pub(super) waiting: Option<ProgressGuard>,
    /// Time at which the watch ends with a bookmark and status OK.
    pub(super) ends_at: Option<Instant>,
    pub(super) watcher: WatcherEntry,
}

/// Result of one step of the body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepResult {
    /// There may be data to hand out.
    Progress,
    /// The next data does not fit into the room; it needs this many bytes.
    TooLarge(usize),
}

/// Approximate maximum size of the bookmark at the end of the initial events, in bytes.
const END_BYTES: usize = 512;

// === impl WatchBody ===

impl WatchBody {
    pub(super) fn new(opened: Opened) -> Self {
        let Opened { service, resource, mut subscribe, begin, watcher, .. } = opened;
        let Joined { snapshot, backlog, cursor, history_id } = opened.joined;
        let opened_state = resource.informer.state();
        let is_bookmark_first = begin == Begin::Bookmark;
        let stage = match begin {
            Begin::InitialEvents => {
                let held = service.snapshots(&resource).hold(&snapshot, watcher.stream());
                let initial = InitialEvents::new(snapshot, &subscribe.selection).holding(held);
                Stage::initial_events(initial, service.bulk_scheduler().begin(watcher.peer()), backlog)
            }
            Begin::After(version) => Stage::after(version, backlog),
            Begin::Bookmark => Stage::Live,
        };
        if let Some(cursor) = &cursor {
            // The group's own selection is shared: there are many watches, and few selections.
            subscribe.selection = Arc::clone(cursor.selection());
        }
        let mut body = Self {
            service,
            resource,
            subscribe,
            stage,
            cursor,
            history_id,
            reported_state: opened_state,
            _waiting: opened.waiting,
            bookmarks: BookmarkTimer::new(opened.bookmark_interval),
            ends_at: opened.ends_at.map(|at| Box::pin(tokio::time::sleep_until(at))),
            drained: None,
            notify_seq: 0,
            status_changed: false,
            drain_at: None,
            ready: None,
            end: None,
            is_over: false,
            watcher,
        };
        body.watcher.reads(body.cursor.as_ref());
        body.watcher.enters(body.stage.state());
        if is_bookmark_first {
            let bookmark = body.bookmark(pb::Bookmark::default());
            body.send(&[bookmark]);
        }
        body
    }

    /// Returns the version to resume from; none while the initial events are incomplete.
    fn position(&self) -> Option<&ResourceVersion> {
        match &self.stage {
            Stage::InitialEvents(..) => None,
            Stage::Replay(backlog) => Some(backlog.version()),
            Stage::Joining(reached, _) => Some(&reached.version),
            Stage::Live => self.cursor.as_ref().map(Cursor::version),
        }
    }

    /// Creates a bookmark at this client's own position, with the state of the source.
    fn bookmark(&mut self, mut bookmark: pb::Bookmark) -> pb::WatchResponse {
        let report = self.resource.informer.report();
        (self.reported_state, self.status_changed) = (report.state, false);
        bookmark.set_source(proto::sync_state(report.state));
        bookmark.source_seen_at = report.seen_at.map(proto::timestamp);
        bookmark.history = self.resource.informer.history(self.history_id);
        frame::bookmark(self.position(), bookmark)
    }

    fn send(&mut self, responses: &[pb::WatchResponse]) {
        let mut buffer = BytesMut::new();
        for response in responses {
            frame::append(&mut buffer, response);
        }
        self.ready = Some(buffer.freeze().into());
    }

    /// Returns true if the upstream's history was rewritten since the client joined, even if its cursor has not noticed yet.
    fn is_history_rewritten(&self) -> bool {
        self.resource.informer.history_id() != self.history_id
    }

    /// Ends the stream: with a bookmark, an ERROR as the last message, and the same status for the RPC.
    fn end_with(&mut self, refusal: &ApiError) {
        // Takes precedence over any other reason: the client must not resume with its version in the rewritten history.
        let refusal = if self.is_history_rewritten() { &ApiError::HistoryRewritten } else { refusal };
        if *refusal == ApiError::HistoryRewritten {
            // No bookmark: there is no version to resume from.
            self.send(&[frame::error(None, refusal.to_proto())]);
        } else {
            let is_draining = *refusal == ApiError::Draining;
            let bookmark = self.bookmark(pb::Bookmark { draining: is_draining, ..Default::default() });
            let error = frame::error(self.position(), refusal.to_proto());
            self.send(&[bookmark, error]);
        }
        self.end = Some(refusal.to_status());
        tracing::debug!(resource = self.resource.name, ?refusal, "watch ended");
    }

    /// Returns true if the server has begun to drain.
    fn poll_drained(&mut self, cx: &mut Context<'_>) -> bool {
        if let Stage::Live = self.stage {
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

    /// Ends the stream if it drains or its timeout has passed.
    fn poll_end(&mut self, cx: &mut Context<'_>) {
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
            if self.is_history_rewritten() {
                self.end_with(&ApiError::HistoryRewritten);
                return;
            }
            let bookmark = self.bookmark(pb::Bookmark::default());
            self.send(&[bookmark]);
            self.end = Some(Status::ok(""));
        }
    }

    /// Encodes the next piece, moves to the next stage, or parks.
    fn poll_next(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<StepResult> {
        let (is_notified, is_timed) = (self.check_notified(), self.ends_at.is_some() || self.drain_at.is_some());
        if !matches!(self.stage, Stage::Live) || is_timed || is_notified {
            self.poll_end(cx);
        }
        if self.end.is_some() {
            return Poll::Ready(StepResult::Progress);
        }
        match self.stage {
            Stage::InitialEvents(..) | Stage::Replay(..) if room.is_shut() => {
                Poll::Ready(StepResult::TooLarge(END_BYTES))
            }
            Stage::InitialEvents(..) => self.poll_initial_events(cx, room),
            Stage::Replay(..) => self.poll_replay(cx, room),
            Stage::Joining(..) => self.poll_joining(cx),
            Stage::Live => self.poll_live(cx, room),
        }
    }

    fn poll_initial_events(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<StepResult> {
        let Stage::InitialEvents(initial, permit, then) = &mut self.stage else {
            return Poll::Ready(StepResult::Progress);
        };
        ready!(permit.poll(cx));
        let structs = self.service.structs();
        let (mut buffer, events, went) =
            initial.next(&self.subscribe.selection, self.subscribe.format, structs, room.without(END_BYTES));
        if let InitialProgress::TooLarge(needed) = went {
            return Poll::Ready(StepResult::TooLarge(needed + END_BYTES));
        }
        permit.release();
        self.watcher.sent(events, None);
        if went == InitialProgress::Done {
            match then.take() {
                Some(backlog) => self.enter(Stage::Replay(backlog)),
                None => self.go_live(),
            }
            let end = pb::Bookmark { initial_events_end: true, ..Default::default() };
            frame::append(&mut buffer, &self.bookmark(end));
        }
        self.hand_out(buffer, cx)
    }

    fn poll_replay(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<StepResult> {
        let Stage::Replay(backlog) = &mut self.stage else { return Poll::Ready(StepResult::Progress) };
        let informer = &self.resource.informer;
        let bytes = CHUNK_BYTES.min(room.bytes);
        let taken = backlog.poll_take(
            cx,
            informer.backfill(),
            &self.subscribe.selection,
            self.subscribe.format,
            bytes,
            room.is_strict,
        );
        let (frame, told) = match ready!(taken) {
            Ok(taken) => taken,
            Err(TooLarge(needed)) => return Poll::Ready(StepResult::TooLarge(needed.unwrap_or(UNKNOWN))),
        };
        let (is_done, has_cursor, reached) = (backlog.is_done(), self.cursor.is_some(), backlog.reached());
        let has_gap = is_done && backlog.has_gap();
        informer.stats().replayed.fetch_add(told, Ordering::Relaxed);
        self.watcher.sent(told, Some(&reached.version));
        match (is_done, has_cursor) {
            (true, true) => self.go_live(),
            (true, false) => self.join_after(reached),
            (false, _) => {}
        }
        let mut relisted = BytesMut::new();
        if has_gap && !self.is_history_rewritten() {
            // A bookmark reports a relist of which no event was delivered.
            let bookmark = self.bookmark(pb::Bookmark::default());
            frame::append(&mut relisted, &pb::WatchResponse { relisted: true, ..bookmark });
        }
        let events = frame.map(|frame| frame.0).unwrap_or_default();
        if !events.is_empty() || !relisted.is_empty() {
            self.ready = Some([events, relisted.freeze()].into_iter().collect());
        } else if !is_done {
            return yield_now(cx);
        }
        Poll::Ready(StepResult::Progress)
    }

    fn poll_joining(&mut self, cx: &mut Context<'_>) -> Poll<StepResult> {
        let Stage::Joining(reached, joining) = &mut self.stage else { return Poll::Ready(StepResult::Progress) };
        match ready!(joining.as_mut().poll(cx)) {
            // The same version may also exist in the new history, where it is another state.
            Ok(Joined { history_id, .. }) if history_id != self.history_id => {
                self.end_with(&ApiError::HistoryRewritten);
            }
            Ok(Joined { backlog, cursor, .. }) => {
                let is_gap = backlog.is_after_gap;
                let backlog = BacklogReader::new(backlog.batches, backlog.first, reached.clone(), is_gap);
                self.enter(Stage::Replay(Box::new(backlog)));
                self.watcher.reads(cursor.as_ref());
                self.cursor = cursor;
            }
            Err(error) => {
                let refusal = ApiError::join(error, Some(&reached.version), &self.resource.name);
                self.end_with(&refusal);
            }
        }
        Poll::Ready(StepResult::Progress)
    }

    fn poll_live(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<StepResult> {
        let Some(cursor) = &mut self.cursor else { return Poll::Ready(StepResult::Progress) };
        let taken = cursor.taken();
        let polled = match cursor.poll_take_fitting(cx, CHUNK_BYTES.min(room.bytes), room.is_strict) {
            Poll::Ready(Err(TooLarge(needed))) => return Poll::Ready(StepResult::TooLarge(needed.unwrap_or(UNKNOWN))),
            Poll::Ready(Ok(taken)) => Poll::Ready(taken),
            Poll::Pending => Poll::Pending,
        };
        match polled {
            Poll::Ready(Taken::Frames(frames)) => {
                self.watcher.sent(cursor.taken() - taken, Some(cursor.version()));
                self.ready = Some(frames.into_iter().map(|frame| frame.0).collect());
            }
            Poll::Ready(Taken::Dropped { count, after }) => {
                self.watcher.dropped(count);
                let dropped = frame::dropped(cursor.version(), count, &after);
                self.send(&[dropped]);
            }
            // The cursor can no longer read from the published events. The history may still have the events after it, even
            // those of an expired cursor: under COALESCE it may be ahead of its group.
            Poll::Ready(Taken::Parked | Taken::Ended(End::Expired { .. })) => {
                let reached = cursor.reached().clone();
                self.resource.informer.stats().parked.fetch_add(1, Ordering::Relaxed);
                self.join_after(reached);
            }
            Poll::Ready(Taken::Ended(end)) => {
                let refusal = ApiError::end(&end, cursor.version());
                self.end_with(&refusal);
            }
            Poll::Pending => return self.poll_quiet(cx).map(|()| StepResult::Progress),
        }
        Poll::Ready(StepResult::Progress)
    }

    /// Handles a cursor without events: sends a bookmark if one is due, or returns ready for the next step.
    fn poll_quiet(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        // A watch that was notified before it waited at its cursor is not woken: check again at once.
        if self.resource.informer.notify_seq() != self.notify_seq {
            return Poll::Ready(());
        }
        // A change of the source's state is sent at once, a version at the interval.
        self.status_changed = self.status_changed && self.resource.informer.state() != self.reported_state;
        if !self.status_changed {
            ready!(self.bookmarks.poll(cx));
        }
        // Read before the cursor reports that it is at the head: by then it may be ahead of the head, but never of what was
        // published.
        let distributed = self.resource.informer.distributed();
        let Some(cursor) = &mut self.cursor else { return Poll::Ready(()) };
        let told = cursor.version().clone();
        if !cursor.advance_at_head(distributed.as_deref()) {
            // Merged changes, or events that have arrived since, wake the watch.
            return Poll::Pending;
        }
        let relisted = self.resource.informer.is_relisted_between(&told, cursor.version());
        let bookmark = self.bookmark(pb::Bookmark::default());
        self.send(&[pb::WatchResponse { relisted, ..bookmark }]);
        self.bookmarks.reset();
        Poll::Ready(())
    }

    /// Hands out the encoded bytes; if there are none, many objects were checked in vain, and the body yields.
    fn hand_out(&mut self, buffer: BytesMut, cx: &mut Context<'_>) -> Poll<StepResult> {
        if buffer.is_empty() {
            return yield_now(cx);
        }
        self.ready = Some(buffer.freeze().into());
        Poll::Ready(StepResult::Progress)
    }

    /// Drops the cursor, if there is one, and joins again from the history after this position.
    fn join_after(&mut self, reached: HistoryPosition) {
        let subscribe = Subscribe { initial_events: true, ..self.subscribe.clone() };
        self.cursor = None;
        self.watcher.reads(None);
        let (informer, start) = (self.resource.informer.clone(), Start::AfterOffset(reached.clone()));
        self.enter(Stage::Joining(reached, Box::pin(async move { informer.join(start, subscribe).await })));
    }

    /// Enters the live stage: everything before the cursor has been handed out.
    fn go_live(&mut self) {
        if let Some(cursor) = &mut self.cursor {
            cursor.go_live();
        }
        self.enter(Stage::Live);
    }

    fn enter(&mut self, stage: Stage) {
        self.watcher.enters(stage.state());
        self.stage = stage;
    }
}

/// Yields: wakes this task again, after the others that are due.
fn yield_now(cx: &Context<'_>) -> Poll<StepResult> {
    cx.waker().wake_by_ref();
    Poll::Pending
}

impl fmt::Debug for WatchBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchBody")
            .field("resource", &self.resource.name)
            .field("selection", &self.subscribe.selection)
            .field("position", &self.position())
            .finish_non_exhaustive()
    }
}
