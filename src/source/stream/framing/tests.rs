use proptest::{collection::vec, prelude::*, sample::Index};

use super::*;
use crate::source::stream::fuzzing::{frames, frames_by_lines};

fn framed(text: &str) -> Vec<String> {
    frames([text.as_bytes()])
}

#[test]
fn events_may_follow_each_other_in_any_way() {
    assert_eq!(framed(""), [""; 0]);
    assert_eq!(framed(" \r\n\t"), [""; 0]);
    assert_eq!(framed("{}{}\n{}\r\n {}"), ["1:0 {}", "1:2 {}", "2:5 {}", "3:10 {}"]);
    let pretty = "{\n    \"a\": [\n        1,\n        {}\n    ]\n}";
    assert_eq!(
        framed(&format!("{pretty}\n{pretty}")),
        [format!("1:0 {pretty}"), format!("7:{} {pretty}", pretty.len() + 1)]
    );
    assert_eq!(framed("\u{feff}{\"a\":1}"), ["1:3 {\"a\":1}"]);
}

#[test]
fn a_line_is_offered_where_an_event_may_begin() {
    let mut framer = Framer::new();
    assert_eq!(framer.line(b"{\"a\":1} \n{}"), Some(&b"{\"a\":1} "[..]));
    assert_eq!(framer.line(b" {}\n"), None, "white space is followed");
    assert_eq!(framer.line(b"{}"), None, "it may go on");
    assert_eq!(framer.pass(b"{}"), (3, Position { line: 1, offset: 0 }));
    assert_eq!(framer.pass(b"{} "), (4, Position { line: 2, offset: 3 }));
    framer.feed(b"{\n");
    assert_eq!(framer.line(b"{}\n"), None, "within an event");
    framer.end();
    framer.feed(b"nothing");
    assert_eq!(framer.line(b"{}\n"), None, "within what is none");
}

#[test]
fn brackets_and_quotes_in_strings_are_ignored() {
    for event in [
        r#"{"}{][":"\"}{\\"}"#,
        r#"{"a":"\\","b":["]",{"c":[]}]}"#,
        r#"{"é":"\u007d"}"#,
        r#"{ "a" : -1.5e+3 , "b" : null , "c" : [ true , [ ] , { } ] }"#,
    ] {
        assert_eq!(framed(&format!("{event}{event}")), [format!("1:0 {event}"), format!("1:{} {event}", event.len())]);
    }
}

/// The next event is not lost.
#[test]
fn after_garbage_the_next_line_that_begins_with_an_event_is_read() {
    let good = r#"{"a":1}"#;
    for (bad, found) in [
        ("error: You must be logged in\n", "1:0 garbage"),
        ("x {\"b\":2}\n", "1:0 garbage"),
        ("[{\"b\":2}]\n {\"c\":3}\n", "1:0 garbage"),
        ("}\n", "1:0 garbage"),
        ("\u{feff}\u{feff}\n", "1:3 garbage"),
        ("{\"b\":\"cut\n", "1:0 broken at 1:9"),
        ("{\"b\":2\n", "1:0 broken at 2:7"),
        ("{\n  \"b\": {\n    \"c\": tr\n", "1:0 broken at 4:23"),
        ("{\"b\":1]\n", "1:0 broken at 1:6"),
        ("{\"b\":2,\n", "1:0 broken at 2:8"),
        ("{\"b\":{\n", "1:0 broken at 2:7"),
        ("{\"b\":[{}]\n", "1:0 broken at 2:10"),
        ("{\"b\"\n", "1:0 broken at 2:5"),
        ("{ warning: 3 left\n", "1:0 broken at 2:18"),
        // What has its end is left to `decode`.
        ("{\"b\" 1}\n", "1:0 {\"b\" 1}"),
        ("{b:'c'}\n", "1:0 {b:'c'}"),
        ("{\"b\":\"\\\n\n", "1:0 broken at 1:7"),
    ] {
        let line = bad.bytes().filter(|byte| *byte == b'\n').count() + 1;
        let expected = [found.to_owned(), format!("{line}:{} {good}", bad.len())];
        assert_eq!(framed(&format!("{bad}{good}")), expected, "{bad:?}");
    }
    // An event may begin where a value may: the error is reported when the next event does not fit any more.
    let swallowed = format!("{{\"b\":\n{good}\n{good}\n{good}");
    assert_eq!(framed(&swallowed), ["1:0 broken at 3:14", "3:14 {\"a\":1}", "4:22 {\"a\":1}"]);
    assert_eq!(framed("never again {}"), ["1:0 garbage"], "told once");
}

#[test]
fn an_end_within_an_event_is_reported_and_the_next_bytes_begin_a_new_one() {
    let mut framer = Framer::new();
    assert_eq!(framer.feed(b"{\"a\":"), (5, None));
    assert_eq!(framer.end(), Some(Position { line: 1, offset: 0 }));
    assert_eq!(framer.end(), None);
    assert_eq!(framer.feed(b"x"), (1, Some(Found::Garbage(Position { line: 1, offset: 5 }))));
    assert_eq!(framer.end(), None, "garbage has been told");
    assert_eq!(framer.feed(b"{}"), (2, Some(Found::Event(Position { line: 1, offset: 6 }))));
    assert_eq!(framer.event(), b"{}");
}

#[test]
fn an_event_that_is_too_large_is_skipped_and_reported_once() {
    let text = |length: usize| format!(r#"{{"a":"{}"}}"#, "x".repeat(length - 8));
    let largest = text(MAX_EVENT_BYTES);
    let larger = text(MAX_EVENT_BYTES + 1);
    let huge = text(5 * MAX_EVENT_BYTES);
    let small = r#"{"b":1}"#;
    for piece in [1 << 20, 64 << 10, 7919] {
        let found = |all: String| frames(all.as_bytes().chunks(piece));
        assert_eq!(found(largest.clone()), [format!("1:0 {largest}")]);
        let told = "1:0 too large".to_owned();
        for large in [&larger, &huge, &huge[..huge.len() - 2].to_owned()] {
            assert_eq!(
                found(format!("{large}{small}\n{small}")),
                [told.clone(), format!("2:{} {small}", large.len() + 8)]
            );
        }
        assert_eq!(found(huge[..huge.len() - 2].to_owned()), [told]);
    }
    let mut framer = Framer::new();
    framer.feed(largest.as_bytes());
    framer.feed(b" ");
    assert!(framer.event.capacity() <= USUAL_EVENT_BYTES, "the memory is given back");
}

#[test]
fn the_depth_of_an_event_and_its_memory_are_bounded() {
    let deep = |levels: usize| format!("{{\"a\":{}{}}}\n", "[".repeat(levels - 1), "]".repeat(levels - 1));
    let small = r#"{"b":1}"#;
    let (deepest, deeper, huge) = (deep(MAX_DEPTH), deep(MAX_DEPTH + 1), deep(1 << 20));
    for piece in [1 << 20, 64 << 10, 7919] {
        let found = |event: &str| frames(format!("{event}{small}").as_bytes().chunks(piece));
        let last = |event: &str| format!("2:{} {small}", event.len());
        assert_eq!(found(&deepest), [format!("1:0 {}", deepest.trim_end()), last(&deepest)]);
        for event in [&deeper, &huge] {
            assert_eq!(found(event), ["1:0 too deep".to_owned(), last(event)]);
        }
    }
    // The depth is checked for complete lines as well.
    for event in [&deepest, &deeper] {
        assert_eq!(frames_by_lines(event.as_bytes()), frames([event.as_bytes()]));
    }
    // An event without an end that is too large as well.
    let mut framer = Framer::new();
    framer.feed(b"{\"a\":");
    let text = format!("{{\"a\":\"{}\",\"b\":", "x".repeat(MAX_EVENT_BYTES));
    for bytes in [vec![b'['; 1 << 20], b"\n".to_vec(), text.into_bytes(), vec![b'['; 1 << 20]] {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (used, _) = framer.feed(rest);
            rest = &rest[used..];
            assert!(framer.open.capacity() <= 2 * MAX_DEPTH, "{} brackets are remembered", framer.open.len());
        }
    }
}

fn any_part() -> impl Strategy<Value = Vec<u8>> {
    let value = prop_oneof![
        Just(r#"{"type":"ADDED","object":{"metadata":{"name":"a"}}}"#.to_owned()),
        Just("{\n    \"a\": [\n        \"é\\\"}\",\n        -1e5\n    ]\n}".to_owned()),
        Just("\n".to_owned()),
        Just(" ".to_owned()),
        "[{}\\[\\]\",:\\\\a0\n ]{0,12}",
    ];
    prop_oneof![6 => value.prop_map(String::into_bytes), 1 => vec(any::<u8>(), 0..8)]
}

proptest! {
    #![proptest_config(crate::property_config())]

    #[test]
    fn the_result_does_not_depend_on_how_the_bytes_are_split(parts in vec(any_part(), 0..8), cuts in vec(any::<Index>(), 0..12)) {
        let bytes = parts.concat();
        let whole = frames([&bytes[..]]);
        prop_assert_eq!(&frames(bytes.chunks(1)), &whole);
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
        cuts.extend([0, bytes.len()]);
        cuts.sort_unstable();
        prop_assert_eq!(&frames(cuts.windows(2).map(|cut| &bytes[cut[0]..cut[1]])), &whole);
    }

    #[test]
    fn framing_by_lines_equals_framing_by_bytes(parts in vec(any_part(), 0..12)) {
        let bytes = parts.concat();
        prop_assert_eq!(frames_by_lines(&bytes), frames([&bytes[..]]));
    }

    /// The framer finds every event that serde parses, and the events after a complete one.
    #[test]
    fn every_json_map_is_an_event(parts in vec(any_part(), 0..8)) {
        let bytes = parts.concat();
        if let Ok(text) = std::str::from_utf8(&bytes)
            && let Ok(value) = serde_json::from_str::<serde_json::Map<String, serde_json::Value>>(text)
        {
            let (found, event) = (framed(text), serde_json::Value::Object(value));
            prop_assert_eq!(found.len(), 1);
            let (_, found) = found[0].split_once(' ').unwrap();
            prop_assert_eq!(serde_json::from_str::<serde_json::Value>(found).unwrap(), event);
        }
    }
}
