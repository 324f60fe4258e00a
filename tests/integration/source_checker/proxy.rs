//! Network faults between a source and a server: a TCP proxy that refuses, cuts, freezes and slows down.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use proptest::prelude::*;
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::JoinSet,
};

/// Fault of the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NetworkFault {
    /// Close of the open connections, once.
    Cut,
    /// Close of the connections whose number has this remainder of three, once.
    CutPart(u64),
    /// Close of only the next connection, after so many bytes from the server.
    CutAfter(usize),
    /// Refusal of connections, and close of the open ones.
    Refuse,
    /// Close of each connection right after it is accepted.
    Close,
    /// Freeze: connections stay open, and no bytes pass.
    Freeze,
    /// Limit of the bytes a second from the server.
    Slow(u32),
}

impl NetworkFault {
    /// Draws a fault that lasts until it is healed.
    pub(crate) fn any() -> impl Strategy<Value = Self> {
        prop_oneof![
            3 => Just(Self::Refuse),
            2 => Just(Self::Close),
            3 => Just(Self::Freeze),
            1 => (500_u32..5_000).prop_map(Self::Slow),
        ]
    }

    /// Draws a fault of one moment.
    pub(crate) fn any_cut() -> impl Strategy<Value = Self> {
        prop_oneof![
            2 => Just(Self::Cut),
            2 => (0_u64..3).prop_map(Self::CutPart),
            6 => (1_usize..4000).prop_map(Self::CutAfter),
        ]
    }

    /// Returns the name under which it is counted.
    pub(crate) fn kind(self) -> &'static str {
        match self {
            Self::Cut => "network: cut",
            Self::CutPart(_) => "network: a part cut",
            // Counted when it has taken effect.
            Self::CutAfter(_) => "network: cut at a byte, drawn",
            Self::Refuse => "network: refused",
            Self::Close => "network: closed",
            Self::Freeze => "network: frozen",
            Self::Slow(_) => "network: slow",
        }
    }
}

/// Listener that passes bytes on. Closes all connections when dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    listening: JoinSet<()>,
    heals: u64,
    /// Socket bound to the port and not listening, so that no other process gets the port while connections are refused.
    _placeholder: Socket,
}

#[derive(Debug)]
struct Shared {
    state: watch::Sender<State>,
    /// Number of bytes after which the next connection is cut.
    cut_after: Mutex<Option<usize>>,
    counts: Mutex<BTreeMap<&'static str, u64>>,
    /// Number of connections so far.
    connections: AtomicUsize,
}

#[derive(Debug, Clone, Copy)]
struct State {
    /// Targets, of which each connection gets one, without a period that retries could have too.
    targets: [SocketAddr; 2],
    is_closing: bool,
    is_frozen: bool,
    bytes_per_second: Option<u32>,
    /// Raised to close all open connections.
    cuts: u64,
    /// Raised to close those whose number has this remainder of three.
    part_cuts: [u64; 3],
}

impl Proxy {
    pub(crate) fn to(target: SocketAddr) -> Self {
        let placeholder = bind("127.0.0.1:0".parse().unwrap());
        let address = placeholder.local_addr().unwrap().as_socket().unwrap();
        let state = State {
            targets: [target; 2],
            is_closing: false,
            is_frozen: false,
            bytes_per_second: None,
            cuts: 0,
            part_cuts: [0; 3],
        };
        let shared = Shared {
            state: watch::Sender::new(state),
            cut_after: Mutex::default(),
            counts: Mutex::default(),
            connections: AtomicUsize::new(0),
        };
        let mut proxy =
            Self { address, shared: Arc::new(shared), listening: JoinSet::new(), heals: 0, _placeholder: placeholder };
        proxy.listen();
        proxy
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Directs new connections to one of two servers, and closes the open ones.
    pub(crate) fn lead_to(&self, targets: [SocketAddr; 2]) {
        self.shared.state.send_modify(|state| (state.targets, state.cuts) = (targets, state.cuts + 1));
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    pub(crate) async fn begin(&mut self, fault: NetworkFault) {
        let state = &self.shared.state;
        match fault {
            NetworkFault::Cut => state.send_modify(|state| state.cuts += 1),
            NetworkFault::CutPart(part) => state.send_modify(|state| state.part_cuts[part as usize % 3] += 1),
            NetworkFault::CutAfter(bytes) => {
                *self.shared.cut_after.lock() = Some(bytes);
                state.send_modify(|state| state.cuts += 1);
            }
            NetworkFault::Refuse => {
                self.listening.shutdown().await;
                self.shared.state.send_modify(|state| state.cuts += 1);
            }
            NetworkFault::Close => state.send_modify(|state| (state.is_closing, state.cuts) = (true, state.cuts + 1)),
            NetworkFault::Freeze => state.send_modify(|state| state.is_frozen = true),
            NetworkFault::Slow(bytes) => state.send_modify(|state| state.bytes_per_second = Some(bytes)),
        }
    }

    /// Ends all faults. Frozen connections continue, or every other time are closed, as by a host that has given them up.
    pub(crate) fn heal(&mut self) {
        self.heals += 1;
        let is_closed = self.heals.is_multiple_of(2);
        self.shared.state.send_modify(|state| {
            state.cuts += u64::from(state.is_frozen && is_closed);
            (state.is_closing, state.is_frozen, state.bytes_per_second) = (false, false, None);
        });
        *self.shared.cut_after.lock() = None;
        if self.listening.is_empty() {
            self.listen();
        }
    }

    /// Returns true if a fault is active.
    pub(crate) fn is_faulty(&self) -> bool {
        self.is_unreachable() || self.shared.state.borrow().bytes_per_second.is_some()
    }

    /// Returns true if no bytes pass.
    pub(crate) fn is_unreachable(&self) -> bool {
        let state = self.shared.state.borrow();
        self.listening.is_empty() || state.is_closing || state.is_frozen
    }

    /// Returns the number of connections that were cut at a byte.
    pub(crate) fn late_cuts(&self) -> u64 {
        self.shared.counts.lock().values().sum()
    }

    /// Returns the faults that took effect.
    pub(crate) fn counts(&self) -> BTreeMap<&'static str, u64> {
        self.shared.counts.lock().clone()
    }

    fn listen(&mut self) {
        let socket = bind(self.address);
        socket.listen(64).unwrap();
        let listener = TcpListener::from_std(socket.into()).unwrap();
        self.listening.spawn(listen(listener, Arc::clone(&self.shared)));
    }
}

fn bind(address: SocketAddr) -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.set_reuse_port(true).unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.bind(&SockAddr::from(address)).unwrap();
    socket
}

async fn listen(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let Ok((client, _)) = listener.accept().await else { continue };
        let state = *shared.state.borrow();
        if state.is_closing {
            continue;
        }
        let number = shared.connections.fetch_add(1, Ordering::Relaxed);
        let cut_after = shared.cut_after.lock().take();
        let shared = Arc::clone(&shared);
        let cuts = move |state: &State| state.cuts + state.part_cuts[number % 3];
        connections.spawn(async move {
            let mut changes = shared.state.subscribe();
            tokio::select! {
                () = pass(client, state.targets[number.count_ones() as usize % 2], &shared, cut_after) => {}
                _ = changes.wait_for(|now| cuts(now) > cuts(&state)) => {}
            }
        });
    }
}

async fn pass(client: TcpStream, target: SocketAddr, shared: &Shared, mut left: Option<usize>) {
    shared.thawed().await;
    let Ok(server) = TcpStream::connect(target).await else { return };
    client.set_nodelay(true).unwrap();
    server.set_nodelay(true).unwrap();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_server, mut to_server) = server.into_split();
    let up = async {
        let mut buffer = vec![0; 16 << 10];
        while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
            shared.thawed().await;
            if to_server.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    let down = async {
        let mut buffer = vec![0; 16 << 10];
        loop {
            let bytes_per_second = shared.state.borrow().bytes_per_second;
            // A tenth of a second at a time.
            let most = bytes_per_second.map_or(buffer.len(), |bytes| (bytes as usize / 10).clamp(1, buffer.len()));
            let Ok(read @ 1..) = from_server.read(&mut buffer[..most]).await else { return };
            shared.thawed().await;
            let passed = read.min(left.unwrap_or(usize::MAX));
            if to_client.write_all(&buffer[..passed]).await.is_err() {
                return;
            }
            left = left.map(|left| left - passed);
            if left == Some(0) {
                shared.count("network: cut at a byte");
                return;
            }
            if let Some(bytes) = bytes_per_second {
                tokio::time::sleep(Duration::from_secs_f64(read as f64 / f64::from(bytes))).await;
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

impl Shared {
    async fn thawed(&self) {
        // This value owns the sender, so there is no error.
        drop(self.state.subscribe().wait_for(|state| !state.is_frozen).await);
    }

    fn count(&self, kind: &'static str) {
        *self.counts.lock().entry(kind).or_default() += 1;
    }
}
