//! Configuration file: its bytes parsed to a map of keys, some of which may be unknown.

use std::{collections::BTreeSet, env, io::ErrorKind, path::Path};

use serde_json::{Map, Value};
use serde_saphyr::{Error, MessageFormatter, Options, UserMessageFormatter};

use super::{
    error::{ConfigErrors, join},
    keys,
    value::{found, quote},
    variables,
};
use crate::net::small_file::read_at_most;

/// Largest file, enough for thousands of resources. The limits below bound the repetitions by aliases.
const MAX_FILE_BYTES: usize = 1 << 20;

/// Greatest depth of the YAML; the keys are at most 7 deep.
const MAX_DEPTH: usize = 32;

/// Most nodes of the YAML; a file of 1 MiB has fewer, and only aliases can add more.
const MAX_NODES: usize = 1 << 20;

/// Most nodes that aliases repeat.
const MAX_ALIASED_NODES: usize = 1 << 16;

/// Most bytes of text: four times the file's, because of aliases.
const MAX_TEXT_BYTES: usize = 4 * MAX_FILE_BYTES;

/// File with its keys.
#[derive(Debug, Default)]
pub(super) struct ConfigFile {
    pub(super) keys: Map<String, Value>,
    pub(super) bytes: Vec<u8>,
}

/// Reads the file; adds a problem for every unknown key, or for the file if it cannot be read.
pub(super) fn read(path: &Path, errors: &mut ConfigErrors) -> Option<ConfigFile> {
    let name = path.display().to_string();
    match read_at_most(path, MAX_FILE_BYTES as u64) {
        Ok(bytes) => {
            let mut keys = parse(&name, &bytes, errors)?;
            variables::expand(&mut keys, |name| env::var(name).ok(), errors);
            Some(ConfigFile { keys, bytes })
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            errors.add(&name, "no such file: set --config (or INFORMERD_CONFIG) to the path of a YAML file");
            None
        }
        Err(error) => {
            errors.add(&name, format!("cannot be read: {error}"));
            None
        }
    }
}

/// Returns the content of a regular file; `None` if it cannot be read. A pipe can be read only once.
pub(crate) fn content(path: &Path) -> Option<Vec<u8>> {
    path.is_file().then(|| read_at_most(path, MAX_FILE_BYTES as u64).ok()).flatten()
}

/// Returns the paths of the keys whose values differ in two files, in order.
pub(crate) fn changed_keys(one: &Map<String, Value>, other: &Map<String, Value>) -> Vec<String> {
    let mut changed = Vec::new();
    add_changed(&mut Vec::new(), one, other, &mut changed);
    changed
}

fn add_changed(
    path: &mut Vec<String>,
    one: &Map<String, Value>,
    other: &Map<String, Value>,
    changed: &mut Vec<String>,
) {
    let (mut names, none): (BTreeSet<&String>, _) = (one.keys().collect(), Map::new());
    names.extend(other.keys());
    for name in names {
        path.push(name.clone());
        match (one.get(name), other.get(name)) {
            (one, other) if one == other => {}
            (Some(Value::Object(one)), Some(Value::Object(other))) => add_changed(path, one, other, changed),
            (Some(Value::Object(section)), None) | (None, Some(Value::Object(section))) => {
                add_changed(path, section, &none, changed);
            }
            _ => changed.push(join(path)),
        }
        path.pop();
    }
}

pub(super) fn parse(name: &str, bytes: &[u8], errors: &mut ConfigErrors) -> Option<Map<String, Value>> {
    let document = match document(name, bytes) {
        Ok(Value::Null) => Map::new(),
        Ok(Value::Object(document)) => document,
        Ok(other) => {
            errors.add(
                name,
                format!("expected a map of keys such as `listen: 127.0.0.1:50051`, found {}", found(&other)),
            );
            return None;
        }
        Err((at, problem)) => {
            errors.add(&at, problem);
            return None;
        }
    };
    keys::check_known(&document, errors);
    Some(document)
}

/// Parses YAML, or JSON, within the limits of a file.
///
/// # Errors
///
/// The place, which begins with the name, and the problem.
pub(super) fn document(name: &str, bytes: &[u8]) -> Result<Value, (String, String)> {
    if bytes.len() > MAX_FILE_BYTES {
        return Err((name.to_owned(), "is larger than 1 MiB".to_owned()));
    }
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = bytes[..error.valid_up_to()].split(|b| *b == b'\n').count();
        (format!("{name}:{line}"), "is not UTF-8".to_owned())
    })?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    serde_saphyr::from_str_with_options(text, options()).map_err(|error| explain(name, error.without_snippet()))
}

pub(super) fn options() -> Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            // With 1, the error for a second document is the same as for one that is too large.
            max_documents: 2,
            max_depth: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_total_scalar_bytes: MAX_TEXT_BYTES,
            max_recorded_anchor_bytes: MAX_TEXT_BYTES,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_ALIASED_NODES },
        // The rule of YAML 1.2: a kind or name `no` is a text.
        strict_booleans: true,
        with_snippet: false,
    }
}

/// Returns the place and the problem, worded for the author of the file.
fn explain(name: &str, error: &Error) -> (String, String) {
    let at = match error.location() {
        Some(location) if location.line() > 0 => format!("{name}:{}:{}", location.line(), location.column()),
        _ => name.to_owned(),
    };
    let cause = match error {
        Error::AliasError { error, .. } => error,
        _ => error,
    };
    let problem = match cause {
        Error::MultipleDocuments { .. } => "second YAML document: a configuration has one".to_owned(),
        Error::DuplicateMappingKey { key: Some(key), .. } => {
            format!("duplicate key: {}", quote(key))
        }
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. } => {
            "is nested too deeply, or too large with its aliases expanded".to_owned()
        }
        _ => UserMessageFormatter.format_message(error).into_owned(),
    };
    (at, problem)
}

#[cfg(test)]
mod tests;
