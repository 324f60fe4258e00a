//! Streams over a slow link: nobody who reads is ended because of the link, and who does not read is.

use super::*;

/// Rate of the link, in bytes per second.
const RATE: f64 = 25_000.0;
/// Bytes that the link buffers, as kernels and proxies do.
const BUFFERED: usize = 4 << 20;

/// Returns the client's end of a link that passes data of the server at [`RATE`].
fn slow(far: Pipe) -> DuplexStream {
    let (near, client) = tokio::io::duplex(4096);
    let ((mut from_server, mut to_server), (mut from_client, mut to_client)) =
        (tokio::io::split(far), tokio::io::split(near));
    tokio::spawn(async move { tokio::io::copy(&mut from_client, &mut to_server).await });
    tokio::spawn(async move {
        let mut buffer = [0; 1024];
        while let Ok(read @ 1..) = from_server.read(&mut buffer).await {
            tokio::time::sleep(Duration::from_secs_f64(read as f64 / RATE)).await;
            if to_client.write_all(&buffer[..read]).await.is_err() {
                break;
            }
        }
    });
    client
}

/// Reads a stream all the time, and counts its bytes.
fn read(mut body: RecvStream, received: &Arc<AtomicUsize>) -> JoinHandle<Option<Reason>> {
    let received = Arc::clone(received);
    tokio::spawn(async move {
        while let Some(data) = body.data().await {
            let data = match data {
                Ok(data) => data,
                Err(error) => return error.reason(),
            };
            body.flow_control().release_capacity(data.len()).unwrap();
            received.fetch_add(data.len(), Ordering::Relaxed);
        }
        None
    })
}

#[tokio::test(start_paused = true)]
async fn streams_of_a_client_that_reads_wait_for_their_link_and_their_neighbours_for_any_time() {
    const STREAMS: usize = 500;
    for (window, bytes) in [(65_535, 1 << 10), (1 << 20, 8 << 10)] {
        let mut pair = Pair::over(serve(BUFFERED), slow, window, window).await;
        let (received, mut streams) = (Arc::default(), Vec::new());
        for number in 0..STREAMS {
            let (body, opened) = pair.open(if number % 2 == 0 { "/local" } else { "/other" }).await;
            streams.push((read(body, &received), opened));
        }
        let began = Instant::now();
        for _ in 0..4 {
            for (_, opened) in &streams {
                opened.sends.try_send(Bytes::from(vec![7; bytes])).unwrap();
            }
        }
        while received.load(Ordering::Relaxed) < 4 * STREAMS * bytes {
            assert!(began.elapsed() < PROGRESS_TIMEOUT * 100, "{} bytes", received.load(Ordering::Relaxed));
            assert!(!pair.server.is_finished(), "window {window}");
            tokio::time::sleep(PROGRESS_TIMEOUT / 10).await;
        }
        assert!(began.elapsed() > PROGRESS_TIMEOUT * 2, "{:?}", began.elapsed());
        assert!(streams.iter().all(|(reads, opened)| !reads.is_finished() && !opened.sends.is_closed()));
        assert_eq!(pair.stalled.get(), 0, "window {window}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_its_client_does_not_read_is_reset_though_its_neighbours_move() {
    for link in [|far| Box::new(slow(far)) as Box<dyn Link>, |far| Box::new(far) as Box<dyn Link>] {
        let mut pair = Pair::over(serve(BUFFERED), link, 65_535, 1 << 30).await;
        let (received, mut streams) = (Arc::default(), Vec::new());
        for _ in 0..10 {
            let (body, opened) = pair.open("/local").await;
            streams.push((read(body, &received), opened));
        }
        let (mut hung, to_hung) = pair.open("/local").await;
        for _ in 0..5 {
            to_hung.sends.try_send(Bytes::from(vec![7; 60_000])).unwrap();
        }
        let began = Instant::now();
        while !to_hung.sends.is_closed() {
            for (_, opened) in &streams {
                opened.sends.try_send(Bytes::from(vec![7; 1000])).unwrap();
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
            assert!(began.elapsed() < PROGRESS_TIMEOUT * 2, "it has all its bytes");
        }
        assert!(began.elapsed() >= PROGRESS_TIMEOUT, "{:?}", began.elapsed());
        assert_eq!(whole(&mut hung).await.unwrap_err().reason(), Some(Reason::ENHANCE_YOUR_CALM));
        assert!(streams.iter().all(|(reads, opened)| !reads.is_finished() && !opened.sends.is_closed()));
        assert_eq!((pair.stalled.get(), to_hung.handle.ended()), (1, Some(StreamEnd::Stalled)));
    }
}

/// The window of the connection is shut: no stream has used up its own.
#[tokio::test(start_paused = true)]
async fn streams_of_a_client_that_reads_nothing_of_its_connection_are_reset_those_with_unread_bytes_first() {
    let mut pair = Pair::over(serve(BUFFERED), |far| far, 1 << 20, 65_535).await;
    let mut streams = Vec::new();
    for _ in 0..4 {
        streams.push(pair.open("/local").await);
    }
    for (_, opened) in &streams {
        opened.sends.try_send(Bytes::from(vec![7; 60_000])).unwrap();
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let began = Instant::now();
    let mut ended = Vec::new();
    // The first has sent all that it had, and waits for nothing.
    for (_, opened) in &streams[1..] {
        opened.sends.closed().await;
        ended.push(began.elapsed());
    }
    let [second, third, last] = ended[..] else { panic!("{ended:?}") };
    assert!(second >= PROGRESS_TIMEOUT && last <= PROGRESS_TIMEOUT * 4, "{ended:?}");
    assert!(third >= second && last >= third, "{ended:?}");
}

/// Any byte stream.
trait Link: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Link for T {}
