//! Policies for a full queue, one by one, and their bounds.

use std::time::Duration;

use FullChannelPolicy::{Block, Coalesce, Drop, Replay};

use super::*;

fn lines(cursor: &mut Cursor<Text>, max_size: usize) -> Vec<String> {
    match cursor.poll_take(&mut Context::from_waker(Waker::noop()), max_size) {
        Poll::Ready(Taken::Frames(frames)) => frames.iter().flat_map(Text::lines).collect(),
        Poll::Ready(other) => vec![format!("{other:?}")],
        Poll::Pending => Vec::new(),
    }
}

fn with_retention(retention: Retention) -> Broadcaster<Deliveries> {
    Broadcaster::new(BroadcasterConfig { retention, ..BroadcasterConfig::default() }, version(0))
}

const UNBOUNDED: Retention = Retention { events: usize::MAX, size: usize::MAX, age: Duration::MAX };

// === DROP ===

#[test]
fn a_full_queue_under_drop_is_frozen_until_it_has_been_read_and_leaves_one_hole() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut cursor = broadcaster.subscribe(live(everything(), queue(Drop, 3)));
    let mut world = World::at(0);
    broadcaster.publish(&world.several(5));
    assert_eq!(take(&mut cursor, 1), modified([1]), "the queue holds 1, 2, 3");
    broadcaster.publish(&world.several(2));
    assert_eq!(take(&mut cursor, 1), modified([2]));
    assert_eq!(take(&mut cursor, 9), modified([3]));
    broadcaster.publish(&world.several(1));
    assert_eq!(cursor.version(), &version(3));
    assert_eq!(take(&mut cursor, 9), [Dropped(5, 3)], "4 to 8 are missing");
    assert_eq!(cursor.version(), &version(8));
    assert_eq!(take(&mut cursor, 9), []);
    broadcaster.publish(&world.several(3));
    assert_eq!(drain(&mut cursor), modified([9, 10, 11]), "as many as the length are no stall");
    let stats = broadcaster.stats();
    assert_eq!((stats.delivered.load(Ordering::Relaxed), stats.dropped.load(Ordering::Relaxed)), (6, 5));
}

#[test]
fn a_length_of_zero_counts_as_one_under_drop() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut cursor = broadcaster.subscribe(live(everything(), queue(Drop, 0)));
    let mut world = World::at(0);
    broadcaster.publish(&world.several(1));
    assert_eq!(drain(&mut cursor), modified([1]));
    broadcaster.publish(&world.several(3));
    assert_eq!(drain(&mut cursor), [modified([2]), vec![Dropped(2, 2)]].concat());
}

#[test]
fn a_hole_that_begins_inside_a_batch_is_after_the_version_before_the_batch() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut cursor = broadcaster.subscribe(live(everything(), queue(Drop, 3)));
    let mut world = World::at(0);
    let single = world.one("a", "web");
    let batch = world.batch(|world| ["b", "c", "d"].map(|name| world.put(name, "web")).into());
    broadcaster.publish(&[single, batch]);
    let added = |name, version| event(EventType::Added, name, version);
    assert_eq!(drain(&mut cursor), [added("a", 1), added("b", 1), added("c", 1), Dropped(1, 1)]);
    assert_eq!(cursor.version(), &version(4));
}

#[test]
fn a_queue_beyond_the_retention_is_one_hole_under_drop() {
    let mut broadcaster = with_retention(Retention { events: 4, ..UNBOUNDED });
    let mut cursor = broadcaster.subscribe(live(everything(), queue(Drop, 3)));
    let mut world = World::at(0);
    broadcaster.publish(&world.several(4));
    assert_eq!(take(&mut cursor, 1), modified([1]));
    for batch in world.several(5) {
        broadcaster.publish(&[batch]);
    }
    assert_eq!(take(&mut cursor, 9), [Dropped(8, 1)], "2 and 3 were in its queue, and have gone");
    broadcaster.publish(&world.several(1));
    assert_eq!(drain(&mut cursor), modified([10]));
}

/// Changes that pass a parked reader are not needed, and may be gone.
#[test]
fn a_queue_is_counted_from_where_its_reader_was_woken() {
    let mut broadcaster = with_retention(Retention { events: 4, ..UNBOUNDED });
    let mut cursor = broadcaster.subscribe(live(app("web"), queue(Drop, 1)));
    let mut world = World::at(0);
    assert_eq!(drain(&mut cursor), []);
    for _ in 0..9 {
        broadcaster.publish(&[world.one("b", "db")]);
    }
    broadcaster.publish(&world.several(3));
    assert_eq!(drain(&mut cursor), [event(EventType::Added, "a", 10), Dropped(2, 10)]);
}

// === REPLAY ===

#[test]
fn replay_lags_without_a_bound_within_the_retention() {
    let mut broadcaster = with_retention(Retention { events: 10_000, ..UNBOUNDED });
    let mut cursor = broadcaster.subscribe(live(everything(), queue(Replay, 1)));
    for batch in World::at(0).several(10_000) {
        broadcaster.publish(&[batch]);
    }
    assert!(!broadcaster.is_blocked());
    assert_eq!(take(&mut cursor, 3), modified([1, 2, 3]));
    assert_eq!(drain(&mut cursor), modified(4..=10_000));
}

#[test]
fn past_the_retention_in_events_replay_expires() {
    let mut broadcaster = with_retention(Retention { events: 10, ..UNBOUNDED });
    let mut cursor = broadcaster.subscribe(live(everything(), queue(Replay, 1)));
    let mut world = World::at(0);
    for _ in 0..4 {
        broadcaster.publish(&world.several(3));
    }
    assert_eq!(drain(&mut cursor), [expired(2)], "3 to 12 are kept, 1 and 2 are not");
    assert_eq!(cursor.version(), &version(0));
}

#[test]
fn past_the_retention_in_size_replay_expires() {
    let retention = Retention { size: 2500, ..UNBOUNDED };
    let mut broadcaster =
        Broadcaster::<Text>::new(BroadcasterConfig { retention, ..BroadcasterConfig::default() }, version(0));
    let mut cursor = broadcaster.subscribe(live(everything(), queue(Replay, 1)));
    let mut world = World::at(0);
    for _ in 0..3 {
        broadcaster.publish(&[world.batch(|world| vec![world.put_sized("a", "web", 1000)])]);
    }
    assert_eq!(lines(&mut cursor, 1).len(), 1, "the history has two states that the store has no more");
    for _ in 0..2 {
        broadcaster.publish(&[world.batch(|world| vec![world.put_sized("a", "web", 1000)])]);
    }
    assert!(lines(&mut cursor, 1)[0].starts_with("Ended(Expired"));
}

#[tokio::test(start_paused = true)]
async fn past_the_retention_in_age_replay_expires_even_when_nothing_is_published() {
    let mut broadcaster = with_retention(Retention { age: Duration::from_secs(60), ..UNBOUNDED });
    let mut cursor = broadcaster.subscribe(live(everything(), queue(Replay, 1)));
    let mut world = World::at(0);
    broadcaster.publish(&world.several(2));
    tokio::time::advance(Duration::from_secs(40)).await;
    broadcaster.publish(&world.several(2));
    tokio::time::advance(Duration::from_secs(20)).await;
    broadcaster.sweep();
    assert_eq!(take(&mut cursor, 1), modified([1]), "exactly at the bound it is kept");
    tokio::time::advance(Duration::from_millis(1)).await;
    broadcaster.sweep();
    assert_eq!(take(&mut cursor, 1), [expired(2)]);
}

#[tokio::test(start_paused = true)]
async fn a_batch_larger_than_every_bound_stays_until_it_is_old_or_another_follows() {
    let mut broadcaster = with_retention(Retention { events: 10, size: 10, age: Duration::from_secs(60) });
    let mut cursor = broadcaster.subscribe(live(everything(), queue(Replay, 1)));
    let mut world = World::at(0);
    broadcaster.publish(&[world.batch(|world| (0..50).map(|_| world.put("a", "web")).collect())]);
    broadcaster.sweep();
    assert_eq!(take(&mut cursor, 20).len(), 20, "a relist can be read");
    tokio::time::advance(Duration::from_secs(60)).await;
    broadcaster.sweep();
    assert_eq!(take(&mut cursor, 20).len(), 20);
    broadcaster.publish(&world.several(1));
    assert_eq!(drain(&mut cursor), [expired(50)]);
}

/// It is caught up with as soon as what is left is not more than the queue holds.
#[test]
fn drop_applies_once_the_unread_events_are_no_more_than_the_queue_holds() {
    for (unread, acts) in [(3, true), (4, false)] {
        let mut broadcaster = broadcaster::<Deliveries>(0);
        let subscribe = Subscribe { initial_events: true, ..live(everything(), queue(Drop, 3)) };
        let mut cursor = broadcaster.subscribe(subscribe);
        let mut world = World::at(0);
        broadcaster.publish(&world.several(unread));
        cursor.go_live();
        assert_eq!(take(&mut cursor, 1), modified([1]));
        broadcaster.publish(&world.several(3));
        let (last, dropped) = (unread as u128 + 3, unread as u64 - 1);
        let expected = if acts { [modified(2..=4), vec![Dropped(dropped, 4)]].concat() } else { modified(2..=last) };
        assert_eq!(drain(&mut cursor), expected, "{unread}");
    }
}

// === COALESCE ===

#[test]
fn coalesce_sends_events_one_by_one_to_a_client_that_keeps_up() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut cursor = broadcaster.subscribe(live(everything(), queue(Coalesce, 3)));
    let mut world = World::at(0);
    for round in 0..10 {
        broadcaster.publish(&world.several(3));
        assert_eq!(drain(&mut cursor), modified(round * 3 + 1..=round * 3 + 3));
    }
}

#[test]
fn all_that_a_full_queue_holds_merges_under_coalesce() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut cursor = broadcaster.subscribe(live(everything(), queue(Coalesce, 3)));
    let mut fast = broadcaster.subscribe(live(everything(), queue(Drop, 100_000)));
    let mut world = World::at(0);
    for _ in 0..100 {
        broadcaster.publish(&world.several(3));
        assert!(!broadcaster.is_blocked());
    }
    assert_eq!(drain(&mut fast), modified(1..=300), "nobody else is concerned");
    assert_eq!(drain(&mut cursor), [event(EventType::Added, "a", 300)]);
    assert_eq!(cursor.version(), &version(300));
    broadcaster.publish(&world.several(3));
    assert_eq!(drain(&mut cursor), modified([301, 302, 303]), "and then one by one again");
}

#[test]
fn coalesce_sends_one_generation_while_the_next_is_filled() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut cursor = broadcaster.subscribe(live(everything(), queue(Coalesce, 1)));
    let mut world = World::at(0);
    for name in ["a", "b", "c", "a", "b", "c"] {
        broadcaster.publish(&[world.one(name, "web")]);
    }
    // Sorted by their last change.
    assert_eq!(take(&mut cursor, 1), [event(EventType::Added, "a", 0)]);
    broadcaster.publish(&[world.one("a", "web")]);
    assert_eq!(take(&mut cursor, 1), [event(EventType::Added, "b", 0)]);
    assert_eq!(take(&mut cursor, 1), [event(EventType::Added, "c", 6)], "complete: the version advances");
    assert_eq!(drain(&mut cursor), [event(EventType::Modified, "a", 7)], "the next generation");
}

#[test]
fn coalesce_outlives_the_retention() {
    let mut broadcaster = with_retention(Retention { events: 10, ..UNBOUNDED });
    let mut cursor = broadcaster.subscribe(live(everything(), queue(Coalesce, 2)));
    let mut world = World::at(0);
    for _ in 0..1000 {
        broadcaster.publish(&world.several(1));
    }
    assert_eq!(drain(&mut cursor), [event(EventType::Added, "a", 1000)]);
}

#[test]
fn a_coalescing_client_that_unsubscribes_leaves_nothing_behind() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let cursor = broadcaster.subscribe(live(everything(), queue(Coalesce, 1)));
    let mut stays = broadcaster.subscribe(live(everything(), queue(Coalesce, 1)));
    let mut world = World::at(0);
    broadcaster.publish(&world.several(5));
    drop(cursor);
    broadcaster.publish(&world.several(5));
    assert_eq!(drain(&mut stays), [event(EventType::Added, "a", 10)]);
    broadcaster.stop();
    assert_eq!(drain(&mut stays), [Ended(End::Stopped)]);
}

// === The initial phase ===

#[tokio::test(start_paused = true)]
async fn no_policy_applies_before_the_initial_events_are_delivered_and_the_queue_is_caught_up() {
    for policy in [Drop, Block, Replay] {
        let mut broadcaster = broadcaster::<Deliveries>(0);
        let subscribe = Subscribe { initial_events: true, ..live(everything(), queue(policy, 2)) };
        let mut cursor = broadcaster.subscribe(subscribe);
        let mut world = World::at(0);
        broadcaster.publish(&world.several(10));
        assert!(!broadcaster.is_blocked(), "{policy:?}");
        assert_eq!(take(&mut cursor, 2), modified([1, 2]));
        cursor.go_live();
        broadcaster.publish(&world.several(10));
        assert!(!broadcaster.is_blocked(), "{policy:?}: not caught up yet");
        assert_eq!(drain(&mut cursor), modified(3..=20), "{policy:?}");
        broadcaster.publish(&world.several(3));
        assert_eq!(broadcaster.is_blocked(), policy == Block);
        let hole = if policy == Drop { vec![Dropped(1, 22)] } else { modified([23]) };
        assert_eq!(drain(&mut cursor), [modified([21, 22]), hole].concat(), "{policy:?}: now it acts");
        broadcaster.ready().await;
    }
}

#[test]
fn the_retention_bounds_the_initial_phase_of_every_policy() {
    for policy in [Drop, Block, Replay] {
        let mut broadcaster = with_retention(Retention { events: 5, ..UNBOUNDED });
        let subscribe = Subscribe { initial_events: true, ..live(everything(), queue(policy, 2)) };
        let mut cursor = broadcaster.subscribe(subscribe);
        for batch in World::at(0).several(10) {
            broadcaster.publish(&[batch]);
        }
        assert_eq!(drain(&mut cursor), [expired(5)], "{policy:?}");
    }
}

#[test]
fn a_gauge_reads_the_lag_and_the_policy_state_until_its_cursor_is_dropped() {
    let mut broadcaster = broadcaster::<Deliveries>(0);
    let mut cursor = broadcaster.subscribe(live(everything(), queue(FullChannelPolicy::Drop, 2)));
    let gauge = cursor.gauge();
    let mut world = World::at(0);
    let (mut lags, mut losses) = (Vec::new(), Vec::new());
    let mut note = || {
        lags.push((gauge.lag(), gauge.state()));
        losses.push(gauge.unreported_losses());
    };
    for _ in 0..4 {
        note();
        broadcaster.publish(&world.several(1));
        // Without it, the losses are those of the last time that somebody counted.
        broadcaster.sweep();
    }
    note();
    assert_eq!(take(&mut cursor, 1), modified([1]));
    note();
    broadcaster.publish(&world.several(1));
    broadcaster.sweep();
    note();
    assert_eq!(drain(&mut cursor), [modified([2]), vec![Dropped(3, 2)]].concat());
    note();
    assert_eq!(losses, [0, 0, 0, 1, 2, 2, 3, 0], "also before it has read anything");
    let following = |lag| (lag, CursorState::Following);
    let frozen = |lag| (lag, CursorState::Frozen);
    assert_eq!(lags[..5], [0, 1, 2, 3, 4].map(following));
    assert_eq!(lags[5..], [frozen(3), frozen(4), following(0)]);
    drop(cursor);
    assert_eq!((gauge.lag(), gauge.state()), (0, CursorState::Following));
}

#[test]
fn an_event_as_large_as_the_room_fits_and_one_not_encoded_yet_has_no_size() {
    let threads = BulkThreads::manual(Arc::default());
    let mut broadcaster =
        Broadcaster::<Deliveries>::new(BroadcasterConfig::default(), version(0)).deferring_to(Some(&threads));
    let mut cursor = broadcaster.subscribe(live(everything(), queue(FullChannelPolicy::Coalesce, 1)));
    let mut world = World::at(0);
    let fitting = |cursor: &mut Cursor<Deliveries>, size| match cursor.poll_take_fitting(
        &mut Context::from_waker(Waker::noop()),
        size,
        true,
    ) {
        Poll::Ready(taken) => taken.map(items),
        Poll::Pending => Ok(Vec::new()),
    };
    broadcaster.publish(&world.several(1));
    assert_eq!(fitting(&mut cursor, 0), Err(TooLarge(None)));
    assert_eq!(fitting(&mut cursor, 1), Ok(modified([1])));
    broadcaster.publish(&world.several(3));
    assert_eq!(fitting(&mut cursor, 1000), Err(TooLarge(None)), "merged ones are not encoded yet");
    assert_eq!(drain(&mut cursor), modified([4]));
}

#[test]
fn an_event_that_does_not_fit_has_its_own_size() {
    let mut broadcaster = broadcaster::<Text>(0);
    let mut cursor = broadcaster.subscribe(live(everything(), queue(Replay, 100)));
    let mut world = World::at(0);
    broadcaster.publish(&[world.batch(|world| vec![world.put_sized("a", "web", 10)])]);
    assert_eq!(lines(&mut cursor, usize::MAX).len(), 1);
    let sized = [200, 3000];
    broadcaster.publish(&[world.batch(|world| sized.map(|size| world.put_sized("a", "web", size)).into())]);
    for size in sized {
        let fitting = cursor.poll_take_fitting(&mut Context::from_waker(Waker::noop()), 100, true);
        let Poll::Ready(Err(TooLarge(Some(needed)))) = fitting else { panic!("{fitting:?}") };
        assert!(needed > size);
        assert_eq!(lines(&mut cursor, 1).iter().map(String::len).collect::<Vec<_>>(), [needed]);
    }
}
