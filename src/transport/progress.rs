//! Progress of one stream towards its client, as the stream reports it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};

/// Reason for which a stream with data to send waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Wait {
    /// The stream has no data to send, or waits for the connection.
    Nothing,
    /// The window of the stream or of its connection is shut, or other streams with messages larger than their windows come first.
    Window,
    /// The client has paused a part of the stream.
    Paused,
}

/// Progress of one stream, as the stream reports it.
#[derive(Debug, Default)]
pub(super) struct Progress {
    wait: AtomicU8,
    is_listed: AtomicBool,
    /// Number of bytes that were written or discarded.
    written: AtomicUsize,
    /// Number of bytes by which the client has opened the stream's own window since its start.
    opened: AtomicU64,
}

// === impl Progress ===

impl Progress {
    /// Counts bytes that were written.
    pub(super) fn add(&self, written: usize) {
        self.written.fetch_add(written, Ordering::Relaxed);
    }

    pub(super) fn set(&self, wait: Wait) {
        self.wait.store(wait as u8, Ordering::SeqCst);
    }

    pub(super) fn wait(&self) -> Wait {
        match self.wait.load(Ordering::SeqCst) {
            wait if wait == Wait::Window as u8 => Wait::Window,
            wait if wait == Wait::Paused as u8 => Wait::Paused,
            _ => Wait::Nothing,
        }
    }

    /// Returns the number of bytes that were written.
    pub(super) fn written(&self) -> usize {
        self.written.load(Ordering::Relaxed)
    }

    /// Opens the stream's own window by so many bytes.
    pub(super) fn open_window(&self, by: u64) {
        self.opened.fetch_add(by, Ordering::Relaxed);
    }

    /// Returns the number of bytes by which the client has opened the stream's own window since its start: those that it has
    /// acknowledged.
    pub(super) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Marks the stream as listed. Returns true if it was not, so that the caller must add it to the list.
    pub(super) fn begin(&self) -> bool {
        !self.is_listed.swap(true, Ordering::SeqCst)
    }

    /// Marks the stream as not listed.
    pub(super) fn end(&self) {
        self.is_listed.store(false, Ordering::SeqCst);
    }
}
