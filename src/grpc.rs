//! The gRPC side: requests into queries, snapshots and cursors into answers.
//!
//! - [`Service`] holds what is served; the generated trait and the Watch service stand on it.
//! - [`Routes`] is what every request comes to. It sends Watch to `watch`, outside the generated trait, because its frames are
//!   encoded once for all watchers.
//! - `until` reads such a watch in this process.
//! - `status` is the only place that makes a status; `frame` the only one that knows what a watcher's bytes look like.
//!
//! Deliberately not here: listening, connections and TLS (`app`, and the transport), and where objects come from.

mod discovery;
mod frame;
mod list;
mod metrics;
mod page;
mod query;
mod routes;
mod scan;
mod service;
mod status;
mod until;
mod watch;
mod watchers;

pub use frame::WireFrame;
pub use metrics::RpcMetrics;
pub use routes::{Body, Routes};
pub use service::{Lifecycle, ServedResource, Service, ServiceConfig};
