//! Policies for a full queue: the states of a reader, and what its policy decides in each of them.
//!
//! A policy decides at two moments: when the writer has published ([`on_publish`]), and when the reader takes
//! ([`on_take`]). Both functions are pure, and match every state and every policy, so that the compiler names the places
//! that a new one concerns. The log of the group and the cursor carry the decisions out.
//!
//! | state | policy | begins | ends |
//! |---|---|---|---|
//! | catching up | any | join with initial events or a version | the unread events fit into the queue |
//! | live | any | the reader has caught up | |
//! | frozen | DROP | a take from a full queue | the queue is read: the rest is lost |
//! | blocking | BLOCK | publishing fills the queue | half of it is read, or the budget is spent |
//! | coalescing | COALESCE | a take from a full queue | everything published has merged and is delivered |
//! | ended | BLOCK, COALESCE | a budget is spent | |

use std::time::Duration;

use super::coalesce::Coalescing;
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
    /// Nobody waits and nothing is lost: the client keeps its position for as long as the events are retained. After that
    /// it is parked ([`super::Taken::Parked`]): it holds a version, and resumes from a history.
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
    /// The Broadcaster was shut down. Everything published before was delivered; to a deferred group, everything that its
    /// threads had filled.
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
    /// Under DROP: a full queue is read up to this position.
    Frozen {
        until: u64,
    },
    /// Under BLOCK: the writer waits for the reader.
    Blocking,
    /// Under COALESCE: what the queue held merges, with everything published since.
    Coalescing(Box<Coalescing>),
    /// The reader has ended before its group.
    Ended(End),
}

/// Position of a reader in its group's log: all that a policy decides by, besides the state.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Lag {
    pub(super) position: u64,
    /// Positions of the oldest event in the log, and after the newest one.
    pub(super) tail: u64,
    pub(super) head: u64,
    /// Size of the unread events.
    pub(super) size: u64,
    /// Length and size at which the queue is full.
    pub(super) queue_length: u64,
    pub(super) queue_size: u64,
    /// Offset up to which the reader has, or has merged, everything; and the offset of the head.
    pub(super) since: u64,
    pub(super) head_offset: u64,
    /// True if threads fill the log: the writer is ahead of it, and waits for none of its readers.
    pub(super) is_deferred: bool,
    /// While catching up: true if the client already has events that may still be published.
    pub(super) is_ahead: bool,
    /// While catching up: true if the next event has a lower version than the client. A relist has closed the version that
    /// the client had completely; inside its batch, only a replay never lowers the version.
    pub(super) goes_back: bool,
}

/// Need of a reader besides its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnJoin {
    Nothing,
    /// The writer may wait for it, within the budget of its client.
    Budget,
    /// Merger, for which published batches are kept until they have merged for the reader.
    Merger,
}

/// Effect of publishing on a reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OnPublish {
    /// The writer need not look at the queue.
    Nothing,
    /// The writer must look at the queue again when it is full.
    HasRoom,
    /// The writer waits, as far as the budgets allow ([`on_full`]).
    Block,
    /// The reader is served as under REPLAY, until it has read as many events as its queue is long.
    Replay,
}

/// Next step of a reader that takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum OnTake {
    /// The reader has caught up: it goes live, and decides again.
    GoLive,
    /// It reads up to this position.
    Read {
        until: u64,
    },
    /// It freezes its queue, and reads that.
    Freeze,
    /// It loses everything unread, and continues at the head.
    Drop,
    /// Everything unread merges; the reader waits for it.
    Merge,
    /// It delivers what has merged.
    Deliver,
    /// It has everything published: it goes live at the head, and decides again.
    Follow,
    /// It cannot read from the log any more, only from a history.
    Park,
    /// Nothing is unread: it waits, or ends with its group.
    Wait,
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

/// Returns the need of a new reader.
pub(super) fn on_join(policy: FullChannelPolicy) -> OnJoin {
    match policy {
        FullChannelPolicy::Drop | FullChannelPolicy::Replay => OnJoin::Nothing,
        FullChannelPolicy::Block => OnJoin::Budget,
        FullChannelPolicy::Coalesce => OnJoin::Merger,
    }
}

/// Decides the effect of publishing on a reader. `may_block` is true if the reader has read enough for the writer to wait
/// for it.
pub(super) fn on_publish(policy: FullChannelPolicy, state: &State, lag: &Lag, may_block: bool) -> OnPublish {
    match state {
        State::Live => match policy {
            FullChannelPolicy::Drop | FullChannelPolicy::Replay | FullChannelPolicy::Coalesce => OnPublish::Nothing,
            FullChannelPolicy::Block if !may_block => OnPublish::Nothing,
            // It must read from the history what the log no longer has.
            FullChannelPolicy::Block if lag.is_gone() => OnPublish::Replay,
            FullChannelPolicy::Block if !lag.is_full() => OnPublish::HasRoom,
            FullChannelPolicy::Block if lag.is_deferred => OnPublish::Replay,
            FullChannelPolicy::Block => OnPublish::Block,
        },
        State::CatchingUp { .. } | State::Frozen { .. } | State::Blocking | State::Coalescing(_) | State::Ended(_) => {
            OnPublish::Nothing
        }
    }
}

/// Decides the next step of a reader that takes.
pub(super) fn on_take(policy: FullChannelPolicy, state: &State, lag: &Lag) -> OnTake {
    match state {
        State::CatchingUp { has_initial_events: true } | State::Blocking => lag.replay(),
        State::CatchingUp { has_initial_events: false } if lag.goes_back => OnTake::Park,
        State::CatchingUp { has_initial_events: false } if lag.is_over() || lag.is_ahead => lag.replay(),
        State::CatchingUp { has_initial_events: false } => match policy {
            FullChannelPolicy::Block | FullChannelPolicy::Replay | FullChannelPolicy::Coalesce if lag.is_gone() => {
                OnTake::Park
            }
            FullChannelPolicy::Drop
            | FullChannelPolicy::Block
            | FullChannelPolicy::Replay
            | FullChannelPolicy::Coalesce => OnTake::GoLive,
        },
        State::Live => match policy {
            FullChannelPolicy::Drop if lag.is_gone() => OnTake::Drop,
            FullChannelPolicy::Drop if lag.is_over() => OnTake::Freeze,
            FullChannelPolicy::Coalesce if lag.is_gone() || lag.is_over() => OnTake::Merge,
            FullChannelPolicy::Drop
            | FullChannelPolicy::Block
            | FullChannelPolicy::Replay
            | FullChannelPolicy::Coalesce => lag.replay(),
        },
        State::Frozen { until } if lag.is_gone() || *until == lag.position => OnTake::Drop,
        State::Frozen { until } => OnTake::Read { until: *until },
        State::Coalescing(coalescing) if coalescing.is_ready() => OnTake::Deliver,
        State::Coalescing(coalescing) if coalescing.is_idle() && lag.is_merged() => OnTake::Follow,
        State::Coalescing(_) => OnTake::Merge,
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

// === impl State ===

impl State {
    /// Returns true if the reader reads the log, which keeps events for it.
    pub(super) fn reads_log(&self) -> bool {
        match self {
            Self::CatchingUp { .. } | Self::Live | Self::Frozen { .. } | Self::Blocking => true,
            Self::Coalescing(_) | Self::Ended(_) => false,
        }
    }
}

impl From<&State> for CursorState {
    fn from(state: &State) -> Self {
        match state {
            State::CatchingUp { .. } | State::Live | State::Ended(_) => Self::Following,
            State::Frozen { .. } => Self::Frozen,
            State::Blocking => Self::Blocking,
            State::Coalescing(coalescing) => {
                let (entries, bodies) = coalescing.size();
                Self::Coalescing { entries, bodies }
            }
        }
    }
}

// === impl Lag ===

impl Lag {
    /// Returns true if the log no longer has the next event.
    fn is_gone(&self) -> bool {
        self.position < self.tail
    }

    /// Returns true if everything in the log has merged for the reader.
    fn is_merged(&self) -> bool {
        self.since >= self.head_offset
    }

    /// Returns true if the queue is full: the writer must not add to it.
    pub(super) fn is_full(&self) -> bool {
        self.head - self.position >= self.queue_length || self.size >= self.queue_size
    }

    /// Returns true if the queue cannot hold what is unread.
    fn is_over(&self) -> bool {
        self.head - self.position > self.queue_length || self.size > self.queue_size
    }

    /// Returns true if at most half of the queue is unread.
    pub(super) fn is_half_read(&self) -> bool {
        self.head - self.position <= self.queue_length / 2 && self.size <= self.queue_size / 2
    }

    /// Returns the next step under REPLAY.
    fn replay(&self) -> OnTake {
        if self.is_gone() {
            OnTake::Park
        } else if self.position == self.head {
            OnTake::Wait
        } else {
            OnTake::Read { until: self.head }
        }
    }
}

#[cfg(test)]
mod tests;
