//! Updates that a watch delivers.

use std::time::Duration;

use prost_types::Timestamp;

use super::ClientError;
use crate::proto::pb;

/// One update of a [`Watch`](super::Watch).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Update {
    /// Change: ADDED only for an object that the user does not hold, MODIFIED and DELETED only for one that it holds.
    Event {
        /// ADDED, MODIFIED or DELETED.
        event_type: pb::EventType,
        /// Cause, where the change itself does not show it: as the server sends it, or `CAUSE_INFERRED` for a DELETED that a
        /// relist found. `CAUSE_INITIAL` only before the first [`Update::Synced`].
        cause: pb::Cause,
        /// New state; for DELETED the last known state, with the version of the deletion. Under `CAUSE_INFERRED` it has no
        /// body unless [`WatchOptions::keep_objects`](super::WatchOptions::keep_objects) is set, and its version is the
        /// relist's or, if another object has the key now, that object's.
        object: pb::Object,
        /// Version to resume after, for a user who holds everything up to here. Empty during a list.
        resource_version: String,
    },
    /// State that the user holds is the server's at this version: the initial events or a relist are complete.
    Synced(Progress),
    /// Nothing is missing up to this version.
    Bookmark(Progress),
    /// Events are missing here: the state that the user holds is incomplete until the next [`Update::Synced`]. Only under
    /// DROP with [`WatchOptions::heal_drops`](super::WatchOptions::heal_drops) set to false.
    Dropped {
        /// Number of dropped events.
        count: u64,
        /// Last version before the hole.
        after: String,
    },
    /// Step that the watch takes to stay complete. The user does not have to act on it.
    Note(Note),
}

/// Position of a watch, and the state of its upstream.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Version that is safe to resume after.
    pub resource_version: String,
    /// Sync state of the server: shows if it reaches its upstream.
    pub source: pb::SyncState,
    /// Time of the last contact with the upstream.
    pub source_seen_at: Option<Timestamp>,
    /// Namespaces that the watch is limited to, because the caller may read no others; empty if it is not.
    pub namespaces: Vec<String>,
    /// Objects of the initial events for which the expression failed, at their end; `None` if there are none.
    pub expression_errors: Option<pb::ExpressionErrors>,
}

/// Step that a watch takes to stay complete.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Note {
    /// Stream ended; the watch opens another after the delay.
    Reconnecting {
        /// Error that ended the stream.
        error: ClientError,
        /// Delay before the next stream.
        delay: Duration,
    },
    /// Server resumes the watch after this version: nothing was missed.
    Resumed {
        /// Last safe version of the previous stream.
        resource_version: String,
    },
    /// Version could not be resumed from; the server sent everything again, and the client compared it with the user's state.
    Relisted {
        /// Version of the new state.
        resource_version: String,
        /// Number of events that the comparison produced.
        changes: u64,
    },
    /// Server dropped events for this watch; the watch requests them again after the delay.
    Healing {
        /// Number of dropped events.
        count: u64,
        /// Last version before the hole.
        after: String,
        /// Delay before the next stream.
        delay: Duration,
    },
}
