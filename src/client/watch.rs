//! Watch over successive streams, as updates of the state that its user holds.

use std::{
    collections::VecDeque,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
};

use futures_util::{Stream, stream::FusedStream};

use super::{
    Client, ClientError, Note, Query, Update, WatchOptions,
    streams::{Step, Streams},
    view::View,
};

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
        Watch::new(self, query, options, None)
    }

    /// Watches the changes after a version, without the state at it: there is no [`Update::Synced`], and events of objects that have
    /// not been delivered before are passed on as the server sends them, also MODIFIED and DELETED.
    ///
    /// A version that the server cannot resume from ends the watch with the error, where [`Client::watch`] would list again: what
    /// was missed cannot be found out without the state.
    pub fn watch_since(&self, query: &Query, options: &WatchOptions, resource_version: &str) -> Watch {
        Watch::new(self, query, options, Some(resource_version))
    }
}

// === impl Watch ===

impl Watch {
    fn new(client: &Client, query: &Query, options: &WatchOptions, since: Option<&str>) -> Self {
        let streams = Streams::new(client.clone(), query.watch_request(), options, since);
        Self { streams, view: View::new(options.keep_objects, since.is_some()), updates: VecDeque::new() }
    }

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
            match ready!(self.streams.poll_next(cx)) {
                Some(Step::Opened) => {
                    let follower = self.streams.follower();
                    self.view.begin(follower.is_listing);
                    let resumed = follower.position.clone().map(|resource_version| Note::Resumed { resource_version });
                    self.updates.extend(resumed.map(Update::Note));
                }
                Some(Step::Message(followed)) => self.view.apply(*followed, &mut self.updates),
                Some(Step::Interrupted { error, delay, .. }) => {
                    self.updates.push_back(Update::Note(Note::Reconnecting { error, delay }));
                }
                Some(Step::Failed(error)) => return Poll::Ready(Some(Err(error))),
                None => return Poll::Ready(None),
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
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

debug_fields!(Watch, this => {
    streams: this.streams,
    resource_version: this.streams.follower().position.as_deref(),
    objects: this.view.len(),
});
