//! Tests of several changes at one version: all of them arrive, wherever the connection is cut, and none is taken for a
//! rewritten history.

use std::sync::Arc;

use super::{
    client::KubeClients,
    fake_api::{Bookmarks, bookmark, event},
    known::KnownState,
    shared::KubeShared,
    *,
};
use crate::model::{AppliedVersion, ResourceVersion};

fn object(name: &str, version: &str) -> serde_json::Value {
    serde_json::json!({"metadata": {"name": name, "uid": "u", "resourceVersion": version}})
}

/// Deletes three of four objects at 6; the watch is silent after the first.
async fn held_after_the_first(prefix: &'static str) -> (Fixture, Rig) {
    let fixture = Fixture::new().await;
    fixture.fake.set(|store| store.prefix = prefix);
    fixture.fake.write("a=1 b=1 c=1");
    let mut rig = fixture.rig();
    assert!(rig.told().await.starts_with("list "));
    fixture.fake.write("d=1");
    rig.told().await;
    fixture.gate.refuse(true);
    fixture.gate.cut();
    rig.error("connection").await;
    fixture.fake.expire(&["a", "b", "c"]);
    fixture.fake.set(|store| store.watches.push_back(Fault::Hold(if prefix.is_empty() { 1 } else { 3 })));
    fixture.gate.refuse(false);
    (fixture, rig)
}

#[tokio::test]
async fn a_cut_inside_a_version_leaves_no_deleted_object() {
    let (fixture, mut rig) = held_after_the_first("").await;
    assert_eq!(rig.told().await, "6 -a");
    fixture.gate.cut();
    for expected in ["6 -a", "6 -b", "6 -c"] {
        assert_eq!(rig.told().await, expected);
    }
    fixture.fake.write("e=1");
    assert_eq!(rig.told().await, "7 +e=1");
    assert_eq!((rig.state.clone(), rig.history_rewrites, rig.lists()), (fixture.fake.state(), 0, 1));
}

/// A watch of an API whose versions are not decimals resumes from the version before, and repeats the deletions.
#[tokio::test]
async fn a_cut_inside_a_version_numbered_by_lineage_leaves_no_deleted_object() {
    let (fixture, mut rig) = held_after_the_first("v-").await;
    assert_eq!((rig.told().await, rig.told().await), ("3 -a".to_owned(), "4 -b".to_owned()));
    fixture.gate.cut();
    for expected in ["5 -a", "6 -b", "7 -c"] {
        assert_eq!(rig.told().await, expected);
    }
    assert_eq!((rig.state.clone(), rig.history_rewrites, rig.lists()), (fixture.fake.state(), 0, 1));
    assert_eq!(fixture.fake.asked().last().unwrap(), "watch v-5");
}

#[tokio::test]
async fn a_restart_inside_a_version_leaves_no_deleted_object() {
    let (fixture, mut rig) = held_after_the_first("").await;
    assert_eq!(rig.told().await, "6 -a");
    let kept = rig.kept().await;
    assert_eq!(kept.version, 5, "more may come at 6");
    drop(rig);
    let mut rig = fixture.resumed(&kept);
    for expected in ["6 -a", "6 -b", "6 -c"] {
        assert_eq!(rig.told().await, expected);
    }
    assert_eq!((rig.state.clone(), rig.history_rewrites, rig.lists()), (fixture.fake.state(), 0, 0));
    // All deletions are known now, and are replayed.
    let kept = rig.kept().await;
    drop(rig);
    fixture.fake.write("e=1");
    let mut rig = fixture.resumed(&kept);
    for expected in ["6 -a", "6 -b", "6 -c", "7 +e=1"] {
        assert_eq!(rig.told().await, expected);
    }
    assert_eq!((rig.state.clone(), rig.history_rewrites, rig.lists()), (fixture.fake.state(), 0, 0));
}

/// The first bookmark may come between two deletions.
#[tokio::test]
async fn the_second_bookmark_completes_a_version_of_deletions_and_the_first_any_other() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1");
    let mut rig = fixture.listed().await;
    let lines = vec![
        event("ADDED", &object("b", "10")),
        bookmark("11", None),
        event("DELETED", &object("b", "12")),
        bookmark("12", None),
        event("DELETED", &object("a", "12")),
        bookmark("12", None),
        bookmark("12", None),
    ];
    fixture.fake.set(|store| {
        store.revision = 12;
        store.watches.push_back(Fault::Tell(lines));
    });
    fixture.gate.cut();
    let mut safe = Vec::new();
    for _ in 0..7 {
        rig.next().await;
        safe.push(rig.safe);
    }
    assert_eq!((safe, rig.state.len()), (vec![10, 11, 11, 11, 11, 11, 12], 0));
    until(|| fixture.fake.asked().last().unwrap() == "watch 12").await;
}

/// kube-apiserver sends no bookmark at a version that it had when the watch was opened, so nothing else confirms that state. An API
/// that has made several changes at one version may make more.
#[tokio::test(start_paused = true)]
async fn a_state_with_a_deletion_at_the_most_recent_version_is_the_most_recent() {
    let fixture = Fixture::new().await;
    fixture.fake.set(|store| store.bookmarks = Bookmarks::None);
    fixture.fake.write("a=1 b=1");
    fixture.fake.expire(&["a"]);
    let client = KubeClients::default().get(&fixture.config().cluster, DEADLINE);
    let shared = Arc::new(KubeShared::new(fixture.config(), client, SourceHealth::new(DEADLINE, DEADLINE)));
    let version = |number: u64| ResourceVersion::decimal(number.into());
    let deleted_at = fixture.fake.revision();
    let mut at = AppliedVersion::closed(version(deleted_at - 1));
    let before = shared.needed_version(at.clone()).await;
    assert_eq!(before, Ok(version(deleted_at)), "the state before it waits for it");
    at.advance(&version(deleted_at), false);
    assert_eq!(shared.needed_version(at.clone()).await, Ok(version(deleted_at - 1)));
    *shared.known.lock() = KnownState::default().with_open_versions(true);
    assert_eq!(shared.needed_version(at).await, Ok(version(deleted_at)));
}

/// An aggregated API may write several objects at one version.
#[tokio::test]
async fn an_api_with_late_changes_is_counted_and_every_version_stays_open() {
    for prefix in ["", "v-"] {
        let fixture = Fixture::new().await;
        fixture.fake.set(|store| store.prefix = prefix);
        fixture.fake.write("a=1");
        let mut rig = fixture.rig();
        rig.told().await;
        fixture.fake.write("z=1");
        rig.told().await;
        let line = |name, version| event("ADDED", &object(name, &format!("{prefix}{version}")));
        let mut lines = vec![line("b", 10), line("c", 10), line("d", 11), line("e", 11), line("f", 12)];
        if !prefix.is_empty() {
            lines.insert(0, fixture.fake.line("ADDED", "z"));
        }
        fixture.fake.set(|store| {
            store.revision = 12;
            store.watches.push_back(Fault::Tell(lines));
        });
        fixture.gate.cut();
        for _ in 0..5 {
            rig.told().await;
        }
        assert_eq!(rig.state.len(), 7);
        assert_eq!(rig.health.late_changes(), 2, "{prefix:?}: c and e");
        until(|| *fixture.fake.asked().last().unwrap() == format!("watch {prefix}11")).await;
    }
}

#[tokio::test]
async fn versions_that_do_not_distinguish_changes_are_numbered_by_lineage() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1");
    let mut rig = fixture.listed().await;
    let lines = (0..=10_000).map(|n| event("DELETED", &object(&format!("o{n}"), "3"))).collect();
    fixture.fake.set(|store| {
        store.revision = 3;
        store.watches.push_back(Fault::Tell(lines));
    });
    fixture.gate.cut();
    for _ in 0..10_000 {
        assert!(rig.told().await.starts_with("3 -o"));
    }
    assert_eq!(rig.told().await, "list 1");
    assert_eq!((rig.state.clone(), rig.history_rewrites), (fixture.fake.state(), 1));
}

/// A change at an open version is sent with the version before it; the snapshot of the next run lacks it.
#[tokio::test]
async fn the_next_run_keeps_every_version_open() {
    for is_late in [false, true] {
        let fixture = Fixture::new().await;
        fixture.fake.write("a=1");
        let mut rig = fixture.listed().await;
        let mut lines = vec![event("ADDED", &object("b", "10"))];
        if is_late {
            lines.push(event("ADDED", &object("c", "10")));
        }
        let changes = lines.len();
        fixture.fake.set(|store| {
            store.revision = 12;
            store.watches.push_back(Fault::Tell(lines));
        });
        fixture.gate.cut();
        for _ in 0..changes {
            rig.told().await;
        }
        let kept = SavedSnapshot { version: if is_late { 9 } else { 10 }, ..rig.kept().await };
        drop(rig);
        fixture.fake.compact(12);
        let mut later = fixture.resumed(&kept);
        assert_eq!((later.told().await, later.expires_older), ("list 12".to_owned(), is_late));
    }
}
