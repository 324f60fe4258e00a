//! Record of the writes, against which the events of a client are checked.

use std::collections::{BTreeMap, BTreeSet};

use informerd::proto::pb;

use crate::{
    etcd::Driver,
    follow::{Followed, Hole, ReceivedEvent},
    selection::Selection,
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

/// Events and objects expected for one selection.
struct Account<'a> {
    events: Vec<Expected<'a>>,
    state: BTreeMap<&'a str, i64>,
}

/// Event without its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Expected<'a> {
    version: i64,
    key: &'a str,
    event_type: pb::EventType,
    cause: pb::Cause,
}

pub(crate) const PREFIX: &str = "/things/";

// === impl Truth ===

impl Truth {
    /// Creates a record; the seed determines the writes.
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

    /// Draws the next changes, at most so many.
    pub(crate) fn draw(&mut self, most: usize) -> Changes {
        let mut changes = Changes::new();
        for _ in 0..most {
            let key = format!("{}/{}", ["a", "b", "c"][self.below(3)], self.below(8));
            let is_deletion = self.state.contains_key(&key) && self.below(3) == 0;
            changes.insert(key, (!is_deletion).then(|| format!("{{\"n\":{}}}", self.random)));
        }
        changes
    }

    /// Records changes that have been written.
    pub(crate) fn note(&mut self, revision: i64, changes: Changes) {
        for (key, value) in &changes {
            match value {
                Some(value) => drop(self.state.insert(key.clone(), value.clone())),
                None => drop(self.state.remove(key)),
            }
        }
        self.transactions.push((revision, changes));
    }

    /// Returns the last revision.
    pub(crate) fn revision(&self) -> i64 {
        self.transactions.last().map_or(0, |(revision, _)| *revision)
    }

    /// Returns the last revision that is complete over an API server without a bookmark.
    pub(crate) fn safe(&self) -> i64 {
        self.revision() - i64::from(self.ends_with_deletion())
    }

    /// Returns true if there was a transaction after one version, up to another.
    pub(crate) fn wrote(&self, after: i64, up_to: i64) -> bool {
        self.transactions.iter().any(|(at, _)| (after + 1..=up_to).contains(at))
    }

    /// Returns the number of transactions.
    pub(crate) fn len(&self) -> usize {
        self.transactions.len()
    }

    /// Returns true if the last transaction has deleted something.
    pub(crate) fn ends_with_deletion(&self) -> bool {
        self.transactions.last().is_some_and(|(_, changes)| changes.values().any(Option::is_none))
    }

    /// Returns the namespace and the name of an existing object.
    pub(crate) fn any_key(&self) -> (String, String) {
        let (namespace, name) = self.state.keys().next().unwrap().split_once('/').unwrap();
        (namespace.to_owned(), name.to_owned())
    }

    /// Drops the transactions after a revision, and continues in another way.
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

    /// Checks a stream against the writes. With `is_complete` it has every change after its initial events; without, relists may
    /// have left changes out, and what it has is true nonetheless.
    pub(crate) fn check(&self, followed: &Followed, is_complete: bool) {
        self.check_but(followed, if is_complete { &[] } else { &[(0, i64::MAX)] });
    }

    /// Checks a stream with known relists: the changes within them add up, and every other change has been reported once, in
    /// order, with its type for the selection. Under COALESCE everything adds up; exactly the events reported as dropped are
    /// missing.
    pub(crate) fn check_but(&self, followed: &Followed, relists: &[(i64, i64)]) {
        let selection = &followed.selection;
        let is_relisted = |at: i64| relists.iter().any(|(from, to)| (from + 1..=*to).contains(&at));
        let Account { events, state } = self.account(selection);
        let is_initial = |told: &&ReceivedEvent| told.cause == pb::Cause::Initial;
        let at_first: BTreeSet<&str> = followed.told.iter().filter(is_initial).map(|told| &*told.key).collect();
        // Initial events without the object, though it existed at their version.
        let is_deleted_at_first = |event: &Expected<'_>| {
            followed.may_begin_open
                && (event.event_type, event.cause) == (pb::EventType::Deleted, pb::Cause::Unspecified)
                && event.version == followed.synced_at + 1
                && !at_first.contains(event.key)
        };
        let mut known: BTreeMap<&str, &ReceivedEvent> = BTreeMap::new();
        let (mut last, mut seen) = (0, Vec::new());
        for told in &followed.told {
            let ReceivedEvent { event_type, cause, key, value, version, resume, .. } = told;
            assert!(*resume == 0 || *resume >= last, "versions go up: {told:?} after {last}");
            last = last.max(*resume);
            let before = match event_type {
                pb::EventType::Deleted => known.remove(&**key),
                pb::EventType::Added | pb::EventType::Modified => known.insert(key, told),
                other => panic!("{other:?}"),
            };
            // A client with holes may take any object for new.
            if followed.holes.is_empty() {
                let is_new = *event_type == pb::EventType::Added || is_deleted_at_first(&Expected::told(told));
                assert_eq!(before.is_none(), is_new, "{told:?} after {before:?}");
                let is_as_told = before.is_none_or(|before| before.value == *value);
                assert!(*event_type != pb::EventType::Deleted || is_as_told, "{told:?} after {before:?}");
            }
            let written = self.written(*version, key);
            let is_selected = |written: &String| selection.has(key, written);
            let is_so = if *event_type == pb::EventType::Deleted {
                let is_inferred = *cause == pb::Cause::Inferred && is_relisted(*version);
                is_inferred || written.is_some_and(|written| !written.as_ref().is_some_and(is_selected))
            } else {
                let is_value = |written: &String| value.as_ref().is_none_or(|value| value == written);
                written.and_then(Option::as_ref).is_some_and(|written| is_selected(written) && is_value(written))
            };
            assert!(is_so, "{told:?} was not");
            if *cause != pb::Cause::Initial && !is_deleted_at_first(&Expected::told(told)) {
                seen.push(told);
            }
        }
        if followed.holes.is_empty() {
            let known: BTreeMap<_, _> = known.into_iter().map(|(key, told)| (key, told.version)).collect();
            let differs = |key: &str| known.get(key) != state.get(key);
            let told = followed.told.iter().filter(|told| differs(&told.key));
            let written = self.transactions.iter().filter(|(_, changes)| changes.keys().any(|key| differs(key)));
            let both = || (told.collect::<Vec<_>>(), written.collect::<Vec<_>>(), followed.synced_at, relists);
            assert!(known == state, "what it adds up to; told, written, synced, relists: {:?}", both());
        }
        let is_expected = |event: &Expected<'_>| event.version > followed.synced_at && !is_deleted_at_first(event);
        let mut expected: Vec<_> = events.into_iter().filter(is_expected).collect();
        if selection.policy() == pb::FullChannelPolicy::Coalesce {
            let stands_for: usize = seen.iter().map(|told| 1 + told.coalesced as usize).sum();
            assert!(!relists.is_empty() || stands_for <= expected.len(), "{stands_for} of {}", expected.len());
            return;
        }
        // From the last, so that the indexes before each hole stay valid.
        let initial = followed.told.len() - seen.len();
        let dropped_before = |at: usize| followed.holes[..at].iter().map(|hole| hole.count as usize).sum::<usize>();
        for (at, Hole { at: told, count, after }) in followed.holes.iter().enumerate().rev() {
            let from = told - initial + dropped_before(at);
            // A client that resumes before an open version receives its changes again.
            let is_open = *told > 0 && followed.told[told - 1].resume == *after;
            let is_after = is_open || from == 0 || expected[from - 1].version <= *after;
            assert!(is_after, "{after} comes after what was told");
            assert!(expected[from].version > *after, "what is missing comes after {after}");
            drop(expected.drain(from..from + *count as usize));
        }
        let mut seen: Vec<_> = seen.into_iter().map(Expected::told).filter(|told| !is_relisted(told.version)).collect();
        assert!(seen.is_sorted_by_key(|told| told.version), "in the order of their versions");
        expected.retain(|event| !is_relisted(event.version));
        // Within a transaction the order is etcd's.
        seen.sort();
        let same = seen.iter().zip(&expected).take_while(|(seen, expected)| seen == expected).count();
        let (seen, expected) = (seen.get(same), expected.get(same));
        assert_eq!(seen, expected, "every change, and each once; the first that differs is number {same}");
    }

    /// Returns the events expected for a selection, and its objects at the end, with their versions.
    fn account(&self, selection: &Selection) -> Account<'_> {
        let (mut state, mut events) = (BTreeMap::<&str, (i64, &str)>::new(), Vec::new());
        for (version, key, value) in
            self.transactions.iter().flat_map(|(at, changes)| changes.iter().map(move |(key, value)| (*at, key, value)))
        {
            let before = match value {
                Some(value) => state.insert(key, (version, value)),
                None => state.remove(&**key),
            };
            let was = before.is_some_and(|(_, before)| selection.has(key, before));
            let is = value.as_ref().is_some_and(|value| selection.has(key, value));
            let (event_type, cause) = match (was, is) {
                (false, false) => continue,
                (false, true) if before.is_some() => (pb::EventType::Added, pb::Cause::EnteredSelection),
                (false, true) => (pb::EventType::Added, pb::Cause::Unspecified),
                (true, true) => (pb::EventType::Modified, pb::Cause::Unspecified),
                (true, false) if value.is_some() => (pb::EventType::Deleted, pb::Cause::LeftSelection),
                (true, false) => (pb::EventType::Deleted, pb::Cause::Unspecified),
            };
            events.push(Expected { version, key, event_type, cause });
        }
        state.retain(|key, (_, value)| selection.has(key, value));
        Account { events, state: state.into_iter().map(|(key, (version, _))| (key, version)).collect() }
    }

    /// Returns the change of a key at a revision: a value, or a deletion.
    fn written(&self, revision: i64, key: &str) -> Option<&Option<String>> {
        let at = self.transactions.binary_search_by_key(&revision, |(at, _)| *at).ok()?;
        self.transactions[at].1.get(key)
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % bound
    }
}

// === impl Expected ===

impl<'a> Expected<'a> {
    fn told(told: &'a ReceivedEvent) -> Self {
        Self { version: told.version, key: &told.key, event_type: told.event_type, cause: told.cause }
    }
}
