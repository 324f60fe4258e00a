//! The load client: any number of connections and calls on one thread, as cheap as it can be made.
//!
//! ```text
//!   sockets ──▶ one read buffer ──▶ FrameReader ──▶ MessageReader ──▶ Tally, Histogram
//!      ▲ WINDOW_UPDATE, acknowledgements
//! ```
//!
//! Driven by whoever calls [`Client::run`]; it has no task and no queue of its own. Messages are counted by their first
//! bytes and not decoded, but for the few that are no changes. All counters are those of the streams together; each stream
//! keeps its own as well, so that "each exactly once" can be checked.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::SocketAddr,
    time::{Duration, Instant},
};

use informerd::proto::pb;
use mio::{Events, Interest, Poll, Token, net::TcpStream};
use prost::Message;

use super::{
    BenchError,
    frames::{self, FrameReader, Part},
    messages::{self, MessageReader, Said},
    stats::Histogram,
};

/// How the client presents itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClientConfig {
    /// The window of each stream and of each connection, in bytes; at most 2^31 - 1.
    pub(super) window: u32,
    /// The largest frame that it takes, in bytes; at least 16,384.
    pub(super) max_frame: u32,
}

/// What all streams together have been sent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// Watches that have had their first BOOKMARK: they miss nothing from then on.
    pub(super) joined: u64,
    /// Live changes.
    pub(super) changes: u64,
    /// Changes before the first BOOKMARK.
    pub(super) initial: u64,
    /// Live changes that were dropped or merged, as the server says.
    pub(super) missed: u64,
    /// Calls that have ended.
    pub(super) ended: u64,
    /// Objects of Lists.
    pub(super) objects: u64,
    /// Bytes of DATA.
    pub(super) bytes: u64,
}

/// What a call is, and so what its messages mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Watch,
    List,
}

/// One call.
#[derive(Debug)]
pub(super) struct Stream {
    pub(super) tally: Tally,
    /// The words of its ERROR, if there was one.
    pub(super) error: Option<String>,
    /// Its latencies are counted.
    pub(super) is_timed: bool,
    /// It may end without having been cancelled.
    pub(super) may_end: bool,
    /// Every change is decoded, for what it stands for.
    pub(super) is_merged: bool,
    call: Call,
    messages: MessageReader,
    /// Received, and not given back to its window.
    consumed: u32,
}

/// The client.
#[derive(Debug)]
pub(super) struct Client {
    config: ClientConfig,
    address: SocketAddr,
    authority: String,
    epoch: Instant,
    poll: Poll,
    events: Events,
    connections: Vec<Connection>,
    pub(super) streams: Vec<Stream>,
    /// Connections that were left before all was read, so that others have their turn.
    unread: Vec<usize>,
    buffer: Box<[u8]>,
    pub(super) tally: Tally,
    latencies: Histogram,
    /// Every how many changes a latency is taken.
    every: u64,
    accepted: usize,
}

#[derive(Debug)]
struct Connection {
    socket: TcpStream,
    frames: FrameReader,
    /// By the number of the call on this connection.
    streams: Vec<usize>,
    out: Vec<u8>,
    window: u32,
    /// Received, and not given back to the window.
    consumed: u32,
    is_stopped: bool,
    is_closed: bool,
}

const READ_BYTES: usize = 256 << 10;
/// Reads of one connection before the others have their turn.
const READS: usize = 8;
/// Connections that are opened before the server must have answered: fewer than any server's backlog.
const AT_A_TIME: usize = 64;
/// How long nothing may come before it is looked whether it is time to go.
const LOOK_UP: Duration = Duration::from_millis(50);
/// Nothing at all for this long is a failure.
const PATIENCE: Duration = Duration::from_secs(60);

// === impl Client ===

impl Client {
    /// Opens connections, and waits until the server has answered on each. Times are told since `epoch`.
    pub(super) fn connect(
        address: SocketAddr,
        connections: usize,
        config: ClientConfig,
        epoch: Instant,
    ) -> Result<Self, BenchError> {
        let mut client = Self {
            config,
            address,
            authority: address.to_string(),
            epoch,
            poll: Poll::new().map_err(BenchError::System)?,
            events: Events::with_capacity(1024),
            connections: Vec::with_capacity(connections),
            streams: Vec::new(),
            unread: Vec::new(),
            buffer: vec![0; READ_BYTES].into(),
            tally: Tally::default(),
            latencies: Histogram::new(),
            every: 1,
            accepted: 0,
        };
        client.open(connections, config)?;
        Ok(client)
    }

    /// Opens further connections, of another kind perhaps.
    pub(super) fn open(&mut self, connections: usize, config: ClientConfig) -> Result<(), BenchError> {
        self.config = config;
        let all = self.connections.len() + connections;
        while self.connections.len() < all {
            let up_to = all.min(self.connections.len() + AT_A_TIME);
            while self.connections.len() < up_to {
                self.open_one()?;
            }
            // Or nobody knows whether the server's backlog has room for more.
            self.run(|client| client.accepted >= up_to)?;
        }
        Ok(())
    }

    fn open_one(&mut self) -> Result<(), BenchError> {
        let refused = |error| BenchError::Connect { address: self.address, error };
        let socket = std::net::TcpStream::connect(self.address).map_err(refused)?;
        socket.set_nonblocking(true).and_then(|()| socket.set_nodelay(true)).map_err(refused)?;
        let mut socket = TcpStream::from_std(socket);
        let token = Token(self.connections.len());
        let both = Interest::READABLE | Interest::WRITABLE;
        self.poll.registry().register(&mut socket, token, both).map_err(BenchError::System)?;
        let mut out = Vec::new();
        frames::preface(&mut out, self.config.window, self.config.max_frame);
        let mut connection = Connection {
            socket,
            frames: FrameReader::default(),
            streams: Vec::new(),
            out,
            window: self.config.window,
            consumed: 0,
            is_stopped: false,
            is_closed: false,
        };
        connection.flush().map_err(refused)?;
        self.connections.push(connection);
        Ok(())
    }

    /// Begins a call; its number, which is its place in `streams`.
    pub(super) fn call(&mut self, connection: usize, call: Call, request: &[u8]) -> Result<usize, BenchError> {
        let path = match call {
            Call::Watch => "/informerd.v1.InformerService/Watch",
            Call::List => "/informerd.v1.InformerService/List",
        };
        let at = self.streams.len();
        self.streams.push(Stream {
            tally: Tally::default(),
            error: None,
            is_timed: true,
            may_end: call == Call::List,
            is_merged: false,
            call,
            messages: MessageReader::default(),
            consumed: 0,
        });
        let connection = &mut self.connections[connection];
        let id = connection.streams.len() as u32 * 2 + 1;
        connection.streams.push(at);
        frames::call(&mut connection.out, id, &self.authority, path, request);
        connection.flush().map_err(BenchError::System)?;
        Ok(at)
    }

    /// From now on nothing of this connection is read; or it is again.
    pub(super) fn stop(&mut self, connection: usize, is_stopped: bool) {
        self.connections[connection].is_stopped = is_stopped;
        if !is_stopped {
            self.unread.push(connection);
        }
    }

    /// Forgets the latencies, and takes one for every so many changes.
    pub(super) fn begin_latencies(&mut self, every: u64) {
        self.latencies.clear();
        self.every = every.max(1);
    }

    pub(super) fn latencies(&self) -> &Histogram {
        &self.latencies
    }

    /// Reads until it is so.
    ///
    /// # Errors
    ///
    /// When a call or a connection ends that should not, or nothing comes for a minute.
    pub(super) fn run(&mut self, is_done: impl Fn(&Self) -> bool) -> Result<(), BenchError> {
        let mut heard = ((self.tally, self.accepted), Instant::now());
        while !is_done(self) {
            self.turn(LOOK_UP)?;
            if (self.tally, self.accepted) != heard.0 {
                heard = ((self.tally, self.accepted), Instant::now());
            } else if heard.1.elapsed() > PATIENCE {
                return Err(BenchError::Stalled { patience: PATIENCE, tally: format!("{:?}", self.tally) });
            }
        }
        Ok(())
    }

    /// Reads for a time.
    pub(super) fn run_for(&mut self, time: Duration) -> Result<(), BenchError> {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            self.turn(left)?;
        }
    }

    /// Waits for the sockets, and reads what they have.
    fn turn(&mut self, most: Duration) -> Result<(), BenchError> {
        let most = if self.unread.is_empty() { most } else { Duration::ZERO };
        match self.poll.poll(&mut self.events, Some(most)) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            polled => polled.map_err(BenchError::System)?,
        }
        let mut ready = std::mem::take(&mut self.unread);
        ready.extend(self.events.iter().filter(|event| event.is_readable()).map(|event| event.token().0));
        for event in &self.events {
            if event.is_writable() {
                self.connections[event.token().0].flush().map_err(BenchError::System)?;
            }
            if event.is_read_closed() {
                // What was read before may not have been all, and nothing announces the end again.
                self.unread.push(event.token().0);
            }
        }
        for at in ready {
            self.read(at)?;
        }
        Ok(())
    }

    fn read(&mut self, at: usize) -> Result<(), BenchError> {
        let Self { connections, streams, tally, latencies, buffer, accepted, .. } = self;
        let connection = &mut connections[at];
        if connection.is_stopped || connection.is_closed {
            return Ok(());
        }
        let mut sink =
            Sink { streams, tally, latencies, every: self.every, now: 0, window: connection.window, accepted };
        for _ in 0..READS {
            let read = match connection.socket.read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => return connection.give_back(),
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return connection.close(&mut sink, &error.to_string()),
                Ok(0) => return connection.close(&mut sink, "closed"),
                Ok(read) => read,
            };
            sink.now = self.epoch.elapsed().as_nanos() as u64;
            connection.take(&buffer[..read], &mut sink)?;
            if read < buffer.len() {
                return connection.give_back();
            }
        }
        self.unread.push(at);
        self.connections[at].give_back()
    }
}

/// Where what was read is counted.
struct Sink<'a> {
    streams: &'a mut [Stream],
    tally: &'a mut Tally,
    latencies: &'a mut Histogram,
    every: u64,
    /// When it was read.
    now: u64,
    window: u32,
    accepted: &'a mut usize,
}

// === impl Connection ===

impl Connection {
    /// Writes what is to be written and can be.
    fn flush(&mut self) -> io::Result<()> {
        while !self.out.is_empty() {
            match self.socket.write(&self.out) {
                Ok(written) => drop(self.out.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The server has closed it, and why can be read.
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                    self.out.clear();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn take(&mut self, mut bytes: &[u8], sink: &mut Sink<'_>) -> Result<(), BenchError> {
        let Self { frames, streams, out, consumed, .. } = self;
        let stream_of = |id: u32| streams.get((id as usize).wrapping_sub(1) / 2).copied();
        while let Some(part) = frames.next(&mut bytes)? {
            match part {
                Part::Data { stream: id, bytes, is_end } => {
                    let Some(at) = stream_of(id) else { continue };
                    *consumed += bytes.len() as u32;
                    let more = sink.data(at, bytes);
                    if is_end {
                        sink.end(at, "")?;
                    } else if let Some(more) = more {
                        frames::window_update(out, id, more);
                    }
                }
                Part::Control { kind, flags, stream: id, payload } => match kind {
                    frames::HEADERS if flags & frames::END_STREAM != 0 => {
                        if let Some(at) = stream_of(id) {
                            sink.end(at, "")?;
                        }
                    }
                    frames::RST_STREAM => {
                        if let Some(at) = stream_of(id) {
                            sink.end(at, &format!("reset, code {}", number(payload)))?;
                        }
                    }
                    frames::SETTINGS if flags & frames::ACK == 0 => {
                        *sink.accepted += 1;
                        frames::settings_ack(out);
                    }
                    frames::PING if flags & frames::ACK == 0 => frames::ping_ack(out, payload),
                    frames::GOAWAY if payload.len() >= 8 && number(&payload[4..]) != 0 => {
                        let words = payload[8..].escape_ascii();
                        let code = number(&payload[4..]);
                        return Err(BenchError::Connection(format!("GOAWAY, code {code} {words}")));
                    }
                    _ => {}
                },
            }
        }
        if *consumed >= sink.window / 2 {
            frames::window_update(out, 0, std::mem::take(consumed));
        }
        Ok(())
    }

    /// Sends what the bytes that were read have given rise to.
    fn give_back(&mut self) -> Result<(), BenchError> {
        self.flush().map_err(BenchError::System)
    }

    fn close(&mut self, sink: &mut Sink<'_>, how: &str) -> Result<(), BenchError> {
        self.is_closed = true;
        let is_open = |at: &&usize| sink.streams[**at].tally.ended == 0;
        let open: Vec<usize> = self.streams.iter().filter(is_open).copied().collect();
        if self.streams.is_empty() {
            return Err(BenchError::Connection(how.to_owned()));
        }
        open.into_iter().try_for_each(|at| sink.end(at, &format!("connection {how}")))
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

// === impl Sink ===

impl Sink<'_> {
    /// Counts what came on a stream; what is to be given back to its window, if it is time.
    fn data(&mut self, at: usize, bytes: &[u8]) -> Option<u32> {
        let Self { streams, tally, latencies, every, now, .. } = self;
        let Stream { tally: own, error, is_timed, is_merged, call, messages, consumed, .. } = &mut streams[at];
        tally.bytes += bytes.len() as u64;
        own.bytes += bytes.len() as u64;
        *consumed += bytes.len() as u32;
        let before = *own;
        messages.feed(bytes, |message| match (*call, Said::of(message)) {
            (Call::List, _) => own.objects += messages::objects(message),
            (Call::Watch, Said::Change) if own.joined == 0 => own.initial += 1,
            (Call::Watch, Said::Change) => {
                own.changes += 1;
                let is_taken = *is_timed && (tally.changes + own.changes).is_multiple_of(*every);
                if let Some(sent) = is_taken.then(|| messages::sent(message)).flatten() {
                    latencies.add(now.saturating_sub(sent));
                }
                if *is_merged {
                    own.missed += decode(message).map_or(0, |response| response.coalesced.into());
                }
            }
            // Before the end of the initial events there is none to resume from.
            (Call::Watch, Said::Bookmark) if own.joined == 0 => {
                own.joined = decode(message).is_some_and(|response| !response.resource_version.is_empty()).into();
            }
            (Call::Watch, Said::Bookmark) => {}
            (Call::Watch, Said::Dropped) => {
                own.missed += decode(message).and_then(|response| response.dropped).map_or(0, |hole| hole.count);
            }
            (Call::Watch, Said::Error) => {
                *error = decode(message).and_then(|response| response.error).map(|status| status.message);
            }
            (Call::Watch, Said::Unknown) => *error = Some("a message that is no WatchResponse".to_owned()),
        });
        tally.joined += own.joined - before.joined;
        tally.changes += own.changes - before.changes;
        tally.initial += own.initial - before.initial;
        tally.missed += own.missed - before.missed;
        tally.objects += own.objects - before.objects;
        (*consumed >= self.window / 2).then(|| std::mem::take(consumed))
    }

    fn end(&mut self, at: usize, how: &str) -> Result<(), BenchError> {
        let stream = &mut self.streams[at];
        if std::mem::replace(&mut stream.tally.ended, 1) == 1 {
            return Ok(());
        }
        self.tally.ended += 1;
        if stream.may_end {
            return Ok(());
        }
        let how = stream.error.clone().unwrap_or_else(|| how.to_owned());
        Err(BenchError::Ended { stream: at, how: if how.is_empty() { "no ERROR was told".to_owned() } else { how } })
    }
}

fn decode(message: &[u8]) -> Option<pb::WatchResponse> {
    pb::WatchResponse::decode(message).ok()
}
