//! Writer of the distribution.

use std::sync::Arc;

use tokio::time::Instant;

use super::{BroadcasterConfig, BroadcasterStats, BulkThreads, Cursor, Cursors, End, Frame, History, Past, Subscribe};
use crate::model::{Batch, HistoryPosition, ResourceVersion};

/// Distributor of batches to cursors, owned by one task. Every cursor that subscribed before a batch is published receives
/// it; no later cursor does.
///
/// It is the engine of an informer, which publishes the changes of its store. A program usually takes
/// [`InformerHandle::watch`](crate::cache::InformerHandle::watch), which joins the present objects and the later events. A writer of
/// its own gives each [`Change`](crate::model::Change) the state before it, at growing versions, waits for [`Broadcaster::ready`]
/// before it publishes, and calls [`Broadcaster::sweep`] at intervals.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
///
/// use informerd::{
///     model::{Batch, Cause, Change, EventType, Object, ResourceVersion, Selection},
///     watch::{
///         Broadcaster, BroadcasterConfig, Client, Deliveries, End, FullChannelPolicy, QueueOptions, Subscribe, Taken,
///     },
/// };
///
/// let version = ResourceVersion::decimal;
/// let mut broadcaster = Broadcaster::<Deliveries>::new(BroadcasterConfig::default(), version(1));
/// let subscribe = |policy| Subscribe {
///     selection: Arc::new(Selection::default()),
///     format: (),
///     queue: QueueOptions { policy, length: 1 },
///     client: Client::Watch,
///     initial_events: false,
/// };
/// let mut dropping = broadcaster.subscribe(subscribe(FullChannelPolicy::Drop));
/// let mut prefixed = broadcaster.subscribe(Subscribe { initial_events: true, ..subscribe(FullChannelPolicy::Block) });
///
/// // WatchWithPrefix: the reader of `prefixed` first handles the objects that exist, and then takes what follows.
/// prefixed.go_live();
/// for number in 2..=3 {
///     let body = format!(r#"{{"metadata": {{"name": "web-{number}"}}}}"#);
///     let new = Some(Arc::new(Object::from_json(body, "", version(number))?));
///     let change = Change { old: None, new, version: version(number), cause: Cause::Change, index_values: None };
///     let batch = Batch {
///         before: version(number - 1),
///         after: version(number),
///         changes: vec![change],
///         is_relist: false,
///         is_open: false,
///     };
///     // At a full queue under BLOCK the writer waits here, within `block_timeout`.
///     broadcaster.ready().await;
///     broadcaster.publish(&[batch]);
///     let Taken::Frames(events) = prefixed.take(1).await else { panic!("an event is queued") };
///     assert_eq!(events.iter().flat_map(Deliveries::as_slice).map(|event| event.event_type).collect::<Vec<_>>(), [EventType::Added]);
/// }
///
/// // Under DROP the events for a full queue are counted in its place.
/// assert!(matches!(dropping.take(1).await, Taken::Frames(_)));
/// assert!(matches!(dropping.take(1).await, Taken::Dropped { count: 1, .. }));
/// broadcaster.stop();
/// assert!(matches!(dropping.take(1).await, Taken::Ended(End::Stopped)));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Broadcaster<F: Frame> {
    pub(super) cursors: Arc<Cursors<F>>,
    is_stopped: bool,
}

// === impl Broadcaster ===

impl<F: Frame> Broadcaster<F> {
    /// Returns a Broadcaster without watchers, at a version.
    pub fn new(config: BroadcasterConfig, version: ResourceVersion) -> Self {
        let past = Arc::new(Past::new(config.retention));
        past.restart(History::new(config.retention, HistoryPosition { version, offset: 0 }), || {});
        Self::over(Arc::new(Cursors::new(past, config)))
    }

    /// Returns the writer of cursors over a past.
    pub(crate) fn over(cursors: Arc<Cursors<F>>) -> Self {
        Self { cursors, is_stopped: false }
    }

    /// Leaves expressions and costly formats to threads, and what cursors need of changes that the history is about to drop. Without
    /// them, whoever needs it does it at once.
    #[must_use]
    pub fn deferring_to(self, threads: Option<&BulkThreads>) -> Self {
        if let Some(threads) = threads {
            self.cursors.give_threads(threads);
        }
        self
    }

    /// Returns the counters.
    pub fn stats(&self) -> &Arc<BroadcasterStats> {
        self.cursors.stats()
    }

    /// Returns the version up to which everything has been published.
    pub fn version(&self) -> ResourceVersion {
        self.reached().version
    }

    /// Returns the same with its offset.
    pub(crate) fn reached(&self) -> HistoryPosition {
        self.cursors.shared.past.history().lock().current().clone()
    }

    /// Returns the offset before everything that is kept.
    #[cfg(test)]
    pub(super) fn oldest_offset(&self) -> u64 {
        self.cursors.shared.past.history().lock().begin_offset()
    }

    /// Returns the number of events in the history.
    #[cfg(test)]
    pub(super) fn recorded_events(&self) -> usize {
        self.cursors.shared.past.history().lock().events()
    }

    /// Subscribes a client, which receives exactly what is published from now on.
    pub fn subscribe(&mut self, subscribe: Subscribe<F>) -> Cursor<F> {
        self.cursors.subscribe_at(subscribe, self.reached(), (false, false))
    }

    /// Subscribes a client that has all changes up to a version. More changes up to that version may still be published
    /// here: the cursor skips them.
    pub fn subscribe_after(&mut self, subscribe: Subscribe<F>, version: &ResourceVersion) -> Cursor<F> {
        let reached = self.reached();
        let version = if *version > reached.version { version.clone() } else { reached.version };
        self.cursors.subscribe_at(subscribe, HistoryPosition { version, ..reached }, (false, false))
    }

    /// Publishes batches, which cursors can then read, and wakes those that they may concern. Does nothing after [`Self::stop`].
    ///
    /// Callers must first see [`Self::is_blocked`] return false; this function itself never waits.
    pub fn publish<B: Clone + Into<Arc<Batch>>>(&mut self, batches: &[B]) {
        if self.is_stopped {
            return;
        }
        let batches: Vec<Arc<Batch>> = batches.iter().cloned().map(Into::into).collect();
        {
            let (mut history, now) = (self.cursors.shared.past.history().lock(), Instant::now());
            for batch in &batches {
                history.record(Arc::clone(batch), now);
            }
        }
        self.publish_recorded(&batches);
    }

    /// Publishes batches that the history has.
    pub(crate) fn publish_recorded(&mut self, batches: &[Arc<Batch>]) {
        let began = Instant::now();
        self.cursors.shared.past.publish(batches);
        if batches.iter().any(|batch| !batch.changes.is_empty()) {
            self.cursors.published();
            self.cursors.shared.stats.publish.observe(began.elapsed());
        }
    }

    /// Returns true if the next batch has to wait for a client under BLOCK.
    pub fn is_blocked(&self) -> bool {
        self.cursors.shared.signals.deadline().is_some()
    }

    /// Waits until every client that holds the writer back has room again or has unsubscribed, but no longer than the
    /// budget of the resource allows. At the deadline the remaining clients are ended or served as under REPLAY. Returns at
    /// once if no client holds the writer back.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again at any time; the waiting time is still counted.
    pub async fn ready(&mut self) {
        let signals = &self.cursors.shared.signals;
        while let Some(deadline) = signals.deadline() {
            let now = Instant::now();
            if now >= deadline {
                return self.cursors.give_up(now);
            }
            tokio::select! {
                // Cancel-safe: `Notify` keeps the notification if nobody waits.
                () = signals.freed() => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }

    /// Wakes every waiting cursor although nothing was published, because its reader has something else to report.
    pub fn notify_watches(&self) {
        self.cursors.shared.past.notify();
    }

    /// Drops events that are too old, and what nobody reads any more. Must be called periodically, because a quiet resource
    /// publishes nothing.
    pub fn sweep(&mut self) {
        self.cursors.shared.past.history().lock().evict_old(Instant::now());
        self.cursors.sweep();
    }

    /// Ends every cursor once it has read what was published before; later subscribers end at once.
    pub fn stop(&mut self) {
        self.is_stopped = true;
        self.cursors.end_all(&End::Stopped);
        self.cursors.shared.past.end();
    }

    /// Ends every cursor at once, and continues with a new history for later subscribers.
    /// `also` is done together with the latter, as its readers see it.
    pub(crate) fn start_new_history(&mut self, end: &End, history: History, also: impl FnOnce()) {
        // First: whoever reads the new history at an old offset then finds the end.
        self.cursors.end_all(end);
        self.cursors.shared.past.restart(history, also);
    }
}

impl<F: Frame> Drop for Broadcaster<F> {
    fn drop(&mut self) {
        self.stop();
    }
}
