//! Faults between etcd and the source, and wrong responses.

use tonic::Status;

use super::*;
use crate::source::etcd::{
    pb::{KeyValue, RangeResponse, ResponseHeader},
    tests::fake_etcd::Fault,
};

/// Cuts the connection at every byte that a member sends: complete transactions are applied, an incomplete one never.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_cut_at_any_byte_loses_and_repeats_no_event() {
    let whole = replay(usize::MAX).await;
    assert!(whole > 300, "{whole} bytes");
    for bytes in 1..whole {
        replay(bytes).await;
    }
}

/// Replays a list, and transactions of several keys in fragments, over a first connection of so many bytes.
async fn replay(bytes: usize) -> usize {
    let fake = FakeEtcd::new();
    fake.set(|store| store.fragment = 2);
    fake.write("a=1 b=1");
    let gate = fake.member().await;
    gate.limit_next(bytes);
    let mut rig = Rig::of(&gate);
    rig.told().await;
    for changes in ["c=1 d=1 e=1", "a=2 -b", "b=9", "-a -b -c"] {
        fake.write(changes);
    }
    rig.reach(&fake).await;
    assert_eq!(rig.history_rewrites, 0, "cut after {bytes}");
    gate.passed()
}

#[tokio::test]
async fn a_watch_resumes_after_a_break_without_a_list() {
    let fake = FakeEtcd::new();
    fake.write("a=0");
    let gate = fake.member().await;
    let mut rig = Rig::of(&gate);
    rig.told().await;
    for n in 1..20 {
        fake.write(&format!("a={n}"));
        assert_eq!(rig.told().await, format!("{} ~a={n}", n + 2));
        gate.cut();
    }
    assert_eq!((rig.lists(), rig.history_rewrites), (1, 0));
    assert!(gate.accepted() > 10);
}

#[tokio::test]
async fn a_compacted_watch_is_listed_again_once() {
    let fake = FakeEtcd::new();
    fake.write("a=1 b=1");
    let gate = fake.member().await;
    let mut rig = Rig::of(&gate);
    rig.told().await;
    gate.refuse(true);
    rig.error("connection").await;
    fake.write("a=2");
    fake.write("-b c=1");
    fake.compact(4);
    gate.refuse(false);
    assert_eq!(rig.told().await, "list 4");
    assert_eq!(rig.state, fake.state(PREFIX));
    fake.write("a=3");
    assert_eq!(rig.told().await, "5 ~a=3");
    assert_eq!((rig.lists(), rig.history_rewrites), (2, 0));
}

#[tokio::test]
async fn a_list_that_is_compacted_between_pages_is_read_at_once() {
    let fake = FakeEtcd::new();
    for n in 0..100 {
        fake.write(&format!("{n}=1"));
    }
    let compact = |fake: &FakeEtcd| {
        fake.write("0=2");
        fake.compact(102);
    };
    fake.set(|store| store.ranges.push_back(Fault::Then(Box::new(|_| {}))));
    fake.set(|store| store.ranges.push_back(Fault::Then(Box::new(compact))));
    let gate = fake.member().await;
    let mut rig = Rig::of(&gate);
    assert_eq!(rig.told().await, "list 102");
    assert_eq!((rig.state.clone(), rig.stats.list_failures.load(Ordering::Relaxed)), (fake.state(PREFIX), 0));
}

#[tokio::test]
async fn after_a_page_that_takes_too_long_pages_are_smaller() {
    let fake = FakeEtcd::new();
    for n in 0..300 {
        fake.write(&format!("{n}=1"));
    }
    let answers = || Fault::Then(Box::new(|_| {}));
    fake.set(|store| store.ranges.extend([answers(), answers(), Fault::Hang]));
    let gate = fake.member().await;
    let mut rig = Rig::start(EtcdConfig { answer_timeout: Duration::from_millis(300), ..config(&[&gate]) });
    assert_eq!(rig.told().await, "list 301");
    assert_eq!((rig.state.clone(), rig.stats.list_failures.load(Ordering::Relaxed)), (fake.state(PREFIX), 0));
    assert_eq!(fake.counts().pages, 6, "32, 128, 512 that hang, 32, 64 and the rest");
}

/// Duplicate, out-of-order and old events are never forwarded; the rig fails on repeated ones.
#[tokio::test]
async fn contradictory_responses_are_never_forwarded() {
    for at in 2..6_i64 {
        let fake = FakeEtcd::new();
        fake.write("a=1");
        let gate = fake.member().await;
        let mut rig = Rig::of(&gate);
        rig.told().await;
        gate.cut();
        for n in 2..5 {
            fake.write(&format!("a={n}"));
        }
        // After everything, a revision that is over, or the last one again.
        fake.set(|store| {
            let again = store.response(|response| {
                let kv = crate::source::etcd::pb::KeyValue {
                    key: b"/s/a".to_vec(),
                    value: "wrong".into(),
                    mod_revision: at.min(5),
                    create_revision: 2,
                    version: 9,
                };
                let event = crate::source::etcd::pb::Event { r#type: 0, kv: Some(kv) };
                response.events.push(event);
            });
            store.watches.push_back(Fault::Tell(vec![again]));
        });
        while rig.version < 5 {
            assert!(!rig.next().await.contains("wrong"));
        }
        fake.write("a=5");
        assert_eq!(rig.told().await, "6 ~a=5");
        assert_eq!(rig.history_rewrites, 0, "revision {at}");
    }
}

#[tokio::test]
async fn an_upstream_that_is_busy_is_not_listed() {
    let fake = FakeEtcd::new();
    fake.write("a=1");
    let gate = fake.member().await;
    let mut rig = Rig::of(&gate);
    rig.told().await;
    fake.write("a=2");
    rig.told().await;
    for _ in 0..5 {
        let status = Status::unavailable("etcdserver: leader changed");
        fake.set(|store| store.watches.push_back(Fault::Refuse(status)));
    }
    gate.cut();
    fake.write("a=3");
    assert_eq!(rig.told().await, "4 ~a=3");
    assert_eq!((rig.lists(), fake.counts().watches), (1, 7));
}

#[tokio::test]
async fn the_reason_of_a_cancelled_watch_is_reported() {
    let fake = FakeEtcd::new();
    let gate = fake.member().await;
    let denied = |response: &mut crate::source::etcd::pb::WatchResponse| {
        (response.canceled, response.created) = (true, true);
        response.cancel_reason = "rpc error: code = PermissionDenied desc = etcdserver: permission denied".to_owned();
    };
    fake.set(|store| {
        let told = store.response(denied);
        store.watches.push_back(Fault::Tell(vec![told]));
    });
    let rig = Rig::of(&gate);
    let error = rig.error("denied").await;
    assert!(error.ends_with("permission denied; grant the user read access to every key of the prefix"), "{error}");
}

/// Every field of a message is optional: an empty one, as of a proxy, is neither an empty prefix nor an older cluster.
#[tokio::test]
async fn an_answer_that_is_none_of_etcd_empties_nothing() {
    let header = |cluster_id, revision| Some(ResponseHeader { cluster_id, member_id: 1, revision, raft_term: 2 });
    let kv = |key: &str| KeyValue { key: key.as_bytes().to_vec(), mod_revision: 2, ..KeyValue::default() };
    let answer = |header, kvs, more| RangeResponse { header, kvs, more };
    for wrong in [
        RangeResponse::default(),
        answer(header(0, 999), vec![], false),
        answer(header(7, 0), vec![], false),
        answer(header(7, 999), vec![], true),
        answer(header(7, 999), vec![kv("/elsewhere/a")], false),
    ] {
        let fake = FakeEtcd::new();
        fake.write("a=1 b=1");
        let gate = fake.member().await;
        let mut rig = Rig::of(&gate);
        rig.told().await;
        // A list, since the version is compacted; the head comes first.
        fake.set(|store| store.answers.extend([wrong.clone(), wrong.clone()]));
        gate.refuse(true);
        rig.error("connection").await;
        fake.write("a=2");
        fake.compact(3);
        gate.refuse(false);
        while fake.answers() > 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        rig.reach(&fake).await;
        assert_eq!((rig.state.clone(), rig.history_rewrites), (fake.state(PREFIX), 0), "{wrong:?}");
    }
}

/// A page of the same keys again would have no end.
#[tokio::test]
async fn pages_in_a_circle_are_no_list() {
    let fake = FakeEtcd::new();
    for n in 0..40 {
        fake.write(&format!("{n:02}=1"));
    }
    let gate = fake.member().await;
    let (header, kvs) = fake.all();
    let header = Some(header);
    let page = RangeResponse { header, kvs: kvs[..32].to_vec(), more: true };
    fake.set(|store| store.answers.extend((0..5).map(|_| page.clone())));
    let mut rig = Rig::of(&gate);
    rig.error("a page of other keys").await;
    rig.reach(&fake).await;
}
