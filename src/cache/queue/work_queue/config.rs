//! Parameters and counters of a work queue.

use std::time::Duration;

use super::rate_limiter::{MaxOfRateLimiter, RateLimiter, WorkKey};

/// Parameters of a [`WorkQueue`](super::WorkQueue).
pub struct WorkQueueConfig<K> {
    /// Delays of [`WorkQueue::add_rate_limited`](super::WorkQueue::add_rate_limited). The default is client-go's: for each key 5 ms, doubled up to 1,000 s, and for all
    /// keys together 100 at once and then 10 a second; the longer of both.
    pub rate_limiter: Box<dyn RateLimiter<K>>,
    /// Number of keys that have a place: those that are ready, delayed or in processing. At this number, an addition of a key without
    /// a place waits. A key keeps its place while it is in processing, so that its worker can always add it again; a worker that
    /// waits for the addition of another key holds a place. 0 counts as 1. The default is no bound: there are as many keys as objects.
    pub max_keys: usize,
}

/// Parameters of an addition: controller-runtime's `AddOpts`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AddOptions {
    /// Priority, by default 0: keys of a higher one come first.
    pub priority: i32,
    /// Delay before the key is ready.
    pub after: Duration,
    /// True to delay the key by the rate limiter; the shorter delay counts if `after` is another one.
    pub is_rate_limited: bool,
}

/// Counters of a [`WorkQueue`](super::WorkQueue): client-go's metrics of a workqueue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WorkQueueStats {
    /// Keys that wait for a worker (`depth`), also those that wait for the end of their processing.
    pub depth: usize,
    /// Keys that are delayed.
    pub delayed: usize,
    /// Keys in processing.
    pub processing: usize,
    /// Additions of keys that were not waiting (`adds`); one with a delay counts when that is over.
    pub adds: u64,
    /// Additions with a delay (`retries`).
    pub retries: u64,
    /// Time for which the present workers have worked on their keys, in sum (`unfinished_work_seconds`).
    pub unfinished: Duration,
    /// The longest of these times (`longest_running_processor_seconds`).
    pub longest_running: Duration,
}

// === impl WorkQueueConfig ===

impl<K: WorkKey> Default for WorkQueueConfig<K> {
    fn default() -> Self {
        Self { rate_limiter: Box::new(MaxOfRateLimiter::default()), max_keys: usize::MAX }
    }
}

debug_fields!([K] WorkQueueConfig<K> { max_keys });
