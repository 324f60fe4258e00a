//! Fields that a change has altered.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{
    table::{GREEN, RED, YELLOW},
    text::escape,
};
use crate::proto::pb;

/// Field whose value differs.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Difference {
    path: String,
    old: Option<String>,
    new: Option<String>,
}

/// Largest number of fields that are shown of one change.
const MAX_FIELDS: usize = 100;
/// Largest number of characters of a value.
const MAX_CHARS: usize = 120;
/// Fields that nearly every change alters.
const IGNORED: [&str; 2] = ["metadata.managedFields", "metadata.resourceVersion"];

/// Returns a line for each field that differs between two states of an object: `~` changed, `+` added, `-` removed. Elements of arrays
/// are compared by their index.
pub(crate) fn lines(old: &pb::Object, new: &pb::Object, colors: bool) -> String {
    let mut differences = Vec::new();
    compare("", &value(old), &value(new), &mut differences);
    let mut out = String::new();
    for Difference { path, old, new } in differences.iter().take(MAX_FIELDS) {
        let (style, text) = match (old, new) {
            (Some(old), Some(new)) => (YELLOW, format!("~ {path}: {old} → {new}")),
            (None, Some(new)) => (GREEN, format!("+ {path}: {new}")),
            (Some(old), None) => (RED, format!("- {path}: {old}")),
            (None, None) => continue,
        };
        let text = escape(&text).into_owned();
        let line = if colors { format!("{}{text}{}", style.render(), style.render_reset()) } else { text };
        out.extend(["  ", &*line, "\n"]);
    }
    if let more @ 1.. = differences.len().saturating_sub(MAX_FIELDS) {
        out.extend(["  and ", &*more.to_string(), " more fields\n"]);
    }
    out
}

/// Returns the body; a text if it is not JSON.
fn value(object: &pb::Object) -> Value {
    match &object.body {
        Some(pb::object::Body::Raw(raw)) => {
            serde_json::from_slice(raw).unwrap_or_else(|_| String::from_utf8_lossy(raw).into())
        }
        _ => Value::Null,
    }
}

fn compare(path: &str, old: &Value, new: &Value, found: &mut Vec<Difference>) {
    if old == new || IGNORED.contains(&path) {
        return;
    }
    match (old, new) {
        (Value::Object(old), Value::Object(new)) => {
            let keys: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
            for key in keys {
                let escaped = key.replace('.', "\\.");
                let path = if path.is_empty() { escaped } else { format!("{path}.{escaped}") };
                compare_parts(&path, old.get(key), new.get(key), found);
            }
        }
        (Value::Array(old), Value::Array(new)) => {
            for index in 0..old.len().max(new.len()) {
                compare_parts(&format!("{path}[{index}]"), old.get(index), new.get(index), found);
            }
        }
        _ => found.push(Difference { path: shown_path(path), old: Some(shown(old)), new: Some(shown(new)) }),
    }
}

fn compare_parts(path: &str, old: Option<&Value>, new: Option<&Value>, found: &mut Vec<Difference>) {
    match (old, new) {
        (Some(old), Some(new)) => compare(path, old, new, found),
        (old, new) if !IGNORED.contains(&path) => {
            found.push(Difference { path: shown_path(path), old: old.map(shown), new: new.map(shown) });
        }
        _ => {}
    }
}

fn shown_path(path: &str) -> String {
    if path.is_empty() { "(the whole value)".to_owned() } else { path.to_owned() }
}

/// Returns the JSON of a value, cut off if it is long.
fn shown(value: &Value) -> String {
    excerpt(&value.to_string(), MAX_CHARS)
}

/// Returns at most this many characters of a text.
pub(crate) fn excerpt(text: &str, max_chars: usize) -> String {
    match text.char_indices().nth(max_chars) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::print::tests::object;

    #[test]
    fn each_field_that_differs_has_a_line() {
        let old = object(
            r#"{"metadata":{"name":"a","resourceVersion":"1","labels":{"app.io/x":"1"}},"spec":{"replicas":1,"old":[1,2]}}"#,
        );
        let new = object(
            r#"{"metadata":{"name":"a","resourceVersion":"2","labels":{"app.io/x":"2"}},"spec":{"replicas":3,"old":[1],"new":{"a":"b"}}}"#,
        );
        let expected = "  ~ metadata.labels.app\\.io/x: \"1\" → \"2\"\n  + spec.new: {\"a\":\"b\"}\n  - spec.old[1]: 2\n  ~ spec.replicas: 1 → 3\n";
        assert_eq!(lines(&old, &new, false), expected);
        assert_eq!(lines(&old, &old, false), "");
        assert!(lines(&old, &new, true).contains("\u{1b}[32m+ spec.new"));
    }

    #[test]
    fn other_bodies_are_compared_as_a_whole() {
        let text = |text: &'static [u8]| pb::Object {
            body: Some(pb::object::Body::Raw(bytes::Bytes::from_static(text))),
            ..pb::Object::default()
        };
        assert_eq!(lines(&text(b"a\n"), &text(b"b"), false), "  ~ (the whole value): \"a\\n\" → \"b\"\n");
        let long = object(&format!(r#"{{"a":"{}"}}"#, "x".repeat(1000)));
        let line = lines(&object("{}"), &long, false);
        assert!(line.ends_with("…\n") && line.chars().count() < 140, "{line}");
    }

    #[test]
    fn the_number_of_lines_is_limited() {
        let many: serde_json::Map<String, Value> = (0..150).map(|n| (format!("k{n:03}"), n.into())).collect();
        let all = lines(&object("{}"), &object(&Value::from(many).to_string()), false);
        assert!(all.ends_with("  and 50 more fields\n") && all.lines().count() == 101, "{all}");
    }
}
