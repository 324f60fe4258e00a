//! Memory that is held for clients, over all connections of a server, and its limit.
//!
//! Each connection counts its own bytes, and sending shares nothing between connections: the ledger sums them up several times a
//! second. Above the limit it ends the streams that have waited longest: those whose clients have read nothing of their data for
//! the longest time. A stream that does not wait for its client is never ended. The same holds for the streams of one owner, if
//! there is a limit for each: its streams end, whatever the others hold.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::time::Instant;

use super::{
    Origin, PeerAccount,
    handle::{ConnectionWakes, StreamHandle},
    waiting::LongWaiting,
};
use crate::log_throttle::LogThrottle;

/// Memory accounts of all connections.
#[derive(Debug)]
pub struct Ledger {
    limit: usize,
    each: Option<OwnerLimit>,
    connections: Mutex<Vec<Weak<ConnectionWakes>>>,
    kept: AtomicUsize,
    /// Bytes of the requests of calls, which have a limit of their own within this one.
    requests: Option<Arc<PeerAccount>>,
    is_near: AtomicBool,
    ended: Counter,
}

/// Limit for the streams of each [owner](StreamHandle::belongs_to).
#[derive(Debug)]
struct OwnerLimit {
    limit: usize,
    /// Owners whose waiting streams held more at the last check.
    over: Mutex<HashSet<Origin>>,
    ended: Counter,
}

/// Bytes that wait for clients, by holder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HeldBytes {
    /// Bytes in HTTP/2, and in the connection if its socket is full.
    pub sending: usize,
    /// Bytes that response bodies have encoded, and that have no room.
    pub encoded_bytes: usize,
    /// Bytes that other parts of the server [keep](super::StreamHandle::keep) for streams.
    pub kept: usize,
    /// Bytes of the requests of calls.
    pub requests: usize,
}

/// Interval at which the ledger sums up.
const INTERVAL: Duration = Duration::from_millis(100);
/// Share of the limit from which on the ledger checks the waiting streams each time, so that it has seen which of them have
/// waited longest when the limit is exceeded.
const NEAR: f64 = 0.75;

/// Rates of the log lines about streams that were ended.
static ENDED_LOG: LogThrottle = LogThrottle::new();
static ENDED_OF_OWNERS_LOG: LogThrottle = LogThrottle::new();

// === impl Ledger ===

impl Ledger {
    /// Creates the ledger of a server that holds at most `limit` bytes for its clients; `ended` counts the streams that it ends.
    pub fn new(limit: usize, ended: Counter) -> Self {
        let (kept, is_near) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { limit, each: None, connections: Mutex::default(), kept, requests: None, is_near, ended }
    }

    /// Limits the bytes that are held for each owner of streams; `ended` counts the streams that end because of it.
    #[must_use]
    pub fn with_limit_for_each(self, limit: usize, ended: Counter) -> Self {
        Self { each: Some(OwnerLimit { limit, over: Mutex::default(), ended }), ..self }
    }

    /// Counts the bytes of requests, too.
    #[must_use]
    pub fn with_requests(self, requests: Arc<PeerAccount>) -> Self {
        Self { requests: Some(requests), ..self }
    }

    /// Returns the limit for each owner, if this one holds more.
    pub fn exceeded_by(&self, owner: Origin) -> Option<usize> {
        let each = self.each.as_ref()?;
        each.over.lock().contains(&owner).then_some(each.limit)
    }

    /// Returns true if there is a limit for each owner.
    pub fn has_limit_for_each(&self) -> bool {
        self.each.is_some()
    }

    /// Ends streams while more than the limit is held; never returns.
    ///
    /// # Cancel safety
    ///
    /// Safe. The limit is not enforced while it does not run.
    pub async fn run(&self) {
        loop {
            tokio::time::sleep(INTERVAL).await;
            self.sweep();
        }
    }

    /// Returns true if the limit is near.
    pub fn is_near(&self) -> bool {
        self.is_near.load(Ordering::Relaxed)
    }

    /// Returns the number of streams that the ledger has ended.
    pub fn ended(&self) -> u64 {
        self.ended.get() + self.each.as_ref().map_or(0, |each| each.ended.get())
    }

    /// Returns the limit, in bytes.
    pub fn limit(&self) -> usize {
        self.limit
    }

    /// Adds a connection, until that is dropped.
    pub(super) fn add(&self, connection: &Arc<ConnectionWakes>) {
        connection.memory_limit.store(self.limit, Ordering::Relaxed);
        connection.owner_limit.store(self.each.as_ref().map_or(0, |each| each.limit), Ordering::Relaxed);
        self.connections.lock().push(Arc::downgrade(connection));
    }

    /// Records the number of bytes that other parts of the server keep for all streams.
    pub fn keep(&self, bytes: usize) {
        self.kept.store(bytes, Ordering::Relaxed);
    }

    /// Returns the number of open connections.
    pub fn connections(&self) -> usize {
        let mut connections = 0;
        self.sum(|_| connections += 1);
        connections
    }

    /// Returns the current sums.
    pub fn waiting(&self) -> HeldBytes {
        self.sum(|_| {})
    }

    fn sum(&self, mut of_each: impl FnMut(Arc<ConnectionWakes>)) -> HeldBytes {
        let requests = self.requests.as_ref().map_or(0, |requests| requests.held());
        let kept = self.kept.load(Ordering::Relaxed);
        let mut waiting = HeldBytes { kept, requests, ..HeldBytes::default() };
        self.connections.lock().retain(|connection| {
            let Some(connection) = connection.upgrade() else { return false };
            waiting.sending += connection.sending();
            waiting.encoded_bytes += connection.encoded_bytes();
            of_each(connection);
            true
        });
        waiting
    }

    /// Ends as many streams as necessary to get below the limit.
    fn sweep(&self) {
        let mut connections = Vec::new();
        let mut held = self.sum(|connection| connections.push(connection)).total();
        let is_near = held as f64 >= self.limit as f64 * NEAR;
        let was_near = self.is_near.swap(is_near, Ordering::Relaxed);
        if !is_near && self.each.is_none() {
            return;
        }
        let now = Instant::now();
        let mut longest = Vec::new();
        for connection in connections {
            connection.waiting.check(now, |waiting| {
                if waiting.stream.exhausted().is_some() {
                    // Its memory is about to be freed.
                    held = held.saturating_sub(waiting.stream.bytes_held());
                } else {
                    longest.push(waiting);
                }
            });
        }
        longest.sort_by_key(|waiting| waiting.since);
        if let Some(each) = &self.each {
            held = held.saturating_sub(self.end_of_owners(each, &mut longest));
        }
        // The first check near the limit has only recorded the progress of the streams.
        if !is_near || !was_near || held <= self.limit {
            return;
        }
        for LongWaiting { stream, .. } in longest {
            let bytes = stream.bytes_held();
            if bytes == 0 {
                continue;
            }
            self.end(&stream, false);
            self.ended.inc();
            held = held.saturating_sub(bytes);
            if held <= self.limit {
                break;
            }
        }
        let Some(times) = ENDED_LOG.poll() else { return };
        tracing::warn!(limit = self.limit, held, times, "streams ended: memory held for clients exceeds limits.memory");
    }

    /// Ends streams of each owner that holds more than its limit, and removes them from those that wait, the longest first.
    /// Returns the bytes that they held.
    fn end_of_owners(&self, each: &OwnerLimit, longest: &mut Vec<LongWaiting>) -> usize {
        let mut over: HashMap<Origin, usize> = HashMap::new();
        for LongWaiting { stream, .. } in &*longest {
            if let Some(owner) = stream.owner() {
                *over.entry(owner).or_default() += stream.bytes_held();
            }
        }
        over.retain(|_, held| *held > each.limit);
        *each.over.lock() = over.keys().copied().collect();
        if over.is_empty() {
            return 0;
        }
        let mut freed = 0;
        longest.retain(|LongWaiting { stream, .. }| {
            let held = stream.owner().and_then(|owner| over.get_mut(&owner));
            let (Some(held), bytes) = (held.filter(|held| **held > each.limit), stream.bytes_held()) else {
                return true;
            };
            if bytes == 0 {
                return true;
            }
            self.end(stream, true);
            each.ended.inc();
            *held = held.saturating_sub(bytes);
            freed += bytes;
            false
        });
        if let Some(times) = ENDED_OF_OWNERS_LOG.poll() {
            tracing::warn!(
                limit = each.limit,
                freed,
                times,
                "streams ended: memory held for one caller exceeds quotas.bytes_held"
            );
        }
        freed
    }

    fn end(&self, stream: &StreamHandle, is_by_owner: bool) {
        let kept = stream.exhaust(is_by_owner);
        self.keep(self.kept.load(Ordering::Relaxed).saturating_sub(kept));
    }
}

impl Default for Ledger {
    fn default() -> Self {
        Self::new(DEFAULT_LIMIT, Counter::default())
    }
}

/// Default limit on the bytes held for clients, if the memory of the machine is not known.
const DEFAULT_LIMIT: usize = 1 << 30;

// === impl HeldBytes ===

impl HeldBytes {
    /// Returns the sum of all bytes.
    pub fn total(self) -> usize {
        self.sending + self.encoded_bytes + self.kept + self.requests
    }
}
