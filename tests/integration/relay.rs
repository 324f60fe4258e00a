//! Relays: their clients receive what clients of the origin receive, whatever happens in between.

mod ahead;
mod open;
mod restored;
mod selection;
mod upstream;
mod view;

use std::{
    collections::BTreeMap,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use informerd::{
    cache::{Delta, List, ListVersion, ListerWatcher, SourceHealth, SyncState},
    client::Query,
    config::ServeFlags,
    model::{Cause, Event, Object, ObjectKey, ObjectParts, ResourceVersion},
    proto::pb::{self, informer_service_client::InformerServiceClient},
    source::relay::{RelayConfig, RelaySource},
    watch::FullChannelPolicy,
};
use tempfile::TempDir;
use tonic::{Code, Streaming, transport::Channel};

use crate::{
    refused_watch::watch_refusal,
    sandbox::{
        DEADLINE, Options, Sandbox, end, next, pod, pod_at, reason, relay_of, watch_from_now, watch_pods, words,
    },
    served::Served,
    tcp_proxy::TcpProxy,
};

type Stream = Streaming<pb::WatchResponse>;

fn version(number: u128) -> ResourceVersion {
    ResourceVersion::decimal(number)
}

fn at(name: &str, spec: &str, number: u128) -> Arc<Object> {
    pod_at("shop", name, spec, &version(number))
}

fn after(version: &str) -> pb::WatchRequest {
    pb::WatchRequest { resource_version: version.to_owned(), ..watch_pods() }
}

async fn watch(server: &Sandbox, request: pb::WatchRequest) -> Stream {
    server.client().await.watch(request).await.unwrap().into_inner()
}

async fn refused(server: &Sandbox, request: pb::WatchRequest) -> String {
    reason(&watch_refusal(server.client().await.watch(request)).await)
}

/// Returns the next `count` messages, except for bookmarks without news.
async fn take(stream: &mut Stream, count: usize) -> Vec<pb::WatchResponse> {
    let mut taken: Vec<pb::WatchResponse> = Vec::new();
    let all = async {
        while taken.len() < count {
            let message = next(stream).await;
            if message.bookmark.is_none() || message.relisted {
                // The name of the server differs at each hop.
                taken.push(pb::WatchResponse { bookmark: None, ..message });
            }
        }
    };
    let is_in_time = tokio::time::timeout(DEADLINE, all).await.is_ok();
    assert!(
        is_in_time,
        "{count} messages are to come, and there are {:?}",
        taken.iter().map(words).collect::<Vec<_>>()
    );
    taken
}

/// Starts an origin that the test feeds, and two relays, one behind the other.
async fn chain(objects: Vec<Arc<Object>>) -> [Sandbox; 3] {
    let origin = Sandbox::start(objects).await;
    let near = Sandbox::relay(origin.address()).await;
    let far = Sandbox::relay(near.address()).await;
    [origin, near, far]
}

/// Waits until a condition is met.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let waited = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(DEADLINE, waited).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

async fn last_error(server: &Sandbox, part: &str) -> String {
    let error = || server.informer.health().report().last_error.unwrap_or_default();
    until(part, async || error().contains(part)).await;
    error()
}

/// Compares versions, order, batches, causes, uids, labels, types and bytes after no hop, one and two.
#[tokio::test]
async fn every_hop_delivers_the_same() {
    let bytes = |name: &str, uid: &str, number| {
        Arc::new(Object::new(ObjectParts {
            key: ObjectKey::new("", name).unwrap(),
            uid: uid.to_owned(),
            version: version(number),
            labels: BTreeMap::from([("only".to_owned(), "here\n".to_owned())]),
            api_version: "v9".to_owned(),
            kind: String::new(),
            media_type: "application/octet-stream",
            body: Bytes::from_static(b"\0\xff"),
        }))
    };
    let servers = chain(vec![pod("shop", "a", ""), bytes("raw", "1", 1)]).await;
    let mut streams = Vec::new();
    for server in &servers {
        streams.push(watch(server, watch_pods()).await);
    }
    let mut initial = Vec::new();
    for stream in &mut streams {
        initial.push(take(stream, 2).await);
        while next(stream).await.bookmark.is_none_or(|bookmark| !bookmark.initial_events_end) {}
    }
    let origin = &servers[0];
    let gone = |object: &Arc<Object>, number| Event::Deleted(Arc::new(object.at_version(version(number))));
    for delta in [
        Delta::event(Event::Added(at("b", "", 2))),
        Delta::event(Event::Modified(at("a", r#""x":1"#, 3))),
        // Another object under the same key: two events of one batch.
        Delta::event(Event::Modified(bytes("raw", "2", 4))),
        Delta::transaction([
            Event::Added(at("c", "", 5)),
            gone(&at("b", "", 2), 5),
            Event::Modified(at("a", r#""x":2"#, 5)),
        ]),
        Delta::event(gone(&at("c", "", 5), 6)),
        Delta::event(Event::Bookmark(version(8))),
        // A relist whose objects have versions of their own: one is removed, one is changed, one is new.
        Delta::Replace(List::new(vec![at("a", r#""x":3"#, 11), at("d", "", 9)], version(20))),
        Delta::event(Event::Added(at("e", "", 21))),
        // A relist without a difference, and an ordinary deletion.
        Delta::Replace(List::new(vec![at("a", r#""x":3"#, 11), at("d", "", 9), at("e", "", 21)], version(30))),
        Delta::event(gone(&at("e", "", 21), 31)),
    ] {
        origin.say(delta).await;
    }
    // b, a, -raw +raw, c -b a, -c, -raw a d, e, -e
    let mut live = Vec::new();
    for stream in &mut streams {
        live.push(take(stream, 13).await);
    }
    let told: Vec<String> = live[0].iter().map(words).collect();
    assert_eq!(told[8..12], ["DELETED INFERRED raw @8", "MODIFIED a @8", "ADDED d @20", "ADDED e @21"]);
    assert_eq!(told[12], "DELETED e @31");
    let relisted: Vec<bool> = live[0].iter().map(|message| message.relisted).collect();
    assert_eq!(relisted[7..], [false, true, true, true, false, true]);
    for hop in [1, 2] {
        assert_eq!((&initial[hop], &live[hop]), (&initial[0], &live[0]), "hop {hop}");
    }
    // From the history, and from the snapshot.
    for server in &servers[1..] {
        for (version, first) in [("1", 0), ("2", 1), ("3", 2), ("4", 4), ("5", 7), ("6", 8), ("8", 8), ("20", 11)] {
            let mut resumed = watch(server, after(version)).await;
            assert_eq!(take(&mut resumed, 13 - first).await, live[0][first..], "after {version}");
        }
        let request = pb::ListRequest { format: pb::PayloadFormat::Raw.into(), ..list() };
        let listed = async |server: &Sandbox| {
            server.client().await.list(request.clone()).await.unwrap().into_inner().message().await.unwrap().unwrap()
        };
        let (here, there) = (listed(server).await, listed(origin).await);
        assert_eq!((here.resource_version, here.objects), (there.resource_version, there.objects));
    }
    let resources = async |server: &Sandbox| {
        let answer = server.client().await.list_resources(pb::ListResourcesRequest {}).await.unwrap();
        answer.into_inner().resources.remove(0).path
    };
    let paths = [resources(&servers[0]).await, resources(&servers[1]).await, resources(&servers[2]).await];
    assert_eq!(paths.iter().map(Vec::len).collect::<Vec<_>>(), [1, 2, 3]);
    assert!(paths[2].starts_with(&paths[1]) && paths[1].starts_with(&paths[0]), "{paths:?}");
    assert_eq!([servers[1].lists(), servers[2].lists()], [1, 1]);
}

/// Checks that an object that grows too large to be served still exists: live, in a transaction and at a relist.
#[tokio::test]
async fn objects_that_can_no_longer_be_served_are_not_deleted_at_any_hop() {
    let servers = chain(["a", "b", "c", "d"].map(|name| pod("shop", name, "")).to_vec()).await;
    let mut streams = Vec::new();
    for server in &servers {
        streams.push(watch(server, watch_pods()).await);
    }
    for stream in &mut streams {
        take(stream, 4).await;
    }
    for delta in [
        Delta::event(Event::NotServed(at("a", "", 2))),
        Delta::transaction([Event::NotServed(at("b", "", 3)), Event::Modified(at("a", "", 3))]),
        Delta::Replace(List { not_served: vec![at("c", "", 9)], ..List::new(vec![at("a", "", 3)], version(10)) }),
        Delta::event(Event::Deleted(at("c", "", 11))),
        Delta::event(Event::Added(at("c", "", 12))),
    ] {
        servers[0].say(delta).await;
    }
    let expected = [
        "DELETED NOT_SERVED a @2",
        "DELETED NOT_SERVED b @2",
        "ADDED a @3",
        "DELETED NOT_SERVED c @3",
        "DELETED INFERRED d @10",
        "ADDED c @12",
    ];
    for (stream, server) in streams.iter_mut().zip(&servers) {
        let told = take(stream, 6).await;
        assert_eq!(told.iter().map(words).collect::<Vec<_>>(), expected);
        let last = told[0].object.as_ref().unwrap();
        assert_eq!(
            (last.resource_version.as_str(), last.body.is_some()),
            ("2", true),
            "the last state that was served"
        );
        let resumed = take(&mut watch(server, after("1")).await, 6).await;
        assert_eq!(resumed, told, "from the history");
        assert_eq!(server.informer.stats().not_served.load(Ordering::Relaxed), 3);
    }
    assert_eq!([servers[1].lists(), servers[2].lists()], [1, 1]);
}

/// Checks that an expiry at the origin is one change like another: no relay has to list again, and the cause is kept.
#[tokio::test]
async fn objects_that_have_expired_are_deleted_at_each_hop() {
    let servers = chain(["a", "b"].map(|name| pod("shop", name, "")).to_vec()).await;
    let mut streams = Vec::new();
    for server in &servers {
        streams.push(watch(server, watch_pods()).await);
    }
    for stream in &mut streams {
        take(stream, 2).await;
    }
    servers[0]
        .say(Delta::transaction([
            Event::Removed(at("a", "", 2), Cause::Expired),
            Event::Removed(at("b", "", 2), Cause::Expired),
        ]))
        .await;
    servers[0].say(Delta::event(Event::Added(at("a", "", 3)))).await;
    let expected = ["DELETED EXPIRED a @1", "DELETED EXPIRED b @2", "ADDED a @3"];
    for (stream, server) in streams.iter_mut().zip(&servers) {
        let told = take(stream, 3).await;
        assert_eq!(told.iter().map(words).collect::<Vec<_>>(), expected);
        assert!(told.iter().all(|message| !message.relisted));
        let resumed = take(&mut watch(server, after("1")).await, 3).await;
        assert_eq!(resumed, told, "from the history");
    }
    assert_eq!([servers[1].lists(), servers[2].lists()], [1, 1]);
}

fn list() -> pb::ListRequest {
    pb::ListRequest { resource: "pods".to_owned(), ..pb::ListRequest::default() }
}

/// Checks that no hop invents what a relist's gap hid: an object created and deleted inside the gap is unknown to every server.
#[tokio::test]
async fn a_gap_is_a_gap_at_every_hop() {
    let servers = chain(vec![pod("shop", "a", "")]).await;
    for server in &servers {
        server.reached(&version(1)).await;
    }
    let origin = &servers[0];
    // No change; one object changed, at the very version of the list; and no change again before an event.
    origin.list(vec![pod("shop", "a", "")], 10).await;
    for server in &servers {
        server.reached(&version(10)).await;
    }
    origin.list(vec![at("a", r#""x":1"#, 20)], 20).await;
    origin.list(vec![at("a", r#""x":1"#, 20)], 30).await;
    origin.push(Event::Added(at("b", "", 35))).await;
    for server in &servers {
        server.reached(&version(35)).await;
        for inside in ["5", "15", "25"] {
            assert_eq!(refused(server, after(inside)).await, "RESOURCE_VERSION_EXPIRED", "{inside}");
        }
        for end in ["1", "10"] {
            let told: Vec<String> = take(&mut watch(server, after(end)).await, 2).await.iter().map(words).collect();
            assert_eq!(told, ["MODIFIED a @20", "ADDED b @35"], "after {end}");
        }
    }
    // A client that resumes from before a relist without a difference receives the relist.
    origin.list(vec![at("a", r#""x":1"#, 20), at("b", "", 35)], 50).await;
    let mut stream = watch(origin, after("35")).await;
    let bookmark = take(&mut stream, 1).await.remove(0);
    assert_eq!((words(&bookmark).as_str(), bookmark.relisted), ("BOOKMARK @50", true));
    // It is reported once.
    origin.push(Event::Modified(at("a", r#""x":2"#, 51))).await;
    let change = take(&mut stream, 1).await.remove(0);
    assert_eq!((words(&change).as_str(), change.relisted), ("MODIFIED a @51", false));
    assert_eq!([servers[1].lists(), servers[2].lists()], [1, 1]);
}

/// Resumes one stream, also in the middle of a batch and after a silence.
#[tokio::test]
async fn a_broken_stream_is_resumed_without_a_list() {
    let mut origin = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let proxy = TcpProxy::to(origin.address()).await;
    let relay = Sandbox::relay(proxy.address()).await;
    let mut stream = watch(&relay, watch_pods()).await;
    assert_eq!(words(&take(&mut stream, 1).await[0]), "ADDED INITIAL a");
    for round in 0..20 {
        for _ in 0..20 {
            let large = format!(r#""round":{round},"x":"{}""#, "x".repeat(5000));
            let number = origin.version();
            let [b, c] = ["b", "c"].map(|name| Event::Modified(pod_at("shop", name, &large, &number)));
            origin.say(Delta::transaction([b, c])).await;
        }
        relay.reached(&version(20 * round + 10)).await;
        if round == 10 {
            proxy.silence();
        } else {
            proxy.cut();
        }
    }
    let told = take(&mut stream, 800).await;
    for (at, pair) in told.chunks(2).enumerate() {
        let words: Vec<String> = pair.iter().map(words).collect();
        let event_type = if at == 0 { "ADDED" } else { "MODIFIED" };
        let expected = [("b", at + 1), ("c", at + 2)].map(|(name, at)| format!("{event_type} {name} @{at}"));
        assert_eq!(words, expected);
    }
    assert_eq!(relay.lists(), 1);
    assert_eq!(relay.informer.stats().history_rewrites.load(Ordering::Relaxed), 0);
}

/// Starts a directory server, a relay of it, and a relay of that; then restarts the first.
#[tokio::test]
async fn a_directory_is_relayed() {
    let directory = TempDir::new().unwrap();
    let write = |name: &str, spec: &str| {
        let text = format!("{{kind: Pod, metadata: {{namespace: shop, name: {name}}}, spec: {{x: {spec}}}}}\n");
        std::fs::write(directory.path().join(format!("{name}.yaml")), text).unwrap();
    };
    write("a", "1");
    let serve = async || {
        let files = vec![format!("pods={}", directory.path().display())];
        Served::start(TempDir::new().unwrap(), ServeFlags { files, ..ServeFlags::default() }).await
    };
    let relay = async |address: &str| {
        let relay = vec![format!("pods=http://{}", address.trim_start_matches("http://"))];
        Served::start(TempDir::new().unwrap(), ServeFlags { relay, ..ServeFlags::default() }).await
    };
    let origin = serve().await;
    let proxy = TcpProxy::to(&origin.address).await;
    let near = relay(proxy.address()).await;
    let far = relay(&near.address).await;
    let mut streams = Vec::new();
    for server in [&origin, &near, &far] {
        server.until(|resource| resource.objects == 1).await;
        streams.push(server.client().await.watch(watch_pods()).await.unwrap().into_inner());
    }
    let mut told = [const { Vec::new() }; 3];
    for (change, count) in [("a", 2), ("b", 1), ("", 1)] {
        match change {
            "" => std::fs::remove_file(directory.path().join("a.yaml")).unwrap(),
            name => write(name, "2"),
        }
        for (told, stream) in told.iter_mut().zip(&mut streams) {
            told.extend(take(stream, count).await);
        }
    }
    assert_eq!((&told[1], &told[2]), (&told[0], &told[0]));
    assert!(words(&told[0][3]).starts_with("DELETED a @"), "{told:?}");
    let resource = far.until(|_| true).await;
    assert_eq!((resource.source.as_str(), resource.path.len()), ("informerd", 3));

    origin.stop().await;
    let again = serve().await;
    proxy.lead_to(&again.address);
    for stream in &mut streams[1..] {
        assert_eq!(reason(&end(stream).await), "HISTORY_CHANGED");
    }
    let version = again.until(|resource| resource.objects == 1).await.resource_version;
    far.until(|resource| resource.resource_version == version).await;
    assert_eq!(far.get("/readyz").await.0, 200);
}

/// Checks that a client at the end of the chain gets a version that only bookmarks reach without a wait for their interval.
#[tokio::test]
async fn a_version_that_a_caller_waits_for_is_requested_through_the_chain() {
    let origin = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let patient = |address: &str| {
        let relay = RelayConfig { heartbeat: Duration::from_secs(600), ..relay_of(address) };
        Sandbox::start_unsynced(Options { relay: Some(relay), ..Options::default() })
    };
    let near = patient(origin.address()).await;
    let far = patient(near.address()).await;
    far.reached(&version(1)).await;
    let request = |version: &str| pb::GetRequest {
        resource: "pods".to_owned(),
        namespace: "shop".to_owned(),
        name: "a".to_owned(),
        min_resource_version: version.to_owned(),
        ..pb::GetRequest::default()
    };
    let mut client = far.client().await;
    let waiting = tokio::spawn(async move { client.get(request("7")).await });
    until("the origin is asked", async || origin.informer.demand().is_wanted()).await;
    origin.push(Event::Bookmark(version(7))).await;
    let answer = tokio::time::timeout(DEADLINE, waiting).await.unwrap().unwrap().unwrap();
    assert_eq!(answer.into_inner().resource_version, "7");
    assert_eq!([near.lists(), far.lists()], [1, 1]);
    // Also a resume from a version that the server has not reached yet.
    let client = far.client().await;
    let resumed = tokio::spawn(async move { resume(client, "9").await });
    origin.push(Event::Bookmark(version(9))).await;
    let mut stream = tokio::time::timeout(DEADLINE, resumed).await.unwrap().unwrap();
    origin.push(Event::Added(at("b", "", 10))).await;
    assert_eq!(words(&take(&mut stream, 1).await[0]), "ADDED b @10");
}

#[tokio::test]
async fn progress_is_requested_of_the_upstream_while_a_caller_waits() {
    let servers = chain(vec![pod("shop", "a", "")]).await;
    until("it is synced", async || servers[2].informer.snapshot().is_some()).await;
    let (origin, far) = (servers[0].informer.demand(), servers[2].informer.demand());
    for _ in 0..2 {
        let waiting = far.wait();
        until("it is asked", async || origin.is_wanted()).await;
        drop(waiting);
        until("it is left alone", async || !origin.is_wanted()).await;
    }
    assert_eq!([servers[1].lists(), servers[2].lists()], [1, 1]);
}

async fn resume(mut client: InformerServiceClient<Channel>, version: &str) -> Stream {
    client.watch(after(version)).await.unwrap().into_inner()
}

#[tokio::test]
async fn the_state_of_the_origin_is_relayed() {
    let servers = chain(vec![pod("shop", "a", "")]).await;
    let origin = servers[0].informer.health();
    origin.record_contact();
    let mut stream = watch(&servers[2], watch_pods()).await;
    take(&mut stream, 1).await;
    let mut told = async |state: pb::SyncState| {
        let mut bookmark = pb::Bookmark::default();
        until(state.as_str_name(), async || {
            bookmark = next(&mut stream).await.bookmark.unwrap_or_default();
            bookmark.source() == state
        })
        .await;
        bookmark
    };
    let seen_at = told(pb::SyncState::Synced).await.source_seen_at;
    assert_eq!(
        seen_at,
        origin.report().seen_at.map(Into::into),
        "when the origin was seen, and not the relay's upstream"
    );
    origin.mark_lost();
    told(pb::SyncState::Stale).await;
    assert_eq!(servers[1].informer.state(), SyncState::Stale);
    origin.record_contact();
    told(pb::SyncState::Synced).await;
}

#[tokio::test]
async fn a_relay_of_itself_is_refused() {
    let proxy = TcpProxy::to("127.0.0.1:1").await;
    let own = Sandbox::relay(proxy.address()).await;
    proxy.lead_to(own.address());
    let error = last_error(&own, "cannot follow itself").await;
    assert!(error.contains(proxy.address()) && !error.contains('\n'), "{error}");

    // Through two others.
    let proxy = TcpProxy::to("127.0.0.1:1").await;
    let first = Sandbox::relay(proxy.address()).await;
    let second = Sandbox::relay(first.address()).await;
    let is_known = async |relay: &Sandbox, length: usize| {
        until("the path", async || relay.informer.provenance().path().len() == length).await;
    };
    is_known(&second, 2).await;
    let third = Sandbox::relay(second.address()).await;
    is_known(&third, 3).await;
    proxy.lead_to(third.address());
    last_error(&first, "cannot follow itself").await;
    assert!(first.informer.snapshot().is_none());

    // The number of hops that an undetected loop would reach.
    let origin = Sandbox::start(vec![pod("shop", "a", "")]).await;
    let names = |count: usize| (0..count).map(|at| format!("server {at}")).collect();
    origin.informer.provenance().set_upstream(names(15));
    let relay = Sandbox::relay(origin.address()).await;
    last_error(&relay, "comes through 16 servers; relay a server closer to the source").await;
    origin.informer.provenance().set_upstream(names(14));
    relay.reached(&version(1)).await;
}

/// Refuses the upstream before anything is served.
#[tokio::test]
async fn an_upstream_without_replay_is_refused() {
    let options = Options { allowed_policies: vec![FullChannelPolicy::Drop], ..Options::default() };
    let origin = Sandbox::start_with(options, vec![pod("shop", "a", "")]).await;
    let relay = Sandbox::relay(origin.address()).await;
    let error = last_error(&relay, "replay").await;
    assert!(error.contains("add it to the upstream's watch.allowed_policies"), "{error}");
    assert!(relay.informer.snapshot().is_none());
    let other = RelayConfig { query: Query::of("nodes"), ..relay_of(origin.address()) };
    let relay = Sandbox::start_unsynced(Options { relay: Some(other), ..Options::default() }).await;
    last_error(&relay, r#"resource "nodes" not found (known: pods)"#).await;
}
