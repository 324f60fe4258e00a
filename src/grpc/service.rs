//! State of the server: the resources, the bounds, and what all calls share.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use super::{
    compiler::Compiler,
    kept::{Age, HeldSnapshots},
    metrics::{RpcMetrics, WaitingBytes},
    page::Pages,
    resource::ServedResource,
    status::Refusal,
    turns::Turns,
    watchers::Watchers,
};
use crate::{
    cache::Snapshot,
    model::{Condition, Expression, ResourceVersion, excerpt},
    proto::Structs,
    transport::{Ledger, Quota},
    watch::FullChannelPolicy,
};

/// What is served, and within which bounds; clones share it.
#[derive(Debug, Clone)]
pub struct Service {
    inner: Arc<Inner>,
}

/// The two steps in which a server ends.
#[derive(Debug, Clone, Default)]
pub struct Lifecycle {
    /// Cancelled first: probes say no, and everything is still served.
    pub unready: CancellationToken,
    /// Cancelled then: every watch ends.
    pub draining: CancellationToken,
}

/// The bounds and defaults of all calls.
#[derive(Debug, Clone)]
pub struct ServiceConfig {
    /// What clients may ask for.
    pub allowed_policies: Vec<FullChannelPolicy>,
    /// The longest queue that a client may ask for, in events.
    pub max_queue_length: usize,
    /// How often a watch that is at the head gets a bookmark, unless it asks otherwise.
    pub bookmark_interval: Duration,
    /// How long a watch from a version of the future waits for it.
    pub future_wait: Duration,
    /// Over which watches end when the server drains.
    pub drain_period: Duration,
    /// Whoever was evicted under BLOCK may be told so for this long, and up to twice as long, before its stream is reset.
    pub evicted_grace: Duration,
    /// Watches at one time.
    pub max_watchers: usize,
    /// Expressions and conditions that wait to be compiled.
    pub compilations: usize,
    /// Snapshots that are kept for the next pages of lists.
    pub page_snapshots: usize,
    /// Part that one peer may have of watches, compilations and page snapshots, in percent.
    pub peer_share: u32,
    /// The largest request, in bytes.
    pub request_bytes: usize,
    /// Time for the message of a request.
    pub request_timeout: Duration,
    /// How many lists and watches are given objects or a past at a time; more of them take turns, one piece each. As many as
    /// there are threads to serve with.
    pub bulk_streams: usize,
    /// Of bodies in STRUCT that are kept for the next who is sent them, in bytes.
    pub struct_bytes: usize,
    /// Bytes held for all clients together at most; above it the streams end that have waited longest.
    pub memory: usize,
    /// Steps of one evaluation of a client's expression or condition.
    pub expression_steps: u64,
}

#[derive(Debug)]
struct Inner {
    resources: BTreeMap<String, Arc<ServedResource>>,
    config: ServiceConfig,
    pages: Pages,
    expressions: Compiler<Expression>,
    conditions: Compiler<Condition>,
    compilations: Arc<Quota>,
    watchers: Arc<Watchers>,
    /// By resource.
    snapshots: HashMap<String, Arc<HeldSnapshots>>,
    ledger: Arc<Ledger>,
    turns: Arc<Turns>,
    structs: Arc<Structs>,
    lifecycle: Lifecycle,
    metrics: Arc<RpcMetrics>,
}

/// Interval at which streams are charged with what is kept for them; a tenth of it when there is not much left of the limit.
const CHARGE_INTERVAL: Duration = Duration::from_secs(1);

// === impl Service ===

impl Service {
    /// A service over these resources.
    pub fn new(
        resources: impl IntoIterator<Item = ServedResource>,
        config: ServiceConfig,
        lifecycle: Lifecycle,
        metrics: Arc<RpcMetrics>,
    ) -> Self {
        let watchers = Arc::new(Watchers::new(config.max_watchers, config.peer_share));
        let compilations = Quota::new(config.compilations, config.peer_share);
        let pages = Pages::new(config.page_snapshots, config.peer_share, metrics.refused().clone());
        let resources: BTreeMap<_, _> =
            resources.into_iter().map(|resource| (resource.name.clone(), Arc::new(resource))).collect();
        let snapshots = resources.keys().map(|name| (name.clone(), Arc::default())).collect();
        let ledger = Ledger::new(config.memory, metrics.ended_for_memory());
        let inner = Inner {
            resources,
            turns: Turns::new(config.bulk_streams),
            structs: Arc::new(Structs::new(config.struct_bytes)),
            config,
            pages,
            expressions: Compiler::new(Expression::parse),
            conditions: Compiler::new(Condition::parse),
            compilations,
            watchers,
            snapshots,
            ledger: Arc::new(ledger),
            lifecycle,
            metrics,
        };
        Self { inner: Arc::new(inner) }
    }

    /// The resources, by name.
    pub fn resources(&self) -> impl Iterator<Item = &ServedResource> {
        self.inner.resources.values().map(Arc::as_ref)
    }

    /// Whether the server has been told to end.
    pub fn is_shutting_down(&self) -> bool {
        self.inner.lifecycle.unready.is_cancelled()
    }

    /// Whether every resource that is not optional has had a state, and the server is not about to end.
    pub fn is_ready(&self) -> bool {
        !self.is_shutting_down()
            && self.resources().all(|resource| resource.optional || resource.informer.snapshot().is_some())
    }

    /// Runs beside the calls: lets streams that take turns go on, tells watches of a drain, resets those of
    /// clients that cannot be told why they end, and keeps the memory that is held for clients within its bound. Never ready.
    ///
    /// # Cancel safety
    ///
    /// Streams stand still while it does not run.
    pub async fn run(self) {
        let drain = async {
            self.draining().cancelled().await;
            for resource in self.resources() {
                resource.informer.poke().await;
            }
        };
        let evicted = self.watchers().reset_evicted(self.config().evicted_grace);
        tokio::join!(drain, self.turns().call(), evicted, self.charge(), self.ledger().run());
    }

    /// Charges the streams with what is kept for them, for ever.
    async fn charge(&self) {
        let mut last: BTreeMap<&str, Age> = BTreeMap::new();
        loop {
            let is_near = self.ledger().is_near();
            tokio::time::sleep(if is_near { CHARGE_INTERVAL / 10 } else { CHARGE_INTERVAL }).await;
            let mut kept = 0;
            for resource in self.resources() {
                let Some(snapshot) = resource.informer.snapshot() else { continue };
                let now = Age::of(&snapshot);
                let begin = now.before(resource.informer.stats().history_bytes.load(Ordering::Relaxed));
                let before = last.insert(&resource.name, now).unwrap_or_default();
                let merging = self.watchers().merging(resource, before, now);
                kept += self.snapshots(resource).charge(merging, begin);
            }
            self.ledger().keep(kept);
        }
    }

    pub(super) fn resource(&self, name: &str) -> Result<&Arc<ServedResource>, Refusal> {
        self.inner.resources.get(name).ok_or_else(|| Refusal::ResourceNotFound {
            resource: name.to_owned(),
            known: self.inner.resources.keys().cloned().collect(),
        })
    }

    pub(super) fn config(&self) -> &ServiceConfig {
        &self.inner.config
    }

    pub(super) fn pages(&self) -> &Pages {
        &self.inner.pages
    }

    pub(super) fn expressions(&self) -> &Compiler<Expression> {
        &self.inner.expressions
    }

    pub(super) fn conditions(&self) -> &Compiler<Condition> {
        &self.inner.conditions
    }

    /// Returns the bound on expressions and conditions that wait to be compiled.
    pub(super) fn compilations(&self) -> &Arc<Quota> {
        &self.inner.compilations
    }

    pub(super) fn watchers(&self) -> &Arc<Watchers> {
        &self.inner.watchers
    }

    /// Returns the snapshots of a resource that streams answer from.
    pub(super) fn snapshots(&self, resource: &ServedResource) -> &Arc<HeldSnapshots> {
        // There is one for each resource.
        &self.inner.snapshots[&resource.name]
    }

    pub(super) fn structs(&self) -> &Arc<Structs> {
        &self.inner.structs
    }

    pub(super) fn turns(&self) -> &Arc<Turns> {
        &self.inner.turns
    }

    pub(super) fn draining(&self) -> &CancellationToken {
        &self.inner.lifecycle.draining
    }

    /// Returns the memory that is held for its clients.
    pub fn ledger(&self) -> &Arc<Ledger> {
        &self.inner.ledger
    }

    /// Makes its counters known to a registry.
    pub fn register(&self, registry: &mut Registry) {
        self.metrics().register(registry);
        registry.register_collector(Box::new(WaitingBytes(Arc::clone(self.ledger()))));
    }

    /// Returns the counters of its calls.
    pub fn metrics(&self) -> &Arc<RpcMetrics> {
        &self.inner.metrics
    }

    /// The state to answer from: applied, and not before `min_version`. Waits up to `wait` for it.
    pub(super) async fn snapshot(
        &self,
        resource: &ServedResource,
        min_version: Option<&ResourceVersion>,
        wait: Duration,
    ) -> Result<Arc<Snapshot>, Refusal> {
        let snapshot = self.reached(resource, min_version, wait).await?;
        if let Some(min) = min_version.filter(|min| !min.same_lineage(snapshot.version())) {
            let message = format!(
                "{} is not a version of this source, which is at {}",
                excerpt(&min.to_string()),
                snapshot.version()
            );
            return Err(Refusal::Invalid {
                reason: "RESOURCE_VERSION_INVALID",
                field: "min_resource_version",
                message,
            });
        }
        Ok(snapshot)
    }

    /// The first state at or after a version, or of another lineage, which can never get there. Waits up to `wait` for it.
    pub(super) async fn reached(
        &self,
        resource: &ServedResource,
        version: Option<&ResourceVersion>,
        wait: Duration,
    ) -> Result<Arc<Snapshot>, Refusal> {
        let is_there = |at: &ResourceVersion, wanted: &ResourceVersion| !at.same_lineage(wanted) || at >= wanted;
        let is_enough = |snapshot: &Snapshot| version.is_none_or(|wanted| is_there(snapshot.version(), wanted));
        tokio::select! {
            // What can be answered is answered, also while the server drains.
            biased;
            // Cancel-safe by its own contract.
            snapshot = resource.informer.wait_for(version.map_or(0, ResourceVersion::number), is_enough) => Ok(snapshot),
            () = tokio::time::sleep(wait) => Err(not_reached(resource, version)),
            () = self.draining().cancelled() => Err(Refusal::Draining),
        }
    }
}

/// Why the wait for a state was in vain.
fn not_reached(resource: &ServedResource, min_version: Option<&ResourceVersion>) -> Refusal {
    match (resource.informer.snapshot(), min_version) {
        (Some(snapshot), Some(wanted)) => {
            Refusal::VersionTooLarge { wanted: wanted.clone(), current: snapshot.version().to_string() }
        }
        (_, _) => Refusal::NotSynced {
            resource: resource.name.clone(),
            last_error: resource.informer.health().report().last_error,
        },
    }
}
