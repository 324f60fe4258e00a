//! The whole server over a stream of watch events: a file, a pipe whose writers change, standard input.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Write,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use informerd::{
    config::ServeFlags,
    proto::pb::{self, informer_service_client::InformerServiceClient},
};
use tempfile::TempDir;
use tonic::{Streaming, transport::Channel};

use crate::{
    process::Process,
    sandbox::{DEADLINE, fold, next, queue, raw, watch_from_now, watch_pods, words},
    served::{Served, until},
};

/// Starts a server over a file with this text, or over a pipe.
async fn serve(text: Option<&str>, config: &str) -> Served {
    let directory = TempDir::new().unwrap();
    let events = directory.path().join("events");
    match text {
        Some(text) => fs::write(&events, text).unwrap(),
        None => assert!(Command::new("mkfifo").arg(&events).status().unwrap().success()),
    }
    let file = directory.path().join("informerd.yaml");
    fs::write(&file, config).unwrap();
    let stream = vec![format!("pods={}", events.display())];
    Served::start(directory, ServeFlags { config: Some(file), stream, ..ServeFlags::default() }).await
}

async fn connect(served: &Served) -> Client {
    Client(served.client().await)
}

async fn metric(served: &Served, name: &str) -> String {
    let (_, answer) = served.get("/metrics").await;
    let start = format!("{name}{{resource=\"pods\"}} ");
    let line = answer.lines().find_map(|line| line.strip_prefix(&start));
    line.unwrap_or_else(|| panic!("{name} is not in\n{answer}")).to_owned()
}

struct Client(InformerServiceClient<Channel>);

impl Client {
    async fn connect(address: &str) -> Self {
        Self(InformerServiceClient::connect(address.to_owned()).await.unwrap())
    }

    /// Waits until the status of the resource meets a condition.
    async fn until(&mut self, is_so: impl Fn(&pb::Resource) -> bool) -> pb::Resource {
        until(&mut self.0, is_so).await
    }

    /// Waits until the stream has ended, and everything before its end is applied.
    async fn until_stale(&mut self, objects: u64) -> pb::Resource {
        self.until(|resource| resource.state() == pb::SyncState::Stale && resource.objects == objects).await
    }

    /// Returns the objects, by name.
    async fn list(&mut self) -> BTreeMap<String, String> {
        let request = pb::ListRequest {
            resource: "pods".to_owned(),
            format: pb::PayloadFormat::Raw.into(),
            ..pb::ListRequest::default()
        };
        let mut chunks = self.0.list(request).await.unwrap().into_inner();
        let mut objects = BTreeMap::new();
        while let Some(chunk) = chunks.message().await.unwrap() {
            let text = |object: &pb::Object| String::from_utf8(raw(object).to_vec()).unwrap();
            objects.extend(chunk.objects.iter().map(|object| (object.name.clone(), text(object))));
        }
        objects
    }

    /// Opens a watch, and reads its initial events.
    async fn watch(&mut self) -> Streaming<pb::WatchResponse> {
        let mut watch = self.0.watch(watch_pods()).await.unwrap().into_inner();
        while !next(&mut watch).await.bookmark.is_some_and(|bookmark| bookmark.initial_events_end) {}
        watch
    }
}

fn body(name: &str, at: usize) -> String {
    format!(r#"{{"kind":"Pod","metadata":{{"namespace":"shop","name":"{name}"}},"n":{at}}}"#)
}

fn event(event_type: &str, name: &str, at: usize) -> String {
    format!("{{\"type\":\"{event_type}\",\"object\":{}}}\n", body(name, at))
}

fn writer(path: &Path) -> File {
    File::options().write(true).open(path).unwrap()
}

/// Returns the next event, without its version, whose lineage differs in each run.
async fn next_event(watch: &mut Streaming<pb::WatchResponse>) -> String {
    loop {
        let response = next(watch).await;
        if response.object.is_some() {
            return words(&response).split(" @").next().unwrap().to_owned();
        }
    }
}

#[tokio::test]
async fn a_file_is_replayed_and_its_final_state_is_served_as_stale() {
    let text = [
        event("MODIFIED", "a", 1),
        event("ADDED", "b", 1),
        event("ADDED", "a", 2),
        event("MODIFIED", "a", 2),
        event("DELETED", "b", 9),
        event("DELETED", "never-there", 1),
    ];
    let served = serve(Some(&text.concat()), "{}").await;
    let mut client = connect(&served).await;
    let resource = client.until(|resource| resource.resource_version.ends_with(".7")).await;
    assert_eq!((resource.source.as_str(), resource.objects), ("stream", 1));
    let resource = client.until_stale(1).await;
    assert_eq!(resource.last_error, "stream ended");
    assert_eq!(client.list().await, [("a".to_owned(), body("a", 2))].into());
    assert_eq!(
        metric(&served, "informerd_cache_unchanged_events_total").await,
        "2",
        "a repetition, a deletion of nothing"
    );
    assert_eq!(metric(&served, "informerd_cache_stale").await, "1.0");
    assert_eq!(metric(&served, "informerd_reflector_lists_total").await, "1");

    let mut watch = client.0.watch(watch_pods()).await.unwrap().into_inner();
    let first = next(&mut watch).await;
    let version = resource.resource_version.replace(".7", ".4");
    assert_eq!(words(&first), "ADDED INITIAL a", "and not a word of its version before the end of the initial events");
    assert_eq!(first.object.unwrap().resource_version, version, "the version at which it got its bytes");
    served.stop().await;
}

#[tokio::test]
async fn a_pipe_is_watched_across_its_writers() {
    let served = serve(None, "{}").await;
    let mut client = connect(&served).await;
    client.until(|resource| resource.state() == pb::SyncState::Synced).await;
    let mut watch = client.watch().await;
    let mut first = writer(&served.path("events"));
    first.write_all(event("MODIFIED", "a", 1).as_bytes()).unwrap();
    assert_eq!(next_event(&mut watch).await, "ADDED a", "the store decides");
    first.write_all(event("ADDED", "a", 1).as_bytes()).unwrap();
    first.write_all(event("ADDED", "a", 2).as_bytes()).unwrap();
    assert_eq!(next_event(&mut watch).await, "MODIFIED a", "and nothing before it");
    drop(first);
    client.until_stale(1).await;
    let told = next(&mut watch).await;
    assert_eq!(told.bookmark.unwrap().source(), pb::SyncState::Stale, "watches are told");

    let mut second = writer(&served.path("events"));
    second.write_all(event("ADDED", "b", 1).as_bytes()).unwrap();
    assert_eq!(next_event(&mut watch).await, "ADDED b");
    let is_unconfirmed =
        |resource: &pb::Resource| resource.problems.iter().any(|of| of.reason == "OBJECTS_UNCONFIRMED");
    client.until(|resource| resource.state() == pb::SyncState::Stale && is_unconfirmed(resource)).await;
    second.write_all(event("DELETED", "a", 1).as_bytes()).unwrap();
    assert_eq!(next_event(&mut watch).await, "DELETED a");
    client.until(|resource| resource.state() == pb::SyncState::Synced && resource.last_error.is_empty()).await;
    assert_eq!(client.list().await.into_keys().collect::<Vec<_>>(), ["b"]);
    served.stop().await;
}

#[tokio::test]
async fn objects_that_are_not_reported_for_their_time_to_live_are_deleted() {
    let directory = TempDir::new().unwrap();
    assert!(Command::new("mkfifo").arg(directory.path().join("events")).status().unwrap().success());
    let file = directory.path().join("informerd.yaml");
    fs::write(&file, "resources: { pods: { source: { stream: { path: events } }, ttl: 1s } }").unwrap();
    let served = Served::start(directory, ServeFlags { config: Some(file), ..ServeFlags::default() }).await;
    let mut client = connect(&served).await;
    let mut watch = client.watch().await;
    let mut first = writer(&served.path("events"));
    first.write_all(event("ADDED", "a", 1).as_bytes()).unwrap();
    assert_eq!(next_event(&mut watch).await, "ADDED a");
    assert_eq!(next_event(&mut watch).await, "DELETED EXPIRED a");
    assert!(client.list().await.is_empty());
    first.write_all(event("ADDED", "a", 1).as_bytes()).unwrap();
    assert_eq!(next_event(&mut watch).await, "ADDED a", "it is reported again");
    drop(first);
    assert_eq!(next_event(&mut watch).await, "DELETED EXPIRED a", "also after its writer");
    served.stop().await;
}

/// Writes events as jq prints them; kubectl writes one event to a line.
#[tokio::test]
async fn events_printed_over_many_lines_keep_their_bytes() {
    let pretty = |name: &str| {
        format!(
            "{{\n    \"apiVersion\": \"v1\",\n    \"kind\": \"Pod\",\n    \"metadata\": {{\n        \"name\": \"{name}\"\n    }}\n}}"
        )
    };
    let event = |event_type: &str, name: &str| {
        format!("{{\n    \"type\": \"{event_type}\",\n    \"object\": {}\n}}\n", pretty(name))
    };
    let text = [event("ADDED", "a"), event("ADDED", "b"), event("DELETED", "a")].concat();
    let served = serve(Some(&text), "{}").await;
    let mut client = connect(&served).await;
    client.until_stale(1).await;
    assert_eq!(client.list().await, [("b".to_owned(), pretty("b"))].into());
    served.stop().await;
}

#[tokio::test]
async fn garbage_and_events_that_are_too_large_are_reported_and_skipped() {
    let huge = event("ADDED", &"x".repeat(5 << 20), 1);
    let lines = [
        event("ADDED", "a", 1),
        "oops\n".to_owned(),
        "{\"type\":\"ADDED\",\"obj\n".to_owned(),
        huge,
        event("ADDED", "b", 1),
    ];
    let served = serve(Some(&lines.concat()), "{}").await;
    let mut client = connect(&served).await;
    let resource = client.until_stale(2).await;
    assert_eq!(resource.last_error, "stream ended", "the failure comes first");
    let problems: Vec<_> = resource.problems.iter().map(|of| (&*of.reason, &*of.subject)).collect();
    let at = |index: usize| problems[index].1;
    assert!(problems.len() == 4 && at(0).starts_with("line 2 (byte "), "{problems:?}");
    assert!(
        problems[..3].iter().all(|(reason, _)| *reason == "OBJECT_INVALID") && at(2).starts_with("line 4 (byte 11")
    );
    assert_eq!(problems[3], ("UPSTREAM_UNREACHABLE", ""));
    assert_eq!(metric(&served, "informerd_source_problems").await, "4.0");
    assert_eq!(client.list().await.into_keys().collect::<Vec<_>>(), ["a", "b"]);
    served.stop().await;
}

/// Stops reading under BLOCK: the pressure reaches the writer of the pipe, and the client still gets everything.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_client_under_block_delays_changes_the_stream_is_not_read() {
    const EVENTS: usize = 40_000;
    const SIZE: u64 = 1 << 10;
    let served = serve(None, "watch: { block_timeout: 1h }").await;
    let endpoint = tonic::transport::Endpoint::new(served.address.clone()).unwrap();
    let endpoint = endpoint.initial_stream_window_size(65_535).initial_connection_window_size(65_535);
    let mut slow = InformerServiceClient::new(endpoint.connect().await.unwrap());
    let request = pb::WatchRequest {
        queue: Some(queue(pb::FullChannelPolicy::Block, 16)),
        format: watch_pods().format,
        ..watch_from_now()
    };
    connect(&served).await.until(|resource| resource.state() == pb::SyncState::Synced).await;
    let mut watch = slow.watch(request).await.unwrap().into_inner();
    next(&mut watch).await;

    let written = Arc::new(AtomicU64::new(0));
    let writing = std::thread::spawn({
        let (path, written) = (served.path("events"), Arc::clone(&written));
        move || {
            let mut pipe = writer(&path);
            for at in 0..EVENTS {
                let filler = "x".repeat(SIZE as usize);
                let line = event("MODIFIED", &format!("p{}", at % 100), at)
                    .replace("\"n\":", &format!("\"f\":\"{filler}\",\"n\":"));
                pipe.write_all(line.as_bytes()).unwrap();
                written.fetch_add(line.len() as u64, Ordering::Relaxed);
            }
        }
    });
    // The writer is blocked once its count stays the same for a time in which it could have written everything.
    let stood_still = async {
        let mut last = u64::MAX;
        loop {
            tokio::time::sleep(Duration::from_millis(700)).await;
            match written.load(Ordering::Relaxed) {
                now if now == last && now > 0 => return now,
                now => last = now,
            }
        }
    };
    let stood_at = tokio::time::timeout(DEADLINE, stood_still).await.expect("the writer is held back");
    // The queues between pipe and client are bounded in events; below them are the buffers of HTTP/2 and the kernel.
    assert!(stood_at < 16 << 20, "{stood_at} of {} bytes were taken", EVENTS as u64 * SIZE);
    assert!(!writing.is_finished());

    let (mut view, mut last) = (BTreeMap::new(), 1);
    while last <= EVENTS as u64 {
        let response = next(&mut watch).await;
        // The bookmark reports the end of the stream, too.
        if response.bookmark.is_some() {
            continue;
        }
        let (_, number) = response.resource_version.split_once('.').unwrap();
        let number: u64 = number.parse().unwrap();
        assert_eq!(number, last + 1, "in order, none missing");
        last = number;
        fold(&mut view, &response);
    }
    writing.join().unwrap();
    assert_eq!(view.len(), 100);
    let held = connect(&served).await.list().await;
    assert_eq!(
        view.into_iter()
            .map(|(name, body)| (name, String::from_utf8(body.to_vec()).unwrap()))
            .collect::<BTreeMap<_, _>>(),
        held
    );
    served.stop().await;
}

#[tokio::test]
async fn standard_input_is_live_and_its_end_is_not_the_end_of_the_server() {
    let mut process = Process::start(&["--stream", "pods=-"], None);
    let mut stdin = process.stdin.take().unwrap();
    let mut client = Client::connect(&process.address()).await;
    client.until(|resource| resource.state() == pb::SyncState::Synced).await;
    let mut watch = client.watch().await;
    let text = event("ADDED", "a", 1);
    for piece in text.as_bytes().chunks(20) {
        stdin.write_all(piece).unwrap();
        stdin.flush().unwrap();
    }
    assert_eq!(next_event(&mut watch).await, "ADDED a");
    drop(stdin);
    client.until_stale(1).await;
    assert_eq!(client.list().await, [("a".to_owned(), body("a", 1))].into());
    drop((client, watch));
    assert_eq!(process.terminate().await.code(), Some(0));

    // A pending read of standard input does not delay the end.
    let process = Process::start(&["--stream", "pods=-"], None);
    Client::connect(&process.address()).await.until(|resource| resource.state() == pb::SyncState::Synced).await;
    assert_eq!(process.terminate().await.code(), Some(0));
}

#[test]
fn check_prints_the_origin_of_a_stream() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("events.jsonl");
    fs::write(&path, "").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_informerd"))
        .args(["check", "--stream", "a=-", "--stream", &format!("b={}", path.display())])
        .output()
        .unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    assert!(out.contains("a: watch events of standard input, indexed by namespace\n"), "{out}");
    assert!(out.contains(&format!("b: watch events of {}, indexed by namespace\n", path.display())), "{out}");
}
