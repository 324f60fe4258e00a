//! Metrics of RPCs by method and code. They have the names of go-grpc-prometheus, so that existing dashboards work.

use std::sync::Arc;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric, LabelValueEncoder},
    metrics::{MetricType, counter::Counter, family::Family, gauge::ConstGauge},
    registry::{Registry, Unit},
};
use tonic::{Code, Status};

use super::status::ApiError;
use crate::transport::{Ledger, Rejections};

/// Counters of RPCs: started, ended, reset and rejected.
#[derive(Debug, Default)]
pub struct RpcMetrics {
    started: Family<MethodLabels, Counter>,
    handled: Family<RpcLabels, Counter>,
    stalled: Counter,
    ended: Family<ReasonLabels, Counter>,
    refused: Rejections,
}

/// Labels of a call that was started.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MethodLabels {
    grpc_service: &'static str,
    grpc_method: &'static str,
}

/// Labels of a call that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
#[expect(clippy::struct_field_names, reason = "the names of the labels, which dashboards know")]
struct RpcLabels {
    grpc_service: &'static str,
    grpc_method: &'static str,
    grpc_code: RpcCode,
}

/// Label for the reason for which the server ended a stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// Status code as a label, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct RpcCode(Code);

/// Observer of one call. It counts the end of the call when it is dropped, so that an abandoned stream is counted too: as
/// CANCELLED, unless [`ends`](Self::ends) has set another code.
#[derive(Debug)]
pub(super) struct RpcObserver {
    metrics: Arc<RpcMetrics>,
    method: Method,
    code: Code,
}

/// Service and name of a method.
type Method = (&'static str, &'static str);

/// Collector of the memory that is held for clients.
#[derive(Debug)]
pub(super) struct WaitingBytes(pub(super) Arc<Ledger>);

const INFORMER_SERVICE: &str = "informerd.v1.InformerService";
const ADMIN_SERVICE: &str = "informerd.v1.AdminService";
/// Methods whose calls are counted.
const METHODS: [Method; 9] = [
    (INFORMER_SERVICE, "Watch"),
    (INFORMER_SERVICE, "List"),
    (INFORMER_SERVICE, "Get"),
    (INFORMER_SERVICE, "ByIndex"),
    (INFORMER_SERVICE, "Until"),
    (INFORMER_SERVICE, "Explain"),
    (INFORMER_SERVICE, "ListResources"),
    (INFORMER_SERVICE, "ListIndexValues"),
    (ADMIN_SERVICE, "ListWatchers"),
];

// === impl RpcMetrics ===

impl RpcMetrics {
    /// Registers the counters.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("grpc_server_started", "RPCs started on the server", self.started.clone());
        registry.register("grpc_server_handled", "RPCs completed on the server, by code", self.handled.clone());
        let help = "Streams reset because their clients read nothing for watch.progress_timeout";
        registry.register("informerd_streams_stalled", help, self.stalled.clone());
        registry.register("informerd_streams_ended", "Streams ended by the server, by reason", self.ended.clone());
        self.refused.register(registry);
    }

    /// Returns the counter of streams that were reset because their clients read nothing.
    pub fn stalled(&self) -> Counter {
        self.stalled.clone()
    }

    /// Returns the counters of rejected requests, by limit.
    pub fn refused(&self) -> &Rejections {
        &self.refused
    }

    /// Returns the counter of streams that the server ended for a reason.
    pub(super) fn ended(&self, reason: &'static str) -> Counter {
        self.ended.get_or_create_owned(&ReasonLabels { reason })
    }

    /// Counts the start of a call by the path of its method; none if it is not one of [`METHODS`].
    pub(super) fn start(self: &Arc<Self>, path: &str) -> Option<RpcObserver> {
        let called = path.strip_prefix('/')?.split_once('/')?;
        let method = *METHODS.iter().find(|method| **method == called)?;
        self.started.get_or_create(&MethodLabels { grpc_service: method.0, grpc_method: method.1 }).inc();
        Some(RpcObserver { metrics: Arc::clone(self), method, code: Code::Cancelled })
    }

    /// Converts a refusal to a status, and counts it if a limit is its reason.
    pub(super) fn refuse(&self, refusal: &ApiError) -> Status {
        if let Some(bound) = refusal.bound() {
            self.refused.count(bound);
        }
        refusal.to_status()
    }
}

// === impl WaitingBytes ===

impl Collector for WaitingBytes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let waiting = self.0.waiting();
        let help = "Memory held for clients that have not read it yet, by owner";
        let name = "informerd_waiting";
        let mut family = encoder.encode_descriptor(name, help, Some(&Unit::Bytes), MetricType::Gauge)?;
        for (owner, bytes) in [("sending", waiting.sending), ("made", waiting.encoded_bytes), ("kept", waiting.kept)] {
            ConstGauge::new(bytes as f64).encode(family.encode_family(&[("owner", owner)])?)?;
        }
        let (name, help) = ("informerd_waiting_limit", "Limit of the memory held for clients (limits.memory)");
        let limit = encoder.encode_descriptor(name, help, Some(&Unit::Bytes), MetricType::Gauge)?;
        ConstGauge::new(self.0.limit() as f64).encode(limit)
    }
}

// === impl RpcObserver ===

impl RpcObserver {
    /// Sets the status code of the call.
    pub(super) fn ends(&mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for RpcObserver {
    fn drop(&mut self) {
        let (grpc_service, grpc_method) = self.method;
        let labels = RpcLabels { grpc_service, grpc_method, grpc_code: RpcCode(self.code) };
        self.metrics.handled.get_or_create(&labels).inc();
    }
}

// === impl RpcCode ===

impl EncodeLabelValue for RpcCode {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        EncodeLabelValue::encode(&format!("{:?}", self.0), encoder)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message;
    use prost_types::FileDescriptorSet;

    use super::*;
    use crate::proto::pb;

    #[test]
    fn the_calls_of_every_method_are_counted() {
        let files = FileDescriptorSet::decode(pb::FILE_DESCRIPTOR_SET).unwrap().file;
        let files = files.iter().filter(|file| file.package() == "informerd.v1");
        let services = files.flat_map(|file| &file.service);
        let methods = services.flat_map(|service| {
            service.method.iter().map(|method| (format!("informerd.v1.{}", service.name()), method.name().to_owned()))
        });
        let known = METHODS.map(|(service, method)| (service.to_owned(), method.to_owned()));
        assert_eq!(methods.collect::<BTreeSet<_>>(), BTreeSet::from(known));
    }
}
