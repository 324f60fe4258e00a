//! One history: its batches, the states after them, and how far back a server keeps them.

use std::{rc::Rc, time::Duration};

use super::{Batch, Bounds, Change, Epoch, SERVERS, State};
use crate::checker::{record::Moment, selection::Selection};

impl Batch {
    /// Returns the bytes that a history is charged for the batch: the states that it replaced, which nothing else holds, and some
    /// bytes for each change.
    fn bytes(&self) -> usize {
        const OF_EACH: usize = 256;
        self.changes.iter().map(|change| OF_EACH + change.old.as_ref().map_or(0, |old| old.body.len())).sum()
    }

    pub(super) fn new(before: u64, after: u64, changes: Vec<Change>) -> Self {
        Self { before, after, changes, is_relist: false, is_open: false, applied_at: [None; SERVERS] }
    }

    /// Returns the version from which a client resumes that has the whole batch.
    pub(crate) fn safe(&self) -> u64 {
        if self.is_open { self.before } else { self.after }
    }

    /// Returns true for a relist that moved the version.
    pub(crate) fn is_gap(&self) -> bool {
        self.is_relist && self.before != self.after
    }

    /// Returns true if it came at a version that was already complete.
    pub(crate) fn is_late(&self) -> bool {
        self.before == self.after && !self.changes.is_empty()
    }

    /// Returns true if a client may have its version, and lack some of its changes.
    fn has_several(&self) -> bool {
        let [.., last_but_one, _] = &self.changes[..] else { return false };
        !self.is_open && (self.is_relist || last_but_one.version == self.after)
    }
}

impl Epoch {
    /// Returns the number of batches that a client with everything up to a version has. Late changes may be missing.
    pub(super) fn passed(&self, version: u64) -> usize {
        let is_passed = |batch: &Batch| batch.after < version || batch.after == version && !batch.is_late();
        self.batches.iter().take_while(|batch| is_passed(batch)).count()
    }

    /// Returns the last version that is complete after so many batches.
    pub(crate) fn safe_at(&self, batches: usize) -> u64 {
        batches.checked_sub(1).map_or(self.start, |last| self.batches[last].safe())
    }

    /// Returns the state after so many batches, restricted to a selection.
    pub(crate) fn state_at(&self, batches: usize, selection: Selection) -> State {
        let mut state = self.state.clone();
        for change in self.batches[..batches].iter().flat_map(|batch| &batch.changes) {
            match (&change.old, &change.new) {
                (_, Some(new)) => drop(state.insert(new.pod.key, Rc::clone(new))),
                (Some(old), None) => drop(state.remove(&old.pod.key)),
                (None, None) => {}
            }
        }
        state.retain(|_, held| selection.matches(&held.pod));
        state
    }

    /// Records that a server has applied so many batches.
    pub(super) fn applied(&mut self, server: usize, batches: usize, now: Duration) {
        let applied = &mut self.batches[..batches];
        let before = applied.iter().take_while(|batch| batch.applied_at[server].is_some()).count();
        applied[before..].iter_mut().for_each(|batch| batch.applied_at[server] = Some((now, before)));
    }

    /// Returns the bytes that a server is charged for the batches of a range, with those before them that it may have gathered in one
    /// step with the first, and so discards together with it.
    pub(super) fn bytes_between(&self, server: usize, start: usize, end: usize) -> usize {
        let Some(first) = self.batches[..end].get(start) else { return 0 };
        let start = first.applied_at[server].map_or(start, |(_, before)| before);
        self.batches[start..end].iter().map(Batch::bytes).sum()
    }

    /// Returns the time since a server has had a version complete.
    fn complete_for(&self, version: u64, moment: &Moment) -> Duration {
        let completing = self.batches[..moment.batches].iter().find(|batch| batch.safe() >= version);
        let completed_at = completing.and_then(|batch| batch.applied_at[moment.server]);
        completed_at.map_or(Duration::ZERO, |(at, _)| moment.at.saturating_sub(at))
    }

    /// Returns the oldest version that exact bounds keep, for a server that began at `start`, after the `first` batches. Batches
    /// of one version are discarded together; a version that may still get more is kept. What is too old is discarded at a `sweep`,
    /// which comes once in that time.
    pub(super) fn oldest(
        &self,
        bounds: Bounds,
        sweep: Duration,
        has_lineage: bool,
        (start, first): (u64, usize),
        moment: &Moment,
    ) -> u64 {
        let is_kept = |batch: &&Batch| !batch.changes.is_empty() || batch.is_gap();
        let kept: Vec<&Batch> =
            self.batches[first.min(moment.batches)..moment.batches].iter().filter(is_kept).collect();
        let mut oldest = start;
        let mut rest = &kept[..];
        while let Some(batch) = rest.first() {
            let newer: usize = rest.iter().map(|batch| batch.changes.len()).sum();
            let bytes: usize = rest.iter().map(|batch| batch.bytes()).sum();
            let applied_at = batch.applied_at[moment.server];
            let age = applied_at.map_or(Duration::ZERO, |(at, _)| moment.at.saturating_sub(at));
            let (same, later) = rest.split_at(rest.iter().take_while(|other| other.after == batch.after).count());
            rest = later;
            let is_newest = rest.is_empty();
            let is_swept = sweep.is_zero() || self.complete_for(batch.after, moment) > sweep;
            let is_old = age > bounds.age + sweep && is_swept;
            // A client of the Kubernetes API may have a version, and not all of its changes: until a later one, there is no other.
            let is_partial = !has_lineage && batch.after >= moment.safe && same.iter().any(|batch| batch.has_several());
            let is_needed = is_partial || is_newest && batch.after > moment.safe;
            // The newest batch is dropped for its age only, however large it is.
            if !is_needed && (is_old || (!is_newest && (newer > bounds.events || bytes > bounds.bytes))) {
                oldest = batch.after;
            }
        }
        oldest
    }

    /// Returns true if the version is strictly inside a relist: an object that was created and deleted there is in neither state.
    pub(super) fn is_in_gap(&self, version: u64, batches: usize) -> bool {
        let is_around = |batch: &Batch| batch.is_relist && batch.before < version && version < batch.after;
        self.batches[..batches].iter().any(is_around)
    }
}
