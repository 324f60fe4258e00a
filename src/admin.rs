//! Admin port: probes and metrics over HTTP.
//!
//! No response contains objects, so the port may be reachable from other machines. `/livez` never depends on an upstream;
//! `/readyz` names the resources that have no state. `probes` serves the connections, also those of a mirror's probe.

mod probes;

use std::{sync::Arc, time::Duration};

use http::StatusCode;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

pub use self::probes::{Probes, serve};
use crate::grpc::Service;

/// State of the endpoints.
#[derive(Debug, Clone)]
pub struct Admin {
    service: Service,
    registry: Arc<Registry>,
    /// Time for the head of a request.
    request_timeout: Duration,
}

// === impl Admin ===

impl Admin {
    /// Makes the endpoints over a service. A client has `request_timeout` for the head of its request.
    pub fn new(service: Service, registry: Registry, request_timeout: Duration) -> Self {
        Self { service, registry: Arc::new(registry), request_timeout }
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
            .map(|resource| match resource.informer.report().last_error {
                Some(error) => format!("{}: not synced: {error}\n", resource.name),
                None => format!("{}: not synced\n", resource.name),
            })
            .collect();
        if missing.is_empty() {
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

    fn count_refused(&self, reason: &'static str) {
        self.service.metrics().refused().count(reason);
    }
}
