//! Wait of the writer under BLOCK: its cause, its duration, and the budgets that are charged.

use std::{collections::VecDeque, time::Duration};

use FullChannelPolicy::Block;
use tokio::time::Instant;

use super::*;
#[cfg(feature = "cel")]
use crate::watch::replay::ReplayPosition;

/// Publishes `events` events, one by one, and every client reads each at once: then the writer may wait for clients whose
/// queue is no longer than that.
fn prove(
    broadcaster: &mut Broadcaster<Deliveries>,
    world: &mut World,
    events: usize,
    cursors: &mut [&mut Cursor<Deliveries>],
) {
    for _ in 0..events {
        broadcaster.publish(&world.several(1));
        for cursor in &mut *cursors {
            assert_eq!(drain(cursor).len(), 1);
        }
        assert!(!broadcaster.is_blocked());
    }
}

/// Returns the subscription of this user.
fn of(user: u32, queue: QueueOptions) -> Subscribe<Deliveries> {
    Subscribe { client: Client::User(user), ..live(everything(), queue) }
}

/// Returns the time for which the writer waits.
async fn waits(broadcaster: &mut Broadcaster<Deliveries>) -> Duration {
    let started = Instant::now();
    broadcaster.ready().await;
    assert!(!broadcaster.is_blocked());
    started.elapsed()
}

#[tokio::test(start_paused = true)]
async fn the_writer_waits_at_the_length_and_goes_on_at_half() {
    for length in [4] {
        let mut broadcaster = broadcaster::<Deliveries>(0);
        let mut cursor = broadcaster.subscribe(live(everything(), queue(Block, length)));
        let mut world = World::at(0);
        prove(&mut broadcaster, &mut world, length, &mut [&mut cursor]);
        for _ in 0..3 {
            broadcaster.publish(&world.several(1));
            assert!(!broadcaster.is_blocked());
        }
        broadcaster.publish(&world.several(1));
        assert!(broadcaster.is_blocked());
        assert_eq!(cursor.gauge().state(), CursorState::Blocking);
        let mut ready = tokio_test::task::spawn(broadcaster.ready());
        tokio_test::assert_pending!(ready.poll());
        let read = length as u128;
        assert_eq!(take(&mut cursor, 1), modified([read + 1]));
        assert!(!ready.is_woken(), "three of four are still there");
        assert_eq!(take(&mut cursor, 1), modified([read + 2]));
        assert!(ready.is_woken());
        tokio_test::assert_ready!(ready.poll());
        drop(ready);
        assert!(!broadcaster.is_blocked());
        assert_eq!(cursor.gauge().state(), CursorState::Following);
        assert_eq!(drain(&mut cursor), modified([read + 3, read + 4]));
    }
}

#[tokio::test(start_paused = true)]
async fn only_the_slowest_of_those_that_block_wakes_the_writer() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut cursors: Vec<_> = (0..10).map(|_| broadcaster.subscribe(live(everything(), queue(Block, 2)))).collect();
    let mut world = World::at(0);
    prove(&mut broadcaster, &mut world, 2, &mut cursors.iter_mut().collect::<Vec<_>>());
    broadcaster.publish(&world.several(2));
    let mut ready = tokio_test::task::spawn(broadcaster.ready());
    tokio_test::assert_pending!(ready.poll());
    for cursor in &mut cursors[1..] {
        take(cursor, 9);
        assert!(!ready.is_woken());
    }
    take(&mut cursors[0], 9);
    assert!(ready.is_woken());
    tokio_test::assert_ready!(ready.poll());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_spends_its_budget_is_evicted_and_the_others_keep_everything() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut slow = broadcaster.subscribe(live(everything(), queue(Block, 2)));
    let mut other = broadcaster.subscribe(live(everything(), queue(Block, 10)));
    let mut world = World::at(0);
    prove(&mut broadcaster, &mut world, 2, &mut [&mut slow, &mut other]);
    broadcaster.publish(&world.several(1));
    assert_eq!(drain(&mut slow), modified([3]));
    broadcaster.publish(&world.several(2));

    let flag = Arc::new(Flag::default());
    let started = Instant::now();
    broadcaster.ready().await;
    assert_eq!(started.elapsed(), Duration::from_secs(5));
    assert!(!broadcaster.is_blocked());
    assert_eq!(broadcaster.stats().evicted.load(Ordering::Relaxed), 1);
    assert_eq!(broadcaster.stats().blocked_micros.load(Ordering::Relaxed), 5_000_000);
    assert_eq!(drain(&mut slow), [Ended(End::SlowConsumer)], "its queue is discarded");
    assert_eq!(slow.version(), &version(3), "the last that it was handed");

    broadcaster.publish(&world.several(2));
    assert!(!broadcaster.is_blocked(), "it holds nobody back any more");
    assert_eq!(drain(&mut other), modified(3..=7));
    let waker = Waker::from(Arc::clone(&flag));
    assert!(slow.poll_take(&mut Context::from_waker(&waker), 1).is_ready());
}

#[tokio::test(start_paused = true)]
async fn the_budget_of_a_client_adds_up_and_is_refilled_at_a_tenth_of_wall_time() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut cursor = broadcaster.subscribe(live(everything(), queue(Block, 1)));
    let mut world = World::at(0);
    prove(&mut broadcaster, &mut world, 1, &mut [&mut cursor]);
    // 3 s of 5 s, then 10 s of rest, which refill 1 s: 3 s remain.
    broadcaster.publish(&world.several(1));
    assert!(tokio::time::timeout(Duration::from_secs(3), broadcaster.ready()).await.is_err());
    drain(&mut cursor);
    broadcaster.ready().await;
    tokio::time::advance(Duration::from_secs(10)).await;

    broadcaster.publish(&world.several(1));
    let started = Instant::now();
    broadcaster.ready().await;
    assert_eq!(started.elapsed(), Duration::from_secs(3));
    assert_eq!(drain(&mut cursor), [Ended(End::SlowConsumer)]);
}

#[tokio::test(start_paused = true)]
async fn a_spent_budget_of_the_resource_ends_no_client_for_the_waits_of_others() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut world = World::at(0);
    let mut first = broadcaster.subscribe(live(everything(), queue(Block, 1)));
    let mut second = broadcaster.subscribe(live(everything(), queue(Block, 1)));
    prove(&mut broadcaster, &mut world, 1, &mut [&mut first, &mut second]);
    broadcaster.publish(&world.several(1));
    drain(&mut second);
    assert!(tokio::time::timeout(Duration::from_secs(4), broadcaster.ready()).await.is_err());
    drain(&mut first);
    broadcaster.ready().await;
    // One second of the resource's budget is left, and all of the second client's.
    broadcaster.publish(&world.several(1));
    drain(&mut first);
    assert_eq!(waits(&mut broadcaster).await, Duration::from_secs(1));
    for _ in 0..3 {
        broadcaster.publish(&world.several(1));
        drain(&mut first);
        assert!(!broadcaster.is_blocked(), "nothing is left for it");
    }
    assert_eq!(drain(&mut second), modified(3..=6), "it is served as under REPLAY");
    assert_eq!(broadcaster.stats().evicted.load(Ordering::Relaxed), 0);
    assert_eq!(broadcaster.stats().blocked_micros.load(Ordering::Relaxed), 5_000_000);
}

/// Found by `cargo bench --bench load -- stopped --policy block`: a stopped client spent the budget of all, and in the
/// burst after it every client whose queue was full for a moment was ended at once.
#[tokio::test(start_paused = true)]
async fn a_briefly_full_client_stays_though_others_have_spent_the_budget() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut world = World::at(0);
    let mut healthy = broadcaster.subscribe(live(everything(), queue(Block, 2)));
    let mut stopped = broadcaster.subscribe(live(everything(), queue(Block, 1)));
    prove(&mut broadcaster, &mut world, 2, &mut [&mut healthy, &mut stopped]);
    broadcaster.publish(&world.several(1));
    broadcaster.ready().await;
    assert_eq!(drain(&mut stopped), [Ended(End::SlowConsumer)]);
    broadcaster.publish(&world.several(9));
    assert!(!broadcaster.is_blocked(), "nothing is left");
    assert_eq!(drain(&mut healthy), modified(3..=12));
    // 10 s refill one second, for the healthy client too: it has read its queue since.
    tokio::time::advance(Duration::from_secs(10)).await;
    broadcaster.publish(&world.several(2));
    assert_eq!(waits(&mut broadcaster).await, Duration::from_secs(1));
    assert_eq!(drain(&mut healthy), modified(13..=14), "most of its own is left");
}

#[tokio::test(start_paused = true)]
async fn the_writer_waits_only_for_clients_that_have_read_their_queue_since_joining() {
    for length in [0, 1, 3] {
        let mut broadcaster = broadcaster::<Deliveries>(0);
        let mut world = World::at(0);
        let mut cursor = broadcaster.subscribe(live(everything(), queue(Block, length)));
        broadcaster.publish(&world.several(9));
        assert!(!broadcaster.is_blocked(), "{length}: it has read nothing");
        let events = length.max(1);
        for _ in 1..events {
            take(&mut cursor, 1);
            broadcaster.publish(&world.several(1));
            assert!(!broadcaster.is_blocked(), "{length}: it has not read enough");
        }
        take(&mut cursor, 1);
        broadcaster.publish(&world.several(1));
        assert!(broadcaster.is_blocked(), "{length}: it has, and its queue is full");
        assert_eq!(waits(&mut broadcaster).await, Duration::from_secs(5));
        assert_eq!(drain(&mut cursor), [Ended(End::SlowConsumer)]);

        // A client with initial events starts to count once they are delivered.
        let initial = Subscribe { initial_events: true, ..live(everything(), queue(Block, length)) };
        let mut late = broadcaster.subscribe(initial);
        tokio::time::advance(Duration::from_secs(60)).await;
        broadcaster.publish(&world.several(events));
        late.go_live();
        assert!(!broadcaster.is_blocked());
        assert_eq!(drain(&mut late).len(), events);
        broadcaster.publish(&world.several(events));
        assert!(broadcaster.is_blocked());
    }
}

#[tokio::test(start_paused = true)]
async fn an_evicted_client_returns_to_its_remaining_budget() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut world = World::at(0);
    let mut first = broadcaster.subscribe(of(1, queue(Block, 1)));
    prove(&mut broadcaster, &mut world, 1, &mut [&mut first]);
    broadcaster.publish(&world.several(1));
    assert_eq!(waits(&mut broadcaster).await, Duration::from_secs(5));
    assert_eq!(drain(&mut first), [Ended(End::SlowConsumer)]);
    drop(first);
    broadcaster.sweep();
    tokio::time::advance(Duration::from_secs(10)).await;

    let mut again = broadcaster.subscribe(of(1, queue(Block, 1)));
    let mut other = broadcaster.subscribe(of(2, queue(Block, 1)));
    prove(&mut broadcaster, &mut world, 1, &mut [&mut again, &mut other]);
    broadcaster.publish(&world.several(1));
    assert_eq!(waits(&mut broadcaster).await, Duration::from_secs(1), "for what was earned");
    assert_eq!(drain(&mut again), [Ended(End::SlowConsumer)]);
    assert_eq!(drain(&mut other).len(), 1, "another client has most of its own");
}

/// Attack by watches that read nothing, and a worse one, in which every watch reads just enough that the writer waits for
/// it.
#[tokio::test(start_paused = true)]
async fn twenty_calls_a_second_for_a_minute_hold_a_resource_for_no_more_than_eleven_seconds() {
    const STEP: Duration = Duration::from_millis(5);
    for (reads, clients, expected) in [(false, 1, 0), (true, 1, 9_900), (true, 1_000, 9_900)] {
        let mut broadcaster = broadcaster::<Deliveries>(0);
        let mut world = World::at(0);
        let mut open = VecDeque::new();
        let began = Instant::now();
        let mut calls = 0;
        while began.elapsed() < Duration::from_secs(60) {
            if calls * 50 <= began.elapsed().as_millis() {
                calls += 1;
                open.push_back((Instant::now(), broadcaster.subscribe(of(calls as u32 % clients, queue(Block, 1)))));
                if open.front().is_some_and(|(since, _)| since.elapsed() > Duration::from_secs(2)) {
                    open.pop_front();
                }
            }
            if !broadcaster.is_blocked() {
                broadcaster.publish(&world.several(1));
                // Every watch reads one event, and then none.
                for (_, cursor) in open.iter_mut().filter(|(_, cursor)| reads && cursor.taken() == 0) {
                    take(cursor, 1);
                }
            }
            drop(tokio::time::timeout(STEP, broadcaster.ready()).await);
            tokio::time::sleep_until(Instant::now() + STEP).await;
        }
        let blocked = broadcaster.stats().blocked_micros.load(Ordering::Relaxed) / 1000;
        assert!(
            blocked <= 11_000 && blocked >= expected,
            "{clients} clients held it for {blocked} ms, reading: {reads}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_rewritten_history_refills_no_budget() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut world = World::at(0);
    let mut cursor = broadcaster.subscribe(of(1, queue(Block, 1)));
    prove(&mut broadcaster, &mut world, 1, &mut [&mut cursor]);
    broadcaster.publish(&world.several(1));
    assert!(tokio::time::timeout(Duration::from_secs(3), broadcaster.ready()).await.is_err());
    rewrite(&mut broadcaster, 10);
    assert!(!broadcaster.is_blocked(), "a queue of before holds nobody back");
    tokio::time::advance(Duration::from_secs(10)).await;
    drop(cursor);
    let (mut world, mut cursor) = (World::at(10), broadcaster.subscribe(of(1, queue(Block, 1))));
    prove(&mut broadcaster, &mut world, 1, &mut [&mut cursor]);
    broadcaster.publish(&world.several(1));
    assert_eq!(waits(&mut broadcaster).await, Duration::from_secs(3), "of 5 s 3 were spent, and 1 was earned");
    assert_eq!(drain(&mut cursor), [Ended(End::SlowConsumer)]);
}

/// Changes of other selections fill no queue, also if they are more than its length.
#[test]
fn a_queue_is_full_by_its_own_events_only() {
    let db = |world: &mut World| world.one("c", "db");
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut block = broadcaster.subscribe(live(app("web"), queue(Block, 3)));
    let mut world = World::at(0);
    prove(&mut broadcaster, &mut world, 3, &mut [&mut block]);
    for _ in 0..10 {
        broadcaster.publish(&[db(&mut world)]);
    }
    for _ in 0..2 {
        broadcaster.publish(&world.several(1));
        for _ in 0..10 {
            broadcaster.publish(&[db(&mut world)]);
            assert!(!broadcaster.is_blocked());
        }
    }
    broadcaster.publish(&world.several(1));
    assert!(broadcaster.is_blocked());
    assert_eq!(take(&mut block, 1).len(), 1);
    assert!(broadcaster.is_blocked(), "two of three are left");
    assert_eq!(take(&mut block, 1).len(), 1);
    assert!(!broadcaster.is_blocked());
}

#[tokio::test(start_paused = true)]
async fn a_client_that_made_room_is_not_charged_for_the_slower_ones() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut world = World::at(0);
    let mut quick = broadcaster.subscribe(live(everything(), queue(Block, 1)));
    let mut slow = broadcaster.subscribe(live(everything(), queue(Block, 1)));
    prove(&mut broadcaster, &mut world, 1, &mut [&mut quick, &mut slow]);
    broadcaster.publish(&world.several(1));
    drain(&mut quick);
    broadcaster.ready().await;
    assert_eq!(drain(&mut slow), [Ended(End::SlowConsumer)]);

    // The resource's budget is refilled in 50 s; the quick client's was never used, or it would be ended sooner.
    tokio::time::advance(Duration::from_secs(50)).await;
    broadcaster.publish(&world.several(1));
    assert_eq!(waits(&mut broadcaster).await, Duration::from_secs(5));
    assert_eq!(drain(&mut quick), [Ended(End::SlowConsumer)]);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_slow_client_releases_the_writer_and_subscribing_works_meanwhile() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut slow = broadcaster.subscribe(live(everything(), queue(Block, 1)));
    let mut world = World::at(0);
    prove(&mut broadcaster, &mut world, 1, &mut [&mut slow]);
    broadcaster.publish(&world.several(1));
    assert!(broadcaster.is_blocked());
    let mut late = broadcaster.subscribe(live(everything(), queue(Block, 1)));
    assert_eq!(late.version(), &version(2));
    let started = Instant::now();
    {
        let mut ready = tokio_test::task::spawn(broadcaster.ready());
        tokio_test::assert_pending!(ready.poll());
        drop(slow);
        assert!(ready.is_woken());
        tokio_test::assert_ready!(ready.poll());
    }
    assert_eq!(started.elapsed(), Duration::ZERO);
    broadcaster.publish(&world.several(1));
    assert_eq!(drain(&mut late), modified([3]));
}

#[tokio::test(start_paused = true)]
async fn a_reused_slot_is_not_mistaken_for_the_one_that_blocked() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut slow = broadcaster.subscribe(live(everything(), queue(Block, 1)));
    let mut world = World::at(0);
    prove(&mut broadcaster, &mut world, 1, &mut [&mut slow]);
    broadcaster.publish(&world.several(1));
    drop(slow);
    let mut reuses = broadcaster.subscribe(live(everything(), queue(Block, 1)));
    broadcaster.ready().await;
    assert!(!broadcaster.is_blocked());
    broadcaster.publish(&world.several(1));
    assert_eq!(drain(&mut reuses), modified([3]));
}

/// Once the writer has the list of the queues, and before it looks at this one.
#[tokio::test(start_paused = true)]
async fn a_client_that_is_dropped_while_the_writer_looks_at_the_queues_holds_nobody_back() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut cursor = broadcaster.subscribe(live(everything(), queue(Block, 2)));
    let mut world = World::at(0);
    prove(&mut broadcaster, &mut world, 2, &mut [&mut cursor]);
    broadcaster.publish(&world.several(1));
    let queues = broadcaster.cursors.queues();
    drop(cursor);
    broadcaster.publish(&world.several(1));
    let head = broadcaster.reached().offset;
    for queue in queues {
        queue.fill(head, Duration::from_secs(5), Instant::now());
    }
    assert!(!broadcaster.is_blocked());
}

/// One that a thread counts, which the writer waits for meanwhile.
#[tokio::test(start_paused = true)]
async fn the_writer_still_waits_for_a_queue_that_a_thread_has_found_full() {
    for events in [2, 3] {
        let threads = BulkThreads::manual(Arc::default());
        let mut broadcaster = broadcaster::<Text>(0).deferring_to(Some(&threads));
        let subscribe = Subscribe { format: Letter('p'), ..live(app("web"), queue(Block, 3)) };
        let mut cursor = broadcaster.subscribe(subscribe);
        let mut world = World::at(0);
        let mut take = || {
            let cx = &mut Context::from_waker(Waker::noop());
            let is_ready =
                |cursor: &mut Cursor<Text>, cx: &mut Context<'_>| cursor.poll_take(cx, usize::MAX).is_ready();
            while is_ready(&mut cursor, cx) || threads.run_one() {}
        };
        broadcaster.publish(&world.several(3));
        take();
        broadcaster.publish(&world.several(events));
        broadcaster.publish(&[world.one("b", "db"), world.one("c", "db")]);
        assert!(broadcaster.is_blocked(), "it is not counted yet");
        while threads.run_one() {}
        assert_eq!(broadcaster.is_blocked(), events == 3);
        take();
        assert!(!broadcaster.is_blocked());
    }
}

#[tokio::test(start_paused = true)]
async fn the_time_in_a_queue_is_that_since_the_first_event_taken() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut cursor = broadcaster.subscribe(live(everything(), queue(Block, 100)));
    let mut world = World::at(0);
    for _ in 0..2 {
        broadcaster.publish(&world.several(8));
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    assert_eq!(drain(&mut cursor).len(), 16);
    assert!((broadcaster.stats().queued.sum() - 2.0).abs() < 1e-6);
}

/// The reader reads on while a thread counts, so that the writer goes on, and waits again for what it publishes.
#[cfg(feature = "cel")]
#[test]
fn what_is_published_while_a_thread_counts_is_counted_too() {
    let threads = BulkThreads::manual(Arc::default());
    let mut broadcaster =
        Broadcaster::<Deliveries>::new(BroadcasterConfig::default(), version(0)).deferring_to(Some(&threads));
    let expression = crate::model::Expression::parse("false").unwrap();
    let selection = Arc::new(Selection { expression: Some(expression), ..Selection::default() });
    let _cursor = broadcaster.subscribe(live(selection, queue(Block, 2)));
    let reader = broadcaster.cursors.queues().remove(0);
    let mut world = World::at(0);
    let reads = |offset: u64, events| {
        let position = ReplayPosition { version: version(offset.into()), offset, is_gap: false };
        reader.note_read(&position, events, 0);
    };
    broadcaster.publish(&world.several(2));
    reads(2, 2);
    broadcaster.publish(&world.several(2));
    assert!(broadcaster.is_blocked(), "nobody knows if they are events");
    let mut has_published = false;
    let is_over = || {
        if !std::mem::replace(&mut has_published, true) {
            reads(4, 0);
            assert!(!broadcaster.is_blocked());
            broadcaster.publish(&world.several(2));
            assert!(broadcaster.is_blocked());
        }
        false
    };
    assert!(reader.work(is_over), "there is more to count");
    while threads.run_one() {}
    assert!(!reader.work(|| false));
    assert!(!broadcaster.is_blocked(), "none of them is an event");
}
