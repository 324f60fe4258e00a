//! Prefix of each message in gRPC over HTTP/2: a compressed flag and a big-endian length.

use bytes::{BufMut, BytesMut};

/// Size of the prefix.
pub(in crate::grpc) const PREFIX_BYTES: usize = 5;

/// Appends the prefix of a message, and reserves the memory for the message.
pub(in crate::grpc) fn append_prefix(buffer: &mut BytesMut, is_compressed: bool, length: usize) {
    buffer.reserve(PREFIX_BYTES + length);
    buffer.put_u8(is_compressed.into());
    // Fits: a message is one object of a few MiB at most with its envelope, or a chunk of objects.
    buffer.put_u32(length as u32);
}
