//! Progress of one stream towards its client, as it reports it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};

/// Reason for which a stream that has something to send waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Wait {
    /// It has nothing to send, or waits for the connection.
    Nothing,
    /// Its client's window is shut.
    Window,
    /// Others have messages that are larger than their windows, and were first.
    Line,
}

/// Progress of one stream, as it reports it.
#[derive(Debug, Default)]
pub(super) struct Progress {
    wait: AtomicU8,
    is_listed: AtomicBool,
    /// Bytes that were written, or thrown away.
    written: AtomicUsize,
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
            wait if wait == Wait::Line as u8 => Wait::Line,
            _ => Wait::Nothing,
        }
    }

    /// Returns the bytes that were written.
    pub(super) fn written(&self) -> usize {
        self.written.load(Ordering::Relaxed)
    }

    /// Returns whether the stream is to be listed: it is not.
    pub(super) fn begin(&self) -> bool {
        !self.is_listed.swap(true, Ordering::SeqCst)
    }

    /// Takes note that the stream is not listed any more.
    pub(super) fn end(&self) {
        self.is_listed.store(false, Ordering::SeqCst);
    }
}
