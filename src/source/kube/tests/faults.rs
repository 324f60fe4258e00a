//! Tests of faults between the API and the source.

use tokio::time::Instant;

use super::{
    fake_api::{bookmark, event, expired, failure},
    *,
};

fn refuse(code: u16) -> Fault {
    Fault::Refuse(code, None, String::new())
}

/// Events received whole are applied, and a torn one never is: cut at every byte that the API sends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_cut_at_any_byte_loses_and_repeats_no_event() {
    let whole = replay(usize::MAX).await;
    assert!(whole > 1000, "{whole} bytes");
    for bytes in 1..whole {
        replay(bytes).await;
    }
}

/// Follows initial events and two changes, over a first connection that is cut after so many bytes.
async fn replay(bytes: usize) -> usize {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1 b=1");
    fixture.gate.limit_next(bytes);
    let mut rig = fixture.rig();
    rig.told().await;
    fixture.fake.write("a=2 -b");
    fixture.reach(&mut rig).await;
    assert_eq!(rig.history_rewrites, 0, "cut after {bytes}");
    fixture.gate.passed()
}

/// A list in pages, cut at every third byte.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_cut_at_any_byte_is_never_taken_as_complete() {
    let replay = async |bytes: usize| {
        let fixture = Fixture::new().await;
        fixture.fake.set(|store| store.streams = false);
        fixture.fake.write("a=1 b=1 c=1");
        fixture.gate.limit_next(bytes);
        let mut rig = follow(KubeConfig { page_size: Some(2), ..fixture.config() }, None);
        assert_eq!(rig.told().await, "list 4", "cut after {bytes}");
        assert_eq!(rig.state, fixture.fake.state(), "cut after {bytes}");
        fixture.gate.passed()
    };
    let whole = replay(usize::MAX).await;
    for bytes in (1..whole).step_by(3) {
        replay(bytes).await;
    }
}

/// `TestReflectorWatchHandler`'s normal close: the watch is reopened at once, and without a list.
#[tokio::test]
async fn a_watch_resumes_after_a_break_without_a_list() {
    let fixture = Fixture::new().await;
    let mut rig = fixture.listed().await;
    for n in 1..10 {
        fixture.fake.write(&format!("a={n}"));
        assert!(rig.told().await.ends_with(&format!("a={n}")));
        fixture.gate.cut();
    }
    assert_eq!((rig.lists(), rig.history_rewrites), (1, 0));
}

/// `TestReflectorResourceVersionUpdate`: 10, 20, 30, 40, by an addition, a change, a bookmark and a deletion.
#[tokio::test]
async fn the_last_version_is_that_of_the_last_delivered_event() {
    let fixture = Fixture::new().await;
    let object = |version: &str| serde_json::json!({"metadata": {"name": "a", "uid": "u", "resourceVersion": version}});
    let lines = vec![
        bookmark("1", Some("true")),
        event("ADDED", &object("10")),
        event("MODIFIED", &object("20")),
        bookmark("30", None),
        event("DELETED", &object("40")),
    ];
    fixture.fake.set(|store| {
        store.revision = 40;
        store.watches.push_back(Fault::Tell(lines));
    });
    let mut rig = fixture.rig();
    for expected in ["list 1", "10 +a=", "20 ~a=", "bookmark 30", "40 -a"] {
        assert_eq!(rig.next().await, expected);
    }
    until(|| fixture.fake.asked() == ["initial", "head", "watch 39"]).await;
}

/// `TestNoRelistOnTooManyRequests` (5 watches, 1 list), `TestReflectorListAndWatchInitConnBackoff`,
/// `TestBackoffOnTooManyRequests`.
#[tokio::test]
async fn an_api_that_is_busy_is_watched_again_and_never_listed() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1");
    let mut rig = fixture.listed().await;
    fixture.fake.set(|store| {
        store.watches.extend([429, 503, 429, 502].map(refuse));
        store.watches.push_back(Fault::Tell(vec![failure(429, "TooManyRequests")]));
    });
    fixture.gate.refuse(true);
    rig.error("connection").await;
    fixture.gate.refuse(false);
    fixture.fake.write("a=2");
    assert_eq!(rig.told().await, "3 ~a=2");
    assert_eq!(rig.lists(), 1);
    let watches = fixture.fake.asked().iter().filter(|asked| asked.starts_with("watch")).count();
    assert_eq!(watches, 6);
}

/// Behaviour of client-go's Reflector: the list after an expired watch is at the last version, not at the most recent one
/// (kubernetes #86430).
#[tokio::test]
async fn a_watch_that_has_expired_is_listed_again_once() {
    for streams in [true, false] {
        let fixture = Fixture::new().await;
        fixture.fake.set(|store| store.streams = streams);
        fixture.fake.write("a=1 b=1");
        let mut rig = fixture.listed().await;
        fixture.gate.refuse(true);
        rig.error("connection").await;
        fixture.fake.write("a=2 -b c=1");
        fixture.fake.compact(5);
        fixture.gate.refuse(false);
        assert_eq!(rig.told().await, "list 6");
        assert_eq!(rig.state, fixture.fake.state());
        assert_eq!((rig.lists(), rig.history_rewrites), (2, 0));
        let asked = fixture.fake.asked();
        assert!(asked.contains(&(if streams { "initial 3" } else { "list 3" }).to_owned()), "{asked:?}");
    }
}

/// `TestReflectorReplacesStoreOnUnsafeDelete`: an API server reports the unsafe deletion of a corrupt object as a store read error,
/// and no longer lists the object.
#[tokio::test]
async fn an_internal_error_in_a_watch_is_listed_again() {
    let fixture = Fixture::new().await;
    fixture.fake.write("kept=1 corrupt=1");
    let [kept, corrupt] = ["kept", "corrupt"].map(|key| fixture.fake.line("ADDED", key));
    let lines = vec![kept, corrupt, bookmark("3", Some("true")), failure(500, "StorageReadError")];
    fixture.fake.write("-corrupt");
    fixture.fake.set(|store| store.watches.push_back(Fault::Tell(lines)));
    let mut rig = fixture.rig();
    assert_eq!(rig.told().await, "list 3");
    assert_eq!(rig.state.len(), 2);
    assert_eq!(rig.told().await, "list 4");
    assert_eq!((rig.state.len(), &rig.state), (1, &fixture.fake.state()));
    assert_eq!(fixture.fake.asked(), ["initial", "initial 3"]);
}

/// `TestWatchList`: closed before the bookmark, a bookmark of another value, refused, expired, broken. Whatever the end is, the
/// resource is listed, and a second attempt is the last one for a while.
#[tokio::test]
async fn initial_events_are_taken_whole_or_not_at_all() {
    let object = serde_json::json!({"metadata": {"name": "z", "uid": "u", "resourceVersion": "2"}});
    let added = || event("ADDED", &object);
    let told = |line: String| Fault::Tell(vec![added(), line]);
    let ends: Vec<Box<dyn Fn() -> Fault>> = vec![
        Box::new(|| Fault::Tell(vec![])),
        Box::new(|| Fault::Tell(vec![added()])),
        Box::new(|| told(bookmark("2", Some("false")))),
        Box::new(|| told(expired())),
        Box::new(|| told(failure(429, "TooManyRequests"))),
        Box::new(|| told(failure(500, "InternalError"))),
        Box::new(|| told(failure(504, "Timeout"))),
        Box::new(|| told("<html>".to_owned())),
        Box::new(|| told(r#"{"type":"SYNC"}"#.to_owned())),
        Box::new(|| told(r#"{"kind":"Status","metadata":{}}"#.to_owned())),
        Box::new(|| refuse(400)),
        Box::new(|| refuse(403)),
        Box::new(|| refuse(404)),
        Box::new(|| refuse(410)),
        Box::new(|| refuse(415)),
        Box::new(|| refuse(422)),
        Box::new(|| refuse(429)),
        Box::new(|| refuse(500)),
        Box::new(|| refuse(501)),
        Box::new(|| refuse(503)),
        Box::new(|| refuse(504)),
    ];
    for (number, end) in ends.iter().enumerate() {
        let fixture = Fixture::new().await;
        fixture.fake.write("a=1 b=1");
        fixture.fake.set(|store| store.watches.push_back(end()));
        let mut rig = fixture.rig();
        assert_eq!(rig.told().await, "list 3", "{number}");
        assert_eq!(rig.state, fixture.fake.state(), "{number}");
        assert_eq!(fixture.fake.asked()[..2], ["initial", "list limit=500"], "{number}");
        assert_eq!(rig.lists(), 1, "{number}");
    }
}

/// Objects may change, and be deleted, during the initial events.
#[tokio::test]
async fn changes_among_the_initial_events_are_part_of_the_list() {
    let fixture = Fixture::new().await;
    let object = |name: &str, version: &str| serde_json::json!({"metadata": {"name": name, "uid": name, "resourceVersion": version}, "value": version});
    let lines = vec![
        event("ADDED", &object("a", "2")),
        event("ADDED", &object("b", "3")),
        event("MODIFIED", &object("a", "4")),
        event("DELETED", &object("b", "5")),
        bookmark("5", Some("true")),
    ];
    fixture.fake.set(|store| store.watches.push_back(Fault::Tell(lines)));
    let mut rig = fixture.rig();
    assert_eq!(rig.told().await, "list 5");
    assert_eq!(rig.state.clone().into_iter().collect::<Vec<_>>(), [("a".to_owned(), ("a".to_owned(), "4".to_owned()))]);
}

/// `TestWatchList`: any error leads to an ordinary list, once.
#[tokio::test]
async fn an_api_without_initial_events_is_listed() {
    let fixture = Fixture::new().await;
    fixture.fake.set(|store| store.streams = false);
    fixture.fake.write("a=1");
    let mut rig = fixture.listed().await;
    fixture.fake.write("a=2");
    assert_eq!(rig.told().await, "3 ~a=2");
    assert_eq!(fixture.fake.asked(), ["initial", "list limit=500", "watch 2"], "the head is known from the list");
}

/// An API that ignores the request for initial events; the source tries them once more, over another connection.
#[tokio::test]
async fn initial_events_without_an_end_are_abandoned() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1");
    fixture.fake.set(|store| store.watches.push_back(Fault::Ignore));
    let mut rig = follow(KubeConfig { initial_events_timeout: Duration::from_millis(300), ..fixture.config() }, None);
    assert_eq!(rig.told().await, "list 2");
    fixture.fake.write("a=2");
    assert_eq!(rig.told().await, "3 ~a=2");
    assert_eq!(fixture.fake.asked()[..3], ["initial", "list limit=500", "watch 2"]);
    for revision in [9, 19] {
        let version = rig.version;
        fixture.fake.set(|store| {
            store.watches.push_back(Fault::Tell(vec![expired()]));
            store.watches.push_back(Fault::Ignore);
            store.revision = revision;
        });
        fixture.fake.compact(revision);
        fixture.gate.cut();
        assert_eq!(rig.told().await, format!("list {revision}"));
        let asked = fixture.fake.asked();
        let is_tried = asked.contains(&format!("initial {version}"));
        assert_eq!((is_tried, asked.contains(&format!("list {version}"))), (revision == 9, true), "{asked:?}");
        fixture.fake.set(|store| store.watches.clear());
    }
}

/// An API that ignores the request for initial events, with a resource that changes constantly.
#[tokio::test]
async fn initial_events_without_an_end_are_abandoned_despite_other_events() {
    for write in
        [|n: u32| format!("b={n}"), |n: u32| if n.is_multiple_of(2) { "b=1".to_owned() } else { "-b".to_owned() }]
    {
        let fixture = Fixture::new().await;
        fixture.fake.write("a=1");
        fixture.fake.set(|store| store.watches.push_back(Fault::Ignore));
        let fake = fixture.fake.clone();
        let busy = tokio::spawn(async move {
            for n in 0.. {
                fake.write(&write(n));
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        let rig = follow(KubeConfig { initial_events_timeout: Duration::from_millis(300), ..fixture.config() }, None);
        let popped = timeout(DEADLINE, rig.fifo.pop_batch(1, 1)).await;
        busy.abort();
        assert!(popped.is_ok(), "{:?}", fixture.fake.asked());
    }
}

/// An API server may be overloaded for a moment.
#[tokio::test]
async fn initial_events_are_requested_again_at_the_next_connection() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1");
    fixture.fake.set(|store| store.watches.push_back(Fault::Ignore));
    let mut rig = follow(KubeConfig { initial_events_timeout: Duration::from_millis(200), ..fixture.config() }, None);
    assert_eq!(rig.told().await, "list 2");
    for n in 3..8 {
        // Only an open watch breaks; the next one is opened over another connection, and expires.
        let is_open = |asked: &String| asked.starts_with("watch") || asked.starts_with("initial");
        until(|| fixture.fake.asked().last().is_some_and(is_open)).await;
        fixture.fake.set(|store| store.revision = n);
        fixture.fake.compact(n);
        fixture.gate.cut();
        assert_eq!(rig.told().await, format!("list {n}"));
    }
    let asked = fixture.fake.asked();
    assert_eq!(asked.iter().filter(|asked| asked.starts_with("initial")).count(), 6, "{asked:?}");
}

/// Retry-After is obeyed, between 1 s and 5 min: no request is sent earlier.
#[tokio::test]
async fn a_retry_after_header_is_respected() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1");
    fixture.fake.set(|store| store.watches.push_back(Fault::Refuse(429, Some(1), String::new())));
    let since = Instant::now();
    let mut rig = fixture.rig();
    assert_eq!(rig.told().await, "list 2");
    let waited = since.elapsed();
    assert!(waited >= Duration::from_secs(1) && waited < Duration::from_secs(4), "{waited:?}");
}

/// Duplicate, out-of-order and old events are not emitted. The rig fails on a repeated event.
#[tokio::test]
async fn contradictory_events_are_never_forwarded() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1 a=2 a=3");
    let old = serde_json::json!({"metadata": {"name": "a", "uid": "u2", "resourceVersion": "3"}, "value": "wrong"});
    let lines = vec![fixture.fake.line("ADDED", "a"), bookmark("4", Some("true")), event("MODIFIED", &old)];
    fixture.fake.set(|store| store.watches.push_back(Fault::Tell(lines)));
    let mut rig = fixture.rig();
    assert_eq!(rig.told().await, "list 4");
    fixture.fake.write("a=4");
    assert_eq!(rig.told().await, "5 ~a=4");
    assert_eq!((rig.lists(), rig.history_rewrites), (1, 0));
}

/// An aggregated API whose decimals have no order: each watch begins with the same low event.
#[tokio::test]
async fn a_stream_that_always_contradicts_itself_is_listed_at_last() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1 a=2 a=3");
    let low = serde_json::json!({"metadata": {"name": "b", "uid": "u9", "resourceVersion": "3"}, "value": "1"});
    let a = fixture.fake.line("ADDED", "a");
    fixture.fake.set(|store| {
        let lines = vec![a, bookmark("4", Some("true")), event("ADDED", &low)];
        store.watches.push_back(Fault::Tell(lines));
        for _ in 0..50 {
            store.watches.push_back(Fault::Tell(vec![event("ADDED", &low)]));
        }
    });
    let mut rig = fixture.rig();
    assert_eq!(rig.told().await, "list 4");
    until(|| rig.lists() > 1).await;
    let asked = fixture.fake.asked();
    let watches = asked.iter().take_while(|asked| *asked != "initial 4").filter(|asked| *asked == "watch 4").count();
    assert_eq!(watches, 2, "three with that of the initial events");
}

/// Opaque versions have no order to contradict.
#[tokio::test]
async fn versions_that_are_in_no_order_are_followed_as_opaque_ones() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1 a=2 a=3");
    let low = serde_json::json!({"metadata": {"name": "b", "uid": "u9", "resourceVersion": "3"}, "value": "1"});
    let lines = vec![bookmark("4", Some("true")), event("ADDED", &low), bookmark("4", None)];
    fixture.fake.set(|store| store.watches.push_back(Fault::Tell(lines)));
    let mut rig = follow(KubeConfig { has_opaque_versions: true, ..fixture.config() }, None);
    assert_eq!(rig.told().await, "list 1", "counted here");
    assert_eq!(rig.told().await, "2 +b=1");
    assert_eq!(rig.lists(), 1);
}

/// Every unpaged list fails, but pages succeed.
#[tokio::test]
async fn a_relist_that_is_too_slow_in_one_piece_is_read_in_pages() {
    let fixture = Fixture::new().await;
    fixture.fake.set(|store| store.streams = false);
    for n in 0..600 {
        fixture.fake.write(&format!("k{n}=1"));
    }
    let mut rig = follow(KubeConfig { answer_timeout: Duration::from_millis(1500), ..fixture.config() }, None);
    assert_eq!(rig.told().await, "list 601");
    fixture.gate.refuse(true);
    rig.error("connection").await;
    fixture.fake.write("z=1 z=2");
    fixture.fake.compact(603);
    let timed_out =
        serde_json::json!({"reason": "Timeout", "message": "request did not complete within the allotted timeout"});
    fixture.fake.set(|store| store.one_piece = Some(timed_out.to_string()));
    let since = fixture.fake.asked().len();
    fixture.gate.refuse(false);
    assert_eq!(rig.told().await, "list 603");
    assert_eq!(rig.state, fixture.fake.state());
    let asked = fixture.fake.asked().split_off(since);
    let lists: Vec<&String> = asked.iter().filter(|asked| asked.starts_with("list")).collect();
    assert_eq!(lists, ["list 601", "list limit=500", "list limit=500 page"], "in one piece once");
}

/// A 410 is an answer, but does not show that the state is current.
#[tokio::test]
async fn a_watch_that_has_expired_never_turns_stale_into_synced() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1");
    let mut rig = fixture.listed().await;
    fixture.fake.set(|store| {
        for _ in 0..200 {
            store.watches.push_back(Fault::Tell(vec![expired()]));
            store.lists.push_back(refuse(500));
        }
    });
    rig.health.mark_lost();
    let seen_at = rig.health.report().seen_at;
    fixture.gate.cut();
    until(|| fixture.fake.set(|store| store.lists.len()) < 190).await;
    assert_eq!((rig.health.state(), rig.health.report().seen_at), (crate::cache::SyncState::Stale, seen_at));
    fixture.fake.set(|store| (store.watches.clear(), store.lists.clear()));
    assert_eq!(rig.told().await, "list 2");
    until(|| rig.health.state() == crate::cache::SyncState::Synced).await;
}

/// A user who may only list and watch one name (RBAC `resourceNames` with `fieldSelector=metadata.name=...`) may not list all.
#[tokio::test]
async fn every_request_has_the_configured_selectors() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1");
    fixture.fake.set(|store| store.only = Some("a"));
    let config = KubeConfig { field_selector: "metadata.name=a".to_owned(), ..fixture.config() };
    let mut rig = follow(config, None);
    rig.told().await;
    fixture.gate.cut();
    fixture.fake.write("a=2");
    fixture.reach(&mut rig).await;
    assert_eq!((rig.lists(), rig.health.report().last_error), (1, None), "{:?}", fixture.fake.asked());
}

/// A head that may not be read proves nothing, and is no failure.
#[tokio::test]
async fn a_refused_head_request_is_no_failure() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1");
    let mut rig = fixture.listed().await;
    fixture.fake.set(|store| {
        for _ in 0..20 {
            store.lists.push_back(Fault::Refuse(403, None, r#"{"reason": "Forbidden"}"#.to_owned()));
        }
    });
    fixture.gate.cut();
    fixture.fake.write("a=2");
    fixture.reach(&mut rig).await;
    assert_eq!((rig.lists(), rig.health.report().last_error), (1, None), "{:?}", fixture.fake.asked());
    assert!(fixture.fake.asked().contains(&"watch 1".to_owned()), "from before the last known change");
}

/// An API that ignores `limit` or the selector.
#[tokio::test]
async fn a_head_answer_beyond_the_limit_is_not_read() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1");
    let mut rig = fixture.listed().await;
    let large = format!(r#"{{"metadata":{{"resourceVersion":"1"}},"items":[],"x":"{}"}}"#, "x".repeat(64 << 20));
    fixture.fake.set(|store| store.lists.push_back(Fault::Answer(large)));
    let passed = fixture.gate.passed();
    fixture.gate.cut();
    fixture.fake.write("a=2");
    fixture.reach(&mut rig).await;
    assert_eq!((rig.lists(), rig.history_rewrites), (1, 0));
    let passed = fixture.gate.passed() - passed;
    assert!(passed < 32 << 20, "{passed} bytes");
}

/// 403 and 404: the objects stay, and the error says what to do.
#[tokio::test]
async fn forbidden_and_missing_resources_delete_nothing() {
    let fixture = Fixture::new().await;
    fixture.fake.write("a=1");
    let mut rig = fixture.listed().await;
    fixture.fake.set(|store| {
        store.watches.extend([403, 404, 404, 403].map(refuse));
        store.lists.extend([403, 403, 404].map(refuse));
    });
    fixture.gate.cut();
    rig.error("informerd rbac").await;
    fixture.fake.write("a=2");
    fixture.reach(&mut rig).await;
    assert_eq!(rig.history_rewrites, 0);
}
