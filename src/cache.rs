//! Cache of each resource: one upstream list and watch, one writer, any number of readers.
//!
//! ```text
//!   ListerWatcher ──▶ Reflector ──▶ RealFifo ──▶ Informer task ──▶ Indexer ──▶ Snapshot (List, ByIndex, Get)
//!                     list+watch    ordered      one writer        │
//!                                   deltas                         └──▶ watch::Broadcaster ──▶ cursors (Watch)
//! ```
//!
//! - One task per resource writes ([`Informer`]): store, indexes and applied version change together, in upstream order.
//! - Readers take a [`Snapshot`] in O(1) and hold no lock that the writer needs.
//! - A relist is one element of the queue. The indexer turns it into one batch: the difference to the store.
//! - Each resource has one upstream watch, whatever the number of readers and watchers ([`Reflector`]).
//! - A [`SnapshotFile`] holds a state and the proof of its upstream's history. The next start serves it at once, as STALE, and
//!   resumes the watch from its version.
//! - [`InformerTasks`] connect all of this for one resource. The server runs them for each; a program that embeds the crate
//!   starts a [`SharedInformer`], which runs them and decodes its objects.
//!
//! Not in this module: the upstreams (`source`), and everything that depends on gRPC.
//!
//! # From client-go's names
//!
//! | `k8s.io/client-go/tools/cache` | here |
//! |---|---|
//! | `ListerWatcher`, `ListWatch` | [`ListerWatcher`] |
//! | `Reflector`, `ResourceExpiredError` | [`Reflector`], [`SourceError::Expired`] |
//! | `ReflectorStore`, `ReflectorOptions` | [`ReflectorStore`], [`ReflectorConfig`] |
//! | `TransformFunc` | [`ObjectFilter`] |
//! | `RealFIFO` | [`RealFifo`], of a [`Delta`] for each list or event |
//! | `Store`, `NewStore` | [`Store`], [`MapStore`]; the store of an informer is its [`Indexer`] |
//! | `KeyFunc`, `MetaNamespaceKeyFunc`, `KeyError` | [`KeyFunc`], its default, [`KeyError`] |
//! | `UndeltaStore` | [`UndeltaStore`] |
//! | `ExpirationCache`, `NewTTLStore`, `TTLPolicy`, `TimestampedEntry` | [`ExpirationCache`], [`TimestampedEntry`] |
//! | `Queue`, `PopProcessFunc`, `ErrRequeue`, `ErrFIFOClosed` | [`Queue`], [`ProcessError`], [`PopError`] |
//! | `FIFO` | [`Fifo`] |
//! | `DeltaFIFO`, `DeltaFIFOOptions`, `KeyListerGetter` | [`DeltaFifo`], [`DeltaFifoOptions`], [`KnownObjects`] |
//! | `Delta`, `Deltas`, `DeletedFinalStateUnknown` | [`ObjectDelta`], [`Deltas`], [`Tombstone`] |
//! | `util/workqueue`: `TypedRateLimitingInterface` and what it contains | [`WorkQueue`], [`WorkItem`] |
//! | `TypedRateLimiter`, `ItemExponentialFailureRateLimiter`, `BucketRateLimiter`, `MaxOfRateLimiter` | [`RateLimiter`], [`ExponentialRateLimiter`], [`BucketRateLimiter`], [`MaxOfRateLimiter`] |
//! | controller-runtime's `PriorityQueue`, `AddOpts` | [`WorkQueue`], [`AddOptions`] |
//! | `Controller`, `Config`, `New` | [`Controller`], [`ControllerConfig`] |
//! | controller-runtime's `Controller`, `Reconciler`, `Result` | [`Reconciler`], its function, [`Action`] |
//! | `SharedInformer`, `SharedIndexInformer`, `NewInformer` | [`SharedInformer`] |
//! | `SharedIndexInformerOptions` | [`InformerOptions`] |
//! | the controller inside of an informer | [`InformerTasks`], [`InformerOptions`] |
//! | `processDeltas` | [`Informer`] |
//! | `Indexer`, `ThreadSafeStore`: writing | [`Indexer`] |
//! | the same, and `Lister`: reading | [`SharedInformer`], and [`TypedSnapshot`] for reads that agree; [`Snapshot`] without types |
//! | `Indexers`, `IndexFunc` | [`model::Indexers`](crate::model::Indexers), [`model::IndexFunc`](crate::model::IndexFunc) |
//! | `SharedInformerFactory` | [`InformerSet`] |
//! | `AddIndexers` | [`SharedInformer::add_indexers`] |
//! | the apiserver's `cacheWatcher` | [`CacheWatcher`]; as a stream [`InformerWatch`], from [`InformerHandle::watch`] |
//! | `AddEventHandler`, `AddEventHandlerWithResyncPeriod` | [`SharedInformer::add_handler`], [`HandlerOptions::resync`] |
//! | `ResourceEventHandler`, `ResourceEventHandlerFuncs` | [`ResourceEventHandler`], [`ResourceEventHandlerFuncs`] |
//! | `FilteringResourceEventHandler` | [`HandlerOptions::selection`]; by a closure [`FilteringResourceEventHandler`] |
//! | `ResourceEventHandlerRegistration`, `RemoveEventHandler` | [`ResourceEventHandlerRegistration`] |
//! | `ObjectName` | [`model::ObjectKey`](crate::model::ObjectKey) |
//! | `DeletedFinalStateUnknown` in an informer | a deletion with [`Cause::Inferred`](crate::model::Cause::Inferred); a deletion that `is_inferred` |
//! | `HasSynced`, `WaitForCacheSync` | [`SharedInformer::has_synced`], [`SharedInformer::wait_for_cache_sync`] |
//! | `LastSyncResourceVersion` | [`SharedInformer::last_sync_resource_version`] |
//! | `WatchErrorHandler` | [`ReflectorConfig::on_error`]; standing failures are in [`SourceHealth`] |
//! | `FakeControllerSource` (`tools/cache/testing`) | `testing::FakeSource` |
//!
//! A [`Watch`] is a stream: dropping it is `Stop`, and an adaptor is `Filter`. A [`ListerWatcher`] can so change or leave out
//! what another one returns:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use informerd::{
//!     cache::{Delta, Watch},
//!     model::{Event, ResourceVersion},
//! };
//! use tokio_stream::StreamExt;
//!
//! let bookmark = |number| Delta::event(Event::Bookmark(ResourceVersion::decimal(number)));
//! let upstream: Watch = Box::pin(tokio_stream::iter((1..5).map(move |number| Ok(bookmark(number)))));
//! let is_odd = |delta: &Delta| delta.version().is_none_or(|version| version.number() % 2 == 1);
//! let filtered: Watch = Box::pin(upstream.filter(move |item| item.as_ref().map_or(true, is_odd)));
//! assert_eq!(filtered.collect::<Vec<_>>().await.len(), 2);
//! # }
//! ```

mod ahead;
mod backoff;
mod checkpoint;
mod controller;
mod health;
mod indexer;
mod informer;
mod informer_tasks;
mod list;
mod lister_watcher;
mod problem;
mod progress_demand;
mod provenance;
mod queue;
mod real_fifo;
mod reflector;
mod scan;
mod shared_informer;
#[cfg(any(feature = "kube", feature = "server"))]
mod snapshot_file;
mod store;

pub use backoff::{Backoff, BackoffConfig};
pub use checkpoint::{Checkpoint, CheckpointRequests};
pub use controller::{Action, Controller, ControllerConfig, Reconciler};
pub use health::{HealthReport, SourceHealth, SyncState};
pub use indexer::{Indexer, Snapshot};
pub use informer::{
    AddIndexersError, CacheWatcher, Informer, InformerConfig, InformerHandle, InformerStats, InformerWatch, JoinError,
    Joined, NetChange, RecentChanges, Reselection, Start, Stopped, WatchItem, WatchStep, WatcherStage,
};
pub use informer_tasks::{InformerOptions, InformerTasks};
pub use list::{List, RewriteEvidence, UnreadableItem};
pub use lister_watcher::{CreationTime, ListVersion, ListerWatcher, SourceError, WarmStart, Watch};
pub use problem::{Problem, ProblemChanges, ProblemReason, ProblemReport};
pub use progress_demand::{ProgressDemand, ProgressGuard};
pub use provenance::Provenance;
pub use queue::{
    AddOptions, BucketRateLimiter, DeltaFifo, DeltaFifoOptions, Deltas, ExponentialRateLimiter, Fifo, KnownObjects,
    MaxOfRateLimiter, ObjectDelta, PopError, ProcessError, Queue, RateLimiter, Tombstone, WorkItem, WorkKey, WorkQueue,
    WorkQueueConfig, WorkQueueFull, WorkQueueStats,
};
pub use real_fifo::{Delta, Events, FifoBounds, RealFifo};
pub use reflector::{ObjectFilter, Reflector, ReflectorConfig, ReflectorError, ReflectorStats, ReflectorStore};
pub use scan::Scan;
pub use shared_informer::{
    BlockingEventHandler, Decode, Deletion, Entry, FilteringResourceEventHandler, HandlerOptions, InformerSet,
    ResourceEventHandler, ResourceEventHandlerFuncs, ResourceEventHandlerRegistration, SharedInformer, TypedSnapshot,
    Undecodable, UnknownIndex, WaitError,
};
#[cfg(any(test, fuzzing))]
pub(crate) use snapshot_file::fuzzing;
#[cfg(any(feature = "kube", feature = "server"))]
pub use snapshot_file::{
    SavedState, SnapshotDirectory, SnapshotDirectoryError, SnapshotFile, SnapshotFileError, SnapshotFileStats,
};
pub use store::{ExpirationCache, KeyError, KeyFunc, MapStore, Store, TimestampedEntry, UndeltaStore};
pub(crate) use store::{Stored, StoredKey};
