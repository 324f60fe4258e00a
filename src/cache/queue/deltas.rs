//! Deltas of a [`DeltaFifo`](super::DeltaFifo): client-go's `Deltas`.

use crate::model::ObjectKey;

/// Change of one object: client-go's `Delta`. A [`Delta`](crate::cache::Delta) of this crate is one of a whole resource.
#[doc(alias = "Delta")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ObjectDelta<T, K = ObjectKey> {
    /// Added object.
    Added(T),
    /// Updated object.
    Updated(T),
    /// Last state of a deleted object.
    Deleted(T),
    /// Deletion that nothing has reported: the object was missing in a list.
    DeletedFinalStateUnknown(Tombstone<T, K>),
    /// Object of a list that replaced everything.
    Replaced(T),
    /// Known object, queued again by a resync, or object of a list ([`emit_replaced`](super::DeltaFifoOptions::emit_replaced)).
    Sync(T),
}

/// Object that was found to be deleted.
#[doc(alias = "DeletedFinalStateUnknown")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tombstone<T, K = ObjectKey> {
    /// Key of the object.
    pub key: K,
    /// Last known state, which may be older than the one that was deleted.
    pub last_known: Option<T>,
}

/// Deltas of one key, at least one, oldest first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deltas<T, K = ObjectKey> {
    key: K,
    older: Vec<ObjectDelta<T, K>>,
    newest: ObjectDelta<T, K>,
}

// === impl ObjectDelta ===

impl<T, K> ObjectDelta<T, K> {
    /// Returns the object, or what is known of it.
    pub fn object(&self) -> Option<&T> {
        match self {
            Self::Added(object)
            | Self::Updated(object)
            | Self::Deleted(object)
            | Self::Replaced(object)
            | Self::Sync(object) => Some(object),
            Self::DeletedFinalStateUnknown(tombstone) => tombstone.last_known.as_ref(),
        }
    }

    /// Returns true for both kinds of deletion.
    pub fn is_deletion(&self) -> bool {
        matches!(self, Self::Deleted(_) | Self::DeletedFinalStateUnknown(_))
    }

    /// Returns true if this deletion has more of the object than a later one.
    fn outweighs(&self, later: &Self) -> bool {
        let is_reported = |delta: &Self| matches!(delta, Self::Deleted(_));
        let information = |delta: &Self| (is_reported(delta), delta.object().is_some());
        information(self) > information(later)
    }
}

// === impl Deltas ===

impl<T, K> Deltas<T, K> {
    /// Makes the deltas of a key.
    pub fn new(key: K, first: ObjectDelta<T, K>) -> Self {
        Self { key, older: Vec::new(), newest: first }
    }

    /// Appends a delta. Two deletions in succession become the one that has the object, else the later one.
    pub fn push(&mut self, delta: ObjectDelta<T, K>) {
        if !(self.newest.is_deletion() && delta.is_deletion()) {
            self.older.push(std::mem::replace(&mut self.newest, delta));
        } else if !self.newest.outweighs(&delta) {
            self.newest = delta;
        }
    }

    /// Returns the key.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Returns the first delta.
    pub fn oldest(&self) -> &ObjectDelta<T, K> {
        self.older.first().unwrap_or(&self.newest)
    }

    /// Returns the last delta.
    pub fn newest(&self) -> &ObjectDelta<T, K> {
        &self.newest
    }

    /// Returns the deltas, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = &ObjectDelta<T, K>> {
        self.older.iter().chain([&self.newest])
    }

    /// Appends the deltas of the same key that follow.
    pub(super) fn followed_by(mut self, newer: Self) -> Self {
        newer.into_iter().for_each(|delta| self.push(delta));
        self
    }
}

impl<T, K> IntoIterator for Deltas<T, K> {
    type Item = ObjectDelta<T, K>;
    type IntoIter = std::vec::IntoIter<ObjectDelta<T, K>>;

    fn into_iter(self) -> Self::IntoIter {
        let Self { mut older, newest, .. } = self;
        older.push(newest);
        older.into_iter()
    }
}
