//! Watch whose events a test sends without waiting.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::mpsc::error::TrySendError;

use super::{
    FakeItem, FakeWatch,
    fake_watcher::{FakeChannel, Sent, event},
};
use crate::{
    cache::SourceError,
    model::{Event, EventType, Object, ResourceVersion},
};

/// Slots of a [`RaceFreeFakeWatcher`].
pub const DEFAULT_CHAN_SIZE: usize = 100;

/// Watch whose events a test sends without waiting (apimachinery's `RaceFreeFakeWatcher`). A call after a stop does nothing; one
/// event more than the [`DEFAULT_CHAN_SIZE`] slots hold panics.
#[derive(Debug, Clone)]
pub struct RaceFreeFakeWatcher {
    channel: Arc<Mutex<FakeChannel>>,
}

// === impl RaceFreeFakeWatcher ===

impl RaceFreeFakeWatcher {
    /// Makes a watcher.
    pub fn new() -> Self {
        Self { channel: Arc::new(Mutex::new(FakeChannel::new(DEFAULT_CHAN_SIZE))) }
    }

    /// Returns the receiving half.
    ///
    /// # Panics
    ///
    /// If it was taken since the last [`RaceFreeFakeWatcher::reset`].
    pub fn watch(&self) -> FakeWatch {
        self.channel.lock().watch()
    }

    /// Sends ADDED.
    pub fn add(&self, object: impl Into<Arc<Object>>) {
        self.action(EventType::Added, object);
    }

    /// Sends MODIFIED.
    pub fn modify(&self, object: impl Into<Arc<Object>>) {
        self.action(EventType::Modified, object);
    }

    /// Sends DELETED, with the last state of the object.
    pub fn delete(&self, object: impl Into<Arc<Object>>) {
        self.action(EventType::Deleted, object);
    }

    /// Sends a bookmark.
    pub fn bookmark(&self, version: ResourceVersion) {
        self.send(Ok(Event::Bookmark(version)));
    }

    /// Sends an error. It does not stop the watch.
    pub fn error(&self, error: SourceError) {
        self.send(Err(error));
    }

    /// Sends an event of this type.
    pub fn action(&self, event_type: EventType, object: impl Into<Arc<Object>>) {
        self.send(Ok(event(event_type, object.into())));
    }

    /// Sends an item.
    ///
    /// # Panics
    ///
    /// If all slots are taken.
    pub fn send(&self, item: FakeItem) {
        let channel = self.channel.lock();
        if channel.stop.is_cancelled() {
            return;
        }
        match channel.sender.try_send(Sent { item, received: None }) {
            // A reader that drops the watch stops it.
            Ok(()) | Err(TrySendError::Closed(_)) => {}
            Err(TrySendError::Full(_)) => panic!("channel full"),
        }
    }

    /// Stops the watch: it ends after the events in its slots. Stopping a stopped watch does nothing.
    pub fn stop(&self) {
        self.channel.lock().stop.cancel();
    }

    /// Returns true if the watch was stopped, or if its reader has dropped it.
    pub fn is_stopped(&self) -> bool {
        self.channel.lock().stop.is_cancelled()
    }

    /// Makes a new channel for the next [`RaceFreeFakeWatcher::watch`]. A watch that was taken before has no sender any more.
    pub fn reset(&self) {
        *self.channel.lock() = FakeChannel::new(DEFAULT_CHAN_SIZE);
    }
}

impl Default for RaceFreeFakeWatcher {
    fn default() -> Self {
        Self::new()
    }
}
