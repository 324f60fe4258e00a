//! Ends: what the writer and the readers do once a queue, its history or the broadcaster has ended.

use FullChannelPolicy::{Block, Drop, Replay};

use super::*;
use crate::watch::Client;

const FEW: Retention = Retention { events: 3, size: usize::MAX, age: std::time::Duration::MAX };

fn few<F: Frame>() -> Broadcaster<F> {
    Broadcaster::new(BroadcasterConfig { retention: FEW, ..BroadcasterConfig::default() }, version(0))
}

/// Reads all lines, with the work of the threads.
fn read(cursor: &mut Cursor<Text>, threads: &BulkThreads) -> Vec<Taken<Text>> {
    let mut all = Vec::new();
    loop {
        while threads.run_one() {}
        match cursor.poll_take(&mut Context::from_waker(Waker::noop()), 1 << 20) {
            Poll::Ready(taken) => all.push(taken),
            Poll::Pending if threads.run_one() => {}
            Poll::Pending => return all,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_costly_queue_that_expires_frees_the_writer() {
    let threads = BulkThreads::manual(Arc::default());
    let mut broadcaster = few::<Text>().deferring_to(Some(&threads));
    let mut world = World::at(0);
    let subscribe = Subscribe { format: Letter('p'), ..live(everything(), queue(Block, 5)) };
    let mut cursor = broadcaster.subscribe(subscribe);
    for _ in 0..5 {
        broadcaster.publish(&world.several(1));
        assert_eq!(read(&mut cursor, &threads).len(), 1);
    }
    for _ in 0..5 {
        assert!(!broadcaster.is_blocked());
        broadcaster.publish(&world.several(1));
    }
    assert!(broadcaster.is_blocked(), "a thread counts");
    while threads.run_one() {}
    broadcaster.ready().await;
    assert!(!broadcaster.is_blocked(), "nobody holds the writer back for ever");
}

#[test]
fn a_parked_cursor_is_stopped_though_the_history_has_dropped_what_it_passed() {
    let mut broadcaster = few::<Deliveries>();
    let mut cursor = broadcaster.subscribe(live(app("web"), queue(Replay, 1)));
    let mut world = World::at(0);
    assert_eq!(drain(&mut cursor), []);
    for _ in 0..10 {
        broadcaster.publish(&[world.one("c", "db")]);
    }
    assert_eq!(drain(&mut cursor), []);
    broadcaster.stop();
    assert_eq!(drain(&mut cursor), [Ended(End::Stopped)]);
}

#[tokio::test(start_paused = true)]
async fn a_queue_of_a_history_of_before_holds_nobody_back() {
    let mut broadcaster = broadcaster::<Deliveries>(100);
    let mut world = World::at(100);
    let mut cursor = broadcaster.subscribe(live(everything(), queue(Block, 1)));
    broadcaster.publish(&world.several(1));
    assert_eq!(drain(&mut cursor).len(), 1);
    rewrite(&mut broadcaster, 100);
    let mut world = World::at(100);
    for _ in 0..5 {
        broadcaster.publish(&world.several(1));
        assert!(!broadcaster.is_blocked());
    }
}

#[test]
fn a_costly_queue_whose_count_panics_frees_the_writer() {
    let threads = BulkThreads::manual(Arc::default());
    let mut broadcaster =
        Broadcaster::<Text>::new(BroadcasterConfig::default(), version(0)).deferring_to(Some(&threads));
    let mut world = World::at(0);
    broadcaster.publish(&world.several(1));
    let subscribe = Subscribe { format: Letter('!'), ..live(everything(), queue(Block, 1)) };
    let mut cursor = broadcaster.subscribe(subscribe);
    broadcaster.publish(&world.several(1));
    assert_eq!(read(&mut cursor, &threads).len(), 1);
    broadcaster.publish(&world.several(1));
    assert!(broadcaster.is_blocked(), "a thread counts");
    super::text::with_panics(|| while threads.run_one() {});
    assert!(!broadcaster.is_blocked());
}

#[test]
fn a_frozen_queue_of_which_the_history_drops_a_counted_part_reports_a_gap() {
    let config = BroadcasterConfig { retention: Retention { events: 12, ..FEW }, ..BroadcasterConfig::default() };
    let mut broadcaster = Broadcaster::<Deliveries>::new(config, version(0));
    let mut cursor = broadcaster.subscribe(live(everything(), queue(Drop, 2)));
    let mut world = World::at(0);
    let mut publish = |broadcaster: &mut Broadcaster<Deliveries>, count| {
        let batch = world.batch(|world| (0..count).map(|_| world.put("a", "web")).collect());
        broadcaster.publish(&[batch]);
    };
    publish(&mut broadcaster, 3);
    publish(&mut broadcaster, 6);
    assert_eq!(take(&mut cursor, 1).len(), 1, "the queue holds 1, 2, and is frozen");
    publish(&mut broadcaster, 4);
    publish(&mut broadcaster, 9);
    assert!(matches!(take(&mut cursor, 1)[..], [Dropped(21, 0)]));
}

/// The resource's budget is spent by another client when a thread should count: the writer goes on, and waits for the queue again only
/// once its client has read.
#[tokio::test(start_paused = true)]
async fn a_queue_that_was_full_when_the_writer_went_on_is_waited_for_once_it_was_read() {
    let threads = BulkThreads::manual(Arc::default());
    let mut broadcaster =
        Broadcaster::<Text>::new(BroadcasterConfig::default(), version(0)).deferring_to(Some(&threads));
    let timeout = BroadcasterConfig::default().block_timeout;
    let mut world = World::at(0);
    let subscribe =
        |letter, client| Subscribe { format: Letter(letter), client, ..live(everything(), queue(Block, 1)) };
    let mut costly = broadcaster.subscribe(subscribe('p', Client::Watch));
    broadcaster.publish(&world.several(1));
    assert_eq!(read(&mut costly, &threads).len(), 1);
    let mut other = broadcaster.subscribe(subscribe('a', Client::Address([1; 16].into())));
    broadcaster.publish(&world.several(1));
    assert_eq!([read(&mut costly, &threads).len(), read(&mut other, &threads).len()], [1, 1]);
    broadcaster.publish(&world.several(1));
    assert_eq!(read(&mut costly, &threads).len(), 1);
    assert!(broadcaster.is_blocked(), "the other one does not read");
    broadcaster.ready().await;
    broadcaster.publish(&world.several(1));
    assert!(!broadcaster.is_blocked(), "nothing is left");
    tokio::time::advance(timeout * 20).await;
    broadcaster.publish(&world.several(1));
    assert!(!broadcaster.is_blocked(), "it was passed, and is not counted");
    while threads.run_one() {}
    broadcaster.publish(&world.several(1));
    assert!(!broadcaster.is_blocked(), "it was full when it was passed");
    assert!(!read(&mut costly, &threads).is_empty());
    broadcaster.publish(&world.several(1));
    assert!(broadcaster.is_blocked(), "it has read");
}
