//! Open batch of a stream: events that wait for its end, and those that were sent before it.

use std::mem;

use crate::{
    cache::Events,
    model::{Event, ResourceVersion},
};

/// Batch after the position of a stream, while that has not advanced.
#[derive(Debug, Default)]
pub(crate) struct OpenBatch {
    waiting: Vec<Event>,
    /// Version after the position that was sent, and at which more changes may follow.
    opened: Option<ResourceVersion>,
}

// === impl OpenBatch ===

impl OpenBatch {
    /// Adds an event that waits for the end of the batch.
    pub(crate) fn push(&mut self, event: Event) {
        self.waiting.push(event);
    }

    /// Returns true if no event waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Discards the events that wait: a resume repeats them.
    pub(crate) fn discard(&mut self) {
        self.waiting.clear();
    }

    /// Ends the batch at a version, the new position. Returns its events.
    pub(crate) fn complete(&mut self, version: &ResourceVersion) -> Vec<Event> {
        let mut events = mem::take(&mut self.waiting);
        // The objects of a relist have versions of their own, and so have merged events.
        if events.last().is_none_or(|last| last.version() != version) {
            events.push(Event::Bookmark(version.clone()));
        }
        events
    }

    /// Returns the events of a delta that sends an event at once. The position stays before the batch.
    pub(crate) fn send(&mut self, position: &ResourceVersion, event: Event) -> Events {
        let opened = self.opened.take().filter(|opened| opened > position);
        // A change at a version that was complete before does not move the position. Neither does one that is ahead of it by more
        // than one version: the server has several watches of its source, of which one is ahead.
        let reached = opened.as_ref().unwrap_or(position);
        let is_next = *event.version() == position.next();
        let end = (!is_next && event.version() != reached).then(|| Event::Bookmark(reached.clone()));
        self.opened = if is_next { Some(event.version().clone()) } else { opened };
        [event].into_iter().chain(end).collect()
    }
}
