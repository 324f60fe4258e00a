//! Endless list and watch of one upstream, which writes the results to a store.
//!
//! A pure state machine (`state.rs`, after client-go's reflector) chooses the next request after each outcome. This file
//! executes it: it calls the upstream, waits, and records the source's health. The Reflector never gives up: it repeats a
//! failed request for as long as the task runs, and reports the failure in the [`SourceHealth`].

mod config;
mod error;
mod state;
mod store;
mod transformer;

use std::{
    future::poll_fn,
    panic::Location,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::Poll,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};
use tracing::{Instrument, info_span};

pub(super) use self::config::{ErrorHandler, ShouldResync};
pub use self::{
    config::{ObjectFilter, ReflectorConfig},
    error::ReflectorError,
    store::ReflectorStore,
};
use self::{
    state::{Next, Outcome, State},
    transformer::Transformer,
};
use super::{
    Backoff, CheckpointRequests, Delta, List, ListVersion, ListerWatcher, RealFifo, SourceError, SourceHealth,
    WarmStart, Watch, checkpoint::Requests,
};
use crate::model::{AppliedVersion, ResourceVersion};

/// Driver of one [`ListerWatcher`], which writes to a store: the queue of an informer, or any other [`ReflectorStore`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() { #[cfg(feature = "testing")] {
/// use std::{sync::Arc, time::Duration};
///
/// use informerd::{
///     cache::{KeyFunc, Reflector, ReflectorConfig, SourceHealth, UndeltaStore},
///     model::Object,
///     testing::FakeSource,
/// };
/// use serde_json::json;
///
/// let pods = FakeSource::new();
/// pods.add(&json!({ "metadata": { "name": "web" } }));
/// let (sender, mut states) = tokio::sync::mpsc::unbounded_channel();
/// let push = move |state: Vec<Arc<Object>>| drop(sender.send(state.len()));
/// let store = Arc::new(UndeltaStore::new(KeyFunc::<Arc<Object>>::default(), push));
/// let health = SourceHealth::new(Duration::from_secs(60), Duration::from_secs(60));
/// let reflector = Reflector::new(pods.clone(), store, health, ReflectorConfig::default());
/// let task = tokio::spawn(reflector.run());
/// assert_eq!(states.recv().await, Some(1));
/// task.abort();
/// # } }
/// ```
pub struct Reflector<S, Q: ReflectorStore = RealFifo> {
    name: String,
    source: S,
    store: Arc<Q>,
    checkpoints: CheckpointRequests,
    requests: Requests,
    health: SourceHealth,
    stats: Arc<ReflectorStats>,
    backoff: Backoff,
    state: State,
    /// True if the upstream's history was rewritten, and the next list is the first of the new one.
    is_history_rewritten: bool,
    transformer: Option<Transformer>,
    resync_period: Duration,
    should_resync: Option<ShouldResync>,
    /// Times of the resyncs, from the last list on.
    resyncs: Option<Interval>,
    on_error: Option<ErrorHandler>,
}

/// Counters of one Reflector, read at scrape, and the last version that it has written.
#[derive(Debug, Default)]
pub struct ReflectorStats {
    /// Lists requested.
    pub lists: AtomicU64,
    /// Lists that failed.
    pub list_failures: AtomicU64,
    /// Objects in all lists that succeeded.
    pub listed_objects: AtomicU64,
    /// Watches requested.
    pub watches: AtomicU64,
    /// Watches that could not be opened or ended with an error.
    pub watch_failures: AtomicU64,
    /// Events received, bookmarks included.
    pub events: AtomicU64,
    /// Objects of an unexpected type, which were left out.
    pub unexpected: AtomicU64,
    /// Version when its lineage or the upper half of its number changed last. An event stores the lower half alone, without
    /// the lock.
    last_sync: Mutex<Option<ResourceVersion>>,
    last_sync_lower: AtomicU64,
}

/// Bound below which a watch without events is a failure, not a normal close: something between this server and the upstream
/// closes it at once, and a repetition without a delay would be a busy loop.
const VERY_SHORT_WATCH: Duration = Duration::from_secs(1);
/// Duration of an open watch that shows that the upstream serves watches, though it delivered nothing.
const STEADY_WATCH: Duration = Duration::from_secs(10);

/// Minimum of the delay after an answer that the upstream is not ready; the actual one is random, up to twice as long.
const NOT_YET_DELAY: Duration = Duration::from_millis(250);

/// Next item of a watch, or a resync that is due before it.
enum NextItem {
    Item(Option<Result<Delta, SourceError>>),
    Resync,
}

// === impl Reflector ===

impl<S: ListerWatcher, Q: ReflectorStore> Reflector<S, Q> {
    /// Makes a Reflector that has not sent a request yet.
    #[track_caller]
    pub fn new(source: S, store: Arc<Q>, health: SourceHealth, config: ReflectorConfig) -> Self {
        let ReflectorConfig { name, first_list, backoff, resync_period, should_resync, expected, filter, on_error } =
            config;
        let caller = Location::caller();
        let (checkpoints, requests) = CheckpointRequests::new();
        Self {
            name: name.unwrap_or_else(|| format!("{}:{}", caller.file(), caller.line())),
            source,
            store,
            checkpoints,
            requests,
            health,
            stats: Arc::default(),
            backoff: Backoff::new(backoff),
            state: State::new(first_list),
            is_history_rewritten: false,
            transformer: Transformer::new(expected, filter),
            resync_period,
            should_resync,
            resyncs: None,
            on_error,
        }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the identity for a warm start of this source ([`WarmStart::identity`]); `None` if it has no warm start.
    pub fn identity(&self) -> Option<String> {
        self.source.warm_start().map(WarmStart::identity)
    }

    /// Resumes from the snapshot of the previous run, which the informer begins with (the source may change its versions), and
    /// whose upstream was seen last at `seen_at`: watches from its version, and lists only if the upstream cannot serve that watch.
    ///
    /// # Errors
    ///
    /// If the source rejects the proof. The Reflector then begins with a list.
    pub fn resume(&mut self, list: &mut List, proof: &[u8], seen_at: Option<SystemTime>) -> Result<(), String> {
        let source = self.source.warm_start().ok_or("the source does not support snapshots")?;
        source.resume_with(list, proof)?;
        self.health.mark_resumed(seen_at);
        self.stats.begin_at(&list.version);
        self.state.resume(list.version.clone());
        Ok(())
    }

    /// Returns the counters.
    pub fn stats(&self) -> &Arc<ReflectorStats> {
        &self.stats
    }

    /// Returns the handle that requests checkpoints.
    pub fn checkpoints(&self) -> &CheckpointRequests {
        &self.checkpoints
    }

    /// Returns the version up to which the store has been written; `None` before the first list or event. While the Reflector
    /// runs, its [`ReflectorStats`] have it.
    pub fn last_sync_resource_version(&self) -> Option<ResourceVersion> {
        self.stats.last_sync_resource_version()
    }

    /// Lists and watches until the future is dropped; it never ends by itself. Its span has the name.
    ///
    /// # Cancel safety
    ///
    /// Dropping it abandons a list or closes a watch. Results that were not written are lost together with the Reflector.
    ///
    /// # Panics
    ///
    /// If the filter changes the key, the uid or the version of an object.
    pub async fn run(self) {
        let span = info_span!("reflector", name = self.name);
        self.list_and_watch().instrument(span).await;
    }

    /// Lists and watches in the present span.
    pub(super) async fn list_and_watch(mut self) {
        self.schedule_resyncs();
        let mut next = self.state.start();
        loop {
            let outcome = match next.request {
                state::Request::List(at) => self.list(at).await,
                state::Request::Watch(from) => self.watch(from).await,
            };
            let error = outcome.error();
            next = self.step(outcome, error.as_ref());
            let is_answered = error.as_ref().is_some_and(ReflectorError::is_not_yet);
            let delay = next.delayed.then(|| {
                if is_answered {
                    // Nothing has failed: the answer comes as soon as the upstream is ready.
                    self.backoff.reset();
                    NOT_YET_DELAY.mul_f64(1.0 + fastrand::f64())
                } else {
                    self.backoff.next_delay(Instant::now())
                }
            });
            if let Some(error) = error {
                self.report(&error, delay.unwrap_or_default());
            }
            if let Some(delay) = delay {
                with_requests(&mut self.requests, &self.source, &*self.store, tokio::time::sleep(delay)).await;
            }
        }
    }

    fn step(&mut self, outcome: Outcome, error: Option<&ReflectorError>) -> Next {
        if let Some(error) = error.filter(|error| !error.is_expired_watch()) {
            self.health.record_failure(error.to_string());
        }
        if outcome.has_missed_changes() {
            self.health.mark_lost();
        }
        self.is_history_rewritten |= outcome.is_history_rewritten();
        self.state.step(outcome)
    }

    /// Passes an error to the handler; without one it is logged.
    fn report(&self, error: &ReflectorError, retry_in: Duration) {
        match &self.on_error {
            Some(on_error) => on_error(error),
            None if error.is_expired_watch() => tracing::debug!(%error, ?retry_in, "upstream watch expired"),
            None if matches!(error, ReflectorError::UnexpectedType { .. }) => tracing::warn!(%error, "object left out"),
            None => tracing::warn!(%error, ?retry_in, "upstream failed"),
        }
    }

    /// Counts and reports objects of an unexpected type.
    fn report_unexpected(&self, error: Option<ReflectorError>) {
        let Some(error @ ReflectorError::UnexpectedType { count, .. }) = error else { return };
        self.stats.unexpected.fetch_add(count as u64, Ordering::Relaxed);
        self.report(&error, Duration::ZERO);
    }

    /// Makes the first resync due one period from now.
    fn schedule_resyncs(&mut self) {
        let first = Instant::now().checked_add(self.resync_period).filter(|_| !self.resync_period.is_zero());
        self.resyncs = first.map(|first| {
            let mut resyncs = interval_at(first, self.resync_period);
            resyncs.set_missed_tick_behavior(MissedTickBehavior::Delay);
            resyncs
        });
    }

    /// Resyncs the store, which is due.
    async fn resync(&self) -> Result<(), Q::Error> {
        match &self.should_resync {
            Some(should_resync) if !should_resync() => Ok(()),
            _ => self.store.resync().await,
        }
    }

    async fn list(&mut self, at: ListVersion) -> Outcome {
        self.stats.lists.fetch_add(1, Ordering::Relaxed);
        let list = self.source.list(at);
        let mut list = match with_requests(&mut self.requests, &self.source, &*self.store, list).await {
            Ok(list) => list,
            Err(error) => {
                self.stats.list_failures.fetch_add(1, Ordering::Relaxed);
                return Outcome::ListFailed(error);
            }
        };
        tracing::info!(objects = list.objects.len(), resource_version = %list.version, "listed");
        self.stats.listed_objects.fetch_add(list.objects.len() as u64, Ordering::Relaxed);
        self.health.record_contact();
        if self.state.list_is_recovery() {
            self.backoff.reset();
        }
        if let Some(transformer) = &self.transformer {
            let unexpected = transformer.list(&mut list).await;
            self.report_unexpected(unexpected);
        }
        let version = list.version.clone();
        let delta = if self.is_history_rewritten { Delta::HistoryRewritten(list) } else { Delta::Replace(list) };
        if let Err(error) = self.store.apply(delta).await {
            self.stats.list_failures.fetch_add(1, Ordering::Relaxed);
            return Outcome::NotStored { reached: None, error: error.to_string() };
        }
        self.is_history_rewritten = false;
        self.stats.begin_at(&version);
        self.schedule_resyncs();
        Outcome::Listed(version)
    }

    async fn watch(&mut self, from: ResourceVersion) -> Outcome {
        self.stats.watches.fetch_add(1, Ordering::Relaxed);
        let opened_at = Instant::now();
        let watch = self.source.watch(from.clone());
        let outcome = match with_requests(&mut self.requests, &self.source, &*self.store, watch).await {
            Ok(watch) => {
                let outcome = self.follow(watch, from, opened_at).await;
                if opened_at.elapsed() >= STEADY_WATCH {
                    self.state.progress();
                }
                outcome
            }
            Err(error) => Outcome::WatchNotOpened(error),
        };
        if outcome.error().is_some() {
            self.stats.watch_failures.fetch_add(1, Ordering::Relaxed);
        }
        outcome
    }

    /// Writes events to the store until the watch ends.
    async fn follow(&mut self, mut watch: Watch, from: ResourceVersion, opened_at: Instant) -> Outcome {
        let mut reached = AppliedVersion::closed(from);
        let mut events: u64 = 0;
        let is_very_short = |events| events == 0 && opened_at.elapsed() < VERY_SHORT_WATCH;
        loop {
            let next = next_item(&mut watch, &mut self.resyncs);
            let mut delta = match with_requests(&mut self.requests, &self.source, &*self.store, next).await {
                NextItem::Item(Some(Ok(delta))) => delta,
                NextItem::Item(Some(Err(error @ SourceError::Broken(_)))) if !is_very_short(events) => {
                    self.report(&ReflectorError::Watch(error), Duration::ZERO);
                    break;
                }
                NextItem::Item(Some(Err(error))) => {
                    return Outcome::WatchFailed { reached: reached.safe().clone(), error };
                }
                NextItem::Item(None) => break,
                NextItem::Resync => match self.resync().await {
                    Ok(()) => continue,
                    Err(error) => {
                        return Outcome::ResyncFailed { reached: reached.safe().clone(), error: error.to_string() };
                    }
                },
            };
            if let Some(transformer) = &self.transformer {
                let unexpected = transformer.delta(&mut delta).await;
                self.report_unexpected(unexpected);
            }
            let Some(version) = delta.version().cloned() else { continue };
            events += 1;
            self.stats.events.fetch_add(1, Ordering::Relaxed);
            if delta.is_bookmark() && version < *reached.version() && version >= *reached.safe() {
                // The version of the last change is still open.
                self.health.record_contact();
                continue;
            }
            // One low event means a broken stream, and does not prove a rewritten history. client-go would accept the lower
            // version.
            if version < *reached.version() || !version.same_lineage(reached.version()) {
                let after = reached.version().clone();
                return Outcome::WatchBroken { reached: reached.safe().clone(), found: version, after };
            }
            self.health.record_contact();
            // The same version again is no progress: each watch may begin with a bookmark and then fail.
            if version > *reached.version() {
                self.state.progress();
                self.backoff.reset();
            }
            tracing::trace!(resource_version = %version, "version received");
            let closes = delta.closes();
            if let Err(error) = self.store.apply(delta).await {
                return Outcome::NotStored { reached: Some(reached.safe().clone()), error: error.to_string() };
            }
            self.stats.advance(reached.version(), &version);
            reached.advance(&version, closes);
            if reached.is_open() {
                self.state.opened(&version);
            }
            // An upstream that always has more must not starve the informer, which runs on the same thread.
            tokio::task::consume_budget().await;
        }
        if is_very_short(events) {
            return Outcome::WatchTooShort { reached: reached.safe().clone() };
        }
        Outcome::WatchClosed { reached: reached.safe().clone() }
    }
}

debug_fields!([S, Q: ReflectorStore] Reflector<S, Q> { name, state, stats });

// === impl ReflectorStats ===

impl ReflectorStats {
    /// Returns the version up to which the store has been written; `None` before the first list or event.
    pub fn last_sync_resource_version(&self) -> Option<ResourceVersion> {
        let last = self.last_sync.lock();
        last.as_ref().map(|last| last.with_lower(self.last_sync_lower.load(Ordering::Relaxed)))
    }

    /// Records a version that may have another lineage than the one before.
    fn begin_at(&self, version: &ResourceVersion) {
        let mut last = self.last_sync.lock();
        self.last_sync_lower.store(version.lower(), Ordering::Relaxed);
        *last = Some(version.clone());
    }

    /// Records the version that follows another one of its lineage.
    fn advance(&self, before: &ResourceVersion, version: &ResourceVersion) {
        if version.has_upper_of(before) {
            self.last_sync_lower.store(version.lower(), Ordering::Relaxed);
        } else {
            self.begin_at(version);
        }
    }
}

/// Waits for the next item of a watch, or for a resync that is due before it.
///
/// # Cancel safety
///
/// May be dropped at any time.
fn next_item(watch: &mut Watch, resyncs: &mut Option<Interval>) -> impl Future<Output = NextItem> {
    poll_fn(|cx| {
        // Resyncs first: an upstream that always has more must not hold them back.
        match resyncs.as_mut().map(|resyncs| resyncs.poll_tick(cx)) {
            Some(Poll::Ready(_)) => Poll::Ready(NextItem::Resync),
            Some(Poll::Pending) | None => watch.as_mut().poll_next(cx).map(NextItem::Item),
        }
    })
}

/// Waits for the upstream, and meanwhile passes requests for checkpoints on to the store, each with the proof of the history:
/// everything that the source has returned is in the queue before it.
async fn with_requests<T>(
    requests: &mut Requests,
    source: &impl ListerWatcher,
    store: &impl ReflectorStore,
    upstream: impl Future<Output = T>,
) -> T {
    let mut upstream = pin!(upstream);
    loop {
        tokio::select! {
            // Requests first: an upstream that always has more must not hold them back.
            biased;
            // Cancel-safe: `recv` loses nothing when the other arm wins.
            Some(reply) = requests.recv() => {
                if let Some(proof) = source.warm_start().and_then(WarmStart::proof) {
                    // A store that rejects it drops the reply: there is no checkpoint.
                    drop(store.apply(Delta::Checkpoint { proof, reply }).await);
                }
            }
            done = &mut upstream => return done,
        }
    }
}

#[cfg(test)]
mod tests;
