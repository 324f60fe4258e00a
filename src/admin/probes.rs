//! HTTP server of probes and metrics: short answers to GET and HEAD, and to PUT where a path takes it.
//!
//! A connection has one request, and a time limit. The number of connections is bounded: when one more comes, the oldest is
//! closed, so that a probe gets its response however many clients connect and send nothing.

use std::{collections::VecDeque, convert::Infallible, net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Collected, Full, Limited};
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

    /// Returns the media type of the text for a path.
    fn content_type(&self, _path: &str) -> &'static str {
        TEXT
    }

    /// Returns true if a path takes PUT.
    fn is_writable(&self, _path: &str) -> bool {
        false
    }

    /// Handles a PUT of this text to a path that takes it. Returns the status and the text of the answer.
    fn write(&self, _path: &str, _text: &str) -> (StatusCode, String) {
        (StatusCode::METHOD_NOT_ALLOWED, String::new())
    }

    /// Checks that the sender of these headers may do what is requested.
    ///
    /// # Errors
    ///
    /// The status of the refusal.
    fn check(
        &self,
        request: ProbeRequest<'_>,
        headers: &HeaderMap,
    ) -> impl Future<Output = Result<(), StatusCode>> + Send;

    /// Counts a connection that was not accepted or not served.
    fn count_refused(&self, reason: &'static str);
}

/// Request, as far as rights depend on it.
#[derive(Debug, Clone, Copy)]
pub struct ProbeRequest<'a> {
    /// Path of the request.
    pub path: &'a str,
    /// True for a PUT.
    pub is_write: bool,
    /// True if the sender is on this machine.
    pub is_local: bool,
}

/// Bound of open connections: more than all probes and scrapers of a server use.
const MAX_CONNECTIONS: usize = 32;
/// Time for a connection, including its response.
const MAX_TIME: Duration = Duration::from_secs(60);
/// Bound of the head of a request, in bytes.
const MAX_HEAD: usize = 16 << 10;
const TEXT: &str = "text/plain; charset=utf-8";
/// Answer for a path that is not served.
const NOT_FOUND: &str = "not found; / has links to what there is\n";
/// Bound of the body of a PUT, in bytes.
const MAX_BODY: usize = 4 << 10;

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
                Ok((stream, peer)) => {
                    if open.len() == MAX_CONNECTIONS && let Some(oldest) = open.pop_front() {
                        oldest.abort();
                        probes.count_refused("admin_connections");
                        // The descriptor is free once the task has ended.
                        while connections.len() >= MAX_CONNECTIONS && connections.join_next().await.is_some() {}
                    }
                    open.push_back(connections.spawn(drive(probes.clone(), request_timeout, stream, peer)));
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
async fn drive(probes: impl Probes, request_timeout: Duration, stream: TcpStream, peer: SocketAddr) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(request_timeout).max_buf_size(MAX_HEAD).keep_alive(false);
    let is_local = peer.ip().to_canonical().is_loopback();
    let answer = service_fn(async |request: Request<Incoming>| {
        let (parts, body) = request.into_parts();
        let (path, is_write) = (parts.uri.path(), parts.method == Method::PUT);
        if let Err(status) = probes.check(ProbeRequest { path, is_write, is_local }, &parts.headers).await {
            return Ok::<_, Infallible>(refusal(status));
        }
        Ok(if is_write && probes.is_writable(path) {
            let (status, text) = match Limited::new(body, MAX_BODY).collect().await.map(Collected::to_bytes) {
                Ok(text) => probes.write(path, &String::from_utf8_lossy(&text)),
                Err(_) => (
                    StatusCode::PAYLOAD_TOO_LARGE,
                    format!("the body is larger than {MAX_BODY} bytes, or not complete\n"),
                ),
            };
            response(status, text, TEXT)
        } else {
            answer(&probes, &parts.method, path)
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
    let (mut status, mut text) = probes.answer(path).unwrap_or_else(|| (StatusCode::NOT_FOUND, NOT_FOUND.to_owned()));
    let is_read = [Method::GET, Method::HEAD].contains(method);
    if status != StatusCode::NOT_FOUND && !is_read {
        (status, text) = (StatusCode::METHOD_NOT_ALLOWED, String::new());
    }
    let content_type = if status == StatusCode::OK { probes.content_type(path) } else { TEXT };
    let mut response = response(status, text, content_type);
    if status == StatusCode::METHOD_NOT_ALLOWED {
        let methods = if probes.is_writable(path) { "GET,HEAD,PUT" } else { "GET,HEAD" };
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(methods));
    }
    response
}

fn response(status: StatusCode, text: String, content_type: &'static str) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}
