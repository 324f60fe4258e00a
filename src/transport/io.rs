//! Byte stream of a connection.

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};

use crate::auth::Identity;

/// Byte stream of a connection.
pub(super) trait Io: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Returns the TCP socket, if there is one.
    fn tcp(&self) -> Option<&TcpStream>;

    /// Returns the identity of the client, if TLS has authenticated it.
    fn identity(&self) -> Option<Identity> {
        None
    }
}

// === impl Io ===

impl Io for TcpStream {
    fn tcp(&self) -> Option<&TcpStream> {
        Some(self)
    }
}

impl Io for UnixStream {
    fn tcp(&self) -> Option<&TcpStream> {
        None
    }
}
