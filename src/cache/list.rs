//! List of a resource, and the differences in it that prove a rewritten history.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

use crate::model::{Object, ObjectKey, ResourceVersion};

/// Whole resource at one version. Of two objects with the same key the last wins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    /// Every object, in any order.
    pub objects: Vec<Arc<Object>>,
    /// Version of the list: a watch from it has neither gap nor overlap.
    pub version: ResourceVersion,
    /// Objects that exist and cannot be served, with their keys and uids only. One that was served before is DELETED with
    /// [`Cause::NotServed`](crate::model::Cause::NotServed) instead of [`Cause::Inferred`](crate::model::Cause::Inferred).
    pub not_served: Vec<Arc<Object>>,
    /// Items that exist and cannot be read: the held state of their objects stays.
    pub unreadable: Vec<UnreadableItem>,
    /// Namespaces that earlier lists did not cover: their objects prove nothing about the history.
    pub new_namespaces: Vec<String>,
    /// Namespaces that earlier lists covered and this one does not.
    pub lost_namespaces: Vec<String>,
    /// True if the previous run may have sent clients changes above the version reached now, and this list hides their outcome:
    /// no client can resume from an older version.
    pub expires_older: bool,
    /// Version since which nothing has changed, of a saved state: clients resume from it, too.
    pub unchanged_since: Option<ResourceVersion>,
}

/// Identity of an item of a list that cannot be read, as far as that can be. One with neither may be any object, so that no absence
/// from its list is a deletion.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnreadableItem {
    /// Key; `None` if it cannot be read.
    pub key: Option<ObjectKey>,
    /// Uid; empty if it cannot be read.
    pub uid: String,
}

/// Unreadable items of a list, by what is known of each.
#[derive(Debug, Default)]
pub(super) struct UnreadableObjects<'a> {
    by_key: HashMap<&'a ObjectKey, &'a str>,
    uids: HashSet<&'a str>,
    has_unknown: bool,
}

/// Difference between a list and the held state, at known versions, that proves a rewritten history.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RewriteEvidence {
    /// Object at another version than the held one. The Kubernetes API can change the result of a field selector without a
    /// change of the object.
    Held,
    /// The same, or an object that is not held.
    #[default]
    Listed,
    /// The same, or other bytes at the same version: for upstreams that store bytes. The Kubernetes API encodes stored objects
    /// anew, by its own version and its conversions; a relay does not know the kind of its origin.
    Bytes,
}

// === impl List ===

impl List {
    /// Makes a list of objects that can all be served.
    pub fn new(objects: Vec<Arc<Object>>, version: ResourceVersion) -> Self {
        Self {
            objects,
            version,
            not_served: Vec::new(),
            unreadable: Vec::new(),
            new_namespaces: Vec::new(),
            lost_namespaces: Vec::new(),
            expires_older: false,
            unchanged_since: None,
        }
    }

    /// Adds the held objects that an unreadable item may be.
    pub(super) fn keep_unread<'a>(&mut self, held: impl Iterator<Item = &'a Arc<Object>>) {
        let unreadable = self.unreadable();
        let listed: HashSet<&ObjectKey> = self.objects.iter().map(|object| object.key()).collect();
        let is_kept = |held: &&Arc<Object>| unreadable.may_be(held) && !listed.contains(held.key());
        let kept: Vec<_> = held.filter(is_kept).cloned().collect();
        self.objects.extend(kept);
    }

    /// Returns the identities of the unreadable items, for a look-up by object.
    pub(super) fn unreadable(&self) -> UnreadableObjects<'_> {
        let mut unreadable = UnreadableObjects { has_unknown: self.has_unknown(), ..UnreadableObjects::default() };
        for UnreadableItem { key, uid } in &self.unreadable {
            match key {
                Some(key) => drop(unreadable.by_key.insert(key, uid)),
                None => drop(unreadable.uids.insert(uid)),
            }
        }
        unreadable
    }

    /// Returns true if an unreadable item may be any object.
    pub fn has_unknown(&self) -> bool {
        self.unreadable.iter().any(|item| item.key.is_none() && item.uid.is_empty())
    }
}

// === impl UnreadableObjects ===

impl UnreadableObjects<'_> {
    /// Returns true if one of the items may be this held object.
    pub(super) fn may_be(&self, held: &Object) -> bool {
        let is_of = |uid: &&str| uid.is_empty() || held.uid().is_empty() || *uid == held.uid();
        self.has_unknown || self.uids.contains(held.uid()) || self.by_key.get(held.key()).is_some_and(is_of)
    }

    /// Returns true if one of the items may be the object with this key, of which nothing else is known.
    pub(super) fn may_have(&self, key: &ObjectKey) -> bool {
        self.has_unknown || !self.uids.is_empty() || self.by_key.contains_key(key)
    }
}
