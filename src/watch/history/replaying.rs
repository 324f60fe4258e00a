//! Replays of what follows a position of a history.

use tokio::time::Instant;

use super::{BACKLOG_EVENTS, History, RecordedBatch};
use crate::{
    model::HistoryPosition,
    watch::{Replay, replay::ReplayPosition},
};

// === impl History ===

impl History {
    /// Returns the replay of whole batches that follow a position, up to an offset where one ends: of `most` changes, or a few more.
    /// `None` if what follows the position is not kept any more.
    pub(in crate::watch) fn replay(&self, position: &ReplayPosition, to: u64, most: usize) -> Option<Replay> {
        let ReplayPosition { version, offset, is_gap } = position;
        let reached = HistoryPosition { version: version.clone(), offset: *offset };
        // A reader at this version may lack the last changes of its batch.
        if *offset < self.begin.offset && *version < self.begin.version {
            return None;
        }
        let mut first = self.batches.partition_point(|recorded| recorded.end() <= *offset && recorded.offset < *offset);
        // A relist without changes may lie before the position or after it.
        let is_passed = |recorded: &RecordedBatch| recorded.end() <= *offset && recorded.what.after() <= version;
        while self.batches.get(first).is_some_and(is_passed) {
            first += 1;
        }
        let start = self.batches.get(first).map_or(self.current.offset, |recorded| recorded.offset);
        let mut before = first.checked_sub(1).map_or(&self.before, |last| self.batches[last].what.after());
        let (mut batches, mut changes) = (Vec::new(), 0);
        for recorded in self.batches.range(first..).take_while(|recorded| recorded.end() <= to) {
            if changes >= most || batches.len() >= most {
                break;
            }
            batches.push(recorded.what.batch(before));
            changes += recorded.what.events();
            before = recorded.what.after();
        }
        // A relist without changes may have been evicted.
        let is_gap = *is_gap || self.has_relist_between(&reached, *offset + 1);
        Some(Replay::new(batches, start, reached).after_gap(is_gap))
    }

    /// Returns the same for a client to which no relist must be reported.
    pub(crate) fn replay_after(&self, after: &HistoryPosition, to: u64) -> Option<Replay> {
        let HistoryPosition { version, offset } = after.clone();
        self.replay(&ReplayPosition { version, offset, is_gap: false }, to, BACKLOG_EVENTS)
    }

    /// Returns true if a relist follows a position, before another offset.
    pub(in crate::watch) fn has_relist_between(&self, from: &HistoryPosition, to: u64) -> bool {
        let last = to.checked_sub(1).and_then(|last| self.last_relist(last));
        last.is_some_and(|relist| from.is_before(relist))
    }

    /// Returns the time at which the first change after an offset was recorded.
    pub(in crate::watch) fn recorded_after(&self, offset: u64) -> Option<Instant> {
        let first = self.batches.partition_point(|recorded| recorded.end() <= offset);
        self.batches.get(first).map(|recorded| recorded.at)
    }
}
