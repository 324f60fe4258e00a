//! What cursors tell the writer: that it may go on, and which groups nobody reads any more.

use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Shared by a Broadcaster and its groups.
#[derive(Debug, Default)]
pub(super) struct Room {
    /// Slots that hold the writer back.
    blocked: AtomicUsize,
    freed: Notify,
    /// Groups whose last reader has gone; some may have one again.
    vacant: Mutex<Vec<usize>>,
}

// === impl Room ===

impl Room {
    /// A slot holds the writer back from now on.
    pub(super) fn block(&self) {
        self.blocked.fetch_add(1, Ordering::AcqRel);
    }

    /// A slot does so no longer. Only the last one wakes the writer.
    pub(super) fn unblock(&self) {
        if self.blocked.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.freed.notify_one();
        }
    }

    /// Whether nobody holds the writer back.
    pub(super) fn is_free(&self) -> bool {
        self.blocked.load(Ordering::Acquire) == 0
    }

    /// Waits for the last slot, also for one that was last before this was called.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }

    /// The last reader of a group has gone.
    pub(super) fn vacate(&self, group: usize) {
        self.vacant.lock().push(group);
    }

    /// The groups that were vacated since the last call.
    pub(super) fn take_vacant(&self) -> Vec<usize> {
        std::mem::take(&mut *self.vacant.lock())
    }
}
