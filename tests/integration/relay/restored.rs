//! An upstream under another name: the same server restarted over a restored upstream, or another replica.

use super::*;

/// Returns one event of a script: `+a` adds, `a` modifies and `-a` deletes an object, `@` is a bookmark.
fn event(word: &str, number: u128) -> Event {
    let pod = |name: &str| at(name, &format!(r#""at":{number}"#), number);
    match word.split_at(1) {
        ("-", name) => Event::Deleted(pod(name)),
        ("+", name) => Event::Added(pod(name)),
        ("@", _) => Event::Bookmark(version(number)),
        _ => Event::Modified(pod(word)),
    }
}

/// Returns the batches of a script such as `2:a 3:+b,-c 9:@`.
fn batches(script: &str) -> Vec<(u128, Vec<Event>)> {
    let batch = |text: &str| {
        let (number, words) = text.split_once(':').unwrap();
        let number = number.parse().unwrap();
        (number, words.split(',').map(|word| event(word, number)).collect())
    };
    script.split(' ').filter(|text| !text.is_empty()).map(batch).collect()
}

pub(super) fn last(script: &str) -> ResourceVersion {
    version(batches(script).last().unwrap().0)
}

/// Starts an origin that has listed objects, such as `a=2 b=3`, at a version, and plays a script from there.
pub(super) async fn origin(listed: &str, at_version: u128, script: &str) -> Sandbox {
    let origin = Sandbox::start_unsynced(Options::default()).await;
    let object = |text: &str| {
        let (name, number) = text.split_once('=').unwrap();
        at(name, &format!(r#""at":{number}"#), number.parse().unwrap())
    };
    origin.list(listed.split(' ').map(object).collect(), at_version).await;
    // SYNCED for the next 20 s.
    origin.informer.health().record_contact();
    play(&origin, script).await;
    origin
}

pub(super) async fn play(origin: &Sandbox, script: &str) {
    for (number, events) in batches(script) {
        origin.say(Delta::transaction(events)).await;
        origin.reached(&version(number)).await;
    }
}

/// Starts a relay with short timeouts.
async fn hasty_relay(address: &str) -> Sandbox {
    let short = Duration::from_millis(300);
    let config = RelayConfig { answer_timeout: short, resume_timeout: short, heartbeat: short, ..relay_of(address) };
    Sandbox::start_unsynced(Options { relay: Some(config), ..Options::default() }).await
}

/// Starts an origin, and a relay of it with a watch, which have followed a script: `a` was changed last, and a bookmark leads
/// beyond.
async fn followed_beyond_its_last_change() -> (Sandbox, TcpProxy, Sandbox, Stream) {
    let going = origin(LISTED, 1, "").await;
    let proxy = TcpProxy::to(going.address()).await;
    let relay = Sandbox::relay(proxy.address()).await;
    let stream = watch(&relay, watch_from_now()).await;
    play(&going, "2:a 9:@").await;
    relay.reached(&version(9)).await;
    (going, proxy, relay, stream)
}

pub(super) async fn state(server: &Sandbox) -> BTreeMap<String, String> {
    let request = pb::ListRequest { resource: "pods".to_owned(), ..pb::ListRequest::default() };
    let listed = server.client().await.list(request).await.unwrap().into_inner().message().await.unwrap().unwrap();
    listed.objects.into_iter().map(|object| (object.name, object.resource_version)).collect()
}

pub(super) const LISTED: &str = "a=1 b=1";

/// Restores the origin to version 3, and starts it without a snapshot file.
#[tokio::test]
async fn an_origin_restarted_over_a_restored_upstream_has_a_rewritten_history() {
    let known = "2:a 3:b 4:a 5:+c";
    for (what, known, (restored, at_version), after) in [
        ("the last change never was", known, ("a=2 b=3", 3), "4:b 5:b 6:b 7:b"),
        ("the object that was changed last is older", "2:a 3:b 4:a", ("a=2 b=3", 3), "4:b 5:b"),
        ("the last change is there, and another one after it", "2:a 9:@", ("a=2 b=1", 2), "5:b 12:@"),
        ("it has gone back, and rests", known, ("a=2 b=3", 3), ""),
        ("it has gone back behind the last change, and rests", "2:a 9:@", ("a=2 b=1", 2), ""),
        ("it has gone back, and counts on below what was known", known, ("a=2 b=3", 3), "4:b"),
    ] {
        let going = origin(LISTED, 1, "").await;
        let proxy = TcpProxy::to(going.address()).await;
        let relay = hasty_relay(proxy.address()).await;
        let mut stream = watch(&relay, watch_from_now()).await;
        play(&going, known).await;
        relay.reached(&last(known)).await;
        let coming = origin(restored, at_version, after).await;
        proxy.lead_to(coming.address());
        proxy.cut();
        let ended = tokio::time::timeout(DEADLINE, end(&mut stream)).await.expect(what);
        assert_eq!(reason(&ended), "HISTORY_CHANGED", "{what}");
        until(what, async || state(&relay).await == state(&coming).await).await;
        assert_eq!(relay.lists(), 2, "{what}");
    }
}

/// Puts several servers behind one address, each of which answers some of the attempts.
#[tokio::test]
async fn alternating_servers_with_a_restored_state_have_a_rewritten_history() {
    let known = "2:a 3:b 4:a 5:+c";
    let going = origin(LISTED, 1, "").await;
    let proxy = TcpProxy::to(going.address()).await;
    let relay = hasty_relay(proxy.address()).await;
    let mut stream = watch(&relay, watch_from_now()).await;
    play(&going, known).await;
    relay.reached(&last(known)).await;
    let failures = |relay: &Sandbox| relay.reflector.watch_failures.load(Ordering::Relaxed);
    let coming = [origin("a=2 b=3", 3, "").await, origin("a=2 b=3", 3, "").await];
    let turns = async {
        for server in coming.iter().cycle().take_while(|_| relay.lists() == 1) {
            let before = failures(&relay);
            proxy.lead_to(server.address());
            proxy.cut();
            until("an attempt", async || failures(&relay) > before || relay.lists() > 1).await;
        }
    };
    tokio::time::timeout(DEADLINE, turns).await.expect("another history");
    assert_eq!(reason(&end(&mut stream).await), "HISTORY_CHANGED");
    until("listed", async || state(&relay).await == state(&coming[0]).await).await;
}

/// Checks that a list waits for the last known version, except at a server whose history does not contain it.
#[tokio::test]
async fn a_server_restored_while_another_one_is_listed_has_a_rewritten_history() {
    let (going, proxy, relay, mut stream) = followed_beyond_its_last_change().await;
    // It has the last change, its history does not reach back to it, and it is behind.
    let behind = origin("a=2 b=1", 6, "").await;
    proxy.lead_to(behind.address());
    proxy.cut();
    until("it is to be listed", async || relay.lists() == 2).await;
    going.say(Delta::HistoryRewritten(List::new(vec![at("b", r#""at":3"#, 3)], version(6)))).await;
    going.reached(&version(6)).await;
    proxy.lead_to(going.address());
    proxy.cut();
    let ended = tokio::time::timeout(DEADLINE, end(&mut stream)).await.expect("the watch ends");
    assert_eq!(reason(&ended), "HISTORY_CHANGED");
    until("it is listed", async || state(&relay).await == state(&going).await).await;
}

/// Starts an origin whose history does not reach back: the relay lists it, and the last known change must be in the list.
#[tokio::test]
async fn a_history_that_does_not_reach_back_to_the_last_change_is_listed() {
    for (what, restored, is_same) in [
        ("the same", "a=2 b=1", true),
        ("another object was changed", "a=2 b=5", false),
        ("and what was changed last is gone", "b=5", false),
    ] {
        let (_going, proxy, relay, mut stream) = followed_beyond_its_last_change().await;
        let coming = origin(restored, 6, "12:+c").await;
        proxy.lead_to(coming.address());
        proxy.cut();
        if is_same {
            let told: Vec<String> = take(&mut stream, 2).await.iter().map(words).collect();
            assert_eq!(told[1], "ADDED c @12", "{what}: {told:?}");
        } else {
            assert_eq!(reason(&end(&mut stream).await), "HISTORY_CHANGED", "{what}");
        }
        until(what, async || state(&relay).await == state(&coming).await).await;
        assert_eq!(relay.lists(), 2, "{what}");
    }
}

/// Checks that the relay lists neither another replica nor a restarted server with the same history again, at any version.
#[tokio::test]
async fn another_server_with_the_same_history_is_followed_from_the_position() {
    for (what, known, further, rest, told) in [
        ("as it is", "2:a", "", "3:b", &["MODIFIED b @3"][..]),
        ("another object changed", "2:a", "3:b", "", &["MODIFIED b @3"]),
        ("the same object changed", "2:a", "3:a 4:a", "", &["MODIFIED a @3", "MODIFIED a @4"]),
        ("the same object was deleted", "2:a", "3:-a", "", &["DELETED a @3"]),
        ("the last change is a deletion", "2:-a", "3:b", "", &["MODIFIED b @3"]),
        ("what was deleted is there again", "2:-a", "4:+a", "", &["ADDED a @4"]),
        ("the last change is of many objects", "2:a,b,+c", "3:+d,c", "", &["ADDED d @2", "MODIFIED c @3"]),
        ("versions went on without a change", "2:a 9:@", "12:b,+c", "", &["MODIFIED b @9", "ADDED c @12"]),
    ] {
        let going = origin(LISTED, 1, "").await;
        let proxy = TcpProxy::to(going.address()).await;
        let relay = Sandbox::relay(proxy.address()).await;
        let mut stream = watch(&relay, watch_from_now()).await;
        assert!(next(&mut stream).await.bookmark.is_some());
        play(&going, known).await;
        relay.reached(&last(known)).await;
        take(&mut stream, known.matches(char::is_alphabetic).count()).await;
        let coming = origin(LISTED, 1, known).await;
        play(&coming, further).await;
        proxy.lead_to(coming.address());
        proxy.cut();
        play(&coming, rest).await;
        let found: Vec<String> = take(&mut stream, told.len()).await.iter().map(words).collect();
        assert_eq!(found, told, "{what}");
        assert_eq!(relay.lists(), 1, "{what}");
        assert_eq!(state(&relay).await, state(&coming).await, "{what}");
    }
}

/// Starts a replica with the known changes at a lower version, as a quiet Kubernetes API may be for a minute.
#[tokio::test]
async fn a_replica_that_is_behind_with_its_version_only_is_followed_at_once() {
    let going = origin(LISTED, 1, "2:a").await;
    let proxy = TcpProxy::to(going.address()).await;
    let relay = hasty_relay(proxy.address()).await;
    let mut stream = watch(&relay, watch_from_now()).await;
    play(&going, "9:@").await;
    relay.reached(&version(9)).await;
    let coming = origin(LISTED, 1, "2:a 4:@").await;
    proxy.lead_to(coming.address());
    proxy.cut();
    until("watched", async || coming.informer.watch_stats().unwrap().watchers.load(Ordering::Relaxed) == 1).await;
    play(&coming, "7:@ 10:b").await;
    let found: Vec<String> = take(&mut stream, 1).await.iter().map(words).collect();
    assert_eq!((found, relay.lists()), (vec!["MODIFIED b @10".to_owned()], 1));
}

/// Leads a relay to the origin, to another relay and back: servers with different names serve the same history.
#[tokio::test]
async fn the_order_of_a_chain_may_change() {
    let origin = origin(LISTED, 1, "2:a").await;
    let near = Sandbox::relay(origin.address()).await;
    let proxy = TcpProxy::to(near.address()).await;
    let far = Sandbox::relay(proxy.address()).await;
    let mut stream = watch(&far, watch_pods()).await;
    take(&mut stream, 2).await;
    for (number, server) in (3..).zip([origin.address(), near.address(), origin.address()]) {
        proxy.lead_to(server);
        proxy.cut();
        play(&origin, &format!("{number}:b")).await;
        let found: Vec<String> = take(&mut stream, 1).await.iter().map(words).collect();
        assert_eq!(found, [format!("MODIFIED b @{number}")]);
    }
    assert_eq!(far.lists(), 1);
}

/// Repeats the check with a relay that was itself restarted.
#[tokio::test]
async fn a_relay_recognises_the_history_after_a_restart() {
    let going = origin(LISTED, 1, "2:a").await;
    let health = || SourceHealth::new(Duration::MAX, Duration::MAX);
    let first = RelaySource::new(relay_of(going.address()), health());
    assert_eq!(first.list(ListVersion::MostRecent).await.unwrap().version, version(2));
    let proof = first.warm_start().unwrap().proof().unwrap();
    let resumed = async |origin: &Sandbox| {
        let later = RelaySource::new(relay_of(origin.address()), health());
        later.warm_start().unwrap().resume(&version(2), &proof).unwrap();
        let mut watch = later.watch(version(2)).await?;
        let next = tokio::time::timeout(DEADLINE, tokio_stream::StreamExt::next(&mut watch)).await;
        next.unwrap().unwrap().map(|delta| delta.version().cloned().unwrap().number())
    };
    let same = origin(LISTED, 1, "2:a 3:b").await;
    assert_eq!(resumed(&same).await, Ok(3));
    let restored = origin(LISTED, 1, "2:b 3:b").await;
    let error = resumed(&restored).await.unwrap_err();
    assert!(matches!(error, informerd::cache::SourceError::HistoryRewritten(_)), "{error}");
}
