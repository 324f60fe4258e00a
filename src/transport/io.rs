//! The bytes below a connection.

use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
};

/// What a connection is made of.
pub(super) trait Io: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// The socket, if there is one to be tuned.
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
