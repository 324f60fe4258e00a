//! Cursors of a resource: their queues and budgets, the lifetime of their offsets, and the work of the writer for them.

use std::sync::{Arc, OnceLock};

use slab::Slab;
use tokio::time::Instant;

use super::{
    BroadcasterConfig, BroadcasterStats, BulkThreads, Client, End, Frame, Past, QueueOptions,
    budget::{ClientBudgets, SharedBudget},
    queue::Queue,
    shared::Shared,
};
use crate::{model::Selection, sync::Mutex};

/// Cursors of one resource.
pub(crate) struct Cursors<F: Frame> {
    pub(super) shared: Arc<Shared<F>>,
    clients: Mutex<ClientBudgets>,
    lifetime: Mutex<Arc<Lifetime>>,
    /// Queues of the cursors whose policy may act.
    queues: Mutex<Slab<Arc<Queue<F>>>>,
}

/// Subscription of one client.
#[derive(Debug, Clone)]
pub struct Subscribe<F: Frame> {
    /// Objects that the client watches.
    pub selection: Arc<Selection>,
    /// Format in which events are encoded.
    pub format: F::Format,
    /// Queue of the client.
    pub queue: QueueOptions,
    /// Client whose budget decides under BLOCK if the watch is ended.
    pub client: Client,
    /// True if the client first receives initial events from a snapshot: until [`Cursor::go_live`](super::Cursor::go_live), every
    /// policy behaves as REPLAY.
    pub initial_events: bool,
}

/// Time in which offsets follow one another, with its end.
#[derive(Debug, Default)]
pub(super) struct Lifetime {
    end: OnceLock<End>,
}

// === impl Cursors ===

impl<F: Frame> Cursors<F> {
    /// Returns a resource without cursors, over its past.
    pub(crate) fn new(past: Arc<Past>, config: BroadcasterConfig) -> Self {
        Self {
            clients: Mutex::new(ClientBudgets::new(config.block_timeout)),
            shared: Arc::new(Shared::new(past, config)),
            lifetime: Mutex::default(),
            queues: Mutex::default(),
        }
    }

    /// Leaves costly selections and formats to threads.
    pub(super) fn give_threads(&self, threads: &BulkThreads) {
        self.shared.blocks.give_threads(threads.queue());
    }

    /// Returns the counters.
    pub(crate) fn stats(&self) -> &Arc<BroadcasterStats> {
        &self.shared.stats
    }

    /// Returns the present lifetime. A cursor of one that has ended continues in no other.
    pub(super) fn lifetime(&self) -> Arc<Lifetime> {
        Arc::clone(&self.lifetime.lock())
    }

    /// Returns the budget of a client under BLOCK.
    pub(super) fn budget(&self, client: &Client) -> Arc<SharedBudget> {
        self.clients.lock().of(client, Instant::now())
    }

    /// Adds a queue, of a cursor at an offset. Returns its number.
    pub(super) fn add(&self, queue: &Arc<Queue<F>>, offset: u64) -> usize {
        let number = self.queues.lock().insert(Arc::clone(queue));
        self.shared.past.history().lock().keep_also_from(offset);
        number
    }

    /// Removes a queue.
    pub(super) fn remove(&self, number: usize) {
        let queue = self.queues.lock().get(number).cloned();
        // First: a thread that counts for one that is not found here any more may find its changes dropped.
        if let Some(queue) = queue {
            queue.leave();
        }
        let mut queues = self.queues.lock();
        drop(queues.remove(number));
        if queues.is_empty() {
            *queues = Slab::new();
        }
    }

    /// Returns the queues. Nothing is done under the lock of their list.
    pub(super) fn queues(&self) -> Vec<Arc<Queue<F>>> {
        self.queues.lock().iter().map(|(_, queue)| Arc::clone(queue)).collect()
    }

    /// Looks at the queues after something was published: a client may hold the writer back, or need what the history is about to
    /// drop.
    pub(super) fn published(&self) {
        let head = self.shared.past.head();
        if self.shared.signals.may_be_full(head) {
            let now = Instant::now();
            let left = self.shared.signals.left(now);
            self.queues().iter().for_each(|queue| queue.fill(head, left, now));
        }
        // Otherwise it is enough periodically.
        if self.shared.past.history().lock().kept_until() > Some(0) {
            self.keep_needed();
        }
    }

    /// Keeps in the history what queues need, counts or merges what it cannot keep for long, and drops the rest.
    pub(super) fn keep_needed(&self) {
        let Some(limit) = self.shared.past.history().lock().begin_keep() else { return };
        let needed = self.queues().iter().map(|queue| queue.needs(limit)).min().unwrap_or(u64::MAX);
        let mut history = self.shared.past.history().lock();
        // A queue that was added meanwhile, or whose policy acts since, has noted what it needs.
        let end = history.current().offset;
        history.keep_from(needed.min(end));
        history.evict_old(Instant::now());
    }

    /// Gives up on every client that holds the writer back.
    pub(super) fn give_up(&self, now: Instant) {
        self.queues().iter().for_each(|queue| queue.give_up(now));
    }

    /// Drops what nobody needs, and counts what clients have lost that do not read.
    pub(super) fn sweep(&self) {
        self.shared.blocks.sweep();
        self.clients.lock().sweep(Instant::now());
        self.keep_needed();
        self.queues().iter().for_each(Queue::count_losses);
    }

    /// Ends every cursor: with [`End::Stopped`] once it has read what was published, otherwise at once. What was published before can
    /// be read no more once the past has begun anew; the caller then wakes the readers.
    pub(super) fn end_all(&self, end: &End) {
        let next = if *end == End::Stopped { Arc::clone(&self.lifetime.lock()) } else { Arc::default() };
        let before = std::mem::replace(&mut *self.lifetime.lock(), next);
        before.end.get_or_init(|| end.clone());
        // Nobody is waited for any more.
        let end = Some(end).filter(|end| **end != End::Stopped);
        self.queues().iter().for_each(|queue| queue.end(end));
    }
}

debug_fields!([F: Frame] Cursors<F>, this => { past: this.shared.past });

// === impl Lifetime ===

impl Lifetime {
    /// Returns the end of a cursor that has read everything, or of one that may read nothing more.
    pub(super) fn end(&self, is_at_head: bool) -> Option<&End> {
        self.end.get().filter(|end| is_at_head || **end != End::Stopped)
    }
}
