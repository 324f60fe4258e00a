//! Wire encoding of a watch: gRPC's length prefix and a `WatchResponse`, encoded once for all clients that receive it.

use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};
use prost::Message;

pub(super) use super::compression::PREFIX_BYTES;
use super::compression::{Compressed, append_prefix};
use crate::{
    model::{EventType, Namespaces, Object, ResourceVersion},
    proto::{
        BookmarkLines, Compression, EncodedEvent, EncodedObject, LineEvent, LineFormat, ObjectFormat, Structs, pb,
    },
    transport::Chunk,
    watch::{Frame, GroupEvent},
};

/// One or more encoded messages, each with its prefix.
#[derive(Debug, Clone)]
pub struct WireFrame(pub(super) Bytes);

/// Buffer in which messages are encoded one after the other.
#[derive(Debug, Default)]
pub struct WireArena {
    pub(super) buffer: BytesMut,
}

/// Size at which a chunk is sent: small enough that encoding one does not delay other tasks of the thread, large enough that
/// the cost of a chunk and of HTTP/2 writes does not matter.
pub(super) const CHUNK_BYTES: usize = 64 << 10;

// === impl WireFrame ===

impl Frame for WireFrame {
    type Format = ObjectFormat;
    type Arena = WireArena;

    const HAS_PREVIOUS: bool = false;

    fn is_suppressed(format: &ObjectFormat, had: &Object, now: &Object) -> bool {
        format.is_suppressed(had, now)
    }

    fn is_costly(format: &ObjectFormat) -> bool {
        format.view.is_some() || format.compression.is_some() || format.lines.is_some()
    }

    fn encode(arena: &mut WireArena, format: &ObjectFormat, notice: &GroupEvent<'_>) {
        let GroupEvent { event_type, cause, object, object_version, version, coalesced, relisted, open, .. } = *notice;
        if let Some(LineFormat(lines)) = &format.lines {
            // At an open version the client lacks changes between the version to resume from and that of the object; of a relist, the
            // rest of its batch.
            let previous = (relisted && event_type == EventType::Deleted).then(|| object_version.previous());
            let at = if open { version } else { previous.as_ref().unwrap_or(object_version) };
            let event = LineEvent {
                event_type,
                cause,
                object,
                version: at,
                change_version: object_version,
                safe_version: Some(version),
                coalesced,
                payload: format.payload,
            };
            return lines.event(&event, &mut arena.buffer);
        }
        let object = EncodedObject::new(object, object_version, format);
        let event = EncodedEvent::new(event_type, cause, Some(version), object, coalesced).in_batch(relisted, open);
        append_shared(&mut arena.buffer, &event, format.compression);
    }

    fn size(arena: &WireArena) -> usize {
        arena.buffer.len()
    }

    fn freeze(arena: WireArena) -> Self {
        Self(arena.buffer.freeze())
    }

    fn slice(&self, range: std::ops::Range<usize>) -> Self {
        Self(self.0.slice(range))
    }

    fn bytes(arena: &WireArena) -> usize {
        arena.buffer.capacity()
    }
}

/// Appends one message with its prefix.
pub(super) fn append(buffer: &mut BytesMut, message: &impl Message) {
    append_prefix(buffer, false, message.encoded_len());
    message.encode_raw(buffer);
}

/// Appends a message that is no event of an object, in the encoding of a watch.
pub(super) fn append_to_watch(
    buffer: &mut BytesMut,
    message: &pb::WatchResponse,
    format: &ObjectFormat,
    bookmarks: BookmarkLines,
) {
    match &format.lines {
        Some(LineFormat(lines)) => lines.message(message, bookmarks, buffer),
        None => append(buffer, message),
    }
}

/// Returns the size of one event with its prefix.
pub(super) fn event_len(event: &EncodedEvent<'_>) -> usize {
    PREFIX_BYTES + event.len()
}

/// Appends one event with its prefix.
pub(super) fn append_event(buffer: &mut BytesMut, event: &EncodedEvent<'_>) {
    append_prefix(buffer, false, event.len());
    event.write(buffer);
}

/// Appends one event with its prefix, compressed if that makes it smaller.
fn append_shared(buffer: &mut BytesMut, event: &EncodedEvent<'_>, compression: Option<Compression>) {
    let length = event.len();
    match compression.and_then(|compression| Compressed::of(compression, length, |message| event.write(message))) {
        Some(compressed) => compressed.append(buffer),
        None => append_event(buffer, event),
    }
}

/// Takes the next message of a chunk, without its prefix. A chunk has only complete ones: this process encoded them.
pub(super) fn next_message(chunk: &mut Chunk) -> Option<Bytes> {
    if chunk.remaining() < PREFIX_BYTES {
        return None;
    }
    chunk.advance(1);
    let length = chunk.get_u32() as usize;
    Some(chunk.copy_to_bytes(length.min(chunk.remaining())))
}

/// Field number of the objects of a `ListResponse` and a `ByIndexResponse`, and of the object of a `GetResponse`.
pub(super) const OBJECTS: u32 = 2;
/// Field number of the batch of a `WatchResponse`.
pub(super) const BATCH: u32 = 11;

/// Encodes the prefix of a response, and the message without its objects; they follow, and have `objects` bytes. The order of
/// fields in a message is free.
pub(super) fn head(rest: &impl Message, objects: usize) -> Bytes {
    let mut head = BytesMut::with_capacity(PREFIX_BYTES + rest.encoded_len());
    append_prefix(&mut head, false, rest.encoded_len() + objects);
    rest.encode_raw(&mut head);
    head.freeze()
}

/// Appends objects as a repeated field of a response.
pub(super) fn append_objects(
    buffer: &mut BytesMut,
    field: u32,
    objects: &[Arc<Object>],
    (format, structs): (&ObjectFormat, &Structs),
) {
    let encode = |object| EncodedObject::shared(object, Object::version(object), format, structs);
    let encoded: Vec<EncodedObject<'_>> = objects.iter().map(encode).collect();
    buffer.reserve(encoded.iter().map(|object| object.field_len(field)).sum());
    for object in &encoded {
        object.write(field, buffer);
    }
}

/// Returns the size of the namespaces in a response, in bytes.
pub(super) fn namespaces_len(namespaces: Option<&Namespaces>) -> usize {
    let names = namespaces.into_iter().flat_map(Namespaces::iter);
    // The number of the field, and the length of a name.
    names.map(|namespace| 3 + namespace.len()).sum()
}

/// Creates a BOOKMARK at a version. The version is empty before the end of the initial events: there is none to resume from.
pub(super) fn bookmark(version: Option<&ResourceVersion>, bookmark: pb::Bookmark) -> pb::WatchResponse {
    pb::WatchResponse {
        r#type: pb::EventType::Bookmark.into(),
        resource_version: version.map(ToString::to_string).unwrap_or_default(),
        bookmark: Some(bookmark),
        ..Default::default()
    }
}

/// Creates a DROPPED event: `count` events after `after` were lost, and the stream continues at `version`.
pub(super) fn dropped(version: &ResourceVersion, count: u64, after: &ResourceVersion) -> pb::WatchResponse {
    pb::WatchResponse {
        r#type: pb::EventType::Dropped.into(),
        resource_version: version.to_string(),
        dropped: Some(pb::Dropped { count, after_resource_version: after.to_string() }),
        ..Default::default()
    }
}

/// Creates an ERROR, the last message of a stream.
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
    use super::*;
    use crate::{model::Cause, proto::PayloadFormat};

    #[test]
    fn frames_are_prefixed_messages_that_decode_one_after_the_other() {
        let body = Bytes::from_static(br#"{"kind":"Pod","metadata":{"name":"a"}}"#);
        let object = Arc::new(Object::from_json(body.clone(), "x", ResourceVersion::decimal(3)).unwrap());
        let (deleted_at, batch) = (ResourceVersion::decimal(5), ResourceVersion::decimal(4));
        let mut arena = WireArena::default();
        for _ in 0..2 {
            let notice = GroupEvent {
                event_type: EventType::Deleted,
                cause: Cause::LeftSelection,
                object: &object,
                previous: None,
                object_version: &deleted_at,
                version: &batch,
                coalesced: 0,
                relisted: true,
                open: true,
            };
            WireFrame::encode(&mut arena, &PayloadFormat::Raw.into(), &notice);
        }
        let end = WireFrame::size(&arena);
        let frame = WireFrame::freeze(arena);
        let second = frame.slice(end / 2..end).0;
        assert_eq!(second[..PREFIX_BYTES], [0, 0, 0, 0, (second.len() - PREFIX_BYTES) as u8]);
        let response = pb::WatchResponse::decode(&second[PREFIX_BYTES..]).unwrap();
        assert_eq!(response.r#type(), pb::EventType::Deleted);
        assert_eq!(response.cause(), pb::Cause::LeftSelection);
        assert_eq!((response.resource_version.as_str(), response.relisted, response.open), ("4", true, true));
        let object = response.object.unwrap();
        assert_eq!((&*object.resource_version, object.body), ("5", Some(pb::object::Body::Raw(body))));
    }
}
