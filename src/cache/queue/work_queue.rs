//! Queue of keys for the workers of a controller: client-go's `workqueue`, with the priorities of controller-runtime's.
//!
//! ```text
//!                          ┌────────────────────────────────────────────┐
//!   add ───────────────▶   │ ready, by priority ──▶ in processing ──────┼──▶ done
//!   add_after,      ───▶   │   ▲    ▲                  │ added meanwhile│
//!   add_rate_limited       │   │    └──────────────────┘                │
//!                          │ delayed                                    │
//!                          └────────────────────────────────────────────┘
//! ```

mod config;
mod rate_limiter;
mod state;

use std::{pin::pin, sync::Arc, time::Duration};

use tokio::{
    sync::Notify,
    time::{Instant, timeout_at},
};

use self::state::{Next, State, Wake};
pub use self::{
    config::{AddOptions, WorkQueueConfig, WorkQueueStats},
    rate_limiter::{BucketRateLimiter, ExponentialRateLimiter, MaxOfRateLimiter, RateLimiter, WorkKey},
};
use crate::{sync::Mutex, watch::DurationHistogram};

/// Queue that hands out keys to any number of workers; clones share it.
///
/// - A key is in it once, however often it is added, and handed out once at a time: one that is added while it is in processing is
///   handed out again after that.
/// - Keys of a higher priority come first, those of the same priority in the order in which they became ready. Of several additions
///   of a key the highest priority counts, and the earliest time.
/// - A key returns if its [`WorkItem`] is dropped before [`WorkItem::done`]: nothing is lost by a panic or a dropped future.
/// - It has no task: a delay ends by the timers of those that wait in [`WorkQueue::get`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// use std::time::Duration;
///
/// use informerd::cache::{AddOptions, WorkQueue};
///
/// let queue = WorkQueue::default();
/// queue.add("web").await;
/// queue.add("web").await;
/// queue.add_after("later", Duration::from_secs(60)).await;
/// queue.add_with("urgent", AddOptions { priority: 1, ..AddOptions::default() }).await;
/// queue.get().await.unwrap().done();
///
/// let item = queue.get().await.unwrap();
/// assert_eq!(item.key(), &"web");
/// // It failed: again after the delay of the rate limiter, which grows until `forget`.
/// queue.add_rate_limited(*item.key()).await;
/// item.done();
/// assert_eq!((queue.len(), queue.requeues(&"web")), (0, 1));
///
/// let item = queue.get().await.unwrap();
/// queue.forget(item.key());
/// item.done();
/// assert_eq!(queue.get().await.unwrap().key(), &"later");
/// # }
/// ```
pub struct WorkQueue<K: WorkKey> {
    shared: Arc<Shared<K>>,
}

/// Key that a worker has. Dropping it without [`WorkItem::done`] adds the key again, also to a queue that is shut down.
#[must_use = "a key that is not done returns to the queue"]
pub struct WorkItem<K: WorkKey> {
    shared: Arc<Shared<K>>,
    key: K,
    priority: i32,
    is_done: bool,
}

/// Key for which a [`WorkQueue`] has no place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the work queue is full")]
pub struct WorkQueueFull<K>(pub K);

struct Shared<K> {
    state: Mutex<State<K>>,
    /// Wakes those that wait for a key.
    ready: Notify,
    /// Wakes those that wait for a place, or for the end of all processing.
    finished: Notify,
    latency: DurationHistogram,
    work_duration: DurationHistogram,
}

// === impl WorkQueue ===

impl<K: WorkKey> WorkQueue<K> {
    /// Makes an empty queue.
    pub fn new(config: WorkQueueConfig<K>) -> Self {
        let (ready, finished) = (Notify::new(), Notify::new());
        let (latency, work_duration) = (DurationHistogram::default(), DurationHistogram::default());
        let state = Mutex::new(State::new(config));
        Self { shared: Arc::new(Shared { state, ready, finished, latency, work_duration }) }
    }

    /// Adds a key. A queue that is shut down ignores it.
    ///
    /// # Cancel safety
    ///
    /// A key whose addition is dropped while it waits for a place is not added.
    pub async fn add(&self, key: K) {
        self.add_with(key, AddOptions::default()).await;
    }

    /// Adds a key once a delay is over; if it is ready before, or delayed for a shorter time, nothing changes.
    ///
    /// # Cancel safety
    ///
    /// As [`WorkQueue::add`].
    pub async fn add_after(&self, key: K, delay: Duration) {
        self.add_with(key, AddOptions { after: delay, ..AddOptions::default() }).await;
    }

    /// Adds a key after the delay of the rate limiter, which counts that as a failure of the key until [`WorkQueue::forget`].
    ///
    /// # Cancel safety
    ///
    /// As [`WorkQueue::add`].
    pub async fn add_rate_limited(&self, key: K) {
        self.add_with(key, AddOptions { is_rate_limited: true, ..AddOptions::default() }).await;
    }

    /// Adds a key with a priority and a delay.
    ///
    /// # Cancel safety
    ///
    /// As [`WorkQueue::add`].
    pub async fn add_with(&self, mut key: K, options: AddOptions) {
        loop {
            // What ends from here on wakes it, as everything that `notify_waiters` does.
            let finished = self.shared.finished.notified();
            let Err(WorkQueueFull(refused)) = self.try_add(key, options) else { return };
            key = refused;
            finished.await;
        }
    }

    /// Adds a key now.
    ///
    /// # Errors
    ///
    /// If there is no place for it.
    pub fn try_add(&self, key: K, options: AddOptions) -> Result<(), WorkQueueFull<K>> {
        let wake = self.shared.with(|state, now| {
            if state.has_place(&key) { Ok(state.add(key, options, now)) } else { Err(WorkQueueFull(key)) }
        })?;
        self.shared.wake(wake);
        Ok(())
    }

    /// Ends the counting of failures of a key, which succeeded or is not to be tried again.
    pub fn forget(&self, key: &K) {
        self.shared.state.lock().limiter.forget(key);
    }

    /// Returns the number of failures of a key: of its additions by [`WorkQueue::add_rate_limited`].
    pub fn requeues(&self, key: &K) -> u32 {
        self.shared.state.lock().limiter.requeues(key)
    }

    /// Waits for a key, and hands it out; `None` once the queue is shut down and no key is ready. A key that was added while it
    /// was in processing may follow: its worker gets it next.
    ///
    /// # Cancel safety
    ///
    /// No key is lost if the future is dropped.
    pub async fn get(&self) -> Option<WorkItem<K>> {
        // Neither the queue nor a worker has to wait for anything.
        tokio::task::consume_budget().await;
        loop {
            let mut ready = pin!(self.shared.ready.notified());
            // Registered before the check, so that each of two keys that become ready together wakes a getter of its own.
            ready.as_mut().enable();
            match self.shared.with(State::take) {
                Next::Key { key, priority, waited } => {
                    self.shared.latency.observe(waited);
                    return Some(WorkItem { shared: Arc::clone(&self.shared), key, priority, is_done: false });
                }
                Next::Nothing => return None,
                // Both the end of the delay and a wake-up lead to another attempt.
                Next::At(Some(at)) => drop(timeout_at(at, ready).await),
                Next::At(None) => ready.await,
            }
        }
    }

    /// Returns the number of keys that are ready.
    pub fn len(&self) -> usize {
        self.shared.with(|state, _| state.ready())
    }

    /// Returns true if no key is ready.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends additions, and drops the keys that are delayed. Workers get what is ready, and then `None`.
    pub fn shut_down(&self) {
        self.shared.with(|state, _| state.shut_down());
        self.shared.ready.notify_waiters();
        self.shared.finished.notify_waiters();
    }

    /// Shuts down, and waits until no key is ready or in processing. It needs workers, and its caller a limit of the time.
    ///
    /// # Cancel safety
    ///
    /// Dropping it only ends the wait.
    pub async fn shut_down_with_drain(&self) {
        self.shut_down();
        loop {
            let finished = self.shared.finished.notified();
            if self.shared.with(|state, _| state.is_drained()) {
                return;
            }
            finished.await;
        }
    }

    /// Returns true once the queue is shut down.
    pub fn is_shutting_down(&self) -> bool {
        self.shared.state.lock().is_shutting_down
    }

    /// Returns the counters.
    pub fn stats(&self) -> WorkQueueStats {
        self.shared.with(|state, now| state.stats(now))
    }

    /// Returns the times from readiness to the worker (`queue_duration_seconds`).
    pub fn latency(&self) -> &DurationHistogram {
        &self.shared.latency
    }

    /// Returns the times from the worker to the end of the processing (`work_duration_seconds`).
    pub fn work_duration(&self) -> &DurationHistogram {
        &self.shared.work_duration
    }
}

impl<K: WorkKey> Clone for WorkQueue<K> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<K: WorkKey> Default for WorkQueue<K> {
    fn default() -> Self {
        Self::new(WorkQueueConfig::default())
    }
}

debug_fields!([K: WorkKey] WorkQueue<K>, this => { stats: this.stats() });

// === impl WorkItem ===

impl<K: WorkKey> WorkItem<K> {
    /// Returns the key.
    pub fn key(&self) -> &K {
        &self.key
    }

    /// Returns the priority with which the key was handed out.
    pub fn priority(&self) -> i32 {
        self.priority
    }

    /// Ends the processing of the key, successful or not.
    pub fn done(mut self) {
        self.is_done = true;
    }
}

impl<K: WorkKey> Drop for WorkItem<K> {
    fn drop(&mut self) {
        let returns = (!self.is_done).then_some(self.priority);
        let (took, wake) = self.shared.with(|state, now| state.finish(&self.key, returns, now));
        self.shared.work_duration.observe(took);
        self.shared.wake(wake);
        self.shared.finished.notify_waiters();
    }
}

debug_fields!([K: WorkKey] WorkItem<K> { key, priority });

// === impl Shared ===

impl<K: WorkKey> Shared<K> {
    /// Locks the state, in which every delay that is over has ended.
    fn with<R>(&self, run: impl FnOnce(&mut State<K>, Instant) -> R) -> R {
        let mut state = self.state.lock();
        // Not before the lock: times are in the order of the changes.
        let now = Instant::now();
        state.end_delays(now);
        run(&mut state, now)
    }

    fn wake(&self, wake: Wake) {
        match wake {
            Wake::Nobody => {}
            Wake::One => self.ready.notify_one(),
            Wake::All => self.ready.notify_waiters(),
        }
    }
}

#[cfg(test)]
mod tests;
