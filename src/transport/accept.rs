//! Accepting of connections, and their orderly shutdown.

use std::{fmt, io, sync::Arc, time::Duration};

use http::{Request, Response};
use tokio::{
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    task::JoinSet,
    time::sleep,
};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, debug_span};

#[cfg(feature = "kubernetes-api")]
use super::http1;
use super::{
    BoundedBody, Exceeded, Peer, Permit, Quota, Rejections, RequestBody, Tls,
    body::BoxError,
    buffered_io::{BufferPool, Io},
    connection::{Connection, HttpService, ListenerShared, ServerConfig},
    linger::{linger, linger_time},
    pause_after,
    peer::ConnectionPeer,
};
use crate::log_throttle::LogThrottle;

/// HTTP/2 server for all connections of one listener.
pub struct Server<S> {
    service: S,
    is_local: fn(&Request<RequestBody>) -> bool,
    config: ServerConfig,
    serves_http1: bool,
}

/// Source of connections.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// TLS over TCP.
    Tls(TcpListener, Arc<Tls>),
    /// A unix socket; the owner of the listener removes its file.
    Unix(UnixListener),
}

/// Admission of connections: their limit, and the log of rejected ones.
struct Admission {
    connections: Arc<Quota>,
    refused: Rejections,
    log: LogThrottle,
}

/// Time that connections have to send the resets of their streams.
const RESET_GRACE: Duration = Duration::from_millis(200);

// === impl Server ===

impl<S, B> Server<S>
where
    S: tower::Service<Request<RequestBody>, Response = Response<B>, Error: Into<BoxError>, Future: Send>,
    S: Clone + Send + Sync + 'static,
    B: BoundedBody,
{
    /// Creates a server. It polls a stream in the task of its connection if `is_local` returns true, which suits streams that are
    /// cheap to poll and are woken together. Each request has a [`StreamHandle`](super::StreamHandle).
    pub fn new(service: S, is_local: fn(&Request<RequestBody>) -> bool, config: ServerConfig) -> Self {
        Self { service, is_local, config, serves_http1: false }
    }

    /// Serves HTTP/1.1, too: under TLS to clients that do not negotiate HTTP/2, without TLS to those that do not begin with its preface.
    #[cfg(feature = "kubernetes-api")]
    #[must_use]
    pub fn with_http1(self) -> Self {
        Self { serves_http1: true, ..self }
    }

    /// Accepts connections until `draining` is cancelled. Then the server accepts no more streams, and lets the open ones end by
    /// themselves; it resets those that are left after the drain period. Returns when no connection is left.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops all connections, without a reset or GOAWAY.
    pub async fn serve(self, listener: Listener, draining: CancellationToken) {
        let Self { service, is_local, config, serves_http1 } = self;
        let cut = CancellationToken::new();
        let (buffers, ends) = (BufferPool::default(), Arc::default());
        let quota = Arc::clone(&config.connections);
        let admission = Admission { connections: quota, refused: config.refused.clone(), log: LogThrottle::default() };
        let shared = ListenerShared { is_local, config, buffers, ends, draining: draining.clone(), cut: cut.clone() };
        let shared = Arc::new(shared);
        let config = &shared.config;
        let mut connections = JoinSet::new();
        let errors = LogThrottle::default();
        loop {
            tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok(accepted) => {
                        // A connection that is not admitted is closed at once.
                        let peer = ConnectionPeer::new(accepted.peer(), &config.trusted_peers);
                        let Some(permit) = admission.admit(peer.peer) else { continue };
                        let (service, shared) = (service.clone(), Arc::clone(&shared));
                        let serving = Serving { service, shared, peer, permit, serves_http1 };
                        accepted.spawn(&mut connections, serving);
                    }
                    Err(error) => {
                        config.refused.count("accept_failed");
                        if let Some(failed) = errors.poll() {
                            tracing::warn!(%error, failed, "connection not accepted");
                        }
                        pause_after(&error).await;
                    }
                },
                // Removes the tasks of closed connections.
                Some(_) = connections.join_next() => {}
                () = draining.cancelled() => break,
            }
        }
        drop(listener);
        if ended(&mut connections, config.drain_period).await {
            return;
        }
        tracing::warn!(connections = connections.len(), "drain timed out, resetting open streams");
        cut.cancel();
        ended(&mut connections, RESET_GRACE).await;
    }
}

impl<S> fmt::Debug for Server<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server").field("config", &self.config).finish_non_exhaustive()
    }
}

// === impl Admission ===

impl Admission {
    /// Counts a connection of a peer, if that is within the limits.
    fn admit(&self, peer: Peer) -> Option<Permit> {
        let exceeded = match self.connections.take(peer.origin()) {
            Ok(permit) => return Some(permit),
            Err(exceeded) => exceeded,
        };
        let (reason, key) = match exceeded {
            Exceeded::All(_) => ("connections", "limit on open files"),
            Exceeded::Share(_) => ("peer_connections", "limits.peer_share, limits.trusted_peers"),
        };
        self.refused.count(reason);
        if let Some(refused) = self.log.poll() {
            tracing::warn!(%peer, limit = exceeded.limit(), key, refused, "connection refused");
        }
        None
    }
}

/// Returns true if all connections end within the period.
async fn ended(connections: &mut JoinSet<()>, period: Duration) -> bool {
    let all = async { while connections.join_next().await.is_some() {} };
    tokio::time::timeout(period, all).await.is_ok()
}

// === impl Listener ===

/// A connection that was accepted.
enum Accepted {
    Tcp(TcpStream, Peer),
    Tls(TcpStream, Peer, Arc<Tls>),
    Unix(UnixStream, Peer),
}

impl Listener {
    /// Accepts the next connection.
    ///
    /// # Cancel safety
    ///
    /// Safe: dropping the future loses no connection.
    async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = accept(listener).await?;
                Ok(Accepted::Tcp(stream, peer))
            }
            Self::Tls(listener, tls) => {
                let (stream, peer) = accept(listener).await?;
                Ok(Accepted::Tls(stream, peer, Arc::clone(tls)))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept().await?;
                let uid = stream.peer_cred().ok().map(|cred| cred.uid());
                Ok(Accepted::Unix(stream, Peer::Unix { uid }))
            }
        }
    }
}

async fn accept(listener: &TcpListener) -> io::Result<(TcpStream, Peer)> {
    let (stream, address) = listener.accept().await?;
    // Fails for a connection that is closed already; its first read reports that.
    drop(stream.set_nodelay(true));
    Ok((stream, Peer::Tcp(address)))
}

// === impl Accepted ===

impl Accepted {
    fn peer(&self) -> Peer {
        let (Self::Tcp(_, peer) | Self::Tls(_, peer, _) | Self::Unix(_, peer)) = self;
        *peer
    }

    /// Serves the connection in a task of its own until it ends.
    fn spawn<S, B>(self, connections: &mut JoinSet<()>, mut serving: Serving<S>)
    where
        S: HttpService<Response = Response<B>>,
        B: BoundedBody,
    {
        // Each kind has a future of its own, because a task has the size of the largest: that of a TLS handshake is three times
        // that of a plain connection. It is boxed, so that it is freed after the handshake.
        match self {
            #[cfg(feature = "kubernetes-api")]
            Self::Tcp(stream, peer) if serving.serves_http1 => connections.spawn(async move {
                let preface = http1::is_http2_preface(&stream, serving.shared.config.request_timeout);
                match Box::pin(serving.begins(preface)).await {
                    Ok(true) => drive(stream, serving).await,
                    Ok(false) => drive_http1(stream, serving).await,
                    Err(error) => {
                        if error.kind() == io::ErrorKind::TimedOut {
                            serving.shared.config.refused.count("request_timeout");
                        }
                        tracing::debug!(%peer, %error, "connection ended");
                    }
                }
            }),
            Self::Tcp(stream, _) => connections.spawn(drive(stream, serving)),
            Self::Tls(stream, peer, tls) => connections.spawn(async move {
                let accepted =
                    tls.accept(stream, serving.peer.peer, serving.shared.config.request_timeout, serving.serves_http1);
                match Box::pin(serving.begins(accepted)).await {
                    Ok(stream) => {
                        tls.identify(&stream, &mut serving.peer);
                        #[cfg(feature = "kubernetes-api")]
                        if serving.serves_http1 && stream.get_ref().1.alpn_protocol() != Some(b"h2") {
                            return Box::pin(drive_http1(stream, serving)).await;
                        }
                        drive(stream, serving).await;
                    }
                    Err(error) => {
                        if error.kind() == io::ErrorKind::TimedOut {
                            serving.shared.config.refused.count("handshake_timeout");
                        }
                        tracing::debug!(%peer, %error, "TLS handshake failed");
                    }
                }
            }),
            #[cfg(feature = "kubernetes-api")]
            Self::Unix(stream, _) if serving.serves_http1 => connections.spawn(drive_http1(stream, serving)),
            Self::Unix(stream, _) => connections.spawn(drive(stream, serving)),
        };
    }
}

/// Parts that the task of a connection needs.
struct Serving<S> {
    service: S,
    shared: Arc<ListenerShared>,
    peer: ConnectionPeer,
    permit: Permit,
    serves_http1: bool,
}

// === impl Serving ===

impl<S> Serving<S> {
    /// Awaits the beginning of a connection. A server that drains gives it little time: nothing was requested over it.
    async fn begins<T>(&self, beginning: impl Future<Output = io::Result<T>>) -> io::Result<T> {
        let drained = async {
            self.shared.draining.cancelled().await;
            sleep(linger_time(self.shared.config.drain_period)).await;
        };
        tokio::select! {
            biased;
            begun = beginning => begun,
            () = drained => Err(io::Error::other("the server drains")),
        }
    }
}

/// Drives one connection of HTTP/1.1 to its end, and then releases its permit.
#[cfg(feature = "kubernetes-api")]
async fn drive_http1<T, S, B>(io: T, serving: Serving<S>)
where
    T: Io,
    S: HttpService<Response = Response<B>>,
    B: BoundedBody,
{
    let Serving { service, shared, peer, permit, .. } = serving;
    let (_permit, span) = (permit, debug_span!("connection", peer = %peer.peer));
    http1::drive(io, peer, service, shared).instrument(span).await;
}

/// Drives one connection to its end, and then releases its permit.
fn drive<T, S, B>(io: T, serving: Serving<S>) -> impl Future<Output = ()> + Send + use<T, S, B>
where
    T: Io,
    S: HttpService<Response = Response<B>>,
    B: BoundedBody,
{
    let Serving { service, shared, peer: connected, permit, .. } = serving;
    let peer = connected.peer;
    let connection = Connection::new(io, connected, service, Arc::clone(&shared));
    let (io, time) = (connection.io.clone(), linger_time(shared.config.drain_period));
    let connection = connection.instrument(debug_span!("connection", %peer));
    async move {
        let _permit = permit;
        let ended = connection.await;
        if let Err(error) = &ended {
            if let Some(reason) = error.refused_for() {
                shared.config.refused.count(reason);
            }
            tracing::debug!(%peer, %error, "connection ended");
        }
        let is_complete = ended.err().is_none_or(|error| error.is_written());
        if is_complete && let Some(io) = io.into_io() {
            Box::pin(linger(io, time)).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[tokio::test]
    async fn the_peer_of_a_unix_socket_is_a_user() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = Listener::Unix(UnixListener::bind(&path).unwrap());
        let (accepted, _client) = tokio::join!(listener.accept(), UnixStream::connect(&path));
        let Accepted::Unix(_, peer) = accepted.unwrap() else { panic!("not from a unix socket") };
        assert_eq!(peer, Peer::Unix { uid: Some(std::fs::metadata(&path).unwrap().uid()) });
    }
}
