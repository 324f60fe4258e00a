//! Tests of faults between the API and the source.

use tokio::time::Instant;

use super::{
    play::{bookmark, event, expired, failure},
    *,
};

fn refuse(code: u16) -> Fault {
    Fault::Refuse(code, None, String::new())
}

/// Events received whole are applied, and a torn one never is: cut at every byte that the API sends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_is_cut_at_any_byte_loses_nothing_and_tells_nothing_twice() {
    let whole = replay(usize::MAX).await;
    assert!(whole > 1000, "{whole} bytes");
    for bytes in 1..whole {
        replay(bytes).await;
    }
}

/// Follows initial events and two changes, over a first connection that is cut after so many bytes.
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

/// A list in pages, cut at every third byte.
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

/// `TestReflectorWatchHandler`'s normal close: the watch is reopened at once, and without a list.
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
    until(|| stand.play.asked() == ["initial", "head", "watch 39"]).await;
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
    let watches = stand.play.asked().iter().filter(|asked| asked.starts_with("watch")).count();
    assert_eq!(watches, 6);
}

/// Behaviour of client-go's Reflector: the list after an expired watch is at the last version, not at the most recent one
/// (kubernetes #86430).
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

/// An API server reports a corrupt object as a store read error, and omits it after its unsafe deletion
/// (`TestReflectorReplacesStoreOnUnsafeDelete`).
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

/// `TestWatchList`: closed before the bookmark, a bookmark of another value, refused, expired, and successful at last.
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

/// Objects may change, and be deleted, during the initial events.
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

/// `TestWatchList`: any error leads to an ordinary list, once.
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

/// An API that ignores the request for initial events; the source tries them once more, over another connection.
#[tokio::test]
async fn initial_events_that_never_end_are_given_up() {
    let stand = Stand::new().await;
    stand.play.write("a=1");
    stand.play.set(|store| store.watches.push_back(Fault::Ignore));
    let mut rig = follow(KubeConfig { initial_events_timeout: Duration::from_millis(300), ..stand.config() }, None);
    assert_eq!(rig.told().await, "list 2");
    stand.play.write("a=2");
    assert_eq!(rig.told().await, "3 ~a=2");
    assert_eq!(stand.play.asked()[..3], ["initial", "list limit=500", "watch 2"]);
    for revision in [9, 19] {
        let version = rig.version;
        stand.play.set(|store| {
            store.watches.push_back(Fault::Tell(vec![expired()]));
            store.watches.push_back(Fault::Ignore);
            store.revision = revision;
        });
        stand.play.compact(revision);
        stand.gate.cut();
        assert_eq!(rig.told().await, format!("list {revision}"));
        let asked = stand.play.asked();
        let is_tried = asked.contains(&format!("initial {version}"));
        assert_eq!((is_tried, asked.contains(&format!("list {version}"))), (revision == 9, true), "{asked:?}");
        stand.play.set(|store| store.watches.clear());
    }
}

/// An API that ignores the request for initial events, with a resource that changes constantly.
#[tokio::test]
async fn initial_events_that_never_end_are_given_up_though_something_happens() {
    for write in
        [|n: u32| format!("b={n}"), |n: u32| if n.is_multiple_of(2) { "b=1".to_owned() } else { "-b".to_owned() }]
    {
        let stand = Stand::new().await;
        stand.play.write("a=1");
        stand.play.set(|store| store.watches.push_back(Fault::Ignore));
        let play = stand.play.clone();
        let busy = tokio::spawn(async move {
            for n in 0.. {
                play.write(&write(n));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        let rig = follow(KubeConfig { initial_events_timeout: Duration::from_millis(300), ..stand.config() }, None);
        let popped = timeout(DEADLINE, rig.fifo.pop_batch(1, 1)).await;
        busy.abort();
        assert!(popped.is_ok(), "{:?}", stand.play.asked());
    }
}

/// An API server may be overloaded for a moment.
#[tokio::test]
async fn initial_events_are_requested_again_at_the_next_connection() {
    let stand = Stand::new().await;
    stand.play.write("a=1");
    stand.play.set(|store| store.watches.push_back(Fault::Ignore));
    let mut rig = follow(KubeConfig { initial_events_timeout: Duration::from_millis(200), ..stand.config() }, None);
    assert_eq!(rig.told().await, "list 2");
    for n in 3..8 {
        // Only an open watch breaks; the next one is opened over another connection, and expires.
        let is_open = |asked: &String| asked.starts_with("watch") || asked.starts_with("initial");
        until(|| stand.play.asked().last().is_some_and(is_open)).await;
        stand.play.set(|store| store.revision = n);
        stand.play.compact(n);
        stand.gate.cut();
        assert_eq!(rig.told().await, format!("list {n}"));
    }
    let asked = stand.play.asked();
    assert_eq!(asked.iter().filter(|asked| asked.starts_with("initial")).count(), 6, "{asked:?}");
}

/// Retry-After is obeyed, between 1 s and 5 min: no request is sent earlier.
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

/// Duplicate, out-of-order and old events are not emitted. The rig fails on a repeated event.
#[tokio::test]
async fn what_contradicts_itself_is_never_forwarded() {
    let stand = Stand::new().await;
    stand.play.write("a=1 a=2 a=3");
    let old = serde_json::json!({"metadata": {"name": "a", "uid": "u2", "resourceVersion": "3"}, "value": "wrong"});
    let lines = vec![stand.play.line("ADDED", "a"), bookmark("4", Some("true")), event("MODIFIED", &old)];
    stand.play.set(|store| store.watches.push_back(Fault::Tell(lines)));
    let mut rig = stand.rig();
    assert_eq!(rig.told().await, "list 4");
    stand.play.write("a=4");
    assert_eq!(rig.told().await, "5 ~a=4");
    assert_eq!((rig.lists(), rig.rewinds), (1, 0));
}

/// An aggregated API whose decimals have no order: each watch begins with the same low event.
#[tokio::test]
async fn a_stream_that_always_contradicts_itself_is_listed_at_last() {
    let stand = Stand::new().await;
    stand.play.write("a=1 a=2 a=3");
    let low = serde_json::json!({"metadata": {"name": "b", "uid": "u9", "resourceVersion": "3"}, "value": "1"});
    let a = stand.play.line("ADDED", "a");
    stand.play.set(|store| {
        let lines = vec![a, bookmark("4", Some("true")), event("ADDED", &low)];
        store.watches.push_back(Fault::Tell(lines));
        for _ in 0..50 {
            store.watches.push_back(Fault::Tell(vec![event("ADDED", &low)]));
        }
    });
    let mut rig = stand.rig();
    assert_eq!(rig.told().await, "list 4");
    until(|| rig.lists() > 1).await;
    let watches = stand.play.asked().iter().filter(|asked| *asked == "watch 4").count();
    assert_eq!(watches, 2, "three with that of the initial events");
}

/// Opaque versions have no order to contradict.
#[tokio::test]
async fn versions_that_are_in_no_order_are_followed_as_opaque_ones() {
    let stand = Stand::new().await;
    stand.play.write("a=1 a=2 a=3");
    let low = serde_json::json!({"metadata": {"name": "b", "uid": "u9", "resourceVersion": "3"}, "value": "1"});
    let lines = vec![bookmark("4", Some("true")), event("ADDED", &low), bookmark("4", None)];
    stand.play.set(|store| store.watches.push_back(Fault::Tell(lines)));
    let mut rig = follow(KubeConfig { has_opaque_versions: true, ..stand.config() }, None);
    assert_eq!(rig.told().await, "list 1", "counted here");
    assert_eq!(rig.told().await, "2 +b=1");
    assert_eq!(rig.lists(), 1);
}

/// Every unpaged list fails, but pages succeed.
#[tokio::test]
async fn a_relist_that_is_too_slow_in_one_piece_is_read_in_pages() {
    let stand = Stand::new().await;
    stand.play.set(|store| store.streams = false);
    for n in 0..600 {
        stand.play.write(&format!("k{n}=1"));
    }
    let mut rig = follow(KubeConfig { answer_timeout: Duration::from_millis(1500), ..stand.config() }, None);
    assert_eq!(rig.told().await, "list 601");
    stand.gate.refuse(true);
    rig.error("connection").await;
    stand.play.write("z=1 z=2");
    stand.play.compact(603);
    let timed_out =
        serde_json::json!({"reason": "Timeout", "message": "request did not complete within the allotted timeout"});
    stand.play.set(|store| store.one_piece = Some(timed_out.to_string()));
    let since = stand.play.asked().len();
    stand.gate.refuse(false);
    assert_eq!(rig.told().await, "list 603");
    assert_eq!(rig.state, stand.play.state());
    let asked = stand.play.asked().split_off(since);
    let lists: Vec<&String> = asked.iter().filter(|asked| asked.starts_with("list")).collect();
    assert_eq!(lists, ["list 601", "list limit=500", "list limit=500 page"], "in one piece once");
}

/// A 410 is an answer, but does not show that the state is current.
#[tokio::test]
async fn a_watch_that_has_expired_never_turns_stale_into_synced() {
    let stand = Stand::new().await;
    stand.play.write("a=1");
    let mut rig = stand.listed().await;
    rig.health.synced();
    stand.play.set(|store| {
        for _ in 0..200 {
            store.watches.push_back(Fault::Tell(vec![expired()]));
            store.lists.push_back(refuse(500));
        }
    });
    rig.health.lost();
    let seen_at = rig.health.report().seen_at;
    stand.gate.cut();
    until(|| stand.play.set(|store| store.watches.len()) < 180).await;
    assert_eq!((rig.health.state(), rig.health.report().seen_at), (crate::cache::SyncState::Stale, seen_at));
    stand.play.set(|store| (store.watches.clear(), store.lists.clear()));
    assert_eq!(rig.told().await, "list 2");
    until(|| rig.health.state() == crate::cache::SyncState::Synced).await;
}

/// A user who may only list and watch one name (RBAC `resourceNames` with `fieldSelector=metadata.name=...`) may not list all.
#[tokio::test]
async fn every_request_has_the_configured_selectors() {
    let stand = Stand::new().await;
    stand.play.write("a=1");
    stand.play.set(|store| store.only = Some("a"));
    let config = KubeConfig { field_selector: "metadata.name=a".to_owned(), ..stand.config() };
    let mut rig = follow(config, None);
    rig.told().await;
    stand.gate.cut();
    stand.play.write("a=2");
    stand.reach(&mut rig).await;
    assert_eq!((rig.lists(), rig.health.report().last_error), (1, None), "{:?}", stand.play.asked());
}

/// A head that may not be read proves nothing, and is no failure.
#[tokio::test]
async fn a_head_that_is_refused_is_no_failure() {
    let stand = Stand::new().await;
    stand.play.write("a=1");
    let mut rig = stand.listed().await;
    stand.play.set(|store| {
        for _ in 0..20 {
            store.lists.push_back(Fault::Refuse(403, None, r#"{"reason": "Forbidden"}"#.to_owned()));
        }
    });
    stand.gate.cut();
    stand.play.write("a=2");
    stand.reach(&mut rig).await;
    assert_eq!((rig.lists(), rig.health.report().last_error), (1, None), "{:?}", stand.play.asked());
    assert!(stand.play.asked().contains(&"watch 1".to_owned()), "from before the last known change");
}

/// An API that ignores `limit` or the selector.
#[tokio::test]
async fn a_head_that_is_larger_than_it_may_be_is_read_no_further() {
    let stand = Stand::new().await;
    stand.play.write("a=1");
    let mut rig = stand.listed().await;
    let large = format!(r#"{{"metadata":{{"resourceVersion":"1"}},"items":[],"x":"{}"}}"#, "x".repeat(64 << 20));
    stand.play.set(|store| store.lists.push_back(Fault::Answer(large)));
    let passed = stand.gate.passed();
    stand.gate.cut();
    stand.play.write("a=2");
    stand.reach(&mut rig).await;
    assert_eq!((rig.lists(), rig.rewinds), (1, 0));
    let passed = stand.gate.passed() - passed;
    assert!(passed < 32 << 20, "{passed} bytes");
}

/// 403 and 404: the objects stay, and the error says what to do.
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
