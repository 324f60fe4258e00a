//! State of a resource with the proof of its upstream's history, for the next run to resume from.
//!
//! ```text
//!   snapshot writer ── reply ──▶ Reflector ── Delta::Checkpoint {proof, reply} ──▶ queue ──▶ informer
//!                 ◀──────────────────────── state and proof, by the reply ──────────────────┘
//! ```
//!
//! The source is ahead of the informer by the deltas in the queue. So the proof passes through the queue, behind the changes
//! that it covers, and the informer pairs it with its state when it reaches it: the two always match.

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};

use super::Snapshot;
use crate::model::ResourceVersion;

/// State, and the proof of its upstream's history.
#[derive(Debug, Clone)]
pub struct Checkpoint {
    /// State of the resource.
    pub snapshot: Snapshot,
    /// Proof by which the source recognises this history ([`WarmStart::proof`](super::WarmStart::proof)).
    pub proof: Bytes,
    /// Version since which nothing has changed up to that of the state.
    pub unchanged_since: ResourceVersion,
    /// True if no change has come ahead of the state's version.
    pub is_whole: bool,
}

/// Requests for checkpoints to one Reflector; each carries its own reply. Clones share the queue.
#[derive(Debug, Clone)]
pub struct CheckpointRequests {
    requests: mpsc::Sender<oneshot::Sender<Checkpoint>>,
}

/// Requests as the Reflector receives them.
pub(super) type Requests = mpsc::Receiver<oneshot::Sender<Checkpoint>>;

// === impl CheckpointRequests ===

impl CheckpointRequests {
    pub(super) fn new() -> (Self, Requests) {
        let (requests, received) = mpsc::channel(1);
        (Self { requests }, received)
    }

    /// Waits for the present state, or a slightly later one. `None` if the source has no proof, or the resource has ended; a call
    /// at the very moment of its end may wait for ever, so callers bound it.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn take(&self) -> Option<Checkpoint> {
        let (reply, checkpoint) = oneshot::channel();
        self.requests.send(reply).await.ok()?;
        checkpoint.await.ok()
    }
}
