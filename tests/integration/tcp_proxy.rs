//! TCP proxy between a client and its server, with faults on demand.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// Port of its own that leads to a server, which can be changed.
pub(crate) struct TcpProxy {
    address: String,
    state: Arc<Mutex<State>>,
    /// Bytes that may still pass from the server to clients.
    granted: Arc<Semaphore>,
    _tasks: JoinSet<()>,
}

struct State {
    /// Host and port; none when every new connection is closed at once.
    target: Option<String>,
    /// Closes the connections that were opened under this token.
    cut: CancellationToken,
    /// Makes the same connections discard their bytes.
    silenced: CancellationToken,
}

// === impl TcpProxy ===

impl TcpProxy {
    /// Opens a wire to a server, as `http://host:port`.
    pub(crate) async fn to(target: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = State { target: None, cut: CancellationToken::new(), silenced: CancellationToken::new() };
        let state = Arc::new(Mutex::new(state));
        let granted = Arc::new(Semaphore::new(Semaphore::MAX_PERMITS));
        let mut tasks = JoinSet::new();
        let (accepting, pace) = (Arc::clone(&state), Arc::clone(&granted));
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let state = accepting.lock();
                let (cut, silenced) = (state.cut.clone(), state.silenced.clone());
                if let Some(target) = state.target.clone() {
                    connections.spawn(join(client, target, cut, silenced, Arc::clone(&pace)));
                }
            }
        });
        let proxy = Self { address, state, granted, _tasks: tasks };
        proxy.lead_to(target);
        proxy
    }

    /// Returns the address as a client writes it.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Leads new connections to this server.
    pub(crate) fn lead_to(&self, target: &str) {
        self.state.lock().target = Some(target.trim_start_matches("http://").to_owned());
    }

    /// Closes new connections at once.
    pub(crate) fn lead_nowhere(&self) {
        self.state.lock().target = None;
    }

    /// Closes every open connection.
    pub(crate) fn cut(&self) {
        let mut state = self.state.lock();
        std::mem::take(&mut state.cut).cancel();
    }

    /// Passes no bytes to clients from now on but those that are granted.
    pub(crate) fn throttle(&self) {
        self.granted.forget_permits(Semaphore::MAX_PERMITS);
    }

    /// Lets so many bytes pass to clients.
    pub(crate) fn grant(&self, bytes: usize) {
        self.granted.add_permits(bytes);
    }

    /// Discards all bytes of the open connections from now on.
    pub(crate) fn silence(&self) {
        let mut state = self.state.lock();
        std::mem::take(&mut state.silenced).cancel();
    }
}

async fn join(
    client: TcpStream,
    target: String,
    cut: CancellationToken,
    silenced: CancellationToken,
    pace: Arc<Semaphore>,
) {
    let Ok(server) = TcpStream::connect(target).await else { return };
    let ((mut from_client, mut to_client), (mut from_server, mut to_server)) =
        (client.into_split(), server.into_split());
    let to_server = async {
        tokio::io::copy(&mut from_client, &mut to_server).await?;
        to_server.shutdown().await
    };
    let to_client = async {
        let mut buffer = [0; 1024];
        loop {
            let read = from_server.read(&mut buffer).await?;
            if read == 0 {
                return to_client.shutdown().await;
            }
            if let Ok(granted) = pace.acquire_many(read as u32).await {
                granted.forget();
            }
            to_client.write_all(&buffer[..read]).await?;
        }
    };
    tokio::select! {
        () = cut.cancelled() => return,
        () = silenced.cancelled() => {}
        _ = async { tokio::try_join!(to_server, to_client) } => return,
    }
    cut.cancelled().await;
}
