//! Notifications from cursors to the writer: slots with room again, and groups without readers.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::{budget::SharedBudget, config::BroadcasterStats, policy::OnFull};
use crate::sync::Mutex;

/// State shared by a Broadcaster and its groups.
#[derive(Debug)]
pub(super) struct WriterSignals {
    /// Budget of the resource, which the slots that hold the writer back draw on.
    budget: SharedBudget,
    freed: Notify,
    /// Groups whose last reader has unsubscribed; some may have a reader again.
    vacant: Mutex<Vec<usize>>,
    /// Number of slots that were ever added.
    slots: AtomicU64,
    stats: Arc<BroadcasterStats>,
}

// === impl WriterSignals ===

impl WriterSignals {
    /// Returns a state in which no slot holds the writer back.
    pub(super) fn new(block_timeout: Duration, stats: Arc<BroadcasterStats>) -> Self {
        let budget = SharedBudget::new(block_timeout, Instant::now());
        Self { budget, freed: Notify::new(), vacant: Mutex::default(), slots: AtomicU64::new(0), stats }
    }

    /// Returns the id of a new slot.
    pub(super) fn next_slot_id(&self) -> u64 {
        self.slots.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Adds a slot that holds the writer back.
    pub(super) fn block(&self, now: Instant) {
        self.budget.begin(now);
    }

    /// Removes a slot that held the writer back. Returns true if it was the last one: the caller then wakes the writer
    /// ([`Self::free`]) once it holds no lock.
    pub(super) fn unblock(&self, now: Instant) -> bool {
        let Some(waited) = self.budget.end(now) else { return false };
        self.stats.blocked_micros.fetch_add(waited.as_micros() as u64, Ordering::Relaxed);
        true
    }

    /// Counts a slot that the writer does not wait for.
    pub(super) fn count(&self, follows: OnFull) {
        let counter = match follows {
            OnFull::End => &self.stats.evicted,
            OnFull::Block | OnFull::Replay => &self.stats.denied,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Wakes the writer.
    pub(super) fn free(&self) {
        self.freed.notify_one();
    }

    /// Returns the time for which the writer may still be held back.
    pub(super) fn left(&self, now: Instant) -> Duration {
        self.budget.left(now)
    }

    /// Returns the time until which the writer waits; `None` if no slot holds it back.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.budget.spent_at()
    }

    /// Waits until the writer is woken, also if that happened before the call.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }

    /// Records that the last reader of a group has unsubscribed.
    pub(super) fn vacate(&self, group: usize) {
        self.vacant.lock().push(group);
    }

    /// Takes the groups that were vacated since the last call.
    pub(super) fn take_vacant(&self) -> Vec<usize> {
        std::mem::take(&mut *self.vacant.lock())
    }
}
