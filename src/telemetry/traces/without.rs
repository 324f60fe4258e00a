//! Stub of the traces in a build without them.

use tracing::Subscriber;
use tracing_subscriber::{Layer, registry::LookupSpan};

/// Export of traces, which this build does not have.
#[derive(Debug, Default)]
pub struct Traces(());

/// Error that does not exist in this build.
#[derive(Debug, thiserror::Error)]
pub enum TracesError {}

/// Layer of a subscriber.
type BoxLayer<S> = Box<dyn Layer<S> + Send + Sync>;

// === impl Traces ===

impl Traces {
    /// Logs that the variable of the export has no effect here.
    pub(super) fn log(&self) {
        let Self(()) = self;
        if std::env::var_os("OTEL_EXPORTER_OTLP_ENDPOINT").is_some_and(|endpoint| !endpoint.is_empty()) {
            tracing::warn!("OTEL_EXPORTER_OTLP_ENDPOINT has no effect: built without traces (cargo feature otel)");
        }
    }

    /// Does nothing.
    pub fn flush(self) {}
}

/// Returns no layer.
#[expect(clippy::unnecessary_wraps, reason = "the other build can fail")]
pub(super) fn layer<S>() -> Result<(Option<BoxLayer<S>>, Traces), TracesError>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    Ok((None, Traces(())))
}
