//! Log of one group of watchers, and the slots of its readers, behind one short lock.
//!
//! The Broadcaster writes the runs, ends and evictions, and each cursor its own slot. A thread of the
//! [`Filler`](super::filler::Filler) writes the runs of a deferred group. Invariants:
//!
//! - Positions count events in a sequence private to the group; a slot's position never decreases.
//! - A slot parks under the lock under which its reader read the log, so that no wake-up can be lost.
//! - No waker is woken or dropped under the lock: its last reference may own something that takes the same lock.
//! - Under this lock, only locks of budgets and of the merger are taken, which are never held for long.
//!
//! The [policy](super::policy) decides; the files of this module carry its decisions out.

mod append;
mod block;
mod merge;
mod take;

pub(super) use append::Part;
pub(super) use merge::{MergeOutcome, SlotNeed};

use std::{
    collections::VecDeque,
    sync::{Arc, Weak, atomic::Ordering},
    task::Waker,
};

use slab::Slab;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::{
    Frame, QueueOptions,
    budget::SharedBudget,
    config::BroadcasterStats,
    encoding::{Encoding, GroupShare},
    policy::{End, Lag, OnPublish, State, on_publish},
    run::{Marks, Run},
    selected::{Outcome, Selected, outcome},
    selection_budget::{Clock, Cost},
    writer_signals::WriterSignals,
};
use crate::{
    census::{Alive, Kind},
    model::{Batch, Change, HistoryPosition, ResourceVersion, Selection},
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
    /// Cost of its selection, for each change.
    pub(super) cost: Cost,
    /// Cost of encoding its events, for each change; 0 if its [format](Frame::is_costly) is not costly.
    encoding_cost: Cost,
    pub(super) log: Mutex<Log<F>>,
    /// Notifies the writer of slots with room again, and of a group without readers.
    pub(super) writer_signals: Arc<WriterSignals>,
}

/// Reference to a slot, which keeps nothing alive.
#[derive(Debug)]
pub(super) struct SlotRef<F: Frame> {
    group: Weak<Group<F>>,
    index: usize,
    /// [`Slot::id`].
    id: u64,
}

#[derive(Debug)]
pub(super) struct Log<F: Frame> {
    pub(super) runs: VecDeque<Run<F>>,
    /// Sequence number of the next event.
    pub(super) head: u64,
    /// Size of everything ever pushed.
    pub(super) head_size: u64,
    /// Version and offset reached at the head.
    pub(super) head_reached: HistoryPosition,
    /// Number of changes that were suppressed up to the head, modulo 2^32: readers count differences.
    pub(super) suppressed: u32,
    /// Offset after the last of them.
    suppressed_to: u64,
    /// The same number up to [`Self::head_reached`].
    head_suppressed: u32,
    /// Set once no further event will come.
    pub(super) end: Option<End>,
    /// Set while threads fill the group. Then only they push; otherwise only the writer does.
    pub(super) deferred: Option<Deferred>,
    pub(super) slots: Slab<Slot>,
    parked: Vec<usize>,
    /// Number of further runs until the log drops what every slot has read: as many as the last trimming left.
    trim_after: usize,
    /// Lower bound of the slots that may block; only a scan makes it exact.
    low: Option<LowerBounds>,
    skipping: Vec<Skipping>,
    /// Slots removed since the lists of slots last shrank.
    removed_slots: usize,
}

/// State of a deferred group: threads fill its log, because the writer has no time for its selection.
#[derive(Debug, Clone)]
pub(super) struct Deferred {
    /// Number of the deferral.
    pub(super) id: u64,
    /// Position up to which the log has everything. For the group's readers it is what is distributed.
    pub(super) filled: HistoryPosition,
}

/// Slot at the head whose client already has changes that may be published here.
#[derive(Debug, Clone)]
struct Skipping {
    slot: usize,
    /// Offset before which the client has everything: a deferred group may be filled to less than where the client joined.
    from: u64,
    /// Open version up to which the client has everything.
    version: Option<ResourceVersion>,
    /// Offset after the skipped events ([`HistoryPosition::offset`]).
    offset: u64,
    /// True once an event came that the slot does not skip.
    is_over: bool,
}

/// Lower bounds over the slots that may block, which decide if a scan for full ones is worthwhile.
#[derive(Debug, Clone, Copy)]
struct LowerBounds {
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
    /// Offset before which the client has, did not select, or has merged everything.
    since: u64,
    /// [`Log::suppressed`] before that offset.
    suppressed_since: u32,
    /// [`Log::suppressed`] up to which suppressed changes were counted for the client.
    suppressed: u32,
    /// Number of suppressed changes that no bookmark has reported.
    unreported: u64,
    pub(super) queue: QueueOptions,
    pub(super) state: State,
    /// Set if the writer may wait for the reader.
    block: Option<BlockRight>,
    waker: Option<Waker>,
}

/// Right of a reader to hold the writer back.
#[derive(Debug, Clone)]
struct BlockRight {
    /// Number of events that it must read before the writer may wait for it again.
    left_to_read: u64,
    /// Budget of its client.
    budget: Arc<SharedBudget>,
}

/// Wakers of the readers of a group, nearly always of one.
pub(super) type Wakers = SmallVec<[Waker; 1]>;

const MIN_TRIM_RUNS: usize = 4;

// === impl Group ===

impl<F: Frame> Group<F> {
    pub(super) fn new(
        id: usize,
        selection: Arc<Selection>,
        format: F::Format,
        is_budgeted: bool,
        head_reached: HistoryPosition,
        writer_signals: Arc<WriterSignals>,
    ) -> Self {
        let log = Log {
            runs: VecDeque::new(),
            head: 0,
            head_size: 0,
            head_reached,
            suppressed: 0,
            suppressed_to: 0,
            head_suppressed: 0,
            end: None,
            deferred: None,
            // Nearly always one reader: the first slot would otherwise allocate four.
            slots: Slab::with_capacity(1),
            parked: Vec::new(),
            trim_after: MIN_TRIM_RUNS,
            low: None,
            skipping: Vec::new(),
            removed_slots: 0,
        };
        let cost = Cost::unknown(selection.expression.is_some() || F::is_costly(&format));
        let (encoding_cost, log) = (Cost::none(), Mutex::new(log));
        Self { id, selection, format, is_budgeted, cost, encoding_cost, log, writer_signals }
    }

    /// Returns true if an evaluation takes long enough to be measured alone.
    pub(super) fn is_costly(&self) -> bool {
        self.selection.expression.is_some() || F::is_costly(&self.format)
    }

    /// Returns the consequence of a change for the group's watchers.
    pub(super) fn outcome(&self, batch: &Batch, change: &Change) -> Option<Outcome> {
        outcome::<F>(&self.selection, &self.format, batch, change)
    }

    /// Returns the time that each change takes for this group, in nanoseconds.
    pub(super) fn cost(&self) -> u64 {
        self.cost.get().saturating_add(self.encoding_cost.get())
    }

    /// Encodes the selected changes of a cycle. Returns the time, too, in nanoseconds: of a costly format, if there is a clock.
    pub(super) fn share(
        &self,
        encoding: &mut Encoding<'_, F>,
        selected: Selected,
        clock: Option<&Clock>,
    ) -> (GroupShare, u64) {
        let since = clock.filter(|_| F::is_costly(&self.format)).map(|clock| (clock, clock.now()));
        let changes = encoding.changes().len().max(1) as u64;
        let share = if selected.is_empty() {
            GroupShare::default()
        } else {
            encoding.share(&self.format, self.reached(), selected)
        };
        let time = since.map_or(0, |(clock, since)| clock.now().saturating_sub(since));
        if since.is_some() {
            self.encoding_cost.note(time / changes);
        }
        (share, time)
    }

    /// Returns the offset after the last event in the log.
    fn reached(&self) -> u64 {
        self.log.lock().head_reached.offset
    }
}

// === impl SlotRef ===

impl<F: Frame> SlotRef<F> {
    pub(super) fn new(group: &Arc<Group<F>>, index: usize, id: u64) -> Self {
        Self { group: Arc::downgrade(group), index, id }
    }

    /// Returns the group, if its reader or another one is still there.
    pub(super) fn group(&self) -> Option<Arc<Group<F>>> {
        self.group.upgrade()
    }

    /// Returns the index and the id of the slot.
    pub(super) fn slot(&self) -> (usize, u64) {
        (self.index, self.id)
    }

    /// Reads the slot; `None` if it was removed.
    pub(super) fn read<T>(&self, read: impl FnOnce(&Log<F>, &Slot) -> T) -> Option<T> {
        let group = self.group()?;
        let log = group.log.lock();
        let slot = log.slots.get(self.index).filter(|slot| slot.id == self.id)?;
        Some(read(&log, slot))
    }

    /// Changes the slot with this index, unless it was removed.
    pub(super) fn write<T>(&self, write: impl FnOnce(&mut Log<F>, usize) -> T) -> Option<T> {
        let group = self.group()?;
        let mut log = group.log.lock();
        log.slots.get(self.index).filter(|slot| slot.id == self.id)?;
        Some(write(&mut log, self.index))
    }
}

impl<F: Frame> Clone for SlotRef<F> {
    fn clone(&self) -> Self {
        Self { group: Weak::clone(&self.group), ..*self }
    }
}

// === impl Log ===

impl<F: Frame> Log<F> {
    /// Returns the position of the oldest retained event.
    pub(super) fn tail(&self) -> u64 {
        self.runs.front().map_or(self.head, |run| run.first)
    }

    /// Returns the offset after the last change that concerns the group.
    fn head_offset(&self) -> u64 {
        self.head_reached.offset.max(self.suppressed_to)
    }

    /// Adds a slot at the head, for a client that has everything before the offset `since`. The writer may wait for it only
    /// if it has a budget.
    pub(super) fn subscribe(
        &mut self,
        id: u64,
        queue: QueueOptions,
        has_initial_events: bool,
        budget: Option<Arc<SharedBudget>>,
        since: u64,
    ) -> usize {
        let slot = Slot {
            id,
            position: self.head,
            position_size: self.head_size,
            since,
            suppressed_since: self.suppressed,
            suppressed: self.suppressed,
            unreported: 0,
            queue,
            state: if has_initial_events { State::CatchingUp { has_initial_events } } else { State::Live },
            block: budget.map(|budget| BlockRight { left_to_read: queue.length.max(1) as u64, budget }),
            waker: None,
        };
        self.slots.insert(slot)
    }

    /// Ends a deferral: no thread fills the group any more.
    pub(super) fn end_deferral(&mut self, stats: &BroadcasterStats) {
        if self.deferred.take().is_some() {
            stats.deferred.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Appends a run at the head of the log.
    pub(super) fn push(
        &mut self,
        (cycle, at, offset): (u64, Instant, u64),
        (suppressed, passed): (u32, u32),
        frame: F,
        size: u64,
        mut marks: Marks,
    ) {
        marks.shrink_to_fit();
        let Some(last) = marks.last() else { return };
        last.reach(offset, &mut self.head_reached);
        self.head_suppressed = passed;
        let (first, size_before, alive) = (self.head, self.head_size, Alive::new(Kind::Run, Run::<F>::size(&marks)));
        let run = Run { first, size_before, cycle, at, offset, suppressed, passed, frame, marks, _alive: alive };
        self.head += run.marks.len() as u64;
        self.head_size += size;
        self.reserve_run();
        self.runs.push_back(run);
        self.trim_after = self.trim_after.saturating_sub(1);
    }

    /// Makes a slot that has just subscribed skip the events before an offset, and the changes up to a version.
    pub(super) fn skip_events(&mut self, slot: usize, from: u64, version: Option<&ResourceVersion>) {
        let is_filled = self.deferred.as_ref().is_none_or(|deferred| deferred.filled.offset >= from);
        if !is_filled || version.is_some() {
            let version = version.cloned();
            self.skipping.push(Skipping { slot, from, version, offset: 0, is_over: false });
        }
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
    pub(super) fn take_wakers(&mut self, wakers: &mut Wakers) {
        for index in self.parked.drain(..) {
            wakers.extend(self.slots.get_mut(index).and_then(|slot| slot.waker.take()));
        }
    }

    /// Removes a slot. The caller drops its waker once the lock is free.
    pub(super) fn unsubscribe(&mut self, index: usize) -> Slot {
        let slot = self.slots.remove(index);
        self.skipping.retain(|skipping| skipping.slot != index);
        self.shrink_slots();
        // Indexes of removed slots may stay in the list: waking takes the waker, so neither they nor a slot that reuses the
        // index are woken twice. The list is only kept from growing.
        if self.parked.len() > 2 * self.slots.len() + MIN_TRIM_RUNS {
            self.parked.clear();
            self.parked.extend(self.slots.iter().filter(|(_, slot)| slot.waker.is_some()).map(|(index, _)| index));
        }
        slot
    }

    /// Lowers the bounds of the slots that may block to this one, if it may.
    fn note_low(&mut self, index: usize) {
        let slot = &self.slots[index];
        let lag = Lag::default();
        if on_publish(slot.queue.policy, &slot.state, &lag, slot.may_block()) != OnPublish::Nothing {
            let low = LowerBounds::of(slot);
            self.low = Some(self.low.map_or(low, |other| low.min(other)));
        }
    }

    /// Finds the slots that have become full under BLOCK.
    pub(super) fn find_full(&mut self, queue_size: usize, full: &mut Vec<usize>) {
        let Some(LowerBounds { position, size, length }) = self.low else { return };
        let (head, size) = (self.head, self.head_size - size);
        let low = Lag { position, head, size, queue_length: length, queue_size: queue_size as u64, ..Lag::default() };
        if !low.is_full() {
            return;
        }
        let (mut low, mut lost): (Option<LowerBounds>, Vec<usize>) = (None, Vec::new());
        for (index, slot) in &self.slots {
            let lag = self.lag(slot, queue_size);
            match on_publish(slot.queue.policy, &slot.state, &lag, slot.may_block()) {
                OnPublish::Nothing => {}
                OnPublish::HasRoom => {
                    low = Some(low.map_or(LowerBounds::of(slot), |other| LowerBounds::of(slot).min(other)));
                }
                OnPublish::Block => full.push(index),
                OnPublish::Replay => lost.push(index),
            }
        }
        self.low = low;
        for index in lost {
            self.slots[index].lose_block();
        }
    }
}

// === impl Slot ===

impl Slot {
    /// Notes that the reader needs only batches from an offset on, before which the log counted `suppressed` changes.
    fn needs_from(&mut self, offset: u64, suppressed: u32) {
        if offset > self.since {
            (self.since, self.suppressed_since) = (offset, suppressed);
        }
    }

    /// Counts the suppressed changes before the offset from which on changes merge.
    fn count_up_to_since(&mut self) {
        if self.suppressed_since.wrapping_sub(self.suppressed).cast_signed() > 0 {
            self.count_suppressed(self.suppressed_since);
        }
    }

    /// Counts the suppressed changes up to where the log counted `suppressed` of them.
    fn count_suppressed(&mut self, suppressed: u32) {
        self.unreported += u64::from(suppressed.wrapping_sub(self.suppressed));
        self.suppressed = suppressed;
    }
}

// === impl LowerBounds ===

impl LowerBounds {
    fn of(slot: &Slot) -> Self {
        Self { position: slot.position, size: slot.position_size, length: slot.queue.length.max(1) as u64 }
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
