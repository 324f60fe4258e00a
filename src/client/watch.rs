//! Watch over successive streams: open, read, wait, open again.
//!
//! ```text
//!            ┌──────────── delay is over ─────────────┐
//!            ▼                                        │
//!   ──▶  Opening ── answered ──▶ Reading ── ended ──▶ Waiting
//!            │                      │
//!            └────── permanent error ──────▶ Ending ──▶ over
//! ```
//!
//! The rules are those of client-go's `RetryWatcher`, with a relist where that one ends. After a temporary failure the watch
//! opens the next stream after a delay, which grows from 100 ms to 10 s (twice that with jitter) and is reset after a healthy
//! minute; a delay that the server requests (`RetryInfo`, up to 60 s) is added. After an expired version it relists and
//! compares. All other errors end the watch.

use std::{
    collections::VecDeque,
    fmt,
    future::poll_fn,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::{Stream, stream::FusedStream};
use tokio::time::{Instant, Sleep};
use tonic::Streaming;

use super::{
    Client, ClientError, Note, Query, Update,
    error::Recovery,
    view::{Next, View},
};
use crate::{
    cache::{Backoff, BackoffConfig},
    proto::pb,
};

/// Options of a watch.
#[derive(Debug, Clone, PartialEq)]
pub struct WatchOptions {
    /// Server-side queue, and the policy when it is full. None is the server's default.
    pub queue: Option<pb::QueueOptions>,
    /// Interval of bookmarks while there are no events; 30 s, between 100 ms and a day. After three intervals (at least one
    /// second) without a message, the watch takes the stream for dead.
    pub bookmark_interval: Duration,
    /// True to keep a copy of every object, so that an inferred DELETED has the last known body; default false.
    pub keep_objects: bool,
    /// True to fetch dropped events again under DROP; default true. If false, an [`Update::Dropped`] reports the hole.
    pub heal_drops: bool,
    /// True to end with the error if the first attempt reaches no server, instead of trying again; default false.
    pub fail_fast: bool,
    /// Delays between streams.
    pub backoff: BackoffConfig,
}

/// Watch that runs until it is dropped or fails for good: then it yields that error, and ends.
///
/// It holds the last delivered metadata of each selected object (the body too with [`WatchOptions::keep_objects`]) and a hash
/// of the rest.
#[must_use = "a watch does nothing unless it is polled"]
pub struct Watch {
    client: Client,
    request: pb::WatchRequest,
    idle_timeout: Duration,
    fail_fast: bool,
    is_first: bool,
    backoff: Backoff,
    view: View,
    /// Updates to deliver before the watch does anything else.
    updates: VecDeque<Update>,
    phase: Phase,
}

type Messages = Streaming<pb::WatchResponse>;

enum Phase {
    Opening(Pin<Box<dyn Future<Output = Result<Messages, ClientError>> + Send>>),
    Reading(Box<Messages>, Pin<Box<Sleep>>),
    Waiting(Pin<Box<Sleep>>),
    Ending(Box<ClientError>),
    Over,
}

const MIN_BOOKMARK_INTERVAL: Duration = Duration::from_millis(100);
const MAX_BOOKMARK_INTERVAL: Duration = Duration::from_secs(86_400);
/// Bookmarks that a server does not miss in a row only because it is busy.
const SILENT_INTERVALS: u32 = 3;
const MIN_IDLE_TIMEOUT: Duration = Duration::from_secs(1);
/// Timeout for the response to a list. A server waits up to 10 s for its first list before it responds.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// Timeout for the response to a resume. A lagging server waits for the version, up to its `future_wait` of 90 s.
const RESUME_TIMEOUT: Duration = Duration::from_secs(100);
/// Longest delay that a server may request.
pub(super) const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);
/// Messages without news in one poll, after which other tasks get their turn.
const MAX_MESSAGES_PER_POLL: usize = 256;

// === impl WatchOptions ===

impl Default for WatchOptions {
    fn default() -> Self {
        Self {
            queue: None,
            bookmark_interval: Duration::from_secs(30),
            keep_objects: false,
            heal_drops: true,
            fail_fast: false,
            backoff: BackoffConfig {
                initial: Duration::from_millis(100),
                max: Duration::from_secs(10),
                jitter: 1.0,
                reset_after: Duration::from_secs(60),
            },
        }
    }
}

// === impl Client ===

impl Client {
    /// Watches the objects that a query selects, until it is dropped or fails for good. Sends nothing before the first poll.
    pub fn watch(&self, query: &Query, options: &WatchOptions) -> Watch {
        let interval = options.bookmark_interval.clamp(MIN_BOOKMARK_INTERVAL, MAX_BOOKMARK_INTERVAL);
        let request = pb::WatchRequest {
            queue: options.queue,
            bookmark_interval: prost_types::Duration::try_from(interval).ok(),
            ..query.watch_request()
        };
        let mut watch = Watch {
            client: self.clone(),
            request,
            idle_timeout: (interval * SILENT_INTERVALS).max(MIN_IDLE_TIMEOUT),
            fail_fast: options.fail_fast,
            is_first: true,
            backoff: Backoff::new(options.backoff),
            view: View::new(options.keep_objects, options.heal_drops),
            updates: VecDeque::new(),
            phase: Phase::Over,
        };
        watch.open();
        watch
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
        let mut messages = 0;
        loop {
            if let Some(update) = self.updates.pop_front() {
                return Poll::Ready(Some(Ok(update)));
            }
            match &mut self.phase {
                Phase::Opening(opening) => match ready!(opening.as_mut().poll(cx)) {
                    Ok(stream) => self.opened(stream),
                    Err(error) => self.ended(error, true),
                },
                Phase::Reading(stream, silence) => {
                    messages += 1;
                    if messages > MAX_MESSAGES_PER_POLL {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    // Messages first: a late poll is not silence of the server.
                    let message = match Pin::new(&mut **stream).poll_next(cx) {
                        Poll::Ready(message) => message,
                        Poll::Pending => {
                            ready!(silence.as_mut().poll(cx));
                            let address = self.client.address().clone();
                            self.ended(ClientError::Silent { address, after: self.idle_timeout }, false);
                            continue;
                        }
                    };
                    silence.as_mut().reset(Instant::now() + self.idle_timeout);
                    self.read(message);
                }
                Phase::Waiting(delay) => {
                    ready!(delay.as_mut().poll(cx));
                    self.open();
                }
                Phase::Ending(_) => {
                    if let Phase::Ending(error) = std::mem::replace(&mut self.phase, Phase::Over) {
                        return Poll::Ready(Some(Err(*error)));
                    }
                }
                Phase::Over => return Poll::Ready(None),
            }
        }
    }

    fn open(&mut self) {
        let mut request = self.request.clone();
        let after = if let Some(version) = self.view.position() {
            version.clone_into(&mut request.resource_version);
            self.view.history().clone_into(&mut request.history);
            RESUME_TIMEOUT
        } else {
            request.initial_events = pb::InitialEvents::Send.into();
            LIST_TIMEOUT
        };
        let client = self.client.clone();
        self.phase = Phase::Opening(Box::pin(async move {
            let silent = || ClientError::Silent { address: client.address().clone(), after };
            tokio::time::timeout(after, client.open(request)).await.unwrap_or_else(|_| Err(silent()))
        }));
    }

    fn opened(&mut self, stream: Messages) {
        self.is_first = false;
        self.view.begin();
        if let Some(version) = self.view.position() {
            tracing::debug!(resource = self.request.resource, resource_version = version, "watch resumed");
            self.updates.push_back(Update::Note(Note::Resumed { resource_version: version.to_owned() }));
        }
        self.phase = Phase::Reading(Box::new(stream), Box::pin(tokio::time::sleep(self.idle_timeout)));
    }

    fn read(&mut self, message: Option<Result<pb::WatchResponse, tonic::Status>>) {
        let response = match message {
            Some(Ok(response)) => response,
            Some(Err(status)) => return self.ended(self.client.error(&status), false),
            None => {
                let address = self.client.address().clone();
                let problem = "the stream ended without a status of the watch".to_owned();
                return self.ended(ClientError::Broken { address, problem }, false);
            }
        };
        match self.view.apply(response, &mut self.updates) {
            Ok(Next::Continue) => {}
            Ok(Next::Ended(error)) | Err(error) => self.ended(error, false),
            Ok(Next::Heal { count, after }) => {
                let delay = self.backoff.next_delay(Instant::now());
                self.updates.push_back(Update::Note(Note::Healing { count, after, delay }));
                self.phase = Phase::Waiting(Box::pin(tokio::time::sleep(delay)));
            }
        }
    }

    /// Decides how to proceed after a stream has ended or was rejected.
    fn ended(&mut self, error: ClientError, is_refusal: bool) {
        let recovery = error.recovery();
        let is_hopeless = self.is_first && self.fail_fast && error.is_about_connection();
        if recovery == Recovery::GiveUp || is_hopeless {
            self.phase = Phase::Ending(Box::new(error));
            return;
        }
        let was_resume = is_refusal && self.view.position().is_some();
        let delay = if recovery == Recovery::Relist && was_resume {
            // The server has already made the resume wait, and does not reject a list for its version.
            Duration::ZERO
        } else {
            let asked = error.retry_after().unwrap_or_default().min(MAX_RETRY_AFTER);
            asked + self.backoff.next_delay(Instant::now())
        };
        if recovery == Recovery::Relist {
            self.view.expire();
        }
        if error.invalidates_connection() {
            self.client.drop_connection();
        }
        tracing::debug!(resource = self.request.resource, %error, ?delay, "watch interrupted");
        self.phase = Phase::Waiting(Box::pin(tokio::time::sleep(delay)));
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
        matches!(self.phase, Phase::Over) && self.updates.is_empty()
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match self.phase {
            Phase::Opening(_) => "opening",
            Phase::Reading(..) => "reading",
            Phase::Waiting(_) => "waiting",
            Phase::Ending(_) => "ending",
            Phase::Over => "over",
        };
        f.debug_struct("Watch")
            .field("address", self.client.address())
            .field("resource", &self.request.resource)
            .field("phase", &phase)
            .field("resource_version", &self.view.position())
            .field("objects", &self.view.len())
            .finish_non_exhaustive()
    }
}
