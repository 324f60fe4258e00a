//! State of a source, shared by its lists and its stream: the position in the upstream's history, and the servers behind the
//! address.
//!
//! A stream resumes at the server that the position was received from, or at another one whose history has been checked.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    RelayClients, RelayConfig, message,
    resume_check::{ResumeCheck, ResumePoint, ServerVerdict, unclear},
    upstream::{Start, Upstream},
};
use crate::{
    cache::{List, ListVersion, Problem, ProblemReason, ProgressDemand, SourceError, SourceHealth},
    client::WatchMessages,
    model::{Object, ResourceVersion},
    proto::pb::{EventType, SyncState},
    source::problems::{OBJECT_REASONS, Problems, subject_of},
};

/// Connection and state of one source.
#[derive(Debug)]
pub(super) struct RelayShared {
    pub(super) config: RelayConfig,
    pub(super) health: SourceHealth,
    pub(super) demand: ProgressDemand,
    pub(super) upstream: Upstream,
    pub(super) state: Mutex<State>,
    problems: Problems,
    /// True if an object could not be read since the last list.
    has_unreadable: AtomicBool,
}

/// State that changes with the messages.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Position of the resource; `None` before the first list, and after the history was rewritten.
    pub(super) position: Option<Position>,
    /// Paths of the view of the upstream's configuration in which the objects up to the position were received, if it is one.
    pub(super) view: Option<String>,
    /// Stream of the last list, which continues from the position.
    pub(super) listed: Option<WatchMessages>,
    pub(super) server: Option<Server>,
    /// Servers that have not reached the position; there may be several behind one address.
    pub(super) behind: Vec<LaggingServer>,
    /// Set once a change other than a deletion was sent ahead of the position, by this run or an earlier one. For a resource of
    /// namespaces from the first list on: the last snapshot may be older than the first such change.
    pub(super) has_sent_ahead: bool,
    /// True if that may have been an earlier run, and nothing was listed since. This run does not know of an object that was
    /// created ahead and deleted since, and a client that resumes there would keep it ([`List::expires_older`]).
    pub(super) may_hide_ahead: bool,
    /// True if there are objects without a position: those of an earlier run, or of a history that was rewritten since.
    pub(super) holds_earlier: bool,
}

/// Position of the resource in the upstream's history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Position {
    /// Version up to which everything has been delivered.
    pub(super) version: ResourceVersion,
    /// Name of the history of the upstream that sent the version; empty if unknown.
    pub(super) history: Arc<str>,
    /// Last change up to the version; `None` after an empty list, and if it is unknown.
    pub(super) resume_point: Option<ResumePoint>,
    /// Namespaces to which the upstream limits this relay, none for no limit; `None` if they are unknown.
    pub(super) namespaces: Option<Arc<[String]>>,
}

/// Server that has answered last.
#[derive(Debug)]
pub(super) struct Server {
    /// Name of the server, new at each of its starts.
    pub(super) name: String,
    /// Name of the history of `version` at this server; empty if unknown.
    pub(super) history: String,
    /// Version that it serves; `None` before it has one.
    pub(super) version: Option<ResourceVersion>,
    pub(super) is_synced: bool,
    /// True if objects may exist that it has not been able to read since its start.
    pub(super) is_incomplete: bool,
}

/// Server that has not reached the position.
#[derive(Debug)]
pub(super) struct LaggingServer {
    pub(super) server: String,
    since: Instant,
}

/// Problem of an upstream that is incomplete.
const UNREAD: ProblemReason = ProblemReason::ObjectsUnread;

/// Limit of the remembered servers behind one address.
const MAX_BEHIND: usize = 16;

// === impl Position ===

impl Position {
    /// Returns true if a server with this name has named the position's history, or if the names do not decide that.
    fn is_confirmed_by(&self, server: &str) -> bool {
        let (origin, _) = self.history.split_once('.').unwrap_or((&*self.history, ""));
        // A lineage belongs to one run of the server that reads the source.
        let is_its_own = self.version.lineage().is_some() || origin.is_empty() || server.is_empty();
        is_its_own || origin == server
    }

    /// Returns true if the server that named the position's history now names another one, whatever the namespaces that this
    /// relay may read: their digest is the third part of the name.
    fn is_abandoned_by(&self, server: &Server) -> bool {
        let Server { name, history, .. } = server;
        let is_named = self.history.split_once('.').is_some_and(|(origin, _)| origin == name);
        let parts = |history| str::splitn(history, 3, '.').take(2);
        is_named && !history.is_empty() && !parts(history).eq(parts(&self.history))
    }

    /// Returns the namespaces of a list that are new since the position, and those that it does not cover any more. All of those
    /// that a relay without a limit had are not known.
    fn moved_namespaces(&self, list: &List, now: &[String]) -> (Vec<String>, Vec<String>) {
        let Some(before) = self.namespaces.as_ref().filter(|before| !before.is_empty()) else {
            return Default::default();
        };
        let covered: BTreeSet<&str> = match now {
            [] => list.objects.iter().map(|object| object.key().namespace()).collect(),
            now => now.iter().map(String::as_str).collect(),
        };
        let new = covered.iter().filter(|new| !before.iter().any(|before| before == *new));
        let gone = before.iter().filter(|before| !now.is_empty() && !now.contains(before));
        (new.map(ToString::to_string).collect(), gone.cloned().collect())
    }
}

// === impl RelayShared ===

impl RelayShared {
    pub(super) fn new(config: RelayConfig, health: SourceHealth, clients: &RelayClients) -> Self {
        let upstream = Upstream::new(config.clone(), health.clone(), clients);
        Self {
            problems: Problems::new("informerd", config.query.resource.clone(), health.clone()),
            has_unreadable: AtomicBool::new(false),
            state: Mutex::new(State { holds_earlier: config.holds_earlier, ..State::default() }),
            config,
            health,
            demand: ProgressDemand::met(),
            upstream,
        }
    }

    /// Reports an object that cannot be read.
    pub(super) fn note_unreadable(&self, problem: &Problem) {
        self.has_unreadable.store(true, Ordering::Relaxed);
        self.problems.set_object(problem);
    }

    /// Ends the problem with an object that can be read, or is deleted.
    pub(super) fn note_readable(&self, object: &Object) {
        if self.has_unreadable.load(Ordering::Relaxed) {
            self.problems.clear_object(&subject_of(object.key()));
        }
    }

    pub(super) async fn list(&self, at: ListVersion) -> Result<List, SourceError> {
        let known = {
            let mut state = self.state.lock();
            // There is one stream at a time.
            state.listed = None;
            state.position.clone()
        };
        let opened = match &at {
            ListVersion::NotOlderThan(version) => Some(version),
            ListVersion::Any | ListVersion::MostRecent => None,
        };
        let not_before =
            known.as_ref().map(|known| opened.filter(|opened| **opened > known.version).unwrap_or(&known.version));
        let view = self.check_server().await?;
        self.check_history(known.as_ref())?;
        let mut messages = self.upstream.open(Start::List { not_before }, self.config.heartbeat).await?;
        let (mut objects, mut unreadable) = (Vec::new(), Vec::new());
        loop {
            let message = self.upstream.next(&mut messages).await?;
            match message.r#type() {
                EventType::Added => {
                    self.upstream.check_secret(message.object.as_ref())?;
                    let object = self.upstream.with_body(message.object);
                    let object = object.ok_or_else(|| self.upstream.contract("event without an object"))?;
                    match message::readable(object) {
                        Ok(object) => objects.push(Arc::new(object)),
                        Err(item) => unreadable.push(item),
                    }
                }
                EventType::Bookmark => {
                    let bookmark = message.bookmark.unwrap_or_default();
                    if !bookmark.initial_events_end {
                        continue;
                    }
                    let version = message::version(&message.resource_version)?;
                    if let Some(known) = known.as_ref().filter(|known| version < known.version) {
                        // The upstream had reached that version, and restarted before the version was complete.
                        let (endpoint, known) = (self.config.endpoint.uri(), &known.version);
                        return Err(SourceError::NotYet(format!("{endpoint}: version {known} is open again upstream")));
                    }
                    // An upstream that was syncing before has its path only now.
                    if self.check_server().await? != view {
                        return Err(self.redefined());
                    }
                    self.check_complete(known.as_ref(), &version)?;
                    message::report_origin(&bookmark, &version, &self.health);
                    let resume_point = ResumePoint::of_list(&objects, &version);
                    let mut list = List::new(objects, version.clone());
                    if let Some(known) = &known {
                        (list.new_namespaces, list.lost_namespaces) =
                            known.moved_namespaces(&list, &bookmark.namespaces);
                    }
                    let namespaces = Some(bookmark.namespaces.into());
                    let position = Position { version, history: bookmark.history.into(), resume_point, namespaces };
                    let mut state = self.state.lock();
                    (state.position, state.view, state.listed) = (Some(position), view, Some(messages));
                    state.behind.clear();
                    let expires_older = std::mem::take(&mut state.may_hide_ahead);
                    drop(state);
                    self.has_unreadable.store(!unreadable.is_empty(), Ordering::Relaxed);
                    let (unreadable, problems) =
                        unreadable.into_iter().map(|item| (item.identity, item.problem)).unzip();
                    self.problems.replace(&OBJECT_REASONS, problems);
                    return Ok(List { unreadable, expires_older, ..list });
                }
                _ => return Err(self.upstream.not_an_event(message)),
            }
        }
    }

    /// Returns the position if it is at this version.
    pub(super) fn position(&self, version: &ResourceVersion) -> Option<Position> {
        self.state.lock().position.clone().filter(|known| known.version == *version)
    }

    /// Updates the state after an error: forgets a position whose history was rewritten, or leaves the connection.
    pub(super) fn failed(&self, error: SourceError) -> SourceError {
        let error = match error {
            SourceError::VersionTooLarge(text) => self.behind(text),
            error => error,
        };
        match &error {
            // The position and the servers behind it belong to the previous history.
            SourceError::HistoryRewritten(_) => {
                let mut state = self.state.lock();
                state.holds_earlier |= state.position.take().is_some();
                state.behind.clear();
            }
            SourceError::Expired(_) => {}
            _ => self.upstream.leave(),
        }
        error
    }

    /// Reads the upstream's name, state and history, and checks that the relay may follow it. Returns the paths of the view of the
    /// upstream's configuration that it follows, if it is one.
    ///
    /// # Errors
    ///
    /// [`SourceError::HistoryRewritten`] if the view had other paths at the position: objects that have not changed since have others
    /// now.
    async fn check_server(&self) -> Result<Option<String>, SourceError> {
        let resource = self.upstream.check_path().await?;
        let view = self.upstream.named_view(&resource)?;
        let server = Server {
            is_synced: resource.state() == SyncState::Synced,
            is_incomplete: resource.problems.iter().any(|problem| problem.reason == UNREAD.as_str()),
            version: resource.resource_version.parse().ok(),
            history: resource.history,
            name: resource.path.into_iter().last().unwrap_or_default(),
        };
        let mut state = self.state.lock();
        state.server = Some(server);
        state.has_sent_ahead |= !resource.namespaces.is_empty();
        if state.position.is_some() && state.view != view { Err(self.redefined()) } else { Ok(view) }
    }

    fn redefined(&self) -> SourceError {
        let name = self.upstream.view_name().unwrap_or_default();
        SourceError::HistoryRewritten(format!("{}: view {name:?} has other paths", self.config.endpoint.uri()))
    }

    /// Checks that a list at this version may replace the objects that are held: what the list of an incomplete upstream lacks may
    /// exist, unless the same run of the upstream has sent what is held.
    fn check_complete(&self, known: Option<&Position>, listed: &ResourceVersion) -> Result<(), SourceError> {
        let state = self.state.lock();
        let Some(server) = state.server.as_ref().filter(|server| server.is_incomplete) else { return Ok(()) };
        let problem = format!("{}: objects may exist that it has not read since its start", self.config.endpoint.uri());
        let is_its_own = |known: &Position| known.version.same_lineage(listed) && known.is_confirmed_by(&server.name);
        if !known.map_or(!state.holds_earlier, is_its_own) {
            return Err(SourceError::Busy(problem));
        }
        // A lineage is that of one run of the origin, which has sent its clients no more than it has read.
        self.health.mark_incomplete(problem, Some(listed.clone()).filter(|listed| listed.lineage().is_none()));
        Ok(())
    }

    /// Checks that the history of a position is the server's present one, if the server has named it.
    fn check_history(&self, position: Option<&Position>) -> Result<(), SourceError> {
        let state = self.state.lock();
        if let (Some(server), Some(position)) = (&state.server, position)
            && position.is_abandoned_by(server)
        {
            let endpoint = self.config.endpoint.uri();
            return Err(SourceError::HistoryRewritten(format!("{endpoint}: its history id changed")));
        }
        Ok(())
    }

    /// Opens a stream of the changes after a position. With a [`ResumeCheck`] the stream begins earlier, and the messages up to
    /// the position, which the check consumes, are not new.
    pub(super) async fn open_after(
        &self,
        position: &Position,
        bookmark_interval: Duration,
    ) -> Result<(WatchMessages, Option<ResumeCheck>), SourceError> {
        self.check_server().await?;
        let Some(history) = self.other_history(position)? else {
            let start = Start::After { version: &position.version, history: &position.history };
            let messages = self.upstream.open(start, bookmark_interval).await?;
            self.check_view().await?;
            self.state.lock().behind.clear();
            return Ok((messages, None));
        };
        let (after, check) = self.prove(position).await?;
        // The check does not hold for the next history of that server.
        let start = Start::After { version: &after, history: &history };
        let messages = self.upstream.open(start, bookmark_interval).await.map_err(unchecked_history)?;
        self.check_view().await?;
        Ok((messages, Some(check)))
    }

    /// Returns the present history of the server, if it is another one than that which named the position's.
    ///
    /// # Errors
    ///
    /// [`SourceError::Expired`] if objects may be missing up to the position: the other server may have them, and sends no change.
    fn other_history(&self, position: &Position) -> Result<Option<String>, SourceError> {
        let state = self.state.lock();
        let other = state.server.as_ref().filter(|server| !position.is_confirmed_by(&server.name));
        match other {
            Some(_) if self.health.is_incomplete() => Err(unclear("objects may be missing here")),
            other => Ok(other.map(|server| server.history.clone())),
        }
    }

    /// Checks once more that the view has the paths that it had at the position: another server may have opened the stream than the
    /// one that was checked before.
    async fn check_view(&self) -> Result<(), SourceError> {
        if self.upstream.view_name().is_some() { self.check_server().await.map(drop) } else { Ok(()) }
    }

    /// Determines how another server can show that it has the history of a position: by a stream after the returned version.
    async fn prove(&self, position: &Position) -> Result<(ResourceVersion, ResumeCheck), SourceError> {
        let resume_point = position.resume_point.clone().ok_or_else(|| unclear("no known change"))?;
        let mut found = self.find(&resume_point, position, None).await?;
        if found == ServerVerdict::Behind {
            found = self.find(&resume_point, position, Some(resume_point.version())).await?;
        }
        let suppresses = self.config.query.view.as_ref().is_some_and(|view| view.only_if_changed);
        match found {
            // Neither the version of the object nor a replay shows changes that were suppressed.
            _ if suppresses && found != ServerVerdict::AsKnown => Err(unclear("changes may have been suppressed")),
            ServerVerdict::AsKnown => {
                Ok((resume_point.version().clone(), ResumeCheck::after(resume_point, position.version.clone())))
            }
            ServerVerdict::OtherBody => Err(unclear("last known change has other bytes")),
            ServerVerdict::OtherHistory(why) => Err(SourceError::HistoryRewritten(why)),
            ServerVerdict::Later | ServerVerdict::Behind => {
                let before = resume_point.before().ok_or_else(|| unclear("no version before the last known change"))?;
                Ok((before, ResumeCheck::from(resume_point, position.version.clone())))
            }
        }
    }

    async fn find(
        &self,
        resume_point: &ResumePoint,
        position: &Position,
        not_before: Option<&ResourceVersion>,
    ) -> Result<ServerVerdict, SourceError> {
        // A response without an object has no version: its state is at least as new as this.
        let least = match not_before {
            Some(version) => Some(version.clone()),
            None => self.state.lock().server.as_ref().and_then(|server| server.version.clone()),
        };
        let found = self.upstream.get(resume_point.key(), not_before).await?;
        let (object, at) = match found {
            Some((object, at)) => (Some(object), at),
            None => match least {
                Some(at) => (None, at),
                None => return Ok(ServerVerdict::Behind),
            },
        };
        if at.same_lineage(&position.version) {
            return Ok(resume_point.judge(&position.version, &at, object.as_ref()));
        }
        Ok(ServerVerdict::OtherHistory(format!(
            "upstream version {at} is of another lineage than the last known version {}",
            position.version
        )))
    }

    /// Judges the server of a stream that has the last known change, and is at a version before the position.
    ///
    /// # Errors
    ///
    /// [`SourceError::HistoryRewritten`] if it has been behind for too long, as in [`Self::behind`].
    pub(super) fn note_behind(&self, is_synced: bool, version: &str) -> Result<(), SourceError> {
        if let Some(server) = &mut self.state.lock().server {
            server.is_synced = is_synced;
        }
        match self.behind(format!("{}: at version {version}", self.config.endpoint.uri())) {
            SourceError::NotYet(_) => Ok(()),
            error => Err(error),
        }
    }

    /// Judges a server that has not reached a version in time: the source, STALE, waits for a replica that lags. A server with
    /// another name that has been SYNCED and behind for longer than `resume_timeout` has another history.
    fn behind(&self, text: String) -> SourceError {
        let mut state = self.state.lock();
        let other = state.server.as_ref().filter(|server| {
            server.is_synced && state.position.as_ref().is_some_and(|position| !position.is_confirmed_by(&server.name))
        });
        let Some(server) = other.map(|server| server.name.clone()) else {
            state.behind.clear();
            return SourceError::NotYet(text);
        };
        let limit = self.config.resume_timeout;
        let Some(since) = state.behind.iter().find(|behind| behind.server == server).map(|behind| behind.since) else {
            state.behind.truncate(MAX_BEHIND - 1);
            state.behind.insert(0, LaggingServer { server, since: Instant::now() });
            return SourceError::NotYet(text);
        };
        if since.elapsed() < limit {
            return SourceError::NotYet(text);
        }
        SourceError::HistoryRewritten(format!("another server is synced and has lagged for {limit:?}: {text}"))
    }
}

/// Converts an error of a server whose history is not checked yet: that it was rewritten there does not concern the position.
pub(super) fn unchecked_history(error: SourceError) -> SourceError {
    match error {
        SourceError::HistoryRewritten(text) => SourceError::Busy(text),
        error => error,
    }
}

#[cfg(test)]
mod tests;
