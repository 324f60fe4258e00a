//! The gRPC side: requests into queries, snapshots and cursors into answers.
//!
//! - [`Service`] holds what is served; the generated trait and the Watch service stand on it.
//! - `watch` answers Watch outside the generated trait, because its frames are encoded once for all watchers.
//! - `until` reads such a watch in this process.
//! - `compiler` makes expressions of their texts, where it keeps nobody waiting.
//! - `status` is the only place that makes a status; `frame` the only one that knows what a watcher's bytes look like.
//!
//! Deliberately not here: listening, connections and TLS (`app`, and the transport), and where objects come from.

mod compiler;
mod discovery;
mod frame;
mod list;
mod metrics;
mod page;
mod query;
mod scan;
mod service;
mod status;
mod until;
mod watch;
mod watchers;

pub use frame::WireFrame;
pub use metrics::RpcMetrics;
pub use service::{Lifecycle, ServedResource, Service, ServiceConfig};
pub use watch::Routes;
