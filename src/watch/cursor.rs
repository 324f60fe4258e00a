//! Reader of the distribution: one client's position in its group's log.

use std::{
    fmt, future,
    sync::{Arc, Weak, atomic::Ordering},
    task::{Context, Poll, Waker},
};

use smallvec::{SmallVec, smallvec};
use tokio::time::Instant;

#[cfg(test)]
use super::run::Run;
use super::{
    CursorState, End, Frame, FullChannelPolicy,
    broadcaster::BroadcasterStats,
    coalesce::Telling,
    group::{Due, Group, Log, Phase, Slot},
    merger::Reader,
};
use crate::model::{Reached, ResourceVersion, Selection};

/// Queue of one client. Dropping it unsubscribes.
pub struct Cursor<F: Frame> {
    group: Arc<Group<F>>,
    slot: usize,
    stats: Arc<BroadcasterStats>,
    queue_size: usize,
    reached: Reached,
    taken: u64,
    /// Under COALESCE: the generation that is being delivered.
    telling: Option<Box<Telling>>,
}

/// View of a cursor's lag and state from outside.
#[derive(Debug, Clone)]
pub struct CursorGauge<F: Frame> {
    group: Weak<Group<F>>,
    slot: usize,
    id: u64,
}

/// Consecutive slices: a single one if they were published together.
pub type Frames<F> = SmallVec<[F; 1]>;

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
        queue_size: usize,
        reached: Reached,
    ) -> Self {
        stats.watchers.fetch_add(1, Ordering::Relaxed);
        Self { group, slot, stats, queue_size, reached, taken: 0, telling: None }
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
    pub fn reached(&self) -> &Reached {
        &self.reached
    }

    /// Advances to a position that was distributed while the cursor was at the head (for a bookmark).
    pub fn advance(&mut self, distributed: &Reached) {
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
    pub fn advance_at_head(&mut self, distributed: Option<&Reached>) -> bool {
        let log = self.group.log.lock();
        if !self.is_at_head_of(&log) {
            return false;
        }
        // Read together with the head: as soon as more is filled, there is something to take first.
        let filled = log.deferred.as_ref().map(|deferred| deferred.filled.clone());
        drop(log);
        let lags = |filled: &&Reached| distributed.is_some_and(|distributed| filled.offset < distributed.offset);
        if let Some(reached) = filled.as_ref().filter(lags).or(distributed) {
            self.advance(reached);
        }
        true
    }

    /// Returns the position to which threads have filled its group, if it is deferred.
    #[cfg(test)]
    pub(super) fn filled(&self) -> Option<Reached> {
        self.group.log.lock().deferred.as_ref().map(|deferred| deferred.filled.clone())
    }

    /// Returns what its group retains: the bytes of runs and marks, and the frames.
    #[cfg(test)]
    pub(super) fn kept(&self) -> (usize, Vec<F>) {
        let log = self.group.log.lock();
        let marks: usize = log.runs.iter().map(|run| size_of_val(&*run.marks)).sum();
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
        if slot.evicted {
            return false;
        }
        let has_all = slot.position == log.head && !slot.is_merging() && self.telling.is_none();
        has_all && log.end.is_none()
    }

    /// Returns the number of events taken.
    pub fn taken(&self) -> u64 {
        self.taken
    }

    /// Returns the memory of the events that this cursor alone holds and is about to yield.
    pub fn held(&self) -> usize {
        self.telling.as_ref().map_or(0, |telling| telling.size().entries)
    }

    /// Returns a gauge of this cursor that does not keep it alive.
    pub fn gauge(&self) -> CursorGauge<F> {
        let id = self.group.log.lock().slots[self.slot].id;
        CursorGauge { group: Arc::downgrade(&self.group), slot: self.slot, id }
    }

    /// Ends the time in which every policy behaves as REPLAY: the initial events have been delivered. The policy acts once
    /// the cursor has caught up with its queue for the first time, so that no client loses its queue to a long snapshot.
    pub fn go_live(&mut self) {
        let mut log = self.group.log.lock();
        let slot = &mut log.slots[self.slot];
        if slot.phase == Phase::Initial {
            slot.phase = Phase::CatchingUp;
        }
    }

    /// Takes everything up to the head, at most `max_size` in the frame's unit, but at least one event.
    ///
    /// # Cancel safety
    ///
    /// Nothing is taken unless it is returned.
    pub fn poll_take(&mut self, cx: &mut Context<'_>, max_size: usize) -> Poll<Taken<F>> {
        // Without `must_fit`, no event is too large.
        self.poll_take_or_not(cx, max_size, false).map(|taken| taken.unwrap_or(Taken::Parked))
    }

    /// Takes the same, but nothing if the next event alone is larger than `max_size`, or its size is not known before it is
    /// encoded.
    ///
    /// # Cancel safety
    ///
    /// Nothing is taken unless it is returned.
    pub fn poll_take_fitting(&mut self, cx: &mut Context<'_>, max_size: usize) -> Poll<Result<Taken<F>, TooLarge>> {
        self.poll_take_or_not(cx, max_size, true)
    }

    fn poll_take_or_not(
        &mut self,
        cx: &mut Context<'_>,
        max_size: usize,
        must_fit: bool,
    ) -> Poll<Result<Taken<F>, TooLarge>> {
        let mut displaced: Option<Waker> = None;
        let mut is_freed = false;
        let polled = loop {
            if must_fit && self.telling.as_ref().is_some_and(|telling| !telling.is_done()) {
                return Poll::Ready(Err(TooLarge(None)));
            }
            if let Some(told) = self.tell(max_size) {
                return Poll::Ready(Ok(told));
            }
            let mut log = self.group.log.lock();
            match log.due(self.slot, self.queue_size, &self.reached) {
                Due::Log => {}
                Due::Tell(telling) => {
                    self.reached.version = telling.before(&self.reached);
                    self.telling = Some(telling);
                    continue;
                }
                Due::End(end) => break Poll::Ready(Ok(Taken::Ended(end))),
                due @ (Due::Merge | Due::Wait) => {
                    displaced = log.park(self.slot, cx.waker());
                    let id = log.slots[self.slot].id;
                    drop(log);
                    if matches!(due, Due::Merge) {
                        self.group.merger.merge(Reader::new(&self.group, self.slot, id));
                        if !self.group.merger.has_threads() {
                            continue;
                        }
                    }
                    break Poll::Pending;
                }
            }
            if must_fit {
                let size = next_size(&log, self.slot);
                if size > max_size {
                    return Poll::Ready(Err(TooLarge(Some(size))));
                }
            }
            let before = log.slots[self.slot].position;
            let taken = take(&mut log, self.slot, self.queue_size, max_size, &mut self.reached);
            if let Some(taken) = taken {
                if let Taken::Frames(_) = taken {
                    let events = log.slots[self.slot].position - before;
                    self.taken += events;
                    self.stats.delivered.fetch_add(events, Ordering::Relaxed);
                    is_freed = log.note_read(self.slot, events, self.queue_size, &self.group.room);
                    log.note_taken(self.slot, self.reached.offset);
                }
                break Poll::Ready(Ok(taken));
            }
            displaced = log.park(self.slot, cx.waker());
            break Poll::Pending;
        };
        drop(displaced);
        if is_freed {
            self.group.room.free();
        }
        if let Poll::Ready(Ok(Taken::Dropped { count, .. })) = &polled {
            self.stats.dropped.fetch_add(*count, Ordering::Relaxed);
        }
        polled
    }

    /// Encodes the next part of the generation that is being delivered, outside of any lock.
    fn tell(&mut self, max_size: usize) -> Option<Taken<F>> {
        let mut telling = self.telling.take()?;
        let taken = (!telling.is_done()).then(|| {
            let (frame, events) = telling.encode::<F>(&self.reached, self.group.format, max_size);
            self.taken += events;
            self.stats.delivered.fetch_add(events, Ordering::Relaxed);
            Taken::Frames(smallvec![frame])
        });
        // Reached also if all of its events have vanished.
        if telling.is_done() {
            self.reached = telling.after(&self.reached);
        }
        self.telling = Some(telling).filter(|telling| !telling.is_done());
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
        let group = self.group.upgrade()?;
        let log = group.log.lock();
        let slot = log.slots.get(self.slot).filter(|slot| slot.id == self.id)?;
        Some(log.head - slot.position)
    }

    /// Returns what the policy does with the cursor; `None` if it was dropped.
    pub fn state(&self) -> Option<CursorState> {
        let group = self.group.upgrade()?;
        let log = group.log.lock();
        let slot = log.slots.get(self.slot).filter(|slot| slot.id == self.id)?;
        Some(match slot.merged_size() {
            Some((entries, bodies)) => CursorState::Coalescing { entries, bodies },
            None if slot.is_blocking => CursorState::Blocking,
            None if slot.frozen_at.is_some() => CursorState::Frozen,
            None => CursorState::Following,
        })
    }

    /// Returns true if the cursor was evicted under BLOCK, and its reader has not dropped it yet.
    pub fn is_evicted(&self) -> bool {
        let Some(group) = self.group.upgrade() else { return false };
        let log = group.log.lock();
        log.slots.get(self.slot).is_some_and(|slot| slot.id == self.id && slot.evicted)
    }
}

impl<F: Frame> Drop for Cursor<F> {
    fn drop(&mut self) {
        // Bound to names, so that the slot's waker is dropped after the lock.
        let (slot, is_freed, is_vacant) = {
            let mut log = self.group.log.lock();
            let mut slot = log.unsubscribe(self.slot);
            let is_freed = slot.unblock(&self.group.room, Instant::now());
            (slot, is_freed, log.slots.is_empty())
        };
        if slot.coalescing.is_some() {
            self.group.merger.unregister(slot.id);
        }
        if is_freed {
            self.group.room.free();
        }
        if is_vacant {
            self.group.room.vacate(self.group.id);
        }
        self.stats.watchers.fetch_sub(1, Ordering::Relaxed);
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

/// Decides what a slot yields next; `None` if there is nothing yet.
fn take<F: Frame>(
    log: &mut Log<F>,
    index: usize,
    queue_size: usize,
    max_size: usize,
    reached: &mut Reached,
) -> Option<Taken<F>> {
    let (head, head_size, is_gone) = (log.head, log.head_size, log.slots[index].position < log.tail());
    let Slot { position, position_size, queue, evicted, .. } = log.slots[index];
    if evicted {
        return Some(Taken::Ended(End::SlowConsumer));
    }
    let lag = head - position;
    let is_over = lag > queue.length.max(1) as u64 || head_size - position_size > queue_size as u64;
    if log.slots[index].phase == Phase::CatchingUp {
        let is_leaving_out = log.is_leaving_out(index, reached);
        // A relist has closed the version that the client had completely. Inside its batch, only a replay never lowers the
        // version.
        if log.goes_back(position, &reached.version) {
            return Some(Taken::Parked);
        }
        if !is_over && !is_leaving_out {
            log.go_live(index);
        }
    }
    let drops = log.slots[index].phase == Phase::Live && queue.policy == FullChannelPolicy::Drop;
    if is_gone && !drops {
        return Some(Taken::Parked);
    }
    if drops && is_over && log.slots[index].frozen_at.is_none() {
        // A single event larger than the whole queue loses no other.
        log.slots[index].frozen_at = Some(frozen_end(log, index, queue_size)).filter(|end| *end < head);
    }
    let frozen_at = log.slots[index].frozen_at;
    if is_gone || frozen_at == Some(position) {
        let slot = &mut log.slots[index];
        (slot.position, slot.position_size, slot.frozen_at) = (head, head_size, None);
        let after = std::mem::replace(reached, log.head_reached.clone()).version;
        return Some(Taken::Dropped { count: lag, after });
    }
    if lag == 0 {
        return log.end.clone().map(Taken::Ended);
    }
    let (frames, position, position_size) = log.read(position, frozen_at.unwrap_or(head), max_size, reached);
    let slot = &mut log.slots[index];
    (slot.position, slot.position_size) = (position, position_size);
    Some(Taken::Frames(frames))
}

/// Returns the size of the next event of a slot, 0 if there is none.
fn next_size<F: Frame>(log: &Log<F>, index: usize) -> usize {
    let position = log.slots[index].position;
    let at = log.runs.partition_point(|run| run.end() <= position);
    let Some(run) = log.runs.get(at).filter(|run| run.first <= position) else { return 0 };
    let from = (position - run.first) as usize;
    run.marks.get(from).map_or(0, |mark| mark.end as usize - run.start_of(from))
}

/// Returns the end of a full queue: as many events as its length, within its size, but at least one.
fn frozen_end<F: Frame>(log: &Log<F>, index: usize, queue_size: usize) -> u64 {
    let slot: &Slot = &log.slots[index];
    let by_length = slot.position + slot.queue.length.max(1) as u64;
    let by_size = log.position_at_size(slot.position_size + queue_size as u64);
    by_length.min(by_size).max(slot.position + 1).min(log.head)
}

#[cfg(test)]
mod tests;
