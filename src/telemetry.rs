//! Logs, metrics and traces.
//!
//! Counters are fields of the types that they count for; this module only reads them, at scrape. Names follow client-go's
//! reflectors and kube-apiserver's watch cache where these have one; the configuration bounds the labels.

mod log;
#[cfg_attr(not(feature = "otel"), path = "telemetry/traces/without.rs")]
mod traces;
mod verify;

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use arc_swap::ArcSwap;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric, MetricEncoder, NoLabelSet},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::{Registry, Unit},
};

pub use self::{
    log::{LogFilter, LogFilterError, TelemetryError, init_logs, log_filter},
    traces::{Traces, TracesError},
    verify::VerifyStats,
};
use crate::{
    cache::{
        HealthReport, InformerStats, ProblemReason, RealFifo, ReflectorStats, Snapshot, SnapshotFileStats, SyncState,
    },
    grpc::{ServedResource, Service, WatchLoad},
    process::{ProcessCollector, commit},
    watch::{BroadcasterStats, DURATION_BOUNDS, DurationHistogram},
};

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
    /// Counters of its verifications, if it has any.
    pub verify: Option<Arc<VerifyStats>>,
}

#[derive(Debug)]
struct ResourceCollector {
    resources: Arc<ArcSwap<Vec<ObservedResource>>>,
    service: Service,
}

/// Values of one resource at one moment.
struct Reading<'a> {
    observed: &'a ObservedResource,
    snapshot: Option<Arc<Snapshot>>,
    report: HealthReport,
    watch: Option<Arc<BroadcasterStats>>,
    load: WatchLoad,
}

/// Returns a registry with all metrics of the process and of the resources, which may change.
pub fn registry(resources: Arc<ArcSwap<Vec<ObservedResource>>>, service: Service) -> Registry {
    let mut registry = Registry::default();
    let labels = [("version", env!("CARGO_PKG_VERSION")), ("revision", commit())];
    let build_info = prometheus_client::metrics::info::Info::new(labels);
    registry.register("informerd_build", "Build information of the server", build_info);
    registry.register_collector(Box::new(ProcessCollector));
    registry.register_collector(Box::new(ResourceCollector { resources, service }));
    registry
}

// === impl ResourceCollector ===

impl Collector for ResourceCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let resources = self.resources.load();
        let loads = self.service.watch_loads();
        let reading = |observed| Reading::of(observed, &loads.of(&observed.resource));
        let readings: Vec<Reading<'_>> = resources.iter().map(reading).collect();
        let mut family = Family { encoder: &mut encoder, readings: &readings };
        family.reflector()?;
        family.cache()?;
        family.snapshot_file()?;
        family.watch()?;
        family.delivery()?;
        verify::encode(&mut encoder, &resources)
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
        })?;
        self.gauge_of("reflector_queue", &Unit::Bytes, "Size of the object bodies queued there", |r| {
            r.observed.fifo.bytes() as f64
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
            |r| timestamp(r.report.seen_at),
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
        let help = "Time at which the oldest version was applied that a watch can resume from";
        self.gauge_of("history_oldest_timestamp", &Unit::Seconds, help, |r| {
            timestamp(r.observed.resource.informer.oldest_at())
        })?;
        self.gauge("history_events", "Events in the history, for watches that resume", |r| {
            r.informer(|s| &s.history_events) as f64
        })?;
        self.gauge_of("history", &Unit::Bytes, "Size of the history, for watches that resume", |r| {
            r.informer(|s| &s.history_bytes) as f64
        })?;
        self.counter("history_states", "States of earlier versions computed from the history, for exact reads", |r| {
            r.informer(|s| &s.past_states)
        })?;
        self.counter("watch_events_replayed", "Events sent from the history", |r| r.informer(|s| &s.replayed))?;
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
        self.gauge("state_not_written", "1 while the snapshot file cannot be written to state_dir", |r| {
            let health = r.observed.resource.informer.health();
            f64::from(u8::from(!health.problems_of(&[ProblemReason::SnapshotNotWritten]).is_empty()))
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
        self.gauge("watchers", "Open watches", |r| r.load.watchers as f64)?;
        let help = "Age of the oldest event that waits for a watch";
        self.gauge_of("watch_max_lag", &Unit::Seconds, help, |r| r.load.max_lag.as_secs_f64())?;
        self.gauge("watch_groups", "Selections and formats of watches, each counted once", |r| r.watch(|s| &s.groups))?;
        let help = "Watches ended because the history dropped their events before these were counted or merged";
        self.counter("watch_selections_expired", help, |r| r.watch_count(|s| &s.expired))?;
        let help = "Watches ended because their merged events under COALESCE took too much memory";
        self.counter("watch_coalesced_expired", help, |r| r.watch_count(|s| &s.overmerged))?;
        self.gauge_of("watch_retained", &Unit::Bytes, "Size of the encoded events that are kept", |r| {
            r.watch(|s| &s.retained_size)
        })?;
        self.counter(
            "watch_events_encoded",
            "Events encoded, nearly always once for all watches with the same selection and format",
            |r| r.watch_count(|s| &s.encoded),
        )?;
        self.counter("watch_events_sent", "Events sent to watches, initial events included", |r| r.load.sent.events)?;
        let help = "Bytes sent to watches: events and bookmarks";
        self.encode("watch_sent", Some(&Unit::Bytes), help, MetricType::Counter, |r| {
            ConstCounter::new(r.load.sent.bytes)
        })?;
        self.counter(
            "watch_changes_suppressed",
            "Changes suppressed by views, as bookmarks have reported them",
            |r| r.load.sent.suppressed,
        )?;
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

    /// Encodes the delays of events on their way, and the ends of watches.
    fn delivery(&mut self) -> fmt::Result {
        let help = "Time of an event in each stage: until the cache has it (cache), a publish cycle (publish), \
                    and until the connection of a watch takes it (queue); measured for a sample of events.";
        let name = "informerd_dispatch_duration";
        let mut family = self.encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for reading in self.readings {
            let empty = DurationHistogram::default();
            let watch = reading.watch.as_ref();
            for (stage, histogram) in [
                ("cache", &reading.observed.resource.informer.stats().applied),
                ("publish", watch.map_or(&empty, |stats| &stats.publish)),
                ("queue", watch.map_or(&empty, |stats| &stats.queued)),
            ] {
                let labels = [("resource", reading.observed.resource.name.as_str()), ("stage", stage)];
                encode_histogram(histogram, family.encode_family(&labels)?)?;
            }
        }
        let help = "Time from the creation of an object upstream until its addition was distributed, where the source \
                    has creation times (kube, in whole seconds); measured for a sample of additions.";
        let name = "informerd_propagation_delay";
        let mut family = self.encoder.encode_descriptor(name, help, Some(&Unit::Seconds), MetricType::Histogram)?;
        for reading in self.readings {
            let labels = [("resource", reading.observed.resource.name.as_str())];
            encode_histogram(&reading.observed.resource.informer.stats().propagation, family.encode_family(&labels)?)?;
        }
        let help = "Ends of watches by reason: that of the status, CANCELLED by the client, TIMEOUT, CONDITION_MET, \
                    DEADLINE_EXCEEDED, or an end by the transport such as STREAM_STALLED and CONNECTION_STALLED.";
        let mut family = self.encoder.encode_descriptor("informerd_watch_ends", help, None, MetricType::Counter)?;
        for reading in self.readings {
            for (reason, count) in reading.load.ends() {
                let labels = [("resource", reading.observed.resource.name.as_str()), ("reason", reason)];
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
        }
        Ok(())
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
        let mut family = self.encoder.encode_descriptor(&name, &format!("{help}."), unit, metric_type)?;
        for reading in self.readings {
            let labels = [("resource", reading.observed.resource.name.as_str())];
            metric(reading).encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }
}

// === impl Reading ===

impl<'a> Reading<'a> {
    fn of(observed: &'a ObservedResource, load: &WatchLoad) -> Self {
        let informer = &observed.resource.informer;
        let (snapshot, report, watch) = (informer.snapshot(), informer.report(), informer.watch_stats());
        Self { observed, snapshot, report, watch, load: *load }
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

/// Encodes a histogram, whose text form has a last bucket without a bound.
fn encode_histogram(histogram: &DurationHistogram, mut encoder: MetricEncoder<'_>) -> fmt::Result {
    let counts = histogram.counts();
    let bounds = DURATION_BOUNDS.into_iter().chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(counts).collect();
    encoder.encode_histogram::<NoLabelSet>(histogram.sum(), counts.iter().sum(), &buckets, None)
}

fn timestamp(at: Option<SystemTime>) -> f64 {
    at.and_then(|at| at.duration_since(UNIX_EPOCH).ok()).map_or(0.0, |since| since.as_secs_f64())
}
