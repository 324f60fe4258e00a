//! Selectors: the printed form parses to the same selector, and describes the objects that it selects.

use std::collections::{BTreeMap, BTreeSet};

use super::{check_error, naive};
use crate::model::{FieldSelector, LabelSelector, Object, Path, SyntaxError};

/// Largest normal form that is accepted, in bytes.
const MAX_BYTES: usize = 8 << 10;
const MAX_ERROR_BYTES: usize = 512;

/// Requirement of a field selector: the path, true if the value has to be equal, and the value.
type Comparison = (String, bool, String);

/// Checks a label selector on an object.
pub(super) fn labels(text: &str, object: &Object) {
    let parsed = LabelSelector::parse(text);
    let Some((selector, printed)) = printed(text, parsed, LabelSelector::parse) else { return };
    let labels: BTreeMap<&str, &str> = object.labels().iter().collect();
    let is_selected = requirements(&printed).into_iter().all(|requirement| is_met(requirement, &labels));
    assert_eq!(selector.matches(object.labels()), is_selected, "{printed}");
    assert!(is_selected || !selector.is_empty());
    if let Some((key, values)) = selector.equality().filter(|_| is_selected) {
        assert!(values.iter().any(|value| labels.get(key) == Some(&&**value)), "{printed}: {key} is needed");
    }
}

/// Checks a field selector on an object.
pub(super) fn fields(text: &str, object: &Object) {
    let parsed = FieldSelector::parse(text);
    let Some((selector, printed)) = printed(text, parsed, FieldSelector::parse) else { return };
    let comparisons = comparisons(&printed);
    if !text.contains(['\'', '"', '[', '{', '\\']) {
        let terms = text.split(',').filter(|term| !term.is_empty()).map(plain_term);
        assert_eq!(terms.collect::<BTreeSet<_>>(), comparisons, "{printed}");
    }
    let body = str::from_utf8(object.body()).expect("JSON is UTF-8");
    let is_selected = selector.matches(object);
    for (path, value) in selector.equality().filter(|_| is_selected) {
        assert_eq!(path.scalar(object.body()).as_deref(), Some(value), "{path} is needed");
    }
    assert!(!is_selected || selector.name().is_none_or(|name| name == object.key().name()));
    assert!(!is_selected || selector.namespace().is_none_or(|namespace| namespace == object.key().namespace()));
    if naive::tree(object.body()).is_some() {
        let is_met = |(path, is_equal, value): &Comparison| (field(object, body, path) == *value) == *is_equal;
        assert_eq!(is_selected, comparisons.iter().all(is_met), "{printed}");
    }
}

/// Returns a selector with its normal form, which parses to the same; checks the error of one that does not parse.
fn printed<S: PartialEq + std::fmt::Debug + std::fmt::Display>(
    text: &str,
    parsed: Result<S, SyntaxError>,
    parse: impl Fn(&str) -> Result<S, SyntaxError>,
) -> Option<(S, String)> {
    match parsed {
        Ok(selector) => {
            let printed = selector.to_string();
            assert!(printed.len() <= MAX_BYTES);
            assert_eq!(parse(&printed).as_ref(), Ok(&selector), "{printed}");
            Some((selector, printed))
        }
        Err(error) => {
            check_error(text, &error, MAX_ERROR_BYTES);
            None
        }
    }
}

/// Splits the normal form of a label selector at its commas outside of parentheses.
fn requirements(printed: &str) -> Vec<&str> {
    let (mut found, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, byte) in printed.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth -= 1,
            b',' if depth == 0 => {
                found.push(&printed[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    found.push(&printed[start..]);
    found.retain(|requirement| !requirement.is_empty());
    found
}

fn is_met(requirement: &str, labels: &BTreeMap<&str, &str>) -> bool {
    let is_in = |key: &str, list: &str| {
        labels.get(key).is_some_and(|value| list.trim_end_matches(')').split(',').any(|listed| listed == *value))
    };
    let is = |key: &str, bound: &str, order: fn(&i64, &i64) -> bool| {
        let number = labels.get(key).and_then(|value| value.parse().ok());
        number.is_some_and(|number| order(&number, &bound.parse().expect("a number")))
    };
    if let Some(key) = requirement.strip_prefix('!') {
        !labels.contains_key(key)
    } else if let Some((key, list)) = requirement.split_once(" in (") {
        is_in(key, list)
    } else if let Some((key, list)) = requirement.split_once(" notin (") {
        !is_in(key, list)
    } else if let Some((key, value)) = requirement.split_once("!=") {
        labels.get(key) != Some(&value)
    } else if let Some((key, value)) = requirement.split_once('=') {
        labels.get(key) == Some(&value)
    } else if let Some((key, bound)) = requirement.split_once('>') {
        is(key, bound, i64::gt)
    } else if let Some((key, bound)) = requirement.split_once('<') {
        is(key, bound, i64::lt)
    } else {
        labels.contains_key(requirement)
    }
}

/// Reads the normal form of a field selector.
fn comparisons(printed: &str) -> BTreeSet<Comparison> {
    let (mut found, mut chars) = (BTreeSet::new(), printed.chars().peekable());
    while chars.peek().is_some() {
        let (mut path, mut is_quoted, mut is_equal) = (String::new(), false, true);
        loop {
            match chars.next().expect("an operator") {
                '!' if !is_quoted => is_equal = false,
                '=' if !is_quoted => break,
                c => {
                    is_quoted ^= c == '\'';
                    path.push(c);
                    path.extend(chars.next_if(|_| c == '\\'));
                }
            }
        }
        let mut value = String::new();
        loop {
            match chars.next() {
                Some('\\') => value.extend(chars.next()),
                Some(',') | None => break,
                Some(c) => value.push(c),
            }
        }
        found.insert((path, is_equal, value));
    }
    found
}

/// Parses a term without quotes and escapes, as apimachinery does.
fn plain_term(term: &str) -> Comparison {
    let (path, rest) = term.split_at(term.find(['=', '!']).expect("an operator"));
    let path = path.strip_prefix('.').unwrap_or(path).to_owned();
    match rest.strip_prefix("!=") {
        Some(value) => (path, false, value.to_owned()),
        None => (path, true, rest.strip_prefix("==").unwrap_or(&rest[1..]).to_owned()),
    }
}

/// Returns the text of a field; empty if it is missing.
fn field(object: &Object, body: &str, path: &str) -> String {
    match path {
        "metadata.name" => object.key().name().to_owned(),
        "metadata.namespace" => object.key().namespace().to_owned(),
        _ => {
            let path = Path::parse(path).expect("a path");
            let found = naive::lookup(body.trim(), &naive::steps(&path));
            found.first().and_then(|json| naive::scalar(json)).unwrap_or_default()
        }
    }
}
