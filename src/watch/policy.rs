//! What happens when a client's queue is full, and the bounds of everything that is kept for clients.

use std::time::Duration;

use crate::model::ResourceVersion;

/// What the Broadcaster does when a client's queue is full (apimachinery's `FullChannelBehavior`, and one better).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FullChannelPolicy {
    /// The events are lost for this client alone, and it is told how many ([`super::Taken::Dropped`]). The queue is frozen
    /// until it has been read, then the client jumps to the newest event: one hole for each stall.
    Drop,
    /// The writer waits before its next batch until the queue is half empty, within the budget of the resource
    /// ([`BroadcasterConfig::block_timeout`]). When that is spent, a client that has spent its own budget is ended
    /// ([`End::SlowConsumer`]), and any other one is served as under [`Replay`](Self::Replay), as is a new one, until it has
    /// read as many events as its queue is long.
    Block,
    /// Nobody waits and nothing is lost: the client keeps its position for as long as the events are retained. When they
    /// have gone it is parked ([`super::Taken::Parked`]): it holds a version, and goes on from a history.
    Replay,
    /// All that a full queue holds merges per key: the client is told the latest states, and how many events each stands for.
    /// It ends when what has merged takes too much ([`BroadcasterConfig::coalesce_size`]).
    Coalesce,
}

/// The queue of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueueOptions {
    /// What happens when it is full.
    pub policy: FullChannelPolicy,
    /// How many events make it full. Under BLOCK, 0 means that the writer waits until everything has been taken, as an
    /// unbuffered channel does upstream; under DROP, 0 counts as 1.
    pub length: usize,
}

/// How much of the past a Broadcaster keeps for cursors that have not read it yet; whichever bound is met first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Published events, whatever the number of groups that they went to.
    pub events: usize,
    /// Bytes of memory: of a Broadcaster's logs arenas, runs and marks, of all groups together.
    pub size: usize,
    /// Age.
    pub age: Duration,
}

/// The bounds of one Broadcaster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BroadcasterConfig {
    /// What is kept for cursors that lag.
    pub retention: Retention,
    /// The size at which a queue is full whatever its length, in the unit of the frame.
    pub queue_size: usize,
    /// Bytes that what has merged for one cursor under COALESCE may take: its entries, and the states that its client has of
    /// them. Beyond them it ends with [`End::Expired`].
    pub coalesce_size: usize,
    /// The budget of a resource under BLOCK, refilled at a tenth of wall time: over any time `t` the writer waits for all
    /// clients together for at most this and `t / 10`. Each [`Client`](super::Client) has one of the same size, which decides
    /// only whether it is ended.
    pub block_timeout: Duration,
    /// The time that selections which no name, index, field or label leads to, and expressions, take of one publish cycle.
    /// Groups that do not fit are filled by [`BulkThreads`](super::BulkThreads), if there are any.
    pub selection_budget: Duration,
    /// The time that they take of all the writer's, in percent.
    pub selection_share: u32,
}

/// Effect of a policy on a cursor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CursorState {
    /// Nothing: it reads its queue.
    Following,
    /// Under DROP its queue was full, and is read to its end.
    Frozen,
    /// Under BLOCK its queue is full, and the writer waits for it.
    Blocking,
    /// Under COALESCE changes merge.
    Coalescing {
        /// The memory of the entries, which are its own.
        entries: usize,
        /// The size of the bodies that they refer to, which others may hold too.
        bodies: usize,
    },
}

/// Why a cursor ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// The Broadcaster was shut down; everything published before was delivered, or to a group that threads fill what they
    /// had filled.
    Stopped,
    /// The upstream's history changed: no version from before means anything now.
    HistoryChanged,
    /// The version that the cursor has reached cannot be resumed from any more.
    Expired {
        /// The oldest version that can be.
        oldest: ResourceVersion,
    },
    /// Under BLOCK the client has spent its own budget; the queue was discarded.
    SlowConsumer,
}

/// The consequence of a full queue under BLOCK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnFull {
    /// The writer waits for it.
    Block,
    /// It is served as under REPLAY.
    Replay,
    /// The client is ended.
    End,
}

/// Decides what follows from a full queue under BLOCK, by what is left of the resource's budget and of the client's.
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
