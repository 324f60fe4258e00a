//! What happened to a resource lately: which versions a watch can go on from, and what came after them.
//!
//! Written by the informer, batch by batch; read when a watch resumes. It survives relists, so watchers that were connected
//! before an upstream's restart resume from before it. Invariants:
//!
//! - Bounded by age, events and bytes; batches are evicted whole. Only age evicts the newest batch: a relist may be larger
//!   than all bounds.
//! - Between the start and the end of a relist nobody knows what happened (invariant 5): an object that was created and
//!   deleted there is in neither state. A version strictly in between is expired, even inside the window.

use std::{collections::VecDeque, sync::Arc};

use tokio::time::Instant;

use crate::{
    model::{Batch, Cause, Change, Object, Reached, ResourceVersion},
    planted::planted,
    watch::Retention,
};

/// The recent batches of one resource.
#[derive(Debug)]
pub struct History {
    bounds: Retention,
    batches: VecDeque<Recorded>,
    /// The oldest place that can be resumed from.
    oldest: Reached,
    current: Reached,
    events: usize,
    bytes: usize,
}

/// What a watch has missed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backlog {
    /// In order; the first may begin before the place that was asked for.
    pub batches: Vec<Arc<Batch>>,
    /// The offset of the first change of the first batch.
    pub first: u64,
    /// Whether there is more than these; the last one ends where to go on.
    pub has_more: bool,
}

/// Why a watch cannot go on from a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotInHistory {
    /// Older than the window, in a relist's gap, or of another lineage.
    Expired,
    /// The resource has not got there yet.
    Future,
}

/// One batch. There may be as many as there are objects, so that nothing is kept which follows from the rest.
#[derive(Debug)]
struct Recorded {
    at: Instant,
    /// Of its first change.
    offset: u64,
    what: What,
}

#[derive(Debug)]
enum What {
    /// One object was added or modified: what nearly all batches are. The version is the object's.
    Upsert { old: Option<Arc<Object>>, new: Arc<Object> },
    /// Anything else.
    Batch(Arc<Batch>),
}

/// What a change costs besides the body of its old state, which nobody else keeps: the record, two references, the envelope.
const CHANGE_BYTES: usize = 256;
/// A backlog ends after so many events or bytes of bodies, with the batch that exceeds them: what a client is given at a
/// time, and pins meanwhile.
const BACKLOG_EVENTS: usize = 1024;
const BACKLOG_BYTES: usize = 1 << 20;

// === impl History ===

impl History {
    /// An empty history that begins here.
    pub fn new(bounds: Retention, begin: Reached) -> Self {
        Self { bounds, batches: VecDeque::new(), oldest: begin.clone(), current: begin, events: 0, bytes: 0 }
    }

    /// The oldest version that can be resumed from.
    pub fn oldest(&self) -> &ResourceVersion {
        &self.oldest.version
    }

    /// The newest place.
    pub fn current(&self) -> &Reached {
        &self.current
    }

    /// How many events are kept.
    pub fn events(&self) -> usize {
        self.events
    }

    /// How many bytes are kept: bodies that nobody else needs, and the records.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a batch that was applied.
    pub fn record(&mut self, batch: Arc<Batch>, now: Instant) {
        self.current.version.clone_from(&batch.after);
        // Of a relist without changes its gap matters.
        if batch.changes.is_empty() && !(batch.is_relist && batch.before != batch.after) {
            return;
        }
        let recorded = Recorded { at: now, offset: self.current.offset, what: What::new(batch) };
        self.current.offset = recorded.end();
        self.events += recorded.what.events();
        self.bytes += recorded.what.bytes();
        self.batches.push_back(recorded);
        self.forget_old(now);
    }

    /// Forgets the oldest batches past the bounds. To be called from time to time: a quiet resource records nothing.
    pub fn forget_old(&mut self, now: Instant) {
        while let Some(oldest) = self.batches.front() {
            let is_old = now.saturating_duration_since(oldest.at) > self.bounds.age;
            let is_full = self.events == self.bounds.events && planted!(HistoryEvictsTooEarly);
            let is_over = self.events > self.bounds.events || self.bytes > self.bounds.size || is_full;
            if !is_old && (!is_over || self.batches.len() == 1) {
                break;
            }
            let (Recorded { what, .. }, end) = (oldest, oldest.end());
            if what.events() > 1 && planted!(HistoryEvictsHalfABatch) {
                self.lose_first_event();
                continue;
            }
            self.events -= what.events();
            self.bytes -= what.bytes();
            self.oldest = Reached { version: what.after().clone(), offset: end };
            self.batches.pop_front();
        }
    }

    /// What [`Bug::HistoryEvictsHalfABatch`](crate::planted::Bug) does.
    fn lose_first_event(&mut self) {
        let Some(Recorded { what: What::Batch(batch), .. }) = self.batches.front_mut() else { return };
        let lost = Arc::make_mut(batch).changes.remove(0);
        self.events -= 1;
        self.bytes -= bytes_of(lost.old.as_ref());
    }

    /// What came after the first changes, so many of them: the continuation for a reader that has reached this offset.
    pub fn after_offset(&self, offset: u64) -> Result<Backlog, NotInHistory> {
        if offset < self.oldest.offset {
            return Err(NotInHistory::Expired);
        }
        // A relist without changes was perhaps not passed yet.
        let first = self.batches.partition_point(|recorded| recorded.end() <= offset && recorded.offset < offset);
        Ok(self.backlog(first))
    }

    /// What came strictly after `version`, from its beginning on.
    pub fn after(&self, version: &ResourceVersion) -> Result<Backlog, NotInHistory> {
        let (oldest, current) = (&self.oldest.version, &self.current.version);
        if !version.same_lineage(current) && !planted!(LineageIsIgnored) {
            return Err(NotInHistory::Expired);
        }
        if *version > *current && planted!(FutureIsServed) {
            return Ok(self.backlog(self.batches.len()));
        }
        if *version > *current {
            return Err(NotInHistory::Future);
        }
        if *version == *oldest && planted!(ResumeRefusedAtTheOldest) {
            return Err(NotInHistory::Expired);
        }
        if *version < *oldest && !planted!(ResumeBeforeTheOldest) {
            return Err(NotInHistory::Expired);
        }
        let mut first = self.batches.partition_point(|recorded| recorded.what.after() <= version);
        let in_gap = |recorded: &Recorded| match &recorded.what {
            What::Upsert { .. } => false,
            What::Batch(batch) => batch.is_relist && batch.before < *version,
        };
        if self.batches.get(first).is_some_and(in_gap) && !planted!(ResumeInsideGap) {
            return Err(NotInHistory::Expired);
        }
        if first > 0 && planted!(ResumeTooEarly) {
            first -= 1;
        }
        if first < self.batches.len() && planted!(ResumeTooLate) {
            first += 1;
        }
        if planted!(ResumeFromNow) {
            first = self.batches.len();
        }
        Ok(self.backlog(first))
    }

    /// What was recorded from this place in the list on.
    fn backlog(&self, first: usize) -> Backlog {
        let offset = self.batches.get(first).map_or(self.current.offset, |recorded| recorded.offset);
        let mut backlog = Backlog { first: offset, ..Backlog::default() };
        let (mut events, mut bytes) = (0, 0);
        let mut before = first.checked_sub(1).map_or(&self.oldest.version, |last| self.batches[last].what.after());
        for Recorded { what, .. } in self.batches.range(first..) {
            if events >= BACKLOG_EVENTS || bytes >= BACKLOG_BYTES {
                backlog.has_more = true;
                break;
            }
            let batch = what.batch(before);
            events += batch.changes.len();
            bytes += batch.changes.iter().map(Change::weight).sum::<usize>();
            backlog.batches.push(batch);
            before = what.after();
        }
        backlog
    }
}

// === impl Recorded ===

impl Recorded {
    /// The offset after its last change.
    fn end(&self) -> u64 {
        self.offset + self.what.events() as u64
    }
}

// === impl What ===

impl What {
    fn new(batch: Arc<Batch>) -> Self {
        match &batch.changes[..] {
            [Change { old, new: Some(new), version, cause: Cause::Change }]
                if !batch.is_relist && version == new.version() && *version == batch.after =>
            {
                Self::Upsert { old: old.clone(), new: Arc::clone(new) }
            }
            _ => Self::Batch(batch),
        }
    }

    /// As it was recorded; one of a single change begins where the one before it ends.
    fn batch(&self, before: &ResourceVersion) -> Arc<Batch> {
        match self {
            Self::Upsert { old, new } => {
                let (old, version) = (old.clone(), new.version().clone());
                let change = Change { old, new: Some(Arc::clone(new)), version: version.clone(), cause: Cause::Change };
                Arc::new(Batch { before: before.clone(), after: version, changes: vec![change], is_relist: false })
            }
            Self::Batch(batch) => Arc::clone(batch),
        }
    }

    fn after(&self) -> &ResourceVersion {
        match self {
            Self::Upsert { new, .. } => new.version(),
            Self::Batch(batch) => &batch.after,
        }
    }

    fn events(&self) -> usize {
        match self {
            Self::Upsert { .. } => 1,
            Self::Batch(batch) => batch.changes.len(),
        }
    }

    fn bytes(&self) -> usize {
        match self {
            Self::Upsert { old, .. } => bytes_of(old.as_ref()),
            Self::Batch(batch) => batch.changes.iter().map(|change| bytes_of(change.old.as_ref())).sum(),
        }
    }
}

/// What a change of this old state costs.
fn bytes_of(old: Option<&Arc<Object>>) -> usize {
    CHANGE_BYTES + old.map_or(0, |old| old.body().len())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use proptest::{collection::vec, prelude::*};

    use super::*;

    const BOUNDS: Retention = Retention { events: 1000, size: 1 << 20, age: Duration::from_secs(300) };

    fn version(number: u128) -> ResourceVersion {
        ResourceVersion::decimal(number)
    }

    fn begin(number: u128) -> Reached {
        Reached { version: version(number), offset: 0 }
    }

    fn batch(before: u128, after: u128, changes: usize) -> Arc<Batch> {
        let object = |name: &str| Object::from_json(Bytes::from_static(b"{}"), name, version(after)).unwrap();
        let change = |at: usize| Change {
            old: Some(Arc::new(object(&at.to_string()))),
            new: Some(Arc::new(object(&at.to_string()))),
            version: version(after),
            cause: Cause::Change,
        };
        let changes = (0..changes).map(change).collect();
        Arc::new(Batch { before: version(before), after: version(after), changes, is_relist: false })
    }

    fn relist(before: u128, after: u128, changes: usize) -> Arc<Batch> {
        Arc::new(Batch { is_relist: true, ..Batch::clone(&batch(before, after, changes)) })
    }

    /// The versions that the batches after a version lead to.
    fn after(history: &History, number: u128) -> Result<Vec<u128>, NotInHistory> {
        let backlog = history.after(&version(number))?;
        assert!(!backlog.has_more);
        Ok(backlog.batches.iter().map(|batch| batch.after.number()).collect())
    }

    /// Invariant 5, and the boundaries of cacher `TestEvents` and `TestMarker`.
    #[tokio::test]
    async fn a_version_inside_a_relist_gap_is_expired_and_its_ends_are_not() {
        let now = Instant::now();
        let mut history = History::new(BOUNDS, begin(10));
        history.record(batch(10, 12, 1), now);
        history.record(relist(12, 20, 2), now);
        history.record(batch(20, 21, 1), now);
        assert_eq!(after(&history, 9), Err(NotInHistory::Expired), "older than the window");
        assert_eq!(after(&history, 10), Ok(vec![12, 20, 21]));
        assert_eq!(after(&history, 11), Ok(vec![12, 20, 21]), "the upstream's numbers have holes of their own");
        assert_eq!(after(&history, 12), Ok(vec![20, 21]), "the start of the gap");
        for inside in 13..20 {
            assert_eq!(after(&history, inside), Err(NotInHistory::Expired), "{inside}");
        }
        assert_eq!(after(&history, 20), Ok(vec![21]), "the end of the gap");
        assert_eq!(after(&history, 21), Ok(vec![]));
        assert_eq!(after(&history, 22), Err(NotInHistory::Future));
        let foreign = "abc.21".parse().unwrap();
        assert_eq!(history.after(&foreign), Err(NotInHistory::Expired), "another lineage");
    }

    /// A watch that was parked goes on with the batch that it was in.
    #[tokio::test]
    async fn an_offset_is_found_with_its_batch_until_that_is_evicted() {
        let now = Instant::now();
        let mut history =
            History::new(Retention { events: 6, ..BOUNDS }, Reached { version: version(10), offset: 100 });
        history.record(batch(10, 12, 1), now);
        history.record(batch(12, 13, 3), now);
        history.record(relist(13, 20, 0), now);
        history.record(batch(20, 21, 1), now);
        let after = |history: &History, offset| {
            let Backlog { batches, first, .. } = history.after_offset(offset)?;
            Ok((batches.iter().map(|batch| batch.after.number()).collect::<Vec<_>>(), first))
        };
        assert_eq!(after(&history, 99), Err(NotInHistory::Expired));
        assert_eq!(after(&history, 100), Ok((vec![12, 13, 20, 21], 100)));
        for inside in [101, 102, 103] {
            assert_eq!(after(&history, inside), Ok((vec![13, 20, 21], 101)), "{inside}");
        }
        assert_eq!(after(&history, 104), Ok((vec![20, 21], 104)), "perhaps the relist was not passed");
        assert_eq!(after(&history, 105), Ok((vec![], 105)));
        assert_eq!(history.current(), &Reached { version: version(21), offset: 105 });
        history.record(batch(21, 22, 2), now);
        assert_eq!(after(&history, 100), Err(NotInHistory::Expired));
        assert_eq!(after(&history, 101).unwrap().1, 101);
        history.record(batch(22, 23, 1), now);
        assert_eq!(after(&history, 103), Err(NotInHistory::Expired), "batches go whole");
        assert_eq!(after(&history, 104).unwrap().0, [20, 21, 22, 23]);
    }

    #[tokio::test]
    async fn a_relist_without_changes_leaves_its_gap_and_one_at_the_same_version_leaves_none() {
        let now = Instant::now();
        let mut history = History::new(BOUNDS, begin(10));
        history.record(relist(10, 10, 0), now);
        assert_eq!(after(&history, 10), Ok(vec![]));
        history.record(relist(10, 20, 0), now);
        assert_eq!(after(&history, 15), Err(NotInHistory::Expired));
        assert_eq!(after(&history, 10), Ok(vec![20]));
    }

    /// A bookmark moves the version on; what was seen before it can still be resumed from.
    #[tokio::test]
    async fn versions_that_nothing_happened_at_can_be_resumed_from() {
        let now = Instant::now();
        let mut history = History::new(BOUNDS, begin(10));
        history.record(batch(10, 77, 0), now);
        history.record(batch(77, 80, 1), now);
        for from in [10, 50, 77, 79] {
            assert_eq!(after(&history, from), Ok(vec![80]), "{from}");
        }
    }

    /// cacher `TestEvents` (a ring of 5), `TestEmptyWatchEventCache`; batches go whole.
    #[tokio::test]
    async fn the_oldest_batches_go_first_and_whole() {
        let now = Instant::now();
        let mut history = History::new(Retention { events: 5, ..BOUNDS }, begin(1));
        assert_eq!(after(&history, 1), Ok(vec![]));
        for at in 1..=4 {
            history.record(batch(at, at + 1, 2), now);
        }
        assert_eq!((history.oldest(), history.events()), (&version(3), 4));
        assert_eq!(after(&history, 2), Err(NotInHistory::Expired));
        assert_eq!(after(&history, 3), Ok(vec![4, 5]));
        history.record(batch(5, 6, 100), now);
        assert_eq!(after(&history, 5), Ok(vec![6]), "larger than the bound, and the newest");
        assert_eq!(after(&history, 4), Err(NotInHistory::Expired));
        history.record(batch(6, 7, 1), now);
        assert_eq!((history.oldest(), history.events()), (&version(6), 1), "no longer the newest");

        let mut history = History::new(Retention { size: 3 * CHANGE_BYTES, ..BOUNDS }, begin(1));
        for at in 1..=9 {
            history.record(batch(at, at + 1, 1), now);
        }
        assert!(history.bytes() <= 3 * CHANGE_BYTES && history.events() >= 2, "{}", history.bytes());
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_too_old_goes_even_when_nothing_happens() {
        let mut history = History::new(BOUNDS, begin(1));
        history.record(batch(1, 2, 1), Instant::now());
        tokio::time::advance(BOUNDS.age).await;
        history.forget_old(Instant::now());
        assert_eq!(after(&history, 1), Ok(vec![2]), "exactly at the bound it is kept");
        tokio::time::advance(Duration::from_millis(1)).await;
        history.forget_old(Instant::now());
        assert_eq!(after(&history, 1), Err(NotInHistory::Expired));
        assert_eq!(after(&history, 2), Ok(vec![]));
        assert_eq!((history.events(), history.bytes()), (0, 0));
    }

    #[tokio::test]
    async fn a_long_backlog_comes_in_parts() {
        let now = Instant::now();
        let mut history = History::new(Retention { events: 1 << 20, size: 1 << 30, ..BOUNDS }, begin(0));
        for at in 0..3000 {
            history.record(batch(at, at + 1, 1), now);
        }
        let (mut from, mut seen, mut parts) = (version(0), Vec::new(), 0);
        loop {
            let backlog = history.after(&from).unwrap();
            seen.extend(backlog.batches.iter().map(|batch| batch.after.number()));
            from = backlog.batches.last().unwrap().after.clone();
            parts += 1;
            if !backlog.has_more {
                break;
            }
        }
        assert_eq!(seen, (1..=3000).collect::<Vec<_>>());
        assert_eq!(parts, 3);
    }

    fn changes() -> impl Strategy<Value = (Vec<u8>, bool)> {
        (vec(0_u8..4, 0..3), any::<bool>())
    }

    proptest! {
        /// However they are kept, batches are told as they were recorded, and their bytes are given back.
        #[test]
        fn a_backlog_is_what_was_recorded(recorded in vec(changes(), 1..20), bound in 1_usize..30) {
            let object = |at: usize, name: usize| {
                let body = "x".repeat(at * 7);
                Arc::new(Object::from_json(format!("{body:?}"), &name.to_string(), version(at as u128)).unwrap())
            };
            let batches = recorded.iter().enumerate().map(|(at, (kinds, is_relist))| {
                let change = |(name, kind): (usize, &u8)| Change {
                    old: (*kind != 0).then(|| object(at, name)),
                    new: (*kind != 1).then(|| object(at + usize::from(*kind != 2), name)),
                    version: version(at as u128 + 1),
                    cause: if *is_relist { Cause::Inferred } else { Cause::Change },
                };
                let changes = kinds.iter().enumerate().map(change).collect();
                let (before, after) = (version(at as u128), version(at as u128 + 1));
                Arc::new(Batch { before, after, changes, is_relist: *is_relist })
            });
            let batches: Vec<_> = batches.collect();
            let now = Instant::now();
            let mut history = History::new(Retention { events: bound, ..BOUNDS }, begin(0));
            for batch in &batches {
                history.record(Arc::clone(batch), now);
            }
            let told = |batch: &&Arc<Batch>| !batch.changes.is_empty() || batch.is_relist;
            let kept: Vec<_> = batches.iter().filter(told).filter(|batch| batch.before >= *history.oldest()).collect();
            let backlog = history.after(&history.oldest().clone()).unwrap();
            // One of a single change begins where the one before it that was kept ends.
            prop_assert_eq!(backlog.batches.len(), kept.len());
            for (found, expected) in backlog.batches.iter().zip(&kept) {
                prop_assert_eq!((&found.after, &found.changes), (&expected.after, &expected.changes));
                prop_assert!(found.before <= expected.before);
            }
            history.forget_old(now + BOUNDS.age + BOUNDS.age);
            prop_assert_eq!((history.events(), history.bytes()), (0, 0));
        }
    }
}
