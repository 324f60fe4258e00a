//! RPCs by method and code, under go-grpc-prometheus' names, so that existing dashboards work.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, EncodeMetric, LabelValueEncoder},
    metrics::{MetricType, counter::Counter, family::Family, gauge::ConstGauge},
    registry::{Registry, Unit},
};
use tonic::{Code, Status};

use super::status::Refusal;
use crate::transport::{Ledger, Refused};

/// Counts calls as they begin and as they end.
#[derive(Debug, Default)]
pub struct RpcMetrics {
    started: Family<MethodLabels, Counter>,
    handled: Family<RpcLabels, Counter>,
    stalled: Counter,
    ended: Family<ReasonLabels, Counter>,
    refused: Refused,
}

/// Labels of a call that has begun.
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

/// Why the server has ended a stream.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// A status code as a label, by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct RpcCode(Code);

/// Counts the end of one call when its last clone is dropped, so that an abandoned stream is counted too: as CANCELLED,
/// unless it was told otherwise.
#[derive(Debug, Clone)]
pub(super) struct RpcObserver(Arc<Observed>);

#[derive(Debug)]
struct Observed {
    metrics: Arc<RpcMetrics>,
    method: &'static str,
    code: Mutex<Code>,
}

/// Reads the memory that is held for clients.
#[derive(Debug)]
pub(super) struct WaitingBytes(pub(super) Arc<Ledger>);

const SERVICE: &str = "informerd.v1.InformerService";

// === impl RpcMetrics ===

impl RpcMetrics {
    /// Makes them known to a registry.
    pub(super) fn register(&self, registry: &mut Registry) {
        registry.register("grpc_server_started", "RPCs started", self.started.clone());
        registry.register("grpc_server_handled", "RPCs ended, by code", self.handled.clone());
        let help = "Streams reset because their clients took nothing for watch.progress_timeout";
        registry.register("informerd_streams_stalled", help, self.stalled.clone());
        registry.register(
            "informerd_streams_ended",
            "Streams that the server has ended, by reason",
            self.ended.clone(),
        );
        self.refused.register(registry);
    }

    /// Returns the counter of streams that were reset because their clients took nothing.
    pub fn stalled(&self) -> Counter {
        self.stalled.clone()
    }

    /// Returns the counters of what was refused.
    pub fn refused(&self) -> &Refused {
        &self.refused
    }

    /// Returns the counter of streams that were ended because too much memory was held for clients.
    pub(super) fn ended_for_memory(&self) -> Counter {
        self.ended.get_or_create_owned(&ReasonLabels { reason: "memory" })
    }

    pub(super) fn start(self: &Arc<Self>, method: &'static str) -> RpcObserver {
        self.started.get_or_create(&MethodLabels { grpc_service: SERVICE, grpc_method: method }).inc();
        let code = Mutex::new(Code::Cancelled);
        RpcObserver(Arc::new(Observed { metrics: Arc::clone(self), method, code }))
    }
}

// === impl WaitingBytes ===

impl Collector for WaitingBytes {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let waiting = self.0.waiting();
        let help = "Memory held for clients that have yet to take it, by what holds it";
        let name = "informerd_waiting";
        let mut family = encoder.encode_descriptor(name, help, Some(&Unit::Bytes), MetricType::Gauge)?;
        for (owner, bytes) in [("sending", waiting.sending), ("made", waiting.made), ("kept", waiting.kept)] {
            ConstGauge::new(bytes as f64).encode(family.encode_family(&[("owner", owner)])?)?;
        }
        let (name, help) = ("informerd_waiting_limit", "Bound of the memory that is held for clients (limits.memory)");
        let limit = encoder.encode_descriptor(name, help, Some(&Unit::Bytes), MetricType::Gauge)?;
        ConstGauge::new(self.0.limit() as f64).encode(limit)
    }
}

// === impl RpcObserver ===

impl RpcObserver {
    /// How the call will have ended.
    pub(super) fn ends(&self, code: Code) {
        *self.0.code.lock() = code;
    }

    /// Takes note of the result of a call, or of the start of its stream, and makes a refusal a status.
    pub(super) fn result<T>(&self, result: Result<T, Refusal>) -> Result<T, Status> {
        match result {
            Ok(answer) => {
                // A stream's body holds a clone, and says how it ended.
                if Arc::strong_count(&self.0) == 1 {
                    self.ends(Code::Ok);
                }
                Ok(answer)
            }
            Err(refusal) => {
                if let Some(bound) = refusal.bound() {
                    self.0.metrics.refused.count(bound);
                }
                self.ends(refusal.code_and_reason().0);
                Err(refusal.to_status())
            }
        }
    }
}

impl Drop for Observed {
    fn drop(&mut self) {
        let labels =
            RpcLabels { grpc_service: SERVICE, grpc_method: self.method, grpc_code: RpcCode(*self.code.lock()) };
        self.metrics.handled.get_or_create(&labels).inc();
    }
}

// === impl RpcCode ===

impl EncodeLabelValue for RpcCode {
    fn encode(&self, encoder: &mut LabelValueEncoder<'_>) -> Result<(), std::fmt::Error> {
        EncodeLabelValue::encode(&format!("{:?}", self.0), encoder)
    }
}
