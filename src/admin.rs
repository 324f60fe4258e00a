//! The admin port: probes and metrics over HTTP.
//!
//! Nothing here tells what the objects are, so it may be reached from off loopback. `/livez` never depends on an upstream;
//! `/readyz` says which resources are missing.

use std::sync::Arc;

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use crate::grpc::Service;

/// What the endpoints answer from.
#[derive(Debug, Clone)]
pub struct Admin {
    service: Service,
    registry: Arc<Registry>,
}

// === impl Admin ===

impl Admin {
    /// The endpoints over a service.
    pub fn new(service: Service, registry: Registry) -> Self {
        Self { service, registry: Arc::new(registry) }
    }

    /// Serves until the future is dropped.
    ///
    /// # Errors
    ///
    /// When connections cannot be accepted.
    pub async fn serve(self, listener: TcpListener) -> std::io::Result<()> {
        let routes = Router::new()
            .route("/livez", get(async || "ok\n"))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .with_state(self);
        axum::serve(listener, routes).await
    }
}

async fn readyz(State(admin): State<Admin>) -> (StatusCode, String) {
    if admin.service.is_shutting_down() {
        return (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n".to_owned());
    }
    let missing: Vec<String> = admin
        .service
        .resources()
        .filter(|resource| !resource.optional && resource.informer.snapshot().is_none())
        .map(|resource| match resource.informer.health().report().last_error {
            Some(error) => format!("{}: not synced: {error}\n", resource.name),
            None => format!("{}: not synced\n", resource.name),
        })
        .collect();
    if missing.is_empty() {
        (StatusCode::OK, "ok\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, missing.concat())
    }
}

async fn metrics(State(admin): State<Admin>) -> impl IntoResponse {
    let mut text = String::new();
    if prometheus_client::encoding::text::encode(&mut text, &admin.registry).is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    let content_type = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    ([(header::CONTENT_TYPE, content_type)], text).into_response()
}
