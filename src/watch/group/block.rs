//! BLOCK: when the writer waits for a slot, and when it stops waiting.

use std::{task::Waker, time::Duration};

use tokio::time::Instant;

use super::{Log, Phase, Slot};
use crate::watch::{
    Frame, FullChannelPolicy,
    policy::{OnFull, on_full},
    room::Room,
};

// === impl Log ===

impl<F: Frame> Log<F> {
    /// Acts on a slot that is full under BLOCK, with `left` of the resource's budget. Returns true if the writer has to
    /// wait for it.
    pub(in crate::watch) fn fill(&mut self, index: usize, left: Duration, room: &Room, now: Instant) -> bool {
        let slot = &mut self.slots[index];
        let follows = on_full(left, slot.budget_left(now));
        if follows != OnFull::Block {
            self.refuse_block(index, follows, room);
            return false;
        }
        slot.is_blocking = true;
        if let Some(budget) = &slot.budget {
            budget.begin(now);
        }
        room.block(now);
        true
    }

    /// Stops waiting for a slot that still holds the writer back when the resource's budget is spent. If the slot's client
    /// has spent its own budget too, its queue is discarded, and the caller wakes its reader once the lock is free.
    pub(in crate::watch) fn give_up(
        &mut self,
        index: usize,
        id: u64,
        room: &Room,
        now: Instant,
        wakers: &mut Vec<Waker>,
    ) {
        let Some(slot) = self.slots.get_mut(index).filter(|slot| slot.id == id && slot.is_blocking) else { return };
        slot.unblock(room, now);
        let follows = on_full(Duration::ZERO, slot.budget_left(now));
        if follows == OnFull::End {
            wakers.extend(slot.waker.take());
        }
        self.refuse_block(index, follows, room);
    }

    /// Records what a slot has read: the writer may wait for the slot once that is enough, and continues once its queue is
    /// at most half full again. Returns true if the caller has to wake the writer once the lock is free.
    pub(in crate::watch) fn note_read(&mut self, index: usize, events: u64, queue_size: usize, room: &Room) -> bool {
        let (head, head_size) = (self.head, self.head_size);
        let slot = &mut self.slots[index];
        if slot.queue.policy != FullChannelPolicy::Block {
            return false;
        }
        let could_block = slot.may_block();
        slot.left_to_read = slot.left_to_read.saturating_sub(events);
        if slot.may_block() && !could_block {
            self.go_live(index);
            return false;
        }
        let has_room = head - slot.position <= slot.queue.length as u64 / 2
            && head_size - slot.position_size <= queue_size as u64 / 2;
        // Charged here and not when the writer continues: the writer may wait for slower slots.
        slot.is_blocking && has_room && slot.unblock(room, Instant::now())
    }

    /// Serves a full slot as under REPLAY, or discards its queue: its reader then gets
    /// [`End::SlowConsumer`](crate::watch::End::SlowConsumer).
    fn refuse_block(&mut self, index: usize, follows: OnFull, room: &Room) {
        room.count(follows);
        let (head, head_size) = (self.head, self.head_size);
        let slot = &mut self.slots[index];
        match follows {
            OnFull::End => (slot.evicted, slot.position, slot.position_size) = (true, head, head_size),
            OnFull::Block | OnFull::Replay => slot.lose_block(),
        }
    }
}

// === impl Slot ===

impl Slot {
    /// Returns true if the writer waits for this slot when it is full.
    pub(super) fn may_block(&self) -> bool {
        self.queue.policy == FullChannelPolicy::Block && self.phase == Phase::Live && self.left_to_read == 0
    }

    fn budget_left(&self, now: Instant) -> Duration {
        self.budget.as_ref().map_or(Duration::ZERO, |budget| budget.left(now))
    }

    /// Stops the writer's wait for this slot, if any. Returns true if the caller has to wake the writer once the lock is
    /// free.
    pub(in crate::watch) fn unblock(&mut self, room: &Room, now: Instant) -> bool {
        if !std::mem::take(&mut self.is_blocking) {
            return false;
        }
        if let Some(budget) = &self.budget {
            budget.end(now);
        }
        room.unblock(now)
    }

    /// Lets the writer wait for this slot only after it has read as many events as its queue is long.
    pub(in crate::watch) fn lose_block(&mut self) {
        self.left_to_read = self.queue.length.max(1) as u64;
    }
}
