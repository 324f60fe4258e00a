//! Objects of a resource under its own name: JSON with the envelope of gRPC, and the encoding of a watch as server-sent events.
//!
//! The id of an event is the position from which its client resumes: `VERSION;HISTORY`. Inside a batch the version is that before it,
//! and the change that the client received last follows: `VERSION;HISTORY;CHANGE VERSION;NAMESPACE/NAME`.

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::{BufMut, BytesMut};
use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use serde_json::{Value, json};

use super::{body::ListEncoder, encode::put_line, status::Failure};
use crate::{
    grpc::{LastChange, ListEnd},
    model::{Cause, Object, ObjectKey, ResourceVersion},
    proto::{self, BookmarkLines, LineEncoder, LineEvent, PayloadFormat, pb},
};

/// Form of the events of a watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct EventForm {
    pub(super) has_bodies: bool,
    /// True if events come in the order of the changes, so that the last one is a position inside a batch.
    pub(super) is_ordered: bool,
}

/// Encoder of the events of one history in one form.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct EventEncoder {
    pub(super) history: String,
    pub(super) form: EventForm,
}

/// Encoder of the objects of a list.
#[derive(Debug)]
pub(super) struct Documents {
    pub(super) has_bodies: bool,
}

/// Position from which a client resumes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct EventId {
    pub(super) version: ResourceVersion,
    /// History of the version; empty if it is not known.
    pub(super) history: String,
    /// Last change that the client received of the batch after the version.
    pub(super) last: Option<LastChange>,
}

/// Characters of a key that have a meaning in an id.
const ESCAPED: &AsciiSet = &CONTROLS.add(b'%').add(b'/').add(b';').add(b' ');

/// Appends an object with its envelope.
pub(super) fn put_object(
    object: &Object,
    version: &ResourceVersion,
    (payload, has_bodies): (PayloadFormat, bool),
    buffer: &mut BytesMut,
) {
    let key = object.key();
    buffer.put_slice(format!("{{\"name\":{}", json!(key.name())).as_bytes());
    let version = version.to_string();
    let (namespace, uid) = (key.namespace(), object.uid());
    for (name, text) in [
        ("namespace", namespace),
        ("uid", uid),
        ("resourceVersion", &version),
        ("apiVersion", object.api_version()),
        ("kind", object.kind()),
    ] {
        if !text.is_empty() {
            buffer.put_slice(format!(",\"{name}\":{}", json!(text)).as_bytes());
        }
    }
    let labels: serde_json::Map<String, Value> =
        object.labels().iter().map(|(key, value)| (key.to_owned(), json!(value))).collect();
    if !labels.is_empty() {
        buffer.put_slice(format!(",\"labels\":{}", Value::Object(labels)).as_bytes());
    }
    if has_bodies && payload != PayloadFormat::Metadata {
        if let Some(json) = object.json() {
            buffer.put_slice(b",\"body\":");
            buffer.put_slice(json);
        } else {
            let (media_type, raw) = (json!(object.media_type()), BASE64_STANDARD.encode(object.body()));
            buffer.put_slice(format!(",\"mediaType\":{media_type},\"raw\":\"{raw}\"").as_bytes());
        }
    }
    buffer.put_slice(b"}");
}

/// Appends the data of an event, which is one line.
fn put_data(buffer: &mut BytesMut, write: impl FnOnce(&mut BytesMut)) {
    buffer.put_slice(b"data: ");
    put_line(buffer, write);
    buffer.put_slice(b"\n\n");
}

// === impl EventId ===

impl EventId {
    /// Parses a version, or the id of an event.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, ';');
        let version = parts.next()?.parse().ok()?;
        let history = parts.next().unwrap_or_default().to_owned();
        let last = match (parts.next(), parts.next()) {
            (None, _) => None,
            (Some(version), Some(key)) => Some(LastChange { version: version.parse().ok()?, key: parse_key(key)? }),
            (Some(_), None) => return None,
        };
        Some(Self { version, history, last })
    }
}

fn parse_key(text: &str) -> Option<ObjectKey> {
    let (namespace, name) = text.split_once('/')?;
    let decode = |text| percent_decode_str(text).decode_utf8().ok();
    ObjectKey::new(&decode(namespace)?, &decode(name)?).ok()
}

// === impl EventEncoder ===

impl EventEncoder {
    /// Appends the id of an event after which a client resumes from a version.
    fn put_id(&self, version: &ResourceVersion, event: &LineEvent<'_>, buffer: &mut BytesMut) {
        let LineEvent { object, change_version, .. } = event;
        let history = &self.history;
        buffer.put_slice(format!("id: {version};{history}").as_bytes());
        if self.form.is_ordered && version < change_version {
            let key = object.key();
            let [namespace, name] = [key.namespace(), key.name()].map(|text| utf8_percent_encode(text, ESCAPED));
            buffer.put_slice(format!(";{change_version};{namespace}/{name}").as_bytes());
        }
        buffer.put_slice(b"\n");
    }

    fn put_named(name: &str, id: Option<String>, data: &Value, buffer: &mut BytesMut) {
        buffer.put_slice(format!("event: {name}\n").as_bytes());
        if let Some(id) = id {
            buffer.put_slice(format!("id: {id}\n").as_bytes());
        }
        put_data(buffer, |buffer| buffer.put_slice(data.to_string().as_bytes()));
    }
}

impl LineEncoder for EventEncoder {
    fn event(&self, event: &LineEvent<'_>, buffer: &mut BytesMut) {
        let LineEvent { event_type, cause, object, change_version, safe_version, coalesced, payload, .. } = *event;
        if let Some(version) = safe_version {
            self.put_id(version, event, buffer);
        }
        put_data(buffer, |buffer| {
            buffer.put_slice(format!("{{\"type\":\"{}\"", event_type.name()).as_bytes());
            if cause != Cause::Change {
                let cause = proto::cause(cause).as_str_name().trim_start_matches("CAUSE_");
                buffer.put_slice(format!(",\"cause\":\"{cause}\"").as_bytes());
            }
            if coalesced > 0 {
                buffer.put_slice(format!(",\"coalesced\":{coalesced}").as_bytes());
            }
            buffer.put_slice(b",\"object\":");
            put_object(object, change_version, (payload, self.form.has_bodies), buffer);
            buffer.put_slice(b"}");
        });
    }

    fn message(&self, message: &pb::WatchResponse, _: BookmarkLines, buffer: &mut BytesMut) {
        let version = &message.resource_version;
        // Before the end of the initial events there is no version to resume from.
        let id = (!version.is_empty()).then(|| format!("{version};{}", self.history));
        let event_type = if message.dropped.is_some() { "DROPPED" } else { "BOOKMARK" };
        let mut data = json!({ "type": event_type, "resourceVersion": version });
        if let Some(dropped) = &message.dropped {
            let after = &dropped.after_resource_version;
            (data["count"], data["afterResourceVersion"]) = (json!(dropped.count), json!(after));
            return Self::put_named("dropped", id, &data, buffer);
        }
        if let Some(bookmark) = message.bookmark.as_ref().filter(|_| id.is_some()) {
            let source = bookmark.source().as_str_name().trim_start_matches("SYNC_STATE_");
            data["source"] = json!(source);
            for (name, is_so) in [("initialEventsEnd", bookmark.initial_events_end), ("relisted", message.relisted)] {
                if is_so {
                    data[name] = json!(true);
                }
            }
            return Self::put_named("bookmark", id, &data, buffer);
        }
        if let Some(failure) = Failure::of_watch(message) {
            Self::put_named("error", None, &failure.to_json(), buffer);
        }
    }
}

// === impl Documents ===

impl ListEncoder for Documents {
    fn head(&self, buffer: &mut BytesMut) {
        buffer.put_slice(b"{\"objects\":[");
    }

    fn item(&self, object: &Object, payload: PayloadFormat, buffer: &mut BytesMut) {
        put_object(object, object.version(), (payload, self.has_bodies), buffer);
    }

    fn end(&self, ListEnd { version, next, remaining }: &ListEnd, buffer: &mut BytesMut) {
        buffer.put_slice(format!("],\"resourceVersion\":\"{version}\"").as_bytes());
        if let Some(next) = next {
            buffer.put_slice(format!(",\"continue\":{}", json!(next)).as_bytes());
        }
        if let Some(remaining) = remaining {
            buffer.put_slice(format!(",\"remainingItemCount\":{remaining}").as_bytes());
        }
        buffer.put_slice(b"}");
    }
}

#[cfg(test)]
mod tests;
