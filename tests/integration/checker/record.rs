//! What clients saw, message by message, and when.
//!
//! Written by the harness, read by the verifier. One [`Record`] is one logical client: all its reconnects, in order.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use informerd::proto::pb::{self, PayloadFormat};
use prost::Message;
use prost_types::Timestamp;

use super::{
    ask::{Ask, Min},
    script::{DEFAULT_BOOKMARK_INTERVAL, SILENCE},
    selection::Selection,
};

/// No client is sent bookmarks more often.
const MIN_BOOKMARK_INTERVAL: Duration = Duration::from_millis(100);

/// Everything that one run of a script left behind.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) plan: Plan,
    /// The index of its resource in [`RESOURCES`](super::ask::RESOURCES).
    pub(crate) resource: usize,
    pub(crate) segments: Vec<Segment>,
}

/// What a client asks for, at each of its connections.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) selection: Selection,
    pub(crate) format: PayloadFormat,
    pub(crate) policy: pb::FullChannelPolicy,
    pub(crate) length: u32,
    /// The host that it connects from.
    pub(crate) peer: u8,
    /// Where it begins when it has no version.
    pub(crate) sends_initial_events: bool,
    /// None for the server's default.
    pub(crate) bookmark_interval: Option<Duration>,
    pub(crate) timeout: Option<Duration>,
    /// When it comes back, it says of which history its version is.
    pub(crate) tells_history: bool,
    /// From which state on, at each of its connections.
    pub(crate) min: Option<Min>,
}

impl Plan {
    /// The interval at which it is sent a bookmark while there is nothing else.
    pub(crate) fn bookmark_interval(&self) -> Duration {
        self.bookmark_interval.unwrap_or(DEFAULT_BOOKMARK_INTERVAL).max(MIN_BOOKMARK_INTERVAL)
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) start: Start,
    /// Not before this.
    pub(crate) min: Option<String>,
    /// The history that it names with its version.
    pub(crate) history: Option<History>,
    pub(crate) asked: Moment,
    /// When it was seen, last, that there is no answer yet.
    pub(crate) waited: Option<Moment>,
    /// When it was joined or refused; nothing while a version of the future is awaited.
    pub(crate) answered: Option<Moment>,
    /// Answered with a status and no stream.
    pub(crate) is_refused: bool,
    pub(crate) messages: Vec<Received>,
    /// Messages that were on their way when the client left.
    pub(crate) lost: Vec<Received>,
    /// When the client left.
    pub(crate) left: Option<Moment>,
    /// When the client had read everything and waited, and how many messages had come by then.
    pub(crate) waits: Vec<(usize, Moment)>,
    pub(crate) end: End,
    /// How many messages had come when writes had stopped and everything had been read.
    pub(crate) settled: Option<(usize, Moment)>,
}

/// A history, as a server has named it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct History {
    pub(crate) name: String,
    pub(crate) server: usize,
    pub(crate) epoch: usize,
}

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Start {
    InitialEvents,
    Bookmark,
    After(String),
}

/// A call that is answered once, and its answer.
#[derive(Debug)]
pub(crate) struct CallRecord {
    pub(crate) ask: Ask,
    pub(crate) asked: Moment,
    /// When it was seen that there is no answer yet.
    pub(crate) waits: Vec<Moment>,
    pub(crate) answered: Option<Moment>,
    /// Of a client that waited: whether it was told that there is something.
    pub(crate) was_woken: bool,
    /// As they came.
    pub(crate) messages: Vec<(Bytes, Moment)>,
    pub(crate) end: End,
}

/// One resource of one server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Served {
    pub(crate) server: usize,
    pub(crate) resource: usize,
}

/// The state of a resource that a server had applied at one time. Nothing happens while a client reads, so this is exact.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) at: Duration,
    pub(crate) server: usize,
    pub(crate) resource: usize,
    pub(crate) epoch: usize,
    pub(crate) applied: u64,
    /// How many batches of its history, and the last version that is complete.
    pub(crate) batches: usize,
    pub(crate) safe: u64,
    pub(crate) is_draining: bool,
    /// How long the upstream has said nothing; none when it is gone for certain.
    pub(crate) silence: Option<Duration>,
    /// When the upstream was seen last, by the clock on the wall.
    pub(crate) seen_at: Option<Timestamp>,
    /// It drains, and gives nobody any time.
    pub(crate) is_drained: bool,
    /// Counts the times at which everything was at rest.
    pub(crate) turn: u64,
}

impl Moment {
    /// What is to be said of the upstream.
    pub(crate) fn source(&self) -> pb::SyncState {
        match self.silence {
            Some(silence) if silence < SILENCE[0] + SILENCE[1] => pb::SyncState::Synced,
            _ => pb::SyncState::Stale,
        }
    }

    /// The time since an earlier one.
    pub(crate) fn since(&self, earlier: &Self) -> Duration {
        self.at.saturating_sub(earlier.at)
    }
}

#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) message: pb::WatchResponse,
    pub(crate) moment: Moment,
    /// Of a client that waited: whether it was told that there is something.
    pub(crate) was_woken: bool,
}

#[derive(Debug)]
pub(crate) enum End {
    /// Still open.
    Open,
    /// The client left.
    Left,
    /// The trailers, or the refusal.
    Status(Status, Moment),
    /// The stream ended without a status, or with bytes that are no message.
    Broken(String),
}

/// A status, and what its details say.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Status {
    pub(crate) code: i32,
    pub(crate) message: String,
    pub(crate) reason: String,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) has_retry_delay: bool,
}

impl Status {
    /// A status as a message, with its details read.
    pub(crate) fn of(status: &tonic_types::pb::Status) -> Self {
        let detail = |name: &str| status.details.iter().find(|any| any.type_url.ends_with(name));
        let info = detail("/google.rpc.ErrorInfo").and_then(|any| tonic_types::pb::ErrorInfo::decode(&*any.value).ok());
        let info = info.filter(|info| info.domain == "informerd").unwrap_or_default();
        Self {
            code: status.code,
            message: status.message.clone(),
            reason: info.reason,
            metadata: info.metadata.into_iter().collect(),
            has_retry_delay: detail("/google.rpc.RetryInfo").is_some(),
        }
    }
}
