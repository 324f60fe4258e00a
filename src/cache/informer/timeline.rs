//! Times at which versions were reached, to the second: the age of what a watch that holds only a version has not received yet.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::time::Instant;

use crate::model::ResourceVersion;

/// Versions of one history that were reached, in order, each with a time at which it had been.
#[derive(Debug, Default)]
pub(super) struct Timeline(Mutex<VecDeque<(ResourceVersion, Instant)>>);

/// Maximum number of versions. With more of them, every other one is dropped.
const MAX_VERSIONS: usize = 4096;

// === impl Timeline ===

impl Timeline {
    /// Adds the version that has been reached, and drops those from which no watch can resume.
    pub(super) fn note(&self, reached: &ResourceVersion, oldest: &ResourceVersion, now: Instant) {
        let mut versions = self.0.lock();
        if versions.back().is_none_or(|(last, _)| last != reached) {
            versions.push_back((reached.clone(), now));
        }
        while versions.front().is_some_and(|(version, _)| version <= oldest) {
            versions.pop_front();
        }
        if versions.len() > MAX_VERSIONS {
            let mut is_odd = false;
            versions.retain(|_| {
                is_odd = !is_odd;
                is_odd
            });
        }
    }

    /// Returns the time at which a later version had been reached first; `None` if none had.
    pub(super) fn after(&self, version: &ResourceVersion) -> Option<Instant> {
        let versions = self.0.lock();
        let first =
            versions.partition_point(|(reached, _)| reached.partial_cmp(version) != Some(std::cmp::Ordering::Greater));
        versions.get(first).map(|(_, at)| *at)
    }

    /// Drops everything: the versions of another history follow.
    pub(super) fn clear(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_follows_a_version_waits_since_the_next_one_was_reached() {
        let (timeline, begin, oldest) = (Timeline::default(), Instant::now(), ResourceVersion::decimal(0));
        let at = |second: u128| begin + Duration::from_secs(second as u64);
        for second in 1..=10 {
            timeline.note(&ResourceVersion::decimal(second * 2), &oldest, at(second));
            timeline.note(&ResourceVersion::decimal(second * 2), &oldest, at(second) + Duration::from_millis(1));
        }
        for (version, expected) in [(1, Some(1)), (2, Some(2)), (3, Some(2)), (19, Some(10)), (20, None)] {
            assert_eq!(timeline.after(&ResourceVersion::decimal(version)), expected.map(at), "{version}");
        }
        assert_eq!(timeline.after(&"another.1".parse().unwrap()), None);
        timeline.note(&ResourceVersion::decimal(20), &ResourceVersion::decimal(19), at(11));
        assert_eq!(timeline.0.lock().len(), 1);
        timeline.clear();
        assert_eq!(timeline.after(&ResourceVersion::decimal(1)), None);
    }

    #[test]
    fn the_number_of_versions_is_bounded() {
        let (timeline, begin) = (Timeline::default(), Instant::now());
        for number in 1..50_000 {
            timeline.note(&ResourceVersion::decimal(number), &ResourceVersion::decimal(0), begin);
            assert!(timeline.0.lock().len() <= MAX_VERSIONS);
        }
        assert!(timeline.after(&ResourceVersion::decimal(49_998)).is_some(), "the newest is kept");
    }
}
