//! The `kube` source in a build without it. The configuration check refuses every use.

mod config;

use std::time::Duration;

use futures_util::future::{BoxFuture, ready};

pub use self::config::{KubeCluster, KubeConfig};
use crate::{
    auth::{Identity, ReviewAttributes, ReviewError, Reviewer, Token, TokenReviewed},
    cache::{List, ListVersion, ListerWatcher, SourceError, SourceHealth, Watch},
    model::{AppliedVersion, ResourceVersion},
};

/// Source whose requests fail.
#[derive(Debug)]
pub struct KubeSource;

/// Empty set of clients.
#[derive(Debug, Clone, Default)]
pub struct KubeClients(());

/// Reviews that fail.
#[derive(Debug, Clone)]
pub struct KubeReviewer;

const PROBLEM: &str = "built without the Kubernetes API (cargo feature `kube`)";

// === impl KubeSource ===

impl KubeSource {
    /// Returns a source whose requests fail.
    pub fn new(_: KubeConfig, _: SourceHealth) -> Self {
        Self
    }

    /// Discovers nothing.
    pub fn discover(_: &KubeConfig, _: SourceHealth, _: &KubeClients) -> impl Future<Output = ()> + use<> {
        ready(())
    }

    /// Returns a source whose requests fail.
    pub fn with_clients(_: KubeConfig, _: SourceHealth, _: &KubeClients) -> Self {
        Self
    }

    /// Returns requests that fail.
    pub fn most_recent(
        &self,
    ) -> impl Fn(AppliedVersion) -> BoxFuture<'static, Result<ResourceVersion, String>> + Send + Sync + use<> {
        |_| Box::pin(ready(Err(PROBLEM.to_owned())))
    }

    /// Fails.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn probe(&self) -> impl Future<Output = Result<(), SourceError>> + use<> {
        ready(Err(SourceError::Unavailable(PROBLEM.to_owned())))
    }

    /// Fails.
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

// === impl KubeReviewer ===

impl KubeReviewer {
    /// Returns reviews that fail.
    pub fn new(_: &KubeCluster, _: &KubeClients) -> Self {
        Self
    }

    /// Fails.
    ///
    /// # Errors
    ///
    /// Always.
    pub fn check(_: &KubeCluster) -> Result<(), String> {
        Err(PROBLEM.to_owned())
    }
}

impl Reviewer for KubeReviewer {
    fn review_token(&self, _: &Token, _: &[String]) -> BoxFuture<'static, Result<TokenReviewed, ReviewError>> {
        Box::pin(ready(Err(ReviewError(PROBLEM.to_owned()))))
    }

    fn review_access(&self, _: &Identity, _: ReviewAttributes) -> BoxFuture<'static, Result<bool, ReviewError>> {
        Box::pin(ready(Err(ReviewError(PROBLEM.to_owned()))))
    }
}
