//! Reads the input, and makes events of it: the stream's decoder.
//!
//! ```text
//!   input ──▶ chunk ──▶ Framer ──▶ decode ──▶ Known (what it all adds up to) ──▶ Event
//!                         └────────── what is not applied ──▶ Problems ──▶ SourceHealth
//! ```
//!
//! One watch at a time has the [`Reader`], as a [`Lease`] that gives it back: bytes that were read and not handed out yet
//! are not lost with a watch.
//!
//! Invariants:
//! - What cannot be applied is told, and reading goes on after it: a stream does not come again.
//! - Nothing is read ahead of the one chunk, so that whoever does not ask for events holds the writer back.

use std::{
    borrow::Borrow,
    collections::HashSet,
    hash::{Hash, Hasher},
    ops::Range,
    sync::Arc,
};

use parking_lot::Mutex;

use super::{
    Shared, Slot, StreamError,
    decode::{Said, decode},
    framing::{Found, Framer, MAX_EVENT_BYTES, Position},
    input::Input,
};
use crate::{
    cache::{List, Problem, ProblemReason, SourceHealth},
    model::{Event, EventType, Object, ObjectKey, ResourceVersion},
    source::problems::Problems,
    watch::{DecodeError, Decoder},
};

/// What all events up to now add up to, for a list.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) version: ResourceVersion,
    objects: HashSet<ByKey, foldhash::fast::RandomState>,
}

/// An object, told from others by its key.
#[derive(Debug)]
struct ByKey(Arc<Object>);

/// The one reader of an input that is open.
#[derive(Debug)]
pub(super) struct Reader {
    input: Input,
    chunk: Box<[u8]>,
    /// What of the chunk has not been looked at.
    unread: Range<usize>,
    framer: Framer,
    known: Arc<Mutex<Known>>,
    health: SourceHealth,
    problems: Problems,
    /// The input has ended, and nothing has come since.
    is_lost: bool,
}

/// The reader, in the hands of one watch.
#[derive(Debug)]
pub(super) struct Lease {
    shared: Arc<Shared>,
    /// `None` only while it is given back.
    reader: Option<Box<Reader>>,
}

/// As much as a pipe holds.
const CHUNK_BYTES: usize = 64 << 10;

// === impl Known ===

impl Known {
    /// Nothing, at this version.
    pub(super) fn new(version: ResourceVersion) -> Self {
        Self { version, objects: HashSet::default() }
    }

    pub(super) fn list(&self) -> List {
        List {
            objects: self.objects.iter().map(|ByKey(object)| Arc::clone(object)).collect(),
            version: self.version.clone(),
        }
    }

    fn apply(&mut self, event_type: EventType, object: Object) -> Event {
        self.version.clone_from(object.version());
        if event_type == EventType::Deleted {
            self.objects.remove(object.key());
            return Event::Deleted(Arc::new(object));
        }
        let old = self.objects.get(object.key()).map(|ByKey(old)| old);
        // The cache keeps the old one of two equal objects; so that there is one body, this does too.
        let is_new = old.is_none_or(|old| old.body() != object.body());
        let object = Arc::new(match old {
            Some(old) => object.keyed_as(old),
            None => object,
        });
        if is_new {
            self.objects.replace(ByKey(Arc::clone(&object)));
        }
        if event_type == EventType::Added { Event::Added(object) } else { Event::Modified(object) }
    }
}

// === impl ByKey ===

impl Borrow<ObjectKey> for ByKey {
    fn borrow(&self) -> &ObjectKey {
        self.0.key()
    }
}

impl Hash for ByKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.key().hash(state);
    }
}

impl PartialEq for ByKey {
    fn eq(&self, other: &Self) -> bool {
        self.0.key() == other.0.key()
    }
}

impl Eq for ByKey {}

// === impl Reader ===

impl Reader {
    pub(super) fn new(input: Input, resource: String, known: Arc<Mutex<Known>>, health: SourceHealth) -> Self {
        Self {
            input,
            chunk: vec![0; CHUNK_BYTES].into(),
            unread: 0..0,
            framer: Framer::new(),
            known,
            problems: Problems::new("stream", resource, health.clone()),
            health,
            is_lost: false,
        }
    }

    async fn next(&mut self) -> Result<Event, DecodeError> {
        loop {
            if let Some(event) = self.next_in_chunk() {
                return Ok(event);
            }
            match self.input.read(&mut self.chunk).await {
                Ok(0) => return Err(self.end()),
                Ok(read) => self.unread = 0..read,
                Err(error) => {
                    self.health.failed(format!("the stream cannot be read: {error}"));
                    self.end();
                    return Err(DecodeError::Io(error));
                }
            }
            if std::mem::take(&mut self.is_lost) {
                tracing::info!("the stream goes on");
                self.health.alive();
            }
        }
    }

    fn next_in_chunk(&mut self) -> Option<Event> {
        while !self.unread.is_empty() {
            let unread = &self.chunk[self.unread.clone()];
            let next = self.known.lock().version.next();
            if let Some(line) = self.framer.line(unread)
                && let Ok(said) = decode(line, &next)
            {
                let (used, begin) = self.framer.pass(line);
                self.unread.start += used;
                match self.take(said, begin) {
                    Some(event) => return Some(event),
                    None => continue,
                }
            }
            let (used, found) = self.framer.feed(unread);
            self.unread.start += used;
            let event = match found? {
                Found::Event(begin) => self.event(begin),
                Found::TooLarge(begin) => {
                    self.skipped(begin, &format!("the event has more than {MAX_EVENT_BYTES} bytes"));
                    None
                }
                Found::Garbage(begin) => {
                    self.skipped(begin, "no watch event; going on at the next line that begins with `{`");
                    None
                }
                Found::Broken(begin, end) => {
                    let problem = format!(
                        "the event breaks off at {}; going on at the next line that begins with `{{`",
                        place(end)
                    );
                    self.skipped(begin, &problem);
                    None
                }
            };
            if event.is_some() {
                return event;
            }
        }
        None
    }

    fn event(&mut self, begin: Position) -> Option<Event> {
        let next = self.known.lock().version.next();
        match decode(self.framer.event(), &next) {
            Ok(said) => self.take(said, begin),
            Err(problem) => {
                self.skipped(begin, &problem);
                None
            }
        }
    }

    fn take(&mut self, said: Said, begin: Position) -> Option<Event> {
        match said {
            Said::Change(event_type, object) => Some(self.known.lock().apply(event_type, object)),
            Said::Alive => Some(Event::Bookmark(self.known.lock().version.clone())),
            Said::Failure(failure) => {
                tracing::warn!(failure, line = begin.line, "the upstream of the stream has failed");
                self.health.failed(format!("{}: ERROR: {failure}", place(begin)));
                None
            }
        }
    }

    fn end(&mut self) -> DecodeError {
        let cut = self.framer.end();
        if let Some(begin) = cut {
            self.skipped(begin, "the stream has ended within the event");
        }
        if !std::mem::replace(&mut self.is_lost, true) {
            tracing::info!("the stream has ended");
        }
        if !self.health.has_failed() {
            self.health.failed("the stream has ended");
        }
        self.health.lost();
        if cut.is_some() { DecodeError::UnexpectedEnd } else { DecodeError::End }
    }

    fn skipped(&mut self, begin: Position, problem: &str) {
        self.problems.set(&Problem::new(ProblemReason::ObjectInvalid, place(begin), problem));
    }
}

// === impl Lease ===

impl Lease {
    /// The reader, unless it has not been opened or somebody else has it.
    pub(super) fn take(shared: &Arc<Shared>) -> Option<Self> {
        let mut slot = shared.slot.lock();
        match std::mem::replace(&mut *slot, Slot::Taken) {
            Slot::Idle(reader) => Some(Self { shared: Arc::clone(shared), reader: Some(reader) }),
            other => {
                *slot = other;
                None
            }
        }
    }

    /// Waits until there may be more after an end; see [`Input::reopen`].
    pub(super) async fn reopen(&mut self) {
        let Some(reader) = &mut self.reader else { return };
        let health = reader.health.clone();
        let tell = |error: StreamError| {
            tracing::warn!(%error, "the stream cannot be opened again");
            health.failed(error.to_string());
        };
        reader.input.reopen(tell).await;
    }
}

impl Decoder for Lease {
    type Event = Event;

    async fn decode(&mut self) -> Result<Event, DecodeError> {
        match &mut self.reader {
            Some(reader) => reader.next().await,
            None => Err(DecodeError::End),
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(reader) = self.reader.take() {
            *self.shared.slot.lock() = Slot::Idle(reader);
        }
    }
}

fn place(position: Position) -> String {
    format!("line {} (byte {})", position.line, position.offset)
}
