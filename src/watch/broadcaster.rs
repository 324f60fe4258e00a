//! Writer of the distribution: groups, encoding once, and the wait for slow clients under BLOCK.

mod groups;
mod selecting;

use std::{
    borrow::Borrow,
    sync::{Arc, atomic::Ordering},
};

use tokio::time::Instant;

use self::{
    groups::Groups,
    selecting::{Deferral, Found, Selecting},
};
use super::{
    BroadcasterConfig, BulkThreads, Client, Cursor, End, Frame, QueueOptions,
    budget::ClientBudgets,
    config::BroadcasterStats,
    encoding::{Encoding, Formats},
    group::{Part, SlotRef, Wakers},
    merger::{Merger, MergerConfig},
    policy::{OnJoin, on_join},
    window::Window,
    writer_signals::WriterSignals,
};
use crate::model::{Batch, HistoryPosition, ResourceVersion, Selection};

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
/// broadcaster.stop(&End::Stopped);
/// assert!(matches!(dropping.take(1).await, Taken::Ended(End::Stopped)));
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Broadcaster<F: Frame> {
    config: BroadcasterConfig,
    groups: Groups<F>,
    /// Position up to which everything has been published.
    reached: HistoryPosition,
    stopped: Option<End>,
    /// Offset of the last relist.
    last_relist: Option<u64>,
    window: Arc<Window<F>>,
    /// Groups that the writer has no time for; `None` if it evaluates every selection itself.
    deferral: Option<Deferral<F>>,
    /// Merges for cursors under COALESCE.
    merger: Arc<Merger<F>>,
    writer_signals: Arc<WriterSignals>,
    /// Slots that hold the writer back, or did.
    blocked: Vec<SlotRef<F>>,
    clients: ClientBudgets,
    /// Arenas, and groups found by their routes: empty between two publish cycles, which use their memory again.
    formats: Formats<F>,
    found: Found,
    stats: Arc<BroadcasterStats>,
}

/// Subscription of one client.
#[derive(Debug, Clone)]
pub struct Subscribe<F: Frame> {
    /// Objects that the client watches.
    pub selection: Arc<Selection>,
    /// Format in which events are encoded.
    pub format: F::Format,
    /// Queue of the client.
    pub queue: QueueOptions,
    /// Client whose budget decides under BLOCK if the watch is ended.
    pub client: Client,
    /// True if the client first receives initial events from a snapshot: until [`Cursor::go_live`], every policy behaves as
    /// REPLAY.
    pub initial_events: bool,
}

// === impl Broadcaster ===

impl<F: Frame> Broadcaster<F> {
    /// Returns a Broadcaster without watchers, at a version.
    pub fn new(config: BroadcasterConfig, version: ResourceVersion) -> Self {
        let stats: Arc<BroadcasterStats> = Arc::default();
        let reached = HistoryPosition { version, offset: 0 };
        Self {
            merger: Merger::new(MergerConfig::of(&config), None, Arc::clone(&stats), &reached),
            clients: ClientBudgets::new(config.block_timeout),
            writer_signals: Arc::new(WriterSignals::new(config.block_timeout, Arc::clone(&stats))),
            config,
            groups: Groups::new(Arc::clone(&stats)),
            reached,
            stopped: None,
            last_relist: None,
            window: Arc::new(Window::new(config.retention, Arc::clone(&stats))),
            deferral: None,
            blocked: Vec::new(),
            formats: Formats::<F>::default(),
            found: Found::default(),
            stats,
        }
    }

    /// Bounds the time that selections take of the writer: threads, if there are any, fill the groups that do not fit. The
    /// threads also merge under COALESCE; without them, the cursor or the writer that needs a merge does it.
    #[must_use]
    pub fn deferring_to(mut self, threads: Option<&BulkThreads>) -> Self {
        let queue = threads.map(|threads| Arc::clone(threads.queue()));
        let (window, writer_signals, oldest) = (&self.window, &self.writer_signals, self.reached.version.clone());
        let deferral = |queue| Deferral::new(&self.config, queue, window, writer_signals, &self.stats, oldest);
        self.deferral = queue.clone().map(deferral);
        self.merger = Merger::new(MergerConfig::of(&self.config), queue, Arc::clone(&self.stats), &self.reached);
        self
    }

    /// Returns the counters.
    pub fn stats(&self) -> &Arc<BroadcasterStats> {
        &self.stats
    }

    #[cfg(test)]
    pub(super) fn reached(&self) -> &HistoryPosition {
        &self.reached
    }

    #[cfg(test)]
    pub(super) fn cycle(&self) -> u64 {
        self.window.cycle()
    }

    /// Returns the number of deferrals that are kept.
    #[cfg(test)]
    pub(super) fn remembered_deferrals(&self) -> usize {
        self.deferral.as_ref().map_or(0, Deferral::len)
    }

    /// Sets the cost of each group whose selection is evaluated within the budget.
    #[cfg(test)]
    pub(crate) fn set_costs(&self, mut cost: impl FnMut() -> u64) {
        for group in self.groups.iter().filter(|group| group.is_budgeted) {
            group.cost.set(cost());
        }
    }

    /// Returns the version up to which everything has been published.
    pub fn version(&self) -> &ResourceVersion {
        &self.reached.version
    }

    /// Subscribes a client, which receives exactly what is published from now on.
    pub fn subscribe(&mut self, subscribe: Subscribe<F>) -> Cursor<F> {
        self.join(subscribe, None)
    }

    /// Subscribes a client that has all changes up to a version. More changes up to that version may still be published
    /// here: the cursor skips them.
    pub fn subscribe_after(&mut self, subscribe: Subscribe<F>, version: &ResourceVersion) -> Cursor<F> {
        let has = (*version > self.reached.version).then_some(version);
        self.join(subscribe, has)
    }

    fn join(&mut self, subscribe: Subscribe<F>, has: Option<&ResourceVersion>) -> Cursor<F> {
        let Subscribe { selection, format, queue, client, initial_events } = subscribe;
        self.groups.remove_vacant(self.writer_signals.take_vacant());
        let needs = on_join(queue.policy);
        let budget = (needs == OnJoin::Budget).then(|| self.clients.of(&client, Instant::now()));
        let id = self.writer_signals.next_slot_id();
        let (group, slot) = loop {
            let (selection, format) = (Arc::clone(&selection), format.clone());
            let group = Arc::clone(self.groups.get_or_create(selection, format, &self.reached, &self.writer_signals));
            let mut log = group.log.lock();
            if self.stopped.is_none() && log.end.is_some() {
                // The group has just ended, because it did not keep up.
                drop(log);
                self.groups.remove(group.id);
                continue;
            }
            log.end.clone_from(&self.stopped);
            let slot = log.subscribe(id, queue, initial_events, budget, self.reached.offset);
            log.skip_events(slot, self.reached.offset, has);
            drop(log);
            break (group, slot);
        };
        let merger = (needs == OnJoin::Merger).then(|| Arc::clone(&self.merger));
        if let Some(merger) = &merger {
            merger.register(SlotRef::new(&group, slot, id), &self.reached);
        }
        let version = has.unwrap_or(&self.reached.version).clone();
        let reached = HistoryPosition { version, offset: self.reached.offset };
        Cursor::new(group, slot, Arc::clone(&self.stats), merger, self.config.queue_size, reached)
    }

    /// Publishes batches as one publish cycle: every group receives its share and is woken once. Does nothing after
    /// [`Self::stop`].
    ///
    /// Callers must first see [`Self::is_blocked`] return false; this function itself never waits.
    pub fn publish<B: Borrow<Batch> + Clone + Into<Arc<Batch>>>(&mut self, batches: &[B]) {
        let Some(last) = batches.last().filter(|_| self.stopped.is_none()) else { return };
        let before = self.reached.clone();
        self.reached.version.clone_from(last.borrow().safe());
        self.groups.remove_vacant(self.writer_signals.take_vacant());
        let last_relist = self.last_relist;
        let mut encoding =
            Encoding::new(batches, before.offset, &mut self.last_relist, std::mem::take(&mut self.formats));
        let events = encoding.changes().len();
        self.reached.offset += events as u64;
        if events == 0 || self.groups.is_empty() {
            self.formats = encoding.into_formats();
            if events > 0 {
                // Readers of groups that have ended may still be there.
                self.merger.publish(batches, before.offset, &self.reached, Instant::now());
            }
            return;
        }
        let began = Instant::now();
        let Selecting { shares, deferred } =
            Selecting::new(&mut self.groups, self.deferral.as_mut(), &mut encoding, before.offset, &mut self.found);
        self.stats.encoded.fetch_add(encoding.encoded(), Ordering::Relaxed);
        let bytes = encoding.freeze();
        let now = Instant::now();
        let its = shares.iter().map(|(group, share)| (group, &share.events[..]));
        let cycle = self.window.push(events, bytes, its, now);

        let left = self.writer_signals.left(now);
        if !self.is_blocked() {
            self.blocked.clear();
        }
        let (mut wakers, mut full): (Wakers, Vec<usize>) = (Wakers::new(), Vec::new());
        for (group, share) in shares {
            let (arenas, queue_size) = (encoding.arenas(&group.format), self.config.queue_size);
            let (offset, end) = (before.offset, self.reached.offset);
            let floor = self.window.floor();
            let changes = encoding.changes();
            let part = Part { cycle, at: now, changes, offset, end, arenas, queue_size, floor };
            {
                let mut log = group.log.lock();
                log.append(&part, share, &mut full, &mut wakers);
                self.blocked.extend(full.drain(..).filter_map(|slot| {
                    let is_blocking = log.fill(slot, left, &self.writer_signals, now);
                    is_blocking.then(|| SlotRef::new(&group, slot, log.slots[slot].id))
                }));
            }
            for waker in wakers.drain(..) {
                waker.wake();
            }
        }
        self.formats = encoding.into_formats();
        if let Some(deferral) = &mut self.deferral {
            deferral.defer(&mut self.groups, &deferred, batches, last_relist, &before, &self.reached);
        }
        // Last: everything that has merged up to here is in the logs.
        self.merger.publish(batches, before.offset, &self.reached, now);
        self.stats.publish.observe(began.elapsed());
    }

    /// Returns true if the next batch has to wait for a client under BLOCK.
    pub fn is_blocked(&self) -> bool {
        self.writer_signals.deadline().is_some()
    }

    /// Waits until every client that holds the writer back has room again or has unsubscribed, but no longer than the
    /// budget of the resource allows. At the deadline the remaining clients are ended or served as under REPLAY. Returns at
    /// once if no client holds the writer back.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again at any time; the waiting time is still counted.
    pub async fn ready(&mut self) {
        while let Some(deadline) = self.block_deadline(Instant::now()) {
            tokio::select! {
                // Cancel-safe: `Notify` keeps the notification if nobody waits.
                () = self.writer_signals.freed() => {}
                () = tokio::time::sleep_until(deadline) => {}
            }
        }
    }

    /// Wakes every waiting cursor although nothing was published, because its reader has something else to report.
    pub fn notify_watches(&self) {
        let mut wakers = Wakers::new();
        for group in self.groups.iter() {
            group.log.lock().take_wakers(&mut wakers);
        }
        for waker in wakers {
            waker.wake();
        }
    }

    /// Removes groups without readers and events that are too old. Must be called periodically, because a quiet resource
    /// has no publish cycles.
    pub fn sweep(&mut self) {
        self.groups.remove_vacant(self.writer_signals.take_vacant());
        let now = Instant::now();
        self.clients.sweep(now);
        if let Some(deferral) = &self.deferral {
            deferral.drop_removed();
        }
        if !self.is_blocked() {
            self.blocked.clear();
        }
        self.window.sweep(now);
        self.merger.sweep(now);
    }

    /// Drops what the history has dropped: a group that has not been filled up to there expires, and what has not merged
    /// under COALESCE is merged.
    pub fn drop_before(&self, oldest: &HistoryPosition) {
        self.merger.drop_before(oldest);
        if let Some(deferral) = &self.deferral {
            deferral.drop_before(oldest);
        }
    }

    /// Ends every cursor once it has read what was published before; later subscribers end at once.
    pub fn stop(&mut self, end: &End) {
        self.stopped = Some(end.clone());
        self.end_all(end);
    }

    /// Ends every cursor as [`Self::stop`] does, and continues for later subscribers from `version`.
    pub fn start_new_history(&mut self, end: &End, version: ResourceVersion) {
        self.end_all(end);
        // What is left of these queues can still be read, and holds nobody back.
        let now = Instant::now();
        for blocked in self.blocked.drain(..) {
            blocked.write(|log, slot| log.slots[slot].unblock(&self.writer_signals, now));
        }
        self.groups.clear();
        // No cursor has reached the next offset.
        self.reached = HistoryPosition { version, offset: self.reached.offset + 1 };
        // Readers of the ended groups keep the old merger.
        self.merger = self.merger.next(&self.reached);
    }

    fn end_all(&self, end: &End) {
        let mut wakers = Wakers::new();
        for group in self.groups.iter() {
            let mut log = group.log.lock();
            log.end.get_or_insert_with(|| end.clone());
            // From here on no thread may fill this log, even with what it has already selected.
            log.end_deferral(&self.stats);
            log.take_wakers(&mut wakers);
        }
        if let Some(deferral) = &self.deferral {
            deferral.clear();
        }
        for waker in wakers {
            waker.wake();
        }
    }

    /// Returns the time until which the writer waits; `None` if no slot holds it back. At the deadline, gives up on every
    /// slot.
    fn block_deadline(&mut self, now: Instant) -> Option<Instant> {
        let deadline = self.writer_signals.deadline()?;
        if now < deadline {
            return Some(deadline);
        }
        for blocked in self.blocked.drain(..) {
            blocked.write(|log, slot| log.give_up(slot, &self.writer_signals, now));
        }
        None
    }
}

impl<F: Frame> Drop for Broadcaster<F> {
    fn drop(&mut self) {
        self.end_all(&End::Stopped);
    }
}
