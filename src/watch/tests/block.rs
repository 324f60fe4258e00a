//! What BLOCK makes the writer wait for, for how long, and who pays.

use std::time::Duration;

use FullChannelPolicy::{Block, Replay};
use tokio::time::Instant;

use super::*;

#[tokio::test(start_paused = true)]
async fn the_writer_waits_at_the_length_and_goes_on_at_half() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut cursor = broadcaster.subscribe(live(everything(), queue(Block, 4)));
    let mut world = World::at(0);
    for _ in 0..3 {
        broadcaster.publish(&world.several(1));
        assert!(!broadcaster.is_blocked());
    }
    broadcaster.publish(&world.several(1));
    assert!(broadcaster.is_blocked());
    let mut ready = tokio_test::task::spawn(broadcaster.ready());
    tokio_test::assert_pending!(ready.poll());
    assert_eq!(take(&mut cursor, 1), modified([1]));
    assert!(!ready.is_woken(), "three of four are still there");
    assert_eq!(take(&mut cursor, 1), modified([2]));
    assert!(ready.is_woken());
    tokio_test::assert_ready!(ready.poll());
    drop(ready);
    assert!(!broadcaster.is_blocked());
    assert_eq!(drain(&mut cursor), modified([3, 4]));
}

#[tokio::test(start_paused = true)]
async fn only_the_slowest_of_those_that_block_wakes_the_writer() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut cursors: Vec<_> = (0..10).map(|_| broadcaster.subscribe(live(everything(), queue(Block, 2)))).collect();
    broadcaster.publish(&World::at(0).several(2));
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
    broadcaster.publish(&world.several(1));
    assert_eq!(drain(&mut slow), modified([1]));
    broadcaster.publish(&world.several(2));

    let flag = Arc::new(Flag::default());
    let started = Instant::now();
    broadcaster.ready().await;
    assert_eq!(started.elapsed(), Duration::from_secs(5));
    assert!(!broadcaster.is_blocked());
    assert_eq!(broadcaster.stats().evicted.load(Ordering::Relaxed), 1);
    assert_eq!(broadcaster.stats().blocked_micros.load(Ordering::Relaxed), 5_000_000);
    assert_eq!(drain(&mut slow), [Ended(End::SlowConsumer)], "its queue is discarded");
    assert_eq!(slow.version(), &version(1), "the last that it was handed");

    broadcaster.publish(&world.several(2));
    assert!(!broadcaster.is_blocked(), "it holds nobody back any more");
    assert_eq!(drain(&mut other), modified(1..=5));
    let waker = Waker::from(Arc::clone(&flag));
    assert!(slow.poll_take(&mut Context::from_waker(&waker), 1).is_ready());
}

#[tokio::test(start_paused = true)]
async fn the_budget_of_a_client_adds_up_and_is_refilled_at_a_tenth_of_wall_time() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut cursor = broadcaster.subscribe(live(everything(), queue(Block, 1)));
    let mut world = World::at(0);
    // 3 s of 5 s, then 10 s of rest, which give 1 s back: 3 s remain.
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
async fn the_budget_of_the_resource_ends_whoever_blocks_when_it_is_spent() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut world = World::at(0);
    let mut first = broadcaster.subscribe(live(everything(), queue(Block, 1)));
    broadcaster.publish(&world.several(1));
    assert!(tokio::time::timeout(Duration::from_secs(4), broadcaster.ready()).await.is_err());
    drain(&mut first);
    broadcaster.ready().await;
    // A client with a budget of its own that is full: of the resource's, one second is left.
    let mut second = broadcaster.subscribe(live(app("web"), queue(Block, 1)));
    broadcaster.publish(&world.several(1));
    drain(&mut first);
    let started = Instant::now();
    broadcaster.ready().await;
    assert_eq!(started.elapsed(), Duration::from_secs(1));
    assert_eq!(drain(&mut second), [Ended(End::SlowConsumer)]);
    broadcaster.publish(&world.several(1));
    assert_eq!(drain(&mut first), modified([3]), "it has room, and stays");
}

/// Found by `informerd bench stopped --policy block`: a stopped client spent the budget of all, and in the burst after it
/// whoever was full for a moment was ended at once.
#[tokio::test(start_paused = true)]
async fn who_is_full_for_a_moment_stays_though_others_have_spent_the_budget() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut world = World::at(0);
    let mut healthy = broadcaster.subscribe(live(everything(), queue(Block, 2)));
    let mut stopped = broadcaster.subscribe(live(everything(), queue(Block, 1)));
    broadcaster.publish(&world.several(1));
    broadcaster.ready().await;
    assert_eq!(drain(&mut stopped), [Ended(End::SlowConsumer)]);
    broadcaster.publish(&world.several(1));
    assert!(tokio::time::timeout(Duration::from_millis(499), broadcaster.ready()).await.is_err());
    assert_eq!(drain(&mut healthy), modified([1, 2]));
    broadcaster.ready().await;
    broadcaster.publish(&world.several(2));
    let started = Instant::now();
    broadcaster.ready().await;
    assert_eq!(started.elapsed(), Duration::from_millis(500), "not for long");
    assert_eq!(drain(&mut healthy), [Ended(End::SlowConsumer)]);
}

/// Found by `informerd bench w3`: of much that is published, little is such a client's, so it never holds the writer back.
#[test]
fn what_is_queued_under_block_is_kept_past_the_retention() {
    let retention = Retention { events: 4, ..BroadcasterConfig::default().retention };
    let db = |world: &mut World| world.one("c", "db");
    let config = BroadcasterConfig { retention, ..BroadcasterConfig::default() };
    let mut broadcaster = Broadcaster::<Deliveries>::new(config, version(0));
    let mut block = broadcaster.subscribe(live(app("web"), queue(Block, 3)));
    let mut replay = broadcaster.subscribe(live(app("web"), queue(Replay, 3)));
    let mut world = World::at(0);
    broadcaster.publish(&world.several(1));
    for _ in 0..6 {
        broadcaster.publish(&[db(&mut world)]);
    }
    broadcaster.publish(&world.several(1));
    assert!(!broadcaster.is_blocked());
    assert_eq!(drain(&mut block), modified([1, 8]));
    for _ in 0..6 {
        broadcaster.publish(&[db(&mut world)]);
    }
    broadcaster.sweep();
    assert_eq!(drain(&mut replay), [Parked], "once its neighbour needs it no more");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_made_room_is_not_charged_for_the_slower_ones() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut world = World::at(0);
    let mut quick = broadcaster.subscribe(live(everything(), queue(Block, 1)));
    broadcaster.publish(&world.several(1));
    let mut slow = broadcaster.subscribe(live(everything(), queue(Block, 1)));
    drain(&mut quick);
    broadcaster.ready().await;
    broadcaster.publish(&world.several(1));
    drain(&mut quick);
    broadcaster.ready().await;
    assert_eq!(drain(&mut slow), [Ended(End::SlowConsumer)]);

    // The resource's budget is refilled in 50 s; the quick one's was never touched, or the next wait would end sooner.
    tokio::time::advance(Duration::from_secs(50)).await;
    broadcaster.publish(&world.several(1));
    let started = Instant::now();
    broadcaster.ready().await;
    assert_eq!(started.elapsed(), Duration::from_secs(5));
    assert_eq!(drain(&mut quick), [Ended(End::SlowConsumer)]);
}

#[tokio::test(start_paused = true)]
async fn dropping_the_slow_client_lets_the_writer_go_and_subscribing_goes_on_meanwhile() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let slow = broadcaster.subscribe(live(everything(), queue(Block, 1)));
    let mut world = World::at(0);
    broadcaster.publish(&world.several(1));
    assert!(broadcaster.is_blocked());
    let mut late = broadcaster.subscribe(live(everything(), queue(Block, 1)));
    assert_eq!(late.version(), &version(1));
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
    assert_eq!(drain(&mut late), modified([2]));
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_is_used_again_is_not_taken_for_the_one_that_blocked() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let slow = broadcaster.subscribe(live(everything(), queue(Block, 1)));
    let mut world = World::at(0);
    broadcaster.publish(&world.several(1));
    drop(slow);
    let mut reuses = broadcaster.subscribe(live(everything(), queue(Block, 1)));
    broadcaster.ready().await;
    assert!(!broadcaster.is_blocked());
    broadcaster.publish(&world.several(1));
    assert_eq!(drain(&mut reuses), modified([2]));
}
