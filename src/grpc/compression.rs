//! Compression of messages: gzip and zstd, each message for itself, as gRPC requires.
//!
//! A message is compressed once and sent to many clients. Where its beginning differs between them, only the rest is compressed:
//! both formats are sequences of blocks, of which one may be stored as it is.
//!
//! ```text
//!   prefix │ header │ stored block: the beginning │ compressed blocks: the rest, shared │ checksum of gzip
//! ```

mod prefix;

use std::cell::RefCell;

use bytes::{BufMut, Bytes, BytesMut};
use flate2::{Compress, Crc, FlushCompress, Status};
use http::HeaderMap;

pub(super) use self::prefix::{PREFIX_BYTES, append_prefix};
use crate::{proto::Compression, transport::Chunk};

/// Compressed end of a message, or a whole message.
#[derive(Debug)]
pub(super) struct Compressed {
    compression: Compression,
    blocks: Bytes,
    /// Checksum of the bytes before the compression, and their number.
    crc: Crc,
}

/// Contexts and buffers of one thread, which its compressions use in turn.
#[derive(Default)]
struct Compressor {
    gzip: Option<Compress>,
    #[cfg(feature = "zstd")]
    zstd: Option<zstd::bulk::Compressor<'static>>,
    message: Vec<u8>,
    blocks: Vec<u8>,
}

/// Size from which on messages are compressed: smaller ones save little, and are cheap to send.
const MIN_BYTES: usize = 512;
/// Largest beginning of a message that is stored as it is: both formats have larger blocks.
pub(super) const MAX_HEAD_BYTES: usize = 32 << 10;
/// Size of buffers up to which a thread keeps them.
const KEPT_BYTES: usize = 1 << 20;
/// Level of gzip and of zstd, the fastest: it shrinks objects of Kubernetes hardly less than the slower ones, and live events wait.
const LEVEL: u8 = 1;

/// Header of a member of gzip: no name, no time, an unknown system.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
/// Magic number of a frame of zstd, and its descriptor: the size of the content in four bytes, which is also that of the window.
#[cfg(feature = "zstd")]
const ZSTD_HEADER: [u8; 5] = [0x28, 0xb5, 0x2f, 0xfd, 0xa0];

thread_local! {
    static COMPRESSOR: RefCell<Compressor> = RefCell::default();
}

/// Returns the first of these compressions that the client of a request accepts.
pub(super) fn accepted(enabled: &[Compression], headers: &HeaderMap) -> Option<Compression> {
    let accepts = |name: &str| {
        let values = headers.get_all("grpc-accept-encoding").iter().filter_map(|value| value.to_str().ok());
        values.flat_map(|value| value.split(',')).any(|accepted| accepted.trim() == name)
    };
    enabled.iter().copied().find(|compression| accepts(compression.name()))
}

// === impl Compressed ===

impl Compressed {
    /// Compresses the `length` bytes that `write` appends. Returns `None` if that is not worthwhile.
    pub(super) fn of(compression: Compression, length: usize, write: impl FnOnce(&mut Vec<u8>)) -> Option<Self> {
        if length < MIN_BYTES {
            return None;
        }
        COMPRESSOR.with_borrow_mut(|compressor| {
            let compressed = compressor.compress(compression, length, write);
            compressor.shrink();
            compressed.filter(|compressed| compressed.frame_len(0) < length)
        })
    }

    /// Returns the size of the message with its prefix, if this is all of it.
    pub(super) fn len(&self) -> usize {
        PREFIX_BYTES + self.frame_len(0)
    }

    /// Returns the number of its bytes in memory.
    pub(super) fn bytes(&self) -> usize {
        self.blocks.len() + size_of::<Self>()
    }

    /// Appends the message, with its prefix.
    pub(super) fn append(&self, buffer: &mut BytesMut) {
        append_prefix(buffer, true, self.frame_len(0));
        self.begin(&[], buffer);
        buffer.put_slice(&self.blocks);
        self.end(&[], buffer);
    }

    /// Returns the message that begins with these bytes, with its prefix; `None` if they are too many to be stored.
    pub(super) fn after(&self, head: &[u8]) -> Option<Chunk> {
        if head.len() > MAX_HEAD_BYTES {
            return None;
        }
        let (mut begin, mut end) = (BytesMut::new(), BytesMut::new());
        append_prefix(&mut begin, true, self.frame_len(head.len()));
        self.begin(head, &mut begin);
        self.end(head, &mut end);
        Some([begin.freeze(), self.blocks.clone(), end.freeze()].into_iter().collect())
    }

    /// Returns the size of the message without its prefix.
    fn frame_len(&self, head: usize) -> usize {
        let (header, block_header, end) = match self.compression {
            Compression::Gzip => (GZIP_HEADER.len(), 5, 8),
            #[cfg(feature = "zstd")]
            Compression::Zstd => (ZSTD_HEADER.len() + 4, 3, 0),
        };
        header + if head == 0 { 0 } else { block_header + head } + self.blocks.len() + end
    }

    /// Appends what is before the blocks. Sizes fit: a message has a few MiB at most, and its beginning [`MAX_HEAD_BYTES`].
    fn begin(&self, head: &[u8], buffer: &mut BytesMut) {
        match self.compression {
            Compression::Gzip => {
                buffer.put_slice(&GZIP_HEADER);
                if !head.is_empty() {
                    buffer.put_u8(0);
                    buffer.put_u16_le(head.len() as u16);
                    buffer.put_u16_le(!(head.len() as u16));
                }
            }
            #[cfg(feature = "zstd")]
            Compression::Zstd => {
                buffer.put_slice(&ZSTD_HEADER);
                buffer.put_u32_le(head.len() as u32 + self.crc.amount());
                if !head.is_empty() {
                    buffer.put_uint_le((head.len() as u64) << 3, 3);
                }
            }
        }
        buffer.put_slice(head);
    }

    /// Appends what is after the blocks.
    fn end(&self, head: &[u8], buffer: &mut BytesMut) {
        match self.compression {
            Compression::Gzip => {
                let mut crc = Crc::new();
                crc.update(head);
                crc.combine(&self.crc);
                buffer.put_u32_le(crc.sum());
                buffer.put_u32_le(crc.amount());
            }
            #[cfg(feature = "zstd")]
            Compression::Zstd => {}
        }
    }
}

// === impl Compressor ===

impl Compressor {
    fn compress(
        &mut self,
        compression: Compression,
        length: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Option<Compressed> {
        let Self { message, blocks, .. } = self;
        #[cfg(test)]
        crate::model::work::add(length);
        message.clear();
        message.reserve(length);
        write(message);
        blocks.clear();
        // More would not be worthwhile.
        blocks.reserve(message.len());
        let mut crc = Crc::new();
        crc.update(message);
        let header = match compression {
            Compression::Gzip => {
                let gzip =
                    self.gzip.get_or_insert_with(|| Compress::new(flate2::Compression::new(LEVEL.into()), false));
                gzip.reset();
                let status = gzip.compress_vec(message, blocks, FlushCompress::Finish);
                if !matches!(status, Ok(Status::StreamEnd)) {
                    return None;
                }
                0
            }
            #[cfg(feature = "zstd")]
            Compression::Zstd => {
                let zstd = match &mut self.zstd {
                    Some(zstd) => zstd,
                    none => none.insert(zstd::bulk::Compressor::new(LEVEL.into()).ok()?),
                };
                zstd.compress_to_buffer(message.as_slice(), blocks).ok()?;
                zstd_header_len(blocks)?
            }
        };
        let blocks = Bytes::copy_from_slice(blocks.get(header..)?);
        Some(Compressed { compression, blocks, crc })
    }

    fn shrink(&mut self) {
        for buffer in [&mut self.message, &mut self.blocks] {
            if buffer.capacity() > KEPT_BYTES {
                *buffer = Vec::new();
            }
        }
    }
}

/// Returns the size of the header of a frame of zstd without a dictionary: magic number, descriptor, window, size of the content.
#[cfg(feature = "zstd")]
fn zstd_header_len(frame: &[u8]) -> Option<usize> {
    let descriptor = frame.get(4)?;
    let is_single_segment = descriptor & 0x20 != 0;
    let content_size = match descriptor >> 6 {
        0 => usize::from(is_single_segment),
        1 => 2,
        2 => 4,
        _ => 8,
    };
    Some(5 + usize::from(!is_single_segment) + content_size)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use bytes::Buf;
    use proptest::prelude::*;

    use super::*;

    /// Decompresses with a library that this module does not use for it, or as its clients do.
    fn decompressed(compression: Compression, message: &[u8]) -> Vec<u8> {
        let mut found = Vec::new();
        match compression {
            Compression::Gzip => flate2::read::GzDecoder::new(message).read_to_end(&mut found).unwrap(),
            #[cfg(feature = "zstd")]
            Compression::Zstd => {
                // In one call, and as a stream.
                let size = zstd::zstd_safe::get_frame_content_size(message).unwrap().unwrap();
                found = zstd::bulk::decompress(message, size as usize).unwrap();
                assert_eq!(zstd::stream::decode_all(message).unwrap(), found);
                found.len()
            }
        };
        found
    }

    fn message_of(mut chunk: impl Buf) -> Vec<u8> {
        assert_eq!(chunk.get_u8(), 1, "compressed");
        assert_eq!(chunk.get_u32() as usize, chunk.remaining());
        let mut message = vec![0; chunk.remaining()];
        chunk.copy_to_slice(&mut message);
        message
    }

    proptest! {
        #![proptest_config(crate::property_config())]

        #[test]
        fn a_message_is_the_same_after_decompression(
            words in proptest::collection::vec("[a-z]{1,9}|[0-9\u{e4}]{1,30}", 1..400),
            repeated in 1_usize..200,
            head in prop_oneof![Just(Vec::new()), proptest::collection::vec(any::<u8>(), 1..200), Just(vec![7; MAX_HEAD_BYTES])],
        ) {
            let content = words.join(" ").repeat(repeated).into_bytes();
            for &compression in Compression::ALL {
                let write = |message: &mut Vec<u8>| message.extend_from_slice(&content);
                let Some(compressed) = Compressed::of(compression, content.len(), write) else { continue };
                prop_assert!(compressed.len() < PREFIX_BYTES + content.len());
                let mut whole = BytesMut::new();
                compressed.append(&mut whole);
                prop_assert_eq!(whole.len(), compressed.len());
                prop_assert_eq!(&decompressed(compression, &message_of(whole)), &content);
                let begun = compressed.after(&head).unwrap();
                let expected = [head.clone(), content.clone()].concat();
                prop_assert_eq!(decompressed(compression, &message_of(begun)), expected);
            }
        }
    }

    #[test]
    fn messages_that_gain_nothing_are_not_compressed() {
        let noise: Vec<u8> = (0..4096).map(|_| fastrand::u8(..)).collect();
        let text = vec![b'a'; MIN_BYTES - 1];
        for &compression in Compression::ALL {
            let of = |content: &[u8]| Compressed::of(compression, content.len(), |to| to.extend_from_slice(content));
            assert!(of(&noise).is_none() && of(&text).is_none());
            let large = of(&vec![b'a'; 9 << 20]).unwrap();
            assert!(large.bytes() < 64 << 10);
            assert!(large.after(&vec![0; MAX_HEAD_BYTES + 1]).is_none());
            assert_eq!(decompressed(compression, &message_of(large.after(b"b").unwrap())).len(), (9 << 20) + 1);
        }
    }

    #[test]
    fn the_first_enabled_compression_that_a_client_accepts_is_used() {
        let accepts = |values: &[&'static str]| {
            values.iter().map(|value| ("grpc-accept-encoding".parse().unwrap(), value.parse().unwrap())).collect()
        };
        let gzip = Some(Compression::Gzip);
        assert_eq!(accepted(&[], &accepts(&["gzip"])), None, "none is enabled");
        assert_eq!(accepted(Compression::ALL, &HeaderMap::new()), None);
        for values in [&["identity, deflate, gzip"][..], &["br,gzip"], &["snappy", " gzip ,x"]] {
            assert_eq!(accepted(Compression::ALL, &accepts(values)), gzip, "{values:?}");
        }
        for values in [&["identity"][..], &["gzipped,x-gzip"], &[""], &["\u{fc}"]] {
            assert_eq!(accepted(Compression::ALL, &accepts(values)), None, "{values:?}");
        }
        for &first in Compression::ALL {
            assert_eq!(accepted(&[first, Compression::Gzip], &accepts(&["gzip,zstd"])), Some(first));
        }
        let many = "x,".repeat(1000);
        let headers =
            HeaderMap::from_iter([("grpc-accept-encoding".parse().unwrap(), (many + "gzip").parse().unwrap())]);
        assert_eq!(accepted(Compression::ALL, &headers), gzip);
    }
}
