//! Compression: the same messages, smaller, made once for all clients that accept it, and only for those.

use std::{
    collections::BTreeMap,
    iter,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use bytes::Bytes;
use http_body_util::BodyExt;
use informerd::{
    model::Object,
    proto::{Compression, pb},
};
use prost::Message;
use tonic::{Streaming, body::Body, codec::CompressionEncoding, transport::Channel};
use tower::ServiceExt;

use crate::{
    operators::until,
    sandbox::{Options, Sandbox, fold, next, pod, queue, watch_from_now, watch_pods},
};

type Client = pb::informer_service_client::InformerServiceClient<Channel>;

const OBJECTS: usize = 300;

/// Returns the inside of a spec like that of a pod.
fn spec(number: usize) -> String {
    let containers: Vec<String> = (0..4).map(|container| format!(r#"{{"name":"c{container}","image":"registry.example/{number}:{container}","resources":{{"limits":{{"cpu":"{container}","memory":"{number}Mi"}}}},"terminationMessagePath":"/dev/termination-log","imagePullPolicy":"IfNotPresent"}}"#)).collect();
    format!(r#""nodeName":"node-{number}","containers":[{}]"#, containers.join(","))
}

fn pods() -> Vec<Arc<Object>> {
    (0..OBJECTS).map(|number| pod("shop", &format!("pod-{number:03}"), &spec(number))).collect()
}

fn list_pods() -> pb::ListRequest {
    pb::ListRequest { resource: "pods".to_owned(), format: pb::PayloadFormat::Raw.into(), ..Default::default() }
}

fn encoding(compression: Compression) -> CompressionEncoding {
    if compression == Compression::Gzip { CompressionEncoding::Gzip } else { CompressionEncoding::Zstd }
}

/// Returns clients that accept each compression, and one that accepts none.
async fn clients(sandbox: &Sandbox) -> Vec<Client> {
    let mut clients = vec![sandbox.client().await];
    for compression in Compression::ALL {
        clients.push(sandbox.client().await.accept_compressed(encoding(*compression)));
    }
    clients
}

async fn objects(client: &mut Client, request: pb::ListRequest) -> Vec<pb::Object> {
    let mut stream = client.list(request).await.unwrap().into_inner();
    let mut objects = Vec::new();
    while let Some(chunk) = stream.message().await.unwrap() {
        assert_eq!(&*chunk.resource_version, "1");
        assert!(!chunk.history.is_empty());
        objects.extend(chunk.objects);
    }
    objects
}

async fn take(stream: &mut Streaming<pb::WatchResponse>, count: usize) -> Vec<pb::WatchResponse> {
    let mut events = Vec::new();
    while events.len() < count {
        let event = next(stream).await;
        // Each has its own time.
        events.extend(Some(event).filter(|event| event.bookmark.is_none()));
    }
    events
}

/// Sends a request, and returns the value of `grpc-encoding` and the messages: each with its flag.
async fn raw(
    sandbox: &Sandbox,
    method: &str,
    request: &impl Message,
    accept: Option<&str>,
    messages: usize,
) -> (Option<String>, Vec<(u8, Bytes)>) {
    let body = [&[0; 1][..], &(request.encoded_len() as u32).to_be_bytes(), &request.encode_to_vec()].concat();
    let builder = http::Request::post(format!("http://localhost/informerd.v1.InformerService/{method}"));
    let builder = builder.header("content-type", "application/grpc");
    let builder = accept.into_iter().fold(builder, |builder, accept| builder.header("grpc-accept-encoding", accept));
    let body = Body::new(http_body_util::Full::new(Bytes::from(body)));
    let response = sandbox.service().oneshot(builder.body(body).unwrap()).await.unwrap();
    let encoding = response.headers().get("grpc-encoding").map(|name| name.to_str().unwrap().to_owned());
    let (mut body, mut bytes, mut found) = (response.into_body(), Vec::new(), Vec::new());
    while found.len() < messages
        && let Some(frame) = body.frame().await
    {
        bytes.extend_from_slice(frame.unwrap().data_ref().map_or(&[], |data| &data[..]));
        found = split(&bytes);
    }
    (encoding, found)
}

fn split(mut bytes: &[u8]) -> Vec<(u8, Bytes)> {
    let message = || {
        let (flag, length) = (*bytes.first()?, u32::from_be_bytes(*bytes.get(1..)?.first_chunk()?) as usize);
        let message = Bytes::copy_from_slice(bytes.get(5..5 + length)?);
        bytes = &bytes[5 + length..];
        Some((flag, message))
    };
    iter::from_fn(message).collect()
}

#[tokio::test]
async fn a_client_receives_the_same_in_each_compression() {
    let mut sandbox = Sandbox::start(pods()).await;
    let mut lists = Vec::new();
    let mut watches = Vec::new();
    for client in &mut clients(&sandbox).await {
        lists.push(objects(client, list_pods()).await);
        let by_index = pb::ByIndexRequest {
            resource: "pods".to_owned(),
            index: "app".to_owned(),
            value: "pod-007".to_owned(),
            ..Default::default()
        };
        let found = client.by_index(by_index).await.unwrap().into_inner().message().await.unwrap().unwrap();
        assert_eq!(found.objects.len(), 1);
        let get = pb::GetRequest { namespace: "shop".to_owned(), name: "pod-007".to_owned(), ..get_pods() };
        let got = client.get(get).await.unwrap().into_inner().object.unwrap();
        assert_eq!(got, lists[0][7]);
        let mut watch = client.watch(watch_pods()).await.unwrap().into_inner();
        let initial = take(&mut watch, OBJECTS).await;
        assert!(initial.iter().map(|event| event.object.as_ref().unwrap()).eq(&lists[0]));
        assert!(next(&mut watch).await.bookmark.unwrap().initial_events_end);
        watches.push(watch);
    }
    assert_eq!(lists[0].len(), OBJECTS);
    assert!(lists.iter().all(|list| *list == lists[0]));

    for number in 0..20 {
        let pod = sandbox.put("shop", &format!("new-{number}"), &spec(number)).await;
        sandbox.put("shop", &format!("pod-{number:03}"), &spec(number + 1)).await;
        sandbox.delete(&pod).await;
    }
    let mut live = Vec::new();
    for watch in &mut watches {
        live.push(take(watch, 60).await);
    }
    assert!(live.iter().all(|events| *events == live[0]));
    for client in &mut clients(&sandbox).await {
        let from = live[0][9].resource_version.clone();
        let resumed = pb::WatchRequest { resource_version: from, ..watch_pods() };
        let mut watch = client.watch(resumed).await.unwrap().into_inner();
        assert_eq!(take(&mut watch, 50).await, live[0][10..]);
    }
}

fn get_pods() -> pb::GetRequest {
    pb::GetRequest { resource: "pods".to_owned(), format: pb::PayloadFormat::Raw.into(), ..Default::default() }
}

#[tokio::test]
async fn only_a_client_that_accepts_a_compression_gets_it() {
    let sandbox = Sandbox::start(pods()).await;
    let (none, plain) = raw(&sandbox, "List", &list_pods(), None, usize::MAX).await;
    assert!(none.is_none() && plain.iter().all(|(flag, _)| *flag == 0));
    for accept in ["identity", "identity,deflate", "br, snappy", ""] {
        let (none, found) = raw(&sandbox, "List", &list_pods(), Some(accept), usize::MAX).await;
        assert!(none.is_none() && found == plain, "{accept:?}");
    }
    let size = |messages: &[(u8, Bytes)]| messages.iter().map(|(_, message)| message.len()).sum::<usize>();
    for compression in Compression::ALL {
        let accept = format!("identity,{}", compression.name());
        let (encoding, list) = raw(&sandbox, "List", &list_pods(), Some(&accept), usize::MAX).await;
        assert_eq!(encoding.as_deref(), Some(compression.name()));
        assert!(list.iter().all(|(flag, _)| *flag == 1) && size(&list) * 8 < size(&plain), "{}", size(&list));
        let (_, again) = raw(&sandbox, "List", &list_pods(), Some(&accept), usize::MAX).await;
        assert_eq!(list.len(), again.len());

        let (encoding, initial) = raw(&sandbox, "Watch", &watch_pods(), Some(&accept), OBJECTS + 1).await;
        assert_eq!(encoding.as_deref(), Some(compression.name()));
        let flags: Vec<u8> = initial.iter().map(|(flag, _)| *flag).collect();
        assert_eq!(flags, [vec![1; OBJECTS], vec![0]].concat(), "a bookmark is small");
        let get = pb::GetRequest { namespace: "shop".to_owned(), name: "pod-007".to_owned(), ..get_pods() };
        let (none, found) = raw(&sandbox, "Get", &get, Some(&accept), 1).await;
        assert!(none.is_none() && found[0].0 == 0, "it is for one client");
    }

    let off = Sandbox::start_with(Options { compression: Vec::new(), ..Options::default() }, pods()).await;
    let (none, found) = raw(&off, "List", &list_pods(), Some("zstd,gzip"), usize::MAX).await;
    assert!(none.is_none() && found.iter().all(|(flag, _)| *flag == 0), "the default of the server");
}

#[tokio::test]
async fn the_events_of_a_group_are_compressed_once() {
    let mut sandbox = Sandbox::start(Vec::new()).await;
    let mut watches = Vec::new();
    for client in clients(&sandbox).await.iter().cycle().take(9) {
        let mut client = client.clone();
        let mut watch = client.watch(watch_from_now()).await.unwrap().into_inner();
        next(&mut watch).await;
        watches.push(watch);
    }
    for number in 0..50 {
        sandbox.put("shop", "a", &spec(number)).await;
    }
    for watch in &mut watches {
        assert_eq!(take(watch, 50).await.len(), 50);
    }
    let encoded = sandbox.informer.watch_stats().unwrap().encoded.load(Ordering::Relaxed);
    assert_eq!(encoded, 50 * (1 + Compression::ALL.len() as u64), "for 9 watches in each of these forms");
}

/// Merged events are of one client.
#[tokio::test]
async fn merged_events_are_the_same_in_each_compression() {
    let mut sandbox = Sandbox::start(Vec::new()).await;
    let request = pb::WatchRequest { queue: Some(queue(pb::FullChannelPolicy::Coalesce, 1)), ..watch_from_now() };
    let mut watches = Vec::new();
    for client in &mut clients(&sandbox).await {
        let mut watch = client.watch(request.clone()).await.unwrap().into_inner();
        next(&mut watch).await;
        watches.push(watch);
    }
    let mut last = None;
    for number in 0..200 {
        last = Some(sandbox.put("shop", &format!("pod-{}", number % 20), &spec(number)).await);
    }
    let version = last.unwrap().version().to_string();
    for watch in &mut watches {
        let mut state = BTreeMap::new();
        loop {
            let event = next(watch).await;
            fold(&mut state, &event);
            if event.resource_version == version {
                break;
            }
        }
        assert_eq!(state.len(), 20);
        assert!((180..200).all(|number| {
            let body = &state[&format!("pod-{}", number % 20)];
            String::from_utf8_lossy(body).contains(&format!("node-{number}\""))
        }));
    }
}

/// A client that accepts a compression and reads nothing holds no more than one of its messages.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compressed_bytes_are_held_within_the_same_bounds() {
    const COUNT: usize = 60;
    let noise = || (0..30_000).map(|_| fastrand::alphanumeric()).collect::<String>();
    let pods = (0..COUNT).map(|number| pod("shop", &format!("pod-{number}"), &format!(r#""noise":"{}""#, noise())));
    let options = Options { memory: 8 << 20, progress_timeout: Duration::from_secs(3600), ..Options::default() };
    let sandbox = Sandbox::start_with(options, pods.collect()).await;
    for compression in Compression::ALL {
        let mut slow = Vec::new();
        for _ in 0..8 {
            let mut client = sandbox.slow_client().await.accept_compressed(encoding(*compression));
            slow.push(client.list(list_pods()).await.unwrap().into_inner());
        }
        // The cache has an eighth of the limit, and each list a message that waits for its client.
        until(&sandbox, |_| sandbox.ledger.waiting().kept > 32 << 10).await;
        assert!(sandbox.ledger.waiting().kept <= 1 << 20, "{:?}", sandbox.ledger.waiting());
        let waiting = sandbox.ledger.waiting();
        assert!(waiting.encoded_bytes + waiting.sending <= 8 * (256 << 10), "{waiting:?}");
        for list in &mut slow {
            let mut count = 0;
            while let Some(message) = list.message().await.unwrap() {
                count += message.objects.len();
            }
            assert_eq!(count, COUNT);
        }
    }
    assert_eq!(sandbox.ledger.ended(), 0);
}

/// Splits batches into their objects; anything else must be a single event or the bookmark at the end.
fn initial_objects(messages: &[pb::WatchResponse]) -> Vec<pb::Object> {
    let (last, initial) = messages.split_last().unwrap();
    assert!(last.bookmark.as_ref().unwrap().initial_events_end && last.resource_version == "1");
    let mut objects = Vec::new();
    for message in initial {
        let (kind, cause) = (pb::EventType::Added, pb::Cause::Initial);
        let pb::WatchResponse { batch, object, .. } = message.clone();
        let expected = pb::WatchResponse { r#type: kind.into(), cause: cause.into(), ..Default::default() };
        assert_eq!(pb::WatchResponse { batch: Vec::new(), object: None, ..message.clone() }, expected);
        assert!(batch.is_empty() != object.is_none(), "a batch or an object");
        objects.extend(batch.into_iter().chain(object));
    }
    objects
}

/// Reads initial events up to the bookmark at their end.
async fn initial(watch: &mut Streaming<pb::WatchResponse>) -> Vec<pb::WatchResponse> {
    let mut messages = Vec::new();
    while messages.last().is_none_or(|last: &pb::WatchResponse| last.bookmark.is_none()) {
        messages.push(next(watch).await);
    }
    messages
}

/// A large object comes alone. The others come some tens in a message, the same and in the same order, in each format.
#[tokio::test]
async fn initial_events_come_in_batches() {
    let mut objects = pods();
    objects.insert(OBJECTS / 2, pod("shop", "pod-149-large", &format!(r#""x":"{}""#, "x".repeat(200_000))));
    let sandbox = Sandbox::start(objects).await;
    let paths = pb::View { fields: vec!["spec.nodeName".to_owned()], ..Default::default() };
    let formats = [
        (pb::PayloadFormat::Raw, None),
        (pb::PayloadFormat::Struct, None),
        (pb::PayloadFormat::Metadata, None),
        (pb::PayloadFormat::Raw, Some(paths)),
    ];
    for mut client in clients(&sandbox).await {
        for (format, view) in formats.clone() {
            let single = pb::WatchRequest { format: format.into(), view, ..watch_pods() };
            let batched = pb::WatchRequest { batch_initial_events: true, ..single.clone() };
            let [single, batched, again] = [single, batched.clone(), batched].map(|request| {
                let mut client = client.clone();
                async move { initial(&mut client.watch(request).await.unwrap().into_inner()).await }
            });
            let (single, batched, again) = (single.await, batched.await, again.await);
            assert!(single.iter().all(|message| message.batch.is_empty()) && single.len() == OBJECTS + 2);
            assert!((2..=40).contains(&batched.len()), "{format:?}: {} messages", batched.len());
            assert_eq!(initial_objects(&batched), initial_objects(&single), "{format:?}");
            assert_eq!(initial_objects(&again), initial_objects(&single), "{format:?}");
        }
        let none = pb::WatchRequest { name: "none".to_owned(), batch_initial_events: true, ..watch_pods() };
        assert_eq!(initial(&mut client.watch(none).await.unwrap().into_inner()).await.len(), 1, "the bookmark");
    }
    let (requests, sent) = tokio::sync::mpsc::channel(1);
    let sent = tokio_stream::wrappers::ReceiverStream::new(sent);
    let mut stream = sandbox.client().await.subscribe(sent).await.unwrap().into_inner();
    let watch = Some(pb::WatchRequest { batch_initial_events: true, ..watch_pods() });
    let open = vec![pb::OpenWatch { id: 1, watch }];
    requests.send(pb::SubscribeRequest { open, ..Default::default() }).await.unwrap();
    let mut messages: Vec<pb::WatchResponse> = Vec::new();
    while messages.last().is_none_or(|last| last.bookmark.is_none()) {
        let deliveries = stream.message().await.unwrap().unwrap().deliveries;
        messages.extend(deliveries.into_iter().flat_map(|delivery| delivery.responses));
    }
    assert_eq!(initial_objects(&messages).len(), OBJECTS + 1);
    assert!(messages.len() < 50, "{} messages", messages.len());
}

/// A message of initial events has the same bytes for every client, whatever the room of each.
#[tokio::test]
async fn batches_are_the_same_for_every_client() {
    let sandbox = Sandbox::start(pods()).await;
    for compression in Compression::ALL {
        let mut received = Vec::new();
        for _ in 0..2 {
            let mut small = sandbox.slow_client().await.accept_compressed(encoding(*compression));
            let request = pb::WatchRequest { batch_initial_events: true, ..watch_pods() };
            received.push(initial(&mut small.watch(request).await.unwrap().into_inner()).await);
        }
        let accept = compression.name();
        let request = pb::WatchRequest { batch_initial_events: true, ..watch_pods() };
        let count = received[0].len();
        assert!(count < 20, "{count} messages");
        let (_, first) = raw(&sandbox, "Watch", &request, Some(accept), count).await;
        let (_, second) = raw(&sandbox, "Watch", &request, Some(accept), count).await;
        assert_eq!(first[..count - 1], second[..count - 1]);
        assert!(first[..count - 1].iter().all(|(flag, _)| *flag == 1));
        assert_eq!(initial_objects(&received[0]), initial_objects(&received[1]));
    }
}
