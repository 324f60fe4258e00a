//! Bounds and counters of one Broadcaster.

use std::{sync::atomic::AtomicU64, time::Duration};

use super::DurationHistogram;

/// Bounds on the past that a Broadcaster keeps for cursors that have not read it yet; the first bound that is met applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Published events, counted once however many groups received them.
    pub events: usize,
    /// Bytes of memory of the logs of all groups together: arenas, runs and marks.
    pub size: usize,
    /// Age.
    pub age: Duration,
}

/// Bounds of one Broadcaster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BroadcasterConfig {
    /// Bounds on the past that is kept for lagging cursors.
    pub retention: Retention,
    /// Size at which a queue is full whatever its length, in the unit of the frame.
    pub queue_size: usize,
    /// Bytes that the merged changes of one cursor under COALESCE may take: its entries, and the states that its client has
    /// of them. Beyond that the cursor ends with [`End::Expired`](super::End::Expired).
    pub coalesce_size: usize,
    /// Budget of a resource under BLOCK, refilled at a tenth of the time: over any time `t` the writer waits for all
    /// clients together for at most this plus `t / 10`. Each [`Client`](super::Client) has a budget of the same size, which
    /// decides only if the client is ended.
    pub block_timeout: Duration,
    /// Time of one publish cycle for expressions, and for selections without a name, index, field or label to route by.
    /// Threads ([`BulkThreads`](super::BulkThreads)), if there are any, fill the groups that do not fit.
    pub selection_budget: Duration,
    /// Share of the writer's total time for the same selections, in percent.
    pub selection_share: u32,
}

/// Counters and gauges of one Broadcaster, read at scrape.
#[derive(Debug, Default)]
pub struct BroadcasterStats {
    /// Cursors that exist now.
    pub cursors: AtomicU64,
    /// Watches: those with a cursor, and those that read the history for all watches of their stream together.
    pub watchers: AtomicU64,
    /// Groups that exist now.
    pub groups: AtomicU64,
    /// Events encoded, once for each format and variant.
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
    /// Bytes that all logs keep for lagging cursors: arenas, runs and marks.
    pub retained_size: AtomicU64,
    /// Groups that threads fill now, because the writer has no time for their selections.
    pub deferred: AtomicU64,
    /// Number of times that the writer had no time for a group.
    pub deferrals: AtomicU64,
    /// Watches ended because the threads that fill their group, or merge for them, did not keep up with the history.
    pub expired: AtomicU64,
    /// Watches ended because their merged changes took too much memory ([`BroadcasterConfig::coalesce_size`]).
    pub overmerged: AtomicU64,
    /// Time of each publish cycle: selecting, encoding and appending to the logs.
    pub publish: DurationHistogram,
    /// Time from the publication of an event until a cursor has taken it from its log. One in 16 takes is measured, so that not
    /// each reads the clock.
    pub queued: DurationHistogram,
}

/// Longest queue that a client may request, in events. A queue is a position, so this bounds what DROP loses and BLOCK holds at once.
pub const MAX_QUEUE_LENGTH: usize = 65_536;

impl Default for BroadcasterConfig {
    fn default() -> Self {
        Self {
            retention: Retention { events: 100_000, size: 16 << 20, age: Duration::from_secs(300) },
            queue_size: 16 << 20,
            coalesce_size: 64 << 20,
            block_timeout: Duration::from_secs(5),
            selection_budget: Duration::from_micros(200),
            selection_share: 20,
        }
    }
}
