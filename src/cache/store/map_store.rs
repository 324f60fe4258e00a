//! Plain store: client-go's `cache`, which `NewStore` returns.

use std::{collections::BTreeMap, mem};

use parking_lot::Mutex;

use super::{KeyError, KeyFunc, Store, Stored, StoredKey};
use crate::model::ObjectKey;

/// Objects in memory, sorted by key.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), informerd::cache::KeyError> {
/// use informerd::cache::{KeyFunc, MapStore, Store};
///
/// let words = MapStore::new(KeyFunc::infallible(|word: &String| word.len()));
/// words.replace(vec!["four".to_owned(), "by".to_owned()]).await?;
/// words.update("five".to_owned()).await?;
/// assert_eq!(words.list(), ["by", "five"]);
/// # Ok(())
/// # }
/// ```
#[doc(alias = "cache")]
#[doc(alias = "NewStore")]
#[derive(Debug)]
pub struct MapStore<T, K = ObjectKey> {
    key_func: KeyFunc<T, K>,
    objects: Mutex<BTreeMap<K, T>>,
}

impl<T: Stored, K: StoredKey> MapStore<T, K> {
    /// Makes an empty store.
    pub fn new(key_func: KeyFunc<T, K>) -> Self {
        Self { key_func, objects: Mutex::default() }
    }

    /// Stores an object, and returns the one that it replaces.
    pub fn insert(&self, object: T) -> Result<Option<T>, KeyError> {
        let key = self.key_func.key_of(&object)?;
        Ok(self.objects.lock().insert(key, object))
    }

    /// Removes the object with the key of this one, and returns it.
    pub fn remove(&self, object: &T) -> Result<Option<T>, KeyError> {
        let key = self.key_func.key_of(object)?;
        Ok(self.objects.lock().remove(&key))
    }

    /// Replaces everything by a list, except for what is kept.
    pub(super) fn set(&self, list: Vec<T>, keep: impl Fn(&K, Option<&T>) -> bool) -> Result<(), KeyError> {
        let mut objects: BTreeMap<K, T> = self.key_func.with_keys(list)?.into_iter().collect();
        let mut held = self.objects.lock();
        for (key, object) in held.iter().filter(|(key, object)| keep(key, Some(object))) {
            objects.entry(key.clone()).or_insert_with(|| object.clone());
        }
        let replaced = mem::replace(&mut *held, objects);
        // Dropping the old objects may take long.
        drop(held);
        drop(replaced);
        Ok(())
    }
}

impl<T: Stored, K: StoredKey> Store for MapStore<T, K> {
    type Object = T;
    type Key = K;
    type Item = T;

    fn key_of(&self, object: &T) -> Result<K, KeyError> {
        self.key_func.key_of(object)
    }

    async fn add(&self, object: T) -> Result<(), KeyError> {
        self.insert(object).map(drop)
    }

    async fn delete(&self, object: T) -> Result<(), KeyError> {
        self.remove(&object).map(drop)
    }

    async fn replace_except(&self, list: Vec<T>, keep: impl Fn(&K, Option<&T>) -> bool + Send) -> Result<(), KeyError> {
        self.set(list, keep)
    }

    fn get_by_key(&self, key: &K) -> Option<T> {
        self.objects.lock().get(key).cloned()
    }

    fn list(&self) -> Vec<T> {
        self.objects.lock().values().cloned().collect()
    }

    fn list_keys(&self) -> Vec<K> {
        self.objects.lock().keys().cloned().collect()
    }
}
