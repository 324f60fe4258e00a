//! What a watcher's bytes look like: gRPC's length prefix and a `WatchResponse`, encoded once for all who get it.

use bytes::{BufMut, Bytes, BytesMut};
use prost::Message;

use crate::{
    model::ResourceVersion,
    proto::{self, PayloadFormat, pb},
    watch::{Frame, Notice},
};

/// One or more encoded messages, each with its prefix.
#[derive(Debug, Clone)]
pub struct WireFrame(pub(super) Bytes);

/// gRPC over HTTP/2: a compressed flag and a big-endian length before each message.
pub(super) const PREFIX_BYTES: usize = 5;

// === impl WireFrame ===

impl Frame for WireFrame {
    type Format = PayloadFormat;
    type Arena = BytesMut;

    fn encode(arena: &mut BytesMut, format: PayloadFormat, notice: &Notice<'_>) {
        let response = pb::WatchResponse {
            r#type: proto::event_type(notice.event_type).into(),
            resource_version: notice.version.to_string(),
            object: Some(proto::object(notice.object, notice.object_version, format)),
            cause: proto::cause(notice.cause).into(),
            coalesced: notice.coalesced,
            ..Default::default()
        };
        append(arena, &response);
    }

    fn size(arena: &BytesMut) -> usize {
        arena.len()
    }

    fn freeze(arena: BytesMut) -> Self {
        Self(arena.freeze())
    }

    fn slice(&self, range: std::ops::Range<usize>) -> Self {
        Self(self.0.slice(range))
    }
}

/// Appends one message with its prefix.
pub(super) fn append(buffer: &mut BytesMut, message: &impl Message) {
    let length = message.encoded_len();
    buffer.reserve(PREFIX_BYTES + length);
    buffer.put_u8(0);
    // A message is an object of at most a few MiB and its envelope.
    buffer.put_u32(length as u32);
    message.encode_raw(buffer);
}

/// A BOOKMARK at a version; empty before the initial events have ended, when there is nothing to resume from.
pub(super) fn bookmark(version: Option<&ResourceVersion>, bookmark: pb::Bookmark) -> pb::WatchResponse {
    pb::WatchResponse {
        r#type: pb::EventType::Bookmark.into(),
        resource_version: version.map(ToString::to_string).unwrap_or_default(),
        bookmark: Some(bookmark),
        ..Default::default()
    }
}

/// A DROPPED: `count` events are missing after `after`, and the stream goes on at `version`.
pub(super) fn dropped(version: &ResourceVersion, count: u64, after: &ResourceVersion) -> pb::WatchResponse {
    pb::WatchResponse {
        r#type: pb::EventType::Dropped.into(),
        resource_version: version.to_string(),
        dropped: Some(pb::Dropped { count, after_resource_version: after.to_string() }),
        ..Default::default()
    }
}

/// An ERROR, the last message of a stream.
pub(super) fn error(version: Option<&ResourceVersion>, status: tonic_types::Status) -> pb::WatchResponse {
    pb::WatchResponse {
        r#type: pb::EventType::Error.into(),
        resource_version: version.map(ToString::to_string).unwrap_or_default(),
        error: Some(status),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::{Cause, EventType, Object};

    #[test]
    fn frames_are_prefixed_messages_that_decode_one_after_the_other() {
        let body = Bytes::from_static(br#"{"kind":"Pod","metadata":{"name":"a"}}"#);
        let object = Arc::new(Object::from_json(body.clone(), "x", ResourceVersion::decimal(3)).unwrap());
        let (deleted_at, batch) = (ResourceVersion::decimal(5), ResourceVersion::decimal(4));
        let mut arena = BytesMut::new();
        for _ in 0..2 {
            let notice = Notice {
                event_type: EventType::Deleted,
                cause: Cause::LeftSelection,
                object: &object,
                object_version: &deleted_at,
                version: &batch,
                coalesced: 0,
            };
            WireFrame::encode(&mut arena, PayloadFormat::Raw, &notice);
        }
        let end = WireFrame::size(&arena);
        let frame = WireFrame::freeze(arena);
        let second = frame.slice(end / 2..end).0;
        assert_eq!(second[..PREFIX_BYTES], [0, 0, 0, 0, (second.len() - PREFIX_BYTES) as u8]);
        let response = pb::WatchResponse::decode(&second[PREFIX_BYTES..]).unwrap();
        assert_eq!(response.r#type(), pb::EventType::Deleted);
        assert_eq!(response.cause(), pb::Cause::LeftSelection);
        assert_eq!(response.resource_version, "4");
        let object = response.object.unwrap();
        assert_eq!((&*object.resource_version, object.body), ("5", Some(pb::object::Body::Raw(body))));
    }
}
