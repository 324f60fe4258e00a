//! The `etcd` source: every key below a prefix of an etcd cluster, version 3.4 or later.
//!
//! ```text
//!                ┌─▶ list ──▶ objects, Mark ──┐
//!   Connections ─┤                            ├──▶ Known (identity, position) ──▶ history check
//!                └─▶ watch ─▶ transactions ───┘
//!                      ▲
//!                      └── progress requests: when the watch is idle, or 10 times a second while a caller waits (Demand)
//! ```
//!
//! The application makes one source for each resource from its configuration, each with a connection of its own; the
//! resource's Reflector drives it. `object` converts keys and values to objects, `proof` detects a rewritten history.
//!
//! - Versions are etcd's revisions: a client may resume on any replica that serves the same cluster.
//! - A transaction is one complete batch, however many messages it came in.
//! - A list, and the first response over each connection, are linearizable reads: agreed by the cluster, not one member's view.
//! - After a break the watch resumes; it delivers nothing before the source has checked that the history is the same.
//! - The source moves to the next endpoint only when one fails, and only forward in the list.
//!
//! Waiting, relisting and backing off are the Reflector's, deliberately.

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

/// Configuration of an [`EtcdSource`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdConfig {
    /// Name of the resource, for the log.
    pub resource: String,
    /// Addresses of the members of one cluster, `http://HOST:PORT` or `https://HOST:PORT`; at least one.
    pub endpoints: Vec<String>,
    /// Prefix of the keys, such as `/settings/`; empty for all keys.
    pub prefix: String,
    /// User, and the file that holds the password; a line end after the password is ignored.
    pub credentials: Option<(String, PathBuf)>,
    /// TLS of endpoints with `https`.
    pub tls: EtcdTls,
    /// Idle time after which the source checks that etcd responds.
    pub heartbeat: Duration,
    /// Time within which etcd has to answer a request.
    pub answer_timeout: Duration,
    /// Interval of progress requests while a caller waits for a version.
    pub progress_interval: Duration,
}

/// TLS trust and client identity: files in PEM, read at each connection.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EtcdTls {
    /// CA certificates for the server's certificate; without it, those that the system trusts.
    pub ca: Option<PathBuf>,
    /// Client certificate, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// Name in the server's certificate; without it, the host of the endpoint.
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

/// State of the cluster that the source has seen.
#[derive(Debug, Default)]
struct Known {
    identity: Identity,
    /// `None` before the first list.
    position: Option<Position>,
}

/// Position of the resource in the cluster's history.
#[derive(Debug, Clone)]
struct Position {
    /// Revision up to which everything has been delivered.
    revision: i64,
    /// Connection that it came over, or [`EARLIER_START`].
    connection: u64,
    /// Last transaction up to that revision; `None` after an empty list.
    mark: Option<Mark>,
}

/// Resume state that the snapshot of the resource stores for the next run.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    identity: Identity,
    revision: i64,
    mark: Option<Mark>,
    problems: KeptProblems,
}

/// Stands in for a connection's number in the state of a previous run; connections count from 1.
const EARLIER_START: u64 = 0;

// === impl EtcdConfig ===

impl EtcdConfig {
    /// Returns a configuration without credentials and TLS: a check of contact after 5 idle seconds, 10 seconds to answer,
    /// progress requests every 100 ms while a caller waits.
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
    /// Returns a source that has not connected yet and reports its problems to `health`.
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

    /// Checks that the files that a configuration names can be read now. Makes no connection.
    ///
    /// # Errors
    ///
    /// The problem, in one line.
    pub fn check(config: &EtcdConfig) -> Result<(), String> {
        if let Some((_, password)) = &config.credentials {
            connection::read(password)?;
        }
        connection::tls(&config.tls).map(drop)
    }
}

impl ListerWatcher for EtcdSource {
    /// Lists at the newest revision that the cluster has agreed on, whichever version is requested.
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
            return Err(SourceError::Expired(format!(
                "cannot watch from version {from}: the source is at another one"
            )));
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
    /// Names the endpoints and the prefix. The first response of another cluster behind the same endpoints shows the difference.
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
        let kept: Kept = serde_json::from_slice(proof).map_err(|error| format!("invalid resume proof: {error}"))?;
        let Kept { identity, revision, mark, problems } = kept;
        if version(revision) != *at {
            return Err(format!("resume proof of revision {revision} for a snapshot at {at}"));
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

    /// Reads the cluster's id and newest revision. A cluster behind our revision has lost history, since the read is
    /// linearizable. The check comes first: by the next response the cluster may have passed our revision with other changes.
    async fn check_head(&self, connection: &Connection, revision: i64) -> Result<(), SourceError> {
        let header = connection.head(self.prefix.first()).await.map_err(|status| connection.error(&status))?;
        self.check_identity(&header)?;
        if header.revision < revision {
            self.known.lock().position = None;
            let (endpoint, at) = (connection.endpoint(), header.revision);
            return Err(SourceError::HistoryChanged(format!(
                "{endpoint}: revision {at} is older than the last known revision {revision}"
            )));
        }
        Ok(())
    }

    /// Checks that no key existed at a revision where the list was empty: such a list has no change to recognise the history
    /// by.
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
        Err(SourceError::HistoryChanged(format!("{endpoint}: found keys at revision {revision}, which had none")))
    }

    fn check_identity(&self, header: &ResponseHeader) -> Result<(), SourceError> {
        let mut known = self.known.lock();
        known.identity.check(header).map_err(|changed| {
            // The position belongs to the previous history.
            known.position = None;
            SourceError::HistoryChanged(changed)
        })
    }

    /// Drops the connection after an error that makes it unusable.
    fn failed(&self, connection: u64, error: SourceError) -> SourceError {
        if matches!(error, SourceError::Busy(_) | SourceError::Unavailable(_)) {
            self.connections.lost(connection);
        }
        error
    }
}
