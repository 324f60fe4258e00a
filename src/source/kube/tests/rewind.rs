//! Tests of rewritten histories, and of API servers that only lag behind.

use super::{
    play::{bookmark, event},
    *,
};
use crate::{
    cache::{Evidence, Indexer, List},
    model::ResourceVersion,
};

/// A list from the watch cache of an API server that lags behind is older, but no rewritten history.
#[tokio::test]
async fn an_api_server_that_lags_behind_is_no_rewind() {
    for streams in [true, false] {
        let stand = Stand::new().await;
        stand.play.set(|store| store.streams = streams);
        stand.play.write("a=1 b=1");
        let mut rig = stand.listed().await;
        stand.play.write("a=2");
        rig.told().await;
        // From its cache the server would answer with an older state.
        stand.play.set(|store| {
            store.lag = 2;
            store.watches.push_back(Fault::Refuse(500, None, "{}".to_owned()));
        });
        stand.gate.cut();
        assert_eq!(rig.told().await, "list 4", "the most recent state, after what is known was too large for it");
        assert_eq!((rig.rewinds, rig.state.clone()), (0, stand.play.state()));
        let asked = stand.play.asked();
        let asked = asked.iter().filter(|asked| asked.starts_with(if streams { "initial" } else { "list" }));
        let first =
            if streams { ["initial", "initial 4", "initial"] } else { ["list limit=500", "list 4", "list limit=500"] };
        assert_eq!(asked.collect::<Vec<_>>(), first);
    }
}

/// An old server that ignores the requested version.
#[tokio::test]
async fn a_list_that_is_older_than_was_asked_for_is_not_taken() {
    let stand = Stand::new().await;
    stand.play.set(|store| store.streams = false);
    stand.play.write("a=1 a=2");
    let config = stand.config();
    let health = SourceHealth::new(config.contact_timeout, Duration::from_secs(15));
    let source = KubeSource::new(config, health);
    let old = r#"{"kind":"WidgetList","metadata":{"resourceVersion":"2"},"items":[]}"#;
    stand.play.set(|store| store.lists.push_back(Fault::Answer(old.to_owned())));
    let error = source.list(ListVersion::NotOlderThan(ResourceVersion::decimal(3))).await.unwrap_err();
    assert!(matches!(error, SourceError::VersionTooLarge(_)), "{error:?}");
}

/// Follows a cluster to version 5, and restores it to 3 without an event.
async fn went_back(stand: &Stand) -> Rig {
    stand.play.write("a=1 b=1");
    let mut rig = stand.listed().await;
    stand.play.write("a=2 c=1");
    rig.told().await;
    rig.told().await;
    stand.play.restore(3);
    rig
}

/// A watch from a lost version would be silent until the cluster reached that version again.
#[tokio::test]
async fn a_cluster_that_went_back_is_noticed_before_it_is_watched() {
    for (streams, opens_the_future) in [(true, true), (false, true), (true, false), (false, false)] {
        let stand = Stand::new().await;
        stand.play.set(|store| (store.streams, store.opens_the_future) = (streams, opens_the_future));
        let mut rig = went_back(&stand).await;
        stand.gate.cut();
        assert_eq!(rig.told().await, "rewind 3");
        assert_eq!((rig.rewinds, rig.state.clone()), (1, stand.play.state()));
        stand.play.write("d=1");
        assert_eq!(rig.told().await, "4 +d=1");
    }
}

/// The cluster may have advanced beyond the last known version before it is listed.
#[tokio::test]
async fn a_cluster_that_went_back_is_noticed_even_if_it_counts_on_at_once() {
    let stand = Stand::new().await;
    stand.play.set(|store| store.streams = false);
    let mut rig = went_back(&stand).await;
    let faults = [Fault::Then(Box::new(|_| ())), Fault::Then(Box::new(|play| play.write("a=3 a=4 a=5")))];
    stand.play.set(|store| store.lists.extend(faults));
    stand.gate.cut();
    assert_eq!(rig.told().await, "rewind 6");
    assert_eq!((rig.rewinds, rig.state.clone()), (1, stand.play.state()));
}

#[tokio::test]
async fn another_cluster_under_the_same_name_is_a_rewind() {
    let stand = Stand::new().await;
    stand.play.write("a=1");
    let mut rig = stand.listed().await;
    stand.play.set(|store| store.cluster = Some("u-2"));
    stand.play.write("a=2");
    assert_eq!(rig.told().await, "3 ~a=2");
    stand.gate.cut();
    assert_eq!(rig.told().await, "rewind 3");
    stand.play.set(|store| store.cluster = None);
    stand.gate.cut();
    stand.play.write("a=3");
    assert_eq!(rig.told().await, "4 ~a=3", "what is not for us to read says nothing");
    assert_eq!(rig.rewinds, 1);
}

/// The same object at the same version may have other bytes in a list than in a watch, in another version of the API server,
/// and after a change of a conversion: bytes prove nothing. A missing object, or one at another version, does.
#[tokio::test]
async fn bytes_prove_nothing_and_versions_do() {
    let stand = Stand::new().await;
    stand.play.write("a=1 b=1");
    let config = stand.config();
    let health = SourceHealth::new(config.contact_timeout, Duration::from_secs(15));
    let source = KubeSource::new(config, health);
    let held = source.list(ListVersion::MostRecent).await.unwrap();
    let indexer = Indexer::new(std::sync::Arc::default(), held.clone());
    let listed = |items: &str| {
        let text = format!(r#"{{"kind":"WidgetList","metadata":{{"resourceVersion":"9"}},"items":[{items}]}}"#);
        stand.play.set(|store| {
            store.streams = false;
            store.lists.push_back(Fault::Answer(text));
        });
        source.list(ListVersion::NotOlderThan(held.version.clone()))
    };
    let a = r#"{"metadata":{"name":"a","uid":"u2","resourceVersion":"2"},"defaulted":true}"#;
    let contradicts = |list: &List| indexer.snapshot().contradiction(list, Evidence::Listed).map(ToString::to_string);
    assert_eq!(contradicts(&listed(a).await.unwrap()), None);
    assert_eq!(
        indexer
            .snapshot()
            .contradiction(&listed(a).await.unwrap(), Evidence::Bytes)
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
async fn a_restore_that_counted_on_while_the_connection_was_down_is_a_rewind() {
    for streams in [true, false] {
        let stand = Stand::new().await;
        stand.play.set(|store| store.streams = streams);
        stand.play.write("a=1 b=1");
        let mut rig = stand.listed().await;
        stand.play.write("a=2 c=1");
        rig.told().await;
        rig.told().await;
        stand.gate.refuse(true);
        rig.error("connection").await;
        stand.play.restore(3);
        stand.play.write("d=1 d=2 d=3 d=4");
        stand.gate.refuse(false);
        stand.play.write("e=1");
        stand.reach(&mut rig).await;
        assert_eq!(rig.rewinds, 1, "streams {streams}");
    }
}

/// A proxy holds the watch request after a list until the cluster has been restored, and has advanced.
#[tokio::test(start_paused = true)]
async fn a_list_vouches_for_a_watch_that_is_answered_soon() {
    for (late, rewinds) in [(9, 0), (10, 1)] {
        let stand = Stand::new().await;
        stand.play.set(|store| store.streams = false);
        stand.play.write("a=1 b=1");
        let restore = move |play: &Play| {
            if rewinds > 0 {
                play.restore(2);
                play.write("x=1");
            }
            play.write("c=1");
        };
        let held = Fault::Late(Duration::from_secs(late), Box::new(restore));
        // The first watch request is for initial events, which this API does not have.
        stand.play.set(|store| store.watches.extend([Fault::Then(Box::new(|_| ())), held]));
        let mut rig = follow(KubeConfig { answer_timeout: Duration::from_secs(60), ..stand.config() }, None);
        assert_eq!(rig.told().await, "list 3");
        while !rig.state.contains_key("c") {
            rig.told().await;
        }
        assert_eq!((rig.state.clone(), rig.rewinds), (stand.play.state(), rewinds), "{late} s");
    }
}

/// The backup contains the last known change: bookmarks have led beyond it, as they do once a minute.
#[tokio::test]
async fn a_restore_to_after_the_last_known_change_is_a_rewind() {
    for change in ["b=9", "-b", "z=1"] {
        let stand = Stand::new().await;
        stand.play.write("b=1 a=1");
        let lines = vec![
            event("ADDED", &object("b", "2")),
            event("ADDED", &object("a", "3")),
            bookmark("3", Some("true")),
            bookmark("9", None),
        ];
        stand.play.set(|store| {
            store.revision = 9;
            store.watches.push_back(Fault::Tell(lines));
            // The API closes the watch and refuses the next requests, as while an API server is stopped.
            store.lists.push_back(Fault::Refuse(503, None, String::new()));
            store.lists.push_back(Fault::Refuse(503, None, String::new()));
        });
        let mut rig = stand.rig();
        assert_eq!(rig.told().await, "list 3");
        assert_eq!(rig.next().await, "bookmark 9");
        // Restored to 5, without an event, and advanced to 12.
        stand.play.restore(5);
        stand.play.write(change);
        stand.play.write("x=1 x=2 x=3 x=4 x=5 x=6");
        stand.reach(&mut rig).await;
    }
}

fn object(name: &str, version: &str) -> serde_json::Value {
    serde_json::json!({"metadata": {"name": name, "uid": format!("u{version}"), "resourceVersion": version}, "value": "1"})
}

/// The namespace kube-system may not be read (a Role for one namespace): another cluster under the same address.
#[tokio::test]
async fn another_cluster_that_is_further_is_a_rewind() {
    let stand = Stand::new().await;
    stand.play.set(|store| store.cluster = None);
    stand.play.write("a=1 b=1");
    let mut rig = stand.listed().await;
    stand.play.write("a=2");
    rig.told().await;
    stand.gate.refuse(true);
    rig.error("connection").await;
    stand.play.restore(1);
    stand.play.write("x=1 y=1 y=2 x=2 z=1");
    stand.gate.refuse(false);
    stand.play.write("z=2");
    stand.reach(&mut rig).await;
    assert_eq!(rig.rewinds, 1);
}

/// After a watch that the API closed itself there is no list, even if the API no longer has the last known change.
#[tokio::test]
async fn a_quiet_resource_is_not_listed_when_its_watch_is_closed() {
    let stand = Stand::new().await;
    stand.play.write("a=1");
    let lines = vec![event("ADDED", &object("a", "2")), bookmark("2", Some("true")), bookmark("9", None)];
    stand.play.set(|store| {
        store.revision = 9;
        store.watches.push_back(Fault::Tell(lines));
    });
    stand.play.compact(8);
    let mut rig = stand.rig();
    assert_eq!(rig.told().await, "list 2");
    assert_eq!(rig.next().await, "bookmark 9");
    stand.play.write("b=1");
    assert_eq!(rig.told().await, "10 +b=1");
    assert_eq!(rig.lists(), 1);
    stand.gate.cut();
    stand.play.write("c=1");
    assert_eq!(rig.told().await, "11 +c=1");
    assert_eq!(rig.lists(), 1, "the last known change is the newest one");
}

/// There is no change to prove a history by, and no object that could be wrong.
#[tokio::test]
async fn an_empty_resource_goes_on_after_a_break() {
    let stand = Stand::new().await;
    let mut rig = stand.listed().await;
    stand.gate.cut();
    until(|| stand.play.asked().iter().any(|asked| asked == "watch 1")).await;
    stand.play.write("a=1");
    assert_eq!(rig.told().await, "2 +a=1");
    assert_eq!((rig.lists(), rig.rewinds), (1, 0));
}

/// A restored API may repeat a version of a lineage: a broken watch resumes before the last change, which the API replays
/// unchanged, or the source lists the resource.
#[tokio::test]
async fn a_history_whose_versions_are_counted_here_is_recognised_by_its_last_change() {
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
        let stand = Stand::new().await;
        stand.play.set(|store| store.cluster = None);
        stand.play.write("a=1 b=1");
        let mut rig = follow(KubeConfig { has_opaque_versions: true, ..stand.config() }, None);
        assert_eq!(rig.told().await, "list 1");
        stand.play.write(changes);
        for _ in changes.split_whitespace() {
            rig.told().await;
        }
        let since = stand.play.asked().len();
        stand.gate.refuse(true);
        stand.gate.cut();
        rig.error("connection").await;
        if is_restored {
            stand.play.restore(if changes.is_empty() { 1 } else { 3 });
        }
        stand.play.write(written);
        stand.gate.refuse(false);
        let mut told = Vec::new();
        while rig.state != stand.play.state() {
            told.push(rig.told().await);
        }
        let asked = stand.play.asked().split_off(since);
        assert_eq!(told[0].starts_with("list"), expected == "initial", "{changes:?}, {written:?}: {told:?}");
        assert!(asked.iter().any(|asked| asked.starts_with(expected)), "{changes:?}, {written:?}: {asked:?}");
        let is_listed = expected == "initial";
        assert_eq!((rig.lists() > 1, rig.rewinds), (is_listed, 0), "{changes:?}, {written:?}: {asked:?}");
    }
}
