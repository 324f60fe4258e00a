//! Reflector and processing of a queue: client-go's `Controller`.
//!
//! ```text
//!   ListerWatcher ──▶ Reflector ──▶ Queue ──▶ process ──▶ done
//!                                     ▲          │
//!                                     └── after a delay, with `retry_on_error`
//! ```

mod reconciler;

use std::{collections::BTreeMap, fmt::Display, pin::pin, sync::Arc, time::Duration};

use futures_util::{
    FutureExt,
    future::BoxFuture,
    stream::{FuturesUnordered, StreamExt},
};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub use self::reconciler::{Action, Reconciler};
use super::{
    ListerWatcher, PopError, ProcessError, Queue, Reflector, ReflectorConfig, ReflectorStats, SourceHealth,
    reflector::{ErrorHandler, ShouldResync},
};
use crate::model::Object;

/// List and watch of a source, and the processing of what they queue; not running yet.
///
/// One item is processed at a time. A failed one that is to return stays in processing until its delay is over, so that newer
/// changes of its key wait for it, and a deletion or a newer item replaces it; other keys are processed meanwhile.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # #[cfg(feature = "testing")] {
/// use std::sync::Arc;
///
/// use informerd::{
///     cache::{Controller, ControllerConfig, DeltaFifo, DeltaFifoOptions, Deltas, KeyFunc},
///     model::Object,
///     testing::FakeSource,
/// };
/// use serde_json::json;
/// use tokio_util::sync::CancellationToken;
///
/// let pods = FakeSource::new();
/// pods.add(&json!({ "metadata": { "namespace": "shop", "name": "web" } }));
///
/// let stop = CancellationToken::new();
/// let processed = stop.clone();
/// let process = move |deltas: Deltas<Arc<Object>>, is_in_initial_list| {
///     let processed = processed.clone();
///     async move {
///         assert_eq!((deltas.key().to_string(), is_in_initial_list), ("shop/web".to_owned(), true));
///         processed.cancel();
///         Ok::<_, std::io::Error>(())
///     }
/// };
/// let queue = Arc::new(DeltaFifo::new(DeltaFifoOptions::new(KeyFunc::default())));
/// let config = ControllerConfig { retry_on_error: true, ..ControllerConfig::new(queue, pods, process) };
/// tokio::spawn(Controller::new(config).run(stop)).await?;
/// # }
/// # Ok(())
/// # }
/// ```
pub struct Controller<S, Q: Queue<Object = Arc<Object>>, P> {
    reflector: Reflector<S, Q>,
    processor: Processor<Q, P>,
}

/// Parameters of a [`Controller`] (client-go's `Config`).
pub struct ControllerConfig<S, Q, P> {
    /// Name, for the span of the Reflector. `None` for the file and line that made the Controller.
    pub name: Option<String>,
    /// Queue of the results.
    pub queue: Arc<Q>,
    /// Upstream.
    pub source: S,
    /// Health of the source, if that was made with one. `None` makes one.
    pub health: Option<SourceHealth>,
    /// Function that processes an item: a closure with an `async` block, an `async` closure that captures
    /// nothing, or an `async fn`; it takes the item, and true if it is in the initial list, and returns `Result<(), E>`.
    pub process: P,
    /// API version and kind of the objects ([`ReflectorConfig::expected`]).
    pub expected: Option<(String, String)>,
    /// Interval of resyncs of the queue; 0 for none.
    pub full_resync_period: Duration,
    /// Decision about a resync that is due; without it each takes place.
    pub should_resync: Option<ShouldResync>,
    /// True if a failed item returns to the queue: after 100 ms, doubled for each further failure of its key, up to 10 s. Without
    /// it, a failed item is logged and dropped.
    pub retry_on_error: bool,
    /// Handler of the Reflector's errors; without it they are logged ([`ReflectorConfig::on_error`]).
    pub on_error: Option<ErrorHandler>,
}

/// Loop that processes the items of a queue.
struct Processor<Q: Queue, P> {
    queue: Arc<Q>,
    process: P,
    retry_on_error: bool,
    /// Last delay of each key whose item has failed and returns.
    delays: Mutex<BTreeMap<Q::Key, Duration>>,
    /// Signal of an item that waits for its return, so that the next item is processed.
    waits: Notify,
    stop: CancellationToken,
}

/// End of one call of [`Queue::pop`].
enum Popped {
    /// Item that has been processed or dropped.
    Done,
    /// Item that has returned to the queue.
    Returned,
    /// Closed queue with nothing left.
    Closed,
}

const FIRST_DELAY: Duration = Duration::from_millis(100);
const LAST_DELAY: Duration = Duration::from_secs(10);
/// Silence of a source without a health of its own after which it is STALE.
const STALE_AFTER: Duration = Duration::from_secs(15);

// === impl ControllerConfig ===

impl<S, Q, P> ControllerConfig<S, Q, P> {
    /// Returns the parameters with everything else off: no resync, no retries, and errors are logged.
    pub fn new(queue: Arc<Q>, source: S, process: P) -> Self {
        Self {
            name: None,
            queue,
            source,
            health: None,
            process,
            expected: None,
            full_resync_period: Duration::ZERO,
            should_resync: None,
            retry_on_error: false,
            on_error: None,
        }
    }
}

debug_fields!([S, Q, P] ControllerConfig<S, Q, P> { name, expected, full_resync_period, retry_on_error });

// === impl Controller ===

impl<S, Q, P, F, E> Controller<S, Q, P>
where
    S: ListerWatcher,
    Q: Queue<Object = Arc<Object>>,
    P: Fn(Q::Item, bool) -> F + Send + Sync,
    F: Future<Output = Result<(), E>> + Send,
    E: Display + Send,
{
    /// Makes a Controller that has not sent a request yet.
    #[track_caller]
    pub fn new(config: ControllerConfig<S, Q, P>) -> Self {
        let ControllerConfig {
            name,
            queue,
            source,
            health,
            process,
            expected,
            full_resync_period,
            should_resync,
            retry_on_error,
            on_error,
        } = config;
        let health = health.unwrap_or_else(|| SourceHealth::new(source.heartbeat(), STALE_AFTER));
        let config = ReflectorConfig {
            name,
            resync_period: full_resync_period,
            should_resync,
            expected,
            on_error,
            ..ReflectorConfig::default()
        };
        let reflector = Reflector::new(source, Arc::clone(&queue), health, config);
        let (delays, waits, stop) = (Mutex::default(), Notify::new(), CancellationToken::new());
        Self { reflector, processor: Processor { queue, process, retry_on_error, delays, waits, stop } }
    }

    /// Returns the counters of the Reflector, which have the last version too.
    pub fn stats(&self) -> &Arc<ReflectorStats> {
        self.reflector.stats()
    }

    /// Lists, watches and processes until `stop`. Then it requests nothing more, closes the queue, and processes its rest; items
    /// that wait for their return are processed a last time. It ends early if something else closes the queue.
    ///
    /// # Cancel safety
    ///
    /// Dropping it leaves the queue open; an item in processing returns to it.
    ///
    /// # Panics
    ///
    /// If `process` panics, after its item has returned to the queue.
    pub async fn run(self, stop: CancellationToken) {
        let Self { reflector, processor } = self;
        let processor = Processor { stop: stop.clone(), ..processor };
        let mut processing = pin!(processor.run());
        let is_over = {
            let reflecting = reflector.run();
            tokio::select! {
                // In this order: a Controller that was stopped before sends no request.
                biased;
                // Cancel-safe: nothing is requested after the stop, and `processing` continues below.
                () = stop.cancelled() => false,
                () = &mut processing => true,
                () = reflecting => false,
            }
        };
        processor.queue.close();
        if !is_over {
            processing.await;
        }
    }
}

debug_fields!([S, Q: Queue<Object = Arc<Object>>, P] Controller<S, Q, P> { reflector });

// === impl Processor ===

impl<Q, P, F, E> Processor<Q, P>
where
    Q: Queue,
    P: Fn(Q::Item, bool) -> F + Send + Sync,
    F: Future<Output = Result<(), E>> + Send,
    E: Display + Send,
{
    /// Processes items until the queue is closed and has none left.
    async fn run(&self) {
        let mut pops = FuturesUnordered::from_iter([self.pop()]);
        loop {
            tokio::select! {
                // Cancel-safe: a notification without a waiter is kept, and the calls remain in `pops`.
                () = self.waits.notified() => pops.push(self.pop()),
                Some(popped) = pops.next() => match popped {
                    Popped::Done => pops.push(self.pop()),
                    // The next item has been popped since it began to wait.
                    Popped::Returned => {}
                    Popped::Closed => return,
                },
            }
        }
    }

    /// Processes one item, and waits for its return if that fails. In a box: the compiler cannot prove of the closure's own future,
    /// as a part of that of a Controller, that it may be sent to another thread.
    fn pop<'a>(&'a self) -> BoxFuture<'a, Popped>
    where
        F: 'a,
        E: 'a,
    {
        self.process_next().boxed()
    }

    async fn process_next(&self) -> Popped {
        let popped = self.queue.pop(|item: Q::Item, is_in_initial_list| async move {
            // The queue has computed the key before.
            let key = self.queue.key_of_item(&item).ok();
            let Err(error) = (self.process)(item, is_in_initial_list).await else {
                self.forget(key.as_ref());
                return Ok(());
            };
            let Some(delay) = self.next_delay(key.as_ref()) else {
                return Err(ProcessError::Failed((key, error)));
            };
            tracing::debug!(?key, %error, retry_in = ?delay, "processing failed");
            self.waits.notify_one();
            // A stop ends the delay.
            self.stop.run_until_cancelled(tokio::time::sleep(delay)).await;
            Err(ProcessError::Requeue(Some((key, error))))
        });
        match popped.await {
            Ok(_) => Popped::Done,
            Err(PopError::Requeued((key, _))) => {
                // A deleted object does not return.
                if key.as_ref().is_some_and(|key| self.queue.get_by_key(key).is_none()) {
                    self.forget(key.as_ref());
                }
                Popped::Returned
            }
            Err(PopError::Failed { error: (key, error), .. }) => {
                self.forget(key.as_ref());
                tracing::warn!(?key, %error, "processing failed: item dropped");
                Popped::Done
            }
            Err(PopError::Closed) => Popped::Closed,
        }
    }

    /// Returns the delay before a failed item of a key returns; `None` if it does not.
    fn next_delay(&self, key: Option<&Q::Key>) -> Option<Duration> {
        let key = key.filter(|_| self.retry_on_error && !self.stop.is_cancelled())?;
        let mut delays = self.delays.lock();
        let delay = delays.get(key).map_or(FIRST_DELAY, |last| (*last * 2).min(LAST_DELAY));
        delays.insert(key.clone(), delay);
        Some(delay)
    }

    /// Forgets the failures of a key.
    fn forget(&self, key: Option<&Q::Key>) {
        key.and_then(|key| self.delays.lock().remove(key));
    }
}

#[cfg(test)]
mod tests;
