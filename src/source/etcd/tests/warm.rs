//! Source that resumes from the stored state of a previous run.

use super::*;

/// Starts the next run.
fn resumed(gate: &Gate, kept: &SavedSnapshot) -> Rig {
    Rig::resume(config(&[gate]), Some(kept))
}

/// Returns a cluster at revision 5, and the stored state of a run that has followed it up to there.
async fn kept_at_five() -> (FakeEtcd, Gate, SavedSnapshot) {
    let (fake, gate, mut rig) = at_five().await;
    let kept = rig.kept().await;
    (fake, gate, kept)
}

#[tokio::test]
async fn missed_changes_are_replayed_without_a_list() {
    let (fake, gate, kept) = kept_at_five().await;
    let pages = fake.counts().pages;
    fake.write("c=1 -b");
    fake.write("a=5");
    fake.set(|store| store.raft_term -= 1);
    let mut rig = resumed(&gate, &kept);
    assert_eq!(rig.told().await, "6 +c=1 -b");
    assert_eq!(rig.told().await, "7 ~a=5");
    assert_eq!(rig.state, fake.state(PREFIX));
    assert_eq!((rig.lists(), fake.counts().pages), (0, pages), "nothing was read again");
    let again = rig.kept().await;
    drop(rig);
    fake.write("a=6");
    assert_eq!(resumed(&gate, &again).told().await, "8 ~a=6", "and once more");
}

/// The source detects at once that nothing has changed, instead of at the next change.
#[tokio::test]
async fn without_a_change_the_resource_is_synced_at_once() {
    for version in ["3.6.16", "3.4.23"] {
        let (fake, gate, kept) = kept_at_five().await;
        fake.set(|store| store.version = version);
        let config = EtcdConfig { heartbeat: DEADLINE * 2, ..config(&[&gate]) };
        let rig = Rig::resume(config, Some(&kept));
        let fresh = async {
            while rig.health.state() != crate::cache::SyncState::Synced {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        timeout(DEADLINE, fresh).await.unwrap_or_else(|_| panic!("{version}: fresh in time"));
        assert_eq!(rig.lists(), 0);
    }
}

#[tokio::test]
async fn compacted_changes_lead_to_a_list() {
    let (fake, gate, kept) = kept_at_five().await;
    fake.write("-b");
    fake.write("c=1");
    fake.compact(7);
    let mut rig = resumed(&gate, &kept);
    assert_eq!(rig.told().await, "list 7");
    assert_eq!((rig.state.clone(), rig.history_rewrites, rig.lists()), (fake.state(PREFIX), 0, 1));
}

/// Restores an old revision, and writes other changes.
fn rewrite(fake: &FakeEtcd, writes: &[&str]) {
    fake.restore(3);
    for changes in writes {
        fake.write(changes);
    }
}

/// The history was rewritten while the server was stopped.
#[tokio::test]
async fn a_rewritten_history_is_detected() {
    type Change = fn(&FakeEtcd);
    let changes: [(&str, Change); 4] = [
        ("another cluster", |fake| fake.set(|store| store.cluster_id = 8)),
        ("a lower revision", |fake| fake.restore(3)),
        ("the same revision", |fake| rewrite(fake, &["a=3", "a=other"])),
        ("a later revision", |fake| rewrite(fake, &["-a", "-b", "c=1"])),
    ];
    for (what, change) in changes {
        let (fake, gate, kept) = kept_at_five().await;
        change(&fake);
        let mut rig = resumed(&gate, &kept);
        assert!(rig.told().await.starts_with("rewind "), "{what}");
        assert_eq!((rig.state.clone(), rig.history_rewrites), (fake.state(PREFIX), 1), "{what}");
        let again = rig.kept().await;
        fake.write("a=9");
        let told = resumed(&gate, &again).told().await;
        assert!(told.ends_with(" ~a=9") || told.ends_with(" +a=9"), "{what}: kept again, it is the history: {told}");
    }
}

/// A deletion as the last change is part of the proof.
#[tokio::test]
async fn a_deletion_that_was_undone_is_detected() {
    let (fake, gate, kept) = kept_at_five().await;
    fake.write("-b");
    let mut rig = resumed(&gate, &kept);
    rig.told().await;
    let kept = rig.kept().await;
    drop(rig);
    fake.restore(5);
    fake.apply(vec![(b"/elsewhere".to_vec(), Some(vec![1]))]);
    fake.write("a=5");
    let mut rig = resumed(&gate, &kept);
    assert_eq!(rig.told().await, "list 7");
    assert_eq!(rig.state, fake.state(PREFIX), "b is there again");
}

/// After a change of the cluster id, the stored position is of neither history.
#[tokio::test]
async fn there_is_no_proof_while_the_history_is_unconfirmed() {
    let (fake, gate, kept) = kept_at_five().await;
    fake.set(|store| {
        store.cluster_id = 8;
        // The head is answered, and the list is not.
        store.ranges.extend([fake_etcd::Fault::Then(Box::new(|_| ())), fake_etcd::Fault::Hang]);
    });
    let rig = resumed(&gate, &kept);
    rig.error("cluster id changed from 7 to 8").await;
    let taken = timeout(DEADLINE, rig.checkpoints.take()).await;
    assert!(taken.expect("an answer in time").is_none());
}

#[tokio::test]
async fn an_empty_prefix_and_keys_that_are_not_served_are_saved_too() {
    let fake = FakeEtcd::new();
    let gate = fake.member().await;
    let mut rig = Rig::of(&gate);
    rig.told().await;
    let empty = rig.kept().await;
    drop(rig);
    fake.apply(vec![(b"/s/\xff".to_vec(), Some(vec![1]))]);
    fake.write("a=1");
    let mut rig = resumed(&gate, &empty);
    while rig.version < fake.revision() {
        rig.next().await;
    }
    let problem = rig.error("is not UTF-8").await;
    let kept = rig.kept().await;
    drop(rig);
    let rig = resumed(&gate, &kept);
    assert_eq!(rig.error("is not UTF-8").await, problem);
}

#[test]
fn a_proof_is_bound_to_its_version_and_invalid_ones_are_rejected() {
    let health = SourceHealth::new(Duration::ZERO, Duration::ZERO);
    let endpoints = ["http://b:1", "http://a:1"].map(|address| address.parse().unwrap());
    let source = EtcdSource::new(EtcdConfig::new("r", endpoints.into(), "/s/"), health);
    assert_eq!(source.identity(), "the keys of \"/s/\" in etcd at http://a:1, http://b:1");
    assert_eq!(source.proof(), None, "nothing is known");
    let proof = r#"{"identity":[7,2],"revision":5,"mark":null,"problems":[]}"#;
    let at = ResourceVersion::decimal;
    assert_eq!(
        source.resume(&at(6), proof.as_bytes()),
        Err("resume proof of revision 5 for a snapshot at 6".to_owned())
    );
    assert!(source.resume(&at(5), b"{}").unwrap_err().starts_with("invalid resume proof: missing field"));
    assert_eq!(source.proof(), None);
    assert_eq!(source.resume(&at(5), proof.as_bytes()), Ok(()));
    assert_eq!(source.proof().unwrap(), proof);
}
