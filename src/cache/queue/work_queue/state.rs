//! State of a work queue, under its one lock.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, HashMap},
    time::Duration,
};

use tokio::time::Instant;

use super::{
    config::{AddOptions, WorkQueueConfig, WorkQueueStats},
    rate_limiter::{RateLimiter, WorkKey},
};

pub(super) struct State<K> {
    /// Keys that are to be handed out.
    queued: HashMap<K, Queued, foldhash::fast::RandomState>,
    /// The queued keys that are ready and not in processing, in the order in which they are handed out.
    ready: BTreeMap<(Reverse<i32>, u64), K>,
    /// The queued keys that are delayed, by the end of their delay.
    delayed: BTreeMap<(Instant, u64), K>,
    /// Keys that workers have, and since when.
    processing: HashMap<K, Instant, foldhash::fast::RandomState>,
    pub(super) limiter: Box<dyn RateLimiter<K>>,
    max_keys: usize,
    /// Number of the next place in an order.
    next: u64,
    adds: u64,
    retries: u64,
    pub(super) is_shutting_down: bool,
}

/// Place of a key in one of the orders, or in none while it is ready and in processing.
#[derive(Clone, Copy, PartialEq)]
struct Queued {
    priority: i32,
    place: u64,
    /// Time at which it is ready, or became so.
    at: Instant,
    is_ready: bool,
}

/// Result of taking a key.
pub(super) enum Next<K> {
    Key {
        key: K,
        priority: i32,
        /// Time since it became ready.
        waited: Duration,
    },
    /// No key is ready before the end of the next delay, if there is one.
    At(Option<Instant>),
    /// The queue is shut down, and no key is ready.
    Nothing,
}

/// Those who wait for a key that have to try again.
#[derive(Clone, Copy)]
pub(super) enum Wake {
    Nobody,
    /// One key is ready.
    One,
    /// A delay ends before all others: each must set its timer again, because it may be the only one left to wait.
    All,
}

/// Delay that never ends, for one that no clock can express.
const FOREVER: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

// === impl State ===

impl<K: WorkKey> State<K> {
    pub(super) fn new(config: WorkQueueConfig<K>) -> Self {
        Self {
            queued: HashMap::default(),
            ready: BTreeMap::new(),
            delayed: BTreeMap::new(),
            processing: HashMap::default(),
            limiter: config.rate_limiter,
            max_keys: config.max_keys.max(1),
            next: 0,
            adds: 0,
            retries: 0,
            is_shutting_down: false,
        }
    }

    /// Returns true if a key has a place, needs none, or there is one for it.
    pub(super) fn has_place(&self, key: &K) -> bool {
        let is_new = || !self.queued.contains_key(key) && !self.processing.contains_key(key);
        self.is_shutting_down || self.places() < self.max_keys || !is_new()
    }

    fn places(&self) -> usize {
        let most = self.queued.len() + self.processing.len();
        if most < self.max_keys {
            return most;
        }
        // There are as many keys in processing as workers.
        most - self.processing.keys().filter(|key| self.queued.contains_key(key)).count()
    }

    pub(super) fn add(&mut self, key: K, options: AddOptions, now: Instant) -> Wake {
        if self.is_shutting_down {
            return Wake::Nobody;
        }
        let AddOptions { priority, mut after, is_rate_limited } = options;
        if is_rate_limited {
            let when = self.limiter.when(&key);
            after = if after.is_zero() { when } else { after.min(when) };
        }
        self.retries += u64::from(!after.is_zero());
        let at = now.checked_add(after).unwrap_or_else(|| now + FOREVER);
        self.queue(key, Queued { priority, place: 0, at, is_ready: after.is_zero() })
    }

    /// Queues a key, or changes the place at which it is queued.
    fn queue(&mut self, key: K, added: Queued) -> Wake {
        let before = self.queued.get(&key).copied();
        let queued = before.map_or(added, |before| before.merged(added));
        if before == Some(queued) {
            return Wake::Nobody;
        }
        if let Some(before) = before {
            self.unlink(before);
        }
        let has_become_ready = queued.is_ready && !before.is_some_and(|before| before.is_ready);
        self.adds += u64::from(has_become_ready);
        let next_at = self.next_at();
        self.link(key, queued);
        if has_become_ready {
            return Wake::One;
        }
        let is_first = self.next_at().is_some_and(|at| next_at.is_none_or(|next_at| at < next_at));
        if is_first { Wake::All } else { Wake::Nobody }
    }

    /// Removes a key from its order.
    fn unlink(&mut self, queued: Queued) {
        if queued.is_ready {
            self.ready.remove(&(Reverse(queued.priority), queued.place));
        } else {
            self.delayed.remove(&(queued.at, queued.place));
        }
    }

    /// Puts a key at the end of its order.
    fn link(&mut self, key: K, mut queued: Queued) {
        queued.place = self.next;
        self.next += 1;
        if !queued.is_ready {
            self.delayed.insert((queued.at, queued.place), key.clone());
        } else if !self.processing.contains_key(&key) {
            self.ready.insert((Reverse(queued.priority), queued.place), key.clone());
        }
        self.queued.insert(key, queued);
    }

    /// Ends each delay that is over.
    pub(super) fn end_delays(&mut self, now: Instant) {
        while let Some(first) = self.delayed.first_entry().filter(|first| first.key().0 <= now) {
            let key = first.remove();
            let Some(queued) = self.queued.get(&key).copied() else { continue };
            self.adds += 1;
            self.link(key, Queued { is_ready: true, ..queued });
        }
    }

    /// Returns the end of the next delay.
    fn next_at(&self) -> Option<Instant> {
        self.delayed.first_key_value().map(|((at, _), _)| *at)
    }

    /// Hands out the first key that is ready.
    pub(super) fn take(&mut self, now: Instant) -> Next<K> {
        let first = self.ready.pop_first().and_then(|(_, key)| self.queued.remove_entry(&key));
        let Some((key, Queued { priority, at, .. })) = first else {
            return if self.is_shutting_down { Next::Nothing } else { Next::At(self.next_at()) };
        };
        self.processing.insert(key.clone(), now);
        Next::Key { key, priority, waited: now.saturating_duration_since(at) }
    }

    /// Ends the processing of a key, which returns at a priority if it is not done. Returns the time that the processing took.
    pub(super) fn finish(&mut self, key: &K, returns: Option<i32>, now: Instant) -> (Duration, Wake) {
        let begun = self.processing.remove(key);
        let took = begun.map_or(Duration::ZERO, |begun| now.saturating_duration_since(begun));
        // It is in no order if it is ready.
        let added = self.queued.get(key).copied().filter(|queued| queued.is_ready);
        let wake = match (added, returns) {
            (Some(added), _) => {
                self.link(key.clone(), added);
                Wake::One
            }
            (None, Some(priority)) => self.queue(key.clone(), Queued { priority, place: 0, at: now, is_ready: true }),
            (None, None) => Wake::Nobody,
        };
        (took, wake)
    }

    pub(super) fn shut_down(&mut self) {
        self.is_shutting_down = true;
        for key in std::mem::take(&mut self.delayed).into_values() {
            self.queued.remove(&key);
        }
    }

    pub(super) fn is_drained(&self) -> bool {
        self.ready.is_empty() && self.processing.is_empty()
    }

    /// Returns the number of keys that are ready.
    pub(super) fn ready(&self) -> usize {
        self.ready.len()
    }

    pub(super) fn stats(&self, now: Instant) -> WorkQueueStats {
        let running = || self.processing.values().map(|begun| now.saturating_duration_since(*begun));
        WorkQueueStats {
            depth: self.queued.len() - self.delayed.len(),
            delayed: self.delayed.len(),
            processing: self.processing.len(),
            adds: self.adds,
            retries: self.retries,
            unfinished: running().sum(),
            longest_running: running().max().unwrap_or_default(),
        }
    }
}

// === impl Queued ===

impl Queued {
    /// Returns the place of a key that is added again: at the higher priority, and at the earlier time. Now is before the end of each
    /// delay.
    fn merged(self, added: Self) -> Self {
        let earlier = if self.is_ready || self.at <= added.at { self } else { added };
        Self { priority: self.priority.max(added.priority), ..earlier }
    }
}
