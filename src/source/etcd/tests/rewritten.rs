//! Rewritten histories, also those that are hard to detect.

use super::*;
use crate::source::etcd::{
    pb::{RangeResponse, ResponseHeader},
    tests::fake_etcd::Fault,
};

/// Stops the members, restores a revision, writes, and starts them.
async fn restored(fake: &FakeEtcd, gate: &Gate, rig: &Rig, to: i64, writes: &[&str]) {
    gate.refuse(true);
    rig.error("connection").await;
    fake.restore(to);
    for changes in writes {
        fake.write(changes);
    }
    gate.refuse(false);
}

#[tokio::test]
async fn a_lower_revision_is_a_rewritten_history() {
    let (fake, gate, mut rig) = at_five().await;
    restored(&fake, &gate, &rig, 3, &[]).await;
    assert_eq!(rig.told().await, "rewind 3");
    assert_eq!((rig.state.clone(), rig.history_rewrites, rig.lists()), (fake.state(PREFIX), 1, 2));
}

/// By the time of the list the cluster may have passed the known revision, and the list contradicts nothing.
#[tokio::test]
async fn a_lower_revision_is_detected_even_if_writes_raise_it_at_once() {
    let (fake, gate, mut rig) = at_five().await;
    let writing = |fake: &FakeEtcd| ["a=5", "a=6", "a=7"].iter().for_each(|changes| fake.write(changes));
    let faults = [Fault::Then(Box::new(|_| ())), Fault::Then(Box::new(writing))];
    fake.set(|store| store.ranges.extend(faults));
    restored(&fake, &gate, &rig, 3, &[]).await;
    assert_eq!(rig.told().await, "rewind 6");
    assert_eq!((rig.state.clone(), rig.history_rewrites), (fake.state(PREFIX), 1));
}

#[tokio::test]
async fn the_same_revision_with_other_content_is_a_rewritten_history() {
    let (fake, gate, mut rig) = at_five().await;
    restored(&fake, &gate, &rig, 3, &["a=3", "a=other"]).await;
    assert_eq!(rig.told().await, "rewind 5");
    assert_eq!(rig.state, fake.state(PREFIX));
}

#[tokio::test]
async fn a_higher_revision_with_another_last_transaction_is_a_rewritten_history() {
    for writes in [
        &["a=3", "a=other", "a=5", "a=6"][..],
        &["-a", "-b", "c=1"],
        &["x=1", "a=4", "a=4"],
        &["a=3", "-a", "a=1"],
        &["a=3", "a=4 b=4", "a=1"],
    ] {
        let (fake, gate, mut rig) = at_five().await;
        restored(&fake, &gate, &rig, 3, writes).await;
        assert!(rig.told().await.starts_with("rewind "), "{writes:?}");
        assert_eq!((rig.state.clone(), rig.history_rewrites), (fake.state(PREFIX), 1));
        fake.write("a=after");
        rig.reach(&fake).await;
    }
}

#[tokio::test]
async fn changes_at_revisions_without_changes_are_a_rewritten_history() {
    let (fake, gate, mut rig) = at_five().await;
    for n in 6..=9 {
        fake.apply(vec![(b"/elsewhere".to_vec(), Some(vec![n]))]);
    }
    while rig.version < 9 {
        rig.next().await;
    }
    // The last transaction of the prefix is the same; the later ones are not.
    restored(&fake, &gate, &rig, 5, &["b=2"]).await;
    fake.apply((6..=12).map(|n| (format!("/else/{n}").into_bytes(), Some(vec![n]))).collect());
    for n in 6..=12 {
        fake.apply(vec![(b"/elsewhere".to_vec(), Some(vec![n]))]);
    }
    assert!(rig.told().await.starts_with("rewind"));
    assert_eq!(rig.state, fake.state(PREFIX));
}

#[tokio::test]
async fn the_newest_keys_of_a_list_must_be_replayed_after_a_break() {
    let fake = FakeEtcd::new();
    fake.write("a=1");
    fake.write("a=2 b=2");
    let gate = fake.member().await;
    let mut rig = Rig::of(&gate);
    assert_eq!(rig.told().await, "list 3");
    gate.cut();
    fake.write("c=1");
    assert_eq!(rig.told().await, "4 +c=1");
    assert_eq!(rig.lists(), 1);
    drop(rig);

    let mut rig = Rig::of(&gate);
    rig.told().await;
    restored(&fake, &gate, &rig, 3, &["d=1", "e=1"]).await;
    assert_eq!(rig.told().await, "rewind 5");
}

/// A list lacks objects deleted before it. Another list has to show if another history deleted them as well.
#[tokio::test]
async fn a_deletion_before_a_list_leads_to_another_list_after_a_break() {
    let fake = FakeEtcd::new();
    fake.write("a=1");
    fake.write("b=1 c=1");
    fake.write("-a");
    let gate = fake.member().await;
    let mut rig = Rig::of(&gate);
    assert_eq!(rig.told().await, "list 4");
    restored(&fake, &gate, &rig, 3, &["-b"]).await;
    fake.apply(vec![(b"/elsewhere".to_vec(), Some(vec![1]))]);
    assert_eq!(rig.told().await, "list 5");
    assert_eq!(rig.state, fake.state(PREFIX), "a is there, and b is not");
    fake.write("d=1");
    assert_eq!(rig.told().await, "6 +d=1");
    assert_eq!(rig.lists(), 2);
}

#[tokio::test]
async fn another_cluster_is_a_rewritten_history_whatever_the_revision() {
    let (fake, gate, mut rig) = at_five().await;
    gate.refuse(true);
    rig.error("connection").await;
    fake.set(|store| store.cluster_id = 8);
    fake.write("a=5");
    gate.refuse(false);
    assert_eq!(rig.told().await, "rewind 6");
    fake.write("a=6");
    assert_eq!(rig.told().await, "7 ~a=6");
    assert_eq!(rig.history_rewrites, 1);
}

/// A load balancer may lead a read to another cluster than the watch.
#[tokio::test]
async fn the_revision_of_another_cluster_is_not_confirmed() {
    let (fake, _gate, mut rig) = at_five().await;
    let header = ResponseHeader { cluster_id: 8, revision: 9, ..fake.all().0 };
    fake.set(|store| store.answers.push_back(RangeResponse { header: Some(header), ..RangeResponse::default() }));
    let confirmed = rig.demand.confirmed_since(tokio::time::Instant::now());
    let _waiting = rig.demand.wait();
    assert_eq!(timeout(DEADLINE, confirmed).await.expect("in time"), ResourceVersion::decimal(5));
    assert_eq!((rig.told().await, rig.history_rewrites), ("rewind 5".to_owned(), 1));
}

/// The term in a response is that of the last entry that the member has applied, which a snapshot of the leader does not set.
#[tokio::test]
async fn a_lower_term_alone_is_no_rewritten_history() {
    let (fake, gate, mut rig) = at_five().await;
    gate.refuse(true);
    rig.error("connection").await;
    fake.set(|store| store.raft_term = 1);
    fake.write("a=5");
    gate.refuse(false);
    assert_eq!(rig.told().await, "6 ~a=5");
    assert_eq!((rig.lists(), rig.history_rewrites), (1, 0));
    fake.set(|store| store.raft_term = 0);
    restored(&fake, &gate, &rig, 4, &["a=4", "a=other", "a=7"]).await;
    assert_eq!(rig.told().await, "rewind 7");
}

/// Another history has keys where there were none.
#[tokio::test]
async fn keys_at_the_revision_of_an_empty_list_are_a_rewritten_history() {
    let fake = FakeEtcd::new();
    fake.write("a=1");
    fake.write("-a");
    fake.apply(vec![(b"/elsewhere".to_vec(), Some(vec![1]))]);
    let gate = fake.member().await;
    let mut rig = Rig::of(&gate);
    assert_eq!(rig.told().await, "list 4");
    restored(&fake, &gate, &rig, 2, &["b=1", "c=1", "b=2"]).await;
    assert_eq!(rig.told().await, "rewind 5");
    assert_eq!(rig.state, fake.state(PREFIX));
}

#[tokio::test]
async fn a_higher_term_is_an_election() {
    let (fake, gate, mut rig) = at_five().await;
    gate.cut();
    fake.set(|store| store.raft_term = 9);
    fake.write("a=5");
    assert_eq!(rig.told().await, "6 ~a=5");
    assert_eq!((rig.lists(), rig.history_rewrites), (1, 0));
}

/// Deletions may be compacted away at their own revision; that proves nothing, and the source lists the resource.
#[tokio::test]
async fn a_deletion_that_is_not_replayed_leads_to_a_list() {
    let (fake, gate, mut rig) = at_five().await;
    fake.write("-b");
    rig.told().await;
    gate.refuse(true);
    rig.error("connection").await;
    fake.restore(5);
    fake.apply(vec![(b"/elsewhere".to_vec(), Some(vec![1]))]);
    fake.write("a=5");
    gate.refuse(false);
    assert_eq!(rig.told().await, "list 7");
    assert_eq!(rig.state, fake.state(PREFIX));
}

/// A member that is behind answers a linearizable read only when it has caught up; the watch waits for that.
#[tokio::test]
async fn a_lagging_member_is_no_rewritten_history() {
    let (fake, gate, mut rig) = at_five().await;
    let status = || tonic::Status::unavailable("etcdserver: no leader");
    fake.set(|store| store.ranges.extend([Fault::Refuse(status()), Fault::Refuse(status())]));
    gate.cut();
    fake.write("a=5");
    assert_eq!(rig.told().await, "6 ~a=5");
    assert_eq!((rig.lists(), rig.history_rewrites), (1, 0));
}
