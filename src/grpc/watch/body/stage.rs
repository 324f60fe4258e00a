//! Stages of a stream.

use std::pin::Pin;

use super::super::{
    super::{frame::WireFrame, turns::Turn},
    initial_events::InitialEvents,
};
use crate::{
    cache::{self, JoinError, Joined},
    model::{Reached, ResourceVersion},
    proto::pb,
    watch::BacklogReader,
};

/// How a stream begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Begin {
    /// With an ADDED for each object, and a bookmark at their end.
    InitialEvents,
    /// With a bookmark at the version where it joined.
    Bookmark,
    /// With the next event after this version.
    After(ResourceVersion),
}

/// Stage of a stream. Most are live, and for long: the rest has a place of its own.
pub(super) enum Stage {
    /// Being given the state at which it joined; then told what has been applied above it, if the state is without that.
    InitialEvents(Box<InitialEvents>, Turn, Option<Backlog>),
    /// Being told what it has missed; without a cursor there is more of it.
    Replay(Backlog),
    /// Joining again where it was: parked, or in the middle of what it has missed.
    Joining(Reached, Joining),
    /// Reading what is published.
    Live,
}

pub(super) type Backlog = Box<BacklogReader<WireFrame>>;
pub(super) type Joining = Pin<Box<dyn Future<Output = Result<Joined<WireFrame>, JoinError>> + Send>>;

// === impl Stage ===

impl Stage {
    /// Begins with the initial events; then comes what has been applied above their state, if that is without it.
    pub(super) fn initial_events(initial: InitialEvents, turn: Turn, above: cache::Backlog) -> Self {
        let reached = Reached { version: initial.version().clone(), offset: above.first };
        let is_ahead = !above.batches.is_empty();
        let then = is_ahead.then(|| Box::new(BacklogReader::new(above.batches, above.first, reached, false)));
        Self::InitialEvents(Box::new(initial), turn, then)
    }

    /// Begins after a version.
    pub(super) fn after(version: ResourceVersion, missed: cache::Backlog) -> Self {
        let reached = Reached { version, offset: missed.first };
        Self::Replay(Box::new(BacklogReader::new(missed.batches, missed.first, reached, false)))
    }

    /// Returns the same for operators.
    pub(super) fn state(&self) -> pb::WatcherState {
        match self {
            Self::InitialEvents(..) => pb::WatcherState::InitialEvents,
            Self::Replay(..) => pb::WatcherState::CatchingUp,
            Self::Joining(..) => pb::WatcherState::Parked,
            Self::Live => pb::WatcherState::Live,
        }
    }
}
