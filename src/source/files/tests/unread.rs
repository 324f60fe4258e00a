//! Parts of files that cannot be read: what they may contain is not deleted, also after a restart.

use super::*;
use crate::cache::{List, SyncState, WarmStart};

const BAD: &str = "kind: Pod\nmetadata: {name: b, labels: {on: yes}}\n";

fn good(name: &str) -> String {
    format!("kind: Pod\nmetadata: {{name: {name}}}\n")
}

impl Rig {
    /// Returns the state as soon as the resource has reached this version.
    fn state_at(&self, version: &ResourceVersion) -> SyncState {
        self.health.note_reached(version);
        self.health.state()
    }
}

#[tokio::test]
async fn the_good_documents_of_a_file_are_served_and_the_bad_one_is_named() {
    let rig = Rig::new();
    rig.write("all.yaml", format!("{}---\n{BAD}---\n{}", good("a"), good("c")));
    let mut follower = rig.follow().await;
    rig.health.record_contact();
    assert_eq!(follower.state.keys().collect::<Vec<_>>(), ["a", "c"]);
    let place = r#"all.yaml: document 2, line 5, column 34: metadata.labels.on: expected a string, found the boolean yes; write "yes""#;
    assert_eq!(rig.problem(), format!("{place}; nothing is deleted until it can be read"));
    assert_eq!(rig.state_at(&follower.version), SyncState::Stale, "clients of an earlier run may have it");
    let error = rig.health.report().last_error.unwrap();
    assert!(error.contains("keep theirs: all.yaml: document 2"), "{error}");

    rig.write("all.yaml", format!("{}---\n{}---\n{}", good("a"), good("b"), good("c")));
    assert_eq!(follower.changes(1).await, ["+b"]);
    follower.bookmark().await;
    assert_eq!(rig.health.state(), SyncState::Stale, "the resource has not reached the version");
    assert_eq!(rig.state_at(&follower.version), SyncState::Synced);
    assert_eq!(rig.health.problems(), []);
}

#[tokio::test]
async fn a_bad_document_keeps_its_last_good_object_and_others_change() {
    let rig = Rig::new();
    rig.write("all.yaml", format!("{}---\n{}---\n{}", good("a"), good("b"), good("c")));
    rig.write("d.yaml", good("d"));
    let mut follower = rig.follow().await;
    rig.replace("all.yaml", &format!("{}---\n{BAD}---\n{}x: 1\n", good("a"), good("c")));
    assert_eq!(follower.changes(1).await, ["~c"]);
    assert!(rig.problem().ends_with("; its last good objects are kept"), "{}", rig.problem());
    rig.remove("d.yaml");
    assert_eq!(follower.changes(1).await, ["-d"], "the bad document is known to be b");
    rig.health.record_contact();
    assert_eq!(rig.health.state(), SyncState::Synced, "all was read once");
    rig.replace("all.yaml", &format!("{}---\n{}", good("a"), good("c")));
    let mut changes = follower.changes(2).await;
    changes.sort();
    assert_eq!(changes, ["-b", "~c"]);
}

/// The object of the file that is gone may be in the one that has never been read.
#[tokio::test]
async fn nothing_is_deleted_while_a_file_has_never_been_read() {
    let rig = Rig::with(SOON, |_| {}, notices::subscribe);
    rig.write("a.yaml", format!("{}---\n{}", good("a"), good("b")));
    let mut follower = rig.follow().await;
    rig.remove("a.yaml");
    rig.replace("renamed.yaml", &format!("{}---\n{BAD}", good("a")));
    follower.until(|_| rig.invalid().len() == 1).await;
    for _ in 0..20 {
        follower.bookmark().await;
    }
    assert_eq!(follower.seen, [""; 0], "also after many rescans");
    rig.replace("renamed.yaml", &good("a"));
    assert_eq!(follower.changes(1).await, ["-b"]);
    assert_eq!(rig.health.problems(), []);
}

/// The object may have moved behind the error.
#[tokio::test]
async fn nothing_is_deleted_while_the_rest_of_a_file_cannot_be_read() {
    let latin1 = |text: String| [text.as_bytes(), b"# caf\xe9"].concat();
    let bad = [
        ("json", format!("{}{}", pod("a", 1).replace("},", "}"), pod("b", 1)).into_bytes()),
        ("yaml", latin1(format!("{}---\n{}", good("a"), good("b")))),
    ];
    for (format, bad) in bad {
        let rig = Rig::with(SOON, |_| {}, notices::subscribe);
        rig.write(&format!("a.{format}"), pod("a", 1));
        rig.write("b.json", pod("b", 1));
        rig.write("c.json", pod("c", 1));
        let mut follower = rig.follow().await;
        rig.remove("b.json");
        let temporary = rig.path(".tmp");
        fs::write(&temporary, &bad).unwrap();
        fs::rename(temporary, rig.path(&format!("a.{format}"))).unwrap();
        follower.until(|_| rig.invalid().len() == 1).await;
        assert!(rig.problem().ends_with("; nothing is deleted until it can be read"), "{}", rig.problem());
        for _ in 0..20 {
            follower.bookmark().await;
        }
        assert_eq!(follower.seen, [""; 0], "{format}");
    }
}

#[tokio::test]
async fn an_empty_file_is_no_problem_unless_it_may_have_had_objects() {
    let rig = Rig::new();
    rig.write("truncated.yaml", "");
    let mut follower = rig.follow().await;
    assert!(rig.problem().starts_with("truncated.yaml: file is empty; delete it"), "{}", rig.problem());
    rig.write("new.yaml", "");
    rig.write("other.json", pod("a", 1));
    assert_eq!(follower.changes(1).await, ["+a"]);
    assert_eq!(rig.invalid().len(), 1);
    rig.remove("truncated.yaml");
    follower.until(|_| rig.invalid().is_empty()).await;
}

/// Starts another source of the same directory with the snapshot of this one.
async fn restarted(rig: &mut Rig) -> List {
    let mut list = rig.source.list(ListVersion::MostRecent).await.unwrap();
    let proof = rig.source.proof().unwrap();
    let config = FilesConfig { rescan: SOON, quiet: DEFAULT_QUIET / 5, ..FilesConfig::new(rig.path(""), "test") };
    let health = SourceHealth::new(Duration::from_secs(5), Duration::from_secs(15));
    let before = list.version.clone();
    (rig.health, rig.source) = (health.clone(), FilesSource::new(config, health));
    rig.source.resume_with(&mut list, &proof).unwrap();
    assert!(!list.version.same_lineage(&before), "the earlier run may have used the next versions already");
    assert!(list.objects.iter().all(|object| object.version() == &list.version));
    list
}

async fn resumed(rig: &Rig, list: List) -> Follower {
    let watch = rig.source.watch(list.version.clone()).await.unwrap();
    let state = list.objects.into_iter().map(|object| (object.key().to_string(), object)).collect();
    Follower { watch, state, version: list.version, seen: Vec::new() }
}

#[tokio::test]
async fn the_last_good_objects_survive_a_restart() {
    let mut rig = Rig::new();
    rig.write("all.yaml", format!("{}---\n{}---\n{}", good("a"), good("b"), good("c")));
    rig.write("d.yaml", good("d"));
    rig.source.list(ListVersion::MostRecent).await.unwrap();
    rig.replace("all.yaml", &format!("{}---\n{BAD}", good("a")));
    rig.remove("d.yaml");
    let list = restarted(&mut rig).await;
    rig.health.record_contact();
    assert_eq!(rig.state_at(&list.version), SyncState::Stale, "not read yet");
    let mut follower = resumed(&rig, list).await;
    follower.until(|follower| follower.seen.len() == 1).await;
    follower.bookmark().await;
    assert_eq!(follower.seen, ["-d"]);
    assert_eq!(follower.state.keys().collect::<Vec<_>>(), ["a", "b", "c"]);
    rig.health.record_contact();
    assert_eq!(rig.state_at(&follower.version), SyncState::Synced, "every object is known");
    let list = restarted(&mut rig).await;
    assert_eq!(list.objects.len(), 3, "and again");
    let mut follower = resumed(&rig, list).await;
    follower.bookmark().await;
    rig.replace("all.yaml", &format!("{}---\n{}y: 1\n", good("a"), good("b")));
    let mut changes = follower.changes(2).await;
    changes.sort();
    assert_eq!(changes, ["-c", "~b"]);
}

#[tokio::test]
async fn a_snapshot_of_another_directory_is_kept_while_that_is_empty() {
    let mut rig = Rig::new();
    rig.write("a.yaml", good("a"));
    let list = restarted(&mut rig).await;
    // As if the volume is not mounted yet.
    fs::rename(rig.path(""), rig.dir.path().join("volume")).unwrap();
    fs::create_dir(rig.path("")).unwrap();
    let mut follower = resumed(&rig, list).await;
    follower.until(|_| rig.health.problems().iter().any(|of| of.reason == ProblemReason::ObjectsUnread)).await;
    follower.until(|_| rig.health.has_failed() || rig.health.report().problems > 1).await;
    assert_eq!(follower.seen, [""; 0]);
    assert_eq!(rig.health.state(), SyncState::Stale);
    rig.write("b.yaml", good("b"));
    let mut changes = follower.changes(2).await;
    changes.sort();
    assert_eq!(changes, ["+b", "-a"]);
}

#[test]
fn a_damaged_proof_is_refused() {
    let rig = Rig::new();
    let mut list = List::new(Vec::new(), ResourceVersion::decimal(1));
    for proof in [&b"{}"[..], b"nonsense", br#"{"directory":null,"files":[["a",[["x","\u0000"]]]]}"#] {
        assert!(rig.source.resume_with(&mut list, proof).unwrap_err().starts_with("invalid resume proof: "));
    }
}
