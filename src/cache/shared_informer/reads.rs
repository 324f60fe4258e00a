//! Reads of a state, as values of a program's type.

use std::sync::Arc;

use super::{
    decoder::{Decode, Decoder, Undecodable},
    entry::Entry,
};
use crate::{
    cache::{Scan, Snapshot},
    model::{Indexers, Object, ObjectKey, ResourceVersion},
};

/// State of a [`SharedInformer`](super::SharedInformer) at one version: all its reads agree. Before the first list it is empty and
/// has no version.
///
/// Objects that cannot be decoded are left out of everything but the keys.
#[derive(Debug)]
pub struct TypedSnapshot<T> {
    snapshot: Option<Arc<Snapshot>>,
    indexers: Arc<Indexers>,
    decoder: Arc<Decoder<T>>,
}

/// Indicates a name that no index has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("index {name:?} not found")]
pub struct UnknownIndex {
    /// Name as it was given.
    pub name: String,
}

// === impl TypedSnapshot ===

impl<T: Decode> TypedSnapshot<T> {
    pub(super) fn new(snapshot: Option<Arc<Snapshot>>, indexers: Arc<Indexers>, decoder: Arc<Decoder<T>>) -> Self {
        let indexers = snapshot.as_ref().map_or(indexers, |snapshot| Arc::clone(snapshot.indexers()));
        Self { snapshot, indexers, decoder }
    }

    /// Returns the version of the state.
    pub fn version(&self) -> Option<&ResourceVersion> {
        self.snapshot.as_deref().map(Snapshot::version)
    }

    /// Returns the version that a program can resume from: that of the state, or the one before it while more changes may come at it.
    pub fn safe_version(&self) -> Option<&ResourceVersion> {
        self.snapshot.as_deref().map(Snapshot::safe_version)
    }

    /// Returns the object with this key.
    pub fn get(&self, key: &ObjectKey) -> Option<Entry<T>> {
        self.snapshot.as_ref()?.get(key).and_then(|object| self.decoder.decode(object))
    }

    /// Returns all objects, sorted by key.
    pub fn list(&self) -> Vec<Entry<T>> {
        self.objects().filter_map(|object| self.decoder.decode(object)).collect()
    }

    /// Returns the keys of all objects, sorted.
    pub fn list_keys(&self) -> Vec<ObjectKey> {
        self.objects().map(|object| object.key().clone()).collect()
    }

    /// Returns the objects under a value of an index, sorted by key.
    pub fn by_index(&self, index: &str, value: &str) -> Result<Vec<Entry<T>>, UnknownIndex> {
        self.check(index)?;
        Ok(self.under(index, value).filter_map(|object| self.decoder.decode(object)).collect())
    }

    /// Returns the keys of the objects under a value of an index, sorted.
    pub fn index_keys(&self, index: &str, value: &str) -> Result<Vec<ObjectKey>, UnknownIndex> {
        self.check(index)?;
        Ok(self.under(index, value).map(|object| object.key().clone()).collect())
    }

    /// Returns the objects that share at least one value of an index with `object`, each once, sorted by key.
    pub fn index(&self, index: &str, object: &Object) -> Result<Vec<Entry<T>>, UnknownIndex> {
        let values = self.indexers.get(index).map(|func| func.values(object)).ok_or_else(|| unknown(index))?;
        let scan = Scan::Index { name: index.to_owned(), values };
        let found = self.snapshot.iter().flat_map(|snapshot| scan.objects(snapshot, None));
        Ok(found.filter_map(|object| self.decoder.decode(object)).collect())
    }

    /// Returns the values of an index that at least one object has, sorted.
    pub fn list_index_func_values(&self, index: &str) -> Result<Vec<String>, UnknownIndex> {
        self.check(index)?;
        let values = self.snapshot.as_deref().and_then(|snapshot| snapshot.index_values(index, None));
        let mut values: Vec<&str> = values.into_iter().flatten().map(|(value, _)| value).collect();
        values.dedup();
        Ok(values.into_iter().map(str::to_owned).collect())
    }

    /// Decodes the objects that have not been used yet, and returns the reasons of those that cannot be decoded.
    pub fn undecodable(&self) -> Vec<Arc<Undecodable>> {
        self.objects().filter_map(|object| T::decode(object, &self.decoder).err()).collect()
    }

    fn objects(&self) -> impl Iterator<Item = &Arc<Object>> {
        self.snapshot.iter().flat_map(|snapshot| snapshot.objects(None, None))
    }

    fn under<'a>(&'a self, index: &str, value: &'a str) -> impl Iterator<Item = &'a Arc<Object>> + use<'a, T> {
        let found = self.snapshot.as_deref().and_then(|snapshot| snapshot.by_index(index, value, None));
        found.into_iter().flatten()
    }

    fn check(&self, index: &str) -> Result<(), UnknownIndex> {
        if self.indexers.get(index).is_some() { Ok(()) } else { Err(unknown(index)) }
    }
}

fn unknown(index: &str) -> UnknownIndex {
    UnknownIndex { name: index.to_owned() }
}
