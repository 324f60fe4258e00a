//! Queue of the changes of each object: client-go's `DeltaFIFO`.

use std::{collections::BTreeSet, sync::Arc};

use super::{
    Deltas, ObjectDelta, PopError, ProcessError, Queue, Tombstone,
    key_queue::{KeyQueue, State, pops, reads},
};
use crate::{
    cache::{KeyError, KeyFunc, Store, Stored, StoredKey},
    model::ObjectKey,
};

/// Queue that hands out all deltas of a key together, oldest first.
///
/// - A key keeps its place while deltas are added, and gets one at the end after it was handed out. Only two deletions in succession
///   are merged.
/// - A deletion of an object that is neither queued, in processing, nor among the known objects is ignored.
/// - [`Store::replace`] queues `Replaced` for each object of the list, and a [`Tombstone`] for each object that is queued, in
///   processing or known, and neither in the list nor kept ([`Store::replace_except`]).
/// - [`Store::resync`] queues `Sync` for each known object that is neither queued nor in processing.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use informerd::cache::{DeltaFifo, DeltaFifoOptions, Deltas, KeyFunc, ObjectDelta::{Added, Deleted}, ProcessError, Queue, Store};
///
/// let words = DeltaFifo::new(DeltaFifoOptions::new(KeyFunc::infallible(|word: &&str| word.len())));
/// words.add("one").await?;
/// words.add("three").await?;
/// words.delete("two").await?;
/// let process = async |deltas: Deltas<&str, usize>, _| {
///     let expected = vec![Added("one"), Deleted("two")];
///     if deltas.into_iter().eq(expected) { Ok(()) } else { Err(ProcessError::Failed("others")) }
/// };
/// assert_eq!(words.pop(process).await?.key(), &3);
/// # Ok(())
/// # }
/// ```
#[doc(alias = "DeltaFIFO")]
#[derive(Debug)]
pub struct DeltaFifo<T, K = ObjectKey> {
    options: DeltaFifoOptions<T, K>,
    queue: KeyQueue<K, Deltas<T, K>>,
}

/// Parameters of a [`DeltaFifo`].
#[derive(Clone)]
pub struct DeltaFifoOptions<T, K = ObjectKey> {
    /// Function that computes the key of an object.
    pub key_func: KeyFunc<T, K>,
    /// Objects that the consumer has, usually a [`Store`] that the processing function writes to.
    pub known_objects: Option<Arc<dyn KnownObjects<T, K>>>,
    /// True for `Replaced` in place of `Sync` for the objects of a list.
    pub emit_replaced: bool,
}

/// Objects that the consumer of a [`DeltaFifo`] has. The queue reads them while it is locked, so a read must be short, and must not
/// call the queue.
#[doc(alias = "KeyListerGetter")]
pub trait KnownObjects<T, K = ObjectKey>: Send + Sync {
    /// Returns the keys of the known objects.
    fn known_keys(&self) -> Vec<K>;

    /// Returns the known object with this key.
    fn known(&self, key: &K) -> Option<T>;

    /// Returns true if there is a known object with this key.
    fn is_known(&self, key: &K) -> bool {
        self.known(key).is_some()
    }
}

impl<S: Store> KnownObjects<S::Item, S::Key> for S {
    fn known_keys(&self) -> Vec<S::Key> {
        self.list_keys()
    }

    fn known(&self, key: &S::Key) -> Option<S::Item> {
        self.get_by_key(key)
    }
}

// === impl DeltaFifoOptions ===

impl<T, K> DeltaFifoOptions<T, K> {
    /// Returns options without known objects.
    pub fn new(key_func: KeyFunc<T, K>) -> Self {
        Self { key_func, known_objects: None, emit_replaced: true }
    }
}

debug_fields!([T, K] DeltaFifoOptions<T, K> { emit_replaced });

// === impl DeltaFifo ===

impl<T: Stored, K: StoredKey> DeltaFifo<T, K> {
    /// Makes an empty queue.
    pub fn new(options: DeltaFifoOptions<T, K>) -> Self {
        Self { options, queue: KeyQueue::new(Deltas::followed_by) }
    }

    /// Returns true if nothing is queued or in processing.
    pub fn is_idle(&self) -> bool {
        self.queue.read(State::is_idle)
    }

    /// Queues the list, and the deletion of everything else that is not kept.
    fn put_list(&self, state: &mut State<K, Deltas<T, K>>, list: Vec<(K, T)>, keep: impl Fn(&K, Option<&T>) -> bool) {
        let listed: BTreeSet<K> = list.iter().map(|(key, _)| key.clone()).collect();
        let mut deleted = self.unlisted(state, &listed);
        deleted.retain(|tombstone| !keep(&tombstone.key, tombstone.last_known.as_ref()));
        let deleted_keys = deleted.iter().map(|tombstone| tombstone.key.clone());
        state.begin_first_batch(listed.into_iter().chain(deleted_keys).collect());
        let of_list = if self.options.emit_replaced { ObjectDelta::Replaced } else { ObjectDelta::Sync };
        for (key, object) in list {
            put(state, key, of_list(object));
        }
        for tombstone in deleted {
            put(state, tombstone.key.clone(), ObjectDelta::DeletedFinalStateUnknown(tombstone));
        }
    }

    /// Returns the objects that are queued, in processing or known, and not in a list, unless they are deleted already.
    fn unlisted(&self, state: &State<K, Deltas<T, K>>, listed: &BTreeSet<K>) -> Vec<Tombstone<T, K>> {
        let mut unlisted = Vec::new();
        let newest = state.newest();
        for (&key, deltas) in newest.iter().filter(|(key, _)| !listed.contains(*key)) {
            if !deltas.newest().is_deletion() {
                unlisted.push(Tombstone { key: key.clone(), last_known: deltas.newest().object().cloned() });
            }
        }
        if let Some(known) = &self.options.known_objects {
            let others =
                known.known_keys().into_iter().filter(|key| !listed.contains(key) && !newest.contains_key(key));
            unlisted.extend(others.map(|key| Tombstone { last_known: known.known(&key), key }));
        }
        unlisted
    }
}

fn put<T: Stored, K: StoredKey>(state: &mut State<K, Deltas<T, K>>, key: K, delta: ObjectDelta<T, K>) {
    state.put(key.clone(), Deltas::new(key, delta));
}

impl<T: Stored, K: StoredKey> Store for DeltaFifo<T, K> {
    type Object = T;
    type Key = K;
    type Item = Deltas<T, K>;

    fn key_of(&self, object: &T) -> Result<K, KeyError> {
        self.options.key_func.key_of(object)
    }

    async fn add(&self, object: T) -> Result<(), KeyError> {
        let key = self.key_of(&object)?;
        self.queue.add(key, |state, key| put(state, key, ObjectDelta::Added(object))).await;
        Ok(())
    }

    async fn update(&self, object: T) -> Result<(), KeyError> {
        let key = self.key_of(&object)?;
        self.queue.add(key, |state, key| put(state, key, ObjectDelta::Updated(object))).await;
        Ok(())
    }

    async fn delete(&self, object: T) -> Result<(), KeyError> {
        let key = self.key_of(&object)?;
        let is_known = |key: &K| self.options.known_objects.as_ref().is_some_and(|known| known.is_known(key));
        let deletion = |state: &mut State<K, Deltas<T, K>>, key| {
            if state.contains(&key) || is_known(&key) {
                put(state, key, ObjectDelta::Deleted(object));
            }
        };
        self.queue.add(key, deletion).await;
        Ok(())
    }

    async fn replace_except(&self, list: Vec<T>, keep: impl Fn(&K, Option<&T>) -> bool + Send) -> Result<(), KeyError> {
        let list = self.options.key_func.with_keys(list)?;
        self.queue.change(|state| self.put_list(state, list, keep));
        Ok(())
    }

    async fn resync(&self) -> Result<(), KeyError> {
        let Some(known) = &self.options.known_objects else { return Ok(()) };
        self.queue.change(|state| {
            for key in known.known_keys() {
                if !state.contains(&key)
                    && let Some(object) = known.known(&key)
                {
                    put(state, key, ObjectDelta::Sync(object));
                }
            }
        });
        Ok(())
    }

    reads!(Deltas<T, K>);
}

impl<T: Stored, K: StoredKey> Queue for DeltaFifo<T, K> {
    pops!(Deltas<T, K>);

    async fn add_if_not_present(&self, deltas: Deltas<T, K>) -> Result<(), KeyError> {
        self.queue.add(deltas.key().clone(), |state, key| state.put_if_not_present(key, deltas)).await;
        Ok(())
    }

    fn key_of_item(&self, deltas: &Deltas<T, K>) -> Result<K, KeyError> {
        Ok(deltas.key().clone())
    }
}
