//! The memory that is held for clients, over all connections of a server.
//!
//! Every connection counts for itself, and nothing is shared between connections when something is sent: the sums are made when
//! somebody reads them.

use std::sync::{
    Arc, Weak,
    atomic::{AtomicUsize, Ordering},
};

use parking_lot::Mutex;

use super::handle::Wakes;

/// The accounts of all connections.
#[derive(Debug, Default)]
pub struct Ledger {
    connections: Mutex<Vec<Weak<Wakes>>>,
    kept: AtomicUsize,
}

/// Bytes that wait for clients, by what holds them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waiting {
    /// HTTP/2, or the connection, whose socket is full.
    pub sending: usize,
    /// The bodies of responses: made, and without room.
    pub made: usize,
    /// Those who [keep](super::StreamHandle::keep) something for streams.
    pub kept: usize,
}

// === impl Ledger ===

impl Ledger {
    /// Adds a connection, until it is dropped.
    pub(super) fn add(&self, connection: &Arc<Wakes>) {
        self.connections.lock().push(Arc::downgrade(connection));
    }

    /// Notes the sum of what is kept for all streams.
    pub fn keep(&self, bytes: usize) {
        self.kept.store(bytes, Ordering::Relaxed);
    }

    /// Returns the sums.
    pub fn waiting(&self) -> Waiting {
        let mut waiting = Waiting { kept: self.kept.load(Ordering::Relaxed), ..Waiting::default() };
        self.connections.lock().retain(|connection| {
            let Some(connection) = connection.upgrade() else { return false };
            waiting.sending += connection.sending();
            waiting.made += connection.made();
            true
        });
        waiting
    }
}

// === impl Waiting ===

impl Waiting {
    /// Returns all of it.
    pub fn total(self) -> usize {
        self.sending + self.made + self.kept
    }
}
