//! Start of a watch: its position, its result, and its errors.

use std::pin::Pin;

use crate::{
    cache::Snapshot,
    model::{HistoryPosition, ResourceVersion},
    watch::{Backlog, Cursor, Frame},
};

/// Start of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// Version at the moment of joining.
    Now,
    /// Last complete version: the backlog has the changes above it. The snapshot is the state at it, unless there are many of them:
    /// then it is that of now, as its version shows.
    Complete,
    /// Strictly after this version.
    After(ResourceVersion),
    /// Position of a cursor of this informer, in changes ([`HistoryPosition::offset`]), possibly inside a batch.
    AfterOffset(HistoryPosition),
}

/// Join that a watch waits for.
pub(super) type Joining<F> = Pin<Box<dyn Future<Output = Result<Joined<F>, JoinError>> + Send>>;

/// Watch that has joined: its start, and every later event.
#[derive(Debug)]
pub struct Joined<F: Frame> {
    /// State at the moment of joining.
    pub snapshot: Snapshot,
    /// Changes between the requested version and the moment of joining, or the first part of them.
    pub backlog: Backlog,
    /// Reader of everything after the snapshot. `None` if the backlog has more: the caller joins again after its last version.
    pub cursor: Option<Cursor<F>>,
    /// Number of the history of these versions: [`InformerHandle::history_id`](super::InformerHandle::history_id) at the moment of
    /// joining.
    pub history_id: u64,
}

/// Reason why a watch cannot start at the requested position.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// No state yet.
    #[error("the resource is not synced yet")]
    NotSynced,
    /// Version older than the history, in a relist's gap, or of another lineage.
    #[error("the resource version has expired (oldest: {oldest}, current: {current}): list again")]
    Expired {
        /// Oldest version that a watch can resume from.
        oldest: ResourceVersion,
        /// Applied version.
        current: ResourceVersion,
    },
    /// Version that this server has not reached yet.
    #[error("the resource version has not been reached (current: {current})")]
    TooLarge {
        /// Applied version.
        current: ResourceVersion,
    },
    /// End of the informer.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// End of the informer's task.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the informer has stopped")]
pub struct Stopped;

// === impl Start ===

impl Start {
    /// Returns the version up to which the client has everything; `None` if it has no version of its own.
    pub(super) fn version(&self) -> Option<&ResourceVersion> {
        match self {
            Self::After(version) | Self::AfterOffset(HistoryPosition { version, .. }) => Some(version),
            Self::Now | Self::Complete => None,
        }
    }
}
