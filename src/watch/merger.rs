//! Merging for readers under COALESCE, from the published batches.
//!
//! While such readers exist, the merger keeps published batches from the first change on that one of them may need. When a
//! reader takes and its queue is full, everything in its queue merges. A reader that takes nothing loses nothing either,
//! however long it lags: its changes merge before the history drops them.
//!
//! - The writer adds what it published, once for all readers, and compares two numbers.
//! - Threads check the readers, merge in slices, and complete generations. Without threads, the cursor or the writer does
//!   that work inline.
//! - Of the batches that the history has dropped, the merger keeps at most a bound. A reader that needs older ones expires,
//!   as does one whose merged changes exceed their bound.
//!
//! A merger belongs to one history. After a history is rewritten, a new [`Merger`] serves the new readers, and the old one
//! serves the readers of the ended groups. No log is locked under the merger's lock.

mod state;

use std::{
    borrow::Borrow,
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::Waker,
    time::Duration,
};

use tokio::time::Instant;

use self::state::{NEAR, Published, State};
use super::{
    BroadcasterConfig, End, Frame, Retention,
    bulk::{BulkQueue, Work, guarded},
    coalesce::Generation,
    config::BroadcasterStats,
    group::{Group, MergeOutcome, SlotNeed, SlotRef},
    history::bytes_of,
    selection_budget::Clock,
};
use crate::{
    census::{Alive, Kind},
    model::{Batch, HistoryPosition, Selection},
    sync::{AtomicBool, Mutex},
};

/// Published batches of a resource, for its readers under COALESCE.
#[derive(Debug)]
pub(super) struct Merger<F: Frame> {
    state: Mutex<State<F>>,
    /// Number of readers.
    count: AtomicUsize,
    is_queued: AtomicBool,
    threads: Option<Arc<BulkQueue>>,
    config: MergerConfig,
    stats: Arc<BroadcasterStats>,
}

/// Bounds of a merger.
#[derive(Debug, Clone, Copy)]
pub(super) struct MergerConfig {
    /// Bytes that the merged changes of one reader may take.
    size: usize,
    /// Bytes that batches which the history has dropped may take.
    passed: usize,
    /// Maximum events and age of a history.
    events: u64,
    age: Duration,
}

/// Time of one piece of work, in nanoseconds.
const SLICE: u64 = 500_000;

// === impl Merger ===

impl<F: Frame> Merger<F> {
    /// Returns an empty merger, whose work the given threads do.
    pub(super) fn new(
        config: MergerConfig,
        threads: Option<Arc<BulkQueue>>,
        stats: Arc<BroadcasterStats>,
        reached: &HistoryPosition,
    ) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::new(State::new(reached, config.events)),
            count: AtomicUsize::new(0),
            is_queued: AtomicBool::default(),
            threads,
            config,
            stats,
        })
    }

    /// Returns the merger of the next history, which begins at `reached`.
    pub(super) fn next(&self, reached: &HistoryPosition) -> Arc<Self> {
        Self::new(self.config, self.threads.clone(), Arc::clone(&self.stats), reached)
    }

    /// Adds a reader that has everything up to `reached`.
    pub(super) fn register(&self, reader: SlotRef<F>, reached: &HistoryPosition) {
        let mut state = self.state.lock();
        if state.readers.is_empty() {
            (state.head, state.low) = (reached.offset, reached.offset);
        }
        state.readers.insert(reader.slot().1, reader);
        self.count.store(state.readers.len(), Ordering::Relaxed);
    }

    /// Removes a reader, and what was kept for it alone.
    pub(super) fn unregister(&self, id: u64) {
        let mut state = self.state.lock();
        let reader = state.readers.remove(&id);
        self.count.store(state.readers.len(), Ordering::Relaxed);
        let is_last = state.readers.is_empty();
        let published = if is_last { state.drop_before(u64::MAX) } else { VecDeque::new() };
        drop(state);
        // Nothing is dropped under the lock.
        drop((reader, published));
    }

    /// Adds what was put into the logs, from the offset `first` to `end`.
    pub(super) fn publish<B: Borrow<Batch> + Clone + Into<Arc<Batch>>>(
        self: &Arc<Self>,
        batches: &[B],
        first: u64,
        end: &HistoryPosition,
        now: Instant,
    ) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let changes = batches.iter().flat_map(|batch| &batch.borrow().changes);
        let size = changes.map(|change| bytes_of(change.old.as_ref())).sum();
        let batches = batches.iter().cloned().map(Into::into).collect();
        let alive = Alive::new(Kind::Merging, 0);
        let published = Arc::new(Published { batches, first, end: end.clone(), size, at: now, _alive: alive });
        let mut forgotten = VecDeque::new();
        let has_work = {
            let mut state = self.state.lock();
            if state.readers.is_empty() {
                return;
            }
            debug_assert_eq!(state.head, first, "what is published has no gaps");
            state.published.push_back(published);
            state.head = end.offset;
            let behind = std::mem::take(&mut state.behind);
            state.jobs.extend(behind);
            // Without a history, the bounds of one apply here.
            while let Some(next) = state.published.get(state.passed).cloned()
                && next.first.saturating_add(state.depth) < end.offset
            {
                state.oldest.clone_from(&next.end);
                state.pass(self.config.passed, &mut forgotten);
            }
            state.has_work()
        };
        drop(forgotten);
        self.notify(has_work);
    }

    /// Records what the history has dropped.
    pub(super) fn drop_before(self: &Arc<Self>, oldest: &HistoryPosition) {
        if self.count.load(Ordering::Relaxed) == 0 {
            return;
        }
        let mut forgotten = VecDeque::new();
        let has_work = {
            let mut state = self.state.lock();
            if state.oldest.offset <= oldest.offset {
                state.oldest.clone_from(oldest);
            }
            state.pass(self.config.passed, &mut forgotten);
            state.has_work()
        };
        drop(forgotten);
        self.notify(has_work);
    }

    /// Checks the readers and drops what none of them needs any more. Must be called periodically.
    pub(super) fn sweep(self: &Arc<Self>, now: Instant) {
        {
            let mut state = self.state.lock();
            if state.published.is_empty() {
                return;
            }
            let age = self.config.age / NEAR as u32 * (NEAR as u32 - 1);
            let aged = state.published.partition_point(|published| now.saturating_duration_since(published.at) > age);
            state.aged = aged.checked_sub(1).map_or(0, |last| state.published[last].end.offset);
            state.must_check = true;
        }
        self.notify(true);
    }

    /// Merges for a reader that waits for it.
    pub(super) fn merge(self: &Arc<Self>, reader: SlotRef<F>) {
        self.state.lock().jobs.push_back(reader);
        self.notify(true);
    }

    /// Returns true if threads do the work; otherwise each call returns with its work done.
    pub(super) fn has_threads(&self) -> bool {
        self.threads.is_some()
    }

    fn notify(self: &Arc<Self>, has_work: bool) {
        if !has_work {
            return;
        }
        match &self.threads {
            None => while self.step(None) {},
            Some(threads) if !self.is_queued.swap(true, Ordering::AcqRel) => threads.push(Arc::<Self>::clone(self)),
            Some(_) => {}
        }
    }

    /// Does one piece of work. Returns true if there was some.
    fn step(self: &Arc<Self>, threads: Option<&BulkQueue>) -> bool {
        let (must_check, job, has_more) = {
            let mut state = self.state.lock();
            let must_check = std::mem::take(&mut state.must_check);
            let job = if must_check { None } else { state.jobs.pop_front() };
            (must_check, job, !state.jobs.is_empty())
        };
        // Another thread may do the rest meanwhile.
        self.notify(has_more && threads.is_some());
        match job {
            _ if must_check => self.check(),
            Some(reader) => self.merge_on(reader, threads),
            None => return false,
        }
        true
    }

    /// Checks what the readers still need: drops the rest, and merges for the readers that need what the history is about
    /// to drop.
    fn check(self: &Arc<Self>) {
        let (head, limit) = {
            let state = self.state.lock();
            (state.head, state.limit(NEAR / 2))
        };
        let (mut jobs, mut needed, mut low) = (Vec::new(), head, head);
        // The writer waits for one slice of them at most. One that is added meanwhile needs nothing before the head.
        let mut from = Some(0);
        let slices = std::iter::from_fn(|| {
            let readers = self.state.lock().readers_from(from?);
            from = readers.last().map(|last| last.slot().1 + 1);
            Some(readers)
        });
        for reader in slices.flatten() {
            let Some(group) = reader.group() else { continue };
            let found = group.log.lock().check(reader.slot(), head, limit);
            let Some(SlotNeed { since, lags, is_due }) = found else { continue };
            needed = needed.min(since);
            low = if lags { low.min(since) } else { low };
            if is_due {
                jobs.push(reader);
            }
        }
        let mut state = self.state.lock();
        state.jobs.extend(jobs);
        state.low = low;
        let forgotten = state.drop_before(needed);
        drop(state);
        drop(forgotten);
    }

    /// Merges for a reader, for at most one piece of work. Without threads, a panic is that of the caller.
    fn merge_on(self: &Arc<Self>, reader: SlotRef<F>, threads: Option<&BulkQueue>) {
        let Some(group) = reader.group() else { return };
        let slot = reader.slot();
        if threads.is_none() {
            self.merge_piece(&group, reader, None);
        } else if guarded(|| self.merge_piece(&group, reader, threads)).is_none() {
            // Its generation is lost.
            Self::end(&group, slot, End::Failed);
        }
    }

    fn merge_piece(self: &Arc<Self>, group: &Group<F>, reader: SlotRef<F>, threads: Option<&BulkQueue>) {
        let slot = reader.slot();
        let Some((mut generation, mut to)) = group.log.lock().take_generation(slot) else { return };
        let clock = threads.map(BulkQueue::clock);
        let until = clock.map(|clock| clock.now().saturating_add(SLICE));
        let is_enough = |generation: &Generation| {
            generation.size().held() > self.config.size || clock.map(Clock::now) >= until && until.is_some()
        };
        let Some(is_all) = self.merge_after(&mut to, &group.selection, &mut generation, is_enough) else {
            drop(generation);
            self.lose(group, slot, &self.stats.expired);
            return;
        };
        let put_back = group.log.lock().put_back(slot, generation, (to, is_all), self.config.size);
        match put_back {
            MergeOutcome::Done => {}
            MergeOutcome::Gone(generation) => drop(generation),
            MergeOutcome::Again => self.state.lock().jobs.push_back(reader),
            MergeOutcome::Behind => {
                let mut state = self.state.lock();
                if state.head > to {
                    state.jobs.push_back(reader);
                } else {
                    state.behind.push(reader);
                }
            }
            MergeOutcome::Drain(generation) => {
                let telling =
                    generation.drain(to, F::HAS_PREVIOUS, |had, now| F::is_suppressed(&group.format, had, now));
                let telling = Box::new(telling);
                let given = group.log.lock().give(slot, telling);
                match given {
                    Ok(waker) => wake(waker),
                    Err(telling) => drop(telling),
                }
            }
            MergeOutcome::TooLarge(generation) => {
                drop(generation);
                self.lose(group, slot, &self.stats.overmerged);
            }
        }
    }

    /// Merges what follows an offset, until `is_enough`. Returns true if that was everything; `None` if the merger no
    /// longer has it.
    fn merge_after(
        &self,
        to: &mut u64,
        selection: &Selection,
        generation: &mut Generation,
        is_enough: impl Fn(&Generation) -> bool,
    ) -> Option<bool> {
        loop {
            let cycles = self.state.lock().after(*to)?;
            if cycles.is_empty() {
                return Some(true);
            }
            for wake in &cycles {
                let mut known = (*to - wake.first) as usize;
                for batch in &wake.batches {
                    let first = known.min(batch.changes.len());
                    known -= first;
                    for change in &batch.changes[first..] {
                        if let Some(transition) = selection.transition(change) {
                            generation.merge(batch, change, transition);
                        }
                        *to += 1;
                        if is_enough(generation) {
                            return Some(false);
                        }
                    }
                }
            }
        }
    }

    /// Ends a reader, and counts it.
    fn lose(&self, group: &Group<F>, slot: (usize, u64), counter: &AtomicU64) {
        let oldest = self.state.lock().oldest.version.clone();
        let is_ended = Self::end(group, slot, End::Expired { oldest });
        counter.fetch_add(is_ended.into(), Ordering::Relaxed);
    }

    /// Ends a reader. Returns false if it had ended.
    fn end(group: &Group<F>, slot: (usize, u64), end: End) -> bool {
        let lost = group.log.lock().lose(slot, end);
        let Some((waker, merged)) = lost else { return false };
        drop(merged);
        wake(waker);
        true
    }
}

impl<F: Frame> Work for Merger<F> {
    fn run(self: Arc<Self>) {
        // Reset before looking for work, so that later work is not missed.
        self.is_queued.store(false, Ordering::Release);
        self.step(self.threads.as_deref());
        let has_more = self.state.lock().has_work();
        self.notify(has_more);
    }
}

fn wake(waker: Option<Waker>) {
    if let Some(waker) = waker {
        waker.wake();
    }
}

// === impl MergerConfig ===

impl MergerConfig {
    /// Returns the merger's part of the bounds of a Broadcaster.
    pub(super) fn of(config: &BroadcasterConfig) -> Self {
        let Retention { events, size, age } = config.retention;
        Self { size: config.coalesce_size, passed: size, events: events as u64, age }
    }
}
