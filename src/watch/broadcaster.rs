//! The writing end: groups, encoding once, retention, and the wait for slow clients under BLOCK.

use std::{
    collections::{HashMap, VecDeque},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Waker,
};

use tokio::{sync::Notify, time::Instant};

use super::{
    BroadcasterConfig, Cursor, End, Frame, Notice, QueueOptions,
    budget::TimeBudget,
    group::{Group, Mark, Phase},
};
use crate::model::{Batch, Cause, EventType, ResourceVersion, Selection, Transition};

/// Distributes batches to cursors. One task owns it: what it publishes, every cursor that subscribed before gets, and no
/// cursor that subscribes later.
#[derive(Debug)]
pub struct Broadcaster<F: Frame> {
    config: BroadcasterConfig,
    groups: HashMap<GroupKey<F>, Arc<Group<F>>>,
    /// The version up to which everything has been published.
    version: ResourceVersion,
    stopped: Option<End>,
    wake: u64,
    retained: VecDeque<RetainedWake>,
    retained_events: usize,
    retained_size: usize,
    room: Arc<Notify>,
    blocked: Vec<BlockedSlot<F>>,
    blocked_since: Option<Instant>,
    budget: TimeBudget,
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
    since: Instant,
}

/// The arenas of one wake, and where in them each event lies.
struct Encoding<'a, F: Frame> {
    batches: &'a [Batch],
    formats: HashMap<F::Format, FormatArenas<F>>,
    encoded: u64,
}

struct FormatArenas<F: Frame> {
    /// Frozen, each with its size.
    full: Vec<(F, usize)>,
    open: F::Arena,
    /// By event, variant and whether it closes its batch.
    spans: HashMap<(usize, Variant, bool), Span>,
}

/// An event's place: arena, start, end.
#[derive(Debug, Clone, Copy)]
struct Span {
    arena: usize,
    start: usize,
    end: usize,
}

/// The three ways in which one change can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Variant {
    AsItIs,
    Entered,
    Left,
}

/// One event of a group's share of a wake.
struct Share {
    span: Span,
    version: ResourceVersion,
}

/// Past this an arena is frozen and the next begun: a retained slice keeps its whole arena in memory.
const ARENA_SIZE: usize = 128 << 10;

// === impl Broadcaster ===

impl<F: Frame> Broadcaster<F> {
    /// A Broadcaster without watchers, at a version.
    pub fn new(config: BroadcasterConfig, version: ResourceVersion) -> Self {
        Self {
            budget: TimeBudget::new(config.block_timeout, Instant::now()),
            config,
            groups: HashMap::new(),
            version,
            stopped: None,
            wake: 0,
            retained: VecDeque::new(),
            retained_events: 0,
            retained_size: 0,
            room: Arc::new(Notify::new()),
            blocked: Vec::new(),
            blocked_since: None,
            next_slot_id: 0,
            stats: Arc::default(),
        }
    }

    /// Its counters.
    pub fn stats(&self) -> &Arc<BroadcasterStats> {
        &self.stats
    }

    /// The version up to which everything has been published.
    pub fn version(&self) -> &ResourceVersion {
        &self.version
    }

    /// Joins a client here: it gets what is published from now on, and nothing else.
    pub fn subscribe(&mut self, subscribe: Subscribe<F>) -> Cursor<F> {
        let Subscribe { selection, format, queue, initial_events } = subscribe;
        let group = self.groups.entry((selection, format)).or_insert_with_key(|(selection, format)| {
            let room = Arc::clone(&self.room);
            Arc::new(Group::new(Arc::clone(selection), *format, self.version.clone(), room))
        });
        let phase = if initial_events { Phase::Initial } else { Phase::Live };
        let budget = TimeBudget::new(self.config.block_timeout, Instant::now());
        self.next_slot_id += 1;
        let slot = {
            let mut log = group.log.lock();
            log.end.clone_from(&self.stopped);
            log.subscribe(self.next_slot_id, queue, phase, budget)
        };
        let group = Arc::clone(group);
        self.stats.groups.store(self.groups.len() as u64, Ordering::Relaxed);
        Cursor::new(group, slot, Arc::clone(&self.stats), self.config.queue_size, self.version.clone())
    }

    /// Publishes batches as one wake: every group gets its share, and is woken once. Ignored after [`Self::stop`].
    ///
    /// Call it only when [`Self::is_blocked`] says no; it never waits by itself.
    pub fn publish(&mut self, batches: &[Batch]) {
        let Some(last) = batches.last() else { return };
        self.version = last.after.clone();
        self.groups.retain(|_, group| !group.log.lock().slots.is_empty());
        self.stats.groups.store(self.groups.len() as u64, Ordering::Relaxed);
        if self.stopped.is_some() || self.groups.is_empty() {
            return;
        }
        // Groups without a selection come first, so that what they are sent lies in one piece.
        let (all, selective): (Vec<_>, Vec<_>) =
            self.groups.values().cloned().partition(|group| group.selection.is_everything());
        let mut encoding = Encoding::new(batches);
        let shares: Vec<(Arc<Group<F>>, Vec<Share>)> = all
            .into_iter()
            .chain(selective)
            .map(|group| {
                let share = encoding.share(&group.selection, group.format);
                (group, share)
            })
            .filter(|(_, share)| !share.is_empty())
            .collect();

        self.stats.encoded.fetch_add(encoding.encoded, Ordering::Relaxed);
        let arenas = encoding.freeze();
        self.wake += 1;
        self.retain(batches, arenas.values().flatten().map(|(_, size)| size).sum());

        let floor = self.floor();
        let (mut wakers, mut full): (Vec<Waker>, Vec<usize>) = (Vec::new(), Vec::new());
        for (group, share) in shares {
            {
                let mut log = group.log.lock();
                push_runs(&mut log, self.wake, &arenas[&group.format], share);
                log.trim_below(floor);
                log.trim_read();
                log.take_wakers(&mut wakers);
                log.find_full(self.config.queue_size, &mut full);
                let since = Instant::now();
                self.blocked.extend(full.drain(..).map(|slot| {
                    let id = log.slots[slot].id;
                    BlockedSlot { group: Arc::clone(&group), slot, id, since }
                }));
            }
            for waker in wakers.drain(..) {
                waker.wake();
            }
        }
        if !self.blocked.is_empty() {
            self.blocked_since.get_or_insert_with(Instant::now);
        }
    }

    /// Whether the next batch has to wait for a client under BLOCK.
    pub fn is_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// Waits until every client that holds the writer back has room again, has gone, or has spent its budget and was
    /// evicted. Returns at once when there is none.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again at any time; the waiting time goes on being counted.
    pub async fn ready(&mut self) {
        loop {
            // Registered before looking, so that room made in between is not missed.
            let room = Arc::clone(&self.room);
            let notified = room.notified();
            let now = Instant::now();
            self.release_blocked(now);
            let Some(deadline) = self.block_deadline() else { return };
            tokio::select! {
                // Cancel-safe: `notify_one` stores a permit when nobody waits.
                () = notified => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }

    /// Removes groups that nobody reads and events that are too old. To be called from time to time: a quiet resource
    /// is not published to.
    pub fn sweep(&mut self) {
        self.retain(&[], 0);
        let floor = self.floor();
        self.groups.retain(|_, group| {
            let mut log = group.log.lock();
            log.trim_below(floor);
            !log.slots.is_empty()
        });
        self.stats.groups.store(self.groups.len() as u64, Ordering::Relaxed);
    }

    /// Ends every cursor once it has read what was published before; later subscribers end at once.
    pub fn stop(&mut self, end: &End) {
        self.stopped = Some(end.clone());
        self.end_all(end);
    }

    /// Ends every cursor as [`Self::stop`] does, and goes on for later subscribers, from `version`.
    pub fn restart(&mut self, end: &End, version: ResourceVersion) {
        self.end_all(end);
        self.groups.clear();
        self.blocked.clear();
        self.blocked_since = None;
        self.version = version;
    }

    fn end_all(&self, end: &End) {
        let mut wakers = Vec::new();
        for group in self.groups.values() {
            let mut log = group.log.lock();
            log.end.get_or_insert_with(|| end.clone());
            log.take_wakers(&mut wakers);
        }
        for waker in wakers {
            waker.wake();
        }
    }

    /// Counts a wake, and forgets the oldest ones past the bounds.
    fn retain(&mut self, batches: &[Batch], size: usize) {
        let now = Instant::now();
        let events = batches.iter().map(|batch| batch.changes.len()).sum();
        if events > 0 {
            self.retained.push_back(RetainedWake { wake: self.wake, events, size, at: now });
            self.retained_events += events;
            self.retained_size += size;
        }
        let bounds = self.config.retention;
        while let Some(oldest) = self.retained.front() {
            let is_over = self.retained_events > bounds.events
                || self.retained_size > bounds.size
                || now.saturating_duration_since(oldest.at) > bounds.age;
            // The newest wake stays whatever its size: nobody has had a chance to read it.
            if !is_over || (oldest.wake == self.wake && events > 0) {
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

    /// Lets go of blocked slots that have room, have gone, or have spent a budget.
    fn release_blocked(&mut self, now: Instant) {
        let Some(blocked_since) = self.blocked_since else { return };
        let all_spent = self.budget.available(blocked_since) <= now.saturating_duration_since(blocked_since);
        let mut wakers = Vec::new();
        let (queue_size, stats) = (self.config.queue_size, &self.stats);
        self.blocked.retain(|blocked| {
            let mut log = blocked.group.log.lock();
            let Some(slot) = log.slots.get(blocked.slot).filter(|slot| slot.id == blocked.id) else { return false };
            let has_room = log.has_room(slot, queue_size);
            let spent = slot.budget.available(blocked.since) <= now.saturating_duration_since(blocked.since);
            let stays = !has_room && !spent && !all_spent;
            if !stays {
                let slot = &mut log.slots[blocked.slot];
                slot.budget.charge(blocked.since, now);
                slot.blocking = false;
                if !has_room {
                    wakers.extend(log.evict(blocked.slot));
                    stats.evicted.fetch_add(1, Ordering::Relaxed);
                }
            }
            stays
        });
        if self.blocked.is_empty() {
            self.budget.charge(blocked_since, now);
            self.blocked_since = None;
            let waited = now.saturating_duration_since(blocked_since).as_micros() as u64;
            self.stats.blocked_micros.fetch_add(waited, Ordering::Relaxed);
        }
        for waker in wakers {
            waker.wake();
        }
    }

    /// When the first budget will be spent; `None` when nothing is blocked.
    fn block_deadline(&self) -> Option<Instant> {
        let all = self.blocked_since.map(|since| since + self.budget.available(since))?;
        let of_slot = |blocked: &BlockedSlot<F>| {
            let log = blocked.group.log.lock();
            let slot = log.slots.get(blocked.slot)?;
            Some(blocked.since + slot.budget.available(blocked.since))
        };
        Some(self.blocked.iter().filter_map(of_slot).fold(all, Instant::min))
    }
}

impl<F: Frame> Drop for Broadcaster<F> {
    fn drop(&mut self) {
        self.end_all(&End::Stopped);
    }
}

/// Puts a group's share of a wake into its log; what lies together becomes one run.
fn push_runs<F: Frame>(log: &mut super::group::Log<F>, wake: u64, arenas: &[(F, usize)], share: Vec<Share>) {
    let mut share = share.into_iter().peekable();
    while let Some(first) = share.next() {
        let Span { arena, start, mut end } = first.span;
        let mut marks = vec![Mark { end: (end - start) as u32, version: first.version }];
        while let Some(next) = share.next_if(|next| next.span.arena == arena && next.span.start == end) {
            end = next.span.end;
            marks.push(Mark { end: (end - start) as u32, version: next.version });
        }
        log.push(wake, arenas[arena].0.slice(start..end), (end - start) as u64, marks.into());
    }
}

// === impl Encoding ===

impl<'a, F: Frame> Encoding<'a, F> {
    fn new(batches: &'a [Batch]) -> Self {
        Self { batches, formats: HashMap::new(), encoded: 0 }
    }

    /// What a group is told of the wake. The last event of a batch in its selection carries the batch's version, and
    /// those before it the version before the batch: there is no point to resume from inside a batch.
    fn share(&mut self, selection: &Selection, format: F::Format) -> Vec<Share> {
        let arenas = self.formats.entry(format).or_insert_with(FormatArenas::default);
        let mut share = Vec::new();
        let mut first_of_batch = 0;
        for batch in self.batches {
            let told = batch.changes.iter().enumerate().filter_map(|(at, change)| {
                let transition = selection.transition(change)?;
                Some((at, transition))
            });
            let mut told = told.peekable();
            while let Some((at, transition)) = told.next() {
                let closes = told.peek().is_none();
                let version = if closes { &batch.after } else { &batch.before };
                let change = &batch.changes[at];
                let variant = Variant::of(transition);
                let is_deletion = transition.event_type == EventType::Deleted;
                let object = if is_deletion { change.old.as_ref() } else { change.new.as_ref() };
                let Some(object) = object else { continue };
                let span = arenas.spans.entry((first_of_batch + at, variant, closes)).or_insert_with(|| {
                    self.encoded += 1;
                    let object_version = if is_deletion { &change.version } else { object.version() };
                    let Transition { event_type, cause } = transition;
                    let notice = Notice { event_type, cause, object, object_version, version };
                    encode(&mut arenas.full, &mut arenas.open, format, &notice)
                });
                share.push(Share { span: *span, version: version.clone() });
            }
            first_of_batch += batch.changes.len();
        }
        share
    }

    /// The arenas by format, each with its size.
    fn freeze(self) -> HashMap<F::Format, Vec<(F, usize)>> {
        let frozen = |(format, mut arenas): (_, FormatArenas<F>)| {
            let size = F::size(&arenas.open);
            arenas.full.push((F::freeze(arenas.open), size));
            (format, arenas.full)
        };
        self.formats.into_iter().map(frozen).collect()
    }
}

/// Appends one event to the open arena, and begins another when that is full.
fn encode<F: Frame>(full: &mut Vec<(F, usize)>, open: &mut F::Arena, format: F::Format, notice: &Notice<'_>) -> Span {
    let size = F::size(open);
    if size >= ARENA_SIZE {
        full.push((F::freeze(std::mem::take(open)), size));
    }
    let start = F::size(open);
    F::encode(open, format, notice);
    Span { arena: full.len(), start, end: F::size(open) }
}

// === impl FormatArenas ===

impl<F: Frame> Default for FormatArenas<F> {
    fn default() -> Self {
        Self { full: Vec::new(), open: F::Arena::default(), spans: HashMap::new() }
    }
}

// === impl Variant ===

impl Variant {
    fn of(transition: Transition) -> Self {
        match transition.cause {
            Cause::EnteredSelection => Self::Entered,
            Cause::LeftSelection => Self::Left,
            Cause::Change | Cause::Initial | Cause::Inferred => Self::AsItIs,
        }
    }
}
