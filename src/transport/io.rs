//! Byte stream of a connection.

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};

/// Byte stream of a connection.
pub(super) trait Io: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Returns the TCP socket, if there is one.
    fn tcp(&self) -> Option<&TcpStream>;
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
