//! Policies for a full queue, and the bounds of everything that is kept for clients.

use std::time::Duration;

use crate::model::ResourceVersion;

/// Policy for a full client queue (apimachinery's `FullChannelBehavior`, extended by REPLAY and COALESCE).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FullChannelPolicy {
    /// This client alone loses the events, and the cursor reports how many ([`super::Taken::Dropped`]). The queue is frozen
    /// until it has been read, then the client jumps to the newest event: one gap for each stall.
    Drop,
    /// The writer waits before its next batch until the queue is half empty, within the budget of the resource
    /// ([`BroadcasterConfig::block_timeout`]). When that is spent, a client that has also spent its own budget is ended
    /// ([`End::SlowConsumer`]). Any other one is served as under [`Replay`](Self::Replay), as is a new one, until it has
    /// read as many events as its queue is long.
    Block,
    /// Nobody waits and nothing is lost: the client keeps its position for as long as the events are retained. After that
    /// it is parked ([`super::Taken::Parked`]): it holds a version, and resumes from a history.
    Replay,
    /// All that a full queue holds merges per key: the client receives the latest states, and the number of events that
    /// each stands for. The cursor ends when the merged changes take too much memory
    /// ([`BroadcasterConfig::coalesce_size`]).
    Coalesce,
}

/// Queue of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueOptions {
    /// Policy when it is full.
    pub policy: FullChannelPolicy,
    /// Number of events at which it is full. Under BLOCK, 0 means that the writer waits until everything has been taken, as
    /// with an unbuffered channel upstream; under DROP, 0 counts as 1.
    pub length: usize,
}

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
    /// of them. Beyond that the cursor ends with [`End::Expired`].
    pub coalesce_size: usize,
    /// Budget of a resource under BLOCK, refilled at a tenth of wall time: over any time `t` the writer waits for all
    /// clients together for at most this plus `t / 10`. Each [`Client`](super::Client) has a budget of the same size, which
    /// decides only if the client is ended.
    pub block_timeout: Duration,
    /// Time of one publish cycle for expressions, and for selections without a name, index, field or label to route by.
    /// Threads ([`BulkThreads`](super::BulkThreads)), if there are any, fill the groups that do not fit.
    pub selection_budget: Duration,
    /// Share of the writer's total time for the same selections, in percent.
    pub selection_share: u32,
}

/// Effect of a policy on a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CursorState {
    /// No effect: it reads its queue.
    Following,
    /// Under DROP: its queue was full, and is read to its end.
    Frozen,
    /// Under BLOCK: its queue is full, and the writer waits for it.
    Blocking,
    /// Under COALESCE: its changes merge.
    Coalescing {
        /// Memory of the cursor's own entries.
        entries: usize,
        /// Size of the bodies that the entries refer to, which others may hold too.
        bodies: usize,
    },
}

/// Reason for the end of a cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The Broadcaster was shut down. Everything published before was delivered; to a deferred group, everything that its
    /// threads had filled.
    Stopped,
    /// The history was rewritten upstream: versions from before have no meaning any more.
    HistoryChanged,
    /// The version that the cursor has reached has expired: no client can resume from it.
    Expired {
        /// Oldest version to resume from.
        oldest: ResourceVersion,
    },
    /// Under BLOCK: the client has spent its own budget; its queue was discarded.
    SlowConsumer,
}

/// Consequence of a full queue under BLOCK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnFull {
    /// The writer waits for the slot.
    Block,
    /// The slot is served as under REPLAY.
    Replay,
    /// The cursor is ended.
    End,
}

/// Decides the consequence of a full queue under BLOCK, by what is left of the resource's and of the client's budget.
pub(super) fn on_full(resource: Duration, client: Duration) -> OnFull {
    match (resource.is_zero(), client.is_zero()) {
        (_, true) => OnFull::End,
        (true, false) => OnFull::Replay,
        (false, false) => OnFull::Block,
    }
}

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
