//! Lists as one stream, as of etcd 3.7, and in pages of an etcd without it.

use tonic::Status;

use super::*;
use crate::source::etcd::tests::fake_etcd::Fault;

/// Returns a cluster with numbered keys, ten to a transaction.
fn cluster(keys: usize, part: i64) -> FakeEtcd {
    let fake = FakeEtcd::new();
    let key = |n: usize| (format!("{PREFIX}{n:04}").into_bytes(), Some(n.to_string().into_bytes()));
    for first in (0..keys).step_by(10) {
        fake.apply((first..keys.min(first + 10)).map(key).collect());
    }
    fake.set(|store| store.part = Some(part));
    fake
}

/// Adds a fault to the second call of the next list.
fn in_the_middle(fake: &FakeEtcd, fault: Fault) {
    fake.set(|store| store.ranges.extend([Fault::Then(Box::new(|_| {})), fault]));
}

#[tokio::test]
async fn a_stream_in_parts_of_any_size_is_the_list() {
    for (keys, part) in [(0, 1), (1, 1), (7, 3), (300, 7), (3000, 1500), (3000, 9000)] {
        let fake = cluster(keys, part);
        let gate = fake.member().await;
        let mut rig = Rig::of(&gate);
        assert_eq!(rig.told().await, format!("list {}", fake.revision()));
        assert_eq!((rig.state.clone(), rig.lists()), (fake.state(PREFIX), 1), "{keys} in parts of {part}");
        assert_eq!(fake.counts().pages, keys.div_ceil(part as usize).max(1));
        fake.write("0000=x");
        assert!(rig.told().await.starts_with(&fake.revision().to_string()), "it continues from the list");
    }
}

/// The state is that at the revision of the first part: what is written meanwhile comes as an event.
#[tokio::test]
async fn a_stream_is_the_state_at_one_revision() {
    let fake = cluster(40, 10);
    let write = |fake: &FakeEtcd| fake.write("0000=9 0039=9 -0020 new=1");
    in_the_middle(&fake, Fault::Then(Box::new(write)));
    let before = fake.state(PREFIX);
    let gate = fake.member().await;
    let mut rig = Rig::of(&gate);
    assert_eq!(rig.told().await, "list 5");
    assert_eq!(rig.state, before);
    rig.reach(&fake).await;
    assert_eq!((rig.state.clone(), rig.lists(), rig.history_rewrites), (fake.state(PREFIX), 1, 0));
}

#[tokio::test]
async fn a_stream_that_is_compacted_is_read_at_once() {
    let fake = cluster(40, 10);
    let compact = |fake: &FakeEtcd| {
        fake.write("0000=2 -0039");
        fake.compact(6);
    };
    in_the_middle(&fake, Fault::Then(Box::new(compact)));
    let gate = fake.member().await;
    let mut rig = Rig::of(&gate);
    assert_eq!(rig.told().await, "list 6");
    let failures = rig.stats.list_failures.load(Ordering::Relaxed);
    assert_eq!((rig.state.clone(), failures), (fake.state(PREFIX), 0));
    assert_eq!(fake.counts().pages, 3, "two parts, and everything");
}

/// Neither a stream that breaks nor one that ends early is a shorter list.
#[tokio::test]
async fn a_stream_that_does_not_come_to_its_end_is_no_list() {
    for (fault, error) in [
        (Some(Status::unavailable("etcdserver: leader changed")), "leader changed"),
        (Some(Status::data_loss("torn")), "torn"),
        (None, "a stream without its last part"),
    ] {
        let fake = cluster(40, 10);
        match fault {
            Some(status) => in_the_middle(&fake, Fault::Refuse(status)),
            None => fake.set(|store| store.cuts_streams = true),
        }
        let gate = fake.member().await;
        let mut rig = Rig::of(&gate);
        rig.error(error).await;
        assert!(rig.state.is_empty());
        fake.set(|store| store.cuts_streams = false);
        assert_eq!(rig.told().await, "list 5");
        assert_eq!((rig.state.clone(), rig.history_rewrites), (fake.state(PREFIX), 0));
    }
}

/// A proxy of an older etcd, or parts above the limit of a message.
#[tokio::test]
async fn without_streams_the_list_is_in_pages() {
    for status in [Status::unimplemented("unknown"), Status::out_of_range("Error, decoded message length too large")] {
        let fake = cluster(40, 10);
        in_the_middle(&fake, Fault::Refuse(status));
        let gate = fake.member().await;
        let mut rig = Rig::of(&gate);
        assert_eq!(rig.told().await, "list 5");
        assert_eq!((rig.state.clone(), fake.counts().pages), (fake.state(PREFIX), 4), "two parts, two pages");
    }
}
