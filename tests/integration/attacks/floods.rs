//! Twenty floods of HTTP/2 frames, each repeated as fast as one client can send it.
//!
//! | flood | its end |
//! |---|---|
//! | rapid reset of Watches, of Lists, of HEADERS alone | GOAWAY 11: too many resets |
//! | calls with a WINDOW_UPDATE of 0 ("MadeYouReset") | GOAWAY 1 |
//! | streams beyond the limit | GOAWAY 11: too many resets by the server |
//! | CONTINUATION without end; empty CONTINUATION | GOAWAY 11 |
//! | headers of 1 MB; headers that decompress to 60 MB | GOAWAY 9; GOAWAY 11 |
//! | SETTINGS, PING; the same, and the client does not read the answers | none: answers are bounded, and the server reads nothing meanwhile |
//! | DATA of 0 bytes, of 1 byte with padding | GOAWAY 11, or 3 when the padding has used up the window |
//! | PRIORITY, WINDOW_UPDATE of 1, unknown frames, RST_STREAM of a closed stream | none |
//! | a window of more than 2^31 - 1 | GOAWAY 3 |

use std::{collections::BTreeMap, net::SocketAddr, time::Duration};

use informerd::proto::pb;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    time::Instant,
};

use super::{
    attacked_server::{AttackedServer, Setup, watch},
    client::connect,
    frames::{
        CANCEL, CONTINUATION, DATA, END_HEADERS, END_STREAM, FrameReader, HEADERS, LIST, MAX_PAYLOAD, MAX_WINDOW,
        PADDED, PING, PRIORITY, UNKNOWN, WATCH, call_with, frame, get, half_call, heads, indexed_literal, literal,
        opening, reset, settings, window_update,
    },
    number,
};
use crate::sandbox::DEADLINE;

struct Flood {
    name: &'static str,
    /// Bytes sent once, at the beginning of each connection.
    first: Vec<u8>,
    block: Block,
    /// True if the client reads what the server sends.
    is_read: bool,
    /// Codes of the GOAWAY with which the server closes the connection; empty if it does not.
    ends: &'static [u32],
}

/// Bytes that the client sends repeatedly.
enum Block {
    /// The same bytes each time.
    Same(Vec<u8>),
    /// Bytes for a new stream, made from its number; the count is the number of streams per write.
    Streams(u32, Box<dyn Fn(u32) -> Vec<u8> + Send + Sync>),
}

/// End of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum End {
    GoAway(u32),
    /// Closed without a GOAWAY, or the GOAWAY was lost with the connection.
    Closed,
    /// Still open when the time was over.
    Open,
}

const PROTOCOL_ERROR: &[u32] = &[1];
const FLOW_CONTROL_ERROR: &[u32] = &[3];
const COMPRESSION_ERROR: &[u32] = &[9];
const ENHANCE_YOUR_CALM: &[u32] = &[11];
/// Codes of floods that reach one of two limits first: padding counts against the window.
const CALM_OR_FLOW_CONTROL: &[u32] = &[11, 3];

/// Number of frames in one write.
const FRAMES: usize = 1000;

fn streams(per_write: u32, of: impl Fn(u32) -> Vec<u8> + Send + Sync + 'static) -> Block {
    Block::Streams(per_write, Box::new(of))
}

fn repeated(bytes: &[u8]) -> Block {
    Block::Same(bytes.repeat(FRAMES))
}

/// Returns a flood that the server ends with one of these codes.
fn ended(name: &'static str, ends: &'static [u32], first: Vec<u8>, block: Block) -> Flood {
    Flood { name, first, block, is_read: true, ends }
}

/// Returns a flood that the server tolerates.
fn tolerated(name: &'static str, first: Vec<u8>, block: Block) -> Flood {
    Flood { name, first, block, is_read: true, ends: &[] }
}

/// Returns headers of about 1 MB, in as many frames as they need.
fn large_heads(stream: u32) -> Vec<u8> {
    let fields = (0..250).flat_map(|at| literal(&format!("x-a{at}"), &"v".repeat(4000)));
    let block: Vec<u8> = heads(WATCH).into_iter().chain(fields).collect();
    let last = block.len().div_ceil(MAX_PAYLOAD) - 1;
    let frames = block.chunks(MAX_PAYLOAD).enumerate().flat_map(|(at, piece)| {
        let kind = if at == 0 { HEADERS } else { CONTINUATION };
        frame(kind, if at == last { END_HEADERS } else { 0 }, stream, piece)
    });
    frames.collect()
}

/// Returns HEADERS of 16 KiB, of which nearly every byte encodes a field of 4 KiB.
fn bomb(stream: u32) -> Vec<u8> {
    const NEWEST_FIELD: u8 = 0x80 | 0x3e;
    let mut block = heads(WATCH);
    block.extend(indexed_literal("x", &"v".repeat(3900)));
    block.resize(MAX_PAYLOAD, NEWEST_FIELD);
    frame(HEADERS, END_HEADERS, stream, &block)
}

fn floods() -> Vec<Flood> {
    let list = || pb::ListRequest { resource: "s".to_owned(), ..Default::default() };
    let unended = || frame(HEADERS, 0, 1, &heads(WATCH));
    let half = || half_call(1, WATCH);
    let settings = settings(65_535);
    let ping = frame(PING, 0, 0, b"12345678");
    let filler = literal("x-a", &"v".repeat(16_000));
    let padded = [&[255, b'x'][..], &[0; 255]].concat();
    let priority = [&3_u32.to_be_bytes()[..], &[1]].concat();
    #[rustfmt::skip]
    let mut floods = vec![
        ended("rapid reset of Watches", ENHANCE_YOUR_CALM, vec![], streams(100, move |stream| [call_with(stream, WATCH, &watch()), reset(stream, CANCEL)].concat())),
        ended("rapid reset of Lists", ENHANCE_YOUR_CALM, vec![], streams(100, move |stream| [call_with(stream, LIST, &list()), reset(stream, CANCEL)].concat())),
        ended("rapid reset of HEADERS", ENHANCE_YOUR_CALM, vec![], streams(100, |stream| [half_call(stream, WATCH), reset(stream, CANCEL)].concat())),
        ended("MadeYouReset", PROTOCOL_ERROR, vec![], streams(100, |stream| [call_with(stream, WATCH, &watch()), window_update(stream, 0)].concat())),
        ended("streams beyond the limit", ENHANCE_YOUR_CALM, vec![], streams(200, |stream| call_with(stream, WATCH, &watch()))),
        ended("CONTINUATION without end", ENHANCE_YOUR_CALM, unended(), Block::Same(frame(CONTINUATION, 0, 1, &filler))),
        ended("empty CONTINUATION", ENHANCE_YOUR_CALM, unended(), repeated(&frame(CONTINUATION, 0, 1, &[]))),
        ended("headers of 1 MB", COMPRESSION_ERROR, vec![], streams(1, large_heads)),
        ended("headers that decompress to 60 MB", ENHANCE_YOUR_CALM, vec![], streams(1, bomb)),
        tolerated("SETTINGS", vec![], repeated(&settings)),
        tolerated("PING", vec![], repeated(&ping)),
        ended("DATA of 0 bytes", ENHANCE_YOUR_CALM, half(), repeated(&frame(DATA, 0, 1, &[]))),
        ended("DATA of 1 byte, padded", CALM_OR_FLOW_CONTROL, half(), Block::Same(frame(DATA, PADDED, 1, &padded).repeat(20))),
        tolerated("PRIORITY", vec![], repeated(&frame(PRIORITY, 0, 5, &priority))),
        tolerated("WINDOW_UPDATE of 1", call_with(1, WATCH, &watch()), repeated(&window_update(1, 1))),
        ended("window overflow", FLOW_CONTROL_ERROR, half(), Block::Same(window_update(0, MAX_WINDOW).repeat(2))),
        tolerated("unknown frames", vec![], repeated(&frame(UNKNOWN, 0, 0, b"x-x-x-x-"))),
        tolerated("RST_STREAM of a closed stream", half(), repeated(&reset(1, CANCEL))),
    ];
    for (name, bytes) in [("SETTINGS, answers unread", settings), ("PING, answers unread", ping)] {
        floods.push(Flood { is_read: false, ..tolerated(name, vec![], repeated(&bytes)) });
    }
    floods
}

/// Sends a flood over one connection until the server ends it, or until a point in time.
async fn send(flood: &Flood, server: SocketAddr, until: Instant) -> End {
    let Ok(stream) = connect(server).await else { return End::Closed };
    let (mut reads, mut writes) = stream.into_split();
    let sending = async {
        let first = [opening(MAX_WINDOW), flood.first.clone()].concat();
        let mut is_open = writes.write_all(&first).await.is_ok();
        let mut next = 1;
        while is_open {
            let bytes = match &flood.block {
                Block::Same(bytes) => bytes.clone(),
                Block::Streams(per_write, of) => {
                    let streams = (next..).step_by(2).take(*per_write as usize);
                    next += 2 * per_write;
                    streams.flat_map(of).collect()
                }
            };
            is_open = writes.write_all(&bytes).await.is_ok();
        }
        std::future::pending().await
    };
    let reading = async {
        if !flood.is_read {
            std::future::pending::<()>().await;
        }
        let (mut frames, mut buffer) = (FrameReader::default(), vec![0; 64 << 10]);
        while let Ok(read @ 1..) = reads.read(&mut buffer).await {
            if let Some(code) = frames.read(&buffer[..read]).iter().find_map(super::frames::Frame::goaway) {
                return End::GoAway(code);
            }
        }
        End::Closed
    };
    tokio::select! {
        end = reading => end,
        end = sending => end,
        () = tokio::time::sleep_until(until) => End::Open,
    }
}

/// Repeats a flood for some time, and until one connection has ended as expected.
async fn pour(flood: &Flood, server: SocketAddr, time: Duration) -> BTreeMap<End, usize> {
    let (until, deadline) = (Instant::now() + time, Instant::now() + DEADLINE);
    let mut ends = BTreeMap::new();
    loop {
        let is_awaited = !flood.ends.is_empty() && !ends.keys().any(|end| flood.ends_with(*end));
        let until = if is_awaited { deadline } else { until };
        if Instant::now() >= until {
            return ends;
        }
        *ends.entry(send(flood, server, until).await).or_default() += 1;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_frames_are_tolerated_or_ended_and_affect_no_other_client() {
    let attacked = AttackedServer::start(Setup { config: "history: { events: 10000 }", ..Setup::default() }).await;
    let time = Duration::from_millis(number(100, 4000));
    let floods = floods();
    assert_eq!(floods.len(), 20);
    let mut unexpected = Vec::new();
    for flood in &floods {
        let attack = flood.name;
        let (ends, ()) = tokio::join!(pour(flood, attacked.process.grpc, time), attacked.serves(attack));
        // A GOAWAY may be lost with its connection.
        let is_known = |end: &End| flood.ends_with(*end) || !flood.ends.is_empty() && !matches!(end, End::GoAway(_));
        if !ends.keys().any(|end| flood.ends_with(*end)) || !ends.keys().all(is_known) {
            unexpected.push((attack, ends));
        }
        attacked.recovers(attack).await;
    }
    assert!(unexpected.is_empty(), "{unexpected:?}");
}

/// None has an end of its own there: calls of gRPC are refused before their bodies.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn floods_of_the_kubernetes_listener_affect_no_other_client() {
    let config = "history: { events: 10000 }\nkubernetes: { listen: '127.0.0.1:0' }";
    let attacked = AttackedServer::start(Setup { config, ..Setup::default() }).await;
    let server = attacked.process.kubernetes();
    let time = Duration::from_millis(number(50, 2000));
    let list = |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &get("/v1/s"));
    let watch = |stream| frame(HEADERS, END_HEADERS | END_STREAM, stream, &get("/v1/s/watch"));
    let review = |stream| half_call(stream, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews");
    #[rustfmt::skip]
    let of_rest = [
        tolerated("rapid reset of lists", vec![], streams(100, move |stream| [list(stream), reset(stream, CANCEL)].concat())),
        tolerated("rapid reset of watches", vec![], streams(100, move |stream| [watch(stream), reset(stream, CANCEL)].concat())),
        tolerated("lists beyond the limit", vec![], streams(200, list)),
        tolerated("watches beyond the limit", vec![], streams(200, watch)),
        tolerated("reviews without a body", vec![], streams(200, review)),
        tolerated("a review of empty frames", review(1), repeated(&frame(DATA, 0, 1, &[]))),
    ];
    for flood in floods().into_iter().map(|flood| Flood { ends: &[], ..flood }).chain(of_rest) {
        let attack = flood.name;
        tokio::join!(pour(&flood, server, time), attacked.serves(attack)).1;
        attacked.recovers(attack).await;
    }
}

// === impl Flood ===

impl Flood {
    /// Returns true if a connection may end so.
    fn ends_with(&self, end: End) -> bool {
        match end {
            End::GoAway(code) => self.ends.contains(&code),
            End::Open => self.ends.is_empty(),
            End::Closed => false,
        }
    }
}
