//! Adjacent events of a group in one arena, and the end of each.

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{Frame, encoding::Share};
use crate::{
    census::Alive,
    model::{HistoryPosition, ResourceVersion},
};

/// Adjacent events in one arena.
#[derive(Debug)]
pub(super) struct Run<F> {
    pub(super) first: u64,
    /// [`Log::head_size`](super::group::Log::head_size) before the first event.
    pub(super) size_before: u64,
    /// Publish cycle that published it; the retention counts by it.
    pub(super) cycle: u64,
    /// Time of its publication; in a deferred group, of its selection.
    pub(super) at: Instant,
    /// Offset of its first change ([`HistoryPosition::offset`]).
    pub(super) offset: u64,
    /// [`Log::suppressed`](super::group::Log::suppressed) before its events.
    pub(super) suppressed: u32,
    /// The same after its events, with all changes up to the version of the last one.
    pub(super) passed: u32,
    pub(super) frame: F,
    pub(super) marks: Marks,
    pub(super) _alive: Alive,
}

/// Ends of the events of a run, which has nearly always one.
pub(super) type Marks = SmallVec<[Mark; 1]>;

/// End of one event in its run.
#[derive(Debug, Clone)]
pub(super) struct Mark {
    /// Relative to the run's frame.
    pub(super) end: u32,
    /// Number of changes, of all selections, from the run's first one up to this one, or up to the last suppressed one that counts
    /// with it.
    pub(super) changes: u32,
    /// Version to resume from once this event has been delivered.
    pub(super) version: ResourceVersion,
}

/// Returns an upper bound of the bytes that the runs of a share take in a log, besides their arenas. Runs count twice, as the list
/// of runs may be half empty.
pub(super) fn bytes<F: Frame>(share: &[Share]) -> usize {
    let is_together = |pair: &&[Share]| pair[0].is_before(&pair[1]);
    let runs = share.len() - share.windows(2).filter(is_together).count();
    2 * runs * size_of::<Run<F>>() + if runs < share.len() { share.len() * size_of::<Mark>() } else { 0 }
}

// === impl Run ===

impl<F> Run<F> {
    /// Returns the bytes of a run with these marks, without its frame.
    pub(super) fn size(marks: &Marks) -> usize {
        size_of::<Self>() + if marks.spilled() { size_of_val(&**marks) } else { 0 }
    }

    pub(super) fn end(&self) -> u64 {
        self.first + self.marks.len() as u64
    }

    /// Returns the start of an event of the run in its frame.
    pub(super) fn start_of(&self, at: usize) -> usize {
        at.checked_sub(1).map_or(0, |previous| self.marks[previous].end as usize)
    }
}

// === impl Mark ===

impl Mark {
    /// Advances `reached` to this event, in a run that begins at this offset.
    pub(super) fn reach(&self, offset: u64, reached: &mut HistoryPosition) {
        reached.version.clone_from(&self.version);
        reached.offset = offset + u64::from(self.changes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{Batch, Cause, Change, EventType, Object, Transition},
        watch::{
            Deliveries,
            encoding::{Encoding, Formats},
            selected::Selected,
        },
    };

    #[test]
    fn a_share_takes_its_marks_and_twice_its_runs() {
        let version = ResourceVersion::decimal(1);
        let object =
            std::sync::Arc::new(Object::from_json(bytes::Bytes::from_static(b"{}"), "a", version.clone()).unwrap());
        let change =
            Change { old: None, new: Some(object), version: version.clone(), cause: Cause::Change, index_values: None };
        let (before, changes) = (ResourceVersion::decimal(0), vec![change; 4]);
        let batches = [Batch { before, after: version, changes, is_relist: false, is_open: true }];
        let mut encoding = Encoding::<Deliveries>::new(&batches, 0, &mut None, Formats::<Deliveries>::default());
        let added = Transition { event_type: EventType::Added, cause: Cause::Change };
        let mut share = |changes: &[usize]| {
            let events = changes.iter().map(|at| (*at, added)).collect();
            encoding.share(&(), 0, Selected { events, suppressed: Vec::new() }).events
        };
        // Encoded in this order in the arena.
        share(&[0, 1, 3, 2]);
        let (run, mark) = (2 * size_of::<Run<Deliveries>>(), size_of::<Mark>());
        let sizes =
            [&[0][..], &[0, 1], &[0, 1, 3], &[0, 1, 2, 3], &[0, 2]].map(|changes| bytes::<Deliveries>(&share(changes)));
        assert_eq!(
            sizes,
            [run, run + 2 * mark, run + 3 * mark, 3 * run + 4 * mark, 2 * run],
            "one mark is part of its run"
        );
    }
}
