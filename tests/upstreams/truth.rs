//! What was written, and by that whether what a client was told is so.

use std::collections::BTreeMap;

use informerd::proto::pb;

use crate::{
    etcd::Driver,
    follow::{Followed, Told},
};

/// Keys below the prefix, and their values; none for a deletion.
pub(crate) type Changes = BTreeMap<String, Option<String>>;

/// Every transaction below the prefix, with its revision.
#[derive(Debug, Default, Clone)]
pub(crate) struct Truth {
    transactions: Vec<(i64, Changes)>,
    state: BTreeMap<String, String>,
    random: u64,
}

pub(crate) const PREFIX: &str = "/things/";

// === impl Truth ===

impl Truth {
    /// With a seed for what is written.
    pub(crate) fn new(seed: u64) -> Self {
        Self { random: seed.wrapping_mul(2) + 1, ..Self::default() }
    }

    /// Writes a transaction of one to four keys, some of which are deleted.
    pub(crate) fn write(&mut self, driver: &mut Driver) -> i64 {
        let most = self.below(4) + 1;
        let changes = self.draw(most);
        let full = changes.iter().map(|(key, value)| (format!("{PREFIX}{key}"), value.clone())).collect();
        let revision = driver.write(&full);
        self.note(revision, changes);
        revision
    }

    /// What could be written next.
    pub(crate) fn draw(&mut self, most: usize) -> Changes {
        let mut changes = Changes::new();
        for _ in 0..most {
            let key = format!("{}/{}", ["a", "b", "c"][self.below(3)], self.below(8));
            let is_deletion = self.state.contains_key(&key) && self.below(3) == 0;
            changes.insert(key, (!is_deletion).then(|| format!("{{\"n\":{}}}", self.random)));
        }
        changes
    }

    /// It has been.
    pub(crate) fn note(&mut self, revision: i64, changes: Changes) {
        for (key, value) in &changes {
            match value {
                Some(value) => drop(self.state.insert(key.clone(), value.clone())),
                None => drop(self.state.remove(key)),
            }
        }
        self.transactions.push((revision, changes));
    }

    /// The last revision.
    pub(crate) fn revision(&self) -> i64 {
        self.transactions.last().map_or(0, |(revision, _)| *revision)
    }

    /// Namespace and name of something that is there.
    pub(crate) fn any_key(&self) -> (String, String) {
        let (namespace, name) = self.state.keys().next().unwrap().split_once('/').unwrap();
        (namespace.to_owned(), name.to_owned())
    }

    /// Forgets what came after a revision, and goes on in another way.
    pub(crate) fn rewind(&mut self, revision: i64) {
        self.transactions.retain(|(at, _)| *at <= revision);
        self.state.clear();
        for (key, value) in self.transactions.iter().flat_map(|(_, changes)| changes) {
            match value {
                Some(value) => drop(self.state.insert(key.clone(), value.clone())),
                None => drop(self.state.remove(key)),
            }
        }
        self.random = self.random.wrapping_add(0x1234_5678);
    }

    /// Holds a stream against what was written. With `is_complete` it has every change after its initial events; without,
    /// relists may have left changes out, and what it has is true nonetheless.
    pub(crate) fn check(&self, followed: &Followed, is_complete: bool) {
        let mut state: BTreeMap<String, String> = BTreeMap::new();
        let (mut last, mut seen) = (0, Vec::new());
        for told in &followed.told {
            let Told { event_type, cause, key, value, version, resume } = told;
            assert!(*resume == 0 || *resume >= last, "versions go up: {told:?} after {last}");
            last = last.max(*resume);
            let is_inferred = *cause == pb::Cause::Inferred;
            match event_type {
                pb::EventType::Deleted => {
                    assert!(state.remove(key).is_some(), "{told:?} of what is not there");
                    assert!(is_inferred || self.has(*version, key, None), "{told:?} was not");
                }
                pb::EventType::Added | pb::EventType::Modified => {
                    let is_new = state.insert(key.clone(), value.clone()).is_none();
                    assert_eq!(is_new, *event_type == pb::EventType::Added, "{told:?}");
                    assert!(self.has(*version, key, Some(value)), "{told:?} was not");
                }
                other => panic!("{other:?}"),
            }
            assert!(is_complete <= !is_inferred, "{told:?}, and every change was to come");
            if *cause != pb::Cause::Initial {
                seen.push((*version, key.clone()));
            }
        }
        let in_scope =
            |key: &String| followed.namespace.is_empty() || key.starts_with(&format!("{}/", followed.namespace));
        let expected: BTreeMap<_, _> = self.state.iter().filter(|(key, _)| in_scope(key)).collect();
        assert_eq!(state.iter().collect::<BTreeMap<_, _>>(), expected, "what it adds up to");
        if is_complete {
            let later = self.transactions.iter().filter(|(at, _)| *at > followed.synced_at);
            let keys = later.flat_map(|(at, changes)| changes.keys().map(move |key| (*at, key.clone())));
            let expected: Vec<_> = keys.filter(|(_, key)| in_scope(key)).collect();
            // Within a transaction the order is etcd's.
            seen.sort();
            assert_eq!(seen, expected, "every change, and each once");
        }
    }

    /// Whether a revision gave a key this value, or deleted it.
    fn has(&self, revision: i64, key: &str, value: Option<&str>) -> bool {
        let at = self.transactions.binary_search_by_key(&revision, |(at, _)| *at);
        at.is_ok_and(|at| self.transactions[at].1.get(key).is_some_and(|written| written.as_deref() == value))
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % bound
    }
}
