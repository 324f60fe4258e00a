//! Admin port: probes and metrics over HTTP.
//!
//! No response contains objects, so the port may be reachable from other machines. Where callers are authorized, metrics are for
//! those who may inspect every resource, and the probes name no errors. `/livez` never depends on an upstream; `/readyz` names the
//! resources that have no state. `probes` serves the connections, also those of a mirror's probe.

mod probes;

use std::{sync::Arc, time::Duration};

use http::{HeaderMap, StatusCode};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tonic::Code;

pub use self::probes::{Probes, serve};
use crate::grpc::Service;

/// State of the endpoints.
#[derive(Debug, Clone)]
pub struct Admin {
    service: Service,
    registry: Arc<Registry>,
    /// Time for the head of a request.
    request_timeout: Duration,
    /// True if metrics need no rights.
    open_metrics: bool,
}

// === impl Admin ===

impl Admin {
    /// Makes the endpoints over a service. A client has `request_timeout` for the head of its request. With `open_metrics`, whoever
    /// reaches the port may read metrics, also where callers are authorized.
    pub fn new(service: Service, registry: Registry, request_timeout: Duration, open_metrics: bool) -> Self {
        Self { service, registry: Arc::new(registry), request_timeout, open_metrics }
    }

    /// Serves until the future is dropped.
    ///
    /// # Cancel safety
    ///
    /// Dropping it drops all connections.
    pub async fn serve(self, listener: TcpListener) {
        let request_timeout = self.request_timeout;
        serve(self, request_timeout, listener).await;
    }

    fn readyz(&self) -> (StatusCode, String) {
        if self.service.is_shutting_down() {
            return (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n".to_owned());
        }
        let missing: String = self
            .service
            .resources()
            .filter(|resource| !resource.optional && resource.informer.snapshot().is_none())
            .map(|resource| match resource.informer.report().last_error.filter(|_| !self.service.authorizes()) {
                Some(error) => format!("{}: not synced: {error}\n", resource.name),
                None => format!("{}: not synced\n", resource.name),
            })
            .collect();
        // A resource that a reload has added may be missing.
        if missing.is_empty() || self.service.is_ready() {
            (StatusCode::OK, "ok\n".to_owned())
        } else {
            (StatusCode::SERVICE_UNAVAILABLE, missing)
        }
    }

    fn metrics(&self) -> (StatusCode, String) {
        let mut text = String::new();
        match prometheus_client::encoding::text::encode(&mut text, &self.registry) {
            Ok(()) => (StatusCode::OK, text),
            Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, String::new()),
        }
    }
}

impl Probes for Admin {
    fn answer(&self, path: &str) -> Option<(StatusCode, String)> {
        match path {
            "/livez" => Some((StatusCode::OK, "ok\n".to_owned())),
            "/readyz" => Some(self.readyz()),
            "/metrics" => Some(self.metrics()),
            _ => None,
        }
    }

    async fn check(&self, path: &str, headers: &HeaderMap) -> Result<(), StatusCode> {
        if path != "/metrics" || self.open_metrics {
            return Ok(());
        }
        self.service.check_operator(headers).await.map_err(|status| match status.code() {
            Code::Unauthenticated => StatusCode::UNAUTHORIZED,
            Code::PermissionDenied => StatusCode::FORBIDDEN,
            _ => StatusCode::SERVICE_UNAVAILABLE,
        })
    }

    fn count_refused(&self, reason: &'static str) {
        self.service.metrics().refused().count(reason);
    }
}
