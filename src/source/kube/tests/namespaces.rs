//! Several namespaces in one resource: one list, one version, and each change once.

use super::{play::bookmark, *};
use crate::cache::Waiting;

/// Objects in three namespaces of a cluster at version 5, of which two are followed.
async fn three() -> Stand {
    let stand = Stand::new().await;
    stand.play.write("a/x=1 b/x=1 c/x=1 b/y=1");
    stand
}

impl Stand {
    fn of_two(&self) -> KubeConfig {
        KubeConfig { namespaces: vec!["a".into(), "b".into()], ..self.config() }
    }

    fn state_of_two(&self, revision: u64) -> std::collections::BTreeMap<String, (String, String)> {
        let mut state = self.play.state_at(revision);
        state.retain(|key, _| !key.starts_with("c/"));
        state
    }

    async fn listed_two(&self) -> Rig {
        let mut rig = follow(self.of_two(), None);
        assert_eq!(rig.told().await, format!("list {}", self.play.revision()));
        rig
    }
}

/// Waits until everything has come and the version is that of the cluster, which somebody waits for.
async fn reach(stand: &Stand, rig: &mut Rig) {
    let _waiting: Waiting = rig.health.demand().wait();
    let revision = stand.play.revision();
    rig.reach_state(revision, || stand.state_of_two(revision)).await;
}

fn asked(stand: &Stand, since: usize) -> Vec<String> {
    let mut asked = stand.play.asked().split_off(since);
    asked.retain(|asked| asked != "head");
    asked
}

/// Invariants 3 and 12.
#[tokio::test]
async fn namespaces_have_one_list_one_version_and_a_watch_each() {
    let stand = three().await;
    let mut rig = stand.listed_two().await;
    assert_eq!(rig.state, stand.state_of_two(5));
    assert_eq!(rig.health.namespaces(), ["a", "b"]);
    until(|| stand.play.asked().len() == 4).await;
    assert_eq!(stand.play.asked(), ["list limit=500", "list 5 limit=500 exact", "watch 5", "watch 5"]);

    stand.play.write("a/x=2");
    assert_eq!(rig.next().await, "5 ahead ~a/x=2@6", "at once, though nobody knows of b");
    stand.play.write("c/x=2 b/x=2");
    assert_eq!(rig.next().await, "5 ahead ~b/x=2@8");
    assert_eq!(rig.next().await, "bookmark 6", "what both have reached");
    stand.play.write("-a/x");
    assert_eq!(rig.next().await, "6 ahead -a/x@9");
    assert_eq!(rig.next().await, "bookmark 8");
    reach(&stand, &mut rig).await;
    assert_eq!((rig.version, rig.lists()), (9, 1));
}

/// Invariant 13: kube-apiserver tells of a quiet namespace once a minute, and at the end of a watch.
#[tokio::test]
async fn a_quiet_namespace_is_asked_for_while_somebody_waits() {
    let stand = three().await;
    let mut rig = stand.listed_two().await;
    stand.play.write("a/x=2 c/x=2");
    assert_eq!(rig.next().await, "5 ahead ~a/x=2@6");
    let since = stand.play.asked().len();
    let waiting = rig.health.demand().wait();
    assert_eq!(rig.next().await, "bookmark 6");
    drop(waiting);
    assert_eq!(asked(&stand, since)[0], "watch 5 probe");
    assert_eq!(rig.state, stand.state_of_two(7));
}

#[tokio::test]
async fn each_namespace_goes_on_from_where_it_is() {
    let stand = three().await;
    let mut rig = stand.listed_two().await;
    stand.play.write("a/x=2");
    assert_eq!(rig.next().await, "5 ahead ~a/x=2@6");
    until(|| stand.play.asked().len() >= 4).await;
    for round in 0..4 {
        stand.gate.cut();
        stand.play.write(&format!("b/x={round}1 a/y={round} c/x={round} a/y={round}1 -b/x b/x={round}2"));
        reach(&stand, &mut rig).await;
    }
    assert_eq!((rig.lists(), rig.rewinds), (1, 0), "{:?}", stand.play.asked());
}

/// A watch that the API closes is opened again by itself.
#[tokio::test]
async fn a_watch_that_ends_ends_no_other() {
    let stand = three().await;
    let line = |version: &str| bookmark(version, None);
    stand.play.set(|store| store.watches.push_back(Fault::Tell(vec![line("5")])));
    let mut rig = stand.listed_two().await;
    until(|| stand.play.asked().len() >= 5).await;
    stand.play.write("a/x=2 b/x=2");
    reach(&stand, &mut rig).await;
    let watches = stand.play.asked().iter().filter(|asked| *asked == "watch 5").count();
    assert_eq!((watches, rig.lists()), (3, 1));
    assert_eq!(rig.stats.watches.load(std::sync::atomic::Ordering::Relaxed), 1);
}

/// What one of them was ahead of is not in the state of the merged version, and comes again.
#[tokio::test]
async fn a_later_start_goes_on_from_the_merged_version() {
    let stand = three().await;
    let mut rig = stand.listed_two().await;
    stand.play.write("b/y=2");
    assert_eq!(rig.next().await, "5 ahead ~b/y=2@6");
    reach(&stand, &mut rig).await;
    stand.play.write("a/x=2 a/x=3");
    assert_eq!(rig.told().await, "6 ahead ~a/x=2@7");
    assert_eq!(rig.told().await, "6 ahead ~a/x=3@8");
    let kept = Kept { state: stand.state_of_two(6), ..rig.kept().await };
    assert_eq!(kept.version, 6);
    drop(rig);

    stand.play.write("b/x=2 a/z=1");
    let since = stand.play.asked().len();
    let mut later = follow(stand.of_two(), Some(&kept));
    reach(&stand, &mut later).await;
    assert_eq!(later.lists(), 0, "{:?}", asked(&stand, since));
    drop(later);

    // Another history: the last change that is known is not there any more.
    stand.play.restore(6);
    stand.play.write("a/q=1 a/q=2 b/q=1 a/q=3 b/q=4");
    let mut later = follow(stand.of_two(), Some(&kept));
    let revision = stand.play.revision();
    reach(&stand, &mut later).await;
    assert_eq!(later.state, stand.state_of_two(revision));
    assert!(later.lists() > 0);
}

#[tokio::test]
async fn a_cluster_that_is_behind_what_was_known_of_one_namespace_has_another_history() {
    let stand = three().await;
    let mut rig = stand.listed_two().await;
    stand.play.write("a/x=2 a/x=3 a/x=4");
    while rig.next().await != "5 ahead ~a/x=4@8" {}
    stand.gate.refuse(true);
    stand.gate.cut();
    stand.play.restore(6);
    stand.gate.refuse(false);
    while rig.rewinds == 0 {
        rig.next().await;
    }
    assert_eq!(rig.state, stand.state_of_two(6));
}

#[tokio::test]
async fn an_api_whose_versions_do_not_allow_it_is_named() {
    let stand = three().await;
    stand.play.set(|store| store.inexact = 1);
    let rig = follow(stand.of_two(), None);
    rig.error("does not list namespaces at one version (resourceVersionMatch=Exact)").await;
    drop(rig);

    let stand = three().await;
    stand.play.set(|store| store.prefix = "x");
    follow(stand.of_two(), None).error("versions are not decimals").await;
    let opaque = KubeConfig { has_opaque_versions: true, ..stand.of_two() };
    follow(opaque, None).error("versions are not decimals").await;
}
