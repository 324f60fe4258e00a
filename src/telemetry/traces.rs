//! Traces of calls and of the watches on Subscribe streams, exported over OTLP (gRPC).
//!
//! The standard variables of OpenTelemetry configure them: `OTEL_EXPORTER_OTLP_ENDPOINT` enables the export. A thread of the SDK sends
//! batches from a queue of limited length. A collector that is slow or dead costs spans, which are counted in the log, and nothing
//! else: no call waits for it.

use std::{
    fs,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use opentelemetry::{KeyValue, trace::TracerProvider};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithTonicConfig};
use opentelemetry_sdk::{
    Resource,
    error::OTelSdkResult,
    trace::{SdkTracerProvider, SpanData},
};
use parking_lot::Mutex;
use tokio::time::Instant;
use tonic::transport::{Certificate, ClientTlsConfig};
use tracing::{Metadata, Subscriber};
use tracing_opentelemetry::OpenTelemetryLayer;
use tracing_subscriber::{Layer, filter::filter_fn, registry::LookupSpan};

/// Export of traces, if it is configured.
#[derive(Debug, Default)]
#[must_use = "the last spans are lost unless they are flushed"]
pub struct Traces(Option<SdkTracerProvider>);

/// Value of a variable of OpenTelemetry that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{variable}: {problem}")]
pub struct TracesError {
    variable: &'static str,
    problem: String,
}

/// Exporter that reports in the log when exports begin to fail, and when they succeed again.
#[derive(Debug)]
struct ReportingExporter {
    inner: SpanExporter,
    failures: Failures,
}

/// Exports that fail.
#[derive(Debug, Default)]
struct Failures {
    /// Time of the last report; none while exports succeed.
    reported: Mutex<Option<Instant>>,
    /// Spans lost since the last report.
    lost: AtomicU64,
}

/// Layer of a subscriber.
type BoxLayer<S> = Box<dyn Layer<S> + Send + Sync>;

/// Name of the service, unless a variable has another.
const SERVICE: &str = "informerd";
/// Interval of the reports while every export fails.
const REPORT_INTERVAL: Duration = Duration::from_secs(300);
/// Time for the last spans to be exported at the end.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(3);

// === impl Traces ===

impl Traces {
    /// Logs that traces are exported, once there is a log.
    pub(super) fn log(&self) {
        if self.0.is_some() {
            tracing::info!("exporting traces");
        }
    }

    /// Exports the spans that are queued, for a limited time. Blocks: not for a thread of a runtime.
    pub fn flush(self) {
        if let Some(provider) = self.0
            && let Err(error) = provider.shutdown_with_timeout(FLUSH_TIMEOUT)
        {
            tracing::warn!(%error, "last traces not exported");
        }
    }
}

/// Returns the layer that exports the spans of calls and of watches on Subscribe streams, if the variables of OpenTelemetry enable it.
/// Needs a runtime, which sends the spans.
pub(super) fn layer<S>() -> Result<(Option<BoxLayer<S>>, Traces), TracesError>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    let Some((variable, endpoint)) = endpoint()? else { return Ok((None, Traces(None))) };
    let failed = |problem: String| TracesError { variable, problem };
    let mut exporter = SpanExporter::builder().with_tonic().with_endpoint(&endpoint);
    if endpoint.starts_with("https://") {
        exporter = exporter.with_tls_config(tls()?);
    }
    let inner = exporter.build().map_err(|error| failed(error.to_string()))?;
    let exporter = ReportingExporter { inner, failures: Failures::default() };
    let mut resource = Resource::builder().with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")));
    let has_name = |text: String| text.split(',').any(|pair| pair.trim_start().starts_with("service.name="));
    if variable_of("OTEL_SERVICE_NAME").is_none() && !variable_of("OTEL_RESOURCE_ATTRIBUTES").is_some_and(has_name) {
        resource = resource.with_service_name(SERVICE);
    }
    let provider = SdkTracerProvider::builder().with_resource(resource.build()).with_batch_exporter(exporter).build();
    let layer = OpenTelemetryLayer::new(provider.tracer(SERVICE))
        .with_location(false)
        .with_threads(false)
        .with_tracked_inactivity(false)
        .with_filter(filter_fn(is_exported));
    Ok((Some(Box::new(layer)), Traces(Some(provider))))
}

/// Returns true for the span of a call, and for that of a watch on a Subscribe stream.
fn is_exported(metadata: &Metadata<'_>) -> bool {
    metadata.is_span()
        && matches!(metadata.name(), "call" | "watch")
        && metadata.target().starts_with("informerd::grpc::")
}

/// Returns the endpoint, and the variable that has it; none if the export is not enabled.
fn endpoint() -> Result<Option<(&'static str, String)>, TracesError> {
    let refused = |variable, problem: &str| Err(TracesError { variable, problem: problem.to_owned() });
    let endpoint = ["OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT"];
    let found = endpoint.into_iter().find_map(|name| Some((name, variable_of(name)?)));
    let is_disabled = variable_of("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true"));
    let Some((variable, endpoint)) = found.filter(|_| !is_disabled) else { return Ok(None) };
    match variable_of("OTEL_TRACES_EXPORTER").as_deref() {
        None | Some("otlp") => {}
        Some("none") => return Ok(None),
        Some(_) => return refused("OTEL_TRACES_EXPORTER", "expected otlp or none"),
    }
    for name in ["OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"] {
        match variable_of(name).as_deref() {
            None => {}
            Some("grpc") => break,
            Some(_) => {
                return refused(
                    name,
                    "expected grpc, the only protocol here; use that port of the collector, usually 4317",
                );
            }
        }
    }
    if !["http://", "https://"].iter().any(|scheme| endpoint.starts_with(scheme)) {
        return refused(variable, "expected http://HOST:PORT or https://HOST:PORT, such as http://127.0.0.1:4317");
    }
    Ok(Some((variable, endpoint)))
}

/// Returns the TLS of the connection: with the CA of the variable, else with those of the system.
fn tls() -> Result<ClientTlsConfig, TracesError> {
    let variables = ["OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", "OTEL_EXPORTER_OTLP_CERTIFICATE"];
    let Some((variable, path)) = variables.into_iter().find_map(|name| Some((name, variable_of(name)?))) else {
        return Ok(ClientTlsConfig::new().with_native_roots());
    };
    let read = fs::read(&path).map_err(|error| TracesError { variable, problem: format!("{path}: {error}") })?;
    Ok(ClientTlsConfig::new().ca_certificate(Certificate::from_pem(read)))
}

/// Returns the value of a variable that is not empty.
fn variable_of(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|text| !text.is_empty())
}

// === impl ReportingExporter ===

impl opentelemetry_sdk::trace::SpanExporter for ReportingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let spans = batch.len();
        let exported = self.inner.export(batch).await;
        match &exported {
            Ok(()) => self.failures.end(),
            Err(error) => self.failures.add(spans, error),
        }
        exported
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.inner.shutdown_with_timeout(timeout)
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.inner.force_flush()
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.inner.set_resource(resource);
    }
}

// === impl Failures ===

impl Failures {
    fn add(&self, spans: usize, error: &dyn std::error::Error) {
        let lost = self.lost.fetch_add(spans as u64, Ordering::Relaxed) + spans as u64;
        let mut reported = self.reported.lock();
        if reported.is_none_or(|at| at.elapsed() >= REPORT_INTERVAL) {
            *reported = Some(Instant::now());
            self.lost.store(0, Ordering::Relaxed);
            tracing::warn!(%error, lost, "traces not exported");
        }
    }

    fn end(&self) {
        if self.reported.lock().take().is_some() {
            let lost = self.lost.swap(0, Ordering::Relaxed);
            tracing::info!(lost, "traces exported again");
        }
    }
}
