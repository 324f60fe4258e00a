//! Load client: any number of connections and calls on one thread, at the lowest possible cost.
//!
//! ```text
//!   sockets ──▶ one read buffer ──▶ FrameReader ──▶ MessageReader ──▶ Tally, Histogram
//!      ▲ WINDOW_UPDATE, acknowledgements
//! ```
//!
//! All work happens in [`Client::run`]: there is no task and no queue. Changes are counted by their first bytes without decoding;
//! only the few other messages are decoded. The counters are totals of all streams; each stream has its own as well, so that
//! "each exactly once" can be checked.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::SocketAddr,
    time::{Duration, Instant},
};

use informerd::proto::pb;
use mio::{Events, Interest, Poll, Token, net::TcpStream};
use prost::Message;

use super::{
    error::BenchError,
    frames::{self, FrameReader, Part},
    sink::{Call, Sink, Stream, Subscribed, Tally},
    stats::Histogram,
};

/// Settings of the client's HTTP/2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ClientConfig {
    /// Window of each stream and of each connection, in bytes; at most 2^31 - 1.
    pub(super) window: u32,
    /// Largest accepted frame, in bytes; at least 16,384.
    pub(super) max_frame: u32,
    /// Compression that it accepts.
    pub(super) accepts: Option<&'static str>,
}

/// Load client.
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
    /// Connections with data left to read, after others got their turn.
    unread: Vec<usize>,
    buffer: Box<[u8]>,
    pub(super) tally: Tally,
    latencies: Histogram,
    /// Number of changes between two latency samples.
    every: u64,
    accepted: usize,
}

#[derive(Debug)]
struct Connection {
    socket: TcpStream,
    frames: FrameReader,
    /// Indexes into the client's streams, by the number of the call on this connection; none for Subscribe.
    calls: Vec<Option<usize>>,
    subscribed: Option<Subscribed>,
    out: Vec<u8>,
    window: u32,
    /// Bytes received, and not yet returned to the connection's window.
    consumed: u32,
    is_stopped: bool,
    is_closed: bool,
}

const READ_BYTES: usize = 256 << 10;
/// Reads of one connection before others get their turn.
const READS: usize = 8;
/// Connections that are opened before the server must have accepted them: fewer than any server's backlog.
const AT_A_TIME: usize = 64;
/// Longest wait for the sockets between two checks of the time.
const LOOK_UP: Duration = Duration::from_millis(50);
/// Time without any data after which a run fails.
const PATIENCE: Duration = Duration::from_secs(60);

// === impl Client ===

impl Client {
    /// Opens connections, and waits until the server has responded on each. Times are relative to `epoch`.
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

    /// Opens further connections, possibly with other settings.
    pub(super) fn open(&mut self, connections: usize, config: ClientConfig) -> Result<(), BenchError> {
        self.config = config;
        let all = self.connections.len() + connections;
        while self.connections.len() < all {
            let up_to = all.min(self.connections.len() + AT_A_TIME);
            while self.connections.len() < up_to {
                self.open_one()?;
            }
            // Otherwise the server's backlog might be full.
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
            calls: Vec::new(),
            subscribed: None,
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

    /// Begins a call; returns its index in `streams`.
    pub(super) fn call(&mut self, connection: usize, call: Call, request: &[u8]) -> Result<usize, BenchError> {
        let path = match call {
            Call::Watch => "/informerd.v1.InformerService/Watch",
            Call::List => "/informerd.v1.InformerService/List",
        };
        let at = self.streams.len();
        self.streams.push(Stream::new(call));
        let Connection { out, calls, .. } = &mut self.connections[connection];
        let id = stream_id(calls.len());
        calls.push(Some(at));
        frames::call(out, id, &self.authority, path, self.config.accepts);
        frames::message(out, id, request, true);
        self.connections[connection].flush().map_err(BenchError::System)?;
        Ok(at)
    }

    /// Opens a watch on the Subscribe call of a connection, which begins with its first; returns its index in `streams`.
    pub(super) fn subscribe(&mut self, connection: usize, watch: pb::WatchRequest) -> Result<usize, BenchError> {
        let at = self.streams.len();
        self.streams.push(Stream::new(Call::Watch));
        let Connection { out, calls, subscribed, .. } = &mut self.connections[connection];
        let subscribed = subscribed.get_or_insert_with(|| {
            let id = stream_id(calls.len());
            calls.push(None);
            frames::call(out, id, &self.authority, "/informerd.v1.InformerService/Subscribe", None);
            Subscribed::new(id)
        });
        subscribed.watches.push(at);
        let open = vec![pb::OpenWatch { id: subscribed.watches.len() as u32, watch: Some(watch) }];
        let request = pb::SubscribeRequest { open, ..Default::default() };
        frames::message(out, subscribed.stream, &request.encode_to_vec(), false);
        self.connections[connection].flush().map_err(BenchError::System)?;
        Ok(at)
    }

    /// Stops or resumes the reading of a connection.
    pub(super) fn stop(&mut self, connection: usize, is_stopped: bool) {
        self.connections[connection].is_stopped = is_stopped;
        if !is_stopped {
            self.unread.push(connection);
        }
    }

    /// Clears the latencies, and samples every `every`-th change from now on.
    pub(super) fn begin_latencies(&mut self, every: u64) {
        self.latencies.clear();
        self.every = every.max(1);
    }

    pub(super) fn latencies(&self) -> &Histogram {
        &self.latencies
    }

    /// Reads until the condition is true.
    ///
    /// # Errors
    ///
    /// Fails if a call or a connection ends unexpectedly, or nothing arrives for a minute.
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

    /// Waits for the sockets, and reads their data.
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
                // The last read may have left data, and the end of the stream causes no further event.
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

// === impl Connection ===

impl Connection {
    /// Writes as much of the buffer as the socket takes.
    fn flush(&mut self) -> io::Result<()> {
        while !self.out.is_empty() {
            match self.socket.write(&self.out) {
                Ok(written) => drop(self.out.drain(..written)),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // The server has closed the connection; the reason can still be read.
                Err(error) if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {
                    self.out.clear();
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn take(&mut self, mut bytes: &[u8], sink: &mut Sink<'_>) -> Result<(), BenchError> {
        let Self { frames, calls, subscribed, out, consumed, .. } = self;
        let call_of = |id: u32| calls.get((id as usize).wrapping_sub(1) / 2).copied();
        let end = |sink: &mut Sink<'_>, subscribed: &Option<Subscribed>, id: u32, how: &str| match call_of(id) {
            Some(Some(at)) => sink.end(at, how),
            Some(None) => subscribed.iter().flat_map(|call| &call.watches).try_for_each(|at| sink.end(*at, how)),
            None => Ok(()),
        };
        while let Some(part) = frames.next(&mut bytes)? {
            match part {
                Part::Data { stream: id, bytes, is_end } => {
                    *consumed += bytes.len() as u32;
                    let more = match (call_of(id), &mut *subscribed) {
                        (Some(Some(at)), _) => sink.data(at, bytes),
                        (Some(None), Some(call)) => sink.subscribed(call, bytes)?,
                        _ => continue,
                    };
                    if is_end {
                        end(sink, subscribed, id, "")?;
                    } else if let Some(more) = more {
                        frames::window_update(out, id, more);
                    }
                }
                Part::Control { kind, flags, stream: id, payload } => match kind {
                    frames::HEADERS if flags & frames::END_STREAM != 0 => end(sink, subscribed, id, "")?,
                    frames::RST_STREAM => {
                        end(sink, subscribed, id, &format!("reset, code {}", number(payload)))?;
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

    /// Sends the frames that the received bytes require.
    fn give_back(&mut self) -> Result<(), BenchError> {
        self.flush().map_err(BenchError::System)
    }

    fn close(&mut self, sink: &mut Sink<'_>, how: &str) -> Result<(), BenchError> {
        self.is_closed = true;
        if self.calls.is_empty() {
            return Err(BenchError::Connection(how.to_owned()));
        }
        let watches = self.subscribed.iter().flat_map(|call| &call.watches);
        let mut streams = self.calls.iter().flatten().chain(watches);
        streams.try_for_each(|at| sink.end(*at, &format!("connection {how}")))
    }
}

/// Returns the id of the HTTP/2 stream of a connection's call.
fn stream_id(call: usize) -> u32 {
    call as u32 * 2 + 1
}

fn number(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |bytes| u32::from_be_bytes(*bytes))
}
