//! Informer of a program: client-go's `SharedInformer`, `SharedIndexInformer`, and their stores.
//!
//! It runs the same [`InformerTasks`] as the server, in tasks of the program's runtime.

mod blocking;
mod decoder;
mod entry;
mod filtering;
mod handler;
mod handler_task;
mod reads;
mod set;

use std::{sync::Arc, time::Duration};

use tokio::{runtime, time};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::decoder::Decoder;
pub(super) use self::decoder::panic_message;
pub use self::{
    blocking::BlockingEventHandler,
    decoder::{Decode, Undecodable},
    entry::Entry,
    filtering::FilteringResourceEventHandler,
    handler::{
        Deletion, HandlerOptions, ResourceEventHandler, ResourceEventHandlerFuncs, ResourceEventHandlerRegistration,
    },
    reads::{TypedSnapshot, UnknownIndex},
    set::InformerSet,
};
#[cfg(feature = "client")]
use super::informer_tasks::{CloseOnDrop, MIN_BATCH_WINDOW};
use super::{
    AddIndexersError, HealthReport, InformerHandle, InformerOptions, InformerTasks, ListerWatcher, Snapshot, Stopped,
};
#[cfg(feature = "client")]
use super::{FifoBounds, Informer, InformerConfig, RealFifo, SourceHealth};
#[cfg(feature = "client")]
use crate::model::{Cause, Indexers};
use crate::{
    model::{IndexFunc, Object, ObjectKey, ResourceVersion},
    watch::Deliveries,
};

/// Running informer of one resource, whose objects are decoded to `T`: any type that serde can deserialize, or [`Object`].
///
/// Each read is of one state. [`SharedInformer::snapshot`] returns that state with its version, for reads that have to agree.
/// Each version of an object is decoded once, on first use.
///
/// Dropping it stops it, without waiting.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # #[cfg(feature = "testing")] {
/// use informerd::{
///     cache::{HandlerOptions, InformerOptions, ResourceEventHandlerFuncs, SharedInformer},
///     model::{IndexFunc, Object},
///     testing::FakeSource,
/// };
/// use serde_json::{Value, json};
///
/// let pods = FakeSource::new();
/// pods.add(&json!({ "metadata": { "name": "web", "labels": { "app": "shop" } }, "phase": "Running" }));
///
/// let informer = SharedInformer::<Value>::start(pods.clone(), InformerOptions::default());
/// informer.wait_for_cache_sync().await?;
/// let by_app = IndexFunc::Label("app".to_owned());
/// informer.add_indexers([("app".to_owned(), by_app)]).await?;
/// assert_eq!(informer.by_index("app", "shop")?[0]["phase"], "Running");
///
/// let handler = ResourceEventHandlerFuncs::<Value>::new()
///     .on_add(|pod, is_in_initial_list| assert!(is_in_initial_list && pod["phase"] == "Running"))
///     .on_delete(|pod, deletion| assert!(!deletion.is_inferred() && pod["phase"] == "Running"));
/// let registration = informer.add_handler(handler, HandlerOptions::default())?;
/// assert!(registration.wait_for_sync().await);
///
/// let version = pods.delete("", "web");
/// assert!(informer.wait_for(&version).await?.list().is_empty());
/// informer.stop().await;
/// # }
/// # Ok(())
/// # }
/// ```
pub struct SharedInformer<T: Decode> {
    handle: InformerHandle<Deliveries>,
    decoder: Arc<Decoder<T>>,
    stop: CancellationToken,
    runtime: runtime::Handle,
    /// Tasks of the informer, and of the handlers.
    tasks: TaskTracker,
    /// End of the calls of handlers that go on.
    abandon: CancellationToken,
}

/// Reason why a version is not reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WaitError {
    /// End of the informer.
    #[error(transparent)]
    Stopped(#[from] Stopped),
    /// Version of another history, or of another run of a source without versions of its own: it says nothing about this state.
    #[error("the history was rewritten: the version cannot be compared")]
    HistoryRewritten,
}

// === impl SharedInformer ===

impl<T: Decode> SharedInformer<T> {
    /// Starts an informer of a source, in tasks of the current runtime.
    ///
    /// # Panics
    ///
    /// If there is no tokio runtime.
    pub fn start(source: impl ListerWatcher, options: InformerOptions) -> Self {
        let informer = InformerTasks::new(source, options);
        let shared = Self::of_handle(informer.handle().clone());
        for (_, task) in informer.into_tasks(shared.stop.clone(), |_, _| ()) {
            shared.tasks.spawn_on(task, &shared.runtime);
        }
        shared
    }

    /// Starts an informer of the deltas that a task pushes, which takes the place of a source and its Reflector. Each event of a
    /// deletion has its cause.
    #[cfg(feature = "client")]
    pub(crate) fn start_fed<F>(indexers: Arc<Indexers>, feed: impl FnOnce(Arc<RealFifo>) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let fifo = Arc::new(RealFifo::new(FifoBounds::default()));
        let config = InformerConfig {
            indexers,
            deletion: Cause::Inferred,
            batch_window: MIN_BATCH_WINDOW,
            ..InformerConfig::default()
        };
        let health = SourceHealth::new(Duration::MAX, Duration::MAX);
        let (informer, handle) = Informer::new(Arc::clone(&fifo), health, config);
        let shared = Self::of_handle(handle);
        shared.tasks.spawn_on(informer.run(), &shared.runtime);
        let (feed, closing, stop) = (feed(Arc::clone(&fifo)), CloseOnDrop(fifo), shared.stop.clone());
        let feeding = async move {
            let _closing = closing;
            stop.run_until_cancelled_owned(feed).await;
        };
        shared.tasks.spawn_on(feeding, &shared.runtime);
        shared
    }

    fn of_handle(handle: InformerHandle<Deliveries>) -> Self {
        Self {
            handle,
            decoder: Arc::new(Decoder::new()),
            stop: CancellationToken::new(),
            runtime: runtime::Handle::current(),
            tasks: TaskTracker::new(),
            abandon: CancellationToken::new(),
        }
    }

    /// Stops the informer: it requests nothing more from the source, applies what is queued, and ends its watches and handlers
    /// after that. The returned future waits for the end of all this, and so for a call of a handler that goes on; without it, the
    /// same happens in the background. Stopping a stopped informer does nothing.
    pub fn stop(&self) -> impl Future<Output = ()> + Send + use<T> {
        self.stop.cancel();
        self.tasks.close();
        let tasks = self.tasks.clone();
        async move { tasks.wait().await }
    }

    /// Stops the informer in the same way; a call of a handler that still goes on after `grace` is dropped at its next `.await`,
    /// and its handler receives nothing more. Without the returned future the calls go on.
    pub fn stop_within(&self, grace: Duration) -> impl Future<Output = ()> + Send + use<T> {
        let (stopped, abandon) = (self.stop(), self.abandon.clone());
        async move {
            tokio::pin!(stopped);
            if time::timeout(grace, &mut stopped).await.is_err() {
                abandon.cancel();
                stopped.await;
            }
        }
    }

    /// Returns true once the informer is being stopped.
    pub fn is_stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Replaces the handler of the errors of objects that cannot be decoded; the default writes a log. It is called once for each
    /// version.
    pub fn set_error_handler(&self, handler: impl Fn(&Undecodable) + Send + Sync + 'static) {
        self.decoder.set_error_handler(handler);
    }

    /// Returns the untyped reading side, which has the watches, too. It does not keep the informer running.
    pub fn handle(&self) -> &InformerHandle<Deliveries> {
        &self.handle
    }

    /// Adds a handler, at any time: it receives the present objects as additions, then every later change. Each handler has a task
    /// and a queue of its own, so that a slow one delays neither the source nor other handlers.
    ///
    /// After a rewritten history, or if its queue lost events, a handler receives the difference between what it had and the
    /// present state. A panic in a handler is logged and counted by its registration, and the handler gets the next call.
    ///
    /// # Errors
    ///
    /// If the informer has been stopped.
    pub fn add_handler(
        &self,
        handler: impl ResourceEventHandler<T>,
        options: HandlerOptions,
    ) -> Result<ResourceEventHandlerRegistration, Stopped> {
        self.spawn_handler(Arc::clone(&self.decoder), handler, options)
    }

    /// Adds a handler of the objects as they are, also of those that cannot be decoded.
    pub(super) fn add_object_handler(
        &self,
        handler: impl ResourceEventHandler<Object>,
        options: HandlerOptions,
    ) -> Result<ResourceEventHandlerRegistration, Stopped> {
        self.spawn_handler(Arc::new(Decoder::new()), handler, options)
    }

    fn spawn_handler<U: Decode>(
        &self,
        decoder: Arc<Decoder<U>>,
        handler: impl ResourceEventHandler<U>,
        options: HandlerOptions,
    ) -> Result<ResourceEventHandlerRegistration, Stopped> {
        if self.is_stopped() {
            return Err(Stopped);
        }
        let (registration, task) = handler_task::register(self.handle.clone(), decoder, handler, options);
        let abandon = self.abandon.clone();
        self.tasks.spawn_on(async move { abandon.run_until_cancelled(task).await }, &self.runtime);
        Ok(registration)
    }

    /// Adds indexes, all or none. When it returns, the present objects are in them. Readers are not blocked meanwhile.
    ///
    /// # Errors
    ///
    /// If one of the names exists or is not valid, or if the informer has stopped.
    pub async fn add_indexers(
        &self,
        functions: impl IntoIterator<Item = (String, IndexFunc)>,
    ) -> Result<(), AddIndexersError> {
        self.handle.add_indexers(functions).await
    }

    /// Returns the present state.
    pub fn snapshot(&self) -> TypedSnapshot<T> {
        self.typed(self.handle.snapshot())
    }

    /// Returns the object with this key ([`TypedSnapshot::get`]).
    pub fn get(&self, key: &ObjectKey) -> Option<Entry<T>> {
        self.snapshot().get(key)
    }

    /// Returns all objects, sorted by key ([`TypedSnapshot::list`]).
    pub fn list(&self) -> Vec<Entry<T>> {
        self.snapshot().list()
    }

    /// Returns the keys of all objects, sorted ([`TypedSnapshot::list_keys`]).
    pub fn list_keys(&self) -> Vec<ObjectKey> {
        self.snapshot().list_keys()
    }

    /// Returns the objects under a value of an index ([`TypedSnapshot::by_index`]).
    pub fn by_index(&self, index: &str, value: &str) -> Result<Vec<Entry<T>>, UnknownIndex> {
        self.snapshot().by_index(index, value)
    }

    /// Returns the keys of the objects under a value of an index ([`TypedSnapshot::index_keys`]).
    pub fn index_keys(&self, index: &str, value: &str) -> Result<Vec<ObjectKey>, UnknownIndex> {
        self.snapshot().index_keys(index, value)
    }

    /// Returns the objects that share a value of an index with `object` ([`TypedSnapshot::index`]).
    pub fn index(&self, index: &str, object: &Object) -> Result<Vec<Entry<T>>, UnknownIndex> {
        self.snapshot().index(index, object)
    }

    /// Returns the values of an index that at least one object has ([`TypedSnapshot::list_index_func_values`]).
    pub fn list_index_func_values(&self, index: &str) -> Result<Vec<String>, UnknownIndex> {
        self.snapshot().list_index_func_values(index)
    }

    /// Returns the reasons of the objects that cannot be decoded ([`TypedSnapshot::undecodable`]).
    pub fn undecodable(&self) -> Vec<Arc<Undecodable>> {
        self.snapshot().undecodable()
    }

    /// Returns true once the first list has been applied.
    pub fn has_synced(&self) -> bool {
        self.handle.snapshot().is_some()
    }

    /// Returns the applied version; `None` before the first list.
    pub fn last_sync_resource_version(&self) -> Option<ResourceVersion> {
        self.snapshot().version().cloned()
    }

    /// Returns the availability and freshness of the source.
    pub fn health(&self) -> HealthReport {
        self.handle.report()
    }

    /// Waits for the first list.
    ///
    /// # Errors
    ///
    /// If the informer stops before.
    pub async fn wait_for_cache_sync(&self) -> Result<TypedSnapshot<T>, Stopped> {
        Ok(self.typed(Some(self.reach(0, |_| true).await?)))
    }

    /// Waits for a state at this version or a later one: that of a write, for example, which the program then reads.
    ///
    /// # Errors
    ///
    /// If the informer stops before, or the version is not of its history.
    pub async fn wait_for(&self, version: &ResourceVersion) -> Result<TypedSnapshot<T>, WaitError> {
        let history_id = self.handle.history_id();
        let is_rewritten =
            |state: &Snapshot| state.history_id() != history_id || !state.version().same_lineage(version);
        let is_enough = |state: &Snapshot| is_rewritten(state) || state.version() >= version;
        let state = self.reach(version.number(), is_enough).await?;
        if is_rewritten(&state) { Err(WaitError::HistoryRewritten) } else { Ok(self.typed(Some(state))) }
    }

    /// Waits for a state that the predicate accepts, as [`InformerHandle::wait_for`] does, or the end of the informer.
    pub(crate) async fn reach(
        &self,
        number: u128,
        is_enough: impl Fn(&Snapshot) -> bool,
    ) -> Result<Arc<Snapshot>, Stopped> {
        tokio::select! {
            // The last state counts.
            biased;
            // Cancel-safe by its own contract.
            state = self.handle.wait_for(number, is_enough) => Ok(state),
            () = self.handle.stopped() => Err(Stopped),
        }
    }

    pub(crate) fn typed(&self, snapshot: Option<Arc<Snapshot>>) -> TypedSnapshot<T> {
        TypedSnapshot::new(snapshot, self.handle.indexers(), Arc::clone(&self.decoder))
    }
}

impl<T: Decode> Drop for SharedInformer<T> {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

debug_fields!([T: Decode] SharedInformer<T> { handle });

#[cfg(test)]
mod tests;
