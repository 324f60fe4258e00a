//! Record of what clients saw, message by message, with the moment of each.
//!
//! The harness writes it and the verifier reads it. One [`Record`] is one logical client: all its connections, in order.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use informerd::proto::pb;
use prost::Message;
use prost_types::Timestamp;

use super::{
    ask::{Ask, Min},
    script::{DEFAULT_BOOKMARK_INTERVAL, SILENCE},
    selection::Selection,
    view::Form,
};

/// Shortest interval between bookmarks that the server allows.
const MIN_BOOKMARK_INTERVAL: Duration = Duration::from_millis(100);

/// Result of one client in a run of a script.
#[derive(Debug)]
pub(crate) struct Record {
    pub(crate) plan: Plan,
    /// Index of its resource in [`RESOURCES`](super::ask::RESOURCES).
    pub(crate) resource: usize,
    pub(crate) segments: Vec<Segment>,
}

/// Request of a client, the same at each of its connections.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) selection: Selection,
    pub(crate) form: Form,
    pub(crate) policy: pb::FullChannelPolicy,
    pub(crate) length: u32,
    /// Host that it connects from.
    pub(crate) peer: u8,
    /// True if a client without a version begins with the state.
    pub(crate) sends_initial_events: bool,
    /// True if it reads initial events in batches.
    pub(crate) has_batches: bool,
    /// Requested interval; None for the server's default.
    pub(crate) bookmark_interval: Option<Duration>,
    pub(crate) timeout: Option<Duration>,
    /// True if a client that resumes names the history of its version.
    pub(crate) tells_history: bool,
    /// State that it requires at least, at each of its connections.
    pub(crate) min: Option<Min>,
    /// Set if it connects through Subscribe, on a stream that it shares with the other such clients of its host.
    pub(crate) share: Option<Share>,
}

/// Use of a shared stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Share {
    /// True if the client is paused while others read; otherwise it reads with them.
    pub(crate) pauses: bool,
    /// True if it takes ids that were never in use.
    pub(crate) has_new_ids: bool,
    /// True if it watches what another client of a stream does, if there is one: the server may serve both as one.
    pub(crate) is_twin: bool,
}

impl Plan {
    /// Returns this plan with the selection, form, queue and interval of another, from the same host.
    pub(crate) fn twin_of(&self, other: &Self) -> Self {
        Self { share: self.share, sends_initial_events: self.sends_initial_events, min: self.min, ..other.clone() }
    }

    /// Returns true if the client is paused while others read.
    pub(crate) fn pauses(&self) -> bool {
        self.share.is_some_and(|share| share.pauses)
    }

    /// Returns the interval at which an idle client receives a bookmark.
    pub(crate) fn bookmark_interval(&self) -> Duration {
        self.bookmark_interval.unwrap_or(DEFAULT_BOOKMARK_INTERVAL).max(MIN_BOOKMARK_INTERVAL)
    }
}

/// One connection.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) start: Start,
    /// Minimum resource version that it requests.
    pub(crate) min: Option<String>,
    /// History that it names with its version.
    pub(crate) history: Option<History>,
    pub(crate) asked: Moment,
    /// Last moment at which there was no answer yet.
    pub(crate) waited: Option<Moment>,
    /// Moment at which it was joined or rejected; None while it waits for a version that the server has not reached yet.
    pub(crate) answered: Option<Moment>,
    /// True if the server answered with a status and no stream.
    pub(crate) is_refused: bool,
    /// True if the client has sent a bad id on its Subscribe stream, which ends all watches of the stream.
    pub(crate) has_bad_id: bool,
    pub(crate) messages: Vec<Received>,
    /// Messages that were in flight when the client left.
    pub(crate) lost: Vec<Received>,
    /// Moment at which the client left.
    pub(crate) left: Option<Moment>,
    /// Moments at which the client had read everything and waited, each with the number of messages up to then.
    pub(crate) waits: Vec<(usize, Moment)>,
    /// The same of a paused client, which may not have read everything.
    pub(crate) paused_waits: Vec<(usize, Moment)>,
    /// Moments at which its Subscribe stream was polled and gave it nothing, each with the number of messages up to then: it was
    /// paused, or there was no room. The server may have made its next messages, which come together, at any of them.
    pub(crate) polls: Vec<(usize, Moment)>,
    pub(crate) end: End,
    /// Number of messages received when writes had stopped and everything had been read, and the moment.
    pub(crate) settled: Option<(usize, Moment)>,
}

/// History, as a server has named it.
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

/// Unary call and its answer.
#[derive(Debug)]
pub(crate) struct CallRecord {
    pub(crate) ask: Ask,
    pub(crate) asked: Moment,
    /// Moments at which there was no answer yet.
    pub(crate) waits: Vec<Moment>,
    pub(crate) answered: Option<Moment>,
    /// True if the waiting client was woken.
    pub(crate) was_woken: bool,
    /// Messages in order of arrival.
    pub(crate) messages: Vec<(Bytes, Moment)>,
    pub(crate) end: End,
}

/// One resource of one server.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Served {
    pub(crate) server: usize,
    pub(crate) resource: usize,
}

/// State of a resource that a server had applied at one time. Nothing changes while a client reads, so this is exact.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Moment {
    pub(crate) at: Duration,
    pub(crate) server: usize,
    pub(crate) resource: usize,
    pub(crate) epoch: usize,
    pub(crate) applied: u64,
    /// Number of applied batches of its history, and the last complete version.
    pub(crate) batches: usize,
    pub(crate) safe: u64,
    pub(crate) is_draining: bool,
    /// Time since the last contact with the upstream; None if the upstream is known to be lost.
    pub(crate) silence: Option<Duration>,
    /// Wall-clock time of the last contact.
    pub(crate) seen_at: Option<Timestamp>,
    /// True if it drains without a drain period.
    pub(crate) is_drained: bool,
    /// Count of the times at which all tasks were idle.
    pub(crate) turn: u64,
}

impl Moment {
    /// Returns the sync state that the server must report.
    pub(crate) fn source(&self) -> pb::SyncState {
        match self.silence {
            Some(silence) if silence < SILENCE[0] + SILENCE[1] => pb::SyncState::Synced,
            _ => pb::SyncState::Stale,
        }
    }

    /// Returns the time since an earlier moment.
    pub(crate) fn since(&self, earlier: &Self) -> Duration {
        self.at.saturating_sub(earlier.at)
    }
}

#[derive(Debug)]
pub(crate) struct Received {
    pub(crate) message: pb::WatchResponse,
    pub(crate) moment: Moment,
    /// True if the waiting client was woken.
    pub(crate) was_woken: bool,
    /// True if a Subscribe stream has delivered it together with the message before it.
    pub(crate) is_with_previous: bool,
}

#[derive(Debug)]
pub(crate) enum End {
    /// The connection is still open.
    Open,
    /// The client left.
    Left,
    /// The trailers, or the status of a rejected request.
    Status(Status, Moment),
    /// The stream ended without a status, or with bytes that are no message.
    Broken(String),
}

/// Status with its details decoded.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Status {
    pub(crate) code: i32,
    pub(crate) message: String,
    pub(crate) reason: String,
    pub(crate) metadata: BTreeMap<String, String>,
    pub(crate) has_retry_delay: bool,
}

impl Status {
    pub(crate) fn ok() -> Self {
        Self::of(&tonic_types::pb::Status::default())
    }

    /// Decodes a status and its details.
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
