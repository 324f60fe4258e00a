//! What goes wrong between the API and the source (RELIABILITY 2.1; SEMANTICS 1.27).

use tokio::time::Instant;

use super::{
    play::{bookmark, event, expired, failure},
    *,
};

fn refuse(code: u16) -> Fault {
    Fault::Refuse(code, None, String::new())
}

/// "Whole events before the cut applied, the torn one never": at every byte of what the API sends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_cut_at_any_byte_loses_nothing_and_tells_nothing_twice() {
    let whole = replay(usize::MAX).await;
    assert!(whole > 1000, "{whole} bytes");
    for bytes in 1..whole {
        replay(bytes).await;
    }
}

/// The initial events and what follows, over a first connection of so many bytes.
async fn replay(bytes: usize) -> usize {
    let stand = Stand::new().await;
    stand.play.write("a=1 b=1");
    stand.gate.limit_next(bytes);
    let mut rig = stand.rig();
    rig.told().await;
    stand.play.write("a=2 -b");
    stand.reach(&mut rig).await;
    assert_eq!(rig.rewinds, 0, "cut after {bytes}");
    stand.gate.passed()
}

/// The same of pages and of a watch of its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_that_is_cut_at_any_byte_is_never_taken_for_the_whole() {
    let replay = async |bytes: usize| {
        let stand = Stand::new().await;
        stand.play.set(|store| store.streams = false);
        stand.play.write("a=1 b=1 c=1");
        stand.gate.limit_next(bytes);
        let mut rig = follow(KubeConfig { page_size: Some(2), ..stand.config() }, None);
        assert_eq!(rig.told().await, "list 4", "cut after {bytes}");
        assert_eq!(rig.state, stand.play.state(), "cut after {bytes}");
        stand.gate.passed()
    };
    let whole = replay(usize::MAX).await;
    for bytes in (1..whole).step_by(3) {
        replay(bytes).await;
    }
}

/// `TestReflectorWatchHandler`'s normal close: at once, and without a list.
#[tokio::test]
async fn a_watch_goes_on_after_a_break_without_a_list() {
    let stand = Stand::new().await;
    let mut rig = stand.listed().await;
    for n in 1..10 {
        stand.play.write(&format!("a={n}"));
        assert!(rig.told().await.ends_with(&format!("a={n}")));
        stand.gate.cut();
    }
    assert_eq!((rig.lists(), rig.rewinds), (1, 0));
}

/// `TestReflectorResourceVersionUpdate`: 10, 20, 30, 40, by an addition, a change, a bookmark and a deletion.
#[tokio::test]
async fn the_last_version_is_what_was_told_last() {
    let stand = Stand::new().await;
    let object = |version: &str| serde_json::json!({"metadata": {"name": "a", "uid": "u", "resourceVersion": version}});
    let lines = vec![
        bookmark("1", Some("true")),
        event("ADDED", &object("10")),
        event("MODIFIED", &object("20")),
        bookmark("30", None),
        event("DELETED", &object("40")),
    ];
    stand.play.set(|store| {
        store.revision = 40;
        store.watches.push_back(Fault::Tell(lines));
    });
    let mut rig = stand.rig();
    for expected in ["list 1", "10 +a=", "20 ~a=", "bookmark 30", "40 -a"] {
        assert_eq!(rig.next().await, expected);
    }
    until(|| stand.play.asked() == ["initial", "head", "watch 40"]).await;
}

/// `TestNoRelistOnTooManyRequests` (5 watches, 1 list), `TestReflectorListAndWatchInitConnBackoff`,
/// `TestBackoffOnTooManyRequests`.
#[tokio::test]
async fn an_api_that_is_busy_is_watched_again_and_never_listed() {
    let stand = Stand::new().await;
    stand.play.write("a=1");
    let mut rig = stand.listed().await;
    stand.play.set(|store| {
        store.watches.extend([429, 503, 429, 502].map(refuse));
        store.watches.push_back(Fault::Tell(vec![failure(429, "TooManyRequests")]));
    });
    stand.gate.refuse(true);
    rig.error("connection").await;
    stand.gate.refuse(false);
    stand.play.write("a=2");
    assert_eq!(rig.told().await, "3 ~a=2");
    assert_eq!(rig.lists(), 1);
    assert_eq!(stand.play.asked().iter().filter(|asked| *asked == "watch 2").count(), 6);
}

/// SEMANTICS 1.25, rule 5: with the last version first, and never at once with the most recent (kubernetes #86430).
#[tokio::test]
async fn a_watch_that_has_expired_is_listed_again_once() {
    for streams in [true, false] {
        let stand = Stand::new().await;
        stand.play.set(|store| store.streams = streams);
        stand.play.write("a=1 b=1");
        let mut rig = stand.listed().await;
        stand.gate.refuse(true);
        rig.error("connection").await;
        stand.play.write("a=2 -b c=1");
        stand.play.compact(5);
        stand.gate.refuse(false);
        assert_eq!(rig.told().await, "list 6");
        assert_eq!(rig.state, stand.play.state());
        assert_eq!((rig.lists(), rig.rewinds), (2, 0));
        let asked = stand.play.asked();
        assert!(asked.contains(&(if streams { "initial 3" } else { "list 3" }).to_owned()), "{asked:?}");
    }
}

/// SEMANTICS 1.27, rule 9: "store read error", after which what is corrupt is gone (`TestReflectorReplacesStoreOnUnsafeDelete`).
#[tokio::test]
async fn an_internal_error_in_a_watch_is_listed_again() {
    let stand = Stand::new().await;
    stand.play.write("a=1");
    let lines = vec![bookmark("2", Some("true")), failure(500, "InternalError")];
    stand.play.set(|store| store.watches.push_back(Fault::Tell(lines)));
    let mut rig = stand.rig();
    assert_eq!(rig.told().await, "list 2");
    assert_eq!(rig.told().await, "list 2");
    assert_eq!(stand.play.asked(), ["initial", "initial 2"]);
}

/// `TestWatchList`: closed before the bookmark, a bookmark of another value, refused, expired and of no use.
#[tokio::test]
async fn initial_events_are_taken_whole_or_not_at_all() {
    let stand = Stand::new().await;
    stand.play.write("a=1 b=1");
    let object = serde_json::json!({"metadata": {"name": "z", "uid": "u", "resourceVersion": "2"}});
    stand.play.set(|store| {
        store.watches.push_back(Fault::Tell(vec![event("ADDED", &object)]));
        store.watches.push_back(Fault::Tell(vec![event("ADDED", &object), bookmark("2", Some("false"))]));
        store.watches.push_back(refuse(429));
        store.watches.push_back(Fault::Tell(vec![expired()]));
    });
    let mut rig = stand.rig();
    assert_eq!(rig.told().await, "list 3");
    assert_eq!(rig.state, stand.play.state());
    assert_eq!(stand.play.asked(), ["initial"; 5]);
}

/// "Updates and deletes during the stream."
#[tokio::test]
async fn what_changes_among_the_initial_events_is_part_of_the_list() {
    let stand = Stand::new().await;
    let object = |name: &str, version: &str| serde_json::json!({"metadata": {"name": name, "uid": name, "resourceVersion": version}, "value": version});
    let lines = vec![
        event("ADDED", &object("a", "2")),
        event("ADDED", &object("b", "3")),
        event("MODIFIED", &object("a", "4")),
        event("DELETED", &object("b", "5")),
        bookmark("5", Some("true")),
    ];
    stand.play.set(|store| store.watches.push_back(Fault::Tell(lines)));
    let mut rig = stand.rig();
    assert_eq!(rig.told().await, "list 5");
    assert_eq!(rig.state.clone().into_iter().collect::<Vec<_>>(), [("a".to_owned(), ("a".to_owned(), "4".to_owned()))]);
}

/// `TestWatchList`: "fallback on any error", for this round alone.
#[tokio::test]
async fn an_api_without_initial_events_is_listed() {
    let stand = Stand::new().await;
    stand.play.set(|store| store.streams = false);
    stand.play.write("a=1");
    let mut rig = stand.listed().await;
    stand.play.write("a=2");
    assert_eq!(rig.told().await, "3 ~a=2");
    assert_eq!(stand.play.asked(), ["initial", "list limit=500", "watch 2"], "the head is known from the list");
}

/// An API that takes the request for that of any other watch.
#[tokio::test]
async fn initial_events_that_never_end_are_given_up_for_good() {
    let stand = Stand::new().await;
    stand.play.write("a=1");
    stand.play.set(|store| store.watches.push_back(Fault::Ignore));
    let mut rig = follow(KubeConfig { initial_events_timeout: Duration::from_millis(300), ..stand.config() }, None);
    assert_eq!(rig.told().await, "list 2");
    stand.play.write("a=2");
    assert_eq!(rig.told().await, "3 ~a=2");
    assert_eq!(stand.play.asked()[..3], ["initial", "list limit=500", "watch 2"]);
    stand.play.compact(9);
    stand.play.set(|store| store.revision = 9);
    stand.gate.cut();
    assert_eq!(rig.told().await, "list 9");
    assert!(stand.play.asked().contains(&"list 3".to_owned()), "{:?}", stand.play.asked());
}

/// "Obeyed, clamped to 1 s and 5 min": no request comes earlier.
#[tokio::test]
async fn an_answer_that_asks_for_patience_gets_it() {
    let stand = Stand::new().await;
    stand.play.write("a=1");
    stand.play.set(|store| store.watches.push_back(Fault::Refuse(429, Some(1), String::new())));
    let since = Instant::now();
    let mut rig = stand.rig();
    assert_eq!(rig.told().await, "list 2");
    let waited = since.elapsed();
    assert!(waited >= Duration::from_secs(1) && waited < Duration::from_secs(4), "{waited:?}");
}

/// "Duplicate, out-of-order, old: never forwarded." The rig refuses what is told twice.
#[tokio::test]
async fn what_contradicts_itself_is_never_forwarded() {
    let stand = Stand::new().await;
    stand.play.write("a=1 a=2 a=3");
    let old = serde_json::json!({"metadata": {"name": "a", "uid": "u2", "resourceVersion": "3"}, "value": "wrong"});
    let lines = vec![bookmark("4", Some("true")), event("MODIFIED", &old)];
    stand.play.set(|store| store.watches.push_back(Fault::Tell(lines)));
    let mut rig = stand.rig();
    assert_eq!(rig.told().await, "list 4");
    stand.play.write("a=4");
    assert_eq!(rig.told().await, "5 ~a=4");
    assert_eq!((rig.lists(), rig.rewinds), (1, 0));
}

/// 403 and 404: what was there stays, and the error says what to do.
#[tokio::test]
async fn what_is_not_allowed_or_not_there_deletes_nothing() {
    let stand = Stand::new().await;
    stand.play.write("a=1");
    let mut rig = stand.listed().await;
    stand.play.set(|store| {
        store.watches.extend([403, 404, 404, 403].map(refuse));
        store.lists.extend([403, 403, 404].map(refuse));
    });
    stand.gate.cut();
    rig.error("informerd rbac").await;
    stand.play.write("a=2");
    stand.reach(&mut rig).await;
    assert_eq!(rig.rewinds, 0);
}
