//! Pipe under test: executes a script on a real named pipe or file, and computes the objects from the script alone.
//!
//! The rules are those of the documentation: the objects are the sum of the events; bytes that are no event are not applied, and
//! reading resumes at the next line that begins with `{`; an incomplete event at the end of a writer is not applied; and objects
//! from before a writer that its initial events do not confirm are deleted.

use std::{
    collections::BTreeSet,
    fs::{self, File},
    io::Write,
    path::PathBuf,
    time::{Duration, Instant},
};

use rustix::fs::{CWD, Mode, mkfifoat};
use tempfile::TempDir;

use super::script::{Garbage, Pace, Piece, Shape};
use crate::source_checker::{
    live::pause,
    timeline::{Objects, Timeline},
};

/// Pipe or file, and the truth of what was written to it.
pub(crate) struct Pipe {
    directory: TempDir,
    pub(crate) truth: Timeline,
    /// Objects of earlier writers that the current one has not confirmed.
    unconfirmed: BTreeSet<String>,
    objects: Objects,
    next_value: u64,
    writer: Option<Open>,
}

/// Writer that has the pipe open.
struct Open {
    file: File,
    pace: Pace,
    turn: usize,
    /// Time of the last write, and the longest pause between two writes so far.
    last_write: Instant,
    longest_gap: Duration,
}

/// Object that quiet points change.
const MARKER: &str = "zz-marker";

/// Size above the limit of an object, in bytes.
const TOO_LARGE: usize = (3 << 20) + (128 << 10);

// === impl Pipe ===

impl Pipe {
    pub(crate) fn new_pipe() -> Self {
        let pipe = Self::new();
        mkfifoat(CWD, pipe.path(), Mode::from_raw_mode(0o600)).unwrap();
        pipe
    }

    /// Returns an empty file.
    pub(crate) fn new_file() -> Self {
        let pipe = Self::new();
        fs::write(pipe.path(), "").unwrap();
        pipe
    }

    fn new() -> Self {
        Self {
            directory: tempfile::tempdir().unwrap(),
            truth: Timeline::default(),
            unconfirmed: BTreeSet::new(),
            objects: Objects::new(),
            next_value: 10,
            writer: None,
        }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("events")
    }

    /// Opens the pipe as a new writer; waits for a reader.
    pub(crate) fn open(&mut self, pace: &Pace) {
        let file = File::options().write(true).open(self.path()).unwrap();
        let (last_write, longest_gap) = (Instant::now(), Duration::ZERO);
        self.writer = Some(Open { file, pace: pace.clone(), turn: 0, last_write, longest_gap });
        self.unconfirmed = self.objects.keys().cloned().collect();
    }

    /// Ends the writer.
    pub(crate) fn close(&mut self) {
        self.writer = None;
    }

    /// Returns the longest time in which the writer wrote nothing.
    pub(crate) fn longest_gap(&self) -> Duration {
        self.writer.as_ref().map_or(Duration::ZERO, |open| open.longest_gap)
    }

    /// Returns the names of all objects, in order.
    pub(crate) fn names(&self) -> Vec<String> {
        self.objects.keys().cloned().collect()
    }

    /// Writes an initial event: an object unchanged, or with another body.
    pub(crate) fn repeat(&mut self, name: &str, is_changed: bool) {
        let known = self.objects.get(name).filter(|_| !is_changed).cloned();
        let body = known.unwrap_or_else(|| self.body(name, Shape::Line));
        self.put(name, &body, "ADDED", Shape::Line);
    }

    /// Writes the bookmark that ends the initial events.
    pub(crate) fn end_initial_events(&mut self) {
        self.write(
            b"{\"type\":\"BOOKMARK\",\"object\":{\"kind\":\"Pod\",\"apiVersion\":\"v1\",\"metadata\":{\"resourceVersion\":\"7\",\
              \"annotations\":{\"k8s.io/initial-events-end\":\"true\"}}}}\n",
        );
    }

    /// Deletes from the truth all objects that the writer has not confirmed.
    pub(crate) fn delete_unconfirmed(&mut self) {
        for name in std::mem::take(&mut self.unconfirmed) {
            self.objects.remove(&name);
        }
        self.truth.becomes(self.objects.clone());
    }

    /// Writes a change that every client can wait for.
    pub(crate) fn mark(&mut self) {
        let body = self.body(MARKER, Shape::Line);
        self.put(MARKER, &body, "MODIFIED", Shape::Line);
    }

    pub(crate) fn piece(&mut self, piece: &Piece) {
        match *piece {
            Piece::Put { object, is_added, is_new, shape } => {
                let name = format!("o{object}");
                let known = self.objects.get(&name).filter(|_| !is_new).cloned();
                let body = known.unwrap_or_else(|| self.body(&name, shape));
                self.put(&name, &body, if is_added { "ADDED" } else { "MODIFIED" }, shape);
            }
            Piece::Delete { object, shape } => {
                let name = format!("o{object}");
                self.objects.remove(&name);
                self.unconfirmed.remove(&name);
                self.truth.becomes(self.objects.clone());
                let body = self.body(&name, shape);
                self.event("DELETED", &body, shape);
            }
            Piece::Bookmark => self.write(b"{\"type\":\"BOOKMARK\",\"object\":{\"kind\":\"Pod\"}}\n"),
            Piece::Error => self.error(),
            Piece::Garbage(garbage) => self.garbage(garbage),
            Piece::Torn(percent) => {
                let text = self.torn(percent, true);
                self.write(text.as_bytes());
                self.write(b"\n");
            }
            Piece::Pause(milliseconds) => pause(Duration::from_millis(milliseconds)),
            Piece::Quiet => self.mark(),
        }
    }

    /// Writes the ERROR of an API server whose watch has expired.
    pub(crate) fn error(&mut self) {
        self.unconfirmed = self.objects.keys().cloned().collect();
        self.write(
            b"{\"type\":\"ERROR\",\"object\":{\"kind\":\"Status\",\"message\":\"too old\",\"reason\":\"Expired\",\"code\":410}}\n",
        );
        if let Some(open) = &mut self.writer {
            // The writer begins again.
            open.longest_gap = Duration::ZERO;
        }
    }

    /// Writes the beginning of an event.
    pub(crate) fn tear(&mut self, percent: usize) {
        let text = self.torn(percent, false);
        self.write(text.as_bytes());
    }

    /// Returns the beginning of an event. With `is_followed` it does not end where a value may begin: there it would form one
    /// event with the next line, as documented.
    fn torn(&mut self, percent: usize, is_followed: bool) -> String {
        let body = self.body("torn", Shape::Line);
        let event = format!("{{\"type\":\"ADDED\",\"object\":{body}}}");
        let mut cut = (event.len() * percent / 100).clamp(1, event.len() - 1);
        while is_followed && cut > 1 && event[..cut].ends_with([':', '[', ',']) {
            cut -= 1;
        }
        event[..cut].to_owned()
    }

    pub(crate) fn garbage(&mut self, garbage: Garbage) {
        let line: Vec<u8> = match garbage {
            Garbage::Text => b"Error from server (NotFound): pods not found".to_vec(),
            Garbage::Binary => (0..=255).filter(|byte| *byte != b'\n' && *byte != b'{').cycle().take(600).collect(),
            Garbage::List => br#"["ADDED",{"metadata":{"name":"o1"}}]"#.to_vec(),
            Garbage::NoType => br#"{"kind":"Pod","metadata":{"name":"o1"}}"#.to_vec(),
            Garbage::UnknownType => br#"{"type":"PATCHED","object":{"metadata":{"name":"o1"}}}"#.to_vec(),
            Garbage::NoName => br#"{"type":"ADDED","object":{"metadata":{"labels":{"name":"o1"}}}}"#.to_vec(),
            Garbage::NotUtf8 => {
                b"{\"type\":\"ADDED\",\"object\":{\"metadata\":{\"name\":\"o1\"},\"x\":\"\xff\xfe\"}}".to_vec()
            }
            Garbage::Deep => {
                [b"{\"type\":\"ADDED\",\"object\":".to_vec(), vec![b'['; 100_000], b"1}".to_vec()].concat()
            }
            Garbage::Huge => {
                let filler = "x".repeat(TOO_LARGE);
                format!(r#"{{"type":"ADDED","object":{{"metadata":{{"name":"o1"}},"x":"{filler}"}}}}"#).into_bytes()
            }
        };
        // On a line of its own, after any text.
        self.write(b"\n");
        self.write_at_once(&line);
        self.write(b"\n");
    }

    fn put(&mut self, name: &str, body: &str, event_type: &str, shape: Shape) {
        self.objects.insert(name.to_owned(), body.to_owned());
        self.unconfirmed.remove(name);
        self.truth.becomes(self.objects.clone());
        self.event(event_type, body, shape);
    }

    fn event(&mut self, event_type: &str, body: &str, shape: Shape) {
        let text = match shape {
            Shape::Line => format!("{{\"type\":\"{event_type}\",\"object\":{body}}}\n"),
            Shape::Joined => format!("{{\"type\":\"{event_type}\",\"object\":{body}}}"),
            Shape::Pretty => format!("{{\n    \"type\": \"{event_type}\",\n    \"object\": {body}\n}}\n"),
        };
        self.write(text.as_bytes());
    }

    /// Returns a body that no object had before.
    fn body(&mut self, name: &str, shape: Shape) -> String {
        self.next_value += 1;
        let value = self.next_value;
        match shape {
            Shape::Line | Shape::Joined => {
                format!(
                    r#"{{"kind":"Pod","metadata":{{"name":"{name}"}},"text":"}}]\"{{","list":[1,[]],"value":{value}}}"#
                )
            }
            Shape::Pretty => format!(
                "{{\n        \"kind\": \"Pod\",\n        \"metadata\": {{\n            \"name\": \"{name}\"\n        }},\n        \
                 \"value\": {value}\n    }}"
            ),
        }
    }

    /// Writes bytes in pieces, as the writer's pace cuts them.
    fn write(&mut self, bytes: &[u8]) {
        let Some(open) = &mut self.writer else { return };
        let mut rest = bytes;
        while !rest.is_empty() {
            let size = open.pace.sizes[open.turn % open.pace.sizes.len()].min(rest.len());
            open.turn += 1;
            open.longest_gap = open.longest_gap.max(open.last_write.elapsed());
            open.file.write_all(&rest[..size]).unwrap();
            open.last_write = Instant::now();
            rest = &rest[size..];
            if open.pace.gap > 0 && !rest.is_empty() {
                pause(Duration::from_micros(open.pace.gap));
            }
        }
    }

    /// Writes many bytes at once, regardless of the pace.
    fn write_at_once(&mut self, bytes: &[u8]) {
        if bytes.len() < 4096 {
            return self.write(bytes);
        }
        let Some(open) = &mut self.writer else { return };
        open.file.write_all(bytes).unwrap();
        open.last_write = Instant::now();
    }
}
