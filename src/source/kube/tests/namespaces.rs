//! Tests of several namespaces in one resource: one list, one version, and each change once.

use super::{fake_api::bookmark, *};
use crate::{cache::ProgressGuard, model::ResourceVersion};

/// Writes objects in three namespaces, up to version 5; the source follows two of them.
async fn three() -> Fixture {
    let fixture = Fixture::new().await;
    fixture.fake.write("a/x=1 b/x=1 c/x=1 b/y=1");
    fixture
}

impl Fixture {
    fn of_two(&self) -> KubeConfig {
        KubeConfig { namespaces: vec!["a".into(), "b".into()], ..self.config() }
    }

    fn state_of_two(&self, revision: u64) -> std::collections::BTreeMap<String, (String, String)> {
        let mut state = self.fake.state_at(revision);
        state.retain(|key, _| !key.starts_with("c/"));
        state
    }

    async fn listed_two(&self) -> Rig {
        let mut rig = follow(self.of_two(), None);
        assert_eq!(rig.told().await, format!("list {}", self.fake.revision()));
        rig
    }
}

/// Registers a waiting caller, and folds deltas up to the cluster's revision.
async fn reach(fixture: &Fixture, rig: &mut Rig) {
    let _waiting: ProgressGuard = rig.demand.wait();
    let revision = fixture.fake.revision();
    rig.reach_state(revision, || fixture.state_of_two(revision)).await;
}

fn asked(fixture: &Fixture, since: usize) -> Vec<String> {
    let mut asked = fixture.fake.asked().split_off(since);
    asked.retain(|asked| asked != "head");
    asked
}

/// Events are emitted at once, and the merged version is the lowest one.
#[tokio::test]
async fn namespaces_have_one_list_one_version_and_a_watch_each() {
    let fixture = three().await;
    let mut rig = fixture.listed_two().await;
    assert_eq!(rig.state, fixture.state_of_two(5));
    assert_eq!(rig.health.namespaces(), ["a", "b"]);
    until(|| fixture.fake.asked().len() == 4).await;
    assert_eq!(fixture.fake.asked(), ["list limit=500", "list 5 limit=500 exact", "watch 5", "watch 5"]);

    fixture.fake.write("a/x=2");
    assert_eq!(rig.next().await, "5 ahead ~a/x=2@6", "at once, though nobody knows of b");
    fixture.fake.write("c/x=2 b/x=2");
    assert_eq!(rig.next().await, "5 ahead ~b/x=2@8");
    assert_eq!(rig.next().await, "bookmark 6", "what both have reached");
    fixture.fake.write("-a/x");
    assert_eq!(rig.next().await, "6 ahead -a/x@9");
    assert_eq!(rig.next().await, "bookmark 8");
    reach(&fixture, &mut rig).await;
    assert_eq!((rig.version, rig.lists()), (9, 1));
}

/// kube-apiserver sends a bookmark for a quiet namespace once a minute, and at the end of a watch; a waiting caller causes a
/// probe.
#[tokio::test]
async fn a_quiet_namespace_is_probed_while_a_caller_waits() {
    let fixture = three().await;
    let mut rig = fixture.listed_two().await;
    fixture.fake.write("a/x=2 c/x=2");
    assert_eq!(rig.next().await, "5 ahead ~a/x=2@6");
    let since = fixture.fake.asked().len();
    let waiting = rig.demand.wait();
    assert_eq!(rig.next().await, "bookmark 6");
    drop(waiting);
    assert_eq!(asked(&fixture, since)[0], "watch 5 probe");
    assert_eq!(rig.state, fixture.state_of_two(7));
}

#[tokio::test]
async fn each_namespace_resumes_from_its_own_position() {
    let fixture = three().await;
    let mut rig = fixture.listed_two().await;
    fixture.fake.write("a/x=2");
    assert_eq!(rig.next().await, "5 ahead ~a/x=2@6");
    until(|| fixture.fake.asked().len() >= 4).await;
    for round in 0..4 {
        fixture.gate.cut();
        fixture.fake.write(&format!("b/x={round}1 a/y={round} c/x={round} a/y={round}1 -b/x b/x={round}2"));
        reach(&fixture, &mut rig).await;
    }
    assert_eq!((rig.lists(), rig.history_rewrites), (1, 0), "{:?}", fixture.fake.asked());
}

/// A watch that the API closes is reopened, and no other.
#[tokio::test]
async fn the_end_of_one_watch_ends_no_other() {
    let fixture = three().await;
    let line = |version: &str| bookmark(version, None);
    fixture.fake.set(|store| store.watches.push_back(Fault::Tell(vec![line("5")])));
    let mut rig = fixture.listed_two().await;
    until(|| fixture.fake.asked().len() >= 5).await;
    fixture.fake.write("a/x=2 b/x=2");
    reach(&fixture, &mut rig).await;
    let watches = fixture.fake.asked().iter().filter(|asked| *asked == "watch 5").count();
    assert_eq!((watches, rig.lists()), (3, 1));
    assert_eq!(rig.stats.watches.load(std::sync::atomic::Ordering::Relaxed), 1);
}

/// The snapshot of the merged version lacks changes of the namespace that was ahead; the API repeats them.
#[tokio::test]
async fn the_next_run_resumes_from_the_merged_version() {
    let fixture = three().await;
    let mut rig = fixture.listed_two().await;
    fixture.fake.write("b/y=2");
    assert_eq!(rig.next().await, "5 ahead ~b/y=2@6");
    reach(&fixture, &mut rig).await;
    fixture.fake.write("a/x=2 a/x=3");
    assert_eq!(rig.told().await, "6 ahead ~a/x=2@7");
    assert_eq!(rig.told().await, "6 ahead ~a/x=3@8");
    let kept = SavedSnapshot { state: fixture.state_of_two(6), ..rig.kept().await };
    assert_eq!(kept.version, 6);
    drop(rig);

    fixture.fake.write("b/x=2 a/z=1");
    let since = fixture.fake.asked().len();
    let mut later = follow(fixture.of_two(), Some(&kept));
    reach(&fixture, &mut later).await;
    assert_eq!(later.lists(), 0, "{:?}", asked(&fixture, since));
    drop(later);

    // History rewritten: the last known change is missing.
    fixture.fake.restore(6);
    fixture.fake.write("a/q=1 a/q=2 b/q=1 a/q=3 b/q=4");
    let mut later = follow(fixture.of_two(), Some(&kept));
    let revision = fixture.fake.revision();
    reach(&fixture, &mut later).await;
    assert_eq!(later.state, fixture.state_of_two(revision));
    assert!(later.lists() > 0);
}

#[tokio::test]
async fn a_cluster_older_than_the_position_of_one_namespace_has_a_rewritten_history() {
    let fixture = three().await;
    let mut rig = fixture.listed_two().await;
    fixture.fake.write("a/x=2 a/x=3 a/x=4");
    while rig.next().await != "5 ahead ~a/x=4@8" {}
    fixture.gate.refuse(true);
    fixture.gate.cut();
    fixture.fake.restore(6);
    fixture.gate.refuse(false);
    while rig.history_rewrites == 0 {
        rig.next().await;
    }
    assert_eq!(rig.state, fixture.state_of_two(6));
}

#[tokio::test]
async fn an_api_without_exact_lists_or_decimal_versions_is_reported() {
    let fixture = three().await;
    fixture.fake.set(|store| store.inexact = 1);
    let rig = follow(fixture.of_two(), None);
    rig.error("does not list namespaces at one version (resourceVersionMatch=Exact)").await;
    drop(rig);

    let fixture = three().await;
    fixture.fake.set(|store| store.prefix = "x");
    follow(fixture.of_two(), None).error("versions are not decimals").await;
    let other = serde_json::json!({"kind": "SecretList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": []});
    fixture.fake.set(|store| store.prefix = "");
    // More than one attempt needs: a request of the source before may still be on its way.
    fixture.fake.set(|store| store.lists.extend((0..10).map(|_| Fault::Answer(other.to_string()))));
    follow(fixture.of_two(), None).error("list of kind \"SecretList\"").await;
    fixture.fake.set(|store| store.lists.clear());
    let opaque = KubeConfig { has_opaque_versions: true, ..fixture.of_two() };
    follow(opaque, None).error("versions are not decimals").await;
}

/// There is one warning for each problem: with several namespaces, and with a single one.
#[tokio::test]
async fn a_namespace_that_does_not_exist_is_a_problem_until_it_does() {
    let fixture = three().await;
    let several = KubeConfig { namespaces: vec!["a".into(), "gone".into(), "lost".into()], ..fixture.config() };
    let one = KubeConfig { namespace: "gone".into(), ..fixture.config() };
    // The checks begin some time after the watch request.
    let skip = async |seconds, is_so: &dyn Fn() -> bool| {
        for _ in 0..10 {
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(seconds)).await;
            tokio::time::resume();
            if timeout(Duration::from_secs(1), until(is_so)).await.is_ok() {
                return;
            }
        }
        panic!("not within ten times {seconds} s");
    };
    for (config, missing) in [(several, vec!["gone", "lost"]), (one, vec!["gone"])] {
        let hour = Duration::from_secs(3600);
        let config = KubeConfig { contact_timeout: hour, watch_timeout: hour, ..config };
        fixture.fake.set(|store| store.namespaces = Some(vec!["a"]));
        let mut rig = follow(config, None);
        assert!(rig.told().await.starts_with("list"));
        let subjects = || {
            let mut subjects: Vec<_> = rig.health.problems().into_iter().map(|problem| problem.subject).collect();
            subjects.sort();
            subjects
        };
        assert_eq!(subjects(), missing);
        let problem = rig.health.problems().into_iter().find(|problem| problem.subject == "gone").unwrap();
        assert_eq!(problem.reason.as_str(), "NAMESPACE_NOT_FOUND");
        assert_eq!(problem.message, "namespaces \"gone\" not found; create it, or remove it from the configuration");
        fixture.fake.set(|store| store.namespaces = Some(vec!["a", "gone", "lost"]));
        skip(21, &|| subjects().is_empty()).await;
        // Detected without a list too.
        fixture.fake.set(|store| store.namespaces = Some(vec!["a"]));
        skip(301, &|| subjects() == missing).await;
        assert_eq!(rig.lists(), 1);
        // A namespace that may not be read is no problem.
        fixture.fake.set(|store| store.namespaces = None);
        skip(21, &|| subjects().is_empty()).await;
    }
}

/// A namespace that is added or removed causes one list.
#[tokio::test]
async fn a_selector_decides_which_namespaces_there_are() {
    let fixture = three().await;
    fixture.fake.write("@a=1 @b=1");
    let config = KubeConfig { namespace_selector: "team=x".into(), ..fixture.config() };
    let mut rig = follow(config.clone(), None);
    assert_eq!(rig.told().await, "list 7");
    assert_eq!(
        (rig.state.clone(), rig.health.namespaces()),
        (fixture.state_of_two(5), vec!["a".to_owned(), "b".into()])
    );
    assert!(fixture.fake.asked()[0].starts_with("list limit=500 of namespaces"), "{:?}", fixture.fake.asked());
    fixture.fake.write("a/x=2 @a=2");
    assert_eq!(rig.next().await, "7 ahead ~a/x=2@8");

    fixture.fake.write("@c=1 -@b");
    assert_eq!(rig.told().await, "list 11");
    assert_eq!(rig.new_namespaces, ["c"], "what was there before, and is new here, proves no other history");
    assert_eq!((rig.lists(), rig.health.namespaces()), (2, vec!["a".to_owned(), "c".into()]));
    let names = |rig: &Rig| rig.state.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(&rig), ["a/x", "c/x"]);

    fixture.gate.cut();
    fixture.fake.write("c/y=1");
    until(|| fixture.fake.asked().iter().filter(|asked| asked.starts_with("watch 11")).count() >= 3).await;
    assert_eq!(rig.told().await, "11 ahead +c/y=1@12");
    fixture.fake.write("-@c -@a");
    assert_eq!(rig.told().await, "list 14");
    assert!(rig.state.is_empty() && rig.health.namespaces().is_empty());
    fixture.fake.write("@b=1");
    assert_eq!(rig.told().await, "list 15");
    assert_eq!(names(&rig), ["b/x", "b/y"]);

    // The next run, after a change of the selected namespaces.
    let kept = rig.kept().await;
    drop(rig);
    fixture.fake.write("b/z=1");
    let mut later = follow(config.clone(), Some(&kept));
    assert_eq!((later.told().await.as_str(), later.lists()), ("16 +b/z=1", 0), "one namespace has one version");
    drop(later);
    fixture.fake.write("@a=3");
    let mut later = follow(config, Some(&kept));
    while !later.told().await.starts_with("list") {}
    assert_eq!(
        (names(&later), later.history_rewrites),
        (vec!["a/x".to_owned(), "b/x".into(), "b/y".into(), "b/z".into()], 0)
    );
}

/// The API does not send a change of the selection again: it outlasts the watch that received it, and no state without the new
/// namespace is saved with the position after it.
#[tokio::test]
async fn a_change_of_the_selection_outlasts_its_watch() {
    let fixture = three().await;
    fixture.fake.write("@a=1 @b=1");
    let mut rig = follow(KubeConfig { namespace_selector: "team=x".into(), ..fixture.config() }, None);
    assert_eq!(rig.told().await, "list 7");
    until(|| fixture.fake.asked().iter().filter(|asked| asked.starts_with("watch 7")).count() == 3).await;
    fixture.fake.write("@c=1");
    // The selection has yet to settle.
    let is_received = |proof: Option<bytes::Bytes>| {
        proof.is_none_or(|proof| String::from_utf8_lossy(&proof).contains(r#""version":"8""#))
    };
    let received = async { while !is_received(rig.proof().await) {} };
    timeout(DEADLINE, received).await.expect("in time");
    assert_eq!(rig.proof().await, None);
    fixture.gate.cut();
    assert_eq!(rig.told().await, "list 8");
    assert!(rig.state.contains_key("c/x"));
    assert!(rig.proof().await.is_some());
}

#[tokio::test]
async fn a_selector_of_too_many_namespaces_is_named() {
    let fixture = Fixture::new().await;
    for n in 0..101 {
        fixture.fake.write(&format!("@n{n}=1"));
    }
    let config = KubeConfig { namespace_selector: "team=x".into(), ..fixture.config() };
    follow(config, None).error("selects 101 namespaces (limit: 100); select fewer").await;
}

/// A previous run sent an object ahead of the merged version, and the object was deleted between the runs: no later list shows
/// it, and a client that resumes from the merged version still has it.
#[tokio::test]
async fn a_list_below_what_the_previous_run_may_have_sent_expires_older_versions() {
    let fixture = three().await;
    let mut rig = fixture.listed_two().await;
    fixture.fake.write("a/new=1");
    assert_eq!(rig.told().await, "5 ahead +a/new=1@6");
    let kept = SavedSnapshot { state: fixture.state_of_two(5), ..rig.kept().await };
    drop(rig);
    fixture.fake.write("-a/new");
    fixture.fake.compact(7);
    let mut later = follow(fixture.of_two(), Some(&kept));
    assert_eq!(later.told().await, "list 7");
    assert!(later.expires_older, "an earlier start may have sent versions 6 and 7");

    fixture.fake.write("a/x=2 b/x=2");
    reach(&fixture, &mut later).await;
    fixture.gate.refuse(true);
    fixture.gate.cut();
    later.error("connection").await;
    fixture.fake.write("c/x=2");
    fixture.fake.compact(10);
    fixture.gate.refuse(false);
    assert_eq!(later.told().await, "list 10");
    assert!(!later.expires_older, "the resource has passed version 7");
}

/// A list that a caller may have from a cache that lags must not take a namespace back behind events that were emitted.
#[tokio::test]
async fn a_list_is_not_older_than_the_namespace_that_is_ahead() {
    let fixture = three().await;
    let mut rig = fixture.listed_two().await;
    fixture.fake.write("a/x=2 a/x=3 a/x=4");
    while rig.next().await != "5 ahead ~a/x=4@8" {}
    let kept = SavedSnapshot { state: fixture.state_of_two(5), ..rig.kept().await };
    let since = fixture.fake.asked().len();
    fixture.fake.compact(8);
    fixture.gate.cut();
    assert_eq!(rig.told().await, "list 8");
    let list = |since| asked(&fixture, since).into_iter().find(|asked| asked.starts_with("list")).unwrap();
    assert_eq!((&*list(since), rig.history_rewrites), ("list 8", 0));
    drop(rig);
    let since = fixture.fake.asked().len();
    let mut later = follow(fixture.of_two(), Some(&kept));
    assert_eq!((later.told().await, list(since)), ("list 8".to_owned(), "list 8".to_owned()));

    let source = KubeSource::new(fixture.of_two(), SourceHealth::new(Duration::MAX, Duration::MAX));
    let resumed = source.warm_start().unwrap().resume(&ResourceVersion::decimal(6), &kept.proof);
    assert_eq!(resumed.unwrap_err(), "resume proof of version 5 for a snapshot at 6");
}

/// The changes of a namespace that was ahead come again, and no version above them is complete before they have.
#[tokio::test]
async fn the_merged_version_of_the_next_run_waits_for_what_is_repeated() {
    let fixture = three().await;
    let mut rig = fixture.listed_two().await;
    fixture.fake.write("a/x=2 a/x=3");
    while rig.next().await != "5 ahead ~a/x=3@7" {}
    let kept = SavedSnapshot { state: fixture.state_of_two(5), ..rig.kept().await };
    drop(rig);
    fixture.fake.set(|store| store.stands_still = Some(("a", 5)));
    fixture.fake.write("b/x=2");
    let mut later = follow(fixture.of_two(), Some(&kept));
    assert_eq!(later.next().await, "5 ahead ~b/x=2@8");
    fixture.fake.stand_still(None);
    assert_eq!(later.next().await, "6 ~a/x=2");
    reach(&fixture, &mut later).await;
    assert_eq!(later.lists(), 0);
}

#[tokio::test]
async fn many_events_ahead_are_a_reason_to_probe_the_others() {
    let fixture = three().await;
    let mut rig = fixture.listed_two().await;
    for number in 0..=1_000 {
        fixture.fake.write(&format!("a/x={number}"));
    }
    while !rig.next().await.starts_with("bookmark") {}
    assert!(fixture.fake.asked().contains(&"watch 5 probe".to_owned()));
}

/// Each namespace has the uid of the cluster from the list on.
#[tokio::test]
async fn another_cluster_is_noticed_when_watches_are_opened_again() {
    let fixture = three().await;
    let mut rig = fixture.listed_two().await;
    until(|| fixture.fake.asked().len() == 4).await;
    fixture.fake.set(|store| store.cluster = Some("u-2"));
    fixture.gate.cut();
    assert_eq!(rig.told().await, "rewind 5");
}

/// The last list of a rewritten history is above the merged version, and below events that were emitted.
#[tokio::test]
async fn a_list_below_the_namespace_that_is_ahead_shows_a_rewritten_history() {
    let fixture = three().await;
    let mut rig = fixture.listed_two().await;
    fixture.fake.write("b/x=2 b/x=3 b/x=4");
    while rig.next().await != "5 ahead ~b/x=4@8" {}
    // The watch of the first namespace expires before the position of the other is compared.
    fixture.gate.refuse(true);
    fixture.gate.cut();
    fixture.fake.restore(6);
    let expired = serde_json::json!({"reason": "Expired", "code": 410, "message": "too old"}).to_string();
    fixture.fake.set(|store| store.watches.push_back(Fault::Refuse(410, None, expired)));
    fixture.gate.refuse(false);
    while rig.version != 6 {
        rig.next().await;
    }
    assert_eq!((rig.history_rewrites, rig.state.clone()), (1, fixture.state_of_two(6)));
}

/// One namespace of an API that writes several objects at one version, also when that version is complete.
#[tokio::test]
async fn a_late_change_leaves_versions_open_in_the_next_run_too() {
    for is_last in [true, false] {
        let fixture = three().await;
        let config = KubeConfig { namespaces: vec!["a".into()], ..fixture.config() };
        let mut rig = follow(config.clone(), None);
        assert_eq!(rig.told().await, "list 5");
        until(|| fixture.fake.asked().len() == 2).await;
        fixture.fake.write("a/z=1");
        assert_eq!(rig.told().await, "6 +a/z=1");
        let late = fixture.fake.line("ADDED", "a/z").replace("\"name\":\"z\"", "\"name\":\"w\"");
        fixture.fake.set(|store| store.watches.push_back(Fault::Tell(vec![late])));
        fixture.gate.cut();
        assert_eq!(rig.told().await, "6 ahead +a/w=1@6");
        assert_eq!(rig.health.late_changes(), 1);
        until(|| fixture.fake.asked().last().unwrap() == "watch 5").await;
        if is_last {
            fixture.gate.cut();
            while rig.told().await != "list 6" {}
            continue;
        }
        fixture.fake.write("a/u=1");
        while rig.told().await != "6 ahead +a/u=1@7" {}
        let kept = SavedSnapshot { state: fixture.fake.state_at(6), ..rig.kept().await };
        drop(rig);
        let mut later = follow(config.clone(), Some(&kept));
        assert_eq!((&*later.told().await, later.lists()), ("6 ahead +a/u=1@7", 0), "more may come at 7");
        drop(later);
        fixture.fake.compact(7);
        let mut later = follow(config, Some(&kept));
        assert_eq!((&*later.told().await, later.expires_older), ("list 7", true));
    }
}

/// A namespace that was ahead at the end of a run resumes from the merged version, at which its last known change proves nothing.
#[tokio::test]
async fn a_namespace_that_was_ahead_resumes_only_with_its_last_known_change() {
    for what in ["the same", "another change", "another cluster"] {
        let fixture = three().await;
        let config = KubeConfig { namespaces: vec!["a".into()], ..fixture.config() };
        let mut rig = follow(config.clone(), None);
        assert_eq!(rig.told().await, "list 5");
        fixture.fake.write("-a/x");
        assert_eq!(rig.told().await, "5 ahead -a/x@6");
        let kept = SavedSnapshot { state: fixture.fake.state_at(5), ..rig.kept().await };
        assert_eq!(kept.version, 5, "more may come at 6");
        drop(rig);
        match what {
            "another change" => {
                fixture.fake.restore(5);
                fixture.fake.write("a/q=1 a/q=2");
            }
            "another cluster" => fixture.fake.set(|store| store.cluster = Some("u-2")),
            _ => {}
        }
        let mut later = follow(config, Some(&kept));
        let first = later.told().await;
        let expected = match what {
            // A deletion leaves nothing that a list could show.
            "the same" => ("list 6", 0),
            "another change" => ("rewind 7", 1),
            _ => ("rewind 6", 1),
        };
        assert_eq!((&*first, later.history_rewrites), expected, "{what}");
    }
}

/// An API that closes each watch of one namespace at once receives no requests in a loop without a pause.
#[tokio::test]
async fn a_watch_that_is_closed_at_once_is_a_failure() {
    let fixture = three().await;
    fixture.fake.set(|store| store.watches.extend((0..4).map(|_| Fault::Tell(Vec::new()))));
    let mut rig = fixture.listed_two().await;
    rig.error("closed at once").await;
    fixture.fake.write("a/x=2 b/x=2");
    reach(&fixture, &mut rig).await;
}
