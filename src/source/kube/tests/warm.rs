//! Tests of a source that resumes from a previous run.

use super::{fake_api::bookmark, *};
use crate::{cache::SyncState, model::ResourceVersion};

/// Returns a cluster at version 6, with the data saved by a run that followed it.
async fn kept_at_six() -> (Fixture, SavedSnapshot) {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1 b=1");
    let mut rig = fixture.listed().await;
    for change in ["a=2", "a=3", "a=4"] {
        fixture.fake.write(change);
        rig.told().await;
    }
    let kept = rig.kept().await;
    (fixture, kept)
}

/// Returns the requests since then, without heads.
fn asked(fixture: &Fixture, since: usize) -> Vec<String> {
    fixture.fake.asked().split_off(since).into_iter().filter(|asked| asked != "head").collect()
}

#[tokio::test]
async fn missed_changes_are_replayed_without_a_list() {
    let (fixture, kept) = kept_at_six().await;
    let since = fixture.fake.asked().len();
    fixture.fake.write("c=1 -b");
    let mut rig = fixture.resumed(&kept);
    assert_eq!(rig.told().await, "7 +c=1");
    assert_eq!(rig.told().await, "8 -b");
    assert_eq!((rig.state.clone(), asked(&fixture, since)), (fixture.fake.state(), vec!["watch 5".to_owned()]));
    fixture.gate.cut();
    fixture.fake.write("a=5");
    // There may be more deletions at 8.
    assert_eq!((rig.told().await, rig.told().await), ("8 -b".to_owned(), "9 ~a=5".to_owned()));
    assert_eq!(asked(&fixture, since)[1..], ["watch 7"], "recognised again, at the last known change");
    let again = rig.kept().await;
    drop(rig);
    fixture.fake.write("a=6");
    assert_eq!(fixture.resumed(&again).told().await, "10 ~a=6", "and once more");
}

/// The replay of the last change proves that the upstream is current, without a new change.
#[tokio::test]
async fn without_a_change_the_resource_is_synced_at_once_and_bookmarks_never_decrease() {
    let (fixture, kept) = kept_at_six().await;
    let known = bookmark("9", None);
    let event = |name: &str, version: u32| {
        fake_api::event(
            "MODIFIED",
            &serde_json::json!({"metadata": {"name": name, "uid": "u2", "resourceVersion": version.to_string()}}),
        )
    };
    fixture.fake.set(|store| {
        store.revision = 9;
        store.watches.push_back(Fault::Tell(vec![known]));
    });
    // The watch begins with a bookmark beyond the last change.
    let mut rig = fixture.resumed(&kept);
    assert_eq!(rig.told().await, "rewind 9", "it would have been told again");
    let kept = rig.kept().await;
    drop(rig);
    let a = fixture.fake.line("MODIFIED", "a");
    let lines = [bookmark("5", None), a, bookmark("8", None), bookmark("9", None), event("a", 10)];
    fixture.fake.set(|store| {
        store.watches.push_back(Fault::Tell(lines.to_vec()));
    });
    let mut rig = fixture.resumed(&kept);
    assert_eq!(rig.next().await, "bookmark 9");
    assert_eq!(rig.health.state(), SyncState::Synced);
    assert_eq!((rig.next().await, rig.lists()), ("10 ~a=".to_owned(), 0));
}

/// API servers keep the last changes in memory only.
#[tokio::test]
async fn changes_that_the_api_no_longer_has_lead_to_a_list() {
    let (fixture, kept) = kept_at_six().await;
    fixture.fake.write("-b c=1");
    fixture.fake.compact(7);
    let mut rig = fixture.resumed(&kept);
    assert_eq!(rig.told().await, "list 8");
    assert_eq!((rig.state.clone(), rig.history_rewrites, rig.lists()), (fixture.fake.state(), 0, 1));
}

/// The history was rewritten between two runs.
#[tokio::test]
async fn a_rewritten_history_is_detected() {
    type Change = fn(&FakeApi);
    let changes: [(&str, Change); 4] = [
        ("another cluster", |fake| fake.set(|store| store.cluster = Some("u-2"))),
        ("another object", |fake| (fake.restore(4), fake.write("b=2 b=3 b=4")).1),
        ("the same version", |fake| (fake.restore(4), fake.write("a=5 b=2 c=1")).1),
        ("a change before what is known", |fake| fake.restore(5)),
    ];
    for (what, change) in changes {
        let (fixture, kept) = kept_at_six().await;
        change(&fixture.fake);
        let mut rig = fixture.resumed(&kept);
        assert!(rig.told().await.starts_with("rewind "), "{what}");
        assert_eq!((rig.state.clone(), rig.history_rewrites), (fixture.fake.state(), 1), "{what}");
        let again = rig.kept().await;
        fixture.fake.write("a=9");
        let told = fixture.resumed(&again).told().await;
        assert!(told.ends_with("~a=9"), "{what}: kept again, it is the history: {told}");
    }
}

/// A change between the last known one and the known version shows a rewritten history.
#[tokio::test]
async fn changes_where_none_were_known_are_a_rewritten_history() {
    let (fixture, kept) = kept_at_six().await;
    let kept = SavedSnapshot {
        version: 9,
        proof: String::from_utf8_lossy(&kept.proof).replacen("\"6\"", "\"9\"", 1).into(),
        ..kept
    };
    fixture.fake.write("b=2 b=3 b=4 b=5");
    let mut rig = fixture.resumed(&kept);
    assert_eq!(rig.told().await, "rewind 10");
    assert_eq!(rig.state, fixture.fake.state());
}

/// A deletion as the last change is part of the proof.
#[tokio::test]
async fn a_deletion_that_was_undone_is_detected() {
    let (fixture, _) = kept_at_six().await;
    let mut rig = fixture.listed().await;
    fixture.fake.write("-b");
    rig.told().await;
    let kept = rig.kept().await;
    drop(rig);
    fixture.fake.restore(6);
    fixture.fake.write("a=5 a=6");
    let mut rig = fixture.resumed(&kept);
    assert_eq!(rig.told().await, "rewind 8");
    assert_eq!(rig.state, fixture.fake.state(), "b is there again");
}

/// Deletions after the newest object of a list may be replayed or not: they prove nothing.
#[tokio::test]
async fn a_list_without_later_events_is_recognised_by_its_newest_object() {
    for (deleted, first) in [("", "6 +c=1"), ("-b", "list 6")] {
        let fixture = Fixture::new().await;
        fixture.fake.write("b=1 a=1 a=2");
        fixture.fake.write(deleted);
        let kept = fixture.listed().await.kept().await;
        fixture.fake.write(if deleted.is_empty() { "x=1 c=1" } else { "c=1" });
        let mut rig = fixture.resumed(&kept);
        if deleted.is_empty() {
            assert_eq!(rig.told().await, "5 +x=1");
        }
        assert_eq!(rig.told().await, first);
        assert_eq!((rig.history_rewrites, rig.state.clone()), (0, fixture.fake.state()));
    }
}

#[tokio::test]
async fn an_empty_resource_is_listed_and_versions_numbered_by_lineage_are_not_saved() {
    let fixture = Fixture::new().await;
    let empty = fixture.listed().await.kept().await;
    fixture.fake.write("a=1");
    let mut rig = fixture.resumed(&empty);
    assert_eq!(rig.told().await, "list 2");
    drop(rig);
    fixture.fake.set(|store| store.prefix = "x-");
    let mut rig = fixture.rig();
    assert_eq!(rig.told().await, "list 1");
    let taken = timeout(DEADLINE, rig.checkpoints.take()).await;
    assert!(taken.expect("an answer in time").is_none());
}

#[test]
fn a_proof_is_bound_to_its_version_and_invalid_ones_are_rejected() {
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

/// A list that finds nothing in its namespace is returned only once the API has answered if that namespace exists.
#[tokio::test]
async fn a_checkpoint_during_a_list_is_of_the_state_before_it() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a/x=1");
    let config = KubeConfig { namespace: "a".into(), ..fixture.config() };
    let mut rig = follow(config.clone(), None);
    assert_eq!(rig.told().await, "list 2");
    fixture.gate.refuse(true);
    rig.error("connection").await;
    fixture.fake.write("-a/x");
    fixture.fake.compact(3);
    fixture.fake.set(|store| store.others.push_back(Fault::Hold(0)));
    fixture.gate.refuse(false);
    until(|| fixture.fake.set(|store| store.others.is_empty())).await;
    let kept = rig.kept().await;
    let source = KubeSource::new(config, SourceHealth::new(DEADLINE, DEADLINE));
    let resumed = source.warm_start().unwrap().resume(&ResourceVersion::decimal(kept.version), &kept.proof);
    assert_eq!((resumed, kept.version), (Ok(()), 2));
}

/// The position of the selection is past a new namespace before the objects of that are listed.
#[tokio::test]
async fn no_checkpoint_is_taken_between_the_lists_of_the_namespaces_and_of_their_objects() {
    /// Holds the list after that of the namespaces.
    fn held() -> Fault {
        let is_of_namespaces = |asked: &String| asked.starts_with("list") && asked.ends_with("of namespaces");
        Fault::Then(Box::new(move |fake| {
            fake.set(|store| {
                let holds = store.asked.last().is_some_and(is_of_namespaces);
                store.lists.push_back(if holds { Fault::Hold(0) } else { held() });
            });
        }))
    }
    let fixture = Fixture::new().await;
    fixture.fake.write("a/x=1 c/x=1 @a=1");
    let mut rig = follow(KubeConfig { namespace_selector: "team=x".into(), ..fixture.config() }, None);
    assert_eq!(rig.told().await, "list 4");
    assert!(rig.proof().await.is_some());
    fixture.gate.refuse(true);
    rig.error("connection").await;
    fixture.fake.write("@c=1");
    fixture.fake.compact(5);
    fixture.fake.set(|store| store.lists.push_back(held()));
    fixture.gate.refuse(false);
    until(|| fixture.fake.set(|store| store.lists.is_empty())).await;
    assert_eq!(rig.proof().await, None);
}
