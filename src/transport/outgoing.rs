//! Data that HTTP/2 has been given, counted until it is written or thrown away.

use std::io::IoSlice;

use bytes::{Buf, Bytes};

use super::{Chunk, budget::Kept, handle::StreamHandle};

/// Payload of one DATA frame or several.
#[derive(Debug, Default)]
pub(super) struct Outgoing {
    chunk: Chunk,
    lease: Option<Lease>,
}

/// The memory of a chunk: it counts against its stream and its connection.
#[derive(Debug)]
struct Lease {
    handle: StreamHandle,
    bytes: usize,
    kept: Kept,
}

// === impl Outgoing ===

impl Outgoing {
    /// Counts a chunk of a stream.
    pub(super) fn new(chunk: Chunk, handle: &StreamHandle, kept: Kept) -> Self {
        let bytes = chunk.remaining();
        handle.charge(bytes, kept);
        Self { chunk, lease: Some(Lease { handle: handle.clone(), bytes, kept }) }
    }
}

impl Buf for Outgoing {
    fn remaining(&self) -> usize {
        self.chunk.remaining()
    }

    fn chunk(&self) -> &[u8] {
        self.chunk.chunk()
    }

    fn chunks_vectored<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        self.chunk.chunks_vectored(slices)
    }

    fn advance(&mut self, count: usize) {
        self.chunk.advance(count);
        if let Some(lease) = &self.lease {
            lease.handle.note_written(count);
        }
    }

    fn copy_to_bytes(&mut self, count: usize) -> Bytes {
        self.chunk.copy_to_bytes(count)
    }
}

// === impl Lease ===

impl Drop for Lease {
    fn drop(&mut self) {
        self.handle.release(self.bytes, self.kept);
    }
}
