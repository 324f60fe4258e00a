//! Which versions a watch can go on from.
//!
//! Invariant 5: between the start and the end of a relist nobody knows what happened. An object that was created and
//! deleted there is in neither state, so a version strictly in between is expired, even inside the window.

use std::collections::VecDeque;

use crate::model::{Batch, ResourceVersion};

/// The versions of one resource that can be resumed from.
#[derive(Debug, Clone)]
pub struct Window {
    oldest: ResourceVersion,
    current: ResourceVersion,
    /// Relists whose versions are apart, oldest first: (before, after).
    gaps: VecDeque<(ResourceVersion, ResourceVersion)>,
}

/// Whether a watch can go on after a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resume {
    /// Nothing has happened since.
    Current,
    /// What came after is in the window.
    Inside,
    /// Older than the window, in a relist's gap, or of another lineage.
    Expired,
    /// The resource has not got there yet.
    Future,
}

/// Relists that are remembered; with more of them, the window begins after the oldest.
const MAX_GAPS: usize = 64;

// === impl Window ===

impl Window {
    /// A window that begins here.
    pub fn new(version: ResourceVersion) -> Self {
        Self { oldest: version.clone(), current: version, gaps: VecDeque::new() }
    }

    /// The oldest version that can be resumed from.
    pub fn oldest(&self) -> &ResourceVersion {
        &self.oldest
    }

    /// The newest version.
    pub fn current(&self) -> &ResourceVersion {
        &self.current
    }

    /// Takes note of a batch that was applied.
    pub fn record(&mut self, batch: &Batch, is_relist: bool) {
        if is_relist && batch.before != batch.after {
            self.gaps.push_back((batch.before.clone(), batch.after.clone()));
        }
        self.current = batch.after.clone();
        if self.gaps.len() > MAX_GAPS
            && let Some((_, end)) = self.gaps.pop_front()
        {
            self.forget_before(&end);
        }
    }

    /// What happened up to this version is no longer kept.
    pub fn forget_before(&mut self, version: &ResourceVersion) {
        self.oldest.clone_from(version);
        while self.gaps.front().is_some_and(|(_, end)| end <= version) {
            self.gaps.pop_front();
        }
    }

    /// Whether a watch can go on strictly after `version`.
    pub fn check(&self, version: &ResourceVersion) -> Resume {
        if !version.same_lineage(&self.current) {
            Resume::Expired
        } else if *version == self.current {
            Resume::Current
        } else if *version > self.current {
            Resume::Future
        } else if *version < self.oldest || self.gaps.iter().any(|(start, end)| start < version && version < end) {
            Resume::Expired
        } else {
            Resume::Inside
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(number: u128) -> ResourceVersion {
        ResourceVersion::decimal(number)
    }

    fn batch(before: u128, after: u128) -> Batch {
        Batch { before: version(before), after: version(after), changes: Vec::new() }
    }

    /// Invariant 5, and the boundaries of cacher `TestEvents` and `TestMarker`.
    #[test]
    fn a_version_inside_a_relist_gap_is_expired_and_its_ends_are_not() {
        let mut window = Window::new(version(10));
        window.record(&batch(10, 12), false);
        window.record(&batch(12, 20), true);
        window.record(&batch(20, 21), false);
        let at = |number| window.check(&version(number));
        assert_eq!(at(9), Resume::Expired, "older than the window");
        assert_eq!(at(10), Resume::Inside);
        assert_eq!(at(11), Resume::Inside, "the upstream's numbers have holes of their own");
        assert_eq!(at(12), Resume::Inside, "the start of the gap");
        for inside in 13..20 {
            assert_eq!(at(inside), Resume::Expired, "{inside}");
        }
        assert_eq!(at(20), Resume::Inside, "the end of the gap");
        assert_eq!(at(21), Resume::Current);
        assert_eq!(at(22), Resume::Future);
        assert_eq!(window.check(&"abc.21".parse().unwrap()), Resume::Expired, "another lineage");
    }

    #[test]
    fn a_relist_at_the_same_version_leaves_no_gap() {
        let mut window = Window::new(version(10));
        window.record(&batch(10, 10), true);
        assert!(window.gaps.is_empty());
        assert_eq!(window.check(&version(10)), Resume::Current);
    }

    #[test]
    fn forgetting_moves_the_window_and_drops_the_gaps_before_it() {
        let mut window = Window::new(version(1));
        for at in 0..(MAX_GAPS as u128 + 5) {
            window.record(&batch(1 + at * 10, 11 + at * 10), true);
        }
        assert_eq!(window.gaps.len(), MAX_GAPS);
        assert_eq!(window.oldest(), &version(51));
        assert_eq!(window.check(&version(51)), Resume::Inside);
        assert_eq!(window.check(&version(50)), Resume::Expired);
        window.forget_before(&window.current().clone());
        assert!(window.gaps.is_empty());
    }
}
