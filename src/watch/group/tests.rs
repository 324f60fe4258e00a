//! Lists of a log: their lengths, and the readers that they are for.

use std::time::Duration;

use super::*;
use crate::watch::{Deliveries, FullChannelPolicy};

const QUEUE: QueueOptions = QueueOptions { policy: FullChannelPolicy::Replay, length: 1 };

fn version(number: u128) -> ResourceVersion {
    ResourceVersion::decimal(number)
}

fn group() -> Group<Deliveries> {
    let reached = HistoryPosition { version: version(1), offset: 0 };
    let writer_signals = Arc::new(WriterSignals::new(Duration::ZERO, Arc::default()));
    Group::new(0, Arc::default(), (), false, reached, writer_signals)
}

/// Subscribes `count` slots that are parked and skip everything up to a version.
fn slots(log: &mut Log<Deliveries>, count: u64) -> Vec<usize> {
    let subscribe = |id| {
        let slot = log.subscribe(id, QUEUE, false, None, 0);
        log.skip_events(slot, 0, Some(&version(9)));
        assert!(log.park(slot, Waker::noop()).is_none());
        slot
    };
    (0..count).map(subscribe).collect()
}

#[test]
fn lists_of_slots_that_were_long_release_memory_as_slots_are_removed() {
    let group = group();
    let mut log = group.log.lock();
    let slots = slots(&mut log, 4096);
    let capacities = |log: &Log<Deliveries>| [log.slots.capacity(), log.parked.capacity(), log.skipping.capacity()];
    assert!(capacities(&log).iter().all(|capacity| *capacity >= 4096));
    for slot in slots.into_iter().rev() {
        log.unsubscribe(slot);
        let (left, [slots, parked, skipping]) = (log.slots.len(), capacities(&log));
        assert!(slots <= 2 * left + 16, "{slots} for {left}");
        assert!(parked.max(skipping) <= 4 * left + 64, "{parked} and {skipping} for {left}");
    }
}

/// The list is cleaned once for many removed slots, and not for each of them.
#[test]
fn indexes_of_removed_slots_leave_the_list_of_parked_ones_together() {
    let group = group();
    let mut log = group.log.lock();
    let slots = slots(&mut log, 20);
    let parked = slots.into_iter().map(|slot| {
        log.unsubscribe(slot);
        log.parked_len()
    });
    let parked: Vec<usize> = parked.collect();
    // Cleaned once it is longer than twice the remaining slots, and four.
    assert_eq!(parked, [vec![20; 12], vec![7; 6], vec![1, 1]].concat());
}

#[test]
fn a_removed_slot_removes_only_its_own_skipped_events() {
    let group = group();
    let mut log = group.log.lock();
    let [gone, stays] = slots(&mut log, 2)[..] else { panic!("there are two") };
    log.unsubscribe(gone);
    let mut reached = HistoryPosition { version: version(1), offset: 0 };
    assert!(log.is_skipping(stays, &mut reached));
    let next = log.subscribe(2, QUEUE, false, None, 0);
    assert_eq!(next, gone, "the index is used again");
    assert!(!log.is_skipping(next, &mut reached));
}

#[test]
fn a_list_of_runs_has_room_for_half_as_many_more_and_releases_the_rest() {
    let group = group();
    let mut log = group.log.lock();
    let object = Arc::new(crate::model::Object::from_json(bytes::Bytes::from_static(b"{}"), "a", version(1)).unwrap());
    let delivery = crate::watch::Delivery {
        event_type: crate::model::EventType::Added,
        cause: crate::model::Cause::Change,
        object,
        previous: None,
        object_version: version(1),
        version: version(1),
        coalesced: 0,
    };
    let frame = Deliveries::freeze(vec![delivery]);
    let mark = || smallvec::smallvec![crate::watch::run::Mark { end: 1, changes: 1, version: version(1) }];
    for cycle in 0..4096 {
        log.push((cycle, tokio::time::Instant::now(), cycle), (0, 0), frame.clone(), 1, mark());
        let (capacity, runs) = (log.runs.capacity(), log.runs.len());
        assert!(capacity <= 1 + runs + runs / 2, "{capacity} for {runs}");
    }
    for floor in [4096 - 1000, 4096 - 10, 4096] {
        log.trim_below(floor);
        let (capacity, runs) = (log.runs.capacity(), log.runs.len());
        assert_eq!(capacity, runs + runs / 2);
    }
}
