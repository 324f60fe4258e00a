//! Tests of rewritten histories, and of API servers that only lag behind.

use super::{
    fake_api::{bookmark, event},
    *,
};
use crate::{
    cache::{Indexer, List, RewriteEvidence},
    model::ResourceVersion,
};

/// A list from the watch cache of an API server that lags behind is older, but no rewritten history.
#[tokio::test]
async fn a_lagging_api_server_is_no_rewritten_history() {
    for streams in [true, false] {
        let fixture = Fixture::new().await;
        fixture.fake.set(|store| store.streams = streams);
        fixture.fake.write("a=1 b=1");
        let mut rig = fixture.listed().await;
        fixture.fake.write("a=2");
        rig.told().await;
        // From its cache the server would answer with an older state.
        fixture.fake.set(|store| {
            store.lag = 2;
            store.watches.push_back(Fault::Refuse(500, None, "{}".to_owned()));
        });
        fixture.gate.cut();
        assert_eq!(rig.told().await, "list 4", "the most recent state, after what is known was too large for it");
        assert_eq!((rig.history_rewrites, rig.state.clone()), (0, fixture.fake.state()));
        let asked = fixture.fake.asked();
        let asked = asked.iter().filter(|asked| asked.starts_with(if streams { "initial" } else { "list" }));
        let first =
            if streams { ["initial", "initial 4", "initial"] } else { ["list limit=500", "list 4", "list limit=500"] };
        assert_eq!(asked.collect::<Vec<_>>(), first);
    }
}

/// An old server that ignores the requested version.
#[tokio::test]
async fn a_list_older_than_requested_is_not_used() {
    let fixture = Fixture::new().await;
    fixture.fake.set(|store| store.streams = false);
    fixture.fake.write("a=1 a=2");
    let config = fixture.config();
    let health = SourceHealth::new(config.contact_timeout, Duration::from_secs(15));
    let source = KubeSource::new(config, health);
    let old = r#"{"kind":"WidgetList","metadata":{"resourceVersion":"2"},"items":[]}"#;
    fixture.fake.set(|store| store.lists.push_back(Fault::Answer(old.to_owned())));
    let error = source.list(ListVersion::NotOlderThan(ResourceVersion::decimal(3))).await.unwrap_err();
    assert!(matches!(error, SourceError::VersionTooLarge(_)), "{error:?}");
}

/// Follows a cluster to version 5, and restores it to 3 without an event.
async fn went_back(fixture: &Fixture) -> Rig {
    fixture.fake.write("a=1 b=1");
    let mut rig = fixture.listed().await;
    fixture.fake.write("a=2 c=1");
    rig.told().await;
    rig.told().await;
    fixture.fake.restore(3);
    rig
}

/// A watch from a lost version would be silent until the cluster reached that version again.
#[tokio::test]
async fn a_restored_cluster_is_detected_before_it_is_watched() {
    for (streams, opens_the_future) in [(true, true), (false, true), (true, false), (false, false)] {
        let fixture = Fixture::new().await;
        fixture.fake.set(|store| (store.streams, store.opens_the_future) = (streams, opens_the_future));
        let mut rig = went_back(&fixture).await;
        fixture.gate.cut();
        assert_eq!(rig.told().await, "rewind 3");
        assert_eq!((rig.history_rewrites, rig.state.clone()), (1, fixture.fake.state()));
        fixture.fake.write("d=1");
        assert_eq!(rig.told().await, "4 +d=1");
    }
}

/// The cluster may have advanced beyond the last known version before it is listed.
#[tokio::test]
async fn a_restored_cluster_is_detected_even_if_its_revision_catches_up_at_once() {
    let fixture = Fixture::new().await;
    fixture.fake.set(|store| store.streams = false);
    let mut rig = went_back(&fixture).await;
    let faults = [Fault::Then(Box::new(|_| ())), Fault::Then(Box::new(|fake| fake.write("a=3 a=4 a=5")))];
    fixture.fake.set(|store| store.lists.extend(faults));
    fixture.gate.cut();
    assert_eq!(rig.told().await, "rewind 6");
    assert_eq!((rig.history_rewrites, rig.state.clone()), (1, fixture.fake.state()));
}

#[tokio::test]
async fn another_cluster_at_the_same_address_is_a_rewritten_history() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1");
    let mut rig = fixture.listed().await;
    fixture.fake.set(|store| store.cluster = Some("u-2"));
    fixture.fake.write("a=2");
    assert_eq!(rig.told().await, "3 ~a=2");
    fixture.gate.cut();
    assert_eq!(rig.told().await, "rewind 3");
    fixture.fake.set(|store| store.cluster = None);
    fixture.gate.cut();
    fixture.fake.write("a=3");
    assert_eq!(rig.told().await, "4 ~a=3", "what is not for us to read says nothing");
    assert_eq!(rig.history_rewrites, 1);
}

/// The same object at the same version may have other bytes in a list than in a watch, in another version of the API server,
/// and after a change of a conversion: bytes prove nothing. A missing object, or one at another version, does.
#[tokio::test]
async fn bytes_prove_nothing_and_versions_do() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1 b=1");
    let config = fixture.config();
    let health = SourceHealth::new(config.contact_timeout, Duration::from_secs(15));
    let source = KubeSource::new(config, health);
    let held = source.list(ListVersion::MostRecent).await.unwrap();
    let indexer = Indexer::new(std::sync::Arc::default(), held.clone());
    let listed = |items: &str| {
        let text = format!(r#"{{"kind":"WidgetList","metadata":{{"resourceVersion":"9"}},"items":[{items}]}}"#);
        fixture.fake.set(|store| {
            store.streams = false;
            store.lists.push_back(Fault::Answer(text));
        });
        source.list(ListVersion::NotOlderThan(held.version.clone()))
    };
    let a = r#"{"metadata":{"name":"a","uid":"u2","resourceVersion":"2"},"defaulted":true}"#;
    let contradicts =
        |list: &List| indexer.snapshot().rewrite_proof(list, RewriteEvidence::Listed).map(ToString::to_string);
    assert_eq!(contradicts(&listed(a).await.unwrap()), None);
    assert_eq!(
        indexer
            .snapshot()
            .rewrite_proof(&listed(a).await.unwrap(), RewriteEvidence::Bytes)
            .map(ToString::to_string)
            .as_deref(),
        Some("a")
    );
    let newer = r#"{"metadata":{"name":"a","uid":"u2","resourceVersion":"7"}}"#;
    assert_eq!(contradicts(&listed(newer).await.unwrap()), None);
    for other in [
        r#"{"metadata":{"name":"a","uid":"u9","resourceVersion":"2"}}"#,
        r#"{"metadata":{"name":"b","uid":"u3","resourceVersion":"2"}}"#,
        r#"{"metadata":{"name":"z","uid":"u2","resourceVersion":"2"}}"#,
    ] {
        assert!(contradicts(&listed(other).await.unwrap()).is_some(), "{other}");
    }
}

/// The cluster is restored during an outage, and has advanced beyond the last known version before the next watch.
#[tokio::test]
async fn a_restore_that_caught_up_while_disconnected_is_a_rewritten_history() {
    for streams in [true, false] {
        let fixture = Fixture::new().await;
        fixture.fake.set(|store| store.streams = streams);
        fixture.fake.write("a=1 b=1");
        let mut rig = fixture.listed().await;
        fixture.fake.write("a=2 c=1");
        rig.told().await;
        rig.told().await;
        fixture.gate.refuse(true);
        rig.error("connection").await;
        fixture.fake.restore(3);
        fixture.fake.write("d=1 d=2 d=3 d=4");
        fixture.gate.refuse(false);
        fixture.fake.write("e=1");
        fixture.reach(&mut rig).await;
        assert_eq!(rig.history_rewrites, 1, "streams {streams}");
    }
}

/// A proxy holds the watch request after a list until the cluster has been restored, and has advanced.
#[tokio::test(start_paused = true)]
async fn a_recent_list_confirms_the_history_of_a_watch() {
    for (late, history_rewrites) in [(9, 0), (10, 1)] {
        let fixture = Fixture::new().await;
        fixture.fake.set(|store| store.streams = false);
        fixture.fake.write("a=1 b=1");
        let restore = move |fake: &FakeApi| {
            if history_rewrites > 0 {
                fake.restore(2);
                fake.write("x=1");
            }
            fake.write("c=1");
        };
        let held = Fault::Late(Duration::from_secs(late), Box::new(restore));
        // The first watch request is for initial events, which this API does not have.
        fixture.fake.set(|store| store.watches.extend([Fault::Then(Box::new(|_| ())), held]));
        let mut rig = follow(KubeConfig { answer_timeout: Duration::from_secs(60), ..fixture.config() }, None);
        assert_eq!(rig.told().await, "list 3");
        while !rig.state.contains_key("c") {
            rig.told().await;
        }
        assert_eq!((rig.state.clone(), rig.history_rewrites), (fixture.fake.state(), history_rewrites), "{late} s");
    }
}

/// The backup contains the last known change: bookmarks have led beyond it, as they do once a minute.
#[tokio::test]
async fn a_restore_to_after_the_last_known_change_is_a_rewritten_history() {
    for change in ["b=9", "-b", "z=1"] {
        let fixture = Fixture::new().await;
        fixture.fake.write("b=1 a=1");
        let lines = vec![
            event("ADDED", &object("b", "2")),
            event("ADDED", &object("a", "3")),
            bookmark("3", Some("true")),
            bookmark("9", None),
        ];
        fixture.fake.set(|store| {
            store.revision = 9;
            store.watches.push_back(Fault::Tell(lines));
            // The API closes the watch and refuses the next requests, as while an API server is stopped.
            store.lists.extend((0..10_000).map(|_| Fault::Refuse(503, None, String::new())));
        });
        let mut rig = fixture.rig();
        assert_eq!(rig.told().await, "list 3");
        assert_eq!(rig.next().await, "bookmark 9");
        rig.error("HTTP 503").await;
        // Restored to 5, without an event, and advanced to 12.
        fixture.fake.restore(5);
        fixture.fake.write(change);
        fixture.fake.write("x=1 x=2 x=3 x=4 x=5 x=6");
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(10)).await;
        tokio::time::resume();
        fixture.fake.set(|store| store.lists.clear());
        fixture.reach(&mut rig).await;
    }
}

fn object(name: &str, version: &str) -> serde_json::Value {
    serde_json::json!({"metadata": {"name": name, "uid": format!("u{version}"), "resourceVersion": version}, "value": "1"})
}

/// The namespace kube-system may not be read (a Role for one namespace): another cluster under the same address.
#[tokio::test]
async fn another_cluster_at_a_higher_version_is_a_rewritten_history() {
    let fixture = Fixture::new().await;
    fixture.fake.set(|store| store.cluster = None);
    fixture.fake.write("a=1 b=1");
    let mut rig = fixture.listed().await;
    fixture.fake.write("a=2");
    rig.told().await;
    fixture.gate.refuse(true);
    rig.error("connection").await;
    fixture.fake.restore(1);
    fixture.fake.write("x=1 y=1 y=2 x=2 z=1");
    fixture.gate.refuse(false);
    fixture.fake.write("z=2");
    fixture.reach(&mut rig).await;
    assert_eq!(rig.history_rewrites, 1);
}

/// After a watch that the API closed itself there is no list, even if the API no longer has the last known change.
#[tokio::test]
async fn a_quiet_resource_is_not_listed_when_its_watch_is_closed() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1");
    let lines = vec![event("ADDED", &object("a", "2")), bookmark("2", Some("true")), bookmark("9", None)];
    fixture.fake.set(|store| {
        store.revision = 9;
        store.watches.push_back(Fault::Tell(lines));
    });
    fixture.fake.compact(8);
    let mut rig = fixture.rig();
    assert_eq!(rig.told().await, "list 2");
    assert_eq!(rig.next().await, "bookmark 9");
    fixture.fake.write("b=1");
    assert_eq!(rig.told().await, "10 +b=1");
    assert_eq!(rig.lists(), 1);
    fixture.gate.cut();
    fixture.fake.write("c=1");
    assert_eq!(rig.told().await, "11 +c=1");
    assert_eq!(rig.lists(), 1, "the last known change is the newest one");
}

/// The same if the API is busy when the watch is opened, after a close or a list.
#[tokio::test]
async fn a_quiet_resource_of_a_busy_api_is_not_listed() {
    for is_closed in [true, false] {
        let fixture = Fixture::new().await;
        fixture.fake.write("a=1");
        let lines = vec![event("ADDED", &object("a", "2")), bookmark("2", Some("true")), bookmark("9", None)];
        fixture.fake.set(|store| {
            (store.revision, store.streams) = (9, is_closed);
            if is_closed {
                store.watches.push_back(Fault::Tell(lines));
            }
            store.watches.extend([429, 503, 429].map(|code| Fault::Refuse(code, None, String::new())));
        });
        fixture.fake.compact(8);
        let mut rig = fixture.rig();
        assert_eq!(rig.told().await, if is_closed { "list 2" } else { "list 9" });
        until(|| fixture.fake.set(|store| store.watches.is_empty())).await;
        fixture.fake.write("b=1");
        assert_eq!((rig.told().await, rig.lists()), ("10 +b=1".to_owned(), 1), "{:?}", fixture.fake.asked());
    }
}

/// The same of several namespaces.
#[tokio::test]
async fn quiet_namespaces_of_a_busy_api_are_not_listed() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a/x=1 b/x=1");
    fixture.fake.set(|store| {
        store.revision = 9;
        store.watches.extend([429, 503, 429].map(|code| Fault::Refuse(code, None, String::new())));
    });
    fixture.fake.compact(8);
    let mut rig = follow(KubeConfig { namespaces: vec!["a".into(), "b".into()], ..fixture.config() }, None);
    assert_eq!(rig.told().await, "list 9");
    until(|| fixture.fake.set(|store| store.watches.is_empty())).await;
    fixture.fake.write("b/y=1");
    let told = rig.told().await;
    assert_eq!((told.as_str(), rig.lists()), ("9 ahead +b/y=1@10", 1), "{:?}", fixture.fake.asked());
}

/// There is no change to prove a history by, and no object that could be wrong.
#[tokio::test]
async fn an_empty_resource_resumes_after_a_break() {
    let fixture = Fixture::new().await;
    let mut rig = fixture.listed().await;
    fixture.gate.cut();
    until(|| fixture.fake.asked().iter().any(|asked| asked == "watch 1")).await;
    fixture.fake.write("a=1");
    assert_eq!(rig.told().await, "2 +a=1");
    assert_eq!((rig.lists(), rig.history_rewrites), (1, 0));
}

/// A restored API may repeat a version of a lineage: a broken watch resumes before the last change, which the API replays
/// unchanged, or the source lists the resource.
#[tokio::test]
async fn a_history_numbered_by_lineage_is_recognised_by_its_last_change() {
    // Changes before the outage, true for a restore, changes after it, and the expected request; a list is the initial events
    // of a watch.
    let cases = [
        ("a=2 b=2", false, "c=1", "watch 4"),
        ("a=2 -b", false, "c=1", "watch 4"),
        ("a=2 b=2", true, "a=9 b=9 c=1", "initial"),
        ("a=2 b=2", true, "a=2 b=3 c=1", "initial"),
        ("a=2 -b", true, "a=3 a=4 c=1", "initial"),
        ("", false, "c=1", "initial"),
        ("", true, "a=3 b=3", "initial"),
    ];
    for (changes, is_restored, written, expected) in cases {
        let fixture = Fixture::new().await;
        fixture.fake.set(|store| store.cluster = None);
        fixture.fake.write("a=1 b=1");
        let mut rig = follow(KubeConfig { has_opaque_versions: true, ..fixture.config() }, None);
        assert_eq!(rig.told().await, "list 1");
        fixture.fake.write(changes);
        for _ in changes.split_whitespace() {
            rig.told().await;
        }
        let since = fixture.fake.asked().len();
        fixture.gate.refuse(true);
        fixture.gate.cut();
        rig.error("connection").await;
        if is_restored {
            fixture.fake.restore(if changes.is_empty() { 1 } else { 3 });
        }
        fixture.fake.write(written);
        fixture.gate.refuse(false);
        let mut told = Vec::new();
        while rig.state != fixture.fake.state() {
            told.push(rig.told().await);
        }
        let asked = fixture.fake.asked().split_off(since);
        assert_eq!(told[0].starts_with("list"), expected == "initial", "{changes:?}, {written:?}: {told:?}");
        assert!(asked.iter().any(|asked| asked.starts_with(expected)), "{changes:?}, {written:?}: {asked:?}");
        let is_listed = expected == "initial";
        assert_eq!((rig.lists() > 1, rig.history_rewrites), (is_listed, 0), "{changes:?}, {written:?}: {asked:?}");
    }
}
