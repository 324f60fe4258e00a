//! Time of one cycle, and the groups that are charged for it.

use super::*;
use crate::{model::ResourceVersion, watch::Deliveries};

fn groups(count: usize) -> Vec<Arc<Group<Deliveries>>> {
    let reached = HistoryPosition { version: ResourceVersion::decimal(0), offset: 0 };
    let group = |id| {
        let writer_signals = Arc::new(WriterSignals::new(Duration::ZERO, Arc::default()));
        Arc::new(Group::new(id, Arc::default(), (), true, reached.clone(), writer_signals))
    };
    (0..count).map(group).collect()
}

fn time(left: u64, groups: usize) -> Time {
    Time { left, spent: 0, is_deferred: vec![false; groups] }
}

#[test]
fn a_group_that_exceeds_the_remaining_time_is_charged_alone() {
    let groups = groups(3);
    let mut time = time(100, 3);
    time.settle(&groups, &[0], 100, false);
    assert!(!time.is_deferred[0], "it has taken what there is, and no more");
    time.settle(&groups, &[1], 1000, false);
    assert_eq!(time.is_deferred, [false, true, false]);
    assert!(time.admits(2, 0), "nobody else pays for it");
    assert!(!time.admits(2, 1), "and nothing is left of the rest");
    assert_eq!(time.is_deferred, [false, true, true]);
    assert!(!time.admits(2, 0), "whoever was left out once stays so to the end of the cycle");
}

#[test]
fn groups_evaluated_to_the_end_of_the_cycle_are_not_deferred_for_their_time() {
    let groups = groups(3);
    let mut time = time(100, 3);
    time.is_deferred[2] = true;
    time.settle(&groups, &[0, 1, 2], 1000, true);
    assert_eq!((time.is_deferred.as_slice(), time.spent, time.left), (&[false, false, true][..], 3000, 100));
}

#[test]
fn time_that_several_groups_took_together_is_charged_to_all() {
    let groups = groups(3);
    let mut time = time(100, 3);
    time.settle(&groups, &[0, 1], 51, false);
    assert_eq!((time.is_deferred.as_slice(), time.spent, time.left), (&[true, true, false][..], 102, 202));
}
