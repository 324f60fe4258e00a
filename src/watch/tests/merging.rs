//! COALESCE with merge threads, whose work the test does: merges, their readers and times, and their bounds.

use std::time::Duration;

use FullChannelPolicy::{Coalesce, Replay};
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::watch::selection_budget::Stepped;

/// Broadcaster with its threads, and all the states of its world.
struct Rig {
    broadcaster: Broadcaster<Deliveries>,
    threads: BulkThreads,
    clock: Arc<Stepped>,
    world: World,
    states: BTreeMap<u128, State>,
    /// Number of changes.
    offset: u64,
    /// Position after each publication.
    places: Vec<HistoryPosition>,
}

/// Objects by name: label and version.
type State = BTreeMap<String, (String, u128)>;

/// One change: a name and a new label, or none for a deletion.
type Write = (u8, Option<bool>);

const EVENTS: usize = 64;

impl Rig {
    fn new(retention: Retention, coalesce_size: usize) -> Self {
        let clock: Arc<Stepped> = Arc::default();
        let threads = BulkThreads::manual(Arc::clone(&clock));
        let config = BroadcasterConfig { retention, coalesce_size, ..BroadcasterConfig::default() };
        let broadcaster = Broadcaster::new(config, version(0)).deferring_to(Some(&threads));
        let (world, states) = (World::at(0), [(0, State::new())].into());
        Self { broadcaster, threads, clock, world, states, offset: 0, places: Vec::new() }
    }

    fn publish(&mut self, writes: &[Write]) {
        let world = &mut self.world;
        let batch = world.batch(|world| {
            let change = |(name, app): &Write| match app {
                Some(is_web) => Some(world.put_sized(&format!("x{name}"), if *is_web { "web" } else { "db" }, 100)),
                None => world.objects.contains_key(&format!("x{name}")).then(|| world.delete(&format!("x{name}"))),
            };
            writes.iter().filter_map(change).collect()
        });
        self.offset += batch.changes.len() as u64;
        self.places.push(HistoryPosition { version: batch.after.clone(), offset: self.offset });
        self.broadcaster.publish(&[batch]);
        let entry = |object: &Arc<Object>| {
            (object.labels().get("app").unwrap_or_default().to_owned(), object.version().number())
        };
        let state = self.world.objects.iter().map(|(name, object)| (name.clone(), entry(object))).collect();
        self.states.insert(self.world.version, state);
    }

    fn work(&self) -> usize {
        std::iter::from_fn(|| self.threads.run_one().then_some(())).count()
    }

    fn retained(&self, read: impl Fn(&BroadcasterStats) -> &std::sync::atomic::AtomicU64) -> u64 {
        read(self.broadcaster.stats()).load(Ordering::Relaxed)
    }
}

fn bounds(events: usize, size: usize) -> Retention {
    Retention { events, size, age: Duration::MAX }
}

#[test]
fn the_writer_merges_nothing_and_threads_merge_in_slices() {
    let mut rig = Rig::new(bounds(10_000, 1 << 30), 1 << 30);
    let mut slow = rig.broadcaster.subscribe(live(everything(), queue(Coalesce, 4)));
    let mut fast = rig.broadcaster.subscribe(live(everything(), queue(Replay, 4)));
    for name in 0..100 {
        rig.publish(&[(name % 10, Some(true))]);
        assert_eq!(rig.work(), 0, "nothing is done for who lags");
    }
    let flag = Arc::<Flag>::default();
    let waker = Waker::from(Arc::clone(&flag));
    let poll = |slow: &mut Cursor<Deliveries>| slow.poll_take(&mut Context::from_waker(&waker), usize::MAX);
    assert!(poll(&mut slow).is_pending(), "a thread is to merge first");
    // Each change takes longer than a piece of work.
    rig.clock.step.store(1_000_000, Ordering::Relaxed);
    for pieces in 0..50 {
        assert!(rig.threads.run_one(), "{pieces}");
        // Between two pieces no client waits.
        rig.publish(&[(0, Some(true))]);
        assert!(poll(&mut slow).is_pending() && !take(&mut fast, usize::MAX).is_empty());
    }
    flag.is_set();
    assert!(rig.work() >= 100, "it merges up to what has come meanwhile");
    assert!(flag.is_set());
    let told = drain(&mut slow);
    assert_eq!((told.len(), slow.taken()), (10, 10));
    assert_eq!(told.last(), Some(&event(EventType::Added, "x0", 150)));
}

#[test]
fn merged_changes_beyond_the_bound_end_only_their_client_with_its_version() {
    let mut rig = Rig::new(bounds(10_000, 1 << 30), 10_000);
    let mut greedy = rig.broadcaster.subscribe(live(everything(), queue(Coalesce, 1)));
    let mut modest = rig.broadcaster.subscribe(live(app("web"), queue(Coalesce, 1)));
    rig.publish(&[(0, Some(true))]);
    assert_eq!((drain(&mut greedy).len(), drain(&mut modest).len()), (1, 1));
    for name in 0..200 {
        rig.publish(&[(name, Some(name < 3))]);
    }
    assert_eq!((drain(&mut greedy), drain(&mut modest)), (vec![], vec![]));
    rig.work();
    assert_eq!(drain(&mut greedy), [Ended(End::Expired { oldest: version(0) })]);
    assert_eq!(greedy.version(), &version(1));
    assert!(greedy.gauge().state() == Some(CursorState::Following), "nothing is held any more");
    assert_eq!(drain(&mut modest).len(), 3);
    assert_eq!((rig.retained(|stats| &stats.overmerged), rig.retained(|stats| &stats.expired)), (1, 0));
}

#[test]
fn an_idle_client_loses_nothing_when_the_history_drops_batches() {
    // Only about ten changes that the history has dropped are kept.
    let mut rig = Rig::new(bounds(EVENTS, 10 * (256 + 100)), 1 << 30);
    let mut cursor = rig.broadcaster.subscribe(live(everything(), queue(Coalesce, 1000)));
    let mut works = 0;
    for number in 0..20 * EVENTS as u64 {
        rig.publish(&[((number % 7) as u8, Some(true))]);
        let oldest = rig.places[rig.places.len().saturating_sub(EVENTS)].clone();
        rig.broadcaster.drop_before(&oldest);
        works += rig.work();
    }
    assert!((20..20 * EVENTS).contains(&works), "{works} pieces of work: not with each event");
    let Some(CursorState::Coalescing { entries, bodies }) = cursor.gauge().state() else { panic!("it merges") };
    assert!(entries > 0 && bodies == 7 * 100, "{entries} {bodies}");
    assert_eq!(drain(&mut cursor), []);
    rig.work();
    assert_eq!(drain(&mut cursor).len(), 7);
    assert_eq!(cursor.version(), &version(20 * EVENTS as u128));
    rig.broadcaster.sweep();
    rig.work();
    assert_eq!(cursor.gauge().state(), Some(CursorState::Following));
}

#[test]
fn when_threads_do_not_keep_up_with_the_history_a_client_expires_with_its_version() {
    // The batches that the history has dropped take no more than this: about ten changes.
    let mut rig = Rig::new(bounds(EVENTS, 10 * (256 + 100)), 1 << 30);
    let mut cursor = rig.broadcaster.subscribe(live(everything(), queue(Coalesce, 4)));
    rig.publish(&[(0, Some(true))]);
    assert_eq!(drain(&mut cursor).len(), 1);
    for _ in 0..2 * EVENTS {
        rig.publish(&[(0, Some(true))]);
    }
    let oldest = rig.places[EVENTS].clone();
    rig.broadcaster.drop_before(&oldest);
    rig.work();
    let Ended(End::Expired { oldest }) = &drain(&mut cursor)[0] else { panic!("it expires") };
    assert!(*oldest >= version(EVENTS as u128));
    assert_eq!(cursor.version(), &version(1));
    assert_eq!((rig.retained(|stats| &stats.overmerged), rig.retained(|stats| &stats.expired)), (0, 1));
}

/// The merger is far from its own depth: the history reports that it has dropped batches because of their size.
#[test]
fn batches_dropped_for_their_size_merge_only_for_lagging_clients() {
    let mut rig = Rig::new(bounds(10_000, 1 << 30), 1 << 30);
    let mut slow = rig.broadcaster.subscribe(live(everything(), queue(Coalesce, 1000)));
    let mut fast = rig.broadcaster.subscribe(live(everything(), queue(Coalesce, 1000)));
    for _ in 0..100 {
        rig.publish(&[(0, Some(true))]);
    }
    assert_eq!(drain(&mut fast).len(), 100);
    let following = [Some(CursorState::Following); 2];
    let states = |slow: &Cursor<Deliveries>, fast: &Cursor<Deliveries>| [slow.gauge().state(), fast.gauge().state()];
    assert_eq!((rig.work(), states(&slow, &fast)), (0, following), "nothing is forgotten");
    rig.broadcaster.drop_before(&rig.places[0]);
    rig.work();
    let [Some(CursorState::Coalescing { entries, .. }), Some(CursorState::Following)] = states(&slow, &fast) else {
        panic!("{:?}", states(&slow, &fast))
    };
    assert!(entries > 0);
    drain(&mut slow);
    rig.work();
    assert_eq!(drain(&mut slow), [event(EventType::Added, "x0", 100)]);
}

/// Sizes are in the unit of the frame, which is a byte.
#[test]
fn a_queue_merges_when_it_is_larger_than_its_bound_in_bytes_and_not_before() {
    for (bound, merges) in [(3, false), (2, true)] {
        let size = {
            let mut broadcaster = broadcaster::<Text>(0);
            let mut cursor = broadcaster.subscribe(live(everything(), queue(Coalesce, 1000)));
            broadcaster.publish(&World::at(0).several(1));
            let taken = cursor.poll_take(&mut Context::from_waker(Waker::noop()), usize::MAX);
            let Poll::Ready(Taken::Frames(frames)) = taken else { panic!("there is an event") };
            frames.iter().map(|frame| frame.place().1).sum::<usize>()
        };
        let threads = BulkThreads::manual(Arc::default());
        // The later events have the same length except for the word.
        let word = "Modified".len() - "Added".len();
        let config = BroadcasterConfig { queue_size: bound * (size + word) - word, ..BroadcasterConfig::default() };
        let mut broadcaster = Broadcaster::<Text>::new(config, version(0)).deferring_to(Some(&threads));
        let mut cursor = broadcaster.subscribe(live(everything(), queue(Coalesce, 1000)));
        broadcaster.publish(&World::at(0).several(3));
        let taken = cursor.poll_take(&mut Context::from_waker(Waker::noop()), usize::MAX);
        assert_eq!(taken.is_pending(), merges, "three events, and room for {bound}");
    }
}

#[tokio::test(start_paused = true)]
async fn batches_near_the_age_limit_merge_for_lagging_clients() {
    let age = Duration::from_secs(100);
    let mut rig = Rig::new(Retention { age, ..bounds(10_000, 1 << 30) }, 1 << 30);
    let slow = rig.broadcaster.subscribe(live(everything(), queue(Coalesce, 1000)));
    let mut states = Vec::new();
    for seconds in [0, 30, 45, 1] {
        rig.publish(&[(0, Some(true))]);
        tokio::time::advance(Duration::from_secs(seconds)).await;
        rig.broadcaster.sweep();
        rig.work();
        states.push(matches!(slow.gauge().state(), Some(CursorState::Coalescing { .. })));
    }
    assert_eq!(states, [false, false, false, true], "after more than three quarters of it");
}

/// A generation that its reader has taken counts until the reader takes again, and a ready one until the reader takes it.
#[test]
fn everything_held_for_a_client_counts_against_one_bound() {
    let held = |bound: usize, steps: usize| {
        let mut rig = Rig::new(bounds(10_000, 1 << 30), bound);
        let mut cursor = rig.broadcaster.subscribe(live(everything(), queue(Coalesce, 1)));
        let publish = |rig: &mut Rig| (0..20).for_each(|name| rig.publish(&[(name, Some(true))]));
        publish(&mut rig);
        assert_eq!(drain(&mut cursor), []);
        rig.work();
        if steps > 0 {
            assert_eq!(take(&mut cursor, 1).len(), 1, "the rest of it is held");
        }
        publish(&mut rig);
        rig.broadcaster.drop_before(&rig.places[rig.places.len() - 1].clone());
        rig.work();
        let state = cursor.gauge().state();
        (rig.retained(|stats| &stats.overmerged), state)
    };
    for steps in [0, 1] {
        let (lost, Some(CursorState::Coalescing { entries, bodies })) = held(1 << 30, steps) else {
            panic!("it merges")
        };
        assert_eq!(lost, 0);
        // All of the first generation are new to the client; for the second the client also has the old states.
        assert!(entries > 0 && bodies >= 60 * 100, "{entries} {bodies}");
        let bound = (1..1000).map(|step| step * 100).find(|bound| held(*bound, steps).0 == 0).unwrap();
        let (first, second) = (20 * 100, 40 * 100);
        assert!(bound > first.max(second), "{bound} is more than either of them takes");
        if steps == 0 {
            // Of the bodies those count that the cache does not have any more.
            let bound = entries + 20 * 100;
            assert_eq!([bound, bound - 1].map(|bound| held(bound, steps).0), [0, 1]);
        }
    }
}

#[test]
fn merged_changes_are_not_retained_in_the_log() {
    let mut rig = Rig::new(bounds(10_000, 1 << 30), 1 << 30);
    let mut slow = rig.broadcaster.subscribe(live(everything(), queue(Coalesce, 1)));
    rig.publish(&[(0, Some(true)), (1, Some(true))]);
    assert_eq!(drain(&mut slow), [], "it merges");
    for _ in 0..1000 {
        rig.publish(&[(0, Some(true))]);
        drop(drain(&mut slow));
    }
    let (bytes, _) = slow.kept();
    assert!(bytes < 10 * 1000, "{bytes} bytes of runs and marks for a thousand changes");
}

/// Those of a client that is further ahead too, though it is looked at together with another.
#[test]
fn clients_stopped_at_different_offsets_lose_nothing_when_the_history_drops_batches() {
    let mut rig = Rig::new(bounds(EVENTS, 10 * (256 + 100)), 1 << 30);
    let mut cursors = [(); 2].map(|()| rig.broadcaster.subscribe(live(everything(), queue(Coalesce, 1000))));
    for number in 0..4 * EVENTS {
        rig.publish(&[((number % 7) as u8, Some(true))]);
        if number < 20 {
            assert_eq!(drain(&mut cursors[1]).len(), 1);
        }
        if let Some(oldest) = number.checked_sub(EVENTS) {
            rig.broadcaster.drop_before(&rig.places[oldest].clone());
        }
        rig.work();
    }
    for cursor in &mut cursors {
        assert_eq!(drain(cursor), []);
        rig.work();
        assert_eq!(drain(cursor).len(), 7);
    }
    assert_eq!(rig.retained(|stats| &stats.expired), 0);
}

/// As many events as a history has, and of those that it has forgotten as many bytes as its bound.
#[test]
fn batches_kept_without_a_history_have_its_bounds() {
    const DEPTH: usize = 4;
    // The first change has no old state.
    for (size, published, expired) in [(0, 4, 0), (0, 5, 1), (256 + 356, 6, 0), (256 + 356, 7, 1)] {
        let mut rig = Rig::new(bounds(DEPTH, size), 1 << 30);
        let mut cursor = rig.broadcaster.subscribe(live(everything(), queue(Coalesce, 1)));
        for _ in 0..published {
            rig.publish(&[(0, Some(true))]);
        }
        assert_eq!(drain(&mut cursor), []);
        rig.work();
        assert_eq!(rig.retained(|stats| &stats.expired), expired, "{published} with {size} bytes");
    }
}

#[test]
fn work_is_queued_only_once() {
    let mut rig = Rig::new(bounds(4, 1 << 20), 1 << 30);
    let _slow = rig.broadcaster.subscribe(live(everything(), queue(Coalesce, 1000)));
    for _ in 0..100 {
        rig.publish(&[(0, Some(true))]);
    }
    assert!((1..10).contains(&rig.work()));
}

/// Reader, and the state that it has received.
struct Reader {
    cursor: Cursor<Deliveries>,
    app: Option<&'static str>,
    view: State,
    version: u128,
    accounted: u64,
}

impl Reader {
    /// Takes once, and compares its view with the truth at each version at which the view is complete.
    fn take(&mut self, states: &BTreeMap<u128, State>, max_size: usize) -> bool {
        let taken = match self.cursor.poll_take(&mut Context::from_waker(Waker::noop()), max_size) {
            Poll::Ready(Taken::Frames(frames)) => frames,
            Poll::Ready(other) => panic!("{other:?}"),
            Poll::Pending => return false,
        };
        for delivery in taken.iter().flat_map(Deliveries::as_slice) {
            let (name, number) = (delivery.object.key().name().to_owned(), delivery.object.version().number());
            let app = delivery.object.labels().get("app").unwrap_or_default().to_owned();
            let had = match delivery.event_type {
                EventType::Deleted => self.view.remove(&name),
                _ => self.view.insert(name, (app, number)),
            };
            assert_eq!(had.is_some(), delivery.event_type != EventType::Added, "{delivery:?}");
            self.accounted += 1 + u64::from(delivery.coalesced);
            let reached = delivery.version.number();
            let before = self.version;
            assert!(reached >= before, "versions never go back");
            self.version = reached;
            // Inside a batch, the version is the one before it.
            if reached >= delivery.object_version.number() && reached > before {
                assert_eq!(self.view, self.truth(&states[&reached]), "at {reached}");
            }
        }
        true
    }

    fn truth(&self, state: &State) -> State {
        let is_selected = |(_, (app, _)): &(&String, &(String, u128))| self.app.is_none_or(|selected| app == selected);
        state.iter().filter(is_selected).map(|(name, entry)| (name.clone(), entry.clone())).collect()
    }
}

#[derive(Debug, Clone)]
enum Op {
    Publish(Vec<Write>),
    Take(usize, usize),
    Work(usize),
    /// One more client, at the position of another.
    Forget(usize),
    Sweep,
}

fn any_op() -> impl Strategy<Value = Op> {
    let write = (0_u8..6, prop::option::weighted(0.7, any::<bool>()));
    prop_oneof![
        6 => vec(write, 1..5).prop_map(Op::Publish),
        3 => (0_usize..6, prop_oneof![Just(1_usize), Just(3), Just(usize::MAX)]).prop_map(|(at, size)| Op::Take(at, size)),
        2 => (1_usize..4).prop_map(Op::Work),
        1 => (0_usize..12).prop_map(Op::Forget),
        1 => Just(Op::Sweep),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..crate::property_config() })]

    #[test]
    fn merged_events_lead_to_the_true_state_at_each_version(
        ops in vec(any_op(), 1..100),
        events in prop::sample::select(vec![4_usize, 30, 10_000]),
        step in prop::sample::select(vec![0_u64, 200_000, 1_000_000]),
    ) {
        let mut rig = Rig::new(bounds(events, 1 << 30), 1 << 30);
        rig.clock.step.store(step, Ordering::Relaxed);
        let mut readers: Vec<Reader> = [(None, 1), (Some("web"), 2), (None, 5)].into_iter().map(|(selected, length)| {
            let cursor = rig.broadcaster.subscribe(live(selected.map_or_else(everything, app), queue(Coalesce, length)));
            Reader { cursor, app: selected, view: State::new(), version: 0, accounted: 0 }
        }).collect();
        for op in ops {
            match op {
                Op::Publish(writes) => rig.publish(&writes),
                Op::Take(at, size) => drop(readers.get_mut(at).map(|reader| reader.take(&rig.states, size))),
                Op::Work(pieces) => drop((0..pieces).filter(|_| rig.threads.run_one()).collect::<Vec<_>>()),
                Op::Forget(back) => {
                    if let Some(oldest) = rig.places.len().checked_sub(back + 1).map(|at| rig.places[at].clone()) {
                        rig.broadcaster.drop_before(&oldest);
                    }
                }
                Op::Sweep => rig.broadcaster.sweep(),
            }
        }
        for reader in &mut readers {
            while reader.take(&rig.states, usize::MAX) || rig.work() > 0 {}
            let now = &rig.states[&rig.world.version];
            prop_assert_eq!(&reader.view, &reader.truth(now));
            prop_assert!(reader.accounted <= rig.offset * 2, "each change is one event at most, or two");
        }
        prop_assert!(rig.retained(|stats| &stats.expired) == 0);
    }
}
