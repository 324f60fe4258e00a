//! Proxy between a source and its upstream: a connection that can be cut, frozen or refused, at any byte.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// Listener that forwards bytes to a member. Dropping it closes all connections.
pub(crate) struct Gate {
    address: SocketAddr,
    shared: Arc<Shared>,
    _listening: tokio_util::sync::DropGuard,
}

struct Shared {
    member: SocketAddr,
    is_refusing: AtomicBool,
    is_frozen: AtomicBool,
    /// Number of the member's bytes that the next connection forwards before it is cut.
    limit: AtomicUsize,
    accepted: AtomicUsize,
    passed: AtomicUsize,
    /// Total number of forwarded bytes at which open connections are closed, once.
    cut_at: AtomicUsize,
    cut: parking_lot::Mutex<CancellationToken>,
}

// === impl Gate ===

impl Gate {
    pub(crate) async fn to(member: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let shared = Arc::new(Shared {
            member,
            is_refusing: AtomicBool::new(false),
            is_frozen: AtomicBool::new(false),
            limit: AtomicUsize::new(usize::MAX),
            accepted: AtomicUsize::new(0),
            passed: AtomicUsize::new(0),
            cut_at: AtomicUsize::new(usize::MAX),
            cut: parking_lot::Mutex::default(),
        });
        let address = listener.local_addr().unwrap();
        let ended = CancellationToken::new();
        let listening = ended.clone().run_until_cancelled_owned(listen(listener, Arc::clone(&shared)));
        tokio::spawn(listening);
        Self { address, shared, _listening: ended.drop_guard() }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn port(&self) -> u16 {
        self.address.port()
    }

    /// Closes open connections.
    pub(crate) fn cut(&self) {
        self.shared.cut();
    }

    /// Closes open and new connections, until it is reset.
    pub(crate) fn refuse(&self, is_refusing: bool) {
        self.shared.is_refusing.store(is_refusing, Ordering::SeqCst);
        if is_refusing {
            self.cut();
        }
    }

    /// Stops forwarding, and keeps connections open.
    pub(crate) fn freeze(&self, is_frozen: bool) {
        self.shared.is_frozen.store(is_frozen, Ordering::SeqCst);
    }

    /// Cuts the next connection after so many bytes of the member.
    pub(crate) fn limit_next(&self, bytes: usize) {
        self.shared.limit.store(bytes, Ordering::SeqCst);
    }

    /// Closes open connections, once, after so many more bytes of the member on all connections together.
    pub(crate) fn cut_after(&self, bytes: usize) {
        self.shared.cut_at.store(self.passed() + bytes, Ordering::SeqCst);
    }

    /// Returns true if `cut_after` has yet to take effect.
    pub(crate) fn is_to_cut(&self) -> bool {
        self.shared.cut_at.load(Ordering::SeqCst) != usize::MAX
    }

    pub(crate) fn accepted(&self) -> usize {
        self.shared.accepted.load(Ordering::SeqCst)
    }

    /// Returns the total number of forwarded bytes of the member.
    pub(crate) fn passed(&self) -> usize {
        self.shared.passed.load(Ordering::SeqCst)
    }
}

async fn listen(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        let (client, _) = listener.accept().await.unwrap();
        if shared.is_refusing.load(Ordering::SeqCst) {
            continue;
        }
        shared.accepted.fetch_add(1, Ordering::SeqCst);
        let limit = shared.limit.swap(usize::MAX, Ordering::SeqCst);
        let cut = shared.cut.lock().clone();
        let shared = Arc::clone(&shared);
        connections.spawn(async move { cut.run_until_cancelled(pass(client, &shared, limit)).await });
    }
}

async fn pass(client: TcpStream, shared: &Shared, mut limit: usize) {
    let Ok(member) = TcpStream::connect(shared.member).await else { return };
    client.set_nodelay(true).unwrap();
    member.set_nodelay(true).unwrap();
    let (mut from_client, mut to_client) = client.into_split();
    let (mut from_member, mut to_member) = member.into_split();
    let up = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from_client.read(&mut buffer).await {
            shared.thawed().await;
            if to_member.write_all(&buffer[..read]).await.is_err() {
                return;
            }
        }
    };
    let down = async {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(read @ 1..) = from_member.read(&mut buffer).await {
            shared.thawed().await;
            let until_cut = shared.cut_at.load(Ordering::SeqCst).saturating_sub(shared.passed.load(Ordering::SeqCst));
            let passed = read.min(limit).min(until_cut);
            limit -= passed;
            shared.passed.fetch_add(passed, Ordering::SeqCst);
            if to_client.write_all(&buffer[..passed]).await.is_err() || limit == 0 {
                return;
            }
            if passed == until_cut {
                shared.cut_at.store(usize::MAX, Ordering::SeqCst);
                return shared.cut();
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

impl Shared {
    fn cut(&self) {
        std::mem::take(&mut *self.cut.lock()).cancel();
    }

    async fn thawed(&self) {
        while self.is_frozen.load(Ordering::SeqCst) {
            tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        }
    }
}
