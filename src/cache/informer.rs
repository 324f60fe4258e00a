//! Single writer task of a resource: it applies deltas in upstream order and distributes the changes.
//!
//! All others read the resource through an [`InformerHandle`]. Invariants:
//!
//! - A batch is applied (store, indexes, history, version), then published. A snapshot shows a change no later than a watch
//!   does, and the distributed version is never ahead of the events that cursors can read.
//! - A watch starts from the published snapshot, at its offset, and reads every later event from the history: joining waits for nobody.
//! - While a client under BLOCK holds the task back, the next batch is not applied; watches join and leave.

mod cache_watcher;
mod config;
mod handle;
mod indexing;
mod informer_watch;
mod join;
mod past_state;
mod publish;
mod reselection;
mod timeline;
mod unread;
mod waiters;

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, MissedTickBehavior},
};

pub use self::{
    cache_watcher::{CacheWatcher, WatchStep, WatcherStage},
    config::{InformerConfig, InformerStats},
    handle::InformerHandle,
    indexing::AddIndexersError,
    informer_watch::{InformerWatch, WatchItem},
    join::{JoinError, Joined, Start, Stopped},
    past_state::{NetChange, RecentChanges},
    reselection::Reselection,
};
use self::{timeline::Timeline, unread::UnreadItems, waiters::Waiters};
use super::{
    Checkpoint, Delta, Indexer, List, ProgressDemand, Provenance, RealFifo, Snapshot, SourceHealth, SyncState,
    ahead::{ChangesAhead, UnrepeatedChanges},
};
use crate::{
    model::{
        Batch, Cause, Event, HistoryPosition, IndexFunc, Indexers, IndexersError, ResourceVersion, sharing_bodies,
    },
    sync::{self, ArcSwap, ArcSwapOption},
    watch::{Broadcaster, BulkThreads, Cursors, End, Frame, History, NotInHistory, Past},
};

/// Writer of one resource.
#[derive(Debug)]
pub struct Informer<F: Frame> {
    fifo: Arc<RealFifo>,
    commands: mpsc::Receiver<Command>,
    writer: Writer<F>,
}

#[derive(Debug)]
struct InformerShared {
    indexers: ArcSwap<Indexers>,
    snapshot: ArcSwapOption<Snapshot>,
    /// Position up to which everything has been published to the cursors; for a moment behind the snapshot's.
    distributed: ArcSwapOption<HistoryPosition>,
    /// Changes of the past, which the task records and readers read.
    past: Arc<Past>,
    /// Oldest version that a watch can resume from, and the time at which it was applied.
    oldest: ArcSwapOption<(ResourceVersion, Instant)>,
    timeline: Timeline,
    /// Ends of the last relist and of the one before: the last one may not be distributed yet.
    relists: ArcSwap<(Option<ResourceVersion>, Option<ResourceVersion>)>,
    /// Number of rewritten histories, raised before the watches of the old history end.
    history_id: sync::AtomicU64,
    waiters: Waiters,
    notify_seq: sync::AtomicU64,
    health: SourceHealth,
    demand: ProgressDemand,
    provenance: Provenance,
    stats: InformerStats,
}

/// State that the task writes, apart from the channels that it waits on.
#[derive(Debug)]
struct Writer<F: Frame> {
    shared: Arc<InformerShared>,
    config: InformerConfig,
    broadcaster: Broadcaster<F>,
    live: Option<SyncedParts>,
    unread: UnreadItems,
    /// True from the begin of a history until its first state is published.
    has_new_history: bool,
    /// Time at which the measured delta of the present cycle was queued.
    received: Option<Instant>,
}

/// Parts that exist once there is a state.
#[derive(Debug)]
struct SyncedParts {
    indexer: Indexer,
    unrepeated: UnrepeatedChanges,
    ahead: ChangesAhead,
    /// State of the source when the watches were last notified of it.
    reported_state: SyncState,
}

#[derive(Debug)]
enum Command {
    AddIndexers { functions: Vec<(String, IndexFunc)>, reply: oneshot::Sender<Result<(), IndexersError>> },
    NotifyWatches,
}

/// Bound of one publish cycle: the deltas popped from the queue, applied and published together.
const CYCLE_DELTAS: usize = 64;
/// The same bound in bytes of bodies.
const CYCLE_BYTES: usize = 64 << 10;
/// Bound of queued commands; a further caller waits for a free slot.
const COMMAND_QUEUE: usize = 1024;
/// Interval of the search for blocks without readers, events past their age, and a source that has turned stale.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

// === impl Informer ===

impl<F: Frame> Informer<F> {
    /// Makes an informer that has not applied anything yet, and its handle.
    pub fn new(fifo: Arc<RealFifo>, health: SourceHealth, config: InformerConfig) -> (Self, InformerHandle<F>) {
        let shared = Arc::new(InformerShared {
            indexers: ArcSwap::default(),
            snapshot: ArcSwapOption::default(),
            distributed: ArcSwapOption::default(),
            past: Arc::new(Past::new(config.history)),
            oldest: ArcSwapOption::default(),
            timeline: Timeline::default(),
            relists: ArcSwap::default(),
            history_id: sync::AtomicU64::default(),
            waiters: Waiters::default(),
            notify_seq: sync::AtomicU64::default(),
            health,
            demand: config.demand.clone(),
            provenance: config.provenance.clone(),
            stats: InformerStats::default(),
        });
        shared.indexers.store(Arc::clone(&config.indexers));
        let (sender, commands) = mpsc::channel(COMMAND_QUEUE);
        let cursors = Arc::new(Cursors::new(Arc::clone(&shared.past), config.broadcaster));
        let broadcaster = Broadcaster::over(Arc::clone(&cursors));
        let handle = InformerHandle { shared: Arc::clone(&shared), commands: sender, cursors };
        (
            Self {
                fifo,
                commands,
                writer: Writer {
                    shared,
                    config,
                    broadcaster,
                    live: None,
                    unread: UnreadItems::default(),
                    has_new_history: false,
                    received: None,
                },
            },
            handle,
        )
    }

    /// Leaves expressions and costly formats to threads ([`Broadcaster::deferring_to`]).
    #[must_use]
    pub fn deferring_to(mut self, threads: &Arc<BulkThreads>) -> Self {
        self.writer.broadcaster = self.writer.broadcaster.deferring_to(Some(threads));
        self
    }

    /// Begins with the snapshot of the previous run: it is served from now on, STALE until the first contact with the upstream.
    pub fn begin_warm(&mut self, list: List) {
        self.writer.start(list, SyncState::Stale);
        self.writer.publish(&[]);
    }

    /// Applies and distributes until the queue is closed and empty. Cursors then read the published events, and end.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future ends the informer: cursors end with [`End::Stopped`].
    pub async fn run(self) {
        let Self { fifo, mut commands, mut writer } = self;
        let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
        sweep.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut not_before = Instant::now();
        loop {
            let is_blocked = writer.broadcaster.is_blocked();
            tokio::select! {
                // Commands first: they are cheap, and must continue while a client holds the next batch back.
                biased;
                // Cancel-safe: `recv` loses nothing when another arm wins. Without any handle left, only the queue counts.
                Some(command) = commands.recv() => writer.handle(command),
                // Cancel-safe by its own contract.
                () = writer.broadcaster.ready(), if is_blocked => {}
                // Cancel-safe: a tick is not lost.
                _ = sweep.tick() => writer.sweep(),
                // Cancel-safe by its own contract.
                deltas = next(&fifo, not_before), if !is_blocked => match deltas {
                    Some(deltas) => {
                        writer.received = fifo.take_received();
                        sharing_bodies(|| writer.apply(deltas));
                        not_before = Instant::now() + writer.config.batch_window;
                    }
                    None => return,
                },
            }
        }
    }
}

/// Returns the deltas of the next publish cycle: not before this moment, unless the cycle is full.
async fn next(fifo: &RealFifo, not_before: Instant) -> Option<Vec<Delta>> {
    fifo.gather(CYCLE_DELTAS, CYCLE_BYTES, not_before).await;
    fifo.pop_batch(CYCLE_DELTAS, CYCLE_BYTES).await
}

// === impl Writer ===

impl<F: Frame> Writer<F> {
    fn sweep(&mut self) {
        if let Some(live) = &mut self.live {
            self.broadcaster.sweep();
            {
                let history = self.shared.past.history().lock();
                self.shared.timeline.note(&history.current().version, history.oldest(), Instant::now());
                self.shared.measure_history(&history);
            }
            let state = self.shared.health.state();
            if std::mem::replace(&mut live.reported_state, state) != state {
                tracing::info!(?state, "source state changed");
                self.notify_watches();
            }
        }
    }

    fn notify_watches(&self) {
        // Counted first, so that a watch that parks after the notification passed it sees the new count.
        self.shared.notify_seq.fetch_add(1, Ordering::Release);
        self.broadcaster.notify_watches();
    }

    fn handle(&mut self, command: Command) {
        match command {
            Command::AddIndexers { functions, reply } => {
                let added = self.add_indexers(functions);
                // The caller may have been dropped.
                drop(reply.send(added));
            }
            Command::NotifyWatches => self.notify_watches(),
        }
    }

    /// Applies the drained deltas, then publishes them in one cycle.
    fn apply(&mut self, deltas: Vec<Delta>) {
        let now = Instant::now();
        let (mut batches, mut checkpoints) = (Vec::with_capacity(deltas.len()), Vec::new());
        for delta in deltas {
            match delta {
                Delta::Replace(list) => batches.extend(self.replace(list)),
                Delta::HistoryRewritten(list) => self.start_new_history(list, "reported by the source"),
                Delta::Changes { events, closes } => batches.extend(self.change(events, closes, now)),
                Delta::Checkpoint { proof, reply } => {
                    // The next run has no history, so the upstream has to repeat the changes ahead of the version.
                    if let Some(live) = &self.live {
                        let history = self.shared.past.history().lock();
                        let (ahead, unchanged_since) = (history.ahead(), history.unchanged_since().clone());
                        let snapshot = live.indexer.snapshot().before(&ahead);
                        let is_whole = ahead.is_empty();
                        checkpoints.push((reply, Checkpoint { snapshot, proof, unchanged_since, is_whole }));
                    }
                }
                Delta::Relist(events, deletion) => batches.extend(self.relist(events, deletion, now)),
            }
        }
        self.publish(&batches);
        for (reply, checkpoint) in checkpoints {
            // The caller may have been dropped.
            drop(reply.send(checkpoint));
        }
    }

    fn change(
        &mut self,
        events: impl IntoIterator<Item = Event> + AsRef<[Event]>,
        closes: bool,
        now: Instant,
    ) -> Option<Arc<Batch>> {
        // The Reflector lists first if there is no state to resume from.
        let live = self.live.as_mut()?;
        let said = events.as_ref().iter().filter(|event| !matches!(event, Event::Bookmark(_))).count();
        let SyncedParts { indexer, unrepeated, ahead, .. } = live;
        for event in events.as_ref() {
            self.unread.note(event);
        }
        let events = events.into_iter().map(|event| ahead.note(unrepeated.note(event)));
        let batch = Arc::new(indexer.apply_changes(events, closes, self.config.deletion));
        if batch.changes.is_empty() {
            self.shared.stats.unchanged.fetch_add(said as u64, Ordering::Relaxed);
        }
        self.record(&batch, now);
        Some(batch)
    }

    /// Records an applied batch, and restarts with a new history if the batch shows that the upstream's was rewritten.
    fn record(&mut self, batch: &Arc<Batch>, now: Instant) {
        let Some(live) = &mut self.live else { return };
        self.shared.past.history().lock().record(Arc::clone(batch), now);
        live.ahead.record(batch);
        if let Some(key) = live.unrepeated.rewrite_proof(batch.safe()) {
            let proof = format!("upstream did not replay the last known change of {key}");
            let mut list = live.unrepeated.without(&live.indexer.snapshot());
            list.unreadable = self.unread.items();
            self.start_new_history(list, &proof);
        }
    }

    fn replace(&mut self, mut list: List) -> Option<Arc<Batch>> {
        self.shared.stats.replaces.fetch_add(1, Ordering::Relaxed);
        let held = self.live.as_ref().map(|live| live.indexer.snapshot());
        let unread = self.unread.clone();
        self.unread.note_list(&list, held.as_ref(), &self.shared.health);
        match &mut self.live {
            Some(live) if self.shared.is_complete_in(&list) => {
                let mut ahead = self.shared.past.history().lock().ahead();
                ahead.retain(|change| change.version > list.version);
                let known = live.indexer.snapshot().before(&ahead);
                let proof = known.rewrite_proof(&list, self.config.rewrite_evidence);
                // An object that could not be read was there before.
                if let Some(key) = proof.filter(|key| !unread.has(key)) {
                    let proof = format!("{key} differs at the same version");
                    self.start_new_history(list, &proof);
                    return None;
                }
                if list.expires_older && list.version > self.shared.past.history().lock().current().version {
                    tracing::warn!(
                        resource_version = %list.version,
                        "list hides changes sent by the previous run: ending every watch of the resource"
                    );
                    let oldest = list.version.clone();
                    list.keep_unread(live.indexer.snapshot().objects(None, None));
                    self.restart_from_list(list, &End::Expired { oldest });
                    return None;
                }
                live.unrepeated = UnrepeatedChanges::keep(&mut list, &ahead);
                let batch = Arc::new(live.indexer.replace(list));
                self.shared.past.history().lock().record(Arc::clone(&batch), Instant::now());
                live.ahead.record(&batch);
                Some(batch)
            }
            Some(live) => {
                let is_behind = list.version.same_lineage(live.indexer.version());
                self.start_new_history(
                    list,
                    if is_behind { "list at an older version" } else { "list of another lineage" },
                );
                None
            }
            None => {
                self.start(list, SyncState::Synced);
                None
            }
        }
    }

    /// Applies a relist by the upstream itself.
    fn relist(&mut self, events: Vec<Event>, deletion: Cause, now: Instant) -> Option<Arc<Batch>> {
        let SyncedParts { indexer, unrepeated, ahead, .. } = self.live.as_mut()?;
        for event in &events {
            self.unread.note(event);
        }
        let events = events.into_iter().map(|event| ahead.note(unrepeated.note(event)));
        let batch = Arc::new(indexer.apply_relist(events, deletion));
        self.record(&batch, now);
        Some(batch)
    }

    /// Begins with a first list, or with the snapshot of the previous run.
    fn start(&mut self, list: List, state: SyncState) {
        let (version, unchanged_since) = (list.version.clone(), list.unchanged_since.clone());
        let indexer = Indexer::new(Arc::clone(&self.config.indexers), list);
        let what = if state == SyncState::Stale { "serving the snapshot of the previous run" } else { "synced" };
        tracing::info!(objects = indexer.snapshot().len(), resource_version = %version, "{what}");
        let history = History::new(self.config.history, HistoryPosition { version, offset: 0 });
        let history = history.reaching_back_to(unchanged_since);
        self.begin_history(&indexer, &End::HistoryRewritten, history);
        let (unrepeated, ahead) = (UnrepeatedChanges::default(), ChangesAhead::default());
        self.live = Some(SyncedParts { indexer, unrepeated, ahead, reported_state: state });
    }

    /// Begins again with a list that proves, or follows a proof, that the upstream's history was rewritten.
    fn start_new_history(&mut self, list: List, proof: &str) {
        self.unread.restart(&list, &self.shared.health);
        let Some(live) = &self.live else {
            return self.start(list, SyncState::Synced);
        };
        tracing::warn!(
            resource_version = %list.version, applied = %live.indexer.version(), proof,
            "upstream history rewritten: ending every watch of the resource"
        );
        self.shared.stats.history_rewrites.fetch_add(1, Ordering::Relaxed);
        self.shared.history_id.fetch_add(1, Ordering::AcqRel);
        self.restart_from_list(list, &End::HistoryRewritten);
    }

    /// Ends every watch, and continues with a list and without older versions.
    fn restart_from_list(&mut self, list: List, end: &End) {
        let Some(live) = &mut self.live else { return };
        self.shared.relists.store(Arc::default());
        self.shared.timeline.clear();
        (live.unrepeated, live.ahead) = (UnrepeatedChanges::default(), ChangesAhead::default());
        let version = list.version.clone();
        let history_id = self.shared.history_id.load(Ordering::Acquire);
        // An offset that no parked watch has reached, and no earlier snapshot.
        let offset = self.shared.past.history().lock().current().offset + 1;
        let before = live.indexer.snapshot();
        let indexer = Indexer::new(Arc::clone(&self.config.indexers), list).begin_history(history_id, offset, &before);
        let history = History::new(self.config.history, HistoryPosition { version, offset });
        self.begin_history(&indexer, end, history);
        if let Some(live) = &mut self.live {
            live.indexer = indexer;
        }
    }

    /// Ends every watch, and continues with another history and its first state, which readers see together.
    fn begin_history(&mut self, indexer: &Indexer, end: &End, history: History) {
        let snapshot = Arc::new(indexer.snapshot());
        let history = history.of_objects(snapshot.objects(None, None));
        self.broadcaster.start_new_history(end, history, || self.shared.snapshot.store(Some(snapshot)));
        self.has_new_history = true;
    }
}

/// Converts the reason why a history cannot serve a version.
fn not_in_history(history: &History, error: NotInHistory) -> JoinError {
    let (oldest, current) = (history.oldest().clone(), history.current().version.clone());
    match error {
        NotInHistory::Expired => JoinError::Expired { oldest, current },
        NotInHistory::Future => JoinError::TooLarge { current },
    }
}

// === impl InformerShared ===

impl InformerShared {
    /// Returns true if a list is not older than the last complete version.
    fn is_complete_in(&self, list: &List) -> bool {
        self.past.history().lock().current().version <= list.version
    }
}

#[cfg(test)]
mod tests;
