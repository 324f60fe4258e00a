//! Direct encoding of objects and events from the model: the same bytes as from the generated messages, without building those,
//! which would cost an allocation for each of their strings.

use std::{borrow::Cow, sync::Arc};

use bytes::{BufMut, Bytes};
use compact_str::{CompactString, ToCompactString};
use prost::{
    Message,
    encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len},
};
use prost_types::Struct;

use super::{ObjectFormat, PayloadFormat, Structs, json};
use crate::{
    model::{Cause, EventType, Object, ResourceVersion},
    proto,
};

/// Encoder of an object in one format, with the same result as the message of [`super::object`].
#[derive(Debug)]
pub struct EncodedObject<'a> {
    object: &'a Object,
    version: CompactString,
    body: Body<'a>,
    len: usize,
}

#[derive(Debug)]
enum Body<'a> {
    None,
    Raw(Cow<'a, [u8]>),
    Struct(Struct),
    EncodedStruct(Bytes),
}

/// Encoder of one event as a `WatchResponse`.
#[derive(Debug)]
pub struct EncodedEvent<'a> {
    event_type: i32,
    /// Version to resume from; empty if there is none.
    version: CompactString,
    object: EncodedObject<'a>,
    cause: i32,
    coalesced: u32,
    relisted: bool,
    open: bool,
}

/// Field numbers of `Object`.
mod field {
    pub(super) const NAMESPACE: u32 = 1;
    pub(super) const NAME: u32 = 2;
    pub(super) const UID: u32 = 3;
    pub(super) const RESOURCE_VERSION: u32 = 4;
    pub(super) const LABELS: u32 = 5;
    pub(super) const API_VERSION: u32 = 6;
    pub(super) const KIND: u32 = 7;
    pub(super) const MEDIA_TYPE: u32 = 8;
    pub(super) const STRUCT: u32 = 10;
    pub(super) const RAW: u32 = 11;
}

/// Field numbers of `WatchResponse`.
mod event_field {
    pub(super) const TYPE: u32 = 1;
    pub(super) const RESOURCE_VERSION: u32 = 2;
    pub(super) const OBJECT: u32 = 3;
    pub(super) const CAUSE: u32 = 4;
    pub(super) const COALESCED: u32 = 8;
    pub(super) const RELISTED: u32 = 9;
    pub(super) const OPEN: u32 = 10;
}

// === impl EncodedObject ===

impl<'a> EncodedObject<'a> {
    /// Creates the encoder of an object at `version`: its own, or that of the event that removes it.
    pub fn new(object: &'a Object, version: &ResourceVersion, format: &ObjectFormat) -> Self {
        Self::with_struct(object, version, format, || json::of(object).map(Body::Struct))
    }

    /// Creates the same encoder for an object that many clients receive: it uses the cache of STRUCT bodies.
    pub fn shared(
        object: &'a Arc<Object>,
        version: &ResourceVersion,
        format: &ObjectFormat,
        structs: &Structs,
    ) -> Self {
        Self::with_struct(object, version, format, || structs.get(object).map(Body::EncodedStruct))
    }

    fn with_struct(
        object: &'a Object,
        version: &ResourceVersion,
        format: &ObjectFormat,
        make: impl FnOnce() -> Option<Body<'a>>,
    ) -> Self {
        #[cfg(test)]
        crate::model::work::add(if format.view.is_some() || format.payload == PayloadFormat::Struct {
            object.body().len()
        } else {
            0
        });
        let raw = || Body::Raw(object.body().into());
        let body = match (&format.view, format.payload) {
            (_, PayloadFormat::Metadata) => Body::None,
            (Some(view), payload) => match view.body(object.body(), object.media_type()) {
                None => Body::None,
                Some(body) if payload == PayloadFormat::Raw => Body::Raw(body),
                Some(body) => json::to_struct(&body, object.max_body_bytes()).map_or(Body::Raw(body), Body::Struct),
            },
            (None, PayloadFormat::Raw) => raw(),
            (None, PayloadFormat::Struct) => make().unwrap_or_else(raw),
        };
        let version = version.to_compact_string();
        let labels: usize = object.labels().iter().map(|label| bytes_len(field::LABELS, label_len(label))).sum();
        let len = object.strings(&version).map(|(tag, text)| text_len(tag, text)).into_iter().sum::<usize>()
            + labels
            + match &body {
                Body::None => 0,
                Body::Raw(bytes) => bytes_len(field::RAW, bytes.len()),
                Body::Struct(fields) => bytes_len(field::STRUCT, fields.encoded_len()),
                Body::EncodedStruct(bytes) => bytes_len(field::STRUCT, bytes.len()),
            };
        Self { object, version, body, len }
    }

    /// Returns the encoded length as a field of another message.
    pub fn field_len(&self, tag: u32) -> usize {
        bytes_len(tag, self.len)
    }

    /// Appends the object as a field of another message.
    pub fn write(&self, tag: u32, buffer: &mut impl BufMut) {
        let Self { object, version, body, len } = self;
        begin(tag, *len, buffer);
        for (tag, text) in object.strings(version) {
            if tag == field::LABELS + 1 {
                for label in object.labels().iter() {
                    begin(field::LABELS, label_len(label), buffer);
                    put_text(1, label.0, buffer);
                    put_text(2, label.1, buffer);
                }
            }
            put_text(tag, text, buffer);
        }
        match body {
            Body::None => {}
            Body::Raw(bytes) => {
                begin(field::RAW, bytes.len(), buffer);
                buffer.put_slice(bytes);
            }
            Body::Struct(fields) => {
                begin(field::STRUCT, fields.encoded_len(), buffer);
                fields.encode_raw(buffer);
            }
            Body::EncodedStruct(bytes) => {
                begin(field::STRUCT, bytes.len(), buffer);
                buffer.put_slice(bytes);
            }
        }
    }
}

impl Object {
    /// Returns the text fields in order; the labels come between them.
    fn strings<'a>(&'a self, version: &'a str) -> [(u32, &'a str); 7] {
        [
            (field::NAMESPACE, self.key().namespace()),
            (field::NAME, self.key().name()),
            (field::UID, self.uid()),
            (field::RESOURCE_VERSION, version),
            (field::API_VERSION, self.api_version()),
            (field::KIND, self.kind()),
            (field::MEDIA_TYPE, self.media_type()),
        ]
    }
}

// === impl EncodedEvent ===

impl<'a> EncodedEvent<'a> {
    /// Creates the encoder of an event. `version` is the one to resume from after the event; none if there is none yet.
    pub fn new(
        event_type: EventType,
        cause: Cause,
        version: Option<&ResourceVersion>,
        object: EncodedObject<'a>,
        coalesced: u32,
    ) -> Self {
        let version = version.map(ToCompactString::to_compact_string).unwrap_or_default();
        let (event_type, cause) = (proto::event_type(event_type).into(), proto::cause(cause).into());
        Self { event_type, version, object, cause, coalesced, relisted: false, open: false }
    }

    /// Sets the flags of the event's batch: it follows a relist, or it is open.
    #[must_use]
    pub fn in_batch(self, relisted: bool, open: bool) -> Self {
        Self { relisted, open, ..self }
    }

    /// Returns the encoded length of the message.
    pub fn len(&self) -> usize {
        let Self { event_type, version, object, cause, coalesced, relisted, open } = self;
        uint_len(event_field::TYPE, *event_type as u64)
            + text_len(event_field::RESOURCE_VERSION, version)
            + object.field_len(event_field::OBJECT)
            + uint_len(event_field::CAUSE, *cause as u64)
            + uint_len(event_field::COALESCED, u64::from(*coalesced))
            + uint_len(event_field::RELISTED, u64::from(*relisted))
            + uint_len(event_field::OPEN, u64::from(*open))
    }

    /// Returns false: an event always has a type.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Appends the message.
    pub fn write(&self, buffer: &mut impl BufMut) {
        put_uint(event_field::TYPE, self.event_type as u64, buffer);
        put_text(event_field::RESOURCE_VERSION, &self.version, buffer);
        self.object.write(event_field::OBJECT, buffer);
        put_uint(event_field::CAUSE, self.cause as u64, buffer);
        put_uint(event_field::COALESCED, u64::from(self.coalesced), buffer);
        put_uint(event_field::RELISTED, u64::from(self.relisted), buffer);
        put_uint(event_field::OPEN, u64::from(self.open), buffer);
    }
}

// Fields with their default value are omitted, as in proto3.

fn bytes_len(tag: u32, len: usize) -> usize {
    key_len(tag) + encoded_len_varint(len as u64) + len
}

fn text_len(tag: u32, text: &str) -> usize {
    if text.is_empty() { 0 } else { bytes_len(tag, text.len()) }
}

fn uint_len(tag: u32, value: u64) -> usize {
    if value == 0 { 0 } else { key_len(tag) + encoded_len_varint(value) }
}

fn label_len((key, value): (&str, &str)) -> usize {
    text_len(1, key) + text_len(2, value)
}

fn begin(tag: u32, len: usize, buffer: &mut impl BufMut) {
    encode_key(tag, WireType::LengthDelimited, buffer);
    encode_varint(len as u64, buffer);
}

fn put_text(tag: u32, text: &str, buffer: &mut impl BufMut) {
    if !text.is_empty() {
        begin(tag, text.len(), buffer);
        buffer.put_slice(text.as_bytes());
    }
}

fn put_uint(tag: u32, value: u64, buffer: &mut impl BufMut) {
    if value != 0 {
        encode_key(tag, WireType::Varint, buffer);
        encode_varint(value, buffer);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;

    use super::*;
    use crate::proto::pb;

    fn objects() -> impl Strategy<Value = Object> {
        let text = || prop_oneof![Just(String::new()), "[a-zäß]{1,9}", "[a-z]{130}"];
        let labels = proptest::collection::btree_map(text(), text(), 0..4);
        (text(), text(), text(), text(), labels, "[a-z0-9]{0,300}").prop_map(
            |(namespace, uid, kind, api, labels, x)| {
                let json = serde_json::json!({
                    "kind": kind, "apiVersion": api, "x": x,
                    "metadata": { "namespace": namespace, "name": "n", "uid": uid, "labels": labels },
                });
                let body = if x.len() % 7 == 0 { Bytes::from_static(b"[1]") } else { Bytes::from(json.to_string()) };
                Object::from_json(body, "default", ResourceVersion::decimal(x.len() as u128)).unwrap()
            },
        )
    }

    proptest! {
        #![proptest_config(crate::property_config())]

        #[test]
        fn written_bytes_equal_the_encoded_message(
            object in objects(),
            at in prop_oneof![Just(0u128), any::<u128>()],
            format in prop_oneof![
                Just(PayloadFormat::Raw), Just(PayloadFormat::Metadata), Just(PayloadFormat::Struct)
            ],
            coalesced in prop_oneof![Just(0u32), any::<u32>()],
            has_version: bool,
            (relisted, open) in any::<(bool, bool)>(),
        ) {
            let at = ResourceVersion::decimal(at);
            let version = has_version.then_some(&at);
            let (event_type, cause) = (EventType::Deleted, if has_version { Cause::LeftSelection } else { Cause::Change });
            let message = pb::WatchResponse {
                r#type: proto::event_type(event_type).into(),
                resource_version: version.map(ToString::to_string).unwrap_or_default(),
                object: Some(proto::object(&object, &at, format)),
                cause: proto::cause(cause).into(),
                coalesced,
                relisted,
                open,
                ..Default::default()
            };
            let raw = EncodedObject::new(&object, object.version(), &PayloadFormat::Raw.into());
            prop_assert!(raw.field_len(u32::MAX >> 3) <= object.max_raw_len());
            let encoded = EncodedObject::new(&object, &at, &format.into());
            let event = EncodedEvent::new(event_type, cause, version, encoded, coalesced).in_batch(relisted, open);
            let mut written = Vec::new();
            event.write(&mut written);
            prop_assert_eq!(event.len(), written.len());
            prop_assert_eq!(&written, &message.encode_to_vec());
            let shared = Arc::new(object);
            let shared = EncodedObject::shared(&shared, &at, &format.into(), &Structs::new(1 << 10));
            let event = EncodedEvent::new(event_type, cause, version, shared, coalesced).in_batch(relisted, open);
            let mut again = Vec::new();
            event.write(&mut again);
            prop_assert_eq!((event.len(), &written), (again.len(), &again));
        }
    }
}
