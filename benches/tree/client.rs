//! Clients of the tree: watches on many connections, which move to another relay when theirs is lost or drains.
//!
//! ```text
//!   relays ──▶ connections ──▶ Watch { last sequence number, last version, sum } ──▶ Counters, read by the main thread
//!     ▲                │ lost, or its server drains
//!     └── after a random time: another relay, from the last version
//! ```
//!
//! One thread drives half of them. Each event has a sequence number of its own, without gaps: a watch that receives another than the next
//! one has missed or repeated an event.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream as StdTcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use informerd::proto::pb;
use mio::{Events, Interest, Poll, Token, net::TcpStream};
use parking_lot::Mutex;
use prost::Message;

use super::{
    frames::{self, FrameReader, Part},
    messages::{self, MessageKind, MessageReader},
    stats::Histogram,
};

/// Place of the clients.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    /// Ports of the relays.
    pub(super) relays: Vec<u16>,
    /// Connections to each relay at the start, and watches on each of them.
    pub(super) connections: usize,
    pub(super) watches: usize,
    /// Longest random time before a lost connection is replaced, and before a draining server is left.
    pub(super) jitter: Duration,
    /// One connection of this many has a slow link while [`Counters::is_slow`].
    pub(super) slow_one_in: usize,
    /// Sequence number of the newest event at the start.
    pub(super) began: u32,
}

/// Figures that all threads count together.
#[derive(Debug)]
pub(super) struct Counters {
    /// Number of watches by the last sequence number that they have, modulo the length.
    at: Box<[AtomicU32]>,
    pub(super) opened: AtomicU64,
    pub(super) delivered: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) missed: AtomicU64,
    pub(super) repeated: AtomicU64,
    /// Watches that were opened again at their last version, and those that the server refused to resume.
    pub(super) resumed: AtomicU64,
    pub(super) expired: AtomicU64,
    pub(super) connects_failed: AtomicU64,
    /// True while events may come in another order than they were written in: in a relist.
    pub(super) is_unordered: AtomicBool,
    pub(super) is_slow: AtomicBool,
    is_over: AtomicBool,
    latencies: Mutex<Histogram>,
    /// Texts of the first ends that were not expected.
    ends: Mutex<Vec<String>>,
}

/// Threads of the clients.
pub(super) struct Clients {
    pub(super) counters: Arc<Counters>,
    threads: Vec<JoinHandle<()>>,
}

/// Watch with what it has received.
#[derive(Debug, Default)]
struct Watch {
    version: Box<str>,
    last: u32,
    /// Number of events, and their sum: of all from the first to the last one if none is missing.
    count: u32,
    sum: u64,
    is_open: bool,
}

/// Call of a watch.
struct Call {
    watch: usize,
    reader: MessageReader,
    /// Bytes received, and not yet returned to its window.
    consumed: u32,
}

struct Connection {
    socket: TcpStream,
    relay: usize,
    frames: FrameReader,
    /// Calls by their numbers; none for one that has ended.
    calls: Vec<Option<Call>>,
    /// Calls that have not ended.
    open: usize,
    out: Vec<u8>,
    consumed: u32,
    /// Bytes that a slow link may read before it waits.
    credit: usize,
    is_slow: bool,
    is_leaving: bool,
}

/// Watches that have lost their connection, and the time at which they open another one.
struct Moving {
    at: Instant,
    watches: Vec<usize>,
    /// Relay to avoid, failed attempts, and whether the link is slow.
    from: usize,
    failures: u32,
    is_slow: bool,
}

struct Driver {
    plan: Plan,
    epoch: Instant,
    counters: Arc<Counters>,
    poll: Poll,
    connections: Vec<Option<Connection>>,
    watches: Vec<Watch>,
    moving: Vec<Moving>,
    unread: Vec<usize>,
    /// Since the last tick.
    latencies: Vec<u64>,
    random: fastrand::Rng,
    buffer: Box<[u8]>,
    delivered: u64,
}

/// Events of which the last ones are counted apart.
const RING: usize = 1 << 16;
/// Window of a connection and of each stream. A slow link has the smallest that HTTP/2 allows without a setting of its own.
const WINDOW: u32 = 1 << 20;
const SLOW_WINDOW: u32 = 65_535;
/// Bytes a second of a slow link.
const SLOW_BYTES: usize = 25_000;
const TICK: Duration = Duration::from_millis(20);
const READ_BYTES: usize = 256 << 10;
const READS: usize = 4;
const MAX_BACKOFF: Duration = Duration::from_secs(10);
/// Connections that a thread opens in one turn.
const AT_A_TIME: usize = 32;
/// Of so many deliveries one is timed.
const TIMED: u64 = 7;
/// Bytes at the end of a message in which its sequence number is.
const TAIL_BYTES: usize = 96;
/// Digits of the sequence number, the text between it and the time, and digits of the time.
pub(super) const SEQUENCE_DIGITS: usize = 10;
pub(super) const BETWEEN: &[u8] = b"\",\"sent\":\"";

// === impl Counters ===

impl Counters {
    fn new(watches: usize, began: u32) -> Self {
        let at: Box<[AtomicU32]> = (0..RING).map(|_| AtomicU32::new(0)).collect();
        at[began as usize % RING].store(watches as u32, Ordering::Relaxed);
        Self {
            at,
            opened: AtomicU64::new(0),
            delivered: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            missed: AtomicU64::new(0),
            repeated: AtomicU64::new(0),
            resumed: AtomicU64::new(0),
            expired: AtomicU64::new(0),
            connects_failed: AtomicU64::new(0),
            is_unordered: AtomicBool::new(false),
            is_slow: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            latencies: Mutex::new(Histogram::new()),
            ends: Mutex::default(),
        }
    }

    /// Returns the number of watches whose last event is this one.
    pub(super) fn have(&self, sequence: u32) -> usize {
        self.at[sequence as usize % RING].load(Ordering::Relaxed) as usize
    }

    pub(super) fn begin_latencies(&self) {
        self.latencies.lock().clear();
    }

    pub(super) fn latency(&self, share: f64) -> Option<Duration> {
        self.latencies.lock().quantile(share).map(Duration::from_nanos)
    }

    /// Returns the texts of unexpected ends since the last call.
    pub(super) fn take_ends(&self) -> Vec<String> {
        std::mem::take(&mut self.ends.lock())
    }

    fn note_end(&self, how: &str) {
        let mut ends = self.ends.lock();
        if ends.len() < 8 && !ends.iter().any(|known| known == how) {
            ends.push(how.to_owned());
        }
    }
}

// === impl Clients ===

impl Clients {
    /// Starts the clients in threads; the watches are open once [`Counters::opened`] has their number.
    pub(super) fn start(plan: &Plan, threads: usize, epoch: Instant) -> Self {
        let all = plan.relays.len() * plan.connections * plan.watches;
        let counters = Arc::new(Counters::new(all, plan.began));
        let threads = (0..threads).map(|thread| {
            let (plan, counters) = (plan.clone(), Arc::clone(&counters));
            std::thread::spawn(move || Driver::new(plan, epoch, counters, thread, threads).run())
        });
        Self { threads: threads.collect(), counters }
    }

    /// Stops the clients.
    pub(super) fn stop(self) {
        self.counters.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads {
            thread.join().expect("a thread of the clients ends");
        }
    }
}

// === impl Driver ===

impl Driver {
    fn new(plan: Plan, epoch: Instant, counters: Arc<Counters>, thread: usize, threads: usize) -> Self {
        let (mut watches, mut moving): (Vec<Watch>, Vec<Moving>) = (Vec::new(), Vec::new());
        let relays = plan.relays.len();
        for connection in (0..relays * plan.connections).filter(|connection| connection % threads == thread) {
            let first = watches.len();
            watches.extend((0..plan.watches).map(|_| Watch { last: plan.began, ..Watch::default() }));
            let is_slow = (connection / relays).is_multiple_of(plan.slow_one_in);
            // The first attempt goes to the relay after this one.
            let from = (connection + relays - 1) % relays;
            let watches = (first..watches.len()).collect();
            moving.push(Moving { at: epoch, watches, from, failures: 0, is_slow });
        }
        Self {
            plan,
            epoch,
            counters,
            poll: Poll::new().expect("a poll of the system"),
            connections: Vec::new(),
            watches,
            moving,
            unread: Vec::new(),
            latencies: Vec::new(),
            random: fastrand::Rng::new(),
            buffer: vec![0; READ_BYTES].into(),
            delivered: 0,
        }
    }

    fn run(mut self) {
        let mut events = Events::with_capacity(1024);
        let mut ticked = Instant::now();
        while !self.counters.is_over.load(Ordering::Relaxed) {
            let wait = if self.unread.is_empty() { TICK } else { Duration::ZERO };
            match self.poll.poll(&mut events, Some(wait)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                polled => polled.expect("the system's poll"),
            }
            let mut ready = std::mem::take(&mut self.unread);
            for event in &events {
                let at = event.token().0;
                if event.is_writable() {
                    self.flush(at);
                }
                if event.is_readable() || event.is_read_closed() || event.is_error() {
                    ready.push(at);
                }
                if event.is_read_closed() {
                    // The read may leave the end of the stream, which causes no further event.
                    self.unread.push(at);
                }
            }
            ready.sort_unstable();
            ready.dedup();
            for at in ready {
                self.read(at);
            }
            if ticked.elapsed() >= TICK {
                self.tick(ticked.elapsed());
                ticked = Instant::now();
            }
        }
    }

    /// Opens the connections that are due, gives slow links their credit, and publishes the figures.
    fn tick(&mut self, passed: Duration) {
        let now = Instant::now();
        for _ in 0..AT_A_TIME {
            let Some(at) = self.moving.iter().position(|moving| moving.at <= now) else { break };
            let moving = self.moving.swap_remove(at);
            self.connect(moving);
        }
        let credit = (SLOW_BYTES as f64 * passed.as_secs_f64()) as usize;
        for (at, connection) in self.connections.iter_mut().enumerate() {
            if let Some(connection) = connection.as_mut().filter(|connection| connection.is_slow) {
                connection.credit = (connection.credit + credit).min(SLOW_BYTES);
                self.unread.push(at);
            }
        }
        let mut latencies = self.counters.latencies.lock();
        self.latencies.drain(..).for_each(|latency| latencies.add(latency));
    }

    /// Opens a connection to the next relay, and its watches there.
    fn connect(&mut self, mut moving: Moving) {
        let relays = self.plan.relays.len();
        let is_first = moving.failures == 0 && self.watches[moving.watches[0]].version.is_empty();
        let away = if is_first { 1 } else { 1 + self.random.usize(..relays.max(2) - 1) };
        let relay = (moving.from + away) % relays;
        let Ok(mut connection) = self.try_connect(relay, &moving) else {
            self.counters.connects_failed.fetch_add(1, Ordering::Relaxed);
            moving.failures += 1;
            moving.from = relay;
            let backoff = Duration::from_millis(100 << moving.failures.min(7)).min(MAX_BACKOFF);
            moving.at = Instant::now() + backoff.mul_f64(1.0 + self.random.f64());
            self.moving.push(moving);
            return;
        };
        let at = self.connections.iter().position(Option::is_none).unwrap_or(self.connections.len());
        if at == self.connections.len() {
            self.connections.push(None);
        }
        let both = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut connection.socket, Token(at), both).expect("a place in the poll");
        self.connections[at] = Some(connection);
        self.flush(at);
    }

    fn try_connect(&mut self, relay: usize, moving: &Moving) -> io::Result<Connection> {
        // A client of its own address: this machine takes the same one for its own end.
        let host = Ipv4Addr::new(127, 0, self.random.u8(1..=250), self.random.u8(1..=250));
        let address = SocketAddrV4::new(host, self.plan.relays[relay]);
        let socket = StdTcpStream::connect_timeout(&SocketAddr::V4(address), Duration::from_secs(5))?;
        socket.set_nonblocking(true)?;
        socket.set_nodelay(true)?;
        let window = if moving.is_slow { SLOW_WINDOW } else { WINDOW };
        let mut out = Vec::new();
        frames::preface(&mut out, window, 16_384);
        let mut calls = Vec::with_capacity(moving.watches.len());
        for watch in &moving.watches {
            let id = calls.len() as u32 * 2 + 1;
            let version = &self.watches[*watch].version;
            if version.is_empty() && self.watches[*watch].count > 0 {
                self.counters.note_end("a watch without a version");
            }
            if !version.is_empty() {
                self.counters.resumed.fetch_add(1, Ordering::Relaxed);
            }
            let request = pb::WatchRequest {
                resource: "things".to_owned(),
                resource_version: version.to_string(),
                initial_events: pb::InitialEvents::None.into(),
                format: pb::PayloadFormat::Raw.into(),
                ..pb::WatchRequest::default()
            };
            frames::call(&mut out, id, "tree", "/informerd.v1.InformerService/Watch", None);
            frames::message(&mut out, id, &request.encode_to_vec(), true);
            calls.push(Some(Call { watch: *watch, reader: MessageReader::default(), consumed: 0 }));
        }
        Ok(Connection {
            socket: TcpStream::from_std(socket),
            relay,
            frames: FrameReader::default(),
            open: calls.len(),
            calls,
            out,
            consumed: 0,
            credit: 0,
            is_slow: moving.is_slow,
            is_leaving: false,
        })
    }

    fn flush(&mut self, at: usize) {
        let Some(connection) = self.connections.get_mut(at).and_then(Option::as_mut) else { return };
        if !connection.flush() {
            self.lose(at);
        }
    }

    /// Reads what a connection has, up to a bound.
    fn read(&mut self, at: usize) {
        for _ in 0..READS {
            let Some(connection) = self.connections.get_mut(at).and_then(Option::as_mut) else { return };
            let is_slow = connection.is_slow && self.counters.is_slow.load(Ordering::Relaxed);
            let most = if is_slow { connection.credit.min(self.buffer.len()) } else { self.buffer.len() };
            if most == 0 {
                return;
            }
            let mut buffer = std::mem::take(&mut self.buffer);
            let read = connection.socket.read(&mut buffer[..most]);
            let result = match read {
                Ok(0) => Err("closed".to_owned()),
                Ok(read) => {
                    connection.credit = connection.credit.saturating_sub(read);
                    self.take(at, &buffer[..read]).map(|()| read == most)
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(false),
                Err(error) => Err(error.to_string()),
            };
            self.buffer = buffer;
            self.flush(at);
            match result {
                Ok(true) => {}
                Ok(false) => return,
                Err(_) => return self.lose(at),
            }
        }
        self.unread.push(at);
    }

    fn take(&mut self, at: usize, mut bytes: &[u8]) -> Result<(), String> {
        let Some(mut connection) = self.connections[at].take() else { return Ok(()) };
        self.counters.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        let (mut moved, is_slow) = (Vec::new(), connection.is_slow);
        let mut frames = std::mem::take(&mut connection.frames);
        let window = if connection.is_slow { SLOW_WINDOW } else { WINDOW };
        let result = loop {
            let part = match frames.next(&mut bytes) {
                Err(error) => break Err(error.to_string()),
                Ok(None) => break Ok(()),
                Ok(Some(part)) => part,
            };
            match part {
                Part::Data { stream, bytes, is_end } => {
                    connection.consumed += bytes.len() as u32;
                    let call = (stream as usize).wrapping_sub(1) / 2;
                    if let Some(Some(Call { watch, reader, consumed })) = connection.calls.get_mut(call) {
                        let (watch, mut is_draining) = (*watch, false);
                        reader.feed(bytes, |message| is_draining |= self.message(watch, message, is_slow));
                        connection.is_leaving |= is_draining;
                        *consumed += bytes.len() as u32;
                        if *consumed >= window / 2 && !is_end {
                            frames::window_update(&mut connection.out, stream, std::mem::take(consumed));
                        }
                    }
                    if is_end {
                        moved.extend(connection.end(call));
                    }
                }
                Part::Control { kind, flags, stream, payload } => match kind {
                    frames::HEADERS => {
                        let call = (stream as usize).wrapping_sub(1) / 2;
                        if flags & frames::END_STREAM != 0 {
                            moved.extend(connection.end(call));
                        } else if let Some(Some(call)) = connection.calls.get(call) {
                            self.watches[call.watch].is_open = true;
                            self.counters.opened.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    frames::RST_STREAM => moved.extend(connection.end((stream as usize).wrapping_sub(1) / 2)),
                    frames::SETTINGS if flags & frames::ACK == 0 => frames::settings_ack(&mut connection.out),
                    frames::PING if flags & frames::ACK == 0 => frames::ping_ack(&mut connection.out, payload),
                    _ => {}
                },
            }
        };
        connection.frames = frames;
        if connection.consumed >= window / 2 {
            frames::window_update(&mut connection.out, 0, std::mem::take(&mut connection.consumed));
        }
        let relay = connection.relay;
        if connection.is_leaving {
            // All watches leave together, as those of one client.
            moved.extend(connection.calls.iter_mut().filter_map(Option::take).map(|call| call.watch));
            connection.open = 0;
        }
        let is_over = connection.open == 0;
        if !is_over {
            self.connections[at] = Some(connection);
        }
        self.move_on(moved, relay, is_slow);
        result
    }

    /// Counts a message, and times it unless its link is sometimes slow; returns true if it announces the end of the server.
    fn message(&mut self, watch: usize, message: &[u8], is_slow: bool) -> bool {
        let watch = &mut self.watches[watch];
        match MessageKind::of(message) {
            MessageKind::Change => {
                let Some((sequence, sent)) = sequence_of(message) else {
                    self.counters.note_end("an event without its sequence number");
                    return false;
                };
                self.delivered += 1;
                if !is_slow && self.delivered.is_multiple_of(TIMED) {
                    self.latencies.push((self.epoch.elapsed().as_nanos() as u64).saturating_sub(sent));
                }
                let counters = &*self.counters;
                counters.delivered.fetch_add(1, Ordering::Relaxed);
                if !counters.is_unordered.load(Ordering::Relaxed) && sequence != watch.last + 1 {
                    let counter = if sequence <= watch.last { &counters.repeated } else { &counters.missed };
                    counter.fetch_add(1, Ordering::Relaxed);
                }
                watch.count += 1;
                watch.sum += u64::from(sequence);
                if sequence > watch.last {
                    counters.at[watch.last as usize % RING].fetch_sub(1, Ordering::Relaxed);
                    counters.at[sequence as usize % RING].fetch_add(1, Ordering::Relaxed);
                    watch.last = sequence;
                }
                if let Some(version) = version_of(message).filter(|version| **version != *watch.version) {
                    watch.version = version.into();
                }
                false
            }
            MessageKind::Bookmark => {
                let Ok(response) = pb::WatchResponse::decode(message) else { return false };
                watch.version = response.resource_version.into();
                response.bookmark.is_some_and(|bookmark| bookmark.draining)
            }
            MessageKind::Error => {
                let error = pb::WatchResponse::decode(message).ok().and_then(|response| response.error);
                let error = error.unwrap_or_default();
                if error.code == tonic::Code::OutOfRange as i32 {
                    self.counters.expired.fetch_add(1, Ordering::Relaxed);
                }
                if error.code != tonic::Code::Unavailable as i32 {
                    self.counters.note_end(&error.message);
                }
                false
            }
            MessageKind::Dropped | MessageKind::Unknown => {
                self.counters.note_end("DROPPED, or no WatchResponse");
                false
            }
        }
    }

    /// Removes a connection; its watches move.
    fn lose(&mut self, at: usize) {
        let Some(mut connection) = self.connections.get_mut(at).and_then(Option::take) else { return };
        let watches = connection.calls.iter_mut().filter_map(Option::take).map(|call| call.watch).collect();
        self.move_on(watches, connection.relay, connection.is_slow);
    }

    fn move_on(&mut self, watches: Vec<usize>, from: usize, is_slow: bool) {
        if watches.is_empty() {
            return;
        }
        for watch in &watches {
            if std::mem::take(&mut self.watches[*watch].is_open) {
                self.counters.opened.fetch_sub(1, Ordering::Relaxed);
            }
        }
        // Those that are lost one by one join others that wait.
        let now = Instant::now();
        if let Some(moving) = self.moving.iter_mut().find(|moving| {
            moving.from == from
                && moving.is_slow == is_slow
                && moving.watches.len() + watches.len() <= self.plan.watches
                && moving.at > now
        }) {
            moving.watches.extend(watches);
            return;
        }
        let at = now + self.plan.jitter.mul_f64(self.random.f64());
        self.moving.push(Moving { at, watches, from, failures: 0, is_slow });
    }
}

impl Drop for Driver {
    /// Checks that each watch has each event once.
    fn drop(&mut self) {
        let began = u64::from(self.plan.began);
        for watch in &self.watches {
            let last = u64::from(watch.last);
            let (count, sum) = (last - began, (last * (last + 1) - began * (began + 1)) / 2);
            if (u64::from(watch.count), watch.sum) != (count, sum) {
                self.counters.note_end("a watch has not each event once");
                let counter =
                    if u64::from(watch.count) < count { &self.counters.missed } else { &self.counters.repeated };
                counter.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

// === impl Connection ===

impl Connection {
    /// Writes as much of the buffer as the socket takes. Returns false if it is closed.
    fn flush(&mut self) -> bool {
        while !self.out.is_empty() {
            match self.socket.write(&self.out) {
                Ok(written) => drop(self.out.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
        true
    }

    /// Ends a call; returns its watch.
    fn end(&mut self, call: usize) -> Option<usize> {
        let Call { watch, .. } = self.calls.get_mut(call)?.take()?;
        self.open -= 1;
        Some(watch)
    }
}

/// Returns the sequence number of an event, and the time at which it was written.
fn sequence_of(message: &[u8]) -> Option<(u32, u64)> {
    // After the body there may be a few more fields, in a relist.
    let tail = &message[message.len().saturating_sub(TAIL_BYTES)..];
    let at = tail.windows(BETWEEN.len()).rposition(|window| window == BETWEEN)?;
    let after = at + BETWEEN.len();
    let digits = |from: usize, to: usize| std::str::from_utf8(tail.get(from..to)?).ok()?.parse::<u64>().ok();
    let sequence = u32::try_from(digits(at.checked_sub(SEQUENCE_DIGITS)?, at)?).ok()?;
    Some((sequence, digits(after, after + messages::SENT_DIGITS)?))
}

/// Returns the version of an event, which follows its type.
fn version_of(message: &[u8]) -> Option<&str> {
    let [0x08, _, 0x12, length, rest @ ..] = message else { return None };
    std::str::from_utf8(rest.get(..usize::from(*length))?).ok()
}
