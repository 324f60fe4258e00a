//! Watch whose events a test sends, one at a time.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio_stream::Stream;
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};

use crate::{
    cache::SourceError,
    model::{Event, EventType, Object, ResourceVersion},
};

/// Item of a fake watch. An error is the last item of an upstream watch; a fake sends whatever the test requests.
pub type FakeItem = Result<Event, SourceError>;

/// Watch whose events a test sends (apimachinery's `FakeWatcher`). Each call waits until its event was received; with a size,
/// until it has one of that many slots. Upstream, a call after a stop panics; here it fails.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use informerd::{
///     model::{Event, ResourceVersion},
///     testing::{FakeWatcher, Stopped},
/// };
/// use tokio_stream::StreamExt;
///
/// let watcher = FakeWatcher::new();
/// let mut watch = watcher.watch();
/// let version = ResourceVersion::decimal(5);
/// let (sent, received) = tokio::join!(watcher.bookmark(version.clone()), watch.next());
/// assert_eq!((sent, received), (Ok(()), Some(Ok(Event::Bookmark(version.clone())))));
///
/// drop(watch);
/// assert!(watcher.is_stopped());
/// assert_eq!(watcher.bookmark(version).await, Err(Stopped));
/// # }
/// ```
#[derive(Debug, Clone)]
pub struct FakeWatcher {
    size: usize,
    channel: Arc<Mutex<FakeChannel>>,
}

/// Receiving half of a fake watch. Dropping it stops the watch.
#[derive(Debug)]
#[must_use = "a watch that is dropped is stopped"]
pub struct FakeWatch {
    items: mpsc::Receiver<Sent>,
    stop: CancellationToken,
    stopped: Pin<Box<WaitForCancellationFutureOwned>>,
}

/// Indicates that a watch was stopped, by the fake or by its reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the watch was stopped")]
pub struct Stopped;

/// Channel of a fake watch, from one reset to the next.
#[derive(Debug)]
pub(super) struct FakeChannel {
    pub(super) sender: mpsc::Sender<Sent>,
    pub(super) stop: CancellationToken,
    watch: Option<FakeWatch>,
}

/// Item in the channel.
#[derive(Debug)]
pub(super) struct Sent {
    pub(super) item: FakeItem,
    /// Receipt for a call that waits until the item was received; a call that has failed does not wait any more.
    pub(super) received: Option<oneshot::Sender<()>>,
}

// === impl FakeWatcher ===

impl FakeWatcher {
    /// Makes a watcher without slots.
    pub fn new() -> Self {
        Self::with_size(0)
    }

    /// Makes a watcher with this number of slots.
    pub fn with_size(size: usize) -> Self {
        Self { size, channel: Arc::new(Mutex::new(FakeChannel::new(size))) }
    }

    /// Returns the receiving half.
    ///
    /// # Panics
    ///
    /// If it was taken since the last [`FakeWatcher::reset`].
    pub fn watch(&self) -> FakeWatch {
        self.channel.lock().watch()
    }

    /// Sends ADDED.
    pub async fn add(&self, object: impl Into<Arc<Object>>) -> Result<(), Stopped> {
        self.action(EventType::Added, object).await
    }

    /// Sends MODIFIED.
    pub async fn modify(&self, object: impl Into<Arc<Object>>) -> Result<(), Stopped> {
        self.action(EventType::Modified, object).await
    }

    /// Sends DELETED, with the last state of the object.
    pub async fn delete(&self, object: impl Into<Arc<Object>>) -> Result<(), Stopped> {
        self.action(EventType::Deleted, object).await
    }

    /// Sends a bookmark.
    pub async fn bookmark(&self, version: ResourceVersion) -> Result<(), Stopped> {
        self.send(Ok(Event::Bookmark(version))).await
    }

    /// Sends an error. It does not stop the watch.
    pub async fn error(&self, error: SourceError) -> Result<(), Stopped> {
        self.send(Err(error)).await
    }

    /// Sends an event of this type.
    pub async fn action(&self, event_type: EventType, object: impl Into<Arc<Object>>) -> Result<(), Stopped> {
        self.send(Ok(event(event_type, object.into()))).await
    }

    /// Sends an item.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the item is not received.
    pub async fn send(&self, item: FakeItem) -> Result<(), Stopped> {
        let (sender, stop) = {
            let channel = self.channel.lock();
            (channel.sender.clone(), channel.stop.clone())
        };
        let sending = async {
            let (received, receipt) = oneshot::channel();
            let received = (self.size == 0).then_some(received);
            let is_waiting = received.is_some();
            sender.send(Sent { item, received }).await.map_err(|_| Stopped)?;
            if is_waiting { receipt.await.map_err(|_| Stopped) } else { Ok(()) }
        };
        stop.run_until_cancelled(sending).await.unwrap_or(Err(Stopped))
    }

    /// Stops the watch: it ends after the events in its slots. Stopping a stopped watch does nothing.
    pub fn stop(&self) {
        self.channel.lock().stop.cancel();
    }

    /// Returns true if the watch was stopped, or if its reader has dropped it.
    pub fn is_stopped(&self) -> bool {
        self.channel.lock().stop.is_cancelled()
    }

    /// Makes a new channel for the next [`FakeWatcher::watch`]. A watch that was taken before has no sender any more.
    pub fn reset(&self) {
        *self.channel.lock() = FakeChannel::new(self.size);
    }
}

impl Default for FakeWatcher {
    fn default() -> Self {
        Self::new()
    }
}

// === impl FakeWatch ===

impl Stream for FakeWatch {
    type Item = FakeItem;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<FakeItem>> {
        if self.stopped.as_mut().poll(cx).is_ready() {
            self.items.close();
        }
        loop {
            let Some(Sent { item, received }) = ready!(self.items.poll_recv(cx)) else { return Poll::Ready(None) };
            if received.is_none_or(|received| received.send(()).is_ok()) {
                return Poll::Ready(Some(item));
            }
        }
    }
}

impl Drop for FakeWatch {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

// === impl FakeChannel ===

impl FakeChannel {
    pub(super) fn new(size: usize) -> Self {
        // Without slots, a call waits for its receipt.
        let (sender, items) = mpsc::channel(size.max(1));
        let stop = CancellationToken::new();
        let stopped = Box::pin(stop.clone().cancelled_owned());
        Self { sender, stop: stop.clone(), watch: Some(FakeWatch { items, stop, stopped }) }
    }

    pub(super) fn watch(&mut self) -> FakeWatch {
        self.watch.take().expect("a fake is watched once, and again after a reset")
    }
}

/// Returns an event of this type.
pub(super) fn event(event_type: EventType, object: Arc<Object>) -> Event {
    match event_type {
        EventType::Added => Event::Added(object),
        EventType::Modified => Event::Modified(object),
        EventType::Deleted => Event::Deleted(object),
    }
}
