//! Subscribe: many watches on one stream, each as a Watch call would be.

mod ids;
mod pieces;

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    sync::atomic::Ordering,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use informerd::{
    auth::{Authorizer, Identity, IdentityDetails, Rules},
    cache::Delta,
    grpc::AccessConfig,
    model::Event,
    proto::pb::{
        self, FullChannelPolicy as Policy, admin_service_client::AdminServiceClient,
        informer_service_client::InformerServiceClient,
    },
    watch::BroadcasterConfig,
};
use serde_json::json;
use tokio::{sync::mpsc, time::Instant};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Request, Status, Streaming, transport::Channel};

use crate::{
    refused_watch::watch_refusal,
    relay::until,
    sandbox::{DEADLINE, Options, Sandbox, fold, next, pod, pod_at, queue, reason, watch_from_now, watch_pods, words},
};

/// Less than the interval of bookmarks, of which each would show a paused watch its end.
const SOON: Duration = Duration::from_secs(10);

/// Stream of a client: its requests, and what it has received for each id.
struct Subscription {
    requests: Option<mpsc::Sender<pb::SubscribeRequest>>,
    responses: Streaming<pb::SubscribeResponse>,
    received: BTreeMap<u32, VecDeque<pb::WatchResponse>>,
    ended: BTreeSet<u32>,
    /// Ids of each delivery that had several.
    shared: Vec<Vec<u32>>,
}

impl Subscription {
    async fn open(sandbox: &Sandbox) -> Self {
        Self::of(&mut sandbox.client().await).await
    }

    async fn of(client: &mut InformerServiceClient<Channel>) -> Self {
        let (requests, sent) = mpsc::channel(100);
        let responses = client.subscribe(ReceiverStream::new(sent)).await.unwrap().into_inner();
        Self::new(requests, responses)
    }

    /// Opens a stream of a user whose credentials may expire.
    async fn as_user(sandbox: &Sandbox, expires: Option<SystemTime>) -> Result<Self, Status> {
        let (requests, sent) = mpsc::channel(100);
        let mut request = Request::new(ReceiverStream::new(sent));
        let details = IdentityDetails { user: "ann".to_owned(), expires, ..IdentityDetails::default() };
        request.extensions_mut().insert(Identity::new(details));
        Ok(Self::new(requests, sandbox.in_process().subscribe(request).await?.into_inner()))
    }

    fn new(requests: mpsc::Sender<pb::SubscribeRequest>, responses: Streaming<pb::SubscribeResponse>) -> Self {
        let (received, ended) = (BTreeMap::new(), BTreeSet::new());
        Self { requests: Some(requests), responses, received, ended, shared: Vec::new() }
    }

    async fn send(&self, request: pb::SubscribeRequest) {
        self.requests.as_ref().unwrap().send(request).await.unwrap();
    }

    async fn watch(&mut self, id: u32, watch: pb::WatchRequest) {
        self.watches([(id, watch)]).await;
    }

    /// Opens watches in one request.
    async fn watches(&mut self, watches: impl IntoIterator<Item = (u32, pb::WatchRequest)>) {
        let open = watches.into_iter().map(|(id, watch)| pb::OpenWatch { id, watch: Some(watch) }).collect::<Vec<_>>();
        for open in &open {
            self.ended.remove(&open.id);
        }
        self.send(pb::SubscribeRequest { open, ..Default::default() }).await;
    }

    async fn close(&self, id: u32) {
        self.send(pb::SubscribeRequest { close: vec![id], ..Default::default() }).await;
    }

    /// Reads one response; its status, if the stream has ended.
    async fn read(&mut self) -> Result<(), Status> {
        let read = tokio::time::timeout(DEADLINE, self.responses.message()).await.expect("a response in time");
        for delivery in read?.ok_or_else(|| Status::ok(""))?.deliveries {
            let pb::Delivery { watch_ids, responses, ended } = delivery;
            for id in &watch_ids {
                assert!(!self.ended.contains(id), "nothing after its end: {id}, {responses:?}");
                self.received.entry(*id).or_default().extend(responses.iter().cloned());
                if ended {
                    self.ended.insert(*id);
                }
            }
            if watch_ids.len() > 1 {
                self.shared.push(watch_ids);
            }
        }
        Ok(())
    }

    /// Returns the next message of a watch.
    async fn next(&mut self, id: u32) -> pb::WatchResponse {
        let began = Instant::now();
        loop {
            if let Some(message) = self.received.get_mut(&id).and_then(VecDeque::pop_front) {
                return message;
            }
            assert!(!self.ended.contains(&id), "watch {id} has ended");
            // Messages of others do not count.
            assert!(began.elapsed() < DEADLINE, "no message for watch {id} in time");
            self.read().await.unwrap();
        }
    }

    /// Returns the last message of a watch, which must end now.
    async fn end(&mut self, id: u32) -> Option<pb::WatchResponse> {
        let began = Instant::now();
        while !self.ended.contains(&id) {
            // Bookmarks do not count.
            assert!(began.elapsed() < DEADLINE, "watch {id} ends in time");
            self.read().await.unwrap();
        }
        self.received.remove(&id).unwrap_or_default().pop_back()
    }

    /// Returns the status of the stream, which must end now.
    async fn status(&mut self) -> Status {
        loop {
            if let Err(status) = self.read().await {
                return status;
            }
        }
    }

    /// Reads until a watch has a version or more, and folds what it receives.
    async fn fold_to(&mut self, id: u32, version: u128, view: &mut BTreeMap<String, Bytes>) {
        loop {
            let message = self.next(id).await;
            fold(view, &message);
            if message.resource_version.parse().is_ok_and(|reached: u128| reached >= version) {
                return;
            }
        }
    }
}

fn of(namespace: &str) -> pb::WatchRequest {
    pb::WatchRequest { namespace: namespace.to_owned(), ..watch_pods() }
}

fn refusal(message: &pb::WatchResponse) -> (Code, String) {
    let status = message.error.clone().unwrap();
    let bytes = prost::Message::encode_to_vec(&status);
    (Code::from(status.code), reason(&Status::with_details(Code::Unknown, "", bytes.into())))
}

#[tokio::test]
async fn each_watch_of_a_stream_has_its_own_selection_version_and_end() {
    let mut sandbox = Sandbox::start(vec![pod("a", "x", ""), pod("b", "y", "")]).await;
    let mut stream = Subscription::open(&sandbox).await;
    stream.watches([(1, of("a")), (4_000_000_000, of("b")), (3, watch_from_now())]).await;
    for (id, name) in [(1, "x"), (4_000_000_000, "y")] {
        assert_eq!(words(&stream.next(id).await), format!("ADDED INITIAL {name}"));
        assert!(stream.next(id).await.bookmark.unwrap().initial_events_end);
    }
    assert_eq!(words(&stream.next(3).await), "BOOKMARK @1");
    sandbox.put("b", "z", "").await;
    assert_eq!(words(&stream.next(4_000_000_000).await), "ADDED z @2");
    assert_eq!(words(&stream.next(3).await), "ADDED z @2");

    stream.close(1).await;
    assert_eq!(stream.end(1).await, None, "OK, without a message");
    // What is closed may be closed again, and its id may be used again.
    stream.close(1).await;
    let resumed = pb::WatchRequest { resource_version: "1".to_owned(), ..watch_pods() };
    stream.watch(1, resumed).await;
    assert_eq!(words(&stream.next(1).await), "ADDED z @2");

    // After the client has half-closed, the open watches continue.
    stream.requests = None;
    sandbox.put("a", "x", r#""n":1"#).await;
    assert_eq!(words(&stream.next(3).await), "MODIFIED x @3");
    sandbox.lifecycle.draining.cancel();
    let status = stream.status().await;
    assert_eq!((status.code(), reason(&status).as_str()), (Code::Unavailable, "DRAINING"));
    for (id, version) in [(1, "3"), (3, "3"), (4_000_000_000, "3")] {
        let last = stream.end(id).await.unwrap();
        assert_eq!(refusal(&last), (Code::Unavailable, "DRAINING".to_owned()));
        assert_eq!(last.resource_version, version, "to resume from");
    }
}

#[tokio::test]
async fn a_bad_request_ends_its_watch_and_a_bad_id_the_stream() {
    let mut sandbox = Sandbox::start(vec![pod("a", "x", "")]).await;
    let mut stream = Subscription::open(&sandbox).await;
    let unknown = pb::WatchRequest { resource: "nodes".to_owned(), ..watch_pods() };
    let invalid = pb::WatchRequest { label_selector: "a in (".to_owned(), ..watch_pods() };
    let foreign = pb::WatchRequest { resource_version: "abc.1".to_owned(), ..watch_pods() };
    stream.watches([(1, watch_from_now()), (2, unknown), (3, invalid), (4, foreign)]).await;
    for (id, code, why) in [
        (2, Code::NotFound, "RESOURCE_NOT_FOUND"),
        (3, Code::InvalidArgument, "LABEL_SELECTOR_INVALID"),
        (4, Code::OutOfRange, "RESOURCE_VERSION_EXPIRED"),
    ] {
        let last = stream.end(id).await.unwrap();
        assert_eq!(refusal(&last), (code, why.to_owned()));
    }
    // A watch that ends by an error leaves the others open.
    assert_eq!(words(&stream.next(1).await), "BOOKMARK @1");
    let short = pb::WatchRequest { timeout: Some(prost_types::Duration { seconds: 0, nanos: 1 }), ..watch_from_now() };
    stream.watch(2, short).await;
    let last = stream.end(2).await.unwrap();
    assert!(last.bookmark.is_some(), "its timeout, with status OK");
    sandbox.put("a", "y", "").await;
    assert_eq!(words(&stream.next(1).await), "ADDED y @2");

    for bad in [0, 1] {
        let mut stream = Subscription::open(&sandbox).await;
        stream.watch(1, watch_from_now()).await;
        stream.next(1).await;
        stream.watches([(bad, watch_from_now()), (7, watch_from_now())]).await;
        let status = stream.status().await;
        assert_eq!((status.code(), reason(&status).as_str()), (Code::InvalidArgument, "SUBSCRIBE_INVALID"));
        let last = stream.end(1).await.unwrap();
        assert_eq!(refusal(&last), (Code::InvalidArgument, "SUBSCRIBE_INVALID".to_owned()));
        assert_eq!(last.resource_version, "2", "to resume from");
    }
}

#[tokio::test]
async fn what_several_watches_receive_alike_is_sent_once() {
    let interval = Some(prost_types::Duration { seconds: 0, nanos: 200_000_000 });
    let mut sandbox = Sandbox::start(vec![pod("a", "x", "")]).await;
    let mut stream = Subscription::open(&sandbox).await;
    let watch = pb::WatchRequest { bookmark_interval: interval, ..watch_from_now() };
    stream.watches((1..=200).map(|id| (id, watch.clone()))).await;
    for id in 1..=200 {
        stream.next(id).await;
    }
    stream.shared.clear();
    sandbox.put("a", "y", &format!(r#""filler":"{}""#, "x".repeat(2000))).await;
    for id in 1..=200 {
        while stream.next(id).await.object.is_none() {}
    }
    let largest = |stream: &Subscription| stream.shared.iter().map(Vec::len).max().unwrap_or_default();
    assert_eq!(largest(&stream), 200, "{:?}", stream.shared);
    // So are the bookmarks of watches at one version: their timers are due together.
    stream.shared.clear();
    for id in 1..=200 {
        while stream.next(id).await.bookmark.is_none() {}
    }
    assert!(largest(&stream) > 100, "{:?}", stream.shared);
}

/// Returns what operators see of the watches of a stream, by id.
async fn listed(sandbox: &Sandbox) -> BTreeMap<u32, pb::Watcher> {
    let mut admin = AdminServiceClient::connect(sandbox.address().to_owned()).await.unwrap();
    let found = admin.list_watchers(pb::ListWatchersRequest::default()).await.unwrap().into_inner().watchers;
    found.into_iter().filter(|watcher| watcher.watch_id > 0).map(|watcher| (watcher.watch_id, watcher)).collect()
}

/// Returns the load of the only resource.
async fn load(sandbox: &Sandbox) -> pb::ResourceStats {
    let mut admin = AdminServiceClient::connect(sandbox.address().to_owned()).await.unwrap();
    admin.get_stats(pb::GetStatsRequest {}).await.unwrap().into_inner().resources.remove(0)
}

/// Opens watches of one selection under a policy, and reads until those that can be attached are: they have no cursors.
async fn follow(stream: &mut Subscription, sandbox: &mut Sandbox, ids: std::ops::RangeInclusive<u32>, policy: Policy) {
    let interval = Some(prost_types::Duration { seconds: 0, nanos: 100_000_000 });
    let request = pb::WatchRequest { queue: Some(queue(policy, 4)), bookmark_interval: interval, ..watch_from_now() };
    let stats = sandbox.informer.watch_stats().unwrap();
    let cursors = stats.cursors.load(Ordering::Relaxed);
    stream.watches(ids.clone().map(|id| (id, request.clone()))).await;
    for id in ids.clone() {
        stream.next(id).await;
    }
    let began = Instant::now();
    while policy == Policy::Replay && stats.cursors.load(Ordering::Relaxed) > cursors {
        assert!(began.elapsed() < DEADLINE, "they are attached in time");
        stream.read().await.unwrap();
    }
    for id in ids {
        stream.received.remove(&id);
    }
}

#[tokio::test]
async fn the_figures_of_operators_count_each_watch_of_a_stream() {
    let broadcaster = BroadcasterConfig { block_timeout: Duration::from_millis(20), ..BroadcasterConfig::default() };
    let options = Options { broadcaster, ..Options::default() };
    let mut sandbox = Sandbox::start_with(options, vec![pod("a", "p", "")]).await;
    let stats = sandbox.informer.watch_stats().unwrap();
    for policy in [Policy::Drop, Policy::Block] {
        let mut stream = Subscription::of(&mut sandbox.slow_client().await).await;
        follow(&mut stream, &mut sandbox, 1..=50, policy).await;
        // A new client is served as under REPLAY until it has read as many events as its queue is long.
        for at in 0..8 {
            let version = sandbox.put("a", "p", &format!(r#""n":{at}"#)).await.version().to_string();
            while stream.next(50).await.resource_version != version {}
        }
        let resources = sandbox.client().await.list_resources(pb::ListResourcesRequest {}).await.unwrap().into_inner();
        assert_eq!((resources.resources[0].watchers, stats.cursors.load(Ordering::Relaxed)), (50, 50), "{policy:?}");

        // More than its window.
        let mut last = String::new();
        for _ in 0..100 {
            last = sandbox.put("a", "p", &format!(r#""filler":"{}""#, "x".repeat(4000))).await.version().to_string();
        }
        // It must not read before the writer has given up.
        if policy == Policy::Block {
            until("the writer gives up", async || stats.evicted.load(Ordering::Relaxed) > 0).await;
        }
        for id in 1..=50 {
            if policy == Policy::Block {
                let end = stream.end(id).await.unwrap();
                assert_eq!(refusal(&end), (Code::ResourceExhausted, "SLOW_CONSUMER".to_owned()));
                continue;
            }
            while stream.next(id).await.resource_version != last {}
        }
        let is_counted = async || match policy {
            Policy::Drop => {
                let dropped: u64 = listed(&sandbox).await.values().map(|watcher| watcher.dropped).sum();
                dropped >= 50 && dropped == load(&sandbox).await.dropped
            }
            _ => stats.evicted.load(Ordering::Relaxed) == 50,
        };
        until("each watch is counted", is_counted).await;
        drop(stream);
        until("no watch is left", async || stats.watchers.load(Ordering::Relaxed) == 0).await;
    }
}

#[tokio::test]
async fn watches_that_receive_the_same_are_paused_closed_and_counted_each() {
    let mut sandbox = Sandbox::start(vec![pod("a", "p", "")]).await;
    for policy in [Policy::Replay, Policy::Drop, Policy::Coalesce] {
        let mut stream = Subscription::open(&sandbox).await;
        follow(&mut stream, &mut sandbox, 1..=50, policy).await;
        let version = sandbox.put("a", "p", r#""n":0"#).await.version().to_string();
        for id in 1..=50 {
            while stream.next(id).await.resource_version != version {}
        }
        let found = listed(&sandbox).await;
        assert_eq!(found.len(), 50);
        for watcher in found.values() {
            assert_eq!((watcher.sent, &watcher.resource_version, watcher.parked), (1, &version, false), "{watcher:?}");
            assert_eq!(watcher.policy(), pb::FullChannelPolicy::try_from(i32::from(policy)).unwrap());
        }

        // 2 and 3 are paused, 4 is paused and goes on.
        let request = pb::SubscribeRequest { close: vec![1], pause: vec![2, 3, 4], ..Default::default() };
        stream.send(request).await;
        stream.end(1).await;
        stream.send(pb::SubscribeRequest { resume: vec![4], ..Default::default() }).await;
        stream.watch(99, watch_from_now()).await;
        stream.next(99).await;
        let mut last = String::new();
        for at in 1..=20 {
            last = sandbox.put("a", "p", &format!(r#""n":{at}"#)).await.version().to_string();
            // So that no queue but those of the paused ones fills.
            while stream.next(99).await.resource_version != last {}
        }
        for id in 4..=50 {
            let mut events = 0;
            loop {
                let message = stream.next(id).await;
                events += u64::from(message.object.is_some());
                if message.resource_version == last {
                    break;
                }
            }
            assert_eq!(events, 20, "watch {id} under {policy:?}");
        }
        let paused = listed(&sandbox).await;
        assert_eq!((paused[&2].sent, paused[&3].sent, paused[&50].sent), (1, 1, 21), "{policy:?}");
        for id in [2, 3] {
            // Its last bookmark may have come before the pause.
            let received = stream.received.remove(&id).unwrap_or_default();
            assert!(received.iter().all(|message| message.bookmark.is_some()), "watch {id} is paused: {received:?}");
        }
        stream.send(pb::SubscribeRequest { resume: vec![2, 3], ..Default::default() }).await;
        for id in [2, 3] {
            let (mut events, mut missing) = (0, 0);
            loop {
                let message = stream.next(id).await;
                events += u64::from(message.object.is_some());
                missing += u64::from(message.coalesced) + message.dropped.as_ref().map_or(0, |dropped| dropped.count);
                if message.resource_version == last && message.dropped.is_none() {
                    break;
                }
            }
            assert_eq!(events + missing, 20, "watch {id} under {policy:?}");
            assert_eq!(policy == Policy::Replay, missing == 0, "watch {id} under {policy:?}: {events}");
        }
        let found = listed(&sandbox).await;
        assert_eq!(found.len(), 50, "49 and 99");
        drop(stream);
        while !listed(&sandbox).await.is_empty() {}
    }
}

#[tokio::test]
async fn a_paused_watch_fills_its_queue_and_its_policy_acts_while_others_go_on() {
    let mut sandbox = Sandbox::start(vec![pod("a", "p0", "")]).await;
    let mut stream = Subscription::open(&sandbox).await;
    let policies = [Policy::Drop, Policy::Replay, Policy::Coalesce];
    for (id, policy) in (1..).zip(policies) {
        stream.watch(id, pb::WatchRequest { queue: Some(queue(policy, 4)), ..watch_pods() }).await;
    }
    stream.watch(9, watch_pods()).await;
    let mut views: BTreeMap<u32, BTreeMap<String, Bytes>> = BTreeMap::new();
    for id in [1, 2, 3, 9] {
        // So that nothing is left of the initial events.
        let view = views.entry(id).or_default();
        stream.fold_to(id, 1, view).await;
    }
    sandbox.put("a", "p0", r#""n":0"#).await;
    for id in [1, 2, 3, 9] {
        stream.fold_to(id, 2, views.get_mut(&id).unwrap()).await;
    }
    stream.send(pb::SubscribeRequest { pause: vec![1, 2, 3, 77], ..Default::default() }).await;
    // The answer to a later request shows that the pause has begun.
    stream.watch(8, watch_from_now()).await;
    stream.next(8).await;
    for at in 0..100 {
        sandbox.put("a", &format!("p{}", at % 3), &format!(r#""n":{at}"#)).await;
    }
    stream.fold_to(9, 102, views.get_mut(&9).unwrap()).await;
    for id in 1..=3 {
        assert_eq!(stream.received.remove(&id).unwrap_or_default(), [], "watch {id} is paused");
    }
    stream.send(pb::SubscribeRequest { resume: vec![1, 2, 3], ..Default::default() }).await;
    // The queue is read first.
    let dropped = loop {
        if let Some(dropped) = stream.next(1).await.dropped {
            break dropped;
        }
    };
    assert!(dropped.count >= 90, "{dropped:?}");
    let mut merged = 0;
    for id in [2, 3] {
        let view = views.get_mut(&id).unwrap();
        loop {
            let message = stream.next(id).await;
            merged += u64::from(message.coalesced);
            fold(view, &message);
            if message.resource_version == "102" {
                break;
            }
        }
        assert_eq!(views[&id], views[&9], "watch {id}");
    }
    assert!(merged >= 90, "{merged} changes merged");
}

#[tokio::test]
async fn a_paused_watch_is_told_its_end() {
    let mut sandbox = Sandbox::start_unsynced(Options::default()).await;
    sandbox.list(vec![pod("a", "x", "")], 100).await;
    let mut stream = Subscription::open(&sandbox).await;
    stream.watches([(1, watch_from_now()), (2, watch_from_now())]).await;
    stream.next(1).await;
    stream.next(2).await;
    stream.send(pb::SubscribeRequest { pause: vec![1, 2], ..Default::default() }).await;
    sandbox.list(vec![pod("a", "x", "")], 50).await;
    for id in [1, 2] {
        let last = stream.end(id).await.unwrap();
        assert_eq!(refusal(&last), (Code::OutOfRange, "HISTORY_CHANGED".to_owned()));
    }
    stream.watch(3, watch_from_now()).await;
    stream.next(3).await;
    stream.send(pb::SubscribeRequest { pause: vec![3], ..Default::default() }).await;
    for at in 0..10 {
        sandbox.put("a", "x", &format!(r#""n":{at}"#)).await;
    }
    sandbox.lifecycle.draining.cancel();
    let status = stream.status().await;
    assert_eq!(reason(&status), "DRAINING");
    assert_eq!(refusal(&stream.end(3).await.unwrap()).1, "DRAINING");
}

/// Neither a message that waits for the client, nor a bookmark that is due, delays the end.
#[tokio::test]
async fn a_paused_watch_is_told_its_end_though_it_has_a_message_to_send() {
    let duration = |millis: i32| Some(prost_types::Duration { seconds: 0, nanos: millis * 1_000_000 });
    let mut sandbox = Sandbox::start(vec![pod("a", "x", "")]).await;
    let mut stream = Subscription::open(&sandbox).await;
    let short = pb::WatchRequest {
        bookmark_interval: duration(100),
        timeout: duration(900),
        queue: Some(queue(Policy::Drop, 1)),
        ..watch_from_now()
    };
    // Nothing happens in the second one's namespace.
    let silent = pb::WatchRequest { namespace: "b".to_owned(), ..short.clone() };
    stream.watches([(1, short.clone()), (2, silent), (3, watch_from_now())]).await;
    for id in [1, 2, 3] {
        stream.next(id).await;
    }
    // The first has a hole to send, the second a bookmark that is due, and the last its first bookmark.
    let open = vec![pb::OpenWatch { id: 4, watch: Some(short) }];
    stream.send(pb::SubscribeRequest { open, pause: vec![1, 2, 4], ..Default::default() }).await;
    for at in 0..5 {
        sandbox.put("a", "x", &format!(r#""n":{at}"#)).await;
        stream.next(3).await;
    }
    let ended = async {
        for id in [1, 2, 4] {
            let last = stream.end(id).await.unwrap();
            assert!(last.bookmark.is_some(), "its timeout, with status OK: {last:?}");
        }
    };
    tokio::time::timeout(Duration::from_millis(2500), ended).await.expect("within a second after the timeout");
}

/// A client is evicted before the events that it has not received.
#[tokio::test]
async fn a_paused_watch_is_told_that_it_was_evicted() {
    let broadcaster = BroadcasterConfig { block_timeout: Duration::from_millis(20), ..BroadcasterConfig::default() };
    let options = Options { broadcaster, ..Options::default() };
    let mut sandbox = Sandbox::start_with(options, vec![pod("a", "x", "")]).await;
    let mut stream = Subscription::open(&sandbox).await;
    stream.watch(1, pb::WatchRequest { queue: Some(queue(Policy::Block, 4)), ..watch_from_now() }).await;
    stream.next(1).await;
    // A new client is served as under REPLAY until it has read as many events as its queue is long.
    for at in 0..8 {
        sandbox.put("a", "x", &format!(r#""n":{at}"#)).await;
        while stream.next(1).await.object.is_none() {}
    }
    stream.send(pb::SubscribeRequest { pause: vec![1], ..Default::default() }).await;
    stream.watch(2, watch_from_now()).await;
    stream.next(2).await;
    for at in 8..200 {
        sandbox.put("a", "x", &format!(r#""n":{at}"#)).await;
    }
    let last = tokio::time::timeout(SOON, stream.end(1)).await.expect("without another reason to be polled").unwrap();
    assert_eq!(refusal(&last), (Code::ResourceExhausted, "SLOW_CONSUMER".to_owned()));
}

/// A watch with events to hand out is not woken by a change of its rights.
#[tokio::test]
async fn a_paused_watch_with_events_is_told_that_its_rights_were_revoked() {
    let readable =
        json!([{"subjects": ["user:ann"], "verbs": ["list", "watch"], "resources": ["pods"], "namespaces": ["a"]}]);
    let authorizer = Authorizer::of_rules(Rules::from_value(&readable).unwrap());
    let access = AccessConfig { authorizer: Some(authorizer.clone()), ..AccessConfig::default() };
    let options = Options { access, ..Options::default() };
    let mut sandbox = Sandbox::start_with(options, vec![pod("a", "x", "")]).await;
    let mut stream = Subscription::as_user(&sandbox, None).await.unwrap();
    stream.watches([(1, watch_from_now()), (2, watch_from_now())]).await;
    stream.next(1).await;
    stream.next(2).await;
    stream.send(pb::SubscribeRequest { pause: vec![1], ..Default::default() }).await;
    for at in 0..3 {
        sandbox.put("a", "x", &format!(r#""n":{at}"#)).await;
        // The other one has it, so this one has it in its queue.
        stream.next(2).await;
    }
    authorizer.set_rules(Rules::from_value(&json!([])).unwrap());
    for (id, version) in [(2, "4"), (1, "1")] {
        let ended = tokio::time::timeout(SOON, stream.end(id));
        let last = ended.await.expect("without another reason to be polled").unwrap();
        assert_eq!(refusal(&last), (Code::PermissionDenied, "ACCESS_DENIED".to_owned()));
        assert_eq!(last.resource_version, version, "no event after the decision");
    }
    stream.watch(3, watch_from_now()).await;
    assert_eq!(refusal(&stream.end(3).await.unwrap()).1, "ACCESS_DENIED", "each watch is authorized");
}

#[tokio::test]
async fn a_stream_does_not_begin_with_expired_credentials() {
    let sandbox = Sandbox::start(vec![pod("a", "x", "")]).await;
    let Err(status) = Subscription::as_user(&sandbox, Some(SystemTime::now())).await else { panic!("it has begun") };
    assert_eq!((status.code(), &*reason(&status)), (Code::Unauthenticated, "CREDENTIALS_EXPIRED"));
}

/// Checks that a stream of watches is what single calls of Watch receive, message for message.
#[tokio::test]
async fn each_watch_receives_what_a_call_of_watch_does() {
    let mut sandbox = Sandbox::start((0..300).map(|at| pod(["a", "b"][at % 2], &format!("p{at}"), "")).collect()).await;
    let by_index = Some(pb::IndexMatch { name: "node".to_owned(), values: vec!["n1".to_owned(), "n2".to_owned()] });
    let view = Some(pb::View { fields: vec!["spec.n".to_owned()], only_if_changed: true, ..Default::default() });
    let requests = [
        watch_pods(),
        of("a"),
        watch_from_now(),
        pb::WatchRequest { index: by_index, ..watch_pods() },
        pb::WatchRequest { format: pb::PayloadFormat::Metadata.into(), ..watch_pods() },
        pb::WatchRequest { format: pb::PayloadFormat::Struct.into(), ..of("b") },
        pb::WatchRequest { view, ..watch_pods() },
        pb::WatchRequest { field_selector: "spec.nodeName=n1".to_owned(), ..watch_pods() },
        pb::WatchRequest { resource_version: "1".to_owned(), ..watch_pods() },
    ];
    // REPLAY: other policies may merge or drop what one of the two reads later.
    let requests = requests.map(|request| pb::WatchRequest { queue: Some(queue(Policy::Replay, 100)), ..request });
    let mut stream = Subscription::open(&sandbox).await;
    stream.watches((1..).zip(requests.clone())).await;
    let mut calls = Vec::new();
    for request in &requests {
        calls.push(sandbox.client().await.watch(request.clone()).await.unwrap().into_inner());
    }
    let mut joined = Vec::new();
    for (id, call) in (1..).zip(&mut calls) {
        // All have joined before the first change.
        joined.push((stream.next(id).await, next(call).await));
    }
    for at in 0..500 {
        let name = format!("p{}", at * 7 % 310);
        let namespace = ["a", "b"][at * 7 % 310 % 2];
        let pod = sandbox.put(namespace, &name, &format!(r#""nodeName":"n{}","n":{}"#, at % 4, at / 20)).await;
        if at % 11 == 0 {
            sandbox.delete(&pod).await;
        }
    }
    // Every selection has this one.
    let last = sandbox.put("a", "last", r#""nodeName":"n1","n":1000"#).await;
    let end = sandbox.put("b", "last", r#""nodeName":"n1","n":1000"#).await;
    let version = |message: &pb::WatchResponse| message.resource_version.parse::<u128>().unwrap_or_default();
    let is_event = |message: &pb::WatchResponse| message.object.is_some();
    let (last, end) = (last.version().to_string().parse::<u128>().unwrap(), end.version().to_string());
    let end: u128 = end.parse().unwrap();
    for ((id, call), (first, first_of_call)) in (1..).zip(&mut calls).zip(joined) {
        let until = if requests[id as usize - 1].namespace == "a" { last } else { end };
        let (mut told, mut told_by_call) = (vec![first], vec![first_of_call]);
        while version(told.last().unwrap()) < until {
            told.push(stream.next(id).await);
        }
        while version(told_by_call.last().unwrap()) < until {
            told_by_call.push(next(call).await);
        }
        told.retain(is_event);
        told_by_call.retain(is_event);
        assert!(told.len() > 50, "watch {id}");
        assert_eq!(told.len(), told_by_call.len(), "watch {id}");
        for (message, by_call) in told.iter().zip(&told_by_call) {
            assert_eq!(message, by_call, "watch {id}");
        }
    }
}

#[tokio::test]
async fn watches_of_a_stream_are_counted_and_listed_each() {
    let options = Options { max_watchers: 3, ..Options::default() };
    let sandbox = Sandbox::start_with(options, vec![pod("a", "x", "")]).await;
    let (mut stream, mut other) = (Subscription::open(&sandbox).await, Subscription::open(&sandbox).await);
    stream.watches([(5, watch_from_now()), (6, watch_from_now())]).await;
    stream.next(5).await;
    stream.next(6).await;
    other.watch(5, watch_from_now()).await;
    other.next(5).await;
    let refused = watch_refusal(sandbox.client().await.watch(watch_from_now())).await;
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    other.watch(6, watch_from_now()).await;
    assert_eq!(refusal(&other.end(6).await.unwrap()).0, Code::ResourceExhausted);

    let mut admin = AdminServiceClient::new(sandbox.service());
    let listed = admin.list_watchers(pb::ListWatchersRequest::default()).await.unwrap().into_inner().watchers;
    let ids: Vec<u32> = listed.iter().map(|watcher| watcher.watch_id).collect();
    assert_eq!(ids, [5, 6, 5]);
    assert_eq!(listed[0].stream_id, listed[1].stream_id);
    assert_ne!(listed[0].stream_id, listed[2].stream_id);
    stream.close(5).await;
    stream.end(5).await;
    other.watch(7, watch_from_now()).await;
    other.next(7).await;
    drop(other);
    let emptied = async {
        loop {
            let request = pb::ListWatchersRequest::default();
            let left = admin.list_watchers(request).await.unwrap().into_inner().watchers.len();
            if left == 1 {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(DEADLINE, emptied).await.expect("the watches of a stream end with it");
}

/// Lists of initial events share the stream with live events, a turn each.
#[tokio::test]
async fn initial_events_delay_the_changes_of_others_by_no_more_than_a_round() {
    let filler = format!(r#""filler":"{}""#, "x".repeat(1000));
    let mut sandbox = Sandbox::start((0..5000).map(|at| pod("a", &format!("p{at}"), &filler)).collect()).await;
    let mut stream = Subscription::of(&mut sandbox.slow_client().await).await;
    let live = pb::WatchRequest { namespace: "b".to_owned(), ..watch_from_now() };
    stream.watch(1, live).await;
    stream.next(1).await;
    stream.watch(2, watch_pods()).await;
    while stream.received.get(&2).is_none_or(VecDeque::is_empty) {
        stream.read().await.unwrap();
    }
    sandbox.put("b", "new", "").await;
    let mut before = 0;
    while stream.received.get(&1).is_none_or(VecDeque::is_empty) {
        before += stream.received.remove(&2).unwrap_or_default().len();
        stream.read().await.unwrap();
    }
    assert!(before < 1000, "{before} initial events before a change");
    let mut view = BTreeMap::new();
    stream.received.clear();
    stream.close(2).await;
    stream.end(2).await;
    stream.watch(2, watch_pods()).await;
    stream.fold_to(2, 2, &mut view).await;
    assert_eq!(view.len(), 5001);
}

/// Waiting for a version is no work: the stream reads on, and answers every request meanwhile.
#[tokio::test]
async fn watches_that_wait_delay_no_other_request_of_their_stream() {
    const WAITING: u32 = 200;
    let mut sandbox = Sandbox::start(vec![pod("a", "x", "")]).await;
    let mut stream = Subscription::open(&sandbox).await;
    stream.watch(1, watch_from_now()).await;
    let now: u64 = stream.next(1).await.resource_version.parse().unwrap();
    let resource_version = (now + 1).to_string();
    let future = pb::WatchRequest { initial_events: 0, resource_version, ..watch_from_now() };
    let ids = 100..100 + WAITING;
    stream.watches(ids.clone().map(|id| (id, future.clone()))).await;
    stream.close(1).await;
    stream.end(1).await;
    stream.watch(2, watch_from_now()).await;
    stream.next(2).await;
    stream.close(100).await;
    stream.end(100).await;
    assert!(stream.received.iter().all(|(id, messages)| !ids.contains(id) || messages.is_empty()), "they wait");
    sandbox.put("a", "x", r#""n":1"#).await;
    sandbox.put("a", "x", r#""n":2"#).await;
    for id in ids.skip(1) {
        while stream.next(id).await.object.is_none() {}
    }
}

#[tokio::test]
async fn a_request_larger_than_the_limit_ends_the_stream() {
    let sandbox = Sandbox::start(vec![pod("a", "x", "")]).await;
    let mut stream = Subscription::open(&sandbox).await;
    stream.watch(1, watch_from_now()).await;
    stream.next(1).await;
    let large = pb::WatchRequest { name: "x".repeat(70_000), ..watch_from_now() };
    stream.watch(2, large).await;
    let status = stream.status().await;
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    assert_eq!(refusal(&stream.end(1).await.unwrap()).1, "REQUEST_INVALID");
    drop(stream);
    // A stream without watches ends when the client has half-closed.
    let mut stream = Subscription::open(&sandbox).await;
    stream.watch(1, watch_from_now()).await;
    stream.next(1).await;
    stream.close(1).await;
    stream.end(1).await;
    stream.requests = None;
    assert_eq!(stream.status().await.code(), Code::Ok);
}

/// Watches of one stream that read the history together: the events of a change are encoded one after the other.
#[tokio::test]
async fn a_watch_that_is_closed_takes_no_event_of_another_with_it() {
    let mut sandbox = Sandbox::start(Vec::new()).await;
    let requests = mpsc::channel(100);
    let responses = sandbox.in_process().subscribe(ReceiverStream::new(requests.1)).await.unwrap().into_inner();
    let mut stream = Subscription::new(requests.0, responses);
    let names = ["a", "b", "c"];
    let by_name = |name: &str| pb::WatchRequest {
        name: name.to_owned(),
        queue: Some(queue(Policy::Replay, 100)),
        ..watch_pods()
    };
    stream.watches((1..).zip(names.map(by_name))).await;
    // Each is at the end of the history, and reads on with the others.
    for (id, name) in (1..).zip(names) {
        assert!(stream.next(id).await.bookmark.is_some_and(|bookmark| bookmark.initial_events_end));
        let object = sandbox.put("shop", name, "").await;
        assert_eq!(stream.next(id).await.resource_version, object.version().to_string());
    }
    // The first event fills a response.
    let large = format!(r#""nodeName":"{}""#, "x".repeat(64 << 10));
    let mut events = Vec::new();
    for name in names {
        let version = sandbox.version();
        events.push(Event::Modified(pod_at("shop", name, &large, &version)));
    }
    sandbox.say(Delta::Changes { events: events.into(), closes: true }).await;
    stream.read().await.unwrap();
    let received: Vec<usize> = (1..=3).map(|id| stream.received.get(&id).map_or(0, VecDeque::len)).collect();
    assert_eq!(received, [1, 0, 0], "one event a response");
    stream.close(1).await;
    for (id, name) in [(2, "b"), (3, "c")] {
        let object = stream.next(id).await.object.expect("no bookmark before it");
        assert_eq!(object.name, name);
    }
}
