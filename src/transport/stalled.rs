//! Streams whose clients take nothing of what is to be sent: they are reset after a time.
//!
//! A stream waits from the moment that it has something to send and cannot, until a byte of it is written. It is listed when it
//! begins to wait, and stays listed until a look finds that it waits no more: so a busy stream is listed once for each look, and
//! when no stream waits there is no timer.

use std::{
    pin::Pin,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::{Instant, Sleep};

use super::handle::{StreamHandle, StreamWaker};

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

/// The streams of a connection that wait, or did so when they were looked at.
#[derive(Debug, Default)]
pub(super) struct WaitingStreams(Mutex<Listed>);

#[derive(Debug, Default)]
struct Listed {
    streams: Vec<Waiting>,
    /// There are some that the connection has not seen.
    has_new: bool,
}

/// A stream that waits, for the server.
#[derive(Debug)]
pub(super) struct LongWaiting {
    pub(super) stream: StreamHandle,
    /// When it was last seen to make progress, or began to wait.
    pub(super) since: Instant,
}

/// One stream that waits, or did so when it was looked at.
#[derive(Debug)]
struct Waiting {
    stream: Weak<StreamWaker>,
    since: Instant,
    written: usize,
}

/// Resets the streams of a connection that wait for too long.
#[derive(Debug)]
pub(super) struct Stalled {
    timeout: Duration,
    /// While there are any that wait.
    timer: Option<Pin<Box<Sleep>>>,
}

/// The connection looks so often in the time after which a stream is reset.
const LOOKS: u32 = 8;
/// Those in line have as much longer: the ones before them are reset first, and make room.
const LINE_FACTOR: u32 = 2;

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

    /// Returns whether the stream is to be listed: it is not.
    pub(super) fn begin(&self) -> bool {
        !self.is_listed.swap(true, Ordering::SeqCst)
    }
}

// === impl WaitingStreams ===

impl WaitingStreams {
    /// Lists a stream. Returns whether the connection has to look at it and does not know yet.
    pub(super) fn push(&self, stream: &StreamHandle) -> bool {
        let written = stream.0.progress.written.load(Ordering::Relaxed);
        let waiting = Waiting { stream: Arc::downgrade(&stream.0), since: Instant::now(), written };
        let mut listed = self.0.lock();
        listed.streams.push(waiting);
        !std::mem::replace(&mut listed.has_new, true)
    }

    /// Looks at those that wait, and takes note of their progress.
    pub(super) fn look(&self, now: Instant, mut found: impl FnMut(LongWaiting)) {
        for waiting in &mut self.0.lock().streams {
            if let Some(stream) = waiting.stream.upgrade().map(StreamHandle) {
                let is_waiting = stream.is_waiting();
                waiting.note_progress(&stream, !is_waiting, now);
                if is_waiting {
                    found(LongWaiting { stream, since: waiting.since });
                }
            }
        }
    }
}

// === impl Stalled ===

impl Stalled {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, timer: None }
    }

    /// Looks at the streams that wait when it is time, and resets those that have waited for too long. Returns their number.
    pub(super) fn poll(&mut self, waiting: &WaitingStreams, cx: &mut Context<'_>) -> usize {
        let mut reset = 0;
        loop {
            if self.timer.is_none() {
                if !waiting.0.lock().has_new {
                    return reset;
                }
                self.timer = Some(Box::pin(tokio::time::sleep(self.timeout / LOOKS)));
            }
            let Some(Poll::Ready(())) = self.timer.as_mut().map(|timer| timer.as_mut().poll(cx)) else { return reset };
            self.timer = None;
            let (now, timeout) = (Instant::now(), self.timeout);
            let mut listed = waiting.0.lock();
            listed.has_new = false;
            listed.streams.retain_mut(|waiting| match waiting.look(now, timeout) {
                Look::Waits => true,
                Look::Left => false,
                Look::Stalled => {
                    reset += 1;
                    false
                }
            });
            if !listed.streams.is_empty() {
                self.timer = Some(Box::pin(tokio::time::sleep(self.timeout / LOOKS)));
            }
        }
    }
}

/// Result of a look at a stream.
enum Look {
    Waits,
    /// It waits no more.
    Left,
    /// It was reset.
    Stalled,
}

impl Waiting {
    /// Takes note of what was written since it was looked at last; `is_new` when it did not wait.
    fn note_progress(&mut self, stream: &StreamHandle, is_new: bool, now: Instant) {
        let written = stream.0.progress.written.load(Ordering::Relaxed);
        if is_new || self.written != written {
            (self.since, self.written) = (now, written);
        }
    }

    fn look(&mut self, now: Instant, timeout: Duration) -> Look {
        let Some(stream) = self.stream.upgrade().map(StreamHandle) else { return Look::Left };
        let progress = &stream.0.progress;
        let is_new = !stream.is_waiting();
        if is_new {
            progress.is_listed.store(false, Ordering::SeqCst);
            // It may have begun anew before that, and believed itself listed.
            if !stream.is_waiting() || !progress.begin() {
                return Look::Left;
            }
        }
        self.note_progress(&stream, is_new, now);
        let timeout = if progress.wait() == Wait::Line { timeout * LINE_FACTOR } else { timeout };
        if now - self.since < timeout {
            return Look::Waits;
        }
        stream.stall();
        Look::Stalled
    }
}
