//! Shared state of the server: the resources, the limits, and the data that all calls use.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use arc_swap::{ArcSwap, ArcSwapOption};
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::{
    bulk_scheduler::BulkScheduler,
    compiler::{self, Compiler},
    compressed_objects::CompressedObjects,
    denials::Denials,
    encoder::Encoder,
    held_snapshots::Age,
    metrics::{RpcMetrics, ServerCollector},
    open_streams::OpenStreams,
    page::Pages,
    peers::Peers,
    quotas::{QuotaConfig, Quotas},
    resource::ServedResource,
    status::ApiError,
    watchers::Watchers,
};
use crate::{
    audit::AuditLog,
    auth::{Authentication, Authorizer},
    model::{Condition, Expression, ResourceVersion},
    proto::{Compression, Structs},
    transport::Ledger,
    watch::{BulkThreads, FullChannelPolicy},
};

/// The resources that this server serves, and their limits. Clones share one state.
#[derive(Debug, Clone)]
pub struct Service {
    pub(super) inner: Arc<Inner>,
}

/// The two steps in which the server shuts down.
#[derive(Debug, Clone, Default)]
pub struct Lifecycle {
    /// Cancelled first: the readiness probe fails, and the server still serves everything.
    pub unready: CancellationToken,
    /// Cancelled second: every watch ends.
    pub draining: CancellationToken,
}

/// Rights of callers.
#[derive(Debug, Clone)]
pub struct AccessConfig {
    /// Decisions about calls; without it, every caller may read everything.
    pub authorizer: Option<Authorizer>,
    /// Interval at which the callers of open streams and the rights of open watches are checked again.
    pub recheck: Duration,
    /// Time for which they go on without an answer, after the interval.
    pub grace: Duration,
}

/// Limits and defaults of all calls.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// Queue policies that clients may request.
    pub allowed_policies: Vec<FullChannelPolicy>,
    /// Default interval of the bookmarks that a watch at the head receives.
    pub bookmark_interval: Duration,
    /// Time for which a watch waits for a resource version that this server has not reached yet.
    pub future_wait: Duration,
    /// Period over which the watches end when the server drains.
    pub drain_period: Duration,
    /// Time for which a client that was evicted under BLOCK may still receive the reason; its stream is reset after one to two of
    /// these periods.
    pub evicted_grace: Duration,
    /// Maximum number of open watches.
    pub max_watchers: usize,
    /// Share of watches, compilations and page snapshots that one origin may have, and of calls and requests one peer, in percent.
    pub peer_share: u32,
    /// Maximum time to receive the message of a request.
    pub request_timeout: Duration,
    /// Maximum number of lists and watches that are sent objects or missed events at a time, one piece each; more of them take
    /// turns. As many as there are serving threads.
    pub bulk_streams: usize,
    /// Threads that encode large objects; without any, the calls do.
    pub bulk_threads: Option<Arc<BulkThreads>>,
    /// Compressions of Watch, List and ByIndex that clients may accept, in order of preference.
    pub compression: Vec<Compression>,
    /// Maximum memory held for all clients together, in bytes; above it the server ends the streams that have waited longest.
    pub memory: usize,
    /// Audit log, if there is one.
    pub audit: Option<AuditLog>,
    /// Quotas of each caller.
    pub quotas: QuotaConfig,
    /// Authenticators of the callers; without any, every caller is admitted.
    pub authentication: Option<Arc<Authentication>>,
    /// Rights of callers.
    pub access: AccessConfig,
}

#[derive(Debug)]
pub(super) struct Inner {
    resources: ArcSwap<BTreeMap<String, Arc<ServedResource>>>,
    /// True once all resources that are not optional have synced.
    was_ready: AtomicBool,
    /// Reason why the newest configuration is not in use.
    config_error: ArcSwapOption<String>,
    config: ServiceConfig,
    pub(super) pages: Pages,
    pub(super) expressions: Compiler<Expression>,
    pub(super) conditions: Compiler<Condition>,
    pub(super) peers: Peers,
    watchers: Arc<Watchers>,
    pub(super) open_streams: Arc<OpenStreams>,
    ledger: Arc<Ledger>,
    denials: Option<Arc<Denials>>,
    quotas: Quotas,
    bulk_scheduler: Arc<BulkScheduler>,
    encoder: Arc<Encoder>,
    structs: Arc<Structs>,
    compressed: Arc<CompressedObjects>,
    lifecycle: Lifecycle,
    metrics: Arc<RpcMetrics>,
    pub(super) started_at: SystemTime,
}

/// Maximum number of expressions and conditions that wait to be compiled. Each takes up to 15 ms, so the last one waits for a minute.
const MAX_COMPILATIONS: usize = 4096;
/// Maximum number of snapshots that are kept for the next pages of lists. Each keeps what has changed since, at most the whole resource.
const MAX_PAGE_SNAPSHOTS: usize = 16;
/// Size of the cache of bodies that were converted to STRUCT, as a divisor of the memory held for all clients; and its largest size,
/// from which on a hit is no more frequent with objects of usual sizes.
const STRUCT_SHARE: usize = 4;
const MAX_STRUCT_BYTES: usize = 64 << 20;
/// Part of the memory held for all clients that compressed objects may take, as a divisor.
const COMPRESSED_SHARE: usize = 8;
/// Interval at which streams are charged for the states that they reference; a tenth of it when the limit is near.
const CHARGE_INTERVAL: Duration = Duration::from_secs(1);

// === impl ServiceConfig, AccessConfig ===

impl Default for ServiceConfig {
    fn default() -> Self {
        use FullChannelPolicy::{Block, Coalesce, Drop, Replay};
        Self {
            allowed_policies: vec![Drop, Block, Replay, Coalesce],
            // As often as client-go expects one; a client that needs another interval requests it.
            bookmark_interval: Duration::from_secs(30),
            // More than the time in which a replica that starts warm has caught up with the others.
            future_wait: Duration::from_secs(90),
            drain_period: Duration::from_secs(5),
            evicted_grace: Duration::from_secs(5),
            max_watchers: 100_000,
            peer_share: 25,
            request_timeout: Duration::from_secs(10),
            bulk_streams: 1,
            bulk_threads: None,
            compression: Vec::new(),
            memory: 1 << 30,
            audit: None,
            quotas: QuotaConfig::default(),
            authentication: None,
            access: AccessConfig::default(),
        }
    }
}

impl Default for AccessConfig {
    fn default() -> Self {
        Self { authorizer: None, recheck: Duration::from_secs(60), grace: Duration::from_secs(300) }
    }
}

// === impl Service ===

impl Service {
    /// Creates a service over these resources.
    pub fn new(
        resources: impl IntoIterator<Item = ServedResource>,
        config: ServiceConfig,
        lifecycle: Lifecycle,
        metrics: Arc<RpcMetrics>,
    ) -> Self {
        let watchers = Arc::new(Watchers::new(config.max_watchers, config.peer_share));
        let ServiceConfig { max_watchers, memory, peer_share, .. } = config;
        let compilations = compiler::turns(MAX_COMPILATIONS, peer_share);
        let pages = Pages::new(MAX_PAGE_SNAPSHOTS, peer_share, metrics.refused().clone());
        let peers = Peers::new(max_watchers, memory, peer_share, metrics.refused().clone());
        let ledger = Ledger::new(config.memory, metrics.ended("memory")).with_requests(Arc::clone(peers.requests()));
        let ledger = Arc::new(match config.quotas.bytes_held {
            Some(limit) => ledger.with_limit_for_each(limit, metrics.ended("quota_bytes_held")),
            None => ledger,
        });
        let compressed_bytes = if config.compression.is_empty() { 0 } else { config.memory / COMPRESSED_SHARE };
        let inner = Inner {
            resources: ArcSwap::new(by_name(resources)),
            was_ready: AtomicBool::new(false),
            config_error: ArcSwapOption::empty(),
            bulk_scheduler: BulkScheduler::new(config.bulk_streams),
            encoder: Encoder::new(config.bulk_threads.clone()),
            structs: Arc::new(Structs::new((memory / STRUCT_SHARE).min(MAX_STRUCT_BYTES))),
            compressed: Arc::new(CompressedObjects::new(compressed_bytes)),
            quotas: Quotas::new(&config.quotas, Arc::clone(&ledger), peer_share),
            denials: config.audit.clone().map(Denials::new).map(Arc::new),
            config,
            pages,
            expressions: Compiler::new(Expression::selecting, Arc::clone(&compilations)),
            conditions: Compiler::new(Condition::parse, compilations),
            peers,
            watchers,
            open_streams: Arc::default(),
            ledger,
            lifecycle,
            metrics,
            started_at: SystemTime::now(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Returns the resources, ordered by name.
    pub fn resources(&self) -> impl Iterator<Item = Arc<ServedResource>> + use<> {
        let resources: Vec<_> = self.inner.resources.load().values().cloned().collect();
        resources.into_iter()
    }

    /// Replaces the resources. A call that has begun goes on with the one that it has; the caller
    /// [ends](super::ResourceCalls::end) those that are gone.
    pub fn set_resources(&self, resources: impl IntoIterator<Item = ServedResource>) {
        self.inner.resources.store(by_name(resources));
    }

    /// Sets the reason why the newest configuration was rejected and the last good one is in use; `None` if it is in use.
    pub fn set_config_error(&self, error: Option<String>) {
        self.inner.config_error.store(error.map(Arc::new));
    }

    pub(super) fn config_error(&self) -> Option<Arc<String>> {
        self.inner.config_error.load_full()
    }

    /// Returns true if the server has begun to shut down.
    pub fn is_shutting_down(&self) -> bool {
        self.inner.lifecycle.unready.is_cancelled()
    }

    /// Returns true if every resource that is not optional has synced once, and the server has not begun to shut down. One that is
    /// added later does not make the server unready: the others are served.
    pub fn is_ready(&self) -> bool {
        let is_synced = |resource: Arc<ServedResource>| resource.optional || resource.informer.snapshot().is_some();
        let was_ready = &self.inner.was_ready;
        if !was_ready.load(Ordering::Relaxed) && self.resources().all(is_synced) {
            was_ready.store(true, Ordering::Relaxed);
        }
        !self.is_shutting_down() && was_ready.load(Ordering::Relaxed)
    }

    /// Runs the tasks beside the calls: schedules bulk streams, notifies the watches of a drain, resets the streams of evicted
    /// clients that do not read, keeps the memory held for clients within its limit, checks the rights of open watches again, and writes the lines about denied calls. Never
    /// returns.
    ///
    /// # Cancel safety
    ///
    /// Bulk streams make no progress while it does not run.
    pub async fn run(self) {
        let drain = async {
            self.draining().cancelled().await;
            for resource in self.resources() {
                resource.informer.notify_watches().await;
            }
        };
        let evicted = self.watchers().reset_evicted(self.config().evicted_grace);
        let denials = async {
            if let Some(denials) = self.denials() {
                denials.run().await;
            }
        };
        let (bulk, ledger) = (self.bulk_scheduler().run(), self.ledger().run());
        tokio::join!(drain, bulk, evicted, self.charge(), ledger, self.recheck(), denials);
    }

    /// Charges the streams for the old states that they reference, at each interval; never returns.
    async fn charge(&self) {
        let mut last: BTreeMap<u64, Age> = BTreeMap::new();
        loop {
            let is_near = self.ledger().is_near();
            tokio::time::sleep(if is_near { CHARGE_INTERVAL / 10 } else { CHARGE_INTERVAL }).await;
            let (mut kept, mut ages) = (0, BTreeMap::new());
            let resources: Vec<Arc<ServedResource>> = self.resources().collect();
            for resource in &resources {
                let Some(snapshot) = resource.informer.snapshot() else { continue };
                let before = last.get(&resource.calls.id()).copied().unwrap_or_default();
                ages.insert(resource.calls.id(), (before, Age::of(&snapshot)));
            }
            let mut merging = self.watchers().merging(&ages);
            for resource in &resources {
                let Some((_, now)) = ages.get(&resource.calls.id()) else { continue };
                let begin = now.before(resource.informer.stats().history_bytes.load(Ordering::Relaxed));
                let merging = merging.remove(&resource.calls.id()).unwrap_or_default();
                kept += resource.calls.snapshots().charge(merging, begin);
            }
            last = ages.into_iter().map(|(id, (_, now))| (id, now)).collect();
            self.compressed().trim(is_near);
            self.structs().trim(is_near);
            self.ledger().keep(kept + self.compressed().bytes());
        }
    }

    /// Returns a resource for a caller who has rights to this name. The names of others are listed only where everybody has rights.
    /// During a reload, one that has ended is an error with the reason.
    pub(super) fn resource(&self, name: &str) -> Result<Arc<ServedResource>, ApiError> {
        let known = || {
            if self.authorizes() {
                Vec::new()
            } else {
                self.resources().map(|resource| resource.name.clone()).collect()
            }
        };
        let not_found = || ApiError::ResourceNotFound { resource: name.to_owned(), known: known() };
        let resource = self.find(name).ok_or_else(not_found)?;
        resource.ended().map_or(Ok(resource), Err)
    }

    /// Returns a resource, whoever may read it.
    pub(super) fn find(&self, name: &str) -> Option<Arc<ServedResource>> {
        self.inner.resources.load().get(name).cloned()
    }

    /// Returns the limits and defaults of all calls.
    pub fn config(&self) -> &ServiceConfig {
        &self.inner.config
    }

    pub(super) fn watchers(&self) -> &Arc<Watchers> {
        &self.inner.watchers
    }

    pub(super) fn structs(&self) -> &Arc<Structs> {
        &self.inner.structs
    }

    pub(super) fn compressed(&self) -> &Arc<CompressedObjects> {
        &self.inner.compressed
    }

    pub(super) fn bulk_scheduler(&self) -> &Arc<BulkScheduler> {
        &self.inner.bulk_scheduler
    }

    pub(super) fn encoder(&self) -> &Arc<Encoder> {
        &self.inner.encoder
    }

    pub(super) fn draining(&self) -> &CancellationToken {
        &self.inner.lifecycle.draining
    }

    /// Returns the ledger of the memory that is held for clients.
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.inner.ledger
    }

    /// Returns the audit log, if there is one.
    pub(super) fn denials(&self) -> Option<&Arc<Denials>> {
        self.inner.denials.as_ref()
    }

    /// Writes the lines of the audit log that are held back.
    pub fn finish_audit(&self) {
        if let Some(denials) = self.denials() {
            denials.finish();
        }
    }

    pub(super) fn quotas(&self) -> &Quotas {
        &self.inner.quotas
    }

    /// Registers the metrics of the calls, of their authentication and of the ledger.
    pub fn register(&self, registry: &mut Registry) {
        self.metrics().register(registry);
        if let Some(authentication) = &self.config().authentication {
            authentication.register(registry);
        }
        if let Some(authorizer) = &self.config().access.authorizer {
            authorizer.register(registry);
        }
        if let Some(audit) = &self.config().audit {
            audit.register(registry);
        }
        let (ledger, structs) = (Arc::clone(self.ledger()), Arc::clone(self.structs()));
        registry.register_collector(Box::new(ServerCollector { ledger, structs }));
    }

    /// Returns the metrics of the calls.
    pub fn metrics(&self) -> &Arc<RpcMetrics> {
        &self.inner.metrics
    }

    /// Checks that a client may replace its state at this version by the present one. What an incomplete state lacks may exist: a
    /// client of an earlier run keeps its objects until the state is complete.
    pub(super) fn can_replace(&self, resource: &ServedResource, version: &ResourceVersion) -> Result<(), ApiError> {
        let informer = &resource.informer;
        let snapshot = informer.snapshot();
        let must_wait = informer.health().may_lack(version, snapshot.as_ref().map(|snapshot| snapshot.version()));
        if must_wait { Err(self.not_synced(resource)) } else { Ok(()) }
    }

    /// Returns the error for a state that there is not yet. Errors of the upstream may name objects: only where everybody has rights do
    /// clients receive them.
    pub(super) fn not_synced(&self, resource: &ServedResource) -> ApiError {
        let last_error = resource.informer.report().last_error.filter(|_| !self.authorizes());
        ApiError::NotSynced { resource: resource.name.clone(), last_error }
    }
}

fn by_name(resources: impl IntoIterator<Item = ServedResource>) -> Arc<BTreeMap<String, Arc<ServedResource>>> {
    Arc::new(resources.into_iter().map(|resource| (resource.name.clone(), Arc::new(resource))).collect())
}
