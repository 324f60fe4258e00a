//! Known files that were not found, and objects that no file contains any more. They are deleted once that is certain.
//!
//! `engine` keeps them. A walk can fall into the middle of `rm -rf DIRECTORY` or of a checkout, so that one walk proves nothing:
//!
//! | directory | deletion of a file that was not found |
//! |---|---|
//! | the served one | if still missing after a quiet period without changes, or else after a rescan (its objects after six) |
//! | another one, with files | if two walks that are a rescan apart have found the same files, or else after six rescans |
//! | another one, without files | never: the directory counts as unavailable (`engine`) |
//!
//! An object that no file contains any more waits in the same way until no file changes any more. It also waits while a file's
//! content, which may contain it, is not applied yet; for six rescans at most.
//!
//! While a part of a file cannot be read that may contain any object (`unread`), no deletion is certain.
//!
//! The caller supplies the time.

use std::{collections::BTreeMap, time::Duration};

use tokio::time::Instant;

/// Files or objects that were not found.
#[derive(Debug)]
pub(super) struct Missing<K> {
    /// Missing keys, each with the time since which it is missing.
    all: BTreeMap<K, Instant>,
    /// Time of the last check with a different result.
    changed_at: Option<Instant>,
}

/// Time until a deletion is certain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct DeletionDelay {
    /// Time without any change.
    pub(super) unchanged: Duration,
    /// Time for which the file or object has been missing, whatever else changes.
    pub(super) at_most: Duration,
}

// === impl Missing ===

impl<K> Default for Missing<K> {
    fn default() -> Self {
        Self { all: BTreeMap::new(), changed_at: None }
    }
}

impl<K: Ord + Clone> Missing<K> {
    /// Returns true if nothing is missing.
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Returns the number of missing keys.
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Adds a file or object. Returns true if it was not missing before.
    pub(super) fn insert(&mut self, key: &K, now: Instant) -> bool {
        let is_new = !self.all.contains_key(key);
        if is_new {
            self.all.insert(key.clone(), now);
            self.changed_at = Some(now);
        }
        is_new
    }

    /// Adds an object of a file that was missing since `begin`: that is no new change.
    pub(super) fn insert_since(&mut self, key: &K, begin: Instant) {
        self.all.entry(key.clone()).or_insert(begin);
    }

    /// Removes all except for these. Returns the removed ones, which exist again.
    pub(super) fn retain(&mut self, is_absent: impl Fn(&K) -> bool) -> Vec<K> {
        self.take(|key, _| !is_absent(key)).into_iter().map(|(key, _)| key).collect()
    }

    /// Restarts the wait, because the directory is changing.
    pub(super) fn disturb(&mut self, now: Instant) {
        self.changed_at = Some(now);
    }

    /// Removes the keys whose deletion is certain. Returns them, each with the time since which it was missing. The wait of those that
    /// are held restarts.
    pub(super) fn take_certain(
        &mut self,
        deletion_delay: DeletionDelay,
        now: Instant,
        is_held: impl Fn(&K) -> bool,
    ) -> Vec<(K, Instant)> {
        for (_, begin) in self.all.iter_mut().filter(|(key, _)| is_held(key)) {
            (*begin, self.changed_at) = (now, Some(now));
        }
        let since = |begin: Instant| now.saturating_duration_since(begin);
        let changed_at = self.changed_at;
        let unchanged = |begin: Instant| since(changed_at.map_or(begin, |changed_at| changed_at.max(begin)));
        let is_certain = |begin| unchanged(begin) >= deletion_delay.unchanged || since(begin) >= deletion_delay.at_most;
        self.take(|key, begin| is_certain(begin) && !is_held(key))
    }

    fn take(&mut self, is_taken: impl Fn(&K, Instant) -> bool) -> Vec<(K, Instant)> {
        let all = std::mem::take(&mut self.all).into_iter();
        let (taken, rest): (Vec<_>, Vec<_>) = all.partition(|(key, begin)| is_taken(key, *begin));
        self.all.extend(rest);
        taken
    }

    /// Returns the time of the next check; `None` while nothing is missing that is not held.
    pub(super) fn next_look(&self, deletion_delay: DeletionDelay, is_held: impl Fn(&K) -> bool) -> Option<Instant> {
        self.changed_at
            .filter(|_| !self.all.keys().all(is_held))
            .map(|changed_at| changed_at + deletion_delay.unchanged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: DeletionDelay =
        DeletionDelay { unchanged: Duration::from_secs(1), at_most: Duration::from_secs(5) };

    fn certain(missing: &mut Missing<&'static str>, now: Instant) -> Vec<&'static str> {
        missing.take_certain(PATIENCE, now, |_| false).into_iter().map(|(key, _)| key).collect()
    }

    #[test]
    fn a_deletion_is_certain_when_nothing_has_changed_for_a_while() {
        let second = |n: u64| Instant::now() + Duration::from_secs(n);
        let base = second(0);
        let at = |n: u64| base + Duration::from_secs(n);
        let mut missing = Missing::default();
        assert_eq!(missing.next_look(PATIENCE, |_| false), None);
        assert!(missing.insert(&"a", at(0)));
        assert!(!missing.insert(&"a", at(9)), "it is missing since 0");
        assert_eq!(missing.next_look(PATIENCE, |_| false), Some(at(1)));
        assert_eq!(certain(&mut missing, at(0)), [""; 0]);
        // One more, as `rm -rf` continues.
        missing.insert(&"b", at(1));
        assert_eq!(certain(&mut missing, at(1)), [""; 0]);
        assert_eq!(missing.retain(|key| *key == "b"), ["a"], "it is back");
        missing.disturb(at(2));
        assert_eq!(certain(&mut missing, at(2)), [""; 0]);
        assert_eq!(certain(&mut missing, at(3)), ["b"]);
        assert!(missing.is_empty());
        // The object of a deleted file has waited as long as the file.
        missing.insert_since(&"c", at(2));
        assert_eq!(certain(&mut missing, at(3)), ["c"]);
        missing.insert(&"d", at(3));
        assert_eq!(missing.take_certain(PATIENCE, at(9), |_| true), []);
        assert_eq!(certain(&mut missing, at(9)), [""; 0], "the wait begins when it is no longer held");
        assert_eq!(certain(&mut missing, at(10)), ["d"]);
    }

    #[test]
    fn a_directory_that_always_changes_delays_a_deletion_for_a_bounded_time() {
        let base = Instant::now();
        let mut missing = Missing::default();
        for (n, name) in (0..).zip(["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"]) {
            let now = base + Duration::from_secs(n) / 2;
            missing.insert(&name, now);
            assert_eq!(certain(&mut missing, now), [""; 0]);
        }
        assert_eq!(certain(&mut missing, base + Duration::from_secs(5)), ["0"]);
    }
}
