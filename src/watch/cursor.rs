//! Reader of the distribution: one client's position in the history.

mod gauge;
mod taken;

use std::{
    future,
    sync::{Arc, Weak, atomic::Ordering},
    task::{Context, Poll, Waker, ready},
};

use smallvec::smallvec;
use tokio::time::Instant;

pub use self::{
    gauge::CursorGauge,
    taken::{Taken, TooLarge},
};
use super::{
    Cursors, End, Frame, FullChannelPolicy, PastGauge, Subscribe,
    blocks::{Block, Kind},
    coalesce::DrainingGeneration,
    cursors::Lifetime,
    history::Port,
    policy::State,
    queue::{Queue, Read, Turn},
    replay::ReplayPosition,
    shared::Shared,
};
use crate::model::{HistoryPosition, ResourceVersion, Selection};
#[cfg(feature = "kubernetes-api")]
use crate::{model::Change, watch::Backlog};

/// Queue of one client. Dropping it unsubscribes.
pub struct Cursor<F: Frame> {
    cursors: Arc<Cursors<F>>,
    kind: Arc<Kind<F>>,
    port: Arc<Port>,
    /// Number of the selection in the past.
    number: usize,
    lifetime: Arc<Lifetime>,
    at: ReplayPosition,
    /// True if it has nothing to take, and is woken once it may have.
    is_parked: bool,
    /// True if the client may have missed events: until it has read everything for the first time.
    is_resuming: bool,
    /// Block of which it has taken a part, if that is still kept, and its next step there.
    block: Weak<Block<F>>,
    step: usize,
    /// Under all policies but REPLAY: the queue, and its number.
    queue: Option<(Arc<Queue<F>>, usize)>,
    taken: u64,
    /// Number of suppressed changes that were passed and not taken.
    suppressed: u64,
    /// Under COALESCE: what has merged and is being delivered.
    draining: Option<Box<DrainingGeneration>>,
}

/// Result of reading a block.
enum FromBlock<F> {
    /// The next events, and their number.
    Events(F, u64),
    Nothing,
}

/// One in this many takes is measured.
const MEASURED_TAKES: u64 = 16;
/// Maximum number of blocks without an event that are read in one call.
const MAX_EMPTY_BLOCKS: usize = 16;

// === impl Cursors ===

impl<F: Frame> Cursors<F> {
    /// Subscribes a client that has everything up to a position in the history. With `is_resuming`, it may have missed events; with
    /// `is_gap`, a relist on the way to it must still be reported.
    pub(crate) fn subscribe_at(
        self: &Arc<Self>,
        subscribe: Subscribe<F>,
        HistoryPosition { version, offset }: HistoryPosition,
        (is_resuming, is_gap): (bool, bool),
    ) -> Cursor<F> {
        let Subscribe { selection, format, queue: options, client, initial_events } = subscribe;
        let (policy, shared) = (options.policy, Arc::clone(&self.shared));
        let at = ReplayPosition { version, offset, is_gap };
        let kind = shared.blocks.kind(selection, format);
        kind.enter();
        let (port, lifetime) = (Arc::new(Port::new(offset)), self.lifetime());
        let number = shared.past.add(&port, &kind.selection);
        let queue = (policy != FullChannelPolicy::Replay).then(|| {
            let has_initial_events = initial_events && !is_resuming;
            let is_live = !initial_events && !is_resuming;
            let state = if is_live { State::Live } else { State::CatchingUp { has_initial_events } };
            let budget = (policy == FullChannelPolicy::Block).then(|| self.budget(&client));
            let (kind, port) = (Arc::clone(&kind), Arc::clone(&port));
            let queue = Arc::new(Queue::new(Arc::clone(&shared), kind, port, options, at.clone(), state, budget));
            let number = self.add(&queue, offset);
            (queue, number)
        });
        shared.stats.cursors.fetch_add(1, Ordering::Relaxed);
        shared.stats.watchers.fetch_add(1, Ordering::Relaxed);
        // Who does not read yet, such as during initial events, needs only what follows the first change that concerns it.
        let head = shared.past.head();
        let mut cursor = Cursor {
            cursors: Arc::clone(self),
            kind,
            port,
            number,
            lifetime,
            at,
            is_parked: false,
            is_resuming,
            block: Weak::new(),
            step: 0,
            queue,
            taken: 0,
            suppressed: 0,
            draining: None,
        };
        if cursor.at.offset == head {
            cursor.wait(head, Waker::noop());
        }
        cursor
    }
}

// === impl Cursor ===

impl<F: Frame> Cursor<F> {
    /// Returns the selection, which all cursors of its kind share.
    pub fn selection(&self) -> &Arc<Selection> {
        &self.kind.selection
    }

    /// Returns the version up to which everything was taken, which is safe to resume from; at first, the version at which the cursor
    /// joined.
    pub fn version(&self) -> &ResourceVersion {
        &self.at.version
    }

    /// Returns the same with its offset, from which a client resumes in a history, also inside a batch.
    pub fn reached(&self) -> HistoryPosition {
        HistoryPosition { version: self.at.version.clone(), offset: self.at.offset }
    }

    /// Returns true if a relist before the position must still be reported to the client.
    pub fn has_gap(&self) -> bool {
        self.at.is_gap
    }

    /// Takes the relist that must still be reported.
    pub(crate) fn take_gap(&mut self) -> bool {
        std::mem::take(&mut self.at.is_gap)
    }

    /// Returns true while the client may have missed events.
    pub fn is_resuming(&self) -> bool {
        self.is_resuming
    }

    /// Advances to `distributed` (for a bookmark), if nothing is left to take and more may come; returns true if so. The
    /// caller must read `distributed` before this call, and report relists on the way.
    pub fn advance_at_head(&mut self, distributed: Option<&HistoryPosition>) -> bool {
        let Some(distributed) = distributed else { return false };
        if self.standing(distributed.offset).is_none() {
            return false;
        }
        // What was distributed last may be of the history before.
        if distributed.offset < self.at.offset {
            return true;
        }
        self.at.offset = self.at.offset.max(distributed.offset);
        self.port.reads(self.at.offset);
        if self.at.version < distributed.version {
            self.at.version.clone_from(&distributed.version);
        }
        self.at.is_gap = false;
        true
    }

    /// Returns the offset up to which the cursor has everything, if it has nothing to take. `distributed` must have been distributed
    /// before the call.
    pub fn standing(&self, distributed: u64) -> Option<u64> {
        let is_at_head = self.draining.is_none()
            && self.lifetime.end(true).is_none()
            && if self.is_parked { self.port.advance(distributed) } else { self.at.offset >= distributed };
        is_at_head.then(|| self.at.offset.max(distributed))
    }

    /// Takes the number of changes that the format suppressed up to the position of this cursor, since the last call.
    pub fn take_suppressed(&mut self) -> u64 {
        std::mem::take(&mut self.suppressed)
    }

    /// Returns true if the client has received a part of merged changes: it has the state of no position.
    pub fn is_draining(&self) -> bool {
        self.draining.is_some()
    }

    /// Returns the memory of the events that this cursor alone holds and is about to yield.
    pub fn held(&self) -> usize {
        self.draining.as_ref().map_or(0, |draining| draining.size().entries)
    }

    /// Returns the number of events taken.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns a gauge of this cursor that does not keep it alive.
    pub fn gauge(&self) -> CursorGauge<F> {
        let past = PastGauge::new(&self.cursors.shared.past, &self.port);
        let queue = self.queue.as_ref().map(|(queue, _)| Arc::downgrade(queue));
        CursorGauge { past, queue }
    }

    /// Ends the time in which every policy behaves as REPLAY: the initial events have been delivered. The policy acts once
    /// the cursor has caught up with its queue for the first time, so that no client loses its queue to a long snapshot.
    pub fn go_live(&mut self) {
        self.queue.iter().for_each(|(queue, _)| queue.go_live());
    }

    /// Gives up the queue: the cursor takes nothing more.
    pub(crate) fn leave_queue(&self) {
        self.queue.iter().for_each(|(queue, _)| queue.leave());
    }

    /// Skips what the client has of what follows, up to the first change that `is_last`, if that is among the first ones.
    #[cfg(feature = "kubernetes-api")]
    pub(crate) fn skip_through(&mut self, is_last: impl Fn(&Change) -> bool) {
        let backlog = self.cursors.shared.past.history().lock().after_offset(&self.reached());
        let Ok(Backlog { batches, first, .. }) = backlog else { return };
        let at = batches.iter().flat_map(|batch| &batch.changes).position(is_last);
        if let Some(at) = at {
            let offset = first + at as u64 + 1;
            self.move_to(ReplayPosition { offset, ..self.at.clone() });
        }
    }

    /// Takes everything up to the head, at most `max_size` in the frame's unit, but at least one event.
    ///
    /// # Cancel safety
    ///
    /// Nothing is taken unless it is returned.
    pub fn poll_take(&mut self, cx: &mut Context<'_>, max_size: usize) -> Poll<Taken<F>> {
        // Without `must_fit`, no event is too large.
        self.poll_take_fitting(cx, max_size, false).map(|taken| taken.unwrap_or(Taken::Ended(End::Failed)))
    }

    /// Takes the same. With `must_fit`, takes nothing if the next event alone is larger than `max_size`, or its size is not
    /// known before it is encoded.
    ///
    /// # Cancel safety
    ///
    /// Nothing is taken unless it is returned.
    pub fn poll_take_fitting(
        &mut self,
        cx: &mut Context<'_>,
        max_size: usize,
        must_fit: bool,
    ) -> Poll<Result<Taken<F>, TooLarge>> {
        for _ in 0..MAX_EMPTY_BLOCKS {
            if must_fit && self.draining.as_ref().is_some_and(|draining| !draining.is_done()) {
                return Poll::Ready(Err(TooLarge(None)));
            }
            if let Some(told) = self.drain(max_size) {
                return Poll::Ready(Ok(told));
            }
            if self.is_parked {
                let Some(from) = self.port.repark(cx.waker()) else {
                    self.is_resuming = false;
                    self.queue.iter().for_each(|(queue, _)| queue.has_caught_up());
                    return Poll::Pending;
                };
                self.is_parked = false;
                self.skip_to(from);
            }
            // Loaded before the end is looked for: everything published before that is read.
            let has_ended = self.lifetime.end(true).is_some();
            let head = self.cursors.shared.past.head();
            let until = match &self.queue {
                None => u64::MAX,
                Some((queue, _)) => match ready!(queue.poll_turn(cx, head)) {
                    // What was counted may be of a past that has begun anew.
                    _ if self.lifetime.end(false).is_some() => u64::MAX,
                    Turn::Read(until) => until,
                    Turn::Moved { to, lost, suppressed } => {
                        let after = self.at.version.clone();
                        self.suppressed += suppressed;
                        self.move_to(to);
                        if lost > 0 {
                            self.cursors.shared.stats.dropped.fetch_add(lost, Ordering::Relaxed);
                            return Poll::Ready(Ok(Taken::Dropped { count: lost, after }));
                        }
                        continue;
                    }
                    Turn::Deliver(draining) => {
                        self.at.version = draining.before(&self.reached());
                        self.port.reads(draining.position().offset);
                        self.draining = Some(draining);
                        continue;
                    }
                    Turn::Ended(end) => return Poll::Ready(Ok(Taken::Ended(end))),
                },
            };
            if let Some(end) = self.lifetime.end(has_ended && self.at.offset >= head) {
                return Poll::Ready(Ok(Taken::Ended(end.clone())));
            }
            if self.at.offset >= head {
                self.is_resuming = false;
                if self.wait(head, cx.waker()) {
                    return Poll::Pending;
                }
                continue;
            }
            if must_fit && max_size == 0 {
                return Poll::Ready(Err(TooLarge(None)));
            }
            let (block, is_kept) = if let Some(kept) = self.block.upgrade() {
                (kept, true)
            } else {
                let polled = self.cursors.shared.blocks.poll_block(cx, &self.kind, &self.at, (head, max_size));
                // What was read may be of a past that has begun anew.
                if polled.is_ready()
                    && let Some(end) = self.lifetime.end(false)
                {
                    return Poll::Ready(Ok(Taken::Ended(end.clone())));
                }
                let Ok(block) = ready!(polled) else {
                    // It was lost or merged since the turn was decided: then the next one says so.
                    if self.queue.as_ref().is_some_and(|(queue, _)| queue.is_acting()) {
                        continue;
                    }
                    let end = End::Expired { oldest: self.cursors.shared.oldest() };
                    return Poll::Ready(Ok(Taken::Ended(end)));
                };
                if block.has_failed {
                    return Poll::Ready(Ok(Taken::Ended(End::Failed)));
                }
                self.step = 0;
                (block, false)
            };
            let from = self.at.offset;
            let taken = self.take_from(&block, until, max_size, must_fit);
            let has_more = self.step < block.steps.len();
            if !has_more {
                self.block = Weak::new();
            } else if !is_kept {
                self.block = Arc::downgrade(&block);
            }
            if let FromBlock::Events(frame, events) = taken? {
                self.measure(from, events);
                if self.at.offset >= head {
                    // Who does not take again for long needs only what follows the next change that concerns it.
                    self.wait(head, Waker::noop());
                }
                return Poll::Ready(Ok(Taken::Frames(smallvec![frame])));
            }
        }
        // Many changes were passed in vain: others come first.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Continues at an offset before which nothing concerns the cursor.
    fn skip_to(&mut self, from: u64) {
        if from > self.at.offset {
            self.at.is_gap |= self.cursors.shared.past.has_relist_between(&self.at.version, self.at.offset, from);
            self.at.offset = from;
            self.port.reads(from);
        }
    }

    /// Waits for what follows the head. Returns false if there is something.
    fn wait(&mut self, head: u64, waker: &Waker) -> bool {
        let past = &self.cursors.shared.past;
        let is_still_there = || past.head() == head && self.lifetime.end(true).is_none();
        self.is_parked = self.port.park_at_head(self.at.offset, waker, is_still_there);
        self.is_parked
    }

    fn move_to(&mut self, at: ReplayPosition) {
        self.at = at;
        (self.block, self.step) = (Weak::new(), 0);
        self.port.reads(self.at.offset);
    }

    /// Takes the next events of a block, up to an offset.
    fn take_from(
        &mut self,
        block: &Block<F>,
        until: u64,
        max_size: usize,
        must_fit: bool,
    ) -> Result<FromBlock<F>, TooLarge> {
        let start = self.step.checked_sub(1).map_or(0, |last| block.steps[last].end);
        let first = self.step;
        let (mut end, mut events, mut suppressed, mut last, mut too_large) = (start, 0, 0, None, None);
        while let Some(step) = block.steps.get(self.step) {
            let size = step.end - start;
            if step.is_event && size > max_size && (events > 0 || must_fit) {
                too_large = (events == 0).then_some(TooLarge(Some(size)));
                break;
            }
            events += u64::from(step.is_event);
            suppressed += step.suppressed;
            (end, last) = (step.end, Some(&step.position));
            self.step += 1;
            if step.position.offset >= until {
                break;
            }
        }
        // First the queue: whoever looks at it meanwhile counts from the position that is further.
        let note = |(queue, _): &(Arc<Queue<F>>, usize)| Some(queue.note_read(last?, events, suppressed));
        let read = self.queue.as_ref().and_then(note);
        if read == Some(Read::Refused) {
            self.step = first;
            return Ok(FromBlock::Nothing);
        }
        if let Some(last) = last {
            self.at.clone_from(last);
            self.port.reads(self.at.offset);
        }
        self.suppressed += suppressed;
        if read == Some(Read::Frees) {
            self.cursors.shared.signals.free();
        }
        if let Some(too_large) = too_large {
            return Err(too_large);
        }
        if events == 0 {
            return Ok(FromBlock::Nothing);
        }
        Ok(FromBlock::Events(block.frame.slice(start..end), events))
    }

    /// Counts events that were taken after an offset, and measures the time since they were published now and then.
    fn measure(&mut self, from: u64, events: u64) {
        let is_measured = self.taken % MEASURED_TAKES + events >= MEASURED_TAKES;
        self.taken += events;
        let Shared { past, stats, .. } = &*self.cursors.shared;
        stats.delivered.fetch_add(events, Ordering::Relaxed);
        if is_measured && let Some(at) = past.history().lock().recorded_after(from) {
            stats.queued.observe(Instant::now().saturating_duration_since(at));
        }
    }

    /// Encodes the next part of what has merged, outside of any lock.
    fn drain(&mut self, max_size: usize) -> Option<Taken<F>> {
        let mut draining = self.draining.take()?;
        let taken = (!draining.is_done()).then(|| {
            let (frame, events) = draining.encode::<F>(&self.reached(), &self.kind.format, max_size);
            self.taken += events;
            self.cursors.shared.stats.delivered.fetch_add(events, Ordering::Relaxed);
            Taken::Frames(smallvec![frame])
        });
        if draining.is_done() {
            // Reached also if all of its events have vanished.
            let HistoryPosition { version, .. } = draining.after(&self.reached());
            self.suppressed += draining.suppressed();
            self.move_to(ReplayPosition { version, ..draining.position().clone() });
        } else {
            self.draining = Some(draining);
        }
        taken
    }

    /// Waits for the next result of [`Cursor::poll_take`].
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped.
    pub async fn take(&mut self, max_size: usize) -> Taken<F> {
        future::poll_fn(|cx| self.poll_take(cx, max_size)).await
    }
}

impl<F: Frame> Drop for Cursor<F> {
    fn drop(&mut self) {
        self.cursors.shared.past.remove(self.number);
        if let Some((_, number)) = self.queue.take() {
            self.cursors.remove(number);
        }
        self.kind.leave();
        self.cursors.shared.stats.cursors.fetch_sub(1, Ordering::Relaxed);
        self.cursors.shared.stats.watchers.fetch_sub(1, Ordering::Relaxed);
    }
}

debug_fields!([F: Frame] Cursor<F>, this => { selection: this.kind.selection, at: this.at });
