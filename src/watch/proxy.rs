//! Watch over a channel that another task fills, and the signal to that task that the watch was stopped.

use std::{
    pin::Pin,
    task::{Context, Poll},
};

use tokio::sync::mpsc;
use tokio_stream::Stream;
use tokio_util::sync::CancellationToken;

/// Watch over a channel (apimachinery's `ProxyWatcher`). It yields the items unchanged and in order, until the producer drops
/// its sender.
///
/// Stopping it closes nothing and discards nothing: it signals the producer, which drops its sender. Dropping it signals the
/// producer too, and discards what is left.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// use informerd::watch::ProxyWatcher;
/// use tokio_stream::StreamExt;
///
/// let (sender, receiver) = tokio::sync::mpsc::channel(16);
/// let mut watch = ProxyWatcher::new(receiver);
/// let stop = watch.stop_handle();
/// tokio::spawn(async move {
///     for number in 0.. {
///         tokio::select! {
///             Ok(()) = sender.send(number) => {}
///             () = stop.stopped() => return,
///         }
///     }
/// });
/// assert_eq!(watch.next().await, Some(0));
/// watch.stop();
/// let unread = watch.collect::<Vec<i32>>().await;
/// assert_eq!(unread.first(), Some(&1));
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a watch yields nothing unless it is read"]
pub struct ProxyWatcher<T> {
    items: mpsc::Receiver<T>,
    stop: StopHandle,
}

/// Handle of a [`ProxyWatcher`], for any task: it stops the watch, or shows that it was stopped. Clones share it.
#[derive(Debug, Clone)]
pub struct StopHandle(CancellationToken);

// === impl ProxyWatcher ===

impl<T> ProxyWatcher<T> {
    /// Returns a watch over a channel.
    pub fn new(items: mpsc::Receiver<T>) -> Self {
        Self { items, stop: StopHandle(CancellationToken::new()) }
    }

    /// Returns the handle, which remains usable when the watch is gone.
    pub fn stop_handle(&self) -> StopHandle {
        self.stop.clone()
    }

    /// Signals the producer to stop; the same as [`StopHandle::stop`].
    pub fn stop(&self) {
        self.stop.stop();
    }
}

impl<T> Stream for ProxyWatcher<T> {
    type Item = T;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<T>> {
        self.items.poll_recv(cx)
    }
}

impl<T> Drop for ProxyWatcher<T> {
    fn drop(&mut self) {
        self.stop();
    }
}

// === impl StopHandle ===

impl StopHandle {
    /// Signals the producer to stop. Stopping a stopped watch does nothing.
    pub fn stop(&self) {
        self.0.cancel();
    }

    /// Returns true if the watch was stopped or dropped (upstream's `Stopping`).
    pub fn is_stopping(&self) -> bool {
        self.0.is_cancelled()
    }

    /// Waits until the watch is stopped or dropped (upstream's `StopChan`).
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn stopped(&self) {
        self.0.cancelled().await;
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, assert_ready_eq};

    use super::*;

    /// apimachinery `TestProxyWatcher`.
    #[test]
    fn a_proxy_yields_what_is_in_the_channel_and_a_stop_closes_nothing() {
        let (sender, items) = mpsc::channel(8);
        let watch = ProxyWatcher::new(items);
        let stop = watch.stop_handle();
        for item in 1..=5 {
            sender.try_send(item).unwrap();
        }
        let mut watch = tokio_test::task::spawn(watch);
        for item in 1..=3 {
            assert_ready_eq!(watch.poll_next(), Some(item));
        }
        let mut stopped = tokio_test::task::spawn(stop.stopped());
        assert_pending!(stopped.poll());
        assert!(!stop.is_stopping());
        for _ in 0..2 {
            watch.stop();
            assert!(stop.is_stopping());
        }
        assert!(stopped.is_woken());
        assert_ready!(stopped.poll());
        sender.try_send(6).unwrap();
        for item in 4..=6 {
            assert_ready_eq!(watch.poll_next(), Some(item));
        }
        assert_pending!(watch.poll_next());
        drop(sender);
        assert_ready_eq!(watch.poll_next(), None);
        assert_ready_eq!(watch.poll_next(), None);
    }

    #[test]
    fn a_proxy_that_is_dropped_stops_its_producer() {
        let (sender, items) = mpsc::channel::<u32>(1);
        let stop = ProxyWatcher::new(items).stop_handle();
        assert!(stop.is_stopping() && sender.is_closed());
    }
}
