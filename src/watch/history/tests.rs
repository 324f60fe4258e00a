//! Resume from the history: gaps, bounds, open versions, and drawn batches.

use std::time::Duration;

use bytes::Bytes;
use proptest::{collection::vec, prelude::*};

use super::*;
use crate::watch::replay::ReplayPosition;

const BOUNDS: Retention = Retention { events: 1000, size: 1 << 20, age: Duration::from_secs(300) };

fn version(number: u128) -> ResourceVersion {
    ResourceVersion::decimal(number)
}

fn begin(number: u128) -> HistoryPosition {
    HistoryPosition { version: version(number), offset: 0 }
}

fn batch(before: u128, after: u128, changes: usize) -> Arc<Batch> {
    let object = |name: &str| Object::from_json(Bytes::from_static(b"{}"), name, version(after)).unwrap();
    let change = |at: usize| Change {
        old: Some(Arc::new(object(&at.to_string()))),
        new: Some(Arc::new(object(&at.to_string()))),
        version: version(after),
        cause: Cause::Change,
        index_values: None,
    };
    let changes = (0..changes).map(change).collect();
    Arc::new(Batch { before: version(before), after: version(after), changes, is_relist: false, is_open: false })
}

fn relist(before: u128, after: u128, changes: usize) -> Arc<Batch> {
    Arc::new(Batch { is_relist: true, ..Batch::clone(&batch(before, after, changes)) })
}

/// Returns the versions that the batches after a version lead to.
fn after(history: &History, number: u128) -> Result<Vec<u128>, NotInHistory> {
    let backlog = history.after(&version(number))?;
    assert!(!backlog.has_more);
    Ok(backlog.batches.iter().map(|batch| batch.after.number()).collect())
}

/// A relist hides the changes in between; the boundaries of cacher `TestEvents` and `TestMarker`.
#[tokio::test]
async fn a_version_inside_a_relist_gap_is_expired_and_its_ends_are_not() {
    let now = Instant::now();
    let mut history = History::new(BOUNDS, begin(10));
    history.record(batch(10, 12, 1), now);
    history.record(relist(12, 20, 2), now);
    history.record(batch(20, 21, 1), now);
    assert_eq!(after(&history, 9), Err(NotInHistory::Expired), "older than the window");
    assert_eq!(after(&history, 10), Ok(vec![12, 20, 21]));
    assert_eq!(after(&history, 11), Ok(vec![12, 20, 21]), "the upstream's numbers have holes of their own");
    assert_eq!(after(&history, 12), Ok(vec![20, 21]), "the start of the gap");
    for inside in 13..20 {
        assert_eq!(after(&history, inside), Err(NotInHistory::Expired), "{inside}");
    }
    assert_eq!(after(&history, 20), Ok(vec![21]), "the end of the gap");
    assert_eq!(after(&history, 21), Ok(vec![]));
    assert_eq!(after(&history, 22), Err(NotInHistory::Future));
    let foreign = "abc.21".parse().unwrap();
    assert_eq!(history.after(&foreign), Err(NotInHistory::Expired), "another lineage");
}

/// A relist without changes leaves nothing but its gap.
#[tokio::test]
async fn a_watch_parked_before_an_evicted_relist_is_notified_of_its_gap() {
    let (now, later) = (Instant::now(), Instant::now() + BOUNDS.age + Duration::from_secs(1));
    let mut history = History::new(BOUNDS, begin(10));
    history.record(batch(10, 12, 1), now);
    history.record(relist(12, 20, 0), now);
    history.record(batch(20, 21, 1), later);
    let parked = |number, offset| history.after_offset(&HistoryPosition { version: version(number), offset });
    assert_eq!(parked(10, 0), Err(NotInHistory::Expired));
    assert_eq!(parked(20, 0).unwrap().batches.len(), 1, "of its selection there was nothing more up to its version");
    let is_after_gap =
        |number, offset| history.has_relist_between(&HistoryPosition { version: version(number), offset }, offset + 1);
    assert!(is_after_gap(12, 1));
    assert!(!is_after_gap(20, 1), "it was passed");
    assert!(!is_after_gap(21, 2));
    let says_gap = |number, offset| {
        let position = ReplayPosition { version: version(number), offset, is_gap: false };
        history.replay(&position, 2, 100).unwrap().position().is_gap
    };
    assert!(says_gap(12, 1) && !says_gap(20, 1));
}

/// A parked watch resumes with the batch that it was in.
#[tokio::test]
async fn an_offset_is_found_with_its_batch_until_that_is_evicted() {
    let now = Instant::now();
    let mut history =
        History::new(Retention { events: 6, ..BOUNDS }, HistoryPosition { version: version(10), offset: 100 });
    history.record(batch(10, 12, 1), now);
    history.record(batch(12, 13, 3), now);
    history.record(relist(13, 20, 0), now);
    history.record(batch(20, 21, 1), now);
    let after = |history: &History, offset| {
        let Backlog { batches, first, .. } = history.after_offset(&HistoryPosition { version: version(9), offset })?;
        Ok((batches.iter().map(|batch| batch.after.number()).collect::<Vec<_>>(), first))
    };
    assert_eq!(after(&history, 99), Err(NotInHistory::Expired));
    assert_eq!(after(&history, 100), Ok((vec![12, 13, 20, 21], 100)));
    for inside in [101, 102, 103] {
        assert_eq!(after(&history, inside), Ok((vec![13, 20, 21], 101)), "{inside}");
    }
    assert_eq!(after(&history, 104), Ok((vec![20, 21], 104)), "perhaps the relist was not passed");
    assert_eq!(after(&history, 105), Ok((vec![], 105)));
    assert_eq!(history.current(), &HistoryPosition { version: version(21), offset: 105 });
    history.record(batch(21, 22, 2), now);
    assert_eq!(after(&history, 100), Err(NotInHistory::Expired));
    assert_eq!(after(&history, 101).unwrap().1, 101);
    history.record(batch(22, 23, 1), now);
    assert_eq!(after(&history, 103), Err(NotInHistory::Expired), "batches go whole");
    assert_eq!(after(&history, 104).unwrap().0, [20, 21, 22, 23]);
}

#[tokio::test]
async fn a_relist_without_changes_leaves_a_gap_unless_it_is_at_the_same_version() {
    let now = Instant::now();
    let mut history = History::new(BOUNDS, begin(10));
    history.record(relist(10, 10, 0), now);
    assert_eq!(after(&history, 10), Ok(vec![]));
    history.record(relist(10, 20, 0), now);
    assert_eq!(after(&history, 15), Err(NotInHistory::Expired));
    assert_eq!(after(&history, 10), Ok(vec![20]));
}

/// Makes a batch of a version at which more changes may come, or came after it was complete.
fn open(before: u128, after: u128) -> Arc<Batch> {
    Arc::new(Batch { is_open: true, ..Batch::clone(&batch(before, after, 1)) })
}

/// More changes may come at an open version, so the previous version stays the one to resume from.
#[tokio::test]
async fn an_open_version_follows_the_previous_one_whole_and_is_not_evicted() {
    let now = Instant::now();
    let mut history = History::new(Retention { events: 2, ..BOUNDS }, begin(5));
    history.record(batch(5, 6, 1), now);
    for _ in 0..3 {
        history.record(open(8, 9), now);
    }
    assert_eq!((history.oldest(), &history.current().version), (&version(6), &version(8)));
    for from in [6, 7, 8] {
        assert_eq!(after(&history, from), Ok(vec![9, 9, 9]), "{from}");
    }
    assert_eq!(after(&history, 9), Ok(vec![]), "who has it has all of it");
    assert_eq!(after(&history, 10), Err(NotInHistory::Future));
    history.evict_old(now + BOUNDS.age + BOUNDS.age);
    assert_eq!(after(&history, 8), Ok(vec![9, 9, 9]), "it is what is safe to resume from");
    history.record(batch(8, 9, 0), now);
    assert_eq!((after(&history, 8), &history.current().version), (Ok(vec![9, 9, 9]), &version(9)));
    history.record(batch(9, 10, 1), now);
    assert_eq!((history.oldest(), after(&history, 8)), (&version(9), Err(NotInHistory::Expired)), "all of it goes");
}

/// A client of the Kubernetes API may lack a part of the version before: that is kept until the open one is complete, and no longer.
#[tokio::test]
async fn the_end_of_an_open_version_evicts_what_was_kept_for_it() {
    let now = Instant::now();
    let mut history = History::new(Retention { events: 3, ..BOUNDS }, begin(5));
    history.record(batch(5, 6, 1), now);
    history.record(batch(6, 8, 4), now);
    history.record(open(8, 9), now);
    assert_eq!(history.oldest(), &version(6));
    history.record(batch(8, 9, 0), now);
    assert_eq!(history.oldest(), &version(8));
}

/// Caused by an API that breaks its rule, or by a list with other bytes at a known version.
#[tokio::test]
async fn late_changes_are_replayed_after_their_version() {
    let now = Instant::now();
    let mut history = History::new(Retention { events: 3, ..BOUNDS }, begin(5));
    history.record(batch(5, 9, 1), now);
    history.record(open(9, 9), now);
    assert_eq!((after(&history, 8), after(&history, 9)), (Ok(vec![9, 9]), Ok(vec![9])));
    history.evict_old(now + BOUNDS.age + BOUNDS.age);
    assert_eq!(after(&history, 9), Ok(vec![9]), "as long as the version is the newest");
    history.record(batch(9, 10, 1), now);
    assert_eq!((after(&history, 9), after(&history, 10)), (Ok(vec![9, 10]), Ok(vec![])));
    history.record(batch(10, 11, 1), now);
    assert_eq!((history.oldest(), after(&history, 9)), (&version(10), Err(NotInHistory::Expired)));
    assert_eq!(after(&history, 10), Ok(vec![11]));
}

/// The version that the relist closes is none to resume from without the relist.
#[tokio::test]
async fn the_oldest_version_is_not_inside_a_relist_that_closed_an_open_one() {
    let now = Instant::now();
    let mut history = History::new(Retention { events: 2, ..BOUNDS }, begin(5));
    history.record(open(8, 9), now);
    history.record(open(8, 9), now);
    history.record(relist(8, 12, 1), now);
    assert_eq!((history.oldest(), after(&history, 12)), (&version(12), Ok(vec![])));
    assert_eq!(after(&history, 9), Err(NotInHistory::Expired));
}

/// A bookmark advances the version; watches can still resume from the versions before it.
#[tokio::test]
async fn versions_without_changes_can_be_resumed_from() {
    let now = Instant::now();
    let mut history = History::new(BOUNDS, begin(10));
    history.record(batch(10, 77, 0), now);
    history.record(batch(77, 80, 1), now);
    for from in [10, 50, 77, 79] {
        assert_eq!(after(&history, from), Ok(vec![80]), "{from}");
    }
}

/// cacher `TestEvents` (a ring of 5), `TestEmptyWatchEventCache`; batches are evicted whole.
#[tokio::test]
async fn the_oldest_batches_are_evicted_first_and_whole() {
    let now = Instant::now();
    let mut history = History::new(Retention { events: 5, ..BOUNDS }, begin(1));
    assert_eq!(after(&history, 1), Ok(vec![]));
    for at in 1..=4 {
        history.record(batch(at, at + 1, 2), now);
    }
    assert_eq!((history.oldest(), history.events()), (&version(3), 4));
    assert_eq!(after(&history, 2), Err(NotInHistory::Expired));
    assert_eq!(after(&history, 3), Ok(vec![4, 5]));
    history.record(batch(5, 6, 100), now);
    assert_eq!(after(&history, 5), Ok(vec![6]), "larger than the bound, and the newest");
    assert_eq!(after(&history, 4), Err(NotInHistory::Expired));
    history.record(batch(6, 7, 1), now);
    assert_eq!((history.oldest(), history.events()), (&version(6), 1), "no longer the newest");

    let size = 3 * (CHANGE_BYTES + "{}".len());
    for (size, events) in [(size, 3), (size - 1, 2)] {
        let mut history = History::new(Retention { size, ..BOUNDS }, begin(1));
        for at in 1..=9 {
            history.record(batch(at, at + 1, 1), now);
        }
        assert_eq!((history.events(), history.bytes() <= size), (events, true), "just as much as may be kept is kept");
    }
}

#[tokio::test(start_paused = true)]
async fn old_batches_are_evicted_even_without_new_ones() {
    let mut history = History::new(BOUNDS, begin(1));
    tokio::time::advance(Duration::from_secs(1)).await;
    let recorded = Instant::now();
    history.record(batch(1, 2, 1), recorded);
    tokio::time::advance(BOUNDS.age).await;
    history.evict_old(Instant::now());
    assert_eq!(after(&history, 1), Ok(vec![2]), "exactly at the bound it is kept");
    tokio::time::advance(Duration::from_millis(1)).await;
    history.evict_old(Instant::now());
    assert_eq!(after(&history, 1), Err(NotInHistory::Expired));
    assert_eq!(after(&history, 2), Ok(vec![]));
    assert_eq!((history.events(), history.bytes(), history.oldest_at()), (0, 0, recorded));
}

#[tokio::test]
async fn a_long_backlog_comes_in_parts() {
    let now = Instant::now();
    let mut history = History::new(Retention { events: 1 << 20, size: 1 << 30, ..BOUNDS }, begin(0));
    for at in 0..3000 {
        history.record(batch(at, at + 1, 1), now);
    }
    let (mut from, mut seen, mut parts) = (version(0), Vec::new(), 0);
    loop {
        let backlog = history.after(&from).unwrap();
        seen.extend(backlog.batches.iter().map(|batch| batch.after.number()));
        from = backlog.batches.last().unwrap().after.clone();
        parts += 1;
        if !backlog.has_more {
            break;
        }
    }
    assert_eq!(seen, (1..=3000).collect::<Vec<_>>());
    assert_eq!(parts, 3);

    let large = |at: u128| {
        let body = format!("{:?}", "x".repeat(BACKLOG_BYTES / 2));
        let object = Arc::new(Object::from_json(body, "large", version(at + 1)).unwrap());
        let change =
            Change { old: None, new: Some(object), version: version(at + 1), cause: Cause::Change, index_values: None };
        Arc::new(Batch { changes: vec![change], ..Batch::clone(&batch(at, at + 1, 0)) })
    };
    for at in 3000..3005 {
        history.record(large(at), now);
    }
    let parts = [3000, 3002, 3004].map(|from| {
        let backlog = history.after(&version(from)).unwrap();
        (backlog.batches.len(), backlog.has_more)
    });
    assert_eq!(parts, [(2, true), (2, true), (1, false)], "by bytes: with the batch that exceeds them");
}

fn changes() -> impl Strategy<Value = (Vec<u8>, bool)> {
    (vec(0_u8..4, 0..3), any::<bool>())
}

proptest! {
    #![proptest_config(crate::property_config())]

    /// Checks that batches in any representation are returned as recorded, and that eviction subtracts their bytes.
    #[test]
    fn a_backlog_has_the_recorded_batches(recorded in vec(changes(), 1..20), bound in 1_usize..30) {
        let object = |at: usize, name: usize| {
            let body = "x".repeat(at * 7);
            Arc::new(Object::from_json(format!("{body:?}"), &name.to_string(), version(at as u128)).unwrap())
        };
        let batches = recorded.iter().enumerate().map(|(at, (kinds, is_relist))| {
            let change = |(name, kind): (usize, &u8)| Change {
                old: (*kind != 0).then(|| object(at, name)),
                new: (*kind != 1).then(|| object(at + usize::from(*kind != 2), name)),
                version: version(at as u128 + 1),
                cause: if *is_relist { Cause::Inferred } else { Cause::Change },
                index_values: None,
            };
            let changes = kinds.iter().enumerate().map(change).collect();
            let (before, after) = (version(at as u128), version(at as u128 + 1));
            Arc::new(Batch { before, after, changes, is_relist: *is_relist, is_open: false })
        });
        let batches: Vec<_> = batches.collect();
        let now = Instant::now();
        let mut history = History::new(Retention { events: bound, ..BOUNDS }, begin(0));
        for batch in &batches {
            history.record(Arc::clone(batch), now);
        }
        let told = |batch: &&Arc<Batch>| !batch.changes.is_empty() || batch.is_relist;
        let kept: Vec<_> = batches.iter().filter(told).filter(|batch| batch.before >= *history.oldest()).collect();
        let backlog = history.after(&history.oldest().clone()).unwrap();
        // A batch of a single change begins at the end of the previous kept one.
        prop_assert_eq!(backlog.batches.len(), kept.len());
        for (found, expected) in backlog.batches.iter().zip(&kept) {
            prop_assert_eq!((&found.after, &found.changes), (&expected.after, &expected.changes));
            prop_assert!(found.before <= expected.before);
        }
        let changes = || kept.iter().flat_map(|batch| &batch.changes);
        let cost = |change: &Change| CHANGE_BYTES + change.old.as_ref().map_or(0, |old| old.body().len());
        prop_assert_eq!((history.events(), history.bytes()), (changes().count(), changes().map(cost).sum()));
        // Several changes at the newest version stay.
        let last = batches.len() as u128;
        history.record(batch(last, last + 1, 0), now);
        history.evict_old(now + BOUNDS.age + BOUNDS.age);
        prop_assert_eq!((history.events(), history.bytes()), (0, 0));
    }
}

proptest! {
    #![proptest_config(crate::property_config())]

    /// A client that is refused begins anew at the version that it is given as the oldest one.
    #[test]
    fn a_watch_can_resume_from_the_oldest_version(drawn in vec((0_u8..6, 1_u128..4), 1..24), bound in 1_usize..6) {
        let now = Instant::now();
        let mut history = History::new(Retention { events: bound, ..BOUNDS }, begin(5));
        let (mut safe, mut applied) = (5, 5);
        for (kind, step) in drawn {
            let (is_closed, next) = (safe == applied, applied + step);
            let recorded = match kind {
                0 => batch(if is_closed { applied } else { safe }, next, 1),
                1 if is_closed => open(next - 1, next),
                1 => open(safe, applied),
                2 if is_closed => open(applied, applied),
                3 if is_closed => ahead(applied, next),
                4 => relist(safe, next, usize::from(step > 1)),
                _ => batch(safe, applied, 0),
            };
            (safe, applied) = (recorded.safe().number(), recorded.after.number());
            history.record(recorded, now);
            let oldest = history.oldest().clone();
            prop_assert!(history.after(&oldest).is_ok(), "{oldest} of {history:?}");
            prop_assert!(oldest <= history.current().version, "{oldest} of {history:?}");
            // Whoever has a version since which nothing has changed lacks nothing up to the newest one.
            let (unchanged, current) = (history.unchanged_since().clone(), history.current().version.clone());
            prop_assert!(oldest <= unchanged && unchanged <= current, "{unchanged} of {history:?}");
            let lacks = |version| history.after(version).map(|backlog| numbers_up_to(&backlog, &current));
            prop_assert_eq!(lacks(&unchanged), lacks(&current), "{} of {:?}", unchanged, history);
        }
    }
}

/// Returns the versions of the missed changes up to a version.
fn numbers_up_to(backlog: &Backlog, last: &ResourceVersion) -> Vec<u128> {
    let changes = backlog.batches.iter().flat_map(|batch| &batch.changes);
    changes.map(|change| &change.version).filter(|version| *version <= last).map(ResourceVersion::number).collect()
}

/// One whose change is of a version above the one that it leads to, which was complete before.
fn ahead(at: u128, number: u128) -> Arc<Batch> {
    let mut batch = Batch::clone(&batch(at, at, 1));
    batch.changes[0].version = version(number);
    Arc::new(Batch { is_open: true, ..batch })
}

fn numbers(changes: &[Change]) -> Vec<u128> {
    changes.iter().map(|change| change.version.number()).collect()
}

/// Records a change ahead of the version that all watches of a resource have reached, as one of several watches may send it.
#[tokio::test]
async fn a_change_ahead_is_replayed_to_a_watch_that_resumes_below_it() {
    let now = Instant::now();
    let mut history = History::new(BOUNDS, begin(5));
    history.record(ahead(5, 12), now);
    history.record(ahead(5, 11), now);
    history.record(ahead(5, 14), now);
    history.record(open(5, 5), now);
    assert_eq!(numbers(&history.ahead()), [14, 11, 12], "what came late at a complete version is not ahead");
    history.record(batch(5, 20, 0), now);
    assert_eq!(history.ahead(), []);
    for (from, expected) in [(11, 4), (12, 2), (13, 2), (14, 0)] {
        assert_eq!(after(&history, from).unwrap().len(), expected, "{from}");
    }
}

#[tokio::test]
async fn a_change_ahead_is_kept_only_until_its_version_is_complete() {
    let now = Instant::now();
    let mut history = History::new(Retention { events: 2, ..BOUNDS }, begin(5));
    history.record(batch(5, 6, 1), now);
    history.record(batch(6, 7, 0), now);
    history.record(ahead(7, 12), now);
    assert_eq!(history.events(), 2);
    history.record(batch(7, 8, 1), now);
    assert_eq!((history.oldest(), history.events()), (&version(6), 2), "the one before it goes by itself");
    history.record(batch(8, 9, 1), now);
    assert_eq!((history.oldest(), history.events()), (&version(6), 3), "more than the bound");
    assert_eq!(after(&history, 9), Ok(vec![7, 8, 9]));
    history.record(batch(9, 12, 1), now);
    assert_eq!((history.oldest(), history.events()), (&version(12), 2), "who has no change of 12 lacks this one");
}

/// An object of a list may be newer than the version of the list.
#[tokio::test]
async fn changes_that_a_list_has_shown_are_not_ahead_of_it() {
    let now = Instant::now();
    let mut history = History::new(BOUNDS, begin(5));
    history.record(ahead(5, 14), now);
    let mut listed = Batch::clone(&relist(5, 6, 1));
    listed.changes[0].version = version(12);
    history.record(Arc::new(listed), now);
    assert_eq!(numbers(&history.ahead()), [14]);
}

#[tokio::test]
async fn what_is_evicted_is_kept_within_bounds_for_who_needs_it_and_nobody_resumes_there() {
    let (now, later) = (Instant::now(), Instant::now() + BOUNDS.age + Duration::from_secs(1));
    let mut history = History::new(Retention { events: 4, ..BOUNDS }, begin(0));
    let record = |history: &mut History, range: std::ops::Range<u128>| {
        for number in range {
            history.record(batch(number, number + 1, 1), now);
        }
    };
    history.keep_from(1);
    record(&mut history, 0..5);
    assert_eq!((history.oldest(), history.events(), history.kept_until()), (&version(1), 4, None));
    record(&mut history, 5..6);
    assert_eq!((history.oldest(), history.events(), history.kept_until()), (&version(2), 5, Some(0)));
    assert_eq!(after(&history, 1), Err(NotInHistory::Expired));
    assert_eq!(history.read(1, 6, 100).map(|batches| batches.len()), Some(5));
    assert!(history.read(0, 6, 100).is_none());
    let position = |offset| ReplayPosition { version: version(u128::from(offset)), offset, is_gap: false };
    assert_eq!(history.replay(&position(1), 6, 100).map(|replay| replay.reached().offset), Some(1));
    assert!(history.replay(&position(0), 6, 100).is_none());
    record(&mut history, 6..7);
    assert_eq!((history.events(), history.kept_until()), (6, Some(2)), "more than the bounds, without the newest");
    history.keep_from(6);
    history.evict_old(now);
    assert_eq!((history.oldest(), history.events(), history.kept_until()), (&version(3), 4, None));
    assert!(history.read(2, 7, 100).is_none());
    history.evict_old(later);
    assert_eq!((history.oldest(), history.events(), history.kept_until()), (&version(7), 1, Some(0)), "of any age");
    record(&mut history, 7..400);
    assert_eq!(history.events(), 2 * 4 + 256 + 1, "twice the bounds, and a few cycles");
    assert!(history.read(6, 400, 1000).is_none());
    let (begin, bytes) = (400 - history.events() as u64, history.bytes());
    assert_eq!(history.read(begin, 400, 1000).map(|batches| batches.len()), Some(history.events()));
    // A queue has requested that meanwhile.
    history.begin_keep();
    history.keep_also_from(begin + 1);
    history.keep_from(u64::MAX);
    history.evict_old(now);
    assert!(history.read(begin + 1, 400, 1000).is_some());
    history.begin_keep();
    history.keep_from(u64::MAX);
    history.evict_old(now);
    assert_eq!((history.events(), history.bytes()), (4, bytes / 265 * 4));
}

/// The oldest version to resume from is not always the one where the first batch began.
#[tokio::test]
async fn a_batch_begins_where_it_began_also_after_a_late_one_that_is_gone() {
    let now = Instant::now();
    let mut history = History::new(Retention { events: 2, ..BOUNDS }, begin(10));
    history.record(batch(10, 12, 1), now);
    history.record(batch(12, 12, 1), now);
    history.record(batch(12, 15, 1), now);
    history.record(batch(15, 16, 1), now);
    assert_eq!((history.oldest(), history.events()), (&version(13), 2));
    let batches = history.read(2, 4, 100).unwrap();
    assert_eq!(batches.iter().map(|(batch, _)| batch.before.number()).collect::<Vec<_>>(), [12, 15]);
}
