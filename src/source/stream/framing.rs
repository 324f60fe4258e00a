//! Boundaries of the events in a stream of bytes that arrives in pieces of any size.
//!
//! `reader` drives it; without I/O. The framer is a strict automaton over the grammar of JSON, byte by byte. It detects a
//! syntax error at that byte instead of when the memory is full: an event that was cut off does not include the one after it,
//! unless it was cut off just before a value.
//!
//! Invariants:
//! - However the bytes are cut into pieces, the framer finds the same events at the same positions.
//! - A line that is JSON from end to end is one event, and need not be scanned.
//! - An event is one map at the outermost level. The framer buffers up to [`MAX_EVENT_BYTES`] of it, and never one byte more;
//!   of a larger one it only searches for the end.
//! - No more than [`MAX_DEPTH`] brackets are open: deeper nesting is no event.
//! - After bytes that are no event, the next line that begins with `{` begins the next one.
//!
//! `decode` checks scalars and the content of the event.

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
    /// Open brackets.
    open: Vec<Bracket>,
    event: Vec<u8>,
    is_complete: bool,
    is_too_large: bool,
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
enum Bracket {
    Map,
    List,
}

/// Expected continuation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Outside of events: the next event.
    Between,
    /// After bytes that are no event: a line that begins with one.
    Lost,
    FirstKey,
    Key,
    Colon,
    FirstValue,
    Value,
    AfterValue,
    Scalar,
    Text {
        is_key: bool,
    },
    Escape {
        is_key: bool,
    },
}

/// Outcome of the scan of a piece.
enum Scanned {
    /// The event continues after the piece.
    Through,
    /// The event ends after this many bytes.
    Complete(usize),
    /// A byte violates the grammar, after this many valid ones.
    Broken(usize),
}

const BOM: &[u8] = b"\xEF\xBB\xBF";

// === impl Framer ===

impl Framer {
    pub(super) fn new() -> Self {
        Self {
            state: State::Between,
            open: Vec::new(),
            event: Vec::new(),
            is_complete: false,
            is_too_large: false,
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
        if self.is_complete {
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
        let cut = (self.is_within() && !self.is_too_large).then_some(self.begin);
        self.forget();
        (self.state, self.at_line_start) = (State::Between, true);
        cut
    }

    fn forget(&mut self) {
        (self.is_complete, self.is_too_large) = (false, false);
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
                    self.state = State::FirstKey;
                    self.open.push(Bracket::Map);
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

    /// Continues an event.
    fn follow(&mut self, bytes: &[u8]) -> (usize, Option<Found>) {
        let scanned = self.scan(bytes);
        let (Scanned::Complete(used) | Scanned::Broken(used)) = scanned else {
            return (bytes.len(), self.keep(bytes));
        };
        let too_large = self.keep(&bytes[..used]);
        // An event that is too large has been reported already.
        let is_told = self.is_too_large;
        let found = if let Scanned::Complete(_) = scanned {
            (self.state, self.is_complete) = (State::Between, !is_told);
            Found::Event(self.begin)
        } else {
            let is_too_deep = self.open.len() == MAX_DEPTH && opens(self.state, bytes.get(used));
            self.state = State::Lost;
            if is_too_deep { Found::TooDeep(self.begin) } else { Found::Broken(self.begin, self.position) }
        };
        if !self.is_complete {
            self.forget();
        }
        (used, too_large.or((!is_told).then_some(found)))
    }

    /// Buffers a part of an event, within the limit.
    fn keep(&mut self, part: &[u8]) -> Option<Found> {
        self.advance(part);
        if self.is_too_large {
            return None;
        }
        if self.event.len() + part.len() > MAX_EVENT_BYTES {
            self.is_too_large = true;
            self.event = Vec::new();
            return Some(Found::TooLarge(self.begin));
        }
        self.event.extend_from_slice(part);
        None
    }

    fn advance(&mut self, part: &[u8]) {
        let Some(last) = part.last() else { return };
        self.at_line_start = *last == b'\n';
        self.position.offset += part.len() as u64;
        self.position.line += memchr::memchr_iter(b'\n', part).count() as u64;
    }

    /// Runs the automaton over one event as far as the bytes lead.
    fn scan(&mut self, bytes: &[u8]) -> Scanned {
        let mut at = 0;
        while let Some(&byte) = bytes.get(at) {
            let next = match self.state {
                State::Text { .. } if is_plain(byte) => {
                    at += 1 + plain(&bytes[at + 1..]);
                    continue;
                }
                State::Text { is_key } if byte == b'\\' => Some(State::Escape { is_key }),
                State::Text { is_key } if byte == b'"' => Some(if is_key { State::Colon } else { State::AfterValue }),
                State::Text { .. } => None,
                State::Escape { is_key } => (byte >= b' ').then_some(State::Text { is_key }),
                State::Scalar if is_scalar(byte) => Some(State::Scalar),
                state if is_space(byte) && state != State::Scalar => Some(state),
                State::FirstKey if byte == b'}' => self.close(Bracket::Map),
                State::FirstKey | State::Key => (byte == b'"').then_some(State::Text { is_key: true }),
                State::Colon => (byte == b':').then_some(State::Value),
                State::FirstValue if byte == b']' => self.close(Bracket::List),
                State::FirstValue | State::Value => self.value(byte),
                State::Scalar if is_space(byte) => Some(State::AfterValue),
                State::AfterValue | State::Scalar => match (byte, self.open.last()) {
                    (b',', Some(Bracket::Map)) => Some(State::Key),
                    (b',', Some(Bracket::List)) => Some(State::Value),
                    (b'}', _) => self.close(Bracket::Map),
                    (b']', _) => self.close(Bracket::List),
                    _ => None,
                },
                // Scanning never begins in these states.
                State::Between | State::Lost => None,
            };
            match next {
                None => return Scanned::Broken(at),
                Some(State::Between) => return Scanned::Complete(at + 1),
                Some(next) => self.state = next,
            }
            at += 1;
        }
        Scanned::Through
    }

    fn value(&mut self, byte: u8) -> Option<State> {
        let (bracket, next) = match byte {
            b'{' => (Bracket::Map, State::FirstKey),
            b'[' => (Bracket::List, State::FirstValue),
            b'"' => return Some(State::Text { is_key: false }),
            _ => return is_scalar(byte).then_some(State::Scalar),
        };
        if self.open.len() == MAX_DEPTH {
            return None;
        }
        self.open.push(bracket);
        Some(next)
    }

    /// Closes a bracket, if it is the innermost open one. [`State::Between`] after the last one.
    fn close(&mut self, bracket: Bracket) -> Option<State> {
        self.open.pop_if(|open| *open == bracket)?;
        Some(if self.open.is_empty() { State::Between } else { State::AfterValue })
    }

    /// Returns true if this byte belongs to a byte order mark at the very beginning.
    fn is_bom(&self, byte: u8) -> bool {
        usize::try_from(self.position.offset).ok().and_then(|at| BOM.get(at)) == Some(&byte)
    }
}

/// Returns true if a map or a list would begin with this byte.
fn opens(state: State, byte: Option<&u8>) -> bool {
    matches!((state, byte), (State::FirstValue | State::Value, Some(b'{' | b'[')))
}

/// Returns true for a byte of a string that is neither its end nor an escape nor a control character.
fn is_plain(byte: u8) -> bool {
    byte != b'"' && byte != b'\\' && byte >= b' '
}

/// Returns the number of leading plain bytes. Most bytes are plain, so it checks eight of them at once: the upper bit of a
/// byte is set where it is not plain, and perhaps in those after it.
fn plain(bytes: &[u8]) -> usize {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    let under = |word: u64, bound: u8| word.wrapping_sub(ONES * u64::from(bound)) & !word & (ONES << 7);
    let is = |word: u64, byte: u8| under(word ^ (ONES * u64::from(byte)), 1);
    let (words, rest) = bytes.as_chunks();
    for (at, word) in words.iter().enumerate() {
        let word = u64::from_le_bytes(*word);
        let marks = is(word, b'"') | is(word, b'\\') | under(word, b' ');
        if marks != 0 {
            return 8 * at + marks.trailing_zeros() as usize / 8;
        }
    }
    bytes.len() - rest.len() + rest.iter().take_while(|byte| is_plain(**byte)).count()
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

/// Returns true for a byte of a number, `true`, `false` or `null`.
fn is_scalar(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.')
}

#[cfg(test)]
mod tests;
