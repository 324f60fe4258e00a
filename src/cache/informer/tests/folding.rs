//! Folding the items of a watch gives the store, for every policy, selection and time of joining, whatever the writer, the threads
//! and the other watches do meanwhile; and the previous state of each MODIFIED is the fold's.

use futures_util::{FutureExt, StreamExt};
use proptest::{collection::vec, prelude::*, sample::select};
use tokio::task::coop::unconstrained;

use super::*;
use crate::{
    cache::{InformerWatch, WatchItem},
    model::{IndexFunc, ObjectParts},
    watch::{
        Stepped,
        tests::property::script::{APPS, NAMES, Put, SELECTIONS, any_put, is_selected, selection},
    },
};

#[derive(Debug, Clone)]
enum Op {
    /// One transaction.
    Change(Vec<Put>),
    /// A list with these changes, which the watch has missed.
    Relist(Vec<Put>),
    /// A version without a change.
    Bookmark,
    /// A new watch: selection, policy and length of the queue.
    Watch(usize, FullChannelPolicy, usize),
    /// Up to so many items of the watch at this index.
    Read(usize, usize),
    Leave(usize),
    /// The informer applies what is queued, if no watch holds it back.
    Settle,
    /// One piece of work of the threads.
    Work,
    /// Duration of each evaluation from now on, in nanoseconds.
    Cost(u64),
    /// Time passes: budgets are spent, and watches without events advance.
    Wait,
    Rewrite,
}

fn any_op() -> impl Strategy<Value = Op> {
    use FullChannelPolicy::{Block, Coalesce, Drop, Replay};
    let watch = (0..SELECTIONS, select(vec![Block, Coalesce, Drop, Replay]), 0_usize..5);
    prop_oneof![
        12 => vec(any_put(), 1..4).prop_map(Op::Change),
        1 => vec(any_put(), 0..4).prop_map(Op::Relist),
        1 => Just(Op::Bookmark),
        4 => watch.prop_map(|(selection, policy, length)| Op::Watch(selection, policy, length)),
        12 => (0..8_usize, select(vec![1_usize, 2, 5, 100])).prop_map(|(at, count)| Op::Read(at, count)),
        1 => (0..8_usize).prop_map(Op::Leave),
        8 => Just(Op::Settle),
        6 => Just(Op::Work),
        2 => select(vec![0, 0, 3_000, 30_000, 120_000]).prop_map(Op::Cost),
        1 => Just(Op::Wait),
        1 => prop_oneof![6 => Just(Op::Settle), 1 => Just(Op::Rewrite)],
    ]
}

/// Watch, and the fold of its items.
struct Reader {
    watch: InformerWatch,
    selection: usize,
    policy: FullChannelPolicy,
    state: BTreeMap<ObjectKey, Arc<Object>>,
    is_synced: bool,
    has_gap: bool,
    end: Option<End>,
}

/// Upstream, the informer, and its watches.
struct World {
    running: Running,
    threads: Arc<BulkThreads>,
    clock: Arc<Stepped>,
    /// True if the history has everything.
    is_history_long: bool,
    version: u128,
    objects: BTreeMap<usize, Arc<Object>>,
    readers: Vec<Reader>,
}

// === impl Reader ===

impl Reader {
    /// Reads one item; returns false if there is none.
    fn read(&mut self) -> bool {
        if self.end.is_some() {
            return false;
        }
        let Some(item) = unconstrained(self.watch.next()).now_or_never() else { return false };
        match item.expect("a watch ends with a reason") {
            WatchItem::Initial(object) => {
                assert!(!self.is_synced && is_selected(self.selection, &object));
                assert_eq!(self.state.insert(object.key().clone(), object), None);
            }
            WatchItem::Synced(_) => assert!(!std::mem::replace(&mut self.is_synced, true)),
            WatchItem::Event(event) => {
                assert!(self.is_synced);
                self.fold(&event);
            }
            WatchItem::Dropped { count, .. } => {
                assert!(self.policy == FullChannelPolicy::Drop && count > 0);
                self.has_gap = true;
            }
            WatchItem::Ended(end) => self.end = Some(end),
        }
        true
    }

    fn fold(&mut self, event: &Delivery) {
        let Delivery { event_type, object, previous, .. } = event;
        let key = object.key().clone();
        let had = match event_type {
            EventType::Deleted => self.state.remove(&key),
            EventType::Added | EventType::Modified => self.state.insert(key, Arc::clone(object)),
        };
        match event_type {
            EventType::Added => assert!(previous.is_none() && (had.is_none() || self.has_gap)),
            EventType::Modified => {
                assert_eq!(*previous, had);
                assert!(had.is_some() || self.has_gap);
            }
            EventType::Deleted => {
                assert!(previous.is_none() && (had.is_some() || self.has_gap));
                assert!(had.is_none_or(|had| had == *object), "the last state that it has");
            }
        }
    }
}

// === impl World ===

impl World {
    fn new(retained: usize, history: usize, has_index: bool) -> Self {
        let clock: Arc<Stepped> = Arc::default();
        let threads = Arc::new(BulkThreads::manual(Arc::clone(&clock)));
        let config = config();
        let retention = Retention { events: retained, age: Duration::MAX, ..config.history };
        let (is_history_long, history) = (history > 1000, Retention { events: history, ..retention });
        let broadcaster = BroadcasterConfig { retention, ..config.broadcaster };
        let index = has_index.then(|| ("app".to_owned(), IndexFunc::Label("app".into())));
        let indexers = Arc::new(Indexers::new(index).unwrap());
        let config = InformerConfig { indexers, broadcaster, history, ..config };
        let running = Running::deferring(config, Some(&threads));
        Self { running, threads, clock, is_history_long, version: 1, objects: BTreeMap::new(), readers: Vec::new() }
    }

    /// Changes the upstream, and returns the events. An object that is created again has another uid.
    fn change(&mut self, puts: &[Put]) -> Vec<Event> {
        let mut events = Vec::new();
        for &(name, app, size) in puts {
            self.version += 1;
            let version = version(self.version);
            let old = self.objects.remove(&name);
            if let Some(app) = app {
                let uid = old.map_or_else(|| self.version.to_string(), |old| old.uid().to_owned());
                let new = Arc::new(Object::new(ObjectParts {
                    key: ObjectKey::new("shop", NAMES[name]).unwrap(),
                    uid,
                    version,
                    labels: [("app".to_owned(), APPS[app].to_owned())].into(),
                    api_version: String::new(),
                    kind: String::new(),
                    media_type: "application/octet-stream",
                    body: Bytes::from(vec![b'.'; size]),
                }));
                self.objects.insert(name, Arc::clone(&new));
                events.push(Event::Modified(new));
            } else if let Some(old) = old {
                events.push(Event::Deleted(Arc::new(old.at_version(version))));
            }
        }
        events
    }

    fn list(&self) -> List {
        List::new(self.objects.values().cloned().collect(), version(self.version))
    }

    fn watch(&mut self, number: usize, policy: FullChannelPolicy, length: usize) {
        let watch = self.running.handle.watch(selection(number), QueueOptions { policy, length });
        let (state, end) = (BTreeMap::new(), None);
        let reader = Reader { watch, selection: number, policy, state, is_synced: false, has_gap: false, end };
        self.readers.push(reader);
    }

    async fn apply(&mut self, op: Op) {
        match op {
            Op::Change(puts) => {
                let events = self.change(&puts);
                if !events.is_empty() {
                    self.running.fifo.push(Delta::transaction(events)).await;
                }
            }
            Op::Relist(puts) => {
                self.change(&puts);
                self.version += 1;
                self.running.fifo.push(Delta::Replace(self.list())).await;
            }
            Op::Bookmark => {
                self.version += 1;
                self.running.push(Event::Bookmark(version(self.version))).await;
            }
            Op::Watch(selection, policy, length) => self.watch(selection, policy, length),
            Op::Read(at, count) => {
                let Some(reader) = self.readers.get_mut(at) else { return };
                for _ in 0..count {
                    if !reader.read() {
                        // Joining needs the informer.
                        settle().await;
                        if !reader.read() {
                            break;
                        }
                    }
                }
            }
            Op::Leave(at) if at < self.readers.len() => drop(self.readers.remove(at)),
            Op::Leave(_) => {}
            Op::Settle => settle().await,
            Op::Work => drop(self.threads.run_one()),
            Op::Cost(step) => self.clock.step.store(step, Ordering::SeqCst),
            Op::Wait => tokio::time::advance(Duration::from_secs(60)).await,
            Op::Rewrite => {
                self.version += 10;
                self.running.fifo.push(Delta::HistoryRewritten(self.list())).await;
            }
        }
    }

    /// Reads everything that there is, of every watch.
    async fn drain(&mut self) {
        let mut quiet = 0;
        while quiet < 3 {
            settle().await;
            let mut is_busy = self.threads.run_one();
            for reader in &mut self.readers {
                is_busy |= reader.read();
            }
            quiet = if is_busy { 0 } else { quiet + 1 };
        }
    }

    /// Compares each fold with the store.
    async fn finish(mut self) {
        self.drain().await;
        // An event after the last gap closes it for its object: each enters and leaves every selection.
        for name in 0..NAMES.len() {
            for app in (0..APPS.len()).chain([name]) {
                self.apply(Op::Change(vec![(name, Some(app), 0)])).await;
                self.drain().await;
            }
        }
        let snapshot = self.running.handle.snapshot().unwrap();
        assert_eq!(snapshot.version(), &version(self.version), "nothing holds the informer back");
        for reader in &mut self.readers {
            if let Some(end) = &reader.end {
                let is_possible = match end {
                    End::Stopped | End::Failed => false,
                    End::HistoryRewritten => true,
                    End::Expired { .. } => !self.is_history_long,
                    End::SlowConsumer => reader.policy == FullChannelPolicy::Block,
                };
                assert!(is_possible, "{end:?} {:?}", reader.policy);
                continue;
            }
            assert!(reader.is_synced);
            let selected = snapshot.objects(None, None).filter(|object| is_selected(reader.selection, object));
            let expected = selected.map(|object| (object.key().clone(), Arc::clone(object)));
            assert_eq!(reader.state, expected.collect(), "{:?}", reader.policy);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..crate::property_config() })]

    #[test]
    fn folding_a_watch_gives_the_store_and_each_previous_state(
        ops in vec(any_op(), 1..100),
        retained in select(vec![1_usize, 5, 100_000]),
        history in select(vec![8_usize, 100_000]),
        has_index in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let mut world = World::new(retained, history, has_index);
            let list = world.list();
            world.running.fifo.push(Delta::Replace(list)).await;
            for op in ops {
                world.apply(op).await;
            }
            world.finish().await;
        });
    }
}
