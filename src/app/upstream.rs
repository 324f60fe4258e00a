//! Lists of an upstream beside those of a running server, for `informerd verify` and for the verifications of the server itself.

use std::{collections::BTreeMap, time::Duration};

use futures_util::future::join_all;
use tokio::time::timeout;

use super::{
    AppError,
    sources::{self, configured, filter},
};
use crate::{
    cache::{List, ListVersion, ListerWatcher, SourceHealth},
    config::{Config, ResourceConfig, SourceConfig},
    source::{
        etcd::EtcdSource,
        files::FilesSource,
        kube::{KubeClients, KubeSource},
        relay::RelaySource,
    },
};

/// Upstream of one resource, read as a server of the same configuration reads it: with its selection, and without the fields that
/// it drops.
#[derive(Debug)]
pub struct Upstream {
    resource: ResourceConfig,
    clients: KubeClients,
}

// === impl Upstream ===

impl Upstream {
    /// Returns the upstream of a resource.
    pub fn new(resource: &ResourceConfig) -> Self {
        Self::with_clients(resource, KubeClients::default())
    }

    /// Returns the same with connections that other upstreams share.
    pub(super) fn with_clients(resource: &ResourceConfig, clients: KubeClients) -> Self {
        Self { resource: resource.clone(), clients }
    }

    /// Returns true if the upstream assigns the versions in a list of it, so that each of its readers has the same.
    pub fn assigns_versions(&self, list: &List) -> bool {
        match self.resource.source {
            SourceConfig::Files(_) => false,
            // Otherwise the source numbers them itself.
            SourceConfig::Kube(_) => list.version.lineage().is_none(),
            _ => true,
        }
    }

    /// Returns the objects that the upstream has now, by its quorum where it has one. An object that the source cannot serve is
    /// not among them.
    ///
    /// # Errors
    ///
    /// If the upstream cannot be listed: not now, or never, as a stream and a source of the program's own.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the list; nothing is lost.
    pub async fn list(&self) -> Result<List, AppError> {
        let Self { resource, clients } = self;
        sources::check(resource)?;
        // Nobody reads it.
        let health = SourceHealth::new(Duration::MAX, Duration::MAX);
        let listed = match configured(resource) {
            SourceConfig::Files(files) => list(FilesSource::new(files, health)).await,
            SourceConfig::Etcd(etcd) => list(EtcdSource::new(etcd, health)).await,
            SourceConfig::Kube(kube) => list(KubeSource::with_clients(kube, health, clients)).await,
            SourceConfig::Informerd(relay) => list(RelaySource::new(relay, health)).await,
            SourceConfig::Stream(_) => {
                Err("a stream has no list to compare with: what it sent is not kept elsewhere".to_owned())
            }
            SourceConfig::Own => Err("its source is in the program that serves it".to_owned()),
        };
        let mut list = listed.map_err(|problem| AppError::of_resource(&resource.name, problem))?;
        if let Some(filter) = filter(resource) {
            list.objects = list.objects.into_iter().filter_map(|object| filter(object)).collect();
        }
        Ok(list)
    }

    /// Connects to the upstream, if it is not a file, and reads at most one object.
    async fn probe(&self) -> Result<(), String> {
        let Self { resource, clients } = self;
        let health = SourceHealth::new(Duration::MAX, Duration::MAX);
        let probed = match configured(resource) {
            SourceConfig::Files(_) | SourceConfig::Stream(_) | SourceConfig::Own => return Ok(()),
            SourceConfig::Etcd(etcd) => EtcdSource::new(etcd, health).probe().await,
            SourceConfig::Kube(kube) => KubeSource::with_clients(kube, health, clients).probe().await,
            SourceConfig::Informerd(relay) => RelaySource::new(relay, health).probe().await,
        };
        probed.map_err(|error| error.to_string())
    }
}

/// Connects to the source of each resource, to all at once, and reads at most one object of each. Returns an error for each that did
/// not respond within `limit`, or not so. Files and streams are [checked](super::check) without a connection.
///
/// # Cancel safety
///
/// Dropping the future loses nothing.
pub async fn unreachable(config: &Config, limit: Duration) -> BTreeMap<String, AppError> {
    let clients = KubeClients::default();
    let probes = config.resources.values().map(async |resource| {
        let upstream = Upstream::with_clients(resource, clients.clone());
        let probed = timeout(limit, upstream.probe()).await;
        let problem = probed.unwrap_or_else(|_| Err(format!("no response within {limit:?}"))).err()?;
        Some((resource.name.clone(), AppError::of_resource(&resource.name, problem)))
    });
    join_all(probes).await.into_iter().flatten().collect()
}

async fn list(source: impl ListerWatcher) -> Result<List, String> {
    source.list(ListVersion::MostRecent).await.map_err(|error| error.to_string())
}
