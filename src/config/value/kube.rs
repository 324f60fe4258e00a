//! Values of the keys and the flag of a `kube` source.

use serde_json::Value;

use super::{ValueError, checked, found, list_of, quote, string, text};
use crate::model::{FieldCut, LabelSelector, Path};

/// Longest DNS label and longest DNS subdomain, in bytes.
const MAX_LABEL_BYTES: usize = 63;
const MAX_GROUP_BYTES: usize = 253;
/// Most namespaces of a source; each has a watch of its own.
const MAX_NAMESPACES: usize = 100;

pub(crate) fn field_paths(value: &Value) -> Result<FieldCut, ValueError> {
    let expected = || {
        ValueError::new(format!("expected a list of paths such as [metadata.managedFields], found {}", found(value)))
    };
    let mut paths = Vec::new();
    for path in value.as_array().ok_or_else(expected)? {
        let path = Path::parse(text(path)?);
        paths.push(path.map_err(|error| ValueError::new(format!("{error}; an example: metadata.managedFields")))?);
    }
    FieldCut::new(paths).map_err(|error| ValueError::new(error.to_string()))
}

pub(crate) fn namespaces(value: &Value) -> Result<Vec<String>, ValueError> {
    let name = checked(string, |name| check(is_label(name), "a namespace", name));
    let names = list_of(value, MAX_NAMESPACES, "namespaces such as [shop, stock]", name)?;
    match names.iter().enumerate().find(|(at, name)| names[..*at].contains(name)) {
        Some((_, again)) => Err(ValueError::new(format!("expected each namespace once, found {} again", quote(again)))),
        None => Ok(names),
    }
}

/// Reads `auto` or `opaque`.
pub(crate) fn auto_or_opaque(value: &Value) -> Result<bool, ValueError> {
    match text(value)? {
        "auto" => Ok(false),
        "opaque" => Ok(true),
        other => Err(ValueError::new(format!("expected auto or opaque, found {}", quote(other)))),
    }
}

pub(crate) fn check_group(text: &str) -> Result<(), ValueError> {
    let is_group = text.len() <= MAX_GROUP_BYTES && text.split('.').all(is_label);
    check(is_group || text.is_empty(), "an API group such as apps, or \"\" for the core", text)
}

pub(crate) fn check_version(text: &str) -> Result<(), ValueError> {
    check(is_label(text), "a version of an API such as v1", text)
}

pub(crate) fn check_plural(text: &str) -> Result<(), ValueError> {
    check(is_label(text), "the plural name of a kind, as in API paths, such as pods", text)
}

/// Checks `PLURAL` or `PLURAL.GROUP`, as kubectl writes it.
pub(crate) fn check_kind_name(text: &str) -> Result<(), ValueError> {
    let (plural, group) = text.split_once('.').unwrap_or((text, "apps"));
    let is_good = is_label(plural) && !group.is_empty() && check_group(group).is_ok();
    check(is_good, "a kind such as pods or deployments.apps", text)
}

pub(crate) fn check_namespace(text: &str) -> Result<(), ValueError> {
    check(is_label(text) || text.is_empty(), "one namespace, or \"\" for all", text)
}

pub(crate) fn check_namespace_selector(text: &str) -> Result<(), ValueError> {
    check(!text.trim().is_empty(), "a label selector such as team=shop", text)?;
    check_label_selector(text)
}

pub(crate) fn check_label_selector(text: &str) -> Result<(), ValueError> {
    LabelSelector::parse(text).map(drop).map_err(|error| ValueError::new(error.to_string()))
}

fn check(is_good: bool, what: &str, text: &str) -> Result<(), ValueError> {
    if is_good { Ok(()) } else { Err(ValueError::new(format!("expected {what}, found {}", quote(text)))) }
}

fn is_label(text: &str) -> bool {
    let edge = |b: Option<&u8>| b.is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    let bytes = text.as_bytes();
    let is_inner = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit() || *b == b'-';
    bytes.len() <= MAX_LABEL_BYTES && edge(bytes.first()) && edge(bytes.last()) && bytes.iter().all(is_inner)
}
