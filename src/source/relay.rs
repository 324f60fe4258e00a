//! The `informerd` source: a resource of another informerd, served on unchanged. A server with such a source is a relay.
//!
//! ```text
//!   Upstream ─┬─▶ list: a Watch from the initial events on ─▶ objects ────┐
//!   (client)  │                                 └── continues as ──▶ Live ├──▶ Position (version, history, last change)
//!             └─▶ watch: a Watch after the position ───────────▶ Live ────┘
//!                      ▲                                          └──▶ batches, bookmarks, state of the origin
//!                      └── with bookmarks 10 times a second while a caller waits (Demand)
//! ```
//!
//! The application makes one source for each resource from its configuration, each with a connection of its own; the
//! resource's Reflector drives it. A relay's clients receive only what a client of the origin may receive:
//!
//! - The relay watches everything RAW and under REPLAY, and fails before it serves anything if the upstream does not allow
//!   that. Each object keeps its version, uid, labels, type and bytes.
//! - A batch is applied when the version advances, whole. A relist upstream is a relist here: its deletions are inferred, and
//!   no client can resume from a version inside of it.
//! - There is one stream at a time, whatever the number of clients. After a break the source resumes at its position, also
//!   after a restart (`WarmStart`).
//! - A rewritten history is detected: by the upstream's `HISTORY_CHANGED`, by versions of another lineage and, if the upstream
//!   has another name (a restart, or another replica), by the last known change (`proof`, `resume`).
//! - The source waits for an upstream that is behind, as another replica may be. Only one that is SYNCED and behind for longer
//!   than `resume_timeout` has another history.
//! - A path of servers leads to the origin. A relay that finds itself on it, or 16 others, reports an error.
//!
//! Waiting, relisting and backing off are the Reflector's, deliberately. The client library's own
//! [`Watch`](crate::client::Watch) is not used, because it hides batches, relists and histories, which a relay passes on.

mod live;
mod message;
mod proof;
mod resume;
mod upstream;

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use self::{
    live::Live,
    proof::{KeptMark, Mark},
    resume::{Behind, Server},
    upstream::{Messages, Start, Upstream},
};
use crate::{
    cache::{List, ListVersion, ListerWatcher, SourceError, SourceHealth, WarmStart, Watch},
    model::ResourceVersion,
    proto::pb::EventType,
};

/// Configuration of a [`RelaySource`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayConfig {
    /// Address of the upstream: `http://HOST:PORT`, `https://HOST:PORT` or `unix:/path`.
    pub endpoint: String,
    /// Name of the resource at the upstream.
    pub resource: String,
    /// TLS of an endpoint with `https`.
    pub tls: RelayTls,
    /// Interval of the upstream's bookmarks. After three of these without a message the source gives the stream up.
    pub heartbeat: Duration,
    /// Interval of bookmarks while a caller waits for a version; the least that informerd grants is 100 ms.
    pub progress_interval: Duration,
    /// Time limit for the upstream to answer a call that waits for nothing.
    pub answer_timeout: Duration,
    /// Time limit for the upstream to reach the version to resume from: more than its `future_wait`. An upstream with another
    /// name that is SYNCED and does not reach it for so long has another history.
    pub resume_timeout: Duration,
}

/// TLS trust and client identity: files in PEM, read at each connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RelayTls {
    /// CA certificates for the upstream's certificate; without it, those that the system trusts.
    pub ca: Option<PathBuf>,
    /// Client certificate, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// A resource of another informerd as an upstream.
#[derive(Debug)]
pub struct RelaySource {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: RelayConfig,
    health: SourceHealth,
    upstream: Upstream,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Position of the resource; `None` before the first list, and after the history was rewritten.
    position: Option<Position>,
    /// Stream of the last list, which continues from the position.
    listed: Option<Messages>,
    server: Option<Server>,
    /// Servers that have not reached the position; there may be several behind one address.
    behind: Vec<Behind>,
    /// Set once a change other than a deletion was sent ahead of the position, by this run or an earlier one.
    has_sent_ahead: bool,
    /// True if that may have been an earlier run, and nothing was listed since. This run does not know of an object that was
    /// created ahead and deleted since, and a client that resumes there would keep it ([`List::expires_older`]).
    may_hide_ahead: bool,
}

/// Position of the resource in the upstream's history.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Position {
    /// Version up to which everything has been delivered.
    version: ResourceVersion,
    /// Name of the history of the upstream that sent the version; empty if unknown.
    history: Arc<str>,
    /// Last change up to the version; `None` after an empty list, and if it is unknown.
    mark: Option<Mark>,
}

/// Position as the snapshot of the resource stores it for the next run.
#[derive(Serialize, Deserialize)]
struct Kept {
    version: String,
    history: String,
    #[serde(default)]
    mark: Option<KeptMark>,
    #[serde(default)]
    has_sent_ahead: bool,
}

// === impl RelayConfig ===

impl RelayConfig {
    /// Returns a configuration without TLS: a bookmark every 5 seconds, and 10 times a second while a caller waits.
    pub fn new(endpoint: &str, resource: &str) -> Self {
        Self {
            endpoint: endpoint.to_owned(),
            resource: resource.to_owned(),
            tls: RelayTls::default(),
            heartbeat: Duration::from_secs(5),
            progress_interval: Duration::from_millis(100),
            answer_timeout: Duration::from_secs(10),
            resume_timeout: Duration::from_secs(100),
        }
    }
}

// === impl RelaySource ===

impl RelaySource {
    /// Returns a source that has not connected yet. It reports the sync state of the upstream's own source to `health`.
    pub fn new(config: RelayConfig, health: SourceHealth) -> Self {
        let upstream = Upstream::new(config.clone(), health.clone());
        Self { shared: Arc::new(Shared { config, health, upstream, state: Mutex::default() }) }
    }

    /// Checks that the endpoint is valid, and that the files that a configuration names can be read now. Makes no connection.
    ///
    /// # Errors
    ///
    /// The problem, in one line.
    pub fn check(config: &RelayConfig) -> Result<(), String> {
        upstream::address(config).map(drop)
    }
}

impl ListerWatcher for RelaySource {
    /// Lists the upstream's state, which is never older than the position. Inside an open version, the upstream has to have
    /// reached that version; the list is at the version before it, and the upstream's changes at the open one follow.
    async fn list(&self, at: ListVersion) -> Result<List, SourceError> {
        self.shared.list(at).await.map_err(|error| self.shared.failed(error))
    }

    async fn watch(&self, from: ResourceVersion) -> Result<Watch, SourceError> {
        let shared = &self.shared;
        let listed = shared.state.lock().listed.take();
        let position = shared.position(&from);
        let live = match listed.zip(position) {
            Some((messages, position)) => Live::new(Arc::clone(shared), messages, position),
            None => Live::resume(Arc::clone(shared), from).await.map_err(|error| shared.failed(error))?,
        };
        Ok(Box::pin(futures_util::stream::unfold(Some(live), |live| async move {
            let mut live = live?;
            match live.next().await {
                Ok(delta) => Some((Ok(delta), Some(live))),
                Err(error) => Some((Err(live.fail(error)), None)),
            }
        })))
    }

    fn heartbeat(&self) -> Duration {
        self.shared.config.heartbeat
    }

    fn warm_start(&self) -> Option<&dyn WarmStart> {
        Some(self)
    }
}

impl WarmStart for RelaySource {
    fn identity(&self) -> String {
        let RelayConfig { endpoint, resource, .. } = &self.shared.config;
        format!("{resource:?} of informerd at {endpoint}")
    }

    fn proof(&self) -> Option<Bytes> {
        let (position, has_sent_ahead) = {
            let state = self.shared.state.lock();
            (state.position.clone()?, state.has_sent_ahead)
        };
        let Position { version, history, mark } = position;
        let mark = mark.as_ref().map(Mark::keep);
        let kept = Kept { version: version.to_string(), history: history.to_string(), mark, has_sent_ahead };
        serde_json::to_vec(&kept).ok().map(Bytes::from)
    }

    fn resume(&self, at: &ResourceVersion, proof: &[u8]) -> Result<(), String> {
        let kept: Kept = serde_json::from_slice(proof).map_err(|error| format!("invalid resume proof: {error}"))?;
        if kept.version != at.to_string() {
            return Err(format!("resume proof of version {} for a snapshot at {at}", kept.version));
        }
        let mark = kept.mark.and_then(Mark::resume);
        let position = Position { version: at.clone(), history: kept.history.into(), mark };
        let (has_sent_ahead, may_hide_ahead) = (kept.has_sent_ahead, kept.has_sent_ahead);
        *self.shared.state.lock() =
            State { position: Some(position), has_sent_ahead, may_hide_ahead, ..State::default() };
        Ok(())
    }
}

// === impl Shared ===

impl Shared {
    async fn list(&self, at: ListVersion) -> Result<List, SourceError> {
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
        self.meet().await?;
        self.check_history(known.as_ref())?;
        let mut messages = self.upstream.open(Start::List { not_before }, self.config.heartbeat).await?;
        let mut objects = Vec::new();
        loop {
            let message = self.upstream.next(&mut messages).await?;
            match message.r#type() {
                EventType::Added => objects.push(Arc::new(message::object(message.object)?)),
                EventType::Bookmark => {
                    let bookmark = message.bookmark.unwrap_or_default();
                    if !bookmark.initial_events_end {
                        continue;
                    }
                    let version = message::version(&message.resource_version)?;
                    if let Some(known) = known.filter(|known| version < known.version) {
                        // The upstream had reached that version, and restarted before the version was complete.
                        let (endpoint, known) = (&self.config.endpoint, known.version);
                        return Err(SourceError::Busy(format!("{endpoint}: version {known} is open again upstream")));
                    }
                    // An upstream that was syncing before has its path only now.
                    self.meet().await?;
                    message::tell_origin(&bookmark, &self.health);
                    let mark = Mark::of_list(&objects, &version);
                    let position = Position { version: version.clone(), history: bookmark.history.into(), mark };
                    let mut state = self.state.lock();
                    (state.position, state.listed) = (Some(position), Some(messages));
                    state.behind.clear();
                    let expires_older = std::mem::take(&mut state.may_hide_ahead);
                    return Ok(List { expires_older, ..List::new(objects, version) });
                }
                _ => return Err(self.upstream.not_an_event(message)),
            }
        }
    }

    /// Returns the position if it is at this version.
    fn position(&self, version: &ResourceVersion) -> Option<Position> {
        self.state.lock().position.clone().filter(|known| known.version == *version)
    }

    /// Updates the state after an error: forgets a position whose history was rewritten, or leaves the connection.
    fn failed(&self, error: SourceError) -> SourceError {
        let error = match error {
            SourceError::VersionTooLarge(text) => self.behind(text),
            error => error,
        };
        match &error {
            // The position and the servers behind it belong to the previous history.
            SourceError::HistoryChanged(_) => {
                let mut state = self.state.lock();
                state.position = None;
                state.behind.clear();
            }
            SourceError::Expired(_) => {}
            _ => self.upstream.leave(),
        }
        error
    }
}
