//! Recent changes of a resource: the versions that a watch can resume from, and the changes after them.
//!
//! The informer writes it, batch by batch; a watch that resumes reads it. It survives relists, so that watches opened before an
//! upstream's restart resume from before it. Invariants:
//!
//! - It is bounded by age, events and bytes, and evicts whole batches. Only age evicts the newest batch: a relist may be larger
//!   than all bounds.
//! - All batches at one version are found and evicted together. An open version, at which more changes may come, is kept.
//! - Changes at a version that had been complete are replayed to every watch that resumes from it: any client may lack them.
//! - Changes above the version that was complete when they came are replayed to every watch that resumes from below them. They
//!   are kept until they are part of a complete version.
//! - Changes between the start and the end of a relist are unknown: neither state has an object that was created and deleted in
//!   between. A version strictly in between is expired, even inside the window.

mod eviction;
mod past;
mod reader;
mod replaying;
mod wakeups;

use std::{collections::VecDeque, sync::Arc};

use tokio::time::Instant;

#[cfg(feature = "server")]
pub(crate) use self::wakeups::wake_task;
pub(super) use self::{past::Port, wakeups::wake_all};
pub use self::{
    past::{Past, PastGauge},
    reader::{LaneEvent, Read, Reader, SelectedBatch},
};
use super::Retention;
use crate::{
    census::{Alive, Kind},
    model::{Batch, Cause, Change, HistoryPosition, Object, ResourceVersion},
};

/// Recent batches of one resource.
#[derive(Debug)]
pub(crate) struct History {
    bounds: Retention,
    batches: VecDeque<RecordedBatch>,
    evicted: Evicted,
    /// Position before everything that is kept, and the version at which the batch before that has ended.
    begin: HistoryPosition,
    before: ResourceVersion,
    /// Oldest position that a watch can resume from.
    oldest: HistoryPosition,
    /// True if several changes were at its version, of which a client that has versions of objects only may lack some.
    oldest_has_several: bool,
    /// Time at which its version was applied.
    oldest_at: Instant,
    /// Newest position that a watch can resume from.
    current: HistoryPosition,
    /// Newest version; more changes may come at it.
    applied: ResourceVersion,
    /// Batches with changes that were [ahead](Batch::ahead): the offset of the first change, and the highest version. Only
    /// those that went further than all before them, so that both increase.
    ahead: VecDeque<(u64, ResourceVersion)>,
    /// Relists that are kept, and the last one before them: the offset of the first change of each, and the version after it.
    relists: VecDeque<HistoryPosition>,
    events: usize,
    bytes: usize,
}

/// First batches of a history, which were evicted and are kept for a queue.
#[derive(Debug)]
struct Evicted {
    batches: usize,
    events: usize,
    bytes: usize,
    /// Each eviction of which something is kept: the number of batches, and the position after them.
    evictions: VecDeque<(usize, HistoryPosition)>,
    /// Offset from which on some queue needs the changes: what is evicted is kept for it, and with that at most twice the bounds.
    needed: u64,
    /// The lowest one that was added since the needs of the queues are being read.
    also: u64,
    /// End of what must be counted or merged soon, because more is kept than the bounds; 0 if that is nothing.
    kept_until: u64,
}

/// Changes that a watch has missed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Batches in order; the first one may begin before the requested position.
    pub batches: Vec<Arc<Batch>>,
    /// Offset of the first change of the first batch.
    pub first: u64,
    /// True if there are more batches; the next call continues after the last one.
    pub has_more: bool,
}

/// Reason why a watch cannot resume from a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotInHistory {
    /// Version older than the window, in a relist's gap, or of another lineage.
    Expired,
    /// Version that this server has not reached yet.
    Future,
}

/// Batch with changes, and the last relist up to it.
type PastBatch = (Arc<Batch>, Option<HistoryPosition>);

/// One batch. There may be as many as there are objects, so it has no field that follows from the rest.
#[derive(Debug)]
struct RecordedBatch {
    at: Instant,
    /// Offset of the first change.
    offset: u64,
    what: CompactBatch,
    _alive: Alive,
}

#[derive(Debug)]
enum CompactBatch {
    /// One object was added or modified, as in nearly all batches. The version is the object's.
    Upsert { old: Option<Arc<Object>>, new: Arc<Object> },
    /// Any other batch.
    Batch(Arc<Batch>),
}

/// Cost of a change besides the body of its old state, which only the history keeps: the record, two references, the envelope.
const CHANGE_BYTES: usize = 256;
/// Bounds of one backlog, in events and in bytes of bodies. It ends with the batch that exceeds one of them: this much a client
/// gets at a time, and pins meanwhile.
const BACKLOG_EVENTS: usize = 1024;
const BACKLOG_BYTES: usize = 1 << 20;

// === impl History ===

impl History {
    /// Makes an empty history that begins at this position.
    pub(crate) fn new(bounds: Retention, begin: HistoryPosition) -> Self {
        let applied = begin.version.clone();
        Self {
            bounds,
            batches: VecDeque::new(),
            evicted: Evicted::default(),
            begin: begin.clone(),
            before: begin.version.clone(),
            oldest: begin.clone(),
            oldest_has_several: false,
            oldest_at: Instant::now(),
            current: begin,
            applied,
            ahead: VecDeque::new(),
            relists: VecDeque::new(),
            events: 0,
            bytes: 0,
        }
    }

    /// Reaches back to a version since which nothing has changed.
    pub(crate) fn reaching_back_to(mut self, unchanged_since: Option<ResourceVersion>) -> Self {
        let is_before = |version: &ResourceVersion| version.same_lineage(&self.applied) && *version < self.applied;
        if let Some(version) = unchanged_since.filter(is_before) {
            self.oldest.version = version;
        }
        self
    }

    /// Notes the objects of the state with which it begins.
    pub(crate) fn of_objects<'a>(mut self, objects: impl Iterator<Item = &'a Arc<Object>>) -> Self {
        self.oldest_has_several = objects.filter(|object| *object.version() == self.oldest.version).nth(1).is_some();
        self
    }

    /// Returns the first version since which nothing has changed up to the newest one to resume from.
    pub(crate) fn unchanged_since(&self) -> &ResourceVersion {
        let current = &self.current.version;
        let complete = self.batches.partition_point(|recorded| recorded.what.after() <= current);
        let last = complete.checked_sub(1).map(|last| &self.batches[last].what);
        if last.map_or(self.oldest_has_several, |last| last.is_late() || last.has_several()) {
            // Whoever has the version may lack its late changes, or others.
            return current;
        }
        let (changed, ahead) = (last.map(CompactBatch::after), self.ahead.back().map(|(_, ahead)| ahead));
        let changed = [changed, ahead].into_iter().flatten();
        let last = changed.fold(&self.oldest.version, |last, version| if version > last { version } else { last });
        if last < current { last } else { current }
    }

    /// Returns the oldest version that a watch can resume from.
    pub(crate) fn oldest(&self) -> &ResourceVersion {
        &self.oldest.version
    }

    /// Returns true if it begins at a version of which a client that has it from an object may lack other changes.
    #[cfg(feature = "kubernetes-api")]
    pub(crate) fn begins_inside(&self, version: &ResourceVersion) -> bool {
        self.oldest_has_several && *version == self.oldest.version
    }

    /// Returns the time at which the oldest version was applied here.
    pub(crate) fn oldest_at(&self) -> Instant {
        self.oldest_at
    }

    /// Returns the same with its offset.
    pub(crate) fn oldest_position(&self) -> &HistoryPosition {
        &self.oldest
    }

    /// Returns the newest position that a watch can resume from.
    pub(crate) fn current(&self) -> &HistoryPosition {
        &self.current
    }

    /// Returns the number of events that are kept.
    pub(crate) fn events(&self) -> usize {
        self.events
    }

    /// Returns the bytes that are kept: bodies that only the history needs, and the records.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds a batch that was applied.
    pub(crate) fn record(&mut self, batch: Arc<Batch>, now: Instant) {
        self.current.version.clone_from(batch.safe());
        self.applied.clone_from(&batch.after);
        // A relist without changes is recorded for its gap.
        if batch.changes.is_empty() && !batch.is_gap() {
            // It may complete an open version, for which others were kept.
            return self.evict_old(now);
        }
        if let Some(ahead) = batch.ahead()
            && self.ahead.back().is_none_or(|(_, last)| last < ahead)
        {
            self.ahead.push_back((self.current.offset, ahead.clone()));
        }
        if batch.is_gap() {
            self.relists.push_back(HistoryPosition { version: batch.after.clone(), ..self.current });
        }
        let before = self.batches.back().map_or(&self.before, |last| last.what.after());
        let what = CompactBatch::new(batch, before);
        let alive = Alive::new(Kind::Record, what.bytes());
        let recorded = RecordedBatch { at: now, offset: self.current.offset, what, _alive: alive };
        self.current.offset = recorded.end();
        self.events += recorded.what.events();
        self.bytes += recorded.what.bytes();
        self.batches.push_back(recorded);
        self.leave_gap();
        self.evict_old(now);
    }

    /// Returns the last relist before an offset, or at it; `None` if there is none.
    pub(crate) fn last_relist(&self, offset: u64) -> Option<&HistoryPosition> {
        self.relists.iter().rev().find(|relist| relist.offset <= offset)
    }

    /// Returns the batches with changes from an offset on, at which one begins, up to another one at which one ends, but at most so many changes and at
    /// least one batch; each with the offset of the last relist up to it. `None` if they are no longer kept.
    pub(crate) fn read(&self, from: u64, to: u64, most: usize) -> Option<Vec<PastBatch>> {
        if from < self.begin.offset {
            return None;
        }
        let first = self.batches.partition_point(|recorded| recorded.end() <= from);
        let (mut batches, mut changes) = (Vec::new(), 0);
        let mut before = first.checked_sub(1).map_or(&self.before, |last| self.batches[last].what.after());
        for recorded in self.batches.range(first..).take_while(|recorded| recorded.end() <= to) {
            if changes >= most {
                break;
            }
            let events = recorded.what.events();
            if events > 0 {
                batches.push((recorded.what.batch(before), self.last_relist(recorded.offset).cloned()));
            }
            changes += events;
            before = recorded.what.after();
        }
        Some(batches)
    }

    /// Returns the changes after an offset, for a reader that has reached this position.
    pub(crate) fn after_offset(&self, reached: &HistoryPosition) -> Result<Backlog, NotInHistory> {
        let offset = reached.offset;
        // A reader at this version may lack the last changes of its batch.
        let is_kept = offset >= self.oldest.offset || reached.version >= self.oldest.version;
        if !is_kept {
            return Err(NotInHistory::Expired);
        }
        // The reader may not have passed a relist without changes yet.
        let first = self.batches.partition_point(|recorded| recorded.end() <= offset && recorded.offset < offset);
        Ok(self.backlog(first))
    }

    /// Returns the changes strictly after `version`, from the first of these batches on.
    #[cfg(any(test, feature = "kubernetes-api"))]
    pub(crate) fn after(&self, version: &ResourceVersion) -> Result<Backlog, NotInHistory> {
        Ok(self.backlog(self.first_after(version)?))
    }

    /// Returns the version before the relist that ends at a version, if there is one.
    #[cfg(feature = "kubernetes-api")]
    pub(crate) fn before_relist(&self, version: &ResourceVersion) -> Option<ResourceVersion> {
        let first = self.batches.partition_point(|recorded| recorded.what.after() < version);
        let relist = self.batches.get(first)?.what.relist_from_before(version)?;
        (relist.after == *version).then(|| relist.before.clone())
    }

    /// Returns the offset from which a client continues that has everything up to a version; it may be inside of what it has.
    pub(crate) fn position_after(&self, version: &ResourceVersion) -> Result<u64, NotInHistory> {
        let first = self.first_after(version)?;
        Ok(self.batches.get(first).map_or(self.current.offset, |recorded| recorded.offset))
    }

    /// Returns the offset from which on [`Self::read`] has all changes that the state at a complete version lacks, beside others.
    pub(crate) fn offset_after(&self, version: &ResourceVersion) -> Result<u64, NotInHistory> {
        let offset = self.position_after(version)?;
        if *version > self.current.version { Err(NotInHistory::Future) } else { Ok(offset) }
    }

    /// Returns the index of the first batch with changes strictly after `version`.
    fn first_after(&self, version: &ResourceVersion) -> Result<usize, NotInHistory> {
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
        let first = self.first_after_passed(version);
        let in_gap = |recorded: &RecordedBatch| recorded.what.relist_from_before(version).is_some();
        if self.batches.get(first).is_some_and(in_gap) {
            return Err(NotInHistory::Expired);
        }
        Ok(first.min(self.first_ahead_of(version)))
    }

    /// Returns the index of the first batch that a client with everything up to `version` may lack.
    fn first_after_passed(&self, version: &ResourceVersion) -> usize {
        let is_passed = |what: &CompactBatch| what.after() < version || what.after() == version && !what.is_late();
        self.batches.partition_point(|recorded| is_passed(&recorded.what))
    }

    /// Returns the index of the first batch with changes above `version` that came before `version` was complete.
    /// [`Replay`](crate::watch::Replay) leaves out the following changes that the client has.
    fn first_ahead_of(&self, version: &ResourceVersion) -> usize {
        let at = self.ahead.partition_point(|(_, ahead)| ahead <= version);
        let Some((offset, _)) = self.ahead.get(at) else { return self.batches.len() };
        self.batches.partition_point(|recorded| recorded.offset < *offset)
    }

    /// Returns the changes above the version to resume from, the last one first: those of an open version, and those that came
    /// before the version was complete.
    pub(crate) fn ahead(&self) -> Vec<Change> {
        let current = &self.current.version;
        let open = self.batches.partition_point(|recorded| recorded.what.after() <= current);
        let batches = self.batches.range(open.min(self.first_ahead_of(current))..).rev();
        let ahead = batches.filter_map(|recorded| match &recorded.what {
            CompactBatch::Batch(batch) if batch.is_open => Some(batch.changes.iter().rev()),
            _ => None,
        });
        ahead.flatten().filter(|change| change.version > *current).cloned().collect()
    }

    /// Returns the batches from this index on, up to the bounds.
    fn backlog(&self, first: usize) -> Backlog {
        let offset = self.batches.get(first).map_or(self.current.offset, |recorded| recorded.offset);
        let mut backlog = Backlog { first: offset, ..Backlog::default() };
        let (mut events, mut bytes) = (0, 0);
        let mut before = first.checked_sub(1).map_or(&self.before, |last| self.batches[last].what.after());
        for RecordedBatch { what, .. } in self.batches.range(first..) {
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

// === impl Evicted ===

impl Default for Evicted {
    fn default() -> Self {
        let (needed, also) = (u64::MAX, u64::MAX);
        Self { batches: 0, events: 0, bytes: 0, evictions: VecDeque::new(), needed, also, kept_until: 0 }
    }
}

// === impl RecordedBatch ===

impl RecordedBatch {
    /// Returns the offset after the last change.
    fn end(&self) -> u64 {
        self.offset + self.what.events() as u64
    }
}

// === impl CompactBatch ===

impl CompactBatch {
    /// Returns a batch that follows the end of another one.
    fn new(batch: Arc<Batch>, before: &ResourceVersion) -> Self {
        let follows = !batch.is_relist && !batch.is_open && !batch.is_late() && batch.before == *before;
        match &batch.changes[..] {
            [Change { old, new: Some(new), version, cause: Cause::Change, .. }]
                if follows && version == new.version() && *version == batch.after =>
            {
                Self::Upsert { old: old.clone(), new: Arc::clone(new) }
            }
            _ => Self::Batch(batch),
        }
    }

    /// Returns the batch as it was recorded; one of a single change begins at the end of the previous batch.
    fn batch(&self, before: &ResourceVersion) -> Arc<Batch> {
        match self {
            Self::Upsert { old, new } => {
                let (old, version) = (old.clone(), new.version().clone());
                let (new, cause) = (Some(Arc::clone(new)), Cause::Change);
                let change = Change { old, new, version: version.clone(), cause, index_values: None };
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

    /// Returns the batch if it is a relist that begins before a version.
    fn relist_from_before(&self, version: &ResourceVersion) -> Option<&Batch> {
        match self {
            Self::Batch(batch) => Some(&**batch).filter(|batch| batch.is_relist && batch.before < *version),
            Self::Upsert { .. } => None,
        }
    }

    fn is_late(&self) -> bool {
        matches!(self, Self::Batch(batch) if batch.is_late())
    }

    /// Returns true if a client may have one of several changes, and with it the version after them.
    fn has_several(&self) -> bool {
        let Self::Batch(batch) = self else { return false };
        let [.., last_but_one, _] = &batch.changes[..] else { return false };
        !batch.is_open && (batch.is_relist || last_but_one.version == batch.after)
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

/// Returns the cost of a change with this old state.
pub(crate) fn bytes_of(old: Option<&Arc<Object>>) -> usize {
    CHANGE_BYTES + old.map_or(0, |old| old.body().len())
}

#[cfg(test)]
mod tests;
