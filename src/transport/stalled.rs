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

/// The streams that have begun to wait since the connection looked.
#[derive(Debug, Default)]
pub(super) struct Newcomers(Mutex<Vec<Waiting>>);

/// One stream that waits, or did so when it was looked at.
#[derive(Debug)]
struct Waiting {
    stream: Weak<StreamWaker>,
    since: Instant,
    written: usize,
}

/// The streams of a connection that wait.
#[derive(Debug)]
pub(super) struct Stalled {
    timeout: Duration,
    waiting: Vec<Waiting>,
    /// While there are any.
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

// === impl Newcomers ===

impl Newcomers {
    /// Lists a stream. Returns whether it is the first one since the connection looked.
    pub(super) fn push(&self, stream: &StreamHandle) -> bool {
        let written = stream.0.progress.written.load(Ordering::Relaxed);
        let waiting = Waiting { stream: Arc::downgrade(&stream.0), since: Instant::now(), written };
        let mut newcomers = self.0.lock();
        newcomers.push(waiting);
        newcomers.len() == 1
    }
}

// === impl Stalled ===

impl Stalled {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, waiting: Vec::new(), timer: None }
    }

    /// Looks at the streams that wait when it is time, and resets those that have waited for too long. Returns their number.
    pub(super) fn poll(&mut self, newcomers: &Newcomers, cx: &mut Context<'_>) -> usize {
        let mut reset = 0;
        loop {
            if self.timer.is_none() {
                if newcomers.0.lock().is_empty() {
                    return reset;
                }
                self.timer = Some(Box::pin(tokio::time::sleep(self.timeout / LOOKS)));
            }
            let Some(Poll::Ready(())) = self.timer.as_mut().map(|timer| timer.as_mut().poll(cx)) else { return reset };
            self.timer = None;
            self.waiting.append(&mut newcomers.0.lock());
            let (now, timeout) = (Instant::now(), self.timeout);
            let before = self.waiting.len();
            let mut left = 0;
            self.waiting.retain_mut(|waiting| match waiting.look(now, timeout) {
                Look::Waits => true,
                Look::Left => {
                    left += 1;
                    false
                }
                Look::Stalled => false,
            });
            reset += before - self.waiting.len() - left;
            if !self.waiting.is_empty() {
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
    fn look(&mut self, now: Instant, timeout: Duration) -> Look {
        let Some(stream) = self.stream.upgrade().map(StreamHandle) else { return Look::Left };
        let progress = &stream.0.progress;
        let written = progress.written.load(Ordering::Relaxed);
        if !stream.is_waiting() {
            progress.is_listed.store(false, Ordering::SeqCst);
            // It may have begun anew before that, and believed itself listed.
            if !stream.is_waiting() || !progress.begin() {
                return Look::Left;
            }
            (self.since, self.written) = (now, written);
        }
        if self.written != written {
            (self.since, self.written) = (now, written);
        }
        let timeout = if progress.wait() == Wait::Line { timeout * LINE_FACTOR } else { timeout };
        if now - self.since < timeout {
            return Look::Waits;
        }
        stream.stall();
        Look::Stalled
    }
}
