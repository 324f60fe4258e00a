//! An upstream that drains, forgets, rewrites its history or is behind.

use super::*;

/// Hands the relay over from a replica that drains to one that stays.
#[tokio::test]
async fn a_draining_upstream_is_replaced_by_another() {
    let mut going = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let mut staying = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let proxy = TcpProxy::to(going.address()).await;
    let relay = Sandbox::relay(proxy.address()).await;
    let mut stream = watch(&relay, watch_pods()).await;
    for n in 0..5 {
        for replica in [&mut going, &mut staying] {
            replica.put("shop", "a", &format!(r#""n":{n}"#)).await;
        }
    }
    relay.reached(&version(6)).await;
    staying.put("shop", "b", "").await;
    proxy.lead_to(staying.address());
    going.lifecycle.draining.cancel();
    let told: Vec<String> = take(&mut stream, 7).await.iter().map(words).collect();
    assert_eq!((told[5].as_str(), told[6].as_str()), ("MODIFIED a @6", "ADDED b @7"));
    assert_eq!(relay.lists(), 1);
}

/// Checks that one list replaces the forgotten events, and that clients notice only the difference.
#[tokio::test]
async fn versions_that_the_upstream_no_longer_has_lead_to_a_difference() {
    let options = Options { history: short(), ..Options::default() };
    let mut origin = Sandbox::start_with(options, vec![pod("shop", "a", ""), pod("shop", "b", "")]).await;
    let proxy = TcpProxy::to(origin.address()).await;
    let relay = Sandbox::relay(proxy.address()).await;
    let mut stream = watch(&relay, watch_pods()).await;
    take(&mut stream, 2).await;
    proxy.lead_nowhere();
    proxy.cut();
    origin.delete(&pod("shop", "b", "")).await;
    for n in 0..5 {
        origin.put("shop", "c", &format!(r#""n":{n}"#)).await;
    }
    origin.reached(&version(7)).await;
    proxy.lead_to(origin.address());
    let told: Vec<String> = take(&mut stream, 2).await.iter().map(words).collect();
    assert_eq!(told, ["DELETED INFERRED b @1", "ADDED c @7"]);
    assert_eq!(relay.lists(), 2);
}

/// Checks that other bytes of an unchanged object are no rewritten history: another or an upgraded replica over a Kubernetes API
/// has them.
#[tokio::test]
async fn other_bytes_at_the_same_version_are_no_rewritten_history() {
    let origin = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let options = Options { history: short(), ..Options::default() };
    let mut replica = Sandbox::start_with(options, vec![pod("shop", "a", r#""defaulted":true"#)]).await;
    let proxy = TcpProxy::to(origin.address()).await;
    let relay = Sandbox::relay(proxy.address()).await;
    let mut stream = watch(&relay, watch_pods()).await;
    take(&mut stream, 1).await;
    for n in 0..5 {
        replica.put("shop", "c", &format!(r#""n":{n}"#)).await;
    }
    replica.reached(&version(6)).await;
    proxy.lead_to(replica.address());
    proxy.cut();
    let told: Vec<String> = take(&mut stream, 2).await.iter().map(words).collect();
    assert_eq!(told, ["MODIFIED a @1", "ADDED c @6"], "and they are served");
    assert_eq!(relay.lists(), 2);
}

fn short() -> informerd::watch::Retention {
    informerd::watch::Retention { events: 2, ..informerd::watch::BroadcasterConfig::default().retention }
}

async fn of_lineage(lineage: &'static str, name: &str) -> Sandbox {
    let version = ResourceVersion::of_lineage(lineage.into(), 1);
    let options = Options { lineage: Some(lineage), ..Options::default() };
    Sandbox::start_with(options, vec![pod_at("shop", name, "", &version)]).await
}

#[tokio::test]
async fn another_lineage_upstream_is_a_rewritten_history() {
    let (before, after) = (of_lineage("a", "old").await, of_lineage("b", "new").await);
    let proxy = TcpProxy::to(before.address()).await;
    let relay = Sandbox::relay(proxy.address()).await;
    let far = Sandbox::relay(relay.address()).await;
    let mut streams = [watch(&relay, watch_pods()).await, watch(&far, watch_pods()).await];
    for stream in &mut streams {
        assert_eq!(words(&take(stream, 1).await[0]), "ADDED INITIAL old");
    }
    proxy.lead_to(after.address());
    proxy.cut();
    for stream in &mut streams {
        let status = end(stream).await;
        assert_eq!((status.code(), reason(&status)), (Code::OutOfRange, "HISTORY_CHANGED".to_owned()));
    }
    far.reached(&ResourceVersion::of_lineage("b".into(), 1)).await;
    let mut stream = watch(&far, watch_pods()).await;
    assert_eq!(words(&take(&mut stream, 1).await[0]), "ADDED INITIAL new");
    assert_eq!(words(&next(&mut stream).await), "BOOKMARK @b.1");
}

/// Rewrites the history at versions that continue upwards, while no relay is connected.
#[tokio::test]
async fn a_history_rewritten_while_disconnected_is_reported() {
    let mut origin = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let proxy = TcpProxy::to(origin.address()).await;
    let relay = Sandbox::relay(proxy.address()).await;
    for _ in 0..5 {
        origin.put("shop", "a", r#""from":"before""#).await;
    }
    relay.reached(&version(6)).await;
    let mut stream = watch(&relay, watch_from_now()).await;
    proxy.lead_nowhere();
    proxy.cut();
    origin.say(Delta::HistoryRewritten(List::new(vec![at("a", r#""from":"after""#, 3)], version(3)))).await;
    for number in 4..9 {
        origin.push(Event::Modified(at("a", r#""from":"after""#, number))).await;
    }
    let is_there = origin.informer.wait_for(0, |snapshot| *snapshot.version() == version(8));
    tokio::time::timeout(DEADLINE, is_there).await.unwrap();
    proxy.lead_to(origin.address());
    assert_eq!(reason(&end(&mut stream).await), "HISTORY_CHANGED");
    relay.reached(&version(8)).await;
    let mut stream = watch(&relay, watch_pods()).await;
    let message = take(&mut stream, 1).await.remove(0);
    assert!(format!("{message:?}").contains("after"), "{message:?}");
}

/// Checks that an upstream that is behind, as another replica may be, proves no rewritten history.
#[tokio::test]
async fn an_upstream_that_is_behind_is_waited_for() {
    let mut ahead = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let mut behind = Sandbox::start_with(
        Options { future_wait: Duration::from_millis(300), ..Options::default() },
        vec![pod("shop", "a", "")],
    )
    .await;
    let proxy = TcpProxy::to(ahead.address()).await;
    let relay = Sandbox::relay(proxy.address()).await;
    let mut stream = watch(&relay, watch_pods()).await;
    for n in 0..5 {
        ahead.put("shop", "a", &format!(r#""n":{n}"#)).await;
    }
    take(&mut stream, 6).await;
    proxy.lead_to(behind.address());
    proxy.cut();
    let error = last_error(&relay, "RESOURCE_VERSION_TOO_LARGE").await;
    assert!(error.contains("resource version 6 is too large"), "{error}");
    for n in 0..7 {
        behind.put("shop", "a", &format!(r#""n":{n}"#)).await;
    }
    let told: Vec<String> = take(&mut stream, 2).await.iter().map(words).collect();
    assert_eq!(told, ["MODIFIED a @7", "MODIFIED a @8"], "what it had is not told again");
    assert_eq!(relay.lists(), 1);

    // Nor does the relay accept a list of it.
    let old = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let health = SourceHealth::new(Duration::MAX, Duration::MAX);
    let source = RelaySource::new(relay_of(proxy.address()), health);
    assert_eq!(source.list(ListVersion::MostRecent).await.unwrap().version, version(8));
    proxy.lead_to(old.address());
    proxy.cut();
    let listed = async { while source.list(ListVersion::MostRecent).await.is_err() {} };
    assert!(tokio::time::timeout(Duration::from_secs(1), listed).await.is_err(), "it is older than what is known");
}

/// An object that this relay cannot read, as of a newer origin: the others are served, and what was held of it stays.
#[tokio::test]
async fn an_object_that_cannot_be_read_leaves_the_others_and_what_is_held_of_it() {
    let strange = |number| {
        Arc::new(Object::new(ObjectParts {
            key: ObjectKey::new("shop", "b").unwrap(),
            uid: String::new(),
            version: version(number),
            labels: BTreeMap::new(),
            api_version: String::new(),
            kind: String::new(),
            media_type: "image/png",
            body: Bytes::from_static(b"x"),
        }))
    };
    let origin = Sandbox::start(["a", "b"].map(|name| pod("shop", name, "")).into()).await;
    let relay = Sandbox::relay(origin.address()).await;
    let mut stream = watch(&relay, watch_pods()).await;
    take(&mut stream, 2).await;
    let first = relay.informer.snapshot().unwrap().version().number();
    let problems = |relay: &Sandbox| -> Vec<String> {
        relay.informer.health().problems().into_iter().map(|problem| problem.subject).collect()
    };
    origin.say(Delta::event(Event::Modified(strange(first + 1)))).await;
    origin.say(Delta::event(Event::Modified(at("a", "", first + 2)))).await;
    let words_of = |what: &str, number: u128| format!("{what} @{number}");
    assert_eq!(words(&take(&mut stream, 1).await[0]), words_of("MODIFIED a", first + 2));
    assert_eq!(
        (problems(&relay), relay.informer.snapshot().unwrap().len(), relay.lists()),
        (vec!["shop/b".to_owned()], 2, 1)
    );
    // The first list of another relay has nothing to keep.
    let late = Sandbox::relay(origin.address()).await;
    late.reached(&version(first + 2)).await;
    assert_eq!((problems(&late), late.informer.snapshot().unwrap().len()), (vec!["shop/b".to_owned(); 2], 1));
    assert_eq!(late.informer.state(), SyncState::Stale, "clients of an earlier run may have it");
    origin.say(Delta::event(Event::Deleted(strange(first + 3)))).await;
    assert_eq!(words(&take(&mut stream, 1).await[0]), words_of("DELETED b", first + 3));
    assert_eq!((problems(&relay), relay.lists()), (vec![], 1));
}
