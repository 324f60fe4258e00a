//! Last watches that have ended, for operators.

use std::{collections::VecDeque, ops::Bound};

use prost::Message;

use crate::proto::pb;

/// Last watches that have ended, within [`MAX_ENDED`] and [`MAX_ENDED_BYTES`].
#[derive(Debug, Default)]
pub(super) struct EndedWatches {
    watches: VecDeque<pb::Watcher>,
    bytes: usize,
}

/// Maximum number of ended watches that are kept for operators.
const MAX_ENDED: usize = 1000;
/// Maximum size of these, in bytes.
const MAX_ENDED_BYTES: usize = 4 << 20;

// === impl EndedWatches ===

impl EndedWatches {
    /// Adds a watch, and drops the oldest ends beyond the bounds.
    pub(super) fn push(&mut self, watch: pb::Watcher) {
        self.bytes += size_of(&watch);
        self.watches.push_back(watch);
        while self.watches.len() > MAX_ENDED || self.bytes > MAX_ENDED_BYTES {
            let Some(oldest) = self.watches.pop_front() else { break };
            self.bytes -= size_of(&oldest);
        }
    }

    /// Returns the watches with ids after `after` that are accepted.
    pub(super) fn after(&self, after: u64, is_accepted: impl Fn(&pb::Watcher) -> bool) -> Vec<pb::Watcher> {
        let range = (Bound::Excluded(after), Bound::Unbounded);
        let is_chosen = |watch: &&pb::Watcher| std::ops::RangeBounds::contains(&range, &watch.id) && is_accepted(watch);
        self.watches.iter().filter(is_chosen).cloned().collect()
    }
}

/// Returns the approximate memory of a watch.
fn size_of(watch: &pb::Watcher) -> usize {
    std::mem::size_of::<pb::Watcher>() + watch.encoded_len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ends_are_bounded_in_number_and_bytes() {
        let mut ended = EndedWatches::default();
        for id in 1..=1500 {
            ended.push(pb::Watcher { id, ..Default::default() });
        }
        let ids = |ended: &EndedWatches, after| {
            ended.after(after, |watch| watch.id % 2 == 0).iter().map(|watch| watch.id).collect::<Vec<_>>()
        };
        assert_eq!((ended.watches.len(), ids(&ended, 0)[0], ids(&ended, 1497)), (1000, 502, vec![1498, 1500]));
        for id in 1501..=3000 {
            ended.push(pb::Watcher { id, selection: "x".repeat(8 << 10), ..Default::default() });
            assert!(ended.bytes <= MAX_ENDED_BYTES && ended.bytes == ended.watches.iter().map(size_of).sum::<usize>());
        }
        assert!((400..512).contains(&ended.watches.len()), "{}", ended.watches.len());
    }
}
