//! Listening sockets of gRPC and of the admin port.

use std::{
    io,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use tokio::net::{TcpListener, UnixListener, UnixStream};

use super::error::AppError;
use crate::config::ListenAddr;

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
                let listener = listener.map_err(|error| AppError::listen("gRPC", address.to_string(), error))?;
                tracing::info!("unix socket: clients may have to set the authority, for example to localhost");
                Ok(Self::Unix(listener, UnixSocket(path.clone())))
            }
        }
    }
}

// === impl UnixSocket ===

impl UnixSocket {
    /// Returns the path.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for UnixSocket {
    fn drop(&mut self) {
        // Another process may have removed it already.
        drop(std::fs::remove_file(&self.0));
    }
}

pub(super) async fn bind_tcp(what: &'static str, address: SocketAddr) -> Result<TcpListener, AppError> {
    TcpListener::bind(address).await.map_err(|error| AppError::listen(what, address.to_string(), error))
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
