//! Reflector, queue and informer of one resource, connected.

use std::{fmt, sync::Arc, time::Duration};

use futures_util::future::BoxFuture;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, info_span};

use super::{
    FifoBounds, Informer, InformerConfig, InformerHandle, ListerWatcher, RealFifo, Reflector, ReflectorConfig,
    SourceHealth,
};
use crate::{
    model::{Cause, Indexers},
    watch::{BroadcasterConfig, BulkThreads, Frame, Retention},
};

/// Reflector, queue and informer of one resource, connected and not running yet.
pub struct InformerTasks<S, F: Frame> {
    name: String,
    kind: &'static str,
    reflector: Reflector<S>,
    fifo: Arc<RealFifo>,
    informer: Informer<F>,
    handle: InformerHandle<F>,
}

/// Parameters of the informer of a resource, and of everything before it.
#[derive(Debug, Clone)]
pub struct InformerOptions {
    /// Name of the resource, for logs.
    pub name: String,
    /// Kind of the source, for logs.
    pub kind: &'static str,
    /// Health that the source reports its problems to, if it was made with one. `None` makes one with the source's heartbeat and a
    /// bound of 15 s.
    pub health: Option<SourceHealth>,
    /// Indexes to keep.
    pub indexers: Arc<Indexers>,
    /// Requests of the Reflector.
    pub reflector: ReflectorConfig,
    /// Bounds of distribution.
    pub broadcaster: BroadcasterConfig,
    /// Bounds of the history; sizes in bytes of bodies and records.
    pub history: Retention,
    /// Least time between two publish cycles ([`InformerConfig::batch_window`]); at least half a millisecond.
    pub batch_window: Duration,
    /// Threads for the selections that the writer has no time for. Without them it evaluates every selection itself.
    pub threads: Option<Arc<BulkThreads>>,
}

/// End of a queue's only producer.
pub(super) struct CloseOnDrop(pub(super) Arc<RealFifo>);

/// Silence, beyond the heartbeat of a source, after which it is STALE.
const STALE_AFTER: Duration = Duration::from_secs(15);
/// Least time between two publish cycles. A cycle costs some twenty times as much as an event, so that gathering for less than
/// half a millisecond would not pay.
pub(super) const MIN_BATCH_WINDOW: Duration = Duration::from_micros(500);

// === impl InformerTasks ===

impl<S: ListerWatcher, F: Frame> InformerTasks<S, F> {
    /// Connects a source.
    pub fn new(source: S, options: InformerOptions) -> Self {
        let InformerOptions { name, kind, health, indexers, reflector, broadcaster, history, batch_window, threads } =
            options;
        let health = health.unwrap_or_else(|| SourceHealth::new(source.heartbeat(), STALE_AFTER));
        let fifo = Arc::new(RealFifo::new(FifoBounds::default()));
        let config = InformerConfig {
            indexers,
            broadcaster,
            history,
            rewrite_evidence: source.rewrite_evidence(),
            deletion: Cause::Change,
            demand: source.demand(),
            provenance: source.provenance(),
            creation_time: source.creation_time(),
            batch_window: batch_window.max(MIN_BATCH_WINDOW),
        };
        let (informer, handle) = Informer::new(Arc::clone(&fifo), health.clone(), config);
        let informer = match &threads {
            Some(threads) => informer.deferring_to(threads),
            None => informer,
        };
        let reflector = ReflectorConfig { name: reflector.name.or_else(|| Some(name.clone())), ..reflector };
        let reflector = Reflector::new(source, Arc::clone(&fifo), health, reflector);
        Self { name, kind, reflector, fifo, informer, handle }
    }

    /// Returns the reading side of the informer.
    pub fn handle(&self) -> &InformerHandle<F> {
        &self.handle
    }

    /// Returns the queue.
    pub fn fifo(&self) -> &Arc<RealFifo> {
        &self.fifo
    }

    /// Returns the Reflector.
    pub fn reflector(&self) -> &Reflector<S> {
        &self.reflector
    }

    /// Returns the two tasks of the resource with their names: that of the informer, which calls `begin` first, and that of the
    /// Reflector, which waits for it. After `stop`, the Reflector ends and closes the queue, the informer applies what is queued,
    /// and its watches end.
    pub fn into_tasks(
        self,
        stop: CancellationToken,
        begin: impl FnOnce(&mut Informer<F>, &mut Reflector<S>) + Send + 'static,
    ) -> [(String, BoxFuture<'static, ()>); 2] {
        let Self { name, kind, mut reflector, fifo, mut informer, .. } = self;
        let (started, has_started) = oneshot::channel();
        let informing = async move {
            begin(&mut informer, &mut reflector);
            // The send fails when the other task is being dropped.
            drop(started.send(reflector));
            informer.run().await;
        };
        // Also if the source panics: nobody else would close the queue.
        let closing = CloseOnDrop(fifo);
        let reflecting = async move {
            let _closing = closing;
            if let Ok(reflector) = has_started.await {
                stop.run_until_cancelled_owned(reflector.list_and_watch()).await;
            }
        };
        let informing = informing.instrument(info_span!("informer", resource = name));
        let reflecting = reflecting.instrument(info_span!("reflector", resource = name, source = kind));
        [(format!("informer of {name}"), Box::pin(informing)), (format!("reflector of {name}"), Box::pin(reflecting))]
    }
}

debug_fields!([S: fmt::Debug, F: Frame] InformerTasks<S, F> { name, reflector });

// === impl CloseOnDrop ===

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

// === impl InformerOptions ===

impl Default for InformerOptions {
    fn default() -> Self {
        let broadcaster = BroadcasterConfig::default();
        Self {
            name: "objects".to_owned(),
            kind: "own",
            health: None,
            indexers: Arc::default(),
            reflector: ReflectorConfig::default(),
            broadcaster,
            history: broadcaster.retention,
            batch_window: MIN_BATCH_WINDOW,
            threads: None,
        }
    }
}
