//! Lists and watches without faults.

use super::*;
use crate::source::etcd::tests::fake_etcd::Fault;

#[tokio::test]
async fn a_prefix_is_listed_and_then_watched_from_there() {
    let fake = FakeEtcd::new();
    fake.write("web=1 shop/db={}");
    fake.apply(vec![(b"/t/other".to_vec(), Some(b"x".to_vec()))]);
    let gate = fake.member().await;
    let mut rig = Rig::of(&gate);
    assert_eq!(rig.told().await, "list 3");
    assert_eq!(rig.state, fake.state(PREFIX));
    fake.write("web=2");
    fake.apply(vec![(b"/t/other".to_vec(), None)]);
    fake.write("-shop/db new=3");
    assert_eq!(rig.told().await, "4 ~web=2");
    assert_eq!(rig.told().await, "6 -shop/db +new=3", "one revision, whole");
    let counts = fake.counts();
    assert_eq!((counts.pages, counts.ranges, counts.watches), (1, 1, 1), "one list and one watch, and no more");
}

#[tokio::test]
async fn a_key_that_is_put_again_is_another_object() {
    let fake = FakeEtcd::new();
    fake.write("a=1");
    let gate = fake.member().await;
    let mut rig = Rig::of(&gate);
    rig.told().await;
    let uid = rig.state["a"].0.clone();
    fake.write("-a");
    fake.write("a=1");
    assert_eq!([rig.told().await, rig.told().await], ["3 -a", "4 +a=1"]);
    assert_ne!(rig.state["a"].0, uid);
}

/// All pages are of one revision, whatever is written in between.
#[tokio::test]
async fn pages_are_of_one_revision() {
    let fake = FakeEtcd::new();
    let keys = (0..500).map(|n| (format!("/s/{n}").into_bytes(), Some(n.to_string().into_bytes())));
    fake.apply(keys.collect());
    let write = |fake: &FakeEtcd| fake.write("0=changed -499 500=new");
    fake.set(|store| store.ranges.push_back(Fault::Then(Box::new(|_| {}))));
    fake.set(|store| store.ranges.push_back(Fault::Then(Box::new(write))));
    let gate = fake.member().await;
    let mut rig = Rig::of(&gate);
    assert_eq!(rig.told().await, "list 2");
    assert_eq!((rig.state.len(), rig.state["0"].1.as_str()), (500, "0"));
    assert_eq!(fake.counts().pages, 3, "32, 128 and the rest");
    assert_eq!(rig.told().await, "3 ~0=changed -499 +500=new");
}

#[tokio::test]
async fn a_transaction_split_over_messages_is_delivered_whole() {
    for fragment in [1, 2, 3, 5] {
        let fake = FakeEtcd::new();
        fake.write("z=0");
        let gate = fake.member().await;
        let mut rig = Rig::of(&gate);
        rig.told().await;
        // Every transaction after the break is split.
        gate.refuse(true);
        fake.set(|store| store.fragment = fragment);
        fake.write("a=1 b=1 c=1");
        fake.write("a=2");
        fake.write("-a -b d=1 e=1");
        gate.refuse(false);
        let told = [rig.told().await, rig.told().await, rig.told().await];
        assert_eq!(told, ["3 +a=1 +b=1 +c=1", "4 ~a=2", "5 -a -b +d=1 +e=1"], "{fragment} events a message");
        assert_eq!(rig.lists(), 1);
    }
}

#[tokio::test]
async fn keys_that_cannot_be_objects_are_skipped_and_reported() {
    let fake = FakeEtcd::new();
    fake.write("good=1 /bad=1");
    let gate = fake.member().await;
    let mut rig = Rig::of(&gate);
    rig.told().await;
    assert_eq!(rig.state.len(), 1);
    assert_eq!(
        rig.error("/s//bad").await,
        "/s//bad: the key has a slash after the prefix; end the prefix with a slash"
    );
    let large = "x".repeat(crate::model::MAX_OBJECT_BYTES + 1);
    fake.write(&format!("good={large}"));
    assert_eq!(rig.told().await, "3 !good", "it exists");
    fake.write("-/bad");
    assert_eq!(rig.next().await, "bookmark 4");
    rig.error("good: object too large: 3145729 bytes").await;
    fake.write("good=2");
    assert_eq!(rig.told().await, "5 ~good=2", "etcd has not deleted it");
    assert_eq!(rig.health.report().problems, 0);
}

/// A value grows, is written again, is deleted, and grows beside another change.
#[tokio::test]
async fn a_value_that_grows_is_not_deleted_live_or_at_a_list() {
    let fake = FakeEtcd::new();
    fake.write("a=1 b=1");
    let gate = fake.member().await;
    let mut rig = Rig::of(&gate);
    rig.told().await;
    let large = "x".repeat(crate::model::MAX_OBJECT_BYTES + 1);
    fake.write(&format!("a={large} b=2"));
    assert_eq!(rig.told().await, "3 !a ~b=2");
    fake.write("-a");
    assert_eq!(rig.told().await, "4 -a");
    fake.write(&format!("a={large}"));
    assert_eq!(rig.told().await, "5 !a");
    gate.refuse(true);
    rig.error("connection").await;
    fake.write(&format!("b={large}"));
    fake.compact(6);
    gate.refuse(false);
    let list = loop {
        let popped = timeout(DEADLINE, rig.fifo.pop_batch(1, 1)).await.expect("a list in time");
        if let crate::cache::Delta::Replace(list) = popped.unwrap().remove(0) {
            break list;
        }
    };
    let not_served: Vec<_> = list.not_served.iter().map(|object| (object.key().name(), object.uid())).collect();
    assert_eq!((list.objects.len(), not_served), (0, vec![("a", "5/a"), ("b", "2/b")]));
}
