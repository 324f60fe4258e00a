//! Naive implementations of functions of the model, as references for its results.

use std::{cmp::Ordering, collections::BTreeMap};

use serde_json::{Value, value::RawValue};

use crate::model::{Path, ResourceVersion};

/// Step of a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Step {
    Key(String),
    Index(usize),
    Every,
}

/// Reads a JSON text as a tree. A map with the key that `serde_json` reserves for raw values is not read as itself.
pub(super) fn tree(json: &[u8]) -> Option<Value> {
    let is_hidden = memchr::memmem::find(json, b"serde_json::private").is_some();
    serde_json::from_slice(json).ok().filter(|_| !is_hidden)
}

/// Parses the canonical text of a path.
pub(super) fn steps(path: &Path) -> Vec<Step> {
    let (mut steps, mut rest) = (Vec::new(), path.as_str());
    while !rest.is_empty() {
        let step;
        if let Some(quoted) = rest.strip_prefix("['") {
            let (mut key, mut chars) = (String::new(), quoted.char_indices());
            let end = loop {
                match chars.next().expect("a closing quote") {
                    (_, '\\') => key.extend(chars.next().map(|(_, escaped)| escaped)),
                    (at, '\'') => break at + 2,
                    (_, c) => key.push(c),
                }
            };
            (step, rest) = (Step::Key(key), &quoted[end..]);
        } else if let Some(bracket) = rest.strip_prefix('[') {
            let (inner, after) = bracket.split_once(']').expect("a closing bracket");
            (step, rest) = (inner.parse().map_or(Step::Every, Step::Index), after);
        } else {
            let plain = rest.strip_prefix('.').expect("a dot");
            let (key, after) = plain.split_at(plain.find(['.', '[']).unwrap_or(plain.len()));
            (step, rest) = (Step::Key(key.to_owned()), after);
        }
        steps.push(step);
    }
    steps
}

/// Returns the JSON texts that a path leads to.
pub(super) fn lookup<'a>(json: &'a str, steps: &[Step]) -> Vec<&'a str> {
    let Some((step, rest)) = steps.split_first() else { return vec![json] };
    let elements = || serde_json::from_str::<Vec<&'a RawValue>>(json).unwrap_or_default();
    let found: Vec<&RawValue> = match step {
        Step::Key(key) => serde_json::from_str::<BTreeMap<String, &'a RawValue>>(json)
            .ok()
            .and_then(|mut map| map.remove(key))
            .into_iter()
            .collect(),
        Step::Index(index) => elements().get(*index).copied().into_iter().collect(),
        Step::Every => elements(),
    };
    found.into_iter().flat_map(|value| lookup(value.get(), rest)).collect()
}

/// Returns the text of a scalar; none for null, a map and an array.
pub(super) fn scalar(json: &str) -> Option<String> {
    match json.as_bytes().first()? {
        b'"' => serde_json::from_str(json).ok(),
        b'{' | b'[' | b'n' => None,
        _ => Some(json.to_owned()),
    }
}

/// Checks that versions print as they were written, and are ordered as numbers: by length, then by digits.
pub(super) fn check_versions(text: &str) {
    let read =
        |text: &str| text.parse::<ResourceVersion>().ok().inspect(|version| assert_eq!(version.to_string(), text));
    let (one, other) = text.split_once('\n').unwrap_or((text, "18446744073709551616"));
    let (Some(version), Some(than)) = (read(one), read(other)) else { return };
    assert_eq!(version.previous().next() == version, version.number() > 0);
    let number = |text: &str| {
        let (lineage, digits) = text.split_once('.').unwrap_or(("", text));
        (lineage.to_owned(), digits.len(), digits.to_owned())
    };
    let (a, b) = (number(one), number(other));
    let expected = (a.0 == b.0).then(|| (a.1, &a.2).cmp(&(b.1, &b.2)));
    assert_eq!(version.partial_cmp(&than), expected);
    assert_eq!(expected == Some(Ordering::Equal), version == than);
}
