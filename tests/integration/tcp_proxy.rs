//! TCP proxy between a client and its server, with faults on demand.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::{
    net::{TcpListener, TcpStream},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

/// Port of its own that leads to a server, which can be changed.
pub(crate) struct TcpProxy {
    address: String,
    state: Arc<Mutex<State>>,
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
        let mut tasks = JoinSet::new();
        let accepting = Arc::clone(&state);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let state = accepting.lock();
                let (cut, silenced) = (state.cut.clone(), state.silenced.clone());
                if let Some(target) = state.target.clone() {
                    connections.spawn(join(client, target, cut, silenced));
                }
            }
        });
        let proxy = Self { address, state, _tasks: tasks };
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

    /// Discards all bytes of the open connections from now on.
    pub(crate) fn silence(&self) {
        let mut state = self.state.lock();
        std::mem::take(&mut state.silenced).cancel();
    }
}

async fn join(mut client: TcpStream, target: String, cut: CancellationToken, silenced: CancellationToken) {
    let Ok(mut server) = TcpStream::connect(target).await else { return };
    tokio::select! {
        () = cut.cancelled() => return,
        () = silenced.cancelled() => {}
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => return,
    }
    cut.cancelled().await;
}
