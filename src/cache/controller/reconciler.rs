//! Reconciliation by key: controller-runtime's controllers.
//!
//! ```text
//!   informer ──▶ keys of each changed object ──▶ ┌───────────┐ ──▶ worker ──▶ reconcile(key) ──▶ Done
//!   informer ──▶ …                               │ WorkQueue │ ──▶ worker        │
//!                                                └───────────┘                   ├── After: again after a delay
//!                                                      ▲                         └── error, panic: after the rate limiter's
//!                                                      └───────────────────────────────┘
//! ```

use std::{
    fmt::{self, Display},
    marker::PhantomData,
    panic::AssertUnwindSafe,
    sync::Arc,
    time::Duration,
};

use futures_util::{FutureExt, future::BoxFuture};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::{
    cache::{
        AddOptions, Decode, Deletion, Entry, HandlerOptions, ResourceEventHandler, ResourceEventHandlerRegistration,
        SharedInformer, Stopped, WorkItem, WorkKey, WorkQueue, shared_informer::panic_message,
    },
    model::Object,
};

/// Workers that reconcile the keys of the objects of any number of informers.
///
/// - The keys of the state before a change and of the state after it are added to the queue; those of the objects of the first list
///   and of a resync at the priority -100, so that changes come before them.
/// - Nothing is reconciled before every informer has its first list. A key is not reconciled twice at a time, and once more if
///   one of its objects changes meanwhile. The function reads the present state of the informers.
/// - An error or a panic is logged, and its key follows after the delay of the queue's rate limiter; other keys do not wait for it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # #[cfg(feature = "testing")] {
/// use std::{convert::Infallible, time::Duration};
///
/// use informerd::{
///     cache::{Action, InformerOptions, Reconciler, SharedInformer, WorkQueue},
///     model::{Object, ObjectKey},
///     testing::FakeSource,
/// };
/// use serde_json::json;
/// use tokio_util::sync::CancellationToken;
///
/// let (source, stop) = (FakeSource::new(), CancellationToken::new());
/// source.add(&json!({ "metadata": { "name": "web" } }));
/// let pods = SharedInformer::<Object>::start(source, InformerOptions::default());
/// let stopped = stop.clone();
/// let reconcile = move |pod: ObjectKey| {
///     println!("{pod}");
///     stopped.cancel();
///     async { Ok::<_, Infallible>(Action::After(Duration::from_secs(300))) }
/// };
/// let reconciler = Reconciler::new(WorkQueue::default()).watch(&pods, |pod| [pod.key().clone()]);
/// tokio::spawn(reconciler.run(stop, reconcile)).await??;
/// # }
/// # Ok(())
/// # }
/// ```
pub struct Reconciler<K: WorkKey> {
    queue: WorkQueue<K>,
    watches: Vec<Watched>,
    workers: usize,
}

/// Result of a reconciliation that has not failed: controller-runtime's `Result`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Nothing is left to do until the key is added again.
    Done,
    /// The key follows after this time, or before if it is added (`RequeueAfter`).
    After(Duration),
}

/// Informer whose changes are queued.
struct Watched {
    registration: Result<ResourceEventHandlerRegistration, Stopped>,
    /// Wait for the first list.
    synced: BoxFuture<'static, Result<(), Stopped>>,
}

/// Handler that adds the keys of changed objects.
struct Enqueue<K: WorkKey, F, I> {
    queue: WorkQueue<K>,
    keys: F,
    _keys: PhantomData<fn() -> I>,
}

/// Priority of the objects of a first list and of a resync: controller-runtime's `LowPriority`.
const LOW_PRIORITY: i32 = -100;

// === impl Reconciler ===

impl<K: WorkKey> Reconciler<K> {
    /// Makes a reconciler of one worker over a queue, which a program may add to and read the counters of.
    pub fn new(queue: WorkQueue<K>) -> Self {
        Self { queue, watches: Vec::new(), workers: 1 }
    }

    /// Adds the keys that a function returns for each object of an informer: its own, that of its owner, those that an index of
    /// another informer has under it. From now on its changes are queued. A panic of the function is logged, and its keys are not
    /// added.
    pub fn watch<T, F, I>(self, informer: &SharedInformer<T>, keys: F) -> Self
    where
        T: Decode,
        F: Fn(&Object) -> I + Send + 'static,
        I: IntoIterator<Item = K> + 'static,
    {
        let options = HandlerOptions { name: "reconciler".to_owned(), ..HandlerOptions::default() };
        self.watch_with(informer, options, keys)
    }

    /// The same with the options of a handler: a selection of the objects, a resync.
    pub fn watch_with<T, F, I>(mut self, informer: &SharedInformer<T>, options: HandlerOptions, keys: F) -> Self
    where
        T: Decode,
        F: Fn(&Object) -> I + Send + 'static,
        I: IntoIterator<Item = K> + 'static,
    {
        let handler = Enqueue { queue: self.queue.clone(), keys, _keys: PhantomData };
        let registration = informer.add_object_handler(handler, options);
        let handle = informer.handle().clone();
        let synced = async move {
            tokio::select! {
                // A stopped informer that has a state is as good as another one.
                biased;
                // Cancel-safe by its own contract.
                _ = handle.wait_for(0, |_| true) => Ok(()),
                () = handle.stopped() => Err(Stopped),
            }
        };
        self.watches.push(Watched { registration, synced: synced.boxed() });
        self
    }

    /// Sets the number of workers, by default 1 (`MaxConcurrentReconciles`): of keys that are reconciled at a time. 0 counts as 1.
    pub fn workers(self, workers: usize) -> Self {
        Self { workers, ..self }
    }

    /// Waits for the first list of every informer, and reconciles until `stop` or the shutdown of the queue. After `stop` it waits for
    /// the calls that go on, and what is queued is dropped; after a shutdown of the queue, what is ready is reconciled.
    /// In the end the queue is shut down.
    ///
    /// # Errors
    ///
    /// If an informer has stopped before its first list, or before it was given to [`Reconciler::watch`].
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops the calls that go on, whose keys return to the queue.
    pub async fn run<R, F, E>(self, stop: CancellationToken, reconcile: R) -> Result<(), Stopped>
    where
        R: Fn(K) -> F + Send + Sync + 'static,
        F: Future<Output = Result<Action, E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let Self { queue, watches, workers } = self;
        let mut registrations = Vec::new();
        let synced = async {
            for Watched { registration, synced } in watches {
                registrations.push(registration?);
                synced.await?;
            }
            Ok(())
        };
        let synced = stop.run_until_cancelled(synced).await.unwrap_or(Ok(()));
        if synced.is_ok() {
            let reconcile = Arc::new(reconcile);
            let worker = |_| work(queue.clone(), Arc::clone(&reconcile), stop.clone());
            // A panic of the function does not end its worker.
            (0..workers.max(1)).map(worker).collect::<JoinSet<()>>().join_all().await;
        }
        queue.shut_down();
        synced
    }
}

/// Reconciles one key after the other.
async fn work<K, R, F, E>(queue: WorkQueue<K>, reconcile: Arc<R>, stop: CancellationToken)
where
    K: WorkKey,
    R: Fn(K) -> F + Send + Sync + 'static,
    F: Future<Output = Result<Action, E>> + Send + 'static,
    E: Display + Send + 'static,
{
    while let Some(item) = stop.run_until_cancelled(queue.get()).await.flatten() {
        let key = item.key().clone();
        // The function may panic before its future is polled, or within it.
        let called = AssertUnwindSafe(async { reconcile(key).await }).catch_unwind().await;
        match called {
            Ok(Ok(action)) => finish(&queue, item, action),
            Ok(Err(error)) => retry(&queue, item, &error),
            Err(panic) => retry(&queue, item, &format_args!("panic: {}", panic_message(&*panic))),
        }
    }
}

fn finish<K: WorkKey>(queue: &WorkQueue<K>, item: WorkItem<K>, action: Action) {
    queue.forget(item.key());
    if let Action::After(after) = action {
        add_again(queue, &item, AddOptions { after, ..AddOptions::default() });
    }
    item.done();
}

fn retry<K: WorkKey>(queue: &WorkQueue<K>, item: WorkItem<K>, error: &dyn Display) {
    add_again(queue, &item, AddOptions { is_rate_limited: true, ..AddOptions::default() });
    tracing::warn!(key = ?item.key(), %error, failures = queue.requeues(item.key()), "reconciliation failed");
    item.done();
}

/// Adds a key that is in processing, at its priority.
fn add_again<K: WorkKey>(queue: &WorkQueue<K>, item: &WorkItem<K>, options: AddOptions) {
    // It keeps its place while it is in processing.
    drop(queue.try_add(item.key().clone(), AddOptions { priority: item.priority(), ..options }));
}

impl<K: WorkKey> fmt::Debug for Reconciler<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reconciler")
            .field("queue", &self.queue)
            .field("watches", &self.watches.len())
            .field("workers", &self.workers)
            .finish()
    }
}

// === impl Enqueue ===

impl<K, F, I> Enqueue<K, F, I>
where
    K: WorkKey,
    F: Fn(&Object) -> I + Send + 'static,
    I: IntoIterator<Item = K> + 'static,
{
    /// Adds the keys of an object, one after the other if the queue is full.
    async fn add(&mut self, object: &Object, priority: i32) {
        let keys: Vec<K> = (self.keys)(object).into_iter().collect();
        for key in keys {
            self.queue.add_with(key, AddOptions { priority, ..AddOptions::default() }).await;
        }
    }
}

impl<K, F, I> ResourceEventHandler<Object> for Enqueue<K, F, I>
where
    K: WorkKey,
    F: Fn(&Object) -> I + Send + 'static,
    I: IntoIterator<Item = K> + 'static,
{
    async fn on_add(&mut self, object: Entry<Object>, is_in_initial_list: bool) {
        self.add(&object, if is_in_initial_list { LOW_PRIORITY } else { 0 }).await;
    }

    async fn on_update(&mut self, old: Entry<Object>, new: Entry<Object>) {
        let is_resync = Arc::ptr_eq(old.object(), new.object());
        if !is_resync {
            self.add(&old, 0).await;
        }
        self.add(&new, if is_resync { LOW_PRIORITY } else { 0 }).await;
    }

    async fn on_delete(&mut self, last_state: Entry<Object>, _: Deletion) {
        self.add(&last_state, 0).await;
    }
}

#[cfg(test)]
mod tests;
