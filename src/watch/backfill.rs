//! Batches of the past as events of a selection, encoded once for all clients that are at the same place.
//!
//! A client that is behind its group's log has a backlog of the history: a [`BacklogReader`]. What comes at its place is a
//! [`Block`], made by the first client that needs it, on a [`BulkThreads`] where there are some; whoever
//! comes there meanwhile waits for it. Blocks end where offsets are a multiple of [`BLOCK_CHANGES`] as well, so that clients
//! that began at different places soon read the same ones.
//!
//! Written by clients (orders) and by threads (blocks). Blocks that are kept take no more than a bound, and those that are
//! being made no more than [`AT_ONCE`] and the threads hold. A client that waits for window holds no block.

mod reader;

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Instant,
};

pub use self::reader::BacklogReader;
use super::{
    BulkThreads, Frame, Replay,
    bulk::{BulkQueue, Work},
    replay::Place,
    selection_budget::Clock,
};
use crate::{
    model::Selection,
    sync::{AtomicBool, Mutex},
};

/// The blocks of one resource.
pub struct Backfill<F: Frame> {
    state: Mutex<State<F>>,
    is_queued: AtomicBool,
    threads: OnceLock<Arc<BulkQueue>>,
    /// Bytes that blocks may take.
    bound: usize,
    encoded: AtomicU64,
}

struct State<F: Frame> {
    blocks: HashMap<Key<F>, Entry<F>, foldhash::fast::RandomState>,
    /// Of those that are ready, the next one to be forgotten first.
    order: VecDeque<Key<F>>,
    bytes: usize,
    orders: VecDeque<Order<F>>,
}

/// Whatever the events of a block depend on.
type Key<F> = (Arc<Selection>, <F as Frame>::Format, Place);

enum Entry<F> {
    Making(Vec<Waker>),
    Ready {
        block: Arc<Block<F>>,
        /// Since it was made or spared.
        is_taken: bool,
    },
}

/// What comes at one place.
struct Block<F> {
    frame: F,
    steps: Box<[Step]>,
    bytes: usize,
}

/// An event, or the end of a batch.
struct Step {
    /// Its end in the frame.
    end: usize,
    is_event: bool,
    /// Reached with it.
    place: Place,
}

/// A block that is being made.
struct Order<F: Frame> {
    key: Key<F>,
    replay: Replay,
    arena: F::Arena,
    steps: Vec<Step>,
    encoded: u64,
}

/// A block ends with the event that makes it so large, in the unit of the frame: what a client takes at a time.
const BLOCK_SIZE: usize = 64 << 10;
const BLOCK_CHANGES: u64 = 256;
/// Blocks that have been begun, so that one with a costly selection does not hold up the others.
const AT_ONCE: usize = 4;
/// A piece of work, in nanoseconds.
const SLICE: u64 = 500_000;

// === impl Backfill ===

impl<F: Frame> Backfill<F> {
    /// Returns one that keeps blocks of at most so many bytes, or a larger one alone.
    pub fn new(bound: usize) -> Self {
        let state = State { blocks: HashMap::default(), order: VecDeque::new(), bytes: 0, orders: VecDeque::new() };
        Self {
            state: Mutex::new(state),
            is_queued: AtomicBool::default(),
            threads: OnceLock::new(),
            bound,
            encoded: AtomicU64::new(0),
        }
    }

    /// Makes blocks on these threads from now on, and not where they are needed.
    pub fn give_threads(&self, threads: &BulkThreads) {
        self.threads.get_or_init(|| Arc::clone(threads.queue()));
    }

    /// Returns how many events were encoded, once for all clients at the same place.
    pub fn encoded(&self) -> u64 {
        self.encoded.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the blocks that are kept.
    pub fn bytes(&self) -> usize {
        self.state.lock().bytes
    }

    /// Returns the block of a place when it has been made; the first who needs it says from what.
    fn poll_block(
        self: &Arc<Self>,
        cx: &Context<'_>,
        key: &Key<F>,
        replay: impl FnOnce() -> Replay,
    ) -> Poll<Arc<Block<F>>> {
        let mut state = self.state.lock();
        match state.blocks.get_mut(key) {
            Some(Entry::Ready { block, is_taken }) => {
                *is_taken = true;
                return Poll::Ready(Arc::clone(block));
            }
            Some(Entry::Making(wakers)) => {
                if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                    wakers.push(cx.waker().clone());
                }
                return Poll::Pending;
            }
            None => {}
        }
        let order = || Order::new(key.clone(), replay());
        if let Some(threads) = self.threads.get() {
            state.blocks.insert(key.clone(), Entry::Making(vec![cx.waker().clone()]));
            state.orders.push_back(order());
            drop(state);
            self.notify(threads);
            return Poll::Pending;
        }
        drop(state);
        let (mut order, clock) = (order(), Clock::Since(Instant::now()));
        while !order.make(&clock) {}
        Poll::Ready(self.finish(order))
    }

    fn notify(self: &Arc<Self>, threads: &BulkQueue) {
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            threads.push(Arc::<Self>::clone(self));
        }
    }

    /// Gives a block that has been made to those that wait for it.
    fn finish(&self, order: Order<F>) -> Arc<Block<F>> {
        let Order { key, arena, steps, encoded, .. } = order;
        self.encoded.fetch_add(encoded, Ordering::Relaxed);
        let bytes = F::bytes(&arena) + size_of_val(&*steps) + size_of::<Block<F>>() + 2 * size_of::<Key<F>>();
        let block = Arc::new(Block { frame: F::freeze(arena), steps: steps.into(), bytes });
        let mut state = self.state.lock();
        let forgotten = state.forget(self.bound.saturating_sub(bytes));
        // Spared once: those who wait for it come later.
        let entry = Entry::Ready { block: Arc::clone(&block), is_taken: true };
        let before = state.blocks.insert(key.clone(), entry);
        if let Some(Entry::Ready { block, .. }) = &before {
            // Two have made it where they needed it.
            state.bytes -= block.bytes;
        } else {
            state.order.push_back(key);
        }
        state.bytes += bytes;
        drop(state);
        drop(forgotten);
        if let Some(Entry::Making(wakers)) = before {
            wakers.into_iter().for_each(Waker::wake);
        }
        block
    }
}

impl<F: Frame> Work for Backfill<F> {
    fn run(self: Arc<Self>) {
        self.is_queued.store(false, Ordering::Release);
        let (order, has_more) = {
            let mut state = self.state.lock();
            (state.orders.pop_front(), !state.orders.is_empty())
        };
        let (Some(mut order), Some(threads)) = (order, self.threads.get()) else { return };
        if has_more {
            // Another thread may make it meanwhile.
            self.notify(threads);
        }
        if order.make(threads.clock()) {
            self.finish(order);
            return;
        }
        let mut state = self.state.lock();
        let place = state.orders.len().min(AT_ONCE - 1);
        state.orders.insert(place, order);
        drop(state);
        self.notify(threads);
    }
}

impl<F: Frame> fmt::Debug for Backfill<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Backfill").field("bytes", &self.bytes()).field("encoded", &self.encoded).finish_non_exhaustive()
    }
}

// === impl State ===

impl<F: Frame> State<F> {
    /// Forgets blocks past a bound, the oldest first; those that were taken since only when there are no others.
    fn forget(&mut self, bound: usize) -> Vec<Entry<F>> {
        let mut forgotten = Vec::new();
        while self.bytes > bound {
            let Some(key) = self.order.pop_front() else { break };
            if let Some(Entry::Ready { is_taken, .. }) = self.blocks.get_mut(&key)
                && std::mem::take(is_taken)
            {
                self.order.push_back(key);
                continue;
            }
            let entry = self.blocks.remove(&key);
            if let Some(Entry::Ready { block, .. }) = &entry {
                self.bytes -= block.bytes;
            }
            forgotten.extend(entry);
        }
        forgotten
    }
}

// === impl Order ===

impl<F: Frame> Order<F> {
    fn new(key: Key<F>, replay: Replay) -> Self {
        Self { key, replay, arena: F::Arena::default(), steps: Vec::new(), encoded: 0 }
    }

    /// Encodes what comes, for as long as a piece of work takes. Returns whether the block is complete.
    fn make(&mut self, clock: &Clock) -> bool {
        let Self { key: (selection, format, begin), replay, arena, steps, encoded } = self;
        let until = clock.now().saturating_add(SLICE);
        while !replay.is_done() {
            let told = replay.encode::<F>(selection, *format, arena, usize::MAX, |_one| true);
            *encoded += told;
            if told > 0 || replay.is_between() {
                let (end, place) = (F::size(arena), replay.place());
                let is_whole = end >= BLOCK_SIZE || place.offset / BLOCK_CHANGES != begin.offset / BLOCK_CHANGES;
                steps.push(Step { end, is_event: told > 0, place });
                if is_whole {
                    return true;
                }
            }
            if clock.now() >= until {
                return replay.is_done();
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
