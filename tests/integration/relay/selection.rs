//! Relays of a selection: their clients receive what clients of the origin with that selection receive.

use std::collections::BTreeSet;

use super::{
    restored::{LISTED, last, origin, play, state},
    *,
};

/// Returns the selection of the objects with a field.
fn by_field(selector: &str) -> Query {
    Query { field_selector: selector.to_owned(), ..Query::of("pods") }
}

/// Starts a relay of a selection.
async fn relay_by(address: &str, query: Query) -> Sandbox {
    let relay = RelayConfig { query, ..relay_of(address) };
    Sandbox::start_unsynced(Options { relay: Some(relay), ..Options::default() }).await
}

#[tokio::test]
async fn an_object_that_enters_the_selection_is_added_and_one_that_leaves_it_is_deleted() {
    let origin = Sandbox::start(vec![pod("shop", "a", r#""x":1"#), pod("shop", "b", r#""x":2"#)]).await;
    let near = relay_by(origin.address(), by_field("spec.x=1")).await;
    let far = Sandbox::relay(near.address()).await;
    let mut streams = [watch(&near, watch_pods()).await, watch(&far, watch_pods()).await];
    for stream in &mut streams {
        assert_eq!(words(&take(stream, 1).await[0]), "ADDED INITIAL a");
    }
    let x = |name: &str, x: u32, number| at(name, &format!(r#""x":{x}"#), number);
    for delta in [
        Delta::event(Event::Modified(x("b", 1, 2))),
        Delta::event(Event::Modified(x("a", 2, 3))),
        Delta::event(Event::Modified(x("a", 3, 4))),
        Delta::transaction([Event::Modified(x("a", 1, 5)), Event::Deleted(x("b", 1, 5)), Event::Added(x("c", 9, 5))]),
        Delta::event(Event::Deleted(x("a", 1, 6))),
        Delta::event(Event::Deleted(x("c", 9, 7))),
    ] {
        origin.say(delta).await;
    }
    let expected = ["ADDED b @2", "DELETED a @3", "ADDED a @4", "DELETED b @5", "DELETED a @6"];
    for (stream, server) in streams.iter_mut().zip([&near, &far]) {
        let told: Vec<String> = take(stream, expected.len()).await.iter().map(words).collect();
        assert_eq!(told, expected);
        // Also changes of other objects advance the version.
        server.reached(&version(7)).await;
        let again = take(&mut watch(server, after("1")).await, expected.len()).await;
        assert_eq!(again.iter().map(words).collect::<Vec<_>>(), expected, "from the history");
        assert_eq!((state(server).await.len(), server.lists()), (0, 1));
    }
}

/// Checks every kind of selection against the selection of a client.
#[tokio::test]
async fn a_relay_has_the_objects_of_its_selection() {
    let pods = [("shop", "a", 1), ("shop", "b", 2), ("stock", "a", 3), ("stock", "b", 1)];
    let pods = pods.map(|(namespace, name, node)| pod(namespace, name, &format!(r#""nodeName":"n{node}""#)));
    let origin = Sandbox::start(pods.to_vec()).await;
    let text = str::to_owned;
    let of = || Query::of("pods");
    let mut selections = vec![
        (of(), 4),
        (Query { namespace: Some(text("shop")), ..of() }, 2),
        (Query { name: Some(text("a")), ..of() }, 2),
        (Query { label_selector: text("app!=a"), ..of() }, 2),
        (by_field("spec.nodeName=n1"), 2),
        (Query { index: Some((text("node"), vec![text("n1"), text("n3")])), ..of() }, 3),
        (Query { namespace: Some(text("stock")), index: Some((text("node"), vec![text("n1")])), ..of() }, 1),
    ];
    if cfg!(feature = "cel") {
        selections.push((Query { expression: text("object.spec.nodeName > 'n1'"), ..of() }, 2));
    }
    let mut identities = BTreeSet::new();
    for (query, count) in selections {
        let health = SourceHealth::new(Duration::MAX, Duration::MAX);
        let source =
            RelaySource::new(RelayConfig { query: query.clone(), ..relay_of(origin.address()) }, health.clone());
        assert_eq!(source.list(ListVersion::MostRecent).await.unwrap().objects.len(), count, "{query:?}");
        assert_eq!(health.namespaces(), Vec::from_iter(query.namespace.clone()));
        let identity = source.warm_start().unwrap().identity();
        assert!(identity.lines().count() == 1 && identities.insert(identity), "a snapshot of {query:?} is its own");
    }
    let whole = format!(r#""pods" of informerd at {}"#, origin.address());
    assert!(identities.contains(&whole), "snapshots of earlier builds are used: {identities:?}");
}

#[tokio::test]
async fn a_selection_that_the_upstream_refuses_is_reported_with_its_reason() {
    let origin = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let no_index = Query { index: Some(("rack".to_owned(), vec!["r1".to_owned()])), ..Query::of("pods") };
    for (query, reason) in [(no_index, "INDEX_NOT_FOUND"), (by_field("spec.x"), "FIELD_SELECTOR_INVALID")] {
        let relay = relay_by(origin.address(), query).await;
        let error = last_error(&relay, reason).await;
        assert!(error.contains(origin.address()), "{error}");
    }
}

/// Relists without a change in the selection: no relay may serve a version inside, neither live nor after it has resumed.
#[tokio::test]
async fn a_relist_outside_of_the_selection_is_a_gap() {
    let x = |name: &str, x: u32, number| at(name, &format!(r#""x":{x}"#), number);
    let origin = Sandbox::start(vec![x("a", 1, 1)]).await;
    let proxy = TcpProxy::to(origin.address()).await;
    let near = relay_by(proxy.address(), by_field("spec.x=1")).await;
    let far = Sandbox::relay(near.address()).await;
    far.reached(&version(1)).await;
    origin.list(vec![x("a", 1, 1), x("z", 2, 20)], 20).await;
    origin.push(Event::Added(x("b", 1, 21))).await;
    for relay in [&near, &far] {
        relay.reached(&version(21)).await;
        assert_eq!(refused(relay, after("10")).await, "RESOURCE_VERSION_EXPIRED");
        assert_eq!(words(&take(&mut watch(relay, after("1")).await, 1).await[0]), "ADDED b @21");
    }
    proxy.lead_nowhere();
    proxy.cut();
    origin.list(vec![x("a", 1, 1), x("b", 1, 21), x("z", 2, 40)], 40).await;
    proxy.lead_to(origin.address());
    for relay in [&near, &far] {
        relay.reached(&version(40)).await;
        assert_eq!(refused(relay, after("30")).await, "RESOURCE_VERSION_EXPIRED");
    }
    assert_eq!([near.lists(), far.lists()], [1, 1]);
}

/// Returns a relay that has followed a script without the objects at versions 3 and 4, with its upstream and a watch.
async fn followed(known: &str) -> (Sandbox, TcpProxy, Sandbox, Stream) {
    let going = origin(LISTED, 1, "").await;
    let proxy = TcpProxy::to(going.address()).await;
    let relay = relay_by(proxy.address(), by_field("spec.at!=3,spec.at!=4")).await;
    let stream = watch(&relay, watch_from_now()).await;
    play(&going, known).await;
    relay.reached(&last(known)).await;
    (going, proxy, relay, stream)
}

/// Leads the relay to another server with the same history, whose Get also returns objects that the selection does not have.
#[tokio::test]
async fn a_last_change_that_left_the_selection_proves_the_history() {
    for (what, known, rest, told) in [
        ("it has left", "2:a 3:a", "5:b", ["MODIFIED a @2", "DELETED a @3", "MODIFIED b @5"]),
        ("it has changed since", "2:a 3:a 4:a 6:@", "7:b", ["MODIFIED a @2", "DELETED a @3", "MODIFIED b @7"]),
        ("it was deleted since", "2:a 3:a 4:-a", "5:b", ["MODIFIED a @2", "DELETED a @3", "MODIFIED b @5"]),
        ("it has entered again", "2:a 3:a 4:a", "7:a", ["MODIFIED a @2", "DELETED a @3", "ADDED a @7"]),
        ("another one has left", "2:a 3:b 4:b 6:@", "7:a", ["MODIFIED a @2", "DELETED b @3", "MODIFIED a @7"]),
    ] {
        let (_going, proxy, relay, mut stream) = followed(known).await;
        let coming = origin(LISTED, 1, known).await;
        proxy.lead_to(coming.address());
        proxy.cut();
        play(&coming, rest).await;
        let found: Vec<String> = take(&mut stream, told.len()).await.iter().map(words).collect();
        assert_eq!((&found[..], relay.lists()), (&told.map(str::to_owned)[..], 1), "{what}");
    }
}

#[tokio::test]
async fn a_history_without_the_change_that_left_the_selection_is_another_one() {
    for (what, other) in [("it was not changed", "2:a 3:b 5:b"), ("it has not left", "2:a 5:a 6:b")] {
        let (_going, proxy, relay, mut stream) = followed("2:a 3:a").await;
        let coming = origin(LISTED, 1, other).await;
        proxy.lead_to(coming.address());
        proxy.cut();
        assert_eq!(reason(&end(&mut stream).await), "HISTORY_CHANGED", "{what}");
        let selected = state(&coming).await.into_iter().filter(|(_, version)| version != "3");
        let selected: BTreeMap<String, String> = selected.collect();
        until(what, async || state(&relay).await == selected).await;
    }
}
