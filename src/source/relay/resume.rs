//! Resumption after a position: at the server that it was received from, or at another one whose history has been checked.

use std::time::Duration;

use tokio::time::Instant;

use super::{
    Position, Shared,
    proof::{Found, Mark, ResumeCheck, unclear},
    upstream::{Messages, Start},
};
use crate::{cache::SourceError, model::ResourceVersion, proto::pb::SyncState};

/// Server that has answered last.
#[derive(Debug)]
pub(super) struct Server {
    /// Name of the server, new at each of its starts.
    name: String,
    /// Name of the history of `version` at this server; empty if unknown.
    history: String,
    /// Version that it serves; `None` before it has one.
    version: Option<ResourceVersion>,
    is_synced: bool,
}

/// Server that has not reached the position.
#[derive(Debug)]
pub(super) struct Behind {
    server: String,
    since: Instant,
}

/// Limit of the remembered servers behind one address.
const MAX_BEHIND: usize = 16;

// === impl Position ===

impl Position {
    /// Returns true if a server with this name has named the position's history, or if the names do not decide that.
    fn is_vouched_for(&self, server: &str) -> bool {
        let (origin, _) = self.history.split_once('.').unwrap_or((&*self.history, ""));
        // A lineage belongs to one run of the server that reads the source.
        let is_its_own = self.version.lineage().is_some() || origin.is_empty() || server.is_empty();
        is_its_own || origin == server
    }

    /// Returns true if the server that named the position's history now names another one.
    fn is_left_by(&self, server: &Server) -> bool {
        let Server { name, history, .. } = server;
        let is_named = self.history.split_once('.').is_some_and(|(origin, _)| origin == name);
        is_named && !history.is_empty() && **history != *self.history
    }
}

// === impl Shared ===

impl Shared {
    /// Reads the upstream's name, state and history, and checks that the relay may follow it.
    pub(super) async fn meet(&self) -> Result<(), SourceError> {
        let resource = self.upstream.check_path().await?;
        let server = Server {
            is_synced: resource.state() == SyncState::Synced,
            version: resource.resource_version.parse().ok(),
            history: resource.history,
            name: resource.path.into_iter().last().unwrap_or_default(),
        };
        self.state.lock().server = Some(server);
        Ok(())
    }

    /// Checks that the history of a position is the server's present one, if the server has named it.
    pub(super) fn check_history(&self, position: Option<&Position>) -> Result<(), SourceError> {
        let state = self.state.lock();
        if let (Some(server), Some(position)) = (&state.server, position)
            && position.is_left_by(server)
        {
            let endpoint = &self.config.endpoint;
            return Err(SourceError::HistoryChanged(format!("{endpoint}: its history id changed")));
        }
        Ok(())
    }

    /// Opens a stream of the changes after a position. With a [`ResumeCheck`] the stream begins earlier, and the messages up to
    /// the position, which the check consumes, are not new.
    pub(super) async fn open_after(
        &self,
        position: &Position,
        bookmark_interval: Duration,
    ) -> Result<(Messages, Option<ResumeCheck>), SourceError> {
        self.meet().await?;
        let other = self.state.lock().server.as_ref().and_then(|server| {
            let is_vouched_for = position.is_vouched_for(&server.name);
            (!is_vouched_for).then(|| server.history.clone())
        });
        let Some(history) = other else {
            let start = Start::After { version: &position.version, history: &position.history };
            let messages = self.upstream.open(start, bookmark_interval).await?;
            self.state.lock().behind.clear();
            return Ok((messages, None));
        };
        let (after, check) = self.prove(position).await?;
        // The check does not hold for the next history of that server.
        let start = Start::After { version: &after, history: &history };
        let messages = self.upstream.open(start, bookmark_interval).await;
        Ok((messages.map_err(unproved)?, Some(check)))
    }

    /// Determines how another server can show that it has the history of a position: by a stream after the returned version.
    async fn prove(&self, position: &Position) -> Result<(ResourceVersion, ResumeCheck), SourceError> {
        let mark = position.mark.clone().ok_or_else(|| unclear("no known change"))?;
        let mut found = self.find(&mark, position, None).await?;
        if found == Found::Behind {
            found = self.find(&mark, position, Some(mark.version())).await?;
        }
        match found {
            Found::AsKnown => Ok((mark.version().clone(), ResumeCheck::after(mark, position.version.clone()))),
            Found::OtherBody => Err(unclear("last known change has other bytes")),
            Found::OtherHistory(why) => Err(SourceError::HistoryChanged(why)),
            Found::Later | Found::Behind => {
                let before = mark.before().ok_or_else(|| unclear("no version before the last known change"))?;
                Ok((before, ResumeCheck::from(mark, position.version.clone())))
            }
        }
    }

    async fn find(
        &self,
        mark: &Mark,
        position: &Position,
        not_before: Option<&ResourceVersion>,
    ) -> Result<Found, SourceError> {
        // A response without an object has no version: its state is at least as new as this.
        let least = match not_before {
            Some(version) => Some(version.clone()),
            None => self.state.lock().server.as_ref().and_then(|server| server.version.clone()),
        };
        let found = self.upstream.get(mark.key(), not_before).await?;
        let (object, at) = match found {
            Some((object, at)) => (Some(object), at),
            None => match least {
                Some(at) => (None, at),
                None => return Ok(Found::Behind),
            },
        };
        if at.same_lineage(&position.version) {
            return Ok(mark.judge(&position.version, &at, object.as_ref()));
        }
        Ok(Found::OtherHistory(format!(
            "upstream version {at} is of another lineage than the last known version {}",
            position.version
        )))
    }

    /// Judges the server of a stream that has the last known change, and is at a version before the position.
    ///
    /// # Errors
    ///
    /// [`SourceError::HistoryChanged`] if it has been behind for too long, as in [`Self::behind`].
    pub(super) fn note_behind(&self, is_synced: bool, version: &str) -> Result<(), SourceError> {
        if let Some(server) = &mut self.state.lock().server {
            server.is_synced = is_synced;
        }
        match self.behind(format!("{}: at version {version}", self.config.endpoint)) {
            SourceError::Busy(_) => Ok(()),
            error => Err(error),
        }
    }

    /// Judges a server that has not reached a version in time: the source, STALE, waits for a replica that lags. A server with
    /// another name that has been SYNCED and behind for longer than `resume_timeout` has another history.
    pub(super) fn behind(&self, text: String) -> SourceError {
        let mut state = self.state.lock();
        let other = state.server.as_ref().filter(|server| {
            server.is_synced && state.position.as_ref().is_some_and(|position| !position.is_vouched_for(&server.name))
        });
        let Some(server) = other.map(|server| server.name.clone()) else {
            state.behind.clear();
            return SourceError::Busy(text);
        };
        let limit = self.config.resume_timeout;
        let Some(since) = state.behind.iter().find(|behind| behind.server == server).map(|behind| behind.since) else {
            state.behind.truncate(MAX_BEHIND - 1);
            state.behind.insert(0, Behind { server, since: Instant::now() });
            return SourceError::Busy(text);
        };
        if since.elapsed() < limit {
            return SourceError::Busy(text);
        }
        SourceError::HistoryChanged(format!("another server is synced and has lagged for {limit:?}: {text}"))
    }
}

/// Converts an error of a server whose history is not checked yet: that it was rewritten there does not concern the position.
pub(super) fn unproved(error: SourceError) -> SourceError {
    match error {
        SourceError::HistoryChanged(text) => SourceError::Busy(text),
        error => error,
    }
}
