//! Values of keys and flags: their syntax, and errors that show the expected form.

pub(super) mod choices;
pub(super) mod kube;
pub(super) mod kubernetes;

use std::{fmt::Display, net::IpAddr, path::PathBuf, time::Duration};

use ipnet::IpNet;
use serde_json::Value;

use crate::{
    auth::Rules,
    model::{Expression, FieldSelector, IndexFunc, IndexMatch, LabelSelector, Path, Shard, SyntaxError, View},
    net::without_credentials,
    source::stream::StreamPath,
};

/// Error for a value without the form of its key: the expected form, and the value found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ValueError(String);

/// Longest duration that can be configured: one year. Adding it to any instant does not overflow.
pub const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 3600);

const MICROSECONDS: [(&str, u64); 5] =
    [("us", 1), ("ms", 1000), ("s", 1_000_000), ("m", 60 * 1_000_000), ("h", 3600 * 1_000_000)];
const BYTES: [(&str, u64); 9] = [
    ("", 1),
    ("Ki", 1 << 10),
    ("KiB", 1 << 10),
    ("Mi", 1 << 20),
    ("MiB", 1 << 20),
    ("Gi", 1 << 30),
    ("GiB", 1 << 30),
    ("Ti", 1 << 40),
    ("TiB", 1 << 40),
];

/// Expected form of the path of a directory.
const DIRECTORY: &str = "the path of a directory such as ./manifests";

/// Longest DNS subdomain, which names of resources and groups in Kubernetes are.
const MAX_NAME_BYTES: usize = 253;

/// Longest DNS label, which the lowercase of a kind is.
const MAX_KIND_BYTES: usize = 63;

/// Most names of a list.
const MAX_NAMES: usize = 32;

/// Longest excerpt of a user's text that an error quotes.
const MAX_QUOTE_CHARS: usize = 60;

// === impl ValueError ===

impl ValueError {
    pub(super) fn new(message: impl Into<String>) -> Self {
        Self(message.into())
    }

    fn expected(what: &str, found: impl Display) -> Self {
        Self(format!("expected {what}, found {found}"))
    }
}

/// Parses a duration: numbers with the units `h`, `m`, `s`, `ms` and `us`, the largest first, such as `1m30s`; or `0`.
///
/// # Errors
///
/// Fails if the text has another form, or the duration is longer than [`MAX_DURATION`].
pub fn parse_duration(text: &str) -> Result<Duration, ValueError> {
    let fail = || ValueError::expected("a duration such as 500ms, 30s, 1m30s or 2h", quote(text));
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    let (mut total, mut rest, mut last) = (0_u64, text, u64::MAX);
    loop {
        let (digits, tail) = split_at(rest, |c| !c.is_ascii_digit());
        let (unit, tail) = split_at(tail, |c| c.is_ascii_digit());
        let unit = MICROSECONDS.iter().find(|(name, _)| *name == unit).map(|(_, unit)| *unit);
        let Some(unit) = unit.filter(|unit| *unit < last && !digits.is_empty()) else {
            return Err(fail());
        };
        // A number that overflows is more than a year.
        let part = digits.parse::<u64>().unwrap_or(u64::MAX).saturating_mul(unit);
        total = total.saturating_add(part);
        (rest, last) = (tail, unit);
        if rest.is_empty() {
            break;
        }
    }
    Some(Duration::from_micros(total))
        .filter(|duration| *duration <= MAX_DURATION)
        .ok_or_else(|| ValueError::expected("a duration of at most 8760h (one year)", quote(text)))
}

/// Parses a size in bytes: a number, alone or with one of the units `KiB`, `MiB`, `GiB` and `TiB`, whose `B` is optional.
///
/// # Errors
///
/// Fails if the text has another form, or the size exceeds the address space.
pub fn parse_size(text: &str) -> Result<usize, ValueError> {
    let (digits, unit) = split_at(text, |c| !c.is_ascii_digit());
    let unit = BYTES.iter().find(|(name, _)| *name == unit).map(|(_, unit)| *unit);
    let Some(unit) = unit.filter(|_| !digits.is_empty()) else {
        return Err(ValueError::expected("a size such as 64KiB, 16MiB, 1GiB or a number of bytes", quote(text)));
    };
    let bytes = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes.and_then(|bytes| in_memory(bytes).ok()).ok_or_else(|| too_large(&quote(text)))
}

pub(super) fn duration(value: &Value) -> Result<Duration, ValueError> {
    match value {
        Value::String(text) => parse_duration(text),
        Value::Number(number) if number.as_u64() == Some(0) => Ok(Duration::ZERO),
        Value::Number(number) => Err(ValueError(format!(
            "expected a duration with its unit such as 500ms, 30s, 1m30s or 2h, found the number {number}"
        ))),
        _ => Err(ValueError::expected("a duration such as 500ms, 30s, 1m30s or 2h", found(value))),
    }
}

pub(super) fn positive_duration(value: &Value) -> Result<Duration, ValueError> {
    let duration = duration(value)?;
    if duration.is_zero() {
        return Err(ValueError::expected("a duration of more than 0, such as 500ms, 30s, 1m30s or 2h", found(value)));
    }
    Ok(duration)
}

/// Reads a value within bounds, which are written as in the file.
pub(super) fn within<T: PartialOrd>(
    form: &str,
    least: &str,
    most: &str,
    read: impl Fn(&Value) -> Result<T, ValueError>,
) -> impl Fn(&Value) -> Result<T, ValueError> {
    move |value| {
        let bounds = read(&written(least))?..=read(&written(most))?;
        match read(value) {
            Ok(good) if bounds.contains(&good) => Ok(good),
            // The error shows the form, which is obvious for an integer.
            Err(error) if form != "integer" => Err(error),
            _ => {
                let article = if form.starts_with('i') { "an" } else { "a" };
                Err(ValueError::expected(&format!("{article} {form} from {least} to {most}"), found(value)))
            }
        }
    }
}

/// Reads a value or `none`.
pub(super) fn or_none<T>(
    read: impl Fn(&Value) -> Result<T, ValueError>,
) -> impl Fn(&Value) -> Result<Option<T>, ValueError> {
    move |value| if value.as_str() == Some("none") { Ok(None) } else { read(value).map(Some) }
}

/// Reads a text that passes a check.
pub(super) fn checked(
    read: impl Fn(&Value) -> Result<String, ValueError>,
    check: impl Fn(&str) -> Result<(), ValueError>,
) -> impl Fn(&Value) -> Result<String, ValueError> {
    move |value| read(value).and_then(|text| check(&text).map(|()| text))
}

/// Parses a default or a bound of the table.
///
/// # Panics
///
/// If the text is not YAML. A test reads all of them.
pub(super) fn written(text: &str) -> Value {
    serde_saphyr::from_str(text).expect("YAML")
}

pub(super) fn size(value: &Value) -> Result<usize, ValueError> {
    match value {
        Value::String(text) => parse_size(text),
        Value::Number(number) if number.is_u64() => {
            number.as_u64().and_then(|bytes| in_memory(bytes).ok()).ok_or_else(|| too_large(&found(value)))
        }
        _ => Err(ValueError::expected("a size such as 64KiB, 16MiB, 1GiB or a number of bytes", found(value))),
    }
}

pub(super) fn positive_size(value: &Value) -> Result<usize, ValueError> {
    match size(value)? {
        0 => Err(ValueError::expected("a size of more than 0, such as 64KiB, 16MiB or 1GiB", found(value))),
        size => Ok(size),
    }
}

pub(super) fn count(value: &Value) -> Result<usize, ValueError> {
    let number = value.as_u64().ok_or_else(|| ValueError::expected("an unsigned integer", found(value)))?;
    in_memory(number).map_err(|()| too_large(&found(value)))
}

pub(super) fn positive_count(value: &Value) -> Result<usize, ValueError> {
    match count(value)? {
        0 => Err(ValueError::new("expected an unsigned integer of at least 1, found 0")),
        count => Ok(count),
    }
}

pub(super) fn integer<T: TryFrom<u64>>(value: &Value) -> Result<T, ValueError> {
    let number = value.as_u64().and_then(|number| T::try_from(number).ok());
    number.ok_or_else(|| ValueError::expected("an integer", found(value)))
}

pub(super) fn boolean(value: &Value) -> Result<bool, ValueError> {
    value.as_bool().ok_or_else(|| ValueError::expected("true or false", found(value)))
}

pub(super) fn text(value: &Value) -> Result<&str, ValueError> {
    value.as_str().ok_or_else(|| ValueError::expected("a string (in quotes, if it looks like a number)", found(value)))
}

pub(super) fn string(value: &Value) -> Result<String, ValueError> {
    text(value).map(str::to_owned)
}

/// Reads the values of an index: at least one.
pub(super) fn texts(value: &Value) -> Result<Vec<String>, ValueError> {
    list_of(value, IndexMatch::MAX_VALUES, "texts such as [node-a]", string)
}

/// Reads the paths of a view.
pub(super) fn view_paths(value: &Value) -> Result<Vec<String>, ValueError> {
    let list = value.as_array().filter(|list| !list.is_empty());
    let what = "a list of paths such as [spec.nodeName, \"status.podIPs[].ip\"]";
    let found = || if value.is_array() { "an empty list".to_owned() } else { found(value) };
    let check = |text: &str| View::parse(&[text], &[]).map(drop).map_err(|error| ValueError(error.to_string()));
    list.ok_or_else(|| ValueError::expected(what, found()))?.iter().map(checked(string, check)).collect()
}

/// Reads a list of names, none of them empty.
pub(super) fn names(value: &Value) -> Result<Vec<String>, ValueError> {
    names_such_as(value, "names such as [informerd]")
}

pub(super) fn host_names(value: &Value) -> Result<Vec<String>, ValueError> {
    names_such_as(value, "names such as [informerd.example]")
}

pub(super) fn view_names(value: &Value) -> Result<Vec<String>, ValueError> {
    names_such_as(value, "names such as [small]")
}

fn names_such_as(value: &Value, what: &str) -> Result<Vec<String>, ValueError> {
    list_of(value, MAX_NAMES, what, checked(string, check_not_empty))
}

pub(super) fn networks(value: &Value) -> Result<Vec<IpNet>, ValueError> {
    list_of(value, MAX_NAMES, "networks such as [10.0.0.0/8]", |value| {
        let text = text(value)?;
        let address = || text.parse().ok().map(|address: IpAddr| IpNet::from(address.to_canonical()));
        let parsed = text.parse().ok().map(|network: IpNet| network.trunc()).or_else(address);
        parsed.ok_or_else(|| ValueError::expected("an address or a network such as 10.0.0.0/8", quote(text)))
    })
}

/// Reads a list of at least one value.
pub(super) fn list_of<T>(
    value: &Value,
    most: usize,
    what: &str,
    read: impl Fn(&Value) -> Result<T, ValueError>,
) -> Result<Vec<T>, ValueError> {
    let list = value.as_array().filter(|list| (1..=most).contains(&list.len()));
    let found = || value.as_array().map_or(found(value), |list| list.len().to_string());
    let list = list.ok_or_else(|| ValueError::expected(&format!("a list of 1 to {most} {what}"), found()))?;
    list.iter().map(read).collect()
}

pub(super) fn check_not_empty(text: &str) -> Result<(), ValueError> {
    if text.is_empty() { Err(ValueError::expected("a name", quote(text))) } else { Ok(()) }
}

/// Reads a list of authorization rules.
pub(super) fn rules(value: &Value) -> Result<Rules, ValueError> {
    Rules::from_value(value).map_err(|error| ValueError(error.to_string()))
}

/// Reads the path of a directory.
pub(super) fn path(value: &Value) -> Result<PathBuf, ValueError> {
    parse_path(text(value)?, DIRECTORY)
}

/// Reads the path of a file with any content.
pub(super) fn file(value: &Value) -> Result<PathBuf, ValueError> {
    parse_path(text(value)?, "the path of a file")
}

/// Reads the path of a file; `None` for standard input.
pub(super) fn stream_path(value: &Value) -> Result<StreamPath, ValueError> {
    parse_stream_path(text(value)?)
}

fn parse_path(text: &str, what: &str) -> Result<PathBuf, ValueError> {
    if text.is_empty() || text.contains('\0') { Err(ValueError::expected(what, quote(text))) } else { Ok(text.into()) }
}

fn parse_stream_path(text: &str) -> Result<StreamPath, ValueError> {
    let path = parse_path(text, "the path of a file such as ./events.jsonl, or - for standard input")?;
    Ok(if text == "-" { StreamPath::Stdin } else { StreamPath::Path(path) })
}

pub(super) fn kind(value: &Value) -> Result<String, ValueError> {
    parse_kind(text(value)?)
}

fn parse_kind(text: &str) -> Result<String, ValueError> {
    let is_kind = text.len() <= MAX_KIND_BYTES
        && text.starts_with(|c: char| c.is_ascii_alphabetic())
        && text.bytes().all(|b| b.is_ascii_alphanumeric());
    if !is_kind {
        return Err(ValueError(format!(
            "expected a kind such as Pod (a letter, then at most {} letters and digits), found {}",
            MAX_KIND_BYTES - 1,
            quote(text)
        )));
    }
    Ok(text.to_owned())
}

pub(super) fn label_index(value: &Value) -> Result<IndexFunc, ValueError> {
    let key = text(value)?;
    let what = "a label key such as app or app.kubernetes.io/name";
    // With these characters alone, a whole selector is one key that must exist.
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./".contains(&b);
    if key.is_empty() || !key.bytes().all(is_plain) {
        return Err(ValueError::expected(what, quote(key)));
    }
    LabelSelector::parse(key).map_err(|error| ValueError(format!("expected {what}: {error}")))?;
    Ok(IndexFunc::Label(key.to_owned()))
}

pub(super) fn path_index(value: &Value) -> Result<IndexFunc, ValueError> {
    let path = Path::parse(text(value)?).map_err(|error| ValueError(format!("{error}; an example: .spec.nodeName")))?;
    Ok(IndexFunc::Path(path))
}

pub(super) fn expression(value: &Value) -> Result<Expression, ValueError> {
    let text = text(value)?;
    if !Expression::IS_SUPPORTED {
        return Err(ValueError::new("this informerd was built without expressions (cargo feature `cel`); use `path`"));
    }
    Expression::parse(text)
        .map_err(|error| ValueError(format!("{error}; an example: object.spec.containers.map(c, c.image)")))
}

pub(super) fn shard(value: &Value) -> Result<Shard, ValueError> {
    text(value)?.parse().map_err(|error: SyntaxError| ValueError(error.to_string()))
}

/// Checks an expression that selects objects. One that only this build cannot compile is checked where it is evaluated.
pub(super) fn check_expression(text: &str) -> Result<(), ValueError> {
    if text.is_empty() || !Expression::IS_SUPPORTED {
        return Ok(());
    }
    Expression::selecting(text).map(drop).map_err(|error| ValueError::new(error.to_string()))
}

pub(super) fn check_field_selector(text: &str) -> Result<(), ValueError> {
    FieldSelector::parse(text).map(drop).map_err(|error| ValueError::new(error.to_string()))
}

/// Checks the name of a resource.
pub(super) fn check_resource_name(name: &str) -> Result<(), ValueError> {
    let edge = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let is_name = name.len() <= MAX_NAME_BYTES
        && name.starts_with(edge)
        && name.ends_with(edge)
        && name.chars().all(|c| edge(c) || c == '-' || c == '.');
    if !is_name {
        return Err(ValueError(format!(
            "a resource name has at most {MAX_NAME_BYTES} lowercase letters, digits, '-' and '.', with a letter or \
             digit at both ends; found {}",
            quote(name)
        )));
    }
    Ok(())
}

/// Parses `NAME=DIR[@KIND]`. For an `@` in the path itself, a `/` has to follow it: `pods=./a@b/`.
pub(super) fn parse_files_flag(text: &str) -> Result<(&str, PathBuf, Option<String>), ValueError> {
    let Some((name, rest)) = text.split_once('=') else {
        return Err(ValueError::expected("NAME=DIR[@KIND] such as pods=./manifests@Pod", quote(text)));
    };
    check_resource_name(name)?;
    let (path, kind) = match rest.rsplit_once('@') {
        Some((path, kind)) if !kind.contains('/') => (path, Some(parse_kind(kind)?)),
        _ => (rest, None),
    };
    Ok((name, parse_path(path, DIRECTORY)?, kind))
}

/// Parses `NAME=FILE|-`. A file with the name `-` is `./-`.
pub(super) fn parse_stream_flag(text: &str) -> Result<(&str, StreamPath), ValueError> {
    let Some((name, path)) = text.split_once('=') else {
        return Err(ValueError::expected("NAME=FILE or NAME=- such as pods=./events.jsonl", quote(text)));
    };
    check_resource_name(name)?;
    Ok((name, parse_stream_path(path)?))
}

/// Describes the value found, for an error.
pub(super) fn found(value: &Value) -> String {
    match value {
        Value::Null => "nothing".to_owned(),
        Value::Bool(value) => value.to_string(),
        Value::Number(number) => match number.as_f64().filter(|value| number.is_f64() && value.fract() == 0.0) {
            Some(whole) => format!("the number {number}; write {whole:.0}, without a leading zero or a fraction"),
            None => format!("the number {number}"),
        },
        Value::String(text) => quote(text),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "a map".to_owned(),
    }
}

/// Quotes a user's text; of a long text, the beginning, and of a URL no credentials.
pub(super) fn quote(text: &str) -> String {
    let text = if text.contains("://") { without_credentials(text) } else { text.into() };
    let beginning: String = text.chars().take(MAX_QUOTE_CHARS).collect();
    let more = if beginning.len() < text.len() { "…" } else { "" };
    format!("{beginning:?}{more}")
}

/// Converts a size; allocations are limited to `isize::MAX`.
fn in_memory(number: u64) -> Result<usize, ()> {
    isize::try_from(number).map(isize::unsigned_abs).map_err(|_| ())
}

fn too_large(found: &str) -> ValueError {
    ValueError(format!("expected at most {}, found {found}", isize::MAX))
}

fn split_at(text: &str, is_next: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(is_next).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests;
