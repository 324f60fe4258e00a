//! Single writer: joins without gap or overlap, relists as one batch, rewritten histories end all watches, and a client under
//! BLOCK holds the next batch back and nothing else.

mod folding;
mod joining;
mod model;
mod past;
mod unread;
mod upstream;
mod warm;
mod watch;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, AtomicU64},
};

use bytes::Bytes;
use tokio::task::JoinHandle;

use super::*;
use crate::{
    cache::{FifoBounds, RewriteEvidence},
    model::{Cause, EventType, Object, ObjectKey, Selection},
    watch::{
        BroadcasterConfig, Client, Cursor, Deliveries, Delivery, FullChannelPolicy, QueueOptions, Retention, Subscribe,
        Taken,
    },
};

/// Running informer; the test pushes its deltas.
struct Running {
    fifo: Arc<RealFifo>,
    handle: InformerHandle<Deliveries>,
    task: JoinHandle<()>,
}

impl Running {
    fn start() -> Self {
        Self::with(BroadcasterConfig::default())
    }

    fn with(broadcaster: BroadcasterConfig) -> Self {
        Self::configured(InformerConfig { broadcaster, history: broadcaster.retention, ..config() })
    }

    fn configured(config: InformerConfig) -> Self {
        Self::deferring(config, None)
    }

    fn deferring(config: InformerConfig, threads: Option<&Arc<BulkThreads>>) -> Self {
        let fifo = Arc::new(RealFifo::new(FifoBounds::default()));
        let health = SourceHealth::new(Duration::from_secs(5), Duration::from_secs(5));
        let (informer, handle) = Informer::new(Arc::clone(&fifo), health, config);
        let informer = threads.into_iter().fold(informer, Informer::deferring_to);
        Self { fifo, handle, task: tokio::spawn(informer.run()) }
    }

    async fn push(&self, event: Event) {
        self.fifo.push(Delta::event(event)).await;
    }

    /// Pushes an event, and waits until it has been applied.
    async fn apply(&self, event: Event) {
        let version = event.version().clone();
        self.push(event).await;
        self.reach(&version).await;
    }

    async fn list(&self, objects: Vec<Arc<Object>>, at: ResourceVersion) {
        self.fifo.push(Delta::Replace(List::new(objects, at.clone()))).await;
        self.reach(&at).await;
    }

    async fn reach(&self, version: &ResourceVersion) {
        self.handle.wait_for(0, |snapshot| snapshot.version() == version).await;
        // The snapshot is published before the version is distributed.
        settle().await;
    }

    fn watch(&self) -> Joined<Deliveries> {
        self.handle.join(&Start::Now, replay()).unwrap()
    }
}

fn config() -> InformerConfig {
    InformerConfig { rewrite_evidence: RewriteEvidence::Bytes, ..InformerConfig::default() }
}

/// Lets every task run until it waits.
async fn settle() {
    for _ in 0..20 {
        tokio::task::yield_now().await;
    }
}

fn subscribe(policy: FullChannelPolicy, length: usize) -> Subscribe<Deliveries> {
    let queue = QueueOptions { policy, length };
    let selection = Arc::new(Selection::default());
    Subscribe { selection, format: (), queue, client: Client::Watch, initial_events: false }
}

fn replay() -> Subscribe<Deliveries> {
    subscribe(FullChannelPolicy::Replay, 1)
}

fn version(number: u128) -> ResourceVersion {
    ResourceVersion::decimal(number)
}

fn object(name: &str, number: u128) -> Arc<Object> {
    Arc::new(Object::from_json(Bytes::from_static(b"{}"), name, version(number)).unwrap())
}

fn put(name: &str, number: u128) -> Event {
    Event::Modified(object(name, number))
}

/// Formats an event: type, name, cause if unusual, and resume version.
fn told(delivery: &Delivery) -> String {
    let sign = match delivery.event_type {
        EventType::Added => '+',
        EventType::Modified => '~',
        EventType::Deleted => '-',
    };
    let inferred = if delivery.cause == Cause::Inferred { " inferred" } else { "" };
    format!("{sign}{} {}{inferred}", delivery.object.key(), delivery.version)
}

/// Returns the events that a cursor has now, and its end.
async fn taken(cursor: &mut Cursor<Deliveries>) -> Vec<String> {
    let mut all = Vec::new();
    loop {
        match tokio::time::timeout(Duration::ZERO, cursor.take(usize::MAX)).await {
            Ok(Taken::Frames(frames)) => all.extend(frames.iter().flat_map(Deliveries::as_slice).map(told)),
            Ok(Taken::Dropped { count, .. }) => all.push(format!("dropped {count}")),
            Ok(Taken::Ended(end)) => {
                all.push(format!("{end:?}"));
                return all;
            }
            Err(_) => return all,
        }
    }
}

fn count(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

// === Relists and bookmarks ===

/// A batch is applied and published as a whole.
#[tokio::test(start_paused = true)]
async fn a_relist_is_one_batch_and_watchers_stay_connected() {
    let running = Running::start();
    running.list(["a", "b", "c"].map(|name| object(name, 1)).into(), version(5)).await;
    let mut cursor = running.watch().cursor;
    running.list(vec![object("b", 1), object("c", 6), object("d", 7)], version(9)).await;
    assert_eq!(taken(&mut cursor).await, ["-a 5 inferred", "~c 5", "+d 9"], "only its end is a point to resume from");
    assert_eq!(cursor.version(), &version(9));
    running.list(vec![object("b", 1), object("c", 6), object("d", 7)], version(12)).await;
    running.apply(put("e", 13)).await;
    assert_eq!(taken(&mut cursor).await, ["+e 13"]);
    for ((after, up_to), is_relisted) in
        [((5, 9), true), ((9, 12), true), ((5, 13), true), ((11, 13), true), ((12, 13), false), ((9, 11), false)]
    {
        let relisted = running.handle.is_relisted_between(&version(after), &version(up_to));
        assert_eq!(relisted, is_relisted, "between {after} and {up_to}");
    }
    let stats = running.handle.stats();
    assert_eq!((count(&stats.replaces), count(&stats.changes), count(&stats.history_rewrites)), (3, 4, 0));
}

#[tokio::test(start_paused = true)]
async fn a_bookmark_moves_the_version_and_changes_nothing() {
    let running = Running::start();
    running.list(vec![object("a", 1)], version(5)).await;
    let mut cursor = running.watch().cursor;
    running.apply(Event::Bookmark(version(50))).await;
    assert_eq!(taken(&mut cursor).await, [""; 0]);
    assert_eq!(running.handle.distributed().unwrap().version, version(50));
    assert_eq!(running.handle.oldest(), Some(version(5)));
    let mut late = running.handle.join(&Start::After(version(50)), replay()).unwrap();
    assert_eq!((late.snapshot.version(), late.cursor.version()), (&version(50), &version(50)));
    running.apply(Event::Deleted(object("unknown", 51))).await;
    running.apply(put("a", 52)).await;
    assert_eq!(taken(&mut cursor).await, ["~a 52"]);
    assert_eq!(taken(&mut late.cursor).await, ["~a 52"]);
    assert_eq!(count(&running.handle.stats().unchanged), 1, "the deletion, and not the bookmark");
}

/// A rewritten history ends every watch.
#[tokio::test(start_paused = true)]
async fn a_list_that_is_older_or_of_another_lineage_ends_every_watch() {
    for behind in [version(50), "abc.1".parse().unwrap()] {
        let running = Running::start();
        running.list(vec![object("a", 1), object("b", 1)], version(99)).await;
        let mut unread = running.watch().cursor;
        let mut idle = running.watch().cursor;
        running.apply(put("a", 100)).await;
        assert_eq!(taken(&mut idle).await, ["~a 100"]);
        running.list(vec![Arc::new(object("b", 1).at_version(behind.clone()))], behind.clone()).await;

        assert_eq!(taken(&mut idle).await, ["HistoryRewritten"]);
        assert_eq!(taken(&mut unread).await, ["HistoryRewritten"], "what it has not read belongs to the old history");
        assert_eq!(count(&running.handle.stats().history_rewrites), 1);
        assert_eq!(running.handle.distributed().unwrap().version, behind);
        let expired = JoinError::Expired { oldest: behind.clone(), current: behind.clone() };
        let earlier = running.handle.join(&Start::After("xyz.1".parse().unwrap()), replay());
        assert_eq!(earlier.unwrap_err(), expired);
        let mut joined = running.handle.join(&Start::After(behind.clone()), replay()).unwrap();
        assert_eq!(joined.snapshot.objects(None, None).map(|object| object.key().name()).collect::<Vec<_>>(), ["b"]);
        let next = behind.next();
        running.apply(Event::Added(Arc::new(object("z", 1).at_version(next.clone())))).await;
        assert_eq!(taken(&mut joined.cursor).await, [format!("+z {next}")]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_joins_again_detects_a_rewritten_history_whatever_the_versions() {
    let running = Running::start();
    running.list(vec![object("a", 1)], version(99)).await;
    let Joined { history_id, .. } = running.watch();
    let again = || running.handle.join(&Start::After(version(99)), replay());
    assert_eq!(again().unwrap().history_id, history_id);
    running.list(vec![object("a", 1)], version(50)).await;
    assert!(matches!(again(), Err(JoinError::TooLarge { .. })));
    assert_ne!(running.handle.history_id(), history_id, "whatever joining says");
    running.list(vec![object("a", 1)], version(99)).await;
    running.apply(put("a", 120)).await;
    assert_ne!(again().unwrap().history_id, history_id, "a version that looks like one of this history");
}

// === BLOCK, and the end ===

#[tokio::test(start_paused = true)]
async fn a_client_under_block_delays_the_next_batch_and_nothing_else() {
    let running = Running::start();
    running.list(Vec::new(), version(1)).await;
    let mut slow = running.handle.join(&Start::Now, subscribe(FullChannelPolicy::Block, 1)).unwrap().cursor;
    let started = tokio::time::Instant::now();
    running.apply(put("a", 2)).await;
    assert_eq!(taken(&mut slow).await, ["+a 2"]);
    running.apply(put("a", 3)).await;
    running.push(put("a", 4)).await;
    settle().await;
    assert_eq!(running.handle.snapshot().unwrap().version(), &version(3), "cache and watchers stand at one version");
    assert_eq!(running.handle.distributed().unwrap().version, version(3));
    let mut late = running.watch();
    assert_eq!(late.snapshot.version(), &version(3));
    assert_eq!(taken(&mut slow).await, ["~a 3"]);
    settle().await;
    assert_eq!(running.handle.snapshot().unwrap().version(), &version(4));
    assert_eq!(taken(&mut late.cursor).await, ["~a 4"]);
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn a_client_under_block_that_never_reads_is_evicted_and_the_resource_continues() {
    let running = Running::start();
    running.list(Vec::new(), version(1)).await;
    let mut slow = running.handle.join(&Start::Now, subscribe(FullChannelPolicy::Block, 1)).unwrap().cursor;
    running.apply(put("a", 2)).await;
    assert_eq!(taken(&mut slow).await, ["+a 2"]);
    let started = tokio::time::Instant::now();
    running.apply(put("a", 3)).await;
    running.apply(put("a", 4)).await;
    assert_eq!(started.elapsed().as_secs(), 5);
    assert_eq!(taken(&mut slow).await, ["SlowConsumer"]);
    assert_eq!(slow.version(), &version(2));
}

#[tokio::test(start_paused = true)]
async fn the_retention_is_enforced_without_new_events() {
    let retention = Retention { age: Duration::from_secs(60), ..BroadcasterConfig::default().retention };
    let running = Running::with(BroadcasterConfig { retention, ..BroadcasterConfig::default() });
    running.list(Vec::new(), version(1)).await;
    let mut cursor = running.watch().cursor;
    running.apply(put("a", 2)).await;
    tokio::time::sleep(Duration::from_secs(61) + SWEEP_INTERVAL).await;
    assert_eq!(taken(&mut cursor).await, ["Expired { oldest: 2 }"]);
    drop(cursor);
    tokio::time::sleep(SWEEP_INTERVAL * 2).await;
    let stats = running.handle.watch_stats().unwrap();
    assert_eq!((count(&stats.watchers), count(&stats.groups), count(&stats.retained_size)), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn closing_the_queue_ends_cursors_after_they_have_read_everything() {
    let running = Running::start();
    running.list(Vec::new(), version(1)).await;
    let mut cursor = running.watch().cursor;
    for number in 2..100 {
        running.push(put("a", number)).await;
    }
    running.fifo.close();
    running.task.await.unwrap();
    let all = taken(&mut cursor).await;
    assert_eq!((all.len(), all.last().unwrap().as_str()), (99, "Stopped"));
    assert_eq!(running.handle.join(&Start::Now, replay()).unwrap_err(), JoinError::Stopped(Stopped));
    assert_eq!(running.handle.snapshot().unwrap().version(), &version(99), "the last state can still be read");
}

#[tokio::test(start_paused = true)]
async fn dropping_the_task_ends_cursors_and_handles_may_go_first() {
    let Running { fifo, handle, task } = Running::start();
    fifo.push(Delta::Replace(List::new(Vec::new(), version(1)))).await;
    let snapshot = handle.wait_for(0, |_| true).await;
    assert_eq!(snapshot.version(), &version(1));
    let mut cursor = handle.join(&Start::Now, replay()).unwrap().cursor;
    drop((handle, snapshot));
    fifo.push(Delta::event(put("a", 2))).await;
    settle().await;
    assert_eq!(taken(&mut cursor).await, ["+a 2"], "the queue is what counts");
    task.abort();
    settle().await;
    assert_eq!(taken(&mut cursor).await, ["Stopped"]);
}

/// The first event is applied at once, those within the window in one publish cycle, and a full cycle at once again.
#[tokio::test(start_paused = true)]
async fn events_that_follow_others_are_gathered() {
    let window = Duration::from_millis(5);
    let running = Running::configured(InformerConfig { batch_window: window, ..config() });
    running.list(Vec::new(), version(1)).await;
    tokio::time::advance(2 * window).await;
    let began = Instant::now();
    running.apply(put("a", 2)).await;
    assert_eq!(began.elapsed(), Duration::ZERO, "the first at once");
    running.push(put("a", 3)).await;
    settle().await;
    assert_eq!(*running.handle.snapshot().unwrap().version(), version(2));
    running.apply(put("a", 4)).await;
    assert_eq!(began.elapsed(), window);
    for number in 5..5 + CYCLE_DELTAS as u128 {
        running.push(put("a", number)).await;
    }
    running.reach(&version(4 + CYCLE_DELTAS as u128)).await;
    assert_eq!(began.elapsed(), window, "a full wake does not wait");
}
