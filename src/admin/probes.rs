//! HTTP server of probes and metrics: short answers to GET and HEAD, and to PUT where a path takes it.
//!
//! A connection has one request, and a time limit. The number of connections is bounded: when one more comes, the oldest is
//! closed, so that a probe gets its response however many clients connect and send nothing.

use std::{
    collections::VecDeque,
    convert::Infallible,
    net::{IpAddr, SocketAddr},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Collected, Full, Limited};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    task::{AbortHandle, JoinSet},
};

use crate::{model::excerpt, transport::pause_after};

/// Answers to requests, and the counts of those that got none.
pub trait Probes: Clone + Send + Sync + 'static {
    /// Returns the status and the text for a path and the query after it; `None` for a path that is not served.
    fn answer(&self, path: &str, query: &str) -> Option<(StatusCode, String)>;

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

    /// Returns true if programs on this machine may use this name in the header Host.
    fn is_host(&self, _name: &str) -> bool {
        false
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
    /// Address of the sender.
    pub sender: SocketAddr,
}

/// Bound of open connections: more than all probes and scrapers of a server use.
const MAX_CONNECTIONS: usize = 32;
/// Time for a connection, including its response.
const MAX_TIME: Duration = Duration::from_secs(60);
/// Bound of the head of a request, in bytes.
const MAX_HEAD: usize = 16 << 10;
/// Rights of a page: its own script and style, and requests to this port.
const PAGE_POLICY: &str = "default-src 'none'; connect-src 'self'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
const TEXT: &str = "text/plain; charset=utf-8";
/// Answer for a path that is not served.
const NOT_FOUND: &str = "not found; / has links to what there is\n";
/// Paths that are served under any name: they tell nothing but whether the server is ready.
const OPEN_TO_ANY_HOST: [&str; 2] = ["/livez", "/readyz"];
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
    let answer = service_fn(async |request: Request<Incoming>| {
        let (parts, body) = request.into_parts();
        let (path, is_write) = (parts.uri.path(), parts.method == Method::PUT);
        if is_local(peer)
            && !OPEN_TO_ANY_HOST.contains(&path)
            && let Some(host) = foreign_host(&parts.uri, &parts.headers, |name| probes.is_host(name))
        {
            probes.count_refused("admin_host");
            let text = format!(
                "host {host:?} is not a name of this server: use its address, or add the name to admin.hosts\n"
            );
            return Ok::<_, Infallible>(response(StatusCode::MISDIRECTED_REQUEST, text, TEXT));
        }
        if let Err(status) = probes.check(ProbeRequest { path, is_write, sender: peer }, &parts.headers).await {
            return Ok(refusal(status));
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
            answer(&probes, &parts.method, &parts.uri)
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

/// Returns true if a sender is on this machine.
pub(super) fn is_local(sender: SocketAddr) -> bool {
    sender.ip().to_canonical().is_loopback()
}

/// Returns the name under which a request reaches the server, if it is neither an address, nor localhost, nor known: a page in a
/// browser may have had its own name resolve to this machine (DNS rebinding).
pub(crate) fn foreign_host(uri: &Uri, headers: &HeaderMap, is_known: impl Fn(&str) -> bool) -> Option<String> {
    let hosts = headers.get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or_default());
    let names = uri.authority().map(http::uri::Authority::as_str).into_iter().chain(hosts);
    let foreign = |text: &str| {
        let Ok(authority) = text.parse::<http::uri::Authority>() else { return true };
        let name = authority.host().trim_start_matches('[').trim_end_matches(']');
        let is_local_name = name.eq_ignore_ascii_case("localhost") || is_known(name);
        !is_local_name && name.parse::<IpAddr>().is_err()
    };
    names.into_iter().find(|text| foreign(text)).map(|text| excerpt(text).into_owned())
}

fn refusal(status: StatusCode) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    if status == StatusCode::UNAUTHORIZED {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    response
}

fn answer(probes: &impl Probes, method: &Method, uri: &Uri) -> Response<Full<Bytes>> {
    let (path, query) = (uri.path(), uri.query().unwrap_or_default());
    let (mut status, mut text) =
        probes.answer(path, query).unwrap_or_else(|| (StatusCode::NOT_FOUND, NOT_FOUND.to_owned()));
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
    response.headers_mut().insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    if content_type.starts_with("text/html") {
        response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(PAGE_POLICY));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_foreign_unless_it_is_an_address_or_known() {
        let foreign = |uri: &str, hosts: &[&str]| {
            let hosts = hosts.iter().map(|host| (header::HOST, HeaderValue::from_str(host).unwrap()));
            let is_known = |name: &str| name.eq_ignore_ascii_case("informerd.example");
            foreign_host(&uri.parse().unwrap(), &hosts.collect(), is_known).is_some()
        };
        for host in
            ["localhost", "LOCALHOST:9464", "127.0.0.1", "10.0.0.7:9464", "[::1]:9464", "[::1]", "Informerd.example:80"]
        {
            assert!(!foreign("/metrics", &[host]), "{host}");
        }
        // A client of HTTP/1.0 has no name.
        assert!(!foreign("/metrics", &[]));
        for host in
            ["evil.example", "evil.example:9464", "localhost.evil.example", "127.0.0.1.evil.example", "", "a b", "1"]
        {
            assert!(foreign("/metrics", &[host]), "{host}");
        }
        assert!(foreign("http://evil.example/metrics", &["localhost"]));
        assert!(foreign("/metrics", &["localhost", "evil.example"]));
    }
}
