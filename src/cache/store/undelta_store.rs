//! Store that pushes its whole state: client-go's `UndeltaStore`.

use std::fmt;

use parking_lot::Mutex;

use super::{KeyError, KeyFunc, MapStore, Store, Stored, StoredKey};
use crate::model::ObjectKey;

/// Store that calls a function with all objects, sorted by key, after each successful write, also if nothing differs.
///
/// The calls are one after the other, in the order of the writes; client-go's may overlap. A write returns after its call, so the
/// function must not write to the store; it may read it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), informerd::cache::KeyError> {
/// use informerd::cache::{KeyFunc, Store, UndeltaStore};
///
/// let (sender, states) = std::sync::mpsc::channel();
/// let push = move |state: Vec<&'static str>| sender.send(state.join(" ")).unwrap();
/// let words = UndeltaStore::new(KeyFunc::infallible(|word: &&str| word.len()), push);
/// words.replace(vec!["three", "one"]).await?;
/// words.add("two").await?;
/// assert_eq!(states.try_iter().collect::<Vec<_>>(), ["one three", "two three"]);
/// # Ok(())
/// # }
/// ```
pub struct UndeltaStore<T, K = ObjectKey> {
    store: MapStore<T, K>,
    /// Held from a write to the end of its call.
    push: Mutex<Push<T>>,
}

type Push<T> = Box<dyn FnMut(Vec<T>) + Send>;

impl<T: Stored, K: StoredKey> UndeltaStore<T, K> {
    /// Makes an empty store.
    pub fn new(key_func: KeyFunc<T, K>, push: impl FnMut(Vec<T>) + Send + 'static) -> Self {
        Self { store: MapStore::new(key_func), push: Mutex::new(Box::new(push)) }
    }

    fn write<R>(&self, write: impl FnOnce(&MapStore<T, K>) -> Result<R, KeyError>) -> Result<(), KeyError> {
        let mut push = self.push.lock();
        write(&self.store)?;
        push(self.store.list());
        Ok(())
    }
}

impl<T: Stored, K: StoredKey> Store for UndeltaStore<T, K> {
    type Object = T;
    type Key = K;
    type Item = T;

    fn key_of(&self, object: &T) -> Result<K, KeyError> {
        self.store.key_of(object)
    }

    async fn add(&self, object: T) -> Result<(), KeyError> {
        self.write(|store| store.insert(object))
    }

    async fn delete(&self, object: T) -> Result<(), KeyError> {
        self.write(|store| store.remove(&object))
    }

    async fn replace_except(&self, list: Vec<T>, keep: impl Fn(&K, Option<&T>) -> bool + Send) -> Result<(), KeyError> {
        self.write(|store| store.set(list, keep))
    }

    fn get_by_key(&self, key: &K) -> Option<T> {
        self.store.get_by_key(key)
    }

    fn list(&self) -> Vec<T> {
        self.store.list()
    }

    fn list_keys(&self) -> Vec<K> {
        self.store.list_keys()
    }
}

debug_fields!([T: fmt::Debug, K: fmt::Debug] UndeltaStore<T, K> { store });
