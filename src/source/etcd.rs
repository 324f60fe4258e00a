//! The `etcd` source: every key below a prefix of an etcd cluster, version 3.4 or later.
//!
//! ```text
//!                ┌─▶ list ──▶ objects, Mark ──┐
//!   Connections ─┤                            ├──▶ Known (identity, position) ──▶ is it the same history?
//!                └─▶ watch ─▶ transactions ───┘
//!                      ▲
//!                      └── progress, asked for when it is quiet, or 10 times a second while somebody waits (Demand)
//! ```
//!
//! Made by the application from its configuration, one for each resource, with a connection of its own; driven by the
//! resource's Reflector. `object` says how keys and values become objects, `proof` how a rewind is shown.
//!
//! - Versions are etcd's revisions: a client may resume on any replica that serves the same cluster.
//! - A transaction is one batch, whole, whatever messages it came in.
//! - A list and the first answer over each connection are what the cluster agrees upon, never the opinion of one member.
//! - After a break the watch goes on where it was, and nothing is taken from it before the history is known to be the same.
//! - Endpoints are changed forward only, and only when one fails.
//!
//! Deliberately not here: waiting, relisting and backing off, which are the Reflector's.

mod connection;
mod list;
mod object;
mod pb;
mod proof;
mod watch;

#[cfg(test)]
mod tests;

use std::{path::PathBuf, sync::Arc, time::Duration};

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

#[cfg(any(test, fuzzing))]
pub(crate) use self::watch::fuzzing;
use self::{
    connection::{Connection, Connections},
    object::{Prefix, version},
    pb::{RangeRequest, ResponseHeader},
    proof::{Identity, Mark},
    watch::Live,
};
use crate::{
    cache::{Evidence, List, ListVersion, ListerWatcher, SourceError, SourceHealth, WarmStart, Watch},
    model::ResourceVersion,
    source::problems::{KeptProblems, OBJECT_REASONS, Problems},
};

/// What an [`EtcdSource`] follows, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    /// The name of the resource, for the log.
    pub resource: String,
    /// `http://HOST:PORT` or `https://HOST:PORT` of the members of one cluster, at least one.
    pub endpoints: Vec<String>,
    /// What the keys begin with, such as `/settings/`; empty for all keys.
    pub prefix: String,
    /// A user, and the file that holds the password; a line end after it does not count.
    pub credentials: Option<(String, PathBuf)>,
    /// For endpoints with `https`.
    pub tls: EtcdTls,
    /// After so long without a word etcd is asked whether it is there.
    pub heartbeat: Duration,
    /// How long etcd may take to answer.
    pub answer_timeout: Duration,
    /// How often etcd is asked how far it is while somebody waits for it.
    pub progress_interval: Duration,
}

/// Whom to trust under TLS, and who we are: files in PEM, read at each connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EtcdTls {
    /// Those who may have signed the server's certificate; without it, those that the system trusts.
    pub ca: Option<PathBuf>,
    /// Our own certificate, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that the server's certificate has; without it, the host of the endpoint.
    pub server_name: Option<String>,
}

/// A prefix of an etcd cluster as an upstream.
#[derive(Debug)]
pub struct EtcdSource {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: EtcdConfig,
    prefix: Prefix,
    health: SourceHealth,
    connections: Connections,
    problems: Problems,
    known: Mutex<Known>,
}

/// What is known of the cluster.
#[derive(Debug, Default)]
struct Known {
    identity: Identity,
    /// `None` before the first list.
    position: Option<Position>,
}

/// Where the resource is.
#[derive(Debug, Clone)]
struct Position {
    /// Everything up to here has been handed out.
    revision: i64,
    /// The connection that it came over; none has [`EARLIER_START`].
    connection: u64,
    /// The last transaction up to there; `None` after an empty list.
    mark: Option<Mark>,
}

/// What a later start goes on with.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    identity: Identity,
    revision: i64,
    mark: Option<Mark>,
    problems: KeptProblems,
}

/// Instead of a connection, whose numbers begin at 1.
const EARLIER_START: u64 = 0;

// === impl EtcdConfig ===

impl EtcdConfig {
    /// Without credentials and TLS: asked after 5 seconds of silence, with 10 to answer, and every 100 ms while somebody
    /// waits.
    pub fn new(resource: &str, endpoints: Vec<String>, prefix: &str) -> Self {
        Self {
            resource: resource.to_owned(),
            endpoints,
            prefix: prefix.to_owned(),
            credentials: None,
            tls: EtcdTls::default(),
            heartbeat: Duration::from_secs(5),
            answer_timeout: Duration::from_secs(10),
            progress_interval: Duration::from_millis(100),
        }
    }
}

// === impl EtcdSource ===

impl EtcdSource {
    /// A source that has not connected yet, whose problems are reported to `health`.
    pub fn new(config: EtcdConfig, health: SourceHealth) -> Self {
        let shared = Shared {
            prefix: Prefix::new(&config.prefix),
            connections: Connections::new(config.clone()),
            problems: Problems::new("etcd", config.resource.clone(), health.clone()),
            known: Mutex::default(),
            health,
            config,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Whether the files that a configuration names can be read now. No connection is made.
    ///
    /// # Errors
    ///
    /// In one line.
    pub fn check(config: &EtcdConfig) -> Result<(), String> {
        if let Some((_, password)) = &config.credentials {
            connection::read(password)?;
        }
        connection::tls(&config.tls).map(drop)
    }
}

impl ListerWatcher for EtcdSource {
    /// Whatever is asked for: what the cluster agrees upon is the most recent state.
    async fn list(&self, _: ListVersion) -> Result<List, SourceError> {
        let shared = &self.shared;
        let connection = shared.connections.get().await?;
        match shared.list(&connection).await {
            Ok(list) => Ok(list),
            Err(error) => Err(shared.failed(connection.id, error)),
        }
    }

    async fn watch(&self, from: ResourceVersion) -> Result<Watch, SourceError> {
        let shared = &self.shared;
        let known = shared.known.lock().position.clone();
        let Some(position) = known.filter(|position| version(position.revision) == from) else {
            return Err(SourceError::Expired(format!("{from} is not where the resource is")));
        };
        let connection = shared.connections.get().await?;
        let id = connection.id;
        match Live::open(Arc::clone(shared), connection, position).await {
            Ok(live) => Ok(Box::pin(futures_util::stream::unfold(Some(live), |live| async move {
                let mut live = live?;
                match live.next().await {
                    Ok(delta) => Some((Ok(delta), Some(live))),
                    Err(error) => Some((Err(live.fail(error)), None)),
                }
            }))),
            Err(error) => Err(shared.failed(id, error)),
        }
    }

    fn heartbeat(&self) -> Duration {
        self.shared.config.heartbeat
    }

    fn evidence(&self) -> Evidence {
        Evidence::Bytes
    }

    fn warm_start(&self) -> Option<&dyn WarmStart> {
        Some(self)
    }
}

impl WarmStart for EtcdSource {
    /// Another cluster behind the same endpoints is found out when it is asked.
    fn identity(&self) -> String {
        let EtcdConfig { endpoints, prefix, .. } = &self.shared.config;
        let mut endpoints = endpoints.clone();
        endpoints.sort();
        format!("the keys of {prefix:?} in etcd at {}", endpoints.join(", "))
    }

    fn proof(&self) -> Option<Bytes> {
        let (identity, position) = {
            let known = self.shared.known.lock();
            (known.identity, known.position.clone()?)
        };
        let Position { revision, mark, .. } = position;
        let kept = Kept { identity, revision, mark, problems: self.shared.problems.keep() };
        serde_json::to_vec(&kept).ok().map(Bytes::from)
    }

    fn resume(&self, at: &ResourceVersion, proof: &[u8]) -> Result<(), String> {
        let kept: Kept = serde_json::from_slice(proof).map_err(|error| format!("its proof cannot be read: {error}"))?;
        let Kept { identity, revision, mark, problems } = kept;
        if version(revision) != *at {
            return Err(format!("its proof is of revision {revision}, and it is at {at}"));
        }
        *self.shared.known.lock() =
            Known { identity, position: Some(Position { revision, connection: EARLIER_START, mark }) };
        self.shared.problems.resume(problems);
        Ok(())
    }
}

// === impl Shared ===

impl Shared {
    async fn list(&self, connection: &Connection) -> Result<List, SourceError> {
        let reading = list::read(connection, &self.prefix).await?;
        let revision = reading.header.revision;
        self.check_identity(&reading.header)?;
        let mark = Mark::of_list(revision, &reading.newest);
        self.problems.replace(&OBJECT_REASONS, reading.problems);
        self.known.lock().position = Some(Position { revision, connection: connection.id, mark });
        Ok(List { not_served: reading.not_served, ..List::new(reading.objects, version(revision)) })
    }

    /// Asks the cluster who and how far it is. One that has not come as far as we have went back in time: what it answers is
    /// what it agrees upon. That has to be held against it at once, because by the next answer it may have counted on.
    async fn check_head(&self, connection: &Connection, revision: i64) -> Result<(), SourceError> {
        let header = connection.head(self.prefix.first()).await.map_err(|status| connection.error(&status))?;
        self.check_identity(&header)?;
        if header.revision < revision {
            self.known.lock().position = None;
            let (endpoint, at) = (connection.endpoint(), header.revision);
            return Err(SourceError::HistoryChanged(format!("{endpoint}: at revision {at}, and {revision} was known")));
        }
        Ok(())
    }

    /// Checks that there was no key at a revision, as an empty list found it: such a list has no change to recognise the
    /// history by.
    async fn check_empty(&self, connection: &Connection, revision: i64) -> Result<(), SourceError> {
        let range = RangeRequest {
            key: self.prefix.first(),
            range_end: self.prefix.end(),
            limit: 1,
            keys_only: true,
            revision,
        };
        let found = connection.range(range).await.map_err(|status| connection.error(&status))?;
        if found.kvs.is_empty() {
            return Ok(());
        }
        self.known.lock().position = None;
        let endpoint = connection.endpoint();
        Err(SourceError::HistoryChanged(format!("{endpoint}: keys at revision {revision}, where there were none")))
    }

    fn check_identity(&self, header: &ResponseHeader) -> Result<(), SourceError> {
        let mut known = self.known.lock();
        known.identity.check(header).map_err(|changed| {
            // What is known is of the old one.
            known.position = None;
            SourceError::HistoryChanged(changed)
        })
    }

    /// Gives a connection up that is of no use.
    fn failed(&self, connection: u64, error: SourceError) -> SourceError {
        if matches!(error, SourceError::Busy(_) | SourceError::Unavailable(_)) {
            self.connections.lost(connection);
        }
        error
    }
}
