//! Attacks by peers of whom nobody is authenticated: requests that never end, watches of the health service and
//! streams of reflection without end, calls beyond its share, and calls that are denied again and again.

use std::fs;

use futures_util::FutureExt;
use informerd::proto::pb;
use prost::Message;
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tonic::transport::Channel;
use tonic_health::pb::{HealthCheckRequest, health_client::HealthClient};

use super::{
    attacked_server::{AttackedServer, Setup, watch, within},
    client::{Raw, connect},
    frames::{
        END_HEADERS, END_STREAM, FrameReader, HEADERS, LIST, MAX_WINDOW, SUBSCRIBE, UNTIL, WATCH, call, call_with,
        data, frame, get, half_call, heads, literal, opening,
    },
    number,
};

const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";
const REFLECTION: &str = "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo";

/// Share of a peer in the requests: a quarter of an eighth of `limits.memory`.
const REQUESTS: u64 = 2 << 20;
const MEMORY: &str = "history: { events: 10000 }\nlimits: { memory: 64MiB }";
/// Share of a peer in watches of health and streams of reflection: a quarter of 1,024.
const STREAMS: u64 = 256;

/// Returns three quarters of the largest message.
fn half_message(stream: u32) -> Vec<u8> {
    const LAST_FRAME: usize = 9 + (65_000 + 5) % 16_384;
    let mut bytes = data(stream, &vec![b'2'; 65_000], false);
    bytes.truncate(bytes.len() - LAST_FRAME);
    bytes
}

/// Opens connections with calls, each by its bytes.
async fn open(attacked: &AttackedServer, connections: u64, calls: u64, bytes: impl Fn(u32) -> Vec<u8>) -> Vec<Raw> {
    open_with(attacked, MAX_WINDOW, connections, calls, bytes).await
}

/// Does so with this window for each response.
async fn open_with(
    attacked: &AttackedServer,
    window: u32,
    connections: u64,
    calls: u64,
    bytes: impl Fn(u32) -> Vec<u8>,
) -> Vec<Raw> {
    let mut opened = Vec::new();
    for _ in 0..connections {
        let mut connection = Raw::open(attacked.process.grpc, window).await;
        for _ in 0..calls {
            let stream = connection.next_stream();
            connection.send(bytes(stream)).await;
        }
        opened.push(connection);
    }
    opened
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_never_end_hold_at_most_the_share_of_their_peer() {
    let attacked = AttackedServer::start(Setup { config: MEMORY, ..Setup::default() }).await;
    for (method, reason) in [
        (WATCH, "peer_request_memory"),
        (LIST, "peer_request_memory"),
        (UNTIL, "peer_request_memory"),
        (SUBSCRIBE, "peer_request_memory"),
        (REFLECTION, "peer_request_memory"),
        (HEALTH_CHECK, "request_bytes"),
    ] {
        let attack = format!("half requests of {method}");
        let before = attacked.process.metrics().await.refused(reason);
        // HEADERS first: they count, too.
        let half = |stream| [half_call(stream, method), half_message(stream)].concat();
        let opened = open(&attacked, number(3, 20), number(100, 1000), half).await;
        attacked.process.refused([reason], before + 1).await;
        attacked.serves(&attack).await;
        let waiting = attacked.counts().await.waiting;
        assert!(waiting <= REQUESTS + (1 << 20), "{attack}: {waiting} bytes are held");
        drop(opened);
        attacked.recovers(&attack).await;
    }
    // A call without any byte counts, too.
    let before = attacked.process.metrics().await.refused("peer_request_memory");
    let calls = number(1000, 1000);
    let opened = open(&attacked, number(1, 20), calls, |stream| half_call(stream, WATCH)).await;
    attacked.process.refused(["peer_request_memory"], before + 1).await;
    attacked.serves("calls without a request").await;
    drop(opened);
    attacked.recovers("calls without a request").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_that_nobody_reads_hold_at_most_the_share_of_their_peer() {
    let attacked = AttackedServer::start(Setup { config: MEMORY, ..Setup::default() }).await;
    let list = pb::ListRequest { resource: "s".to_owned(), ..Default::default() };
    // With room for a byte, a short response is over before it is sent.
    for (method, window) in [(HEALTH_CHECK, 0), (HEALTH_CHECK, 1), (LIST, 0), (LIST, 1)] {
        let attack = format!("responses of {method} with a window of {window}");
        let before = attacked.process.metrics().await.refused("peer_request_memory");
        let request = |stream| match method {
            LIST => call_with(stream, LIST, &list),
            _ => call(stream, method, &[]),
        };
        let opened = open_with(&attacked, window, number(2, 20), 1000, request).await;
        attacked.process.refused(["peer_request_memory"], before + 1).await;
        attacked.serves(&attack).await;
        drop(opened);
        attacked.recovers(&attack).await;
    }
}

/// A watch that is to be opened holds many times the bytes of its request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openings_whose_outcomes_nobody_reads_hold_at_most_the_share_of_their_peer() {
    let attacked = AttackedServer::start(Setup { config: MEMORY, ..Setup::default() }).await;
    let open = (1..4000).map(|id| pb::OpenWatch { id, watch: None }).collect();
    let openings = pb::SubscribeRequest { open, ..Default::default() }.encode_to_vec();
    let stream = |stream| [half_call(stream, SUBSCRIBE), data(stream, &openings, false)].concat();
    let opened = open_with(&attacked, 0, number(2, 20), number(20, 200), stream).await;
    attacked.process.refused(["peer_request_memory"], number(20, 1000)).await;
    attacked.serves("openings").await;
    let waiting = attacked.counts().await.waiting;
    assert!(waiting <= REQUESTS + (1 << 20), "{waiting} bytes are held");
    drop(opened);
    attacked.recovers("openings").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_has_its_share_of_health_watches_and_reflections_and_of_the_oldest_none() {
    let attacked = AttackedServer::start(Setup { config: "history: { events: 10000 }", ..Setup::default() }).await;
    let channel = Channel::from_shared(attacked.process.address()).unwrap().connect().await.unwrap();
    let mut client = HealthClient::new(channel);
    let mut health = client.watch(HealthCheckRequest::default()).await.unwrap().into_inner();
    health.message().await.unwrap().unwrap();
    // Field 7 of a request of reflection: the list of services.
    let list_services = [0x3a, 0];
    let reflection = move |stream| [half_call(stream, REFLECTION), data(stream, &list_services, false)].concat();
    let watching = |stream| call(stream, HEALTH_WATCH, &[]);
    let (connections, calls) = (number(2, 200), number(400, 1000));
    for (reason, kind) in [("peer_health_watches", 0), ("peer_reflections", 1)] {
        let opened = if kind == 0 {
            open(&attacked, connections, calls, watching).await
        } else {
            open(&attacked, connections, calls, reflection).await
        };
        let ended = connections * calls - STREAMS;
        assert_eq!(attacked.process.refused([reason], ended).await, [ended], "{reason}");
        attacked.until(reason, |counts| counts.calls == STREAMS + 2).await;
        attacked.serves(reason).await;
        drop(opened);
        attacked.until(reason, |counts| counts.calls == 2).await;
    }
    assert!(health.message().now_or_never().is_none(), "the watch of another peer stays open");
    drop((health, client));
    attacked.recovers("health watches").await;
}

/// The service of reflection reads its requests in a task of its own, which would hold the stream for as long as the client does not end it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reflection_that_ends_holds_its_stream_no_longer() {
    let attacked = AttackedServer::start(Setup { config: "history: { events: 10000 }", ..Setup::default() }).await;
    let (mut reads, mut writes) = connect(attacked.process.grpc).await.unwrap().into_split();
    let opened = (1..).step_by(2).take(STREAMS as usize + 20);
    let calls = opened.flat_map(|stream| [half_call(stream, REFLECTION), data(stream, &[0x3a, 0], false)].concat());
    writes.write_all(&[opening(MAX_WINDOW), calls.collect()].concat()).await.unwrap();
    let (mut frames, mut buffer, mut released) = (FrameReader::default(), vec![0; 64 << 10], 0);
    while released < 20 {
        let read = within("reflections", reads.read(&mut buffer)).await.unwrap();
        assert!(read > 0, "the connection stays open");
        // Nothing of the server refers to a stream of which it resets the request.
        released += frames.read(&buffer[..read]).iter().filter(|frame| frame.is_reset()).count();
    }
    attacked.serves("reflections").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_has_its_share_of_calls_over_all_its_connections() {
    let config = "history: { events: 10000 }\nwatch: { max_watchers: 240 }";
    let attacked = AttackedServer::start(Setup { config, ..Setup::default() }).await;
    let (share, connections, calls) = (100, number(3, 50), number(100, 1000));
    let opened =
        open(&attacked, connections, calls, |stream| [half_call(stream, SUBSCRIBE), data(stream, &[], false)].concat());
    let opened = opened.await;
    let refused = connections * calls - share;
    assert_eq!(attacked.process.refused(["peer_calls"], refused).await, [refused]);
    attacked.until("calls", |counts| counts.calls == share + 1).await;
    attacked.serves("calls").await;
    drop(opened);
    attacked.recovers("calls").await;
}

/// A response counts until its client has it, also one that says only that the call has failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failures_that_nobody_reads_have_their_places_among_the_calls() {
    let config = "history: { events: 10000 }\nwatch: { max_watchers: 240 }\nkubernetes: { listen: '127.0.0.1:0' }";
    let attacked = AttackedServer::start(Setup { config, ..Setup::default() }).await;
    let (share, more) = (100, number(20, 900));
    let late = |stream| {
        let heads = [heads(WATCH), literal("grpc-timeout", "1m")].concat();
        [frame(HEADERS, END_HEADERS, stream, &heads), data(stream, &watch().encode_to_vec(), true)].concat()
    };
    let missing = |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &get("/api/v1/pods"));
    let attacks: [(_, _, &dyn Fn(u32) -> Vec<u8>); 2] =
        [("deadlines", attacked.process.grpc, &late), ("objects", attacked.process.kubernetes(), &missing)];
    for (attack, server, call) in attacks {
        let before = attacked.process.metrics().await.refused("peer_calls");
        let mut connection = Raw::open(server, 0).await;
        for _ in 0..share + more {
            let stream = connection.next_stream();
            connection.send(call(stream)).await;
        }
        let refused = before + more;
        assert_eq!(attacked.process.refused(["peer_calls"], refused).await, [refused], "{attack}");
        attacked.serves(attack).await;
        drop(connection);
        attacked.recovers(attack).await;
    }
}

/// A message about the limit would wait for the window, beyond the limit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_beyond_the_share_of_calls_ends_at_once() {
    let config = "history: { events: 10000 }\nwatch: { max_watchers: 240 }";
    let attacked = AttackedServer::start(Setup { config, ..Setup::default() }).await;
    let share = 100;
    let (mut reads, mut writes) = connect(attacked.process.grpc).await.unwrap().into_split();
    let number = |at: u32| 2 * at + 1;
    let subscribed = (0..share).flat_map(|at| {
        let stream = number(at);
        [half_call(stream, SUBSCRIBE), data(stream, &[], false)].concat()
    });
    let beyond = (share..share + 20).flat_map(|at| call_with(number(at), WATCH, &watch()));
    writes.write_all(&[opening(0), subscribed.chain(beyond).collect()].concat()).await.unwrap();
    let (mut frames, mut buffer, mut ended) = (FrameReader::default(), vec![0; 64 << 10], 0);
    while ended < 20 {
        let read = within("watches", reads.read(&mut buffer)).await.unwrap();
        assert!(read > 0, "the connection stays open");
        ended += frames.read(&buffer[..read]).iter().filter(|frame| frame.is_end()).count();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denied_calls_again_and_again_leave_few_lines_with_their_number() {
    let config = "history: { events: 10000 }\nquotas: { streams: 5 }\naudit: { file: audit.log }";
    let attacked = AttackedServer::start(Setup { config, ..Setup::default() }).await;
    let mut opened = open(&attacked, 1, 5, |stream| call_with(stream, WATCH, &watch())).await;
    attacked.until("denied", |counts| counts.watchers == 6).await;
    let list = pb::ListRequest { resource: "s".to_owned(), ..Default::default() };
    let calls = number(1000, 100_000);
    for _ in 0..calls {
        let stream = opened[0].next_stream();
        opened[0].send(call_with(stream, LIST, &list)).await;
    }
    attacked.process.refused(["quota_streams"], calls).await;
    attacked.serves("denied").await;
    drop(opened);
    attacked.recovers("denied").await;
    // The last line follows a second later.
    let lines = loop {
        let text = fs::read_to_string(attacked.directory.path().join("audit.log")).unwrap();
        let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        let denied: Vec<Value> = lines.into_iter().filter(|line| line["event"] == "denied").collect();
        let counted: u64 = denied.iter().map(|line| line["calls"].as_u64().unwrap_or(1)).sum();
        if counted == calls {
            break denied;
        }
        attacked.reads("denied", 1).await;
    };
    assert!((lines.len() as u64) < calls / 10, "{} lines", lines.len());
    assert!(lines.iter().all(|line| line["reason"] == "QUOTA_EXCEEDED" && line["method"] == "List"), "{lines:?}");
}
