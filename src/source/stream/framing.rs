//! Boundaries of the events in a stream of bytes that arrives in pieces of any size.
//!
//! `reader` drives it; without I/O. The framer follows strings and brackets only: an event that was cut off ends where a line
//! breaks inside a string, or where a bracket comes that cannot come there. It does not include the event after it, unless it
//! was cut off just before a value.
//!
//! Invariants:
//! - However the bytes are cut into pieces, the framer finds the same events at the same positions.
//! - A line that is JSON from end to end is one event, and need not be scanned.
//! - An event is one map at the outermost level. The framer buffers up to [`MAX_EVENT_BYTES`] of it, and never one byte more.
//! - No more than [`MAX_DEPTH`] brackets are open: deeper nesting is no event.
//! - After bytes that are no event, and after an event beyond these limits, the next line that begins with `{` begins the next one.
//!
//! `decode` checks the rest of the syntax, and the content of the event.

use crate::model::MAX_OBJECT_BYTES;

/// Limit of an event: an object of the largest size in base64, and its envelope.
pub(super) const MAX_EVENT_BYTES: usize = MAX_OBJECT_BYTES.div_ceil(3) * 4 + (64 << 10);

/// Limit of open maps and lists. Go's `encoding/json` reads no more, so that no client of Kubernetes writes more.
pub(super) const MAX_DEPTH: usize = 10_000;

/// Capacity that the buffer for events shrinks to after a large one.
const USUAL_EVENT_BYTES: usize = 64 << 10;

/// Finds the events in a stream.
#[derive(Debug)]
pub(super) struct Framer {
    state: State,
    /// Open brackets: `{` and `[`.
    open: Vec<u8>,
    /// Last byte of the event that is not white space.
    last: u8,
    event: Vec<u8>,
    /// Start of the event.
    begin: Position,
    position: Position,
    at_line_start: bool,
}

/// Position in the stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Position {
    /// Line number, from 1.
    pub(super) line: u64,
    /// Offset in bytes, from 0.
    pub(super) offset: u64,
}

/// Result of framing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// A complete event, which began here; [`Framer::event`] has its bytes.
    Event(Position),
    /// An event that began here is larger than [`MAX_EVENT_BYTES`].
    TooLarge(Position),
    /// An event that began here nests deeper than [`MAX_DEPTH`].
    TooDeep(Position),
    /// Bytes that are no event begin here.
    Garbage(Position),
    /// An event that began at the first position ends in a syntax error at the second.
    Broken(Position, Position),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Outside of events: the next event.
    Between,
    /// After bytes that are no event: a line that begins with one.
    Lost,
    /// Inside an event, outside of its strings.
    Within,
    Text,
    Escape,
}

/// Outcome of the scan of a piece.
enum Scanned {
    /// The event continues after the piece, which has this many bytes.
    Through(usize),
    /// The event ends after this many bytes.
    Complete(usize),
    /// A byte cannot be part of the event, after this many valid ones.
    Broken(usize),
}

const BOM: &[u8] = b"\xEF\xBB\xBF";

// === impl Framer ===

impl Framer {
    pub(super) fn new() -> Self {
        Self {
            state: State::Between,
            open: Vec::new(),
            last: b'{',
            event: Vec::new(),
            begin: Position { line: 1, offset: 0 },
            position: Position { line: 1, offset: 0 },
            at_line_start: true,
        }
    }

    /// Returns the bytes of the last complete event.
    pub(super) fn event(&self) -> &[u8] {
        &self.event
    }

    /// Returns the rest of a line, without its end, if an event may begin here and the line ends in `bytes`. A caller that parses
    /// it as JSON need not have it scanned: see [`Framer::pass`].
    pub(super) fn line<'b>(&self, bytes: &'b [u8]) -> Option<&'b [u8]> {
        if self.state != State::Between || bytes.first() != Some(&b'{') {
            return None;
        }
        let line = memchr::memchr(b'\n', bytes).map(|end| &bytes[..end])?;
        // JSON has two bytes for each level, so that short lines need no count.
        let is_shallow = line.len() < 2 * MAX_DEPTH || memchr::memchr2_iter(b'{', b'[', line).nth(MAX_DEPTH).is_none();
        is_shallow.then_some(line)
    }

    /// Accepts a line that [`Framer::line`] returned as one event. Returns the number of its bytes, and its start.
    pub(super) fn pass(&mut self, line: &[u8]) -> (usize, Position) {
        let begin = self.position;
        self.advance(line);
        self.advance(b"\n");
        (line.len() + 1, begin)
    }

    /// Processes the front of `bytes` until there is a result or no more bytes. Returns the number of processed bytes, and the
    /// result.
    pub(super) fn feed(&mut self, bytes: &[u8]) -> (usize, Option<Found>) {
        if !self.is_within() {
            self.forget();
        }
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let (used, found) = match self.state {
                State::Between | State::Lost => self.seek(rest),
                _ => self.follow(rest),
            };
            at += used;
            if found.is_some() {
                return (at, found);
            }
        }
        (at, None)
    }

    /// Returns true inside an event, whose end has not come yet.
    pub(super) fn is_within(&self) -> bool {
        !matches!(self.state, State::Between | State::Lost)
    }

    /// Ends the input, or that of one writer. Returns the start of the event that was cut off.
    pub(super) fn end(&mut self) -> Option<Position> {
        let cut = self.is_within().then_some(self.begin);
        self.forget();
        (self.state, self.at_line_start) = (State::Between, true);
        cut
    }

    fn forget(&mut self) {
        self.open.clear();
        self.event.clear();
        self.event.shrink_to(USUAL_EVENT_BYTES);
        self.open.shrink_to(USUAL_EVENT_BYTES);
    }

    /// Searches for the start of an event.
    fn seek(&mut self, bytes: &[u8]) -> (usize, Option<Found>) {
        for (at, &byte) in bytes.iter().enumerate() {
            match self.state {
                _ if byte == b'{' && (self.at_line_start || self.state == State::Between) => {
                    self.begin = self.position;
                    (self.state, self.last) = (State::Within, byte);
                    self.open.push(byte);
                    self.advance(&bytes[at..=at]);
                    self.event.push(byte);
                    return (at + 1, None);
                }
                State::Between if !is_space(byte) && !self.is_bom(byte) => {
                    let garbage = Found::Garbage(self.position);
                    self.state = State::Lost;
                    self.advance(&bytes[at..=at]);
                    return (at + 1, Some(garbage));
                }
                _ => self.advance(&bytes[at..=at]),
            }
        }
        (bytes.len(), None)
    }

    /// Continues an event, within the limit.
    fn follow(&mut self, bytes: &[u8]) -> (usize, Option<Found>) {
        let room = bytes.len().min(MAX_EVENT_BYTES - self.event.len());
        let scanned = self.scan(&bytes[..room]);
        let (Scanned::Through(used) | Scanned::Complete(used) | Scanned::Broken(used)) = scanned;
        self.advance(&bytes[..used]);
        self.event.extend_from_slice(&bytes[..used]);
        let (state, found) = match scanned {
            Scanned::Complete(_) => (State::Between, Found::Event(self.begin)),
            // No more brackets may be open.
            Scanned::Broken(_) if self.open.len() == MAX_DEPTH => (State::Lost, Found::TooDeep(self.begin)),
            Scanned::Broken(_) => (State::Lost, Found::Broken(self.begin, self.position)),
            Scanned::Through(_) if room < bytes.len() => (State::Lost, Found::TooLarge(self.begin)),
            Scanned::Through(_) => return (used, None),
        };
        self.state = state;
        (used, Some(found))
    }

    fn advance(&mut self, part: &[u8]) {
        let Some(last) = part.last() else { return };
        self.at_line_start = *last == b'\n';
        self.position.offset += part.len() as u64;
        self.position.line += memchr::memchr_iter(b'\n', part).count() as u64;
    }

    /// Follows strings and brackets of one event as far as the bytes lead.
    fn scan(&mut self, bytes: &[u8]) -> Scanned {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            let next = match (self.state, byte) {
                (State::Text, b'"') => Some(State::Within),
                (State::Text, b'\\') => Some(State::Escape),
                (State::Text | State::Escape, b'\n') => None,
                (State::Text, _) => {
                    let text = &bytes[at..];
                    at += memchr::memchr3(b'"', b'\\', b'\n', text).unwrap_or(text.len());
                    continue;
                }
                (State::Escape, _) | (_, b'"') => Some(State::Text),
                (_, b'{' | b'[') => self.open(byte),
                (_, b'}' | b']') => self.close(byte),
                _ => Some(State::Within),
            };
            match next {
                None => return Scanned::Broken(at),
                Some(State::Between) => return Scanned::Complete(at + 1),
                Some(next) => self.state = next,
            }
            if !is_space(byte) {
                self.last = byte;
            }
            at += 1;
        }
        Scanned::Through(at)
    }

    /// Opens a bracket, where a value may come.
    fn open(&mut self, bracket: u8) -> Option<State> {
        let is_value = matches!(self.last, b':' | b'[') || self.last == b',' && self.open.last() == Some(&b'[');
        (is_value && self.open.len() < MAX_DEPTH).then(|| self.open.push(bracket)).map(|()| State::Within)
    }

    /// Closes a bracket, if it is the innermost open one. [`State::Between`] after the last one.
    fn close(&mut self, bracket: u8) -> Option<State> {
        // In ASCII, `}` and `]` are two after the bracket that they close.
        self.open.pop_if(|open| *open + 2 == bracket)?;
        Some(if self.open.is_empty() { State::Between } else { State::Within })
    }

    /// Returns true if this byte belongs to a byte order mark at the very beginning.
    fn is_bom(&self, byte: u8) -> bool {
        usize::try_from(self.position.offset).ok().and_then(|at| BOM.get(at)) == Some(&byte)
    }
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

#[cfg(test)]
mod tests;
