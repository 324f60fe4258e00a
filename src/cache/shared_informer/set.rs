//! Informers of a program that start and stop together.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::{self, BoxFuture, FutureExt};

use super::{Decode, SharedInformer};
use crate::cache::{InformerOptions, ListerWatcher, Stopped};

/// Informers that are started, awaited and stopped together (client-go's `SharedInformerFactory`). Dropping it stops none that the
/// program still has.
#[derive(Default)]
pub struct InformerSet {
    members: Vec<Arc<dyn Member>>,
}

/// Informer, whatever the type of its objects.
trait Member: Send + Sync {
    fn synced(&self) -> BoxFuture<'_, Result<(), Stopped>>;

    fn stop(&self, grace: Duration) -> BoxFuture<'static, ()>;
}

impl<T: Decode> Member for SharedInformer<T> {
    fn synced(&self) -> BoxFuture<'_, Result<(), Stopped>> {
        async { self.wait_for_cache_sync().await.map(drop) }.boxed()
    }

    fn stop(&self, grace: Duration) -> BoxFuture<'static, ()> {
        self.stop_within(grace).boxed()
    }
}

// === impl InformerSet ===

impl InformerSet {
    /// Makes an empty set.
    pub fn new() -> Self {
        Self::default()
    }

    /// Starts an informer of a source ([`SharedInformer::start`]), and returns it.
    ///
    /// # Panics
    ///
    /// If there is no tokio runtime.
    pub fn start<T: Decode>(&mut self, source: impl ListerWatcher, options: InformerOptions) -> Arc<SharedInformer<T>> {
        let informer = Arc::new(SharedInformer::start(source, options));
        self.members.push(Arc::clone(&informer) as Arc<dyn Member>);
        informer
    }

    /// Waits for the first list of every informer.
    ///
    /// # Errors
    ///
    /// If one stops before.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn wait_for_cache_sync(&self) -> Result<(), Stopped> {
        future::try_join_all(self.members.iter().map(|member| member.synced())).await.map(drop)
    }

    /// Stops all informers ([`SharedInformer::stop_within`]), which waits at most a little longer than `grace` for their handlers.
    pub fn stop_within(&self, grace: Duration) -> impl Future<Output = ()> + Send + use<> {
        future::join_all(self.members.iter().map(|member| member.stop(grace))).map(drop)
    }
}

impl fmt::Debug for InformerSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InformerSet").field("informers", &self.members.len()).finish()
    }
}
