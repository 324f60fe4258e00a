//! Load of the server and of each resource: the same numbers for `GetStats`, the metrics and `/debug/informers`.

mod page;

use std::{
    collections::BTreeMap,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use serde_json::{Value, json};

pub use self::page::ShownChanges;
use super::{discovery, resource::ServedResource, service::Service, watch_end::END_REASONS, watchers::WatchLoad};
use crate::{
    process::{ProcessLoad, commit},
    proto::{self, pb},
};

/// Load of the watches of each resource, at one moment.
#[derive(Debug, Default)]
pub struct WatchLoads(BTreeMap<u64, WatchLoad>);

// === impl WatchLoad ===

impl WatchLoad {
    /// Returns the number of ends by reason, every reason once.
    pub fn ends(&self) -> impl Iterator<Item = (&'static str, u64)> {
        END_REASONS.into_iter().zip(self.sent.ends)
    }
}

// === impl WatchLoads ===

impl WatchLoads {
    /// Returns the load of a resource.
    pub fn of(&self, resource: &ServedResource) -> WatchLoad {
        self.0.get(&resource.calls.id()).copied().unwrap_or_default()
    }
}

// === impl Service ===

impl Service {
    /// Returns the load of the watches of each resource. It visits every open watch.
    pub fn watch_loads(&self) -> WatchLoads {
        let resources: Vec<_> = self.resources().collect();
        WatchLoads(self.watchers().loads(resources.iter().map(|resource| &**resource)))
    }

    /// Returns the load of the server and of each resource.
    pub fn stats(&self) -> pb::GetStatsResponse {
        let loads = self.watch_loads();
        let resources: Vec<_> =
            self.resources().map(|resource| resource_stats(&resource, &loads.of(&resource))).collect();
        let (process, ledger) = (ProcessLoad::read(), self.ledger());
        let started_at = process.as_ref().map_or(self.inner.started_at, ProcessLoad::started_at);
        let server = pb::ServerStats {
            started_at: Some(proto::timestamp(started_at)),
            draining: self.is_shutting_down(),
            connections: ledger.connections() as u64,
            watchers: loads.0.values().map(|load| load.watchers).sum(),
            held_bytes: ledger.waiting().total() as u64,
            held_bytes_limit: ledger.limit() as u64,
            resident_bytes: process.as_ref().map_or(0, ProcessLoad::resident_bytes),
        };
        pb::GetStatsResponse { server: Some(server), resources }
    }

    /// Returns the state and the load of each resource, as a JSON document for operators. Its fields may change with each version.
    pub fn debug(&self) -> Value {
        let stats = self.stats();
        let informers = stats.resources.iter().filter_map(|stats| {
            let resource = self.find(&stats.resource)?;
            let described = discovery::resource(&resource);
            let time = |at: Option<prost_types::Timestamp>| at.map(|at| at.to_string());
            let informer = &resource.informer;
            let watch = informer.watch_stats().unwrap_or_default();
            let problems = described.problems.iter().map(
                |problem| json!({ "reason": problem.reason, "subject": problem.subject, "message": problem.message }),
            );
            Some(json!({
                "name": described.name,
                "source": described.source,
                "optional": resource.optional,
                "state": described.state().as_str_name().trim_start_matches("SYNC_STATE_"),
                "resourceVersion": described.resource_version,
                "oldestResourceVersion": described.oldest_resource_version,
                "oldestAt": time(described.oldest_at),
                "history": described.history,
                "sourceSeenAt": time(described.source_seen_at),
                "lastError": described.last_error,
                "problems": problems.collect::<Vec<_>>(),
                "path": described.path,
                "namespaces": described.namespaces,
                "indexes": described.indexes,
                "views": described.views.iter().map(|view| &view.name).collect::<Vec<_>>(),
                "objects": described.objects,
                "cacheBytes": stats.cache_bytes,
                "historyEvents": load(&informer.stats().history_events),
                "historyBytes": stats.history_bytes,
                "queueBytes": load(&watch.retained_size),
                "changes": stats.changes,
                "lists": stats.relists,
                "watches": load(&watch.watchers),
                "groups": load(&watch.groups),
                "parked": stats.parked,
                "maxLagSeconds": seconds(stats.max_lag.as_ref()),
                "blockedSeconds": seconds(stats.blocked.as_ref()),
                "eventsSent": stats.events_sent,
                "bytesSent": stats.bytes_sent,
                "dropped": stats.dropped,
                "suppressed": stats.suppressed,
                "expressionErrors": stats.expression_errors,
            }))
        });
        let informers: Vec<_> = informers.collect();
        let server = stats.server.unwrap_or_default();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "commit": commit(),
            "startedAt": server.started_at.map(|at| at.to_string()),
            "draining": server.draining,
            "connections": server.connections,
            "watchers": server.watchers,
            "heldBytes": server.held_bytes,
            "heldBytesLimit": server.held_bytes_limit,
            "residentBytes": server.resident_bytes,
            "structBytes": self.structs().bytes(),
            "configError": self.config_error().as_deref(),
            "informers": informers,
        })
    }
}

fn resource_stats(resource: &ServedResource, watches: &WatchLoad) -> pb::ResourceStats {
    let informer = &resource.informer;
    let (stats, watch) = (informer.stats(), informer.watch_stats().unwrap_or_default());
    pb::ResourceStats {
        resource: resource.name.clone(),
        changes: load(&stats.changes),
        relists: load(&stats.replaces),
        events_sent: watches.sent.events,
        bytes_sent: watches.sent.bytes,
        dropped: load(&watch.dropped),
        suppressed: watches.sent.suppressed,
        parked: watches.parked,
        max_lag: proto::duration_message(watches.max_lag),
        blocked: proto::duration_message(Duration::from_micros(load(&watch.blocked_micros))),
        cache_bytes: informer.snapshot().map_or(0, |snapshot| snapshot.body_bytes() as u64),
        history_bytes: load(&stats.history_bytes),
        expression_errors: load(&stats.expression_errors) + informer.indexers().expression_errors(),
    }
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

fn seconds(duration: Option<&prost_types::Duration>) -> f64 {
    duration.and_then(|given| proto::duration(*given)).unwrap_or_default().as_secs_f64()
}
