//! Decoder of a stream: reads the input, and converts it to events.
//!
//! ```text
//!   input ──▶ chunk ──▶ Framer ──▶ decode ──▶ StreamState (the current objects) ──▶ Delta
//!                         └────────── events not applied ──▶ Problems ──▶ SourceHealth
//! ```
//!
//! Invariants:
//! - The reader reports an event that cannot be applied, and continues after it: a stream cannot be read again.
//! - Nothing is read ahead except for one chunk, so that a consumer that takes no events blocks the writer.
//! - After a writer of a pipe the resource stays STALE until the next one has confirmed every object, or has shown that it
//!   will not: it has sent the end of its initial events, or no unconfirmed object for `confirm_after`. The reader then deletes
//!   the rest, as at a relist.

use std::{io, ops::Range, sync::Arc, time::Duration};

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::{
    decode::{StreamEvent, decode},
    framing::{Found, Framer, MAX_DEPTH, MAX_EVENT_BYTES, Position},
    input::{Input, Received, StreamError},
    known::StreamState,
    watcher::DecodeError,
};
use crate::{
    cache::{Delta, Problem, ProblemReason, SourceHealth},
    model::{Cause, Event},
    source::problems::Problems,
};

/// The only reader of an open input.
#[derive(Debug)]
pub(super) struct Reader {
    input: Input,
    chunk: Box<[u8]>,
    /// Part of the chunk that has not been processed.
    unread: Range<usize>,
    framer: Framer,
    known: Arc<Mutex<StreamState>>,
    health: SourceHealth,
    problems: Problems,
    /// True from an end of the input to the next bytes.
    is_lost: bool,
    /// Time to confirm the objects of the previous writer; `None` if a writer need not.
    confirm_after: Option<Duration>,
    /// Objects that the present or next writer has not confirmed yet.
    unconfirmed: Option<Unconfirmed>,
    /// Version when the input was last found empty: everything before was of the writer at that time.
    drained_at: u128,
}

/// Objects that existed before the present writer, and had no event of it.
#[derive(Debug)]
struct Unconfirmed {
    /// Version at the end of the previous writers.
    since: u128,
    /// Number of objects.
    count: usize,
    /// True once the writer has sent an event.
    has_begun: bool,
    /// Time with an empty input since the writer last confirmed an object.
    waited: Duration,
}

/// Number of steps of the time to confirm. A step counts at most its own length, however late it is polled.
const STEPS: u32 = 10;

/// Size of a chunk: the capacity of a pipe on Linux.
const CHUNK_BYTES: usize = 64 << 10;

// === impl Reader ===

impl Reader {
    pub(super) fn new(
        input: Input,
        resource: String,
        known: Arc<Mutex<StreamState>>,
        health: SourceHealth,
        confirm_after: Option<Duration>,
    ) -> Self {
        let drained_at = known.lock().version.number();
        Self {
            input,
            chunk: vec![0; CHUNK_BYTES].into(),
            unread: 0..0,
            framer: Framer::new(),
            known,
            problems: Problems::new("stream", resource, health.clone()),
            health,
            is_lost: false,
            confirm_after,
            unconfirmed: None,
            drained_at,
        }
    }

    /// Waits for the next event or deletions.
    ///
    /// # Cancel safety
    ///
    /// A dropped call loses nothing: the bytes that were read stay in the reader.
    pub(super) async fn next(&mut self) -> Result<Delta, DecodeError> {
        loop {
            if let Some(delta) = self.next_in_chunk() {
                return Ok(delta);
            }
            match self.receive().await {
                None => {
                    if let Some(relist) = self.confirmed() {
                        return Ok(relist);
                    }
                    continue;
                }
                Some(Ok(Received::End)) => return Err(self.end()),
                Some(Ok(Received::NextWriter)) => {
                    self.expect_confirmation(self.drained_at);
                    continue;
                }
                Some(Ok(Received::Bytes(count))) => self.unread = 0..count,
                Some(Err(error)) => {
                    self.health.record_failure(format!("the stream cannot be read: {error}"));
                    self.end();
                    return Err(DecodeError::Io(error));
                }
            }
            if std::mem::take(&mut self.is_lost) {
                tracing::info!("stream resumed");
                self.health.record_contact();
            }
        }
    }

    /// Waits after an end until there may be more; see [`Input::reopen`].
    pub(super) async fn reopen(&mut self) {
        let Self { input, health, .. } = self;
        let tell = |error: StreamError| {
            tracing::warn!(%error, "stream not reopened");
            health.record_failure(error.to_string());
        };
        input.reopen(tell).await;
    }

    /// Reads the available bytes, or waits for some. `None` when the writer's time to confirm objects has expired.
    async fn receive(&mut self) -> Option<io::Result<Received>> {
        loop {
            // Without tokio's budget: a read that is pending has to mean that the input is empty.
            let at_once = tokio::task::unconstrained(self.input.read(&mut self.chunk)).now_or_never();
            if at_once.is_some() {
                return at_once;
            }
            self.drained_at = self.known.lock().version.number();
            let received = self.input.read(&mut self.chunk);
            let confirming = self.unconfirmed.as_mut().filter(|unconfirmed| unconfirmed.has_begun);
            let (Some(unconfirmed), Some(confirm_after)) = (confirming, self.confirm_after) else {
                return Some(received.await);
            };
            if unconfirmed.waited >= confirm_after {
                return None;
            }
            // One step at a time: if this was not polled for longer, the input may have been full for most of it.
            let (began, step) = (Instant::now(), confirm_after / STEPS);
            // Cancel-safe: a read that timed out has read nothing.
            let received = timeout(step, received).await;
            unconfirmed.waited += began.elapsed().min(step);
            if let Ok(received) = received {
                return Some(received);
            }
        }
    }

    fn next_in_chunk(&mut self) -> Option<Delta> {
        while !self.unread.is_empty() {
            let unread = &self.chunk[self.unread.clone()];
            let next = self.known.lock().version.next();
            if let Some(line) = self.framer.line(unread)
                && let Ok(said) = decode(line, &next)
            {
                let (used, begin) = self.framer.pass(line);
                self.unread.start += used;
                match self.take(said, begin) {
                    Some(delta) => return Some(delta),
                    None => continue,
                }
            }
            let (used, found) = self.framer.feed(unread);
            self.unread.start += used;
            let delta = match found? {
                Found::Event(begin) => self.event(begin),
                Found::TooLarge(begin) => {
                    self.skipped(begin, &format!("event too large (limit: {MAX_EVENT_BYTES} bytes)"));
                    None
                }
                Found::TooDeep(begin) => {
                    let problem = format!(
                        "event nested too deeply (limit: {MAX_DEPTH} maps and lists); continuing at the next line that \
                         begins with `{{`"
                    );
                    self.skipped(begin, &problem);
                    None
                }
                Found::Garbage(begin) => {
                    self.skipped(begin, "not a watch event; continuing at the next line that begins with `{`");
                    None
                }
                Found::Broken(begin, end) => {
                    let problem = format!(
                        "incomplete event, cut off at {}; continuing at the next line that begins with `{{`",
                        place(end)
                    );
                    self.skipped(begin, &problem);
                    None
                }
            };
            if delta.is_some() {
                return delta;
            }
        }
        None
    }

    fn event(&mut self, begin: Position) -> Option<Delta> {
        let next = self.known.lock().version.next();
        match decode(self.framer.event(), &next) {
            Ok(said) => self.take(said, begin),
            Err(problem) => {
                self.skipped(begin, &problem);
                None
            }
        }
    }

    fn take(&mut self, said: StreamEvent, begin: Position) -> Option<Delta> {
        match said {
            StreamEvent::Change(event_type, object) => {
                let (event, before) = self.known.lock().apply(event_type, object);
                self.confirm(before);
                Some(Delta::event(event))
            }
            StreamEvent::Alive { is_initial_end: true } if self.unconfirmed.is_some() => self.confirmed(),
            StreamEvent::Alive { .. } => {
                self.confirm(None);
                Some(Delta::event(Event::Bookmark(self.known.lock().version.clone())))
            }
            StreamEvent::Failure(failure) => {
                tracing::warn!(failure, line = begin.line, "upstream of the stream failed");
                self.health.record_failure(format!("{}: ERROR: {failure}", place(begin)));
                None
            }
        }
    }

    /// Makes the resource wait for a next writer to confirm the objects up to this version.
    fn expect_confirmation(&mut self, since: u128) {
        let (count, version) = {
            let known = self.known.lock();
            (known.count_silent_since(since), known.version.number())
        };
        let is_due = self.input.has_next_writer() && count > 0;
        let Some(confirm_after) = self.confirm_after.filter(|_| is_due) else { return };
        let has_begun = version > since;
        self.unconfirmed = Some(Unconfirmed { since, count, has_begun, waited: Duration::ZERO });
        self.health.set_unconfirmed(true);
        let message = format!(
            "{count} objects not confirmed yet: the next writer of the pipe has to begin with all objects; those that it \
             leaves out are deleted {confirm_after:?} after the last confirmed one"
        );
        self.problems.set(&Problem::new(ProblemReason::ObjectsUnconfirmed, "", message));
    }

    /// Records an event of the present writer, of an object whose last event had this version.
    fn confirm(&mut self, before: Option<u128>) {
        let Some(unconfirmed) = &mut self.unconfirmed else { return };
        unconfirmed.has_begun = true;
        if before.is_some_and(|before| before <= unconfirmed.since) {
            unconfirmed.count -= 1;
            unconfirmed.waited = Duration::ZERO;
        }
        if unconfirmed.count == 0 {
            // No object is left to delete.
            self.confirmed();
        }
    }

    /// Ends the confirmation. Returns the deletions of the unconfirmed objects, if there are any.
    fn confirmed(&mut self) -> Option<Delta> {
        let unconfirmed = self.unconfirmed.take()?;
        self.health.set_unconfirmed(false);
        self.health.clear_problem(ProblemReason::ObjectsUnconfirmed, "");
        let deletions = self.known.lock().remove_silent_since(unconfirmed.since);
        tracing::info!(deleted = deletions.len(), "objects confirmed by the next writer");
        (!deletions.is_empty()).then(|| Delta::Relist(deletions, Cause::Inferred))
    }

    fn end(&mut self) -> DecodeError {
        let cut = self.framer.end();
        if let Some(begin) = cut {
            self.skipped(begin, "stream ended inside the event");
        }
        if !std::mem::replace(&mut self.is_lost, true) {
            tracing::info!("stream ended");
        }
        if !self.health.has_failed() {
            self.health.record_failure("stream ended");
        }
        self.health.mark_lost();
        let since = self.known.lock().version.number();
        self.expect_confirmation(since);
        if cut.is_some() { DecodeError::UnexpectedEnd } else { DecodeError::End }
    }

    fn skipped(&mut self, begin: Position, problem: &str) {
        self.problems.set(&Problem::new(ProblemReason::ObjectInvalid, place(begin), problem));
    }
}

fn place(position: Position) -> String {
    format!("line {} (byte {})", position.line, position.offset)
}
