//! Field of an envelope that has a value of the wrong type, for messages in the words of the author of the text.

use std::fmt;

use serde_json::{Map, Value};

/// Value of the wrong type in the type, key, identity or labels of a body.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FieldError {
    /// Keys on the way from the body to the value.
    keys: Vec<String>,
    expected: &'static str,
    found: Found,
}

/// Value that was found. Texts, lists and maps are not shown: they may be secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Found {
    Null,
    Boolean(String),
    Number(String),
    String,
    List,
    Map,
}

const STRING: &str = "a string";
const MAP: &str = "a map";

/// Longest value that is shown, in characters.
const MAX_SHOWN: usize = 40;

// === impl FieldError ===

impl FieldError {
    /// Returns the first field with a value of the wrong type; `None` if there is none, or if the body is not a JSON map.
    pub(super) fn find(body: &str) -> Option<Self> {
        let body: Map<String, Value> = serde_json::from_str(body).ok()?;
        let strings = |map: &Map<String, Value>, names: &[&str], above: &[&str]| {
            names.iter().find_map(|name| Self::of(map.get(*name)?, STRING, above, name))
        };
        let type_error = strings(&body, &["apiVersion", "kind"], &[]);
        let metadata_error = || match body.get("metadata")? {
            Value::Object(metadata) => {
                let names = ["namespace", "name", "uid", "resourceVersion"];
                strings(metadata, &names, &["metadata"]).or_else(|| match metadata.get("labels")? {
                    Value::Object(labels) => labels.iter().find_map(|(name, value)| {
                        let above = ["metadata", "labels"];
                        if value.is_null() {
                            Some(Self::new(value, STRING, &above, name))
                        } else {
                            Self::of(value, STRING, &above, name)
                        }
                    }),
                    other => Self::of(other, MAP, &["metadata"], "labels"),
                })
            }
            other => Self::of(other, MAP, &[], "metadata"),
        };
        type_error.or_else(metadata_error)
    }

    fn of(value: &Value, expected: &'static str, above: &[&str], name: &str) -> Option<Self> {
        let is_right = match value {
            // The field is missing.
            Value::Null => true,
            Value::String(_) => expected == STRING,
            Value::Object(_) => expected == MAP,
            Value::Bool(_) | Value::Number(_) | Value::Array(_) => false,
        };
        (!is_right).then(|| Self::new(value, expected, above, name))
    }

    fn new(value: &Value, expected: &'static str, above: &[&str], name: &str) -> Self {
        let keys = above.iter().copied().chain([name]).map(str::to_owned).collect();
        let found = match value {
            Value::Null => Found::Null,
            Value::Bool(value) => Found::Boolean(value.to_string()),
            Value::Number(value) => Found::Number(value.to_string()),
            Value::String(_) => Found::String,
            Value::Array(_) => Found::List,
            Value::Object(_) => Found::Map,
        };
        Self { keys, expected, found }
    }
}

/// For sources, which know the text that the body was read from.
#[cfg(feature = "server")]
impl FieldError {
    /// Returns the keys on the way from the body to the value.
    pub(crate) fn keys(&self) -> &[String] {
        &self.keys
    }

    /// Returns the same error about a text in which the value is written in this way, as a YAML boolean may be `on`.
    pub(crate) fn written_as(self, text: &str) -> Self {
        let found = match self.found {
            Found::Boolean(_) if !text.is_empty() => Found::Boolean(text.to_owned()),
            Found::Number(_) if !text.is_empty() => Found::Number(text.to_owned()),
            other => other,
        };
        Self { found, ..self }
    }

    /// Returns the offset of the value in the body, in bytes.
    pub(crate) fn offset_in(&self, body: &str) -> Option<usize> {
        let mut inner = body;
        for key in &self.keys {
            let map: std::collections::BTreeMap<String, &serde_json::value::RawValue> =
                serde_json::from_str(inner).ok()?;
            inner = map.get(key)?.get();
        }
        inner.as_ptr().addr().checked_sub(body.as_ptr().addr())
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { keys, expected, found } = self;
        for (at, key) in keys.iter().enumerate() {
            let is_plain = key.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
            match (at, is_plain && !key.is_empty()) {
                (0, _) => f.write_str(key)?,
                (_, true) => write!(f, ".{key}")?,
                (_, false) => write!(f, "[{key:?}]")?,
            }
        }
        write!(f, ": expected {expected}, found ")?;
        let shown = |text: &str| text.chars().take(MAX_SHOWN).collect::<String>();
        match found {
            Found::Null => f.write_str("null")?,
            Found::Boolean(value) => write!(f, "the boolean {}", shown(value))?,
            Found::Number(value) => write!(f, "the number {}", shown(value))?,
            Found::String => f.write_str("a string")?,
            Found::List => f.write_str("a list")?,
            Found::Map => f.write_str("a map")?,
        }
        match found {
            Found::Boolean(value) | Found::Number(value) if *expected == STRING => {
                write!(f, "; write {:?}", shown(value))
            }
            Found::Null if *expected == STRING => f.write_str("; write \"\""),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_field_of_a_wrong_type_is_named_with_its_value_and_place() {
        for (body, expected, at) in [
            (r#"{"kind":5}"#, r#"kind: expected a string, found the number 5; write "5""#, "5}"),
            (
                r#"{"metadata":{"labels":{"a":"x","app.io/on":true}}}"#,
                r#"metadata.labels["app.io/on"]: expected a string, found the boolean true; write "true""#,
                "true}",
            ),
            (
                r#"{"metadata":{"labels":{"a":null}}}"#,
                r#"metadata.labels.a: expected a string, found null; write """#,
                "null",
            ),
            (r#"{"metadata":{"name":[1]}}"#, "metadata.name: expected a string, found a list", "[1]"),
            (r#"{"metadata":[{"name":"k"}]}"#, "metadata: expected a map, found a list", "[{"),
            (r#"{"metadata":{"labels":"secret"}}"#, "metadata.labels: expected a map, found a string", r#""secret"#),
        ] {
            let error = FieldError::find(body).unwrap();
            assert_eq!(error.to_string(), expected);
            let offset = error.offset_in(body).unwrap();
            assert!(body[offset..].starts_with(at), "{body} {offset}");
        }
        assert_eq!(FieldError::find(r#"{"kind":null,"metadata":{"name":"a","labels":null}}"#), None);
        assert_eq!(FieldError::find("[1]"), None);
        let written = FieldError::find(r#"{"metadata":{"uid":true}}"#).unwrap().written_as("on");
        assert_eq!(written.to_string(), r#"metadata.uid: expected a string, found the boolean on; write "on""#);
    }
}
