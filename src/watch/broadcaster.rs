//! The writing end: groups, encoding once, retention, and the wait for slow clients under BLOCK.

use std::{
    borrow::Borrow,
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
};

use slab::Slab;
use tokio::time::Instant;

use super::{
    BroadcasterConfig, Client, Cursor, End, Frame, FullChannelPolicy, QueueOptions,
    budget::ClientBudgets,
    encoding::{Encoding, Share, Span},
    group::{Group, Log, Phase},
    room::Room,
    routes::Routes,
    run::Mark,
};
use crate::{
    model::{Batch, Reached, ResourceVersion, Selection, Transition},
    planted::planted,
};

/// Distributes batches to cursors. One task owns it: what it publishes, every cursor that subscribed before gets, and no
/// cursor that subscribes later.
#[derive(Debug)]
pub struct Broadcaster<F: Frame> {
    config: BroadcasterConfig,
    groups: Slab<Arc<Group<F>>>,
    by_key: HashMap<GroupKey<F>, usize>,
    routes: Routes,
    /// Up to here everything has been published.
    reached: Reached,
    stopped: Option<End>,
    /// There was a relist since the last change that was published.
    is_gap: bool,
    wake: u64,
    retained: VecDeque<RetainedWake>,
    retained_events: usize,
    retained_size: usize,
    room: Arc<Room>,
    /// Those that hold the writer back, or did.
    blocked: Vec<BlockedSlot<F>>,
    clients: ClientBudgets,
    next_slot_id: u64,
    stats: Arc<BroadcasterStats>,
}

/// Who wants to be told of what, and how.
#[derive(Debug, Clone)]
pub struct Subscribe<F: Frame> {
    /// Which objects.
    pub selection: Arc<Selection>,
    /// How they are encoded.
    pub format: F::Format,
    /// The client's queue.
    pub queue: QueueOptions,
    /// Under BLOCK: whose budget it is that decides whether the watch is ended.
    pub client: Client,
    /// Whether the client is first given initial events from a snapshot: until [`Cursor::go_live`], every policy behaves
    /// as REPLAY.
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
    /// Encoded size that is retained for cursors that lag.
    pub retained_size: AtomicU64,
}

type GroupKey<F> = (Arc<Selection>, <F as Frame>::Format);

#[derive(Debug)]
struct RetainedWake {
    wake: u64,
    events: usize,
    size: usize,
    at: Instant,
}

#[derive(Debug)]
struct BlockedSlot<F: Frame> {
    group: Arc<Group<F>>,
    slot: usize,
    id: u64,
}

// === impl Broadcaster ===

impl<F: Frame> Broadcaster<F> {
    /// A Broadcaster without watchers, at a version.
    pub fn new(config: BroadcasterConfig, version: ResourceVersion) -> Self {
        let stats: Arc<BroadcasterStats> = Arc::default();
        Self {
            clients: ClientBudgets::new(config.block_timeout),
            room: Arc::new(Room::new(config.block_timeout, Arc::clone(&stats))),
            config,
            groups: Slab::new(),
            by_key: HashMap::new(),
            routes: Routes::default(),
            reached: Reached { version, offset: 0 },
            stopped: None,
            is_gap: false,
            wake: 0,
            retained: VecDeque::new(),
            retained_events: 0,
            retained_size: 0,
            blocked: Vec::new(),
            next_slot_id: 0,
            stats,
        }
    }

    /// Its counters.
    pub fn stats(&self) -> &Arc<BroadcasterStats> {
        &self.stats
    }

    /// The version up to which everything has been published.
    pub fn version(&self) -> &ResourceVersion {
        &self.reached.version
    }

    /// Joins a client here: it gets what is published from now on, and nothing else.
    pub fn subscribe(&mut self, subscribe: Subscribe<F>) -> Cursor<F> {
        self.join(subscribe, None)
    }

    /// Joins a client that has all changes up to a version, to which more may come here: they are left out.
    pub fn subscribe_after(&mut self, subscribe: Subscribe<F>, version: &ResourceVersion) -> Cursor<F> {
        let has = (*version > self.reached.version).then_some(version);
        self.join(subscribe, has)
    }

    fn join(&mut self, subscribe: Subscribe<F>, has: Option<&ResourceVersion>) -> Cursor<F> {
        let Subscribe { selection, format, queue, client, initial_events } = subscribe;
        self.remove_vacant();
        let group = Arc::clone(self.group(selection, format));
        let phase = if initial_events { Phase::Initial } else { Phase::Live };
        let blocks = queue.policy == FullChannelPolicy::Block;
        let budget = blocks.then(|| self.clients.of(&client, Instant::now()));
        self.next_slot_id += 1;
        let slot = {
            let mut log = group.log.lock();
            log.end.clone_from(&self.stopped);
            let slot = log.subscribe(self.next_slot_id, queue, phase, budget);
            if let Some(version) = has.filter(|_| !planted!(OpenVersionIsSentAgain)) {
                log.leave_out(slot, version.clone());
            }
            slot
        };
        let version = has.unwrap_or(&self.reached.version).clone();
        let reached = Reached { version, offset: self.reached.offset };
        Cursor::new(group, slot, Arc::clone(&self.stats), self.config.queue_size, reached)
    }

    /// Publishes batches as one wake: every group gets its share, and is woken once. Ignored after [`Self::stop`].
    ///
    /// Call it only when [`Self::is_blocked`] says no; it never waits by itself.
    pub fn publish<B: Borrow<Batch>>(&mut self, batches: &[B]) {
        let Some(last) = batches.last().filter(|_| self.stopped.is_none()) else { return };
        self.reached.version.clone_from(last.borrow().safe());
        self.remove_vacant();
        let mut encoding = Encoding::new(batches, &mut self.is_gap);
        let events = encoding.changes().len();
        let offset = self.reached.offset;
        self.reached.offset += events as u64;
        if events == 0 || self.groups.is_empty() {
            return;
        }
        let shares = self.shares(&mut encoding);
        self.stats.encoded.fetch_add(encoding.encoded(), Ordering::Relaxed);
        let (arenas, size, changes) = encoding.freeze();
        self.wake += 1;
        let now = Instant::now();
        self.retained.push_back(RetainedWake { wake: self.wake, events, size, at: now });
        self.retained_events += events;
        self.retained_size += size;
        self.forget_old(now);

        let floor = self.floor();
        let left = self.room.left(now);
        if !self.is_blocked() {
            self.blocked.clear();
        }
        let (mut wakers, mut full): (Vec<Waker>, Vec<usize>) = (Vec::new(), Vec::new());
        for (group, share) in shares {
            {
                let mut log = group.log.lock();
                if log.is_coalescing() {
                    for Share { at, transition, .. } in &share {
                        log.merge(changes[*at].1, *transition);
                    }
                }
                let size_of = |count| share[..count].iter().map(|share| share.span.size()).sum();
                log.pass(share.len(), size_of, |has| {
                    let is_left_out = |share: &&Share| {
                        let (batch, _) = changes[share.at];
                        batch.after <= *has && !batch.is_late()
                    };
                    let left_out = share.iter().take_while(is_left_out);
                    (left_out.clone().count(), left_out.last().map_or(0, |last| offset + last.at as u64 + 1))
                });
                push_runs(&mut log, (self.wake, offset), &arenas[&group.format], share);
                log.trim_below(floor);
                log.trim_read();
                log.take_wakers(&mut wakers);
                log.find_full(self.config.queue_size, &mut full);
                self.blocked.extend(full.drain(..).filter_map(|slot| {
                    let is_blocking = log.fill(slot, left, &self.room, now);
                    is_blocking.then(|| BlockedSlot { group: Arc::clone(&group), slot, id: log.slots[slot].id })
                }));
            }
            for waker in wakers.drain(..) {
                waker.wake();
            }
        }
    }

    /// Whether the next batch has to wait for a client under BLOCK.
    pub fn is_blocked(&self) -> bool {
        self.room.deadline().is_some()
    }

    /// Waits until every client that holds the writer back has room again or has gone, and no longer than the budget of the
    /// resource allows: those that are left are then ended or served as under REPLAY. Returns at once when there is none.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again at any time; the waiting time goes on being counted.
    pub async fn ready(&mut self) {
        while let Some(deadline) = self.block_deadline(Instant::now()) {
            tokio::select! {
                // Cancel-safe: it is told again when nobody waited.
                () = self.room.freed() => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }

    /// Wakes every cursor that waits, though nothing was published: there is something else to tell.
    pub fn poke(&self) {
        let mut wakers = Vec::new();
        for (_, group) in &self.groups {
            group.log.lock().take_wakers(&mut wakers);
        }
        for waker in wakers {
            waker.wake();
        }
    }

    /// Removes groups that nobody reads and events that are too old. To be called from time to time: a quiet resource
    /// is not published to.
    pub fn sweep(&mut self) {
        self.remove_vacant();
        let now = Instant::now();
        self.clients.sweep(now);
        self.forget_old(now);
        let floor = self.floor();
        for (_, group) in &self.groups {
            group.log.lock().trim_below(floor);
        }
    }

    /// Ends every cursor once it has read what was published before; later subscribers end at once.
    pub fn stop(&mut self, end: &End) {
        self.stopped = Some(end.clone());
        self.end_all(end);
    }

    /// Ends every cursor as [`Self::stop`] does, and goes on for later subscribers, from `version`.
    pub fn restart(&mut self, end: &End, version: ResourceVersion) {
        if planted!(RewindEndsNobody) {
            self.reached.version = version;
            return;
        }
        self.end_all(end);
        // What is left of their queues can be read, and holds nobody back.
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
        self.retained.clear();
        (self.retained_events, self.retained_size) = (0, 0);
        self.stats.retained_size.store(0, Ordering::Relaxed);
        // No cursor has reached the next offset.
        self.reached = Reached { version, offset: self.reached.offset + 1 };
    }

    fn end_all(&self, end: &End) {
        let mut wakers = Vec::new();
        for (_, group) in &self.groups {
            let mut log = group.log.lock();
            log.end.get_or_insert_with(|| end.clone());
            log.take_wakers(&mut wakers);
        }
        for waker in wakers {
            waker.wake();
        }
    }

    /// The group with this selection and format; made when there is none.
    fn group(&mut self, selection: Arc<Selection>, format: F::Format) -> &Arc<Group<F>> {
        let Self { groups, by_key, routes, .. } = self;
        let id = *by_key.entry((selection, format)).or_insert_with_key(|(selection, format)| {
            let entry = groups.vacant_entry();
            let id = entry.key();
            routes.insert(selection, id);
            let (selection, room) = (Arc::clone(selection), Arc::clone(&self.room));
            entry.insert(Arc::new(Group::new(id, selection, *format, self.reached.clone(), room)));
            id
        });
        self.stats.groups.store(groups.len() as u64, Ordering::Relaxed);
        &groups[id]
    }

    /// Removes the groups that nobody reads any more.
    fn remove_vacant(&mut self) {
        for id in self.room.take_vacant() {
            if self.groups.get(id).is_some_and(|group| group.log.lock().slots.is_empty()) {
                let group = self.groups.remove(id);
                self.routes.remove(&group.selection, id);
                self.by_key.remove(&(Arc::clone(&group.selection), group.format));
            }
        }
        self.stats.groups.store(self.groups.len() as u64, Ordering::Relaxed);
    }

    /// What each group that the wake concerns is told of it.
    fn shares(&self, encoding: &mut Encoding<'_, F>) -> Vec<(Arc<Group<F>>, Vec<Share>)> {
        type Selected = Vec<(usize, Transition)>;
        // Groups without a selection come first, so that what they are sent lies in one piece.
        let is_everything = |id: &usize| self.groups[*id].selection.is_everything();
        let (all, selective): (Vec<usize>, Vec<usize>) =
            self.routes.unrouted().iter().copied().partition(is_everything);
        let mut unrouted: Vec<(usize, Selected)> =
            all.into_iter().chain(selective).map(|id| (id, Vec::new())).collect();
        let mut routed: HashMap<usize, Selected, foldhash::fast::RandomState> = HashMap::default();
        let mut found = Vec::new();
        // Change by change: what is read of an object for one group is there for the others, and is not kept for long.
        for (at, (_, change)) in encoding.changes().iter().enumerate() {
            let select = |id: usize, selected: &mut Selected| {
                let transition = self.groups[id].selection.transition(change);
                selected.extend(transition.map(|transition| (at, transition)));
            };
            for (id, selected) in &mut unrouted {
                select(*id, selected);
            }
            self.routes.find(change, &mut found);
            for id in found.drain(..) {
                select(id, routed.entry(id).or_default());
            }
        }
        let mut shares = Vec::new();
        for (id, selected) in unrouted.into_iter().chain(routed).filter(|(_, selected)| !selected.is_empty()) {
            let group = &self.groups[id];
            let share = encoding.share(group.format, selected);
            if !share.is_empty() {
                shares.push((Arc::clone(group), share));
            }
        }
        shares
    }

    /// Forgets the oldest wakes past the bounds.
    fn forget_old(&mut self, now: Instant) {
        let bounds = self.config.retention;
        while let Some(oldest) = self.retained.front() {
            let is_old = now.saturating_duration_since(oldest.at) > bounds.age;
            let is_over = self.retained_events > bounds.events || self.retained_size > bounds.size;
            // Only age ends the newest wake: a relist may be larger than all bounds, and has to be read somehow.
            if !is_old && (!is_over || oldest.wake == self.wake) {
                break;
            }
            self.retained_events -= oldest.events;
            self.retained_size -= oldest.size;
            self.retained.pop_front();
        }
        self.stats.retained_size.store(self.retained_size as u64, Ordering::Relaxed);
    }

    /// The oldest wake that is retained.
    fn floor(&self) -> u64 {
        self.retained.front().map_or(self.wake + 1, |oldest| oldest.wake)
    }

    /// Returns until when the writer waits; `None` when nobody holds it back. At the end of that time it lets go of everybody.
    fn block_deadline(&mut self, now: Instant) -> Option<Instant> {
        let mut deadline = self.room.deadline()?;
        if planted!(BlockBudgetIsOfEachClient) {
            deadline += self.config.block_timeout * self.blocked.len().saturating_sub(1) as u32;
        }
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

/// Puts a group's share of a wake, whose first change has this offset, into its log; what lies together becomes one run.
fn push_runs<F: Frame>(log: &mut Log<F>, (wake, offset): (u64, u64), arenas: &[F], share: Vec<Share>) {
    let skipped = usize::from(share.len() > 1 && planted!(HoleInAWake));
    let mut share = share.into_iter().skip(skipped).peekable();
    while let Some(first) = share.next() {
        let Span { arena, start, mut end } = first.span;
        let mut marks = vec![Mark { end: (end - start) as u32, changes: 1, version: first.version }];
        while let Some(next) = share.next_if(|next| next.span.arena == arena && next.span.start == end) {
            end = next.span.end;
            let changes = (next.at - first.at + 1) as u32;
            marks.push(Mark { end: (end - start) as u32, changes, version: next.version });
        }
        log.push((wake, offset + first.at as u64), arenas[arena].slice(start..end), (end - start) as u64, marks.into());
    }
}
