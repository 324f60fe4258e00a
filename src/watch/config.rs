//! Bounds and counters of one Broadcaster.

use std::{sync::atomic::AtomicU64, time::Duration};

use super::DurationHistogram;

/// Bounds on a past; the first bound that is met applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Published events.
    pub events: usize,
    /// Bytes: of a history, of the states that only it has; of encoded blocks, their size.
    pub size: usize,
    /// Age.
    pub age: Duration,
}

/// Bounds of one Broadcaster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BroadcasterConfig {
    /// Bounds of the history of a Broadcaster of its own; the size is also that of the encoded events that are kept.
    pub retention: Retention,
    /// Bytes that the merged changes of one cursor under COALESCE may take: its entries, and the states that its client has
    /// of them. Beyond that the cursor ends with [`End::Expired`](super::End::Expired).
    pub coalesce_size: usize,
    /// Budget of a resource under BLOCK, refilled at a tenth of the time: over any time `t` the writer waits for all
    /// clients together for at most this plus `t / 10`. Each [`Client`](super::Client) has a budget of the same size, which
    /// decides only if the client is ended.
    pub block_timeout: Duration,
}

/// Counters and gauges of one Broadcaster, read at scrape.
#[derive(Debug, Default)]
pub struct BroadcasterStats {
    /// Cursors that exist now.
    pub cursors: AtomicU64,
    /// Watches: those with a cursor, and those that read the history for all watches of their stream together.
    pub watchers: AtomicU64,
    /// Selections and formats that cursors have now.
    pub groups: AtomicU64,
    /// Events encoded, nearly always once for all cursors with the same selection and format.
    pub encoded: AtomicU64,
    /// Events taken by cursors.
    pub delivered: AtomicU64,
    /// Events lost under DROP.
    pub dropped: AtomicU64,
    /// Watches ended under BLOCK.
    pub evicted: AtomicU64,
    /// Full queues under BLOCK that were served as under REPLAY, because the budget of the resource was spent.
    pub denied: AtomicU64,
    /// Time for which the writer waited under BLOCK, in microseconds.
    pub blocked_micros: AtomicU64,
    /// Bytes of the encoded events that are kept.
    pub retained_size: AtomicU64,
    /// Watches ended because their changes were not counted or merged before the history dropped them.
    pub expired: AtomicU64,
    /// Watches ended because their merged changes took too much memory ([`BroadcasterConfig::coalesce_size`]).
    pub overmerged: AtomicU64,
    /// Time of each publish cycle: finding and waking the cursors that it may concern.
    pub publish: DurationHistogram,
    /// Time from the publication of an event until a cursor has taken it. One in 16 takes is measured, so that not
    /// each reads the clock.
    pub queued: DurationHistogram,
}

/// Longest queue that a client may request, in events. A queue is a position, so this bounds what DROP loses and BLOCK holds at once.
pub const MAX_QUEUE_LENGTH: usize = 65_536;

impl Default for Retention {
    fn default() -> Self {
        Self { events: 100_000, size: 16 << 20, age: Duration::from_secs(300) }
    }
}

impl Default for BroadcasterConfig {
    fn default() -> Self {
        Self { retention: Retention::default(), coalesce_size: 64 << 20, block_timeout: Duration::from_secs(5) }
    }
}
