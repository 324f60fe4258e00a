//! The task of one connection.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use http::{Request, Response};
use http_body::Body;
use hyper::{body::Incoming, server::conn::http2};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    time::Sleep,
};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tower::{ServiceExt, util::Oneshot};

use super::{
    Peer,
    accept::{ServerConfig, Shared},
    merge::Merge,
    streams::{LocalExecutor, Streams},
};

/// What a connection is made of.
pub(super) trait Io: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// The socket, if there is one to be tuned.
    fn tcp(&self) -> Option<&TcpStream>;
}

/// What answers the requests of all connections.
pub(super) trait Answers:
    tower::Service<Request<Incoming>, Future: Send> + Clone + Send + Sync + 'static
{
}

impl<S> Answers for S where S: tower::Service<Request<Incoming>, Future: Send> + Clone + Send + Sync + 'static {}

/// Drives HTTP/2 over one connection until it ends.
pub(super) struct Connection<T: Io, S, B>
where
    S: Answers<Response = Response<B>, Error: Into<BoxError>>,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    http: Pin<Box<Http<T, S>>>,
    waker: Waker,
    io: Merge<T>,
    streams: Streams,
    /// What is awaited next of the two steps in which a server ends.
    ending: Option<(Ending, Pin<Box<WaitForCancellationFutureOwned>>)>,
    cut: CancellationToken,
    progress_timeout: Duration,
    /// Set while something is to be written that the other end does not take.
    stuck: Option<Pin<Box<Sleep>>>,
    /// The bound on what lies unsent in the kernel, as it is set.
    unsent: usize,
}

type Http<T, S> = http2::Connection<TokioIo<Merge<T>>, PerConnection<S>, LocalExecutor>;

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
    Http(#[from] hyper::Error),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("the client took nothing of what was to be written for {0:?}")]
    Stuck(Duration),
}

pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The service as one connection calls it.
pub(super) struct PerConnection<S> {
    service: S,
    is_local: fn(&Request<Incoming>) -> bool,
    peer: Peer,
    executor: LocalExecutor,
}

/// How often a connection that is silent is asked whether it is still there, and how long it may take to answer.
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEP_ALIVE_TIMEOUT: Duration = Duration::from_secs(20);
/// What h2 holds of one stream at most, besides one chunk.
const SEND_BUFFER: usize = 64 << 10;
/// After so much, or so many rounds, other connections get their turn.
const BYTES_PER_POLL: u64 = 1 << 20;
const ROUNDS_PER_POLL: usize = 32;
/// What the kernel holds back for one stream before the socket counts as full: what lies there, no policy of a queue can act
/// on. It grows with the number of streams, which share the socket, up to what the kernel takes by itself.
const UNSENT_PER_STREAM: usize = 128 << 10;
const MAX_UNSENT: usize = 4 << 20;

// === impl Connection ===

impl<T, S, B> Connection<T, S, B>
where
    T: Io,
    S: Answers<Response = Response<B>, Error: Into<BoxError>>,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    pub(super) fn new(io: T, peer: Peer, service: S, config: &ServerConfig, shared: &Shared) -> Self {
        let (streams, executor) = Streams::new();
        let io = Merge::new(io, shared.buffers.clone());
        let service = PerConnection { service, is_local: shared.is_local, peer, executor: executor.clone() };
        let mut builder = http2::Builder::new(executor);
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(config.streams_per_connection)
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(KEEP_ALIVE_INTERVAL)
            .keep_alive_timeout(KEEP_ALIVE_TIMEOUT);
        let http = Box::pin(builder.serve_connection(TokioIo::new(io.clone()), service));
        let waker = streams.connection_waker();
        waker.wake_by_ref();
        Self {
            http,
            waker,
            io,
            streams,
            ending: Some((Ending::Drain, Box::pin(shared.draining.clone().cancelled_owned()))),
            cut: shared.cut.clone(),
            progress_timeout: config.progress_timeout,
            stuck: None,
            unsent: 0,
        }
    }

    /// Refuses new streams once the server drains, and resets those that are left when it says so.
    fn poll_ending(&mut self, cx: &mut Context<'_>) {
        while let Some((ending, told)) = &mut self.ending
            && told.as_mut().poll(cx).is_ready()
        {
            match ending {
                Ending::Drain => {
                    self.http.as_mut().graceful_shutdown();
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
            self.stuck = None;
            return Ok(());
        };
        let deadline = since + self.progress_timeout;
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
        Err(ConnectionError::Stuck(self.progress_timeout))
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

impl<T, S, B> Future for Connection<T, S, B>
where
    T: Io,
    S: Answers<Response = Response<B>, Error: Into<BoxError>>,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
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
            if is_ready && let Poll::Ready(ended) = this.http.as_mut().poll(&mut cx) {
                // What hyper wrote last may still be here.
                return Poll::Ready(match this.io.poll_drain(task) {
                    Poll::Ready(Err(error)) => ended.map_err(Into::into).and(Err(error.into())),
                    Poll::Ready(Ok(())) | Poll::Pending => ended.map_err(Into::into),
                });
            }
            this.streams.admit();
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
            return Poll::Pending;
        }
        if let Poll::Ready(Err(error)) = this.io.poll_drain(&mut cx) {
            return Poll::Ready(Err(error.into()));
        }
        this.streams.make_way(task.waker());
        Poll::Pending
    }
}

impl<T, S, B> fmt::Debug for Connection<T, S, B>
where
    T: Io,
    S: Answers<Response = Response<B>, Error: Into<BoxError>>,
    B: Body<Data: Send, Error: Into<BoxError>> + Send + 'static,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("io", &self.io).field("streams", &self.streams.len()).finish_non_exhaustive()
    }
}

// === impl PerConnection ===

impl<S> hyper::service::Service<Request<Incoming>> for PerConnection<S>
where
    S: Answers<Error: Into<BoxError>>,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Oneshot<S, Request<Incoming>>;

    fn call(&self, mut request: Request<Incoming>) -> Self::Future {
        request.extensions_mut().insert(self.peer);
        if (self.is_local)(&request) {
            request.extensions_mut().insert(self.executor.announce());
        }
        self.service.clone().oneshot(request)
    }
}

// === impl Io ===

impl Io for TcpStream {
    fn tcp(&self) -> Option<&TcpStream> {
        Some(self)
    }
}

impl Io for UnixStream {
    fn tcp(&self) -> Option<&TcpStream> {
        None
    }
}
