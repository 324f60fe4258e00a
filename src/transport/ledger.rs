//! The memory that is held for clients, over all connections of a server, and its bound.
//!
//! Every connection counts for itself, and nothing is shared between connections when something is sent: the sums are made from
//! outside, several times a second. Above the bound the streams end that have waited longest: those whose clients have taken
//! nothing for the longest time, of what is held for them. A stream that has nothing to send holds nothing, and is never ended.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::time::Instant;

use super::handle::{LongWaiting, Wakes};

/// The accounts of all connections.
#[derive(Debug)]
pub struct Ledger {
    limit: usize,
    connections: Mutex<Vec<Weak<Wakes>>>,
    kept: AtomicUsize,
    is_near: AtomicBool,
    ended: Counter,
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

/// Interval at which the sums are made.
const INTERVAL: Duration = Duration::from_millis(100);
/// From this part of the limit on, the streams that wait are looked at each time: who has waited longest is known when it
/// matters.
const NEAR: f64 = 0.75;

// === impl Ledger ===

impl Ledger {
    /// Makes the accounts of a server that holds at most so many bytes for its clients, and counts the streams that it ends.
    pub fn new(limit: usize, ended: Counter) -> Self {
        Self { limit, connections: Mutex::default(), kept: AtomicUsize::new(0), is_near: AtomicBool::new(false), ended }
    }

    /// Ends streams while more than the limit is held, for ever.
    ///
    /// # Cancel safety
    ///
    /// Nothing is ended while it does not run.
    pub async fn run(&self) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            self.sweep();
        }
    }

    /// Returns whether the limit is near.
    pub fn is_near(&self) -> bool {
        self.is_near.load(Ordering::Relaxed)
    }

    /// Returns how many streams it has ended.
    pub fn ended(&self) -> u64 {
        self.ended.get()
    }

    /// Returns the bound.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Adds a connection, until it is dropped.
    pub(super) fn add(&self, connection: &Arc<Wakes>) {
        connection.memory_limit.store(self.limit, Ordering::Relaxed);
        self.connections.lock().push(Arc::downgrade(connection));
    }

    /// Notes the sum of what is kept for all streams.
    pub fn keep(&self, bytes: usize) {
        self.kept.store(bytes, Ordering::Relaxed);
    }

    /// Returns the sums.
    pub fn waiting(&self) -> Waiting {
        self.sum(|_| {})
    }

    fn sum(&self, mut of_each: impl FnMut(Arc<Wakes>)) -> Waiting {
        let mut waiting = Waiting { kept: self.kept.load(Ordering::Relaxed), ..Waiting::default() };
        self.connections.lock().retain(|connection| {
            let Some(connection) = connection.upgrade() else { return false };
            waiting.sending += connection.sending();
            waiting.made += connection.made();
            of_each(connection);
            true
        });
        waiting
    }

    /// Ends as many streams as it takes.
    fn sweep(&self) {
        let mut connections = Vec::new();
        let mut held = self.sum(|connection| connections.push(connection)).total();
        let is_near = held as f64 >= self.limit as f64 * NEAR;
        let was_near = self.is_near.swap(is_near, Ordering::Relaxed);
        if !is_near {
            return;
        }
        let now = Instant::now();
        let mut longest = Vec::new();
        for connection in connections {
            connection.waiting.look(now, |waiting| {
                if waiting.stream.is_exhausted() {
                    // It is about to be freed.
                    held = held.saturating_sub(waiting.stream.bytes_held());
                } else {
                    longest.push(waiting);
                }
            });
        }
        // Before that, nobody has looked at who makes progress.
        if !was_near || held <= self.limit {
            return;
        }
        longest.sort_by_key(|waiting| waiting.since);
        for LongWaiting { stream, .. } in longest {
            let bytes = stream.bytes_held();
            if bytes == 0 {
                continue;
            }
            let kept = stream.exhaust();
            self.keep(self.kept.load(Ordering::Relaxed).saturating_sub(kept));
            self.ended.inc();
            held = held.saturating_sub(bytes);
            if held <= self.limit {
                break;
            }
        }
        tracing::warn!(limit = self.limit, held, "streams ended: memory held for clients exceeds limits.memory");
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new(DEFAULT_LIMIT, Counter::default())
    }
}

/// Bytes held for clients at most, where nothing is known of the machine.
const DEFAULT_LIMIT: usize = 1 << 30;

// === impl Waiting ===

impl Waiting {
    /// Returns all of it.
    pub fn total(self) -> usize {
        self.sending + self.made + self.kept
    }
}
