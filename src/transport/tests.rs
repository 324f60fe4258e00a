//! Tests with an h2 client over a pipe, and with paused time.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use bytes::Bytes;
use h2::{Reason, RecvStream, client::SendRequest};
use http::{HeaderMap, HeaderName, HeaderValue, Request, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use prometheus_client::metrics::counter::Counter;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf},
    net::TcpStream,
    sync::mpsc,
    task::JoinHandle,
    time::Instant,
};
use tokio_util::sync::CancellationToken;

use super::{
    BoundedBody, BoundedFrame, Chunk, Exceeded, FinalFrames, HeldBytes, Ledger, Origin, Peer, Quota, Rejections,
    RequestBody, Room, ServerConfig, StreamEnd, StreamHandle, TrustedPeers,
    buffered_io::{BufferPool, Io},
    connection::{Connection, ListenerShared},
    connection_error::ConnectionError,
    end::EndLog,
    linger::linger_time,
    peer::ConnectionPeer,
};

/// One end of a pipe. It counts its writes, and reads nothing once its process is stopped.
struct Pipe {
    io: DuplexStream,
    writes: Arc<AtomicUsize>,
    is_stopped: Arc<AtomicBool>,
}

type Sender = mpsc::Sender<Bytes>;

/// Response body whose messages the test sends.
struct Body {
    messages: mpsc::Receiver<Bytes>,
    /// Message that is not handed out yet.
    next: Option<Bytes>,
    /// True if it waits also without a message, as a body that its client has paused.
    is_paused: bool,
    /// True if it panics.
    is_broken: bool,
    /// True if what it has not sent must be discarded after its end.
    is_discarded: bool,
    /// Number of bytes that were handed out.
    encoded_bytes: Arc<AtomicUsize>,
    /// Number of polls.
    polls: Arc<AtomicUsize>,
}

/// Test's access to an open stream.
struct Opened {
    sends: Sender,
    handle: StreamHandle,
    encoded_bytes: Arc<AtomicUsize>,
    polls: Arc<AtomicUsize>,
    /// Number of bytes of the request body, or its error.
    request: JoinHandle<Result<usize, super::body::BoxError>>,
}

/// Client and server of one connection, whose streams send what the test gives them.
struct Pair {
    client: SendRequest<Bytes>,
    client_task: JoinHandle<Result<(), h2::Error>>,
    server: JoinHandle<Result<(), ConnectionError>>,
    opened: mpsc::Receiver<Opened>,
    writes: Arc<AtomicUsize>,
    is_stopped: Arc<AtomicBool>,
    draining: CancellationToken,
    cut: CancellationToken,
    stalled: Counter,
    ledger: Arc<Ledger>,
    ends: Arc<EndLog>,
}

const PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Limit on the bytes held for all clients, while the ledger runs.
const MEMORY: usize = 8 << 20;
/// The same for each owner of streams.
const OWNER_MEMORY: usize = 4 << 20;

/// A served connection, and its other end.
struct Serving {
    far: Pipe,
    server: JoinHandle<Result<(), ConnectionError>>,
    opened: mpsc::Receiver<Opened>,
    writes: Arc<AtomicUsize>,
    is_stopped: Arc<AtomicBool>,
    draining: CancellationToken,
    cut: CancellationToken,
    stalled: Counter,
    ledger: Arc<Ledger>,
    ends: Arc<EndLog>,
}

fn serve(pipe: usize) -> Serving {
    let (near, far) = tokio::io::duplex(pipe);
    let (sender, opened) = mpsc::channel(1000);
    let service = tower::service_fn(move |request: Request<RequestBody>| {
        let (sends, messages) = mpsc::channel(1000);
        let (encoded_bytes, polls) = (Arc::default(), Arc::default());
        assert_eq!(request.extensions().get(), Some(&Peer::Unix { uid: None }));
        let handle = request.extensions().get::<StreamHandle>().unwrap().clone();
        let [is_paused, is_broken, is_discarded] =
            ["/paused", "/broken", "/discarded"].map(|path| request.uri().path() == path);
        let request = tokio::spawn(async { request.into_body().collect().await.map(|body| body.to_bytes().len()) });
        let body = Body {
            messages,
            next: None,
            is_paused,
            is_broken,
            is_discarded,
            encoded_bytes: Arc::clone(&encoded_bytes),
            polls: Arc::clone(&polls),
        };
        sender.try_send(Opened { sends, handle, encoded_bytes, polls, request }).unwrap();
        async move { Ok::<_, Infallible>(Response::new(body)) }
    });
    let (draining, cut) = (CancellationToken::new(), CancellationToken::new());
    let ledger =
        Arc::new(Ledger::new(MEMORY, Counter::default()).with_limit_for_each(OWNER_MEMORY, Counter::default()));
    let ends = Arc::<EndLog>::default();
    let stalled = Counter::default();
    let config = ServerConfig {
        progress_timeout: PROGRESS_TIMEOUT,
        stalled: stalled.clone(),
        request_timeout: REQUEST_TIMEOUT,
        connections: Quota::new(usize::MAX, 100),
        refused: Rejections::default(),
        drain_period: Duration::from_secs(5),
        ledger: Arc::clone(&ledger),
        trusted_peers: TrustedPeers::default(),
    };
    let shared = ListenerShared {
        is_local: |request| ["/local", "/broken"].contains(&request.uri().path()),
        buffers: BufferPool::default(),
        config,
        ends: Arc::clone(&ends),
        draining: draining.clone(),
        cut: cut.clone(),
    };
    let (writes, is_stopped) = (Arc::default(), Arc::default());
    let near = Pipe { io: near, writes: Arc::clone(&writes), is_stopped: Arc::default() };
    let far = Pipe { io: far, writes: Arc::default(), is_stopped: Arc::clone(&is_stopped) };
    let peer = ConnectionPeer::new(Peer::Unix { uid: None }, &TrustedPeers::default());
    let server = tokio::spawn(Connection::new(near, peer, service, Arc::new(shared)));
    Serving { far, server, opened, writes, is_stopped, draining, cut, stalled, ledger, ends }
}

impl Pair {
    async fn new(pipe: usize) -> Self {
        Self::with_window(pipe, 1 << 20).await
    }

    /// Connects with this window for each stream.
    async fn with_window(pipe: usize, window: u32) -> Self {
        Self::over(serve(pipe), |far| far, window, 1 << 30).await
    }

    /// Connects over a link with these windows for each stream and for the connection.
    async fn over<L>(serving: Serving, link: impl FnOnce(Pipe) -> L, window: u32, connection_window: u32) -> Self
    where
        L: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let Serving { far, server, opened, writes, is_stopped, draining, cut, stalled, ledger, ends } = serving;
        let mut builder = h2::client::Builder::new();
        builder.initial_window_size(window).initial_connection_window_size(connection_window);
        let (client, connection) = builder.handshake(link(far)).await.unwrap();
        let client_task = tokio::spawn(connection);
        Self { client, client_task, server, opened, writes, is_stopped, draining, cut, stalled, ledger, ends }
    }

    async fn open(&mut self, path: &str) -> (RecvStream, Opened) {
        let request = Request::get(format!("http://x{path}")).body(()).unwrap();
        let (response, _) = self.client.send_request(request, true).unwrap();
        let (response, opened) = tokio::join!(response, self.opened.recv());
        (response.unwrap().into_body(), opened.unwrap())
    }
}

/// Receives the next bytes of a response, and enlarges the window by as many.
async fn data(body: &mut RecvStream) -> Bytes {
    let data = body.data().await.unwrap().unwrap();
    body.flow_control().release_capacity(data.len()).unwrap();
    data
}

/// Receives all bytes of a response, or its error.
async fn whole(body: &mut RecvStream) -> Result<Vec<u8>, h2::Error> {
    let mut whole = Vec::new();
    while let Some(data) = body.data().await {
        let data = data?;
        body.flow_control().release_capacity(data.len()).unwrap();
        whole.extend_from_slice(&data);
    }
    Ok(whole)
}

/// Yields until all tasks are parked.
async fn settle() {
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
}

impl BoundedBody for Body {
    fn poll_bounded(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<Option<Result<BoundedFrame, Infallible>>> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        assert!(!self.is_broken, "a bug of the test");
        if self.next.is_none() {
            self.next = ready!(self.messages.poll_recv(cx));
        }
        Poll::Ready(match self.next.take_if(|next| room.allows(next.len())) {
            Some(next) => {
                self.encoded_bytes.fetch_add(next.len(), Ordering::Relaxed);
                Some(Ok(BoundedFrame::Frame(Frame::data(Chunk::from(next)))))
            }
            None => self.next.as_ref().map(|next| Ok(BoundedFrame::TooLarge(next.len()))),
        })
    }

    fn encoded_bytes(&self) -> usize {
        self.next.as_ref().map_or(0, Bytes::len)
    }

    fn is_paused(&self) -> bool {
        self.is_paused
    }

    fn poll_discarded(&mut self, _: &mut Context<'_>) -> Poll<()> {
        if self.is_discarded { Poll::Ready(()) } else { Poll::Pending }
    }

    fn exhausted(&mut self, room: usize, exceeded: Exceeded) -> FinalFrames {
        let message = self.next.take().filter(|next| next.len() <= room).map(Chunk::from);
        let trailers = HeaderMap::from_iter([(HeaderName::from_static("limit"), HeaderValue::from(exceeded.limit()))]);
        FinalFrames { message, trailers: Some(trailers) }
    }
}

impl http_body::Body for Body {
    type Data = Chunk;
    type Error = Infallible;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Chunk>, Infallible>>> {
        self.get_mut().poll_any(cx)
    }
}

#[tokio::test]
async fn data_of_many_streams_is_sent_in_one_write() {
    let mut pair = Pair::new(1 << 20).await;
    let mut streams = Vec::new();
    for _ in 0..100 {
        streams.push(pair.open("/local").await);
    }
    let before = pair.writes.load(Ordering::Relaxed);
    for (_, opened) in &streams {
        opened.sends.try_send(Bytes::from_static(b"to each of them")).unwrap();
    }
    for (body, _) in &mut streams {
        assert_eq!(data(body).await, &b"to each of them"[..]);
    }
    assert_eq!(pair.writes.load(Ordering::Relaxed) - before, 1);
}

#[tokio::test]
async fn local_streams_and_others_share_a_connection() {
    for window in [1, 100_000] {
        let mut pair = Pair::with_window(1000, window).await;
        let (mut local, to_local) = pair.open("/local").await;
        let (mut other, to_other) = pair.open("/other").await;
        let large = Bytes::from(vec![7; if window == 1 { 300 } else { 300_000 }]);
        for sends in [to_local.sends, to_other.sends] {
            sends.try_send(Bytes::from_static(b"small")).unwrap();
            sends.try_send(large.clone()).unwrap();
        }
        let (one, two) = tokio::join!(whole(&mut local), whole(&mut other));
        let sent = [b"small", &*large].concat();
        assert_eq!((one.unwrap(), two.unwrap()), (sent.clone(), sent));
    }
}

#[tokio::test]
async fn nothing_is_encoded_for_a_shut_window() {
    let mut pair = Pair::with_window(1 << 20, 0).await;
    let (_local, to_local) = pair.open("/local").await;
    let (_other, to_other) = pair.open("/other").await;
    for opened in [&to_local, &to_other] {
        opened.sends.try_send(Bytes::from_static(b"message")).unwrap();
    }
    // Round trips, so that the streams have been polled.
    for _ in 0..3 {
        drop(pair.open("/local").await);
    }
    assert_eq!([&to_local, &to_other].map(|opened| opened.encoded_bytes.load(Ordering::Relaxed)), [0, 0]);
    // An end of stream needs no window.
    let (mut third, to_third) = pair.open("/local").await;
    drop(to_third.sends);
    assert!(whole(&mut third).await.unwrap().is_empty());
}

#[tokio::test]
async fn a_stream_whose_window_is_shut_is_reset_from_outside() {
    let mut pair = Pair::new(1 << 20).await;
    for path in ["/local", "/other"] {
        let (mut stuck, to_stuck) = pair.open(path).await;
        let (mut other, to_other) = pair.open("/local").await;
        for _ in 0..100 {
            to_stuck.sends.try_send(Bytes::from(vec![7; 64 << 10])).unwrap();
        }
        to_other.sends.try_send(Bytes::from_static(b"one")).unwrap();
        assert_eq!(data(&mut other).await, &b"one"[..]);
        to_stuck.handle.reset();
        to_stuck.sends.closed().await;
        assert!(to_stuck.encoded_bytes.load(Ordering::Relaxed) <= 1 << 20, "no more than the window");
        assert_eq!(whole(&mut stuck).await.unwrap_err().reason(), Some(Reason::CANCEL));
        to_other.sends.try_send(Bytes::from_static(b"two")).unwrap();
        assert_eq!(data(&mut other).await, &b"two"[..]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_whose_peer_reads_nothing_is_closed() {
    let mut pair = Pair::new(1000).await;
    let (_body, opened) = pair.open("/local").await;
    pair.is_stopped.store(true, Ordering::Relaxed);
    let began = Instant::now();
    opened.sends.try_send(Bytes::from(vec![7; 60_000])).unwrap();
    let ended = pair.server.await.unwrap();
    assert!(matches!(ended, Err(ConnectionError::Stuck(PROGRESS_TIMEOUT))), "{ended:?}");
    assert_eq!(began.elapsed().as_secs(), PROGRESS_TIMEOUT.as_secs());
}

#[tokio::test(start_paused = true)]
async fn a_silent_client_is_pinged_and_closed() {
    // A client that answers stays connected.
    let mut pair = Pair::new(1000).await;
    let (_body, _opened) = pair.open("/local").await;
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(!pair.server.is_finished());
    // A client that has stopped reading does not.
    pair.is_stopped.store(true, Ordering::Relaxed);
    let began = Instant::now();
    pair.server.await.unwrap().unwrap();
    assert!((20..=50).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_client_without_a_preface_is_closed() {
    let mut silent = serve(1000);
    let began = Instant::now();
    let ended = silent.server.await.unwrap();
    assert!(matches!(ended, Err(ConnectionError::NoPreface(REQUEST_TIMEOUT))), "{ended:?}");
    assert_eq!(began.elapsed().as_secs(), 10);

    let mut other = serve(1000);
    other.far.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
    assert!(matches!(other.server.await.unwrap(), Err(ConnectionError::Http(_))));
    let mut read = Vec::new();
    other.far.read_to_end(&mut read).await.unwrap();
    assert_eq!(read[3..4], [4], "SETTINGS, and the end");
    silent.far.read_to_end(&mut read).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_frame_or_a_header_block_that_is_begun_has_to_be_completed() {
    let preface: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    // HEADERS without END_HEADERS; the header of DATA without its payload; three bytes of a header.
    for begun in [&b"\0\0\x01\x01\0\0\0\0\x01\x82"[..], b"\0\0\x05\0\0\0\0\0\x01", b"\0\0\x08"] {
        let mut serving = serve(1000);
        serving.far.write_all(preface).await.unwrap();
        // A connection without streams has no timeout.
        tokio::time::sleep(REQUEST_TIMEOUT * 2).await;
        assert!(!serving.server.is_finished());
        let since = Instant::now();
        serving.far.write_all(begun).await.unwrap();
        let ended = serving.server.await.unwrap();
        assert!(matches!(ended, Err(ConnectionError::Incomplete(REQUEST_TIMEOUT))), "{ended:?}");
        assert_eq!(since.elapsed().as_secs(), REQUEST_TIMEOUT.as_secs());
    }

    // The timeout applies to each of many frames separately, in whatever pieces they arrive.
    let mut serving = serve(1000);
    serving.far.write_all(preface).await.unwrap();
    let window_update = b"\0\0\x04\x08\0\0\0\0\0\0\0\0\x01";
    serving.far.write_all(&window_update[..5]).await.unwrap();
    for _ in 0..10 {
        tokio::time::sleep(REQUEST_TIMEOUT / 2).await;
        serving.far.write_all(&[&window_update[5..], &window_update[..5]].concat()).await.unwrap();
    }
    assert!(!serving.server.is_finished());
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_is_closed_after_its_last_stream_waits_for_no_answer() {
    let mut serving = serve(1000);
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";
    // A complete GET http://x/local; its client answers nothing after that.
    let request = b"\0\0\x0d\x01\x05\0\0\0\x01\x82\x86\x04\x06/local\x01\x01x";
    serving.far.write_all(&[&preface[..], request].concat()).await.unwrap();
    let opened = serving.opened.recv().await.unwrap();
    opened.handle.close_after_last();
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert!(!serving.server.is_finished(), "not before its last stream has ended");
    let began = Instant::now();
    drop(opened);
    serving.server.await.unwrap().unwrap();
    assert!(began.elapsed() <= Duration::from_secs(2), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_request_is_read_and_one_that_is_cut_off_ends() {
    let mut pair = Pair::new(1000).await;
    let open = |path: &str| Request::post(format!("http://x{path}")).body(()).unwrap();
    let (_response, mut stream) = pair.client.send_request(open("/other"), false).unwrap();
    let opened = pair.opened.recv().await.unwrap();
    // More than the server lets a client send before it reads.
    let sent = Bytes::from(vec![7; 3 << 20]);
    stream.send_data(sent.clone(), true).unwrap();
    assert_eq!(opened.request.await.unwrap().unwrap(), sent.len());

    let (_response, mut stream) = pair.client.send_request(open("/local"), false).unwrap();
    let opened = pair.opened.recv().await.unwrap();
    stream.send_data(Bytes::from_static(b"half"), false).unwrap();
    stream.send_reset(Reason::INTERNAL_ERROR);
    assert_eq!(
        opened.request.await.unwrap().unwrap_err().downcast_ref::<h2::Error>().and_then(h2::Error::reason),
        Some(Reason::INTERNAL_ERROR)
    );
    opened.sends.closed().await;
}

impl Io for Pipe {
    fn tcp(&self) -> Option<&TcpStream> {
        None
    }
}

impl AsyncRead for Pipe {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        if self.is_stopped.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        Pin::new(&mut self.io).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Pipe {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.writes.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

mod ends;
mod slow_link;
mod unsent;
