//! BLOCK: when the writer waits for a slot, and when it stops waiting.

use std::time::Duration;

use tokio::time::Instant;

use super::{Log, Slot};
use crate::watch::{
    End, Frame,
    policy::{OnFull, State, on_full},
    writer_signals::WriterSignals,
};

// === impl Log ===

impl<F: Frame> Log<F> {
    /// Acts on a slot that is full under BLOCK, with `left` of the resource's budget. Returns true if the writer has to
    /// wait for it.
    pub(in crate::watch) fn fill(
        &mut self,
        index: usize,
        left: Duration,
        writer_signals: &WriterSignals,
        now: Instant,
    ) -> bool {
        let slot = &mut self.slots[index];
        let follows = on_full(left, slot.budget_left(now));
        if follows != OnFull::Block {
            self.refuse_block(index, follows, writer_signals);
            return false;
        }
        slot.state = State::Blocking;
        if let Some(right) = &slot.block {
            right.budget.begin(now);
        }
        writer_signals.block(now);
        true
    }

    /// Stops waiting for a slot that still holds the writer back when the resource's budget is spent. If the slot's client
    /// has spent its own budget too, its queue is discarded. Its reader is not parked: the queue is full.
    pub(in crate::watch) fn give_up(&mut self, index: usize, writer_signals: &WriterSignals, now: Instant) {
        let slot = &mut self.slots[index];
        if !matches!(slot.state, State::Blocking) {
            return;
        }
        slot.unblock(writer_signals, now);
        let follows = on_full(Duration::ZERO, slot.budget_left(now));
        self.refuse_block(index, follows, writer_signals);
    }

    /// Records what a slot has read: the writer may wait for the slot once that is enough, and continues once its queue is
    /// at most half full again. Returns true if the caller has to wake the writer once the lock is free.
    pub(in crate::watch) fn note_read(
        &mut self,
        index: usize,
        events: u64,
        queue_size: usize,
        writer_signals: &WriterSignals,
    ) -> bool {
        let Some(right) = &mut self.slots[index].block else { return false };
        right.left_to_read = right.left_to_read.saturating_sub(events);
        let lag = self.lag(&self.slots[index], queue_size);
        // Charged here and not when the writer continues: the writer may wait for slower slots.
        let is_freed = lag.is_half_read() && self.slots[index].unblock(writer_signals, Instant::now());
        self.note_low(index);
        is_freed
    }

    /// Serves a full slot as under REPLAY, or discards its queue: its reader then gets [`End::SlowConsumer`].
    fn refuse_block(&mut self, index: usize, follows: OnFull, writer_signals: &WriterSignals) {
        let (head, head_size) = (self.head, self.head_size);
        let slot = &mut self.slots[index];
        writer_signals.count(follows);
        match follows {
            OnFull::End => {
                slot.state = State::Ended(End::SlowConsumer);
                (slot.position, slot.position_size) = (head, head_size);
            }
            OnFull::Block | OnFull::Replay => slot.lose_block(),
        }
    }
}

// === impl Slot ===

impl Slot {
    /// Returns true if it has read enough for the writer to wait for it.
    pub(super) fn may_block(&self) -> bool {
        self.block.as_ref().is_some_and(|right| right.left_to_read == 0)
    }

    fn budget_left(&self, now: Instant) -> Duration {
        self.block.as_ref().map_or(Duration::ZERO, |right| right.budget.left(now))
    }

    /// Stops the writer's wait for this slot, if any. Returns true if the caller has to wake the writer once the lock is
    /// free.
    pub(in crate::watch) fn unblock(&mut self, writer_signals: &WriterSignals, now: Instant) -> bool {
        if !matches!(self.state, State::Blocking) {
            return false;
        }
        self.state = State::Live;
        if let Some(right) = &self.block {
            right.budget.end(now);
        }
        writer_signals.unblock(now)
    }

    /// Lets the writer wait for this slot only after it has read as many events as its queue is long.
    pub(super) fn lose_block(&mut self) {
        if let Some(right) = &mut self.block {
            right.left_to_read = self.queue.length.max(1) as u64;
        }
    }
}
