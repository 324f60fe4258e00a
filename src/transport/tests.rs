//! A client of hyper's over a pipe, and time that is stepped.

use std::{
    convert::Infallible,
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Frame;
use http_body_util::{BodyExt, Empty, StreamBody, combinators::BoxBody};
use hyper::{body::Incoming, client::conn::http2::SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncRead, AsyncWrite, DuplexStream, ReadBuf},
    net::TcpStream,
    sync::mpsc,
    task::JoinHandle,
    time::Instant,
};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};
use tokio_util::sync::CancellationToken;

use super::{
    Chunk, Peer, ServerConfig, StreamHandle,
    accept::Shared,
    connection::{Connection, ConnectionError, Io},
    merge::BufferPool,
};

/// One end of a pipe. Counts its writes, and reads nothing once its process is stopped.
struct Pipe {
    io: DuplexStream,
    writes: Arc<AtomicUsize>,
    is_stopped: Arc<AtomicBool>,
}

type Body = BoxBody<Chunk, Infallible>;
type Sender = mpsc::Sender<Bytes>;

/// One connection, whose streams send what the test gives them.
struct Pair {
    client: SendRequest<Empty<Bytes>>,
    client_task: JoinHandle<hyper::Result<()>>,
    server: JoinHandle<Result<(), ConnectionError>>,
    opened: mpsc::Receiver<(Sender, Option<StreamHandle>)>,
    writes: Arc<AtomicUsize>,
    is_stopped: Arc<AtomicBool>,
    draining: CancellationToken,
    cut: CancellationToken,
}

const PROGRESS_TIMEOUT: Duration = Duration::from_secs(30);

impl Pair {
    async fn new(pipe: usize) -> Self {
        let (near, far) = tokio::io::duplex(pipe);
        let (sender, opened) = mpsc::channel(1000);
        let service = tower::service_fn(move |request: Request<Incoming>| {
            let (sends, sent) = mpsc::channel(1000);
            sender.try_send((sends, request.extensions().get::<StreamHandle>().cloned())).unwrap();
            assert_eq!(request.extensions().get(), Some(&Peer::Unix { uid: None }));
            let frames = ReceiverStream::new(sent).map(|bytes| Ok(Frame::data(Chunk::from(bytes))));
            async move { Ok::<_, Infallible>(Response::new(Body::new(StreamBody::new(frames)))) }
        });
        let (draining, cut) = (CancellationToken::new(), CancellationToken::new());
        let shared = Shared {
            is_local: |request| request.uri().path() == "/local",
            buffers: BufferPool::default(),
            draining: draining.clone(),
            cut: cut.clone(),
        };
        let config = ServerConfig {
            streams_per_connection: 1000,
            progress_timeout: PROGRESS_TIMEOUT,
            drain_period: Duration::from_secs(5),
        };
        let writes = Arc::default();
        let is_stopped = Arc::default();
        let near = Pipe { io: near, writes: Arc::clone(&writes), is_stopped: Arc::default() };
        let far = Pipe { io: far, writes: Arc::default(), is_stopped: Arc::clone(&is_stopped) };
        let server = tokio::spawn(Connection::new(near, Peer::Unix { uid: None }, service, &config, &shared));
        let (client, connection) =
            hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(far)).await.unwrap();
        let client_task = tokio::spawn(connection);
        Self { client, client_task, server, opened, writes, is_stopped, draining, cut }
    }

    async fn open(&mut self, path: &str) -> (Incoming, Sender, Option<StreamHandle>) {
        let request = Request::get(format!("http://x{path}")).body(Empty::new()).unwrap();
        let (response, opened) = tokio::join!(self.client.send_request(request), self.opened.recv());
        let (sends, handle) = opened.unwrap();
        (response.unwrap().into_body(), sends, handle)
    }
}

async fn data(body: &mut Incoming) -> Bytes {
    body.frame().await.unwrap().unwrap().into_data().unwrap()
}

#[tokio::test]
async fn what_many_streams_send_at_once_is_one_write() {
    let mut pair = Pair::new(1 << 20).await;
    let mut streams = Vec::new();
    for _ in 0..100 {
        streams.push(pair.open("/local").await);
    }
    let before = pair.writes.load(Ordering::Relaxed);
    for (_, sends, handle) in &streams {
        assert!(handle.is_some());
        sends.try_send(Bytes::from_static(b"to each of them")).unwrap();
    }
    for (body, ..) in &mut streams {
        assert_eq!(data(body).await, &b"to each of them"[..]);
    }
    assert_eq!(pair.writes.load(Ordering::Relaxed) - before, 1);
}

#[tokio::test]
async fn local_streams_and_others_share_a_connection() {
    let mut pair = Pair::new(1000).await;
    let (mut local, to_local, handle) = pair.open("/local").await;
    let (mut other, to_other, none) = pair.open("/other").await;
    assert!(handle.is_some() && none.is_none());
    let large = Bytes::from(vec![7; 300_000]);
    to_local.try_send(large.clone()).unwrap();
    to_other.try_send(large.clone()).unwrap();
    drop((to_local, to_other));
    let whole = async |body: &mut Incoming| body.collect().await.unwrap().to_bytes();
    let (one, two) = tokio::join!(whole(&mut local), whole(&mut other));
    assert_eq!((one, two), (large.clone(), large));
}

#[tokio::test]
async fn a_stream_whose_window_is_shut_is_reset_from_outside() {
    let mut pair = Pair::new(1 << 20).await;
    let (mut stuck, sends, handle) = pair.open("/local").await;
    let (mut other, to_other, _) = pair.open("/local").await;
    for _ in 0..100 {
        sends.try_send(Bytes::from(vec![7; 64 << 10])).unwrap();
    }
    to_other.try_send(Bytes::from_static(b"one")).unwrap();
    assert_eq!(data(&mut other).await, &b"one"[..]);
    handle.unwrap().reset();
    sends.closed().await;
    let error = loop {
        if let Err(error) = stuck.frame().await.expect("an error before the end") {
            break error;
        }
    };
    let reason = std::error::Error::source(&error).unwrap().to_string();
    assert!(reason.contains("stream no longer needed"), "CANCEL, and not {reason}");
    to_other.try_send(Bytes::from_static(b"two")).unwrap();
    assert_eq!(data(&mut other).await, &b"two"[..]);
}

#[tokio::test]
async fn a_draining_connection_ends_with_its_last_stream_or_when_it_is_cut() {
    for is_cut in [false, true] {
        let mut pair = Pair::new(1 << 20).await;
        let (mut body, sends, _) = pair.open("/local").await;
        pair.draining.cancel();
        // The client learns that there are no new streams, and the old one goes on.
        let refused = Request::get("http://x/local").body(Empty::new()).unwrap();
        sends.try_send(Bytes::from_static(b"last words")).unwrap();
        assert_eq!(data(&mut body).await, &b"last words"[..]);
        assert!(pair.client.send_request(refused).await.is_err());
        assert!(!pair.server.is_finished());
        if is_cut {
            pair.cut.cancel();
            assert!(body.collect().await.is_err());
        } else {
            drop(sends);
            assert!(body.collect().await.unwrap().to_bytes().is_empty());
        }
        pair.server.await.unwrap().unwrap();
        pair.client_task.await.unwrap().unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_connection_that_takes_nothing_is_cut() {
    let mut pair = Pair::new(1000).await;
    let (_body, sends, _) = pair.open("/local").await;
    pair.is_stopped.store(true, Ordering::Relaxed);
    let began = Instant::now();
    sends.try_send(Bytes::from(vec![7; 60_000])).unwrap();
    let ended = pair.server.await.unwrap();
    assert!(matches!(ended, Err(ConnectionError::Stuck(PROGRESS_TIMEOUT))), "{ended:?}");
    assert_eq!(began.elapsed().as_secs(), PROGRESS_TIMEOUT.as_secs());
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
