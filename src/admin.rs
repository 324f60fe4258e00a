//! The admin port: probes and metrics over HTTP.
//!
//! Nothing here tells what the objects are, so it may be reached from off loopback. `/livez` never depends on an upstream;
//! `/readyz` says which resources are missing.
//!
//! A connection has one request, and a time for it. There are only so many of them: when one more comes, the oldest is closed,
//! so that a probe is answered however many clients connect and send nothing.

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

/// What the endpoints answer from.
#[derive(Debug, Clone)]
pub struct Admin {
    service: Service,
    registry: Arc<Registry>,
    /// Time for the head of a request.
    request_timeout: Duration,
}

/// Connections at one time: more than all who probe and scrape a server have.
const MAX_CONNECTIONS: usize = 32;
/// Time for a connection, with its answer.
const MAX_TIME: Duration = Duration::from_secs(60);
/// Bytes of the head of a request, at most.
const MAX_HEAD: usize = 16 << 10;

// === impl Admin ===

impl Admin {
    /// Makes the endpoints over a service. A client may take so long for the head of its request.
    pub fn new(service: Service, registry: Registry, request_timeout: Duration) -> Self {
        Self { service, registry: Arc::new(registry), request_timeout }
    }

    /// Serves until the future is dropped.
    ///
    /// # Cancel safety
    ///
    /// When it is dropped, so are all connections.
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
                            // Its descriptor is free when its task has ended.
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

    /// Answers the one request of a connection.
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
