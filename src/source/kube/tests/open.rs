//! Tests of several changes at one version: all of them arrive, wherever the connection is cut, and none is taken for a
//! rewritten history.

use super::{
    play::{bookmark, event},
    *,
};

fn object(name: &str, version: &str) -> serde_json::Value {
    serde_json::json!({"metadata": {"name": name, "uid": "u", "resourceVersion": version}})
}

/// Deletes three of four objects at 6; the watch is silent after the first.
async fn held_after_the_first(prefix: &'static str) -> (Stand, Rig) {
    let stand = Stand::new().await;
    stand.play.set(|store| store.prefix = prefix);
    stand.play.write("a=1 b=1 c=1");
    let mut rig = stand.rig();
    assert!(rig.told().await.starts_with("list "));
    stand.play.write("d=1");
    rig.told().await;
    stand.gate.refuse(true);
    stand.gate.cut();
    rig.error("connection").await;
    stand.play.expire(&["a", "b", "c"]);
    stand.play.set(|store| store.watches.push_back(Fault::Hold(if prefix.is_empty() { 1 } else { 3 })));
    stand.gate.refuse(false);
    (stand, rig)
}

#[tokio::test]
async fn a_cut_inside_a_version_leaves_no_ghost() {
    let (stand, mut rig) = held_after_the_first("").await;
    assert_eq!(rig.told().await, "6 -a");
    stand.gate.cut();
    for expected in ["6 -a", "6 -b", "6 -c"] {
        assert_eq!(rig.told().await, expected);
    }
    stand.play.write("e=1");
    assert_eq!(rig.told().await, "7 +e=1");
    assert_eq!((rig.state.clone(), rig.rewinds, rig.lists()), (stand.play.state(), 0, 1));
}

/// A watch of an API whose versions are not decimals resumes from the version before, and repeats the deletions.
#[tokio::test]
async fn neither_where_versions_are_counted_here() {
    let (stand, mut rig) = held_after_the_first("v-").await;
    assert_eq!((rig.told().await, rig.told().await), ("3 -a".to_owned(), "4 -b".to_owned()));
    stand.gate.cut();
    for expected in ["5 -a", "6 -b", "7 -c"] {
        assert_eq!(rig.told().await, expected);
    }
    assert_eq!((rig.state.clone(), rig.rewinds, rig.lists()), (stand.play.state(), 0, 1));
    assert_eq!(stand.play.asked().last().unwrap(), "watch v-5");
}

#[tokio::test]
async fn neither_over_a_later_start() {
    let (stand, mut rig) = held_after_the_first("").await;
    assert_eq!(rig.told().await, "6 -a");
    let kept = rig.kept().await;
    assert_eq!(kept.version, 5, "more may come at 6");
    drop(rig);
    let mut rig = stand.resumed(&kept);
    for expected in ["6 -a", "6 -b", "6 -c"] {
        assert_eq!(rig.told().await, expected);
    }
    assert_eq!((rig.state.clone(), rig.rewinds, rig.lists()), (stand.play.state(), 0, 0));
    // All deletions are known now, and are replayed.
    let kept = rig.kept().await;
    drop(rig);
    stand.play.write("e=1");
    let mut rig = stand.resumed(&kept);
    for expected in ["6 -a", "6 -b", "6 -c", "7 +e=1"] {
        assert_eq!(rig.told().await, expected);
    }
    assert_eq!((rig.state.clone(), rig.rewinds, rig.lists()), (stand.play.state(), 0, 0));
}

/// The first bookmark may come between two deletions.
#[tokio::test]
async fn the_second_bookmark_completes_a_version_of_deletions_and_the_first_any_other() {
    let stand = Stand::new().await;
    stand.play.write("a=1");
    let mut rig = stand.listed().await;
    let lines = vec![
        event("ADDED", &object("b", "10")),
        bookmark("11", None),
        event("DELETED", &object("b", "12")),
        bookmark("12", None),
        event("DELETED", &object("a", "12")),
        bookmark("12", None),
        bookmark("12", None),
    ];
    stand.play.set(|store| {
        store.revision = 12;
        store.watches.push_back(Fault::Tell(lines));
    });
    stand.gate.cut();
    let mut safe = Vec::new();
    for _ in 0..7 {
        rig.next().await;
        safe.push(rig.safe);
    }
    assert_eq!((safe, rig.state.len()), (vec![10, 11, 11, 11, 11, 11, 12], 0));
    until(|| stand.play.asked().last().unwrap() == "watch 12").await;
}

/// An aggregated API may write several objects at one version.
#[tokio::test]
async fn an_api_that_breaks_the_rule_is_counted_and_every_version_stays_open() {
    for prefix in ["", "v-"] {
        let stand = Stand::new().await;
        stand.play.set(|store| store.prefix = prefix);
        stand.play.write("a=1");
        let mut rig = stand.rig();
        rig.told().await;
        stand.play.write("z=1");
        rig.told().await;
        let line = |name, version| event("ADDED", &object(name, &format!("{prefix}{version}")));
        let mut lines = vec![line("b", 10), line("c", 10), line("d", 11), line("e", 11), line("f", 12)];
        if !prefix.is_empty() {
            lines.insert(0, stand.play.line("ADDED", "z"));
        }
        stand.play.set(|store| {
            store.revision = 12;
            store.watches.push_back(Fault::Tell(lines));
        });
        stand.gate.cut();
        for _ in 0..5 {
            rig.told().await;
        }
        assert_eq!(rig.state.len(), 7);
        assert_eq!(rig.health.late_changes(), 2, "{prefix:?}: c and e");
        until(|| *stand.play.asked().last().unwrap() == format!("watch {prefix}11")).await;
    }
}

#[tokio::test]
async fn versions_that_do_not_tell_changes_apart_are_counted_here() {
    let stand = Stand::new().await;
    stand.play.write("a=1");
    let mut rig = stand.listed().await;
    let lines = (0..=10_000).map(|n| event("DELETED", &object(&format!("o{n}"), "3"))).collect();
    stand.play.set(|store| {
        store.revision = 3;
        store.watches.push_back(Fault::Tell(lines));
    });
    stand.gate.cut();
    for _ in 0..10_000 {
        assert!(rig.told().await.starts_with("3 -o"));
    }
    assert_eq!(rig.told().await, "list 1");
    assert_eq!((rig.state.clone(), rig.rewinds), (stand.play.state(), 1));
}

/// A change at an open version is sent with the version before it; the snapshot of the next run lacks it.
#[tokio::test]
async fn a_later_start_knows_that_every_version_stays_open() {
    for is_late in [false, true] {
        let stand = Stand::new().await;
        stand.play.write("a=1");
        let mut rig = stand.listed().await;
        let mut lines = vec![event("ADDED", &object("b", "10"))];
        if is_late {
            lines.push(event("ADDED", &object("c", "10")));
        }
        let changes = lines.len();
        stand.play.set(|store| {
            store.revision = 12;
            store.watches.push_back(Fault::Tell(lines));
        });
        stand.gate.cut();
        for _ in 0..changes {
            rig.told().await;
        }
        let kept = Kept { version: if is_late { 9 } else { 10 }, ..rig.kept().await };
        drop(rig);
        stand.play.compact(12);
        let mut later = stand.resumed(&kept);
        assert_eq!((later.told().await, later.expires_older), ("list 12".to_owned(), is_late));
    }
}
