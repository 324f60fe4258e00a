//! Signals from cursors under BLOCK to the writer.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{sync::Notify, time::Instant};

use super::{budget::SharedBudget, config::BroadcasterStats, policy::OnFull};
use crate::sync::AtomicU64;

/// State shared by a writer and the queues that may hold it back.
#[derive(Debug)]
pub(super) struct WriterSignals {
    /// Budget of the resource, which the queues that hold the writer back draw on.
    budget: SharedBudget,
    freed: Notify,
    /// Lower bound of the offsets at which a queue under BLOCK may be full.
    full_at: AtomicU64,
    stats: Arc<BroadcasterStats>,
}

// === impl WriterSignals ===

impl WriterSignals {
    /// Returns a state in which no queue holds the writer back.
    pub(super) fn new(block_timeout: Duration, stats: Arc<BroadcasterStats>) -> Self {
        let (budget, full_at) = (SharedBudget::new(block_timeout, Instant::now()), AtomicU64::default());
        full_at.store(u64::MAX, Ordering::SeqCst);
        Self { budget, freed: Notify::new(), full_at, stats }
    }

    /// Adds a queue that holds the writer back.
    pub(super) fn block(&self, now: Instant) {
        self.budget.begin(now);
    }

    /// Removes a queue that held the writer back. Returns true if it was the last one: the caller then wakes the writer
    /// ([`Self::free`]) once it holds no lock.
    pub(super) fn unblock(&self, now: Instant) -> bool {
        let Some(waited) = self.budget.end(now) else { return false };
        self.stats.blocked_micros.fetch_add(waited.as_micros() as u64, Ordering::Relaxed);
        true
    }

    /// Counts a queue that the writer does not wait for.
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

    /// Returns the time until which the writer waits; `None` if no queue holds it back.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.budget.spent_at()
    }

    /// Waits until the writer is woken, also if that happened before the call.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }

    /// Lets the writer look at the queues once it has published this offset.
    pub(super) fn look_at(&self, offset: u64) {
        self.full_at.fetch_min(offset, Ordering::SeqCst);
    }

    /// Returns true if a queue may be full at an offset. Then the caller looks at all, and notes the next offset for each.
    pub(super) fn may_be_full(&self, offset: u64) -> bool {
        if self.full_at.load(Ordering::SeqCst) > offset {
            return false;
        }
        self.full_at.store(u64::MAX, Ordering::SeqCst);
        true
    }
}
