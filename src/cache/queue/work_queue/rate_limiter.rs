//! Delays of keys that failed: client-go's rate limiters.

use std::{collections::HashMap, hash::Hash, time::Duration};

use tokio::time::Instant;

use crate::cache::Stored;

/// Bounds of the keys of a [`WorkQueue`](super::WorkQueue).
pub trait WorkKey: Stored + Eq + Hash {}

impl<K: Stored + Eq + Hash> WorkKey for K {}

/// Delays of the keys that a [`WorkQueue`](super::WorkQueue) adds by its rate limiter. The queue calls it while it is locked, so a
/// call must be short, and must not call the queue.
pub trait RateLimiter<K>: Send + 'static {
    /// Returns the delay of a key, and counts that as a failure of it.
    fn when(&mut self, key: &K) -> Duration;

    /// Forgets the failures of a key.
    fn forget(&mut self, key: &K);

    /// Returns the number of failures of a key since it was forgotten.
    fn requeues(&self, key: &K) -> u32;
}

/// Delays that double with each failure of a key: client-go's `ItemExponentialFailureRateLimiter`.
#[doc(alias = "ItemExponentialFailureRateLimiter")]
#[derive(Debug)]
pub struct ExponentialRateLimiter<K> {
    first: Duration,
    longest: Duration,
    failures: HashMap<K, u32, foldhash::fast::RandomState>,
}

/// Rate of all keys together: a token bucket, client-go's `BucketRateLimiter`. It counts no failures.
#[derive(Debug)]
pub struct BucketRateLimiter {
    per_second: f64,
    burst: f64,
    /// Tokens at the time of the last call; negative if later ones are taken in advance.
    tokens: f64,
    last: Instant,
}

/// The longest delay of several limiters, each of which counts every failure: client-go's `MaxOfRateLimiter`.
pub struct MaxOfRateLimiter<K> {
    limiters: Vec<Box<dyn RateLimiter<K>>>,
}

// === impl ExponentialRateLimiter ===

impl<K: WorkKey> ExponentialRateLimiter<K> {
    /// Makes a limiter whose first delay of a key is `first`, and whose longest one is `longest`.
    pub fn new(first: Duration, longest: Duration) -> Self {
        Self { first, longest, failures: HashMap::default() }
    }
}

impl<K: WorkKey> RateLimiter<K> for ExponentialRateLimiter<K> {
    fn when(&mut self, key: &K) -> Duration {
        let Some(failures) = self.failures.get_mut(key) else {
            self.failures.insert(key.clone(), 1);
            return self.first.min(self.longest);
        };
        let factor = 2f64.powi((*failures).min(1000).cast_signed());
        *failures = failures.saturating_add(1);
        let delay = Duration::try_from_secs_f64(self.first.as_secs_f64() * factor);
        delay.map_or(self.longest, |delay| delay.min(self.longest))
    }

    fn forget(&mut self, key: &K) {
        self.failures.remove(key);
    }

    fn requeues(&self, key: &K) -> u32 {
        self.failures.get(key).copied().unwrap_or_default()
    }
}

// === impl BucketRateLimiter ===

impl BucketRateLimiter {
    /// Makes a limiter that delays none of `burst` keys at once, and then lets `per_second` of them pass.
    pub fn new(per_second: f64, burst: u32) -> Self {
        Self { per_second, burst: f64::from(burst), tokens: f64::from(burst), last: Instant::now() }
    }
}

impl<K> RateLimiter<K> for BucketRateLimiter {
    fn when(&mut self, _: &K) -> Duration {
        let now = Instant::now();
        let refill = now.saturating_duration_since(self.last).as_secs_f64() * self.per_second;
        self.last = now;
        self.tokens = (self.tokens + refill).min(self.burst) - 1.0;
        if self.tokens >= 0.0 {
            return Duration::ZERO;
        }
        Duration::try_from_secs_f64(-self.tokens / self.per_second).unwrap_or(Duration::MAX)
    }

    fn forget(&mut self, _: &K) {}

    fn requeues(&self, _: &K) -> u32 {
        0
    }
}

// === impl MaxOfRateLimiter ===

impl<K> MaxOfRateLimiter<K> {
    /// Makes a limiter of several.
    pub fn new(limiters: impl IntoIterator<Item = Box<dyn RateLimiter<K>>>) -> Self {
        Self { limiters: limiters.into_iter().collect() }
    }
}

impl<K: WorkKey> Default for MaxOfRateLimiter<K> {
    /// Returns client-go's `DefaultControllerRateLimiter`.
    fn default() -> Self {
        let of_key = ExponentialRateLimiter::new(Duration::from_millis(5), Duration::from_secs(1000));
        Self::new([Box::new(of_key) as Box<dyn RateLimiter<K>>, Box::new(BucketRateLimiter::new(10.0, 100))])
    }
}

impl<K: 'static> RateLimiter<K> for MaxOfRateLimiter<K> {
    fn when(&mut self, key: &K) -> Duration {
        self.limiters.iter_mut().map(|limiter| limiter.when(key)).max().unwrap_or_default()
    }

    fn forget(&mut self, key: &K) {
        self.limiters.iter_mut().for_each(|limiter| limiter.forget(key));
    }

    fn requeues(&self, key: &K) -> u32 {
        self.limiters.iter().map(|limiter| limiter.requeues(key)).max().unwrap_or_default()
    }
}

debug_fields!([K] MaxOfRateLimiter<K>, this => { limiters: this.limiters.len() });
