//! Task of one connection.

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
use tokio::time::{Instant, Sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tower::ServiceExt;

use super::{
    BoundedBody, Ledger, Quota, Rejections, RequestBody, StreamEnd, TrustedPeers,
    body::BoxError,
    buffered_io::{BufferPool, BufferedIo, Io, set_user_timeout},
    connection_error::ConnectionError,
    data_payload::DataPayload,
    end::EndLog,
    exchange::Exchange,
    keepalive::KeepAlive,
    linger::linger_time,
    peer::ConnectionPeer,
    stall_timer::StallTimer,
    streams::{Spawned, Streams},
};

/// Limits of each connection.
#[derive(Debug, Clone)]
pub struct ServerConfig {
    /// Maximum time for a TLS handshake, the HTTP/2 preface, and each frame or header block that a client begins.
    pub request_timeout: Duration,
    /// Limit on open connections.
    pub connections: Arc<Quota>,
    /// Counters of clients that exceeded `request_timeout`, and of rejected connections.
    pub refused: Rejections,
    /// Time after which the server closes a connection whose peer reads nothing of the data to be written, and resets a stream
    /// whose client reads nothing of the data to be sent.
    pub progress_timeout: Duration,
    /// Counter of the streams that were reset for that reason.
    pub stalled: Counter,
    /// Time after the start of the drain at which the server closes what is still open.
    pub drain_period: Duration,
    /// Ledger of the memory that connections hold for their clients.
    pub ledger: Arc<Ledger>,
    /// Proxies that name their clients.
    pub trusted_peers: TrustedPeers,
}

/// State that all connections of a listener share.
pub(super) struct ListenerShared {
    pub(super) is_local: fn(&Request<RequestBody>) -> bool,
    pub(super) config: ServerConfig,
    pub(super) buffers: BufferPool,
    /// Log of the ends that the server decides.
    pub(super) ends: Arc<EndLog>,
    /// Cancelled when connections must accept no more streams.
    pub(super) draining: CancellationToken,
    /// Cancelled when connections must reset all streams.
    pub(super) cut: CancellationToken,
}

/// Service that answers the requests of all connections.
pub(super) trait HttpService:
    tower::Service<Request<RequestBody>, Future: Send, Error: Into<BoxError>> + Clone + Send + Sync + 'static
{
}

impl<S> HttpService for S where
    S: tower::Service<Request<RequestBody>, Future: Send, Error: Into<BoxError>> + Clone + Send + Sync + 'static
{
}

/// Driver of HTTP/2 over one connection, until that ends.
pub(super) struct Connection<T: Io, S, B: BoundedBody> {
    http: Http<T>,
    service: S,
    shared: Arc<ListenerShared>,
    peer: ConnectionPeer,
    waker: Waker,
    /// All that is left after the end.
    pub(super) io: BufferedIo<T>,
    streams: Streams<Exchange<B>>,
    stalled: StallTimer,
    /// True if the connection accepts no more streams, because its client reads nothing.
    is_closing: bool,
    /// Next of the two shutdown steps of the server, and its signal.
    ending: Option<(Ending, Pin<Box<WaitForCancellationFutureOwned>>)>,
    /// Timeout of data that the socket does not accept; set while there is some.
    stuck: Option<Pin<Box<Sleep>>>,
    /// True if the kernel ends the connection when its peer accepts nothing for `progress_timeout`.
    is_timed_by_kernel: bool,
    /// Number and timeout of a frame or header block that is not complete; set while there is one.
    begun: Option<(u64, Pin<Box<Sleep>>)>,
    /// Current limit on unsent bytes in the kernel.
    unsent: usize,
}

/// HTTP/2 state of a connection.
enum Http<T: Io> {
    Handshake(Box<Preface<T>>),
    Open(Box<Open<T>>),
}

/// Connection before the client has sent the HTTP/2 preface.
struct Preface<T: Io> {
    handshake: Handshake<BufferedIo<T>, DataPayload>,
    timeout: Pin<Box<Sleep>>,
    /// Time that it has once the server drains.
    drain_time: Duration,
    is_draining: bool,
}

struct Open<T: Io> {
    http: server::Connection<BufferedIo<T>, DataPayload>,
    keep_alive: Option<KeepAlive>,
}

/// Shutdown steps of a connection.
#[derive(Debug, Clone, Copy)]
enum Ending {
    /// The connection accepts no more streams.
    Drain,
    /// The connection resets all streams.
    Cut,
}

/// Maximum number of streams that a client may have open on one connection: ten times as many as most servers allow, because a watch
/// that waits costs little. A client that needs more opens another connection.
const MAX_STREAMS: u32 = 1024;
/// Flow-control window for request data that is not read yet, of one stream, in bytes. Requests are small, and are read as they
/// arrive: only those of a Subscribe stream whose client does not read may wait.
const RECEIVE_WINDOW: u32 = 64 << 10;
/// The same of all streams of a connection.
const CONNECTION_RECEIVE_WINDOW: u32 = 256 << 10;
/// Overhead of the small DATA frames that are not read yet, in bytes as h2 counts it (256 for each, less its payload): enough for a
/// client that opens all its streams at once.
const DATA_FRAME_BUDGET: usize = 512 << 10;
/// Maximum size of the headers of a request, in bytes.
const HEADER_LIST: u32 = 16 << 10;
/// Maximum number of streams that the server resets for errors of the client, before it closes the connection.
const ERROR_RESETS: usize = 1024;
/// Maximum number of bytes that h2 buffers for a stream: unlimited, because the driver limits the data that it hands to h2.
const SEND_BUFFER: usize = u32::MAX as usize;
/// Time to send the last frames of a connection whose streams were all ended because the client reads nothing, or does not
/// complete a frame.
const DESERTED_TIMEOUT: Duration = Duration::from_secs(1);
/// Limits of one poll, in bytes and rounds; then the task yields to other connections.
const BYTES_PER_POLL: u64 = 1 << 20;
const ROUNDS_PER_POLL: usize = 32;
/// Factor for the timeout of a socket that accepts nothing, if the kernel has the same timeout for the peer.
const KERNEL_FACTOR: u32 = 4;
/// Unsent bytes in the kernel for one stream, at which the socket counts as full: no queue policy can act on these bytes. The
/// limit grows with the number of streams, which share the socket, up to the amount that the kernel buffers by default.
const UNSENT_PER_STREAM: usize = 64 << 10;
const MAX_UNSENT: usize = 4 << 20;

// === impl Connection ===

impl<T, S, B> Connection<T, S, B>
where
    T: Io,
    S: HttpService<Response = Response<B>>,
    B: BoundedBody,
{
    pub(super) fn new(io: T, peer: ConnectionPeer, service: S, shared: Arc<ListenerShared>) -> Self {
        let config = &shared.config;
        let streams = Streams::new();
        let is_timed_by_kernel = set_user_timeout(&io, config.progress_timeout);
        let io = BufferedIo::new(io, shared.buffers.clone(), streams.wakes());
        let mut builder = server::Builder::new();
        builder
            .initial_window_size(RECEIVE_WINDOW)
            .initial_connection_window_size(CONNECTION_RECEIVE_WINDOW)
            .data_frame_budget(DATA_FRAME_BUDGET)
            .max_header_list_size(HEADER_LIST)
            .max_local_error_reset_streams(Some(ERROR_RESETS))
            .max_concurrent_streams(MAX_STREAMS)
            .max_send_buffer_size(SEND_BUFFER);
        let preface = Preface {
            handshake: builder.handshake(io.clone()),
            timeout: Box::pin(tokio::time::sleep(config.request_timeout)),
            drain_time: linger_time(config.drain_period),
            is_draining: false,
        };
        config.ledger.add(streams.wakes());
        let waker = streams.connection_waker();
        waker.wake_by_ref();
        Self {
            http: Http::Handshake(Box::new(preface)),
            service,
            peer,
            waker,
            io,
            streams,
            stalled: StallTimer::new(config.progress_timeout),
            is_closing: false,
            ending: Some((Ending::Drain, Box::pin(shared.draining.clone().cancelled_owned()))),
            stuck: None,
            is_timed_by_kernel,
            begun: None,
            unsent: 0,
            shared,
        }
    }

    /// Advances HTTP/2, and begins the streams that the client has opened. Ready when the connection has ended.
    fn poll_http(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        loop {
            match &mut self.http {
                Http::Handshake(preface) => {
                    let mut http = match Pin::new(&mut preface.handshake).poll(cx) {
                        Poll::Ready(http) => http?,
                        Poll::Pending if preface.timeout.as_mut().poll(cx).is_ready() => {
                            let late = ConnectionError::NoPreface(self.shared.config.request_timeout);
                            return Poll::Ready(if preface.is_draining { Ok(()) } else { Err(late) });
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
                    let written = self.streams.wakes().written();
                    if open.keep_alive.as_mut().is_some_and(|keep_alive| keep_alive.poll(written, cx).is_ready()) {
                        tracing::debug!(peer = %self.peer.peer, "keepalive timed out");
                        open.keep_alive = None;
                        open.http.abrupt_shutdown(Reason::NO_ERROR);
                        self.ends(StreamEnd::KeepAliveTimeout);
                        continue;
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

    /// Begins a stream, in this task or in one of its own.
    fn begin(&mut self, request: Request<RecvStream>, respond: SendResponse<DataPayload>) {
        let mut request = request.map(RequestBody::new);
        let (is_local, handle) = ((self.shared.is_local)(&request), self.streams.handle());
        self.io.lock().windows.begin(respond.stream_id().as_u32(), &handle);
        self.peer.introduce(&mut request);
        request.extensions_mut().insert(handle.clone());
        let call = Box::pin(self.service.clone().oneshot(request).map_err(Into::into));
        let exchange = Exchange::new(call, respond, handle.clone());
        if is_local {
            self.streams.insert(exchange, &handle);
        } else {
            tokio::spawn(Spawned::new(exchange, &handle));
        }
    }

    /// Rejects new streams once the server drains, and resets the remaining ones when the drain period is over.
    fn poll_ending(&mut self, cx: &mut Context<'_>) {
        while let Some((ending, told)) = &mut self.ending
            && told.as_mut().poll(cx).is_ready()
        {
            match *ending {
                Ending::Drain => {
                    self.http.drain();
                    self.ending = Some((Ending::Cut, Box::pin(self.shared.cut.clone().cancelled_owned())));
                }
                Ending::Cut => {
                    self.ends(StreamEnd::Drained);
                    self.io.end_streams(StreamEnd::Drained);
                    self.ending = None;
                }
            }
            // The connection must be polled: otherwise its GOAWAY would wait for the next request.
            self.waker.wake_by_ref();
        }
    }

    /// Fails if the socket has accepted nothing for too long. A connection that is only flow-controlled has nothing to write: its data
    /// waits in the queues of its streams.
    fn poll_stuck(&mut self, cx: &mut Context<'_>) -> Result<(), ConnectionError> {
        let Some(since) = self.io.lock().stuck_since else {
            if self.stuck.take().is_some() {
                self.streams.wakes().note_buffered(0);
            }
            return Ok(());
        };
        self.streams.wakes().note_buffered(self.io.lock().pending.capacity());
        let timeout = self.shared.config.progress_timeout;
        // Once all streams were ended, there is nothing left to send but the last frames.
        let timeout = if self.streams.is_deserted() { timeout.min(DESERTED_TIMEOUT) } else { timeout };
        // The kernel sees each byte that the peer takes. The socket accepts nothing before about half of its buffer is free.
        let is_kernels = self.is_timed_by_kernel && !self.streams.is_deserted();
        let deadline = since + if is_kernels { timeout * KERNEL_FACTOR } else { timeout };
        let stuck = self.stuck.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(deadline)));
        if stuck.deadline() != deadline {
            stuck.as_mut().reset(deadline);
        }
        if stuck.as_mut().poll(cx).is_pending() {
            return Ok(());
        }
        // Closes with RST: otherwise the kernel would keep its buffers for a client that has vanished.
        if let Some(tcp) = self.io.lock().io.tcp() {
            socket2::SockRef::from(tcp).set_linger(Some(Duration::ZERO)).unwrap_or_default();
        }
        Err(ConnectionError::Stuck(timeout))
    }

    /// Fails if the client has begun a frame or a header block and does not complete it. The time does not count while the socket
    /// is full, because the connection does not read then.
    fn poll_begun(&mut self, cx: &mut Context<'_>) -> Result<(), ConnectionError> {
        let begun = if self.stuck.is_none() { self.io.lock().incoming.begun() } else { None };
        let Some(number) = begun else {
            self.begun = None;
            return Ok(());
        };
        let timeout = self.shared.config.request_timeout;
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

    /// Records the reason for which the server ends the connection, before its streams are dropped.
    fn ends(&self, end: StreamEnd) {
        let wakes = self.streams.wakes();
        if wakes.open() > 0 {
            self.shared.ends.ended(self.peer.peer, end, wakes.open());
        }
        wakes.ends(end);
    }

    /// Resets the streams that are stalled, and closes the connection after the last of them.
    fn poll_stalled(&mut self, cx: &mut Context<'_>) {
        if let Http::Open(open) = &mut self.http
            && let Some(keep_alive) = &mut open.keep_alive
        {
            let wakes = self.streams.wakes();
            let checked = self.stalled.poll(wakes, keep_alive.received(), cx);
            if checked.needs_ping && keep_alive.ping(wakes.written()) {
                // The connection must be polled to send it.
                self.waker.wake_by_ref();
            }
            if checked.stalled > 0 {
                self.shared.ends.ended(self.peer.peer, StreamEnd::Stalled, checked.stalled);
                self.shared.config.stalled.inc_by(checked.stalled as u64);
            }
        }
        if !self.is_closing && self.streams.is_deserted() {
            self.is_closing = true;
            self.http.close();
            // The connection must be polled: otherwise its GOAWAY would wait for the next request.
            self.waker.wake_by_ref();
        }
    }

    /// Drives the connection and its streams. Ready when it has ended.
    fn poll_ended(&mut self, task: &mut Context<'_>) -> Poll<Result<(), ConnectionError>> {
        self.streams.register(task.waker());
        self.poll_ending(task);
        let budget = self.io.total() + BYTES_PER_POLL;
        // All wake-ups pass through the ready list, so that only ready streams are polled.
        let waker = self.waker.clone();
        let mut cx = Context::from_waker(&waker);
        self.io.begin_poll();
        for _ in 0..ROUNDS_PER_POLL {
            let is_ready = self.streams.poll_ready();
            if is_ready && let Poll::Ready(ended) = self.poll_http(&mut cx) {
                // The last frames may still be in the buffer.
                return Poll::Ready(match self.io.poll_drain(task) {
                    Poll::Ready(Err(error)) => ended.and(Err(error.into())),
                    Poll::Ready(Ok(())) | Poll::Pending => ended,
                });
            }
            if self.io.total() > budget || self.streams.is_late() || self.io.has_many_headers() {
                break;
            }
            if !self.streams.try_park() {
                continue;
            }
            self.tune();
            // A full socket wakes the connection, which may have been waiting to write.
            if let Poll::Ready(Err(error)) = self.io.poll_drain(&mut cx) {
                return Poll::Ready(Err(error.into()));
            }
            self.poll_stuck(task)?;
            self.poll_begun(task)?;
            self.poll_stalled(task);
            return Poll::Pending;
        }
        if let Poll::Ready(Err(error)) = self.io.poll_drain(&mut cx) {
            return Poll::Ready(Err(error.into()));
        }
        self.poll_stalled(task);
        self.streams.yield_now(task.waker());
        Poll::Pending
    }

    /// Sets the limit on unsent bytes in the kernel.
    fn tune(&mut self) {
        let wanted = (UNSENT_PER_STREAM * self.streams.len().next_power_of_two()).min(MAX_UNSENT);
        if wanted == self.unsent {
            return;
        }
        self.unsent = wanted;
        #[cfg(target_os = "linux")]
        if let Some(tcp) = self.io.lock().io.tcp() {
            // If this fails, the kernel's own limit applies, which is only larger.
            socket2::SockRef::from(tcp).set_tcp_notsent_lowat(wanted as u32).unwrap_or_default();
        }
    }
}

// === impl Http ===

impl<T: Io> Http<T> {
    /// Stops accepting streams.
    fn drain(&mut self) {
        match self {
            Self::Handshake(preface) => {
                preface.is_draining = true;
                let deadline = preface.timeout.deadline().min(Instant::now() + preface.drain_time);
                preface.timeout.as_mut().reset(deadline);
            }
            Self::Open(open) => open.http.graceful_shutdown(),
        }
    }

    /// Stops accepting streams, and ends the connection soon: a client may never answer the PING that HTTP/2 waits for.
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
    S: HttpService<Response = Response<B>>,
    B: BoundedBody,
{
    type Output = Result<(), ConnectionError>;

    fn poll(self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut ended = ready!(this.poll_ended(task));
        if this.is_timed_by_kernel {
            ended = ended.map_err(|error| error.timed_by_kernel(this.shared.config.progress_timeout));
        }
        if let Some(end) = ended.as_ref().err().and_then(ConnectionError::end) {
            this.ends(end);
        }
        Poll::Ready(ended)
    }
}
/// None of its fields is pinned.
impl<T: Io, S, B: BoundedBody> Unpin for Connection<T, S, B> {}

impl<T: Io, S, B: BoundedBody> fmt::Debug for Connection<T, S, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("peer", &self.peer.peer).field("io", &self.io).finish_non_exhaustive()
    }
}
