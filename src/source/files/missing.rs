//! The known files that were not found. Their deletion waits until it is certain.
//!
//! Kept by `engine`. A walk can come in the middle of `rm -rf DIRECTORY` or of a checkout, so that one look proves nothing:
//!
//! | the directory | a file that was not found is deleted |
//! |---|---|
//! | the one that was served | when it is still missing after nothing has changed for the quiet period, or else after a rescan |
//! | another one, with files | when two walks that are a rescan apart have found the same files, or else after six rescans |
//! | another one, without files | never: the directory counts as unavailable (`engine`) |
//!
//! Pure: the time comes from the caller.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use crate::planted::planted;

/// The files that were not found.
#[derive(Debug, Default)]
pub(super) struct Missing {
    /// Since when.
    files: BTreeMap<Arc<str>, Instant>,
    /// The last time that something else was found than before.
    changed_at: Option<Instant>,
}

/// The time that it takes to be certain of a deletion.
#[derive(Debug, Clone, Copy)]
pub(super) struct Patience {
    /// Nothing has changed for so long.
    pub(super) unchanged: Duration,
    /// The file has been missing for so long, whatever else changes.
    pub(super) at_most: Duration,
}

// === impl Missing ===

impl Missing {
    /// Whether no file is missing.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// The missing files.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Arc<str>> {
        self.files.keys()
    }

    /// Adds a file. Whether it was not missing before.
    pub(super) fn insert(&mut self, path: &Arc<str>, now: Instant) -> bool {
        let is_new = !self.files.contains_key(path);
        if is_new {
            self.files.insert(path.clone(), now);
            self.changed_at = Some(now);
        }
        is_new
    }

    /// Removes a file. Whether it was missing.
    pub(super) fn remove(&mut self, path: &str) -> bool {
        self.files.remove(path).is_some()
    }

    /// Takes over all that a walk has not found. Returns the files that are there again.
    pub(super) fn retain(&mut self, absent: &BTreeSet<Arc<str>>) -> Vec<Arc<str>> {
        let found: Vec<_> = self.files.keys().filter(|path| !absent.contains(*path)).cloned().collect();
        for path in &found {
            self.files.remove(path);
        }
        found
    }

    /// Begins to wait anew: the directory is changing.
    pub(super) fn disturb(&mut self, now: Instant) {
        self.changed_at = Some(now);
    }

    /// Removes the files whose deletion is certain.
    pub(super) fn take_certain(&mut self, patience: Patience, now: Instant) -> Vec<Arc<str>> {
        let since = |begin: Instant| now.saturating_duration_since(begin);
        let is_settled = self.changed_at.is_none_or(|changed_at| since(changed_at) >= patience.unchanged);
        let is_certain =
            |begin: Instant| is_settled || since(begin) >= patience.at_most || planted!(DeletionIsNotAwaited);
        let certain: Vec<_> =
            self.files.iter().filter(|(_, begin)| is_certain(**begin)).map(|(path, _)| path.clone()).collect();
        for path in &certain {
            self.files.remove(path);
        }
        certain
    }

    /// When to look again; `None` while no file is missing.
    pub(super) fn next_look(&self, patience: Patience) -> Option<Instant> {
        self.changed_at.filter(|_| !self.is_empty()).map(|changed_at| changed_at + patience.unchanged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Patience = Patience { unchanged: Duration::from_secs(1), at_most: Duration::from_secs(5) };

    fn certain(missing: &mut Missing, now: Instant) -> Vec<String> {
        missing.take_certain(PATIENCE, now).iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_deletion_is_certain_when_nothing_has_changed_for_a_while() {
        let second = |n: u64| Instant::now() + Duration::from_secs(n);
        let base = second(0);
        let at = |n: u64| base + Duration::from_secs(n);
        let mut missing = Missing::default();
        assert_eq!(missing.next_look(PATIENCE), None);
        assert!(missing.insert(&"a".into(), at(0)));
        assert!(!missing.insert(&"a".into(), at(9)), "it is missing since 0");
        assert_eq!(missing.next_look(PATIENCE), Some(at(1)));
        assert_eq!(certain(&mut missing, at(0)), [""; 0]);
        // One more, as `rm -rf` goes on.
        missing.insert(&"b".into(), at(1));
        assert_eq!(certain(&mut missing, at(1)), [""; 0]);
        assert_eq!(missing.retain(&BTreeSet::from(["b".into()])), ["a".into()], "it is back");
        missing.disturb(at(2));
        assert_eq!(certain(&mut missing, at(2)), [""; 0]);
        assert_eq!(certain(&mut missing, at(3)), ["b"]);
        assert!(missing.is_empty());
    }

    #[test]
    fn a_directory_that_always_changes_delays_a_deletion_for_a_bounded_time() {
        let base = Instant::now();
        let mut missing = Missing::default();
        for n in 0..10_u64 {
            let now = base + Duration::from_secs(n) / 2;
            missing.insert(&n.to_string().into(), now);
            assert_eq!(certain(&mut missing, now), [""; 0]);
        }
        assert_eq!(certain(&mut missing, base + Duration::from_secs(5)), ["0"]);
    }
}
