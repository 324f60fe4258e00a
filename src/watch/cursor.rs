//! Reader of the distribution: one client's position in its group's log.

use std::{
    fmt, future,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
};

use smallvec::smallvec;
use tokio::time::Instant;

#[cfg(test)]
use super::run::Run;
use super::{
    CursorState, End, Frame, Frames,
    coalesce::DrainingGeneration,
    config::BroadcasterStats,
    group::{Group, Log, SlotRef},
    merger::Merger,
    policy::{OnTake, State},
};
use crate::model::{HistoryPosition, ResourceVersion, Selection};

/// Queue of one client. Dropping it unsubscribes.
pub struct Cursor<F: Frame> {
    group: Arc<Group<F>>,
    slot: usize,
    stats: Arc<BroadcasterStats>,
    /// Under COALESCE.
    merger: Option<Arc<Merger<F>>>,
    queue_size: usize,
    reached: HistoryPosition,
    taken: u64,
    /// Number of suppressed changes of delivered generations.
    suppressed: u64,
    /// Under COALESCE: the generation that is being delivered.
    draining: Option<Box<DrainingGeneration>>,
}

/// View of a cursor's lag and state from outside.
#[derive(Debug, Clone)]
pub struct CursorGauge<F: Frame>(SlotRef<F>);

/// Age of the oldest event that waits for a cursor, as far as its group's log shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Waiting {
    /// No event waits.
    Nothing,
    /// The oldest one was published at this time.
    Since(Instant),
    /// The log does not have the oldest one: it comes after this version, or after the last event that was taken.
    After(Option<ResourceVersion>),
}

/// Size of the next event, which exceeds the limit; `None` if it is not known before the event is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooLarge(pub Option<usize>);

/// Result of taking from a cursor.
#[derive(Debug, Clone)]
pub enum Taken<F> {
    /// The next events, in order.
    Frames(Frames<F>),
    /// Events are missing here, under DROP.
    Dropped {
        /// Number of missing events of the selection.
        count: u64,
        /// Last version before the gap: a watch from here receives the missing events.
        after: ResourceVersion,
    },
    /// The events after [`Cursor::version`] are no longer retained here. Nothing was lost: a history may still have them.
    /// From now on the cursor yields nothing else.
    Parked,
    /// The cursor has ended.
    Ended(End),
}

// === impl Cursor ===

impl<F: Frame> Cursor<F> {
    pub(super) fn new(
        group: Arc<Group<F>>,
        slot: usize,
        stats: Arc<BroadcasterStats>,
        merger: Option<Arc<Merger<F>>>,
        queue_size: usize,
        reached: HistoryPosition,
    ) -> Self {
        for counter in [&stats.cursors, &stats.watchers] {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        Self { group, slot, stats, merger, queue_size, reached, taken: 0, suppressed: 0, draining: None }
    }

    /// Returns the selection, which all watchers of the group share.
    pub fn selection(&self) -> &Arc<Selection> {
        &self.group.selection
    }

    /// Returns the version of the last event taken, which is safe to resume from; at first, the version at which the cursor
    /// joined.
    pub fn version(&self) -> &ResourceVersion {
        &self.reached.version
    }

    /// Returns the same with its offset, from which a client resumes in a history, also inside a batch.
    pub fn reached(&self) -> &HistoryPosition {
        &self.reached
    }

    /// Advances to a position that was distributed while the cursor was at the head (for a bookmark).
    pub fn advance(&mut self, distributed: &HistoryPosition) {
        self.reached.offset = self.reached.offset.max(distributed.offset);
        if self.reached.version < distributed.version {
            self.reached.version.clone_from(&distributed.version);
        }
    }

    /// Returns true if nothing is left to take, and more may come.
    pub fn is_at_head(&self) -> bool {
        self.is_at_head_of(&self.group.log.lock())
    }

    /// Advances to `distributed` (for a bookmark), if nothing is left to take and more may come; returns true if so. The
    /// caller must read `distributed` before this call. In a deferred group, only what its threads have filled counts as
    /// distributed.
    pub fn advance_at_head(&mut self, distributed: Option<&HistoryPosition>) -> bool {
        let mut log = self.group.log.lock();
        if !self.is_at_head_of(&log) {
            return false;
        }
        let to = distributed.map_or(0, |distributed| distributed.offset).max(self.reached.offset);
        log.count_at_head(self.slot, to);
        // Read together with the head: as soon as more is filled, there is something to take first.
        let filled = log.deferred.as_ref().map(|deferred| deferred.filled.clone());
        drop(log);
        let lags =
            |filled: &&HistoryPosition| distributed.is_some_and(|distributed| filled.offset < distributed.offset);
        if let Some(reached) = filled.as_ref().filter(lags).or(distributed) {
            self.advance(reached);
        }
        true
    }

    /// Takes the number of changes that the format suppressed up to the position of this cursor, since the last call.
    pub fn take_suppressed(&mut self) -> u64 {
        std::mem::take(&mut self.suppressed) + self.group.log.lock().take_suppressed(self.slot)
    }

    /// Returns the position to which threads have filled its group, if it is deferred.
    #[cfg(test)]
    pub(super) fn filled(&self) -> Option<HistoryPosition> {
        self.group.log.lock().deferred.as_ref().map(|deferred| deferred.filled.clone())
    }

    /// Returns what its group retains: the bytes of runs and marks, and the frames.
    #[cfg(test)]
    pub(super) fn kept(&self) -> (usize, Vec<F>) {
        let log = self.group.log.lock();
        let marks: usize = log.runs.iter().map(|run| Run::<F>::size(&run.marks) - size_of::<Run<F>>()).sum();
        (log.runs.capacity() * size_of::<Run<F>>() + marks, log.runs.iter().map(|run| run.frame.clone()).collect())
    }

    #[cfg(test)]
    pub(super) fn set_cost(&self, cost: u64) {
        self.group.cost.set(cost);
    }

    #[cfg(test)]
    pub(super) fn end(&self) -> Option<End> {
        self.group.log.lock().end.clone()
    }

    fn is_at_head_of(&self, log: &Log<F>) -> bool {
        let slot = &log.slots[self.slot];
        slot.state.reads_log() && slot.position == log.head && self.draining.is_none() && log.end.is_none()
    }

    /// Returns the offset up to which the cursor has everything, if it is live, has nothing to take, and skips nothing. `distributed` must
    /// have been distributed before the call.
    pub fn standing(&self, distributed: u64) -> Option<u64> {
        let log = self.group.log.lock();
        let offset = log.distributed_to(distributed);
        let is_standing = log.is_live(self.slot) && self.is_at_head_of(&log) && self.reached.offset <= offset;
        is_standing.then_some(offset)
    }

    /// Returns true if the client has received a part of a generation: it has the state of no position.
    pub fn is_draining(&self) -> bool {
        self.draining.is_some()
    }

    /// Returns the number of events taken.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns the memory of the events that this cursor alone holds and is about to yield.
    pub fn held(&self) -> usize {
        self.draining.as_ref().map_or(0, |draining| draining.size().entries)
    }

    /// Returns a gauge of this cursor that does not keep it alive.
    pub fn gauge(&self) -> CursorGauge<F> {
        CursorGauge(self.slot_ref(&self.group.log.lock()))
    }

    fn slot_ref(&self, log: &Log<F>) -> SlotRef<F> {
        SlotRef::new(&self.group, self.slot, log.slots[self.slot].id)
    }

    /// Ends the time in which every policy behaves as REPLAY: the initial events have been delivered. The policy acts once
    /// the cursor has caught up with its queue for the first time, so that no client loses its queue to a long snapshot.
    pub fn go_live(&mut self) {
        let mut log = self.group.log.lock();
        if let State::CatchingUp { has_initial_events } = &mut log.slots[self.slot].state {
            *has_initial_events = false;
        }
    }

    /// Takes everything up to the head, at most `max_size` in the frame's unit, but at least one event.
    ///
    /// # Cancel safety
    ///
    /// Nothing is taken unless it is returned.
    pub fn poll_take(&mut self, cx: &mut Context<'_>, max_size: usize) -> Poll<Taken<F>> {
        // Without `must_fit`, no event is too large.
        self.poll_take_fitting(cx, max_size, false).map(|taken| taken.unwrap_or(Taken::Parked))
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
        let mut displaced: Option<Waker> = None;
        let (mut is_freed, mut dropped) = (false, 0);
        let polled = loop {
            if must_fit && self.draining.as_ref().is_some_and(|draining| !draining.is_done()) {
                return Poll::Ready(Err(TooLarge(None)));
            }
            if let Some(told) = self.drain(max_size) {
                return Poll::Ready(Ok(told));
            }
            let mut log = self.group.log.lock();
            let next = log.on_take(self.slot, self.queue_size, &mut self.reached);
            if must_fit && let OnTake::GoLive | OnTake::Read { .. } | OnTake::Freeze = next {
                let size = log.next_size(self.slot);
                if size > max_size {
                    return Poll::Ready(Err(TooLarge(Some(size))));
                }
            }
            let until = match next {
                OnTake::Read { until } => until,
                OnTake::Freeze => log.freeze(self.slot, self.queue_size),
                OnTake::GoLive => {
                    log.go_live(self.slot);
                    continue;
                }
                OnTake::Follow => {
                    log.follow(self.slot);
                    continue;
                }
                OnTake::Deliver => {
                    self.draining = log.take_ready(self.slot);
                    if let Some(draining) = &self.draining {
                        self.reached.version = draining.before(&self.reached);
                    }
                    continue;
                }
                OnTake::Merge => {
                    let is_new = log.merge(self.slot, &self.reached);
                    displaced = log.park(self.slot, cx.waker());
                    let slot = self.slot_ref(&log);
                    drop(log);
                    if let Some(merger) = self.merger.as_ref().filter(|_| is_new) {
                        merger.merge(slot);
                        if !merger.has_threads() {
                            continue;
                        }
                    }
                    break Poll::Pending;
                }
                OnTake::Drop => {
                    let (count, after) = log.drop_unread(self.slot, &mut self.reached);
                    dropped = count;
                    break Poll::Ready(Taken::Dropped { count, after });
                }
                OnTake::Park => break Poll::Ready(Taken::Parked),
                OnTake::End(end) => break Poll::Ready(Taken::Ended(end)),
                OnTake::Wait => {
                    if let Some(end) = &log.end {
                        break Poll::Ready(Taken::Ended(end.clone()));
                    }
                    displaced = log.park(self.slot, cx.waker());
                    break Poll::Pending;
                }
            };
            let published = log.measured(self.slot);
            let (frames, events) = log.read(self.slot, until, max_size, &mut self.reached);
            is_freed = log.note_read(self.slot, events, self.queue_size, &self.group.writer_signals);
            self.taken += events;
            self.stats.delivered.fetch_add(events, Ordering::Relaxed);
            if let Some(published) = published {
                self.stats.queued.observe(published.elapsed());
            }
            break Poll::Ready(Taken::Frames(frames));
        };
        drop(displaced);
        if is_freed {
            self.group.writer_signals.free();
        }
        if dropped > 0 {
            self.stats.dropped.fetch_add(dropped, Ordering::Relaxed);
        }
        polled.map(Ok)
    }

    /// Encodes the next part of the generation that is being delivered, outside of any lock.
    fn drain(&mut self, max_size: usize) -> Option<Taken<F>> {
        let mut draining = self.draining.take()?;
        let taken = (!draining.is_done()).then(|| {
            let (frame, events) = draining.encode::<F>(&self.reached, &self.group.format, max_size);
            self.taken += events;
            self.stats.delivered.fetch_add(events, Ordering::Relaxed);
            Taken::Frames(smallvec![frame])
        });
        // Reached also if all of its events have vanished.
        if draining.is_done() {
            self.reached = draining.after(&self.reached);
            self.suppressed += draining.suppressed();
        }
        self.draining = Some(draining).filter(|draining| !draining.is_done());
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

// === impl CursorGauge ===

impl<F: Frame> CursorGauge<F> {
    /// Returns by how many events the cursor lags behind the newest of its selection; `None` if it was dropped.
    pub fn lag(&self) -> Option<u64> {
        self.0.read(|log, slot| log.head - slot.position)
    }

    /// Returns the age of the oldest event that waits for the cursor; `None` if it was dropped.
    pub fn waiting(&self) -> Option<Waiting> {
        self.0.read(Log::waiting)
    }

    /// Returns what the policy does with the cursor; `None` if it was dropped.
    pub fn state(&self) -> Option<CursorState> {
        self.0.read(|_, slot| CursorState::from(&slot.state))
    }

    /// Returns the number of events that the cursor has lost under DROP and that its reader has not taken yet.
    pub fn unreported_losses(&self) -> u64 {
        self.0.read(Log::unreported_losses).unwrap_or_default()
    }

    /// Returns true if the cursor was evicted under BLOCK, and its reader has not dropped it yet.
    pub fn is_evicted(&self) -> bool {
        self.0.read(|_, slot| matches!(slot.state, State::Ended(End::SlowConsumer))).unwrap_or_default()
    }
}

impl<F: Frame> Drop for Cursor<F> {
    fn drop(&mut self) {
        // Bound to names, so that the slot's waker is dropped after the lock.
        let (slot, is_freed, is_vacant) = {
            let mut log = self.group.log.lock();
            let mut slot = log.unsubscribe(self.slot);
            let is_freed = slot.unblock(&self.group.writer_signals, Instant::now());
            (slot, is_freed, log.slots.is_empty())
        };
        if let Some(merger) = &self.merger {
            merger.unregister(slot.id);
        }
        if is_freed {
            self.group.writer_signals.free();
        }
        if is_vacant {
            self.group.writer_signals.vacate(self.group.id);
        }
        for counter in [&self.stats.cursors, &self.stats.watchers] {
            counter.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

impl<F: Frame> fmt::Debug for Cursor<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cursor")
            .field("selection", &self.group.selection)
            .field("reached", &self.reached)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
