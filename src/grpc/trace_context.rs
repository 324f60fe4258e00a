//! Trace of the caller, from the headers of W3C Trace Context: the span of the call is a part of it.

use http::HeaderMap;
use opentelemetry::{
    Context,
    propagation::{Extractor, TextMapPropagator},
};
use opentelemetry_sdk::propagation::TraceContextPropagator;
use tracing::Span;
use tracing_opentelemetry::OpenTelemetrySpanExt;

/// Headers of a request.
struct Headers<'a>(&'a HeaderMap);

/// Makes a span that has not begun a part of the trace that the headers name, if they do.
pub(super) fn set_parent(span: &Span, headers: &HeaderMap) {
    if span.is_disabled() || !headers.contains_key("traceparent") {
        return;
    }
    let parent = TraceContextPropagator::new().extract_with_context(&Context::new(), &Headers(headers));
    // Fails without an exporter, which nobody needs then.
    span.set_parent(parent).ok();
}

impl Extractor for Headers<'_> {
    fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key)?.to_str().ok()
    }

    fn keys(&self) -> Vec<&str> {
        self.0.keys().map(http::HeaderName::as_str).collect()
    }
}
