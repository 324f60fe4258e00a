//! What cursors tell the writer: that it may go on, and which groups nobody reads any more.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::{broadcaster::BroadcasterStats, budget::SharedBudget, policy::OnFull};
use crate::sync::Mutex;

/// Shared by a Broadcaster and its groups.
#[derive(Debug)]
pub(super) struct Room {
    /// The resource's: the slots that hold the writer back draw on it.
    budget: SharedBudget,
    freed: Notify,
    /// Groups whose last reader has gone; some may have one again.
    vacant: Mutex<Vec<usize>>,
    stats: Arc<BroadcasterStats>,
}

// === impl Room ===

impl Room {
    /// Returns one in which nobody holds the writer back.
    pub(super) fn new(block_timeout: Duration, stats: Arc<BroadcasterStats>) -> Self {
        let budget = SharedBudget::new(block_timeout, Instant::now());
        Self { budget, freed: Notify::new(), vacant: Mutex::default(), stats }
    }

    /// Lets one more slot hold the writer back.
    pub(super) fn block(&self, now: Instant) {
        self.budget.begin(now);
    }

    /// Lets a slot hold the writer back no longer. Returns whether it was the last one: then the writer is to be woken
    /// ([`Self::free`]), once no lock is held.
    pub(super) fn unblock(&self, now: Instant) -> bool {
        let Some(waited) = self.budget.end(now) else { return false };
        self.stats.blocked_micros.fetch_add(waited.as_micros() as u64, Ordering::Relaxed);
        true
    }

    /// Counts the slots that the writer does not wait for.
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

    /// Returns how long the writer may still be held back.
    pub(super) fn left(&self, now: Instant) -> Duration {
        self.budget.left(now)
    }

    /// Returns until when the writer waits; `None` when nobody holds it back.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.budget.spent_at()
    }

    /// Waits until the writer is woken, also if it was before this was called.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }

    /// Notes that the last reader of a group has gone.
    pub(super) fn vacate(&self, group: usize) {
        self.vacant.lock().push(group);
    }

    /// Takes the groups that were vacated since the last call.
    pub(super) fn take_vacant(&self) -> Vec<usize> {
        std::mem::take(&mut *self.vacant.lock())
    }
}
