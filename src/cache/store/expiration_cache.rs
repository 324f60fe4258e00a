//! Store whose entries expire: client-go's `ExpirationCache`.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{KeyError, KeyFunc, Store, Stored, StoredKey};
use crate::model::ObjectKey;

/// Store whose entries expire once they are older than its time to live; 0 means never. Each write renews the entry.
///
/// Reads remove expired entries and omit them, except for [`Store::list_keys`], which ignores ages. Nobody is notified of that:
/// [`ExpirationCache::expire`] returns what it removes, for a caller that sleeps until [`ExpirationCache::next_expiry`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() -> Result<(), informerd::cache::KeyError> {
/// use informerd::cache::{ExpirationCache, KeyFunc, Store};
/// use std::time::Duration;
///
/// let leases = ExpirationCache::new(KeyFunc::infallible(|lease: &&str| *lease), Duration::from_secs(10));
/// leases.add("web-1").await?;
/// tokio::time::sleep_until(leases.next_expiry().unwrap()).await;
/// assert_eq!(leases.expire(), ["web-1"]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct ExpirationCache<T, K = ObjectKey> {
    key_func: KeyFunc<T, K>,
    ttl: Duration,
    entries: Mutex<Entries<T, K>>,
}

/// Object, and the time of its last write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimestampedEntry<T> {
    /// Object.
    pub object: T,
    /// Time of its last write.
    pub stamp: Instant,
}

#[derive(Debug)]
struct Entries<T, K> {
    by_key: BTreeMap<K, TimestampedEntry<T>>,
    /// The same entries, oldest first.
    by_age: BTreeSet<(Instant, K)>,
}

// === impl ExpirationCache ===

impl<T: Stored, K: StoredKey> ExpirationCache<T, K> {
    /// Makes an empty store.
    pub fn new(key_func: KeyFunc<T, K>, ttl: Duration) -> Self {
        Self { key_func, ttl, entries: Mutex::new(Entries::default()) }
    }

    /// Stores an object, and stamps it.
    pub fn insert(&self, object: T) -> Result<(), KeyError> {
        let key = self.key_func.key_of(&object)?;
        self.entries.lock().insert(key, object, Instant::now());
        Ok(())
    }

    /// Removes the object with this key, expired or not, and returns it.
    pub fn remove(&self, key: &K) -> Option<T> {
        self.entries.lock().remove(key)
    }

    /// Returns the earliest time at which [`ExpirationCache::expire`] removes something; none if no entry ever expires.
    pub fn next_expiry(&self) -> Option<Instant> {
        let (oldest, _) = self.entries.lock().by_age.first().cloned()?;
        let age = self.ttl.checked_add(Duration::from_nanos(1)).filter(|_| !self.ttl.is_zero())?;
        oldest.checked_add(age)
    }

    /// Removes the expired entries and returns their objects, oldest first.
    pub fn expire(&self) -> Vec<T> {
        self.remove_expired(&mut self.entries.lock())
    }

    /// Returns the entry of a key, expired or not.
    pub fn entry(&self, key: &K) -> Option<TimestampedEntry<T>> {
        self.entries.lock().by_key.get(key).cloned()
    }

    fn remove_expired(&self, entries: &mut Entries<T, K>) -> Vec<T> {
        let now = Instant::now();
        let expired = std::iter::from_fn(|| {
            let (stamp, key) = entries.by_age.first()?;
            let key = self.is_expired(*stamp, now).then(|| key.clone())?;
            entries.remove(&key)
        });
        expired.collect()
    }

    fn is_expired(&self, stamp: Instant, now: Instant) -> bool {
        !self.ttl.is_zero() && now.saturating_duration_since(stamp) > self.ttl
    }
}

impl<T: Stored, K: StoredKey> Store for ExpirationCache<T, K> {
    type Object = T;
    type Key = K;
    type Item = T;

    fn key_of(&self, object: &T) -> Result<K, KeyError> {
        self.key_func.key_of(object)
    }

    async fn add(&self, object: T) -> Result<(), KeyError> {
        self.insert(object)
    }

    async fn delete(&self, object: T) -> Result<(), KeyError> {
        self.remove(&self.key_of(&object)?);
        Ok(())
    }

    async fn replace_except(&self, list: Vec<T>, keep: impl Fn(&K, Option<&T>) -> bool + Send) -> Result<(), KeyError> {
        let list = self.key_func.with_keys(list)?;
        let (mut entries, now) = (self.entries.lock(), Instant::now());
        // What is kept is stamped, too: the list shows that it may exist.
        let held = std::mem::take(&mut *entries).by_key.into_iter().map(|(key, entry)| (key, entry.object));
        let kept = held.filter(|(key, object)| keep(key, Some(object)));
        for (key, object) in kept.chain(list) {
            entries.insert(key, object, now);
        }
        Ok(())
    }

    fn get_by_key(&self, key: &K) -> Option<T> {
        let mut entries = self.entries.lock();
        let TimestampedEntry { object, stamp } = entries.by_key.get(key)?.clone();
        if self.is_expired(stamp, Instant::now()) {
            entries.remove(key);
            return None;
        }
        Some(object)
    }

    fn list(&self) -> Vec<T> {
        let mut entries = self.entries.lock();
        self.remove_expired(&mut entries);
        entries.by_key.values().map(|entry| entry.object.clone()).collect()
    }

    fn list_keys(&self) -> Vec<K> {
        self.entries.lock().by_key.keys().cloned().collect()
    }
}

// === impl Entries ===

impl<T, K: StoredKey> Entries<T, K> {
    fn insert(&mut self, key: K, object: T, stamp: Instant) {
        self.remove(&key);
        self.by_age.insert((stamp, key.clone()));
        self.by_key.insert(key, TimestampedEntry { object, stamp });
    }

    fn remove(&mut self, key: &K) -> Option<T> {
        let TimestampedEntry { object, stamp } = self.by_key.remove(key)?;
        self.by_age.remove(&(stamp, key.clone()));
        Some(object)
    }
}

impl<T, K> Default for Entries<T, K> {
    fn default() -> Self {
        Self { by_key: BTreeMap::new(), by_age: BTreeSet::new() }
    }
}
