//! Encoding of a `SubscribeResponse`: messages that were encoded for Watch, with the ids of the watches that they are for.
//!
//! Messages are not copied unless they are small: the response has their bytes by reference, encoded once for all
//! watches that select alike. Watches that have handed out the same bytes share a delivery.

use std::collections::HashMap;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use foldhash::fast::RandomState;
use prost::encoding::{encode_varint, encoded_len_varint};
use smallvec::{SmallVec, smallvec};

use crate::{
    grpc::frame::{PREFIX_BYTES, next_message},
    proto::pb::EventType,
    transport::Chunk,
};

/// Deliveries of the next response.
#[derive(Debug, Default)]
pub(super) struct Deliveries {
    list: Vec<Delivery>,
    /// Index of the delivery with these messages, by whether they are the last.
    of_messages: HashMap<(Messages, bool), usize, RandomState>,
    /// Sum of the largest sizes of the deliveries.
    bytes: usize,
}

/// Consecutive messages of one or several watches.
#[derive(Debug)]
struct Delivery {
    ids: SmallVec<[u32; 4]>,
    /// Messages without their prefixes.
    messages: SmallVec<[Bytes; 1]>,
    is_end: bool,
}

/// Identity of what a watch hands out.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Messages {
    /// Address and size of each piece: events that were encoded once for several watches.
    Shared(SmallVec<[(usize, usize); 2]>),
    /// Content of a bookmark: each watch encodes its own, and they are alike.
    Bookmark(Bytes),
}

/// Largest size of a delivery beside its messages, with one id: two keys and lengths, the id, and the end.
const DELIVERY_BYTES: usize = 24;
/// Largest size of a further id.
const ID_BYTES: usize = 5;
/// Size up to which a message is copied: a slice of its own costs more.
const COPIED_BYTES: usize = 256;
/// Keys of the fields: number and wire type.
const DELIVERIES_KEY: u8 = 1 << 3 | 2;
const WATCH_IDS_KEY: u8 = 1 << 3 | 2;
const RESPONSES_KEY: u8 = 2 << 3 | 2;
const ENDED_KEY: u8 = 3 << 3;
/// First bytes of a bookmark: the key of `type`, and its value.
const BOOKMARK: [u8; 2] = [1 << 3, EventType::Bookmark as u8];

// === impl Deliveries ===

impl Deliveries {
    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the largest size of the response.
    pub(super) fn bytes(&self) -> usize {
        PREFIX_BYTES + self.bytes
    }

    /// Returns the largest size of a response with these deliveries, and one more of `bytes` bytes.
    pub(super) fn with(&self, bytes: usize) -> usize {
        self.bytes() + DELIVERY_BYTES + bytes
    }

    /// Adds messages of a watch, each with its prefix; with its end, if they are the last. A watch is added once, so that its messages
    /// stay in order.
    pub(super) fn add(&mut self, id: u32, mut chunk: Chunk, is_end: bool) {
        // After the end of a watch, another one may have its id.
        let has_had_turn = || self.list.iter().any(|delivery| !delivery.is_end && delivery.ids.contains(&id));
        debug_assert!(!has_had_turn(), "a watch has had its turn in this response");
        let at = *self.of_messages.entry((Messages::of(&chunk), is_end)).or_insert(self.list.len());
        if let Some(delivery) = self.list.get_mut(at) {
            delivery.ids.push(id);
            self.bytes += ID_BYTES;
            return;
        }
        // A message is larger by no more than its prefix, which is left out.
        self.bytes += DELIVERY_BYTES + chunk.remaining();
        let messages = std::iter::from_fn(|| next_message(&mut chunk)).collect();
        self.list.push(Delivery { ids: smallvec![id], messages, is_end });
    }

    /// Adds a message, without its prefix, of watches that have no others than those added before.
    pub(super) fn push(&mut self, ids: SmallVec<[u32; 4]>, message: Bytes) {
        self.bytes += DELIVERY_BYTES + PREFIX_BYTES + message.len() + more_ids(ids.len());
        self.list.push(Delivery { ids, messages: smallvec![message], is_end: false });
    }

    /// Encodes the response, with its prefix, and removes the deliveries.
    pub(super) fn take(&mut self) -> Chunk {
        self.of_messages.clear();
        self.bytes = 0;
        let deliveries = std::mem::take(&mut self.list);
        let sizes: SmallVec<[(usize, usize); 8]> = deliveries.iter().map(Delivery::sizes).collect();
        let total = sizes.iter().map(|(_, size)| field_len(*size)).sum::<usize>();
        let mut writer = Writer::default();
        writer.own.put_u8(0);
        // Fits: it is at most 64 KiB, or one message of a few MiB.
        writer.own.put_u32(total as u32);
        for (delivery, (ids, size)) in deliveries.into_iter().zip(sizes) {
            writer.head(DELIVERIES_KEY, size);
            writer.head(WATCH_IDS_KEY, ids);
            for id in delivery.ids {
                encode_varint(u64::from(id), &mut writer.own);
            }
            for message in delivery.messages {
                writer.head(RESPONSES_KEY, message.len());
                writer.message(message);
            }
            if delivery.is_end {
                writer.own.put_slice(&[ENDED_KEY, 1]);
            }
        }
        writer.finish()
    }
}

// === impl Delivery ===

impl Delivery {
    /// Returns the sizes of the ids and of the whole, in bytes.
    fn sizes(&self) -> (usize, usize) {
        let ids = self.ids.iter().map(|id| encoded_len_varint(u64::from(*id))).sum();
        let messages: usize = self.messages.iter().map(|message| field_len(message.len())).sum();
        (ids, field_len(ids) + messages + if self.is_end { 2 } else { 0 })
    }
}

/// Returns the size of the ids of a delivery to so many watches beyond that of the first.
pub(super) fn more_ids(count: usize) -> usize {
    count.saturating_sub(1) * ID_BYTES
}

/// Returns the size of a field of one byte's key with `bytes` bytes of content.
fn field_len(bytes: usize) -> usize {
    1 + encoded_len_varint(bytes as u64) + bytes
}

// === impl Messages ===

impl Messages {
    /// Returns the identity of a chunk.
    fn of(chunk: &Chunk) -> Self {
        let mut pieces = chunk.pieces();
        if let (Some(first), None) = (pieces.next(), pieces.next())
            && first.get(PREFIX_BYTES..).is_some_and(|message| message.starts_with(&BOOKMARK))
        {
            return Self::Bookmark(first.clone());
        }
        Self::Shared(chunk.pieces().map(|piece| (piece.as_ptr() as usize, piece.len())).collect())
    }
}

/// Pieces of a response: its own bytes, and messages in between.
#[derive(Debug, Default)]
struct Writer {
    own: BytesMut,
    pieces: Vec<Bytes>,
}

// === impl Writer ===

impl Writer {
    fn head(&mut self, key: u8, bytes: usize) {
        self.own.put_u8(key);
        encode_varint(bytes as u64, &mut self.own);
    }

    fn message(&mut self, message: Bytes) {
        if message.len() <= COPIED_BYTES {
            return self.own.put_slice(&message);
        }
        self.pieces.push(self.own.split().freeze());
        self.pieces.push(message);
    }

    fn finish(mut self) -> Chunk {
        self.pieces.push(self.own.freeze());
        self.pieces.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use prost::Message;

    use super::*;
    use crate::{grpc::frame, proto::pb};

    fn encoded(responses: &[pb::WatchResponse]) -> Bytes {
        let mut buffer = BytesMut::new();
        for response in responses {
            frame::append(&mut buffer, response);
        }
        buffer.freeze()
    }

    fn event(version: &str, size: usize) -> pb::WatchResponse {
        let body = Some(pb::object::Body::Raw(vec![b'x'; size].into()));
        let object = pb::Object { name: version.to_owned(), body, ..Default::default() };
        pb::WatchResponse {
            r#type: pb::EventType::Added.into(),
            resource_version: version.to_owned(),
            object: Some(object),
            ..Default::default()
        }
    }

    fn decoded(deliveries: &mut Deliveries) -> Vec<pb::Delivery> {
        let most = deliveries.bytes();
        let mut chunk = deliveries.take();
        assert!(chunk.remaining() <= most, "{} of {most}", chunk.remaining());
        assert_eq!(chunk.get_u8(), 0);
        assert_eq!(chunk.get_u32() as usize, chunk.remaining());
        let length = chunk.remaining();
        pb::SubscribeResponse::decode(chunk.copy_to_bytes(length)).unwrap().deliveries
    }

    #[test]
    fn responses_decode_whatever_the_sizes_and_ids() {
        let mut deliveries = Deliveries::default();
        for size in [0, 1, COPIED_BYTES, COPIED_BYTES + 1, 1 << 14, 1 << 21] {
            let sent = [event("1", size), event("2", size / 2)];
            for id in [1, 127, 128, u32::MAX] {
                deliveries.add(id, encoded(&sent).into(), false);
            }
            let pieces: Chunk = sent.iter().map(|response| encoded(std::slice::from_ref(response))).collect();
            deliveries.add(7, pieces, true);
            for id in [8, 9] {
                deliveries.add(id, Chunk::from(Bytes::new()), true);
            }
            let found = decoded(&mut deliveries);
            assert_eq!(found.len(), 6, "each was encoded for itself");
            for delivery in &found[..5] {
                assert_eq!(delivery.responses, sent);
                assert_eq!(delivery.ended, delivery.watch_ids == [7]);
            }
            let end = pb::Delivery { watch_ids: vec![8, 9], responses: Vec::new(), ended: true };
            assert_eq!(found[5], end);
            assert!(deliveries.is_empty());
        }
    }

    #[test]
    fn what_was_encoded_once_is_sent_once() {
        let mut deliveries = Deliveries::default();
        let (event, other) = (encoded(&[event("1", 500)]), encoded(&[event("1", 500)]));
        let bookmark = || encoded(&[frame::bookmark(None, pb::Bookmark::default())]);
        for id in 1..=1000 {
            deliveries.add(id, event.clone().into(), false);
        }
        deliveries.add(1001, other.into(), false);
        deliveries.add(1002, event.clone().into(), true);
        deliveries.add(1003, [event, bookmark()].into_iter().collect(), false);
        for id in 1004..=2000 {
            deliveries.add(id, bookmark().into(), false);
        }
        let found = decoded(&mut deliveries);
        let ids: Vec<usize> = found.iter().map(|delivery| delivery.watch_ids.len()).collect();
        assert_eq!(ids, [1000, 1, 1, 1, 997]);
        assert!(found[2].ended);
        assert_eq!(found[3].responses.len(), 2);
    }
}
