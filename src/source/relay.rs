//! The `informerd` source: a resource of another informerd, as it is told there. What serves it is a relay.
//!
//! ```text
//!   Upstream ─┬─▶ list: a Watch from the initial events on ─▶ objects ──┐
//!   (client)  │                                  └── goes on as ──▶ Live ├──▶ Position (version, history, last change)
//!             └─▶ watch: a Watch after the position ──────────▶ Live ────┘
//!                      ▲                                         └──▶ batches, bookmarks, state of the origin
//!                      └── with bookmarks 10 times a second while somebody waits (Demand)
//! ```
//!
//! Made by the application from its configuration, one for each resource, with a connection of its own; driven by the
//! resource's Reflector. What a client of a relay is told is what a client of the origin may be told:
//!
//! - Everything is watched RAW and under REPLAY: an upstream that does not allow it is refused before anything is served. Each
//!   object keeps its version, uid, labels, type and bytes.
//! - A batch is applied when the version advances, whole. One that was a relist upstream is a relist here: its deletions are
//!   inferred, and what lies between its versions is none to resume from.
//! - There is one stream at a time, whatever the number of clients; what breaks is taken up where it was, by a later start too
//!   (`WarmStart`).
//! - A rewritten history is detected: by the upstream's `HISTORY_CHANGED`, by versions of another lineage, and, of an upstream
//!   with another name (started again, or another replica), by the last change that is known (`proof`, `resume`).
//! - An upstream that is behind, as another replica may be, is waited for. Only one that is SYNCED and behind for longer than
//!   `resume_timeout` has another history.
//! - A path of servers leads to the origin. A relay that finds itself on it, or 16 others, refuses.
//!
//! Deliberately not here: waiting, relisting and backing off, which are the Reflector's; and the client library's own
//! [`Watch`](crate::client::Watch), which hides what a relay has to pass on: batches, relists, histories.

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

/// What a [`RelaySource`] follows, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayConfig {
    /// `http://HOST:PORT`, `https://HOST:PORT` or `unix:/path` of the upstream.
    pub endpoint: String,
    /// What the upstream calls the resource.
    pub resource: String,
    /// For an endpoint with `https`.
    pub tls: RelayTls,
    /// How often the upstream says how far it is. After three of these without a word it is given up.
    pub heartbeat: Duration,
    /// The same while somebody waits for it; the least that informerd grants is 100 ms.
    pub progress_interval: Duration,
    /// How long the upstream may take to answer a call that waits for nothing.
    pub answer_timeout: Duration,
    /// How long it may take to reach the version that it is to go on from: more than its `future_wait`. An upstream with another
    /// name that is SYNCED and does not reach it for so long has another history.
    pub resume_timeout: Duration,
}

/// Whom to trust under TLS, and who we are: files in PEM, read at each connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RelayTls {
    /// Those who may have signed the upstream's certificate; without it, those that the system trusts.
    pub ca: Option<PathBuf>,
    /// Our own certificate, and its key.
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
    /// Where the resource is; none before the first list, and when the history is another one.
    position: Option<Position>,
    /// The stream of the last list, which goes on from the position.
    listed: Option<Messages>,
    server: Option<Server>,
    /// Servers that have not reached the position; there may be several behind one address.
    behind: Vec<Behind>,
    /// A change that is no deletion was sent ahead of the position, by this start or an earlier one.
    has_sent_ahead: bool,
    /// It may have been an earlier one, and nothing was listed since: what was created ahead and is deleted by now is in no state
    /// that this start knows, and a client that resumes there would keep it ([`List::expires_older`]).
    may_hide_ahead: bool,
}

/// Where the resource is.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Position {
    /// Everything up to here has been handed out.
    version: ResourceVersion,
    /// By which the upstream that has told it knows its history; empty if it has not said.
    history: Arc<str>,
    /// The last change up to the version; `None` of an empty list, and when it is not known.
    mark: Option<Mark>,
}

/// A position, for a later start.
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
    /// Without TLS: a bookmark every 5 seconds, 10 times a second while somebody waits.
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
    /// A source that has not connected yet. What the upstream says of its own upstream is reported to `health`.
    pub fn new(config: RelayConfig, health: SourceHealth) -> Self {
        let upstream = Upstream::new(config.clone(), health.clone());
        Self { shared: Arc::new(Shared { config, health, upstream, state: Mutex::default() }) }
    }

    /// Whether the endpoint is one, and the files that a configuration names can be read now. No connection is made.
    ///
    /// # Errors
    ///
    /// In one line.
    pub fn check(config: &RelayConfig) -> Result<(), String> {
        upstream::address(config).map(drop)
    }
}

impl ListerWatcher for RelaySource {
    /// The list is what the upstream has, and never older than what is known. Inside an open version the upstream has to have
    /// reached that; the list is at the version before it, and what the upstream has of the open one follows.
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
        let kept: Kept = serde_json::from_slice(proof).map_err(|error| format!("its proof cannot be read: {error}"))?;
        if kept.version != at.to_string() {
            return Err(format!("its proof is of version {}, and it is at {at}", kept.version));
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
                        // It has reached that version, and started again before it was complete.
                        let (endpoint, known) = (&self.config.endpoint, known.version);
                        return Err(SourceError::Busy(format!("{endpoint}: version {known} is open again there")));
                    }
                    // One that was syncing too knows its path now.
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

    /// Where the resource is, if it is at this version.
    fn position(&self, version: &ResourceVersion) -> Option<Position> {
        self.state.lock().position.clone().filter(|known| known.version == *version)
    }

    /// Takes note of an error.
    fn failed(&self, error: SourceError) -> SourceError {
        let error = match error {
            SourceError::VersionTooLarge(text) => self.behind(text),
            error => error,
        };
        match &error {
            // What was known is worth nothing.
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
