//! Successive streams of one watch: open, read, wait, open again.
//!
//! ```text
//!            ┌──────────── delay is over ─────────────┐
//!            ▼                                        │
//!   ──▶  Opening ── answered ──▶ Reading ── ended ──▶ Waiting
//!            │                      │
//!            └────── permanent error ──────▶ Ending ──▶ over
//! ```
//!
//! The rules are those of the proto's comment of `Watch`, and of client-go's `RetryWatcher`, with a relist where that one ends.
//! After a temporary failure the next stream opens after a delay, which grows from 100 ms to 10 s (twice that with jitter) until the
//! server answers; a delay that the server requests (`RetryInfo`, up to 60 s) is added. A list in place of a resume opens after a
//! jitter of at most 1 s.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::Stream;
use tokio::time::{Instant, Sleep};
use tonic::{Code, Status};

use super::{
    Client, ClientError, WatchMessages, WatchOptions,
    error::Recovery,
    follower::{Followed, Follower, News},
};
use crate::{
    cache::{Backoff, BackoffConfig},
    proto::{self, pb},
};

/// Streams of one watch. The user applies the messages.
pub(super) struct Streams {
    client: Client,
    request: pb::WatchRequest,
    follower: Follower,
    idle_timeout: Duration,
    list_timeout: Duration,
    resume_timeout: Duration,
    fail_fast: bool,
    /// True once a stream was opened.
    has_opened: bool,
    delays: Delays,
    refusals: Refusals,
    phase: Phase,
    /// Step that the next poll returns.
    next: Option<Step>,
}

/// Delays between streams.
#[derive(Debug)]
struct Delays {
    backoff: Backoff,
    /// Longest jitter before a list, and before another server.
    jitter: Duration,
    /// True if the last stream ended with a status of the server, until one has a BOOKMARK.
    was_answered: bool,
    /// True once the watch lists again, until a stream has a BOOKMARK.
    lists_again: bool,
}

/// Facts of the streams so far that decide about the next refusal.
#[derive(Debug, Default)]
struct Refusals {
    /// True once a stream had a BOOKMARK: the resource is, or was, served.
    was_served: bool,
    /// True after a `RESOURCE_VERSION_TOO_LARGE`, until a stream has a message or lists; not without an answer of the server.
    was_too_large: bool,
    /// True after an `UNAUTHENTICATED`, until a stream has a message.
    was_unauthenticated: bool,
}

/// Step of the streams.
#[derive(Debug)]
pub(super) enum Step {
    /// A stream has begun.
    Opened,
    /// Next message of it; none that ends it with an error.
    Message(Box<Followed>),
    /// The stream is over, and another follows after the delay: one that lists, if `lists`.
    Interrupted { error: ClientError, lists: bool, delay: Duration },
    /// The last step: an error after which no other stream helps.
    Failed(ClientError),
}

enum Phase {
    /// Before the next stream, which the next poll opens.
    Idle,
    Opening {
        opening: Pin<Box<dyn Future<Output = Result<WatchMessages, ClientError>> + Send>>,
        /// Time for the first message.
        until: Instant,
        is_resume: bool,
    },
    Reading {
        stream: Box<WatchMessages>,
        silence: Pin<Box<Sleep>>,
        after: Duration,
    },
    Waiting(Pin<Box<Sleep>>),
    Over,
}

const MIN_BOOKMARK_INTERVAL: Duration = Duration::from_millis(100);
/// Longest interval of bookmarks, timeout and delay.
const MAX_DURATION: Duration = Duration::from_secs(86_400);
/// Bookmarks that a server does not miss in a row only because it is busy.
const SILENT_INTERVALS: u32 = 3;
/// Longest delay that a server may request.
pub(super) const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

// === impl Streams ===

impl Streams {
    /// Returns the streams of a watch. With a version they begin after it, for a user who does not hold the state at it.
    pub(super) fn new(client: Client, request: pb::WatchRequest, options: &WatchOptions, since: Option<&str>) -> Self {
        let interval = options.bookmark_interval.clamp(MIN_BOOKMARK_INTERVAL, MAX_DURATION);
        let bookmark_interval = proto::duration_message(interval);
        let [initial, max] = [options.backoff.initial, options.backoff.max].map(|delay| delay.min(MAX_DURATION));
        Self {
            client,
            request: pb::WatchRequest { queue: options.queue, bookmark_interval, ..request },
            follower: Follower::new(options.heal_drops, since),
            idle_timeout: interval * SILENT_INTERVALS,
            list_timeout: options.list_timeout.min(MAX_DURATION),
            resume_timeout: options.resume_timeout.min(MAX_DURATION),
            fail_fast: options.fail_fast,
            has_opened: false,
            delays: Delays {
                backoff: Backoff::new(BackoffConfig { initial, max, ..options.backoff }),
                jitter: options.drain_jitter.min(MAX_DURATION),
                was_answered: false,
                lists_again: false,
            },
            refusals: Refusals::default(),
            phase: Phase::Idle,
            next: None,
        }
    }

    pub(super) fn follower(&self) -> &Follower {
        &self.follower
    }

    /// Returns the time without a message after which a stream is dead.
    pub(super) fn idle_timeout(&self) -> Duration {
        self.idle_timeout
    }

    /// Returns true after the last step.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over) && self.next.is_none()
    }

    /// Returns the next step.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Step>> {
        loop {
            if let Some(step) = self.next.take() {
                return Poll::Ready(Some(step));
            }
            match &mut self.phase {
                Phase::Idle => self.open(),
                Phase::Opening { opening, until, is_resume } => {
                    let (until, is_resume) = (*until, *is_resume);
                    match ready!(opening.as_mut().poll(cx)) {
                        Ok(stream) => {
                            self.has_opened = true;
                            self.follower.begin();
                            let after = if is_resume { self.resume_timeout } else { self.list_timeout };
                            let silence = Box::pin(tokio::time::sleep_until(until));
                            self.phase = Phase::Reading { stream: Box::new(stream), silence, after };
                            return Poll::Ready(Some(Step::Opened));
                        }
                        Err(error) => self.ended(error),
                    }
                }
                Phase::Reading { stream, silence, after } => {
                    // Messages first: a late poll is not silence of the server.
                    let message = match Pin::new(&mut **stream).poll_next(cx) {
                        Poll::Ready(message) => message,
                        Poll::Pending => {
                            ready!(silence.as_mut().poll(cx));
                            let (address, after) = (self.client.address().clone(), *after);
                            self.ended(ClientError::Silent { address, after });
                            continue;
                        }
                    };
                    *after = self.idle_timeout;
                    silence.as_mut().reset(Instant::now() + self.idle_timeout);
                    if let Some(followed) = self.read(message) {
                        return Poll::Ready(Some(Step::Message(Box::new(followed))));
                    }
                }
                Phase::Waiting(delay) => {
                    ready!(delay.as_mut().poll(cx));
                    self.phase = Phase::Idle;
                }
                Phase::Over => return Poll::Ready(None),
            }
        }
    }

    fn open(&mut self) {
        let mut request = self.request.clone();
        self.follower.complete(&mut request);
        let is_resume = self.follower.position.is_some();
        let after = if is_resume { self.resume_timeout } else { self.list_timeout };
        let (client, until) = (self.client.clone(), Instant::now() + after);
        let opening = Box::pin(async move { client.open_within(request, after).await });
        self.phase = Phase::Opening { opening, until, is_resume };
    }

    fn read(&mut self, message: Option<Result<pb::WatchResponse, Status>>) -> Option<Followed> {
        let error = match message {
            Some(Ok(response)) => {
                self.refusals.message(&response);
                if response.r#type() == pb::EventType::Bookmark {
                    self.delays.reset();
                }
                match self.follower.follow(response) {
                    Ok(mut followed) => {
                        if followed.is_last {
                            self.ended(ClientError::draining());
                        } else if let News::Dropped { healing: Some(delay), .. } = &mut followed.news {
                            *delay = self.delays.backoff.next_delay(Instant::now());
                            self.wait(*delay);
                        }
                        return Some(followed);
                    }
                    Err(error) => error,
                }
            }
            Some(Err(status)) => self.client.error(&status),
            None => {
                let address = self.client.address().clone();
                let problem = "the stream ended without a status of the watch".to_owned();
                ClientError::Broken { address, problem }
            }
        };
        self.ended(error);
        None
    }

    /// Ends the stream. The next one opens after a delay.
    fn wait(&mut self, delay: Duration) {
        self.phase = Phase::Waiting(Box::pin(tokio::time::sleep(delay)));
    }

    /// Decides how to proceed after a stream has ended or was refused.
    fn ended(&mut self, error: ClientError) {
        let is_hopeless = !self.has_opened && self.fail_fast && error.is_about_connection();
        let recovery = self.refusals.recovery(&error);
        let lists = recovery == Recovery::Relist;
        if recovery == Recovery::GiveUp || is_hopeless || (lists && self.follower.is_partial) {
            (self.phase, self.next) = (Phase::Over, Some(Step::Failed(error)));
            return;
        }
        if lists {
            self.follower.expire();
        }
        let delay = self.delays.after(&error, lists);
        if error.invalidates_connection() {
            if let Phase::Reading { stream, .. } = &self.phase {
                stream.leave_connection();
            }
            self.client.drop_connection();
        }
        tracing::debug!(resource = self.request.resource, %error, ?delay, lists, "watch interrupted");
        self.wait(delay);
        self.next = Some(Step::Interrupted { error, lists, delay });
    }
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match self.phase {
            Phase::Idle => "idle",
            Phase::Opening { .. } => "opening",
            Phase::Reading { .. } => "reading",
            Phase::Waiting(_) => "waiting",
            Phase::Over => "over",
        };
        f.debug_struct("Streams")
            .field("address", self.client.address())
            .field("resource", &self.request.resource)
            .field("phase", &phase)
            .finish_non_exhaustive()
    }
}

// === impl Delays ===

impl Delays {
    /// Returns the delay after an error.
    fn after(&mut self, error: &ClientError, lists: bool) -> Duration {
        let was_answered = std::mem::replace(&mut self.was_answered, error.is_answer());
        if self.was_answered && !was_answered {
            // The failures before were those of a server that could not be reached.
            self.backoff.reset();
        }
        let asked = error.retry_after().unwrap_or_default().min(MAX_RETRY_AFTER);
        let is_first_list = lists && !std::mem::replace(&mut self.lists_again, lists);
        let jitter = if is_first_list || error.is_draining() { self.jitter } else { Duration::ZERO };
        // The list is what the server expects; only if it fails, too, it has to wait for longer.
        let backoff =
            if is_first_list && self.was_answered { Duration::ZERO } else { self.backoff.next_delay(Instant::now()) };
        asked + jitter.mul_f64(fastrand::f64()) + backoff
    }

    /// Begins anew: a stream has caught up.
    fn reset(&mut self) {
        self.backoff.reset();
        (self.was_answered, self.lists_again) = (false, false);
    }
}

// === impl Refusals ===

impl Refusals {
    fn message(&mut self, response: &pb::WatchResponse) {
        if response.r#type() != pb::EventType::Error {
            (self.was_too_large, self.was_unauthenticated) = (false, false);
        }
        if response.r#type() == pb::EventType::Bookmark {
            self.was_served = true;
        }
    }

    /// Returns the reaction to an error, which depends on those before it.
    fn recovery(&mut self, error: &ClientError) -> Recovery {
        match error.code() {
            // The message may stand for anything: only a list makes the state sure again.
            _ if matches!(error, ClientError::Contract { .. }) => Recovery::Relist,
            Code::Unavailable if error.reason() == Some("RESOURCE_VERSION_TOO_LARGE") => {
                self.was_too_large = !self.was_too_large;
                if self.was_too_large { Recovery::Resume } else { Recovery::Relist }
            }
            // No server has refused anything: the file is being renewed.
            _ if matches!(error, ClientError::TokenFile { .. }) && self.was_served => Recovery::Resume,
            // The token is read again for each call.
            Code::Unauthenticated if !std::mem::replace(&mut self.was_unauthenticated, true) => Recovery::Resume,
            // In a rollout some servers do not have it yet, or any more.
            Code::NotFound if self.was_served => Recovery::Resume,
            _ => error.recovery(),
        }
    }
}

#[cfg(test)]
mod tests {
    use tonic_types::{ErrorDetails, StatusExt};

    use super::*;

    /// A server may need longer to answer than the client waits, above all when many watches wait for a version.
    #[test]
    fn the_second_too_large_lists_whatever_failed_between_without_an_answer() {
        let address: crate::net::ServerAddress = "127.0.0.1:1".parse().unwrap();
        let details = ErrorDetails::with_error_info("RESOURCE_VERSION_TOO_LARGE", "informerd", []);
        let status = Status::with_error_details(Code::Unavailable, "x", details);
        let too_large = ClientError::from_status(&address, &status);
        let silent = ClientError::Silent { address: address.clone(), after: Duration::from_secs(100) };
        let broken = ClientError::Broken { address, problem: "x".to_owned() };
        let event = pb::WatchResponse { r#type: pb::EventType::Added.into(), ..pb::WatchResponse::default() };
        for between in [vec![], vec![&silent], vec![&broken, &silent]] {
            let mut refusals = Refusals::default();
            assert_eq!(refusals.recovery(&too_large), Recovery::Resume);
            for error in between {
                assert_eq!(refusals.recovery(error), Recovery::Resume);
            }
            assert_eq!(refusals.recovery(&too_large), Recovery::Relist);
        }
        let mut refusals = Refusals::default();
        for _ in 0..3 {
            assert_eq!(refusals.recovery(&too_large), Recovery::Resume, "a stream was served in between");
            refusals.message(&event);
        }
    }

    /// A program that renews it may empty it first; a watch that was never served ends, as the name may be wrong.
    #[tokio::test]
    async fn a_token_file_without_a_token_ends_no_watch_that_was_served() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let address: crate::net::ServerAddress = "127.0.0.1:1".parse().unwrap();
        let client = Client::connect_lazy(&address.with_token_file(file.path()).unwrap()).unwrap();
        let empty = client.resources().await.unwrap_err();
        let shown = format!("token file {}: it is empty (UNAUTHENTICATED)", file.path().display());
        assert_eq!((empty.code(), empty.to_string()), (Code::Unauthenticated, shown));
        let mut refusals = Refusals::default();
        let [first, second] = [(); 2].map(|()| refusals.recovery(&empty));
        assert_eq!((first, second), (Recovery::Resume, Recovery::GiveUp));
        let bookmark = pb::WatchResponse { r#type: pb::EventType::Bookmark.into(), ..pb::WatchResponse::default() };
        refusals.message(&bookmark);
        for _ in 0..3 {
            assert_eq!(refusals.recovery(&empty), Recovery::Resume);
        }
        let refused = ClientError::from_status(&address, &Status::unauthenticated("expired"));
        let [first, second] = [(); 2].map(|()| refusals.recovery(&refused));
        assert_eq!((first, second), (Recovery::Resume, Recovery::GiveUp), "of the server");
    }

    #[tokio::test]
    async fn no_timeout_and_no_delay_is_too_long() {
        let client = Client::connect_lazy(&"127.0.0.1:1".parse().unwrap()).unwrap();
        let longest = Duration::MAX;
        let backoff = BackoffConfig { initial: longest, max: longest, ..WatchOptions::default().backoff };
        let options = WatchOptions {
            list_timeout: longest,
            resume_timeout: longest,
            drain_jitter: longest,
            backoff,
            ..WatchOptions::default()
        };
        for since in [None, Some("5")] {
            let mut streams = Streams::new(client.clone(), pb::WatchRequest::default(), &options, since);
            let step = std::future::poll_fn(|cx| streams.poll_next(cx)).await;
            assert!(matches!(step, Some(Step::Interrupted { .. })), "{step:?}");
        }
    }
}
