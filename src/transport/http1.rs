//! HTTP/1.1 over one connection, for clients that speak nothing else: one stream at a time, with the limits of an HTTP/2 stream.
//!
//! The body is polled for at most [`MAX_ROOM`], and only while hyper's own buffer, which is not larger, has room. So a client that
//! reads nothing makes the server hold two of them, which the [`Ledger`](super::Ledger) counts.

use std::{
    future::poll_fn,
    io,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Buf;
use http::{Request, Response};
use http_body::{Body, Frame};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Sleep, sleep},
};
use tower::ServiceExt;

use super::{
    BoundedBody, BoundedFrame, Chunk, Peer, RequestBody, Room, StreamEnd, StreamHandle,
    body::{BoxError, MAX_ROOM},
    budget::BudgetKind,
    buffered_io::{Io, set_user_timeout},
    connection::{HttpService, ListenerShared},
    end::EndLog,
    handle::{ConnectionWakes, PARKED, SPAWNED, StreamWaker},
    peer::ConnectionPeer,
    progress::Wait,
};

/// Maximum size of the head of a request, and of what hyper buffers of a response, in bytes.
const MAX_BUFFER: usize = 64 << 10;
/// Silence of a connection after which the kernel probes its peer, the interval of the probes, and their number. HTTP/1.1 has no PING.
const PROBE_AFTER: Duration = Duration::from_secs(30);
const PROBE_INTERVAL: Duration = Duration::from_secs(10);
const PROBES: u32 = 3;

/// Pause after the first byte of a preface that has come alone; each further one is twice as long.
const FIRST_PAUSE: Duration = Duration::from_millis(10);

/// Stream of the request that a connection answers now.
type Current = Arc<Mutex<Option<StreamHandle>>>;

/// Future of the response to a request.
type Answer<B> = Pin<Box<dyn Future<Output = Result<Response<Http1Body<B>>, Http1Error>> + Send>>;

/// Error of a service or of a body, after which the connection is closed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Http1Error(BoxError);

/// Serves one connection until it ends, or the server has drained.
pub(super) async fn drive<T, S, B>(io: T, peer: ConnectionPeer, service: S, shared: Arc<ListenerShared>)
where
    T: Io,
    S: HttpService<Response = Response<B>>,
    B: BoundedBody,
{
    let config = &shared.config;
    set_user_timeout(&io, config.progress_timeout);
    if let Some(tcp) = io.tcp() {
        let keepalive = socket2::TcpKeepalive::new().with_time(PROBE_AFTER).with_interval(PROBE_INTERVAL);
        // If this fails, a client that has vanished is found by the next bookmark.
        drop(socket2::SockRef::from(tcp).set_tcp_keepalive(&keepalive.with_retries(PROBES)));
    }
    let wakes = Arc::new(ConnectionWakes::new());
    config.ledger.add(&wakes);
    let current = Current::default();
    let timed = TimedIo {
        io,
        current: Arc::clone(&current),
        stuck: None,
        has_timed_out: false,
        timeout: config.progress_timeout,
        stalled: config.stalled.clone(),
        peer: peer.peer,
        ends: Arc::clone(&shared.ends),
    };
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(config.request_timeout).max_buf_size(MAX_BUFFER);
    let answer = service_fn(|request: Request<Incoming>| {
        let mut request = request.map(RequestBody::from);
        let handle = StreamHandle(Arc::new(StreamWaker::new(&wakes, SPAWNED)));
        peer.introduce(&mut request);
        request.extensions_mut().insert(handle.clone());
        let mut body = Http1Body { body: None, handle: handle.clone(), current: Arc::clone(&current) };
        handle.begin();
        *current.lock() = Some(handle);
        let answered = service.clone().oneshot(request);
        let answer: Answer<B> = Box::pin(async move {
            let response = answered.await.map_err(|error| Http1Error(error.into()))?;
            Ok(response.map(|answer| {
                body.body = Some(answer);
                body
            }))
        });
        answer
    });
    let mut connection = pin!(http.serve_connection(TokioIo::new(timed), answer));
    let (draining, cut) = (shared.draining.clone(), shared.cut.clone());
    let mut is_draining = false;
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    if error.is_timeout() {
                        config.refused.count("request_timeout");
                    }
                    tracing::debug!(peer = %peer.peer, %error, "connection ended");
                }
                return;
            }
            () = draining.cancelled(), if !is_draining => {
                is_draining = true;
                connection.as_mut().graceful_shutdown();
            }
            () = cut.cancelled() => return,
        }
    }
}

/// Waits for the first byte of a connection without TLS, within the time for a request.
pub(super) async fn is_http2_preface(stream: &tokio::net::TcpStream, timeout: Duration) -> io::Result<bool> {
    // "PRI * HTTP/2.0": no method of HTTP/1.1 that is served begins so, but POST begins with the same letter.
    let peeked = async {
        let (mut first, mut pause) = ([0; 2], FIRST_PAUSE);
        loop {
            let read = poll_fn(|cx| stream.poll_peek(cx, &mut ReadBuf::new(&mut first))).await?;
            if first[..read] != *b"P" {
                return Ok(first[..read] == *b"PR");
            }
            // Cut between the two: a socket that has one byte is ready, and says nothing of the next one.
            sleep(pause).await;
            pause *= 2;
        }
    };
    tokio::time::timeout(timeout, peeked).await.unwrap_or_else(|late| Err(late.into()))
}

/// Body of the response, as hyper polls it.
struct Http1Body<B: BoundedBody> {
    body: Option<B>,
    handle: StreamHandle,
    current: Current,
}

impl<B: BoundedBody> Body for Http1Body<B> {
    type Data = Chunk;
    type Error = Http1Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Chunk>, Http1Error>>> {
        let Self { body: Some(body), handle, .. } = self.get_mut() else { return Poll::Ready(None) };
        handle.0.task.register(cx.waker());
        handle.0.state.store(PARKED, std::sync::atomic::Ordering::SeqCst);
        if handle.wanted_reset().is_some() {
            return Poll::Ready(Some(Err(Http1Error("the server has ended the response".into()))));
        }
        let mut room = Room { bytes: MAX_ROOM, is_strict: true };
        let polled = loop {
            match body.poll_bounded(cx, room) {
                // One message that is larger than the room: a connection has one stream, so it holds one.
                Poll::Ready(Some(Ok(BoundedFrame::TooLarge(_)))) if room.is_strict => room.is_strict = false,
                polled => break polled,
            }
        };
        handle.note_encoded(body.encoded_bytes());
        Poll::Ready(match ready!(polled) {
            Some(Ok(BoundedFrame::Frame(frame))) => {
                let bytes = frame.data_ref().map_or(0, Buf::remaining);
                handle.charge(bytes, BudgetKind::Socket);
                // Trailers are of gRPC.
                if frame.is_trailers() { None } else { Some(Ok(frame)) }
            }
            // Unreachable for a body that follows the contract.
            Some(Ok(BoundedFrame::TooLarge(_))) => Some(Err(Http1Error("a message without an end".into()))),
            Some(Err(error)) => {
                handle.fails();
                Some(Err(Http1Error(error.into())))
            }
            None => None,
        })
    }

    fn is_end_stream(&self) -> bool {
        self.body.as_ref().is_none_or(Body::is_end_stream)
    }
}

impl<B: BoundedBody> Drop for Http1Body<B> {
    fn drop(&mut self) {
        self.body = None;
        self.handle.note_encoded(0);
        let left = self.handle.unsent();
        self.handle.release(left, BudgetKind::Socket);
        self.handle.waits_for(Wait::Nothing);
        self.handle.end();
        self.handle.leaves_waiting();
        *self.current.lock() = None;
    }
}

/// Byte stream that fails once it has accepted nothing for too long.
struct TimedIo<T> {
    io: T,
    current: Current,
    /// Timeout of what is to be written; set while the socket is full.
    stuck: Option<Pin<Box<Sleep>>>,
    has_timed_out: bool,
    timeout: Duration,
    stalled: Counter,
    peer: Peer,
    ends: Arc<EndLog>,
}

impl<T: Io> TimedIo<T> {
    /// Records the end of the stream, once, if the client has taken nothing for too long, or does not answer the kernel's probes.
    fn fails(&mut self, error: &io::Error) {
        if error.kind() != io::ErrorKind::TimedOut || std::mem::replace(&mut self.has_timed_out, true) {
            return;
        }
        let is_stuck = self.stuck.is_some();
        let end = if is_stuck { StreamEnd::ConnectionStalled } else { StreamEnd::KeepAliveTimeout };
        if is_stuck {
            self.stalled.inc();
        }
        if let Some(handle) = &*self.current.lock() {
            handle.ends(end);
            self.ends.ended(self.peer, end, 1);
        }
    }

    /// Counts what was written, or fails if nothing was for too long.
    fn note(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        match &written {
            Poll::Ready(Err(error)) => self.fails(error),
            Poll::Ready(Ok(written)) => {
                self.stuck = None;
                if let Some(handle) = &*self.current.lock() {
                    handle.note_written(*written);
                    handle.release((*written).min(handle.unsent()), BudgetKind::Socket);
                    handle.waits_for(Wait::Nothing);
                }
            }
            Poll::Pending => {
                let timeout = self.timeout;
                let stuck = self.stuck.get_or_insert_with(|| Box::pin(tokio::time::sleep(timeout)));
                let is_late = stuck.as_mut().poll(cx).is_ready();
                if let Some(handle) = &*self.current.lock() {
                    handle.waits_for(Wait::Window);
                    handle.0.task.register(cx.waker());
                    if handle.wanted_reset().is_some() {
                        return Poll::Ready(Err(io::ErrorKind::ConnectionAborted.into()));
                    }
                }
                if is_late {
                    let error = io::ErrorKind::TimedOut.into();
                    self.fails(&error);
                    return Poll::Ready(Err(error));
                }
            }
        }
        written
    }
}

impl<T: Io> AsyncRead for TimedIo<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let read = Pin::new(&mut this.io).poll_read(cx, buffer);
        // The kernel reports its own timeout to whoever comes first.
        if let Poll::Ready(Err(error)) = &read {
            this.fails(error);
        }
        read
    }
}

impl<T: Io> AsyncWrite for TimedIo<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, data: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write(cx, data);
        this.note(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        data: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.io).poll_write_vectored(cx, data);
        this.note(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use tokio::net::TcpStream;

    use tokio::{io::AsyncWriteExt, net::TcpListener};

    use super::*;

    /// Returns what two bytes that arrive one after the other begin.
    async fn begun(bytes: [u8; 2]) -> io::Result<bool> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (stream, _) = listener.accept().await.unwrap();
        client.set_nodelay(true).unwrap();
        client.write_all(&bytes[..1]).await.unwrap();
        stream.readable().await.unwrap();
        let preface = is_http2_preface(&stream, Duration::from_secs(10));
        let rest = async {
            tokio::task::yield_now().await;
            client.write_all(&bytes[1..]).await.unwrap();
        };
        tokio::join!(preface, rest).0
    }

    #[tokio::test]
    async fn a_preface_that_is_cut_after_its_first_byte_is_one() {
        let begins = [begun(*b"PR").await, begun(*b"PO").await, begun(*b"GE").await];
        assert_eq!(begins.map(Result::unwrap), [true, false, false]);
    }

    /// Stream whose peer takes nothing, and whose kernel reports that.
    struct Stalled;

    impl Io for Stalled {
        fn tcp(&self) -> Option<&TcpStream> {
            None
        }
    }

    impl AsyncRead for Stalled {
        fn poll_read(self: Pin<&mut Self>, _: &mut Context<'_>, _: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
        }
    }

    impl AsyncWrite for Stalled {
        fn poll_write(self: Pin<&mut Self>, _: &mut Context<'_>, _: &[u8]) -> Poll<io::Result<usize>> {
            Poll::Pending
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stalled_connection_counts_once() {
        let stalled = Counter::default();
        let mut io = TimedIo {
            io: Stalled,
            current: Current::default(),
            stuck: None,
            has_timed_out: false,
            timeout: Duration::from_secs(1),
            stalled: stalled.clone(),
            peer: Peer::Tcp(SocketAddr::from(([127, 0, 0, 1], 7))),
            ends: Arc::default(),
        };
        let written = poll_fn(|cx| Pin::new(&mut io).poll_write(cx, b"x")).await;
        assert_eq!(written.unwrap_err().kind(), io::ErrorKind::TimedOut);
        poll_fn(|cx| Pin::new(&mut io).poll_read(cx, &mut ReadBuf::new(&mut []))).await.unwrap_err();
        assert_eq!(stalled.get(), 1);
    }
}
