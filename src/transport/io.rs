//! Byte stream of a connection.

use std::time::Duration;

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

/// Lets the kernel end the connection when its peer accepts nothing for this time. Returns false without such a kernel or socket.
pub(super) fn set_user_timeout<T: Io>(io: &T, timeout: Duration) -> bool {
    #[cfg(target_os = "linux")]
    let is_set = |tcp| socket2::SockRef::from(tcp).set_tcp_user_timeout(Some(timeout)).is_ok();
    #[cfg(not(target_os = "linux"))]
    let is_set = |_| timeout.is_zero();
    io.tcp().is_some_and(is_set)
}
