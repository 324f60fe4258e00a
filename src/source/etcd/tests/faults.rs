//! Faults between etcd and the source, and wrong responses.

use tonic::Status;

use super::*;
use crate::source::etcd::tests::play::Fault;

/// Cuts the connection at every byte that a member sends: complete transactions are applied, an incomplete one never.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_cut_at_any_byte_loses_nothing_and_tells_nothing_twice() {
    let whole = replay(usize::MAX).await;
    assert!(whole > 300, "{whole} bytes");
    for bytes in 1..whole {
        replay(bytes).await;
    }
}

/// Replays a list, and transactions of several keys in fragments, over a first connection of so many bytes.
async fn replay(bytes: usize) -> usize {
    let play = Play::new();
    play.set(|store| store.fragment = 2);
    play.write("a=1 b=1");
    let gate = play.member().await;
    gate.limit_next(bytes);
    let mut rig = Rig::of(&gate);
    rig.told().await;
    for changes in ["c=1 d=1 e=1", "a=2 -b", "b=9", "-a -b -c"] {
        play.write(changes);
    }
    rig.reach(&play).await;
    assert_eq!(rig.rewinds, 0, "cut after {bytes}");
    gate.passed()
}

#[tokio::test]
async fn a_watch_goes_on_after_a_break_without_a_list() {
    let play = Play::new();
    play.write("a=0");
    let gate = play.member().await;
    let mut rig = Rig::of(&gate);
    rig.told().await;
    for n in 1..20 {
        play.write(&format!("a={n}"));
        assert_eq!(rig.told().await, format!("{} ~a={n}", n + 2));
        gate.cut();
    }
    assert_eq!((rig.lists(), rig.rewinds), (1, 0));
    assert!(gate.accepted() > 10);
}

#[tokio::test]
async fn a_compacted_watch_is_listed_again_once() {
    let play = Play::new();
    play.write("a=1 b=1");
    let gate = play.member().await;
    let mut rig = Rig::of(&gate);
    rig.told().await;
    gate.refuse(true);
    rig.error("connection").await;
    play.write("a=2");
    play.write("-b c=1");
    play.compact(4);
    gate.refuse(false);
    assert_eq!(rig.told().await, "list 4");
    assert_eq!(rig.state, play.state(PREFIX));
    play.write("a=3");
    assert_eq!(rig.told().await, "5 ~a=3");
    assert_eq!((rig.lists(), rig.rewinds), (2, 0));
}

#[tokio::test]
async fn a_list_that_is_compacted_between_pages_is_read_at_once() {
    let play = Play::new();
    for n in 0..100 {
        play.write(&format!("{n}=1"));
    }
    let compact = |play: &Play| {
        play.write("0=2");
        play.compact(102);
    };
    play.set(|store| store.ranges.push_back(Fault::Then(Box::new(|_| {}))));
    play.set(|store| store.ranges.push_back(Fault::Then(Box::new(compact))));
    let gate = play.member().await;
    let mut rig = Rig::of(&gate);
    assert_eq!(rig.told().await, "list 102");
    assert_eq!((rig.state.clone(), rig.stats.list_failures.load(Ordering::Relaxed)), (play.state(PREFIX), 0));
}

/// Duplicate, out-of-order and old events are never forwarded; the rig fails on repeated ones.
#[tokio::test]
async fn what_contradicts_itself_is_never_forwarded() {
    for at in 2..6_i64 {
        let play = Play::new();
        play.write("a=1");
        let gate = play.member().await;
        let mut rig = Rig::of(&gate);
        rig.told().await;
        gate.cut();
        for n in 2..5 {
            play.write(&format!("a={n}"));
        }
        // After everything, a revision that is over, or the last one again.
        play.set(|store| {
            let again = store.response(|response| {
                let kv = crate::source::etcd::pb::KeyValue {
                    key: b"/s/a".to_vec(),
                    value: b"wrong".to_vec(),
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
        play.write("a=5");
        assert_eq!(rig.told().await, "6 ~a=5");
        assert_eq!(rig.rewinds, 0, "revision {at}");
    }
}

#[tokio::test]
async fn an_upstream_that_is_busy_is_not_listed() {
    let play = Play::new();
    play.write("a=1");
    let gate = play.member().await;
    let mut rig = Rig::of(&gate);
    rig.told().await;
    play.write("a=2");
    rig.told().await;
    for _ in 0..5 {
        let status = Status::unavailable("etcdserver: leader changed");
        play.set(|store| store.watches.push_back(Fault::Refuse(status)));
    }
    gate.cut();
    play.write("a=3");
    assert_eq!(rig.told().await, "4 ~a=3");
    assert_eq!((rig.lists(), play.counts().watches), (1, 7));
}

#[tokio::test]
async fn a_watch_that_is_cancelled_with_a_reason_says_it() {
    let play = Play::new();
    let gate = play.member().await;
    let denied = |response: &mut crate::source::etcd::pb::WatchResponse| {
        (response.canceled, response.created) = (true, true);
        response.cancel_reason = "rpc error: code = PermissionDenied desc = etcdserver: permission denied".to_owned();
    };
    play.set(|store| {
        let told = store.response(denied);
        store.watches.push_back(Fault::Tell(vec![told]));
    });
    let rig = Rig::of(&gate);
    let error = rig.error("denied").await;
    assert!(error.ends_with("permission denied; grant the user read access to every key of the prefix"), "{error}");
}
