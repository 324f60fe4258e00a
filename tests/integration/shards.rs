//! Shards: the parts of a resource are the whole, by every RPC and through relays, and an object is in exactly one of them.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use informerd::{
    client::{Client, Query, UntilEvent, UntilOptions, WatchOptions},
    model::{Event, Object, ResourceVersion, Shard, ShardKey},
    proto::pb::{
        self,
        informer_service_server::{InformerService, InformerServiceServer},
    },
    source::relay::RelayConfig,
};
use proptest::{collection::vec, prelude::*, sample::select, test_runner::TestCaseError};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Request, Response, Status, Streaming};

use crate::{
    checker::runner,
    client_commands::Server,
    sandbox::{DEADLINE, Options, Sandbox, fold, next, raw, reason, relay_of, watch_pods, words},
};

const KEYS: [&str; 4] = ["uid", "namespace", "key", "spec.nodeName"];

/// Returns part `part` of three by this key.
fn part(key: &str, part: u64) -> Shard {
    Shard::part(ShardKey::parse(key).unwrap(), part, 3).unwrap()
}

fn query(shard: Shard) -> Query {
    Query { shard: Some(shard), ..Query::of("pods") }
}

fn pod(namespace: &str, name: &str, node: &str, version: u128) -> Arc<Object> {
    let json = format!(
        r#"{{"metadata":{{"namespace":"{namespace}","name":"{name}","uid":"0f5b1a2c-{namespace}-{name}"}},"spec":{{"nodeName":"{node}"}}}}"#
    );
    Arc::new(Object::from_json(Bytes::from(json), "", ResourceVersion::decimal(version)).unwrap())
}

fn pods() -> Vec<Arc<Object>> {
    let namespaces = ["shop", "bank", "stock", "kube-system", "x"];
    let pods = (0..40).map(|n: usize| pod(namespaces[n % 5], &format!("web-{n}"), &format!("node-{}", n * n % 7), 1));
    pods.collect()
}

fn key_of(object: &pb::Object) -> String {
    format!("{}/{}", object.namespace, object.name)
}

async fn client(server: &Sandbox) -> Client {
    Client::connect(&server.address().parse().unwrap()).await.unwrap()
}

/// Checks that each object is in one part, and in the one with its hash.
fn check(key: &str, parts: &[Vec<String>], objects: &[Arc<Object>]) {
    for object in objects {
        let found: Vec<_> = (0..3).filter(|of| parts[*of as usize].contains(&object.key().to_string())).collect();
        let wanted: Vec<_> = (0..3).filter(|of| part(key, *of).matches(object)).collect();
        assert_eq!(found, wanted, "{} by {key}", object.key());
        assert_eq!(found.len(), 1, "{} by {key}", object.key());
    }
    assert_eq!(parts.iter().map(Vec::len).sum::<usize>(), objects.len(), "{key}");
}

/// Kubernetes' `TestShardedList` and `TestShardedListByNamespace`, by every key and RPC.
#[tokio::test]
async fn the_parts_of_a_list_are_the_whole() {
    let server = Sandbox::start(pods()).await;
    let client = client(&server).await;
    let all = client.list(&Query::of("pods")).await.unwrap().objects;
    assert_eq!(all.len(), 40);
    for key in KEYS {
        let (mut listed, mut watched) = (Vec::new(), Vec::new());
        let (mut by_index, mut alike) = (0, 0);
        for of in 0..3 {
            let query = query(part(key, of));
            let found = client.list(&query).await.unwrap().objects;
            let request = pb::WatchRequest { shard: Some((&part(key, of)).into()), ..watch_pods() };
            let mut stream = client.open(request).await.unwrap();
            let mut initial = Vec::new();
            while let Some(object) = next(&mut stream).await.object {
                initial.push(key_of(&object));
            }
            let options = UntilOptions { timeout: Some(DEADLINE), ..UntilOptions::default() };
            let is_all = |event: &UntilEvent| event.object.is_none() && event.count == found.len() as u64;
            client.until(&query, [is_all], &options).await.unwrap();
            by_index += client.by_index(&query, "node", "node-1").await.unwrap().objects.len();
            alike += client.by_index_like(&query, "node", "bank", "web-1").await.unwrap().objects.len();
            listed.push(found.iter().map(key_of).collect::<Vec<_>>());
            watched.push(initial);
        }
        check(key, &listed, &pods());
        assert_eq!(watched, listed, "{key}");
        let on_node =
            all.iter().filter(|object| matches!(&object.body, Some(body) if format!("{body:?}").contains("node-1")));
        assert_eq!((by_index, alike), (on_node.count(), by_index), "{key}");
    }
}

/// Kubernetes' `TestShardedWatch`: of each object one watch has the creation, the change and the deletion.
#[tokio::test]
async fn each_event_is_in_the_watch_of_its_part() {
    let server = Sandbox::start(Vec::new()).await;
    let mut streams = Vec::new();
    for of in 0..3 {
        let shard = Some((&part("uid", of)).into());
        streams
            .push(server.client().await.watch(pb::WatchRequest { shard, ..watch_pods() }).await.unwrap().into_inner());
    }
    let mut version = 1;
    let mut expected: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for change in ["ADDED", "MODIFIED", "DELETED"] {
        for object in pods() {
            version += 1;
            let object = Arc::new(object.at_version(ResourceVersion::decimal(version)));
            let of = (0..3).find(|of| part("uid", *of).matches(&object)).unwrap();
            expected.entry(of).or_default().push(format!("{change} {} @{version}", object.key().name()));
            let event = if change == "DELETED" { Event::Deleted(object) } else { Event::Modified(object) };
            server.push(event).await;
        }
    }
    for (of, expected) in expected {
        assert!(expected.len() > 12, "the parts are of about the same size");
        let found = events(&mut streams[of as usize], expected.len()).await;
        assert_eq!(found, expected, "part {of}");
    }
}

/// Returns so many events in words.
async fn events(stream: &mut Streaming<pb::WatchResponse>, count: usize) -> Vec<String> {
    let mut found = Vec::new();
    while found.len() < count {
        let message = next(stream).await;
        found.extend(message.bookmark.is_none().then(|| words(&message)));
    }
    found
}

/// Borders of the ranges of a fleet, and changes of objects: a node, or none for a deletion.
type Division = (Vec<u64>, Vec<(usize, Option<usize>)>);

/// Divides a fleet anew again and again. At every version Lists of all shards are the whole, and so are the watches of each division
/// at its last one; a key of the whole is in one of them.
async fn divide_anew(key: &'static str, divisions: Vec<Division>) {
    let server = Sandbox::start(Vec::new()).await;
    let client = client(&server).await;
    let (mut state, mut version) = (BTreeMap::<String, Bytes>::new(), 1);
    for (borders, changes) in divisions {
        let mut borders: Vec<u64> = borders.into_iter().chain([0]).collect();
        borders.sort_unstable();
        borders.dedup();
        let ends = borders[1..].iter().chain([&0]);
        let shards = borders.iter().zip(ends).map(|(start, end)| {
            let key = ShardKey::parse(key).unwrap();
            Shard::new(key, &[(*start, *end)]).unwrap()
        });
        let shards: Vec<Shard> = shards.collect();
        let mut watches = Vec::new();
        for shard in &shards {
            let bookmark_interval = Some(prost_types::Duration { seconds: 0, nanos: 100_000_000 });
            let request = pb::WatchRequest { shard: Some(shard.into()), bookmark_interval, ..watch_pods() };
            watches.push((client.open(request).await.unwrap(), BTreeMap::new()));
        }
        for (number, node) in changes {
            let name = format!("web-{number}");
            version += 1;
            let namespace = ["shop", "bank", "stock"][number % 3];
            let object = pod(namespace, &name, &format!("node-{}", node.unwrap_or_default()), version);
            let event = if node.is_some() {
                state.insert(name, Bytes::copy_from_slice(object.body()));
                Event::Modified(object)
            } else {
                state.remove(&name);
                Event::Deleted(object)
            };
            server.push(event).await;
            server.reached(&ResourceVersion::decimal(version)).await;
            let mut listed = BTreeMap::new();
            for shard in &shards {
                let query = Query { format: pb::PayloadFormat::Raw, ..query(shard.clone()) };
                for object in client.list(&query).await.unwrap().objects {
                    assert_eq!(
                        listed.insert(object.name.clone(), raw(&object)),
                        None,
                        "{} is in two shards",
                        object.name
                    );
                }
            }
            assert_eq!(listed, state, "at {version}");
        }
        let mut followed = BTreeMap::new();
        for (stream, view) in &mut watches {
            loop {
                let message = next(stream).await;
                fold(view, &message);
                if message.bookmark.is_some() && message.resource_version == version.to_string() {
                    break;
                }
            }
            for (name, body) in std::mem::take(view) {
                assert_eq!(followed.insert(name, body), None, "an object is in two shards");
            }
        }
        assert_eq!(followed, state, "at {version}");
    }
}

#[test]
fn a_fleet_has_every_object_once_at_every_version_however_it_is_divided_anew() {
    let change = (0..12_usize, proptest::option::weighted(0.8, 0..5_usize));
    let division = (vec(any::<u64>(), 0..6), vec(change, 1..8));
    let fleet = (select(&KEYS[..]), vec(division, 2..5));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let divided = runner(8, 1).run(&fleet, |(key, divisions)| {
        runtime.block_on(divide_anew(key, divisions));
        Ok::<_, TestCaseError>(())
    });
    divided.unwrap();
}

/// A relay of a part has the same events, and parts of a relay are those of its upstream.
#[tokio::test]
async fn an_object_enters_and_leaves_with_its_value() {
    let node = |part: &Shard, name: &str| part.matches(&pod("", "x", name, 1));
    let shard = part("spec.nodeName", 0);
    let (inside, outside): (Vec<_>, Vec<_>) =
        ["shop", "n1", "abc", "test"].into_iter().partition(|name| node(&shard, name));
    let origin = Sandbox::start(vec![pod("shop", "a", inside[0], 1), pod("shop", "b", outside[0], 1)]).await;
    let query = query(shard.clone());
    let near = Options { relay: Some(RelayConfig { query, ..relay_of(origin.address()) }), ..Options::default() };
    let near = Sandbox::start_unsynced(near).await;
    let far = Sandbox::relay(near.address()).await;
    let by_shard = pb::WatchRequest { shard: Some((&shard).into()), ..watch_pods() };
    let mut streams = Vec::new();
    for (server, request) in [(&origin, &by_shard), (&near, &watch_pods()), (&far, &watch_pods()), (&far, &by_shard)] {
        let mut stream = server.client().await.watch(request.clone()).await.unwrap().into_inner();
        assert_eq!(events(&mut stream, 1).await, ["ADDED INITIAL a"]);
        streams.push(stream);
    }
    for (name, node, version) in [
        ("b", inside[0], 2),
        ("a", outside[1], 3),
        ("a", outside[0], 4),
        ("b", inside[1], 5),
        ("b", outside[0], 6),
        ("a", inside[1], 7),
    ] {
        origin.push(Event::Modified(pod("shop", name, node, version))).await;
    }
    let relayed = ["ADDED b @2", "DELETED a @3", "MODIFIED b @5", "DELETED b @6", "ADDED a @7"];
    let expected = [
        "ADDED ENTERED_SELECTION b @2",
        "DELETED LEFT_SELECTION a @3",
        "MODIFIED b @5",
        "DELETED LEFT_SELECTION b @6",
        "ADDED ENTERED_SELECTION a @7",
    ];
    for (at, stream) in streams.iter_mut().enumerate() {
        let expected = if at == 0 { expected } else { relayed };
        assert_eq!(events(stream, 5).await, expected, "stream {at}");
    }
    let again = pb::WatchRequest { resource_version: "1".to_owned(), ..by_shard };
    let mut again = origin.client().await.watch(again).await.unwrap().into_inner();
    assert_eq!(events(&mut again, 5).await, expected, "from the history");
}

#[tokio::test]
async fn a_page_token_belongs_to_its_part() {
    let server = Sandbox::start(pods()).await;
    let mut client = server.client().await;
    let list = |of, page_token: &str| pb::ListRequest {
        resource: "pods".to_owned(),
        shard: Some((&part("uid", of)).into()),
        page_size: 3,
        page_token: page_token.to_owned(),
        ..Default::default()
    };
    let (mut token, mut found) = (String::new(), Vec::new());
    loop {
        let mut chunks = client.list(list(1, &token)).await.unwrap().into_inner();
        token.clear();
        while let Some(chunk) = chunks.message().await.unwrap() {
            assert!(chunk.objects.len() <= 3);
            found.extend(chunk.objects.iter().map(key_of));
            token = chunk.next_page_token;
        }
        if token.is_empty() {
            break;
        }
        assert_eq!(reason(&client.list(list(2, &token)).await.unwrap_err()), "PAGE_TOKEN_INVALID");
    }
    let expected = pods().iter().filter(|pod| part("uid", 1).matches(pod)).count();
    assert_eq!(found.len(), expected);
}

/// Server without capabilities, which ignores what it does not know.
struct OlderServer;

#[tonic::async_trait]
impl InformerService for OlderServer {
    async fn list_resources(
        &self,
        _: Request<pb::ListResourcesRequest>,
    ) -> Result<Response<pb::ListResourcesResponse>, Status> {
        Ok(Response::new(pb::ListResourcesResponse::default()))
    }
}

#[tokio::test]
async fn a_server_that_would_ignore_the_shard_is_an_error() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let older = tonic::transport::Server::builder().add_service(InformerServiceServer::new(OlderServer));
    let serving = tokio::spawn(older.serve_with_incoming(TcpListenerStream::new(listener)));
    let client = Client::connect(&format!("http://{address}").parse().unwrap()).await.unwrap();
    let query = query(part("uid", 0));
    let followed = client.watch(&query, &WatchOptions::default()).next().await.unwrap().map(drop);
    for answer in [
        followed,
        client.list(&query).await.map(drop),
        client.by_index(&query, "node", "a").await.map(drop),
        client.by_index_like(&query, "node", "a", "b").await.map(drop),
        client.until(&query, [|_: &UntilEvent| true], &UntilOptions::default()).await.map(drop),
    ] {
        let error = answer.unwrap_err();
        assert_eq!(
            (error.code(), error.reason(), error.is_retryable()),
            (Code::Unimplemented, Some("NOT_IMPLEMENTED"), false)
        );
        assert!(error.to_string().contains(&format!("informerd at {address} has no shards")), "{error}");
    }
    let error = client.list(&Query::of("pods")).await.unwrap_err();
    assert!(!error.to_string().contains("shards"), "a request without one asks for nothing: {error}");
    serving.abort();
}

#[test]
fn the_commands_select_a_part() {
    let server = Server::shop();
    let names = |arguments: &[&str]| {
        let (code, out, err) = server.run(&[arguments, &["-o", "name"]].concat());
        assert_eq!((code, err.as_str()), (0, ""), "{arguments:?}");
        out.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    for command in [&["list", "pods"][..], &["by-index", "pods", "node", "node-a"]] {
        let mut whole = names(command);
        let halves = ["shardRange(object.metadata.uid, '0x0', '0x8000000000000000')", "1/2"];
        let halves: Vec<_> = halves.iter().map(|half| names(&[command, &["--shard", half]].concat())).collect();
        let mut together = halves.concat();
        whole.sort();
        together.sort();
        assert_eq!(together, whole, "{command:?}");
        let by_namespace = names(&[command, &["--shard-selector", "namespace:0/1"]].concat());
        assert_eq!(by_namespace.len(), whole.len());
    }
    for command in ["list", "watch", "record", "until", "mirror"] {
        let more: &[&str] = match command {
            "mirror" => &["/nowhere"],
            "until" => &["--for", "true"],
            _ => &[],
        };
        let (code, _, err) = server.run(&[&[command, "pods"], more, &["--shard", "8/8"]].concat());
        assert_eq!(code, 2, "{command}: {err}");
        assert!(err.contains("the first of 8 is 0/8, and the last 7/8"), "{command}: {err}");
    }
}
