//! The task of one connection.

use std::{
    fmt,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker, ready},
    time::Duration,
};

use futures_util::TryFutureExt;
use h2::{
    Reason, RecvStream,
    server::{self, Handshake, SendResponse},
};
use http::{Request, Response};
use prometheus_client::metrics::counter::Counter;
use tokio::time::Sleep;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tower::ServiceExt;

use super::{
    Ledger, Peer, Quota, Refused, RequestBody, Supply,
    body::BoxError,
    exchange::Exchange,
    io::Io,
    keepalive::KeepAlive,
    merge::{BufferPool, Merge},
    outgoing::Outgoing,
    stalled::Stalled,
    streams::{Spawned, Streams},
};

/// The bounds of every connection.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Streams that a client may have open on one connection, at most.
    pub streams_per_connection: u32,
    /// A client may take so long for the handshake of TLS, the preface of HTTP/2, and a frame or header block that it begins.
    pub request_timeout: Duration,
    /// Connections that may be open.
    pub connections: Arc<Quota>,
    /// Counts those who took longer, and connections that were refused.
    pub refused: Refused,
    /// A connection that takes nothing of what is to be written to it is cut after this, and a stream that takes nothing of
    /// what it is to be sent is reset.
    pub progress_timeout: Duration,
    /// Counts the streams that were reset so.
    pub stalled: Counter,
    /// What is still open so long after draining has begun is cut.
    pub drain_period: Duration,
    /// Accounts of the memory that connections hold for their clients.
    pub ledger: Arc<Ledger>,
}

/// What all connections share.
pub(super) struct Shared {
    pub(super) is_local: fn(&Request<RequestBody>) -> bool,
    pub(super) buffers: BufferPool,
    pub(super) refused: Refused,
    pub(super) ledger: Arc<Ledger>,
    /// No new streams.
    pub(super) draining: CancellationToken,
    /// No streams at all.
    pub(super) cut: CancellationToken,
}

/// What answers the requests of all connections.
pub(super) trait Answers:
    tower::Service<Request<RequestBody>, Future: Send, Error: Into<BoxError>> + Clone + Send + Sync + 'static
{
}

impl<S> Answers for S where
    S: tower::Service<Request<RequestBody>, Future: Send, Error: Into<BoxError>> + Clone + Send + Sync + 'static
{
}

/// Drives HTTP/2 over one connection until it ends.
pub(super) struct Connection<T: Io, S, B: Supply> {
    http: Http<T>,
    service: S,
    is_local: fn(&Request<RequestBody>) -> bool,
    peer: Peer,
    waker: Waker,
    io: Merge<T>,
    streams: Streams<Exchange<B>>,
    stalled: Stalled,
    stalled_streams: Counter,
    /// It accepts no more streams, because its client takes nothing.
    is_closing: bool,
    /// What is awaited next of the two steps in which a server ends.
    ending: Option<(Ending, Pin<Box<WaitForCancellationFutureOwned>>)>,
    cut: CancellationToken,
    progress_timeout: Duration,
    /// Set while something is to be written that the other end does not take.
    stuck: Option<Pin<Box<Sleep>>>,
    request_timeout: Duration,
    /// Set while a frame or a header block is not complete: its number, and until when it has to be.
    begun: Option<(u64, Pin<Box<Sleep>>)>,
    /// The bound on what lies unsent in the kernel, as it is set.
    unsent: usize,
}

/// The protocol's part of a connection.
enum Http<T: Io> {
    Handshake(Box<Preface<T>>),
    Open(Box<Open<T>>),
}

/// A client that has yet to say that it speaks HTTP/2.
struct Preface<T: Io> {
    handshake: Handshake<Merge<T>, Outgoing>,
    timeout: Pin<Box<Sleep>>,
    is_draining: bool,
}

struct Open<T: Io> {
    http: server::Connection<Merge<T>, Outgoing>,
    keep_alive: Option<KeepAlive>,
}

/// The steps in which a connection ends with its server.
#[derive(Debug, Clone, Copy)]
enum Ending {
    /// It accepts no more streams.
    Drain,
    /// It has no more streams.
    Cut,
}

/// How a connection ended, other than well.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("{0}")]
    Http(#[from] h2::Error),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("the client sent no preface of HTTP/2 within {0:?} (limits.request_timeout)")]
    NoPreface(Duration),
    #[error(
        "the client began a frame or a header block, and did not complete it within {0:?} (limits.request_timeout)"
    )]
    Incomplete(Duration),
    #[error("write stalled: the client read nothing for {0:?}")]
    Stuck(Duration),
}

/// What a client may send of requests before they are read, of one stream and of all.
const RECEIVE_WINDOW: u32 = 1 << 20;
/// What the headers of a request may have.
const HEADER_LIST: u32 = 16 << 10;
/// Streams that a client may have reset by its errors, before the connection ends.
const ERROR_RESETS: usize = 1024;
/// Bytes that h2 takes of a stream: no bound, because the driver bounds what it gives to h2.
const SEND_BUFFER: usize = u32::MAX as usize;
/// Time for the last words of a connection whose streams were all ended because the client takes nothing, or does not send what it
/// has begun.
const DESERTED_TIMEOUT: Duration = Duration::from_secs(1);
/// After so much, or so many rounds, other connections get their turn.
const BYTES_PER_POLL: u64 = 1 << 20;
const ROUNDS_PER_POLL: usize = 32;
/// What the kernel holds back for one stream before the socket counts as full: what lies there, no policy of a queue can act
/// on. It grows with the number of streams, which share the socket, up to what the kernel takes by itself.
const UNSENT_PER_STREAM: usize = 64 << 10;
const MAX_UNSENT: usize = 4 << 20;

// === impl Connection ===

impl<T, S, B> Connection<T, S, B>
where
    T: Io,
    S: Answers<Response = Response<B>>,
    B: Supply,
{
    pub(super) fn new(io: T, peer: Peer, service: S, config: &ServerConfig, shared: &Shared) -> Self {
        let streams = Streams::new();
        let io = Merge::new(io, shared.buffers.clone());
        let mut builder = server::Builder::new();
        builder
            .initial_window_size(RECEIVE_WINDOW)
            .initial_connection_window_size(RECEIVE_WINDOW)
            .max_header_list_size(HEADER_LIST)
            .max_local_error_reset_streams(Some(ERROR_RESETS))
            .max_concurrent_streams(config.streams_per_connection)
            .max_send_buffer_size(SEND_BUFFER);
        let preface = Preface {
            handshake: builder.handshake(io.clone()),
            timeout: Box::pin(tokio::time::sleep(config.request_timeout)),
            is_draining: false,
        };
        shared.ledger.add(streams.wakes());
        let waker = streams.connection_waker();
        waker.wake_by_ref();
        Self {
            http: Http::Handshake(Box::new(preface)),
            service,
            is_local: shared.is_local,
            peer,
            waker,
            io,
            streams,
            stalled: Stalled::new(config.progress_timeout),
            stalled_streams: config.stalled.clone(),
            is_closing: false,
            ending: Some((Ending::Drain, Box::pin(shared.draining.clone().cancelled_owned()))),
            cut: shared.cut.clone(),
            progress_timeout: config.progress_timeout,
            stuck: None,
            request_timeout: config.request_timeout,
            begun: None,
            unsent: 0,
        }
    }

    /// Advances the protocol, and begins the streams that the client has opened. Ready when the connection has ended.
    fn poll_http(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        loop {
            match &mut self.http {
                Http::Handshake(preface) => {
                    let mut http = match Pin::new(&mut preface.handshake).poll(cx) {
                        Poll::Ready(http) => http?,
                        Poll::Pending if preface.timeout.as_mut().poll(cx).is_ready() => {
                            return Poll::Ready(Err(ConnectionError::NoPreface(self.request_timeout)));
                        }
                        Poll::Pending => return Poll::Pending,
                    };
                    if preface.is_draining {
                        http.graceful_shutdown();
                    }
                    let keep_alive = http.ping_pong().map(KeepAlive::new);
                    self.http = Http::Open(Box::new(Open { http, keep_alive }));
                }
                Http::Open(open) => {
                    if open.keep_alive.as_mut().is_some_and(|keep_alive| keep_alive.poll(cx).is_ready()) {
                        tracing::debug!(peer = %self.peer, "keepalive timed out");
                        open.keep_alive = None;
                        open.http.abrupt_shutdown(Reason::NO_ERROR);
                    }
                    match ready!(open.http.poll_accept(cx)) {
                        Some(accepted) => {
                            let (request, respond) = accepted?;
                            self.begin(request, respond);
                        }
                        None => return Poll::Ready(Ok(())),
                    }
                }
            }
        }
    }

    /// Begins a stream, here or in a task of its own.
    fn begin(&mut self, request: Request<RecvStream>, respond: SendResponse<Outgoing>) {
        let mut request = request.map(RequestBody::new);
        let (is_local, handle) = ((self.is_local)(&request), self.streams.handle());
        request.extensions_mut().insert(self.peer);
        request.extensions_mut().insert(handle.clone());
        let call = Box::pin(self.service.clone().oneshot(request).map_err(Into::into));
        let exchange = Exchange::new(call, respond, handle.clone());
        if is_local {
            self.streams.insert(exchange, &handle);
        } else {
            tokio::spawn(Spawned::new(exchange, &handle));
        }
    }

    /// Refuses new streams once the server drains, and resets those that are left when it says so.
    fn poll_ending(&mut self, cx: &mut Context<'_>) {
        while let Some((ending, told)) = &mut self.ending
            && told.as_mut().poll(cx).is_ready()
        {
            match ending {
                Ending::Drain => {
                    self.http.drain();
                    self.ending = Some((Ending::Cut, Box::pin(self.cut.clone().cancelled_owned())));
                }
                Ending::Cut => {
                    self.streams.reset_all();
                    self.ending = None;
                }
            }
            // Or its GOAWAY would wait for the next request.
            self.waker.wake_by_ref();
        }
    }

    /// Whether the other end has taken nothing for too long. A connection that is merely flow-controlled has nothing to
    /// write: that is what the queues of its streams are for.
    fn poll_stuck(&mut self, cx: &mut Context<'_>) -> Result<(), ConnectionError> {
        let Some(since) = self.io.stuck_since() else {
            if self.stuck.take().is_some() {
                self.streams.wakes().note_buffered(0);
            }
            return Ok(());
        };
        self.streams.wakes().note_buffered(self.io.buffered());
        // There is nothing left to be sent to a client whose streams were ended.
        let timeout = if self.streams.is_deserted() { DESERTED_TIMEOUT } else { self.progress_timeout };
        let deadline = since + timeout.min(self.progress_timeout);
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if stuck.deadline() != deadline {
            stuck.as_mut().reset(deadline);
        }
        if stuck.as_mut().poll(cx).is_pending() {
            return Ok(());
        }
        // Or the kernel would keep what it holds for a client that is gone.
        self.io.with_io(|io| {
            if let Some(tcp) = io.tcp() {
                socket2::SockRef::from(tcp).set_linger(Some(Duration::ZERO)).unwrap_or_default();
            }
        });
        Err(ConnectionError::Stuck(timeout))
    }

    /// Fails when the other end has begun a frame or a header block, and does not complete it. Nothing is read while the
    /// socket is full.
    fn poll_begun(&mut self, cx: &mut Context<'_>) -> Result<(), ConnectionError> {
        let begun = if self.stuck.is_none() { self.io.begun() } else { None };
        let Some(number) = begun else {
            self.begun = None;
            return Ok(());
        };
        let timeout = self.request_timeout;
        let next = || (number, Box::pin(tokio::time::sleep(timeout)));
        let (known, timer) = self.begun.get_or_insert_with(next);
        if *known != number {
            (*known, *timer) = next();
        }
        if timer.as_mut().poll(cx).is_pending() {
            return Ok(());
        }
        Err(ConnectionError::Incomplete(timeout))
    }

    /// Resets the streams whose windows have been shut for too long, and closes the connection after the last of them.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) {
        let reset = self.stalled.poll(&self.streams.wakes().waiting, cx);
        if reset > 0 {
            tracing::debug!(peer = %self.peer, streams = reset, "stalled streams reset");
            self.stalled_streams.inc_by(reset as u64);
        }
        if !self.is_closing && self.streams.is_deserted() {
            self.is_closing = true;
            self.http.close();
            // Or its GOAWAY would wait for the next request.
            self.waker.wake_by_ref();
        }
    }

    /// Bounds what lies below the queues, in the kernel.
    fn tune(&mut self) {
        let wanted = (UNSENT_PER_STREAM * self.streams.len().next_power_of_two()).min(MAX_UNSENT);
        if wanted == self.unsent {
            return;
        }
        self.unsent = wanted;
        #[cfg(target_os = "linux")]
        self.io.with_io(|io| {
            if let Some(tcp) = io.tcp() {
                // Without it the bound is the kernel's own, which is only larger.
                socket2::SockRef::from(tcp).set_tcp_notsent_lowat(wanted as u32).unwrap_or_default();
            }
        });
    }
}

// === impl ConnectionError ===

impl ConnectionError {
    /// Returns the reason by which it is counted, when a bound was reached.
    pub(super) fn refused_for(&self) -> Option<&'static str> {
        match self {
            Self::NoPreface(_) => Some("preface_timeout"),
            Self::Incomplete(_) => Some("headers_timeout"),
            Self::Http(_) | Self::Io(_) | Self::Stuck(_) => None,
        }
    }
}

// === impl Http ===

impl<T: Io> Http<T> {
    /// Accepts no more streams.
    fn drain(&mut self) {
        match self {
            Self::Handshake(preface) => preface.is_draining = true,
            Self::Open(open) => open.http.graceful_shutdown(),
        }
    }

    /// Accepts no more streams, and ends soon: a client may never answer the PING that HTTP/2 waits for.
    fn close(&mut self) {
        self.drain();
        if let Self::Open(open) = self
            && let Some(keep_alive) = &mut open.keep_alive
        {
            keep_alive.close_after(DESERTED_TIMEOUT);
        }
    }
}

impl<T, S, B> Future for Connection<T, S, B>
where
    T: Io,
    S: Answers<Response = Response<B>>,
    B: Supply,
{
    type Output = Result<(), ConnectionError>;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        this.streams.register(task.waker());
        this.poll_ending(task);
        let budget = this.io.total() + BYTES_PER_POLL;
        // Everything wakes through the ready list, so that only what is ready is polled.
        let waker = this.waker.clone();
        let mut cx = Context::from_waker(&waker);
        for _ in 0..ROUNDS_PER_POLL {
            let is_ready = this.streams.poll_ready();
            if is_ready && let Poll::Ready(ended) = this.poll_http(&mut cx) {
                // What was written last may still be here.
                return Poll::Ready(match this.io.poll_drain(task) {
                    Poll::Ready(Err(error)) => ended.and(Err(error.into())),
                    Poll::Ready(Ok(())) | Poll::Pending => ended,
                });
            }
            if this.io.total() > budget {
                break;
            }
            if !this.streams.rest() {
                continue;
            }
            this.tune();
            // A full socket wakes the connection, which may have been waiting to write.
            if let Poll::Ready(Err(error)) = this.io.poll_drain(&mut cx) {
                return Poll::Ready(Err(error.into()));
            }
            this.poll_stuck(task)?;
            this.poll_begun(task)?;
            this.poll_stalled(task);
            return Poll::Pending;
        }
        if let Poll::Ready(Err(error)) = this.io.poll_drain(&mut cx) {
            return Poll::Ready(Err(error.into()));
        }
        this.poll_stalled(task);
        this.streams.yield_now(task.waker());
        Poll::Pending
    }
}

/// Nothing in it is pinned.
impl<T: Io, S, B: Supply> Unpin for Connection<T, S, B> {}

impl<T: Io, S, B: Supply> fmt::Debug for Connection<T, S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("peer", &self.peer).field("io", &self.io).finish_non_exhaustive()
    }
}
