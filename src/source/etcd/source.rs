//! The source as the Reflector and the snapshot file use it.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::{
    EtcdConfig,
    object::version,
    pb::RangeRequest,
    resume_check::{Identity, ResumePoint},
    state::{EARLIER_START, EtcdShared, KnownCluster, Position},
    watch::EtcdWatch,
};
use crate::{
    cache::{
        List, ListVersion, ListerWatcher, ProgressDemand, RewriteEvidence, SourceError, SourceHealth, WarmStart, Watch,
    },
    model::ResourceVersion,
    net::{ServerAddress, small_file},
    source::problems::SavedProblems,
};

/// A prefix of an etcd cluster as an upstream.
#[derive(Debug)]
pub struct EtcdSource {
    shared: Arc<EtcdShared>,
}

/// Resume state that the snapshot of the resource stores for the next run.
#[derive(Debug, Serialize, Deserialize)]
struct SavedPosition {
    identity: Identity,
    revision: i64,
    #[serde(rename = "mark")]
    resume_point: Option<ResumePoint>,
    problems: SavedProblems,
}

// === impl EtcdSource ===

impl EtcdSource {
    /// Returns a source that has not connected yet and reports its problems to `health`.
    pub fn new(config: EtcdConfig, health: SourceHealth) -> Self {
        Self { shared: Arc::new(EtcdShared::new(config, health)) }
    }

    /// Checks that the files that a configuration names can be read now. Makes no connection.
    ///
    /// # Errors
    ///
    /// The problem, in one line.
    pub fn check(config: &EtcdConfig) -> Result<(), String> {
        if let Some((_, password)) = &config.credentials {
            small_file::read(password)?;
        }
        config.tls.try_map(|path| small_file::read(path)).map(drop)
    }

    /// Connects, and reads at most one key of the prefix.
    ///
    /// # Errors
    ///
    /// If no endpoint responds, or the user may not read the prefix.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses nothing.
    pub async fn probe(&self) -> Result<(), SourceError> {
        let connection = self.shared.connections.get().await?;
        let prefix = &self.shared.prefix;
        let (key, range_end) = (prefix.first(), prefix.end());
        let request = RangeRequest { key, range_end, limit: 1, keys_only: true, ..RangeRequest::default() };
        connection.range(request).await.map(drop).map_err(|status| connection.error(&status))
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
        match EtcdWatch::open(Arc::clone(shared), connection, position).await {
            Ok(live) => Ok(Box::pin(futures_util::stream::try_unfold(live, |mut live| async move {
                match live.next().await {
                    Ok(delta) => Ok(Some((delta, live))),
                    Err(error) => Err(live.fail(error)),
                }
            }))),
            Err(error) => Err(shared.failed(id, error)),
        }
    }

    fn heartbeat(&self) -> Duration {
        self.shared.config.heartbeat
    }

    fn rewrite_evidence(&self) -> RewriteEvidence {
        RewriteEvidence::Bytes
    }

    fn demand(&self) -> ProgressDemand {
        self.shared.demand.clone()
    }

    fn warm_start(&self) -> Option<&dyn WarmStart> {
        Some(self)
    }
}

impl WarmStart for EtcdSource {
    /// Names the endpoints and the prefix. The first response of another cluster behind the same endpoints shows the difference.
    fn identity(&self) -> String {
        let EtcdConfig { endpoints, prefix, .. } = &self.shared.config;
        let mut endpoints: Vec<_> = endpoints.iter().map(ServerAddress::uri).collect();
        endpoints.sort_unstable();
        format!("the keys of {prefix:?} in etcd at {}", endpoints.join(", "))
    }

    fn proof(&self) -> Option<Bytes> {
        let (identity, position) = {
            let known = self.shared.known.lock();
            (known.identity, known.position.clone()?)
        };
        let Position { revision, resume_point, .. } = position;
        let kept = SavedPosition { identity, revision, resume_point, problems: self.shared.problems.keep() };
        serde_json::to_vec(&kept).ok().map(Bytes::from)
    }

    fn resume(&self, at: &ResourceVersion, proof: &[u8]) -> Result<(), String> {
        let kept: SavedPosition =
            serde_json::from_slice(proof).map_err(|error| format!("invalid resume proof: {error}"))?;
        let SavedPosition { identity, revision, resume_point, problems } = kept;
        if version(revision) != *at {
            return Err(format!("resume proof of revision {revision} for a snapshot at {at}"));
        }
        *self.shared.known.lock() = KnownCluster {
            identity,
            position: Some(Position { revision, connection: EARLIER_START, resume_point }),
            is_listed: false,
        };
        self.shared.problems.resume(problems);
        Ok(())
    }
}
