//! Admin port: probes and metrics over HTTP.
//!
//! No response contains objects, so the port may be reachable from other machines. `/livez` never depends on an upstream;
//! `/readyz` names the resources that have no state.
//!
//! A connection has one request, and a time limit. The number of connections is bounded: when one more comes, the oldest is
//! closed, so that a probe gets its response however many clients connect and send nothing.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{StatusCode, header},
    response::IntoResponse,
    routing::get,
};
use hyper::server::conn::http1;
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use prometheus_client::registry::Registry;
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};

use crate::{grpc::Service, transport::pause_after};

/// State of the endpoints.
#[derive(Debug, Clone)]
pub struct Admin {
    service: Service,
    registry: Arc<Registry>,
    /// Time for the head of a request.
    request_timeout: Duration,
}

/// Bound of open connections: more than all probes and scrapers of a server use.
const MAX_CONNECTIONS: usize = 32;
/// Time for a connection, including its response.
const MAX_TIME: Duration = Duration::from_secs(60);
/// Bound of the head of a request, in bytes.
const MAX_HEAD: usize = 16 << 10;

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
        let routes = Router::new()
            .route("/livez", get(async || "ok\n"))
            .route("/readyz", get(readyz))
            .route("/metrics", get(metrics))
            .with_state(self.clone());
        let mut connections = JoinSet::new();
        let mut open: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((stream, _)) => {
                        if open.len() == MAX_CONNECTIONS && let Some(oldest) = open.pop_front() {
                            oldest.abort();
                            self.service.metrics().refused().count("admin_connections");
                            // The descriptor is free once the task has ended.
                            while connections.len() >= MAX_CONNECTIONS && connections.join_next().await.is_some() {}
                        }
                        open.push_back(connections.spawn(self.clone().drive(stream, routes.clone())));
                    }
                    Err(error) => {
                        self.service.metrics().refused().count("accept_failed");
                        tracing::debug!(%error, "admin connection not accepted");
                        pause_after(&error).await;
                    }
                },
                Some(_) = connections.join_next() => open.retain(|connection| !connection.is_finished()),
            }
        }
    }

    /// Serves the one request of a connection.
    async fn drive(self, stream: TcpStream, routes: Router) {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(self.request_timeout)
            .max_buf_size(MAX_HEAD)
            .keep_alive(false);
        let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
        let is_late = match tokio::time::timeout(MAX_TIME, connection).await {
            Ok(ended) => ended.is_err_and(|error| error.is_timeout()),
            Err(_) => true,
        };
        if is_late {
            self.service.metrics().refused().count("admin_timeout");
        }
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
