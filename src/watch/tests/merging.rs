//! COALESCE with merge threads, whose work the test does: merges, their readers and times, and their bounds.

use std::time::Duration;

use FullChannelPolicy::{Coalesce, Replay};
use proptest::{collection::vec, prelude::*};
use smallvec::smallvec;

use super::*;
use crate::watch::{
    bulk::Stepped,
    queue::{Read, Turn},
    replay::ReplayPosition,
};

/// Broadcaster with its threads, and all the states of its world.
struct Rig {
    broadcaster: Broadcaster<Deliveries>,
    threads: BulkThreads,
    clock: Arc<Stepped>,
    world: World,
    states: BTreeMap<u128, State>,
    /// Number of changes.
    offset: u64,
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
        Self { broadcaster, threads, clock, world, states, offset: 0 }
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
fn a_thread_comes_to_rest_also_if_each_change_takes_longer_than_a_piece() {
    let mut rig = Rig::new(bounds(4, 1 << 30), 1 << 30);
    let _slow = rig.broadcaster.subscribe(live(everything(), queue(Coalesce, 1)));
    rig.clock.step.store(10_000_000, Ordering::SeqCst);
    for _ in 0..3 {
        rig.publish(&[(0, Some(true)), (1, Some(true)), (2, Some(true))]);
    }
    let pieces = std::iter::from_fn(|| rig.threads.run_one().then_some(())).take(100).count();
    assert!((2..100).contains(&pieces), "{pieces} pieces");
}

#[test]
fn a_reader_merges_in_slices_and_others_go_on() {
    let mut rig = Rig::new(bounds(10_000, 1 << 30), 1 << 30);
    let mut slow = rig.broadcaster.subscribe(live(everything(), queue(Coalesce, 4)));
    let mut fast = rig.broadcaster.subscribe(live(everything(), queue(Replay, 4)));
    for name in 0..100 {
        rig.publish(&[(name % 10, Some(true)); 40]);
        assert_eq!(rig.work(), 0, "nothing is done for who lags");
    }
    let flag = Arc::<Flag>::default();
    let waker = Waker::from(Arc::clone(&flag));
    let mut polls = 0;
    loop {
        let polled = slow.poll_take(&mut Context::from_waker(&waker), usize::MAX);
        if let Poll::Ready(Taken::Frames(frames)) = polled {
            assert_eq!(frames.iter().map(|frame| frame.as_slice().len()).sum::<usize>(), 10);
            break;
        }
        assert!(flag.is_set(), "it goes on by itself");
        assert!(!take(&mut fast, usize::MAX).is_empty());
        polls += 1;
    }
    assert!((4..10).contains(&polls), "{polls}: to count 4,000 changes, and to merge them");
    assert_eq!(drain(&mut slow), []);
    assert_eq!(slow.version(), &version(4000));
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
    assert_eq!(drain(&mut greedy), [expired(0)]);
    assert_eq!(greedy.version(), &version(1));
    assert_eq!(greedy.gauge().state(), CursorState::Following, "nothing is held any more");
    assert_eq!(drain(&mut modest).len(), 3);
    assert_eq!((rig.retained(|stats| &stats.overmerged), rig.retained(|stats| &stats.expired)), (1, 0));
}

#[test]
fn an_idle_client_loses_nothing_when_the_history_drops_batches() {
    let mut rig = Rig::new(bounds(EVENTS, 1 << 30), 1 << 30);
    let mut cursor = rig.broadcaster.subscribe(live(everything(), queue(Coalesce, 1000)));
    let mut works = 0;
    for number in 0..20 * EVENTS as u64 {
        rig.publish(&[((number % 7) as u8, Some(true))]);
        works += rig.work();
    }
    assert!((10..20 * EVENTS).contains(&works), "{works} pieces of work: not with each event");
    let CursorState::Coalescing { entries, bodies } = cursor.gauge().state() else { panic!("it merges") };
    assert!(entries > 0 && bodies == 7 * 100, "{entries} {bodies}");
    assert_eq!(drain(&mut cursor).len(), 7);
    assert_eq!(cursor.version(), &version(20 * EVENTS as u128));
    assert_eq!(cursor.gauge().state(), CursorState::Following);
}

/// Under DROP each is counted.
#[test]
fn losses_are_counted_before_the_history_drops_batches() {
    let mut rig = Rig::new(bounds(EVENTS, 1 << 30), 1 << 30);
    let drop = |length| live(app("web"), queue(FullChannelPolicy::Drop, length));
    let mut cursors = [1, 1000].map(|length| rig.broadcaster.subscribe(drop(length)));
    for number in 0..20 * EVENTS as u64 {
        rig.publish(&[((number % 7) as u8, Some(number % 2 == 0))]);
        rig.work();
    }
    // Each label changes at each event of an object: it enters, or leaves.
    let before = rig.offset;
    for cursor in &mut cursors {
        let Ok([Dropped(count, 0)]) = <[Item; 1]>::try_from(drain(cursor)) else { panic!("its queue has gone, too") };
        assert_eq!((count, cursor.version()), (before - 3, &version(rig.world.version)), "of three the first is none");
    }
    assert_eq!(rig.retained(|stats| &stats.expired), 0);
}

#[test]
fn what_threads_do_not_merge_in_time_expires_with_its_version() {
    let mut rig = Rig::new(bounds(EVENTS, 1 << 30), 1 << 30);
    let mut cursor = rig.broadcaster.subscribe(live(everything(), queue(Coalesce, 4)));
    rig.publish(&[(0, Some(true))]);
    assert_eq!(drain(&mut cursor).len(), 1);
    // As much again and a few cycles are kept for it, and no more.
    for _ in 0..3 * EVENTS + 256 {
        rig.publish(&[(0, Some(true))]);
    }
    rig.work();
    let Ended(End::Expired { oldest }) = &drain(&mut cursor)[0] else { panic!("it expires") };
    assert!(*oldest >= version(EVENTS as u128));
    assert_eq!(cursor.version(), &version(1));
    assert_eq!((rig.retained(|stats| &stats.overmerged), rig.retained(|stats| &stats.expired)), (0, 1));
}

/// Those of a client that is further ahead too, though it is looked at together with another.
#[test]
fn clients_stopped_at_different_offsets_lose_nothing_when_the_history_drops_batches() {
    let mut rig = Rig::new(bounds(EVENTS, 1 << 30), 1 << 30);
    let mut cursors = [(); 2].map(|()| rig.broadcaster.subscribe(live(everything(), queue(Coalesce, 1000))));
    for number in 0..6 * EVENTS {
        rig.publish(&[((number % 7) as u8, Some(true))]);
        if number < 20 {
            assert_eq!(drain(&mut cursors[1]).len(), 1);
        }
        rig.work();
    }
    for cursor in &mut cursors {
        assert_eq!(drain(cursor).len(), 7);
    }
    assert_eq!(rig.retained(|stats| &stats.expired), 0);
}

/// The history is as large as its bounds again.
#[test]
fn a_history_keeps_no_more_for_clients_that_have_gone_or_follow() {
    let mut rig = Rig::new(bounds(EVENTS, 1 << 30), 1 << 30);
    let events = |rig: &Rig| rig.broadcaster.recorded_events();
    let stalled = rig.broadcaster.subscribe(live(everything(), queue(Coalesce, 1000)));
    let mut follows = rig.broadcaster.subscribe(live(everything(), queue(Coalesce, 1000)));
    for _ in 0..EVENTS + EVENTS / 2 {
        rig.publish(&[(0, Some(true))]);
        assert_eq!(drain(&mut follows).len(), 1);
    }
    assert_eq!(events(&rig), EVENTS + EVENTS / 2, "no thread has merged it");
    drop(stalled);
    for _ in 0..EVENTS {
        rig.publish(&[(0, Some(true))]);
        assert_eq!(drain(&mut follows).len(), 1);
    }
    assert_eq!(events(&rig), EVENTS);
}

/// Part of the work for a queue that is done while its reader takes.
#[derive(Debug, Clone, Copy)]
enum Meanwhile {
    /// Changes merge at once.
    Merged,
    /// A thread will merge them.
    Queued,
    /// A thread merges them, and the reader then waits for that.
    Merging,
}

#[test]
fn what_merges_is_not_taken_too() {
    for meanwhile in [Meanwhile::Merged, Meanwhile::Queued, Meanwhile::Merging] {
        let threads = BulkThreads::manual(Arc::default());
        let config = BroadcasterConfig { retention: bounds(2, 1 << 30), ..BroadcasterConfig::default() };
        let has_threads = !matches!(meanwhile, Meanwhile::Merged);
        let broadcaster = Broadcaster::<Deliveries>::new(config, version(0));
        let mut broadcaster = broadcaster.deferring_to(has_threads.then_some(&threads));
        let _cursor = broadcaster.subscribe(live(everything(), queue(Coalesce, 100)));
        let queue = broadcaster.cursors.queues().remove(0);
        let cx = Context::from_waker(Waker::noop());
        let mut world = World::at(0);
        broadcaster.publish(&world.several(3));
        assert!(matches!(queue.poll_turn(&cx, 3), Poll::Ready(Turn::Read(u64::MAX))));
        broadcaster.publish(&world.several(1));
        let position = ReplayPosition { version: version(3), offset: 3, is_gap: false };
        let mut has_read = false;
        let mut read = || {
            if !std::mem::replace(&mut has_read, true) {
                assert_eq!(queue.note_read(&position, 3, 0), Read::Refused);
            }
        };
        if let Meanwhile::Merging = meanwhile {
            let is_over = || {
                read();
                assert!(queue.poll_turn(&cx, 4).is_pending());
                false
            };
            assert!(!queue.work(is_over));
        }
        read();
        while threads.run_one() {}
        let Poll::Ready(Turn::Deliver(mut merged)) = queue.poll_turn(&cx, 4) else { panic!("{meanwhile:?}") };
        let before = HistoryPosition { version: version(0), offset: 0 };
        let (events, count) = merged.encode::<Deliveries>(&before, &(), usize::MAX);
        let latest = vec![event(EventType::Added, "a", 4)];
        assert_eq!((items(Taken::Frames(smallvec![events])), count), (latest, 1), "{meanwhile:?}");
    }
}

#[test]
fn a_reader_that_comes_while_a_thread_works_loses_nothing_and_is_woken() {
    let flag = Arc::<Flag>::default();
    let waker = Waker::from(Arc::clone(&flag));
    let cx = Context::from_waker(&waker);
    for policy in [Coalesce, FullChannelPolicy::Drop] {
        let mut rig = Rig::new(bounds(2, 1 << 30), 1 << 30);
        let _cursor = rig.broadcaster.subscribe(live(everything(), queue(policy, 100)));
        let queue = rig.broadcaster.cursors.queues().remove(0);
        for _ in 0..2 {
            (0..4).for_each(|name| rig.publish(&[(name, Some(true))]));
            // It has read everything up to the head that it has seen.
            let head = if policy == Coalesce { rig.offset } else { 0 };
            let is_over = || {
                assert!(queue.poll_turn(&cx, head).is_pending());
                false
            };
            assert!(!queue.work(is_over));
            assert!(flag.is_set(), "{policy:?}");
        }
        match queue.poll_turn(&cx, rig.offset) {
            Poll::Ready(Turn::Deliver(merged)) => assert_eq!(merged.position().offset, 4),
            Poll::Ready(Turn::Moved { lost, .. }) => assert_eq!(lost, 8),
            turn => panic!("{policy:?}: {turn:?}"),
        }
    }
}

/// The history may have dropped the changes since, so that nobody can count them again.
#[test]
fn what_a_thread_has_counted_stays_counted_though_its_reader_takes_a_part() {
    let cx = Context::from_waker(Waker::noop());
    let threads = BulkThreads::manual(Arc::default());
    let config = BroadcasterConfig { retention: bounds(2, 1 << 30), ..BroadcasterConfig::default() };
    let mut broadcaster = Broadcaster::<Text>::new(config, version(0)).deferring_to(Some(&threads));
    let subscribe = Subscribe { format: Letter('s'), ..live(everything(), queue(FullChannelPolicy::Drop, 2)) };
    let _cursor = broadcaster.subscribe(subscribe);
    let queue = broadcaster.cursors.queues().remove(0);
    let mut world = World::at(0);
    let mut publish = |names: &[&str], suppressed: usize| {
        for name in names.iter().chain(std::iter::repeat_n(&"a", suppressed)) {
            broadcaster.publish(&[world.one(name, "web")]);
        }
    };
    publish(&["a"], 1);
    assert!(matches!(queue.poll_turn(&cx, 2), Poll::Ready(Turn::Read(u64::MAX))));
    publish(&["b"], 250);
    let position = ReplayPosition { version: version(2), offset: 2, is_gap: false };
    let mut has_read = false;
    let is_over = || {
        if !std::mem::replace(&mut has_read, true) {
            assert_eq!(queue.note_read(&position, 1, 1), Read::Noted);
        }
        false
    };
    assert!(!queue.work(is_over) && has_read);
    publish(&["c", "d"], 50);
    assert!(queue.poll_turn(&cx, 305).is_pending());
    while threads.run_one() {}
    let turn = queue.poll_turn(&cx, 305);
    assert!(matches!(turn, Poll::Ready(Turn::Moved { lost: 3, suppressed: 300, .. })), "{turn:?}");
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
    Sweep,
}

fn any_op() -> impl Strategy<Value = Op> {
    let write = (0_u8..6, prop::option::weighted(0.7, any::<bool>()));
    prop_oneof![
        6 => vec(write, 1..5).prop_map(Op::Publish),
        3 => (0_usize..6, prop_oneof![Just(1_usize), Just(3), Just(usize::MAX)]).prop_map(|(at, size)| Op::Take(at, size)),
        2 => (1_usize..4).prop_map(Op::Work),
        1 => Just(Op::Sweep),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..crate::property_config() })]

    #[test]
    fn merged_events_lead_to_the_true_state_at_each_version(
        ops in vec(any_op(), 1..100),
        events in prop::sample::select(vec![200_usize, 500, 10_000]),
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
