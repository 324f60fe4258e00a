//! Batches that were published, as far as readers need them, and the work to be done for readers.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use tokio::time::Instant;

use super::Reader;
use crate::{
    census::Alive,
    model::{Batch, Reached},
    watch::Frame,
};

/// State of a [`Merger`](super::Merger), under its lock.
#[derive(Debug)]
pub(super) struct State<F: Frame> {
    /// Without holes, as long as there is a group.
    pub(super) published: VecDeque<Arc<Published>>,
    /// The offset after all that was published.
    pub(super) head: u64,
    /// The oldest place that the history has, and the one where it began.
    pub(super) oldest: Reached,
    begin: u64,
    /// The events that it has at most.
    pub(super) depth: u64,
    /// The number of those that the history has forgotten, and their size.
    pub(super) passed: usize,
    passed_size: usize,
    /// The offset before which what was published is nearly as old as a history may be.
    pub(super) aged: u64,
    pub(super) readers: HashMap<u64, Reader<F>>,
    /// Those to be merged for, and those of which something is about to be published.
    pub(super) jobs: VecDeque<Reader<F>>,
    pub(super) behind: Vec<Reader<F>>,
    /// The readers are to be looked at.
    pub(super) looks: bool,
    /// No reader that has something to merge, and is not among the jobs, needs what lies before this.
    pub(super) low: u64,
}

/// The batches of one wake.
#[derive(Debug)]
pub(super) struct Published {
    pub(super) batches: Vec<Arc<Batch>>,
    /// The offset of its first change.
    pub(super) first: u64,
    /// The place that is reached with it.
    pub(super) end: Reached,
    pub(super) size: usize,
    pub(super) at: Instant,
    pub(super) _alive: Alive,
}

/// Wakes that are looked at before the lock is taken again.
const AT_ONCE: usize = 64;
/// A reader is merged for when the history has come as near to what it needs as this part of its depth, or of its age.
pub(super) const NEAR: u64 = 4;

// === impl State ===

impl<F: Frame> State<F> {
    pub(super) fn new(reached: &Reached, depth: u64) -> Self {
        Self {
            published: VecDeque::new(),
            head: reached.offset,
            oldest: reached.clone(),
            begin: reached.offset,
            depth,
            passed: 0,
            passed_size: 0,
            aged: 0,
            readers: HashMap::new(),
            jobs: VecDeque::new(),
            behind: Vec::new(),
            looks: false,
            low: reached.offset,
        }
    }

    /// Returns whether there is something to do. The readers are looked at when the history has come near to what one of them
    /// needs.
    pub(super) fn has_work(&mut self) -> bool {
        self.looks |= self.low < self.limit(NEAR);
        self.looks || !self.jobs.is_empty()
    }

    /// Returns the offset before which the history forgets when so much of what it has, or may have, has come.
    pub(super) fn limit(&self, part: u64) -> u64 {
        let has_forgotten = self.oldest.offset > self.begin;
        let has = self.head.saturating_sub(self.oldest.offset);
        let by_what_it_has = if has_forgotten { self.oldest.offset + has / part } else { 0 };
        let by_events = self.head.saturating_sub(self.depth - self.depth / part);
        // The history goes on without groups, when those of readers that do not read have ended.
        self.aged.max(by_what_it_has).max(by_events).min(self.head)
    }

    /// Returns some of what comes at an offset: nothing if there is nothing yet, `None` if it is not there any more.
    pub(super) fn after(&self, offset: u64) -> Option<Vec<Arc<Published>>> {
        if offset >= self.head {
            return Some(Vec::new());
        }
        let at = self.published.partition_point(|published| published.end.offset <= offset);
        self.published.get(at).filter(|next| next.first <= offset)?;
        Some(self.published.range(at..).take(AT_ONCE).cloned().collect())
    }

    /// Passes what the history has forgotten, and forgets the first of it beyond a bound.
    pub(super) fn pass(&mut self, bound: usize, forgotten: &mut VecDeque<Arc<Published>>) {
        while let Some(next) = self.published.get(self.passed)
            && next.end.offset <= self.oldest.offset
        {
            (self.passed, self.passed_size) = (self.passed + 1, self.passed_size + next.size);
        }
        while self.passed_size > bound {
            forgotten.extend(self.forget_first());
        }
    }

    /// Forgets what lies before an offset.
    pub(super) fn forget_before(&mut self, offset: u64) -> VecDeque<Arc<Published>> {
        let mut forgotten = VecDeque::new();
        while self.published.front().is_some_and(|first| first.end.offset <= offset) {
            forgotten.extend(self.forget_first());
        }
        self.published.shrink_to(2 * self.published.len() + AT_ONCE);
        forgotten
    }

    fn forget_first(&mut self) -> Option<Arc<Published>> {
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

    fn reached(offset: u64) -> Reached {
        Reached { version: ResourceVersion::decimal(offset.into()), offset }
    }

    /// Began at 1,000 and may have 100 changes, and so much has come.
    fn state(head: u64) -> State<Deliveries> {
        State { head, ..State::new(&reached(1000), 100) }
    }

    #[tokio::test]
    async fn what_is_forgotten_next_is_a_part_of_what_a_history_may_have_or_has() {
        assert_eq!([1000, 1074, 1075, 1076, 1100].map(|head| state(head).limit(4)), [925, 999, 1000, 1001, 1025]);
        assert_eq!([1000, 1100].map(|head| state(head).limit(2)), [950, 1050]);
        // It has forgotten something: by its size, as it may have more events.
        let forgotten = State { oldest: reached(1040), ..state(1060) };
        assert_eq!((forgotten.limit(4), forgotten.limit(2)), (1045, 1050));
        let nothing = State { oldest: reached(1000), ..state(1060) };
        assert_eq!(nothing.limit(4), 985);
        // By its age; and nothing that has not come.
        assert_eq!(State { aged: 1050, ..state(1060) }.limit(4), 1050);
        assert_eq!(State { aged: 2000, ..state(1060) }.limit(4), 1060);
    }

    #[tokio::test]
    async fn of_what_the_history_has_forgotten_a_bound_is_kept() {
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
        assert_eq!(state.forget_before(1008).len(), 4);
        assert_eq!((state.passed, state.published.len()), (0, 2));
    }
}
