//! Store and indexes of a resource, with one writer and immutable snapshots.
//!
//! Both are persistent ordered maps: a change costs O(log n), a [`Snapshot`] O(1) for the objects and for each index, and a
//! reader of a snapshot does not block the writer. An index is one ordered set of (value, key), so that the set of a value disappears with
//! its last key (kubernetes #84959), and the objects of a value are sorted by key. The entries of a value share its text; a key is
//! shared with its object. The order of the store serves as the index of the namespaces.

mod entry;
mod undo;

use std::{
    collections::{HashMap, HashSet},
    ops::Bound,
    sync::Arc,
};

use imbl::{OrdMap, OrdSet};
use smallvec::{SmallVec, smallvec};

use self::entry::{IndexEntry, IndexPosition};
use super::{List, RewriteEvidence};
use crate::model::{
    AppliedVersion, Batch, Cause, Change, Event, IndexFunc, IndexValues, Indexers, Object, ObjectKey, ResourceVersion,
};
use crate::watch::bytes_of;

/// Exclusive writer of a resource's store and indexes (client-go's `Indexer`); readers get a [`Snapshot`].
#[derive(Debug)]
pub struct Indexer {
    indexers: Arc<Indexers>,
    state: Snapshot,
}

/// State of a resource at one version: immutable, and cheap to clone.
#[derive(Debug, Clone)]
pub struct Snapshot {
    /// Number of the upstream history that the state belongs to.
    history_id: u64,
    applied: AppliedVersion,
    objects: OrdMap<ObjectKey, Arc<Object>>,
    /// Indexes in the order of the indexers; that of the namespaces is empty.
    indexes: SmallVec<[OrdSet<IndexEntry>; 2]>,
    indexers: Arc<Indexers>,
    body_bytes: usize,
    /// Cost of all changes up to this state, counted as the history does.
    replaced: u64,
    /// Number of all changes up to this state, counted as in [`HistoryPosition`](crate::model::HistoryPosition).
    offset: u64,
}

// === impl Indexer ===

impl Indexer {
    /// Fills a store from a first list.
    pub fn new(indexers: Arc<Indexers>, list: List) -> Self {
        let state = Snapshot {
            history_id: 0,
            applied: AppliedVersion::closed(list.version),
            objects: OrdMap::new(),
            indexes: smallvec![OrdSet::new(); indexers.len()],
            indexers: Arc::clone(&indexers),
            body_bytes: 0,
            replaced: 0,
            offset: 0,
        };
        let mut indexer = Self { indexers, state };
        let objects = sorted(list.objects);
        // The tree splits a full leaf into halves. Insertion in order would leave all leaves half empty for ever, so every
        // second object is inserted first, and those in between fill the leaves.
        for at in (0..objects.len()).step_by(2).chain((1..objects.len()).step_by(2)) {
            indexer.put(&objects[at]);
        }
        indexer
    }

    /// Sets what came before the store: rewritten histories, changes, and a state that readers may still hold.
    #[must_use]
    pub fn begin_history(mut self, history_id: u64, offset: u64, before: &Snapshot) -> Self {
        (self.state.history_id, self.state.offset) = (history_id, offset);
        self.state.replaced = before.replaced + before.size();
        self
    }

    /// Extends the indexes to these, which contain the present ones. Every object is in the new ones.
    pub fn extend_indexers(&mut self, indexers: Arc<Indexers>) {
        let entries = |(name, func): (&str, &IndexFunc)| match self.state.index(name) {
            Some((_, entries)) => entries.clone(),
            None => self.state.indexed_by(func),
        };
        self.state.indexes = indexers.iter().map(entries).collect();
        self.state.indexers = Arc::clone(&indexers);
        self.indexers = indexers;
    }

    /// Returns the present state.
    pub fn snapshot(&self) -> Snapshot {
        self.state.clone()
    }

    /// Returns the applied version.
    pub fn version(&self) -> &ResourceVersion {
        self.state.applied.version()
    }

    /// Applies one live event that completes its version. The store decides if an object is added or modified. Another uid
    /// under the same key is a deletion and an addition. An unchanged object and the deletion of an absent one change nothing.
    pub fn apply(&mut self, event: Event) -> Batch {
        self.apply_events([event], true)
    }

    /// Applies events in order, as one batch at the version of the last. Unless the batch `closes` that version, more changes
    /// may come at it, and the version before it stays the one to resume from. A watch that resumes before the open version
    /// neither lowers nor completes it.
    pub fn apply_events(&mut self, events: impl IntoIterator<Item = Event>, closes: bool) -> Batch {
        self.apply_changes(events, closes, Cause::Change)
    }

    /// Does the same, with the cause of deletions whose events have none: above all of an object that another uid shows.
    pub(super) fn apply_changes(
        &mut self,
        events: impl IntoIterator<Item = Event>,
        closes: bool,
        deletion: Cause,
    ) -> Batch {
        let (after, changes) = self.apply_each(events, deletion);
        let (after, is_behind) = self.not_before_applied(after);
        let (applied, closes) = (&self.state.applied, closes && !is_behind);
        // A later version closes the open one.
        let before = match (closes, after == *applied.version()) {
            (_, true) => applied.safe().clone(),
            (true, false) => applied.version().clone(),
            (false, false) => after.previous(),
        };
        self.end_batch((before, after), changes, closes)
    }

    /// Applies the events of a relist by the upstream itself as one batch, with the cause of its deletions.
    pub fn apply_relist(&mut self, events: impl IntoIterator<Item = Event>, deletion: Cause) -> Batch {
        let (after, changes) = self.apply_each(events, deletion);
        let (after, is_behind) = self.not_before_applied(after);
        self.end_relist(after, changes, is_behind)
    }

    fn apply_each(
        &mut self,
        events: impl IntoIterator<Item = Event>,
        deletion: Cause,
    ) -> (ResourceVersion, Vec<Change>) {
        let mut after = self.version().clone();
        // Nearly always there is one event, and the history keeps this vector.
        let mut changes = Vec::with_capacity(1);
        for event in events {
            after.clone_from(event.version());
            match event {
                Event::Added(new) | Event::Modified(new) => match self.state.objects.get(new.key()).cloned() {
                    Some(old) if is_unchanged(&old, &new) => {}
                    Some(old) if is_replaced(&old, &new) => {
                        changes.extend(self.delete(&old, &after, deletion));
                        changes.push(self.upsert(None, new));
                    }
                    old => changes.push(self.upsert(old, new)),
                },
                Event::Deleted(last) => changes.extend(self.remove(&last, &after, deletion)),
                Event::Removed(last, cause) => changes.extend(self.remove(&last, &after, cause)),
                Event::NotServed(new) => {
                    let old = self.state.objects.get(new.key()).cloned();
                    changes.extend(old.and_then(|old| {
                        let cause = if is_replaced(&old, &new) { deletion } else { Cause::NotServed };
                        self.delete(&old, &after, cause)
                    }));
                }
                Event::Bookmark(_) => {}
            }
        }
        (after, changes)
    }

    /// Replaces everything by a newer list, as one batch. First come the deletions of vanished objects, with
    /// [`Cause::Inferred`] (or [`Cause::NotServed`] if they still exist), then additions and modifications in the list's order.
    /// An unchanged object produces nothing, nor one that an unreadable item may be. A list older than the open version leaves it
    /// open: what the list lacks changed there.
    pub fn replace(&mut self, mut list: List) -> Batch {
        let (objects, existing) = (std::mem::take(&mut list.objects), std::mem::take(&mut list.not_served));
        let (after, is_behind) = self.not_before_applied(list.version.clone());
        let existing: HashMap<&ObjectKey, &Arc<Object>> =
            existing.iter().map(|object| (object.key(), object)).collect();
        let mut listed: HashSet<ObjectKey, foldhash::fast::RandomState> =
            HashSet::with_capacity_and_hasher(objects.len(), foldhash::fast::RandomState::default());
        // The last of two objects with one key wins, so the list is read from its end.
        let mut objects: Vec<Arc<Object>> =
            objects.into_iter().rev().filter(|object| listed.insert(object.key().clone())).collect();
        objects.reverse();

        let (held, unreadable) = (self.state.objects.clone(), list.unreadable());
        let vanished = held.values().filter(|old| !listed.contains(old.key()) && !unreadable.may_be(old));
        let replaced = objects.iter().filter_map(|new| held.get(new.key()).filter(|old| is_replaced(old, new)));
        let mut changes = Vec::new();
        for old in vanished.chain(replaced) {
            let still_exists = existing.get(old.key()).is_some_and(|new| !is_replaced(old, new));
            let cause = match still_exists {
                true => Cause::NotServed,
                false if is_behind => Cause::Change,
                false => Cause::Inferred,
            };
            changes.extend(self.delete(old, &after, cause));
        }
        for new in objects {
            let old = self.state.objects.get(new.key()).cloned();
            if old.as_ref().is_none_or(|old| !is_unchanged(old, &new)) {
                changes.push(self.upsert(old, new));
            }
        }
        self.end_relist(after, changes, is_behind)
    }

    /// Returns the version to reach, and true if the input is older than the applied version.
    fn not_before_applied(&self, version: ResourceVersion) -> (ResourceVersion, bool) {
        let is_behind = version < *self.version();
        (if is_behind { self.version().clone() } else { version }, is_behind)
    }

    /// Ends a relist. It closes an open version and may contain the rest of that version, unless it is older.
    fn end_relist(&mut self, after: ResourceVersion, mut changes: Vec<Change>, is_behind: bool) -> Batch {
        // There may be as many as there are objects, and the history keeps them.
        for change in &mut changes {
            change.index_values = None;
        }
        let before = self.state.applied.safe().clone();
        Batch { is_relist: !is_behind, ..self.end_batch((before, after), changes, !is_behind) }
    }

    fn end_batch(
        &mut self,
        (before, after): (ResourceVersion, ResourceVersion),
        changes: Vec<Change>,
        closes: bool,
    ) -> Batch {
        self.state.applied.advance(&after, closes);
        self.state.replaced += cost(&changes);
        self.state.offset += changes.len() as u64;
        let is_open = *self.state.applied.safe() == before;
        Batch { before, after, changes, is_relist: false, is_open }
    }

    fn upsert(&mut self, old: Option<Arc<Object>>, new: Arc<Object>) -> Change {
        let index_values = self.put(&new);
        Change { old, version: new.version().clone(), new: Some(new), cause: Cause::Change, index_values }
    }

    /// Deletes an object, unless another one has its key already.
    fn remove(&mut self, last: &Object, version: &ResourceVersion, cause: Cause) -> Option<Change> {
        let old = self.state.objects.get(last.key()).filter(|old| !is_replaced(old, last)).cloned();
        old.and_then(|old| self.delete(&old, version, cause))
    }

    fn delete(&mut self, old: &Arc<Object>, version: &ResourceVersion, cause: Cause) -> Option<Change> {
        let old = self.state.objects.remove(old.key())?;
        self.state.body_bytes -= old.body().len();
        let index_values = self.reindex(Some(&old), None);
        Some(Change { version: version.clone(), old: Some(old), new: None, cause, index_values })
    }

    fn put(&mut self, new: &Arc<Object>) -> Option<Arc<IndexValues>> {
        self.state.body_bytes += new.body().len();
        let old = self.state.objects.insert(new.key().clone(), Arc::clone(new));
        self.state.body_bytes -= old.as_ref().map_or(0, |old| old.body().len());
        self.reindex(old.as_ref(), Some(new))
    }

    /// Moves an object to its new places in the indexes. Returns the values; `None` if the namespace is the only index.
    fn reindex<'a>(&mut self, old: Option<&'a Arc<Object>>, new: Option<&'a Arc<Object>>) -> Option<Arc<IndexValues>> {
        if self.indexers.len() == 1 {
            return None;
        }
        let none = || self.indexers.iter().map(|_| SmallVec::new()).collect();
        let values = |object: Option<&'a Arc<Object>>| object.map_or_else(none, |object| self.indexers.values(object));
        let (old_values, new_values) = (values(old), values(new));
        for ((old_values, new_values), index) in old_values.iter().zip(&new_values).zip(&mut self.state.indexes) {
            for value in old_values.iter().filter(|value| new_values.binary_search(value).is_err()) {
                old.and_then(|old| index.remove(&IndexPosition { value, key: Some(old.key()) }));
            }
            for value in new_values.iter().filter(|value| old_values.binary_search(value).is_err()) {
                new.and_then(|new| index.insert(IndexEntry::new(index, value, new.key())));
            }
        }
        Some(Arc::new(IndexValues::new(&self.indexers, old_values, new_values)))
    }
}

/// Returns the bytes that these changes cost in the history.
fn cost(changes: &[Change]) -> u64 {
    changes.iter().map(|change| bytes_of(change.old.as_ref()) as u64).sum()
}

/// Sorts by key; of two objects with one key the later stays.
fn sorted(mut objects: Vec<Arc<Object>>) -> Vec<Arc<Object>> {
    objects.reverse();
    objects.sort_by(|a, b| a.key().cmp(b.key()));
    objects.dedup_by(|earlier, later| earlier.key() == later.key());
    objects
}

/// Returns true for the same version of the same object.
fn is_same(old: &Object, new: &Object) -> bool {
    old.version() == new.version() && !is_replaced(old, new)
}

/// Returns true if an object is unchanged, live or in a relist: the same version, labels (which a view may have left out of the body)
/// and bytes of the same type (which a list may imply). For sources without versions of their own any version counts as the same,
/// and the held object keeps its own. Others may have new bytes at old versions, after a new CRD default for example.
fn is_unchanged(old: &Object, new: &Object) -> bool {
    let is_same_type = || old.kind() == new.kind() && old.api_version() == new.api_version();
    let is_equal = || old.body() == new.body() && is_same_type() && old.labels().iter().eq(new.labels().iter());
    let has_version = old.version() == new.version() || new.version().lineage().is_some();
    has_version && !is_replaced(old, new) && is_equal()
}

/// Returns true for another object under the same key. A source without uids cannot show it.
pub(super) fn is_replaced(old: &Object, new: &Object) -> bool {
    old.uid() != new.uid() && !old.uid().is_empty() && !new.uid().is_empty()
}

// === impl Snapshot ===

impl Snapshot {
    /// Returns the number of upstream histories before this state's, all of them rewritten.
    pub fn history_id(&self) -> u64 {
        self.history_id
    }

    /// Returns the version of this state.
    pub fn version(&self) -> &ResourceVersion {
        self.applied.version()
    }

    /// Returns the version to watch from: the previous one, while more changes may come at the version of this state.
    pub fn safe_version(&self) -> &ResourceVersion {
        self.applied.safe()
    }

    /// Returns an object of a newer list that contradicts the held state, and so proves that the upstream's history was
    /// rewritten. If the upstream assigns the versions, each listed object up to the last complete version must be held as it
    /// is, as far as that is [evidence](RewriteEvidence), and a list at that very version must have each held object. Versions that
    /// the source assigns prove nothing.
    pub fn rewrite_proof<'a>(&'a self, list: &'a List, rewrite_evidence: RewriteEvidence) -> Option<&'a ObjectKey> {
        let known = self.safe_version();
        let is_new = |object: &Object| list.new_namespaces.iter().any(|new| new == object.key().namespace());
        let is_old =
            |object: &Object| object.version() <= known && object.version().lineage().is_none() && !is_new(object);
        let is_held = |object: &Object| {
            let has_bytes = |held: &Object| rewrite_evidence < RewriteEvidence::Bytes || held.body() == object.body();
            match self.objects.get(object.key()) {
                Some(held) => is_same(held, object) && has_bytes(held),
                None => rewrite_evidence == RewriteEvidence::Held,
            }
        };
        let changed = list.objects.iter().find(|object| is_old(object) && !is_held(object));
        changed.map(|object| object.key()).or_else(|| {
            let is_whole =
                list.version == *known && known.lineage().is_none() && rewrite_evidence > RewriteEvidence::Held;
            is_whole.then(|| self.missing(list)).flatten()
        })
    }

    /// Returns an object that is held and not listed, in a namespace that the list covers.
    fn missing<'a>(&'a self, list: &List) -> Option<&'a ObjectKey> {
        let is_lost = |key: &ObjectKey| list.lost_namespaces.iter().any(|lost| lost == key.namespace());
        let listed: HashSet<&ObjectKey, foldhash::fast::RandomState> =
            list.objects.iter().chain(&list.not_served).map(|object| object.key()).collect();
        let unreadable = list.unreadable();
        let is_missing = |key: &ObjectKey, held| !listed.contains(key) && !is_lost(key) && !unreadable.may_be(held);
        self.objects.iter().find(|(key, held)| is_missing(key, held)).map(|(key, _)| key)
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Returns true if there are no objects.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Returns the size of all bodies, in bytes.
    pub fn body_bytes(&self) -> usize {
        self.body_bytes
    }

    /// Returns the cost of all changes up to this state in bytes, counted as in the history of the resource. The difference
    /// between two snapshots is the size of the object states replaced in between.
    pub fn replaced_bytes(&self) -> u64 {
        self.replaced
    }

    /// Returns an upper bound of the memory that this state takes if nothing else holds its objects.
    pub fn size(&self) -> u64 {
        (self.body_bytes + self.objects.len() * bytes_of(None)) as u64
    }

    /// Returns the object with this key.
    pub fn get(&self, key: &ObjectKey) -> Option<&Arc<Object>> {
        self.objects.get(key)
    }

    /// Returns the objects sorted by key, from strictly after `after` on, in one namespace or in all.
    pub fn objects<'a>(
        &'a self,
        namespace: Option<&'a str>,
        after: Option<&ObjectKey>,
    ) -> impl Iterator<Item = &'a Arc<Object>> + use<'a> {
        let start = match (after, namespace.map(ObjectKey::first_of_namespace)) {
            (Some(after), Some(first)) if *after < first => Bound::Included(first),
            (Some(after), _) => Bound::Excluded(after.clone()),
            (None, Some(first)) => Bound::Included(first),
            (None, None) => Bound::Unbounded,
        };
        self.objects
            .range((start, Bound::Unbounded))
            .map(|(_, object)| object)
            .take_while(move |object| namespace.is_none_or(|namespace| object.key().namespace() == namespace))
    }

    /// Returns the namespaces that have objects, sorted; the empty text stands for objects without one.
    pub fn namespaces(&self) -> Vec<String> {
        let mut namespaces: Vec<String> = Vec::new();
        let mut start = Bound::Unbounded;
        while let Some((key, _)) = self.objects.range((start, Bound::Unbounded)).next() {
            let namespace = key.namespace();
            // No namespace has a character below this one, so the next namespace begins after it.
            start = Bound::Included(ObjectKey::first_of_namespace(&format!("{namespace}\u{1}")));
            namespaces.push(namespace.to_owned());
        }
        namespaces
    }

    /// Returns the objects under one value of an index, sorted by key, from strictly after `after` on. `None` if there is no
    /// such index; a value without objects gives none.
    pub fn by_index<'a>(
        &'a self,
        index: &str,
        value: &'a str,
        after: Option<&ObjectKey>,
    ) -> Option<impl Iterator<Item = &'a Arc<Object>> + use<'a>> {
        let (func, entries) = self.index(index)?;
        let place = IndexPosition { value, key: after };
        let start = if after.is_some() { Bound::Excluded(place) } else { Bound::Included(place) };
        let entries = entries.range::<_, IndexPosition<'_>>((start, Bound::Unbounded));
        let of_value = entries.take_while(move |entry| *entry.value == *value);
        // No object has the empty value for its namespace.
        let is_namespace = *func == IndexFunc::Namespace && !value.is_empty();
        let objects = is_namespace.then(|| self.objects(Some(value), after)).into_iter().flatten();
        Some(of_value.filter_map(|entry| self.objects.get(&entry.key)).chain(objects))
    }

    /// Returns the values of an index, sorted, each with the keys of the objects under it, from strictly after `after` on.
    /// `None` if there is no such index.
    pub fn index_values(
        &self,
        index: &str,
        after: Option<&str>,
    ) -> Option<impl Iterator<Item = (&str, &ObjectKey)> + use<'_>> {
        let (func, entries) = self.index(index)?;
        // The first text after another.
        let first = after.map(|after| format!("{after}\0"));
        let start =
            first.as_deref().map_or(Bound::Unbounded, |value| Bound::Included(IndexPosition { value, key: None }));
        let entries = entries.range::<_, IndexPosition<'_>>((start, Bound::Unbounded));
        let entries = entries.map(|entry| (&*entry.value, &entry.key));
        // No object has the empty value for its namespace, and no namespace has a zero in it, which ends it in a key.
        let is_namespace = *func == IndexFunc::Namespace;
        let first = ObjectKey::first_of_namespace(&format!("{}\u{1}", after.unwrap_or_default()));
        let objects = is_namespace.then(|| self.objects(None, Some(&first))).into_iter().flatten();
        Some(entries.chain(objects.map(|object| (object.key().namespace(), object.key()))))
    }

    /// Returns the index functions of this state.
    pub fn indexers(&self) -> &Arc<Indexers> {
        &self.indexers
    }

    /// Returns the entries of all objects in an index with this function. The key has the namespace.
    fn indexed_by(&self, func: &IndexFunc) -> OrdSet<IndexEntry> {
        let mut index = OrdSet::new();
        for object in self.objects.values().filter(|_| *func != IndexFunc::Namespace) {
            for value in func.values(object) {
                index.insert(IndexEntry::new(&index, &value, object.key()));
            }
        }
        index
    }

    fn index(&self, name: &str) -> Option<(&IndexFunc, &OrdSet<IndexEntry>)> {
        let mut indexes = self.indexers.iter().zip(&self.indexes);
        indexes.find_map(|((index, func), entries)| (index == name).then_some((func, entries)))
    }
}

#[cfg(test)]
mod tests;
