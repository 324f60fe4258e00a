//! Updates of a watch as `metav1.WatchEvent`, one to a line: what `informerd record` writes and the source `stream` reads.
//!
//! ```text
//!   {"type":"ADDED","object":{…}}                              an object that its body identifies
//!   {"type":"ADDED","object":{…},"name":"b","uid":"5"}         … except for these parts: `namespace`, `name`, `uid`
//!   {"type":"ADDED","data":"aGVsbG8=","name":"b"}              bytes that are not JSON, in base64
//!   {"type":"BOOKMARK","object":{"kind":"PartialObjectMetadata",…}}
//!   {"type":"ERROR","object":{"kind":"Status",…}}
//! ```
//!
//! Bodies are unchanged except for line breaks between tokens, which are removed. A body with other white space around it is
//! written as bytes: readers of JSON would lose that.

use std::{borrow::Cow, io::Write};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde_json::{Value, json};
use tonic::Code;

use super::{ClientError, Update};
use crate::{
    model::{JSON, Object},
    proto::pb,
};

/// Encoder of the updates of one watch as lines, each a `metav1.WatchEvent`. The watch has to be of RAW bodies, with
/// [`WatchOptions::keep_objects`](super::WatchOptions::keep_objects) set, so that every DELETED has a body.
#[derive(Debug, Default)]
pub struct WatchEventEncoder {
    is_synced: bool,
}

/// Annotation of the bookmark after the initial events, as the Kubernetes API has it.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

// === impl WatchEventEncoder ===

impl WatchEventEncoder {
    /// Returns the encoder of a watch that has not begun.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends the line of an update. A [`Note`](super::Note) has none, nor have missing events.
    pub fn update(&mut self, update: &Update, out: &mut Vec<u8>) {
        match update {
            Update::Event { event_type, object, .. } => change(*event_type, object, out),
            Update::Synced(progress) | Update::Bookmark(progress) => {
                let is_first = matches!(update, Update::Synced(_)) && !std::mem::replace(&mut self.is_synced, true);
                let mut metadata = json!({ "resourceVersion": progress.resource_version });
                if is_first {
                    metadata["annotations"] = json!({ INITIAL_EVENTS_END: "true" });
                }
                let object =
                    json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata });
                line("BOOKMARK", &object, out);
            }
            Update::Dropped { .. } | Update::Note(_) => {}
        }
    }

    /// Appends the line of the error that ended the watch.
    pub fn error(error: &ClientError, out: &mut Vec<u8>) {
        let (reason, code) = kubernetes_status(error.code());
        let status = json!({
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": error.to_string(), "reason": reason, "code": code,
        });
        line("ERROR", &status, out);
    }
}

fn line(event_type: &str, object: &Value, out: &mut Vec<u8>) {
    write(out, &format_args!("{{\"type\":\"{event_type}\",\"object\":{object}}}\n"));
}

fn change(event_type: pb::EventType, object: &pb::Object, out: &mut Vec<u8>) {
    let body: &[u8] = match &object.body {
        Some(pb::object::Body::Raw(body)) => body,
        _ => &[],
    };
    let (media_type, own) = Object::any_envelope(body);
    let text = without_line_breaks(body);
    write(out, &format_args!("{{\"type\":\"{}\",", event_type.as_str_name().trim_start_matches("EVENT_TYPE_")));
    if media_type == JSON && text.trim_ascii().len() == text.len() {
        out.extend_from_slice(b"\"object\":");
        out.extend_from_slice(&text);
    } else {
        write(out, &format_args!("\"data\":\"{}\"", STANDARD.encode(body)));
    }
    let parts = [
        ("namespace", &object.namespace, own.namespace),
        ("name", &object.name, own.name),
        ("uid", &object.uid, own.uid),
    ];
    for (key, value, _) in parts.iter().filter(|(_, value, own)| **value != **own) {
        write(out, &format_args!(",\"{key}\":{}", Value::from(value.as_str())));
    }
    out.extend_from_slice(b"}\n");
}

/// Returns JSON text without its line breaks: they are between tokens, as strings cannot contain any.
fn without_line_breaks(json: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr2(b'\n', b'\r', json).is_none() {
        return json.into();
    }
    json.iter().copied().filter(|byte| !matches!(byte, b'\n' | b'\r')).collect::<Vec<_>>().into()
}

fn write(out: &mut Vec<u8>, text: &std::fmt::Arguments<'_>) {
    // A vector accepts every write.
    drop(out.write_fmt(*text));
}

/// Returns the reason and the HTTP status that the Kubernetes API has for a gRPC code.
fn kubernetes_status(code: Code) -> (&'static str, u16) {
    match code {
        Code::InvalidArgument => ("BadRequest", 400),
        Code::Unauthenticated => ("Unauthorized", 401),
        Code::PermissionDenied => ("Forbidden", 403),
        Code::NotFound => ("NotFound", 404),
        Code::OutOfRange => ("Expired", 410),
        Code::ResourceExhausted => ("TooManyRequests", 429),
        Code::Unavailable => ("ServiceUnavailable", 503),
        Code::DeadlineExceeded => ("Timeout", 504),
        _ => ("InternalError", 500),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::{Note, Progress};

    fn object(key: (&str, &str), uid: &str, body: &[u8]) -> pb::Object {
        pb::Object {
            namespace: key.0.to_owned(),
            name: key.1.to_owned(),
            uid: uid.to_owned(),
            resource_version: "7".to_owned(),
            body: Some(pb::object::Body::Raw(bytes::Bytes::copy_from_slice(body))),
            ..pb::Object::default()
        }
    }

    fn written(update: &Update) -> String {
        let mut out = Vec::new();
        WatchEventEncoder::new().update(update, &mut out);
        String::from_utf8(out).unwrap()
    }

    fn event(event_type: pb::EventType, object: pb::Object) -> Update {
        Update::Event { event_type, cause: pb::Cause::Unspecified, object, resource_version: "7".to_owned() }
    }

    #[test]
    fn an_event_has_only_those_parts_beside_its_object_that_the_object_lacks() {
        let pod = r#"{"metadata":{"namespace":"shop","name":"web","uid":"u"},"n":1.50}"#;
        let data = |bytes: &[u8]| format!(r#""data":"{}""#, STANDARD.encode(bytes));
        for (key, uid, body, expected) in [
            (("shop", "web"), "u", pod, format!(r#""object":{pod}"#)),
            (("shop", "web"), "5", pod, format!(r#""object":{pod},"uid":"5""#)),
            (("", "web"), "", pod, format!(r#""object":{pod},"namespace":"","uid":"""#)),
            (("", "a/\"b\".json"), "", r#"{"on":true}"#, r#""object":{"on":true},"name":"a/\"b\".json""#.to_owned()),
            (("a", "b"), "5", "null", r#""object":null,"namespace":"a","name":"b","uid":"5""#.to_owned()),
            (("", "b"), "", r#"{"kind":5}"#, r#""object":{"kind":5},"name":"b""#.to_owned()),
            (("", "b"), "", "[1,\r\n  2\n]\n", r#""object":[1,  2],"name":"b""#.to_owned()),
            (("", "b"), "", " [1,\n2]", format!(r#"{},"name":"b""#, data(b" [1,\n2]"))),
            (("", "b"), "", "hello", format!(r#"{},"name":"b""#, data(b"hello"))),
            (("", "b"), "", "", r#""data":"","name":"b""#.to_owned()),
        ] {
            let line = written(&event(pb::EventType::Modified, object(key, uid, body.as_bytes())));
            assert_eq!(line, format!("{{\"type\":\"MODIFIED\",{expected}}}\n"), "{body}");
        }
    }

    #[test]
    fn the_first_sync_is_the_end_of_the_initial_events() {
        let progress = Progress {
            resource_version: "a.5".to_owned(),
            source: pb::SyncState::Synced,
            source_seen_at: None,
            namespaces: Vec::new(),
            expression_errors: None,
        };
        let (mut encoder, mut out) = (WatchEventEncoder::new(), Vec::new());
        let synced = Update::Synced(progress.clone());
        let relisted = Update::Note(Note::Relisted { resource_version: "b.1".to_owned(), changes: 0 });
        for update in [&synced, &Update::Bookmark(progress), &relisted, &synced] {
            encoder.update(update, &mut out);
        }
        let lines: Vec<Value> =
            out.split(|byte| *byte == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
        assert!(
            lines
                .iter()
                .all(|line| line["type"] == "BOOKMARK" && line["object"]["metadata"]["resourceVersion"] == "a.5")
        );
        let ends = lines.iter().map(|line| line["object"]["metadata"]["annotations"][INITIAL_EVENTS_END] == "true");
        assert_eq!(ends.collect::<Vec<_>>(), [true, false, false], "a relist is no beginning");
    }

    #[test]
    fn an_error_is_a_status_of_the_kubernetes_api() {
        let status = tonic_types::Status { code: 5, message: "pod \"x\"\nnot found".to_owned(), details: Vec::new() };
        let mut out = Vec::new();
        WatchEventEncoder::error(&ClientError::from_proto(&status), &mut out);
        assert_eq!(memchr::memchr(b'\n', &out), Some(out.len() - 1));
        let line: Value = serde_json::from_slice(&out).unwrap();
        assert_eq!((&line["type"], &line["object"]["kind"]), (&"ERROR".into(), &"Status".into()));
        assert_eq!((&line["object"]["reason"], &line["object"]["code"]), (&"NotFound".into(), &404.into()));
    }
}
