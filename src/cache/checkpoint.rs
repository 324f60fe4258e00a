//! A state together with what its upstream's history can be recognised by, for a later start to go on from.
//!
//! ```text
//!   keeper ── take ──▶ Reflector ── Delta::Checkpoint(proof) ──▶ queue ──▶ informer ── state and proof ──▶ keeper
//! ```
//!
//! The source is ahead of the informer by what is queued in between. So the proof goes the way of everything else, behind what
//! it is the proof of, and is put together with the state when the informer gets there: the two belong together, whatever
//! happens meanwhile.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

use super::Snapshot;

/// A state, and the proof of the history that it is of.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// The state.
    pub snapshot: Snapshot,
    /// What the source recognises this history by ([`WarmStart::proof`](super::WarmStart::proof)).
    pub proof: Bytes,
    /// Nothing is known beyond the state: no change has come ahead of its version.
    pub is_whole: bool,
}

/// Where checkpoints are asked for and given.
#[derive(Debug, Default)]
pub struct Checkpoints {
    is_wanted: AtomicBool,
    wanted: Notify,
    reply: Mutex<Option<oneshot::Sender<Checkpoint>>>,
}

// === impl Checkpoints ===

impl Checkpoints {
    /// Waits for the state as it is now, or a little later. `None` when the source has no proof, or somebody else asks.
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

    /// Whether a proof is to be queued now; asked by the Reflector, and from then on it is not any more.
    pub(super) fn is_wanted(&self) -> bool {
        // Nearly always it is not, and to read costs nothing.
        self.is_wanted.load(Ordering::Relaxed) && self.is_wanted.swap(false, Ordering::Acquire)
    }

    /// Waits until one may be.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub(super) async fn wanted(&self) {
        self.wanted.notified().await;
    }

    /// Here it is; without one, there will be none.
    pub(super) fn give(&self, checkpoint: Option<Checkpoint>) {
        let reply = self.reply.lock().take();
        if let Some((reply, checkpoint)) = reply.zip(checkpoint) {
            // Whoever asked may have gone.
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
