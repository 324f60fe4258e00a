//! Registry of the open streams of requests (Subscribe, reflection): they end when the credentials with which they began are no
//! longer valid, also while nothing is open on them.
//!
//! Watches are in a [registry of their own](super::watchers), with their rights.

use std::{
    collections::BTreeMap,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::{grant::Authenticated, status::ApiError};

/// Registry of the open streams of requests whose callers were authenticated.
#[derive(Debug, Default)]
pub(super) struct OpenStreams(Mutex<Open>);

#[derive(Debug, Default)]
struct Open {
    last_id: u64,
    streams: BTreeMap<u64, (Arc<Authenticated>, oneshot::Sender<ApiError>)>,
}

/// Entry of an open stream; dropping it removes the stream.
#[derive(Debug)]
pub(super) struct StreamEntry {
    id: u64,
    streams: Arc<OpenStreams>,
    /// None after the end was taken.
    end: Option<oneshot::Receiver<ApiError>>,
}

// === impl OpenStreams ===

impl OpenStreams {
    /// Adds a stream.
    pub(super) fn enter(self: &Arc<Self>, caller: Authenticated) -> StreamEntry {
        let (sender, end) = oneshot::channel();
        let mut open = self.0.lock();
        open.last_id += 1;
        let id = open.last_id;
        open.streams.insert(id, (Arc::new(caller), sender));
        StreamEntry { id, streams: Arc::clone(self), end: Some(end) }
    }

    /// Returns the open streams with their callers.
    pub(super) fn callers(&self) -> Vec<(u64, Arc<Authenticated>)> {
        self.0.lock().streams.iter().map(|(id, (caller, _))| (*id, Arc::clone(caller))).collect()
    }

    /// Ends a stream.
    pub(super) fn end(&self, id: u64, refusal: ApiError) {
        let removed = self.0.lock().streams.remove(&id);
        if let Some((_, sender)) = removed {
            // A stream that has ended by itself needs no reason.
            drop(sender.send(refusal));
        }
    }
}

// === impl StreamEntry ===

impl StreamEntry {
    /// Waits until the server ends the stream; never a second time.
    pub(super) fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<ApiError> {
        let Some(end) = &mut self.end else { return Poll::Pending };
        let ended = ready!(Pin::new(end).poll(cx));
        self.end = None;
        // Always a reason: the registry keeps the sender until it has sent one.
        ended.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Drop for StreamEntry {
    fn drop(&mut self) {
        drop(self.streams.0.lock().streams.remove(&self.id));
    }
}
