//! Lists of an upstream beside those of a running server, for `informerd verify` and for the verifications of the server itself.

use std::time::Duration;

use super::{
    AppError,
    sources::{self, etcd_config, files_config, filter, kube_config, relay_config},
};
use crate::{
    cache::{List, ListVersion, ListerWatcher, SourceHealth},
    config::{ResourceConfig, SourceConfig},
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
        let listed = match &resource.source {
            SourceConfig::Files(files) => list(FilesSource::new(files_config(&resource.name, files), health)).await,
            SourceConfig::Etcd(etcd) => list(EtcdSource::new(etcd_config(&resource.name, etcd), health)).await,
            SourceConfig::Kube(kube) => {
                list(KubeSource::with_clients(kube_config(resource, kube), health, clients)).await
            }
            SourceConfig::Informerd(relay) => list(RelaySource::new(relay_config(resource, relay), health)).await,
            SourceConfig::Stream(_) => {
                Err("a stream has no list to compare with: what it sent is not kept elsewhere".to_owned())
            }
            SourceConfig::Own => Err("its source is in the program that serves it".to_owned()),
        };
        let problem = |problem| AppError::Name { resource: resource.name.clone(), problem };
        let mut list = listed.map_err(problem)?;
        if let Some(filter) = filter(resource) {
            list.objects = list.objects.into_iter().filter_map(|object| filter(object)).collect();
        }
        Ok(list)
    }
}

async fn list(source: impl ListerWatcher) -> Result<List, String> {
    source.list(ListVersion::MostRecent).await.map_err(|error| error.to_string())
}
