//! What a watch tells.

use std::time::Duration;

use prost_types::Timestamp;

use super::ClientError;
use crate::proto::pb;

/// One update of a [`Watch`](super::Watch).
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Update {
    /// A change: ADDED only of what its user does not hold, MODIFIED and DELETED only of what it holds.
    Event {
        /// ADDED, MODIFIED or DELETED.
        event_type: pb::EventType,
        /// Why, where the change itself does not say it: as the server says it, or `CAUSE_INFERRED` for a DELETED that was
        /// found missing at a relist. `CAUSE_INITIAL` only before the first [`Update::Synced`].
        cause: pb::Cause,
        /// The new state; for DELETED the last known one, with the version of the deletion. Under `CAUSE_INFERRED` it has no
        /// body unless [`WatchOptions::keep_objects`](super::WatchOptions::keep_objects) is set, and its version is the
        /// relist's or, when another object has taken its place, that object's.
        object: pb::Object,
        /// Who holds everything up to here may resume after this version. Empty while the state is being listed.
        resource_version: String,
    },
    /// What its user holds now is the server's state at this version: the initial events or a relist are complete.
    Synced(Progress),
    /// Nothing is missing up to this version.
    Bookmark(Progress),
    /// Events are missing here, and the state that its user holds is no longer complete, until the next
    /// [`Update::Synced`]. Only under DROP with [`WatchOptions::heal_drops`](super::WatchOptions::heal_drops) set to false.
    Dropped {
        /// How many.
        count: u64,
        /// The last version before the hole.
        after: String,
    },
    /// What the watch does to stay complete: nothing that its user has to act on.
    Note(Note),
}

/// How far a watch is, and what stands behind it.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// Safe to resume after.
    pub resource_version: String,
    /// Whether the server's upstream can be reached.
    pub source: pb::SyncState,
    /// When the upstream last proved itself alive.
    pub source_seen_at: Option<Timestamp>,
}

/// What a watch does to stay complete.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Note {
    /// The stream ended; another is opened after the delay.
    Reconnecting {
        /// Why it ended.
        error: ClientError,
        /// How long is waited.
        delay: Duration,
    },
    /// The server takes up the watch after this version: nothing was missed.
    Resumed {
        /// Where the last stream was left.
        resource_version: String,
    },
    /// The version could not be resumed from; everything was sent again, and compared with what the user holds.
    Relisted {
        /// Of the new state.
        resource_version: String,
        /// How many events came of the comparison.
        changes: u64,
    },
    /// The server dropped events for this watch; they are asked for again after the delay.
    Healing {
        /// How many.
        count: u64,
        /// The last version before the hole.
        after: String,
        /// How long is waited.
        delay: Duration,
    },
}
