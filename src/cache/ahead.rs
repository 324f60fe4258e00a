//! Changes that were applied above the version to resume from, and above that of a later list.
//!
//! An open version has been applied in part, and the version before it is the one to resume from ([`AppliedVersion`]). So a list may
//! be at that earlier version, older than the applied one: the origin of a relay was killed inside the open version and
//! restarted with the state before it. Invariants:
//!
//! - An applied change stays applied: a list that lacks it does not revert it.
//! - The watch from the list has to repeat each such change. If the version completes without it, the upstream's history was
//!   rewritten.
//! - A watch that resumes from the earlier version repeats all changes above it. One that is older than the applied change of its
//!   object, a deletion included, was applied before: no object is at an earlier version again, and no client receives it twice.
//!
//! [`AppliedVersion`]: crate::model::AppliedVersion

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::Arc,
};

use super::{List, Snapshot};
use crate::model::{Batch, Change, Event, Object, ObjectKey, ResourceVersion};

/// Changes that were applied ahead of the last list, and that the upstream has not repeated since.
#[derive(Debug, Default)]
pub(super) struct UnrepeatedChanges {
    changes: HashMap<ObjectKey, LastChange>,
}

/// Last change of each object above the version to resume from.
#[derive(Debug, Default)]
pub(super) struct ChangesAhead {
    versions: HashMap<ObjectKey, ResourceVersion>,
    by_version: BTreeMap<u128, Vec<ObjectKey>>,
}

/// Last change of one object.
#[derive(Debug)]
struct LastChange {
    version: ResourceVersion,
    /// State of the object without the change.
    listed: Option<Arc<Object>>,
}

// === impl ChangesAhead ===

impl ChangesAhead {
    /// Records an applied batch, and forgets the changes up to its version to resume from.
    pub(super) fn record(&mut self, batch: &Batch) {
        let safe = batch.safe();
        for change in batch.changes.iter().filter(|change| change.version > *safe) {
            let key = change.object().key();
            if self.versions.get(key).is_none_or(|known| *known < change.version) {
                self.versions.insert(key.clone(), change.version.clone());
                self.by_version.entry(change.version.number()).or_default().push(key.clone());
            }
        }
        while let Some(first) = self.by_version.first_entry().filter(|first| *first.key() <= safe.number()) {
            for key in first.remove() {
                if self.versions.get(&key).is_some_and(|version| version <= safe) {
                    self.versions.remove(&key);
                }
            }
        }
    }

    /// Returns an event; a bookmark in place of one that is older than the applied change of its object.
    pub(super) fn note(&self, event: Event) -> Event {
        if self.versions.is_empty() {
            return event;
        }
        match event.object().and_then(|object| self.versions.get(object.key())) {
            Some(applied) if event.version() < applied => Event::Bookmark(event.version().clone()),
            _ => event,
        }
    }
}

// === impl UnrepeatedChanges ===

impl UnrepeatedChanges {
    /// Replaces the objects of a list that these changes, the last one first, have changed since. The upstream need not repeat
    /// a change that the list already shows.
    pub(super) fn keep(list: &mut List, ahead: &[Change]) -> Self {
        let mut latest: HashMap<&ObjectKey, &Change> = HashMap::new();
        for change in ahead {
            latest.entry(change.object().key()).or_insert(change);
        }
        if latest.is_empty() {
            return Self::default();
        }
        let mut changes: HashMap<ObjectKey, LastChange> = HashMap::new();
        let mut listed = HashSet::new();
        // The last of two objects with one key wins.
        for object in list.objects.iter().rev() {
            if let Some((key, change)) = latest.get_key_value(object.key())
                && listed.insert(*key)
                && *object.version() < change.version
            {
                let kept = LastChange { version: change.version.clone(), listed: Some(Arc::clone(object)) };
                changes.insert((*key).clone(), kept);
            }
        }
        list.objects.retain(|object| !changes.contains_key(object.key()));
        for (key, change) in latest {
            let is_missing = change.new.is_some() && !listed.contains(key);
            if is_missing {
                changes.insert(key.clone(), LastChange { version: change.version.clone(), listed: None });
            }
            list.objects.extend(change.new.clone().filter(|_| changes.contains_key(key)));
        }
        Self { changes }
    }

    /// Notes an event, and returns it. An event older than the applied change of its object becomes a bookmark.
    pub(super) fn note(&mut self, event: Event) -> Event {
        let (key, state) = match &event {
            Event::Added(object) | Event::Modified(object) => (object.key(), Some(object)),
            Event::Deleted(object) | Event::NotServed(object) | Event::Removed(object, _) => (object.key(), None),
            Event::Bookmark(_) => return event,
        };
        match self.changes.get_mut(key) {
            Some(kept) if *event.version() < kept.version => {
                kept.listed = state.cloned();
                Event::Bookmark(event.version().clone())
            }
            Some(_) => {
                self.changes.remove(key);
                event
            }
            None => event,
        }
    }

    /// Returns an object whose change the upstream did not repeat, though the change's version is complete.
    pub(super) fn rewrite_proof(&self, complete: &ResourceVersion) -> Option<&ObjectKey> {
        self.changes.iter().find(|(_, kept)| kept.version <= *complete).map(|(key, _)| key)
    }

    /// Returns the upstream's state: the given one without the changes that the upstream has not repeated.
    pub(super) fn without(&self, state: &Snapshot) -> List {
        let others = state.objects(None, None).filter(|object| !self.changes.contains_key(object.key()));
        let listed = self.changes.values().filter_map(|kept| kept.listed.as_ref());
        List::new(others.chain(listed).cloned().collect(), state.safe_version().clone())
    }
}
