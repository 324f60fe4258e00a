//! Routing of a change to the groups that it may concern, without evaluating every group.
//!
//! A group whose selection has a name, values of an index, of a field or of a label, or namespaces is stored under the
//! most selective of them. A change is looked up by the values of its old and its new state. All other groups see every
//! change. A route is only a coarse filter: the selection itself decides.

use std::{
    borrow::Borrow,
    collections::{BTreeSet, HashMap},
    hash::Hash,
};

use crate::model::{Change, IndexFunc, IndexMatch, Namespaces, Path, Selection};

/// Groups by the values that route to them; a group is a number.
#[derive(Debug, Default)]
pub(super) struct Routes {
    unrouted: BTreeSet<usize>,
    names: Map,
    namespaces: Map,
    indexes: HashMap<IndexFunc, Map>,
    /// Groups by path; at most [`MAX_PATHS`] of them.
    fields: HashMap<Path, Map>,
    /// Groups by label key.
    labels: HashMap<String, Map>,
}

/// Ordered sets, because one key may have very many groups, which are added and removed one by one.
type Map = HashMap<String, BTreeSet<usize>, foldhash::fast::RandomState>;

/// Maximum number of paths: each costs a walk through both bodies of every change. A group by a further path is routed by
/// its other values.
const MAX_PATHS: usize = 32;

// === impl Routes ===

impl Routes {
    /// Inserts a group under the first of these that its selection has: a name, an index, a field, a label, a namespace, or
    /// the namespaces that limit it. Returns true if more than its namespaces routes to it.
    pub(super) fn insert(&mut self, selection: &Selection, group: usize) -> bool {
        let Selection { namespace, namespaces, name, labels, fields, index, .. } = selection;
        let has_room = |path| self.fields.len() < MAX_PATHS || self.fields.contains_key(path);
        if let Some(name) = name.as_deref().or_else(|| fields.name()) {
            insert_at(&mut self.names, name, group);
        } else if let Some(IndexMatch { func, values, .. }) = index {
            let map = self.indexes.entry(func.clone()).or_default();
            for value in values {
                insert_at(map, value, group);
            }
        } else if let Some((path, value)) = fields.equality().find(|(path, _)| has_room(path)) {
            insert_at(self.fields.entry(path.clone()).or_default(), value, group);
        } else if let Some((key, values)) = labels.equality() {
            let map = self.labels.entry(key.to_owned()).or_default();
            for value in values {
                insert_at(map, value, group);
            }
        } else if let Some(namespace) = namespace.as_deref().or_else(|| fields.namespace()) {
            insert_at(&mut self.namespaces, namespace, group);
            return false;
        } else if let Some(namespaces) = namespaces {
            for namespace in namespaces.iter() {
                insert_at(&mut self.namespaces, namespace, group);
            }
            return false;
        } else {
            self.unrouted.insert(group);
            return false;
        }
        true
    }

    /// Removes a group from every place that it may have: that depends on the paths that existed when it was inserted.
    pub(super) fn remove(&mut self, selection: &Selection, group: usize) {
        let Selection { namespace, namespaces, name, labels, fields, index, .. } = selection;
        if let Some(name) = name.as_deref().or_else(|| fields.name()) {
            remove_at(&mut self.names, name, group);
        }
        if let Some(IndexMatch { func, values, .. }) = index {
            remove_of(&mut self.indexes, func, values.iter().map(String::as_str), group);
        }
        for (path, value) in fields.equality() {
            remove_of(&mut self.fields, path, [value], group);
        }
        if let Some((key, values)) = labels.equality() {
            remove_of(&mut self.labels, key, values.iter().map(AsRef::as_ref), group);
        }
        if let Some(namespace) = namespace.as_deref().or_else(|| fields.namespace()) {
            remove_at(&mut self.namespaces, namespace, group);
        }
        for namespace in namespaces.iter().flat_map(Namespaces::iter) {
            remove_at(&mut self.namespaces, namespace, group);
        }
        self.unrouted.remove(&group);
    }

    /// Returns the groups that see every change.
    pub(super) fn unrouted(&self) -> &BTreeSet<usize> {
        &self.unrouted
    }

    /// Adds the other groups that the change may concern, each once.
    pub(super) fn find(&self, change: &Change, groups: &mut Vec<usize>) {
        let key = change.object().key();
        groups.extend(self.names.get(key.name()).into_iter().flatten());
        groups.extend(self.namespaces.get(key.namespace()).into_iter().flatten());
        for state in change.old_state().into_iter().chain(change.new_state()) {
            for (func, values) in &self.indexes {
                for value in &*state.values(func) {
                    groups.extend(values.get(value).into_iter().flatten());
                }
            }
            let object = state.object();
            for (path, values) in &self.fields {
                let value = object.json().and_then(|json| path.scalar(json));
                groups.extend(value.and_then(|value| values.get(&value)).into_iter().flatten());
            }
            if !self.labels.is_empty() {
                for (key, value) in object.labels().iter() {
                    groups.extend(self.labels.get(key).and_then(|values| values.get(value)).into_iter().flatten());
                }
            }
        }
        // More than one value may lead to a group.
        groups.sort_unstable();
        groups.dedup();
    }
}

fn insert_at(map: &mut Map, key: &str, group: usize) {
    map.entry(key.to_owned()).or_default().insert(group);
}

fn remove_at(map: &mut Map, key: &str, group: usize) {
    if let Some(groups) = map.get_mut(key) {
        groups.remove(&group);
        if groups.is_empty() {
            map.remove(key);
        }
    }
}

fn remove_of<'a, K, Q>(maps: &mut HashMap<K, Map>, of: &Q, keys: impl IntoIterator<Item = &'a str>, group: usize)
where
    K: Borrow<Q> + Hash + Eq,
    Q: Hash + Eq + ?Sized,
{
    let Some(map) = maps.get_mut(of) else { return };
    for key in keys {
        remove_at(map, key, group);
    }
    if map.is_empty() {
        maps.remove(of);
    }
}

#[cfg(test)]
mod tests;
