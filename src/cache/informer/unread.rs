//! Items of the first list of a run that could not be read, and of which the snapshot of the previous run has no state.
//!
//! A client of an earlier run may have their objects, and would take them for deleted if it replaced its state by this one. So it
//! waits, and the resource is STALE, until each has been read or deleted.

use std::collections::BTreeSet;

use crate::{
    cache::{List, Problem, ProblemReason, Snapshot, SourceHealth, UnreadableItem},
    model::{Event, ObjectKey, ResourceVersion},
};

/// Items that are still unread.
#[derive(Debug, Clone, Default)]
pub(super) struct UnreadItems {
    keys: BTreeSet<ObjectKey>,
    /// Uids of items whose keys cannot be read.
    uids: BTreeSet<String>,
    /// True if there is an item that may be any object.
    has_unknown: bool,
    /// Version of the first list of this history.
    since: Option<ResourceVersion>,
}

// === impl UnreadItems ===

impl UnreadItems {
    fn of(list: &List) -> Self {
        let mut items = Self { since: Some(list.version.clone()), ..Self::default() };
        for item in &list.unreadable {
            match &item.key {
                Some(key) => drop(items.keys.insert(key.clone())),
                None if item.uid.is_empty() => items.has_unknown = true,
                None => drop(items.uids.insert(item.uid.clone())),
            }
        }
        items
    }

    /// Returns true if this object may be one that has not been read yet.
    pub(super) fn has(&self, key: &ObjectKey) -> bool {
        self.has_unknown || !self.uids.is_empty() || self.keys.contains(key)
    }

    /// Records an event: it has the present state of an object.
    pub(super) fn note(&mut self, event: &Event) {
        if let Some(object) = event.object() {
            self.keys.remove(object.key());
            self.uids.remove(object.uid());
        }
    }

    /// Records a list, which has all that exists, over a held state. The first one is reported before the state can be read.
    pub(super) fn note_list(&mut self, list: &List, held: Option<&Snapshot>, health: &SourceHealth) {
        let mut found = Self::of(list);
        if self.since.is_some() {
            self.keys.retain(|key| found.keys.contains(key));
            self.uids.retain(|uid| found.uids.contains(uid));
            self.has_unknown &= found.has_unknown;
            return;
        }
        if let Some(held) = held {
            found.keys.retain(|key| held.get(key).is_none());
            if !found.uids.is_empty() {
                for object in held.objects(None, None) {
                    found.uids.remove(object.uid());
                }
            }
        }
        *self = found;
        self.report(health);
    }

    /// Begins with the first list of another history: versions of the one before have no meaning any more.
    pub(super) fn restart(&mut self, list: &List, health: &SourceHealth) {
        *self = Self::of(list);
        self.report(health);
    }

    /// Returns them as the items of a list.
    pub(super) fn items(&self) -> Vec<UnreadableItem> {
        let key = |key: &ObjectKey| UnreadableItem { key: Some(key.clone()), ..UnreadableItem::default() };
        let uid = |uid: &String| UnreadableItem { uid: uid.clone(), ..UnreadableItem::default() };
        let unknown = self.has_unknown.then(UnreadableItem::default);
        self.keys.iter().map(key).chain(self.uids.iter().map(uid)).chain(unknown).collect()
    }

    /// Reports the first one, or that there is none any more, once the state without it can be read.
    pub(super) fn report(&self, health: &SourceHealth) {
        let Some(since) = &self.since else { return };
        let key = self.keys.first().map(ToString::to_string);
        let uid = || self.uids.first().map(|uid| format!("uid {uid}"));
        let unknown = || self.has_unknown.then(|| "an item of the first list".to_owned());
        let problem = key.or_else(uid).or_else(unknown).map(|subject| {
            let message = "not readable since the start, so clients of an earlier run wait, and keep theirs";
            Problem::new(ProblemReason::ObjectsUnread, subject, message)
        });
        health.set_unread(problem.map(|problem| (since.clone(), problem)));
    }
}
