//! One connection to an API server: TCP, a proxy, TLS, and HTTP/2 or HTTP/1.1 as the server chooses.
//!
//! An HTTP/2 connection checks its peer itself: it sends a PING after a third of the contact timeout without data, and closes
//! after all of it. An HTTP/1.1 connection cannot while an answer is open on it; `client` sends a request over another one.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Request, Response, Uri, header, uri};
use http_body_util::Full;
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
    rt::Executor,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, sleep, timeout},
};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::{
    access::Access,
    proxy::{Proxy, ProxyKind},
    tls::{Trust, is_refusal},
    tunnel,
};
use crate::{net::Dialer, source::text::root_cause};

/// Time of the last bytes from a peer.
#[derive(Debug)]
pub(super) struct Contact {
    base: Instant,
    micros: AtomicU64,
}

/// State of a connection, shared by its requests.
#[derive(Debug)]
pub(super) struct Link {
    /// Version of the [`Access`] it was opened with.
    pub(super) access: u64,
    /// Contact of one HTTP/2 connection, or of all HTTP/1.1 connections together.
    pub(super) contact: Arc<Contact>,
    pub(super) is_http2: bool,
    /// Largest number of concurrent requests that the server accepts.
    pub(super) max_streams: AtomicUsize,
    /// Number of requests with unfinished answers.
    pub(super) streams: AtomicUsize,
}

/// Request sender of one connection.
pub(super) enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

/// State shared by the connections of one client: the contact of those over HTTP/1.1, and the means to close all.
#[derive(Debug, Clone)]
pub(super) struct Http1Links {
    pub(super) contact: Arc<Contact>,
    /// Closes all of them when cancelled.
    pub(super) closed: CancellationToken,
}

/// Failure to open a connection.
#[derive(Debug, Clone)]
pub(super) struct OpenError {
    pub(super) problem: String,
    /// True if the server refused the client certificate.
    pub(super) is_refusal: bool,
}

trait Io: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Io for T {}

/// Executor of the tasks of a connection until it is closed. Over HTTP/2 its requests are one task, and all that is open on it is
/// another one.
#[derive(Clone)]
struct TaskExecutor(CancellationToken);

/// Stream that records when bytes arrive.
struct ContactRecorder<S> {
    stream: S,
    contacts: [Arc<Contact>; 2],
}

/// Timeout of the proxy, TLS and HTTP handshakes together, after the dial.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);
/// Interval between two checks for the server's SETTINGS.
const SETTINGS_INTERVAL: Duration = Duration::from_millis(2);
/// Flow-control window of one stream: two objects of the largest size that etcd accepts.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
/// Flow-control window of a connection, enough for [`super::pool::MAX_STREAMS`] streams: a stream that is not read blocks no
/// other.
const CONNECTION_WINDOW_BYTES: u32 = 512 << 20;

// === impl Contact ===

impl Contact {
    pub(super) fn new() -> Self {
        Self { base: Instant::now(), micros: AtomicU64::new(0) }
    }

    /// Returns the time of the last contact, or of the creation if there was none.
    pub(super) fn last(&self) -> Instant {
        self.base + Duration::from_micros(self.micros.load(Ordering::Relaxed))
    }

    fn note(&self) {
        let micros = u64::try_from(self.base.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.micros.fetch_max(micros, Ordering::Relaxed);
    }
}

// === impl Sender ===

impl Sender {
    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Http1(sender) => sender.is_closed(),
            Self::Http2(sender) => sender.is_closed(),
        }
    }

    /// Sends a request, a POST if it has a body, and waits for the head of the answer.
    pub(super) async fn send(
        &mut self,
        access: &Access,
        headers: HeaderMap,
        target: &str,
        body: Bytes,
    ) -> hyper::Result<Response<Incoming>> {
        let path = format!("{}{target}", access.root);
        let method = if body.is_empty() { Method::GET } else { Method::POST };
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.headers_mut() = headers;
        let authority = access.authority();
        match self {
            Self::Http1(sender) => {
                *request.uri_mut() = path.parse().unwrap_or_default();
                if let Ok(host) = HeaderValue::from_str(&authority) {
                    request.headers_mut().insert(header::HOST, host);
                }
                // The previous answer may have ended a moment ago.
                sender.ready().await?;
                sender.send_request(request).await
            }
            Self::Http2(sender) => {
                let uri = Uri::builder().scheme(uri::Scheme::HTTPS).authority(authority).path_and_query(path);
                *request.uri_mut() = uri.build().unwrap_or_default();
                sender.send_request(request).await
            }
        }
    }
}

// === impl TaskExecutor ===

impl<F> Executor<F> for TaskExecutor
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, task: F) {
        tokio::spawn(self.0.clone().run_until_cancelled_owned(task));
    }
}

// === impl ContactRecorder ===

impl<S: AsyncRead + Unpin> AsyncRead for ContactRecorder<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        // An end of the stream and a reset also come from a live peer.
        let is_contact = match &read {
            Poll::Ready(Err(error)) => error.kind() != io::ErrorKind::TimedOut,
            Poll::Ready(Ok(())) => true,
            Poll::Pending => false,
        };
        if is_contact {
            self.contacts.iter().for_each(|contact| contact.note());
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ContactRecorder<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

// === impl OpenError ===

impl OpenError {
    fn of(error: &(dyn std::error::Error + 'static)) -> Self {
        Self { problem: root_cause(error), is_refusal: is_refusal(error) }
    }
}

impl From<String> for OpenError {
    fn from(problem: String) -> Self {
        Self { problem, is_refusal: false }
    }
}

/// Opens a connection.
///
/// # Cancel safety
///
/// Dropping the future closes the connection.
pub(super) async fn open(
    access: &Access,
    dialer: &Dialer,
    contact_timeout: Duration,
    http1: &Http1Links,
) -> Result<(Sender, Arc<Link>), OpenError> {
    let Access { host, port, proxy, .. } = access;
    let stream = match proxy {
        None => dialer.dial(host, *port).await?,
        Some(Proxy { host, port, origin, .. }) => {
            let connected = dialer.dial(host, *port).await;
            connected.map_err(|problem| format!("proxy {host}:{port} ({origin}): {problem}"))?
        }
    };
    let own = Arc::new(Contact::new());
    let stream = ContactRecorder { stream, contacts: [Arc::clone(&own), Arc::clone(&http1.contact)] };
    let shaken = timeout(HANDSHAKE_TIMEOUT, async {
        let (stream, is_http2) = secured(Box::new(stream), access).await?;
        let link = Arc::new(Link {
            access: access.version,
            contact: if is_http2 { own } else { Arc::clone(&http1.contact) },
            is_http2,
            max_streams: AtomicUsize::new(0),
            streams: AtomicUsize::new(0),
        });
        let sender = if is_http2 {
            over_http2(stream, contact_timeout, &link, http1).await
        } else {
            over_http1(stream, http1).await
        };
        Ok((sender?, link))
    });
    let shaken = shaken.await;
    shaken.unwrap_or_else(|_| Err(format!("TLS or HTTP handshake not complete within {HANDSHAKE_TIMEOUT:?}").into()))
}

/// Opens the proxy's tunnel and TLS, where configured; the flag is true for HTTP/2.
async fn secured(mut stream: Box<dyn Io>, access: &Access) -> Result<(Box<dyn Io>, bool), OpenError> {
    if let Some(proxy) = &access.proxy {
        if proxy.kind == ProxyKind::Https {
            let name = proxy.host.clone().try_into().map_err(|_| format!("{:?} is not a host name", proxy.host))?;
            // The system's authorities sign the proxy's certificate, not the cluster's.
            let config = tokio::task::spawn_blocking(|| Trust::read(None)?.client_config(None, false)).await;
            let config = config.map_err(|error| error.to_string())??;
            let tls = TlsConnector::from(Arc::new(config)).connect(name, stream).await;
            let problem = |error: io::Error| format!("proxy {} ({}): {}", proxy.host, proxy.origin, root_cause(&error));
            stream = Box::new(tls.map_err(problem)?);
        }
        tunnel::open(&mut stream, proxy, &access.host, access.port).await?;
    }
    let Some((config, name)) = &access.tls else { return Ok((stream, false)) };
    let tls = TlsConnector::from(Arc::clone(config)).connect(name.clone(), stream).await;
    let tls = tls.map_err(|error| OpenError::of(&error))?;
    let is_http2 = tls.get_ref().1.alpn_protocol() == Some(b"h2");
    Ok((Box::new(tls), is_http2))
}

async fn over_http2(
    stream: Box<dyn Io>,
    contact_timeout: Duration,
    link: &Arc<Link>,
    shared: &Http1Links,
) -> Result<Sender, OpenError> {
    let executor = TaskExecutor(shared.closed.clone());
    let mut builder = http2::Builder::new(executor.clone());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(ping_interval(contact_timeout))
        .keep_alive_timeout(contact_timeout.saturating_sub(ping_interval(contact_timeout)))
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        // No request is sent before the server's SETTINGS: one above its limit would wait until another ends.
        .initial_max_send_streams(0);
    let connected = builder.handshake(TokioIo::new(stream)).await;
    let (sender, mut connection) = connected.map_err(|error| OpenError::of(&error))?;
    while connection.current_max_send_streams() == 0 {
        tokio::select! {
            ended = &mut connection => {
                let closed = || "the connection is closed".to_owned().into();
                return Err(ended.err().map_or_else(closed, |error| OpenError::of(&error)));
            }
            () = sleep(SETTINGS_INTERVAL) => {}
        }
    }
    link.max_streams.store(connection.current_max_send_streams(), Ordering::Release);
    let noted = Arc::clone(link);
    // The task ends with the last sender and the last answer, and is polled at every request.
    let polled = std::future::poll_fn(move |cx| {
        let polled = Pin::new(&mut connection).poll(cx);
        if polled.is_pending() {
            noted.max_streams.store(connection.current_max_send_streams(), Ordering::Release);
        }
        polled
    });
    executor.execute(polled);
    Ok(Sender::Http2(sender))
}

async fn over_http1(stream: Box<dyn Io>, http1: &Http1Links) -> Result<Sender, OpenError> {
    let connected = http1::handshake(TokioIo::new(stream)).await;
    let (sender, connection) = connected.map_err(|error| OpenError::of(&error))?;
    TaskExecutor(http1.closed.clone()).execute(connection);
    Ok(Sender::Http1(sender))
}

/// Returns the silence after which a PING or a request probes the peer.
pub(super) fn ping_interval(contact_timeout: Duration) -> Duration {
    contact_timeout / 3
}
