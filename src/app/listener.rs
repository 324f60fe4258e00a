//! Listening sockets of gRPC and of the admin port.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::net::{TcpListener, UnixListener, UnixStream};

use super::error::AppError;
use crate::{
    config::{AuthenticationConfig, Config, ListenAddr, TlsConfig},
    transport::{Listener, Tls, TlsFiles},
};

/// Listening socket, of TCP or of a path.
pub(super) enum GrpcListener {
    Tcp(TcpListener),
    Unix(UnixListener, UnixSocket),
}

/// Socket file, removed when it is dropped.
pub(super) struct UnixSocket(PathBuf);

// === impl GrpcListener ===

impl GrpcListener {
    pub(super) async fn bind(address: &ListenAddr) -> Result<Self, AppError> {
        match address {
            ListenAddr::Tcp(address) => bind_tcp("gRPC", *address).await.map(Self::Tcp),
            ListenAddr::Unix(path) => {
                remove_stale_socket(path).await;
                let listener = UnixListener::bind(path);
                let listener = listener.map_err(|error| AppError::listen("gRPC", address, &error))?;
                tracing::info!("unix socket: clients may have to set the authority, for example to localhost");
                Ok(Self::Unix(listener, UnixSocket(path.clone())))
            }
        }
    }

    /// Returns the address, with the real port instead of a configured 0.
    pub(super) fn address(&self) -> Option<ListenAddr> {
        match self {
            Self::Tcp(listener) => listener.local_addr().ok().map(ListenAddr::Tcp),
            Self::Unix(_, socket) => Some(ListenAddr::Unix(socket.0.clone())),
        }
    }

    /// Returns the source of connections, with TLS unless it is a unix socket, and the socket file.
    pub(super) fn with_tls(self, tls: Option<&Arc<Tls>>) -> (Listener, Option<UnixSocket>) {
        match (self, tls) {
            (Self::Tcp(listener), Some(tls)) => (Listener::Tls(listener, Arc::clone(tls)), None),
            (Self::Tcp(listener), None) => (Listener::Tcp(listener), None),
            (Self::Unix(listener, socket), _) => (Listener::Unix(listener), Some(socket)),
        }
    }
}

// === impl UnixSocket ===

impl Drop for UnixSocket {
    fn drop(&mut self) {
        // Another process may have removed it already.
        drop(std::fs::remove_file(&self.0));
    }
}

pub(super) async fn bind_tcp(what: &'static str, address: SocketAddr) -> Result<TcpListener, AppError> {
    TcpListener::bind(address).await.map_err(|error| AppError::listen(what, address, &error))
}

/// Loads the files of TLS, if it is configured. A client needs no certificate if it may send a token.
pub(super) fn tls(config: &Config) -> Result<Option<Tls>, AppError> {
    let Some(TlsConfig { cert, key, client_ca }) = config.tls.clone() else { return Ok(None) };
    let has_alternative =
        |authentication: &AuthenticationConfig| authentication.accepts_certificates && authentication.accepts_tokens();
    let is_certificate_optional = config.authentication.as_ref().is_some_and(has_alternative);
    let names = config.certificates;
    Tls::load(TlsFiles { cert, key, client_ca, is_certificate_optional, names })
        .map(Some)
        .map_err(|error| AppError::of("tls", error))
}

/// Removes the socket file of a server that was killed: no process accepts there.
async fn remove_stale_socket(path: &Path) {
    use std::os::unix::fs::FileTypeExt;
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).await.is_err_and(refused) {
        drop(std::fs::remove_file(path));
    }
}
