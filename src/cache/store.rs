//! Stores of objects by key: client-go's `Store`, over any type with a key function.
//!
//! | type | reads | besides |
//! |---|---|---|
//! | [`MapStore`] | the stored objects | |
//! | [`UndeltaStore`] | the stored objects | pushes the whole state after each write |
//! | [`ExpirationCache`] | the objects that have not expired | removes the others |
//! | [`Fifo`](super::Fifo), [`DeltaFifo`](super::DeltaFifo) | what is queued | hands it out by [`Queue::pop`](super::Queue::pop) |

mod expiration_cache;
mod map_store;
mod undelta_store;

use std::{error::Error, fmt, sync::Arc};

pub use self::{
    expiration_cache::{ExpirationCache, TimestampedEntry},
    map_store::MapStore,
    undelta_store::UndeltaStore,
};
use crate::model::{Object, ObjectKey};

/// Objects by key. Its writes are futures because a [`Queue`](super::Queue) that is full waits; those of other stores are ready
/// at once.
///
/// # Cancel safety
///
/// A write whose future is dropped before it is ready has changed nothing.
pub trait Store: Send + Sync + 'static {
    /// Type of the objects.
    type Object: Stored;
    /// Type of the keys, which determines the order of the lists.
    type Key: StoredKey;
    /// Type that is read under a key: an object, or in a [`DeltaFifo`](super::DeltaFifo) the deltas of one.
    type Item: Stored;

    /// Returns the key of an object.
    fn key_of(&self, object: &Self::Object) -> Result<Self::Key, KeyError>;

    /// Stores an object, also if there is one with its key.
    fn add(&self, object: Self::Object) -> impl Future<Output = Result<(), KeyError>> + Send;

    /// Stores an object, also if there is none with its key; without a method of its own as [`Store::add`] does.
    fn update(&self, object: Self::Object) -> impl Future<Output = Result<(), KeyError>> + Send {
        self.add(object)
    }

    /// Removes the object with the key of this one, if there is one.
    fn delete(&self, object: Self::Object) -> impl Future<Output = Result<(), KeyError>> + Send;

    /// Replaces everything by a list; of equal keys the last one counts.
    fn replace(&self, list: Vec<Self::Object>) -> impl Future<Output = Result<(), KeyError>> + Send {
        self.replace_except(list, |_, _| false)
    }

    /// Replaces by a list everything that `keep` returns false for: an object that the list lacks stays if it may exist. The
    /// function gets the key, and the object where the store has one.
    fn replace_except(
        &self,
        list: Vec<Self::Object>,
        keep: impl Fn(&Self::Key, Option<&Self::Object>) -> bool + Send,
    ) -> impl Future<Output = Result<(), KeyError>> + Send;

    /// Queues the known objects again; nothing for a store that is no queue.
    fn resync(&self) -> impl Future<Output = Result<(), KeyError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Returns the item with the key of an object.
    fn get(&self, object: &Self::Object) -> Result<Option<Self::Item>, KeyError> {
        Ok(self.get_by_key(&self.key_of(object)?))
    }

    /// Returns the item with this key.
    fn get_by_key(&self, key: &Self::Key) -> Option<Self::Item>;

    /// Returns all items, sorted by key.
    fn list(&self) -> Vec<Self::Item>;

    /// Returns the keys, sorted.
    fn list_keys(&self) -> Vec<Self::Key>;
}

/// Bounds of the types in a [`Store`]. `Arc<T>` makes the clones cheap.
pub trait Stored: Clone + fmt::Debug + Send + Sync + 'static {}

impl<T: Clone + fmt::Debug + Send + Sync + 'static> Stored for T {}

/// Bounds of the keys of a [`Store`].
pub trait StoredKey: Stored + Ord {}

impl<K: Stored + Ord> StoredKey for K {}

/// Function that computes the key of an object, always the same one for the same object.
pub struct KeyFunc<T, K = ObjectKey>(Arc<Function<T, K>>);

type Function<T, K> = dyn Fn(&T) -> Result<K, Cause> + Send + Sync;
type Cause = Box<dyn Error + Send + Sync>;

/// Indicates an object without a key. Nothing was changed.
#[derive(Debug, thiserror::Error)]
#[error("no key for an object: {cause}")]
pub struct KeyError {
    /// The object, for its `Debug`. It is not in the message: it may be large, or a secret.
    pub object: Box<dyn fmt::Debug + Send + Sync>,
    /// Error of the key function.
    #[source]
    pub cause: Box<dyn Error + Send + Sync>,
}

// === impl KeyFunc ===

impl<T: Stored, K: StoredKey> KeyFunc<T, K> {
    /// Wraps a function that may fail.
    pub fn new<E: Into<Cause>>(key: impl Fn(&T) -> Result<K, E> + Send + Sync + 'static) -> Self {
        Self(Arc::new(move |object| key(object).map_err(Into::into)))
    }

    /// Wraps a function that cannot fail.
    pub fn infallible(key: impl Fn(&T) -> K + Send + Sync + 'static) -> Self {
        Self(Arc::new(move |object| Ok(key(object))))
    }

    /// Returns the key of an object.
    pub fn key_of(&self, object: &T) -> Result<K, KeyError> {
        (self.0)(object).map_err(|cause| KeyError { object: Box::new(object.clone()), cause })
    }

    /// Returns the objects with their keys, in order.
    pub(super) fn with_keys(&self, list: Vec<T>) -> Result<Vec<(K, T)>, KeyError> {
        list.into_iter().map(|object| Ok((self.key_of(&object)?, object))).collect()
    }
}

/// Key of the objects of a resource: namespace and name.
impl Default for KeyFunc<Arc<Object>> {
    fn default() -> Self {
        Self::infallible(|object: &Arc<Object>| object.key().clone())
    }
}

impl<T, K> Clone for KeyFunc<T, K> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

debug_fields!([T, K] KeyFunc<T, K> {});

#[cfg(test)]
mod tests;
