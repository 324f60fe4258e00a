//! Watch that keeps a copy of each event that passes.

use std::{
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use parking_lot::Mutex;
use tokio_stream::Stream;

/// Watch that passes every item of another one on, and keeps a copy (apimachinery's `Recorder`). It holds all that it has
/// passed on: for tests, and for watches that end soon.
#[derive(Debug)]
#[must_use = "a watch yields nothing unless it is read"]
pub struct Recorder<S: Stream> {
    watch: S,
    record: Record<S::Item>,
}

/// Items that a [`Recorder`] has passed on. Clones share it, and it remains when the watch is gone.
#[derive(Debug)]
pub struct Record<T>(Arc<Mutex<Vec<T>>>);

// === impl Recorder ===

impl<S: Stream> Recorder<S> {
    /// Returns a watch that records another one.
    pub fn new(watch: S) -> Self {
        Self { watch, record: Record(Arc::default()) }
    }

    /// Returns the record, for a reader that outlives the watch.
    pub fn record(&self) -> Record<S::Item> {
        self.record.clone()
    }
}

impl<S: Stream<Item: Clone> + Unpin> Stream for Recorder<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        let item = ready!(Pin::new(&mut self.watch).poll_next(cx));
        self.record.0.lock().extend(item.clone());
        Poll::Ready(item)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.watch.size_hint()
    }
}

// === impl Record ===

impl<T: Clone> Record<T> {
    /// Returns a copy of the items up to now (upstream's `Events`).
    pub fn events(&self) -> Vec<T> {
        self.0.lock().clone()
    }
}

impl<T> Clone for Record<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use tokio_stream::StreamExt;

    use super::*;

    /// apimachinery `TestRecorder`.
    #[tokio::test(start_paused = true)]
    async fn a_record_has_what_was_read_and_outlives_the_watch() {
        let mut recorder = Recorder::new(tokio_stream::iter(1..=5));
        let record = recorder.record();
        assert_eq!(recorder.next().await, Some(1));
        assert_eq!(record.events(), [1], "nothing is read ahead");
        assert_eq!((&mut recorder).collect::<Vec<_>>().await, [2, 3, 4, 5]);
        assert_eq!(recorder.next().await, None);
        drop(recorder);
        assert_eq!(record.events(), [1, 2, 3, 4, 5]);
    }
}
