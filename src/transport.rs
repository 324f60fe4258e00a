//! Connections: accepts them, drives HTTP/2 over each in one task, and closes them. Depends on bytes and connections only, and on
//! none of our messages.
//!
//! - [`Server`] accepts connections and owns the task of each; [`pause_after`] delays the next attempt after a failed accept.
//! - `connection` is that task: it polls h2's connection and the streams that the service wants polled beside it, until none is
//!   ready any more, and only then writes. `keepalive` detects clients that have vanished.
//! - `exchange` is one stream: the call, and then the response body, which is polled for as much as can be sent ([`BoundedBody`]).
//! - `http1` drives a connection of HTTP/1.1 instead, where a listener serves that, too.
//! - `linger` leaves the close of a connection to its peer, so that this has read everything.
//! - `budget` limits the unsent data of a connection, and `data_payload` counts it. A stream without room waits in a queue,
//!   unpolled.
//! - `streams` holds the streams of the connection's task and their wakers; any other stream has a task of its own, so that a
//!   large List never runs in a task that serves watches.
//! - [`Ledger`] sums up the memory that all connections hold for their clients.
//! - `stall_timer` resets the streams whose clients read nothing for too long, by the rule of `waiting`; `windows` counts the window
//!   of each stream.
//! - `frame_tracker` tracks the frames that clients send: those that change windows, and one that is begun and not completed.
//! - [`StreamEnd`] is the reason for which the server has ended a stream or its connection.
//! - [`Quota`] limits what is open, in all and for each [`Origin`]; [`Rejections`] counts rejections.
//! - [`Peer`] is the other end of a connection, or the client behind one of the [`TrustedPeers`].
//! - [`PeerAccount`] limits what peers make the server hold before their callers are authenticated: above a limit the oldest ends.
//! - `buffered_io` combines all writes of HTTP/2 in one poll into one write.
//! - [`Tls`] is below that, so that merged data is encrypted together.
//! - [`Chunk`] lets one DATA frame carry several buffers without copying them.
//!
//! Neither tonic's nor hyper's server is used, because the cost of a delivery is decided by the bytes per write and by the tasks
//! that are woken. A thousand streams on a few connections cost a task, a wake-up and a small write each there, and one write per
//! connection here. Both also encode a chunk of a body before there is a window for it, and a client that reads nothing makes the
//! server hold that chunk for any length of time.

mod accept;
mod body;
mod budget;
mod buffered_io;
mod chunk;
mod connection;
mod connection_error;
mod data_payload;
mod end;
mod exchange;
mod frame_tracker;
mod handle;
#[cfg(feature = "kubernetes-api")]
mod http1;
mod identity;
mod keepalive;
mod ledger;
mod linger;
mod pause;
mod peer;
mod peer_account;
mod progress;
mod quota;
mod stall_timer;
mod streams;
mod tls;
mod waiting;
mod windows;

pub use accept::{Listener, Server};
pub use body::{BoundedBody, BoundedFrame, FinalFrames, RequestBody, Room, UNKNOWN};
pub use chunk::Chunk;
pub use connection::ServerConfig;
pub use end::StreamEnd;
pub use handle::StreamHandle;
pub use identity::CertificateExpiry;
pub use ledger::{HeldBytes, Ledger};
pub use pause::pause_after;
pub use peer::{Peer, TrustedPeers};
pub use peer_account::{PeerAccount, PeerCharge};
pub use quota::{Exceeded, Origin, Permit, Quota, Rejections, share_of};
pub use tls::{Tls, TlsFiles};

#[cfg(test)]
mod tests;
