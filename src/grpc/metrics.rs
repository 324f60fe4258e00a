//! Metrics of RPCs by method and code. They have the names, labels and values of go-grpc-prometheus, so that existing dashboards
//! and alerts work. Each series exists from the start, as there: the first error is an increase.

use std::sync::Arc;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::Counter, family::Family, gauge::ConstGauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use tokio::time::Instant;
use tonic::{Code, Status};
use tracing::Span;

use super::{boundaries::Boundaries, status::ApiError};
use crate::{
    proto::Structs,
    transport::{Chunk, Ledger, Rejections},
};

/// Counters of RPCs: started, ended, reset and rejected.
#[derive(Debug)]
pub struct RpcMetrics {
    started: Family<MethodLabels, Counter>,
    handled: Family<RpcLabels, Counter>,
    handling: Family<MethodLabels, Histogram, fn() -> Histogram>,
    received: Family<MethodLabels, Counter>,
    sent: Family<MethodLabels, Counter>,
    stalled: Counter,
    ended: Family<[(&'static str, &'static str); 1], Counter>,
    refused: Rejections,
}

/// Service, name and type of a method.
type MethodLabels = [(&'static str, &'static str); 3];
/// The same, and the status code of a call that has ended.
type RpcLabels = [(&'static str, &'static str); 4];

/// Observer of one call. It counts the end of the call when it is dropped, so that an abandoned stream is counted too: as
/// CANCELLED, unless [`ends`](Self::ends) has set another code.
#[derive(Debug)]
pub(super) struct RpcObserver {
    metrics: Arc<RpcMetrics>,
    method: &'static Method,
    code: Code,
    began: Instant,
    /// Position in the messages of the response.
    boundaries: Boundaries,
    sent: Counter,
    span: Span,
}

/// Service, name and type of a method.
type Method = (&'static str, &'static str, &'static str);

/// Collector of the server's connections and of the memory that it holds for clients.
#[derive(Debug)]
pub(super) struct ServerCollector {
    pub(super) ledger: Arc<Ledger>,
    pub(super) structs: Arc<Structs>,
}

const INFORMER_SERVICE: &str = "informerd.v1.InformerService";
const ADMIN_SERVICE: &str = "informerd.v1.AdminService";
const HEALTH_SERVICE: &str = "grpc.health.v1.Health";
const UNARY: &str = "unary";
const SERVER_STREAM: &str = "server_stream";
const BIDI_STREAM: &str = "bidi_stream";
/// Methods whose calls are counted.
static METHODS: &[&[Method]] = &[
    &[
        (INFORMER_SERVICE, "Watch", SERVER_STREAM),
        (INFORMER_SERVICE, "Subscribe", BIDI_STREAM),
        (INFORMER_SERVICE, "List", SERVER_STREAM),
        (INFORMER_SERVICE, "Get", UNARY),
        (INFORMER_SERVICE, "ByIndex", SERVER_STREAM),
        (INFORMER_SERVICE, "Changes", SERVER_STREAM),
        (INFORMER_SERVICE, "Until", UNARY),
        (INFORMER_SERVICE, "Explain", UNARY),
        (INFORMER_SERVICE, "ListResources", UNARY),
        (INFORMER_SERVICE, "ListIndexValues", UNARY),
        (ADMIN_SERVICE, "ListWatchers", UNARY),
        (ADMIN_SERVICE, "DisconnectWatchers", UNARY),
        (ADMIN_SERVICE, "GetStats", UNARY),
        (HEALTH_SERVICE, "Check", UNARY),
        (HEALTH_SERVICE, "Watch", SERVER_STREAM),
        ("grpc.reflection.v1.ServerReflection", "ServerReflectionInfo", BIDI_STREAM),
        ("grpc.reflection.v1alpha.ServerReflection", "ServerReflectionInfo", BIDI_STREAM),
    ],
    // Requests to the Kubernetes API, and for resources under their own names at the same listener: their HTTP status counts as
    // the gRPC code that it stands for.
    #[cfg(feature = "kubernetes-api")]
    &[
        ("kubernetes", "Watch", SERVER_STREAM),
        ("kubernetes", "List", SERVER_STREAM),
        ("kubernetes", "Get", UNARY),
        ("kubernetes", "Discover", UNARY),
        ("kubernetes", "Review", UNARY),
        ("http", "Watch", SERVER_STREAM),
        ("http", "List", SERVER_STREAM),
        ("http", "Get", UNARY),
    ],
];
/// Status codes, under their names in grpc-go.
const CODES: [(Code, &str); 17] = [
    (Code::Ok, "OK"),
    (Code::Cancelled, "Canceled"),
    (Code::Unknown, "Unknown"),
    (Code::InvalidArgument, "InvalidArgument"),
    (Code::DeadlineExceeded, "DeadlineExceeded"),
    (Code::NotFound, "NotFound"),
    (Code::AlreadyExists, "AlreadyExists"),
    (Code::PermissionDenied, "PermissionDenied"),
    (Code::ResourceExhausted, "ResourceExhausted"),
    (Code::FailedPrecondition, "FailedPrecondition"),
    (Code::Aborted, "Aborted"),
    (Code::OutOfRange, "OutOfRange"),
    (Code::Unimplemented, "Unimplemented"),
    (Code::Internal, "Internal"),
    (Code::Unavailable, "Unavailable"),
    (Code::DataLoss, "DataLoss"),
    (Code::Unauthenticated, "Unauthenticated"),
];
/// Default buckets of Prometheus, which go-grpc-prometheus uses, in seconds.
const BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

// === impl RpcMetrics ===

impl RpcMetrics {
    /// Registers the counters.
    pub(super) fn register(&self, registry: &mut Registry) {
        for method in METHODS.iter().copied().flatten() {
            drop(self.started.get_or_create(&labels(method)));
            drop(self.handling.get_or_create(&labels(method)));
            drop(self.received.get_or_create(&labels(method)));
            drop(self.sent.get_or_create(&labels(method)));
            for (code, _) in CODES {
                drop(self.handled.get_or_create(&labels_of_end(method, code)));
            }
        }
        registry.register("grpc_server_started", "RPCs started on the server", self.started.clone());
        registry.register("grpc_server_handled", "RPCs completed on the server, by code", self.handled.clone());
        let (name, help) = ("grpc_server_handling", "Time from the start of an RPC to its end");
        registry.register_with_unit(name, help, Unit::Seconds, self.handling.clone());
        registry.register("grpc_server_msg_received", "Messages received from clients", self.received.clone());
        registry.register("grpc_server_msg_sent", "Messages sent to clients", self.sent.clone());
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
        self.ended.get_or_create_owned(&[("reason", reason)])
    }

    /// Counts the start of a call by the path of its method; none if it is not one of [`METHODS`].
    pub(super) fn start(self: &Arc<Self>, path: &str) -> Option<RpcObserver> {
        let called = path.strip_prefix('/')?.split_once('/')?;
        let method = METHODS.iter().copied().flatten().find(|(service, name, _)| (*service, *name) == called)?;
        self.started.get_or_create(&labels(method)).inc();
        Some(RpcObserver {
            metrics: Arc::clone(self),
            method,
            code: Code::Cancelled,
            began: Instant::now(),
            boundaries: Boundaries::default(),
            sent: self.sent.get_or_create_owned(&labels(method)),
            span: Span::none(),
        })
    }

    /// Converts a refusal to a status, and counts it if a limit is its reason.
    pub(super) fn refuse(&self, refusal: &ApiError) -> Status {
        if let Some(bound) = refusal.bound() {
            self.refused.count(bound);
        }
        refusal.to_status()
    }
}

impl Default for RpcMetrics {
    fn default() -> Self {
        Self {
            started: Family::default(),
            handled: Family::default(),
            handling: Family::new_with_constructor(|| Histogram::new(BUCKETS)),
            received: Family::default(),
            sent: Family::default(),
            stalled: Counter::default(),
            ended: Family::default(),
            refused: Rejections::default(),
        }
    }
}

// === impl ServerCollector ===

impl Collector for ServerCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Self { ledger, structs } = self;
        let waiting = ledger.waiting();
        let help =
            "Memory held for clients that have not read it yet, or have not sent all of it (requests), by owner.";
        let mut family = encoder.encode_descriptor("informerd_waiting", help, Some(&Unit::Bytes), MetricType::Gauge)?;
        for (owner, bytes) in [
            ("sending", waiting.sending),
            ("made", waiting.encoded_bytes),
            ("kept", waiting.kept),
            ("requests", waiting.requests),
        ] {
            ConstGauge::new(bytes as f64).encode(family.encode_family(&[("owner", owner)])?)?;
        }
        for (name, unit, help, value) in [
            (
                "informerd_waiting_limit",
                Some(&Unit::Bytes),
                "Limit of the memory held for clients (limits.memory).",
                ledger.limit(),
            ),
            ("informerd_connections", None, "Open client connections.", ledger.connections()),
            ("informerd_struct_cache", Some(&Unit::Bytes), "Memory of the cache of converted bodies.", structs.bytes()),
        ] {
            let gauge = encoder.encode_descriptor(name, help, unit, MetricType::Gauge)?;
            ConstGauge::new(value as f64).encode(gauge)?;
        }
        Ok(())
    }
}

// === impl RpcObserver ===

impl RpcObserver {
    /// Sets the span of the call, which ends with it.
    pub(super) fn in_span(mut self, span: Span) -> Self {
        self.span = span;
        self
    }

    /// Returns the counter of the messages that the call receives.
    pub(super) fn received(&self) -> Counter {
        self.metrics.received.get_or_create_owned(&labels(self.method))
    }

    /// Counts the messages of the response that end in a frame: once for the whole frame.
    pub(super) fn sends(&mut self, frame: &Chunk) {
        let messages: u64 = frame.pieces().map(|piece| self.boundaries.count(piece)).sum();
        self.sent.inc_by(messages);
    }

    /// Counts messages of a response that is no frame of gRPC.
    #[cfg(feature = "kubernetes-api")]
    pub(super) fn sends_messages(&self, messages: u64) {
        self.sent.inc_by(messages);
    }

    /// Sets the status code of the call.
    pub(super) fn ends(&mut self, code: Code) {
        self.code = code;
    }
}

impl Drop for RpcObserver {
    fn drop(&mut self) {
        self.span.record("rpc.grpc.status_code", i32::from(self.code));
        if is_error(self.code) {
            self.span.record("otel.status_code", "ERROR");
        }
        self.metrics.handled.get_or_create(&labels_of_end(self.method, self.code)).inc();
        self.metrics.handling.get_or_create(&labels(self.method)).observe(self.began.elapsed().as_secs_f64());
    }
}

/// Returns true if a code is an error of the server, by the conventions of OpenTelemetry.
fn is_error(code: Code) -> bool {
    use Code::{DataLoss, DeadlineExceeded, Internal, Unavailable, Unimplemented, Unknown};
    matches!(code, Unknown | DeadlineExceeded | Unimplemented | Internal | Unavailable | DataLoss)
}

fn labels(&(service, method, kind): &Method) -> MethodLabels {
    [("grpc_service", service), ("grpc_method", method), ("grpc_type", kind)]
}

fn labels_of_end(method: &Method, code: Code) -> RpcLabels {
    let [service, method, kind] = labels(method);
    let name = CODES.iter().find(|(known, _)| *known == code).map_or("Unknown", |(_, name)| name);
    [service, method, kind, ("grpc_code", name)]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use prost::Message;
    use prost_types::FileDescriptorSet;

    use super::*;
    use crate::proto::pb;

    #[test]
    fn the_calls_of_every_method_are_counted_under_its_type() {
        let sets = [
            pb::FILE_DESCRIPTOR_SET,
            tonic_health::pb::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1::FILE_DESCRIPTOR_SET,
            tonic_reflection::pb::v1alpha::FILE_DESCRIPTOR_SET,
        ];
        let mut found = BTreeSet::new();
        for file in sets.iter().flat_map(|set| FileDescriptorSet::decode(*set).unwrap().file) {
            for service in &file.service {
                let name = format!("{}.{}", file.package(), service.name());
                found.extend(service.method.iter().map(|method| {
                    let kind = match (method.client_streaming(), method.server_streaming()) {
                        (false, false) => "unary",
                        (false, true) => "server_stream",
                        (true, false) => "client_stream",
                        (true, true) => "bidi_stream",
                    };
                    (name.clone(), method.name().to_owned(), kind.to_owned())
                }));
            }
        }
        let known = METHODS[0].iter().map(|method| <[&str; 3]>::from(*method).map(str::to_owned).into());
        assert_eq!(found, known.collect::<BTreeSet<(String, String, String)>>());
    }

    /// The names that `codes.Code.String` of grpc-go returns.
    #[test]
    fn a_code_has_one_name_and_every_number_has_a_code() {
        let known: Vec<Code> = CODES.iter().map(|(code, _)| *code).collect();
        assert_eq!(known, (0..17).map(Code::from_i32).collect::<Vec<_>>());
        assert_eq!(CODES[1].1, "Canceled");
    }
}
