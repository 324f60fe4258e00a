//! Cache of what was made of objects, once for all clients that receive it.

use std::{
    convert::Infallible,
    fmt,
    hash::Hash,
    sync::atomic::{AtomicU32, Ordering},
};

use quick_cache::{Weighter, sync::Cache};

/// Bounded cache, which is emptied when nobody reads it.
pub(crate) struct ObjectCache<K, V> {
    entries: Cache<K, V, Weight>,
    /// Number of checks since the last read.
    unread: AtomicU32,
}

/// Value of which the memory is known.
pub(crate) trait Weighed {
    /// Returns the bytes that its entry holds, without the key.
    fn bytes(&self) -> usize;
}

#[derive(Clone)]
struct Weight;

/// Estimated size of an entry, for the initial capacity of the cache.
const ESTIMATED_BYTES: usize = 1 << 10;
/// Number of checks without a read after which the cache is emptied; there is one each second.
const MAX_UNREAD: u32 = 60;

// === impl ObjectCache ===

impl<K: Clone + Eq + Hash, V: Clone + Weighed> ObjectCache<K, V> {
    /// Creates a cache of at most `max_bytes`. An entry may hold the memory of its `Object` even after that was deleted.
    pub(crate) fn new(max_bytes: usize) -> Self {
        let capacity = (max_bytes / ESTIMATED_BYTES).max(1);
        Self { entries: Cache::with_weighter(capacity, max_bytes as u64, Weight), unread: AtomicU32::new(0) }
    }

    /// Returns the bytes that it holds.
    pub(crate) fn bytes(&self) -> usize {
        usize::try_from(self.entries.weight()).unwrap_or(usize::MAX)
    }

    /// Empties the cache if its memory is needed, or if nobody has read it for a minute. To be called each second.
    pub(crate) fn trim(&self, is_needed: bool) {
        let unread = self.unread.fetch_add(1, Ordering::Relaxed);
        if is_needed || unread >= MAX_UNREAD {
            self.entries.clear();
        }
    }

    /// Returns the value of a key, which is made if there is none. Whoever needs the same meanwhile waits for it.
    pub(crate) fn get(&self, key: &K, make: impl FnOnce() -> V) -> V {
        self.unread.store(0, Ordering::Relaxed);
        match self.entries.get_or_insert_with(key, || Ok::<_, Infallible>(make())) {
            Ok(value) => value,
            Err(never) => match never {},
        }
    }
}

impl<K: Eq + Hash, V: Clone + Weighed> fmt::Debug for ObjectCache<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { entries, .. } = self;
        f.debug_struct("ObjectCache").field("len", &entries.len()).field("bytes", &entries.weight()).finish()
    }
}

impl<K, V: Weighed> Weighter<K, V> for Weight {
    fn weight(&self, _: &K, value: &V) -> u64 {
        (value.bytes() + size_of::<(K, V)>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Weighed for Vec<u8> {
        fn bytes(&self) -> usize {
            self.len()
        }
    }

    #[test]
    fn the_cache_is_bounded_and_is_emptied_when_nobody_reads_it_or_its_memory_is_needed() {
        let cache = ObjectCache::<usize, Vec<u8>>::new(64 << 10);
        let fill = || {
            for key in 0..1000 {
                assert_eq!(cache.get(&key, || vec![1; 500]).len(), 500);
                assert!(cache.bytes() <= 64 << 10);
            }
            assert!(cache.bytes() > 32 << 10);
        };
        let is_kept = || cache.get(&999, Vec::new).len() == 500;
        fill();
        for _ in 0..2 {
            (0..MAX_UNREAD).for_each(|_| cache.trim(false));
            assert!(is_kept(), "it was read meanwhile");
        }
        (0..=MAX_UNREAD).for_each(|_| cache.trim(false));
        assert_eq!(cache.bytes(), 0);
        fill();
        cache.trim(true);
        assert_eq!(cache.bytes(), 0, "the memory is needed");
        let none = ObjectCache::<usize, Vec<u8>>::new(0);
        assert_eq!((none.get(&1, || vec![1]), none.bytes()), (vec![1], 0));
    }
}
