//! Memory held for clients that do not read what they requested: how much, for which client, and until when.

use std::time::Duration;

use informerd::{
    proto::pb,
    transport::HeldBytes,
    watch::{BroadcasterConfig, Retention},
};
use prost::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Code, Status, Streaming};
use tonic_types::StatusExt;

use crate::{
    operators::{until, watchers},
    sandbox::{DEADLINE, Options, Sandbox, next, pod, queue, reason, watch_from_now, watch_pods},
};

/// Size larger than the window of a slow client.
const LARGE: usize = 1 << 20;

fn filler(bytes: usize) -> String {
    format!(r#""filler":"{}""#, "x".repeat(bytes))
}

/// Returns options for clients that read nothing for long on a busy machine, which get no bookmark between events meanwhile.
fn patient() -> Options {
    let hour = Duration::from_secs(3600);
    Options { progress_timeout: hour, bookmark_interval: hour, ..Options::default() }
}

/// Returns options for a history that retains hardly anything.
fn forgetful() -> Options {
    let history = Retention { events: 1, size: 1 << 30, age: Duration::from_secs(300) };
    Options { history, ..patient() }
}

/// Reads events until one is at this version.
async fn read_up_to(watch: &mut Streaming<pb::WatchResponse>, version: &str) {
    while next(watch).await.resource_version != version {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_is_larger_than_its_window_is_held_until_the_client_reads_it() {
    let sandbox = Sandbox::start_with(patient(), vec![pod("shop", "a", &filler(LARGE))]).await;
    let mut slow = sandbox.slow_client().await.watch(watch_pods()).await.unwrap().into_inner();
    let held = until(&sandbox, |found| found[0].bytes_held >= LARGE as u64).await[0].bytes_held;
    assert!(held < 2 * LARGE as u64, "{held}");
    let waiting = sandbox.ledger.waiting();
    assert!((LARGE..2 * LARGE).contains(&waiting.sending), "{waiting:?}");

    assert_eq!(next(&mut slow).await.object.unwrap().name, "a");
    assert!(next(&mut slow).await.bookmark.unwrap().initial_events_end);
    // The requests for these figures are held too.
    let is_free = |found: &[pb::Watcher]| found[0].bytes_held == 0 && sandbox.ledger.waiting() == HeldBytes::default();
    let live = until(&sandbox, is_free).await;
    assert_eq!(live[0].state(), pb::WatcherState::Live);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_states_that_only_snapshots_have_are_held_once_however_many_streams_share_them() {
    const OBJECTS: usize = 20;
    const SIZE: usize = 100_000;
    let pods = (0..OBJECTS).map(|at| pod("shop", &format!("p{at:02}"), &filler(SIZE))).collect();
    let mut sandbox = Sandbox::start_with(forgetful(), pods).await;
    let mut slow = Vec::new();
    for _ in 0..3 {
        let mut watch = sandbox.slow_client().await.watch(watch_pods()).await.unwrap().into_inner();
        next(&mut watch).await;
        slow.push(watch);
    }
    assert_eq!(sandbox.ledger.waiting().kept, 0, "the cache has all of it");
    let mut last = None;
    for at in 0..OBJECTS {
        last = Some(sandbox.put("shop", &format!("p{at:02}"), &filler(SIZE)).await);
    }
    sandbox.reached(last.unwrap().version()).await;
    // The history retains the last of them.
    let kept = (OBJECTS - 1) * SIZE..OBJECTS * SIZE;
    let is_held =
        |found: &[pb::Watcher]| found.iter().map(|watcher| watcher.bytes_held as usize).sum::<usize>() >= kept.start;
    let found = until(&sandbox, is_held).await;
    assert!(found.iter().all(|watcher| watcher.state() == pb::WatcherState::InitialEvents));
    assert!(kept.contains(&sandbox.ledger.waiting().kept), "{:?}", sandbox.ledger.waiting());

    // The last one holds the same memory as all of them together.
    slow.truncate(1);
    until(&sandbox, |found| found.len() == 1 && found[0].bytes_held >= kept.start as u64).await;
    assert!(kept.contains(&sandbox.ledger.waiting().kept));
    drop(slow);
    until(&sandbox, |found| found.is_empty() && sandbox.ledger.waiting() == HeldBytes::default()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn merged_changes_are_held_until_they_are_delivered() {
    const SIZE: usize = 1000;
    let few = Retention { events: 100, size: 1 << 30, age: Duration::from_secs(300) };
    let broadcaster = BroadcasterConfig { retention: few, ..BroadcasterConfig::default() };
    let options = Options { broadcaster, history: few, ..Options::default() };
    let mut sandbox = Sandbox::start_with(options, vec![pod("shop", "a", "")]).await;
    let request = pb::WatchRequest { queue: Some(queue(pb::FullChannelPolicy::Coalesce, 16)), ..watch_from_now() };
    let mut slow = sandbox.slow_client().await.watch(request).await.unwrap().into_inner();
    next(&mut slow).await;
    let mut last = None;
    for at in 0..8_000 {
        last = Some(sandbox.put("shop", &format!("p{}", at % 500), &filler(SIZE)).await);
    }
    let last = last.unwrap().version().to_string();
    // At least an entry for each key.
    let is_held = |found: &[pb::Watcher]| found[0].bytes_held > 500 * 64 && sandbox.ledger.waiting().kept > 500 * 64;
    let found = until(&sandbox, is_held).await;
    assert_eq!(found[0].state(), pb::WatcherState::Coalescing);
    let kept = sandbox.ledger.waiting().kept;
    // Both states of all keys, the events of the queue, and entries.
    assert!((500 * 64..3 * 500 * (SIZE + 500)).contains(&kept), "{kept}");

    read_up_to(&mut slow, &last).await;
    let live = until(&sandbox, |found| found[0].bytes_held == 0).await;
    assert_eq!(live[0].state(), pb::WatcherState::Live);
    until(&sandbox, |_| sandbox.ledger.waiting() == HeldBytes::default()).await;
}

fn list_pods() -> pb::ListRequest {
    pb::ListRequest { resource: "pods".to_owned(), format: pb::PayloadFormat::Raw.into(), ..Default::default() }
}

/// Starts a client that reads every event after version 1, one for each version.
async fn reader(sandbox: &Sandbox, events: usize) -> tokio::task::JoinHandle<()> {
    let mut watch = sandbox.client().await.watch(watch_from_now()).await.unwrap().into_inner();
    next(&mut watch).await;
    tokio::spawn(async move {
        for at in 2..events + 2 {
            assert_eq!(next(&mut watch).await.resource_version, at.to_string(), "in order, none missing");
        }
    })
}

/// Reads a stream to its end. Returns its messages and its result.
async fn whole<T>(stream: &mut Streaming<T>) -> (Vec<T>, Result<(), Status>) {
    let mut messages = Vec::new();
    loop {
        match stream.message().await {
            Ok(Some(message)) => messages.push(message),
            Ok(None) => return (messages, Ok(())),
            Err(status) => return (messages, Err(status)),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn above_the_limit_only_streams_that_do_not_read_end() {
    const LIMIT: usize = 8 << 20;
    const STUCK: usize = 20;
    const EVENTS: usize = 500;
    let options = Options { memory: LIMIT, ..patient() };
    let mut sandbox = Sandbox::start_with(options, vec![pod("shop", "a", &filler(LARGE))]).await;
    let fast = reader(&sandbox, EVENTS).await;
    let mut lists = Vec::new();
    for _ in 0..STUCK {
        lists.push(sandbox.slow_client().await.list(list_pods()).await.unwrap().into_inner());
    }
    for at in 0..EVENTS {
        sandbox.put("shop", "b", &format!(r#""n":{at}"#)).await;
    }
    fast.await.unwrap();
    // Each holds its object, and seven of them fit.
    until(&sandbox, |_| sandbox.ledger.ended() >= STUCK as u64 - 7 && sandbox.ledger.waiting().total() <= LIMIT).await;
    let ended = sandbox.ledger.ended();
    assert!(ended < STUCK as u64, "{ended}");
    let mut refused = 0;
    for list in &mut lists {
        match whole(list).await {
            (pages, Ok(())) => assert_eq!(pages.iter().map(|page| page.objects.len()).sum::<usize>(), 1),
            (_, Err(status)) => {
                assert_eq!(status.code(), Code::ResourceExhausted, "{status:?}");
                refused += 1;
            }
        }
    }
    assert_eq!((refused, sandbox.ledger.ended()), (ended, ended));
    until(&sandbox, |_| sandbox.ledger.waiting() == HeldBytes::default()).await;
}

/// Merges more for a watch than the limit. Another stream has filled the window of the connection, so that none of it waits in
/// HTTP/2 and the server can send the end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_ended_for_memory_receives_the_version_to_resume_from() {
    const LIMIT: usize = 4 << 20;
    let few = Retention { events: 100, size: 1 << 30, age: Duration::from_secs(300) };
    let broadcaster = BroadcasterConfig { retention: few, ..BroadcasterConfig::default() };
    let options = Options { broadcaster, history: few, memory: LIMIT, ..patient() };
    let mut sandbox = Sandbox::start_with(options, vec![pod("shop", "a", &filler(LARGE))]).await;
    let mut fast = sandbox.client().await.watch(watch_from_now()).await.unwrap().into_inner();
    next(&mut fast).await;
    let mut client = sandbox.slow_client().await;
    let coalesce = Some(queue(pb::FullChannelPolicy::Coalesce, 16));
    let request = pb::WatchRequest { queue: coalesce, ..watch_from_now() };
    let mut slow = client.watch(request).await.unwrap().into_inner();
    assert_eq!(next(&mut slow).await.resource_version, "1");
    let list = client.list(list_pods()).await.unwrap().into_inner();
    until(&sandbox, |_| sandbox.ledger.waiting().sending >= LARGE).await;
    // What only the merged changes keep depends on where the checks find them.
    let mut at = 0;
    let is_open = async |sandbox: &Sandbox| {
        let found = watchers(sandbox, pb::ListWatchersRequest::default()).await.watchers;
        found.iter().any(|watcher| watcher.policy() == pb::FullChannelPolicy::Coalesce)
    };
    while is_open(&sandbox).await {
        for _ in 0..100 {
            at += 1;
            let put = sandbox.put("shop", &format!("p{}", at % 500), &filler(10_000)).await;
            read_up_to(&mut fast, &put.version().to_string()).await;
        }
    }
    let (messages, ended) = whole(&mut slow).await;
    let status = ended.unwrap_err();
    assert_eq!(
        (messages, status.code(), reason(&status).as_str()),
        (vec![], Code::ResourceExhausted, "MEMORY_EXCEEDED")
    );
    let details = status.get_error_details();
    let metadata = &details.error_info().unwrap().metadata;
    assert_eq!((metadata["after"].as_str(), metadata["limit"].clone()), ("1", LIMIT.to_string()));
    assert!(status.message().contains("limits.memory") && details.retry_info().is_some(), "{status:?}");
    drop(list);
    assert!((1..=2).contains(&sandbox.ledger.ended()), "the watch, and perhaps the list");
    until(&sandbox, |_| sandbox.ledger.waiting() == HeldBytes::default()).await;
}

/// Keeps unary answers waiting for a window that a List has used up, and checks that the objects behind them are held until they
/// are sent. What is listed is larger than the window: of messages that fit, none may be left when the window is used up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answers_of_one_message_are_held_while_they_wait() {
    const OBJECTS: usize = 1_000;
    let names = (0..OBJECTS).map(|at| format!("{at:0>60}"));
    let pods = names.map(|name| pod("shop", &name, "")).chain([pod("lab", "a", &filler(LARGE))]).collect();
    let sandbox = Sandbox::start_with(patient(), pods).await;
    let get = pb::GetRequest {
        resource: "pods".to_owned(),
        namespace: "lab".to_owned(),
        name: "a".to_owned(),
        ..Default::default()
    };
    let values =
        pb::ListIndexValuesRequest { resource: "pods".to_owned(), index: "app".to_owned(), ..Default::default() };
    let watch = pb::WatchRequest { resource: "pods".to_owned(), name: "a".to_owned(), ..Default::default() };
    let watch = pb::WatchRequest { namespace: "lab".to_owned(), ..watch };
    let large = pb::ListRequest { namespace: "lab".to_owned(), ..list_pods() };
    let until_added = pb::UntilRequest { watch: Some(watch), conditions: vec!["type == 'ADDED'".to_owned()] };
    for (what, least) in [("Get", LARGE), ("ListIndexValues", OBJECTS * 60), ("Until", LARGE)] {
        let client = sandbox.slow_client().await.max_decoding_message_size(16 << 20);
        let list = client.clone().list(large.clone()).await.unwrap().into_inner();
        until(&sandbox, |_| sandbox.ledger.waiting().sending > 0).await;
        let before = sandbox.ledger.waiting().encoded_bytes;
        let (mut client, get, values, until_added) = (client, get.clone(), values.clone(), until_added.clone());
        let answer = tokio::spawn(async move {
            match what {
                "Get" => drop(client.get(get).await.unwrap()),
                "ListIndexValues" => drop(client.list_index_values(values).await.unwrap()),
                _ => drop(client.until(until_added).await.unwrap()),
            }
        });
        until(&sandbox, |_| sandbox.ledger.waiting().encoded_bytes >= before + least).await;
        drop(list);
        answer.await.unwrap();
        until(&sandbox, |_| sandbox.ledger.waiting() == HeldBytes::default()).await;
    }
}

/// Merges more for a paused watch than the limit. Its stream ends, and each of its watches has the version from which it resumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_watch_of_a_stream_ended_for_memory_receives_the_version_to_resume_from() {
    const LIMIT: usize = 2 << 20;
    const OBJECTS: usize = 500;
    let few = Retention { events: 100, size: 1 << 30, age: Duration::from_secs(300) };
    let broadcaster = BroadcasterConfig { retention: few, ..BroadcasterConfig::default() };
    let options = Options { broadcaster, history: few, memory: LIMIT, ..patient() };
    let mut sandbox = Sandbox::start_with(options, vec![pod("shop", "a", "")]).await;
    let mut fast = sandbox.client().await.watch(watch_from_now()).await.unwrap().into_inner();
    next(&mut fast).await;
    let (requests, sent) = mpsc::channel(1);
    let mut stream = sandbox.client().await.subscribe(ReceiverStream::new(sent)).await.unwrap().into_inner();
    let coalesce = Some(queue(pb::FullChannelPolicy::Coalesce, 16));
    let paused = pb::WatchRequest { queue: coalesce, namespace: "shop".to_owned(), ..watch_from_now() };
    // Without a bookmark: it would move the version from which the second one resumes.
    let bookmark_interval = Some(prost_types::Duration { seconds: 3600, nanos: 0 });
    let other = pb::WatchRequest { namespace: "lab".to_owned(), bookmark_interval, ..watch_from_now() };
    let [paused, other] = [(1, paused), (2, other)].map(|(id, watch)| pb::OpenWatch { id, watch: Some(watch) });
    requests.send(pb::SubscribeRequest { open: vec![paused], ..Default::default() }).await.unwrap();
    let mut last: [pb::WatchResponse; 2] = [pb::WatchResponse::default(), pb::WatchResponse::default()];
    let mut read = async |last: &mut [pb::WatchResponse; 2]| {
        let read = tokio::time::timeout(DEADLINE, stream.message()).await.expect("a message in time")?;
        for delivery in read.expect("no end with OK").deliveries {
            for id in delivery.watch_ids {
                last[id as usize - 1] = delivery.responses.last().unwrap().clone();
            }
        }
        Ok::<(), Status>(())
    };
    read(&mut last).await.unwrap();
    let request = pb::SubscribeRequest { open: vec![other], pause: vec![1], ..Default::default() };
    requests.send(request).await.unwrap();
    read(&mut last).await.unwrap();
    let [joined, others] = &last;
    assert_eq!((&*joined.resource_version, &*others.resource_version), ("1", "1"));
    let version = sandbox.put("lab", "b", "").await.version().to_string();
    read_up_to(&mut fast, &version).await;
    read(&mut last).await.unwrap();
    assert_eq!(last[1].resource_version, version);
    for at in 0.. {
        if sandbox.ledger.ended() > 0 {
            break;
        }
        let put = sandbox.put("shop", &format!("p{}", at % OBJECTS), &filler(10_000)).await;
        read_up_to(&mut fast, &put.version().to_string()).await;
    }
    let status = loop {
        if let Err(status) = read(&mut last).await {
            break status;
        }
    };
    assert_eq!((status.code(), reason(&status).as_str()), (Code::ResourceExhausted, "MEMORY_EXCEEDED"));
    // No change concerned the first watch up to the version that the other one was sent.
    for (last, possible) in last.iter().zip([&["1", &version][..], &[&version]]) {
        let error = last.error.as_ref().unwrap();
        let status = Status::with_details(Code::from(error.code), &*error.message, error.encode_to_vec().into());
        let details = status.get_error_details();
        let metadata = &details.error_info().unwrap().metadata;
        assert!(possible.contains(&&*metadata["after"]) && metadata["limit"] == LIMIT.to_string(), "{metadata:?}");
        assert!(details.retry_info().is_some() && error.message.contains("resume after version"), "{error:?}");
    }
    until(&sandbox, |_| sandbox.ledger.waiting() == HeldBytes::default()).await;
}
