//! Reading of a log by the reader of a slot: the facts that its policy decides by, and what each decision does to the slot.

use tokio::time::Instant;

use super::{Log, Slot};
use crate::{
    model::{HistoryPosition, ResourceVersion},
    watch::{
        Frame, Frames, FullChannelPolicy, Waiting,
        policy::{Lag, OnTake, State, on_take},
        run::Run,
    },
};

/// One in this many takes is measured.
const MEASURED_TAKES: u64 = 16;

// === impl Log ===

impl<F: Frame> Log<F> {
    /// Returns the lag of a slot.
    pub(super) fn lag(&self, slot: &Slot, queue_size: usize) -> Lag {
        Lag {
            position: slot.position,
            tail: self.tail(),
            head: self.head,
            size: self.head_size - slot.position_size,
            queue_length: slot.queue.length.max(1) as u64,
            queue_size: queue_size as u64,
            since: slot.since,
            head_offset: self.head_offset(),
            is_deferred: self.deferred.is_some(),
            is_ahead: false,
            goes_back: false,
        }
    }

    /// Decides the next step of a reader that has reached a position and has delivered everything that it took. Advances
    /// the position past the events that the reader skips.
    pub(in crate::watch) fn on_take(
        &mut self,
        index: usize,
        queue_size: usize,
        reached: &mut HistoryPosition,
    ) -> OnTake {
        let mut lag = self.lag(&self.slots[index], queue_size);
        if let State::CatchingUp { has_initial_events: false } = self.slots[index].state {
            lag.is_ahead = self.is_skipping(index, reached);
            lag.goes_back = self.is_before(lag.position, &reached.version);
        }
        let slot = &self.slots[index];
        on_take(slot.queue.policy, &slot.state, &lag)
    }

    /// Lets the policy act on this slot from now on.
    pub(in crate::watch) fn go_live(&mut self, index: usize) {
        self.slots[index].state = State::Live;
        self.note_low(index);
    }

    /// Freezes the queue of a slot at its length and size, but with at least one event. Returns the position of its end. A
    /// single event larger than the whole queue loses no other.
    pub(in crate::watch) fn freeze(&mut self, index: usize, queue_size: usize) -> u64 {
        let slot = &self.slots[index];
        let by_length = slot.position + slot.queue.length.max(1) as u64;
        let by_size = self.position_at_size(slot.position_size + queue_size as u64);
        let until = by_length.min(by_size).max(slot.position + 1).min(self.head);
        if until < self.head {
            self.slots[index].state = State::Frozen { until };
        }
        until
    }

    /// Returns the number of events that the reader of a slot has lost and that it has not taken yet: under DROP, those after a queue
    /// that is full or frozen. What does not fit by its size is known when it freezes.
    pub(in crate::watch) fn unreported_losses(&self, slot: &Slot) -> u64 {
        let end = match slot.state {
            State::Frozen { until } => until,
            State::Live if slot.queue.policy == FullChannelPolicy::Drop => {
                slot.position + slot.queue.length.max(1) as u64
            }
            _ => return 0,
        };
        let end = if slot.position < self.tail() { slot.position } else { end };
        self.head.saturating_sub(end)
    }

    /// Moves a slot to the head, and its reader with it. Returns the number of events that it loses, and the version before
    /// them.
    pub(in crate::watch) fn drop_unread(
        &mut self,
        index: usize,
        reached: &mut HistoryPosition,
    ) -> (u64, ResourceVersion) {
        let slot = &mut self.slots[index];
        let count = self.head - slot.position;
        (slot.position, slot.position_size, slot.state) = (self.head, self.head_size, State::Live);
        slot.count_suppressed(self.head_suppressed);
        (count, std::mem::replace(reached, self.head_reached.clone()).version)
    }

    /// Reads slices of a slot up to a position, at most `max_size` but at least one event, and advances `reached` to the
    /// last one. Returns them with the number of events.
    pub(in crate::watch) fn read(
        &mut self,
        index: usize,
        until: u64,
        max_size: usize,
        reached: &mut HistoryPosition,
    ) -> (Frames<F>, u64) {
        let begin = self.slots[index].position;
        let (mut position, mut left) = (begin, max_size);
        let (mut frames, mut size, mut suppressed) = (Frames::new(), 0, None);
        let first = self.runs.partition_point(|run| run.end() <= position);
        for run in self.runs.range(first..) {
            if position >= until {
                break;
            }
            let from = (position - run.first) as usize;
            let start = run.start_of(from);
            let last = ((until - run.first) as usize).min(run.marks.len());
            let fitting = run.marks[from..last].partition_point(|mark| mark.end as usize - start <= left);
            // An event larger than the room is returned alone.
            let count = if fitting == 0 && frames.is_empty() { 1 } else { fitting };
            let Some(mark) = run.marks[from..from + count].last() else { break };
            let end = mark.end as usize;
            frames.push(run.frame.slice(start..end));
            mark.reach(run.offset, reached);
            position += count as u64;
            size = run.size_before + end as u64;
            suppressed = Some(if from + count == run.marks.len() { run.passed } else { run.suppressed });
            left = left.saturating_sub(end - start);
            if from + count < run.marks.len() {
                break;
            }
        }
        let slot = &mut self.slots[index];
        (slot.position, slot.position_size) = (position, size);
        if let Some(suppressed) = suppressed {
            slot.count_suppressed(suppressed);
        }
        slot.needs_from(reached.offset, slot.suppressed);
        (frames, position - begin)
    }

    /// Returns true if the policy acts on a slot, and its reader skips nothing.
    pub(in crate::watch) fn is_live(&self, index: usize) -> bool {
        let is_skipping = self.skipping.iter().any(|skipping| skipping.slot == index);
        matches!(self.slots[index].state, State::Live) && !is_skipping
    }

    /// Returns the offset up to which the log has everything, if that much was distributed.
    pub(in crate::watch) fn distributed_to(&self, distributed: u64) -> u64 {
        self.deferred.as_ref().map_or(distributed, |deferred| deferred.filled.offset.min(distributed))
    }

    /// Counts what was suppressed up to the head for the reader of a slot, which is there and has reached an offset.
    pub(in crate::watch) fn count_at_head(&mut self, index: usize, reached: u64) {
        // More may have been suppressed since the reader has looked up what is distributed.
        if self.suppressed_to <= reached {
            let filled = self.distributed_to(reached);
            let slot = &mut self.slots[index];
            slot.count_suppressed(self.suppressed);
            // What the bookmark counts must not merge: it would be counted again.
            slot.needs_from(filled, self.suppressed);
        }
    }

    /// Takes the number of changes that were suppressed for the reader of a slot, and that it has not taken yet.
    pub(in crate::watch) fn take_suppressed(&mut self, index: usize) -> u64 {
        std::mem::take(&mut self.slots[index].unreported)
    }

    /// Returns the time of publication of the next event of a slot, for one in [`MEASURED_TAKES`] positions.
    pub(in crate::watch) fn measured(&self, index: usize) -> Option<Instant> {
        let slot = &self.slots[index];
        let is_measured = (slot.position + slot.id).is_multiple_of(MEASURED_TAKES);
        is_measured.then(|| self.run_at(slot.position).map(|run| run.at))?
    }

    /// Returns the age of the oldest event that waits for a slot.
    pub(in crate::watch) fn waiting(&self, slot: &Slot) -> Waiting {
        let is_behind = slot.position < self.head;
        match &self.deferred {
            _ if !slot.state.reads_log() => Waiting::After(None),
            Some(deferred) if !is_behind => Waiting::After(Some(deferred.filled.version.clone())),
            None if !is_behind => Waiting::Nothing,
            _ => self.run_at(slot.position).map_or(Waiting::After(None), |run| Waiting::Since(run.at)),
        }
    }

    /// Returns the run with the event at a position, if the log has it.
    fn run_at(&self, position: u64) -> Option<&Run<F>> {
        let at = self.runs.partition_point(|run| run.end() <= position);
        self.runs.get(at).filter(|run| run.first <= position)
    }

    /// Returns the size of the next event of a slot, 0 if there is none.
    pub(in crate::watch) fn next_size(&self, index: usize) -> usize {
        let position = self.slots[index].position;
        let Some(run) = self.run_at(position) else { return 0 };
        let from = (position - run.first) as usize;
        run.marks.get(from).map_or(0, |mark| mark.end as usize - run.start_of(from))
    }

    /// Returns the position after the last event that ends at or before `size`, counted as [`Log::head_size`].
    fn position_at_size(&self, size: u64) -> u64 {
        let at = self.runs.partition_point(|run| run.size_before <= size);
        let Some(run) = at.checked_sub(1).and_then(|at| self.runs.get(at)) else { return self.tail() };
        let within = size - run.size_before;
        run.first + run.marks.partition_point(|mark| u64::from(mark.end) <= within) as u64
    }

    /// Advances `reached` past the events that a slot has skipped. Returns true if the slot still skips events.
    pub(super) fn is_skipping(&mut self, index: usize, reached: &mut HistoryPosition) -> bool {
        let Some(at) = self.skipping.iter().position(|skipping| skipping.slot == index) else { return false };
        reached.offset = reached.offset.max(self.skipping[at].offset);
        let is_over = self.skipping[at].is_over;
        if is_over {
            self.skipping.swap_remove(at);
        }
        !is_over
    }

    /// Returns true if the event at a position has a lower version than this one.
    fn is_before(&self, position: u64, version: &ResourceVersion) -> bool {
        let run = self.runs.get(self.runs.partition_point(|run| run.end() <= position));
        let mark = run.and_then(|run| run.marks.get(position.checked_sub(run.first)? as usize));
        mark.is_some_and(|mark| mark.version < *version)
    }
}
