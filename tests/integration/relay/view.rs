//! Relays that follow a view: their clients receive what clients of the origin with that view receive.

use informerd::{
    cache::SourceError,
    model::{NamedViews, View},
    proto::pb::informer_service_server::{InformerService, InformerServiceServer},
};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use super::*;
use crate::sandbox::raw;

/// Returns the view of these paths, or of a name.
fn view(fields: &[&str], name: &str) -> pb::View {
    let fields = fields.iter().map(|field| (*field).to_owned()).collect();
    pb::View { fields, name: name.to_owned(), ..pb::View::default() }
}

fn in_view(view: pb::View) -> Query {
    Query { view: Some(view), ..Query::of("pods") }
}

async fn relay_by(address: &str, query: Query) -> Sandbox {
    let relay = RelayConfig { query, ..relay_of(address) };
    Sandbox::start_unsynced(Options { relay: Some(relay), ..Options::default() }).await
}

/// Starts an origin of two objects, whose view "small" has this field.
async fn origin_with(field: &str) -> Sandbox {
    let small = View::parse(&[field], &[]).unwrap();
    let views = NamedViews::new([("small".to_owned(), small)]).unwrap();
    let origin = Sandbox::start_unsynced(Options { views, ..Options::default() }).await;
    let objects = ["a", "b"].map(|name| at(name, r#""nodeName":"n1","x":1,"y":2"#, 1));
    origin.list(objects.to_vec(), 1).await;
    origin.informer.health().record_contact();
    origin
}

fn body(message: &pb::WatchResponse) -> String {
    String::from_utf8(raw(message.object.as_ref().unwrap()).to_vec()).unwrap()
}

/// Returns the bodies by name, where all have been received.
async fn state(server: &Sandbox) -> Vec<String> {
    let format = pb::PayloadFormat::Raw.into();
    let request = pb::ListRequest { resource: "pods".to_owned(), format, ..pb::ListRequest::default() };
    let listed = server.client().await.list(request).await.unwrap().into_inner().message().await.unwrap().unwrap();
    listed.objects.iter().map(|object| String::from_utf8(raw(object).to_vec()).unwrap()).collect()
}

#[tokio::test]
async fn a_relay_of_a_view_delivers_what_the_origin_delivers_in_it() {
    let origin = origin_with("spec.nodeName").await;
    for of_view in [view(&["spec.nodeName"], ""), view(&[], "small")] {
        let near = relay_by(origin.address(), in_view(of_view.clone())).await;
        let far = Sandbox::relay(near.address()).await;
        let before = origin.informer.snapshot().unwrap().version().number();
        let mut streams = vec![watch(&origin, pb::WatchRequest { view: Some(of_view), ..watch_pods() }).await];
        for relay in [&near, &far] {
            streams.push(watch(relay, watch_pods()).await);
        }
        let mut initial = Vec::new();
        for stream in &mut streams {
            let taken = take(stream, 2).await;
            assert_eq!(body(&taken[0]), r#"{"spec":{"nodeName":"n1"}}"#);
            let labels = &taken[0].object.as_ref().unwrap().labels;
            assert_eq!(labels["app"], "a", "the envelope is whole");
            initial.push(taken);
        }
        assert!(initial[0] == initial[1] && initial[1] == initial[2]);
        for stream in &mut streams {
            while next(stream).await.bookmark.is_none_or(|bookmark| !bookmark.initial_events_end) {}
        }
        for delta in [
            Delta::event(Event::Modified(at("a", r#""nodeName":"n2","x":2"#, before + 1))),
            Delta::event(Event::Modified(at("a", r#""nodeName":"n2","x":3"#, before + 2))),
            Delta::event(Event::Deleted(at("a", r#""nodeName":"n2","x":3"#, before + 3))),
            Delta::event(Event::Added(at("a", r#""nodeName":"n1","x":4"#, before + 4))),
        ] {
            origin.say(delta).await;
        }
        let mut told = Vec::new();
        for stream in &mut streams {
            told.push(take(stream, 4).await);
        }
        assert!(told[0] == told[1] && told[1] == told[2], "{told:?}");
        assert_eq!(body(&told[0][3]), r#"{"spec":{"nodeName":"n1"}}"#);
    }
}

/// A relay has no more than the view: its own indexes and selectors look at that.
#[tokio::test]
async fn the_selections_of_a_relay_see_the_viewed_bodies() {
    let origin = origin_with("x").await;
    let query = Query { field_selector: "spec.x=1".to_owned(), ..in_view(view(&["spec.nodeName"], "")) };
    let relay = relay_by(origin.address(), query).await;
    relay.reached(&version(1)).await;
    let count = async |request: pb::ListRequest| {
        let request = pb::ListRequest { resource: "pods".to_owned(), ..request };
        let chunk = relay.client().await.list(request).await.unwrap().into_inner().message().await.unwrap();
        chunk.unwrap().objects.len()
    };
    let by_field = |selector: &str| pb::ListRequest { field_selector: selector.to_owned(), ..Default::default() };
    let index = pb::IndexMatch { name: "node".to_owned(), values: vec!["n1".to_owned()] };
    assert_eq!(count(pb::ListRequest { index: Some(index), ..Default::default() }).await, 2);
    assert_eq!(count(by_field("spec.nodeName=n1")).await, 2);
    assert_eq!(count(by_field("spec.x=1")).await, 0, "the upstream selects by it, and does not send it");
    assert_eq!(count(by_field("spec.x=")).await, 2);
    assert_eq!(count(pb::ListRequest { label_selector: "app=a".to_owned(), ..Default::default() }).await, 1);
}

#[tokio::test]
async fn a_body_that_the_view_leaves_out_is_empty_at_the_relay() {
    let bytes = |number, label: &str| {
        Arc::new(Object::new(ObjectParts {
            key: ObjectKey::new("shop", "raw").unwrap(),
            uid: "1".to_owned(),
            version: version(number),
            labels: BTreeMap::from([("x".to_owned(), label.to_owned())]),
            api_version: String::new(),
            kind: String::new(),
            media_type: "application/octet-stream",
            body: Bytes::from_static(b"\0\xff"),
        }))
    };
    let origin = Sandbox::start(vec![bytes(1, "1")]).await;
    let query = Query { label_selector: "x=1".to_owned(), ..in_view(view(&["spec"], "")) };
    let relay = relay_by(origin.address(), query).await;
    let mut stream = watch(&relay, watch_pods()).await;
    assert_eq!(body(&take(&mut stream, 1).await[0]), "");
    for (number, label) in [(2, "1"), (3, "2"), (4, "1")] {
        origin.push(Event::Modified(bytes(number, label))).await;
    }
    let told: Vec<String> = take(&mut stream, 3).await.iter().map(words).collect();
    assert_eq!(told, ["MODIFIED raw @2", "DELETED raw @3", "ADDED raw @4"]);
    assert_eq!(relay.lists(), 1, "it has left the selection, and was not withheld");
}

/// Objects that have not changed since have other bodies in a view with other paths.
#[tokio::test]
async fn a_view_with_other_paths_is_another_history() {
    let going = origin_with("spec.x").await;
    let proxy = TcpProxy::to(going.address()).await;
    let relay = relay_by(proxy.address(), in_view(view(&[], "small"))).await;
    let mut stream = watch(&relay, watch_from_now()).await;
    assert!(next(&mut stream).await.bookmark.is_some());
    assert_eq!(state(&relay).await, [r#"{"spec":{"x":1}}"#; 2]);
    let same = origin_with("spec.x").await;
    proxy.lead_to(same.address());
    proxy.cut();
    same.push(Event::Modified(at("b", r#""x":1"#, 2))).await;
    assert_eq!(take(&mut stream, 1).await.iter().map(words).collect::<Vec<_>>(), ["MODIFIED b @2"]);
    let other = origin_with("spec.y").await;
    other.push(Event::Modified(at("b", r#""y":2"#, 2))).await;
    proxy.lead_to(other.address());
    proxy.cut();
    assert_eq!(reason(&end(&mut stream).await), "HISTORY_CHANGED");
    until("the other paths", async || state(&relay).await == [r#"{"spec":{"y":2}}"#; 2]).await;
}

#[tokio::test]
async fn a_relay_recognises_the_paths_of_its_view_after_a_restart() {
    let origin = origin_with("spec.x").await;
    let source = |address: &str, view: pb::View| {
        let config = RelayConfig { query: in_view(view), ..relay_of(address) };
        RelaySource::new(config, SourceHealth::new(Duration::MAX, Duration::MAX))
    };
    let small = || view(&[], "small");
    let first = source(origin.address(), small());
    assert_eq!(first.list(ListVersion::MostRecent).await.unwrap().version, version(1));
    let proof = first.warm_start().unwrap().proof().unwrap();
    let resumed = async |origin: &Sandbox| {
        let later = source(origin.address(), small());
        later.warm_start().unwrap().resume(&version(1), &proof).unwrap();
        later.watch(version(1)).await.map(drop)
    };
    assert_eq!(resumed(&origin).await, Ok(()));
    assert_eq!(resumed(&origin_with("spec.x").await).await, Ok(()));
    let error = resumed(&origin_with("spec.y").await).await.unwrap_err();
    assert!(
        matches!(&error, SourceError::HistoryRewritten(text) if text.ends_with("view \"small\" has other paths")),
        "{error}"
    );

    let identity = |view: pb::View| source("http://127.0.0.1:1", view).warm_start().unwrap().identity();
    let identities = [view(&["a"], ""), view(&["b"], ""), view(&[], "a"), view(&[], "@metadata"), pb::View::default()];
    let identities: std::collections::BTreeSet<_> = identities.map(identity).into();
    assert_eq!(identities.len(), 5, "a snapshot of a view is its own");
}

/// Server without capabilities, which ignores what it does not know.
struct OlderServer;

#[tonic::async_trait]
impl InformerService for OlderServer {
    async fn list_resources(
        &self,
        _: Request<pb::ListResourcesRequest>,
    ) -> Result<Response<pb::ListResourcesResponse>, Status> {
        let resource = pb::Resource { name: "pods".to_owned(), ..pb::Resource::default() };
        Ok(Response::new(pb::ListResourcesResponse { resources: vec![resource], server: None }))
    }
}

#[tokio::test]
async fn a_view_or_a_shard_that_the_upstream_does_not_serve_is_reported() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let older = format!("http://{}", listener.local_addr().unwrap());
    let server = tonic::transport::Server::builder().add_service(InformerServiceServer::new(OlderServer));
    let serving = tokio::spawn(server.serve_with_incoming(TcpListenerStream::new(listener)));
    let origin = origin_with("spec.x").await;
    let views = NamedViews::new([("small".to_owned(), View::parse(&["a"], &[]).unwrap())]).unwrap();
    let views = views.required(&["small".to_owned()]).unwrap();
    let strict = Sandbox::start_with(Options { views, ..Options::default() }, vec![pod("shop", "a", "")]).await;
    let shard = Query { shard: Some("0/2".parse().unwrap()), ..Query::of("pods") };
    let named = |name: &str| in_view(view(&[], name));
    for (address, query, problem) in [
        (origin.address(), named("smal"), "resource \"pods\" has no view \"smal\" (known: small)"),
        (&older, named("small"), "resource \"pods\" has no view \"small\" (known: )"),
        (&older, in_view(view(&["a"], "")), "has no views: update it, or request without"),
        (&older, shard, "has no shards: update it, or request without"),
        (strict.address(), Query::of("pods"), "name one of small"),
        (strict.address(), in_view(view(&["a"], "")), "name one of small"),
    ] {
        let relay = relay_by(address, query).await;
        let error = last_error(&relay, problem).await;
        assert!(error.contains(address.trim_start_matches("http://")), "{error}");
    }
    let relay = relay_by(strict.address(), named("small")).await;
    relay.reached(&version(1)).await;
    serving.abort();
}
