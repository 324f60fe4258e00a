//! Open versions, at which more changes may follow, on the way through a relay.

use super::{restored, *};

/// Returns the deletion of an object at version 9, which stays open.
fn gone(name: &str) -> Delta {
    let events = [Event::Deleted(pod_at("shop", name, "", &version(9)))].into_iter().collect();
    Delta::Changes { events, closes: false }
}

/// Starts an origin at version 8, a relay that has one of the deletions at version 9, and a watch of the relay.
async fn inside_an_open_version() -> (Sandbox, TcpProxy, Sandbox, Stream) {
    let origin = restored::origin("a=1 b=1 c=1 d=1", 1, "2:d 8:@").await;
    let proxy = TcpProxy::to(origin.address()).await;
    let relay = Sandbox::relay(proxy.address()).await;
    relay.reached(&version(8)).await;
    let mut stream = watch(&relay, watch_from_now()).await;
    assert!(next(&mut stream).await.bookmark.is_some());
    origin.say(gone("a")).await;
    relay.reached(&version(9)).await;
    assert_eq!(words(&take(&mut stream, 1).await[0]), "DELETED a @8");
    (origin, proxy, relay, stream)
}

/// Starts the same server again from its snapshot, which is at the last complete version.
async fn started_again() -> Sandbox {
    restored::origin("a=1 b=1 c=1 d=2", 8, "").await
}

/// Checks that the relay, which is ahead of the origin's list, still accepts its history.
#[tokio::test]
async fn an_origin_that_restarts_before_an_open_version_has_the_same_history() {
    for (what, first, rest) in
        [("nothing yet", "", "abc"), ("what the relay has", "a", "bc"), ("another", "b", "ac"), ("all", "abc", "")]
    {
        let (_going, proxy, relay, mut stream) = inside_an_open_version().await;
        let coming = started_again().await;
        let say = async |names: &str| {
            for name in names.split("").filter(|name| !name.is_empty()) {
                coming.say(gone(name)).await;
            }
        };
        say(first).await;
        proxy.lead_to(coming.address());
        proxy.cut();
        until(what, async || relay.lists() == 2).await;
        say(rest).await;
        let mut told: Vec<String> = take(&mut stream, 2).await.iter().map(words).collect();
        told.sort_unstable();
        assert_eq!(told, ["DELETED b @8", "DELETED c @8"], "{what}");
        assert_eq!(*relay.informer.snapshot().unwrap().version(), version(9), "{what}: what was applied stays so");
        let mut told: Vec<String> = take(&mut watch(&relay, after("8")).await, 3).await.iter().map(words).collect();
        told.sort_unstable();
        assert_eq!(told, ["DELETED a @8", "DELETED b @8", "DELETED c @8"], "{what}");
        coming.say(Delta::event(Event::Bookmark(version(9)))).await;
        coming.say(Delta::event(Event::Added(pod_at("shop", "e", "", &version(12))))).await;
        assert_eq!(words(&take(&mut stream, 1).await[0]), "ADDED e @12", "{what}");
        assert_eq!(relay.informer.stats().history_rewrites.load(Ordering::Relaxed), 0, "{what}");
        assert_eq!((relay.lists(), restored::state(&relay).await), (2, restored::state(&coming).await), "{what}");
    }
}

/// Completes the version first; an origin that starts again does not know that.
#[tokio::test]
async fn an_origin_that_opens_a_complete_version_again_is_waited_for() {
    let going = started_again().await;
    let proxy = TcpProxy::to(going.address()).await;
    let relay = Sandbox::relay(proxy.address()).await;
    relay.reached(&version(8)).await;
    let mut stream = watch(&relay, watch_from_now()).await;
    assert!(next(&mut stream).await.bookmark.is_some());
    let rest = [("b", 1), ("c", 1), ("d", 2)].map(|(name, number)| at(name, &format!(r#""at":{number}"#), number));
    going.list(rest.to_vec(), 9).await;
    assert_eq!(words(&take(&mut stream, 1).await[0]), "DELETED INFERRED a @9");
    let coming = started_again().await;
    coming.say(gone("a")).await;
    proxy.lead_to(coming.address());
    proxy.cut();
    let error = last_error(&relay, "open again").await;
    assert!(error.contains("version 9 is open again upstream"), "{error}");
    coming.say(Delta::event(Event::Added(pod_at("shop", "e", "", &version(12))))).await;
    assert_eq!(words(&take(&mut stream, 1).await[0]), "ADDED e @12");
    assert_eq!(relay.informer.stats().history_rewrites.load(Ordering::Relaxed), 0);
}

/// Starts relays inside an open version: a client of another replica, which has no part of it yet, receives all of it.
#[tokio::test]
async fn a_relay_that_starts_inside_an_open_version_sends_all_of_it_to_resumed_watches() {
    let (origin, _wire, ..) = inside_an_open_version().await;
    let near = Sandbox::relay(origin.address()).await;
    let far = Sandbox::relay(near.address()).await;
    for relay in [&near, &far] {
        relay.reached(&version(9)).await;
        assert_eq!(words(&take(&mut watch(relay, after("8")).await, 1).await[0]), "DELETED a @8");
    }
    origin.say(gone("b")).await;
    origin.say(Delta::event(Event::Bookmark(version(9)))).await;
    for relay in [&near, &far] {
        let told: Vec<String> = take(&mut watch(relay, after("8")).await, 2).await.iter().map(words).collect();
        assert!(told[0] == "DELETED a @8" && told[1].starts_with("DELETED b @"), "{told:?}");
        relay.reached(&version(9)).await;
        assert_eq!((restored::state(relay).await, relay.lists()), (restored::state(&origin).await, 1));
    }
}

/// Restores the upstream to the version before, so that it has another change at the open one.
#[tokio::test]
async fn an_origin_that_does_not_repeat_an_open_version_has_a_rewritten_history() {
    for (what, first) in
        [("another change", Delta::event(Event::Added(at("e", "", 9)))), ("another deletion", gone("b"))]
    {
        let (_going, proxy, relay, mut stream) = inside_an_open_version().await;
        let coming = started_again().await;
        coming.say(first).await;
        coming.reached(&version(9)).await;
        proxy.lead_to(coming.address());
        proxy.cut();
        until(what, async || relay.lists() == 2).await;
        coming.say(Delta::event(Event::Modified(at("d", "", 12)))).await;
        let ended = tokio::time::timeout(DEADLINE, end(&mut stream)).await.expect(what);
        assert_eq!(reason(&ended), "HISTORY_CHANGED", "{what}");
        until(what, async || restored::state(&relay).await == restored::state(&coming).await).await;
        assert_eq!(relay.informer.stats().history_rewrites.load(Ordering::Relaxed), 1, "{what}");
    }
}

/// Sends several changes at one version, one by one. Each server applies them at once, and no client resumes inside.
#[tokio::test]
async fn an_open_version_is_relayed_unchanged() {
    let origin = Sandbox::start(["a", "b", "c"].map(|name| pod("shop", name, "")).into()).await;
    let proxy = TcpProxy::to(origin.address()).await;
    let relay = Sandbox::relay(proxy.address()).await;
    let mut stream = watch(&relay, watch_pods()).await;
    take(&mut stream, 3).await;
    origin.say(gone("a")).await;
    relay.reached(&version(9)).await;
    let first = take(&mut stream, 1).await.remove(0);
    assert_eq!((words(&first).as_str(), first.open), ("DELETED a @8", true));
    // The relay resumes inside the version, and so does a client of the relay.
    proxy.cut();
    origin.say(gone("b")).await;
    let second = take(&mut stream, 1).await.remove(0);
    assert_eq!((words(&second).as_str(), second.open), ("DELETED b @8", true));
    let told: Vec<String> = take(&mut watch(&relay, after("8")).await, 2).await.iter().map(words).collect();
    assert_eq!(told, ["DELETED a @8", "DELETED b @8"]);
    origin.say(gone("c")).await;
    assert_eq!(words(&take(&mut stream, 1).await[0]), "DELETED c @8");
    origin.say(Delta::event(Event::Bookmark(version(9)))).await;
    origin.say(Delta::event(Event::Added(pod_at("shop", "d", "", &version(12))))).await;
    assert_eq!(words(&take(&mut stream, 1).await[0]), "ADDED d @12");
    assert_eq!((relay.lists(), relay.informer.snapshot().unwrap().len()), (1, 1));
}

/// Sends a change above the version that is safe to resume from, as a source with several watches does. Each server applies it at
/// once, and repeats it for every client that resumes from below it.
#[tokio::test]
async fn a_change_ahead_is_replayed_after_every_version_below_it() {
    let origin = Sandbox::start(["a", "b"].map(|name| pod("shop", name, "")).into()).await;
    let proxy = TcpProxy::to(origin.address()).await;
    let relay = Sandbox::relay(proxy.address()).await;
    let mut stream = watch(&relay, watch_pods()).await;
    take(&mut stream, 2).await;
    let begin = relay.informer.snapshot().unwrap().version().clone();
    let at = |above: u128| version(begin.number() + above);
    let ahead = |event, safe| Delta::transaction([event, Event::Bookmark(at(safe))]);
    let changed = |name, above| Event::Modified(pod_at("shop", name, "", &at(above)));
    origin.say(ahead(changed("a", 12), 0)).await;
    origin.say(ahead(Event::Deleted(pod_at("shop", "b", "", &at(14))), 0)).await;
    let told = take(&mut stream, 2).await;
    assert_eq!(
        told.iter().map(words).collect::<Vec<_>>(),
        [format!("MODIFIED a @{begin}"), format!("DELETED b @{begin}")]
    );
    assert!(told.iter().all(|told| told.open));
    // The other watch of the origin: one change of its own, and a bookmark.
    origin.say(Delta::event(changed("c", 5))).await;
    origin.say(Delta::event(Event::Bookmark(at(13)))).await;
    relay.reached(&at(13)).await;
    proxy.cut();
    for server in [&origin, &relay] {
        let words_after = async |above, count| {
            let mut stream = watch(server, after(&at(above).to_string())).await;
            take(&mut stream, count).await.iter().map(words).collect::<Vec<_>>()
        };
        let (c, b) = (format!("ADDED c @{}", at(5)), |above| format!("DELETED b @{}", at(above)));
        let a = |above| format!("MODIFIED a @{}", at(above));
        assert_eq!(words_after(0, 3).await, [a(0), b(0), c]);
        assert_eq!(words_after(7, 2).await, [a(7), b(7)]);
        assert_eq!(words_after(12, 1).await, [b(12)]);
        assert_eq!(words_after(13, 1).await, [b(13)]);
    }
    origin.say(Delta::event(Event::Added(pod_at("shop", "d", "", &at(15))))).await;
    for server in [&origin, &relay] {
        let mut stream = watch(server, after(&at(14).to_string())).await;
        assert_eq!(words(&take(&mut stream, 1).await[0]), format!("ADDED d @{}", at(15)));
    }
    assert_eq!((relay.lists(), relay.informer.snapshot().unwrap().len()), (1, 3));
}

/// Creates an object ahead of the version and deletes it: no later start has it in its state. A list therefore expires every
/// version from which a client could resume with it.
#[tokio::test]
async fn a_relay_that_lists_after_a_restart_expires_what_may_have_been_sent_ahead() {
    let at = |name: &str| pod_at("shop", name, "", &version(9));
    let both = || vec!["shop".to_owned(), "other".to_owned()];
    for (what, namespaces, event, expires) in [
        ("nothing", Vec::new(), None, false),
        ("a deletion", Vec::new(), Some(Event::Deleted(at("a"))), false),
        ("a creation", Vec::new(), Some(Event::Added(at("x"))), true),
        // The snapshot may be older than the first change that is sent ahead.
        ("nothing yet", both(), None, true),
    ] {
        let origin = restored::origin("a=1 b=1", 1, "2:b 8:@").await;
        origin.informer.health().set_namespaces(namespaces);
        let relay = || RelaySource::new(relay_of(origin.address()), SourceHealth::new(Duration::MAX, Duration::MAX));
        let first = relay();
        assert_eq!(first.list(ListVersion::MostRecent).await.unwrap().version, version(8), "{what}");
        let mut watch = first.watch(version(8)).await.unwrap();
        if let Some(event) = event {
            origin.say(Delta::Changes { events: [event].into_iter().collect(), closes: false }).await;
            let told = async {
                while let Some(delta) = tokio_stream::StreamExt::next(&mut watch).await {
                    if delta.unwrap().version() == Some(&version(9)) {
                        return;
                    }
                }
            };
            tokio::time::timeout(DEADLINE, told).await.expect(what);
        }
        let later = relay();
        later.warm_start().unwrap().resume(&version(8), &first.warm_start().unwrap().proof().unwrap()).unwrap();
        let list = async || later.list(ListVersion::NotOlderThan(version(8))).await.unwrap().expires_older;
        assert_eq!((list().await, list().await), (expires, false), "{what}");
    }
}
