//! Decoding of a manifest file to objects.
//!
//! `scan` calls it for every file that has to be read; without I/O.
//!
//! Invariants:
//! - A document or item that cannot be read is named, with its place in the file, and takes nothing else with it. Whoever has the
//!   file's earlier objects keeps those that are not among the readable ones: the unreadable part may contain them.
//! - JSON bodies are the file's own bytes, without the white space around them. YAML bodies are the JSON of the same
//!   value with sorted keys; integers that fit 64 bits are exact.
//! - A body is an allocation of its own and never a slice of the file: one unchanged object of a large file does not
//!   keep the rest of that file's old bytes in memory.
//! - YAML is read as kubectl reads it: version 1.1, where `yes`, `on` and `y` are booleans and `0644` is octal; and a number
//!   without a fraction is written without one, so that `0008` and `1.0` are integers for who reads the JSON.
//! - `serde_saphyr`'s budget bounds the cost of alias bombs and deep nesting; only the limits without aliases are raised, so
//!   that a dump of a whole cluster can be read.
//!
//! `scan` selects the files and limits their size; `catalog` selects one of two objects with one key.

mod list;
mod place;
mod text;

use std::{borrow::Cow, path::Path};

use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use serde_saphyr::{Error, MessageFormatter, Options, UserMessageFormatter};

use self::{
    list::{Implied, list_head},
    place::{Step, find, word_at},
    text::{Document, decoded, documents, place},
};
use crate::{
    model::{FieldError, Object, ObjectError, ResourceVersion, json_problem},
    source::text::one_line,
};

/// Format of a file, by the extension of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Yaml,
}

/// Content of a file.
#[derive(Debug, Default)]
pub(super) struct Decoded {
    pub(super) objects: Vec<Object>,
    /// Parts that cannot be read; `None` if all were.
    pub(super) unread: Option<Unread>,
}

/// Parts of a file that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Unread {
    /// Number of these parts, at least 1; `None` if it is unknown.
    pub(super) count: Option<usize>,
    /// Places and problems of the first of them, in one line.
    pub(super) reason: String,
}

/// Collects the objects of one file.
struct Decoder<'a> {
    path: &'a str,
    kind: Option<&'a str>,
    version: &'a ResourceVersion,
    part: Part<'a>,
    /// Name of the part, if it is not the only one.
    within: String,
    /// Number of objects without a name so far, of any kind.
    unnamed: usize,
    objects: Vec<Object>,
    /// First faults, each with its place in the file and in the words of the file's author.
    faults: Vec<String>,
    /// Number of all faults.
    count: usize,
    /// True if one of them may be any number of objects.
    is_uncounted: bool,
}

/// Part of a file in which faults are searched.
enum Part<'a> {
    /// All of it; there must be no fault.
    Whole,
    /// Text that contains the values themselves.
    Json(&'a str),
    /// YAML document, and its limit of replayed events.
    Document(&'a Document<'a>, usize),
}

/// Reason why a value cannot be read.
enum Problem {
    Field(FieldError),
    Other(String),
}

/// Kind of an object that cannot be read otherwise.
#[derive(Deserialize)]
struct OnlyKind<'a> {
    #[serde(borrow)]
    kind: Cow<'a, str>,
}

/// Limit of lists inside of lists (`kubectl get -o json` of several files); nothing sensible nests deeper.
const MAX_LIST_DEPTH: usize = 4;

/// Limit of documents in one YAML file. A file within its limit of bytes is within this one and the next, unless it consists
/// of the smallest possible values; aliases have a limit of their own.
const MAX_DOCUMENTS: usize = 100_000;
const MAX_NODES: usize = 8_000_000;
/// Limit of the events that aliases add to one YAML file: far more than anchors in manifests do, and a bomb ends in
/// milliseconds.
const MAX_REPLAYED_EVENTS: usize = 100_000;
/// The same for a document of a file that is read document by document; by its share of the file it may have more.
const MIN_REPLAYED_EVENTS: usize = 1_000;

/// Limit of the unreadable parts that are shown.
const MAX_FAULTS: usize = 3;

// === impl Format ===

impl Format {
    /// Returns the format of a file of this name; `None` if it is no manifest.
    pub(super) fn of(name: &str) -> Option<Self> {
        match Path::new(name).extension()?.to_str()? {
            "json" => Some(Self::Json),
            "yaml" | "yml" => Some(Self::Yaml),
            _ => None,
        }
    }
}

/// Returns true if there is only white space: an empty file, or the moment between truncation and write.
pub(super) fn is_blank(bytes: &[u8]) -> bool {
    bytes.len() < MAX_BLANK_BYTES && decoded(bytes).is_ok_and(|text| text.trim().is_empty())
}

/// Size from which on a file is not checked for being blank.
const MAX_BLANK_BYTES: usize = 4096;

/// Decodes a file. `path` is relative to the root; with `kind`, objects of other kinds are left out. All objects get
/// `version`.
pub(super) fn decode(
    path: &str,
    format: Format,
    bytes: &[u8],
    kind: Option<&str>,
    version: &ResourceVersion,
) -> Decoded {
    let text = match decoded(bytes) {
        Ok(text) => text,
        Err(reason) => {
            // Text in another encoding may have any objects. Binary data, which has zeros, has none.
            let unread = Some(Unread { count: bytes.contains(&0).then_some(1), reason });
            return Decoded { unread, ..Decoded::default() };
        }
    };
    let empty = || Decoder::new(path, kind, version);
    let is_json_like = text.trim_start().starts_with(['{', '[']);
    if format == Format::Json && (is_json_like || serde_json::from_str::<Value>(&text).is_ok()) {
        return empty().json(&text);
    }
    // YAML, also in a file that is called `.json`.
    let decoded = empty().yaml_at_once(&text).unwrap_or_else(|| empty().yaml_by_document(&text, &documents(&text)));
    if decoded.unread.is_some() && is_json_like {
        // JSON values one after the other are no YAML.
        let as_json = empty().json(&text);
        if as_json.unread.is_none() {
            return as_json;
        }
    }
    decoded
}

// === impl Decoder ===

impl<'a> Decoder<'a> {
    fn new(path: &'a str, kind: Option<&'a str>, version: &'a ResourceVersion) -> Self {
        let (part, within, objects, faults) = (Part::Whole, String::new(), Vec::new(), Vec::new());
        Self { path, kind, version, part, within, unnamed: 0, objects, faults, count: 0, is_uncounted: false }
    }

    fn finish(self) -> Decoded {
        let Self { objects, faults, count, is_uncounted, .. } = self;
        let (shown, more) = (faults.join("; "), count.saturating_sub(faults.len()));
        let reason = if more == 0 { shown } else { format!("{shown}; and {more} more") };
        Decoded { objects, unread: (count > 0).then_some(Unread { count: (!is_uncounted).then_some(count), reason }) }
    }

    fn json(mut self, text: &'a str) -> Decoded {
        self.part = Part::Json(text);
        let mut values = serde_json::Deserializer::from_str(text).into_iter::<&RawValue>();
        for at in 0.. {
            let Some(value) = values.next() else { break };
            self.within = if at > 0 { format!("value {}, ", at + 1) } else { String::new() };
            match value {
                Ok(value) => self.value(value.get().as_bytes(), &Implied::default(), &mut Vec::new()),
                Err(error) => {
                    let place = Some((error.line(), error.column()));
                    self.fault(&[], &[], Problem::Other(without_place(&error)), place);
                    self.is_uncounted = !error.is_eof() && may_hold_several(&text[values.byte_offset()..]);
                    break;
                }
            }
        }
        self.finish()
    }

    /// Reads a text in which every document can be read; `None` for any other.
    fn yaml_at_once(mut self, text: &str) -> Option<Decoded> {
        let values: Vec<Value> = serde_saphyr::from_multiple_with_options(text, options(MAX_REPLAYED_EVENTS)).ok()?;
        for value in values {
            self.yaml_value(value);
            if self.count > 0 {
                return None;
            }
        }
        Some(self.finish())
    }

    fn yaml_by_document(mut self, text: &str, documents: &'a [Document<'a>]) -> Decoded {
        if documents.len() > MAX_DOCUMENTS {
            let problem = format!("more than {MAX_DOCUMENTS} documents; split the file");
            self.fault(&[], &[], Problem::Other(problem), None);
            return self.finish();
        }
        for (at, document) in documents.iter().enumerate() {
            let share = (MAX_REPLAYED_EVENTS * document.text.len()).div_ceil(text.len().max(1));
            let limit = share.max(MIN_REPLAYED_EVENTS);
            self.part = Part::Document(document, limit);
            self.within = if documents.len() > 1 { format!("document {}, ", at + 1) } else { String::new() };
            match serde_saphyr::from_multiple_with_options::<Value>(document.text, options(limit)) {
                Ok(values) => values.into_iter().for_each(|value| self.yaml_value(value)),
                Err(error) => {
                    let error = error.without_snippet();
                    let number = |number: u64| usize::try_from(number).unwrap_or_default();
                    let found = error.location().filter(|found| found.line() > 0);
                    let place =
                        found.map(|found| (number(found.line()) + document.lines_before, number(found.column())));
                    self.fault(
                        &[],
                        &[],
                        Problem::Other(explain(error)),
                        place.or(Some((document.lines_before + 1, 1))),
                    );
                }
            }
        }
        self.finish()
    }

    fn yaml_value(&mut self, mut value: Value) {
        if value.is_string() {
            // The first letters of an incomplete mapping are a YAML string too, which is never intended.
            let problem = "a string is not a manifest (is the file half-written?)";
            return self.fault(&[], &[], Problem::Other(problem.into()), None);
        }
        if value.as_object().is_some_and(serde_json::Map::is_empty) {
            return;
        }
        without_fractions(&mut value);
        match serde_json::to_vec(&value) {
            Ok(json) => {
                drop(value);
                self.value(&json, &Implied::default(), &mut Vec::new());
            }
            Err(error) => self.fault(&[], &[], Problem::Other(error.to_string()), None),
        }
    }

    /// Decodes one JSON value: an object, or a list of them. `steps` lead to it; every list has two.
    fn value(&mut self, json: &[u8], implied: &Implied, steps: &mut Vec<Step>) {
        // An item without any content is nobody's object.
        if json == b"null" || (json == b"{}" && !steps.is_empty()) {
            return;
        }
        let Some((head, items)) = list_head(json) else {
            if let Err(error) = self.object(json, implied) {
                self.object_fault(json, implied, steps, error);
            }
            return;
        };
        if steps.len() >= 2 * MAX_LIST_DEPTH {
            let problem = format!("lists nested too deeply (limit: {MAX_LIST_DEPTH})");
            return self.fault(json, steps, Problem::Other(problem), None);
        }
        steps.push(Step::Key("items".to_owned()));
        match serde_json::from_str::<Vec<&RawValue>>(items) {
            Ok(items) => {
                for (at, item) in items.into_iter().enumerate() {
                    steps.push(Step::Item(at));
                    self.value(item.get().as_bytes(), &head, steps);
                    steps.pop();
                }
            }
            Err(error) => self.fault(items.as_bytes(), steps, Problem::Other(json_problem(&error)), None),
        }
        steps.pop();
    }

    fn object(&mut self, json: &[u8], implied: &Implied) -> Result<(), ObjectError> {
        let default_name = match self.unnamed {
            0 => Cow::Borrowed(self.path),
            before => format!("{}#{}", self.path, before + 1).into(),
        };
        let mut object = Object::from_json(json, &default_name, self.version.clone())?;
        if object.key().namespace().is_empty() && object.key().name() == default_name {
            self.unnamed += 1;
            if self.count > 0 {
                // An object before it may be one without a name, too.
                self.count += 1;
                return Ok(());
            }
        }
        if object.kind().is_empty() && !implied.kind.is_empty() {
            object = object.with_type(&implied.api_version, &implied.kind).checked()?;
        }
        if self.kind.is_none_or(|kind| object.kind().eq_ignore_ascii_case(kind)) {
            self.objects.push(object);
        }
        Ok(())
    }

    /// Records an object that cannot be read, unless it is of another kind than the configured one.
    fn object_fault(&mut self, json: &[u8], implied: &Implied, steps: &[Step], error: ObjectError) {
        let own = serde_json::from_slice::<OnlyKind<'_>>(json).map(|own| own.kind).unwrap_or_default();
        let kind = if own.is_empty() { &*implied.kind } else { &*own };
        if self.kind.is_some_and(|wanted| !kind.is_empty() && !kind.eq_ignore_ascii_case(wanted)) {
            return;
        }
        let problem = match error {
            ObjectError::Field(error) => Problem::Field(error),
            ObjectError::Json(error) => Problem::Other(without_place(&error)),
            error => Problem::Other(error.to_string()),
        };
        self.fault(json, steps, problem, None);
    }

    /// Records that the value `json`, to which these steps lead, cannot be read. Finds its place, unless that is known.
    fn fault(&mut self, json: &[u8], steps: &[Step], mut problem: Problem, place: Option<(usize, usize)>) {
        self.count += 1;
        if self.faults.len() == MAX_FAULTS {
            return;
        }
        let place = match self.part {
            _ if place.is_some() => place,
            Part::Whole => None,
            Part::Json(text) => {
                let begin = json.as_ptr().addr().saturating_sub(text.as_ptr().addr());
                let offset = match &problem {
                    Problem::Field(error) => std::str::from_utf8(json).ok().and_then(|json| error.offset_in(json)),
                    Problem::Other(_) => None,
                };
                Some(self::place(text, begin + offset.unwrap_or_default()))
            }
            Part::Document(document, limit) => {
                let mut steps = steps.to_vec();
                if let Problem::Field(error) = &problem {
                    steps.extend(error.keys().iter().cloned().map(Step::Key));
                }
                let found = find(document.text, options(limit), &steps);
                if let (Problem::Field(error), Some(found)) = (&problem, found) {
                    // As the value is written there.
                    problem = Problem::Field(error.clone().written_as(word_at(document.text, found)));
                }
                let (line, column) = found.unwrap_or((1, 1));
                Some((line + document.lines_before, column))
            }
        };
        let name = |step: &Step| match step {
            Step::Key(key) => key.clone(),
            Step::Item(at) => format!("[{at}]: "),
        };
        let way: String = steps.iter().map(name).collect();
        let place = place.map(|(line, column)| format!("line {line}, column {column}: ")).unwrap_or_default();
        let problem = match problem {
            Problem::Field(error) => error.to_string(),
            Problem::Other(problem) => problem,
        };
        self.faults.push(one_line(&format!("{}{place}{way}{problem}", self.within)));
    }
}

/// Returns true if a text that begins with broken JSON may hold several objects: a list, or a value after that one. Within a value, a map
/// follows `:`, `,` or `[`.
fn may_hold_several(text: &str) -> bool {
    let is_next = |at: usize| at > 0 && !text[..at].trim_end().ends_with([':', ',', '[']);
    text.contains("\"items\"") || text.match_indices('{').any(|(at, _)| is_next(at))
}

/// Returns the problem without its place, which is that in a part of the file.
fn without_place(error: &serde_json::Error) -> String {
    let problem = json_problem(error);
    problem.rsplit_once(" at line ").map_or(&*problem, |(problem, _)| problem).to_owned()
}

fn options(max_replayed_events: usize) -> Options {
    serde_saphyr::options! {
        legacy_octal_numbers: true,
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_documents: MAX_DOCUMENTS,
            max_nodes: MAX_NODES,
            max_events: 2 * MAX_NODES,
        },
        alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: max_replayed_events },
    }
}

/// Returns the problem, worded for the author of the file.
fn explain(error: &Error) -> String {
    let cause = match error {
        Error::AliasError { error, .. } => error,
        _ => error,
    };
    match cause {
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("duplicate key {key:?}; remove one"),
        Error::Budget { .. }
        | Error::AliasReplayLimitExceeded { .. }
        | Error::AliasReplayStackDepthExceeded { .. }
        | Error::AliasExpansionLimitExceeded { .. } => {
            "nested too deeply, or too large with its aliases expanded; split the file, or write less with aliases"
                .into()
        }
        _ => UserMessageFormatter.format_message(error).into_owned(),
    }
}

/// Writes numbers without a fraction as integers, as Go does: `0008`, which is no octal number, `1.0` and `1e3`.
fn without_fractions(value: &mut Value) {
    match value {
        Value::Number(number) => {
            let float = number.as_f64().filter(|_| number.is_f64()).filter(|float| float.fract() == 0.0);
            // Negative zero keeps its sign; above 2^53 a float does not show the digits that were written.
            let is_negative_zero = |float: f64| float == 0.0 && float.is_sign_negative();
            if let Some(float) = float.filter(|float| float.abs() <= MAX_EXACT && !is_negative_zero(*float)) {
                *value = Value::from(float as i64);
            }
        }
        Value::Array(items) => items.iter_mut().for_each(without_fractions),
        Value::Object(fields) => fields.values_mut().for_each(without_fractions),
        Value::Null | Value::Bool(_) | Value::String(_) => {}
    }
}

/// Largest float below which every integer is exact: 2^53.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

#[cfg(test)]
mod tests;
