//! Writer of the distribution: groups, encoding once, and the wait for slow clients under BLOCK.

mod selecting;

use std::{
    borrow::Borrow,
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
};

use slab::Slab;
use tokio::time::Instant;

use self::selecting::{Deferral, Selecting};
use super::{
    BroadcasterConfig, BulkThreads, Client, Cursor, End, Frame, FullChannelPolicy, QueueOptions,
    budget::ClientBudgets,
    encoding::Encoding,
    group::{Group, Part, Phase},
    merger::{Merger, MergerConfig, Reader},
    room::Room,
    routes::Routes,
    window::Window,
};
use crate::model::{Batch, Reached, ResourceVersion, Selection};

/// Distributor of batches to cursors, owned by one task. Every cursor that subscribed before a batch is published receives
/// it; no later cursor does.
#[derive(Debug)]
pub struct Broadcaster<F: Frame> {
    config: BroadcasterConfig,
    groups: Slab<Arc<Group<F>>>,
    by_key: HashMap<GroupKey<F>, usize>,
    routes: Routes,
    /// Position up to which everything has been published.
    reached: Reached,
    stopped: Option<End>,
    /// True if there was a relist since the last published change.
    is_gap: bool,
    window: Arc<Window<F>>,
    /// Groups that the writer has no time for; `None` if it evaluates every selection itself.
    deferral: Option<Deferral<F>>,
    /// Merges for cursors under COALESCE.
    merger: Arc<Merger<F>>,
    room: Arc<Room>,
    /// Slots that hold the writer back, or did.
    blocked: Vec<BlockedSlot<F>>,
    clients: ClientBudgets,
    next_slot_id: u64,
    stats: Arc<BroadcasterStats>,
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
    /// True if the client first receives initial events from a snapshot: until [`Cursor::go_live`], every policy behaves as
    /// REPLAY.
    pub initial_events: bool,
}

/// Counters and gauges of one Broadcaster, read at scrape.
#[derive(Debug, Default)]
pub struct BroadcasterStats {
    /// Cursors that exist now.
    pub watchers: AtomicU64,
    /// Groups that exist now.
    pub groups: AtomicU64,
    /// Events encoded, once for each format and variant.
    pub encoded: AtomicU64,
    /// Events taken by cursors.
    pub delivered: AtomicU64,
    /// Events lost under DROP.
    pub dropped: AtomicU64,
    /// Cursors ended under BLOCK.
    pub evicted: AtomicU64,
    /// Full queues under BLOCK that were served as under REPLAY, because the budget of the resource was spent.
    pub denied: AtomicU64,
    /// Time for which the writer waited under BLOCK, in microseconds.
    pub blocked_micros: AtomicU64,
    /// Bytes that all logs keep for lagging cursors: arenas, runs and marks.
    pub retained_size: AtomicU64,
    /// Groups that threads fill now, because the writer has no time for their selections.
    pub deferred: AtomicU64,
    /// Number of times that the writer had no time for a group.
    pub deferrals: AtomicU64,
    /// Cursors ended because the threads that fill their group, or merge for them, did not keep up with the history.
    pub expired: AtomicU64,
    /// Cursors ended because their merged changes took too much memory ([`BroadcasterConfig::coalesce_size`]).
    pub overmerged: AtomicU64,
}

type GroupKey<F> = (Arc<Selection>, <F as Frame>::Format);

#[derive(Debug)]
struct BlockedSlot<F: Frame> {
    group: Arc<Group<F>>,
    slot: usize,
    id: u64,
}

// === impl Broadcaster ===

impl<F: Frame> Broadcaster<F> {
    /// Returns a Broadcaster without watchers, at a version.
    pub fn new(config: BroadcasterConfig, version: ResourceVersion) -> Self {
        let stats: Arc<BroadcasterStats> = Arc::default();
        let reached = Reached { version, offset: 0 };
        Self {
            merger: Merger::new(MergerConfig::of(&config), None, Arc::clone(&stats), &reached),
            clients: ClientBudgets::new(config.block_timeout),
            room: Arc::new(Room::new(config.block_timeout, Arc::clone(&stats))),
            config,
            groups: Slab::new(),
            by_key: HashMap::new(),
            routes: Routes::default(),
            reached,
            stopped: None,
            is_gap: false,
            window: Arc::new(Window::new(config.retention, Arc::clone(&stats))),
            deferral: None,
            blocked: Vec::new(),
            next_slot_id: 0,
            stats,
        }
    }

    /// Bounds the time that selections take of the writer: threads, if there are any, fill the groups that do not fit. The
    /// threads also merge under COALESCE; without them, the cursor or the writer that needs a merge does it.
    #[must_use]
    pub fn deferring_to(mut self, threads: Option<&BulkThreads>) -> Self {
        self.deferral = threads.map(|threads| Deferral::new(&self, threads));
        let queue = threads.map(|threads| Arc::clone(threads.queue()));
        self.merger = Merger::new(MergerConfig::of(&self.config), queue, Arc::clone(&self.stats), &self.reached);
        self
    }

    /// Returns the counters.
    pub fn stats(&self) -> &Arc<BroadcasterStats> {
        &self.stats
    }

    #[cfg(test)]
    pub(super) fn reached(&self) -> &Reached {
        &self.reached
    }

    #[cfg(test)]
    pub(super) fn wake(&self) -> u64 {
        self.window.wake()
    }

    /// Returns the version up to which everything has been published.
    pub fn version(&self) -> &ResourceVersion {
        &self.reached.version
    }

    /// Subscribes a client, which receives exactly what is published from now on.
    pub fn subscribe(&mut self, subscribe: Subscribe<F>) -> Cursor<F> {
        self.join(subscribe, None)
    }

    /// Subscribes a client that has all changes up to a version. More changes up to that version may still be published
    /// here: the cursor skips them.
    pub fn subscribe_after(&mut self, subscribe: Subscribe<F>, version: &ResourceVersion) -> Cursor<F> {
        let has = (*version > self.reached.version).then_some(version);
        self.join(subscribe, has)
    }

    fn join(&mut self, subscribe: Subscribe<F>, has: Option<&ResourceVersion>) -> Cursor<F> {
        let Subscribe { selection, format, queue, client, initial_events } = subscribe;
        self.remove_vacant();
        let phase = if initial_events { Phase::Initial } else { Phase::Live };
        let blocks = queue.policy == FullChannelPolicy::Block;
        let budget = blocks.then(|| self.clients.of(&client, Instant::now()));
        self.next_slot_id += 1;
        let (group, slot) = loop {
            let group = Arc::clone(self.group(Arc::clone(&selection), format));
            let mut log = group.log.lock();
            if self.stopped.is_none() && log.end.is_some() {
                // The group has just ended, because it did not keep up.
                drop(log);
                self.remove(group.id);
                continue;
            }
            log.end.clone_from(&self.stopped);
            let slot = log.subscribe(self.next_slot_id, queue, phase, budget, self.reached.offset);
            log.leave_out(slot, self.reached.offset, has);
            drop(log);
            break (group, slot);
        };
        if queue.policy == FullChannelPolicy::Coalesce {
            self.merger.register(Reader::new(&group, slot, self.next_slot_id), &self.reached);
        }
        let version = has.unwrap_or(&self.reached.version).clone();
        let reached = Reached { version, offset: self.reached.offset };
        Cursor::new(group, slot, Arc::clone(&self.stats), self.config.queue_size, reached)
    }

    /// Publishes batches as one publish cycle: every group receives its share and is woken once. Does nothing after
    /// [`Self::stop`].
    ///
    /// Callers must first see [`Self::is_blocked`] return false; this function itself never waits.
    pub fn publish<B: Borrow<Batch> + Clone + Into<Arc<Batch>>>(&mut self, batches: &[B]) {
        let Some(last) = batches.last().filter(|_| self.stopped.is_none()) else { return };
        let before = self.reached.clone();
        self.reached.version.clone_from(last.borrow().safe());
        self.remove_vacant();
        let is_gap = self.is_gap;
        let mut encoding = Encoding::new(batches, &mut self.is_gap);
        let events = encoding.changes().len();
        self.reached.offset += events as u64;
        if events == 0 || self.groups.is_empty() {
            return;
        }
        let Selecting { shares, deferred } = self.select(&mut encoding, before.offset);
        self.stats.encoded.fetch_add(encoding.encoded(), Ordering::Relaxed);
        let (arenas, bytes, changes) = encoding.freeze();
        let now = Instant::now();
        let its = shares.iter().map(|(group, share)| (group, &share[..]));
        let wake = self.window.push(events, bytes, its, now);

        let left = self.room.left(now);
        if !self.is_blocked() {
            self.blocked.clear();
        }
        let (mut wakers, mut full): (Vec<Waker>, Vec<usize>) = (Vec::new(), Vec::new());
        for (group, share) in shares {
            let (arenas, queue_size) = (&arenas[&group.format][..], self.config.queue_size);
            let (offset, end) = (before.offset, self.reached.offset);
            let part = Part { wake, changes: &changes, offset, end, arenas, queue_size, window: &self.window };
            {
                let mut log = group.log.lock();
                log.append(&part, share, &mut full, &mut wakers);
                self.blocked.extend(full.drain(..).filter_map(|slot| {
                    let is_blocking = log.fill(slot, left, &self.room, now);
                    is_blocking.then(|| BlockedSlot { group: Arc::clone(&group), slot, id: log.slots[slot].id })
                }));
            }
            for waker in wakers.drain(..) {
                waker.wake();
            }
        }
        self.defer(&deferred, batches, is_gap, &before);
        // Last: everything that has merged up to here is in the logs.
        self.merger.publish(batches, before.offset, &self.reached, now);
    }

    /// Returns true if the next batch has to wait for a client under BLOCK.
    pub fn is_blocked(&self) -> bool {
        self.room.deadline().is_some()
    }

    /// Waits until every client that holds the writer back has room again or has unsubscribed, but no longer than the
    /// budget of the resource allows. At the deadline the remaining clients are ended or served as under REPLAY. Returns at
    /// once if no client holds the writer back.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again at any time; the waiting time is still counted.
    pub async fn ready(&mut self) {
        while let Some(deadline) = self.block_deadline(Instant::now()) {
            tokio::select! {
                // Cancel-safe: `Notify` keeps the notification if nobody waits.
                () = self.room.freed() => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }

    /// Wakes every waiting cursor although nothing was published, because its reader has something else to report.
    pub fn poke(&self) {
        let mut wakers = Vec::new();
        for (_, group) in &self.groups {
            group.log.lock().take_wakers(&mut wakers);
        }
        for waker in wakers {
            waker.wake();
        }
    }

    /// Removes groups without readers and events that are too old. Must be called periodically, because a quiet resource
    /// has no publish cycles.
    pub fn sweep(&mut self) {
        self.remove_vacant();
        let now = Instant::now();
        self.clients.sweep(now);
        self.forget_gone();
        if !self.is_blocked() {
            self.blocked.clear();
        }
        self.window.sweep(now);
        self.merger.sweep(now);
    }

    /// Ends every cursor once it has read what was published before; later subscribers end at once.
    pub fn stop(&mut self, end: &End) {
        self.stopped = Some(end.clone());
        self.end_all(end);
    }

    /// Ends every cursor as [`Self::stop`] does, and continues for later subscribers from `version`.
    pub fn restart(&mut self, end: &End, version: ResourceVersion) {
        self.end_all(end);
        // What is left of these queues can still be read, and holds nobody back.
        let now = Instant::now();
        for BlockedSlot { group, slot, id, .. } in self.blocked.drain(..) {
            if let Some(slot) = group.log.lock().slots.get_mut(slot).filter(|slot| slot.id == id) {
                slot.unblock(&self.room, now);
            }
        }
        self.groups.clear();
        self.by_key.clear();
        self.routes = Routes::default();
        self.stats.groups.store(0, Ordering::Relaxed);
        // No cursor has reached the next offset.
        self.reached = Reached { version, offset: self.reached.offset + 1 };
        // Readers of the ended groups keep the old merger.
        self.merger = self.merger.next(&self.reached);
    }

    fn end_all(&self, end: &End) {
        let mut wakers = Vec::new();
        for (_, group) in &self.groups {
            let mut log = group.log.lock();
            log.end.get_or_insert_with(|| end.clone());
            // From here on no thread may fill this log, even with what it has already selected.
            self.end_deferral(&mut log);
            log.take_wakers(&mut wakers);
        }
        if let Some(deferral) = &self.deferral {
            deferral.clear();
        }
        for waker in wakers {
            waker.wake();
        }
    }

    /// Returns the group with this selection and format, and creates it if there is none.
    fn group(&mut self, selection: Arc<Selection>, format: F::Format) -> &Arc<Group<F>> {
        let Self { groups, by_key, routes, .. } = self;
        let id = *by_key.entry((selection, format)).or_insert_with_key(|(selection, format)| {
            let entry = groups.vacant_entry();
            let id = entry.key();
            let is_selective = routes.insert(selection, id);
            let is_budgeted = selecting::is_budgeted(selection, is_selective);
            let (selection, room, merger) = (Arc::clone(selection), Arc::clone(&self.room), Arc::clone(&self.merger));
            let group = Group::new(id, selection, *format, is_budgeted, self.reached.clone(), room, merger);
            entry.insert(Arc::new(group));
            id
        });
        self.stats.groups.store(groups.len() as u64, Ordering::Relaxed);
        &groups[id]
    }

    /// Removes the groups that have no readers any more, and those that ended on their own.
    fn remove_vacant(&mut self) {
        for id in self.room.take_vacant() {
            let is_over = |group: &Arc<Group<F>>| {
                let mut log = group.log.lock();
                let is_over = log.slots.is_empty() || log.end.is_some();
                if is_over {
                    self.end_deferral(&mut log);
                }
                is_over
            };
            if self.groups.get(id).is_some_and(is_over) {
                self.remove(id);
            }
        }
        self.stats.groups.store(self.groups.len() as u64, Ordering::Relaxed);
    }

    fn remove(&mut self, id: usize) {
        let group = self.groups.remove(id);
        self.routes.remove(&group.selection, id);
        self.by_key.remove(&(Arc::clone(&group.selection), group.format));
    }

    /// Returns the time until which the writer waits; `None` if no slot holds it back. At the deadline, gives up on every
    /// slot.
    fn block_deadline(&mut self, now: Instant) -> Option<Instant> {
        let deadline = self.room.deadline()?;
        if now < deadline {
            return Some(deadline);
        }
        let mut wakers = Vec::new();
        for BlockedSlot { group, slot, id, .. } in self.blocked.drain(..) {
            group.log.lock().give_up(slot, id, &self.room, now, &mut wakers);
        }
        for waker in wakers {
            waker.wake();
        }
        None
    }
}

impl<F: Frame> Drop for Broadcaster<F> {
    fn drop(&mut self) {
        self.end_all(&End::Stopped);
    }
}
