//! Fuzz check of framing: the events are the same wherever the bytes are cut, and those that `serde_json` finds.

use serde::de::IgnoredAny;
use serde_json::{Deserializer, value::RawValue};

use super::{
    decode::{StreamEvent, decode},
    framing::{Found, Framer, MAX_DEPTH, MAX_EVENT_BYTES, Position},
};
use crate::{
    client::{Update, WatchEventEncoder},
    model::{EventType, Object, ResourceVersion},
    proto::{self, PayloadFormat, pb},
};

/// Finds the events of a stream that comes in these pieces, in each way.
pub(crate) fn events(data: &[u8], ways: &[Vec<&[u8]>]) {
    let found = frames_by_lines(data);
    for pieces in ways {
        assert_eq!(frames(pieces.iter().copied()), found);
    }
    if let Some(expected) = expected(data) {
        assert_eq!(found, expected);
    }
    for_each([data], |framer, found| {
        if let Found::Event(Position { offset, .. }) = found {
            let (event, at) = (framer.event(), offset as usize);
            assert_eq!(data.get(at..at + event.len()), Some(event), "its bytes are those at its place");
            check_decoded(event);
        }
    });
}

/// Returns the results for the pieces, as text.
pub(super) fn frames<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Vec<String> {
    let mut all = Vec::new();
    let cut = for_each(pieces, |framer, found| all.push(words(framer, found)));
    all.extend(cut.map(cut_at));
    all
}

/// Returns the results for one piece, accepting the lines that are JSON without a scan.
pub(super) fn frames_by_lines(bytes: &[u8]) -> Vec<String> {
    let (mut framer, mut all, mut rest) = (Framer::new(), Vec::new(), bytes);
    while !rest.is_empty() {
        if let Some(line) = framer.line(rest)
            && serde_json::from_slice::<IgnoredAny>(line).is_ok()
        {
            let (used, begin) = framer.pass(line);
            rest = &rest[used..];
            all.push(format!("{} {}", place(begin), String::from_utf8_lossy(line.trim_ascii_end())));
            continue;
        }
        let (used, found) = framer.feed(rest);
        rest = &rest[used..];
        all.extend(found.map(|found| words(&framer, found)));
    }
    all.extend(framer.end().map(cut_at));
    all
}

/// Describes a result: an event by its text, any other by its position.
fn words(framer: &Framer, found: Found) -> String {
    match found {
        Found::Event(begin) => format!("{} {}", place(begin), String::from_utf8_lossy(framer.event())),
        Found::TooLarge(begin) => format!("{} too large", place(begin)),
        Found::TooDeep(begin) => format!("{} too deep", place(begin)),
        Found::Garbage(begin) => format!("{} garbage", place(begin)),
        Found::Broken(begin, end) => format!("{} broken at {}", place(begin), place(end)),
    }
}

fn cut_at(begin: Position) -> String {
    format!("{} cut", place(begin))
}

fn place(Position { line, offset }: Position) -> String {
    format!("{line}:{offset}")
}

/// Checks that decoding does not depend on the whitespace of an event.
fn check_decoded(event: &[u8]) {
    let version = ResourceVersion::decimal(7);
    let spaced = [b"{ ", &event[1..]].concat();
    let decoded = decode(event, &version);
    assert_eq!(decoded, decode(&spaced, &version));
    match decoded {
        Ok(StreamEvent::Change(event_type, object)) => check_recorded(event_type, &object),
        Ok(_) => {}
        Err(problem) => assert!(!problem.contains(char::is_control) && problem.len() <= 4 * 400, "{problem}"),
    }
}

/// Checks that `informerd record` writes an event that is decoded to the same object, without the line breaks of its body.
fn check_recorded(event_type: EventType, object: &Object) {
    let update = |object: &Object| Update::Event {
        event_type: proto::event_type(event_type),
        cause: pb::Cause::Unspecified,
        object: proto::object(object, object.version(), PayloadFormat::Raw),
        resource_version: object.version().to_string(),
    };
    let written = |object: &Object| {
        let mut line = Vec::new();
        WatchEventEncoder::new().update(&update(object), &mut line);
        line
    };
    let line = written(object);
    assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1));
    let read = match decode(&line, object.version()) {
        Ok(StreamEvent::Change(read_type, read)) if read_type == event_type => read,
        other => panic!("{other:?} of {}", line.escape_ascii()),
    };
    let is_json = object.json().is_some();
    let without =
        |body: &[u8]| body.iter().copied().filter(|byte| !is_json || !b"\r\n".contains(byte)).collect::<Vec<_>>();
    assert_eq!((read.key(), read.uid(), read.media_type()), (object.key(), object.uid(), object.media_type()));
    assert_eq!(without(read.body()), without(object.body()));
    assert_eq!(written(&read), line, "again");
}

/// Returns the events of a stream that is JSON from end to end.
fn expected(data: &[u8]) -> Option<Vec<String>> {
    // Deeper nesting than events may have takes more bytes.
    let text = str::from_utf8(data).ok().filter(|text| text.len() < 2 * MAX_DEPTH)?;
    let events = Deserializer::from_str(text).into_iter::<&RawValue>();
    let words = |event: &str| {
        let offset = event.as_ptr().addr() - text.as_ptr().addr();
        format!("{}:{offset} {event}", 1 + text[..offset].matches('\n').count())
    };
    events.map(|event| Some(event.ok()?.get()).filter(|event| event.starts_with('{')).map(words)).collect()
}

/// Calls `then` for each result, and returns the start of the event that is cut off at the end.
fn for_each<'a>(pieces: impl IntoIterator<Item = &'a [u8]>, mut then: impl FnMut(&Framer, Found)) -> Option<Position> {
    let mut framer = Framer::new();
    for piece in pieces {
        let mut rest = piece;
        while !rest.is_empty() {
            let (used, found) = framer.feed(rest);
            assert!(framer.event().len() <= MAX_EVENT_BYTES);
            rest = &rest[used..];
            if let Some(found) = found {
                then(&framer, found);
            }
        }
    }
    framer.end()
}
