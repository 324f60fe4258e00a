//! Prefixes without activity: empty, idle, compacted, or last changed by a deletion. They stay SYNCED with one list, and the
//! first put arrives.

use super::*;
use crate::{cache::SyncState, source::etcd::tests::fake_etcd::Fault};

/// One version without correct progress responses, and one with them.
const VERSIONS: [&str; 2] = ["3.4.23", "3.6.16"];

type Script = fn(&FakeEtcd);

const SCRIPTS: [(&str, Script); 6] = [
    ("empty", |_| {}),
    ("empty, and other keys change", |fake| elsewhere(fake, 3)),
    ("emptied", |fake| {
        fake.write("a=1");
        fake.write("-a");
    }),
    ("idle", |fake| fake.write("a=1 b=1")),
    ("last changed by a deletion", |fake| {
        fake.write("a=1 b=1");
        fake.write("-a");
    }),
    ("compacted", |fake| {
        fake.write("a=1 b=1");
        fake.write("-a");
        elsewhere(fake, 3);
        fake.compact(6);
    }),
];

/// Changes keys that are not below the prefix.
fn elsewhere(fake: &FakeEtcd, count: u8) {
    for n in 0..count {
        fake.apply(vec![(b"/elsewhere".to_vec(), Some(vec![n]))]);
    }
}

/// Returns a configuration with several heartbeats in the answer timeout, as in production.
fn quick(gate: &Gate) -> EtcdConfig {
    let heartbeat = Duration::from_millis(20);
    EtcdConfig { heartbeat, answer_timeout: Duration::from_secs(1), ..config(&[gate]) }
}

/// Waits until the source has requested progress or the head for longer than the answer timeout.
async fn outlast_answer_timeout(fake: &FakeEtcd) {
    asked(fake, 60).await;
}

/// Waits until the source has requested progress or the head so many times.
async fn asked(fake: &FakeEtcd, times: usize) {
    let asked = |fake: &FakeEtcd| fake.counts().progress + fake.counts().ranges;
    let enough = asked(fake) + times;
    let asked = async {
        while asked(fake) < enough {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(DEADLINE, asked).await.expect("it is asked");
}

#[tokio::test(start_paused = true)]
async fn a_quiet_prefix_is_listed_once_and_its_first_put_arrives() {
    let cases = VERSIONS.iter().flat_map(|version| SCRIPTS.map(|(name, script)| (*version, name, script)));
    let cases = cases.map(|(version, name, script)| async move {
        let fake = FakeEtcd::new();
        fake.set(|store| (store.version, store.sync_delay) = (version, Duration::from_millis(30)));
        script(&fake);
        let gate = fake.member().await;
        let mut rig = Rig::start(quick(&gate));
        rig.told().await;
        outlast_answer_timeout(&fake).await;
        assert_eq!(rig.health.state(), SyncState::Synced, "{version}, {name}");
        let counts = fake.counts();
        assert_eq!((rig.lists(), counts.pages, counts.watches), (1, 1, 1), "{version}, {name}");
        fake.write("new=1");
        assert_eq!(rig.told().await, format!("{} +new=1", fake.revision()), "{version}, {name}");
        assert_eq!(rig.state, fake.state(PREFIX), "{version}, {name}");
        assert_eq!((rig.lists(), gate.accepted()), (1, 1), "{version}, {name}");
    });
    futures_util::future::join_all(cases).await;
}

/// The last change may not be replayed: then the source lists the resource once more, and not again and again.
#[tokio::test(start_paused = true)]
async fn after_a_break_a_quiet_prefix_is_listed_once_more_at_most() {
    let compact = |fake: &FakeEtcd| fake.compact(i64::try_from(fake.revision()).unwrap());
    let breaks: [(&str, Script); 3] = [
        ("a break", |_| {}),
        ("a compaction", compact),
        ("a compaction that removes a deletion", |fake| fake.set(|store| store.drops_tombstones = true)),
    ];
    let cases = VERSIONS.iter().flat_map(|version| SCRIPTS.map(|(name, script)| (*version, name, script)));
    let cases = cases.flat_map(|(version, name, script)| breaks.map(|broken| (version, name, script, broken)));
    let cases = cases.map(|(version, name, script, (broken, change))| async move {
        let case = format!("{version}, {name}, {broken}");
        let fake = FakeEtcd::new();
        fake.set(|store| store.version = version);
        script(&fake);
        let gate = fake.member().await;
        let mut rig = Rig::start(quick(&gate));
        rig.told().await;
        // The watch is open, and has replayed the changes at the list's revision.
        asked(&fake, 5).await;
        gate.refuse(true);
        rig.error("connection").await;
        change(&fake);
        if broken.contains("removes") {
            compact(&fake);
        }
        gate.refuse(false);
        outlast_answer_timeout(&fake).await;
        let settled = (rig.lists(), fake.counts().watches, gate.accepted());
        outlast_answer_timeout(&fake).await;
        assert_eq!((rig.lists(), fake.counts().watches, gate.accepted()), settled, "{case}");
        let is_proven = broken == "a break" && name != "compacted" || name.starts_with("empty");
        assert!(rig.lists() <= if is_proven { 1 } else { 2 }, "{case}: {} lists", rig.lists());
        fake.write("new=1");
        rig.reach(&fake).await;
        assert_eq!((rig.history_rewrites, rig.health.report().last_error), (0, None), "{case}");
    });
    futures_util::future::join_all(cases).await;
}

/// etcd reads all revisions since the last change before it replays it, which may take longer than the answer timeout, again at each
/// attempt. A list takes less.
#[tokio::test(start_paused = true)]
async fn a_last_change_that_is_not_replayed_in_time_is_listed() {
    for version in VERSIONS {
        let fake = FakeEtcd::new();
        fake.set(|store| store.version = version);
        fake.write("a=1");
        let gate = fake.member().await;
        let mut rig = Rig::start(quick(&gate));
        rig.told().await;
        asked(&fake, 5).await;
        elsewhere(&fake, 100);
        fake.set(|store| store.sync_delay = Duration::from_millis(30));
        gate.cut();
        assert_eq!(rig.told().await, format!("list {}", fake.revision()), "{version}");
        outlast_answer_timeout(&fake).await;
        assert_eq!(rig.health.state(), SyncState::Synced, "{version}");
        assert_eq!((rig.lists(), fake.counts().watches), (2, 3), "{version}");
    }
}

/// An etcd whose progress cannot be trusted does not show that a quiet prefix has passed a revision of other keys, which clients may have of
/// the run before: a list does, and callers cannot cause another.
#[tokio::test(start_paused = true)]
async fn after_a_start_a_revision_of_other_keys_is_listed_once_for_callers_that_wait() {
    for (version, arrival) in VERSIONS.into_iter().zip(["list", "bookmark"]) {
        let fake = FakeEtcd::new();
        fake.set(|store| store.version = version);
        fake.write("a=1");
        let gate = fake.member().await;
        let mut rig = Rig::start(quick(&gate));
        rig.told().await;
        let kept = rig.kept().await;
        let waiting = rig.demand.wait();
        elsewhere(&fake, 3);
        asked(&fake, 20).await;
        assert_eq!(rig.lists(), 1, "{version}: this run has listed");
        drop((waiting, rig));
        let mut rig = Rig::resume(quick(&gate), Some(&kept));
        asked(&fake, 20).await;
        assert_eq!((rig.version, rig.lists()), (2, 0), "{version}: nobody waits");
        let waiting = rig.demand.wait();
        let mut told = String::new();
        while rig.version < 5 {
            told = rig.next().await;
        }
        assert_eq!(told, format!("{arrival} 5"), "{version}");
        let lists = u64::from(arrival == "list");
        elsewhere(&fake, 3);
        asked(&fake, 20).await;
        assert_eq!((rig.lists(), rig.history_rewrites), (lists, 0), "{version}: once");
        drop(waiting);
        assert_eq!(rig.state, fake.state(PREFIX));
    }
}

/// The watch has to be quiet for a whole read first.
#[tokio::test]
async fn after_a_start_nothing_is_listed_while_changes_may_be_on_their_way() {
    let fake = FakeEtcd::new();
    fake.set(|store| store.version = "3.4.23");
    fake.write("a=1");
    let gate = fake.member().await;
    let patient = || EtcdConfig { answer_timeout: DEADLINE, ..config(&[&gate]) };
    let mut rig = Rig::start(patient());
    rig.told().await;
    let kept = rig.kept().await;
    drop(rig);
    let mut rig = Rig::resume(patient(), Some(&kept));
    asked(&fake, 5).await;
    let (release, first) = tokio::sync::oneshot::channel();
    let (_hold, third) = tokio::sync::oneshot::channel();
    let answered = Fault::Then(Box::new(|_| ()));
    fake.set(|store| store.ranges.extend([Fault::Hold(first), answered, Fault::Hold(third)]));
    asked(&fake, 1).await;
    // The first read has begun before this message of the watch.
    fake.write("a=2");
    assert_eq!(rig.told().await, "3 ~a=2");
    elsewhere(&fake, 1);
    let pages = fake.counts().pages;
    let _waiting = rig.demand.wait();
    drop(release);
    asked(&fake, 2).await;
    assert_eq!(fake.counts().pages, pages, "the third is a read of the head");
    fake.write("a=3");
    assert_eq!((rig.told().await, rig.lists()), ("5 ~a=3".to_owned(), 0));
}
