//! Real threads: no wake-up is lost, and nothing accumulates.

use std::time::Duration;

use super::*;

const EVENTS: usize = 50_000;
const DEADLINE: Duration = Duration::from_secs(60);

/// Reads versions until the end; panics if one is missing.
async fn count(mut cursor: Cursor<Deliveries>, max_size: usize) -> usize {
    let mut reached = 0;
    let mut events = 0;
    loop {
        match cursor.take(max_size).await {
            Taken::Frames(frames) => {
                for delivery in frames.iter().flat_map(Deliveries::as_slice) {
                    assert!(delivery.version.number() > reached);
                    reached = delivery.version.number();
                    events += 1;
                }
            }
            Taken::Ended(End::Stopped) => return events,
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn no_event_and_no_wake_up_is_lost_between_threads() {
    let retention = Retention { size: usize::MAX, ..BroadcasterConfig::default().retention };
    let config = BroadcasterConfig { retention, block_timeout: DEADLINE, ..BroadcasterConfig::default() };
    let mut broadcaster = Broadcaster::<Deliveries>::new(config, version(0));
    let policies = [
        queue(FullChannelPolicy::Block, 1),
        queue(FullChannelPolicy::Block, 100),
        queue(FullChannelPolicy::Replay, 10),
    ];
    let mut readers = Vec::new();
    for (at, queue) in policies.into_iter().cycle().take(12).enumerate() {
        let (selection, expected) = if at % 2 == 0 { (everything(), EVENTS) } else { (app("web"), EVENTS / 2) };
        readers.push((tokio::spawn(count(broadcaster.subscribe(live(selection, queue)), 1 + at * 20)), expected));
    }
    let writer = tokio::spawn(async move {
        let mut world = World::at(0);
        let mut left = EVENTS;
        while left > 0 {
            broadcaster.ready().await;
            let count = left.min(1 + left % 7);
            let batches: Vec<_> = (0..count)
                .map(|_| {
                    let number = world.version;
                    let app = if number.is_multiple_of(2) { "web" } else { "db" };
                    world.one(&number.to_string(), app)
                })
                .collect();
            world.objects.clear();
            broadcaster.publish(&batches);
            left -= count;
        }
        broadcaster.stop();
        broadcaster
    });
    let broadcaster = tokio::time::timeout(DEADLINE, writer).await.expect("the writer is woken").unwrap();
    for (reader, expected) in readers {
        let events = tokio::time::timeout(DEADLINE, reader).await.expect("every reader is woken").unwrap();
        assert_eq!(events, expected);
    }
    assert_eq!(broadcaster.stats().watchers.load(Ordering::Relaxed), 0);
    // Two cursors at the same position may encode it at the same time.
    assert!(broadcaster.stats().encoded.load(Ordering::Relaxed) <= 3 * EVENTS as u64);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn watchers_that_join_and_leave_under_load_affect_no_other() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let steady =
        tokio::spawn(count(broadcaster.subscribe(live(everything(), queue(FullChannelPolicy::Replay, 1))), 64));
    let mut world = World::at(0);
    let mut visitors = Vec::new();
    for number in 0..3000_u32 {
        let policy = if number.is_multiple_of(2) { FullChannelPolicy::Block } else { FullChannelPolicy::Drop };
        let mut cursor = broadcaster.subscribe(live(everything(), queue(policy, (number % 4) as usize)));
        visitors.push(tokio::spawn(async move {
            for _ in 0..number % 5 {
                cursor.take(1).await;
            }
        }));
        broadcaster.ready().await;
        broadcaster.publish(&world.several(1));
    }
    broadcaster.stop();
    for visitor in visitors {
        tokio::time::timeout(DEADLINE, visitor).await.expect("nobody hangs").unwrap();
    }
    let events = tokio::time::timeout(DEADLINE, steady).await.expect("nobody hangs").unwrap();
    assert_eq!(events, 3000);
    assert_eq!(broadcaster.stats().watchers.load(Ordering::Relaxed), 0);
}
