//! Connections: accepting them, driving HTTP/2 over each in one task, and ending them. Knows bytes and connections, and none
//! of our messages.
//!
//! - [`Server`] accepts, and owns the task of every connection; [`pause_after`] is for what could not be accepted.
//! - `connection` is that task: it polls h2's connection and those streams that the service wants polled beside it, until
//!   nothing is ready any more, and only then writes. `keepalive` finds the clients that have vanished.
//! - `exchange` is one stream: the call, and then the response's body, which is asked for no more than can be sent ([`Supply`]).
//! - `budget` bounds what a connection keeps unsent, and `outgoing` counts it. Whoever finds no room waits in line, unpolled.
//! - `streams` holds the streams of the connection's task and their wakers; any other stream has a task of its own, so that a
//!   large List never runs where watches are served.
//! - [`Ledger`] sums up the memory that all connections hold for their clients.
//! - `stalled` resets the streams whose clients take nothing for too long.
//! - `incoming` follows what clients send, for the frame that was begun and is not completed.
//! - [`Quota`] bounds what is open, in all and of each [`Origin`]; [`Refused`] counts what was refused.
//! - `merge` makes one write of all that HTTP/2 wants to write in one poll.
//! - [`Tls`] lies below that, so that what was merged is encrypted together.
//! - [`Chunk`] lets one DATA frame carry several pieces without copying them.
//!
//! Why neither tonic's server nor hyper's: what a delivery costs is decided by bytes per write and by who is woken. A thousand streams on a few
//! connections cost a task, a wake-up and a small write each there, and one write per connection here. And both make a chunk
//! of a body before there is a window for it, which a client that reads nothing keeps for as long as it likes.

mod accept;
mod body;
mod budget;
mod chunk;
mod connection;
mod exchange;
mod handle;
mod incoming;
mod io;
mod keepalive;
mod ledger;
mod merge;
mod outgoing;
mod pause;
mod progress;
mod quota;
mod stalled;
mod streams;
mod tls;

use std::{fmt, net::SocketAddr};

pub use accept::{Listener, Server};
pub use body::{LastWords, RequestBody, Room, Supplied, Supply, UNKNOWN};
pub use chunk::Chunk;
pub use connection::ServerConfig;
pub use handle::StreamHandle;
pub use ledger::{Ledger, Waiting};
pub use pause::pause_after;
pub use quota::{Exceeded, Origin, Permit, Quota, Refused, share_of};
pub use tls::{Tls, TlsError, TlsFiles};

/// Who is at the other end of a connection; an extension of each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peer {
    /// Over TCP.
    Tcp(SocketAddr),
    /// Over a unix socket, which has no address.
    Unix {
        /// The user that the process at the other end had when it connected, if the kernel tells.
        uid: Option<u32>,
    },
}

// === impl Peer ===

impl Peer {
    /// Returns whose share its connection is part of.
    pub fn origin(&self) -> Origin {
        match self {
            Self::Tcp(address) => Origin::at(address.ip()),
            Self::Unix { uid } => Origin::User(*uid),
        }
    }
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix { .. } => f.write_str("unix"),
        }
    }
}

#[cfg(test)]
mod tests;
