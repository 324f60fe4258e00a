//! What happened to a resource lately: which versions a watch can go on from, and what came after them.
//!
//! Written by the informer, batch by batch; read when a watch resumes. It survives relists, so watchers that were connected
//! before an upstream's restart resume from before it. Invariants:
//!
//! - Bounded by age, events and bytes; batches are evicted whole. Only age evicts the newest batch: a relist may be larger
//!   than all bounds.
//! - All that came at one version is found and evicted together, and an open version, to which more may come, is kept.
//! - Changes at a version that was complete before come again for whoever resumes from it: nobody knows who has them.
//! - Changes above the version that was complete when they came come again for whoever resumes from below them. They are kept
//!   until they are part of a complete version.
//! - Between the start and the end of a relist nobody knows what happened (invariant 5): an object that was created and
//!   deleted there is in neither state. A version strictly in between is expired, even inside the window.

use std::{collections::VecDeque, sync::Arc};

use tokio::time::Instant;

use crate::{
    census::{Alive, Kind},
    model::{Batch, Cause, Change, Object, Reached, ResourceVersion},
    watch::Retention,
};

/// The recent batches of one resource.
#[derive(Debug)]
pub struct History {
    bounds: Retention,
    batches: VecDeque<Recorded>,
    /// The oldest place that can be resumed from.
    oldest: Reached,
    /// The newest place that can be resumed from.
    current: Reached,
    /// The newest version, of which more may come.
    applied: ResourceVersion,
    /// Batches with changes that were [ahead](Batch::ahead), by the offset of their first change, and how far. Only those that
    /// went further than all before them, so that both increase.
    ahead: VecDeque<(u64, ResourceVersion)>,
    /// The last relist without changes that was forgotten: who has reached its offset may not have passed it.
    forgotten_relist: Option<Reached>,
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
    /// There was a relist before the first batch, of which nothing is left.
    pub is_after_gap: bool,
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
    _alive: Alive,
}

#[derive(Debug)]
enum What {
    /// One object was added or modified: what nearly all batches are. The version is the object's.
    Upsert { old: Option<Arc<Object>>, new: Arc<Object> },
    /// Anything else.
    Batch(Arc<Batch>),
}

/// What a change costs besides the body of its old state, which nobody else keeps: the record, two references, the envelope.
pub(super) const CHANGE_BYTES: usize = 256;
/// A backlog ends after so many events or bytes of bodies, with the batch that exceeds them: what a client is given at a
/// time, and pins meanwhile.
const BACKLOG_EVENTS: usize = 1024;
const BACKLOG_BYTES: usize = 1 << 20;

// === impl History ===

impl History {
    /// An empty history that begins here.
    pub fn new(bounds: Retention, begin: Reached) -> Self {
        let applied = begin.version.clone();
        Self {
            bounds,
            batches: VecDeque::new(),
            oldest: begin.clone(),
            current: begin,
            applied,
            ahead: VecDeque::new(),
            forgotten_relist: None,
            events: 0,
            bytes: 0,
        }
    }

    /// The oldest version that can be resumed from.
    pub fn oldest(&self) -> &ResourceVersion {
        &self.oldest.version
    }

    /// The place before everything that is kept.
    pub fn begin(&self) -> &Reached {
        &self.oldest
    }

    /// The newest place that can be resumed from.
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
        self.current.version.clone_from(batch.safe());
        self.applied.clone_from(&batch.after);
        // Of a relist without changes its gap matters.
        if batch.changes.is_empty() && !(batch.is_relist && batch.before != batch.after) {
            return;
        }
        if let Some(ahead) = batch.ahead()
            && self.ahead.back().is_none_or(|(_, last)| last < ahead)
        {
            self.ahead.push_back((self.current.offset, ahead.clone()));
        }
        let what = What::new(batch);
        let alive = Alive::new(Kind::Record, what.bytes());
        let recorded = Recorded { at: now, offset: self.current.offset, what, _alive: alive };
        self.current.offset = recorded.end();
        self.events += recorded.what.events();
        self.bytes += recorded.what.bytes();
        self.batches.push_back(recorded);
        self.forget_old(now);
    }

    /// Forgets the oldest batches past the bounds. To be called from time to time: a quiet resource records nothing.
    pub fn forget_old(&mut self, now: Instant) {
        while let (Some(oldest), Some(newest)) = (self.batches.front(), self.batches.back()) {
            let is_newest = oldest.what.after() == newest.what.after();
            // More may come at it, or whoever resumes from it gets it again.
            let has_to_stay = self.current.version != self.applied || newest.what.is_late();
            let is_needed = is_newest && *newest.what.after() == self.applied && has_to_stay;
            if is_needed {
                break;
            }
            let mut version = oldest.what.after().clone();
            let count = self.batches.partition_point(|recorded| *recorded.what.after() <= version);
            let end = self.batches[count - 1].end();
            let ahead = self.ahead.partition_point(|(offset, _)| *offset < end);
            let ahead_of = ahead.checked_sub(1).map(|last| &self.ahead[last].1);
            if ahead_of.is_some_and(|ahead| *ahead > self.current.version) {
                break;
            }
            let is_old = now.saturating_duration_since(oldest.at) > self.bounds.age;
            let is_over = self.events > self.bounds.events || self.bytes > self.bounds.size;
            if !is_old && (!is_over || is_newest) {
                break;
            }
            for recorded in self.batches.drain(..count) {
                self.events -= recorded.what.events();
                self.bytes -= recorded.what.bytes();
                self.oldest.offset = recorded.end();
                if recorded.what.events() == 0 {
                    let version = recorded.what.after().clone();
                    self.forgotten_relist = Some(Reached { version, offset: recorded.offset });
                }
                if recorded.what.is_late() {
                    version = recorded.what.after().next();
                }
            }
            let ahead_of = self.ahead.drain(..ahead).next_back().map(|(_, ahead)| ahead);
            for passed in ahead_of.into_iter().chain([self.oldest.version.clone()]) {
                version = if passed > version { passed } else { version };
            }
            // A version that only a relist has closed may be incomplete without it.
            let relist = self.batches.front().and_then(|next| next.what.relist_from_before(&version));
            self.oldest.version = relist.map_or(version, |relist| relist.after.clone());
        }
    }

    /// Returns the changes after an offset: the continuation for a reader that has reached this place.
    pub fn after_offset(&self, reached: &Reached) -> Result<Backlog, NotInHistory> {
        let offset = reached.offset;
        // One that has a version may not have been told of the last changes of its batch.
        let is_kept = offset >= self.oldest.offset || reached.version >= self.oldest.version;
        if !is_kept {
            return Err(NotInHistory::Expired);
        }
        // A relist without changes was perhaps not passed yet.
        let first = self.batches.partition_point(|recorded| recorded.end() <= offset && recorded.offset < offset);
        let is_before = |relist: &Reached| relist.offset == offset && reached.version < relist.version;
        let is_after_gap = self.forgotten_relist.as_ref().is_some_and(is_before);
        Ok(Backlog { is_after_gap, ..self.backlog(first) })
    }

    /// What came strictly after `version`, from its beginning on.
    pub fn after(&self, version: &ResourceVersion) -> Result<Backlog, NotInHistory> {
        let (oldest, current) = (&self.oldest.version, &self.applied);
        if !version.same_lineage(current) {
            return Err(NotInHistory::Expired);
        }
        if *version > *current {
            return Err(NotInHistory::Future);
        }
        if *version < *oldest {
            return Err(NotInHistory::Expired);
        }
        let is_passed = |what: &What| what.after() < version || what.after() == version && !what.is_late();
        let first = self.batches.partition_point(|recorded| is_passed(&recorded.what));
        let in_gap = |recorded: &Recorded| recorded.what.relist_from_before(version).is_some();
        if self.batches.get(first).is_some_and(in_gap) {
            return Err(NotInHistory::Expired);
        }
        Ok(self.backlog(first.min(self.first_ahead_of(version))))
    }

    /// The place of the first batch with changes above `version`, though it came before that was complete. What the client
    /// has of those that follow is left out by [`Replay`](crate::watch::Replay).
    fn first_ahead_of(&self, version: &ResourceVersion) -> usize {
        let at = self.ahead.partition_point(|(_, ahead)| ahead <= version);
        let Some((offset, _)) = self.ahead.get(at) else { return self.batches.len() };
        self.batches.partition_point(|recorded| recorded.offset < *offset)
    }

    /// The changes above the version that can be resumed from, the last one first: those of an open version, and those that
    /// came before it was complete.
    pub fn ahead(&self) -> Vec<Change> {
        let current = &self.current.version;
        let open = self.batches.partition_point(|recorded| recorded.what.after() <= current);
        let batches = self.batches.range(open.min(self.first_ahead_of(current))..).rev();
        let ahead = batches.filter_map(|recorded| match &recorded.what {
            What::Batch(batch) if batch.is_open => Some(batch.changes.iter().rev()),
            _ => None,
        });
        ahead.flatten().filter(|change| change.version > *current).cloned().collect()
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
                if !batch.is_relist && !batch.is_open && version == new.version() && *version == batch.after =>
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
                Arc::new(Batch {
                    before: before.clone(),
                    after: version,
                    changes: vec![change],
                    is_relist: false,
                    is_open: false,
                })
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

    /// The relist that this is, if it begins before a version.
    fn relist_from_before(&self, version: &ResourceVersion) -> Option<&Batch> {
        match self {
            Self::Batch(batch) => Some(&**batch).filter(|batch| batch.is_relist && batch.before < *version),
            Self::Upsert { .. } => None,
        }
    }

    fn is_late(&self) -> bool {
        matches!(self, Self::Batch(batch) if batch.is_late())
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
pub(super) fn bytes_of(old: Option<&Arc<Object>>) -> usize {
    CHANGE_BYTES + old.map_or(0, |old| old.body().len())
}

#[cfg(test)]
mod tests;
