//! apimachinery's tests of `watch.Broadcaster`, and cases that upstream does not test.

use std::time::Duration;

use super::*;

const BLOCK_UNBUFFERED: QueueOptions = queue(FullChannelPolicy::Block, 0);

async fn publish_each(broadcaster: &mut Broadcaster<Deliveries>, batches: &[Batch]) {
    for batch in batches {
        broadcaster.ready().await;
        broadcaster.publish(std::slice::from_ref(batch));
    }
}

/// Returns the four events of `TestBroadcaster`.
fn table() -> (Vec<Batch>, Vec<Item>) {
    let mut world = World::at(0);
    let batches = vec![
        world.one("foo", "hello world 1"),
        world.one("bar", "hello world 2"),
        world.one("foo", "goodbye world 3"),
        world.batch(|world| vec![world.delete("bar")]),
    ];
    let items = vec![
        event(EventType::Added, "foo", 1),
        event(EventType::Added, "bar", 2),
        event(EventType::Modified, "foo", 3),
        event(EventType::Deleted, "bar", 4),
    ];
    (batches, items)
}

/// `TestBroadcaster`.
#[tokio::test(start_paused = true)]
async fn every_watcher_gets_every_event_in_order() {
    let mut broadcaster = broadcaster(0);
    let readers: Vec<_> = (0..2)
        .map(|_| tokio::spawn(read_to_end(broadcaster.subscribe(live(everything(), BLOCK_UNBUFFERED)), 1)))
        .collect();
    let (batches, mut expected) = table();
    publish_each(&mut broadcaster, &batches).await;
    broadcaster.stop();
    expected.push(Ended(End::Stopped));
    for reader in readers {
        assert_eq!(reader.await.unwrap(), expected);
    }
}

/// `TestBroadcasterWatcherClose`.
#[test]
fn a_watcher_that_has_gone_and_one_that_was_stopped_are_both_closed() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let gone = broadcaster.subscribe(live(everything(), BLOCK_UNBUFFERED));
    let mut stopped = broadcaster.subscribe(live(everything(), BLOCK_UNBUFFERED));
    drop(gone);
    broadcaster.stop();
    broadcaster.stop();
    assert_eq!(drain(&mut stopped), [Ended(End::Stopped)]);
    assert_eq!(drain(&mut stopped), [Ended(End::Stopped)], "and stays so");
    assert_eq!(broadcaster.stats().watchers.load(Ordering::Relaxed), 1);
    drop(broadcaster);
    assert_eq!(drain(&mut stopped), [Ended(End::Stopped)]);
}

/// `TestBroadcasterWatcherStopDeadlock`.
#[tokio::test(start_paused = true)]
async fn a_watcher_that_stops_the_other_when_it_gets_the_event_does_not_deadlock_the_writer() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut first = broadcaster.subscribe(live(everything(), BLOCK_UNBUFFERED));
    let mut second = broadcaster.subscribe(live(everything(), BLOCK_UNBUFFERED));
    let mut world = World::at(0);
    // The writer waits for watchers that have read something.
    broadcaster.publish(&world.several(1));
    assert_eq!((drain(&mut first), drain(&mut second)), (modified([1]), modified([1])));
    let started = tokio::time::Instant::now();
    let receiver = tokio::spawn(async move {
        tokio::select! {
            taken = first.take(1) => { drop(second); items(taken) }
            taken = second.take(1) => { drop(first); items(taken) }
        }
    });
    tokio::task::yield_now().await;
    broadcaster.publish(&world.several(1));
    assert!(broadcaster.is_blocked());
    broadcaster.ready().await;
    assert_eq!(receiver.await.unwrap(), modified([2]));
    broadcaster.publish(&World::at(1).several(1));
    assert!(!broadcaster.is_blocked(), "nobody is left");
    assert_eq!(started.elapsed(), Duration::ZERO);
}

/// `TestBroadcasterDropIfChannelFull`, where upstream drops events silently.
#[test]
fn events_for_a_full_queue_are_dropped_and_announced() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut cursors = [(); 2].map(|()| broadcaster.subscribe(live(everything(), queue(FullChannelPolicy::Drop, 1))));
    for batch in World::at(0).several(2) {
        broadcaster.publish(&[batch]);
    }
    broadcaster.stop();
    for cursor in &mut cursors {
        assert_eq!(drain(cursor), [modified([1]), vec![Dropped(1, 1), Ended(End::Stopped)]].concat());
    }
}

/// `TestBroadcasterWatchAfterShutdown`, `TestBroadcasterSendEventAfterShutdown`.
#[test]
fn after_the_end_watches_end_at_once_and_events_are_ignored() {
    let mut broadcaster = broadcaster::<Deliveries>(7);
    let mut before = broadcaster.subscribe(live(everything(), BLOCK_UNBUFFERED));
    broadcaster.stop();
    let mut after = broadcaster.subscribe(live(everything(), BLOCK_UNBUFFERED));
    let mut selective = broadcaster.subscribe(live(app("web"), queue(FullChannelPolicy::Drop, 1)));
    broadcaster.publish(&World::at(7).several(3));
    assert!(!broadcaster.is_blocked());
    assert_eq!(broadcaster.version(), version(7));
    for cursor in [&mut before, &mut after, &mut selective] {
        assert_eq!(drain(cursor), [Ended(End::Stopped)]);
        assert_eq!(cursor.version(), &version(7));
    }
}

/// `TestBroadcasterShutdownRace`.
#[test]
fn watchers_may_go_while_the_broadcaster_stops() {
    for _ in 0..50 {
        let mut broadcaster = broadcaster::<Deliveries>(0);
        let mut cursors: Vec<_> = (0..8).map(|_| broadcaster.subscribe(live(everything(), BLOCK_UNBUFFERED))).collect();
        std::thread::scope(|scope| {
            for mut cursor in cursors.drain(..) {
                scope.spawn(move || {
                    take(&mut cursor, 1);
                    drop(cursor);
                });
            }
            broadcaster.publish(&World::at(0).several(1));
            broadcaster.stop();
            broadcaster.sweep();
        });
        assert_eq!(broadcaster.stats().watchers.load(Ordering::Relaxed), 0);
        broadcaster.sweep();
        assert_eq!(broadcaster.stats().groups.load(Ordering::Relaxed), 0);
    }
}

#[test]
fn a_watcher_that_joins_between_two_events_sees_the_second_first() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let _early = broadcaster.subscribe(live(everything(), queue(FullChannelPolicy::Replay, 1)));
    let mut world = World::at(0);
    broadcaster.publish(&world.several(3));
    let mut same_group = broadcaster.subscribe(live(everything(), queue(FullChannelPolicy::Replay, 1)));
    let mut new_group = broadcaster.subscribe(live(app("web"), queue(FullChannelPolicy::Replay, 1)));
    assert_eq!((same_group.version(), new_group.version()), (&version(3), &version(3)));
    broadcaster.publish(&world.several(1));
    assert_eq!(drain(&mut same_group), modified([4]));
    assert_eq!(drain(&mut new_group), modified([4]));
}

#[tokio::test(start_paused = true)]
async fn a_stuck_watcher_under_drop_or_replay_never_delays_another() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let _stuck = [FullChannelPolicy::Drop, FullChannelPolicy::Replay]
        .map(|policy| broadcaster.subscribe(live(everything(), queue(policy, 1))));
    let mut fast = broadcaster.subscribe(live(everything(), queue(FullChannelPolicy::Block, 1)));
    let started = tokio::time::Instant::now();
    let mut world = World::at(0);
    for number in 1..=500 {
        broadcaster.publish(&world.several(1));
        assert_eq!(drain(&mut fast), modified([number]));
        broadcaster.ready().await;
    }
    assert_eq!(started.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn blocking_loses_nothing_whatever_the_pace_of_the_readers() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let readers: Vec<_> = (0..6_usize)
        .map(|at| {
            let mut cursor = broadcaster.subscribe(live(everything(), queue(FullChannelPolicy::Block, at)));
            tokio::spawn(async move {
                let mut all = Vec::new();
                while !matches!(all.last(), Some(Ended(_))) {
                    all.extend(items(cursor.take(1 + at % 2).await));
                    for _ in 0..at {
                        tokio::task::yield_now().await;
                    }
                }
                all
            })
        })
        .collect();
    let batches = World::at(0).several(300);
    // The writer waits for watchers that have read their queues.
    for batch in &batches[..10] {
        broadcaster.publish(std::slice::from_ref(batch));
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
    }
    publish_each(&mut broadcaster, &batches[10..]).await;
    broadcaster.stop();
    for reader in readers {
        assert_eq!(reader.await.unwrap(), [modified(1..=300), vec![Ended(End::Stopped)]].concat());
    }
}
