//! How a watch joins: where it starts, what it is given, and why it cannot.

use crate::{
    cache::{Backlog, Snapshot},
    model::{Reached, ResourceVersion},
    watch::{Cursor, Frame},
};

/// Start of a watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Start {
    /// At the version where it joins.
    Now,
    /// At the last version that is complete: the snapshot is the state at it, and the changes above it are the backlog.
    Complete,
    /// Strictly after this version.
    After(ResourceVersion),
    /// After so many changes ([`Reached::offset`]): where a cursor of this informer was, also inside a batch.
    AfterOffset(Reached),
}

/// A watch that has joined: where it starts, and every later event.
#[derive(Debug)]
pub struct Joined<F: Frame> {
    /// The state at the moment of joining.
    pub snapshot: Snapshot,
    /// Changes between the version that was asked for and this moment, or the beginning of it.
    pub backlog: Backlog,
    /// Reader of everything after the snapshot. `None` when the backlog has more: join again after its last version.
    pub cursor: Option<Cursor<F>>,
    /// The history that these versions belong to: [`InformerHandle::epoch`](super::InformerHandle::epoch) at the moment of joining.
    pub epoch: u64,
}

/// Why a watch cannot start where it was asked to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// There is no state yet.
    #[error("the resource has not been synced yet")]
    NotSynced,
    /// Older than what is kept, in a relist's gap, or of another lineage.
    #[error("the version cannot be resumed from; the oldest is {oldest}, the current {current}")]
    Expired {
        /// The oldest version that a watch can go on from.
        oldest: ResourceVersion,
        /// The applied version.
        current: ResourceVersion,
    },
    /// Not reached yet.
    #[error("the version has not been reached; the current is {current}")]
    TooLarge {
        /// The applied version.
        current: ResourceVersion,
    },
    /// The informer has ended.
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// Indicates that the informer's task has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the informer has ended")]
pub struct Stopped;
