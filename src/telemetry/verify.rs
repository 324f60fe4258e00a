//! Metrics of the verifications of resources.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
};

use prometheus_client::{
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter, gauge::ConstGauge},
    registry::Unit,
};

use super::ObservedResource;

/// Outcomes of the verifications of one resource.
#[derive(Debug, Default)]
pub struct VerifyStats {
    /// Comparisons without a difference.
    pub equal: AtomicU64,
    /// Comparisons with one.
    pub differs: AtomicU64,
    /// Verifications that the upstream, or the time limit, has ended.
    pub failed: AtomicU64,
    /// Verifications that were due when the resource was not SYNCED.
    pub skipped: AtomicU64,
    /// Objects that differed in the last comparison.
    pub differences: AtomicU64,
    /// Time of the last comparison, in milliseconds; 0 before it.
    pub completed_at_ms: AtomicU64,
}

/// Encodes the counters of the resources that are verified.
pub(super) fn encode(encoder: &mut DescriptorEncoder<'_>, resources: &[ObservedResource]) -> fmt::Result {
    let verified =
        || resources.iter().filter_map(|observed| Some((observed.resource.name.as_str(), observed.verify.as_deref()?)));
    let load = |value: &AtomicU64| value.load(Ordering::Relaxed);
    let help = "Verifications of the cache by a list of the upstream, by result: equal, differs, failed, skipped (not synced).";
    let mut family = encoder.encode_descriptor("informerd_verify", help, None, MetricType::Counter)?;
    for (resource, stats) in verified() {
        for (result, count) in [
            ("equal", &stats.equal),
            ("differs", &stats.differs),
            ("failed", &stats.failed),
            ("skipped", &stats.skipped),
        ] {
            let labels = [("resource", resource), ("result", result)];
            ConstCounter::new(load(count)).encode(family.encode_family(&labels)?)?;
        }
    }
    let help = "Objects that differed from the upstream in the last verification that compared them.";
    let mut family = encoder.encode_descriptor("informerd_verify_differences", help, None, MetricType::Gauge)?;
    for (resource, stats) in verified() {
        ConstGauge::new(load(&stats.differences) as f64).encode(family.encode_family(&[("resource", resource)])?)?;
    }
    let (name, unit) = ("informerd_verify_last_success_timestamp", Some(&Unit::Seconds));
    let help = "Time of the last verification that compared the objects, with a difference or without.";
    let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
    for (resource, stats) in verified() {
        let seconds = load(&stats.completed_at_ms) as f64 / 1e3;
        ConstGauge::new(seconds).encode(family.encode_family(&[("resource", resource)])?)?;
    }
    Ok(())
}
