//! The `kube` source in a build without it: a configuration that names it has been refused.

use std::time::Duration;

use super::KubeConfig;
use crate::{
    cache::{List, ListVersion, ListerWatcher, SourceError, SourceHealth, Watch},
    model::ResourceVersion,
};

/// A source that has nothing.
#[derive(Debug)]
pub struct KubeSource;

/// Nothing to connect with.
#[derive(Debug, Clone, Default)]
pub struct KubeClients(());

const PROBLEM: &str = "this informerd was built without the Kubernetes API (cargo feature `kube`)";

// === impl KubeSource ===

impl KubeSource {
    /// A source that has nothing.
    pub fn new(_: KubeConfig, _: SourceHealth) -> Self {
        Self
    }

    /// A source that has nothing.
    pub fn with_clients(_: KubeConfig, _: SourceHealth, _: &KubeClients) -> Self {
        Self
    }

    /// It cannot be read.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn check(_: &KubeConfig) -> Result<(), String> {
        Err(PROBLEM.to_owned())
    }
}

impl ListerWatcher for KubeSource {
    async fn list(&self, _: ListVersion) -> Result<List, SourceError> {
        Err(SourceError::Unavailable(PROBLEM.to_owned()))
    }

    async fn watch(&self, _: ResourceVersion) -> Result<Watch, SourceError> {
        Err(SourceError::Unavailable(PROBLEM.to_owned()))
    }

    fn heartbeat(&self) -> Duration {
        Duration::MAX
    }
}
