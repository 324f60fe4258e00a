//! A stream as it is seen from outside: by its wakers, by what HTTP/2 has of it, and by whoever resets it.
//!
//! Written by wakers of any thread (the ready list) and by the connection's task (everything else). Invariants:
//!
//! - A key is pushed to the ready list before the task is woken; the task rests only after it has found the list empty, and
//!   looks again when it was woken meanwhile. So no wake-up is lost.
//! - A waker owns no stream: the last reference to one may be dropped under the lock of whoever held it.

use std::{
    fmt,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering},
    },
    task::Wake,
    time::Duration,
};

use futures_util::task::AtomicWaker;
use h2::Reason;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    body::MAX_ROOM,
    budget::{Budgets, Kept},
    progress::{Progress, Wait},
};

/// A stream, seen by others than the one that polls it; an extension of its request.
#[derive(Clone)]
pub struct StreamHandle(pub(super) Arc<StreamWaker>);

/// State that the streams of a connection share: the list of those to be polled, and the bounds on unsent bytes.
pub(super) struct Wakes {
    pub(super) ready: Mutex<Vec<usize>>,
    pub(super) state: AtomicU8,
    pub(super) task: AtomicWaker,
    budgets: Budgets,
    /// Streams that are not over.
    open: AtomicUsize,
    /// Some were ended because their client takes nothing, or does not send what it has begun.
    has_stalled: AtomicBool,
    /// Bytes that the bodies of its streams have made.
    made: AtomicUsize,
    /// Bytes of the buffer that the socket has not taken.
    buffered: AtomicUsize,
    /// The bound on the memory that is held for the streams of all connections.
    pub(super) memory_limit: AtomicUsize,
    /// The streams that wait.
    pub(super) waiting: WaitingStreams,
}

pub(super) struct StreamWaker {
    wakes: Arc<Wakes>,
    pub(super) key: AtomicUsize,
    /// As that of the connection's task.
    pub(super) state: AtomicU8,
    /// Bytes that HTTP/2 has of it.
    unsent: AtomicUsize,
    /// Bytes that its body has made and not handed out; written by the stream alone.
    made: AtomicUsize,
    /// Bytes that others keep for it.
    kept: AtomicUsize,
    /// It waits until they are fewer.
    is_full: AtomicBool,
    /// [`KEPT`], or how the stream is to end.
    reset: AtomicU8,
    pub(super) progress: Progress,
    /// Of a stream that has a task of its own.
    pub(super) task: AtomicWaker,
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

/// Result of a look at a stream.
enum Look {
    Waits,
    /// It waits no more.
    Left,
    /// It was reset.
    Stalled,
}

/// The connection itself, in the ready list.
pub(super) const CONNECTION: usize = usize::MAX;
/// A stream with a task of its own; it is never in the list.
pub(super) const SPAWNED: usize = usize::MAX - 1;

/// Nothing is made for a stream that has so much unsent.
const UNSENT_PER_STREAM: usize = MAX_ROOM;

/// The stream is not to be reset.
const KEPT: u8 = 0;
/// The stream is to be reset with `CANCEL`.
const CANCELLED: u8 = 1;
/// The stream is to be reset with `ENHANCE_YOUR_CALM`, which gRPC has as `RESOURCE_EXHAUSTED`.
const STALLED: u8 = 2;
/// The stream is to end with its body's last words, if they can be sent, and otherwise as a stalled one.
const EXHAUSTED: u8 = 3;

/// The task waits to be woken.
pub(super) const RESTING: u8 = 0;
/// The task is running, and looks at the list before it rests.
pub(super) const POLLING: u8 = 1;
/// The task was woken, or is to look again.
pub(super) const WOKEN: u8 = 2;

/// Those in line have as much longer: the ones before them are reset first, and make room.
const LINE_FACTOR: u32 = 2;

// === impl StreamHandle ===

impl StreamHandle {
    /// Ends the stream with `RST_STREAM`, whatever it has still to send: a client whose window is shut can be sent nothing else.
    pub fn reset(&self) {
        self.0.reset.store(CANCELLED, Ordering::Release);
        self.0.wake_by_ref();
    }

    /// Notes the bytes that are kept for the stream elsewhere.
    pub fn keep(&self, bytes: usize) {
        self.0.kept.store(bytes, Ordering::Relaxed);
    }

    /// Returns the bytes that the server holds for the stream.
    pub fn bytes_held(&self) -> usize {
        let StreamWaker { unsent, made, kept, .. } = &*self.0;
        [unsent, made, kept].iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum()
    }

    /// Notes the bytes that the body has made and not handed out.
    pub(super) fn note_made(&self, bytes: usize) {
        let before = self.0.made.load(Ordering::Relaxed);
        if before != bytes {
            self.0.made.store(bytes, Ordering::Relaxed);
            // Less is added by wrapping around.
            self.0.wakes.made.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// Wakes the stream without a reason.
    #[cfg(test)]
    pub(super) fn wake(&self) {
        self.0.wake_by_ref();
    }

    /// Ends the stream because its client takes nothing of it.
    pub(super) fn stall(&self) {
        self.close_after_last();
        self.0.reset.store(STALLED, Ordering::Release);
        self.0.wake_by_ref();
    }

    /// Ends the stream because too much memory is held for all. Returns what was kept for it.
    pub(super) fn exhaust(&self) -> usize {
        self.0.reset.store(EXHAUSTED, Ordering::Release);
        self.0.wake_by_ref();
        self.0.kept.swap(0, Ordering::Relaxed)
    }

    /// Returns whether the stream is to end because too much memory is held for all.
    pub(super) fn is_exhausted(&self) -> bool {
        self.0.reset.load(Ordering::Acquire) == EXHAUSTED
    }

    /// Returns whether the socket takes nothing more.
    pub(super) fn is_socket_full(&self) -> bool {
        self.0.wakes.buffered.load(Ordering::Relaxed) > 0
    }

    /// Has the connection closed after the last of its streams: the client takes nothing, or does not send what it has begun.
    pub fn close_after_last(&self) {
        self.0.wakes.has_stalled.store(true, Ordering::SeqCst);
    }

    /// Returns how the stream is to be reset, if it is.
    pub(super) fn wanted_reset(&self) -> Option<Reason> {
        match self.0.reset.load(Ordering::Acquire) {
            KEPT => None,
            STALLED | EXHAUSTED => Some(Reason::ENHANCE_YOUR_CALM),
            _ => Some(Reason::CANCEL),
        }
    }

    /// Returns the bound on the memory that is held for all streams.
    pub(super) fn memory_limit(&self) -> usize {
        self.0.wakes.memory_limit.load(Ordering::Relaxed)
    }

    /// Counts the stream among those that are not over.
    pub(super) fn begin(&self) {
        self.0.wakes.open.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts the stream no more; the connection looks whether it was the last one.
    pub(super) fn end(&self) {
        self.0.wakes.open.fetch_sub(1, Ordering::SeqCst);
        if self.0.wakes.is_deserted() {
            self.0.wakes.wake(CONNECTION);
        }
    }

    /// Forgets the wake-ups so far: the stream is being polled, and has not looked at what they are about.
    pub(super) fn settle(&self) {
        self.0.state.store(POLLING, Ordering::SeqCst);
    }

    /// Returns the bounds of its connection.
    pub(super) fn budgets(&self) -> &Budgets {
        &self.0.wakes.budgets
    }

    /// Returns whether the stream has to wait until more of it is sent; it is woken then.
    pub(super) fn is_full(&self) -> bool {
        self.has_unsent(UNSENT_PER_STREAM)
    }

    /// Returns whether HTTP/2 has as many bytes of it, or more; the stream is woken when some of them were sent.
    pub(super) fn has_unsent(&self, bytes: usize) -> bool {
        let has_unsent = || self.0.unsent.load(Ordering::SeqCst) >= bytes;
        if !has_unsent() {
            return false;
        }
        self.0.is_full.store(true, Ordering::SeqCst);
        // It may have been sent before that.
        has_unsent()
    }

    /// Notes what the stream waits for from now on, or that it does not wait; what HTTP/2 has of it waits in any case.
    pub(super) fn waits_for(&self, wait: Wait) {
        self.0.progress.set(wait);
        if self.is_waiting() && self.0.progress.begin() && self.0.wakes.waiting.push(self) {
            self.0.wakes.wake(CONNECTION);
        }
    }

    /// Returns whether there is something to be sent that is not.
    pub(super) fn is_waiting(&self) -> bool {
        self.0.progress.wait() != Wait::Nothing || self.0.unsent.load(Ordering::SeqCst) > 0
    }

    /// Counts bytes that were written.
    pub(super) fn note_written(&self, bytes: usize) {
        self.0.progress.add(bytes);
    }

    /// Counts bytes that HTTP/2 has been given.
    pub(super) fn charge(&self, bytes: usize, kept: Kept) {
        self.0.unsent.fetch_add(bytes, Ordering::SeqCst);
        self.0.wakes.budgets.of(kept).charge(bytes);
    }

    /// Counts bytes that HTTP/2 no longer has.
    pub(super) fn release(&self, bytes: usize, kept: Kept) {
        let unsent = self.0.unsent.fetch_sub(bytes, Ordering::SeqCst) - bytes;
        if unsent < UNSENT_PER_STREAM && self.0.is_full.swap(false, Ordering::SeqCst) {
            self.0.wake_by_ref();
        }
        self.0.wakes.budgets.of(kept).release(bytes);
    }
}

impl fmt::Debug for StreamHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamHandle").field("reset", &self.0.reset).finish_non_exhaustive()
    }
}

// === impl Wakes ===

impl Wakes {
    pub(super) fn new() -> Self {
        Self {
            ready: Mutex::default(),
            state: AtomicU8::new(RESTING),
            task: AtomicWaker::new(),
            budgets: Budgets::new(),
            open: AtomicUsize::new(0),
            has_stalled: AtomicBool::new(false),
            made: AtomicUsize::new(0),
            buffered: AtomicUsize::new(0),
            memory_limit: AtomicUsize::new(0),
            waiting: WaitingStreams::default(),
        }
    }

    /// Returns whether the last stream is over, and some of them were ended because of their client.
    pub(super) fn is_deserted(&self) -> bool {
        self.has_stalled.load(Ordering::SeqCst) && self.open.load(Ordering::SeqCst) == 0
    }

    /// Returns the bytes that HTTP/2 and the connection have of its streams.
    pub(super) fn sending(&self) -> usize {
        self.budgets.socket.bytes() + self.budgets.large.bytes() + self.buffered.load(Ordering::Relaxed)
    }

    /// Returns the bytes that the bodies of its streams have made.
    pub(super) fn made(&self) -> usize {
        self.made.load(Ordering::Relaxed)
    }

    /// Notes the bytes of the buffer that the socket has not taken.
    pub(super) fn note_buffered(&self, bytes: usize) {
        self.buffered.store(bytes, Ordering::Relaxed);
    }

    /// Has the connection's task poll a stream, or itself.
    fn wake(&self, key: usize) {
        self.ready.lock().push(key);
        if self.state.swap(WOKEN, Ordering::SeqCst) == RESTING {
            self.task.wake();
        }
    }
}

// === impl StreamWaker ===

impl StreamWaker {
    pub(super) fn new(wakes: &Arc<Wakes>, key: usize) -> Self {
        Self {
            wakes: Arc::clone(wakes),
            key: AtomicUsize::new(key),
            state: AtomicU8::new(RESTING),
            unsent: AtomicUsize::new(0),
            made: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            is_full: AtomicBool::new(false),
            reset: AtomicU8::new(KEPT),
            progress: Progress::default(),
            task: AtomicWaker::new(),
        }
    }
}

impl Wake for StreamWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let key = self.key.load(Ordering::Acquire);
        let before = self.state.swap(WOKEN, Ordering::SeqCst);
        if key == SPAWNED {
            // While it is polled, it looks before it rests.
            if before == RESTING {
                self.task.wake();
            }
            return;
        }
        // The connection does not know when it is polled, so it may be in the list twice, which does no harm.
        if key == CONNECTION || before != WOKEN {
            self.wakes.wake(key);
        }
    }
}

// === impl WaitingStreams ===

impl WaitingStreams {
    /// Lists a stream. Returns whether the connection has to look at it and does not know yet.
    pub(super) fn push(&self, stream: &StreamHandle) -> bool {
        let written = stream.0.progress.written();
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

    /// Returns whether there are some that the connection has not seen.
    pub(super) fn has_new(&self) -> bool {
        self.0.lock().has_new
    }

    /// Resets those that have waited for too long. Returns their number, and whether none wait any more.
    pub(super) fn reset_stalled(&self, now: Instant, timeout: Duration) -> (usize, bool) {
        let mut reset = 0;
        let mut listed = self.0.lock();
        listed.has_new = false;
        listed.streams.retain_mut(|waiting| match waiting.look(now, timeout) {
            Look::Waits => true,
            Look::Left => false,
            Look::Stalled => {
                reset += 1;
                false
            }
        });
        (reset, listed.streams.is_empty())
    }
}

// === impl Waiting ===

impl Waiting {
    /// Takes note of what was written since it was looked at last; `is_new` when it did not wait.
    fn note_progress(&mut self, stream: &StreamHandle, is_new: bool, now: Instant) {
        let written = stream.0.progress.written();
        if is_new || self.written != written {
            (self.since, self.written) = (now, written);
        }
    }

    fn look(&mut self, now: Instant, timeout: Duration) -> Look {
        let Some(stream) = self.stream.upgrade().map(StreamHandle) else { return Look::Left };
        let progress = &stream.0.progress;
        let is_new = !stream.is_waiting();
        if is_new {
            progress.end();
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
