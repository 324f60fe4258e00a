//! Encoding of objects for clients of Kubernetes.
//!
//! `metadata` has the version of the object, or that of its deletion, and the name and namespace under which it is served. The uid is
//! that of its writer, as the tests of Kubernetes' storage have it, and the served one of an object without. An object alone and that
//! of a watch have a type; an item of a list has none: clients that compare the two forms of an object would find a difference.
//! (Metadata of an API server has a type in JSON, and none in protobuf, which client-go gets.)

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Weak},
    time::SystemTime,
};

use bytes::{BufMut, BytesMut};
use parking_lot::Mutex;
use serde_json::{json, value::RawValue};

use super::{body::ListEncoder, status::Failure, table};
use crate::{
    grpc::ListEnd,
    model::{ApiKind, Object, Pairs, ResourceVersion, Shard},
    proto::{BookmarkLines, LineEncoder, LineEvent, PayloadFormat, pb},
};

/// Form of objects in responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Form {
    Object,
    /// `PartialObjectMetadata`.
    Metadata,
    Table(Include),
}

/// Part of the object that a row of a table has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Include {
    None,
    Metadata,
    Object,
}

/// Encoder of the objects of one kind in one form.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Encoder {
    kind: ApiKind,
    api_version: String,
    form: Form,
    /// Shard that lists name.
    shard: Option<String>,
}

/// Encoders of open watches by the id of the resource's calls and the form: those with the same share one, and so their lines.
#[derive(Debug)]
pub(super) struct Encoders<F, E>(Mutex<HashMap<(u64, F), Weak<E>>>);

/// Key of the annotation at the end of the initial events.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";
const META: &str = "meta.k8s.io/v1";
const PARTIAL: &str = "PartialObjectMetadata";
/// Fields of `metadata` that are written anew.
const OWN_METADATA: [&str; 3] = ["name", "namespace", "resourceVersion"];

// === impl Encoders ===

impl<F: Copy + Eq + Hash, E: PartialEq> Encoders<F, E> {
    /// Returns the encoder that is equal to this one, if there is one.
    pub(super) fn share(&self, (resource, form): (u64, F), encoder: E) -> Arc<E> {
        let mut encoders = self.0.lock();
        let known = encoders.get(&(resource, form)).and_then(Weak::upgrade);
        if let Some(known) = known.filter(|known| **known == encoder) {
            return known;
        }
        encoders.retain(|_, encoder| encoder.strong_count() > 0);
        let encoder = Arc::new(encoder);
        encoders.insert((resource, form), Arc::downgrade(&encoder));
        encoder
    }
}

impl<F, E> Default for Encoders<F, E> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

// === impl Encoder ===

impl Encoder {
    pub(super) fn new(kind: ApiKind, form: Form) -> Self {
        Self { api_version: kind.api_version(), kind, form, shard: None }
    }

    /// Returns the encoder of a list that is a shard.
    pub(super) fn of_shard(self, shard: Option<&Shard>) -> Self {
        Self { shard: shard.map(ToString::to_string), ..self }
    }

    /// Appends an object that stands alone.
    pub(super) fn object(&self, object: &Object, payload: PayloadFormat, buffer: &mut BytesMut) {
        self.alone(object, object.version(), payload, buffer);
    }

    fn alone(&self, object: &Object, version: &ResourceVersion, payload: PayloadFormat, buffer: &mut BytesMut) {
        match self.form {
            Form::Object => self.whole(object, version, true, buffer),
            Form::Metadata => partial(object, version, payload, true, buffer),
            Form::Table(_) => {
                self.list_head(buffer);
                self.row(object, version, payload, buffer);
                Self::list_end(&ListEnd { version: version.clone(), next: None, remaining: None }, None, buffer);
            }
        }
    }

    /// Appends what is before the items of a list.
    fn list_head(&self, buffer: &mut BytesMut) {
        let Self { kind: ApiKind { kind, .. }, api_version, form, .. } = self;
        let head = match form {
            Form::Object => {
                format!("{{\"kind\":{},\"apiVersion\":{},\"items\":[", json!(format!("{kind}List")), json!(api_version))
            }
            Form::Metadata => format!("{{\"kind\":\"{PARTIAL}List\",\"apiVersion\":\"{META}\",\"items\":["),
            Form::Table(_) => {
                let columns = table::definitions(&self.kind);
                format!("{{\"kind\":\"Table\",\"apiVersion\":\"{META}\",\"columnDefinitions\":{columns},\"rows\":[")
            }
        };
        buffer.put_slice(head.as_bytes());
    }

    /// Appends what is behind the items of a list.
    fn list_end(end: &ListEnd, shard: Option<&str>, buffer: &mut BytesMut) {
        let ListEnd { version, next, remaining } = end;
        let mut metadata = json!({ "resourceVersion": version.to_string() });
        if let Some(next) = next {
            metadata["continue"] = json!(next);
        }
        if let Some(remaining) = remaining {
            metadata["remainingItemCount"] = json!(remaining);
        }
        if let Some(shard) = shard {
            metadata["shardInfo"] = json!({ "selector": shard });
        }
        buffer.put_slice(format!("],\"metadata\":{metadata}}}").as_bytes());
    }

    fn whole(&self, object: &Object, version: &ResourceVersion, is_typed: bool, buffer: &mut BytesMut) {
        let Self { kind, api_version, .. } = self;
        buffer.put_slice(b"{");
        if is_typed {
            let typed = format!("\"kind\":{},\"apiVersion\":{},", json!(kind.kind), json!(api_version));
            buffer.put_slice(typed.as_bytes());
        }
        buffer.put_slice(b"\"metadata\":");
        let Some(fields) = object.json().and_then(Fields::parse) else {
            metadata(object, version, None, buffer);
            buffer.put_slice(b",\"data\":");
            put_data(object, buffer);
            buffer.put_slice(b"}");
            return;
        };
        metadata(object, version, fields.get("metadata"), buffer);
        for (key, value) in &*fields {
            if !["kind", "apiVersion", "metadata"].contains(&&**key) {
                put_field(key, value, buffer);
            }
        }
        buffer.put_slice(b"}");
    }

    fn row(&self, object: &Object, version: &ResourceVersion, payload: PayloadFormat, buffer: &mut BytesMut) {
        let json = object.json().unwrap_or_default();
        let (cells, conditions) = table::row(&self.kind, object.key().name(), json, SystemTime::now());
        buffer.put_slice(format!("{{\"cells\":{cells}").as_bytes());
        if let Some(conditions) = conditions {
            buffer.put_slice(format!(",\"conditions\":{conditions}").as_bytes());
        }
        buffer.put_slice(b",\"object\":");
        match self.form {
            Form::Table(Include::None) => buffer.put_slice(b"null"),
            Form::Table(Include::Object) => self.whole(object, version, true, buffer),
            _ => partial(object, version, payload, true, buffer),
        }
        buffer.put_slice(b"}");
    }

    fn bookmark(&self, version: &str, is_end: bool) -> serde_json::Value {
        let mut metadata = json!({ "resourceVersion": version, "creationTimestamp": null });
        if is_end {
            metadata["annotations"] = json!({ INITIAL_EVENTS_END: "true" });
        }
        let whole = || json!({ "kind": self.kind.kind, "apiVersion": self.api_version, "metadata": metadata });
        let partial = || json!({ "kind": PARTIAL, "apiVersion": META, "metadata": metadata });
        let object = match self.form {
            Form::Object => return whole(),
            Form::Metadata => return partial(),
            Form::Table(Include::Object) => whole(),
            Form::Table(Include::None) if !is_end => serde_json::Value::Null,
            // As at an API server: the metadata of a table has no annotations.
            Form::Table(_) => partial(),
        };
        let (cells, _) = table::row(&self.kind, "", b"", SystemTime::now());
        let (metadata, rows) = (json!({ "resourceVersion": version }), json!([{ "cells": cells, "object": object }]));
        json!({ "kind": "Table", "apiVersion": META, "metadata": metadata, "columnDefinitions": [], "rows": rows })
    }
}

impl ListEncoder for Encoder {
    fn head(&self, buffer: &mut BytesMut) {
        self.list_head(buffer);
    }

    fn item(&self, object: &Object, payload: PayloadFormat, buffer: &mut BytesMut) {
        match self.form {
            Form::Object => self.whole(object, object.version(), false, buffer),
            Form::Metadata => partial(object, object.version(), payload, false, buffer),
            Form::Table(_) => self.row(object, object.version(), payload, buffer),
        }
    }

    fn end(&self, end: &ListEnd, buffer: &mut BytesMut) {
        Self::list_end(end, self.shard.as_deref(), buffer);
    }
}

impl LineEncoder for Encoder {
    fn event(&self, event: &LineEvent<'_>, buffer: &mut BytesMut) {
        let LineEvent { event_type, object, version, payload, .. } = *event;
        put_line(buffer, |buffer| {
            buffer.put_slice(format!("{{\"type\":\"{}\",\"object\":", event_type.name()).as_bytes());
            self.alone(object, version, payload, buffer);
            buffer.put_slice(b"}");
        });
        buffer.put_slice(b"\n");
    }

    fn message(&self, message: &pb::WatchResponse, bookmarks: BookmarkLines, buffer: &mut BytesMut) {
        let line = match (&message.bookmark, Failure::of_watch(message)) {
            (_, Some(failure)) => failure.to_event(),
            // Before the end of the initial events there is no version to resume from.
            (Some(bookmark), None) if bookmarks.is_wanted && !message.resource_version.is_empty() => {
                let is_end = bookmark.initial_events_end && bookmarks.marks_end;
                json!({ "type": "BOOKMARK", "object": self.bookmark(&message.resource_version, is_end) })
            }
            _ => return,
        };
        buffer.put_slice(line.to_string().as_bytes());
        buffer.put_slice(b"\n");
    }
}

/// Fields of a JSON map in their order, with their values as they are written.
type Fields<'a> = Pairs<'a, &'a RawValue>;

// === impl Fields ===

impl<'a> Fields<'a> {
    fn parse(json: &'a [u8]) -> Option<Self> {
        serde_json::from_slice(json).ok()
    }

    fn get(&self, key: &str) -> Option<&'a RawValue> {
        // Of two fields with the same name the last counts, as for every reader of JSON here.
        self.iter().rfind(|(found, _)| &**found == key).map(|(_, value)| *value)
    }
}

fn put_field(key: &str, value: &RawValue, buffer: &mut BytesMut) {
    buffer.put_slice(b",");
    buffer.put_slice(json!(key).to_string().as_bytes());
    buffer.put_slice(b":");
    buffer.put_slice(value.get().as_bytes());
}

/// Appends JSON as one line: between the tokens of JSON, the end of a line means what a blank means.
pub(super) fn put_line(buffer: &mut BytesMut, write: impl FnOnce(&mut BytesMut)) {
    let start = buffer.len();
    write(buffer);
    for byte in &mut buffer[start..] {
        if [b'\n', b'\r'].contains(byte) {
            *byte = b' ';
        }
    }
}

/// Appends a body that is no JSON map as a value.
fn put_data(object: &Object, buffer: &mut BytesMut) {
    match object.json() {
        Some(json) => buffer.put_slice(json),
        None => buffer.put_slice(json!(String::from_utf8_lossy(object.body())).to_string().as_bytes()),
    }
}

/// Appends the metadata of an object, with the rest of that of its body.
fn metadata(object: &Object, version: &ResourceVersion, of_body: Option<&RawValue>, buffer: &mut BytesMut) {
    let key = object.key();
    buffer.put_slice(format!("{{\"name\":{}", json!(key.name())).as_bytes());
    if !key.namespace().is_empty() {
        buffer.put_slice(format!(",\"namespace\":{}", json!(key.namespace())).as_bytes());
    }
    buffer.put_slice(format!(",\"resourceVersion\":\"{version}\"").as_bytes());
    let fields = of_body.and_then(|raw| Fields::parse(raw.get().as_bytes()));
    let rest = fields.iter().flat_map(|fields| &**fields);
    let rest: Vec<_> = rest.filter(|(key, _)| !OWN_METADATA.contains(&&**key)).collect();
    if !object.uid().is_empty() && !rest.iter().any(|(key, _)| &**key == "uid") {
        buffer.put_slice(format!(",\"uid\":{}", json!(object.uid())).as_bytes());
    }
    for (key, value) in rest {
        put_field(key, value, buffer);
    }
    buffer.put_slice(b"}");
}

/// Appends a `PartialObjectMetadata`. A caller that may read METADATA only gets the labels and nothing else of the body.
fn partial(object: &Object, version: &ResourceVersion, payload: PayloadFormat, is_typed: bool, buffer: &mut BytesMut) {
    buffer.put_slice(b"{");
    if is_typed {
        buffer.put_slice(format!("\"kind\":\"{PARTIAL}\",\"apiVersion\":\"{META}\",").as_bytes());
    }
    buffer.put_slice(b"\"metadata\":");
    let labels: serde_json::Map<String, serde_json::Value> =
        object.labels().iter().map(|(key, value)| (key.to_owned(), json!(value))).collect();
    let of_body = if payload == PayloadFormat::Metadata {
        serde_json::value::to_raw_value(&json!({ "labels": labels })).ok()
    } else {
        object.json().and_then(Fields::parse).and_then(|fields| fields.get("metadata").map(ToOwned::to_owned))
    };
    metadata(object, version, of_body.as_deref(), buffer);
    buffer.put_slice(b"}");
}

#[cfg(test)]
mod tests;
