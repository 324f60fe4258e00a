//! State of a source, shared by its lists and its watch: connections, and the position in the cluster's history.

use parking_lot::Mutex;

use super::{
    EtcdConfig,
    connection::{Connection, Connections},
    list,
    object::{Prefix, version},
    pb::{RangeRequest, ResponseHeader},
    resume_check::{Identity, ResumePoint},
};
use crate::{
    cache::{List, ProgressDemand, SourceError, SourceHealth},
    source::problems::{OBJECT_REASONS, Problems},
};

/// State of one source.
#[derive(Debug)]
pub(super) struct EtcdShared {
    pub(super) config: EtcdConfig,
    pub(super) prefix: Prefix,
    pub(super) health: SourceHealth,
    pub(super) demand: ProgressDemand,
    pub(super) connections: Connections,
    pub(super) problems: Problems,
    pub(super) known: Mutex<KnownCluster>,
}

/// State of the cluster that the source has seen.
#[derive(Debug, Default)]
pub(super) struct KnownCluster {
    pub(super) identity: Identity,
    /// `None` before the first list.
    pub(super) position: Option<Position>,
    /// True once this run has listed the prefix, or has begun to.
    pub(super) is_listed: bool,
}

/// Position of the resource in the cluster's history.
#[derive(Debug, Clone)]
pub(super) struct Position {
    /// Revision up to which everything has been delivered.
    pub(super) revision: i64,
    /// Connection that it came over, or [`EARLIER_START`].
    pub(super) connection: u64,
    /// Last transaction up to that revision; `None` after an empty list.
    pub(super) resume_point: Option<ResumePoint>,
}

/// Stands in for a connection's number in the state of a previous run; connections count from 1.
pub(super) const EARLIER_START: u64 = 0;

// === impl EtcdShared ===

impl EtcdShared {
    pub(super) fn new(config: EtcdConfig, health: SourceHealth) -> Self {
        Self {
            prefix: Prefix::new(&config.prefix),
            connections: Connections::new(config.clone()),
            problems: Problems::new("etcd", config.resource.clone(), health.clone()),
            known: Mutex::default(),
            health,
            demand: ProgressDemand::met(),
            config,
        }
    }

    pub(super) async fn list(&self, connection: &Connection) -> Result<List, SourceError> {
        let reading = list::read(connection, &self.prefix).await?;
        let revision = reading.header.revision;
        self.check_identity(&reading.header)?;
        let resume_point = ResumePoint::of_list(revision, &reading.newest);
        self.problems.replace(&OBJECT_REASONS, reading.problems);
        let mut known = self.known.lock();
        known.position = Some(Position { revision, connection: connection.id, resume_point });
        known.is_listed = true;
        drop(known);
        Ok(List { not_served: reading.not_served, ..List::new(reading.objects, version(revision)) })
    }

    /// Returns true once, if this run has the state of the run before and has not listed.
    pub(super) fn takes_first_list(&self) -> bool {
        !std::mem::replace(&mut self.known.lock().is_listed, true)
    }

    /// Reads the cluster's id and newest revision. A cluster behind our revision has lost history, since the read is
    /// linearizable. The check comes first: by the next response the cluster may have passed our revision with other changes.
    pub(super) async fn check_head(&self, connection: &Connection, revision: i64) -> Result<(), SourceError> {
        let header = connection.head(self.prefix.first()).await.map_err(|status| connection.error(&status))?;
        self.check_identity(&header)?;
        if header.revision < revision {
            self.known.lock().position = None;
            let (endpoint, at) = (connection.endpoint(), header.revision);
            return Err(SourceError::HistoryRewritten(format!(
                "{endpoint}: revision {at} is older than the last known revision {revision}"
            )));
        }
        Ok(())
    }

    /// Checks that no key existed at a revision where the list was empty: such a list has no change to recognise the history
    /// by.
    pub(super) async fn check_empty(&self, connection: &Connection, revision: i64) -> Result<(), SourceError> {
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
        Err(SourceError::HistoryRewritten(format!("{endpoint}: found keys at revision {revision}, which had none")))
    }

    pub(super) fn check_identity(&self, header: &ResponseHeader) -> Result<(), SourceError> {
        let mut known = self.known.lock();
        known.identity.check(header).map_err(|changed| {
            // The position belongs to the previous history.
            known.position = None;
            SourceError::HistoryRewritten(changed)
        })
    }

    /// Drops the connection after an error that makes it unusable.
    pub(super) fn failed(&self, connection: u64, error: SourceError) -> SourceError {
        if matches!(error, SourceError::Busy(_) | SourceError::Unavailable(_)) {
            self.connections.lost(connection);
        }
        error
    }
}
