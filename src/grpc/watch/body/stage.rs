//! Stages of a watch stream.

use std::pin::Pin;

use super::super::{
    super::{bulk_scheduler::BulkPermit, frame::WireFrame},
    initial_events::InitialEvents,
};
use crate::{
    cache::{self, JoinError, Joined},
    model::{HistoryPosition, ResourceVersion},
    proto::pb,
    watch::BacklogReader,
};

/// First part of a stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in super::super) enum Begin {
    /// An ADDED event for each object, and a bookmark at their end.
    InitialEvents,
    /// A bookmark at the version where the watch joined.
    Bookmark,
    /// The next event after this version.
    After(ResourceVersion),
}

/// Stage of a stream. Most streams are in the live stage most of the time, so the data of the others is boxed.
pub(super) enum Stage {
    /// Delivery of the state at which the watch joined; then of the events that were applied after it, if there are any.
    InitialEvents(Box<InitialEvents>, BulkPermit, Option<Backlog>),
    /// Delivery of missed events; without a cursor there are more of them in the history.
    Replay(Backlog),
    /// New join at its position: after it was parked, or in the middle of missed events.
    Joining(HistoryPosition, Joining),
    /// Delivery of the published events.
    Live,
}

pub(super) type Backlog = Box<BacklogReader<WireFrame>>;
pub(super) type Joining = Pin<Box<dyn Future<Output = Result<Joined<WireFrame>, JoinError>> + Send>>;

// === impl Stage ===

impl Stage {
    /// Creates the stage for initial events; it continues with the events that were applied above their state, if any.
    pub(super) fn initial_events(initial: InitialEvents, permit: BulkPermit, above: cache::Backlog) -> Self {
        let reached = HistoryPosition { version: initial.version().clone(), offset: above.first };
        let is_ahead = !above.batches.is_empty();
        let then = is_ahead.then(|| Box::new(BacklogReader::new(above.batches, above.first, reached, false)));
        Self::InitialEvents(Box::new(initial), permit, then)
    }

    /// Creates the stage that sends the missed events after a version.
    pub(super) fn after(version: ResourceVersion, missed: cache::Backlog) -> Self {
        let reached = HistoryPosition { version, offset: missed.first };
        Self::Replay(Box::new(BacklogReader::new(missed.batches, missed.first, reached, false)))
    }

    /// Returns the state of the watch for operators.
    pub(super) fn state(&self) -> pb::WatcherState {
        match self {
            Self::InitialEvents(..) => pb::WatcherState::InitialEvents,
            Self::Replay(..) => pb::WatcherState::CatchingUp,
            Self::Joining(..) => pb::WatcherState::Parked,
            Self::Live => pb::WatcherState::Live,
        }
    }
}
