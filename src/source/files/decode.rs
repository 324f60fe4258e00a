//! Decoding of a manifest file to objects.
//!
//! `scan` calls it for every file that has to be read; without I/O.
//!
//! Invariants:
//! - The result is all of the file's objects or none: one bad document makes the whole file unusable, so that its earlier
//!   good objects stay as they were.
//! - JSON bodies are the file's own bytes, without the white space around them. YAML bodies are the JSON of the same
//!   value with sorted keys; integers that fit 64 bits are exact.
//! - A body is an allocation of its own and never a slice of the file: one unchanged object of a large file does not
//!   keep the rest of that file's old bytes in memory.
//! - YAML is read as kubectl reads it: version 1.1, where `yes`, `on` and `y` are booleans and `0644` is octal.
//! - `serde_saphyr`'s budget bounds the cost of alias bombs and deep nesting; only the limits without aliases are raised, so
//!   that a dump of a whole cluster can be read.
//!
//! `scan` selects the files and limits their size; `catalog` selects one of two objects with one key.

use std::{borrow::Cow, path::Path};

use serde::Deserialize;
use serde_json::{Value, value::RawValue};

use crate::{
    model::{Object, ObjectError, ResourceVersion, json_problem},
    source::text::one_line,
};

/// Format of a file, by the extension of its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Yaml,
}

/// Collects the objects of one file.
struct Decoder<'a> {
    path: &'a str,
    kind: Option<&'a str>,
    version: &'a ResourceVersion,
    /// Number of objects without a name so far, of any kind.
    unnamed: usize,
    objects: Vec<Object>,
}

/// Fields by which a list differs from an object. Only a list is read this way; objects are read by [`Object::from_json`].
#[derive(Deserialize)]
struct ListHead<'a> {
    #[serde(rename = "apiVersion", borrow, default)]
    api_version: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    metadata: Option<ListMeta<'a>>,
    #[serde(borrow, default)]
    items: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct ListMeta<'a> {
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
}

/// Type of the items of a `PodList`, for example: the API server omits it in them.
#[derive(Default)]
struct Implied {
    api_version: String,
    kind: String,
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

const BOM: &[u8] = b"\xEF\xBB\xBF";

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
    without_bom(bytes).trim_ascii().is_empty()
}

/// Decodes a file. `path` is relative to the root; with `kind`, objects of other kinds are left out. All objects get
/// `version`.
///
/// # Errors
///
/// The problem and its position in the file, in one line.
pub(super) fn decode(
    path: &str,
    format: Format,
    bytes: &[u8],
    kind: Option<&str>,
    version: &ResourceVersion,
) -> Result<Vec<Object>, String> {
    let mut decoder = Decoder { path, kind, version, unnamed: 0, objects: Vec::new() };
    let bytes = without_bom(bytes);
    match format {
        Format::Json => decoder.json_file(bytes)?,
        Format::Yaml => decoder.yaml_file(bytes)?,
    }
    Ok(decoder.objects)
}

fn without_bom(bytes: &[u8]) -> &[u8] {
    bytes.strip_prefix(BOM).unwrap_or(bytes)
}

// === impl Decoder ===

impl Decoder<'_> {
    fn json_file(&mut self, bytes: &[u8]) -> Result<(), String> {
        let mut values = serde_json::Deserializer::from_slice(bytes).into_iter::<&RawValue>();
        let mut count = 0_usize;
        loop {
            let value = match values.next() {
                None => return Ok(()),
                Some(Ok(value)) => value,
                Some(Err(error)) => return Err(one_line(&error.to_string())),
            };
            count += 1;
            self.value(value.get().as_bytes(), &Implied::default(), 0).map_err(|error| match count {
                1 => error,
                _ => format!("value {count}: {error}"),
            })?;
        }
    }

    fn yaml_file(&mut self, bytes: &[u8]) -> Result<(), String> {
        let text = std::str::from_utf8(bytes).map_err(|error| format!("not UTF-8 text: {error}"))?;
        let options = serde_saphyr::options! {
            legacy_octal_numbers: true,
            with_snippet: false,
            budget: serde_saphyr::budget! {
                max_documents: MAX_DOCUMENTS,
                max_nodes: MAX_NODES,
                max_events: 2 * MAX_NODES,
            },
            alias_limits: serde_saphyr::alias_limits! { max_total_replayed_events: MAX_REPLAYED_EVENTS },
        };
        let documents: Vec<Value> =
            serde_saphyr::from_multiple_with_options(text, options).map_err(|error| one_line(&error.to_string()))?;
        for (at, document) in documents.into_iter().enumerate() {
            self.yaml_document(document).map_err(|error| match at {
                0 => error,
                _ => format!("document {}: {error}", at + 1),
            })?;
        }
        Ok(())
    }

    fn yaml_document(&mut self, document: Value) -> Result<(), String> {
        if document.is_string() {
            // The first letters of an incomplete mapping are a YAML string too, which is never intended.
            return Err("a string is not a manifest (is the file half-written?)".into());
        }
        let json = serde_json::to_vec(&document).map_err(|error| one_line(&error.to_string()))?;
        drop(document);
        self.value(&json, &Implied::default(), 0)
    }

    /// Decodes one JSON value: an object, or a list of them. `depth` is the number of lists around it.
    fn value(&mut self, json: &[u8], implied: &Implied, depth: usize) -> Result<(), String> {
        match list_head(json) {
            Some((head, items)) => {
                if depth >= MAX_LIST_DEPTH {
                    return Err(format!("lists nested too deeply (limit: {MAX_LIST_DEPTH})"));
                }
                let items: Vec<&RawValue> =
                    serde_json::from_str(items).map_err(|e| format!("items: {}", json_problem(&e)))?;
                for (at, item) in items.into_iter().enumerate() {
                    self.value(item.get().as_bytes(), &head, depth + 1)
                        .map_err(|error| format!("items[{at}]: {error}"))?;
                }
                Ok(())
            }
            None => self.object(json, implied).map_err(|error| error.to_string()),
        }
    }

    fn object(&mut self, json: &[u8], implied: &Implied) -> Result<(), ObjectError> {
        let default_name = match self.unnamed {
            0 => Cow::Borrowed(self.path),
            before => format!("{}#{}", self.path, before + 1).into(),
        };
        let mut object = Object::from_json(json, &default_name, self.version.clone())?;
        if object.key().namespace().is_empty() && object.key().name() == default_name {
            self.unnamed += 1;
        }
        if object.kind().is_empty() && !implied.kind.is_empty() {
            object = object.with_type(&implied.api_version, &implied.kind).checked()?;
        }
        if self.kind.is_none_or(|kind| object.kind().eq_ignore_ascii_case(kind)) {
            self.objects.push(object);
        }
        Ok(())
    }
}

// === impl Implied ===

impl Implied {
    fn of(list_kind: &str, api_version: &str) -> Self {
        match list_kind.strip_suffix("List") {
            None | Some("") => Self::default(),
            Some(kind) => Self { api_version: api_version.to_owned(), kind: kind.to_owned() },
        }
    }
}

/// Returns the type of a list's items, and their text; `None` if the value is not a list.
fn list_head(json: &[u8]) -> Option<(Implied, &str)> {
    // A search for the word costs far less than parsing every object, nearly none of which is a list.
    if json.first() != Some(&b'{') || memchr::memmem::find(json, b"List\"").is_none() {
        return None;
    }
    let head: ListHead<'_> = serde_json::from_slice(json).ok()?;
    let kind = head.kind.unwrap_or_default();
    let named = head.metadata.and_then(|metadata| metadata.name).is_some_and(|name| !name.is_empty());
    let items = head.items.map_or("null", RawValue::get);
    if !is_list(&kind, named, items.starts_with('[')) {
        return None;
    }
    let items = if items == "null" { "[]" } else { items };
    Some((Implied::of(&kind, &head.api_version.unwrap_or_default()), items))
}

/// Returns true for a list. Kubernetes' lists have no name, and objects do: a custom `AllowList` with `items` stays one object.
fn is_list(kind: &str, named: bool, has_items: bool) -> bool {
    kind == "List" || (kind.ends_with("List") && has_items && !named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::MAX_OBJECT_BYTES;

    fn decode_as(format: Format, text: &str, kind: Option<&str>) -> Result<Vec<Object>, String> {
        decode("dir/a.x", format, text.as_bytes(), kind, &ResourceVersion::decimal(7))
    }

    fn keys(objects: &[Object]) -> Vec<String> {
        objects.iter().map(|object| object.key().to_string()).collect()
    }

    fn bodies(objects: &[Object]) -> Vec<&str> {
        objects.iter().map(|object| std::str::from_utf8(object.body()).unwrap()).collect()
    }

    #[test]
    fn json_bodies_are_the_bytes_of_the_file() {
        let text =
            "\u{feff}\n {\"metadata\": {\"name\":\"b\"},  \"n\":1.0}\t{\"metadata\":{\"name\":\"a\"}} \n [1]\n3 ";
        let objects = decode_as(Format::Json, text, None).unwrap();
        assert_eq!(keys(&objects), ["b", "a", "dir/a.x", "dir/a.x#2"]);
        let expected = [r#"{"metadata": {"name":"b"},  "n":1.0}"#, r#"{"metadata":{"name":"a"}}"#, "[1]", "3"];
        assert_eq!(bodies(&objects), expected);
    }

    #[test]
    fn a_half_written_file_is_refused_as_a_whole() {
        for text in [r#"{"a":1} {"b":"#, r#"{"a":1}}"#, "{\"a\": \u{0}}", "nope"] {
            decode_as(Format::Json, text, None).unwrap_err();
        }
        for text in ["a: 1\n---\nb: [", "apiVersi", "a: b: c", "a: 1\n---\nmetadata:\n  na", "a\u{0}: 1"] {
            decode_as(Format::Yaml, text, None).unwrap_err();
        }
        let error = decode_as(Format::Yaml, "a: 1\n---\nmetadata: {name: 5}", None).unwrap_err();
        assert!(error.starts_with("document 2: "), "{error}");
        let error = decode("x", Format::Yaml, b"a: \xff", None, &ResourceVersion::decimal(1)).unwrap_err();
        assert!(error.starts_with("not UTF-8"), "{error}");
    }

    #[test]
    fn yaml_documents_become_json_and_empty_ones_are_skipped() {
        let text = "\n---\n# nothing\n---\nmetadata: {name: x}\nmode: 0644\nbig: 9007199254740993\nlow: -9223372036854775808\n\
                    top: 18446744073709551615\nyes: \"no\"\n---\n~\n---\n- 1\n...\n---\nb: 1\n";
        let objects = decode_as(Format::Yaml, text, None).unwrap();
        assert_eq!(keys(&objects), ["x", "dir/a.x", "dir/a.x#2"]);
        let first = r#"{"big":9007199254740993,"low":-9223372036854775808,"metadata":{"name":"x"},"mode":420,"top":18446744073709551615,"yes":"no"}"#;
        assert_eq!(bodies(&objects), [first, "[1]", r#"{"b":1}"#]);
        assert!(decode_as(Format::Yaml, "# only a comment\n", None).unwrap().is_empty());
    }

    #[test]
    fn anchors_and_merge_keys_are_resolved() {
        let text = "base: &b {a: 1}\nuse: *b\nmerged:\n  <<: *b\n  c: 2\n";
        let objects = decode_as(Format::Yaml, text, None).unwrap();
        assert_eq!(bodies(&objects), [r#"{"base":{"a":1},"merged":{"a":1,"c":2},"use":{"a":1}}"#]);
    }

    #[test]
    fn a_dump_of_a_whole_cluster_can_be_read() {
        let pod =
            |at: usize| format!("- {{kind: Pod, metadata: {{name: p{at}}}, spec: {{a: [1, 2, 3, 4, 5, 6, 7, 8]}}}}\n");
        let list = format!("apiVersion: v1\nkind: List\nitems:\n{}", (0..20_000).map(pod).collect::<Vec<_>>().concat());
        assert_eq!(decode_as(Format::Yaml, &list, None).unwrap().len(), 20_000);
        assert_eq!(decode_as(Format::Yaml, &"---\na: 1\n".repeat(5_000), None).unwrap().len(), 5_000);
    }

    #[test]
    fn alias_bombs_are_rejected_in_one_line() {
        let bomb = (1..10).fold(String::from("a0: &a0 [x]\n"), |text, n| {
            format!("{text}a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(","))
        });
        let deep = format!("a: {}{}", "[".repeat(100_000), "]".repeat(100_000));
        for text in [bomb, deep, "- ".repeat(100_000), "---\n- 1\n".repeat(MAX_DOCUMENTS + 1)] {
            let error = decode_as(Format::Yaml, &text, None).unwrap_err();
            assert!(!error.contains('\n') && error.len() < 400, "{error}");
        }
    }

    #[test]
    fn deep_json_does_not_overflow_the_stack() {
        let text = format!(r#"{{"kind":"List","items":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
        let _either = decode_as(Format::Json, &text, None);
        let mut nested = r#"{"a":1}"#.to_owned();
        for _ in 0..10 {
            nested = format!(r#"{{"kind":"List","items":[{nested}]}}"#);
        }
        assert!(decode_as(Format::Json, &nested, None).unwrap_err().contains("nested too deeply (limit: 4)"));
    }

    #[test]
    fn a_list_is_expanded_to_its_items() {
        let json = r#"{"apiVersion":"v1","kind":"List","items":[{"kind":"Pod","metadata":{"name":"a"}},
            {"kind":"List","items":[{"kind":"Pod","metadata":{"name": "b"}}]}]}"#;
        let yaml = "apiVersion: v1\nkind: List\nitems:\n- {kind: Pod, metadata: {name: a}}\n\
                    - {kind: List, items: [{kind: Pod, metadata: {name: b}}]}\n";
        let objects = decode_as(Format::Json, json, None).unwrap();
        assert_eq!(keys(&objects), ["a", "b"]);
        assert_eq!(objects[1].body(), br#"{"kind":"Pod","metadata":{"name": "b"}}"#);
        assert_eq!(keys(&decode_as(Format::Yaml, yaml, None).unwrap()), ["a", "b"]);
        assert!(decode_as(Format::Json, r#"{"kind":"List","items":null}"#, None).unwrap().is_empty());
        assert!(decode_as(Format::Yaml, "kind: List\n", None).unwrap().is_empty());
    }

    #[test]
    fn the_items_of_a_typed_list_have_its_type() {
        let json = r#"{"apiVersion":"v1","kind":"PodList","metadata":{"resourceVersion":"5"},
            "items":[{"metadata":{"name":"a"}}]}"#;
        let yaml = "apiVersion: v1\nkind: PodList\nitems: [{metadata: {name: a}}]";
        for (format, text) in [(Format::Json, json), (Format::Yaml, yaml)] {
            let objects = decode_as(format, text, Some("pod")).unwrap();
            assert_eq!((objects[0].kind(), objects[0].api_version()), ("Pod", "v1"));
            assert_eq!(bodies(&objects), [r#"{"metadata":{"name":"a"}}"#]);
        }
        let own = r#"{"kind":"AllowList","metadata":{"name":"mine"},"items":[1,2]}"#;
        assert_eq!(keys(&decode_as(Format::Json, own, None).unwrap()), ["mine"]);
    }

    #[test]
    fn only_objects_of_the_configured_kind_are_decoded() {
        let text = "kind: Pod\nmetadata: {name: a}\n---\nkind: Service\nmetadata: {name: b}\n---\nx: 1\n";
        assert_eq!(keys(&decode_as(Format::Yaml, text, Some("pOD")).unwrap()), ["a"]);
        assert!(decode_as(Format::Yaml, text, Some("Secret")).unwrap().is_empty());
    }

    #[test]
    fn a_list_may_be_larger_than_an_object() {
        let item = format!(r#"{{"metadata":{{"name":"NAME"}},"x":"{}"}}"#, "x".repeat(MAX_OBJECT_BYTES / 2));
        let items = ["a", "b", "c"].map(|name| item.replace("NAME", name)).join(",");
        let list = format!(r#"{{"kind":"List","items":[{items}]}}"#);
        assert_eq!(keys(&decode_as(Format::Json, &list, None).unwrap()), ["a", "b", "c"]);
        assert_eq!(keys(&decode_as(Format::Yaml, &list, None).unwrap()), ["a", "b", "c"]);
        let single = format!(r#"{{"x":"{}"}}"#, "x".repeat(MAX_OBJECT_BYTES));
        assert!(decode_as(Format::Json, &single, None).unwrap_err().contains("object too large: "));
    }

    #[test]
    fn the_file_extension_determines_the_format() {
        for (name, format) in [
            ("a.json", Some(Format::Json)),
            ("a.b.yaml", Some(Format::Yaml)),
            ("a.yml", Some(Format::Yaml)),
            ("a.yaml~", None),
            ("a", None),
            (".yaml", None),
            ("a.JSON", None),
        ] {
            assert_eq!(Format::of(name), format, "{name}");
        }
    }
}
