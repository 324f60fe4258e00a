//! The gRPC side: requests into queries, snapshots and cursors into answers.
//!
//! - [`Service`] is the state of the server; handlers stand on it, and it on none of them.
//! - `layer` is around every call: it bounds and counts it, and ends it at its deadline. No handler knows of it.
//! - [`Routes`] is what every request comes to. It sends Watch to `watch`, List and ByIndex to `list`, and Get to `get`, outside the
//!   generated traits (`generated`): the frames of a watch are encoded once for all watchers, and objects without making messages of
//!   them.
//! - `until` reads such a watch in this process.
//! - `kept` charges streams with the old states that only they have.
//! - `slice` bounds how long a call looks at objects before others go on.
//! - `turns` lets those who are sent much at once go on one after the other, behind everything else.
//! - `compiler` makes expressions of their texts, where it keeps nobody waiting.
//! - `status` is the only place that makes a status; `frame` the only one that knows what a watcher's bytes look like.
//!
//! Deliberately not here: listening, connections and TLS (`app`, and the transport), and where objects come from.

mod call;
mod compiler;
mod discovery;
mod fair;
mod frame;
mod generated;
mod get;
mod kept;
mod layer;
mod list;
mod metrics;
mod page;
mod query;
mod request;
mod resource;
mod routes;
mod scan;
mod service;
mod slice;
mod status;
mod turns;
mod until;
mod watch;
mod watchers;

pub use frame::{WireArena, WireFrame};
pub use layer::Body;
pub use metrics::RpcMetrics;
#[cfg(any(test, fuzzing))]
pub(crate) use page::fuzzing;
pub use resource::ServedResource;
pub use routes::Routes;
pub use service::{Lifecycle, Service, ServiceConfig};
