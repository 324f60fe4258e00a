//! Policies for a full queue: the states of a reader, and what its policy decides in each of them.
//!
//! A policy decides at two moments: when the writer has published ([`on_publish`]), and when the reader takes
//! ([`on_take`]). Both functions are pure, and match every state and every policy, so that the compiler names the places
//! that a new one concerns. The [queue](super::queue) carries the decisions out.
//!
//! | state | policy | begins | ends |
//! |---|---|---|---|
//! | catching up | any | join with initial events or a version | the unread changes fit into the queue |
//! | live | any | the reader has caught up | |
//! | frozen | DROP | a take from a full queue; the history drops what waits | the queue is read: the rest is lost |
//! | blocking | BLOCK | publishing fills the queue | half of it is read, or the budget is spent |
//! | merging | COALESCE | a take from a full queue; the history drops what waits | everything published has merged |
//! | ended | BLOCK, COALESCE | a budget is spent | |
//!
//! The number of unread changes is an upper bound of the queue: only beyond its length are the events of the selection counted.

use std::time::Duration;

use super::coalesce::DrainingGeneration;
use crate::model::ResourceVersion;

/// Policy for a full client queue (apimachinery's `FullChannelBehavior`, extended by REPLAY and COALESCE).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FullChannelPolicy {
    /// This client alone loses the events, and the cursor reports how many ([`super::Taken::Dropped`]). The queue is frozen
    /// until it has been read, then the client jumps to the newest event: one gap for each stall.
    Drop,
    /// The writer waits before its next batch until the queue is half empty, within the budget of the resource
    /// ([`block_timeout`](super::BroadcasterConfig::block_timeout)). When that is spent, a client that has also spent its
    /// own budget is ended ([`End::SlowConsumer`]). Any other one is served as under [`Replay`](Self::Replay), as is a new
    /// one, until it has read as many events as its queue is long.
    Block,
    /// Nobody waits and nothing is lost: the client keeps its position for as long as the history has what follows. After that
    /// it ends ([`End::Expired`]).
    Replay,
    /// All that a full queue holds merges per key: the client receives the latest states, and the number of events that
    /// each stands for. The cursor ends when the merged changes take too much memory
    /// ([`coalesce_size`](super::BroadcasterConfig::coalesce_size)).
    Coalesce,
}

/// Queue of one client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QueueOptions {
    /// Policy when it is full.
    pub policy: FullChannelPolicy,
    /// Number of events at which it is full. Under BLOCK, 0 means that the writer waits until everything has been taken, as
    /// with an unbuffered channel upstream; under DROP, 0 counts as 1.
    pub length: usize,
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
    /// The Broadcaster was shut down. Everything published before was delivered.
    Stopped,
    /// The history was rewritten upstream: versions from before have no meaning any more.
    HistoryRewritten,
    /// The version that the cursor has reached has expired: no client can resume from it.
    Expired {
        /// Oldest version to resume from.
        oldest: ResourceVersion,
    },
    /// Under BLOCK: the client has spent its own budget; its queue was discarded.
    SlowConsumer,
    /// The work for the cursor has panicked, which is a bug; the log has the details.
    Failed,
}

/// State of a reader.
#[derive(Debug)]
pub(super) enum State {
    /// Every policy behaves as REPLAY, until the initial events are delivered and the reader has then caught up with its
    /// queue for the first time. So no client loses its queue to a long snapshot.
    CatchingUp {
        /// True while the initial events are delivered.
        has_initial_events: bool,
    },
    Live,
    /// Under DROP: a full queue is read up to this offset. What follows is lost.
    Frozen {
        until: u64,
        /// Number of events that are left in the queue.
        left: u64,
    },
    /// Under BLOCK: the writer waits for the reader.
    Blocking,
    /// Under COALESCE: what the queue held merges, with everything published since. It is ready once that is complete, and may then
    /// be delivered.
    Merging {
        ready: Option<Box<DrainingGeneration>>,
    },
    /// The reader has ended before the others.
    Ended(End),
}

/// Unread part of a queue: all that a policy decides by, besides the state.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Unread {
    /// Offset up to which the reader has read.
    pub(super) at: u64,
    /// Number of published changes after that, of all selections.
    pub(super) changes: u64,
    /// Number of events of the selection among them, if they were counted or merged to the last one.
    pub(super) events: Option<u64>,
    /// Length at which the queue is full.
    pub(super) length: u64,
}

/// Effect of publishing on a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnPublish {
    /// The writer need not look at the queue.
    Nothing,
    /// The writer must look at the queue again when this many more changes were published.
    HasRoom(u64),
    /// The events must be counted.
    Count,
    /// The writer waits, as far as the budgets allow ([`on_full`]).
    Block,
}

/// Next step of a reader that takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OnTake {
    /// The policy acts from now on: it decides again.
    GoLive,
    /// The reader reads what follows.
    Read,
    /// It reads up to this offset.
    ReadUntil(u64),
    /// All unread changes must be counted, or merged; then it decides again.
    Count,
    /// It freezes its queue, and decides again.
    Freeze,
    /// It loses everything unread, and continues at the head.
    Drop,
    /// Everything unread merges; then it decides again.
    Merge,
    /// It delivers what has merged.
    Deliver,
    End(End),
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

/// Decides the effect of publishing on a reader. `may_block` is true if the reader has read enough for the writer to wait
/// for it.
pub(super) fn on_publish(policy: FullChannelPolicy, state: &State, unread: &Unread, may_block: bool) -> OnPublish {
    match state {
        State::Live => match policy {
            FullChannelPolicy::Drop | FullChannelPolicy::Replay | FullChannelPolicy::Coalesce => OnPublish::Nothing,
            FullChannelPolicy::Block if !may_block => OnPublish::Nothing,
            FullChannelPolicy::Block if unread.changes < unread.length => {
                OnPublish::HasRoom(unread.length - unread.changes)
            }
            FullChannelPolicy::Block => match unread.events {
                None => OnPublish::Count,
                Some(events) if events < unread.length => OnPublish::HasRoom(unread.length - events),
                Some(_) => OnPublish::Block,
            },
        },
        State::CatchingUp { .. } | State::Frozen { .. } | State::Blocking | State::Merging { .. } | State::Ended(_) => {
            OnPublish::Nothing
        }
    }
}

/// Decides the next step of a reader that takes.
pub(super) fn on_take(policy: FullChannelPolicy, state: &State, unread: &Unread) -> OnTake {
    match state {
        State::CatchingUp { has_initial_events: true } | State::Blocking => OnTake::Read,
        State::CatchingUp { has_initial_events: false } if unread.changes > unread.length => OnTake::Read,
        State::CatchingUp { has_initial_events: false } => OnTake::GoLive,
        State::Live => match policy {
            FullChannelPolicy::Block | FullChannelPolicy::Replay => OnTake::Read,
            FullChannelPolicy::Drop | FullChannelPolicy::Coalesce if unread.changes <= unread.length => OnTake::Read,
            FullChannelPolicy::Drop | FullChannelPolicy::Coalesce => match (unread.events, policy) {
                (None, _) => OnTake::Count,
                (Some(events), _) if events <= unread.length => OnTake::Read,
                (Some(_), FullChannelPolicy::Drop) => OnTake::Freeze,
                (Some(_), _) => OnTake::Merge,
            },
        },
        State::Frozen { until, .. } if unread.at < *until => OnTake::ReadUntil(*until),
        State::Frozen { .. } => unread.events.map_or(OnTake::Count, |_| OnTake::Drop),
        State::Merging { ready: Some(_) } => OnTake::Deliver,
        State::Merging { ready: None } => unread.events.map_or(OnTake::Count, |_| OnTake::Deliver),
        State::Ended(end) => OnTake::End(end.clone()),
    }
}

/// Decides the consequence of a full queue under BLOCK, by what is left of the resource's and of the client's budget.
pub(super) fn on_full(resource: Duration, client: Duration) -> OnFull {
    match (resource.is_zero(), client.is_zero()) {
        (true | false, true) => OnFull::End,
        (true, false) => OnFull::Replay,
        (false, false) => OnFull::Block,
    }
}

#[cfg(test)]
mod tests;
