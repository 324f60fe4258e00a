//! Windows that a client has opened for its streams, by its frames.
//!
//! h2 tells how much a stream may send now: the smaller one of its own window and of the connection's. To know whether a client
//! holds up a stream or its connection, the stream's own window is counted here.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Weak, atomic::Ordering},
};

use super::{
    frame_tracker::WindowChange,
    handle::{ConnectionWakes, StreamHandle, StreamWaker},
};

/// Open streams of a connection by their numbers.
pub(super) struct Windows {
    wakes: Arc<ConnectionWakes>,
    streams: HashMap<u32, Weak<StreamWaker>>,
    /// Number of entries at which those of streams that are over are removed.
    sweep_at: usize,
    /// Number of the newest stream that has begun.
    newest: u32,
    /// Updates of streams that have not begun: their HEADERS arrived with them.
    early: BTreeMap<u32, u64>,
}

/// Largest number of streams that have not begun and have updates; more are those of a client that does not follow HTTP/2.
const MAX_EARLY: usize = 1024;
/// Least number of entries at which those of streams that are over are removed.
const MIN_SWEEP: usize = 16;

// === impl Windows ===

impl Windows {
    pub(super) fn new(wakes: &Arc<ConnectionWakes>) -> Self {
        let (wakes, streams, early) = (Arc::clone(wakes), HashMap::new(), BTreeMap::new());
        Self { wakes, streams, sweep_at: MIN_SWEEP, newest: 0, early }
    }

    /// Adds a stream that has begun.
    pub(super) fn begin(&mut self, number: u32, stream: &StreamHandle) {
        self.newest = number;
        let later = self.early.split_off(&number.saturating_add(1));
        let early = std::mem::replace(&mut self.early, later);
        stream.0.progress.open_window(early.get(&number).copied().unwrap_or(0));
        if self.streams.len() >= self.sweep_at {
            self.streams.retain(|_, stream| stream.strong_count() > 0);
            self.sweep_at = (2 * self.streams.len()).max(MIN_SWEEP);
        }
        self.streams.insert(number, Arc::downgrade(&stream.0));
    }

    /// Returns the open streams.
    pub(super) fn streams(&self) -> Vec<StreamHandle> {
        self.streams.values().filter_map(Weak::upgrade).map(StreamHandle).collect()
    }

    /// Records a change.
    pub(super) fn change(&mut self, change: WindowChange) {
        match change {
            WindowChange::Initial(window) => self.wakes.initial_window.store(window, Ordering::Relaxed),
            WindowChange::Update { stream: 0, .. } => {}
            WindowChange::Update { stream: number, by } => {
                if let Some(stream) = self.streams.get(&number) {
                    if let Some(stream) = stream.upgrade() {
                        stream.progress.open_window(by.into());
                    }
                } else if number > self.newest && (self.early.len() < MAX_EARLY || self.early.contains_key(&number)) {
                    *self.early.entry(number).or_default() += u64::from(by);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::streams::Streams;

    #[test]
    fn the_window_of_a_stream_is_what_its_client_has_opened_less_what_was_written() {
        let streams: Streams<std::future::Ready<()>> = Streams::new();
        let mut windows = Windows::new(streams.wakes());
        let update = |stream, by| WindowChange::Update { stream, by };
        windows.change(WindowChange::Initial(100));
        windows.change(update(3, 5));
        windows.change(update(1, 7));
        let (one, three) = (streams.handle(), streams.handle());
        windows.begin(1, &one);
        windows.begin(3, &three);
        one.note_written(107);
        three.note_written(104);
        assert!(one.is_window_shut() && !three.is_window_shut());
        windows.change(update(1, 1));
        windows.change(update(0, 1000));
        assert!(!one.is_window_shut());
        three.note_written(1);
        assert!(three.is_window_shut());
        // Both windows change by the difference.
        windows.change(WindowChange::Initial(50));
        assert!(one.is_window_shut());
        windows.change(WindowChange::Initial(1000));
        assert!(!three.is_window_shut());

        // What is over is forgotten, and an update that comes late is none of a stream to come.
        for number in (5..1000).step_by(2) {
            windows.begin(number, &streams.handle());
            windows.change(update(number, 1));
        }
        assert!(windows.streams.len() <= MIN_SWEEP && windows.early.is_empty());
        (2000..10_000).for_each(|number| windows.change(update(number, 1)));
        assert_eq!(windows.early.len(), MAX_EARLY);
    }
}
