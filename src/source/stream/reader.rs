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
//! - After a writer of a pipe, and after an ERROR in it, the resource stays STALE until every object is confirmed, or the writer has
//!   shown that it will not: it has sent the end of its initial events, or no unconfirmed object for `confirm_after`. The reader
//!   then deletes the rest, as at a relist, unless an event of the writer could not be read, or is incomplete.

use std::{io, ops::Range, sync::Arc, time::Duration};

use futures_util::FutureExt;
use parking_lot::Mutex;
use tokio::time::{Instant, timeout};

use super::{
    StreamConfig,
    decode::{StreamEvent, decode},
    framing::{Found, Framer, MAX_DEPTH, MAX_EVENT_BYTES, Position},
    input::{Input, Received, StreamError, Writer},
    known::StreamState,
    lease::Leases,
};
use crate::{
    cache::{Delta, Problem, ProblemReason, SourceHealth},
    model::{Cause, Event, EventType},
    source::problems::Problems,
    watch::DecodeError,
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
    /// Times to live of the objects, if they have any.
    leases: Option<Leases>,
    /// Version when the input was last found empty: everything before was of the writer at that time.
    drained_at: u128,
    /// True if an event since then could not be read.
    has_unreadable: bool,
}

/// Objects that existed before the present writer, and had no event of it.
#[derive(Debug)]
struct Unconfirmed {
    /// Version at the end of the previous writers.
    since: u128,
    /// Number of objects.
    count: usize,
    /// True once there is a writer.
    has_begun: bool,
    /// True if an event of the writer could not be read: it may be of any object.
    has_unreadable: bool,
    /// Time with an empty input since the writer last confirmed an object.
    waited: Duration,
}

/// Time that is over while the input is empty.
enum Due {
    /// The writer's time to confirm objects.
    Confirmation,
    /// The time to live of objects.
    Expiry,
}

/// Number of steps of the time to confirm. A step counts at most its own length, however late it is polled.
const STEPS: u32 = 10;

/// Size of a chunk: the capacity of a pipe on Linux.
const CHUNK_BYTES: usize = 64 << 10;

// === impl Reader ===

impl Reader {
    pub(super) fn new(
        input: Input,
        config: &StreamConfig,
        known: Arc<Mutex<StreamState>>,
        health: SourceHealth,
    ) -> Self {
        let drained_at = known.lock().version.number();
        Self {
            input,
            chunk: vec![0; CHUNK_BYTES].into(),
            unread: 0..0,
            framer: Framer::new(),
            known,
            problems: Problems::new("stream", config.resource.clone(), health.clone()),
            health,
            is_lost: false,
            confirm_after: config.confirm_after,
            unconfirmed: None,
            leases: config.ttl.map(Leases::new),
            drained_at,
            has_unreadable: false,
        }
    }

    /// Waits for the next event or deletions.
    ///
    /// # Cancel safety
    ///
    /// A dropped call loses nothing: the bytes that were read stay in the reader.
    pub(super) async fn next(&mut self) -> Result<Delta, DecodeError> {
        loop {
            if let Some(delta) = self.expire().or_else(|| self.next_in_chunk()) {
                return Ok(delta);
            }
            match self.receive().await {
                Err(Due::Expiry) => continue,
                Err(Due::Confirmation) => {
                    if let Some(relist) = self.confirmed() {
                        return Ok(relist);
                    }
                    continue;
                }
                Ok(Ok(Received::End)) => return Err(self.end()),
                Ok(Ok(Received::NextWriter)) => {
                    self.expect_confirmation(self.drained_at, self.has_unreadable);
                    continue;
                }
                Ok(Ok(Received::Bytes(count))) => self.unread = 0..count,
                Ok(Err(error)) => {
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

    /// Waits after an end until there may be more; see [`Input::reopen`]. Returns the deletions of objects that expire before that.
    ///
    /// # Cancel safety
    ///
    /// A future that is dropped before it is ready has changed nothing.
    pub(super) async fn reopen(&mut self) -> Option<Delta> {
        loop {
            let Self { input, health, leases, .. } = self;
            let tell = |error: StreamError| {
                tracing::warn!(%error, "stream not reopened");
                health.record_failure(error.to_string());
            };
            // Cancel-safe, both of them.
            tokio::select! {
                () = input.reopen(tell) => return None,
                () = expired(leases) => {}
            }
            if let Some(delta) = self.expire() {
                return Some(delta);
            }
        }
    }

    /// Deletes the objects that have expired. One that is unconfirmed needs no confirmation any more.
    fn expire(&mut self) -> Option<Delta> {
        let keys = self.leases.as_mut()?.take_expired();
        let (events, last_events) = self.known.lock().expire(&keys);
        if let Some(unconfirmed) = &mut self.unconfirmed {
            unconfirmed.count -= last_events.iter().filter(|at| **at <= unconfirmed.since).count();
            if unconfirmed.count == 0 {
                // No object is left to delete.
                self.confirmed();
            }
        }
        (!events.is_empty()).then(|| Delta::transaction(events))
    }

    /// Reads the available bytes, or waits for some until something is due.
    async fn receive(&mut self) -> Result<io::Result<Received>, Due> {
        loop {
            // Without tokio's budget: a read that is pending has to mean that the input is empty.
            let at_once = tokio::task::unconstrained(self.input.read(&mut self.chunk)).now_or_never();
            if let Some(received) = at_once {
                return Ok(received);
            }
            self.drained_at = self.known.lock().version.number();
            self.has_unreadable = false;
            let (input, chunk, leases) = (&mut self.input, &mut self.chunk, &mut self.leases);
            let received = async {
                // Cancel-safe: a read that is dropped has read nothing.
                tokio::select! {
                    biased;
                    received = input.read(chunk) => Ok(received),
                    () = expired(leases) => Err(Due::Expiry),
                }
            };
            let (Some(unconfirmed), Some(confirm_after)) = (&mut self.unconfirmed, self.confirm_after) else {
                return received.await;
            };
            if unconfirmed.waited >= confirm_after {
                return Err(Due::Confirmation);
            }
            // One step at a time: if this was not polled for longer, the input may have been full for most of it.
            let (began, step) = (Instant::now(), confirm_after / STEPS);
            // Cancel-safe: a read that timed out has read nothing.
            let received = timeout(step, received).await;
            if unconfirmed.has_begun {
                unconfirmed.waited += began.elapsed().min(step);
            }
            if let Ok(received) = received {
                return received;
            }
            if !unconfirmed.has_begun {
                // A writer that has opened the pipe and has nothing to write, as of an empty cluster.
                match self.input.look(&mut self.chunk) {
                    Writer::None => {}
                    Writer::Silent => unconfirmed.has_begun = true,
                    Writer::Wrote(count) => return Ok(Ok(Received::Bytes(count))),
                }
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
            let (begin, problem) = match found? {
                Found::Event(begin) => match self.event(begin) {
                    Some(delta) => return Some(delta),
                    None => continue,
                },
                Found::TooLarge(begin) => (begin, format!("event too large (limit: {MAX_EVENT_BYTES} bytes)")),
                Found::TooDeep(begin) => {
                    (begin, format!("event nested too deeply (limit: {MAX_DEPTH} maps and lists)"))
                }
                Found::Garbage(begin) => (begin, "not a watch event".to_owned()),
                Found::Broken(begin, end) => (begin, format!("incomplete event, cut off at {}", place(end))),
            };
            // Text that begins no event, such as a warning, is of no object.
            if !matches!(found, Some(Found::Garbage(_))) {
                self.note_unreadable();
            }
            self.skipped(begin, &format!("{problem}; continuing at the next line that begins with `{{`"));
        }
        None
    }

    fn event(&mut self, begin: Position) -> Option<Delta> {
        let next = self.known.lock().version.next();
        match decode(self.framer.event(), &next) {
            Ok(said) => self.take(said, begin),
            Err(problem) => {
                self.note_unreadable();
                self.skipped(begin, &problem);
                None
            }
        }
    }

    fn take(&mut self, said: StreamEvent, begin: Position) -> Option<Delta> {
        match said {
            StreamEvent::Change(event_type, object) => {
                let leased = self.leases.as_ref().map(|leases| (leases, object.key().clone()));
                let (event, before) = self.known.lock().apply(event_type, object);
                let is_applied = event_type != EventType::Deleted || before.is_some();
                if let Some((leases, key)) = leased.filter(|_| is_applied) {
                    leases.record(event_type, &key);
                }
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
                // Events may have been lost: the writer has to begin again, as a new one does.
                let since = self.known.lock().version.number();
                self.expect_confirmation(since, false);
                if let Some(unconfirmed) = &mut self.unconfirmed {
                    unconfirmed.has_begun = true;
                }
                None
            }
        }
    }

    /// Makes the resource wait for a next writer to confirm the objects up to this version. An event that could not be read may be of
    /// that writer already.
    fn expect_confirmation(&mut self, since: u128, has_unreadable: bool) {
        let (count, version) = {
            let known = self.known.lock();
            (known.count_silent_since(since), known.version.number())
        };
        let is_due = self.input.has_next_writer() && count > 0;
        let Some(confirm_after) = self.confirm_after.filter(|_| is_due) else { return };
        let has_begun = version > since;
        self.unconfirmed = Some(Unconfirmed { since, count, has_begun, has_unreadable, waited: Duration::ZERO });
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
        let mut unconfirmed = self.unconfirmed.take()?;
        if (unconfirmed.has_unreadable || self.framer.is_within()) && unconfirmed.count > 0 {
            // It may be of one of these: what cannot be read is not absent.
            unconfirmed.waited = Duration::ZERO;
            self.unconfirmed = Some(unconfirmed);
            return None;
        }
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
        self.expect_confirmation(since, false);
        if cut.is_some() { DecodeError::UnexpectedEnd } else { DecodeError::End }
    }

    fn note_unreadable(&mut self) {
        self.has_unreadable = true;
        if let Some(unconfirmed) = &mut self.unconfirmed {
            unconfirmed.has_unreadable = true;
        }
    }

    fn skipped(&mut self, begin: Position, problem: &str) {
        self.problems.set(&Problem::new(ProblemReason::ObjectInvalid, place(begin), problem));
    }
}

/// Waits until objects may have expired.
async fn expired(leases: &mut Option<Leases>) {
    match leases {
        Some(leases) => leases.expired().await,
        None => std::future::pending().await,
    }
}

fn place(position: Position) -> String {
    format!("line {} (byte {})", position.line, position.offset)
}
