//! JSON text in another layout, token by token, so that numbers keep all digits and keys their order.
//!
//! The printed document means the same as the served one. Only control and direction characters inside strings are escaped,
//! because the text may go to a terminal.

use std::{borrow::Cow, collections::BTreeMap};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::de::IgnoredAny;
use serde_json::{Map, Value, value::RawValue};

use super::text::is_unsafe;
use crate::proto::pb;

/// Text of exactly one JSON value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Document<'a>(Cow<'a, str>);

/// Tokens of JSON text, without whitespace.
#[derive(Debug, Clone)]
pub(crate) struct Tokens<'a>(&'a str);

/// Token of JSON text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Token<'a> {
    /// `{` or `[`.
    Open(char),
    /// `}` or `]`.
    Close(char),
    Comma,
    Colon,
    /// String (also that of a key) with its quotes.
    Text(&'a str),
    /// Number, `true`, `false` or `null`.
    Scalar(&'a str),
}

/// Depth from which on a value is printed in one line: indentation must not make an object a thousand times as long.
pub(crate) const MAX_DEPTH: usize = 32;

const INDENT: &str = "    ";
const BLANKS: [char; 4] = [' ', '\t', '\n', '\r'];

// === impl Document ===

impl<'a> Document<'a> {
    /// Returns the text as a document if it is one JSON value.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        serde_json::from_str::<IgnoredAny>(text).ok()?;
        Some(Self(text.into()))
    }

    /// Returns the printed form of an object, which has its key: the body of a JSON map with `metadata.namespace` and `metadata.name`
    /// added where it has none, otherwise a map of the key and the value.
    pub(crate) fn of(object: &'a pb::Object) -> Self {
        let Some(document) = Self::json_body(object) else { return Self::body(object) };
        if document.0.trim_start_matches(BLANKS).starts_with('{') {
            return document.with_key(object);
        }
        let text = |text: &str| Document::from_value(&text.into());
        Self::from_parts([
            ("namespace", text(&object.namespace)),
            ("name", text(&object.name)),
            ("mediaType", text(&object.media_type)),
            ("value", document),
        ])
    }

    /// Returns the body if it is JSON.
    fn json_body(object: &'a pb::Object) -> Option<Self> {
        let Some(pb::object::Body::Raw(raw)) = &object.body else { return None };
        let is_json = object.media_type.is_empty() || object.media_type.contains("json");
        Some(raw).filter(|_| is_json).and_then(|raw| Self::parse(raw))
    }

    /// Adds the namespace and the name to the metadata of a map, where these are missing. A `metadata` that is not a map stays.
    fn with_key(self, object: &pb::Object) -> Self {
        let Ok(fields) = serde_json::from_str::<BTreeMap<String, &RawValue>>(&self.0) else { return self };
        let metadata = fields.get("metadata").map(|metadata| metadata.get());
        let known: Map<String, Value> = match metadata.map(serde_json::from_str) {
            None => Map::new(),
            Some(Ok(Value::Object(known))) => known,
            Some(_) => return self,
        };
        let is_missing = |(key, value): &(&str, &String)| !value.is_empty() && !known.contains_key(*key);
        let missing: Vec<String> = [("namespace", &object.namespace), ("name", &object.name)]
            .into_iter()
            .filter(is_missing)
            .map(|(key, value)| format!("\"{key}\":{}", Value::from(value.as_str())))
            .collect();
        if missing.is_empty() {
            return self;
        }
        let missing = missing.join(",");
        let (at, is_empty) = if let Some(metadata) = metadata {
            // The place after the brace of the metadata, which is a part of the same text.
            (metadata.as_ptr() as usize - self.0.as_ptr() as usize + 1, known.is_empty())
        } else {
            let Some(end) = self.0.rfind('}') else { return self };
            let is_empty = self.0[..end].trim_end_matches(BLANKS).ends_with('{');
            let comma = if is_empty { "" } else { "," };
            let (before, after) = self.0.split_at(end);
            return Self(format!("{before}{comma}\"metadata\":{{{missing}}}{after}").into());
        };
        let (before, after) = self.0.split_at(at);
        let comma = if is_empty { "" } else { "," };
        Self(format!("{before}{missing}{comma}{after}").into())
    }

    /// Returns the body as it is, or the metadata and the data if it is not JSON.
    pub(crate) fn body(object: &'a pb::Object) -> Self {
        if let Some(document) = Self::json_body(object) {
            return document;
        }
        let raw = match &object.body {
            Some(pb::object::Body::Raw(raw)) => Some(raw),
            _ => None,
        };
        let mut map = Map::new();
        let mut put = |key: &str, value: &str| map.insert(key.to_owned(), value.into());
        put("namespace", &object.namespace);
        put("name", &object.name);
        put("mediaType", &object.media_type);
        if let Some(raw) = raw {
            put("data", &STANDARD.encode(raw));
            if let Ok(text) = std::str::from_utf8(raw) {
                put("text", text);
            }
        }
        Self::from_value(&map.into())
    }

    /// Returns the text of a value that was built here.
    pub(crate) fn from_value(value: &Value) -> Self {
        Self(value.to_string().into())
    }

    /// Returns an object of these fields.
    pub(crate) fn from_fields<'b>(fields: impl IntoIterator<Item = (&'b str, Value)>) -> Self {
        Self::from_parts(fields.into_iter().map(|(key, value)| (key, Document::from_value(&value))))
    }

    /// Returns an object of these keys, each with a document as its value.
    pub(crate) fn from_parts<'b>(parts: impl IntoIterator<Item = (&'b str, Document<'b>)>) -> Self {
        let mut text = String::from("{");
        for (key, value) in parts {
            if text.len() > 1 {
                text.push(',');
            }
            text.push_str(&Value::from(key).to_string());
            text.push(':');
            text.push_str(&value.0);
        }
        text.push('}');
        Self(text.into())
    }

    /// Returns an array of documents.
    pub(crate) fn from_items<'b>(items: impl IntoIterator<Item = Document<'b>>) -> Self {
        let mut text = String::from("[");
        for item in items {
            if text.len() > 1 {
                text.push(',');
            }
            text.push_str(&item.0);
        }
        text.push(']');
        Self(text.into())
    }

    /// Returns the document as a value, in which large numbers may lose digits.
    pub(crate) fn value(&self) -> Value {
        serde_json::from_str(&self.0).unwrap_or_default()
    }

    pub(crate) fn tokens(&self) -> Tokens<'_> {
        Tokens(&self.0)
    }

    /// Appends the document in one line, without whitespace.
    pub(crate) fn compact(&self, out: &mut String) {
        for token in self.tokens() {
            token.write(out);
        }
    }

    /// Appends the document in kubectl's indented layout. The first line is not indented: the cursor is already in its column.
    pub(crate) fn pretty(&self, level: usize, out: &mut String) {
        let mut depth = level;
        let mut tokens = self.tokens().peekable();
        while let Some(token) = tokens.next() {
            match token {
                Token::Open(_) => {
                    token.write(out);
                    if let Some(close) = tokens.next_if(|next| matches!(next, Token::Close(_))) {
                        close.write(out);
                    } else {
                        depth += 1;
                        new_line(depth, out);
                    }
                }
                Token::Close(_) => {
                    depth -= 1;
                    new_line(depth, out);
                    token.write(out);
                }
                Token::Comma => {
                    token.write(out);
                    new_line(depth, out);
                }
                Token::Colon => out.push_str(": "),
                Token::Text(_) | Token::Scalar(_) => token.write(out),
            }
        }
    }
}

// === impl Tokens ===

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        let rest = self.0.trim_start_matches(BLANKS);
        let first = rest.chars().next()?;
        let (token, end) = match first {
            '{' | '[' => (Token::Open(first), 1),
            '}' | ']' => (Token::Close(first), 1),
            ',' => (Token::Comma, 1),
            ':' => (Token::Colon, 1),
            '"' => {
                let end = string_end(rest);
                (Token::Text(&rest[..end]), end)
            }
            _ => {
                let is_end = |c: char| matches!(c, ',' | ':' | ']' | '}') || BLANKS.contains(&c);
                let end = rest.find(is_end).unwrap_or(rest.len());
                (Token::Scalar(&rest[..end]), end)
            }
        };
        self.0 = &rest[end..];
        Some(token)
    }
}

/// Returns the index after the string that `text` begins with.
fn string_end(text: &str) -> usize {
    let mut bytes = text.bytes().enumerate().skip(1);
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return at + 1,
            b'\\' => drop(bytes.next()),
            _ => {}
        }
    }
    text.len()
}

// === impl Token ===

impl Token<'_> {
    /// Appends the token alone.
    pub(crate) fn write(self, out: &mut String) {
        match self {
            Self::Open(c) | Self::Close(c) => out.push(c),
            Self::Comma => out.push(','),
            Self::Colon => out.push(':'),
            Self::Text(text) => push_string(text, out),
            Self::Scalar(text) => out.push_str(text),
        }
    }
}

/// Appends a JSON string. Characters that would control a terminal become the equivalent escapes.
fn push_string(text: &str, out: &mut String) {
    for part in text.split_inclusive(is_unsafe) {
        let plain = part.trim_end_matches(is_unsafe);
        out.push_str(plain);
        for c in part[plain.len()..].chars() {
            out.push_str(&unicode_escape(c));
        }
    }
}

/// Returns the escape of a character in JSON and YAML; no character that needs one is above U+FFFF.
pub(crate) fn unicode_escape(c: char) -> String {
    format!("\\u{:04x}", u32::from(c))
}

fn new_line(depth: usize, out: &mut String) {
    if depth <= MAX_DEPTH {
        out.push('\n');
        (0..depth).for_each(|_| out.push_str(INDENT));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pretty(json: &str) -> String {
        let mut out = String::new();
        Document::parse(json.as_bytes()).unwrap().pretty(0, &mut out);
        out
    }

    fn compact(json: &str) -> String {
        let mut out = String::new();
        Document::parse(json.as_bytes()).unwrap().compact(&mut out);
        out
    }

    #[test]
    fn json_has_the_layout_of_kubectl() {
        let json = r#" {"a":{"b":[1, {"c":[]} , "x,]}\"\\"],"d":{ }}, "e":null}"#;
        let expected = r#"{
    "a": {
        "b": [
            1,
            {
                "c": []
            },
            "x,]}\"\\"
        ],
        "d": {}
    },
    "e": null
}"#;
        assert_eq!(pretty(json), expected);
        assert_eq!(pretty(" 1 "), "1");
    }

    #[test]
    fn numbers_keys_and_escapes_stay_as_they_are() {
        let json = r#"{"z":9007199254740993,"a":1.10,"b":1E400,"a":-0,"e":"\u00e9\/\ud83d"}"#;
        assert_eq!(compact(json), json);
        assert_eq!(compact("{ \"a\" :\n [ 1 ,\ttrue ] }\r\n"), r#"{"a":[1,true]}"#);
    }

    #[test]
    fn terminal_controls_are_escaped_and_the_value_is_unchanged() {
        let json = "{\"a\":\"\u{9b}31m\u{7f}\u{202e}x\"}";
        let out = compact(json);
        assert_eq!(out, r#"{"a":"\u009b31m\u007f\u202ex"}"#);
        let value = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(value(&out), value(json));
    }

    #[test]
    fn deep_nesting_does_not_multiply_the_output() {
        let depth = 100_000;
        let json = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(pretty(&json).len() < 3 * depth);
    }

    #[test]
    fn a_body_that_is_not_json_is_shown_as_its_metadata() {
        let raw = |bytes: &'static [u8], media_type: &str| pb::Object {
            name: "n".to_owned(),
            media_type: media_type.to_owned(),
            body: Some(pb::object::Body::Raw(bytes::Bytes::from_static(bytes))),
            ..Default::default()
        };
        let shown = |object: &pb::Object| {
            let mut out = String::new();
            Document::of(object).compact(&mut out);
            serde_json::from_str::<serde_json::Value>(&out).unwrap()
        };
        let of =
            |media_type: &str, data: &str| json!({"namespace": "", "name": "n", "mediaType": media_type, "data": data});
        let with_text = |media_type: &str, data: &str, text: &str| {
            let mut expected = of(media_type, data);
            expected["text"] = text.into();
            expected
        };
        assert_eq!(shown(&raw(b"\xff\x00", "")), of("", "/wA="));
        assert_eq!(shown(&raw(b"{", "application/json")), with_text("application/json", "ew==", "{"));
        assert_eq!(shown(&raw(b"123", "text/plain")), with_text("text/plain", "MTIz", "123"));
        let value = json!({"namespace": "", "name": "n", "mediaType": "application/json", "value": 123});
        assert_eq!(shown(&raw(b"123", "application/json")), value);
        assert!(shown(&pb::Object::default()).get("data").is_none());
    }
}
