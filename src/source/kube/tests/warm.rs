//! Tests of a source that resumes from a previous run.

use super::{play::bookmark, *};
use crate::{cache::SyncState, model::ResourceVersion};

/// Returns a cluster at version 6, with the data saved by a run that followed it.
async fn kept_at_six() -> (Stand, Kept) {
    let stand = Stand::new().await;
    stand.play.write("a=1 b=1");
    let mut rig = stand.listed().await;
    for change in ["a=2", "a=3", "a=4"] {
        stand.play.write(change);
        rig.told().await;
    }
    let kept = rig.kept().await;
    (stand, kept)
}

/// Returns the requests since then, without heads.
fn asked(stand: &Stand, since: usize) -> Vec<String> {
    stand.play.asked().split_off(since).into_iter().filter(|asked| asked != "head").collect()
}

#[tokio::test]
async fn what_was_missed_is_told_and_nothing_is_listed() {
    let (stand, kept) = kept_at_six().await;
    let since = stand.play.asked().len();
    stand.play.write("c=1 -b");
    let mut rig = stand.resumed(&kept);
    assert_eq!(rig.told().await, "7 +c=1");
    assert_eq!(rig.told().await, "8 -b");
    assert_eq!((rig.state.clone(), asked(&stand, since)), (stand.play.state(), vec!["watch 5".to_owned()]));
    stand.gate.cut();
    stand.play.write("a=5");
    // There may be more deletions at 8.
    assert_eq!((rig.told().await, rig.told().await), ("8 -b".to_owned(), "9 ~a=5".to_owned()));
    assert_eq!(asked(&stand, since)[1..], ["watch 7"], "recognised again, at the last known change");
    let again = rig.kept().await;
    drop(rig);
    stand.play.write("a=6");
    assert_eq!(stand.resumed(&again).told().await, "10 ~a=6", "and once more");
}

/// The replay of the last change proves that the upstream is current, without a new change.
#[tokio::test]
async fn without_a_change_it_is_fresh_at_once_and_bookmarks_never_go_back() {
    let (stand, kept) = kept_at_six().await;
    let known = bookmark("9", None);
    let event = |name: &str, version: u32| {
        play::event(
            "MODIFIED",
            &serde_json::json!({"metadata": {"name": name, "uid": "u2", "resourceVersion": version.to_string()}}),
        )
    };
    stand.play.set(|store| {
        store.revision = 9;
        store.watches.push_back(Fault::Tell(vec![known]));
    });
    // The watch begins with a bookmark beyond the last change.
    let mut rig = stand.resumed(&kept);
    assert_eq!(rig.told().await, "rewind 9", "it would have been told again");
    let kept = rig.kept().await;
    drop(rig);
    let a = stand.play.line("MODIFIED", "a");
    let lines = [bookmark("5", None), a, bookmark("8", None), bookmark("9", None), event("a", 10)];
    stand.play.set(|store| {
        store.watches.push_back(Fault::Tell(lines.to_vec()));
    });
    let mut rig = stand.resumed(&kept);
    rig.health.synced();
    assert_eq!(rig.next().await, "bookmark 9");
    assert_eq!(rig.health.state(), SyncState::Synced);
    assert_eq!((rig.next().await, rig.lists()), ("10 ~a=".to_owned(), 0));
}

/// API servers keep the last changes in memory only.
#[tokio::test]
async fn what_is_forgotten_is_listed() {
    let (stand, kept) = kept_at_six().await;
    stand.play.write("-b c=1");
    stand.play.compact(7);
    let mut rig = stand.resumed(&kept);
    assert_eq!(rig.told().await, "list 8");
    assert_eq!((rig.state.clone(), rig.rewinds, rig.lists()), (stand.play.state(), 0, 1));
}

/// The history was rewritten between two runs.
#[tokio::test]
async fn another_history_is_a_rewind() {
    type Change = fn(&Play);
    let changes: [(&str, Change); 4] = [
        ("another cluster", |play| play.set(|store| store.cluster = Some("u-2"))),
        ("another object", |play| (play.restore(4), play.write("b=2 b=3 b=4")).1),
        ("the same version", |play| (play.restore(4), play.write("a=5 b=2 c=1")).1),
        ("a change before what is known", |play| play.restore(5)),
    ];
    for (what, change) in changes {
        let (stand, kept) = kept_at_six().await;
        change(&stand.play);
        let mut rig = stand.resumed(&kept);
        assert!(rig.told().await.starts_with("rewind "), "{what}");
        assert_eq!((rig.state.clone(), rig.rewinds), (stand.play.state(), 1), "{what}");
        let again = rig.kept().await;
        stand.play.write("a=9");
        let told = stand.resumed(&again).told().await;
        assert!(told.ends_with("~a=9"), "{what}: kept again, it is the history: {told}");
    }
}

/// A change between the last known one and the known version shows a rewritten history.
#[tokio::test]
async fn what_has_happened_where_nothing_was_known_to_happen_is_another_history() {
    let (stand, kept) = kept_at_six().await;
    let kept =
        Kept { version: 9, proof: String::from_utf8_lossy(&kept.proof).replacen("\"6\"", "\"9\"", 1).into(), ..kept };
    stand.play.write("b=2 b=3 b=4 b=5");
    let mut rig = stand.resumed(&kept);
    assert_eq!(rig.told().await, "rewind 10");
    assert_eq!(rig.state, stand.play.state());
}

/// A deletion as the last change is part of the proof.
#[tokio::test]
async fn a_deletion_that_was_undone_is_found() {
    let (stand, _) = kept_at_six().await;
    let mut rig = stand.listed().await;
    stand.play.write("-b");
    rig.told().await;
    let kept = rig.kept().await;
    drop(rig);
    stand.play.restore(6);
    stand.play.write("a=5 a=6");
    let mut rig = stand.resumed(&kept);
    assert_eq!(rig.told().await, "rewind 8");
    assert_eq!(rig.state, stand.play.state(), "b is there again");
}

/// Deletions after the newest object of a list may be replayed or not: they prove nothing.
#[tokio::test]
async fn a_list_that_was_followed_by_nothing_is_recognised_by_its_newest() {
    for (deleted, first) in [("", "6 +c=1"), ("-b", "list 6")] {
        let stand = Stand::new().await;
        stand.play.write("b=1 a=1 a=2");
        stand.play.write(deleted);
        let kept = stand.listed().await.kept().await;
        stand.play.write(if deleted.is_empty() { "x=1 c=1" } else { "c=1" });
        let mut rig = stand.resumed(&kept);
        if deleted.is_empty() {
            assert_eq!(rig.told().await, "5 +x=1");
        }
        assert_eq!(rig.told().await, first);
        assert_eq!((rig.rewinds, rig.state.clone()), (0, stand.play.state()));
    }
}

#[tokio::test]
async fn an_empty_resource_is_listed_and_versions_that_are_counted_here_are_not_kept() {
    let stand = Stand::new().await;
    let empty = stand.listed().await.kept().await;
    stand.play.write("a=1");
    let mut rig = stand.resumed(&empty);
    assert_eq!(rig.told().await, "list 2");
    drop(rig);
    stand.play.set(|store| store.prefix = "x-");
    let mut rig = stand.rig();
    assert_eq!(rig.told().await, "list 1");
    let taken = timeout(DEADLINE, rig.fifo.checkpoints().take()).await;
    assert!(taken.expect("an answer in time").is_none());
}

#[test]
fn a_proof_is_of_one_version_and_what_is_none_is_refused() {
    let health = SourceHealth::new(Duration::ZERO, Duration::ZERO);
    let config = KubeConfig { label_selector: "a=b".into(), ..KubeConfig::new("r", "apps", "v1", "deployments") };
    let source = KubeSource::new(config, health);
    let warm = source.warm_start().unwrap();
    assert!(
        warm.identity()
            .starts_with(r#"/apis/apps/v1/deployments by labels "a=b" and fields "" of None in None without "#)
    );
    assert_eq!(warm.proof(), None, "nothing is known");
    let proof = r#"{"cluster":"u","version":"5","mark":null,"problems":[]}"#;
    let at = ResourceVersion::decimal;
    assert_eq!(warm.resume(&at(6), proof.as_bytes()), Err("resume proof of version 5 for a snapshot at 6".to_owned()));
    assert!(warm.resume(&at(5), b"{}").unwrap_err().starts_with("invalid resume proof: missing field"));
    assert_eq!(warm.proof(), None);
    assert_eq!(warm.resume(&at(5), proof.as_bytes()), Ok(()));
    assert_eq!(warm.proof().unwrap(), proof.replace(r#""mark""#, r#""is_open":false,"mark""#), "older ones lack it");
}
