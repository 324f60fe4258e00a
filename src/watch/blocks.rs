//! Encoded events of a selection that follow a position of the history: each block once for all cursors at the same position.
//!
//! A block begins where a cursor needs it, and ends at the published offset, at [`BLOCK_SIZE`], or where offsets are a multiple of
//! [`BLOCK_CHANGES`]: cursors that began at different positions soon read the same ones. The first cursor that needs a block makes
//! it at once; if the selection has an expression or the format is costly, a [`BulkThreads`](super::BulkThreads) does, and the
//! cursors wait for it.
//!
//! A block is dropped when each cursor of its kind has taken it, after a second or two, or when all blocks exceed their bound: it is
//! made again for whoever needs it. A cursor keeps none while it waits for flow-control window.

mod builder;
mod encoded;
mod kind;

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, OnceLock, Weak, atomic::Ordering},
    task::{Context, Poll, Waker},
    time::Duration,
};

use foldhash::fast::RandomState;
use tokio::time::Instant;

pub(super) use self::{builder::Block, kind::Kind};
use self::{
    builder::{BLOCK_CHANGES, BLOCK_SIZE, BlockBuilder},
    encoded::Encoded,
    kind::Key,
};
use super::{
    BroadcasterStats, Frame, Past,
    bulk::{BulkQueue, Work, guarded},
    history::wake_all,
    replay::ReplayPosition,
};
use crate::{
    model::{Selection, sharing_bodies},
    sync::{AtomicBool, Mutex},
};

/// Blocks of one resource.
pub(super) struct Blocks<F: Frame> {
    past: Arc<Past>,
    kinds: Mutex<Kinds<F>>,
    state: Mutex<State<F>>,
    is_queued: AtomicBool,
    threads: OnceLock<Arc<BulkQueue>>,
    encoded: Encoded<F>,
    /// Bytes that blocks may take.
    bound: usize,
    stats: Arc<BroadcasterStats>,
}

type KindKey<F> = (Arc<Selection>, <F as Frame>::Format);

struct Kinds<F: Frame> {
    by_key: HashMap<KindKey<F>, Weak<Kind<F>>, RandomState>,
    next_id: u64,
}

struct State<F: Frame> {
    blocks: HashMap<Key, Entry<F>, RandomState>,
    /// Keys of the finished blocks, in the order in which they are dropped, and some of blocks that are gone.
    order: VecDeque<Key>,
    bytes: usize,
    orders: VecDeque<BlockBuilder<F>>,
}

enum Entry<F> {
    Building(Vec<Waker>),
    Ready {
        block: Arc<Block<F>>,
        /// Number of cursors that have taken it.
        taken: usize,
        /// True if one has since it was made or spared.
        is_used: bool,
        made_at: Instant,
    },
}

/// The history does not have what follows a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NotKept;

/// Number of costly blocks that a thread makes together, change by change.
const MAX_TOGETHER: usize = 64;
/// Time for which blocks are kept at least.
const KEPT: Duration = Duration::from_secs(1);
/// Time of one piece of work, in nanoseconds.
const SLICE: u64 = 500_000;

// === impl Blocks ===

impl<F: Frame> Blocks<F> {
    /// Returns blocks of a past, of at most `bound` bytes, or a single larger one.
    pub(super) fn new(past: Arc<Past>, bound: usize, stats: Arc<BroadcasterStats>) -> Self {
        let made = State { blocks: HashMap::default(), order: VecDeque::new(), bytes: 0, orders: VecDeque::new() };
        let kinds = Mutex::new(Kinds { by_key: HashMap::default(), next_id: 0 });
        Self {
            past,
            kinds,
            state: Mutex::new(made),
            is_queued: AtomicBool::default(),
            threads: OnceLock::new(),
            encoded: Encoded::new(Arc::clone(&stats)),
            bound,
            stats,
        }
    }

    /// Makes costly blocks on these threads from now on, instead of at once.
    pub(super) fn give_threads(&self, threads: &Arc<BulkQueue>) {
        self.threads.get_or_init(|| Arc::clone(threads));
    }

    /// Returns the threads that make costly blocks.
    pub(super) fn threads(&self) -> Option<&Arc<BulkQueue>> {
        self.threads.get()
    }

    /// Returns the kind of a selection and a format.
    pub(super) fn kind(&self, selection: Arc<Selection>, format: F::Format) -> Arc<Kind<F>> {
        let mut kinds = self.kinds.lock();
        let key = (selection, format);
        if let Some(kind) = kinds.by_key.get(&key).and_then(Weak::upgrade) {
            return kind;
        }
        let (selection, format) = key.clone();
        kinds.next_id += 1;
        let kind = Arc::new(Kind::new(selection, format, kinds.next_id));
        kinds.by_key.insert(key, Arc::downgrade(&kind));
        self.stats.groups.store(kinds.by_key.len() as u64, Ordering::Relaxed);
        kind
    }

    /// Drops the kinds without cursors, and the blocks that were made some time ago. Must be called periodically.
    pub(super) fn sweep(&self) {
        {
            let mut kinds = self.kinds.lock();
            kinds.by_key.retain(|_, kind| kind.strong_count() > 0);
            let enough = 2 * kinds.by_key.len();
            kinds.by_key.shrink_to(enough);
            self.stats.groups.store(kinds.by_key.len() as u64, Ordering::Relaxed);
        }
        self.encoded.clear();
        let mut state = self.state.lock();
        let now = Instant::now();
        let is_old = |entry: &mut Entry<F>| match entry {
            Entry::Ready { made_at, .. } => now.saturating_duration_since(*made_at) >= KEPT,
            Entry::Building(_) => false,
        };
        let forgotten: Vec<_> = state.blocks.extract_if(|_, entry| is_old(entry)).collect();
        state.bytes -= forgotten.iter().map(|(_, entry)| entry.bytes()).sum::<usize>();
        state.forget_keys();
        self.measure(&state);
        drop(state);
        drop(forgotten);
    }

    fn measure(&self, state: &State<F>) {
        self.stats.retained_size.store(state.bytes as u64, Ordering::Relaxed);
    }

    /// Returns the block of a key, or waits for it; `None` if nobody has begun it.
    fn poll_kept(&self, cx: &Context<'_>, key: &Key, kind: &Kind<F>) -> Option<Poll<Arc<Block<F>>>> {
        let mut state = self.state.lock();
        let before = state.bytes;
        let found = state.poll(cx, key, kind);
        if state.bytes != before {
            self.measure(&state);
        }
        found
    }

    /// Returns the block of a position up to a published offset, of about `size` if nobody else may need it. The caller waits
    /// while a thread makes it.
    pub(super) fn poll_block(
        self: &Arc<Self>,
        cx: &Context<'_>,
        kind: &Arc<Kind<F>>,
        position: &ReplayPosition,
        (head, size): (u64, usize),
    ) -> Poll<Result<Arc<Block<F>>, NotKept>> {
        let threads = self.threads.get().filter(|_| kind.is_costly());
        if threads.is_none() && !kind.is_shared() {
            let Some(builder) = self.builder(kind, position, head, size) else { return Poll::Ready(Err(NotKept)) };
            return Poll::Ready(Ok(Arc::new(self.build(builder))));
        }
        let key = kind.key_of(position);
        if let Some(found) = self.poll_kept(cx, &key, kind) {
            return found.map(Ok);
        }
        let Some(builder) = self.builder(kind, position, head, BLOCK_SIZE) else { return Poll::Ready(Err(NotKept)) };
        let Some(threads) = threads else {
            let block = self.build(builder);
            return Poll::Ready(Ok(self.keep(key, block, 1)));
        };
        {
            let mut state = self.state.lock();
            // Another cursor may have come first.
            if let Some(found) = state.poll(cx, &key, kind) {
                return found.map(Ok);
            }
            state.blocks.insert(key, Entry::Building(vec![cx.waker().clone()]));
            state.orders.push_back(builder);
        }
        self.notify(threads);
        Poll::Pending
    }

    fn builder(
        &self,
        kind: &Arc<Kind<F>>,
        position: &ReplayPosition,
        head: u64,
        size: usize,
    ) -> Option<BlockBuilder<F>> {
        let replay = self.past.history().lock().replay(position, head, BLOCK_CHANGES as usize)?;
        let is_single = !kind.is_shared() && head == position.offset + 1;
        Some(BlockBuilder::new(kind, position, replay, size, is_single))
    }

    fn notify(self: &Arc<Self>, threads: &BulkQueue) {
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            threads.push(Arc::<Self>::clone(self));
        }
    }

    /// Makes a block at once.
    fn build(&self, mut builder: BlockBuilder<F>) -> Block<F> {
        while !builder.step(&self.encoded) {}
        builder.finish(&self.stats)
    }

    /// Keeps a finished block, which this many cursors have taken, and hands it to those that wait for it.
    fn keep(&self, key: Key, block: Block<F>, taken: usize) -> Arc<Block<F>> {
        let block = Arc::new(block);
        let mut state = self.state.lock();
        let forgotten = state.evict(self.bound.saturating_sub(block.bytes));
        // Spared once: the cursors that wait for it take it later.
        let entry = Entry::Ready { block: Arc::clone(&block), taken, is_used: true, made_at: Instant::now() };
        let before = state.blocks.insert(key, entry);
        if let Some(Entry::Ready { block, .. }) = &before {
            // Two cursors have made it at once.
            state.bytes -= block.bytes;
        } else {
            state.order.push_back(key);
        }
        state.bytes += block.bytes;
        self.measure(&state);
        drop(state);
        drop(forgotten);
        if let Some(Entry::Building(wakers)) = before {
            wake_all(wakers);
        }
        block
    }
}

impl<F: Frame> Work for Blocks<F> {
    fn run(self: Arc<Self>) {
        // Reset before looking for work, so that later work is not missed.
        self.is_queued.store(false, Ordering::Release);
        let (mut builders, has_more) = {
            let mut state = self.state.lock();
            let count = state.orders.len().min(MAX_TOGETHER);
            (state.orders.drain(..count).collect::<Vec<_>>(), !state.orders.is_empty())
        };
        let Some(threads) = self.threads.get() else { return };
        if has_more {
            // Another thread may make the next blocks meanwhile.
            self.notify(threads);
        }
        let until = threads.clock().now().saturating_add(SLICE);
        let mut made = Vec::new();
        while !builders.is_empty() {
            // Change by change: what one selection has read of an object is there for the others, and is not kept for long.
            sharing_bodies(|| {
                let is_done = |builder: &mut BlockBuilder<F>| {
                    guarded(|| builder.step(&self.encoded)).unwrap_or_else(|| builder.fail())
                };
                made.extend(builders.extract_if(.., is_done));
            });
            if threads.clock().now() >= until {
                break;
            }
        }
        for builder in made {
            let key = builder.kind.key_of(&builder.begin);
            let block = builder.finish(&self.stats);
            self.keep(key, block, 0);
        }
        if builders.is_empty() {
            return;
        }
        let mut state = self.state.lock();
        // Begun ones do not wait for all others, nor these for one that takes long.
        let position = state.orders.len().min(MAX_TOGETHER);
        for builder in builders.into_iter().rev() {
            state.orders.insert(position, builder);
        }
        drop(state);
        self.notify(threads);
    }
}

debug_fields!([F: Frame] Blocks<F>, this => { bytes: this.state.lock().bytes });

// === impl Entry ===

impl<F> Entry<F> {
    /// Returns the size of a finished block.
    fn bytes(&self) -> usize {
        match self {
            Self::Ready { block, .. } => block.bytes,
            Self::Building(_) => 0,
        }
    }
}

// === impl State ===

impl<F: Frame> State<F> {
    /// Returns the block of a key, or waits for it; `None` if nobody has begun it.
    fn poll(&mut self, cx: &Context<'_>, key: &Key, kind: &Kind<F>) -> Option<Poll<Arc<Block<F>>>> {
        match self.blocks.get_mut(key)? {
            Entry::Ready { block, taken, is_used, .. } => {
                (*taken, *is_used) = (*taken + 1, true);
                // A costly one is not made again for a cursor that has taken a part of it.
                let is_last = !kind.is_costly() && *taken >= kind.cursors();
                let block = Arc::clone(block);
                if is_last {
                    self.blocks.remove(key);
                    self.bytes -= block.bytes;
                    self.forget_keys();
                }
                Some(Poll::Ready(block))
            }
            Entry::Building(wakers) => {
                if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                    wakers.push(cx.waker().clone());
                }
                Some(Poll::Pending)
            }
        }
    }

    /// Forgets the keys of blocks that are gone, once they are the larger part.
    fn forget_keys(&mut self) {
        let Self { blocks, order, .. } = self;
        if order.len() > 2 * blocks.len() + 64 {
            order.retain(|key| matches!(blocks.get(key), Some(Entry::Ready { .. })));
            order.shrink_to(2 * order.len());
            blocks.shrink_to(2 * blocks.len());
        }
    }

    /// Drops blocks beyond a bound, the oldest first. A block that was taken since is spared once.
    fn evict(&mut self, bound: usize) -> Vec<Entry<F>> {
        let mut forgotten = Vec::new();
        while self.bytes > bound {
            let Some(key) = self.order.pop_front() else { break };
            let Some(Entry::Ready { block, is_used, .. }) = self.blocks.get_mut(&key) else { continue };
            if std::mem::take(is_used) {
                self.order.push_back(key);
                continue;
            }
            self.bytes -= block.bytes;
            forgotten.extend(self.blocks.remove(&key));
        }
        forgotten
    }
}
