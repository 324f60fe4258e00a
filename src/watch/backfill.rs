//! Past batches as events of a selection, encoded once for all clients at the same position.
//!
//! A client that lags behind its group's log has a backlog in the history: a [`BacklogReader`]. What follows its position
//! is a [`Block`]. The first client that needs a block orders it, and a [`BulkThreads`] makes it, or the client itself
//! without threads; other clients at the same position wait for it. Blocks also end where offsets are a multiple of
//! [`BLOCK_CHANGES`], so that clients that began at different positions soon read the same ones.
//!
//! Clients write orders, and threads write blocks. The memory of finished blocks is bounded; blocks in progress take no
//! more than [`MAX_STARTED_BLOCKS`] and the threads hold. A client that waits for flow-control window holds no block.

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
    bulk::{BulkQueue, Work, guarded},
    replay::ReplayPosition,
    selection_budget::Clock,
};
use crate::{
    model::Selection,
    sync::{AtomicBool, Mutex},
};

/// Blocks of one resource.
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
    /// Keys of the finished blocks, in the order in which they are dropped.
    order: VecDeque<Key<F>>,
    bytes: usize,
    orders: VecDeque<BlockBuilder<F>>,
}

/// Everything that the events of a block depend on.
type Key<F> = (Arc<Selection>, <F as Frame>::Format, ReplayPosition);

enum Entry<F> {
    Building(Vec<Waker>),
    Ready {
        block: Arc<Block<F>>,
        /// True if a client took the block since it was made or spared.
        is_taken: bool,
    },
}

/// Events that follow one position.
struct Block<F> {
    frame: F,
    steps: Box<[Step]>,
    bytes: usize,
    /// True if making it has panicked. It is kept as others are: the same events would fail again.
    has_failed: bool,
}

/// Event, or end of a batch.
struct Step {
    /// End of the step in the frame.
    end: usize,
    is_event: bool,
    /// Number of suppressed changes before that position, since the last step.
    suppressed: u64,
    /// Position reached with it.
    position: ReplayPosition,
}

/// Block in progress.
struct BlockBuilder<F: Frame> {
    key: Key<F>,
    replay: Replay,
    arena: F::Arena,
    steps: Vec<Step>,
    encoded: u64,
    has_failed: bool,
}

/// Size, in the unit of the frame, at which a block ends: as much as a client takes at a time.
const BLOCK_SIZE: usize = 64 << 10;
const BLOCK_CHANGES: u64 = 256;
/// Maximum number of begun blocks, so that one with a costly selection does not delay the others.
const MAX_STARTED_BLOCKS: usize = 4;
/// Time of one piece of work, in nanoseconds.
const SLICE: u64 = 500_000;

// === impl Backfill ===

impl<F: Frame> Backfill<F> {
    /// Returns a Backfill that keeps blocks of at most `bound` bytes, or a single larger one.
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

    /// Makes blocks on these threads from now on, instead of inline.
    pub fn give_threads(&self, threads: &BulkThreads) {
        self.threads.get_or_init(|| Arc::clone(threads.queue()));
    }

    /// Returns the number of events encoded, each once for all clients at the same position.
    pub fn encoded(&self) -> u64 {
        self.encoded.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the blocks that are kept.
    pub fn bytes(&self) -> usize {
        self.state.lock().bytes
    }

    /// Returns the block of a position once it has been made; the first caller that needs it provides the replay.
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
            Some(Entry::Building(wakers)) => {
                if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                    wakers.push(cx.waker().clone());
                }
                return Poll::Pending;
            }
            None => {}
        }
        let order = || BlockBuilder::new(key.clone(), replay());
        if let Some(threads) = self.threads.get() {
            state.blocks.insert(key.clone(), Entry::Building(vec![cx.waker().clone()]));
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

    /// Hands a finished block to the clients that wait for it.
    fn finish(&self, order: BlockBuilder<F>) -> Arc<Block<F>> {
        let BlockBuilder { key, arena, steps, encoded, has_failed, .. } = order;
        self.encoded.fetch_add(encoded, Ordering::Relaxed);
        let bytes = F::bytes(&arena) + size_of_val(&*steps) + size_of::<Block<F>>() + 2 * size_of::<Key<F>>();
        let block = Arc::new(Block { frame: F::freeze(arena), steps: steps.into(), bytes, has_failed });
        let mut state = self.state.lock();
        let forgotten = state.evict(self.bound.saturating_sub(bytes));
        // Spared once: the clients that wait for it take it later.
        let entry = Entry::Ready { block: Arc::clone(&block), is_taken: true };
        let before = state.blocks.insert(key.clone(), entry);
        if let Some(Entry::Ready { block, .. }) = &before {
            // Two clients have made it inline.
            state.bytes -= block.bytes;
        } else {
            state.order.push_back(key);
        }
        state.bytes += bytes;
        drop(state);
        drop(forgotten);
        if let Some(Entry::Building(wakers)) = before {
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
            // Another thread may make the next block meanwhile.
            self.notify(threads);
        }
        let is_done = guarded(|| order.make(threads.clock())).unwrap_or_else(|| order.fail());
        if is_done {
            self.finish(order);
            return;
        }
        let mut state = self.state.lock();
        let position = state.orders.len().min(MAX_STARTED_BLOCKS - 1);
        state.orders.insert(position, order);
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
    /// Drops blocks beyond a bound, the oldest first. A block that was taken since is spared once.
    fn evict(&mut self, bound: usize) -> Vec<Entry<F>> {
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

// === impl BlockBuilder ===

impl<F: Frame> BlockBuilder<F> {
    fn new(key: Key<F>, replay: Replay) -> Self {
        Self { key, replay, arena: F::Arena::default(), steps: Vec::new(), encoded: 0, has_failed: false }
    }

    /// Encodes the next events, for at most one piece of work. Returns true if the block is complete.
    fn make(&mut self, clock: &Clock) -> bool {
        let Self { key: (selection, format, begin), replay, arena, steps, encoded, .. } = self;
        let until = clock.now().saturating_add(SLICE);
        while !replay.is_done() {
            let told = replay.step::<F>(selection, format, arena);
            *encoded += told;
            if told > 0 || replay.is_between() {
                let (end, position) = (F::size(arena), replay.position());
                let is_whole = end >= BLOCK_SIZE || position.offset / BLOCK_CHANGES != begin.offset / BLOCK_CHANGES;
                steps.push(Step { end, is_event: told > 0, suppressed: replay.take_suppressed(), position });
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

    /// Drops what was made, after a panic. Returns true: the block is complete.
    fn fail(&mut self) -> bool {
        (self.arena, self.has_failed) = (F::Arena::default(), true);
        self.steps.clear();
        true
    }
}

#[cfg(test)]
mod tests;
