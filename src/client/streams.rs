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
//! After a temporary failure the next stream opens after a delay, which grows from 100 ms to 10 s (twice that with jitter) and is
//! reset after a healthy minute; a delay that the server requests (`RetryInfo`, up to 60 s) is added.

use std::{
    fmt,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::Stream;
use tokio::time::{Instant, Sleep};
use tonic::{Code, Status};

use super::{Client, ClientError, WatchMessages, WatchOptions, error::Recovery};
use crate::{
    cache::Backoff,
    proto::{self, pb},
};

/// Streams of one watch. The user applies the messages, and has the version to resume from.
pub(super) struct Streams {
    client: Client,
    request: pb::WatchRequest,
    timeouts: Timeouts,
    fail_fast: bool,
    /// True once a stream was opened.
    has_opened: bool,
    backoff: Backoff,
    refusals: Refusals,
    phase: Phase,
}

struct Timeouts {
    idle: Duration,
    list: Duration,
    resume: Duration,
    drain_jitter: Duration,
}

/// Facts of the streams so far that decide about the next refusal.
#[derive(Debug, Default)]
struct Refusals {
    /// True once a stream had a BOOKMARK: the resource is, or was, served.
    was_served: bool,
    /// True after a `RESOURCE_VERSION_TOO_LARGE`, until a stream has a message.
    was_too_large: bool,
    /// True after an `UNAUTHENTICATED`, until a stream has a message.
    was_unauthenticated: bool,
}

/// Version from which the next stream resumes, and its history.
#[derive(Debug, Clone, Copy)]
pub(super) struct ResumePoint<'a> {
    pub(super) version: &'a str,
    pub(super) history: &'a str,
}

/// Step of the streams.
#[derive(Debug)]
pub(super) enum Step {
    /// A stream has begun.
    Opened,
    /// Next message of it.
    Message(Box<pb::WatchResponse>),
    /// The stream is over, and another follows after the delay: one that lists, if `lists`, so that the version is void.
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
    /// A step to return before the delay.
    Interrupted(Box<(ClientError, bool, Duration)>),
    Waiting(Pin<Box<Sleep>>),
    Ending(Box<ClientError>),
    Over,
}

const MIN_BOOKMARK_INTERVAL: Duration = Duration::from_millis(100);
const MAX_BOOKMARK_INTERVAL: Duration = Duration::from_secs(86_400);
/// Bookmarks that a server does not miss in a row only because it is busy.
const SILENT_INTERVALS: u32 = 3;
/// Longest delay that a server may request.
pub(super) const MAX_RETRY_AFTER: Duration = Duration::from_secs(60);

// === impl Streams ===

impl Streams {
    pub(super) fn new(client: Client, request: pb::WatchRequest, options: &WatchOptions) -> Self {
        let interval = options.bookmark_interval.clamp(MIN_BOOKMARK_INTERVAL, MAX_BOOKMARK_INTERVAL);
        let bookmark_interval = proto::duration_message(interval);
        Self {
            client,
            request: pb::WatchRequest { queue: options.queue, bookmark_interval, ..request },
            timeouts: Timeouts {
                idle: interval * SILENT_INTERVALS,
                list: options.list_timeout,
                resume: options.resume_timeout,
                drain_jitter: options.drain_jitter,
            },
            fail_fast: options.fail_fast,
            has_opened: false,
            backoff: Backoff::new(options.backoff),
            refusals: Refusals::default(),
            phase: Phase::Idle,
        }
    }

    /// Returns the time without a message after which a stream is dead.
    pub(super) fn idle_timeout(&self) -> Duration {
        self.timeouts.idle
    }

    /// Returns true after the last step.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.phase, Phase::Over)
    }

    /// Returns the next step. The next stream resumes at `from`; without it, it lists.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>, from: Option<ResumePoint<'_>>) -> Poll<Option<Step>> {
        loop {
            match &mut self.phase {
                Phase::Idle => self.open(from),
                Phase::Opening { opening, until, is_resume } => {
                    let (until, is_resume) = (*until, *is_resume);
                    match ready!(opening.as_mut().poll(cx)) {
                        Ok(stream) => {
                            self.has_opened = true;
                            let after = if is_resume { self.timeouts.resume } else { self.timeouts.list };
                            let silence = Box::pin(tokio::time::sleep_until(until));
                            self.phase = Phase::Reading { stream: Box::new(stream), silence, after };
                            return Poll::Ready(Some(Step::Opened));
                        }
                        Err(error) => self.ended(error, is_resume),
                    }
                }
                Phase::Reading { stream, silence, after } => {
                    // Messages first: a late poll is not silence of the server.
                    let message = match Pin::new(&mut **stream).poll_next(cx) {
                        Poll::Ready(message) => message,
                        Poll::Pending => {
                            ready!(silence.as_mut().poll(cx));
                            let (address, after) = (self.client.address().clone(), *after);
                            self.ended(ClientError::Silent { address, after }, false);
                            continue;
                        }
                    };
                    *after = self.timeouts.idle;
                    silence.as_mut().reset(Instant::now() + self.timeouts.idle);
                    if let Some(response) = self.read(message) {
                        return Poll::Ready(Some(Step::Message(Box::new(response))));
                    }
                }
                Phase::Interrupted(interrupted) => {
                    let (_, _, delay) = **interrupted;
                    let waiting = Phase::Waiting(Box::pin(tokio::time::sleep(delay)));
                    if let Phase::Interrupted(interrupted) = std::mem::replace(&mut self.phase, waiting) {
                        let (error, lists, delay) = *interrupted;
                        return Poll::Ready(Some(Step::Interrupted { error, lists, delay }));
                    }
                }
                Phase::Waiting(delay) => {
                    ready!(delay.as_mut().poll(cx));
                    self.phase = Phase::Idle;
                }
                Phase::Ending(_) => {
                    if let Phase::Ending(error) = std::mem::replace(&mut self.phase, Phase::Over) {
                        return Poll::Ready(Some(Step::Failed(*error)));
                    }
                }
                Phase::Over => return Poll::Ready(None),
            }
        }
    }

    /// Ends the stream with an error of its last message.
    pub(super) fn end(&mut self, error: ClientError) {
        self.ended(error, false);
    }

    /// Ends the watch: the next step is this error, and the last.
    pub(super) fn fail(&mut self, error: ClientError) {
        self.phase = Phase::Ending(Box::new(error));
    }

    /// Ends the stream, which has a hole, and returns the delay before the one that fills it.
    pub(super) fn end_with_hole(&mut self) -> Duration {
        let delay = self.backoff.next_delay(Instant::now());
        self.phase = Phase::Waiting(Box::pin(tokio::time::sleep(delay)));
        delay
    }

    fn open(&mut self, from: Option<ResumePoint<'_>>) {
        let mut request = self.request.clone();
        let after = if let Some(ResumePoint { version, history }) = from {
            version.clone_into(&mut request.resource_version);
            history.clone_into(&mut request.history);
            self.timeouts.resume
        } else {
            request.initial_events = pb::InitialEvents::Send.into();
            self.timeouts.list
        };
        let (client, until) = (self.client.clone(), Instant::now() + after);
        let opening = Box::pin(async move {
            let silent = || ClientError::Silent { address: client.address().clone(), after };
            tokio::time::timeout_at(until, client.open(request)).await.unwrap_or_else(|_| Err(silent()))
        });
        self.phase = Phase::Opening { opening, until, is_resume: from.is_some() };
    }

    fn read(&mut self, message: Option<Result<pb::WatchResponse, Status>>) -> Option<pb::WatchResponse> {
        match message {
            Some(Ok(response)) => {
                self.refusals.message(&response);
                return Some(response);
            }
            Some(Err(status)) => self.ended(self.client.error(&status), false),
            None => {
                let address = self.client.address().clone();
                let problem = "the stream ended without a status of the watch".to_owned();
                self.ended(ClientError::Broken { address, problem }, false);
            }
        }
        None
    }

    /// Decides how to proceed after a stream has ended or was refused.
    fn ended(&mut self, error: ClientError, was_resume: bool) {
        let is_hopeless = !self.has_opened && self.fail_fast && error.is_about_connection();
        let recovery = self.refusals.recovery(&error);
        if recovery == Recovery::GiveUp || is_hopeless {
            self.phase = Phase::Ending(Box::new(error));
            return;
        }
        let lists = recovery == Recovery::Relist;
        let delay = if lists && was_resume && error.code() == Code::OutOfRange {
            // The server has already made the resume wait, and does not reject a list for its version.
            Duration::ZERO
        } else {
            let asked = error.retry_after().unwrap_or_default().min(MAX_RETRY_AFTER);
            let jitter = if error.is_draining() { self.timeouts.drain_jitter } else { Duration::ZERO };
            asked + jitter.mul_f64(fastrand::f64()) + self.backoff.next_delay(Instant::now())
        };
        if error.invalidates_connection() {
            if let Phase::Reading { stream, .. } = &self.phase {
                stream.leave_connection();
            }
            self.client.drop_connection();
        }
        tracing::debug!(resource = self.request.resource, %error, ?delay, lists, "watch interrupted");
        self.phase = Phase::Interrupted(Box::new((error, lists, delay)));
    }
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let phase = match self.phase {
            Phase::Idle => "idle",
            Phase::Opening { .. } => "opening",
            Phase::Reading { .. } => "reading",
            Phase::Interrupted(_) | Phase::Waiting(_) => "waiting",
            Phase::Ending(_) => "ending",
            Phase::Over => "over",
        };
        f.debug_struct("Streams")
            .field("address", self.client.address())
            .field("resource", &self.request.resource)
            .field("phase", &phase)
            .finish_non_exhaustive()
    }
}

// === impl Refusals ===

impl Refusals {
    fn message(&mut self, response: &pb::WatchResponse) {
        if response.r#type() != pb::EventType::Error {
            (self.was_too_large, self.was_unauthenticated) = (false, false);
        }
        self.was_served |= response.r#type() == pb::EventType::Bookmark;
    }

    /// Returns the reaction to an error, which depends on those before it.
    fn recovery(&mut self, error: &ClientError) -> Recovery {
        let was_too_large = std::mem::take(&mut self.was_too_large);
        match error.code() {
            // The message may stand for anything: only a list makes the state sure again.
            _ if matches!(error, ClientError::Contract { .. }) => Recovery::Relist,
            Code::Unavailable if error.reason() == Some("RESOURCE_VERSION_TOO_LARGE") => {
                self.was_too_large = !was_too_large;
                if was_too_large { Recovery::Relist } else { Recovery::Resume }
            }
            // The token is read again for each call.
            Code::Unauthenticated if !std::mem::replace(&mut self.was_unauthenticated, true) => Recovery::Resume,
            // In a rollout some servers do not have it yet, or any more.
            Code::NotFound if self.was_served => Recovery::Resume,
            _ => error.recovery(),
        }
    }
}
