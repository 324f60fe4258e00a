//! Generated messages, and their conversions from and to the model, which only this module does.

use std::{collections::BTreeMap, time::SystemTime};

use bytes::Bytes;
use prost_types::{Struct, Timestamp, Value, value::Kind};

use crate::{
    cache::SyncState,
    model::{
        Cause, Evaluations, EventType, JSON, Namespaces, Object, ObjectKey, ObjectParts, Path, ResourceVersion, Shard,
        ShardError, ShardKey, ShardRange, View,
    },
    watch::FullChannelPolicy,
};

mod encode;
mod json;
mod lines;
mod object_cache;
mod structs;
mod time;

pub use encode::{EncodedEvent, EncodedObject};
pub use lines::{BookmarkLines, LineEncoder, LineEvent, LineFormat};
#[cfg(feature = "server")]
pub(crate) use object_cache::{ObjectCache, Weighed};
pub use structs::Structs;
pub use time::{duration, duration_message, system_time};

/// Generated messages, clients and servers of `informerd.v1`.
#[allow(
    missing_docs,
    missing_debug_implementations,
    unreachable_pub,
    clippy::large_enum_variant,
    clippy::pedantic,
    clippy::unwrap_used,
    reason = "generated code; the proto documents it"
)]
pub mod pb {
    include!("../proto/generated/informerd.v1.rs");

    /// File descriptors of our proto and its imports, and of google.rpc's error details; reflection serves them.
    pub const FILE_DESCRIPTOR_SET: &[u8] = include_bytes!("../proto/generated/descriptors.bin");
}

/// Format of an object's body in a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PayloadFormat {
    /// `google.protobuf.Struct`; a body that is not a JSON map, or is nested too deep for one, is sent raw.
    Struct,
    /// The bytes as the source delivered them.
    Raw,
    /// No body.
    Metadata,
}

/// Form of objects in messages.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ObjectFormat {
    /// Format of their bodies.
    pub payload: PayloadFormat,
    /// Part of their bodies; none for all.
    pub view: Option<View>,
    /// True if a MODIFIED is suppressed whose body and labels are those that the client has.
    pub only_if_changed: bool,
    /// Compression of the messages; none if they are sent as they are.
    pub compression: Option<Compression>,
    /// Encoding as lines of text, in place of messages.
    pub lines: Option<LineFormat>,
}

/// Compression of messages, one by one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Compression {
    /// DEFLATE with a checksum, which every client has.
    Gzip,
    /// Faster and smaller.
    #[cfg(feature = "zstd")]
    Zstd,
}

// === impl ObjectFormat ===

impl From<PayloadFormat> for ObjectFormat {
    /// Returns the form with whole bodies.
    fn from(payload: PayloadFormat) -> Self {
        Self { payload, view: None, only_if_changed: false, compression: None, lines: None }
    }
}

impl ObjectFormat {
    /// Returns true if a client that has one state of an object does not receive the other as MODIFIED.
    pub fn is_suppressed(&self, had: &Object, now: &Object) -> bool {
        let body = |object| match &self.view {
            Some(view) => view.body(Object::body(object), object.media_type()),
            None => Some(object.body().into()),
        };
        self.only_if_changed && had.uid() == now.uid() && had.labels() == now.labels() && body(had) == body(now)
    }
}

// === impl Compression ===

impl Compression {
    /// Every compression of this program.
    pub const ALL: &'static [Self] = &[
        #[cfg(feature = "zstd")]
        Self::Zstd,
        Self::Gzip,
    ];

    /// Returns the name in the headers `grpc-encoding` and `grpc-accept-encoding`, and in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            #[cfg(feature = "zstd")]
            Self::Zstd => "zstd",
        }
    }
}

// === impl PayloadFormat ===

impl PayloadFormat {
    /// Returns the format that a request names; `None` for one that this server does not support.
    pub fn from_proto(format: i32) -> Option<Self> {
        Some(match pb::PayloadFormat::try_from(format).ok()? {
            pb::PayloadFormat::Unspecified | pb::PayloadFormat::Struct => Self::Struct,
            pb::PayloadFormat::Raw => Self::Raw,
            pb::PayloadFormat::Metadata => Self::Metadata,
        })
    }
}

/// Converts a format.
pub fn payload_format(format: PayloadFormat) -> pb::PayloadFormat {
    match format {
        PayloadFormat::Struct => pb::PayloadFormat::Struct,
        PayloadFormat::Raw => pb::PayloadFormat::Raw,
        PayloadFormat::Metadata => pb::PayloadFormat::Metadata,
    }
}

/// Converts the shard of a request.
pub fn shard(shard: &pb::Shard) -> Result<Shard, ShardError> {
    let ranges: Vec<_> = shard.ranges.iter().map(|range| (range.start, range.end)).collect();
    Shard::new(ShardKey::parse(&shard.key)?, &ranges)
}

impl From<&Shard> for pb::Shard {
    fn from(shard: &Shard) -> Self {
        // The end after the last hash is 0.
        let range = |range: &ShardRange| pb::ShardRange { start: range.first(), end: range.last().wrapping_add(1) };
        Self { key: shard.key().as_str().to_owned(), ranges: shard.ranges().iter().map(range).collect() }
    }
}

impl From<&View> for pb::View {
    fn from(view: &View) -> Self {
        let texts = |paths: &[Path]| paths.iter().map(ToString::to_string).collect();
        Self { fields: texts(view.fields()), drop: texts(view.dropped()), ..Self::default() }
    }
}

/// Media type of bodies other than JSON, the same at every origin.
const BYTES: &str = "application/octet-stream";

/// Converts an object to a message in one format, at `version`: its own, or that of the event that removes it.
pub fn object(object: &Object, version: &ResourceVersion, format: PayloadFormat) -> pb::Object {
    pb::Object {
        namespace: object.key().namespace().to_owned(),
        name: object.key().name().to_owned(),
        uid: object.uid().to_owned(),
        resource_version: version.to_string(),
        labels: object.labels().iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
        api_version: object.api_version().to_owned(),
        kind: object.kind().to_owned(),
        media_type: object.media_type().to_owned(),
        body: body(object, format),
    }
}

/// Converts a message with a RAW body, or without one, to an object, whatever its size.
///
/// # Errors
///
/// The problem: a key or a version that is not valid, or a media type of a newer server.
pub fn model_object(object: pb::Object) -> Result<Object, String> {
    let key = ObjectKey::new(&object.namespace, &object.name).map_err(|error| error.to_string())?;
    let version: ResourceVersion = object.resource_version.parse().map_err(|error| format!("{error}"))?;
    let (body, media_type) = match object.body {
        Some(pb::object::Body::Raw(body)) => (body, &*object.media_type),
        _ => (Bytes::new(), BYTES),
    };
    let media_type = [JSON, BYTES].into_iter().find(|known| *known == media_type);
    let media_type =
        media_type.ok_or_else(|| format!("unsupported media type {:?}; use a newer informerd", object.media_type))?;
    let labels: BTreeMap<_, _> = object.labels.into_iter().collect();
    // In nearly every case the body contains all of it, and the object needs no memory of its own for the rest.
    if media_type == JSON
        && let Ok(read) = Object::from_json_of(key.clone(), &object.uid, &body, version.clone())
        && (read.api_version(), read.kind()) == (&*object.api_version, &*object.kind)
        && read.labels().iter().eq(labels.iter().map(|(key, value)| (&**key, &**value)))
    {
        return Ok(read);
    }
    let (uid, api_version, kind) = (object.uid, object.api_version, object.kind);
    Ok(Object::new(ObjectParts { key, uid, version, labels, api_version, kind, media_type, body }))
}

/// Converts an object with a RAW body to another format, with the same result as [`object`].
pub fn in_format(object: pb::Object, format: &ObjectFormat) -> pb::Object {
    let viewed = |bytes: Bytes| match &format.view {
        Some(view) => view.body(&bytes, &object.media_type).map(|body| Bytes::copy_from_slice(&body)),
        None => Some(bytes),
    };
    let labels = object.labels.iter().map(|(key, value)| key.len() + value.len());
    let texts = object.uid.len() + object.api_version.len() + object.kind.len();
    let max_bytes = Object::max_body_bytes_of(object.namespace.len() + object.name.len(), texts, labels);
    let body = match object.body {
        _ if format.payload == PayloadFormat::Metadata => None,
        Some(pb::object::Body::Raw(bytes)) => viewed(bytes).map(|bytes| {
            let is_struct = format.payload == PayloadFormat::Struct && object.media_type == "application/json";
            let fields = is_struct.then(|| json::to_struct(&bytes, max_bytes)).flatten();
            fields.map_or(pb::object::Body::Raw(bytes), pb::object::Body::Struct)
        }),
        body => body,
    };
    pb::Object { body, ..object }
}

/// Returns the approximate memory of an object's body, in bytes.
pub fn memory_of(object: &pb::Object) -> usize {
    match &object.body {
        None => 0,
        Some(pb::object::Body::Raw(bytes)) => bytes.len(),
        Some(pb::object::Body::Struct(fields)) => memory_of_fields(fields),
    }
}

fn memory_of_fields(Struct { fields }: &Struct) -> usize {
    // The nodes of the map have spare capacity.
    let entry = size_of::<(String, Value)>() * 4 / 3;
    fields.iter().map(|(name, value)| entry + name.len() + memory_of_value(value)).sum()
}

fn memory_of_value(value: &Value) -> usize {
    match &value.kind {
        Some(Kind::StringValue(text)) => text.len(),
        Some(Kind::StructValue(fields)) => memory_of_fields(fields),
        Some(Kind::ListValue(list)) => {
            list.values.iter().map(|value| size_of::<Value>() + memory_of_value(value)).sum()
        }
        Some(Kind::NullValue(_) | Kind::NumberValue(_) | Kind::BoolValue(_)) | None => 0,
    }
}

fn body(object: &Object, format: PayloadFormat) -> Option<pb::object::Body> {
    match format {
        PayloadFormat::Metadata => None,
        PayloadFormat::Raw => Some(pb::object::Body::Raw(object.shared_body())),
        PayloadFormat::Struct => {
            let fields = json::of(object);
            Some(fields.map_or_else(|| pb::object::Body::Raw(object.shared_body()), pb::object::Body::Struct))
        }
    }
}

/// Converts the type of an event.
pub fn event_type(event_type: EventType) -> pb::EventType {
    match event_type {
        EventType::Added => pb::EventType::Added,
        EventType::Modified => pb::EventType::Modified,
        EventType::Deleted => pb::EventType::Deleted,
    }
}

/// Converts the cause of an event.
pub fn cause(cause: Cause) -> pb::Cause {
    match cause {
        Cause::Change => pb::Cause::Unspecified,
        Cause::Initial => pb::Cause::Initial,
        Cause::EnteredSelection => pb::Cause::EnteredSelection,
        Cause::LeftSelection => pb::Cause::LeftSelection,
        Cause::Inferred => pb::Cause::Inferred,
        Cause::NotServed => pb::Cause::NotServed,
        Cause::Expired => pb::Cause::Expired,
    }
}

/// Converts the cause of a deletion; one of a newer server is a deletion like others.
pub fn deletion_cause(cause: pb::Cause) -> Cause {
    match cause {
        pb::Cause::LeftSelection => Cause::LeftSelection,
        pb::Cause::Inferred => Cause::Inferred,
        pb::Cause::NotServed => Cause::NotServed,
        pb::Cause::Expired => Cause::Expired,
        _ => Cause::Change,
    }
}

/// Converts the state of a source.
pub fn sync_state(state: SyncState) -> pb::SyncState {
    match state {
        SyncState::Syncing => pb::SyncState::Syncing,
        SyncState::Synced => pb::SyncState::Synced,
        SyncState::Stale => pb::SyncState::Stale,
    }
}

/// Converts a time, which is between the years 1970 and 9999 here.
pub fn timestamp(at: SystemTime) -> Timestamp {
    Timestamp::from(at)
}

/// Returns the failed evaluations of an expression as a message; none if there are none.
pub fn expression_errors(evaluations: &Evaluations) -> Option<pb::ExpressionErrors> {
    let &Evaluations { evaluated, failed, first: Some(ref first) } = evaluations else { return None };
    let (key, reason) = &**first;
    let first = pb::ObjectKey { namespace: key.namespace().to_owned(), name: key.name().to_owned() };
    Some(pb::ExpressionErrors { failed, evaluated, first: Some(first), first_reason: reason.clone() })
}

/// Converts the namespaces to which a caller's rights limit a response; empty if they do not.
pub fn namespaces(namespaces: Option<&Namespaces>) -> Vec<String> {
    namespaces.into_iter().flat_map(Namespaces::iter).map(str::to_owned).collect()
}

/// Returns the policy that a request names: `Ok(None)` for the server's default, a message for one that this server does not
/// support.
pub fn full_channel_policy(policy: i32) -> Result<Option<FullChannelPolicy>, String> {
    match pb::FullChannelPolicy::try_from(policy) {
        Ok(pb::FullChannelPolicy::Unspecified) => Ok(None),
        Ok(pb::FullChannelPolicy::Drop) => Ok(Some(FullChannelPolicy::Drop)),
        Ok(pb::FullChannelPolicy::Block) => Ok(Some(FullChannelPolicy::Block)),
        Ok(pb::FullChannelPolicy::Replay) => Ok(Some(FullChannelPolicy::Replay)),
        Ok(pb::FullChannelPolicy::Coalesce) => Ok(Some(FullChannelPolicy::Coalesce)),
        Err(_) => {
            let supported = "DROP (1), BLOCK (2), REPLAY (3), COALESCE (4)";
            Err(format!("unsupported value {policy}; supported: {supported}"))
        }
    }
}

/// Converts a policy.
pub fn full_channel_policy_name(policy: FullChannelPolicy) -> pb::FullChannelPolicy {
    match policy {
        FullChannelPolicy::Drop => pb::FullChannelPolicy::Drop,
        FullChannelPolicy::Block => pb::FullChannelPolicy::Block,
        FullChannelPolicy::Replay => pb::FullChannelPolicy::Replay,
        FullChannelPolicy::Coalesce => pb::FullChannelPolicy::Coalesce,
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn parse(json: &'static str) -> Object {
        Object::from_json(Bytes::from_static(json.as_bytes()), "x", ResourceVersion::decimal(7)).unwrap()
    }

    #[test]
    fn an_object_keeps_its_body_and_takes_the_version_it_is_given() {
        let model = parse(r#"{"kind":"Pod","metadata":{"name":"web","namespace":"shop","labels":{"a":"b"}}}"#);
        let object = object(&model, &ResourceVersion::decimal(9), PayloadFormat::Raw);
        assert_eq!((&*object.namespace, &*object.name, &*object.resource_version), ("shop", "web", "9"));
        assert_eq!(object.labels["a"], "b");
        assert_eq!(object.body, Some(pb::object::Body::Raw(model.shared_body())));
    }

    #[test]
    fn a_change_is_suppressed_if_uid_labels_and_viewed_body_stay() {
        let view = View::parse(&["spec.n"], &[]).unwrap();
        let format = ObjectFormat { view: Some(view), only_if_changed: true, ..PayloadFormat::Raw.into() };
        let had = parse(r#"{"metadata":{"name":"a","uid":"1","labels":{"a":"b"}},"spec":{"n":1,"m":1}}"#);
        for (now, is_suppressed) in [
            (r#"{"metadata":{"name":"a","uid":"1","labels":{"a":"b"}},"spec":{"n":1,"m":2}}"#, true),
            (r#"{"metadata":{"name":"a","uid":"1","labels":{"a":"b"}},"spec":{"n":1.0,"m":1}}"#, false),
            (r#"{"metadata":{"name":"a","uid":"1","labels":{"a":"c"}},"spec":{"n":1,"m":1}}"#, false),
            (r#"{"metadata":{"name":"a","uid":"2","labels":{"a":"b"}},"spec":{"n":1,"m":1}}"#, false),
        ] {
            assert_eq!(format.is_suppressed(&had, &parse(now)), is_suppressed, "{now}");
            let always = ObjectFormat { only_if_changed: false, ..format.clone() };
            assert!(!always.is_suppressed(&had, &parse(now)));
        }
        let whole = ObjectFormat { only_if_changed: true, ..PayloadFormat::Raw.into() };
        assert!(whole.is_suppressed(&had, &had.at_version(ResourceVersion::decimal(9))));
        assert!(!whole.is_suppressed(&parse("[1]"), &parse("[2]")));
        assert!(format.is_suppressed(&parse("[1]"), &parse("[2]")), "both are left out");
    }

    #[test]
    fn a_body_that_is_not_a_map_is_sent_raw_and_metadata_has_none() {
        let model = parse("[1,2]");
        assert!(matches!(body(&model, PayloadFormat::Struct), Some(pb::object::Body::Raw(_))));
        assert!(matches!(body(&parse("{}"), PayloadFormat::Struct), Some(pb::object::Body::Struct(_))));
        assert_eq!(body(&model, PayloadFormat::Metadata), None);
    }

    #[test]
    fn unknown_formats_and_policies_differ_from_defaults() {
        assert_eq!(PayloadFormat::from_proto(0), Some(PayloadFormat::Struct));
        assert_eq!(PayloadFormat::from_proto(9), None);
        assert_eq!(full_channel_policy(0), Ok(None));
        assert_eq!(full_channel_policy(4), Ok(Some(FullChannelPolicy::Coalesce)));
        assert!(full_channel_policy(5).is_err() && full_channel_policy(-1).is_err());
    }
}
