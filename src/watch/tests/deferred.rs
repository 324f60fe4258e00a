//! Groups that the writer has no time for: how it defers them, fills them and takes them back.

use std::time::Duration;

use super::*;
#[cfg(debug_assertions)]
use crate::census::{Kind, alive};
use crate::watch::{bulk::BulkThreads, selection_budget::Stepped};

pub(super) struct Rig {
    pub(super) clock: Arc<Stepped>,
    pub(super) threads: BulkThreads,
    pub(super) broadcaster: Broadcaster<Deliveries>,
    pub(super) world: World,
}

impl Rig {
    /// Returns a rig in which nothing takes any time.
    pub(super) fn new() -> Self {
        Self::with(BroadcasterConfig::default())
    }

    pub(super) fn with(config: BroadcasterConfig) -> Self {
        let clock: Arc<Stepped> = Arc::default();
        let threads = BulkThreads::manual(Arc::clone(&clock));
        let broadcaster = Broadcaster::new(config, version(0)).deferring_to(Some(&threads));
        Self { clock, threads, broadcaster, world: World::at(0) }
    }

    /// Sets the time by which each reading of the clock advances it.
    pub(super) fn cost(&self, step: Duration) {
        self.clock.step.store(step.as_nanos() as u64, Ordering::SeqCst);
    }

    pub(super) fn pause(&self, time: Duration) {
        self.clock.now.fetch_add(time.as_nanos() as u64, Ordering::SeqCst);
    }

    pub(super) fn subscribe(&mut self, selection: Arc<Selection>, policy: FullChannelPolicy) -> Cursor<Deliveries> {
        self.broadcaster.subscribe(live(selection, queue(policy, 4)))
    }

    /// Publishes `changes` changes of one object, as one publish cycle.
    pub(super) fn publish(&mut self, changes: usize) {
        let batches = self.world.several(changes);
        self.broadcaster.publish(&batches);
    }

    /// Publishes a cycle after which every group that sees every change is deferred.
    pub(super) fn defer(&mut self) {
        self.cost(Duration::from_secs(1));
        self.publish(2);
        self.cost(Duration::ZERO);
    }

    /// Runs the pending work. Returns the number of pieces.
    pub(super) fn fill(&self) -> usize {
        std::iter::repeat_with(|| self.threads.run_one()).take_while(|has_run| *has_run).count()
    }

    pub(super) fn deferred(&self) -> u64 {
        self.broadcaster.stats().deferred.load(Ordering::Relaxed)
    }

    pub(super) fn distributed(&self) -> HistoryPosition {
        self.broadcaster.reached().clone()
    }
}

/// Returns a selection of all objects that nothing routes to.
pub(super) fn not(app: &str) -> Arc<Selection> {
    Arc::new(Selection { labels: LabelSelector::parse(&format!("app!={app}")).unwrap(), ..Selection::default() })
}

use FullChannelPolicy::{Block, Coalesce, Drop, Replay};

#[test]
fn groups_that_do_not_fit_are_filled_by_threads_and_the_others_by_the_writer() {
    let mut rig = Rig::new();
    let mut all = rig.subscribe(everything(), Replay);
    let mut routed = rig.subscribe(app("web"), Replay);
    let mut other = rig.subscribe(not("db"), Replay);
    rig.publish(1);
    assert_eq!((drain(&mut other), rig.deferred()), (modified([1]), 0), "there is time");
    rig.cost(Duration::from_secs(1));
    rig.publish(2);
    assert_eq!(rig.deferred(), 1);
    assert_eq!((drain(&mut all), drain(&mut routed)), (modified([1, 2, 3]), modified([1, 2, 3])));
    assert_eq!(drain(&mut other), [], "of a cycle that was not evaluated to its end nothing is pushed");
    rig.publish(1);
    assert!(rig.fill() > 0);
    assert_eq!(drain(&mut other), modified([2, 3, 4]));
    assert_eq!(rig.fill(), 0);
}

#[test]
fn groups_that_see_every_change_are_taken_in_rising_order_of_cost() {
    let mut rig = Rig::new();
    let cursors: Vec<_> = (0..40).map(|n| rig.subscribe(not(&format!("x{n}")), Replay)).collect();
    // Sixteen are measured together.
    rig.cost(Duration::from_micros(32));
    rig.publish(1);
    assert_eq!(rig.deferred(), 0);
    rig.pause(Duration::from_secs(1));
    let mut late = rig.subscribe(not("late"), Replay);
    // A new group counts as a microsecond; the others have become more expensive.
    rig.cost(Duration::ZERO);
    rig.publish(150);
    assert_eq!((rig.deferred(), drain(&mut late).len()), (40, 150));
    drop(cursors);
}

#[test]
fn the_time_to_encode_the_events_of_a_view_counts() {
    for (format, deferred) in [('a', 0), ('p', 1)] {
        let clock: Arc<Stepped> = Arc::default();
        let threads = BulkThreads::manual(Arc::clone(&clock));
        let config = BroadcasterConfig { selection_share: 1, ..BroadcasterConfig::default() };
        let mut broadcaster = Broadcaster::<Text>::new(config, version(0)).deferring_to(Some(&threads));
        let mut world = World::at(0);
        let format = Letter(format);
        let cursor = broadcaster.subscribe(Subscribe { format, ..live(not("db"), queue(Replay, 4)) });
        // To select and to encode take a little more than the half of the budget of a cycle, each.
        clock.step.store(101_000, Ordering::SeqCst);
        broadcaster.publish(&world.several(1));
        clock.step.store(0, Ordering::SeqCst);
        broadcaster.publish(&world.several(1));
        assert_eq!(broadcaster.stats().deferred.load(Ordering::Relaxed), deferred, "{format:?}");
        drop(cursor);
    }
}

#[test]
fn the_share_of_all_time_is_bounded_as_well() {
    let config = BroadcasterConfig { selection_share: 10, ..BroadcasterConfig::default() };
    let mut rig = Rig::with(config);
    let cursors: Vec<_> = (0..100).map(|n| rig.subscribe(not(&format!("x{n}")), Replay)).collect();
    // A hundred microseconds each time, as much as the budget refills in a millisecond.
    for _ in 0..4 {
        rig.cost(Duration::from_micros(14));
        rig.publish(1);
        rig.cost(Duration::ZERO);
        rig.pause(Duration::from_millis(1));
    }
    assert_eq!(rig.deferred(), 0);
    for _ in 0..3 {
        rig.cost(Duration::from_micros(14));
        rig.publish(1);
    }
    assert!(rig.deferred() > 0, "nothing has come back");
    drop(cursors);
}

#[test]
fn a_group_is_taken_back_only_when_it_fits_and_has_been_filled() {
    let mut rig = Rig::new();
    let mut cursor = rig.subscribe(not("db"), Replay);
    rig.defer();
    rig.fill();
    rig.publish(1);
    assert_eq!(rig.deferred(), 1, "not in the first second");
    rig.fill();
    for _ in 0..100 {
        rig.publish(1);
        rig.fill();
    }
    rig.pause(Duration::from_secs(2));
    rig.publish(1);
    assert_eq!(rig.deferred(), 0, "it is cheap now");
    assert_eq!(drain(&mut cursor), modified(1..=104));
    assert_eq!(rig.fill(), 0, "the writer does it");

    rig.defer();
    rig.pause(Duration::from_secs(2));
    rig.publish(1);
    rig.pause(Duration::from_secs(2));
    rig.publish(1);
    assert_eq!((rig.deferred(), drain(&mut cursor)), (1, vec![]), "nobody has filled it");
    rig.fill();
    rig.publish(1);
    rig.fill();
    assert_eq!(drain(&mut cursor), modified(105..=109));
}

#[test]
fn a_bookmark_is_not_above_the_filled_position() {
    let mut rig = Rig::new();
    let mut cursor = rig.subscribe(not("db"), Replay);
    rig.publish(1);
    drain(&mut cursor);
    rig.defer();
    assert!(cursor.advance_at_head(Some(&rig.distributed())));
    assert_eq!(cursor.version(), &version(1));
    rig.fill();
    assert!(!cursor.advance_at_head(Some(&rig.distributed())), "there is something to read");
    drain(&mut cursor);
    // None of these events is in its selection.
    for _ in 0..3 {
        let batch = rig.world.batch(|world| vec![world.put("b", "db")]);
        rig.broadcaster.publish(&[batch]);
    }
    assert!(cursor.advance_at_head(Some(&rig.distributed())));
    assert_eq!(cursor.version(), &version(3));
    rig.fill();
    assert!(cursor.advance_at_head(Some(&rig.distributed())));
    assert_eq!(cursor.version(), &version(6));
    // A version without changes advances every cursor.
    let quiet = Batch { before: version(6), after: version(9), changes: vec![], is_relist: false, is_open: false };
    rig.broadcaster.publish(&[quiet]);
    assert!(cursor.advance_at_head(Some(&rig.distributed())));
    assert_eq!(cursor.version(), &version(9));
}

#[test]
fn a_new_cursor_gets_later_events_although_its_group_is_behind() {
    let mut rig = Rig::new();
    let mut first = rig.subscribe(not("db"), Replay);
    rig.defer();
    let mut second = rig.subscribe(not("db"), Drop);
    rig.publish(2);
    let mut third = rig.subscribe(not("db"), Coalesce);
    let subscribe = live(not("db"), queue(Replay, 4));
    let mut ahead = rig.broadcaster.subscribe_after(Subscribe { initial_events: true, ..subscribe }, &version(5));
    ahead.go_live();
    rig.publish(2);
    rig.fill();
    assert_eq!(drain(&mut first), modified(1..=6));
    assert_eq!(drain(&mut second), modified(3..=6));
    assert_eq!(drain(&mut third), modified(5..=6));
    assert_eq!(drain(&mut ahead), modified(6..=6), "it has a version that was open");
}

#[test]
fn under_every_policy_the_queue_has_the_filled_events() {
    let mut rig = Rig::new();
    let mut cursors = [Replay, Drop, Coalesce, Block].map(|policy| rig.subscribe(not("db"), policy));
    // The cursor has read enough for the writer to wait for it.
    for _ in 0..4 {
        rig.publish(1);
        assert_eq!(cursors.each_mut().map(|cursor| drain(cursor).len()), [1; 4]);
    }
    rig.defer();
    rig.publish(6);
    rig.publish(1);
    rig.fill();
    assert!(!rig.broadcaster.is_blocked(), "the writer is ahead of a group that threads fill");
    let [replay, drop, coalesce, block] = &mut cursors;
    assert_eq!(drain(replay), modified(5..=13));
    assert_eq!(drain(drop), [modified(5..=8), vec![Dropped(5, 8)]].concat());
    assert_eq!(drain(block), modified(5..=13));
    assert_eq!(drain(coalesce), [], "all that the queue holds merges");
    rig.fill();
    assert_eq!(drain(coalesce), [event(EventType::Modified, "a", 13)]);
    rig.publish(6);
    rig.fill();
    rig.publish(6);
    rig.fill();
    assert_eq!(drain(coalesce), []);
    rig.fill();
    assert_eq!(drain(coalesce), [event(EventType::Modified, "a", 25)]);
}

#[test]
fn merged_events_are_skipped_when_the_group_is_filled_with_them() {
    let mut rig = Rig::new();
    let mut coalesce = rig.subscribe(not("db"), Coalesce);
    rig.defer();
    rig.fill();
    rig.publish(6);
    rig.fill();
    assert_eq!(drain(&mut coalesce), [], "it merges");
    // First everything merges, then the group is filled.
    rig.publish(6);
    assert!(rig.threads.run_one());
    let told = drain(&mut coalesce);
    assert_eq!(told.len(), 1, "{told:?}");
    let last = rig.distributed().version;
    assert_eq!(coalesce.version(), &last);
    assert!(coalesce.filled().unwrap().offset < rig.distributed().offset, "the group is behind");
    rig.fill();
    assert_eq!(drain(&mut coalesce), [], "it has them");
    rig.publish(2);
    rig.fill();
    assert_eq!(drain(&mut coalesce).len(), 2, "and follows the log again");
}

#[test]
fn a_group_that_the_history_has_passed_expires_and_the_next_client_has_a_new_one() {
    let mut rig = Rig::new();
    let mut cursor = rig.subscribe(not("db"), Replay);
    let (flag, mut other) = (Arc::<Flag>::default(), rig.subscribe(app("web"), Replay));
    rig.defer();
    rig.fill();
    assert_eq!(drain(&mut cursor), modified(1..=2));
    let waker = Waker::from(Arc::clone(&flag));
    assert!(cursor.poll_take(&mut Context::from_waker(&waker), 1).is_pending());
    rig.publish(1);
    let oldest = rig.distributed();
    rig.publish(1);
    rig.broadcaster.drop_before(&oldest);
    assert!(!flag.is_set());
    rig.fill();
    assert!(flag.is_set());
    assert_eq!(drain(&mut cursor), [Ended(End::Expired { oldest: version(3) })]);
    assert_eq!(cursor.version(), &version(2), "what it can try to resume from");
    let expired = rig.broadcaster.stats().expired.load(Ordering::Relaxed);
    assert_eq!((rig.deferred(), expired), (0, 1));
    let mut next = rig.subscribe(not("db"), Replay);
    rig.publish(1);
    assert_eq!(drain(&mut next), modified(5..=5));
    assert_eq!(drain(&mut other), modified(1..=5));
}

#[test]
fn a_reader_whose_group_has_expired_merges_also_what_was_published_without_any_group() {
    let mut rig = Rig::new();
    let mut cursor = rig.subscribe(not("db"), Coalesce);
    rig.publish(1);
    rig.defer();
    rig.publish(1);
    let oldest = rig.distributed();
    rig.publish(1);
    rig.broadcaster.drop_before(&oldest);
    assert!(rig.threads.run_one(), "its group expires, and nothing has merged");
    assert_eq!(rig.deferred(), 0);
    rig.publish(1);
    let mut next = rig.subscribe(everything(), Replay);
    rig.publish(1);
    rig.fill();
    assert_eq!(drain(&mut next), modified([7]));
    assert_eq!(drain(&mut cursor), [], "a thread is to merge the rest");
    rig.fill();
    let told = [event(EventType::Added, "a", 7), Ended(End::Expired { oldest: version(4) })];
    assert_eq!(drain(&mut cursor), told);
}

#[test]
fn nothing_of_a_history_is_filled_once_it_has_ended() {
    let mut rig = Rig::new();
    for expected in [End::HistoryRewritten, End::Stopped] {
        let mut cursor = rig.subscribe(not("db"), Replay);
        rig.defer();
        // A piece of work does not finish its block.
        rig.cost(Duration::from_secs(1));
        rig.publish(2);
        assert!(rig.threads.run_one());
        rig.cost(Duration::ZERO);
        match &expected {
            End::HistoryRewritten => rig.broadcaster.start_new_history(&expected, version(100)),
            _ => rig.broadcaster.stop(&expected),
        }
        rig.fill();
        assert_eq!(drain(&mut cursor), [Ended(expected)]);
        assert_eq!(rig.deferred(), 0);
        rig.world.version = 100;
    }
}

#[test]
fn a_piece_of_work_ends_by_time_and_continues_where_it_ended() {
    let mut rig = Rig::new();
    let mut cursor = rig.subscribe(not("db"), Replay);
    rig.defer();
    rig.publish(10);
    rig.cost(Duration::from_micros(100));
    let pieces = rig.fill();
    assert!((3..=12).contains(&pieces), "{pieces}");
    assert_eq!(drain(&mut cursor), modified(1..=12));
}

#[test]
fn cheap_groups_do_not_wait_for_costly_ones() {
    let mut rig = Rig::new();
    let cheap = rig.subscribe(not("db"), Replay);
    let dear: Vec<_> = (0..8).map(|n| rig.subscribe(not(&format!("x{n}")), Replay)).collect();
    rig.defer();
    rig.fill();
    for (cursor, cost) in dear.iter().map(|cursor| (cursor, 100_000_000)).chain([(&cheap, 0)]) {
        cursor.set_cost(cost);
    }
    rig.publish(20);
    rig.cost(Duration::from_millis(1));
    // Each of the others needs twenty pieces.
    assert!((0..60).all(|_| rig.threads.run_one()));
    let filled = |cursor: &Cursor<Deliveries>| cursor.filled().unwrap().offset;
    assert_eq!(filled(&cheap), 22);
    assert!(dear.iter().all(|cursor| filled(cursor) == 2));
    rig.fill();
    assert!(dear.iter().all(|cursor| filled(cursor) == 22));
}

#[test]
fn a_relist_before_the_filled_events_is_reported_once() {
    let clock: Arc<Stepped> = Arc::default();
    let threads = BulkThreads::manual(Arc::clone(&clock));
    let config = BroadcasterConfig { selection_budget: Duration::ZERO, ..BroadcasterConfig::default() };
    let mut broadcaster = Broadcaster::<Text>::new(config, version(0)).deferring_to(Some(&threads));
    let mut cursors = [everything(), not("db"), not("web"), app("db")]
        .map(|selection| broadcaster.subscribe(live(selection, queue(Replay, 100))));
    let mut world = World::at(0);
    let relist = |world: &mut World| {
        world.version += 5;
        let (before, after) = (version(world.version - 5), version(world.version));
        Batch { before, after, changes: vec![], is_relist: true, is_open: false }
    };
    for cycle in 0..7 {
        let batches = match cycle {
            1 => vec![relist(&mut world)],
            3 => vec![world.one("a", "web"), relist(&mut world)],
            4 => vec![relist(&mut world), world.one("a", "web"), world.one("b", "web")],
            // The first ones of their selections since the relists.
            6 => vec![world.one("d", "db"), world.one("e", "db")],
            _ => world.several(2),
        };
        broadcaster.publish(&batches);
    }
    while threads.run_one() {}
    let [mut all, web, db, routed] = cursors.each_mut().map(|cursor| {
        let Poll::Ready(Taken::Frames(frames)) = cursor.poll_take(&mut Context::from_waker(Waker::noop()), 1 << 20)
        else {
            panic!("there are events")
        };
        frames.iter().flat_map(Text::lines).collect::<Vec<_>>()
    });
    let after_relists = |lines: &[String]| lines.iter().filter(|line| line.contains("after a relist")).count();
    assert!(all.len() > 10 && after_relists(&all) == 2, "{all:?}");
    for lines in [db, routed] {
        assert!(lines.len() == 2 && lines[0].contains("after a relist") && after_relists(&lines) == 1, "{lines:?}");
    }
    all.truncate(all.len() - 2);
    assert_eq!(all, web);
}

/// Real threads, at their own pace.
#[test]
fn threads_fill_every_group_in_order_while_the_writer_continues() {
    const CHANGES: u128 = 2000;
    let threads = BulkThreads::start(2).unwrap();
    let config = BroadcasterConfig { selection_budget: Duration::ZERO, ..BroadcasterConfig::default() };
    let mut broadcaster = Broadcaster::<Deliveries>::new(config, version(0)).deferring_to(Some(&threads));
    let selections = (0..60).map(|n| not(&format!("x{n}")));
    let cursors: Vec<_> =
        selections.map(|selection| broadcaster.subscribe(live(selection, queue(Replay, 4)))).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_time().build().unwrap();
    let readers: Vec<_> = cursors
        .into_iter()
        .map(|mut cursor| {
            runtime.spawn(async move {
                let mut taken = Vec::new();
                while taken.len() < CHANGES as usize {
                    taken.extend(items(cursor.take(100).await));
                }
                taken
            })
        })
        .collect();
    let mut world = World::at(0);
    for _ in 0..CHANGES / 4 {
        broadcaster.publish(&world.several(4));
    }
    let expected = modified(1..=CHANGES);
    runtime.block_on(async {
        for reader in readers {
            let taken = tokio::time::timeout(Duration::from_secs(60), reader).await.expect("it gets everything");
            assert_eq!(taken.unwrap(), expected);
        }
    });
}

#[test]
#[cfg(debug_assertions)]
fn removed_deferred_groups_leave_nothing_behind() {
    let mut rig = Rig::new();
    let before = alive(Kind::Run);
    for round in 0..50 {
        let cursors: Vec<_> = (0..40).map(|n| rig.subscribe(not(&format!("x{round}-{n}")), Replay)).collect();
        rig.defer();
        rig.fill();
        assert!(alive(Kind::Run).values >= before.values + 40);
        drop(cursors);
    }
    assert!(rig.broadcaster.remembered_deferrals() <= 80, "those of the rounds before have been forgotten");
    rig.broadcaster.sweep();
    assert_eq!((rig.deferred(), alive(Kind::Run)), (0, before), "though nothing is published");
}
