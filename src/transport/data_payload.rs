//! Data that was handed to HTTP/2, counted until it is written or discarded.

use std::io::IoSlice;

use bytes::{Buf, Bytes};

use super::{Chunk, budget::BudgetKind, handle::StreamHandle};

/// Payload of one or more DATA frames.
#[derive(Debug, Default)]
pub(super) struct DataPayload {
    chunk: Chunk,
    lease: Option<Lease>,
}

/// Memory of a chunk, counted for its stream and its connection.
#[derive(Debug)]
struct Lease {
    handle: StreamHandle,
    bytes: usize,
    kept: BudgetKind,
}

// === impl DataPayload ===

impl DataPayload {
    /// Wraps a chunk of a stream, and counts it.
    pub(super) fn new(chunk: Chunk, handle: &StreamHandle, kept: BudgetKind) -> Self {
        let bytes = chunk.remaining();
        handle.charge(bytes, kept);
        Self { chunk, lease: Some(Lease { handle: handle.clone(), bytes, kept }) }
    }
}

impl Buf for DataPayload {
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
