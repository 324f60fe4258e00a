//! Handle of a stream: its wakers, its unsent data in HTTP/2, and the requests to reset it.
//!
//! Any thread may wake a stream, request its reset, or record the memory that is kept for it; the task that polls the stream
//! writes the rest. Invariants:
//!
//! - A key is pushed to the ready list before the task is woken. The task parks only after it has found the list empty, and
//!   checks it again if it was woken meanwhile. So no wake-up is lost.
//! - A waker owns no stream: the last reference to a waker may be dropped under the lock of its holder.

use std::{
    fmt,
    sync::{
        Arc, OnceLock, Weak,
        atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicUsize, Ordering},
    },
    task::Wake,
};

use futures_util::task::AtomicWaker;
use h2::Reason;
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{
    Exceeded, Origin, StreamEnd,
    body::MAX_ROOM,
    budget::{BudgetKind, Budgets},
    progress::{Progress, Wait},
};

/// Handle of a stream for other tasks than the one that polls it; an extension of its request.
#[derive(Clone)]
pub struct StreamHandle(pub(super) Arc<StreamWaker>);

/// State that the streams of a connection share: the list of ready streams, and the limits on unsent bytes.
#[derive(Default)]
pub(super) struct ConnectionWakes {
    pub(super) ready: Mutex<Vec<usize>>,
    pub(super) state: AtomicU8,
    pub(super) task: AtomicWaker,
    budgets: Budgets,
    /// Number of streams that are not over.
    open: AtomicUsize,
    /// True if a stream was ended because its client reads nothing, or does not complete a frame.
    has_stalled: AtomicBool,
    /// Window of each stream at its start.
    pub(super) initial_window: AtomicU32,
    /// Number of bytes of all streams that were written or discarded.
    written: AtomicUsize,
    /// Reason for which the server has ended the connection with its streams.
    end: OnceLock<StreamEnd>,
    /// Number of bytes that the bodies of the streams have encoded and not handed out.
    encoded_bytes: AtomicUsize,
    /// Size of the connection's buffer that the socket has not taken, in bytes.
    buffered: AtomicUsize,
    /// Limit on the memory that is held for the streams of all connections, in bytes.
    pub(super) memory_limit: AtomicUsize,
    /// The same for the streams of one owner.
    pub(super) owner_limit: AtomicUsize,
    /// Streams that wait.
    pub(super) waiting: WaitingStreams,
}

pub(super) struct StreamWaker {
    wakes: Arc<ConnectionWakes>,
    pub(super) key: AtomicUsize,
    /// State of its task, with the same values as that of the connection's task.
    pub(super) state: AtomicU8,
    /// Number of its bytes that HTTP/2 holds.
    unsent: AtomicUsize,
    /// Number of bytes that its body has encoded and not handed out; only the stream writes this.
    encoded_bytes: AtomicUsize,
    /// Number of bytes that other parts of the server hold for it.
    kept: AtomicUsize,
    /// Owner of the bytes, if they count for a limit of its own; boxed, because few servers have such a limit.
    owner: OnceLock<Box<Origin>>,
    /// True if the stream waits until fewer bytes are unsent.
    is_full: AtomicBool,
    /// Reason for which the server ends the stream.
    end: OnceLock<StreamEnd>,
    pub(super) progress: Progress,
    /// Waker of the stream's own task, if it has one.
    pub(super) task: AtomicWaker,
}

/// Streams of a connection that wait, or did so at the last check.
#[derive(Debug, Default)]
pub(super) struct WaitingStreams(pub(super) Mutex<WaitingList>);

#[derive(Debug, Default)]
pub(super) struct WaitingList {
    pub(super) streams: Vec<Waiting>,
    /// True if there are new streams since the connection's last check.
    pub(super) has_new: bool,
    /// Number of streams at which those that are over are removed.
    sweep_at: usize,
}

/// A stream that waits, or did so at the last check.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) stream: Weak<StreamWaker>,
    pub(super) since: Instant,
    pub(super) written: usize,
    /// Time of the last progress for which the client has received everything, and the time at which it had: later PINGs do not
    /// begin the timeout again.
    pub(super) received: Option<(Instant, Instant)>,
    /// True if the last check for stalled streams found that it waits only because it is paused.
    pub(super) was_paused: bool,
}

/// Window of a stream and of a connection before any frame.
const DEFAULT_WINDOW: u32 = 65_535;
/// Key of the connection itself in the ready list.
pub(super) const CONNECTION: usize = usize::MAX;
/// Key of a stream with a task of its own; it is never in the ready list.
pub(super) const SPAWNED: usize = usize::MAX - 1;

/// Least number of listed streams at which those that are over are removed.
const MIN_SWEEP: usize = 16;
/// Number of unsent bytes at which no more data is encoded for a stream.
const UNSENT_PER_STREAM: usize = MAX_ROOM;

/// The task is parked.
pub(super) const PARKED: u8 = 0;
/// The task is running, and checks the ready list before it parks.
pub(super) const POLLING: u8 = 1;
/// The task was woken, or must check the list again.
pub(super) const WOKEN: u8 = 2;

// === impl StreamHandle ===

impl StreamHandle {
    /// Resets the stream with `RST_STREAM`, and discards its unsent data: a client whose window is shut can receive nothing else.
    pub fn reset(&self) {
        self.ends(StreamEnd::Evicted);
    }

    /// Returns the reason for which the server has ended the stream, or its connection. `None` if it has not, or if the stream's body
    /// has ended by itself.
    pub fn ended(&self) -> Option<StreamEnd> {
        self.0.end.get().or_else(|| self.0.wakes.end.get()).copied()
    }

    /// Requests the end of the stream; the first reason counts.
    pub(super) fn ends(&self, end: StreamEnd) {
        self.0.end.get_or_init(|| end);
        self.0.wake_by_ref();
    }

    /// Replaces one of the numbers of bytes that other parts of the server hold for the stream.
    pub fn keep(&self, before: usize, bytes: usize) {
        // The ledger may have cleared the sum meanwhile.
        let replace = |kept: usize| Some((kept + bytes).saturating_sub(before));
        self.0.kept.fetch_update(Ordering::Relaxed, Ordering::Relaxed, replace).ok();
    }

    /// Sets the owner, to whose limit the bytes of the stream count from now on.
    pub fn belongs_to(&self, owner: Origin) {
        self.0.owner.get_or_init(|| Box::new(owner));
    }

    /// Returns the owner.
    pub(super) fn owner(&self) -> Option<Origin> {
        self.0.owner.get().map(|owner| **owner)
    }

    /// Returns the number of bytes that the server holds for the stream.
    pub fn bytes_held(&self) -> usize {
        let StreamWaker { unsent, encoded_bytes, kept, .. } = &*self.0;
        [unsent, encoded_bytes, kept].iter().map(|bytes| bytes.load(Ordering::Relaxed)).sum()
    }

    /// Records the number of bytes that the body has encoded and not handed out.
    pub(super) fn note_encoded(&self, bytes: usize) {
        let before = self.0.encoded_bytes.load(Ordering::Relaxed);
        if before != bytes {
            self.0.encoded_bytes.store(bytes, Ordering::Relaxed);
            // A decrease wraps around.
            self.0.wakes.encoded_bytes.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
        }
    }

    /// Wakes the stream without a reason.
    #[cfg(test)]
    pub(super) fn wake(&self) {
        self.0.wake_by_ref();
    }

    /// Records that the stream ends because it has failed.
    pub(super) fn fails(&self) {
        self.0.end.get_or_init(|| StreamEnd::Failed);
    }

    /// Ends the stream because its client reads nothing.
    pub(super) fn stall(&self) {
        self.close_after_last();
        self.ends(StreamEnd::Stalled);
    }

    /// Ends the stream because too much memory is held for all, or for its owner. Returns the bytes that other parts of the server
    /// hold for it.
    pub(super) fn exhaust(&self, is_by_owner: bool) -> usize {
        self.ends(if is_by_owner { StreamEnd::OwnerExhausted } else { StreamEnd::Exhausted });
        self.0.kept.swap(0, Ordering::Relaxed)
    }

    /// Returns the limit because of which the stream must end, if too much memory is held.
    pub(super) fn exhausted(&self) -> Option<Exceeded> {
        match self.0.end.get()? {
            StreamEnd::Exhausted => Some(Exceeded::All(self.0.wakes.memory_limit.load(Ordering::Relaxed))),
            StreamEnd::OwnerExhausted => Some(Exceeded::Share(self.0.wakes.owner_limit.load(Ordering::Relaxed))),
            _ => None,
        }
    }

    /// Returns the number of its bytes that the connection holds.
    #[cfg(feature = "kubernetes-api")]
    pub(super) fn unsent(&self) -> usize {
        self.0.unsent.load(Ordering::SeqCst)
    }

    /// Removes the stream, which is over, from those that wait: nobody checks the streams of a connection that has one at a time.
    #[cfg(feature = "kubernetes-api")]
    pub(super) fn leaves_waiting(&self) {
        let is_other = |waiting: &Waiting| waiting.stream.as_ptr() != Arc::as_ptr(&self.0);
        self.0.wakes.waiting.0.lock().streams.retain(is_other);
    }

    /// Returns true if the socket is full.
    pub(super) fn is_socket_full(&self) -> bool {
        self.0.wakes.buffered.load(Ordering::Relaxed) > 0
    }

    /// Requests to close the connection after its last stream: the client reads nothing, or does not complete a frame.
    pub fn close_after_last(&self) {
        self.0.wakes.has_stalled.store(true, Ordering::SeqCst);
    }

    /// Returns the reason with which the stream must be reset, if it must.
    pub(super) fn wanted_reset(&self) -> Option<Reason> {
        Some(match self.0.end.get()? {
            // gRPC maps this to `RESOURCE_EXHAUSTED`.
            StreamEnd::Stalled | StreamEnd::Exhausted | StreamEnd::OwnerExhausted => Reason::ENHANCE_YOUR_CALM,
            _ => Reason::CANCEL,
        })
    }

    /// Counts the stream as open.
    pub(super) fn begin(&self) {
        self.0.wakes.open.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts the stream as ended, and wakes the connection if it was the last one of a client that stalled.
    pub(super) fn end(&self) {
        self.0.wakes.open.fetch_sub(1, Ordering::SeqCst);
        if self.0.wakes.is_deserted() {
            self.0.wakes.wake(CONNECTION);
        }
    }

    /// Discards the wake-ups so far: the stream is being polled, and handles their causes afterwards.
    pub(super) fn settle(&self) {
        self.0.state.store(POLLING, Ordering::SeqCst);
    }

    /// Returns the budgets of its connection.
    pub(super) fn budgets(&self) -> &Budgets {
        &self.0.wakes.budgets
    }

    /// Returns true if the stream must wait until more of its data is sent; it is woken then.
    pub(super) fn is_full(&self) -> bool {
        self.has_unsent(UNSENT_PER_STREAM)
    }

    /// Returns true if HTTP/2 holds this many bytes of the stream or more; the stream is woken when some of them were sent.
    pub(super) fn has_unsent(&self, bytes: usize) -> bool {
        let has_unsent = || self.0.unsent.load(Ordering::SeqCst) >= bytes;
        if !has_unsent() {
            return false;
        }
        self.0.is_full.store(true, Ordering::SeqCst);
        // The data may have been sent before the flag was set.
        has_unsent()
    }

    /// Records the reason for which the stream waits from now on, if it does. Unsent data in HTTP/2 always counts as waiting.
    pub(super) fn waits_for(&self, wait: Wait) {
        self.0.progress.set(wait);
        if self.is_waiting() && self.0.progress.begin() && self.0.wakes.waiting.push(self) {
            self.0.wakes.wake(CONNECTION);
        }
    }

    /// Returns true if there is data that cannot be sent now, or if the client has paused a part of the stream.
    pub(super) fn is_waiting(&self) -> bool {
        self.0.progress.wait() != Wait::Nothing || self.0.unsent.load(Ordering::SeqCst) > 0
    }

    /// Returns true if the stream has sent everything but what its client has paused.
    pub(super) fn is_paused(&self) -> bool {
        self.0.progress.wait() == Wait::Paused && self.0.unsent.load(Ordering::SeqCst) == 0
    }

    /// Counts bytes that were written.
    pub(super) fn note_written(&self, bytes: usize) {
        self.0.progress.add(bytes);
        self.0.wakes.written.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Returns true if the stream's own window is shut: its client has not acknowledged enough of the stream's own bytes.
    pub(super) fn is_window_shut(&self) -> bool {
        let window = u64::from(self.0.wakes.initial_window.load(Ordering::Relaxed)) + self.0.progress.opened();
        self.0.progress.written() as u64 >= window
    }

    /// Returns true if the client has not acknowledged all of the stream's bytes.
    pub(super) fn has_unacknowledged(&self) -> bool {
        self.0.progress.written() as u64 > self.0.progress.opened()
    }

    /// Counts bytes that were handed to HTTP/2.
    pub(super) fn charge(&self, bytes: usize, kept: BudgetKind) {
        self.0.unsent.fetch_add(bytes, Ordering::SeqCst);
        self.0.wakes.budgets.of(kept).charge(bytes);
    }

    /// Counts bytes that HTTP/2 has released.
    pub(super) fn release(&self, bytes: usize, kept: BudgetKind) {
        let unsent = self.0.unsent.fetch_sub(bytes, Ordering::SeqCst) - bytes;
        if unsent < UNSENT_PER_STREAM && self.0.is_full.swap(false, Ordering::SeqCst) {
            self.0.wake_by_ref();
        }
        self.0.wakes.budgets.of(kept).release(bytes);
    }
}

impl fmt::Debug for StreamHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StreamHandle").field("end", &self.0.end.get()).finish_non_exhaustive()
    }
}

// === impl ConnectionWakes ===

impl ConnectionWakes {
    pub(super) fn new() -> Self {
        Self { initial_window: AtomicU32::new(DEFAULT_WINDOW), ..Self::default() }
    }

    /// Returns true if the last stream is over, and some were ended because of their client.
    pub(super) fn is_deserted(&self) -> bool {
        self.has_stalled.load(Ordering::SeqCst) && self.open.load(Ordering::SeqCst) == 0
    }

    /// Records the end of the connection by the server; the first reason counts.
    pub(super) fn ends(&self, end: StreamEnd) {
        self.end.get_or_init(|| end);
    }

    /// Returns the number of streams that are not over.
    pub(super) fn open(&self) -> usize {
        self.open.load(Ordering::SeqCst)
    }

    /// Returns the number of bytes of all streams that were ever written or discarded.
    pub(super) fn written(&self) -> usize {
        self.written.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that HTTP/2 and the connection hold for its streams.
    pub(super) fn sending(&self) -> usize {
        self.budgets.socket.bytes() + self.budgets.large.bytes() + self.buffered.load(Ordering::Relaxed)
    }

    /// Returns the number of bytes that the bodies of its streams have encoded and not handed out.
    pub(super) fn encoded_bytes(&self) -> usize {
        self.encoded_bytes.load(Ordering::Relaxed)
    }

    /// Records the size of the buffer that the socket has not taken.
    pub(super) fn note_buffered(&self, bytes: usize) {
        self.buffered.store(bytes, Ordering::Relaxed);
    }

    /// Wakes the connection's task to poll a stream, or itself.
    fn wake(&self, key: usize) {
        self.ready.lock().push(key);
        if self.state.swap(WOKEN, Ordering::SeqCst) == PARKED {
            self.task.wake();
        }
    }
}

// === impl StreamWaker ===

impl StreamWaker {
    pub(super) fn new(wakes: &Arc<ConnectionWakes>, key: usize) -> Self {
        Self {
            wakes: Arc::clone(wakes),
            key: AtomicUsize::new(key),
            state: AtomicU8::new(PARKED),
            unsent: AtomicUsize::new(0),
            encoded_bytes: AtomicUsize::new(0),
            kept: AtomicUsize::new(0),
            owner: OnceLock::new(),
            is_full: AtomicBool::new(false),
            end: OnceLock::new(),
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
            // A running task checks its state before it parks.
            if before == PARKED {
                self.task.wake();
            }
            return;
        }
        // The connection's own state is never reset, so its key may be in the list twice, which is harmless.
        if key == CONNECTION || before != WOKEN {
            self.wakes.wake(key);
        }
    }
}

// === impl WaitingStreams ===

impl WaitingStreams {
    /// Adds a stream. Returns true if the connection must check the list, and was not notified of that yet.
    pub(super) fn push(&self, stream: &StreamHandle) -> bool {
        let written = stream.0.progress.written();
        let stream_ref = Arc::downgrade(&stream.0);
        let waiting = Waiting { stream: stream_ref, since: Instant::now(), written, received: None, was_paused: false };
        let mut listed = self.0.lock();
        if listed.streams.len() >= listed.sweep_at {
            listed.streams.retain(|waiting| waiting.stream.strong_count() > 0);
            listed.shrink();
        }
        listed.streams.push(waiting);
        !std::mem::replace(&mut listed.has_new, true)
    }

    /// Returns true if there are new streams since the connection's last check.
    pub(super) fn has_new(&self) -> bool {
        self.0.lock().has_new
    }
}

// === impl WaitingList ===

impl WaitingList {
    /// Releases the memory of streams that were removed.
    pub(super) fn shrink(&mut self) {
        self.sweep_at = (2 * self.streams.len()).max(MIN_SWEEP);
        self.streams.shrink_to(self.sweep_at);
    }
}
