//! Published batches that readers still need, and the pending work for readers.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use tokio::time::Instant;

use crate::{
    census::Alive,
    model::{Batch, HistoryPosition},
    watch::{Frame, group::SlotRef},
};

/// State of a [`Merger`](super::Merger), under its lock.
#[derive(Debug)]
pub(super) struct State<F: Frame> {
    /// Batches without gaps, as long as there is a reader.
    pub(super) published: VecDeque<Arc<Published>>,
    /// Offset after everything published.
    pub(super) head: u64,
    /// Oldest position that the history has, and the offset at which it began.
    pub(super) oldest: HistoryPosition,
    begin: u64,
    /// Maximum number of events in the history.
    pub(super) depth: u64,
    /// Number of entries that the history has dropped, and their size.
    pub(super) passed: usize,
    passed_size: usize,
    /// Offset before which the batches are nearly as old as a history may be.
    pub(super) aged: u64,
    /// Readers by the ids of their slots.
    pub(super) readers: BTreeMap<u64, SlotRef<F>>,
    /// Readers to merge for, and readers whose log has events that the merger has not received yet.
    pub(super) jobs: VecDeque<SlotRef<F>>,
    pub(super) behind: Vec<SlotRef<F>>,
    /// True if the readers must be checked.
    pub(super) must_check: bool,
    /// Offset before which no reader needs anything, except the readers among the jobs and those with nothing to merge.
    pub(super) low: u64,
}

/// Batches of one publish cycle.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) batches: Vec<Arc<Batch>>,
    /// Offset of its first change.
    pub(super) first: u64,
    /// Position reached after it.
    pub(super) end: HistoryPosition,
    pub(super) size: usize,
    pub(super) at: Instant,
    pub(super) _alive: Alive,
}

/// Publish cycles that are read under one acquisition of the lock.
const CYCLES_PER_LOCK: usize = 64;
/// Readers that are read under one acquisition of the lock.
const READERS_PER_LOCK: usize = 64;
/// Part of the history's depth, or of its age: a reader is merged for once the history has come that near to what it needs.
pub(super) const NEAR: u64 = 4;

// === impl State ===

impl<F: Frame> State<F> {
    pub(super) fn new(reached: &HistoryPosition, depth: u64) -> Self {
        Self {
            published: VecDeque::new(),
            head: reached.offset,
            oldest: reached.clone(),
            begin: reached.offset,
            depth,
            passed: 0,
            passed_size: 0,
            aged: 0,
            readers: BTreeMap::new(),
            jobs: VecDeque::new(),
            behind: Vec::new(),
            must_check: false,
            low: reached.offset,
        }
    }

    /// Returns true if there is work. The readers must be checked once the history has come near to what one of them needs.
    pub(super) fn has_work(&mut self) -> bool {
        self.must_check |= self.low < self.limit(NEAR);
        self.must_check || !self.jobs.is_empty()
    }

    /// Returns the offset before which the history drops its batches, once it grows by one `part`-th of what it has, or may
    /// have.
    pub(super) fn limit(&self, part: u64) -> u64 {
        let has_forgotten = self.oldest.offset > self.begin;
        let has = self.head.saturating_sub(self.oldest.offset);
        let by_what_it_has = if has_forgotten { self.oldest.offset + has / part } else { 0 };
        let by_events = self.head.saturating_sub(self.depth - self.depth / part);
        // A stopped Broadcaster publishes no more, although its history may continue.
        self.aged.max(by_what_it_has).max(by_events).min(self.head)
    }

    /// Returns the next readers, from the slot with this id on; an empty list at their end.
    pub(super) fn readers_from(&self, id: u64) -> Vec<SlotRef<F>> {
        self.readers.range(id..).take(READERS_PER_LOCK).map(|(_, reader)| reader.clone()).collect()
    }

    /// Returns some of the batches after an offset: an empty list if there are none yet, `None` if they are no longer kept.
    pub(super) fn after(&self, offset: u64) -> Option<Vec<Arc<Published>>> {
        if offset >= self.head {
            return Some(Vec::new());
        }
        let at = self.published.partition_point(|published| published.end.offset <= offset);
        self.published.get(at).filter(|next| next.first <= offset)?;
        Some(self.published.range(at..).take(CYCLES_PER_LOCK).cloned().collect())
    }

    /// Counts the batches that the history has dropped, and drops the oldest of them beyond a bound.
    pub(super) fn pass(&mut self, bound: usize, forgotten: &mut VecDeque<Arc<Published>>) {
        while let Some(next) = self.published.get(self.passed)
            && next.end.offset <= self.oldest.offset
        {
            (self.passed, self.passed_size) = (self.passed + 1, self.passed_size + next.size);
        }
        while self.passed_size > bound {
            forgotten.extend(self.drop_first());
        }
    }

    /// Drops the batches before an offset.
    pub(super) fn drop_before(&mut self, offset: u64) -> VecDeque<Arc<Published>> {
        let mut forgotten = VecDeque::new();
        while self.published.front().is_some_and(|first| first.end.offset <= offset) {
            forgotten.extend(self.drop_first());
        }
        self.published.shrink_to(2 * self.published.len() + CYCLES_PER_LOCK);
        forgotten
    }

    fn drop_first(&mut self) -> Option<Arc<Published>> {
        let first = self.published.pop_front()?;
        if self.passed > 0 {
            (self.passed, self.passed_size) = (self.passed - 1, self.passed_size - first.size);
        }
        Some(first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{census::Kind, model::ResourceVersion, watch::Deliveries};

    fn reached(offset: u64) -> HistoryPosition {
        HistoryPosition { version: ResourceVersion::decimal(offset.into()), offset }
    }

    /// Returns a state that began at 1,000, may have 100 changes, and has its head at `head`.
    fn state(head: u64) -> State<Deliveries> {
        State { head, ..State::new(&reached(1000), 100) }
    }

    #[tokio::test]
    async fn the_next_batches_to_be_dropped_are_a_part_of_the_history_or_of_its_bound() {
        assert_eq!([1000, 1074, 1075, 1076, 1100].map(|head| state(head).limit(4)), [925, 999, 1000, 1001, 1025]);
        assert_eq!([1000, 1100].map(|head| state(head).limit(2)), [950, 1050]);
        // The history has dropped something: because of its size, as it may have more events.
        let forgotten = State { oldest: reached(1040), ..state(1060) };
        assert_eq!((forgotten.limit(4), forgotten.limit(2)), (1045, 1050));
        let nothing = State { oldest: reached(1000), ..state(1060) };
        assert_eq!(nothing.limit(4), 985);
        // By its age; and never past the head.
        assert_eq!(State { aged: 1050, ..state(1060) }.limit(4), 1050);
        assert_eq!(State { aged: 2000, ..state(1060) }.limit(4), 1060);
    }

    #[tokio::test]
    async fn batches_that_the_history_has_dropped_are_kept_up_to_a_bound() {
        let mut state = state(1010);
        for first in 1000..1010 {
            let alive = Alive::new(Kind::Merging, 0);
            let (end, at) = (reached(first + 1), Instant::now());
            state.published.push_back(Arc::new(Published { batches: vec![], first, end, size: 7, at, _alive: alive }));
        }
        state.oldest = reached(1004);
        let mut forgotten = VecDeque::new();
        state.pass(4 * 7, &mut forgotten);
        assert_eq!((state.passed, forgotten.len()), (4, 0), "just as much as may be kept");
        state.pass(3 * 7, &mut forgotten);
        assert_eq!((state.passed, forgotten.len(), state.published.len()), (3, 1, 9));
        state.oldest = reached(1007);
        state.pass(3 * 7, &mut forgotten);
        assert_eq!(
            (state.passed, forgotten.len(), state.published.len()),
            (3, 4, 6),
            "of what was forgotten nothing counts"
        );
        assert_eq!(state.drop_before(1008).len(), 4);
        assert_eq!((state.passed, state.published.len()), (0, 2));
    }
}
