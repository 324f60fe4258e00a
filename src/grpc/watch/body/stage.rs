//! Stages of a stream.

use std::pin::Pin;

use super::super::{super::turns::Turn, initial_events::InitialEvents};
use crate::{
    cache::{JoinError, Joined},
    grpc::WireFrame,
    model::Reached,
    proto::pb,
    watch::BacklogReader,
};

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
