//! Log of one group of watchers, and the slots of its readers, behind one short lock.
//!
//! The Broadcaster writes the runs, ends and evictions, and each cursor its own slot. A thread of the
//! [`Filler`](super::filler::Filler) writes the runs of a deferred group. Invariants:
//!
//! - Positions count events in a sequence private to the group; a slot's position never decreases.
//! - A slot parks under the lock under which its reader read the log, so that no wake-up can be lost.
//! - No waker is woken or dropped under the lock: its last reference may own something that takes the same lock.
//! - Under this lock, only locks of budgets are taken, which are never held for long.

mod append;
mod block;
mod merge;
mod trim;

pub(super) use append::{Deferred, Part};
pub(super) use merge::{Coalescing, Due, Look, PutBack};

use std::{collections::VecDeque, sync::Arc, task::Waker};

use slab::Slab;

use super::{
    Frame, Frames, FullChannelPolicy, QueueOptions,
    budget::SharedBudget,
    merger::Merger,
    policy::End,
    room::Room,
    run::{Mark, Run},
    selection_budget::Cost,
};
use crate::{
    census::{Alive, Kind},
    model::{Reached, ResourceVersion, Selection},
    sync::Mutex,
};

/// Watchers with the same selection and format.
#[derive(Debug)]
pub(super) struct Group<F: Frame> {
    /// Key of the group in the Broadcaster.
    pub(super) id: usize,
    pub(super) selection: Arc<Selection>,
    pub(super) format: F::Format,
    /// True if its selection is evaluated within a budget.
    pub(super) is_budgeted: bool,
    pub(super) cost: Cost,
    pub(super) log: Mutex<Log<F>>,
    /// Notifies the writer of slots with room again, and of a group without readers.
    pub(super) room: Arc<Room>,
    /// Merges for its readers under COALESCE.
    pub(super) merger: Arc<Merger<F>>,
}

#[derive(Debug)]
pub(super) struct Log<F: Frame> {
    pub(super) runs: VecDeque<Run<F>>,
    /// Sequence number of the next event.
    pub(super) head: u64,
    /// Size of everything ever pushed.
    pub(super) head_size: u64,
    /// Version and offset reached at the head.
    pub(super) head_reached: Reached,
    /// Set once no further event will come.
    pub(super) end: Option<End>,
    /// Set while threads fill the group. Then only they push; otherwise only the writer does.
    pub(super) deferred: Option<Deferred>,
    pub(super) slots: Slab<Slot>,
    parked: Vec<usize>,
    /// Number of further runs until the log drops what every slot has read: as many as the last trimming left.
    trim_after: usize,
    /// Lower bound of the slots that may block; only a scan makes it exact.
    low: Option<Low>,
    leaving_out: Vec<LeavingOut>,
    /// Slots removed since the lists of slots last shrank.
    gone: usize,
}

/// Slot at the head whose client already has changes that may be published here.
#[derive(Debug)]
struct LeavingOut {
    slot: usize,
    /// Offset before which the client has everything: a deferred group may be filled to less than where the client joined.
    from: u64,
    /// Open version up to which the client has everything.
    version: Option<ResourceVersion>,
    /// Offset after the skipped events ([`Reached::offset`]).
    offset: u64,
    /// True once an event came that the slot does not skip.
    is_over: bool,
}

/// Lower bounds over the slots that may block, which decide if a scan for full ones is worthwhile.
#[derive(Debug, Clone, Copy)]
struct Low {
    position: u64,
    size: u64,
    length: u64,
}

/// Slot of one reader.
#[derive(Debug)]
pub(super) struct Slot {
    /// Unique within the Broadcaster: the slab reuses indexes.
    pub(super) id: u64,
    pub(super) position: u64,
    /// [`Log::head_size`] at the position.
    pub(super) position_size: u64,
    pub(super) queue: QueueOptions,
    pub(super) phase: Phase,
    /// Under DROP: end of the full queue, which is frozen until it has been read.
    pub(super) frozen_at: Option<u64>,
    /// Set while the writer waits for it, under BLOCK.
    pub(super) is_blocking: bool,
    /// Under BLOCK: number of events that it must read before the writer may wait for it again.
    left_to_read: u64,
    pub(super) evicted: bool,
    /// Under COALESCE: its merging state.
    pub(super) coalescing: Option<Box<Coalescing>>,
    /// Under BLOCK: budget of its client.
    pub(super) budget: Option<Arc<SharedBudget>>,
    waker: Option<Waker>,
}

/// Phase of a slot, which decides if the policy acts on it yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// The reader still receives the initial events: every policy behaves as REPLAY.
    Initial,
    /// The initial events are delivered; the policy acts once the reader has caught up with its queue for the first time.
    CatchingUp,
    Live,
}

const MIN_TRIM_RUNS: usize = 4;

// === impl Group ===

impl<F: Frame> Group<F> {
    pub(super) fn new(
        id: usize,
        selection: Arc<Selection>,
        format: F::Format,
        is_budgeted: bool,
        head_reached: Reached,
        room: Arc<Room>,
        merger: Arc<Merger<F>>,
    ) -> Self {
        let log = Log {
            runs: VecDeque::new(),
            head: 0,
            head_size: 0,
            head_reached,
            end: None,
            deferred: None,
            slots: Slab::new(),
            parked: Vec::new(),
            trim_after: MIN_TRIM_RUNS,
            low: None,
            leaving_out: Vec::new(),
            gone: 0,
        };
        let cost = Cost::unknown(selection.expression.is_some());
        Self { id, selection, format, is_budgeted, cost, log: Mutex::new(log), room, merger }
    }

    pub(super) fn is_expression(&self) -> bool {
        self.selection.expression.is_some()
    }
}

// === impl Log ===

impl<F: Frame> Log<F> {
    /// Returns the position of the oldest retained event.
    pub(super) fn tail(&self) -> u64 {
        self.runs.front().map_or(self.head, |run| run.first)
    }

    /// Adds a slot at the head, for a client that has everything before the offset `since`.
    pub(super) fn subscribe(
        &mut self,
        id: u64,
        queue: QueueOptions,
        phase: Phase,
        budget: Option<Arc<SharedBudget>>,
        since: u64,
    ) -> usize {
        let slot = Slot {
            id,
            position: self.head,
            position_size: self.head_size,
            queue,
            phase: Phase::Initial,
            frozen_at: None,
            is_blocking: false,
            left_to_read: 0,
            evicted: false,
            coalescing: (queue.policy == FullChannelPolicy::Coalesce).then(|| Box::new(Coalescing::new(since))),
            budget,
            waker: None,
        };
        let index = self.slots.insert(slot);
        self.slots[index].lose_block();
        if phase == Phase::Live {
            self.go_live(index);
        }
        index
    }

    /// Appends a run at the head of the log.
    pub(super) fn push(&mut self, (wake, offset): (u64, u64), frame: F, size: u64, marks: Box<[Mark]>) {
        let Some(last) = marks.last() else { return };
        last.reach(offset, &mut self.head_reached);
        let (first, size_before, alive) = (self.head, self.head_size, Alive::new(Kind::Run, Run::<F>::size(&marks)));
        let run = Run { first, size_before, wake, offset, frame, marks, _alive: alive };
        self.head += run.marks.len() as u64;
        self.head_size += size;
        self.reserve_run();
        self.runs.push_back(run);
        self.trim_after = self.trim_after.saturating_sub(1);
    }

    /// Reads slices from `position` up to `until`, at most `max_size` but at least one event. Returns them with the
    /// position and the size reached, and advances `reached` to the last event.
    pub(super) fn read(
        &self,
        position: u64,
        until: u64,
        max_size: usize,
        reached: &mut Reached,
    ) -> (Frames<F>, u64, u64) {
        let (mut position, mut room) = (position, max_size);
        let (mut frames, mut size) = (Frames::new(), 0);
        let first = self.runs.partition_point(|run| run.end() <= position);
        for run in self.runs.range(first..) {
            if position >= until {
                break;
            }
            let from = (position - run.first) as usize;
            let start = run.start_of(from);
            let last = ((until - run.first) as usize).min(run.marks.len());
            let fitting = run.marks[from..last].partition_point(|mark| mark.end as usize - start <= room);
            // An event larger than the room is returned alone.
            let count = if fitting == 0 && frames.is_empty() { 1 } else { fitting };
            let Some(mark) = run.marks[from..from + count].last() else { break };
            let end = mark.end as usize;
            frames.push(run.frame.slice(start..end));
            mark.reach(run.offset, reached);
            position += count as u64;
            size = run.size_before + end as u64;
            room = room.saturating_sub(end - start);
            if from + count < run.marks.len() {
                break;
            }
        }
        (frames, position, size)
    }

    /// Returns the position after the last event that ends at or before `size`, counted as [`Log::head_size`].
    pub(super) fn position_at_size(&self, size: u64) -> u64 {
        let at = self.runs.partition_point(|run| run.size_before <= size);
        let Some(run) = at.checked_sub(1).and_then(|at| self.runs.get(at)) else { return self.tail() };
        let room = size - run.size_before;
        run.first + run.marks.partition_point(|mark| u64::from(mark.end) <= room) as u64
    }

    /// Makes a slot that has just subscribed skip the events before an offset, and the changes up to a version.
    pub(super) fn leave_out(&mut self, slot: usize, from: u64, version: Option<&ResourceVersion>) {
        let is_filled = self.deferred.as_ref().is_none_or(|deferred| deferred.filled.offset >= from);
        if !is_filled || version.is_some() {
            let version = version.cloned();
            self.leaving_out.push(LeavingOut { slot, from, version, offset: 0, is_over: false });
        }
    }

    /// Advances `reached` past the events that a slot has skipped. Returns true if the slot still skips events.
    pub(super) fn is_leaving_out(&mut self, index: usize, reached: &mut Reached) -> bool {
        let Some(at) = self.leaving_out.iter().position(|leaving_out| leaving_out.slot == index) else { return false };
        reached.offset = reached.offset.max(self.leaving_out[at].offset);
        let is_over = self.leaving_out[at].is_over;
        if is_over {
            self.leaving_out.swap_remove(at);
        }
        !is_over
    }

    /// Returns true if the event at a position has a lower version than this one.
    pub(super) fn goes_back(&self, position: u64, version: &ResourceVersion) -> bool {
        let run = self.runs.get(self.runs.partition_point(|run| run.end() <= position));
        let mark = run.and_then(|run| run.marks.get(position.checked_sub(run.first)? as usize));
        mark.is_some_and(|mark| mark.version < *version)
    }

    pub(super) fn park(&mut self, index: usize, waker: &Waker) -> Option<Waker> {
        let slot = &mut self.slots[index];
        match &slot.waker {
            Some(parked) if parked.will_wake(waker) => None,
            Some(_) => slot.waker.replace(waker.clone()),
            None => {
                slot.waker = Some(waker.clone());
                self.parked.push(index);
                None
            }
        }
    }

    #[cfg(test)]
    pub(super) fn parked_len(&self) -> usize {
        self.parked.len()
    }

    /// Takes the wakers of all parked slots; the caller wakes them once the lock is free.
    pub(super) fn take_wakers(&mut self, wakers: &mut Vec<Waker>) {
        for index in self.parked.drain(..) {
            wakers.extend(self.slots.get_mut(index).and_then(|slot| slot.waker.take()));
        }
    }

    /// Removes a slot. The caller drops its waker once the lock is free.
    pub(super) fn unsubscribe(&mut self, index: usize) -> Slot {
        let slot = self.slots.remove(index);
        self.leaving_out.retain(|leaving_out| leaving_out.slot != index);
        self.shrink_slots();
        // Indexes of removed slots may stay in the list: waking takes the waker, so neither they nor a slot that reuses the
        // index are woken twice. The list is only kept from growing.
        if self.parked.len() > 2 * self.slots.len() + MIN_TRIM_RUNS {
            self.parked.clear();
            self.parked.extend(self.slots.iter().filter(|(_, slot)| slot.waker.is_some()).map(|(index, _)| index));
        }
        slot
    }

    /// Lets the policy act on this slot from now on.
    pub(super) fn go_live(&mut self, index: usize) {
        let slot = &mut self.slots[index];
        slot.phase = Phase::Live;
        if slot.may_block() {
            let low = Low::of(slot);
            self.low = Some(self.low.map_or(low, |other| low.min(other)));
        }
    }

    /// Finds the slots that have become full under BLOCK.
    pub(super) fn find_full(&mut self, queue_size: usize, full: &mut Vec<usize>) {
        let Some(low) = self.low else { return };
        let may_be_full =
            self.head - low.position >= low.length.max(1) || self.head_size - low.size >= queue_size as u64;
        if !may_be_full {
            return;
        }
        self.low = None;
        let tail = self.tail();
        for (index, slot) in &mut self.slots {
            if slot.evicted || !slot.may_block() {
                continue;
            }
            if slot.position < tail {
                // Its reader must read from the history what the log no longer has.
                slot.lose_block();
                continue;
            }
            let low = Low::of(slot);
            self.low = Some(self.low.map_or(low, |other| low.min(other)));
            let is_full = self.head - slot.position >= low.length.max(1)
                || self.head_size - slot.position_size >= queue_size as u64;
            if is_full && !slot.is_blocking {
                full.push(index);
            }
        }
    }
}

// === impl Low ===

impl Low {
    fn of(slot: &Slot) -> Self {
        Self { position: slot.position, size: slot.position_size, length: slot.queue.length as u64 }
    }

    fn min(self, other: Self) -> Self {
        Self {
            position: self.position.min(other.position),
            size: self.size.min(other.size),
            length: self.length.min(other.length),
        }
    }
}

#[cfg(test)]
mod tests;
