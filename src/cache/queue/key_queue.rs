//! Line of keys, with an item for each: what [`Fifo`](super::Fifo) and [`DeltaFifo`](super::DeltaFifo) have in common.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt,
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use super::{PopError, ProcessError};
use crate::cache::{Stored, StoredKey};

/// Number of queued keys at which additions of others wait.
pub(super) const MAX_QUEUED: usize = 1024;

/// Number of waiting keys above which slow processing is logged, and the time that counts as slow.
const DEEP: usize = 10;
const SLOW: Duration = Duration::from_millis(100);

/// Queue of items by key.
#[derive(Debug)]
pub(super) struct KeyQueue<K, I> {
    state: Mutex<State<K, I>>,
    changed: Notify,
}

/// State of a [`KeyQueue`]. A key has a place in the line as long as it is in `queued`.
pub(super) struct State<K, I> {
    line: VecDeque<K>,
    /// Items of the keys in the line; `None` if the item was deleted since: then the place remains, and is passed over.
    queued: BTreeMap<K, Option<I>>,
    processing: BTreeMap<K, I>,
    /// Keys of the first batch that have not been processed; `None` before the first batch.
    first_batch: Option<BTreeSet<K>>,
    is_closed: bool,
    merge: Merge<I>,
}

/// Function that returns the item to hand out for an older and a newer item of the same key.
pub(super) type Merge<I> = fn(older: I, newer: I) -> I;

/// Item that is handed out.
struct Popped<K, I> {
    key: K,
    item: I,
    is_in_first_batch: bool,
}

/// End of a queue: closed, with nothing queued or in processing.
struct Closed;

/// Key in processing, whose item returns to the queue if this is dropped before the end.
struct InProcessing<'a, K: StoredKey, I: Stored> {
    queue: &'a KeyQueue<K, I>,
    key: Option<K>,
}

/// Methods of a store that read its `queue`, with the items `$item` by keys `K`.
macro_rules! reads {
    ($item:ty) => {
        fn get_by_key(&self, key: &K) -> Option<$item> {
            self.queue.read(|state| state.get(key).cloned())
        }

        fn list(&self) -> Vec<$item> {
            self.queue.read(State::list)
        }

        fn list_keys(&self) -> Vec<K> {
            self.queue.read(State::list_keys)
        }
    };
}
pub(super) use reads;

/// Methods of a queue that are those of its `queue`, with the items `$item`.
macro_rules! pops {
    ($item:ty) => {
        async fn pop<P, F, E>(&self, process: P) -> Result<$item, PopError<$item, E>>
        where
            P: FnOnce($item, bool) -> F + Send,
            F: Future<Output = Result<(), ProcessError<E>>> + Send,
            E: Send,
        {
            self.queue.pop(process).await
        }

        fn has_synced(&self) -> bool {
            self.queue.has_synced()
        }

        fn close(&self) {
            self.queue.close();
        }

        fn is_closed(&self) -> bool {
            self.queue.is_closed()
        }
    };
}
pub(super) use pops;

// === impl KeyQueue ===

impl<K: StoredKey, I: Stored> KeyQueue<K, I> {
    pub(super) fn new(merge: Merge<I>) -> Self {
        let (line, queued, processing) = (VecDeque::new(), BTreeMap::new(), BTreeMap::new());
        let state = State { line, queued, processing, first_batch: None, is_closed: false, merge };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }

    /// Makes an addition of a key, after waiting for a place.
    pub(super) async fn add(&self, key: K, addition: impl FnOnce(&mut State<K, I>, K) + Send) {
        let mut addition = Some((key, addition));
        self.wait_for(|state| state.add(&mut addition)).await;
    }

    /// Makes a change that never waits.
    pub(super) fn change<R>(&self, change: impl FnOnce(&mut State<K, I>) -> R) -> R {
        let result = change(&mut self.state.lock());
        // The wake-up follows the release of the lock, as everywhere.
        self.changed.notify_waiters();
        result
    }

    /// Attempts a change now, and after each other change, until it returns something.
    async fn wait_for<R>(&self, mut attempt: impl FnMut(&mut State<K, I>) -> Option<R> + Send) -> R {
        loop {
            let changed = self.changed.notified();
            let (result, has_changed) = {
                let mut state = self.state.lock();
                let places = state.line.len();
                let result = attempt(&mut state);
                let has_changed = result.is_some() || state.line.len() != places;
                (result, has_changed)
            };
            if has_changed {
                self.changed.notify_waiters();
            }
            if let Some(result) = result {
                return result;
            }
            changed.await;
        }
    }

    /// Reads the state.
    pub(super) fn read<R>(&self, read: impl FnOnce(&State<K, I>) -> R) -> R {
        read(&self.state.lock())
    }

    pub(super) fn has_synced(&self) -> bool {
        self.read(|state| state.first_batch.as_ref().is_some_and(BTreeSet::is_empty))
    }

    pub(super) fn close(&self) {
        self.change(|state| state.is_closed = true);
    }

    pub(super) fn is_closed(&self) -> bool {
        self.read(|state| state.is_closed)
    }

    pub(super) async fn pop<P, F, E>(&self, process: P) -> Result<I, PopError<I, E>>
    where
        P: FnOnce(I, bool) -> F + Send,
        F: Future<Output = Result<(), ProcessError<E>>> + Send,
        E: Send,
    {
        // Neither the queue nor the function has to wait for anything.
        tokio::task::consume_budget().await;
        let Popped { key, item, is_in_first_batch } =
            self.wait_for(State::take).await.map_err(|Closed| PopError::Closed)?;
        let in_processing = InProcessing { queue: self, key: Some(key.clone()) };
        let begun = Instant::now();
        let result = process(item.clone(), is_in_first_batch).await;
        let is_requeued = matches!(result, Err(ProcessError::Requeue(_)));
        let depth = in_processing.finish(is_requeued);
        let took = begun.elapsed();
        // A function may wait before it puts an item back.
        if !is_requeued && depth > DEEP && took > SLOW {
            tracing::warn!(?key, depth, ?took, "slow queue");
        }
        match result {
            Ok(()) | Err(ProcessError::Requeue(None)) => Ok(item),
            Err(ProcessError::Requeue(Some(error))) => Err(PopError::Requeued(error)),
            Err(ProcessError::Failed(error)) => Err(PopError::Failed { item, error }),
        }
    }
}

// === impl State ===

impl<K: StoredKey, I: Stored> State<K, I> {
    /// Makes an addition if it needs no new place, or there is one.
    fn add(&mut self, addition: &mut Option<(K, impl FnOnce(&mut Self, K))>) -> Option<()> {
        let is_new = |(key, _): &(K, _)| !self.queued.contains_key(key) && !self.processing.contains_key(key);
        if self.line.len() >= MAX_QUEUED && !self.is_closed && addition.as_ref().is_some_and(is_new) {
            return None;
        }
        let (key, addition) = addition.take()?;
        addition(self, key);
        // The first batch is empty if something is added before it.
        self.begin_first_batch(BTreeSet::new());
        Some(())
    }

    fn items(&self) -> impl Iterator<Item = (&K, &I)> {
        self.queued.iter().filter_map(|(key, item)| Some((key, item.as_ref()?)))
    }

    pub(super) fn list(&self) -> Vec<I> {
        self.items().map(|(_, item)| item.clone()).collect()
    }

    pub(super) fn list_keys(&self) -> Vec<K> {
        self.items().map(|(key, _)| key.clone()).collect()
    }

    pub(super) fn get(&self, key: &K) -> Option<&I> {
        self.queued.get(key)?.as_ref()
    }

    /// Returns the newest item of each key that is queued or in processing.
    pub(super) fn newest(&self) -> BTreeMap<&K, &I> {
        self.processing.iter().chain(self.items()).collect()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.processing.is_empty() && self.items().next().is_none()
    }

    /// Returns true if a key is queued or in processing.
    pub(super) fn contains(&self, key: &K) -> bool {
        self.get(key).is_some() || self.processing.contains_key(key)
    }

    /// Queues an item, merged with the one that is queued for its key.
    pub(super) fn put(&mut self, key: K, item: I) {
        let Some(queued) = self.queued.get_mut(&key) else {
            self.line.push_back(key.clone());
            self.queued.insert(key, Some(item));
            return;
        };
        *queued = Some(match queued.take() {
            Some(older) => (self.merge)(older, item),
            None => item,
        });
    }

    /// Queues an item if nothing is queued for its key.
    pub(super) fn put_if_not_present(&mut self, key: K, item: I) {
        if self.get(&key).is_none() {
            self.put(key, item);
        }
    }

    /// Deletes the item of a key. Its place remains. A key in processing gets one, so that its item does not return.
    pub(super) fn delete(&mut self, key: &K) {
        if let Some(queued) = self.queued.get_mut(key) {
            *queued = None;
        } else if self.processing.contains_key(key) {
            self.line.push_back(key.clone());
            self.queued.insert(key.clone(), None);
        }
    }

    /// Replaces everything by a list, except for what is kept; of equal keys the last one counts.
    pub(super) fn replace(&mut self, list: Vec<(K, I)>, keep: impl Fn(&K, &I) -> bool) {
        self.begin_first_batch(list.iter().map(|(key, _)| key.clone()).collect());
        let line = std::mem::take(&mut self.line);
        let mut queued = std::mem::take(&mut self.queued);
        let kept = line.into_iter().filter_map(|key| queued.remove(&key).flatten().map(|item| (key, item)));
        for (key, item) in kept.filter(|(key, item)| keep(key, item)).chain(list) {
            self.put(key, item);
        }
        let is_unlisted = |(key, item): &(&K, &I)| !self.queued.contains_key(*key) && !keep(key, item);
        let unlisted = self.processing.iter().filter(is_unlisted).map(|(key, _)| key);
        for key in unlisted.cloned().collect::<Vec<K>>() {
            self.delete(&key);
        }
        // The first batch may have been another list.
        if let Some(first_batch) = &mut self.first_batch {
            first_batch.retain(|key| self.queued.contains_key(key));
        }
    }

    /// Makes these keys the first batch, if there has been none.
    pub(super) fn begin_first_batch(&mut self, keys: BTreeSet<K>) {
        self.first_batch.get_or_insert(keys);
    }

    /// Removes the first item that may be handed out, if there is one.
    fn take(&mut self) -> Option<Result<Popped<K, I>, Closed>> {
        let popped = self.pop().map(Ok);
        let is_over = self.is_closed && self.line.is_empty() && self.processing.is_empty();
        popped.or_else(|| is_over.then_some(Err(Closed)))
    }

    fn pop(&mut self) -> Option<Popped<K, I>> {
        let mut place = 0;
        loop {
            let key = self.line.get(place)?;
            if self.processing.contains_key(key) {
                place += 1;
                continue;
            }
            let key = self.line.remove(place)?;
            let Some(item) = self.queued.remove(&key).flatten() else {
                self.complete(&key);
                continue;
            };
            let is_in_first_batch = self.first_batch.as_ref().is_none_or(|keys| keys.contains(&key));
            self.processing.insert(key.clone(), item.clone());
            return Some(Popped { key, item, is_in_first_batch });
        }
    }

    /// Ends the processing of a key.
    fn finish(&mut self, key: K, is_requeued: bool) {
        self.complete(&key);
        let item = self.processing.remove(&key).filter(|_| is_requeued);
        // What was queued since is newer, also a deletion.
        if let Some(item) = item.filter(|_| !self.queued.contains_key(&key)) {
            self.put(key, item);
        }
    }

    /// Returns the item of a key in processing to the front of the line, as if it had never been removed.
    fn put_back(&mut self, key: K) {
        let Some(older) = self.processing.remove(&key) else { return };
        let item = match self.queued.remove(&key) {
            Some(newer) => newer.map(|newer| (self.merge)(older, newer)),
            None => Some(older),
        };
        self.line.retain(|queued| *queued != key);
        self.line.push_front(key.clone());
        self.queued.insert(key, item);
    }

    /// Counts a key of the first batch as processed.
    fn complete(&mut self, key: &K) {
        self.first_batch.as_mut().map(|keys| keys.remove(key));
    }
}

debug_fields!([K: fmt::Debug, I] State<K, I>, this => {
    queued: this.line.len(),
    processing: this.processing.keys(),
    is_closed: this.is_closed,
});

// === impl InProcessing ===

impl<K: StoredKey, I: Stored> InProcessing<'_, K, I> {
    /// Ends the processing, and returns the number of queued keys.
    fn finish(mut self, is_requeued: bool) -> usize {
        let key = self.key.take();
        self.queue.change(|state| {
            if let Some(key) = key {
                state.finish(key, is_requeued);
            }
            state.line.len()
        })
    }
}

impl<K: StoredKey, I: Stored> Drop for InProcessing<'_, K, I> {
    fn drop(&mut self) {
        if let Some(key) = self.key.take() {
            self.queue.change(|state| state.put_back(key));
        }
    }
}
