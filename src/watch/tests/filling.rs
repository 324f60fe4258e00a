//! Threads that fill groups: their order, their pieces of work, and the batches that are kept for them.

use std::time::Duration;

use FullChannelPolicy::Replay;

use super::{
    deferred::{Rig, not},
    *,
};

#[test]
fn costly_groups_do_not_wait_until_no_cheap_one_is_left() {
    let mut rig = Rig::new();
    let cheap: Vec<_> = (0..200).map(|n| rig.subscribe(not(&format!("x{n}")), Replay)).collect();
    let costly = rig.subscribe(not("db"), Replay);
    rig.defer();
    rig.fill();
    // The cheap ones make eight jobs.
    for (cursor, cost) in cheap.iter().map(|cursor| (cursor, 40_000)).chain([(&costly, 100_000_000)]) {
        cursor.set_cost(cost);
    }
    rig.publish(20);
    rig.cost(Duration::from_millis(1));
    // Each job needs twenty pieces.
    assert!((0..50).all(|_| rig.threads.run_one()));
    assert_eq!(costly.filled().unwrap().offset, 22);
    assert!(cheap.iter().any(|cursor| cursor.filled().unwrap().offset == 2));
}

#[test]
fn groups_that_are_behind_are_filled_from_their_own_offsets() {
    let mut rig = Rig::new();
    let mut first = rig.subscribe(not("db"), Replay);
    rig.defer();
    let mut second = rig.subscribe(not("x"), Replay);
    rig.defer();
    assert_eq!(rig.deferred(), 2);
    rig.fill();
    assert_eq!((drain(&mut first), drain(&mut second)), (modified(1..=4), modified(3..=4)));
}

/// A block covers many changes, even from many small publish cycles.
#[test]
fn a_backlog_of_small_cycles_is_filled_in_one_piece() {
    let mut rig = Rig::new();
    let mut cursor = rig.subscribe(not("db"), Replay);
    for _ in 0..3 {
        rig.publish(100);
    }
    rig.defer();
    rig.fill();
    assert_eq!(rig.deferred(), 1);
    for _ in 0..100 {
        rig.publish(1);
    }
    assert_eq!(rig.fill(), 1);
    assert_eq!(drain(&mut cursor), modified(1..=402));
}

#[test]
fn published_batches_are_dropped_once_filled_or_with_their_history() {
    let mut rig = Rig::new();
    let cursor = rig.subscribe(not("db"), Replay);
    rig.defer();
    let publish = |rig: &mut Rig| {
        let batch = Arc::new(rig.world.one("a", "web"));
        rig.broadcaster.publish(&[Arc::clone(&batch)]);
        assert!(Arc::strong_count(&batch) > 1);
        batch
    };
    let filled = publish(&mut rig);
    rig.fill();
    assert_eq!((rig.deferred(), Arc::strong_count(&filled)), (1, 1));
    let ended = publish(&mut rig);
    rig.broadcaster.start_new_history(&End::HistoryRewritten, version(100));
    assert_eq!(Arc::strong_count(&ended), 1);
    drop(cursor);
}

/// A cost of exactly what is left fits, at first alone and then beside others.
#[test]
fn a_group_that_takes_exactly_the_time_of_a_cycle_is_not_deferred() {
    let budget = BroadcasterConfig::default().selection_budget.as_nanos() as u64;
    for (cost, deferred) in [(budget / 2, 0), (budget / 2 + 1, 1)] {
        let mut rig = Rig::new();
        let cursors = [rig.subscribe(not("a"), Replay), rig.subscribe(not("b"), Replay)];
        for cursor in &cursors {
            cursor.set_cost(cost);
        }
        rig.publish(1);
        assert_eq!(rig.deferred(), deferred, "{cost}");
    }
}

/// A group that was evaluated to the end of a cycle gets all of that cycle.
#[test]
fn a_group_that_takes_long_for_the_last_change_is_not_deferred_before_the_next() {
    let mut rig = Rig::new();
    let mut cursor = rig.subscribe(not("db"), Replay);
    rig.cost(Duration::from_secs(1));
    rig.publish(1);
    assert_eq!((rig.deferred(), drain(&mut cursor)), (0, modified([1])));
    rig.publish(1);
    assert_eq!((rig.deferred(), drain(&mut cursor)), (1, vec![]));
}

/// No group is taken back for a cycle larger than the recent ones, or for more than seven tenths of the budget.
#[test]
fn a_group_is_taken_back_when_it_fits_with_a_margin_at_the_recent_number_of_changes() {
    let budget = BroadcasterConfig::default().selection_budget.as_nanos() as u64;
    let taken_back = |cost: u64, changes: usize| {
        let mut rig = Rig::new();
        let cursor = rig.subscribe(not("db"), Replay);
        rig.defer();
        rig.fill();
        rig.pause(Duration::from_secs(60));
        // Only the last cycle counts, as the previous ones had no more changes.
        for _ in 0..100 {
            cursor.set_cost(10 * budget);
            rig.publish(1);
            rig.fill();
        }
        cursor.set_cost(cost);
        rig.publish(changes);
        rig.deferred() == 0
    };
    // Deferred by a cycle of two changes.
    assert!(taken_back(budget / 100 * 35, 1) && !taken_back(budget / 100 * 35 + 1, 1));
    assert!(taken_back(budget / 100 * 7, 10) && !taken_back(budget / 100 * 7 + 1, 10));
}

#[test]
fn a_cycle_of_many_changes_is_remembered_for_a_while() {
    let budget = BroadcasterConfig::default().selection_budget.as_nanos() as u64;
    let mut rig = Rig::new();
    let cursor = rig.subscribe(not("db"), Replay);
    rig.publish(100);
    rig.defer();
    rig.fill();
    rig.pause(Duration::from_secs(60));
    let mut cycles = 0;
    while rig.deferred() == 1 {
        // The group fits beside ten changes, and not beside more.
        cursor.set_cost(budget / 100 * 7);
        rig.publish(1);
        rig.fill();
        cycles += 1;
        assert!(cycles < 100);
    }
    assert!((5..30).contains(&cycles), "an eighth is forgotten with each cycle: {cycles}");
}

/// Each deferral has its own number, and work for one that has ended is discarded.
#[test]
fn a_group_that_is_deferred_again_is_filled_once() {
    let mut rig = Rig::new();
    let mut cursor = rig.subscribe(not("db"), Replay);
    for round in 0..3 {
        rig.defer();
        assert_eq!(rig.deferred(), 1);
        rig.fill();
        rig.pause(Duration::from_secs(60));
        cursor.set_cost(0);
        rig.publish(1);
        assert_eq!((rig.deferred(), rig.fill()), (0, 0), "{round}");
    }
    assert_eq!(drain(&mut cursor), modified(1..=9));
}

#[test]
fn a_group_that_has_become_cheap_is_not_taken_back_in_the_first_second() {
    let mut rig = Rig::new();
    let cursor = rig.subscribe(not("db"), Replay);
    // Later than the least time by far.
    rig.pause(Duration::from_secs(60));
    cursor.set_cost(1 << 40);
    rig.publish(1);
    let least = Duration::from_secs(1);
    for (pause, deferred) in
        [(Duration::ZERO, 1), (least.saturating_sub(Duration::from_nanos(1)), 1), (Duration::from_nanos(1), 0)]
    {
        rig.fill();
        cursor.set_cost(0);
        rig.pause(pause);
        rig.publish(1);
        assert_eq!(rig.deferred(), deferred, "{pause:?}");
    }
}

/// The writer has no time for more.
#[test]
fn few_groups_are_taken_back_in_one_cycle() {
    let mut rig = Rig::new();
    let cursors: Vec<_> = (0..40).map(|n| rig.subscribe(not(&format!("x{n}")), Replay)).collect();
    rig.defer();
    rig.pause(Duration::from_secs(60));
    let mut deferred = vec![rig.deferred()];
    for _ in 0..3 {
        rig.fill();
        for cursor in &cursors {
            cursor.set_cost(0);
        }
        rig.publish(1);
        deferred.push(rig.deferred());
    }
    assert_eq!(deferred, [40, 24, 8, 0]);
}

#[test]
fn the_policy_applies_to_a_cursor_once_its_group_is_filled_to_where_it_joined() {
    let mut rig = Rig::new();
    let _first = rig.subscribe(not("db"), Replay);
    rig.defer();
    let subscribe = live(not("db"), queue(FullChannelPolicy::Drop, 4));
    let mut late = rig.broadcaster.subscribe(Subscribe { initial_events: true, ..subscribe });
    late.go_live();
    rig.fill();
    assert_eq!(drain(&mut late), []);
    rig.publish(10);
    rig.fill();
    assert_eq!(drain(&mut late), [modified(3..=6), vec![Dropped(6, 6)]].concat());
}

#[test]
fn cheap_groups_at_one_offset_are_filled_in_one_piece() {
    let mut rig = Rig::new();
    let cursors: Vec<_> = (0..10).map(|n| rig.subscribe(not(&format!("x{n}")), Replay)).collect();
    for (cost, pieces) in [(1 << 40, 10), (20_000, 1)] {
        for cursor in &cursors {
            cursor.set_cost(cost);
        }
        rig.publish(1);
        assert_eq!((rig.deferred(), rig.fill()), (10, pieces));
    }
}
