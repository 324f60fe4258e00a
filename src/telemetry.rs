//! Logs and metrics.
//!
//! Counters are fields of the types that they count for; this module only reads them, at scrape. Names follow client-go's
//! reflectors and kube-apiserver's watch cache where these have one; the configuration bounds the labels.

use std::{
    fmt,
    io::IsTerminal,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::UNIX_EPOCH,
};

use arc_swap::ArcSwap;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::{Registry, Unit},
};
use tracing_subscriber::{
    filter::{ParseError, Targets},
    layer::SubscriberExt,
    util::SubscriberInitExt,
};

use crate::{
    cache::{HealthReport, InformerStats, RealFifo, ReflectorStats, Snapshot, SnapshotFileStats, SyncState},
    config::LogFormat,
    grpc::ServedResource,
    watch::BroadcasterStats,
};

/// Log filter that does not parse.
#[derive(Debug, thiserror::Error)]
#[error("invalid log filter {filter:?}: {reason}; write a level such as info, or informerd=debug,warn")]
pub struct LogFilterError {
    filter: String,
    reason: String,
}

/// Parts of one resource that metrics are read from.
#[derive(Debug, Clone)]
pub struct ObservedResource {
    /// Resource as it is served.
    pub resource: ServedResource,
    /// Counters of its Reflector.
    pub reflector: Arc<ReflectorStats>,
    /// Queue between its Reflector and its informer.
    pub fifo: Arc<RealFifo>,
    /// Counters of its snapshot file, if it has one.
    pub snapshot_file: Option<Arc<SnapshotFileStats>>,
}

#[derive(Debug)]
struct ResourceCollector {
    resources: Arc<ArcSwap<Vec<ObservedResource>>>,
}

/// Values of one resource at one moment.
struct Reading<'a> {
    observed: &'a ObservedResource,
    snapshot: Option<Arc<Snapshot>>,
    report: HealthReport,
    watch: Option<Arc<BroadcasterStats>>,
}

/// Sends logs to stderr. The binary calls it once.
pub fn init_logs(filter: &str, format: LogFormat) -> Result<(), LogFilterError> {
    let targets: Targets = filter
        .parse()
        .map_err(|error: ParseError| LogFilterError { filter: filter.to_owned(), reason: error.to_string() })?;
    let registry = tracing_subscriber::registry().with(targets);
    let layer = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Text => {
            let colour = std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
            registry.with(layer.with_ansi(colour).with_target(false)).init();
        }
        LogFormat::Json => registry.with(layer.json().flatten_event(true)).init(),
    }
    Ok(())
}

/// Returns a registry with all metrics of the resources, which may change.
pub fn registry(resources: Arc<ArcSwap<Vec<ObservedResource>>>) -> Registry {
    let mut registry = Registry::default();
    let build_info = prometheus_client::metrics::info::Info::new([("version", env!("CARGO_PKG_VERSION"))]);
    registry.register("informerd_build", "Build information of the server", build_info);
    registry.register_collector(Box::new(ResourceCollector { resources }));
    registry
}

// === impl ResourceCollector ===

impl Collector for ResourceCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let resources = self.resources.load();
        let readings: Vec<Reading<'_>> = resources.iter().map(Reading::of).collect();
        let mut family = Family { encoder: &mut encoder, readings: &readings };
        family.reflector()?;
        family.cache()?;
        family.snapshot_file()?;
        family.watch()
    }
}

/// Encoder of one metric for all resources at a time, as the text format requires.
struct Family<'a, 'e> {
    encoder: &'a mut DescriptorEncoder<'e>,
    readings: &'a [Reading<'a>],
}

// === impl Family ===

impl Family<'_, '_> {
    fn reflector(&mut self) -> fmt::Result {
        self.counter("reflector_lists", "Lists requested from the upstream", |r| r.reflector(|s| &s.lists))?;
        self.counter("reflector_list_failures", "Failed lists", |r| r.reflector(|s| &s.list_failures))?;
        self.counter("reflector_listed_objects", "Objects in all lists", |r| r.reflector(|s| &s.listed_objects))?;
        self.counter("reflector_watches", "Watches requested from the upstream", |r| r.reflector(|s| &s.watches))?;
        self.counter("reflector_watch_failures", "Upstream watches that failed to open or ended with an error", |r| {
            r.reflector(|s| &s.watch_failures)
        })?;
        self.counter("reflector_events", "Events from the upstream, bookmarks included", |r| {
            r.reflector(|s| &s.events)
        })?;
        self.counter("reflector_unexpected_objects", "Objects of another type than the expected one, left out", |r| {
            r.reflector(|s| &s.unexpected)
        })?;
        self.gauge("reflector_queue_length", "Deltas queued between the Reflector and the informer", |r| {
            r.observed.fifo.len() as f64
        })
    }

    fn cache(&mut self) -> fmt::Result {
        self.gauge("cache_objects", "Objects in the cache", |r| r.snapshot.as_ref().map_or(0.0, |s| s.len() as f64))?;
        self.gauge_of("cache_body", &Unit::Bytes, "Size of all object bodies in the cache", |r| {
            r.snapshot.as_ref().map_or(0.0, |s| s.body_bytes() as f64)
        })?;
        self.gauge("cache_synced", "1 if the list of the upstream is applied and the upstream is responding", |r| {
            f64::from(u8::from(r.report.state == SyncState::Synced))
        })?;
        self.gauge("cache_stale", "1 if the last known state is served because the upstream is not responding", |r| {
            f64::from(u8::from(r.report.state == SyncState::Stale))
        })?;
        self.gauge_of(
            "source_last_seen_timestamp",
            &Unit::Seconds,
            "Time of the last response of the upstream",
            |r| {
                let seen_at = r.report.seen_at.and_then(|at| at.duration_since(UNIX_EPOCH).ok());
                seen_at.map_or(0.0, |since| since.as_secs_f64())
            },
        )?;
        self.gauge("source_problems", "Current problems of the source, as in ListResources", |r| {
            r.report.problems as f64
        })?;
        self.counter("cache_changes", "Objects added, modified and deleted", |r| r.informer(|s| &s.changes))?;
        self.counter("cache_unchanged_events", "Upstream events that changed no object", |r| {
            r.informer(|s| &s.unchanged)
        })?;
        self.counter("cache_objects_not_served", "Objects that exist upstream and can no longer be served", |r| {
            r.informer(|s| &s.not_served)
        })?;
        self.counter(
            "source_late_changes",
            "Changes at versions that were already complete by the rules of the upstream",
            |r| r.observed.resource.informer.health().late_changes(),
        )?;
        self.counter("cache_replaces", "Lists applied", |r| r.informer(|s| &s.replaces))?;
        self.gauge("history_events", "Events in the history, for watches that resume", |r| {
            r.informer(|s| &s.history_events) as f64
        })?;
        self.gauge_of("history", &Unit::Bytes, "Size of the history, for watches that resume", |r| {
            r.informer(|s| &s.history_bytes) as f64
        })?;
        self.counter("watch_events_replayed", "Events sent from the history", |r| r.informer(|s| &s.replayed))?;
        self.counter("watch_parked", "Times a watch was parked", |r| r.informer(|s| &s.parked))?;
        self.counter("expression_errors", "Failed evaluations of expressions, which count as false", |r| {
            r.informer(|s| &s.expression_errors) + r.observed.resource.informer.indexers().expression_errors()
        })?;
        self.counter("cache_rewinds", "Rewrites of the upstream history", |r| r.informer(|s| &s.history_rewrites))
    }

    fn snapshot_file(&mut self) -> fmt::Result {
        self.counter("state_writes", "Snapshot files written to state_dir", |r| r.snapshot_file(|s| &s.writes))?;
        self.counter("state_write_failures", "Failed writes of snapshot files to state_dir", |r| {
            r.snapshot_file(|s| &s.failures)
        })?;
        self.gauge_of("state", &Unit::Bytes, "Size of the last written snapshot file", |r| {
            r.snapshot_file(|s| &s.size) as f64
        })?;
        self.gauge_of("state_write", &Unit::Seconds, "Duration of the last write of the snapshot file", |r| {
            r.snapshot_file(|s| &s.micros) as f64 / 1e6
        })?;
        self.gauge_of("state_written_timestamp", &Unit::Seconds, "Time of the last write of the snapshot file", |r| {
            r.snapshot_file(|s| &s.written_at_ms) as f64 / 1e3
        })
    }

    fn watch(&mut self) -> fmt::Result {
        self.gauge("watchers", "Open watches", |r| r.watch(|s| &s.watchers))?;
        self.gauge("watch_groups", "Groups of watches with the same selection and format", |r| r.watch(|s| &s.groups))?;
        let help = "Groups filled by background threads, because their selections take the writer too long";
        self.gauge("watch_groups_deferred", help, |r| r.watch(|s| &s.deferred))?;
        self.counter("watch_deferrals", "Times the selection of a group took the writer too long", |r| {
            r.watch_count(|s| &s.deferrals)
        })?;
        let help =
            "Watches ended because the threads that fill their group or merge their events lagged behind the history";
        self.counter("watch_selections_expired", help, |r| r.watch_count(|s| &s.expired))?;
        let help = "Watches ended because their merged events under COALESCE exceeded watch.coalesce_bytes";
        self.counter("watch_coalesced_expired", help, |r| r.watch_count(|s| &s.overmerged))?;
        self.gauge_of("watch_retained", &Unit::Bytes, "Size of the encoded events kept for lagging watches", |r| {
            r.watch(|s| &s.retained_size)
        })?;
        self.counter("watch_events_encoded", "Events encoded, once per format and variant", |r| {
            r.watch_count(|s| &s.encoded)
        })?;
        self.counter("watch_events_sent", "Events sent to watches", |r| r.watch_count(|s| &s.delivered))?;
        self.counter("watch_events_dropped", "Events dropped under DROP", |r| r.watch_count(|s| &s.dropped))?;
        let help = "Watches ended under BLOCK because their client exhausted its budget";
        self.counter("watch_evicted", help, |r| r.watch_count(|s| &s.evicted))?;
        let help = "Full queues under BLOCK served as under REPLAY because the budget of the resource was exhausted";
        self.counter("watch_block_denied", help, |r| r.watch_count(|s| &s.denied))?;
        let help = "Time that distribution was blocked under BLOCK";
        self.encode("watch_blocked", Some(&Unit::Seconds), help, MetricType::Counter, |r| {
            ConstCounter::new(r.watch(|s| &s.blocked_micros) / 1e6)
        })
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Fn(&Reading<'_>) -> u64) -> fmt::Result {
        self.encode(name, None, help, MetricType::Counter, |reading| ConstCounter::new(value(reading)))
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Fn(&Reading<'_>) -> f64) -> fmt::Result {
        self.encode(name, None, help, MetricType::Gauge, |reading| ConstGauge::new(value(reading)))
    }

    fn gauge_of(&mut self, name: &str, unit: &Unit, help: &str, value: impl Fn(&Reading<'_>) -> f64) -> fmt::Result {
        self.encode(name, Some(unit), help, MetricType::Gauge, |reading| ConstGauge::new(value(reading)))
    }

    fn encode<M: EncodeMetric>(
        &mut self,
        name: &str,
        unit: Option<&Unit>,
        help: &str,
        metric_type: MetricType,
        metric: impl Fn(&Reading<'_>) -> M,
    ) -> fmt::Result {
        let name = format!("informerd_{name}");
        let mut family = self.encoder.encode_descriptor(&name, help, unit, metric_type)?;
        for reading in self.readings {
            let labels = [("resource", reading.observed.resource.name.as_str())];
            metric(reading).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

// === impl Reading ===

impl<'a> Reading<'a> {
    fn of(observed: &'a ObservedResource) -> Self {
        let informer = &observed.resource.informer;
        Self { observed, snapshot: informer.snapshot(), report: informer.report(), watch: informer.watch_stats() }
    }

    fn reflector(&self, counter: impl Fn(&ReflectorStats) -> &AtomicU64) -> u64 {
        load(counter(&self.observed.reflector))
    }

    fn informer(&self, counter: impl Fn(&InformerStats) -> &AtomicU64) -> u64 {
        load(counter(self.observed.resource.informer.stats()))
    }

    fn snapshot_file(&self, counter: impl Fn(&SnapshotFileStats) -> &AtomicU64) -> u64 {
        self.observed.snapshot_file.as_ref().map_or(0, |stats| load(counter(stats)))
    }

    fn watch_count(&self, counter: impl Fn(&BroadcasterStats) -> &AtomicU64) -> u64 {
        self.watch.as_ref().map_or(0, |stats| load(counter(stats)))
    }

    fn watch(&self, gauge: impl Fn(&BroadcasterStats) -> &AtomicU64) -> f64 {
        self.watch_count(gauge) as f64
    }
}

fn load(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
