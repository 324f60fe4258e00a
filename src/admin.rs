//! Admin port: probes and metrics over HTTP.
//!
//! No response contains objects, so the port may be reachable from other machines. `/livez` never depends on an upstream;
//! `/readyz` names the resources that have no state.
//!
//! A connection has one request, and a time limit. The number of connections is bounded: when one more comes, the oldest is
//! closed, so that a probe gets its response however many clients connect and send nothing.

use std::{collections::VecDeque, convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
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
                        open.push_back(connections.spawn(self.clone().drive(stream)));
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
    async fn drive(self, stream: TcpStream) {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(self.request_timeout)
            .max_buf_size(MAX_HEAD)
            .keep_alive(false);
        let answer = service_fn(|request: Request<Incoming>| {
            let response = self.answer(request.method(), request.uri().path());
            async { Ok::<_, Infallible>(response) }
        });
        let connection = http.serve_connection(TokioIo::new(stream), answer);
        let is_late = match tokio::time::timeout(MAX_TIME, connection).await {
            Ok(ended) => ended.is_err_and(|error| error.is_timeout()),
            Err(_) => true,
        };
        if is_late {
            self.service.metrics().refused().count("admin_timeout");
        }
    }

    fn answer(&self, method: &Method, path: &str) -> Response<Full<Bytes>> {
        let (mut status, mut text) = match path {
            "/livez" => (StatusCode::OK, "ok\n".to_owned()),
            "/readyz" => self.readyz(),
            "/metrics" => self.metrics(),
            _ => (StatusCode::NOT_FOUND, String::new()),
        };
        let is_read = [Method::GET, Method::HEAD].contains(method);
        if status != StatusCode::NOT_FOUND && !is_read {
            (status, text) = (StatusCode::METHOD_NOT_ALLOWED, String::new());
        }
        let mut response = Response::new(Full::from(text));
        *response.status_mut() = status;
        if status == StatusCode::METHOD_NOT_ALLOWED {
            response.headers_mut().insert(header::ALLOW, HeaderValue::from_static("GET,HEAD"));
        }
        let content_type = match path {
            "/metrics" => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            _ => "text/plain; charset=utf-8",
        };
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        response
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
