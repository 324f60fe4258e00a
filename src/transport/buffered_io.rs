//! Merging of all writes of HTTP/2 in one poll of a connection into one write.

use std::{
    fmt, io,
    io::IoSlice,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use super::frame_tracker::FrameTracker;

/// IO that collects writes, and writes them at [`BufferedIo::poll_drain`] or when there are many.
///
/// Clones share it: h2's connection owns one and gives no access to it, and the connection's task drains through another. Only
/// that task ever locks it.
pub(super) struct BufferedIo<T>(Arc<Mutex<WriteBuffer<T>>>);

struct WriteBuffer<T> {
    io: T,
    incoming: FrameTracker,
    /// Collected data. Its buffer is from the pool while there is data, so that an idle connection holds no memory.
    pending: Vec<u8>,
    /// Number of bytes of it that have been written.
    written: usize,
    /// Time since which there is data to write and the peer has read none of it.
    stuck_since: Option<Instant>,
    /// Number of bytes that were ever written.
    total: u64,
    pool: BufferPool,
}

/// Pool of buffers that were written, and are still in the processor's caches; clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct BufferPool(Arc<Mutex<Vec<Vec<u8>>>>);

/// Size of a merged write; larger ones are hardly cheaper.
const WRITE_BYTES: usize = 64 << 10;
/// Maximum number of pooled buffers: a few more than connections that write at the same moment. Others are freed.
const POOLED_BUFFERS: usize = 64;

// === impl BufferedIo ===

impl<T> BufferedIo<T> {
    pub(super) fn new(io: T, pool: BufferPool) -> Self {
        let incoming = FrameTracker::new();
        let merging = WriteBuffer { io, incoming, pending: Vec::new(), written: 0, stuck_since: None, total: 0, pool };
        Self(Arc::new(Mutex::new(merging)))
    }

    /// Returns the time since which the peer has read nothing of the data to be written.
    pub(super) fn stuck_since(&self) -> Option<Instant> {
        self.0.lock().stuck_since
    }

    /// Returns the number of the frame or header block that the peer has begun to send, if it is not complete.
    pub(super) fn begun(&self) -> Option<u64> {
        self.0.lock().incoming.begun()
    }

    /// Returns the size of the buffer that waits to be written.
    pub(super) fn buffered(&self) -> usize {
        self.0.lock().pending.capacity()
    }

    /// Returns the number of bytes that were ever written.
    pub(super) fn total(&self) -> u64 {
        self.0.lock().total
    }

    /// Accesses the underlying IO.
    pub(super) fn with_io<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.0.lock().io)
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
        let before = buffer.filled().len();
        let read = Pin::new(&mut merging.io).poll_read(cx, buffer);
        merging.incoming.read(&buffer.filled()[before..]);
        read
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
    fn poll_drain(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.pending.capacity() == 0 {
            return Poll::Ready(Ok(()));
        }
        while self.written < self.pending.len() {
            match Pin::new(&mut self.io).poll_write(cx, &self.pending[self.written..]) {
                Poll::Ready(Ok(0)) => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                Poll::Ready(Ok(count)) => {
                    self.written += count;
                    self.total += count as u64;
                    self.stuck_since = None;
                }
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    self.stuck_since.get_or_insert_with(Instant::now);
                    return Poll::Pending;
                }
            }
        }
        // With TLS, the session may still hold the last records.
        match Pin::new(&mut self.io).poll_flush(cx) {
            Poll::Pending => {
                self.stuck_since.get_or_insert_with(Instant::now);
                return Poll::Pending;
            }
            Poll::Ready(flushed) => flushed?,
        }
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
    use tokio_test::{assert_pending, assert_ready_ok, io::Builder, task};

    use super::*;

    fn write<T: AsyncWrite + Unpin>(merge: &mut BufferedIo<T>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        task::spawn(()).enter(|cx, _| Pin::new(&mut *merge).poll_write(cx, bytes))
    }

    #[tokio::test]
    async fn writes_are_sent_together_at_a_drain() {
        let mut merge = BufferedIo::new(Builder::new().write(b"one, two").build(), BufferPool::default());
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
        let mut merge = BufferedIo::new(near, BufferPool::default());
        let (slices, large): (Vec<u8>, _) = ((0..200).cycle().take(WRITE_BYTES).collect(), vec![1; 10]);
        assert_eq!(assert_ready_ok!(write(&mut merge, &slices[..10])), 10);
        assert_eq!(assert_ready_ok!(write(&mut merge, &slices[10..])), WRITE_BYTES - 10);
        assert_eq!(merge.stuck_since(), None);
        assert_pending!(write(&mut merge, &large), "there is room for 1000");
        let since = merge.stuck_since().expect("stuck");
        tokio::time::advance(std::time::Duration::from_secs(1)).await;
        assert_pending!(write(&mut merge, &large));
        assert_eq!(merge.stuck_since(), Some(since));

        let mut read = vec![0; WRITE_BYTES];
        let reads = async { tokio::io::AsyncReadExt::read_exact(&mut far, &mut read).await.unwrap() };
        let drains = std::future::poll_fn(|cx| merge.poll_drain(cx));
        let (_, drained) = tokio::join!(reads, drains);
        drained.unwrap();
        assert_eq!((read, merge.stuck_since()), (slices, None));
        assert_eq!(assert_ready_ok!(write(&mut merge, &large)), 10);
    }

    #[tokio::test]
    async fn a_shutdown_drains_first() {
        let (near, mut far) = tokio::io::duplex(1000);
        let mut merge = BufferedIo::new(near, BufferPool::default());
        assert_ready_ok!(write(&mut merge, b"last words"));
        std::future::poll_fn(|cx| Pin::new(&mut merge).poll_shutdown(cx)).await.unwrap();
        let mut read = String::new();
        tokio::io::AsyncReadExt::read_to_string(&mut far, &mut read).await.unwrap();
        assert_eq!(read, "last words");
    }
}
