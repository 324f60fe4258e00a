//! State of a resource with the proof of its upstream's history, for the next start to resume from.
//!
//! ```text
//!   keeper ── take ──▶ Reflector ── Delta::Checkpoint(proof) ──▶ queue ──▶ informer ── state and proof ──▶ keeper
//! ```
//!
//! The source is ahead of the informer by the deltas in the queue. So the proof passes through the queue, behind the changes
//! that it covers, and the informer pairs it with its state when it reaches it: the two always match.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::Snapshot;

/// State, and the proof of its upstream's history.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// State of the resource.
    pub snapshot: Snapshot,
    /// Proof by which the source recognises this history ([`WarmStart::proof`](super::WarmStart::proof)).
    pub proof: Bytes,
    /// True if no change has come ahead of the state's version.
    pub is_whole: bool,
}

/// Exchange of requests for checkpoints and of the checkpoints.
#[derive(Debug, Default)]
pub struct Checkpoints {
    is_wanted: AtomicBool,
    wanted: Notify,
    reply: Mutex<Option<oneshot::Sender<Checkpoint>>>,
}

// === impl Checkpoints ===

impl Checkpoints {
    /// Waits for the present state, or a slightly later one. `None` if the source has no proof, or another caller requests one.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn take(&self) -> Option<Checkpoint> {
        let (reply, checkpoint) = oneshot::channel();
        *self.reply.lock() = Some(reply);
        self.is_wanted.store(true, Ordering::Release);
        self.wanted.notify_one();
        checkpoint.await.ok()
    }

    /// Takes the request for a proof: returns true once per request. The Reflector calls it.
    pub(super) fn is_wanted(&self) -> bool {
        // Nearly always there is no request, and a load is cheap.
        self.is_wanted.load(Ordering::Relaxed) && self.is_wanted.swap(false, Ordering::Acquire)
    }

    /// Waits for a request.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Answers the request; with `None`, the caller gets none.
    pub(super) fn give(&self, checkpoint: Option<Checkpoint>) {
        let reply = self.reply.lock().take();
        if let Some((reply, checkpoint)) = reply.zip(checkpoint) {
            // The caller may have been dropped.
            drop(reply.send(checkpoint));
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task::spawn};

    use super::*;

    #[test]
    fn a_proof_that_is_asked_for_once_is_queued_once() {
        let checkpoints = Checkpoints::default();
        assert!(!checkpoints.is_wanted());
        let mut taken = spawn(checkpoints.take());
        assert_pending!(taken.poll());
        assert!(checkpoints.is_wanted());
        assert!(!checkpoints.is_wanted());
        checkpoints.give(None);
        assert!(assert_ready!(taken.poll()).is_none());
    }
}
