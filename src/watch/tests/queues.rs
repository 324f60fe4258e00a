//! Queues that are full, under schedules that Shuttle draws: the writer, a thread that counts and merges, and a reader of each policy.
//!
//! ```text
//!   main: publish ──▶ looks at the queues: blocks, counts, merges before the history drops changes ──▶ waits ──▶ stop or rewrite
//!   worker: counts and merges in pieces                readers: take one event or all, leave at any time
//! ```
//!
//! Verified in each schedule:
//!
//! - a reader under BLOCK gets exactly its events; one under DROP gets them but for those that are reported as lost, where they were;
//! - a reader under COALESCE has, whenever nothing merged is left to deliver, exactly the state at its position, each event follows from
//!   the state before, and events stand for exactly the changes that came;
//! - the writer never publishes to a full queue under BLOCK, and is woken: Shuttle fails a schedule in which every thread waits;
//! - every reader ends, and nothing is left.

use std::{future::poll_fn, time::Duration};

use FullChannelPolicy::{Block, Coalesce, Drop};
use shuttle::{
    future::block_on,
    rand::{Rng, thread_rng},
    thread,
};

use super::*;
use crate::{
    sync::{self, explore},
    watch::bulk::Stepped,
};

/// Everything that is published, decided before.
struct Truth {
    batches: Vec<Batch>,
    /// State after each change; the first one is before any.
    states: Vec<BTreeMap<String, Arc<Object>>>,
}

/// Reader, and what it has.
struct Client {
    cursor: Cursor<Deliveries>,
    truth: Arc<Truth>,
    policy: FullChannelPolicy,
    /// Offset up to which events were received, lost or merged.
    passed: u64,
    has: BTreeMap<String, Arc<Object>>,
    /// Number of takes after which it leaves.
    takes: usize,
    has_left: Arc<AtomicBool>,
}

/// Changes of which a history keeps this many for who resumes; queues need more.
const KEPT: usize = 2;
const LENGTHS: std::ops::RangeInclusive<usize> = 1..=3;
/// Number of events that the reader under BLOCK reads before: as many as its queue is long at most, so that it may hold the writer back.
const READ: usize = *LENGTHS.end();

// === impl Truth ===

impl Truth {
    fn draw() -> Self {
        let mut rng = thread_rng();
        let (mut world, mut states) = (World::at(0), vec![BTreeMap::new()]);
        let count = READ + rng.gen_range(3..=6);
        let batches = (0..count).map(|number| {
            let changes = if number < READ || rng.gen_ratio(2, 3) { 1 } else { 2 };
            world.batch(|world| {
                let change = |_| {
                    let is_web = number < READ || rng.r#gen();
                    let (name, app) = (["a", "b"][rng.gen_range(0..2)], if is_web { "web" } else { "db" });
                    let body = format!(r#"{{"metadata":{{"labels":{{"app":"{app}"}}}}}}"#);
                    let new = Arc::new(Object::from_json(body, name, version(world.version + 1)).unwrap());
                    let change = world.change(name, new);
                    states.push(world.objects.clone());
                    change
                };
                (0..changes).map(change).collect()
            })
        });
        Self { batches: batches.collect(), states }
    }

    /// Returns the changes that a selection sees from an offset on, each with its offset and its event.
    fn due(&self, selection: &Selection, from: u64) -> impl Iterator<Item = (u64, EventType, &Change)> {
        let changes = (0..).zip(self.batches.iter().flat_map(|batch| &batch.changes)).skip(from as usize);
        changes.filter_map(|(at, change)| Some((at, selection.transition(change)?.event_type, change)))
    }

    fn state(&self, selection: &Selection, offset: u64) -> BTreeMap<String, Arc<Object>> {
        let state = self.states[offset as usize].iter().filter(|(_, object)| selection.matches(object));
        state.map(|(name, object)| (name.clone(), Arc::clone(object))).collect()
    }
}

// === impl Client ===

impl Client {
    /// Joins with a selection and a queue that are drawn. Returns the length of the queue too.
    fn join(
        broadcaster: &mut Broadcaster<Deliveries>,
        truth: &Arc<Truth>,
        policy: FullChannelPolicy,
        offset: u64,
    ) -> (Self, usize) {
        let mut rng = thread_rng();
        let selections = selections();
        let selection = Arc::clone(&selections[rng.gen_range(0..selections.len())]);
        let (length, takes) = (rng.gen_range(LENGTHS), [1, 2, 3, usize::MAX, usize::MAX][rng.gen_range(0..5)]);
        let has = truth.state(&selection, offset);
        let cursor = broadcaster.subscribe(live(selection, queue(policy, length)));
        (
            Self { cursor, truth: Arc::clone(truth), policy, passed: offset, has, takes, has_left: Arc::default() },
            length,
        )
    }

    /// Reads all events up to an offset that is published.
    fn read_up_to(&mut self, offset: u64) {
        let (truth, selection) = (Arc::clone(&self.truth), self.selection());
        while truth.due(&selection, self.passed).any(|(at, ..)| at < offset) {
            self.take();
        }
    }

    fn selection(&self) -> Arc<Selection> {
        Arc::clone(self.cursor.selection())
    }

    /// Reads to the end, or until it leaves.
    fn follow(mut self) {
        for _ in 0..self.takes {
            if self.take() {
                break;
            }
        }
        self.has_left.store(true, Ordering::SeqCst);
    }

    /// Takes once. Returns true if the cursor has ended.
    fn take(&mut self) -> bool {
        let most = if thread_rng().r#gen() { 1 } else { usize::MAX };
        match block_on(poll_fn(|cx| self.cursor.poll_take(cx, most))) {
            Taken::Frames(frames) => frames.iter().flat_map(Deliveries::as_slice).for_each(|event| self.see(event)),
            Taken::Dropped { count, after } => self.lose(count, &after),
            Taken::Ended(End::HistoryRewritten) => return true,
            Taken::Ended(end) => {
                assert_eq!(end, End::Stopped);
                self.verify();
                let (truth, selection) = (Arc::clone(&self.truth), self.selection());
                assert_eq!(truth.due(&selection, self.passed).count(), 0, "events are lost at the end");
                return true;
            }
        }
        self.verify();
        false
    }

    fn see(&mut self, event: &Delivery) {
        let (truth, selection) = (Arc::clone(&self.truth), self.selection());
        let name = event.object.key().name();
        if self.policy == Coalesce {
            let held = match event.event_type {
                EventType::Deleted => self.has.remove(name),
                _ => self.has.insert(name.to_owned(), Arc::clone(&event.object)),
            };
            assert_eq!(held.is_none(), event.event_type == EventType::Added, "{name}: {held:?}, then {event:?}");
            if event.event_type == EventType::Modified {
                assert_eq!(event.previous, held, "{name}");
            }
            // Each change is an event: none leaves the selection.
            if *selection == Selection::default() {
                self.passed += 1 + u64::from(event.coalesced);
            }
            return;
        }
        let due = truth.due(&selection, self.passed).next();
        let (at, event_type, change) = due.expect("an event that is due");
        assert_eq!((event.event_type, &event.object_version), (event_type, &change.version), "{name}");
        self.passed = at + 1;
    }

    fn lose(&mut self, count: u64, after: &ResourceVersion) {
        assert_eq!(self.policy, Drop);
        let (truth, selection) = (Arc::clone(&self.truth), self.selection());
        let last = truth.due(&selection, self.passed).nth(count as usize - 1).expect("no more is lost than there was");
        let next = truth.due(&selection, self.passed).next().expect("one that is lost");
        assert!(*after < next.2.version, "what comes after {after} is lost: {}", next.2.version);
        self.passed = last.0 + 1;
    }

    /// Verifies the state under COALESCE, or what was passed, at the position of the cursor.
    fn verify(&mut self) {
        let (truth, selection) = (Arc::clone(&self.truth), self.selection());
        let offset = self.cursor.reached().offset;
        if self.policy != Coalesce {
            return assert!(truth.due(&selection, self.passed).all(|(at, ..)| at >= offset), "events were left out");
        }
        if self.cursor.is_draining() {
            return;
        }
        assert_eq!(self.has, truth.state(&selection, offset), "at {offset}");
        if *selection == Selection::default() {
            assert_eq!(self.passed, offset, "events stand for other changes than those that came");
        }
        self.passed = offset;
    }
}

/// Returns the selections that readers have: of everything, and of one label; also by expressions, which a thread evaluates.
fn selections() -> Vec<Arc<Selection>> {
    let plain = [everything(), app("web")];
    #[cfg(feature = "cel")]
    let costly = ["true", "object.metadata.labels.app == 'web'"].map(|expression| {
        let expression = crate::model::Expression::parse(expression).unwrap();
        Arc::new(Selection { expression: Some(expression), ..Selection::default() })
    });
    #[cfg(not(feature = "cel"))]
    let costly = [];
    plain.into_iter().chain(costly).collect()
}

/// Runs one schedule with one reader of each policy.
fn schedule() {
    let truth = Arc::new(Truth::draw());
    let config = BroadcasterConfig {
        retention: Retention { events: KEPT, size: 1 << 20, age: Duration::MAX },
        block_timeout: Duration::from_secs(3600),
        ..BroadcasterConfig::default()
    };
    let clock: Arc<Stepped> = Arc::default();
    clock.step.store([0, 1 << 40][thread_rng().gen_range(0..2)], Ordering::SeqCst);
    let threads = thread_rng().r#gen::<bool>().then(|| Arc::new(BulkThreads::manual(clock)));
    let mut broadcaster = Broadcaster::new(config, version(0)).deferring_to(threads.as_deref());

    let is_over = Arc::new(sync::AtomicBool::default());
    let worker = threads.map(|threads| {
        let is_over = Arc::clone(&is_over);
        thread::spawn(move || {
            while !is_over.load(Ordering::SeqCst) {
                if !threads.run_one() {
                    thread::yield_now();
                }
            }
        })
    });

    let (read, batches) = truth.batches.split_at(READ);
    let (mut blocking, length) = Client::join(&mut broadcaster, &truth, Block, 0);
    for batch in read {
        broadcaster.publish(std::slice::from_ref(batch));
        blocking.read_up_to(broadcaster.reached().offset);
    }
    let (gauge, has_left) = (blocking.cursor.gauge(), Arc::clone(&blocking.has_left));
    // Of a part, the changes are an upper bound until they are counted.
    let is_held = truth.due(&blocking.selection(), 0).count() as u64 == truth.states.len() as u64 - 1;
    let others = [Drop, Coalesce, Coalesce].map(|policy| Client::join(&mut broadcaster, &truth, policy, READ as u64).0);
    let readers: Vec<_> =
        others.into_iter().chain([blocking]).map(|client| thread::spawn(move || client.follow())).collect();

    for batch in batches {
        while broadcaster.is_blocked() {
            block_on(broadcaster.cursors.shared.signals.freed());
        }
        let lag = gauge.lag();
        let is_full = is_held && lag >= length as u64;
        assert!(!is_full || has_left.load(Ordering::SeqCst), "{lag} events wait in a queue of {length}");
        broadcaster.publish(std::slice::from_ref(batch));
        if thread_rng().gen_ratio(1, 4) {
            broadcaster.sweep();
        }
    }
    if thread_rng().gen_ratio(3, 4) {
        broadcaster.stop();
    } else {
        rewrite(&mut broadcaster, 100);
    }
    for reader in readers {
        reader.join().unwrap();
    }
    is_over.store(true, Ordering::SeqCst);
    if let Some(worker) = worker {
        worker.join().unwrap();
    }
    assert!(!broadcaster.is_blocked(), "nobody is left who holds the writer back");
    let stats = Arc::clone(broadcaster.stats());
    assert_eq!([&stats.cursors, &stats.expired, &stats.evicted].map(|left| left.load(Ordering::Relaxed)), [0, 0, 0]);
}

#[test]
fn no_order_of_threads_breaks_a_full_queue() {
    explore(schedule);
}
