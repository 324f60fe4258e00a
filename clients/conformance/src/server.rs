//! Scripted gRPC server over HTTP/2 on loopback: each Watch is handed to the script, which sends its messages and its end.

#![allow(clippy::disallowed_methods, reason = "the script of a scenario bounds its queues")]

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::{Buf, Bytes, BytesMut};
use h2::{RecvStream, server::SendResponse};
use http::{Request, Response};
use informerd::proto::pb;
use parking_lot::Mutex;
use prost::Message;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc::{self, UnboundedReceiver, UnboundedSender},
    task::{JoinHandle, JoinSet},
};

use super::{
    message::{RESOURCE, status},
    socket::{Connection, Fault, Socket},
    watch_stream::{WatchStream, frame, trailers},
};

/// Server of one scenario.
pub(crate) struct Server {
    address: SocketAddr,
    watches: UnboundedReceiver<WatchStream>,
    shared: Arc<Shared>,
    accepting: Option<JoinHandle<()>>,
}

struct Shared {
    watches: UnboundedSender<WatchStream>,
    /// Everything that arrived, in words.
    received: Mutex<Vec<String>>,
    began_at: Instant,
    connections: AtomicUsize,
    /// True if new connections get no answer.
    freezes: AtomicBool,
}

// === impl Server ===

impl Server {
    /// Opens a port on loopback and serves it.
    pub(crate) async fn start() -> std::io::Result<Self> {
        let (watches, receiver) = mpsc::unbounded_channel();
        let shared = Shared {
            watches,
            received: Mutex::default(),
            began_at: Instant::now(),
            connections: AtomicUsize::new(0),
            freezes: AtomicBool::new(false),
        };
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let mut server = Self { address, watches: receiver, shared: Arc::new(shared), accepting: None };
        server.listen().await?;
        Ok(server)
    }

    /// Listens at the port of the server, after [`Self::refuse`].
    pub(crate) async fn listen(&mut self) -> std::io::Result<()> {
        let listener = TcpListener::bind(self.address).await?;
        self.address = listener.local_addr()?;
        self.accepting = Some(tokio::spawn(accept(listener, Arc::clone(&self.shared))));
        Ok(())
    }

    /// Closes the port: new connections are refused by the system. Open ones stay.
    pub(crate) async fn refuse(&mut self) {
        if let Some(accepting) = self.accepting.take() {
            accepting.abort();
            drop(accepting.await);
        }
    }

    /// Decides if new connections are accepted without an answer.
    pub(crate) fn freeze_new(&self, freezes: bool) {
        self.shared.freezes.store(freezes, Ordering::Relaxed);
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the number of connections so far.
    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::Relaxed)
    }

    /// Returns the next Watch of the client; `None` if none comes in time.
    pub(crate) async fn watch(&mut self, within: Duration) -> Option<WatchStream> {
        tokio::time::timeout(within, self.watches.recv()).await.ok().flatten()
    }

    /// Returns everything that arrived, in words.
    pub(crate) fn received(&self) -> Vec<String> {
        self.shared.received.lock().clone()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(accepting) = &self.accepting {
            accepting.abort();
        }
    }
}

// === impl Shared ===

impl Shared {
    fn note(&self, text: &str) {
        let after = self.began_at.elapsed().as_millis();
        self.received.lock().push(format!("{after:>6} ms  {text}"));
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    // Ends all connections with the server.
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let id = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
        shared.note(&format!("connection {id}"));
        connections.spawn(serve(stream, id, Arc::clone(&shared)));
    }
}

async fn serve(stream: TcpStream, id: usize, shared: Arc<Shared>) {
    let (goaway, mut goaways) = mpsc::unbounded_channel();
    let connection = Connection { id, faults: Arc::default(), goaway };
    if shared.freezes.load(Ordering::Relaxed) {
        connection.begin(Fault::Frozen);
    }
    drop(stream.set_nodelay(true));
    let socket = Socket::new(stream, Arc::clone(&connection.faults));
    if let Ok(mut http) = h2::server::handshake(socket).await {
        let mut calls = JoinSet::new();
        loop {
            tokio::select! {
                Some(()) = goaways.recv() => http.graceful_shutdown(),
                call = http.accept() => match call {
                    Some(Ok((request, respond))) => {
                        calls.spawn(answer(request, respond, connection.clone(), Arc::clone(&shared)));
                    }
                    Some(Err(_)) | None => break,
                },
            }
        }
    }
    shared.note(&format!("connection {id} has ended"));
}

/// Hands a Watch to the script, and answers every other call.
async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    connection: Connection,
    shared: Arc<Shared>,
) {
    let (head, body) = request.into_parts();
    let Some(message) = message(body).await else { return };
    let (method, id) = (head.uri.path().rsplit('/').next().unwrap_or_default().to_owned(), connection.id);
    if method == "Watch" {
        let Ok(request) = pb::WatchRequest::decode(message) else {
            return shared.note("a Watch that cannot be decoded");
        };
        let (version, history) = (&request.resource_version, &request.history);
        let batches = if request.batch_initial_events { ", batches" } else { "" };
        shared.note(&format!("Watch on connection {id}: version {version:?}, history {history:?}{batches}"));
        drop(shared.watches.send(WatchStream::new(request, head.headers, connection, respond)));
        return;
    }
    let deadline = head.headers.get("grpc-timeout").and_then(|value| value.to_str().ok()).unwrap_or("none");
    shared.note(&format!("{method} on connection {id}: deadline {deadline}"));
    let response = Response::builder().header("content-type", "application/grpc").body(());
    let Ok(response) = response else { return };
    let Ok(mut stream) = respond.send_response(response, false) else { return };
    let (code, reason) = if method == "ListResources" {
        drop(stream.send_data(frame(&resources()), false));
        (tonic::Code::Ok, "")
    } else {
        (tonic::Code::Unimplemented, "NOT_IMPLEMENTED")
    };
    drop(stream.send_trailers(trailers(&status(code, reason))));
}

/// Returns the answer to ListResources: the resource, and a server with every capability.
fn resources() -> pb::ListResourcesResponse {
    let resource = pb::Resource {
        name: RESOURCE.to_owned(),
        source: "stream".to_owned(),
        state: pb::SyncState::Synced.into(),
        ..pb::Resource::default()
    };
    let capabilities =
        ["batch", "identity", "library", "limits", "shards", "sources", "views"].map(str::to_owned).to_vec();
    let server = pb::ServerInfo { version: env!("CARGO_PKG_VERSION").to_owned(), capabilities, ..Default::default() };
    pb::ListResourcesResponse { resources: vec![resource], server: Some(server) }
}

/// Reads the message of a call.
async fn message(mut body: RecvStream) -> Option<Bytes> {
    let mut bytes = BytesMut::new();
    loop {
        if bytes.len() >= 5 {
            let length = bytes[1..5].iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
            if bytes.len() >= 5 + length {
                bytes.advance(5);
                return Some(bytes.split_to(length).freeze());
            }
        }
        let chunk = body.data().await?.ok()?;
        drop(body.flow_control().release_capacity(chunk.len()));
        bytes.extend_from_slice(&chunk);
    }
}
