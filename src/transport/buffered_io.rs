//! Byte stream of a connection, and the merging of all writes of HTTP/2 in one poll into one write.

use std::{
    fmt, io,
    io::IoSlice,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpStream, UnixStream},
    time::Instant,
};

use super::{StreamEnd, frame_tracker::FrameTracker, handle::ConnectionWakes, windows::Windows};

/// Byte stream of a connection.
pub(super) trait Io: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Returns the TCP socket, if there is one.
    fn tcp(&self) -> Option<&TcpStream>;
}

/// IO that collects writes, and writes them at [`BufferedIo::poll_drain`] or when there are many.
///
/// Clones share it: h2's connection owns one and gives no access to it, and the connection's task drains through another. Only
/// that task ever locks it.
pub(super) struct BufferedIo<T>(Arc<Mutex<WriteBuffer<T>>>);

/// State of a [`BufferedIo`].
pub(super) struct WriteBuffer<T> {
    pub(super) io: T,
    /// Frames that the peer sends.
    pub(super) incoming: FrameTracker,
    /// Number of header blocks at which nothing more is read in this poll of the connection.
    headers_limit: u64,
    pub(super) windows: Windows,
    /// Collected data. Its buffer is from the pool while there is data, so that an idle connection holds no memory.
    pub(super) pending: Vec<u8>,
    /// Number of bytes of it that have been written.
    written: usize,
    /// Time since which there is data to write and the IO has accepted none of it.
    pub(super) stuck_since: Option<Instant>,
    /// Number of bytes that were ever written.
    total: u64,
    pool: BufferPool,
}

/// Pool of buffers that were written, and are still in the processor's caches; clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct BufferPool(Arc<Mutex<Vec<Vec<u8>>>>);

/// Size of a merged write; larger ones are hardly cheaper.
const WRITE_BYTES: usize = 64 << 10;
/// Number of header blocks of one poll of a connection after which nothing more is read in it. HTTP/2 keeps about 1.3 KiB for each
/// stream of the most that a connection ever had at once, also for those that are refused at once.
const HEADERS_PER_POLL: u64 = 64;
/// Maximum size of a read: a few times the smallest header blocks of a poll.
const READ_BYTES: usize = 4 << 10;
/// Maximum number of pooled buffers: a few more than connections that write at the same moment. Others are freed.
const POOLED_BUFFERS: usize = 64;

/// Lets the kernel end the connection when its peer accepts nothing for this time. Returns false without such a kernel or socket.
pub(super) fn set_user_timeout<T: Io>(io: &T, timeout: Duration) -> bool {
    #[cfg(target_os = "linux")]
    let is_set = |tcp| socket2::SockRef::from(tcp).set_tcp_user_timeout(Some(timeout)).is_ok();
    #[cfg(not(target_os = "linux"))]
    let is_set = |_| timeout.is_zero();
    io.tcp().is_some_and(is_set)
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

// === impl BufferedIo ===

impl<T> BufferedIo<T> {
    /// Wraps the IO of the connection that has these streams.
    pub(super) fn new(io: T, pool: BufferPool, streams: &Arc<ConnectionWakes>) -> Self {
        let (incoming, windows) = (FrameTracker::new(), Windows::new(streams));
        let (pending, written, stuck_since, total) = (Vec::new(), 0, None, 0);
        let headers_limit = HEADERS_PER_POLL;
        let merging = WriteBuffer { io, incoming, headers_limit, windows, pending, written, stuck_since, total, pool };
        Self(Arc::new(Mutex::new(merging)))
    }

    /// Ends all streams.
    pub(super) fn end_streams(&self, end: StreamEnd) {
        // Collected first: a stream that is woken may write.
        let streams = self.0.lock().windows.streams();
        for stream in streams {
            stream.ends(end);
        }
    }

    /// Accesses the state: once in an expression, which keeps the lock to its end.
    pub(super) fn lock(&self) -> MutexGuard<'_, WriteBuffer<T>> {
        self.0.lock()
    }

    /// Allows the header blocks of one more poll of the connection.
    pub(super) fn begin_poll(&self) {
        let merging = &mut *self.0.lock();
        merging.headers_limit = merging.incoming.headers() + HEADERS_PER_POLL;
    }

    /// Returns true if nothing more is read in this poll of the connection, because it has begun many streams.
    pub(super) fn has_many_headers(&self) -> bool {
        let merging = self.0.lock();
        merging.incoming.headers() >= merging.headers_limit
    }

    /// Returns the number of bytes that were ever written.
    pub(super) fn total(&self) -> u64 {
        self.0.lock().total
    }

    /// Returns the underlying IO, if nothing else uses it any more.
    pub(super) fn into_io(self) -> Option<T> {
        Arc::into_inner(self.0).map(|merging| merging.into_inner().io)
    }
}

impl<T: AsyncWrite + Unpin> BufferedIo<T> {
    /// Writes the collected data; ready once none is left.
    pub(super) fn poll_drain(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().poll_drain(cx)
    }
}

impl<T> Clone for BufferedIo<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for BufferedIo<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let merging = &mut *self.0.lock();
        let WriteBuffer { io, incoming, windows, .. } = merging;
        if incoming.headers() >= merging.headers_limit {
            // The next poll reads on.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let size = READ_BYTES.min(buffer.remaining());
        let mut part = ReadBuf::new(buffer.initialize_unfilled_to(size));
        ready!(Pin::new(io).poll_read(cx, &mut part))?;
        incoming.read(part.filled(), &mut |change| windows.change(change));
        let len = part.filled().len();
        buffer.advance(len);
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for BufferedIo<T> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    /// Collects as much as there is room for. Without room it writes everything first: a full socket must make HTTP/2 wait.
    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut merging = self.0.lock();
        if merging.pending.len() >= WRITE_BYTES {
            ready!(merging.poll_drain(cx))?;
        }
        let before = merging.pending.len();
        merging.collect(slices);
        Poll::Ready(Ok(merging.pending.len() - before))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Does nothing: the connection's task drains once no stream is ready any more.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut merging = self.0.lock();
        ready!(merging.poll_drain(cx))?;
        Pin::new(&mut merging.io).poll_shutdown(cx)
    }
}

impl<T> fmt::Debug for BufferedIo<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let merging = self.0.lock();
        f.debug_struct("BufferedIo")
            .field("pending", &(merging.pending.len() - merging.written))
            .field("total", &merging.total)
            .finish_non_exhaustive()
    }
}

// === impl WriteBuffer ===

impl<T> WriteBuffer<T> {
    fn collect(&mut self, slices: &[IoSlice<'_>]) {
        if self.pending.capacity() == 0 && slices.iter().any(|slice| !slice.is_empty()) {
            self.pending = self.pool.take();
        }
        for slice in slices {
            let room = WRITE_BYTES - self.pending.len();
            self.pending.extend_from_slice(&slice[..slice.len().min(room)]);
            if slice.len() >= room {
                break;
            }
        }
    }
}

impl<T: AsyncWrite + Unpin> WriteBuffer<T> {
    /// Writes the collected data; ready once none is left. The only place that sets or clears [`stuck_since`](Self::stuck_since):
    /// each call that is ready, or has written something, clears what an earlier one has set.
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let before = self.total;
        let drained = self.poll_write_all(cx);
        if drained.is_ready() || self.total > before {
            self.stuck_since = None;
        }
        if drained.is_pending() {
            self.stuck_since.get_or_insert_with(Instant::now);
        }
        drained
    }

    fn poll_write_all(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.pending.capacity() == 0 {
            return Poll::Ready(Ok(()));
        }
        while self.written < self.pending.len() {
            let count = ready!(Pin::new(&mut self.io).poll_write(cx, &self.pending[self.written..]))?;
            if count == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += count;
            self.total += count as u64;
        }
        // With TLS, the session may still hold the last records.
        ready!(Pin::new(&mut self.io).poll_flush(cx))?;
        self.written = 0;
        self.pool.give(std::mem::take(&mut self.pending));
        Poll::Ready(Ok(()))
    }
}

// === impl BufferPool ===

impl BufferPool {
    fn take(&self) -> Vec<u8> {
        self.0.lock().pop().unwrap_or_else(|| Vec::with_capacity(WRITE_BYTES))
    }

    fn give(&self, mut buffer: Vec<u8>) {
        buffer.clear();
        let mut pooled = self.0.lock();
        if pooled.len() < POOLED_BUFFERS {
            pooled.push(buffer);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::VecDeque, time::Duration};

    use proptest::{collection::vec, prelude::*};
    use tokio_test::{assert_pending, assert_ready_ok, io::Builder, task};

    use super::*;

    fn write<T: AsyncWrite + Unpin>(merge: &mut BufferedIo<T>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        task::spawn(()).enter(|cx, _| Pin::new(&mut *merge).poll_write(cx, bytes))
    }

    #[tokio::test]
    async fn writes_are_sent_together_at_a_drain() {
        let mut merge = BufferedIo::new(
            Builder::new().write(b"one, two").build(),
            BufferPool::default(),
            &Arc::new(ConnectionWakes::new()),
        );
        assert_eq!(assert_ready_ok!(write(&mut merge, b"one, ")), 5);
        assert_eq!(assert_ready_ok!(write(&mut merge, b"two")), 3);
        assert_ready_ok!(task::spawn(()).enter(|cx, _| Pin::new(&mut merge).poll_flush(cx)));
        assert_eq!(merge.total(), 0, "a flush writes nothing");
        std::future::poll_fn(|cx| merge.poll_drain(cx)).await.unwrap();
        assert_eq!(merge.total(), 8);
        assert_eq!(merge.0.lock().pending.capacity(), 0, "an idle connection holds no buffer");
        assert_eq!(merge.0.lock().pool.0.lock().len(), 1, "which another may use");
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_socket_blocks_writers_and_counts_as_stuck() {
        let (near, mut far) = tokio::io::duplex(1000);
        let mut merge = BufferedIo::new(near, BufferPool::default(), &Arc::new(ConnectionWakes::new()));
        let (slices, large): (Vec<u8>, _) = ((0..200).cycle().take(WRITE_BYTES).collect(), vec![1; 10]);
        assert_eq!(assert_ready_ok!(write(&mut merge, &slices[..10])), 10);
        assert_eq!(assert_ready_ok!(write(&mut merge, &slices[10..])), WRITE_BYTES - 10);
        assert_eq!(merge.lock().stuck_since, None);
        assert_pending!(write(&mut merge, &large), "there is room for 1000");
        let since = merge.lock().stuck_since.expect("stuck");
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        assert_pending!(write(&mut merge, &large));
        assert_eq!(merge.lock().stuck_since, Some(since));

        let mut read = vec![0; WRITE_BYTES];
        let reads = async { tokio::io::AsyncReadExt::read_exact(&mut far, &mut read).await.unwrap() };
        let drains = std::future::poll_fn(|cx| merge.poll_drain(cx));
        let (_, drained) = tokio::join!(reads, drains);
        drained.unwrap();
        assert_eq!((read, merge.lock().stuck_since), (slices, None));
        assert_eq!(assert_ready_ok!(write(&mut merge, &large)), 10);
    }

    /// The streams of one poll are answered before the next ones begin, whatever arrives at once.
    #[tokio::test]
    async fn one_poll_reads_a_limited_number_of_header_blocks() {
        const HEADERS: [u8; 10] = [0, 0, 1, 1, 4, 0, 0, 0, 1, 0x82];
        const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
        let sent = [PREFACE, &HEADERS.repeat(1000)].concat();
        let io = io::Cursor::new(sent.clone());
        let mut reading = BufferedIo::new(io, BufferPool::default(), &Arc::new(ConnectionWakes::new()));
        let (mut received, mut polls) = (Vec::new(), 0);
        while received.len() < sent.len() {
            reading.begin_poll();
            polls += 1;
            let before = received.len();
            let mut task = task::spawn(());
            while task
                .enter(|cx, _| {
                    let mut space = vec![0; 64 << 10];
                    let mut buffer = ReadBuf::new(&mut space);
                    let read = Pin::new(&mut reading).poll_read(cx, &mut buffer);
                    received.extend_from_slice(buffer.filled());
                    read
                })
                .is_ready()
                && received.len() < sent.len()
            {}
            assert!(received.len() - before <= READ_BYTES + PREFACE.len());
            assert!(received.len() == sent.len() || task.is_woken(), "the next poll reads on");
        }
        assert_eq!((received, polls), (sent, 3));
        assert!(reading.has_many_headers());
        reading.begin_poll();
        assert!(!reading.has_many_headers());
    }

    #[tokio::test]
    async fn a_shutdown_drains_first() {
        let (near, mut far) = tokio::io::duplex(1000);
        let mut merge = BufferedIo::new(near, BufferPool::default(), &Arc::new(ConnectionWakes::new()));
        assert_ready_ok!(write(&mut merge, b"last words"));
        std::future::poll_fn(|cx| Pin::new(&mut merge).poll_shutdown(cx)).await.unwrap();
        let mut read = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut far, &mut read).await.unwrap();
        assert_eq!(read, "last words");
    }

    /// IO that accepts a part of what is written, or makes its caller wait, at each call as the test has drawn it.
    #[derive(Default)]
    struct Drawn {
        /// Number of bytes that each call accepts, of a write; zero makes it wait. A flush waits at zero, too.
        calls: VecDeque<usize>,
        accepted: usize,
        /// Time at which the last call accepted something or completed.
        moved: Option<Instant>,
    }

    impl Drawn {
        fn next(&mut self, limit: usize) -> Poll<io::Result<usize>> {
            match self.calls.pop_front().unwrap_or(usize::MAX).min(limit.max(1)) {
                0 => Poll::Pending,
                count => {
                    self.moved = Some(Instant::now());
                    Poll::Ready(Ok(count))
                }
            }
        }
    }

    impl AsyncWrite for Drawn {
        fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
            let count = ready!(self.next(bytes.len()))?;
            self.accepted += count;
            Poll::Ready(Ok(count))
        }

        fn poll_flush(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.next(1).map_ok(drop)
        }

        fn poll_shutdown(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            self.next(1).map_ok(drop)
        }
    }

    proptest! {
        #![proptest_config(crate::property_config())]

        /// The data is stuck if a call waits now, since the first one after the last that accepted something.
        #[test]
        fn data_is_stuck_only_while_the_io_accepts_nothing(
            steps in vec((0..3_usize, vec(prop_oneof![Just(0), 1..40_000_usize], 0..4)), 1..40),
        ) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
            runtime.block_on(async {
                let merge = BufferedIo::new(Drawn::default(), BufferPool::default(), &Arc::new(ConnectionWakes::new()));
                let (mut collected, mut waits_since) = (0, None);
                for (kind, calls) in steps {
                    tokio::time::advance(Duration::from_secs(1)).await;
                    let now = Instant::now();
                    merge.0.lock().io.calls = calls.into();
                    let mut io = merge.clone();
                    let polled = task::spawn(()).enter(|cx, _| match kind {
                        0 => Pin::new(&mut io).poll_write(cx, &vec![7; 50_000]).map_ok(|count| collected += count),
                        1 => io.poll_drain(cx),
                        _ => Pin::new(&mut io).poll_shutdown(cx),
                    });
                    let inner = merge.0.lock();
                    // A shutdown may wait with nothing left to write, and a write waits only if it drains.
                    let is_left = inner.pending.capacity() > 0;
                    match polled {
                        Poll::Pending if is_left && inner.io.moved != Some(now) => waits_since = waits_since.or(Some(now)),
                        Poll::Pending if is_left => waits_since = Some(now),
                        Poll::Ready(_) if kind == 0 && inner.io.moved != Some(now) => {}
                        Poll::Pending | Poll::Ready(_) => waits_since = None,
                    }
                    prop_assert_eq!(inner.stuck_since, waits_since);
                    prop_assert!(inner.io.accepted <= collected);
                }
                Ok(())
            })?;
        }
    }
}
