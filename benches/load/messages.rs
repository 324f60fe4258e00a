//! gRPC messages in the DATA of one stream, and the fields of a `WatchResponse` that the load client reads without decoding.
//!
//! Pure. A message that is contiguous in the read buffer is not copied.

use std::{borrow::Cow, io::Read};

/// Splitter of the DATA of a stream into messages.
#[derive(Debug, Default)]
pub(super) struct MessageReader {
    /// Beginning of an incomplete message, with its prefix.
    partial: Vec<u8>,
}

/// Kind of a message of a Watch, by its first field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageKind {
    /// ADDED, MODIFIED or DELETED.
    Change,
    Bookmark,
    Error,
    Dropped,
    Unknown,
}

/// Bytes before each message: the compression flag and the length.
pub(super) const PREFIX_BYTES: usize = 5;
/// Digits of the publish time in nanoseconds; enough for a hundred days.
pub(super) const SENT_DIGITS: usize = 16;
/// Bytes after that time, at the end of the object.
const SENT_END: &[u8] = b"\"}";

// === impl MessageReader ===

impl MessageReader {
    /// Calls `each` with every message that these bytes complete, decompressed.
    pub(super) fn feed(&mut self, mut bytes: &[u8], mut each: impl FnMut(&[u8])) {
        if !self.partial.is_empty() {
            if !self.complete(&mut bytes) {
                return;
            }
            each(&decompressed(&self.partial));
            self.partial.clear();
        }
        while let Some(end) = end_of(bytes).filter(|end| *end <= bytes.len()) {
            each(&decompressed(&bytes[..end]));
            bytes = &bytes[end..];
        }
        self.partial.extend_from_slice(bytes);
    }

    /// Takes bytes of the incomplete message; returns true if it is complete now.
    fn complete(&mut self, bytes: &mut &[u8]) -> bool {
        let mut take = |partial: &mut Vec<u8>, up_to: usize| {
            let (taken, rest) = bytes.split_at(bytes.len().min(up_to.saturating_sub(partial.len())));
            partial.extend_from_slice(taken);
            *bytes = rest;
        };
        take(&mut self.partial, PREFIX_BYTES);
        let Some(end) = end_of(&self.partial) else { return false };
        take(&mut self.partial, end);
        self.partial.len() == end
    }
}

/// Returns a message without its prefix; an empty one if it cannot be decompressed, which is no message of a Watch or List.
fn decompressed(message: &[u8]) -> Cow<'_, [u8]> {
    const GZIP: &[u8] = &[0x1f, 0x8b];
    let (is_compressed, message) = (message[0] != 0, &message[PREFIX_BYTES..]);
    if !is_compressed {
        return message.into();
    }
    if !message.starts_with(GZIP) {
        return zstd::decode_all(message).unwrap_or_default().into();
    }
    let mut found = Vec::new();
    flate2::read::GzDecoder::new(message).read_to_end(&mut found).map_or_else(|_| Vec::new(), |_| found).into()
}

/// Returns the end of the message that begins with these bytes, if its length is among them.
fn end_of(bytes: &[u8]) -> Option<usize> {
    let [_, a, b, c, d, ..] = *bytes else { return None };
    Some(PREFIX_BYTES + u32::from_be_bytes([a, b, c, d]) as usize)
}

// === impl MessageKind ===

impl MessageKind {
    /// Reads the kind from the field `type`, which is always present and first.
    pub(super) fn of(message: &[u8]) -> Self {
        match message {
            [0x08, 1..=3, ..] => Self::Change,
            [0x08, 4, ..] => Self::Bookmark,
            [0x08, 5, ..] => Self::Error,
            [0x08, 6, ..] => Self::Dropped,
            _ => Self::Unknown,
        }
    }
}

/// Returns the publish time of an event, from the last bytes: nothing follows the body in the message of a live change.
pub(super) fn sent(message: &[u8]) -> Option<u64> {
    let digits = message.strip_suffix(SENT_END)?;
    let digits = &digits[digits.len().checked_sub(SENT_DIGITS)?..];
    digits.iter().try_fold(0, |sent, digit| digit.is_ascii_digit().then(|| sent * 10 + u64::from(digit - b'0')))
}

/// Field number of the objects of a `ListResponse`, and that of the batch of a `WatchResponse`.
pub(super) const OBJECTS: u64 = 2;
pub(super) const BATCH: u64 = 11;

/// Returns the number of fields with a number in a message that has texts and numbers only.
pub(super) fn count(mut message: &[u8], field: u64) -> u64 {
    let mut count = 0;
    while !message.is_empty() {
        let Ok(key) = prost::encoding::decode_varint(&mut message) else { break };
        let length = match (key & 7, prost::encoding::decode_varint(&mut message)) {
            (0, Ok(_)) => 0,
            (2, Ok(length)) => length as usize,
            _ => break,
        };
        let Some(rest) = message.get(length..) else { break };
        message = rest;
        count += u64::from(key >> 3 == field);
    }
    count
}

#[cfg(test)]
mod tests {
    use informerd::proto::pb;
    use prost::Message;

    use super::*;

    fn framed(messages: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for message in messages {
            bytes.push(0);
            bytes.extend((message.len() as u32).to_be_bytes());
            bytes.extend_from_slice(message);
        }
        bytes
    }

    #[test]
    fn messages_are_found_however_they_are_split() {
        let messages: [&[u8]; 5] = [b"one", b"", b"three", b"four and more", b""];
        let bytes = framed(&messages);
        for piece in 1..=bytes.len() {
            let (mut reader, mut found) = (MessageReader::default(), Vec::new());
            for piece in bytes.chunks(piece) {
                reader.feed(piece, |message| found.push(message.to_owned()));
            }
            assert_eq!(found, messages, "in pieces of {piece}");
        }
    }

    #[test]
    fn the_type_is_read_from_what_our_server_sends() {
        use pb::EventType::{Added, Bookmark, Deleted, Dropped, Error, Modified};
        let table = [
            (Added, MessageKind::Change),
            (Modified, MessageKind::Change),
            (Deleted, MessageKind::Change),
            (Bookmark, MessageKind::Bookmark),
            (Error, MessageKind::Error),
            (Dropped, MessageKind::Dropped),
        ];
        for (event_type, expected) in table {
            let response = pb::WatchResponse { r#type: event_type.into(), ..Default::default() };
            assert_eq!(MessageKind::of(&response.encode_to_vec()), expected);
        }
        assert_eq!(MessageKind::of(b""), MessageKind::Unknown);
    }

    #[test]
    fn the_time_is_read_from_the_end() {
        assert_eq!(sent(br#"...,"sent":"0000000123456789"}"#), Some(123_456_789));
        assert_eq!(sent(br#"...,"sent":"00000001x3456789"}"#), None);
        assert_eq!(sent(br#"9"}"#), None);
        assert_eq!(sent(b"0000000123456789\"}\x40\x01"), None, "a merged event");
    }

    #[test]
    fn the_objects_of_a_message_are_counted() {
        let object = pb::Object { name: "x".repeat(300), ..Default::default() };
        let response = pb::ListResponse {
            resource_version: "5".to_owned(),
            objects: vec![object; 7],
            source: pb::SyncState::Synced.into(),
            ..Default::default()
        };
        assert_eq!(count(&response.encode_to_vec(), OBJECTS), 7);
        assert_eq!(count(&[0xff], OBJECTS), 0);
        let batch = pb::WatchResponse { r#type: 1, cause: 1, batch: response.objects, ..Default::default() };
        assert_eq!(count(&batch.encode_to_vec(), BATCH), 7);
    }
}
