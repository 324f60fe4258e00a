//! Payload of a DATA frame.

use std::{collections::VecDeque, io::IoSlice};

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Sequence of byte buffers that are sent one after the other; a single buffer needs no allocation.
#[derive(Debug, Clone, Default)]
pub struct Chunk {
    first: Bytes,
    rest: VecDeque<Bytes>,
    /// Number of bytes in the other buffers.
    remaining: usize,
}

// === impl Chunk ===

impl Chunk {
    /// Returns the pieces that are left, in order.
    pub fn pieces(&self) -> impl Iterator<Item = &Bytes> {
        std::iter::once(&self.first).chain(&self.rest).filter(|piece| !piece.is_empty())
    }
}

impl From<Bytes> for Chunk {
    fn from(first: Bytes) -> Self {
        Self { first, rest: VecDeque::new(), remaining: 0 }
    }
}

impl FromIterator<Bytes> for Chunk {
    fn from_iter<I: IntoIterator<Item = Bytes>>(pieces: I) -> Self {
        let mut pieces = pieces.into_iter().filter(|piece| !piece.is_empty());
        let first = pieces.next().unwrap_or_default();
        let rest: VecDeque<Bytes> = pieces.collect();
        let remaining = rest.iter().map(Bytes::len).sum();
        Self { first, rest, remaining }
    }
}

impl Buf for Chunk {
    fn remaining(&self) -> usize {
        self.first.len() + self.remaining
    }

    fn chunk(&self) -> &[u8] {
        &self.first
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        slices.iter_mut().zip(self.pieces()).map(|(slice, piece)| *slice = IoSlice::new(piece)).count()
    }

    fn advance(&mut self, mut count: usize) {
        while count >= self.first.len() {
            count -= self.first.len();
            self.first = self.rest.pop_front().unwrap_or_default();
            self.remaining -= self.first.len();
            if self.first.is_empty() {
                assert_eq!(count, 0, "advanced past the end");
                return;
            }
        }
        self.first.advance(count);
    }

    /// Copies nothing if the bytes are within one buffer.
    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        if count < self.first.len() {
            return self.first.split_to(count);
        }
        assert!(count <= self.remaining(), "advanced past the end");
        if count == self.first.len() {
            let first = self.first.clone();
            self.advance(count);
            return first;
        }
        let mut copy = BytesMut::with_capacity(count);
        copy.put(self.take(count));
        copy.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_read_as_one() {
        let text = b"one, two and three";
        let pieces = || [&text[..4], b"", &text[4..9], &text[9..]].map(Bytes::from_static);
        for step in 1..=text.len() {
            let mut chunk = Chunk::from_iter(pieces());
            let mut read = Vec::new();
            while chunk.has_remaining() {
                let left = chunk.remaining();
                let mut slices = [IoSlice::new(&[]); 8];
                let count = chunk.chunks_vectored(&mut slices);
                let seen: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
                assert_eq!(seen, text[text.len() - left..]);
                let taken = step.min(left);
                read.extend_from_slice(&seen[..taken]);
                chunk.advance(taken);
                assert_eq!(chunk.remaining(), left - taken);
            }
            assert_eq!(read, text);
        }
        assert!(!Chunk::from_iter([]).has_remaining());
        assert_eq!(Chunk::from(Bytes::from_static(text)).copy_to_bytes(text.len()), &text[..]);
        let mut chunk = Chunk::from_iter(pieces());
        assert_eq!([2, 2, 6].map(|count| chunk.copy_to_bytes(count)), [&text[..2], &text[2..4], &text[4..10]]);
        assert_eq!(chunk.remaining(), text.len() - 10);
    }

    #[test]
    #[should_panic(expected = "advanced past the end")]
    fn there_is_nothing_past_the_end() {
        Chunk::from(Bytes::from_static(b"four")).advance(5);
    }
}
