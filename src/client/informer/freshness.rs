//! Freshness of the store of an informer.

use std::{fmt, sync::OnceLock, time::Duration};

use parking_lot::Mutex;
use prost_types::Timestamp;
use tokio::time::Instant;

use crate::{
    client::{ClientError, Progress},
    proto::pb,
};

/// Relation of the store to the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FreshnessState {
    /// The store is not known to be current: the first list, a list that is repeated, a resumed stream before its first bookmark,
    /// or a hole that is being healed.
    Syncing,
    /// A stream is open, its last message is younger than three bookmark intervals, nothing is missing, and the server reaches
    /// its upstream.
    Live,
    /// Like LIVE, but the server does not reach its upstream. A state, not an error.
    Stale,
    /// No stream, or no message for three bookmark intervals.
    Disconnected,
}

/// Freshness of the store of an informer, at one time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Freshness {
    /// Relation to the server.
    pub state: FreshnessState,
    /// Time of the server's last contact with its upstream, as its last bookmark has it.
    pub source_seen_at: Option<Timestamp>,
    /// Time since the last message of any stream; none before the first.
    pub last_message_age: Option<Duration>,
}

/// State of the stream of an informer.
#[derive(Debug)]
pub(super) struct Connection {
    idle_timeout: Duration,
    state: Mutex<State>,
    failure: OnceLock<ClientError>,
}

#[derive(Debug, Default)]
struct State {
    is_open: bool,
    /// True once the stream has shown that nothing is missing.
    is_current: bool,
    is_stale: bool,
    source_seen_at: Option<Timestamp>,
    last_message_at: Option<Instant>,
}

// === impl FreshnessState ===

impl FreshnessState {
    /// Returns true for LIVE and STALE: the store is the server's state as of its last message.
    pub fn is_healthy(self) -> bool {
        matches!(self, Self::Live | Self::Stale)
    }
}

impl fmt::Display for FreshnessState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Syncing => "SYNCING",
            Self::Live => "LIVE",
            Self::Stale => "STALE",
            Self::Disconnected => "DISCONNECTED",
        })
    }
}

// === impl Connection ===

impl Connection {
    pub(super) fn new(idle_timeout: Duration) -> Self {
        Self { idle_timeout, state: Mutex::default(), failure: OnceLock::new() }
    }

    /// Records the begin of a stream, or its end.
    pub(super) fn set_open(&self, is_open: bool) {
        let mut state = self.state.lock();
        (state.is_open, state.is_current) = (is_open, false);
    }

    /// Records the error that ends the last stream.
    pub(super) fn fail(&self, error: ClientError) {
        tracing::error!(%error, "informer failed");
        self.set_open(false);
        // There is one.
        drop(self.failure.set(error));
    }

    pub(super) fn failure(&self) -> Option<ClientError> {
        self.failure.get().cloned()
    }

    /// Records a message.
    pub(super) fn received(&self) {
        self.state.lock().last_message_at = Some(Instant::now());
    }

    /// Records the content of a bookmark, which shows that the store is current if it is.
    pub(super) fn bookmark(&self, progress: &Progress, is_current: bool) {
        let mut state = self.state.lock();
        state.is_stale = matches!(progress.source, pb::SyncState::Stale | pb::SyncState::Syncing);
        state.source_seen_at = progress.source_seen_at.or(state.source_seen_at);
        state.is_current |= is_current;
    }

    pub(super) fn freshness(&self) -> Freshness {
        let state = self.state.lock();
        let last_message_age = state.last_message_at.map(|at| at.elapsed());
        let is_silent = last_message_age.is_some_and(|age| age >= self.idle_timeout);
        let shown = match (state.is_open, state.is_current) {
            (false, _) => FreshnessState::Disconnected,
            (true, true) if is_silent => FreshnessState::Disconnected,
            (true, false) => FreshnessState::Syncing,
            (true, true) if state.is_stale => FreshnessState::Stale,
            (true, true) => FreshnessState::Live,
        };
        Freshness { state: shown, source_seen_at: state.source_seen_at, last_message_age }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_state_follows_stream_bookmarks_source_and_silence() {
        let connection = Connection::new(Duration::from_secs(3));
        let progress = |source| Progress {
            resource_version: "5".to_owned(),
            source,
            source_seen_at: None,
            namespaces: Vec::new(),
            expression_errors: None,
        };
        let synced = progress(pb::SyncState::Synced);
        let state = || connection.freshness().state;
        assert_eq!(state(), FreshnessState::Disconnected);
        connection.set_open(true);
        assert_eq!(state(), FreshnessState::Syncing);
        connection.received();
        connection.bookmark(&synced, true);
        assert_eq!(state(), FreshnessState::Live);
        tokio::time::advance(Duration::from_millis(2999)).await;
        assert_eq!(state(), FreshnessState::Live);
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(state(), FreshnessState::Disconnected, "at once, without a timer");
        connection.received();
        connection.bookmark(&progress(pb::SyncState::Stale), true);
        assert_eq!(state(), FreshnessState::Stale);
        assert!(state().is_healthy());
        connection.set_open(false);
        assert_eq!(state(), FreshnessState::Disconnected);
        connection.set_open(true);
        connection.bookmark(&synced, false);
        assert_eq!(state(), FreshnessState::Syncing, "not current yet");
        connection.bookmark(&synced, true);
        connection.set_open(true);
        assert_eq!(state(), FreshnessState::Syncing, "a hole, or another stream");
    }
}
