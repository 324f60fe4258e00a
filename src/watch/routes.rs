//! Routing of a change to the readers that it may concern, without evaluating the selection of each.
//!
//! A reader whose selection has a name, values of an index, of a field or of a label, a shard, or namespaces is stored under
//! the most selective of them. A change is looked up by the values of its old and its new state. All other readers see
//! every change. A route is only a coarse filter: the selection itself decides.
//!
//! Shards are stored by blocks of hashes, a segment tree: block 1 has all hashes, and the halves of block n are the blocks 2n
//! and 2n + 1. A range is stored under the fewest blocks that have it, and a hash is in one block of each size. So both cost the
//! same whatever the number of shards, and however they overlap.

use std::{
    borrow::Borrow,
    collections::{BTreeSet, HashMap},
    hash::Hash,
};

use crate::model::{Change, IndexFunc, IndexMatch, Namespaces, Path, Selection, ShardKey, ShardRange};

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
    /// Groups by the key of their shard, and by the blocks of its hashes.
    shards: HashMap<ShardKey, Map<u32>>,
}

/// Ordered sets, because one key may have very many groups, which are added and removed one by one.
type Map<K = String> = HashMap<K, BTreeSet<usize>, foldhash::fast::RandomState>;

/// Maximum number of paths: each costs a walk through both bodies of every change. A group by a further path is routed by
/// its other values.
const MAX_PATHS: usize = 32;

/// First of the smallest blocks, each of which is a part of 2^16 of the hashes. Shards whose border is within one of these are both
/// found for it.
const SMALLEST: u32 = 1 << 16;

// === impl Routes ===

impl Routes {
    /// Inserts a group under the first of these that its selection has: a name, an index, a field, a label, a shard, a
    /// namespace, or the namespaces that limit it. Returns false if it may be found for many changes that it does not select: at
    /// most its namespaces route to it, or a shard, beside which it has other parts.
    pub(super) fn insert(&mut self, selection: &Selection, group: usize) -> bool {
        let Selection { namespace, namespaces, name, labels, fields, index, shard, .. } = selection;
        let is_path = |key: &&ShardKey| matches!(key, ShardKey::Path(_));
        let has_more = self.fields.len() + self.shards.keys().filter(is_path).count() < MAX_PATHS;
        let has_room = |path| has_more || self.fields.contains_key(path);
        let is_routed = |key| has_more || !is_path(&key) || self.shards.contains_key(key);
        if let Some(name) = name.as_deref().or_else(|| fields.name()) {
            insert_at(&mut self.names, name.to_owned(), group);
        } else if let Some(IndexMatch { func, values, .. }) = index {
            let map = self.indexes.entry(func.clone()).or_default();
            for value in values {
                insert_at(map, value.clone(), group);
            }
        } else if let Some((path, value)) = fields.equality().find(|(path, _)| has_room(path)) {
            insert_at(self.fields.entry(path.clone()).or_default(), value.to_owned(), group);
        } else if let Some((key, values)) = labels.equality() {
            let map = self.labels.entry(key.to_owned()).or_default();
            for value in values {
                insert_at(map, value.to_string(), group);
            }
        } else if let Some(shard) = shard.as_ref().filter(|shard| is_routed(shard.key())) {
            let map = self.shards.entry(shard.key().clone()).or_default();
            for block in shard.ranges().iter().flat_map(blocks) {
                insert_at(map, block, group);
            }
            return Selection { shard: None, ..selection.clone() }.selects_all();
        } else if let Some(namespace) = namespace.as_deref().or_else(|| fields.namespace()) {
            insert_at(&mut self.namespaces, namespace.to_owned(), group);
            return false;
        } else if let Some(namespaces) = namespaces {
            for namespace in namespaces.iter() {
                insert_at(&mut self.namespaces, namespace.to_owned(), group);
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
        let Selection { namespace, namespaces, name, labels, fields, index, shard, .. } = selection;
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
        if let Some(shard) = shard
            && let Some(map) = self.shards.get_mut(shard.key())
        {
            for block in shard.ranges().iter().flat_map(blocks) {
                remove_at(map, &block, group);
            }
            if map.is_empty() {
                self.shards.remove(shard.key());
            }
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
                let value = object.json().and_then(|json| path.scalar_of_json(json));
                groups.extend(value.and_then(|value| values.get(&*value)).into_iter().flatten());
            }
            for (key, groups_of) in &self.shards {
                let mut block = block_of(key.hash(object));
                while block > 0 {
                    groups.extend(groups_of.get(&block).into_iter().flatten());
                    block /= 2;
                }
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

/// Returns the smallest block with a hash.
fn block_of(hash: u64) -> u32 {
    SMALLEST + (hash >> 48) as u32
}

/// Returns the fewest blocks that have all hashes of a range.
fn blocks(range: &ShardRange) -> Vec<u32> {
    let (mut first, mut after) = (block_of(range.first()), block_of(range.last()) + 1);
    let mut blocks = Vec::new();
    while first < after {
        if first % 2 == 1 {
            blocks.push(first);
            first += 1;
        }
        if after % 2 == 1 {
            after -= 1;
            blocks.push(after);
        }
        (first, after) = (first / 2, after / 2);
    }
    blocks
}

fn insert_at<K: Hash + Eq>(map: &mut Map<K>, key: K, group: usize) {
    map.entry(key).or_default().insert(group);
}

fn remove_at<K: Borrow<Q> + Hash + Eq, Q: Hash + Eq + ?Sized>(map: &mut Map<K>, key: &Q, group: usize) {
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
