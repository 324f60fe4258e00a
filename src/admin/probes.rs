//! HTTP server of probes and metrics: short answers to GET and HEAD.
//!
//! A connection has one request, and a time limit. The number of connections is bounded: when one more comes, the oldest is
//! closed, so that a probe gets its response however many clients connect and send nothing.

use std::{collections::VecDeque, convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};

use crate::transport::pause_after;

/// Answers to requests, and the counts of those that got none.
pub trait Probes: Clone + Send + Sync + 'static {
    /// Returns the status and the text for a path; `None` for a path that is not served.
    fn answer(&self, path: &str) -> Option<(StatusCode, String)>;

    /// Checks that the sender of these headers may read a path.
    ///
    /// # Errors
    ///
    /// The status of the refusal.
    fn check(&self, path: &str, headers: &HeaderMap) -> impl Future<Output = Result<(), StatusCode>> + Send;

    /// Counts a connection that was not accepted or not served.
    fn count_refused(&self, reason: &'static str);
}

/// Bound of open connections: more than all probes and scrapers of a server use.
const MAX_CONNECTIONS: usize = 32;
/// Time for a connection, including its response.
const MAX_TIME: Duration = Duration::from_secs(60);
/// Bound of the head of a request, in bytes.
const MAX_HEAD: usize = 16 << 10;

/// Serves until the future is dropped. A client has `request_timeout` for the head of its request.
///
/// # Cancel safety
///
/// Dropping it drops all connections.
pub async fn serve(probes: impl Probes, request_timeout: Duration, listener: TcpListener) {
    let mut connections = JoinSet::new();
    let mut open: VecDeque<AbortHandle> = VecDeque::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => {
                    if open.len() == MAX_CONNECTIONS && let Some(oldest) = open.pop_front() {
                        oldest.abort();
                        probes.count_refused("admin_connections");
                        // The descriptor is free once the task has ended.
                        while connections.len() >= MAX_CONNECTIONS && connections.join_next().await.is_some() {}
                    }
                    open.push_back(connections.spawn(drive(probes.clone(), request_timeout, stream)));
                }
                Err(error) => {
                    probes.count_refused("accept_failed");
                    tracing::debug!(%error, "admin connection not accepted");
                    pause_after(&error).await;
                }
            },
            Some(_) = connections.join_next() => open.retain(|connection| !connection.is_finished()),
        }
    }
}

/// Serves the one request of a connection.
async fn drive(probes: impl Probes, request_timeout: Duration, stream: TcpStream) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(request_timeout).max_buf_size(MAX_HEAD).keep_alive(false);
    let answer = service_fn(async |request: Request<Incoming>| {
        let (path, method) = (request.uri().path(), request.method());
        Ok::<_, Infallible>(match probes.check(path, request.headers()).await {
            Ok(()) => answer(&probes, method, path),
            Err(status) => refusal(status),
        })
    });
    let connection = http.serve_connection(TokioIo::new(stream), answer);
    let is_late = match tokio::time::timeout(MAX_TIME, connection).await {
        Ok(ended) => ended.is_err_and(|error| error.is_timeout()),
        Err(_) => true,
    };
    if is_late {
        probes.count_refused("admin_timeout");
    }
}

fn refusal(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

fn answer(probes: &impl Probes, method: &Method, path: &str) -> Response<Full<Bytes>> {
    let (mut status, mut text) = probes.answer(path).unwrap_or((StatusCode::NOT_FOUND, String::new()));
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
