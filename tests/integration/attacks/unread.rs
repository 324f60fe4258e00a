//! Clients that never read, under each policy: the server closes them and releases their memory while their sockets stay open.

use std::time::Duration;

use informerd::proto::pb::{self, FullChannelPolicy};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    task::JoinSet,
    time::Instant,
};

use super::{
    attacked_server::{AttackedServer, Setup, subscribe, watch, within},
    client::{Raw, connect_small},
    frames::{CANCEL, MAX_WINDOW, SUBSCRIBE, WATCH, call_with, opening, reset},
    number,
};
use crate::sandbox::queue;

/// Way in which a client does not read.
#[derive(Debug, Clone, Copy)]
enum Mode {
    /// The client never reads its socket.
    Socket,
    /// The client reads a byte now and then, which does not open the TCP window.
    Trickle,
    /// The client reads its socket, but keeps the HTTP/2 window closed.
    Window,
}

const POLICIES: [FullChannelPolicy; 4] =
    [FullChannelPolicy::Drop, FullChannelPolicy::Block, FullChannelPolicy::Replay, FullChannelPolicy::Coalesce];
/// Pause between two bytes.
const TRICKLE: Duration = Duration::from_millis(200);
const BLOCK_TIMEOUT: Duration = Duration::from_millis(500);

fn request(policy: FullChannelPolicy, length: u32) -> pb::WatchRequest {
    pb::WatchRequest { queue: Some(queue(policy, length)), ..watch() }
}

/// Returns the number of calls of Watch and Subscribe ever opened.
async fn opened(attacked: &AttackedServer) -> u64 {
    let metrics = attacked.process.metrics().await;
    let calls = ["Watch", "Subscribe"].map(|method| {
        let service = "grpc_server_started_total{grpc_service=\"informerd.v1.InformerService\"";
        metrics.sum(&format!("{service},grpc_method=\"{method}\"")) as u64
    });
    calls.iter().sum()
}

/// Opens connections, each with a Watch or with a Subscribe of several watches, and keeps them unread until the set is dropped.
async fn open(attacked: &AttackedServer, mode: Mode, policy: FullChannelPolicy, clients: u64) -> JoinSet<()> {
    let mut open = JoinSet::new();
    let watch = || request(policy, 16);
    let calls = [call_with(1, WATCH, &watch()), call_with(1, SUBSCRIBE, &subscribe((0..3).map(|_| watch())))];
    for call in calls.iter().cycle().take(clients as usize) {
        if let Mode::Window = mode {
            let mut raw = Raw::open(attacked.process.grpc, 0).await;
            raw.send(call.clone()).await;
            open.spawn(async move { raw.closed().await });
            continue;
        }
        let mut stream = connect_small(attacked.process.grpc).await.unwrap();
        stream.write_all(&[opening(MAX_WINDOW), call.clone()].concat()).await.unwrap();
        open.spawn(async move {
            if let Mode::Trickle = mode {
                let mut byte = [0; 1];
                while stream.read(&mut byte).await.is_ok_and(|read| read > 0) {
                    tokio::time::sleep(TRICKLE).await;
                }
            }
            // The socket stays open.
            std::future::pending::<()>().await;
            drop(stream);
        });
    }
    open
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_never_read_are_closed_under_every_policy() {
    let config = "history: { events: 10000, bytes: 4MiB }\nwatch: { progress_timeout: 1s, block_timeout: 500ms }";
    let attacked = AttackedServer::start(Setup { config, ..Setup::default() }).await;
    let clients = number(3, 1000);
    for mode in [Mode::Socket, Mode::Trickle, Mode::Window] {
        // The nightly runs one policy after the other.
        let rounds: Vec<&[FullChannelPolicy]> =
            if clients > 3 { POLICIES.chunks(1).collect() } else { vec![&POLICIES] };
        for policies in rounds {
            let attack = format!("clients that do not read ({mode:?}) under {policies:?}");
            let (before, mut held) = (opened(&attacked).await, Vec::new());
            for policy in policies {
                held.push(open(&attacked, mode, *policy, clients).await);
            }
            let expected = before + clients * policies.len() as u64;
            let is_begun = async {
                while opened(&attacked).await < expected {
                    attacked.reads(&attack, 1).await;
                }
            };
            within(&attack, is_begun).await;
            attacked.serves(&attack).await;
            attacked.recovers(&attack).await;
            // The sockets stay open until here.
            drop(held);
        }
    }
}

/// Each client reads as many events as its queue holds, so that it may block the resource, and then no more. The server cancels
/// it, and the next client takes its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_under_block_that_reconnect_delay_the_resource_only_for_their_budget() {
    let attack = "BLOCK again and again";
    let config = "watch: { block_timeout: 500ms }\nhistory: { events: 10000 }";
    let attacked = AttackedServer::start(Setup { config, ..Setup::default() }).await;
    let began = Instant::now();
    // Window for several events: the server waits only for a client that has once had everything, and on a busy machine events come
    // several at a time.
    let mut connection = Raw::open(attacked.process.grpc, 10_000).await;
    let mut open = std::collections::VecDeque::new();
    let blocked =
        async || Duration::from_secs_f64(attacked.process.metrics().await.sum("informerd_watch_blocked_seconds_total"));
    let clients = number(40, 1200);
    for client in 0..10 * clients {
        // On a busy machine the events may be over before a watch has begun: then more clients come.
        if client >= clients && !blocked().await.is_zero() {
            break;
        }
        let stream = connection.next_stream();
        connection.send(call_with(stream, WATCH, &request(FullChannelPolicy::Block, 1))).await;
        open.push_back(stream);
        if open.len() > 20 {
            connection.send(reset(open.pop_front().unwrap(), CANCEL)).await;
        }
        attacked.reads(attack, 5).await;
    }
    let blocked = blocked().await;
    assert!(blocked > Duration::ZERO, "they were waited for; the connection has ended: {}", connection.has_ended());
    // A timer that fires late adds to the time.
    assert!(blocked < 2 * BLOCK_TIMEOUT + began.elapsed() / 10, "{blocked:?} of {:?}", began.elapsed());
    attacked.serves(attack).await;
    drop(connection);
    attacked.recovers(attack).await;
}
