//! Subscribe streams of one client: watches that it pauses for ever under each policy, and requests again and again, with and without
//! reading the answers.

use std::time::Duration;

use informerd::proto::pb::{self, FullChannelPolicy, admin_service_client::AdminServiceClient};
use prost::Message;
use tokio::time::Instant;

use super::{
    attacked_server::{AttackedServer, Setup, subscribe, watch, within},
    client::Raw,
    frames::{MAX_WINDOW, SUBSCRIBE, data, half_call},
    number,
};
use crate::sandbox::queue;

/// Requests that a client sends again and again on a stream.
struct Requests {
    name: &'static str,
    /// Requests of a round.
    round: fn(u32) -> Vec<pb::SubscribeRequest>,
}

const BLOCK_TIMEOUT: Duration = Duration::from_millis(500);
const CONFIG: &str = "history: { events: 10000, bytes: 4MiB }\n\
    watch: { progress_timeout: 1s, block_timeout: 500ms }\nlimits: { memory: 64MiB }";
/// Watches that are opened in one request.
const AT_ONCE: u32 = 10;

/// Opens a stream; further requests follow with [`send`].
async fn open(connection: &mut Raw) -> u32 {
    let stream = connection.next_stream();
    connection.send(half_call(stream, SUBSCRIBE)).await;
    stream
}

async fn send(connection: &Raw, stream: u32, request: &pb::SubscribeRequest) {
    connection.send(data(stream, &request.encode_to_vec(), false)).await;
}

/// Returns the ids of a round.
fn ids(round: u32) -> impl Iterator<Item = u32> {
    (1..=AT_ONCE).map(move |at| round * AT_ONCE + at)
}

/// Returns a request to open these watches in a round.
fn opening(round: u32, watch: impl Fn() -> pb::WatchRequest) -> pb::SubscribeRequest {
    let open = ids(round).map(|id| pb::OpenWatch { id, watch: Some(watch()) }).collect();
    pb::SubscribeRequest { open, ..Default::default() }
}

fn kinds() -> Vec<Requests> {
    vec![
        Requests {
            name: "watches that are closed again",
            round: |round| {
                let close = pb::SubscribeRequest { close: ids(round).collect(), ..Default::default() };
                vec![opening(round, watch), close]
            },
        },
        Requests {
            name: "watches of the same ids",
            round: |_| {
                let close = pb::SubscribeRequest { close: ids(0).collect(), ..Default::default() };
                vec![opening(0, watch), close]
            },
        },
        Requests {
            name: "watches that are refused",
            round: |round| {
                vec![opening(round, || pb::WatchRequest { label_selector: "no selector!".to_owned(), ..watch() })]
            },
        },
        Requests {
            name: "watches of resources that do not exist",
            round: |round| vec![opening(round, || pb::WatchRequest { resource: "x".repeat(200), ..watch() })],
        },
        Requests {
            name: "pauses and closes of ids that do not exist",
            round: |round| {
                let ids: Vec<u32> = ids(round).collect();
                let (close, pause) = (ids.clone(), ids.clone());
                vec![pb::SubscribeRequest { close, pause, resume: ids, ..Default::default() }]
            },
        },
    ]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_again_and_again_do_not_affect_others() {
    let attacked = AttackedServer::start(Setup { config: CONFIG, ..Setup::default() }).await;
    for Requests { name, round } in kinds() {
        for (window, way) in [(MAX_WINDOW, "read"), (0, "not read")] {
            let attack = format!("{name}, {way}");
            let mut connection = Raw::open(attacked.process.grpc, window).await;
            let stream = open(&mut connection).await;
            let rounds = number(100, 5000) as u32;
            let sending = async {
                for at in 0..rounds {
                    for request in round(at) {
                        send(&connection, stream, &request).await;
                    }
                    if at % 10 == 0 {
                        attacked.reads(&attack, 1).await;
                    }
                }
            };
            tokio::select! {
                // The server reads no more of a client that does not read.
                biased;
                () = sending => {}
                () = attacked.reads(&attack, number(100, 10_000)), if window == 0 => {}
            }
            attacked.serves(&attack).await;
            drop(connection);
            attacked.recovers(&attack).await;
        }
    }
}

/// Pauses watches under each policy and never resumes them. Under BLOCK the server waits for them no longer than for a client that
/// does not read, and ends them; the others stay, and hold no more than their queues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_watches_delay_others_only_for_their_budget() {
    let attack = "paused watches";
    let attacked = AttackedServer::start(Setup { config: CONFIG, ..Setup::default() }).await;
    let began = Instant::now();
    let mut connection = Raw::open(attacked.process.grpc, MAX_WINDOW).await;
    let watches = number(20, 500);
    let policies =
        [FullChannelPolicy::Drop, FullChannelPolicy::Replay, FullChannelPolicy::Coalesce, FullChannelPolicy::Block];
    let mut streams = Vec::new();
    for policy in policies {
        let stream = open(&mut connection).await;
        streams.push(stream);
        let of_policy = || pb::WatchRequest { queue: Some(queue(policy, 16)), ..watch() };
        send(&connection, stream, &subscribe((0..watches).map(|_| of_policy()))).await;
    }
    attacked.until(attack, |counts| counts.watchers == 1 + 4 * watches).await;
    // The server waits for a client that has read as many events as its queue is long.
    attacked.reads(attack, 100).await;
    let ids: Vec<u32> = (1..=watches as u32).collect();
    for stream in &streams {
        send(&connection, *stream, &pb::SubscribeRequest { pause: ids.clone(), ..Default::default() }).await;
    }
    attacked.reads(attack, number(200, 10_000)).await;
    attacked.until(attack, |counts| counts.watchers == 1 + 3 * watches).await;
    let blocked = attacked.process.metrics().await.sum("informerd_watch_blocked_seconds_total");
    // A timer that fires late adds to the time.
    assert!(Duration::from_secs_f64(blocked) < 2 * BLOCK_TIMEOUT + began.elapsed() / 10, "{blocked} s");
    attacked.serves(attack).await;
    let sent = async || {
        let mut admin = AdminServiceClient::connect(attacked.process.address()).await.unwrap();
        let found = admin.list_watchers(pb::ListWatchersRequest::default()).await.unwrap().into_inner().watchers;
        let paused = found.into_iter().filter(|watcher| watcher.watch_id > 0);
        paused.map(|watcher| watcher.sent).collect::<Vec<_>>()
    };
    let before = sent().await;
    assert_eq!(before.len() as u64, 3 * watches);
    for stream in streams {
        send(&connection, stream, &pb::SubscribeRequest { resume: ids.clone(), ..Default::default() }).await;
    }
    let are_sent = async {
        while sent().await.iter().zip(&before).any(|(sent, before)| sent <= before) {
            attacked.reads(attack, 1).await;
        }
    };
    within(attack, are_sent).await;
    attacked.serves(attack).await;
    drop(connection);
    attacked.recovers(attack).await;
}
