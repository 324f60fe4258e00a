//! COALESCE: the steps of a slot's reader, and of the threads that merge for it.
//!
//! A slot follows the log until its queue is full at a take, or until the history is about to drop events that it has not
//! taken. From then on its changes merge ([`Merger`](crate::watch::merger::Merger)), from the published batches and not
//! from the log. When everything in its queue has merged, its reader takes the generation, and follows the log again if
//! nothing more was published. A generation is taken out of its slot while a thread works on it.

use std::task::Waker;

use super::Log;
use crate::{
    model::HistoryPosition,
    watch::{
        End, Frame,
        coalesce::{Coalescing, DrainingGeneration, Generation, Size, Sizes},
        policy::State,
    },
};

/// Need of a slot for published batches.
#[derive(Debug, Clone, Copy)]
pub(in crate::watch) struct SlotNeed {
    /// Offset from which on it needs them.
    pub(in crate::watch) since: u64,
    /// True if they may have to be merged for it later.
    pub(in crate::watch) lags: bool,
    /// True if they must be merged for it now.
    pub(in crate::watch) is_due: bool,
}

/// Consequence of a merge step for a slot.
#[derive(Debug)]
pub(in crate::watch) enum MergeOutcome {
    /// Its reader has unsubscribed.
    Gone(Box<Generation>),
    /// Its reader does not wait for it.
    Done,
    /// There is more to merge.
    Again,
    /// Its log has events that the merger has not received yet.
    Behind,
    /// The generation is complete, and the reader waits for it.
    Drain(Box<Generation>),
    /// The generation takes more memory than it may.
    TooLarge(Box<Generation>),
}

// === impl Log ===

impl<F: Frame> Log<F> {
    /// Lets a reader that has reached a position wait until everything unread has merged. Returns true if the caller has to
    /// start the merge.
    pub(in crate::watch) fn merge(&mut self, index: usize, reached: &HistoryPosition) -> bool {
        let unread = self.unread(index);
        let slot = &mut self.slots[index];
        if let State::Coalescing(coalescing) = &mut slot.state {
            (coalescing.sizes.drained, coalescing.is_wanted) = (Size::default(), true);
            return !std::mem::replace(&mut coalescing.is_queued, true);
        }
        slot.needs_from(reached.offset, slot.suppressed);
        if let Some((offset, suppressed)) = unread {
            slot.needs_from(offset, suppressed);
        }
        slot.state = State::Coalescing(Box::new(Coalescing::new(true)));
        true
    }

    /// Takes the generation that a reader delivers.
    pub(in crate::watch) fn take_ready(&mut self, index: usize) -> Option<Box<DrainingGeneration>> {
        let State::Coalescing(coalescing) = &mut self.slots[index].state else { return None };
        coalescing.sizes.drained = std::mem::take(&mut coalescing.sizes.ready);
        let ready = coalescing.ready.take();
        // Its first event has the version after what was suppressed before it; until then a client resumes before that.
        self.slots[index].count_up_to_since();
        ready
    }

    /// Lets a reader that has everything published follow the log again.
    pub(in crate::watch) fn follow(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        (slot.position, slot.position_size) = (self.head, self.head_size);
        // Those that have merged were counted with the generation.
        (slot.suppressed, slot.suppressed_since) = (self.suppressed, self.suppressed);
        slot.state = State::Live;
        let since = slot.since;
        // A deferred group may be filled to less.
        self.skip_events(index, since, None);
    }

    /// Checks a slot when everything up to an offset is in the logs, and starts to merge if it needs events before `limit`.
    /// Returns `None` if it needs none.
    pub(in crate::watch) fn check(&mut self, (index, id): (usize, u64), to: u64, limit: u64) -> Option<SlotNeed> {
        let is_at_head = self.slots.get(index).filter(|slot| slot.id == id)?.position == self.head;
        let filled = self.deferred.as_ref().map_or(to, |deferred| deferred.filled.offset.min(to));
        let at = if is_at_head { Some((filled, self.suppressed)) } else { self.unread(index) };
        let is_counted = !is_at_head || self.suppressed_to <= filled;
        let slot = &mut self.slots[index];
        if let State::CatchingUp { .. } | State::Live = slot.state
            && let Some((offset, suppressed)) = at.filter(|_| is_counted)
        {
            slot.needs_from(offset, suppressed);
        }
        let since = slot.since;
        let is_near = since < limit;
        match &mut slot.state {
            // If the log no longer has its position, the slot gets parked.
            State::CatchingUp { .. } => at.map(|_| SlotNeed { since, lags: false, is_due: false }),
            State::Live => {
                let is_due = is_near && !is_at_head;
                if is_due {
                    slot.state = State::Coalescing(Box::new(Coalescing::new(false)));
                }
                Some(SlotNeed { since, lags: !is_at_head && !is_due, is_due })
            }
            State::Coalescing(coalescing) => {
                let is_due = is_near && !coalescing.is_queued;
                coalescing.is_queued |= is_due;
                Some(SlotNeed { since, lags: !coalescing.is_queued, is_due })
            }
            State::Frozen { .. } | State::Blocking | State::Ended(_) => None,
        }
    }

    /// Takes the generation that is being filled out of a slot, with the offset up to which it has merged.
    pub(in crate::watch) fn take_generation(&mut self, slot: (usize, u64)) -> Option<(Box<Generation>, u64)> {
        let (coalescing, since) = self.coalescing(slot)?;
        let generation = coalescing.generation.take()?;
        Some((generation, *since))
    }

    /// Puts a generation back, merged up to an offset; `is_all` if that is everything published. Its memory is limited to
    /// `bound`.
    pub(in crate::watch) fn put_back(
        &mut self,
        slot: (usize, u64),
        generation: Box<Generation>,
        (to, is_all): (u64, bool),
        bound: usize,
    ) -> MergeOutcome {
        let head_offset = self.head_offset();
        let Some((coalescing, since)) = self.coalescing(slot) else { return MergeOutcome::Gone(generation) };
        let sizes = &mut coalescing.sizes;
        *since = to;
        sizes.merged = generation.size();
        if sizes.merged.held() + sizes.ready.held() + sizes.drained.held() > bound {
            return MergeOutcome::TooLarge(generation);
        }
        if is_all && coalescing.is_wanted && to >= head_offset {
            return MergeOutcome::Drain(generation);
        }
        coalescing.generation = Some(generation);
        match (is_all, coalescing.is_wanted) {
            (false, _) => MergeOutcome::Again,
            (true, true) => MergeOutcome::Behind,
            (true, false) => {
                coalescing.is_queued = false;
                MergeOutcome::Done
            }
        }
    }

    /// Hands a complete generation to the reader, and begins the next one. Returns the waker of the reader, or the
    /// generation if the reader has unsubscribed.
    pub(in crate::watch) fn give(
        &mut self,
        slot: (usize, u64),
        telling: Box<DrainingGeneration>,
    ) -> Result<Option<Waker>, Box<DrainingGeneration>> {
        let Some((coalescing, _)) = self.coalescing(slot) else { return Err(telling) };
        let sizes = Sizes { merged: Size::default(), ready: telling.size(), ..coalescing.sizes };
        let next = Coalescing { is_queued: false, ready: Some(telling), sizes, ..Coalescing::new(false) };
        *coalescing = next;
        Ok(self.slots[slot.0].waker.take())
    }

    /// Ends a slot. Returns the waker of its reader, and what had merged.
    pub(in crate::watch) fn lose(&mut self, slot: (usize, u64), end: End) -> Option<(Option<Waker>, State)> {
        self.coalescing(slot)?;
        let slot = &mut self.slots[slot.0];
        Some((slot.waker.take(), std::mem::replace(&mut slot.state, State::Ended(end))))
    }

    /// Returns what merges for a slot, and the offset up to which it has merged.
    fn coalescing(&mut self, (index, id): (usize, u64)) -> Option<(&mut Coalescing, &mut u64)> {
        let slot = self.slots.get_mut(index).filter(|slot| slot.id == id)?;
        match &mut slot.state {
            State::Coalescing(coalescing) => Some((coalescing, &mut slot.since)),
            State::CatchingUp { .. } | State::Live | State::Frozen { .. } | State::Blocking | State::Ended(_) => None,
        }
    }

    /// Returns an offset that only the next event of a slot and those after it follow, and the number of changes suppressed before
    /// it; `None` if the slot is at the head, or the log no longer has its position.
    fn unread(&self, index: usize) -> Option<(u64, u32)> {
        let position = self.slots[index].position;
        let run = self.runs.get(self.runs.partition_point(|run| run.end() <= position))?;
        let at = position.checked_sub(run.first)? as usize;
        let before = at.checked_sub(1).and_then(|before| run.marks.get(before)).map_or(0, |mark| mark.changes);
        Some((run.offset + u64::from(before), run.suppressed))
    }
}
