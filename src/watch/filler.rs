//! Filler of deferred groups: those whose selections the writer has no time for.
//!
//! The writer hands over the batches that it publishes, and the filler keeps them as long as the history does. Threads
//! evaluate the selections, encode with the same [`Encoding`], and append the events to the groups' logs. Groups at the
//! same offset are evaluated together, so that a body is read once for all of them and an event is encoded once.
//!
//! **Hand-over.** Offsets count the changes of a resource, and a group's log has all changes up to an offset:
//!
//! - The log of a group that is not [deferred](super::group::Deferred) has what is distributed. Only the writer pushes to
//!   it. The writer defers a group between two of its own cycles: `filled` is then the beginning of the first cycle that it
//!   no longer pushes to the group.
//! - The log of a deferred group has everything up to `filled`. A thread pushes what lies between `filled` and the end of
//!   its block and moves `filled` there, in one critical section of the log. It does so only if `filled` is still the
//!   beginning of its block and the group was not handed over meanwhile (`id`). So even two threads with the same block
//!   push it once, and in order.
//! - The writer takes a group back at the beginning of a cycle, if `filled` is there, in one critical section too. No block
//!   of a thread can begin there: the filler has not received the cycle yet.
//!
//! So each change is pushed once. A reader at the head of the log has what is distributed up to `filled` and no more, which
//! is also the version of its bookmarks ([`Cursor::advance_at_head`](super::Cursor::advance_at_head)).
//!
//! The writer writes batches and groups, threads write groups. When a history ends, the logs are ended first, and a thread
//! with a batch of that history finds no deferred group. No log is locked under the filler's lock.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
};

use tokio::time::Instant;

use super::{
    End, Frame,
    bulk::{BulkQueue, Work, guarded},
    config::BroadcasterStats,
    encoding::{Encoding, Formats, GroupShare},
    group::{Group, Part, Wakers},
    selected::Selected,
    selection_budget::{Clock, Meter},
    window::Window,
    writer_signals::WriterSignals,
};
use crate::{
    model::{Batch, HistoryPosition, ResourceVersion, sharing_bodies},
    sync::{AtomicBool, Mutex},
};

/// Deferred groups of one resource.
#[derive(Debug)]
pub(super) struct Filler<F: Frame> {
    state: Mutex<State<F>>,
    is_queued: AtomicBool,
    threads: Arc<BulkQueue>,
    window: Arc<Window<F>>,
    writer_signals: Arc<WriterSignals>,
    stats: Arc<BroadcasterStats>,
    queue_size: usize,
}

/// Group during one deferral.
#[derive(Debug)]
pub(super) struct Filled<F: Frame> {
    pub(super) group: Arc<Group<F>>,
    /// [`Deferred::id`](super::group::Deferred::id).
    pub(super) id: u64,
    /// Offset up to which it has been filled.
    pub(super) at: u64,
}

/// Batches of one publish cycle.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) batches: Vec<Arc<Batch>>,
    /// Offset of the last relist before it.
    pub(super) last_relist: Option<u64>,
    /// Offset of its first change.
    pub(super) first: u64,
    /// Position reached after it.
    pub(super) end: HistoryPosition,
}

#[derive(Debug)]
struct State<F: Frame> {
    /// Batches from the first that a group may still need, without gaps.
    published: VecDeque<Arc<Published>>,
    /// Offset after everything published.
    head: u64,
    /// Oldest version to resume from.
    oldest: ResourceVersion,
    /// Groups that have been filled up to the head.
    idle: Vec<Filled<F>>,
    /// Other groups that are in no job.
    behind: Vec<Vec<Filled<F>>>,
    /// Jobs of cheap selections, and of costly ones, each of which takes as long as very many cheap ones: the two queues
    /// take turns.
    cheap: VecDeque<Job<F>>,
    costly: VecDeque<Job<F>>,
    is_turn_of_costly: bool,
    /// Number of pieces of work in progress.
    running: usize,
    /// Number of the history.
    history_id: u64,
}

/// Groups at the same offset, and the block that follows it.
#[derive(Debug)]
struct Job<F: Frame> {
    groups: Vec<Filled<F>>,
    /// Changes found for each group.
    selected: Vec<Selected>,
    block: Block,
    is_costly: bool,
    /// Next change to evaluate: its batch, its position there, and its position in the block.
    batch: usize,
    change: usize,
    at: usize,
}

#[derive(Debug)]
struct Block {
    batches: Vec<Arc<Batch>>,
    last_relist: Option<u64>,
    first: u64,
    end: HistoryPosition,
}

/// Time of one piece of work, in nanoseconds.
const SLICE: u64 = 500_000;
/// Number of changes after which a block ends, with the publish cycle that reaches it.
const BLOCK_EVENTS: u64 = 256;
/// Maximum time that the groups of a job take for a change, in nanoseconds; a single group may take more.
const JOB_COST: u64 = 1_000_000;
/// Cost, in nanoseconds, from which on a selection is costly.
const COSTLY: u64 = 50_000;

// === impl Filler ===

impl<F: Frame> Filler<F> {
    pub(super) fn new(
        threads: Arc<BulkQueue>,
        window: Arc<Window<F>>,
        writer_signals: Arc<WriterSignals>,
        stats: Arc<BroadcasterStats>,
        queue_size: usize,
        oldest: ResourceVersion,
    ) -> Self {
        Self {
            state: Mutex::new(State::new(0, oldest)),
            is_queued: AtomicBool::default(),
            threads,
            window,
            writer_signals,
            stats,
            queue_size,
        }
    }

    pub(super) fn clock(&self) -> &Clock {
        self.threads.clock()
    }

    /// Adds what was published, and the groups deferred where it begins. Takes constant time in the number of deferred
    /// groups.
    pub(super) fn publish(self: &Arc<Self>, published: Published, groups: Vec<Filled<F>>) {
        {
            let mut state = self.state.lock();
            state.head = published.end.offset;
            state.published.push_back(Arc::new(published));
            let idle = std::mem::take(&mut state.idle);
            state.behind.extend([idle, groups].into_iter().filter(|groups| !groups.is_empty()));
        }
        self.notify();
    }

    /// Drops what the history has dropped.
    pub(super) fn drop_before(&self, oldest: &HistoryPosition) {
        let mut state = self.state.lock();
        while state.published.front().is_some_and(|published| published.end.offset <= oldest.offset) {
            state.published.pop_front();
        }
        state.oldest.clone_from(&oldest.version);
    }

    /// Drops groups at the head that nobody else refers to any more: on a quiet resource no thread visits them again.
    pub(super) fn drop_removed(&self) {
        let is_gone = |filled: &Filled<F>| Arc::strong_count(&filled.group) == 1;
        // Dropped once the lock is free.
        let _gone: Vec<Filled<F>> = self.state.lock().idle.extract_if(.., |filled| is_gone(filled)).collect();
    }

    /// Drops everything: there are no deferred groups, or they have ended.
    pub(super) fn clear(&self) {
        let mut state = self.state.lock();
        let next = State::new(state.history_id + 1, state.oldest.clone());
        // Dropped once the lock is free.
        let _last = std::mem::replace(&mut *state, next);
        drop(state);
    }

    fn notify(self: &Arc<Self>) {
        if !self.is_queued.swap(true, Ordering::AcqRel) {
            self.threads.push(Arc::<Self>::clone(self));
        }
    }

    /// Takes the next job, with the epoch.
    fn next(self: &Arc<Self>) -> Option<(Job<F>, u64)> {
        let (behind, history_id) = {
            let mut state = self.state.lock();
            let behind = std::mem::take(&mut state.behind);
            if behind.is_empty() && state.cheap.is_empty() && state.costly.is_empty() {
                return None;
            }
            state.running += 1;
            (behind, state.history_id)
        };
        let parts = parts(behind);
        let (mut lost, mut job) = (Vec::new(), None);
        let (oldest, has_more) = {
            let mut state = self.state.lock();
            if state.history_id != history_id {
                return None;
            }
            for (groups, is_costly) in parts {
                state.begin(groups, is_costly, &mut lost);
            }
            while let Some(next) = state.pop() {
                if state.keeps(next.block.first) {
                    job = Some(next);
                    break;
                }
                lost.extend(next.groups);
            }
            if job.is_none() {
                state.end_piece();
            }
            (state.oldest.clone(), !state.cheap.is_empty() || !state.costly.is_empty())
        };
        self.lose(lost, &End::Expired { oldest });
        if has_more {
            // Another thread may do the rest meanwhile.
            self.notify();
        }
        job.map(|job| (job, history_id))
    }

    /// Returns what a piece of work leaves to the state: a job, or groups that have been filled up to an offset.
    fn put_back(self: &Arc<Self>, left: Result<Vec<Filled<F>>, Box<Job<F>>>, history_id: u64) {
        let has_more = {
            let mut state = self.state.lock();
            if state.history_id != history_id {
                return;
            }
            match left {
                Err(job) if job.is_costly => state.costly.push_back(*job),
                Err(job) => state.cheap.push_back(*job),
                Ok(groups) => {
                    let head = state.head;
                    match groups.first() {
                        Some(first) if first.at < head => state.behind.push(groups),
                        _ => state.idle.extend(groups),
                    }
                }
            }
            state.end_piece();
            !state.behind.is_empty() || !state.cheap.is_empty() || !state.costly.is_empty()
        };
        if has_more {
            self.notify();
        }
    }

    /// Appends what a job has found to the logs of its groups. Returns the groups that are still deferred, at their new
    /// offset.
    fn fill(&self, job: Job<F>) -> Vec<Filled<F>> {
        let Job { groups, selected, block: Block { batches, mut last_relist, first, end }, .. } = job;
        let mut encoding = Encoding::<F>::new(&batches, first, &mut last_relist, Formats::<F>::default());
        let mut share = |(filled, selected): (Filled<F>, Selected)| {
            let (share, _) = filled.group.share(&mut encoding, selected, Some(self.clock()));
            (filled, share)
        };
        let shares: Vec<(Filled<F>, GroupShare)> = groups.into_iter().zip(selected).map(&mut share).collect();
        self.stats.encoded.fetch_add(encoding.encoded(), Ordering::Relaxed);
        let bytes = encoding.freeze();
        let at = Instant::now();
        let cycle = if shares.iter().any(|(_, share)| !share.events.is_empty()) {
            // Its events were counted when they were published.
            let its = shares.iter().map(|(filled, share)| (&filled.group, &share.events[..]));
            self.window.push(0, bytes, its, at)
        } else {
            0
        };
        let (mut left, mut wakers, mut full) = (Vec::with_capacity(shares.len()), Wakers::new(), Vec::new());
        for (filled, share) in shares {
            let (offset, queue_size) = (first, self.queue_size);
            let part = Part {
                cycle,
                at,
                changes: encoding.changes(),
                offset,
                end: end.offset,
                arenas: encoding.arenas(&filled.group.format),
                queue_size,
                floor: self.window.floor(),
            };
            {
                let mut log = filled.group.log.lock();
                // One critical section, see the module's hand-over.
                let is_here = |filled_to: &HistoryPosition| filled_to.offset == first;
                let may_fill =
                    log.deferred.as_ref().is_some_and(|other| other.id == filled.id && is_here(&other.filled));
                if !may_fill {
                    continue;
                }
                log.append(&part, share, &mut full, &mut wakers);
                if let Some(deferred) = log.deferred.as_mut() {
                    deferred.filled.clone_from(&end);
                }
                debug_assert!(full.is_empty(), "the writer waits for no reader of a deferred group");
            }
            left.push(Filled { at: end.offset, ..filled });
            for waker in wakers.drain(..) {
                waker.wake();
            }
        }
        left
    }

    /// Ends groups that have not kept up with the history, or whose work has failed.
    fn lose(&self, groups: Vec<Filled<F>>, end: &End) {
        let mut wakers = Wakers::new();
        for Filled { group, id, .. } in groups {
            {
                let mut log = group.log.lock();
                if log.deferred.as_ref().is_none_or(|deferred| deferred.id != id) {
                    continue;
                }
                log.end_deferral(&self.stats);
                log.end = Some(end.clone());
                log.take_wakers(&mut wakers);
                if *end != End::Failed {
                    self.stats.expired.fetch_add(log.slots.len() as u64, Ordering::Relaxed);
                }
            }
            self.writer_signals.vacate(group.id);
            for waker in wakers.drain(..) {
                waker.wake();
            }
        }
    }
}

impl<F: Frame> Work for Filler<F> {
    fn run(self: Arc<Self>) {
        // Reset before looking for work, so that later batches are not missed.
        self.is_queued.store(false, Ordering::Release);
        if let Some((mut job, history_id)) = self.next() {
            let copy = |filled: &Filled<F>| Filled { group: Arc::clone(&filled.group), ..*filled };
            let groups = job.groups.iter().map(copy).collect();
            let left = guarded(|| if job.evaluate(self.clock()) { Ok(self.fill(job)) } else { Err(Box::new(job)) });
            if left.is_none() {
                self.lose(groups, &End::Failed);
            }
            self.put_back(left.unwrap_or(Ok(Vec::new())), history_id);
        }
    }
}

/// Groups at the same offset, and true if they are costly.
type Cohort<F> = (Vec<Filled<F>>, bool);

/// Divides groups by offset and cost.
fn parts<F: Frame>(groups: Vec<Vec<Filled<F>>>) -> Vec<Cohort<F>> {
    let mut groups: Vec<(u64, Filled<F>)> =
        groups.into_iter().flatten().map(|filled| (filled.group.cost(), filled)).collect();
    groups.sort_by_key(|(cost, filled)| (filled.at, *cost));
    let (mut parts, mut sum): (Vec<Cohort<F>>, u64) = (Vec::new(), 0);
    for (cost, filled) in groups {
        let is_costly = cost >= COSTLY;
        sum = sum.saturating_add(cost);
        match parts.last_mut() {
            Some((part, kind)) if part[0].at == filled.at && *kind == is_costly && sum <= JOB_COST => {
                part.push(filled);
            }
            _ => {
                sum = cost;
                parts.push((vec![filled], is_costly));
            }
        }
    }
    parts
}

// === impl State ===

impl<F: Frame> State<F> {
    fn new(history_id: u64, oldest: ResourceVersion) -> Self {
        Self {
            published: VecDeque::new(),
            head: 0,
            oldest,
            idle: Vec::new(),
            behind: Vec::new(),
            cheap: VecDeque::new(),
            costly: VecDeque::new(),
            is_turn_of_costly: false,
            running: 0,
            history_id,
        }
    }

    /// Returns true if the batches after an offset are still kept.
    fn keeps(&self, offset: u64) -> bool {
        offset >= self.published.front().map_or(self.head, |published| published.first)
    }

    /// Begins a job with groups at the same offset, or adds them to the lost groups, or to those at the head.
    fn begin(&mut self, groups: Vec<Filled<F>>, is_costly: bool, lost: &mut Vec<Filled<F>>) {
        let Some(at) = groups.first().map(|filled| filled.at) else { return };
        if at == self.head {
            self.idle.extend(groups);
            return;
        }
        let Some(block) = self.block(at) else {
            lost.extend(groups);
            return;
        };
        let selected = groups.iter().map(|_| Selected::default()).collect();
        let job = Job { groups, selected, block, is_costly, batch: 0, change: 0, at: 0 };
        let jobs = if is_costly { &mut self.costly } else { &mut self.cheap };
        jobs.push_back(job);
    }

    /// Returns the block that begins at an offset and ends with a publish cycle.
    fn block(&self, at: u64) -> Option<Block> {
        let from = self.published.partition_point(|published| published.first < at);
        let first = self.published.get(from).filter(|first| first.first == at)?;
        let mut block =
            Block { batches: Vec::new(), last_relist: first.last_relist, first: at, end: first.end.clone() };
        for published in self.published.range(from..) {
            let is_first = block.batches.is_empty();
            // A relist without changes is only known at the beginning of a block.
            let is_after_relist = published.last_relist == Some(published.first);
            if !is_first && (is_after_relist || block.end.offset - at >= BLOCK_EVENTS) {
                break;
            }
            block.batches.extend(published.batches.iter().cloned());
            block.end.clone_from(&published.end);
        }
        Some(block)
    }

    fn pop(&mut self) -> Option<Job<F>> {
        self.is_turn_of_costly = !self.is_turn_of_costly;
        let Self { cheap, costly, .. } = self;
        let (first, second) = if self.is_turn_of_costly { (costly, cheap) } else { (cheap, costly) };
        first.pop_front().or_else(|| second.pop_front())
    }

    /// Ends a piece of work. Once all groups are at the head, no published batch is needed any more.
    fn end_piece(&mut self) {
        self.running -= 1;
        if self.running == 0 && self.behind.is_empty() && self.cheap.is_empty() && self.costly.is_empty() {
            self.published.clear();
        }
    }
}

// === impl Job ===

impl<F: Frame> Job<F> {
    /// Evaluates the selections for the next changes, for at most one piece of work. Returns true if the block is done.
    fn evaluate(&mut self, clock: &Clock) -> bool {
        let until = clock.now().saturating_add(SLICE);
        let Self { groups, selected, block, batch, change, at, .. } = self;
        let note = |run: &[usize], each: u64| run.iter().for_each(|number| groups[*number].group.cost.note(each));
        while let Some(of) = block.batches.get(*batch) {
            let Some(next) = of.changes.get(*change) else {
                (*batch, *change) = (*batch + 1, 0);
                continue;
            };
            sharing_bodies(|| {
                let mut meter = Meter::begin(clock);
                for (number, (Filled { group, .. }, selected)) in groups.iter().zip(&mut *selected).enumerate() {
                    let evaluate = || selected.add(*at, group.outcome(of, next));
                    meter.evaluate(number, group.is_costly(), evaluate, note);
                }
                meter.settle(note);
            });
            *change += 1;
            *at += 1;
            if clock.now() >= until {
                break;
            }
        }
        *batch >= block.batches.len()
    }
}
