//! Start of a watch: its position, its result, and its errors.

use crate::{
    cache::Snapshot,
    model::ResourceVersion,
    watch::{Cursor, Frame},
};

/// Start of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// Version at the moment of joining.
    Now,
    /// Last complete version: the cursor has the changes above it. The snapshot is the state at it, unless there are many of them:
    /// then it is that of now, as its version shows.
    Complete,
    /// Strictly after this version.
    After(ResourceVersion),
}

/// Watch that has joined: its start, and every later event.
#[derive(Debug)]
pub struct Joined<F: Frame> {
    /// State at the moment of joining.
    pub snapshot: Snapshot,
    /// Reader of everything after the requested version, or after the snapshot.
    pub cursor: Cursor<F>,
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
