//! Connections that send nothing, stop in the middle, or continue too slowly, at the gRPC and the admin port and from two
//! addresses; connections that are opened and closed in quick succession; and exhausted file descriptors.

use std::{fs, net::SocketAddr, time::Duration};

use rustix::process::{Pid, Resource, Rlimit, prlimit};
use tempfile::TempDir;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    task::JoinSet,
};

use super::{
    attacked_server::{AttackedServer, Setup, certified, within},
    client::{ATTACKER, connect},
    frames::{DATA, HEADERS, MAX_WINDOW, PREFACE, WATCH, frame, half_call, heads, opening},
    number,
};
use crate::process::{Process, connect_from};

/// Connection that stays open without being used.
struct Idle {
    name: &'static str,
    /// Bytes sent at once.
    first: Vec<u8>,
    /// Bytes sent repeatedly, each after a pause.
    slowly: &'static [u8],
    /// Reason under which the server counts the closed connection.
    reason: &'static str,
    is_admin: bool,
}

/// Pause between two bytes of a slow connection.
const PAUSE: Duration = Duration::from_millis(50);
const ADDRESSES: [[u8; 4]; 2] = [[127, 0, 0, 1], ATTACKER];

fn idle() -> Vec<Idle> {
    let grpc =
        |name, first: &[&[u8]], slowly, reason| Idle { name, first: first.concat(), slowly, reason, is_admin: false };
    let admin = |name, first: &[u8], slowly| Idle {
        name,
        first: first.to_vec(),
        slowly,
        reason: "admin_timeout",
        is_admin: true,
    };
    let (opened, half) = (opening(MAX_WINDOW), half_call(1, WATCH));
    let unended = frame(HEADERS, 0, 1, &heads(WATCH));
    // Head of a frame of 10,000 bytes.
    let endless = &frame(HEADERS, 0, 1, &[0; 10_000])[..9];
    // Head of a message of 1,000 bytes.
    let message = frame(DATA, 0, 1, &[0, 0, 0, 3, 232]);
    vec![
        grpc("nothing", &[], b"", "preface_timeout"),
        grpc("half of a preface", &[&PREFACE[..10]], b"", "preface_timeout"),
        grpc("half of a frame's head", &[&opened, &[0, 0, 8]], b"", "headers_timeout"),
        grpc("HEADERS without their end", &[&opened, &unended], b"", "headers_timeout"),
        grpc("HEADERS a byte at a time", &[&opened, endless], b"\0", "headers_timeout"),
        grpc("no message", &[&opened, &half], b"", "request_timeout"),
        grpc("half of a message", &[&opened, &half, &message], b"", "request_timeout"),
        grpc("a message a byte at a time", &[&opened, &half, &message], b"\0\0\x01\0\0\0\0\0\x01x", "request_timeout"),
        admin("nothing", b"", b""),
        admin("half of a head", b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-A: ", b""),
        admin("a head a byte at a time", b"GET /metrics HTTP/1.1\r\nHost: x\r\nX-A: ", b"x"),
    ]
}

/// Keeps a connection until the server closes it.
async fn keep(mut stream: TcpStream, first: Vec<u8>, slowly: &'static [u8]) {
    let (mut reads, mut writes) = stream.split();
    let writing = async {
        let mut is_open = writes.write_all(&first).await.is_ok();
        while is_open && !slowly.is_empty() {
            tokio::time::sleep(PAUSE).await;
            is_open = writes.write_all(slowly).await.is_ok();
        }
        std::future::pending::<()>().await;
    };
    let reading = async {
        let mut buffer = [0; 1024];
        while reads.read(&mut buffer).await.is_ok_and(|read| read > 0) {}
    };
    tokio::select! {
        () = reading => {}
        () = writing => {}
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_are_silent_or_slow_are_closed_and_counted() {
    let attacked = AttackedServer::start(Setup { config: "limits: { request_timeout: 1s }", ..Setup::default() }).await;
    let each = number(2, 500) as usize;
    // The admin port closes its oldest connections when more are opened.
    let at_admin = 2;
    let mut kept = JoinSet::new();
    let mut expected = std::collections::BTreeMap::new();
    for idle in idle() {
        let (server, connections) =
            if idle.is_admin { (attacked.process.admin, at_admin) } else { (attacked.process.grpc, each) };
        for host in ADDRESSES {
            for _ in 0..connections {
                let stream = connect_from(host, server).await.unwrap_or_else(|error| panic!("{}: {error}", idle.name));
                kept.spawn(keep(stream, idle.first.clone(), idle.slowly));
            }
            *expected.entry(idle.reason).or_default() += connections as u64;
        }
    }
    attacked.serves("silent and slow connections").await;
    within("silent and slow connections", kept.join_all()).await;
    for (reason, expected) in expected {
        assert_eq!(attacked.process.refused([reason], expected).await, [expected], "{reason}");
    }
    attacked.recovers("silent and slow connections").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_connections_leave_nothing_behind() {
    let attacked = AttackedServer::start(Setup::default()).await;
    for (attack, first, is_cut) in [
        ("connections that are closed", &b""[..], false),
        ("connections that are reset", b"", true),
        ("connections that are closed after the preface", &opening(MAX_WINDOW), false),
    ] {
        let come_and_go = async {
            for _ in 0..number(100, 10_000) {
                let mut stream = connect_from(ATTACKER, attacked.process.grpc).await.unwrap();
                stream.write_all(first).await.unwrap();
                if is_cut {
                    socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
                }
            }
        };
        tokio::join!(come_and_go, attacked.serves(attack));
        attacked.recovers(attack).await;
    }
}

/// Opens this many connections from an address, and sends nothing on them.
async fn silent(server: SocketAddr, host: [u8; 4], connections: usize) -> Vec<TcpStream> {
    let mut silent = Vec::new();
    for _ in 0..connections {
        silent.push(connect_from(host, server).await.unwrap());
    }
    silent
}

/// More connections than the process may have open files, from many addresses and at both ports: the reserved descriptors are
/// enough for probes, existing connections, and files.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_limit_of_connections_there_are_descriptors_left() {
    const OPEN_FILES: usize = 256;
    let config = "limits: { request_timeout: 5m, peer_share: 100 }";
    let attacked = AttackedServer::start(Setup { config, open_files: Some(OPEN_FILES), ..Setup::default() }).await;
    let client = attacked.client().await;
    let mut held = silent(attacked.process.grpc, ATTACKER, 600).await;
    held.extend(silent(attacked.process.admin, ATTACKER, 100).await);
    let refused = attacked.process.refused(["connections", "peer_connections"], 400).await;
    assert!(refused.iter().sum::<u64>() >= 400, "{refused:?}");
    for _ in 0..10 {
        assert!(attacked.process.get("/livez").await.ends_with("ok\n"));
        assert!(attacked.process.open_files() < OPEN_FILES);
    }
    attacked.reads("every connection is taken", 100).await;
    assert_eq!(attacked.process.metrics().await.refused("accept_failed"), 0, "none was without a descriptor");
    drop((held, client));
    attacked.recovers("every connection was taken").await;
}

/// Takes the server's unused descriptors away but for a few, and connects more clients than that to one port.
async fn exhaust(at_admin: bool) {
    const LEFT: usize = 6;
    const CONNECTIONS: usize = 20;
    let config = "limits: { request_timeout: 500ms }";
    let attacked = AttackedServer::start(Setup { config, open_files: Some(256), ..Setup::default() }).await;
    let id = Pid::from_raw(attacked.process.id().cast_signed());
    let limit = |open_files: usize| Rlimit { current: Some(open_files as u64), maximum: Some(256) };
    prlimit(id, Resource::Nofile, limit(attacked.process.open_files() + LEFT)).unwrap();
    let server = if at_admin { attacked.process.admin } else { attacked.process.grpc };
    let mut kept = JoinSet::new();
    for stream in silent(server, ATTACKER, CONNECTIONS).await {
        kept.spawn(keep(stream, Vec::new(), b""));
    }
    // Connected clients notice nothing; the server accepts each silent connection in turn, and closes it.
    attacked.reads("no descriptors", 20).await;
    within("no descriptors", kept.join_all()).await;
    attacked.serves("no descriptors").await;
    let metrics = attacked.process.metrics().await;
    assert!(metrics.refused("accept_failed") > 0, "there were none");
    let reason = if at_admin { "admin_timeout" } else { "preface_timeout" };
    assert_eq!(metrics.refused(reason), CONNECTIONS as u64, "none is forgotten");
    prlimit(id, Resource::Nofile, limit(256)).unwrap();
    attacked.recovers("descriptors are back").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn accepting_resumes_when_descriptors_are_free_again() {
    exhaust(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn probes_are_answered_when_descriptors_are_free_again() {
    exhaust(true).await;
}

/// Nothing was requested over a connection whose handshake or preface is not complete.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_send_nothing_do_not_make_the_drain_time_out() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("informerd.yml");
    certified(directory.path());
    let resource = "resources: { s: { source: { stream: { path: '-' } } } }\nkubernetes: { listen: '127.0.0.1:0' }";
    for tls in ["", "tls: { cert: tls.crt, key: tls.key }"] {
        fs::write(&path, format!("{resource}\n{tls}\n")).unwrap();
        let process = Process::start(&["--config", path.to_str().unwrap()], None);
        let before = process.open_files();
        let silent = [connect(process.grpc).await.unwrap(), connect(process.kubernetes()).await.unwrap()];
        let accepted = async {
            while process.open_files() < before + silent.len() {
                tokio::task::yield_now().await;
            }
        };
        within("silence", accepted).await;
        let (status, log) = process.terminate_with_log().await;
        assert!(status.success() && !log.contains("drain timed out"), "{log}");
        drop(silent);
    }
}
