//! Watch over successive streams, as updates of the state that its user holds.

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::{Stream, stream::FusedStream};

use super::{
    Client, ClientError, Note, Query, Update, WatchOptions,
    streams::{ResumePoint, Step, Streams},
    view::{Next, View},
};
use crate::proto::pb;

/// Watch that runs until it is dropped or fails for good: then it yields that error, and ends.
///
/// It holds the last delivered metadata of each selected object (the body too with [`WatchOptions::keep_objects`]) and a hash
/// of the rest.
#[must_use = "a watch does nothing unless it is polled"]
pub struct Watch {
    streams: Streams,
    view: View,
    /// Updates to deliver before the watch does anything else.
    updates: VecDeque<Update>,
}

/// Messages without news in one poll, after which other tasks get their turn.
const MAX_MESSAGES_PER_POLL: usize = 256;

// === impl Client ===

impl Client {
    /// Watches the objects that a query selects, until it is dropped or fails for good. Sends nothing before the first poll.
    pub fn watch(&self, query: &Query, options: &WatchOptions) -> Watch {
        Watch {
            streams: Streams::new(self.clone(), query.watch_request(), options),
            view: View::new(options.keep_objects, options.heal_drops),
            updates: VecDeque::new(),
        }
    }

    /// Watches the changes after a version, without the state at it: there is no [`Update::Synced`], and events of objects that have
    /// not been delivered before are passed on as the server sends them, also MODIFIED and DELETED.
    ///
    /// A version that the server cannot resume from ends the watch with the error, where [`Client::watch`] would list again: what
    /// was missed cannot be found out without the state.
    pub fn watch_since(&self, query: &Query, options: &WatchOptions, resource_version: &str) -> Watch {
        let view = View::since(resource_version.to_owned(), options.keep_objects, options.heal_drops);
        Watch { view, ..self.watch(query, options) }
    }
}

// === impl Watch ===

impl Watch {
    /// Returns the next update; none after an error.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when the future is dropped: the next call resumes the work.
    pub async fn next(&mut self) -> Option<Result<Update, ClientError>> {
        poll_fn(|cx| self.poll(cx)).await
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Update, ClientError>>> {
        for _ in 0..MAX_MESSAGES_PER_POLL {
            if let Some(update) = self.updates.pop_front() {
                return Poll::Ready(Some(Ok(update)));
            }
            let from = self.view.position().map(|version| ResumePoint { version, history: self.view.history() });
            match ready!(self.streams.poll_next(cx, from)) {
                Some(Step::Opened) => self.opened(),
                Some(Step::Message(response)) => self.read(*response),
                Some(Step::Interrupted { error, lists: true, .. }) if self.view.is_partial() => {
                    self.streams.fail(error);
                }
                Some(Step::Interrupted { error, lists, delay }) => self.interrupted(error, lists, delay),
                Some(Step::Failed(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    fn opened(&mut self) {
        self.view.begin();
        if let Some(version) = self.view.position() {
            self.updates.push_back(Update::Note(Note::Resumed { resource_version: version.to_owned() }));
        }
    }

    fn read(&mut self, response: pb::WatchResponse) {
        match self.view.apply(response, &mut self.updates) {
            Ok(Next::Continue) => {}
            Ok(Next::Ended(error)) | Err(error) => self.streams.end(error),
            Ok(Next::Heal { count, after }) => {
                let delay = self.streams.end_with_hole();
                self.updates.push_back(Update::Note(Note::Healing { count, after, delay }));
            }
        }
    }

    fn interrupted(&mut self, error: ClientError, lists: bool, delay: Duration) {
        if lists {
            self.view.expire();
        }
        self.updates.push_back(Update::Note(Note::Reconnecting { error, delay }));
    }
}

/// Yields the same updates as [`Watch::next`].
impl Stream for Watch {
    type Item = Result<Update, ClientError>;

    fn poll_next(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.get_mut().poll(cx)
    }
}

impl FusedStream for Watch {
    fn is_terminated(&self) -> bool {
        self.streams.is_over() && self.updates.is_empty()
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("streams", &self.streams)
            .field("resource_version", &self.view.position())
            .field("objects", &self.view.len())
            .finish_non_exhaustive()
    }
}
