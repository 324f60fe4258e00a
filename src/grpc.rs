//! The gRPC API: maps requests to queries, and snapshots and cursors to responses.
//!
//! - [`Service`] is the shared state of the server. The handlers depend on it, and it depends on none of them.
//! - `layer` wraps every call: it limits and counts calls, and ends each at its deadline. No handler depends on it.
//! - [`Routes`] dispatches every request. It sends Watch to `watch`, Subscribe to `subscribe`, List and ByIndex to `list`, and Get to `get`, past the
//!   generated traits (`generated`): so the frames of a watch are encoded once for all watchers, and objects are encoded without
//!   building messages of them.
//! - `authenticate` finds the identity of a call, which may be made on behalf of another.
//! - `access` checks the rights of every call before its resource is looked up, and `recheck` those of open watches.
//! - `views` parses the view of a request, and limits the number of different ones.
//! - `subscribe` puts any number of watches on one stream.
//! - `until` implements Until: it reads a watch within this process.
//! - `http_call` is a call over another protocol, with the same limits, rights and watches.
//! - `held_snapshots` charges each stream for the old states that only it still references.
//! - `time_slice` limits the time that a call scans objects before it yields.
//! - `bulk_scheduler` schedules bulk responses (lists, snapshots, replays), so that they do not delay live events.
//! - `compiler` compiles the expressions of clients on threads that serve no other call.
//! - `trace_context` makes the span of a call part of the trace of its caller.
//! - `stats` reads the load of everything, for operators and metrics.
//! - `audited_call` writes the lines of a call to the audit log, and `denials` limits those about denied calls.
//! - `peers` limits what each peer makes the server hold from the first HEADERS of a call on, before its caller is authenticated.
//! - `quotas` limits what each caller has open; `transport` limits what all of them hold.
//! - `status` alone builds statuses; `frame` alone defines the wire encoding of a watch.
//!
//! Not in this module: listening, connections and TLS (`app` and `transport`), and the sources of objects.

/// Implements `http_body::Body` for a bounded body, with the condition of its end: `http_body!(GetBody, body => body.is_over)`.
macro_rules! http_body {
    ($name:ident, $body:ident => $is_over:expr) => {
        impl ::http_body::Body for $name {
            type Data = $crate::transport::Chunk;
            type Error = ::tonic::Status;

            fn poll_frame(
                self: ::std::pin::Pin<&mut Self>,
                cx: &mut ::std::task::Context<'_>,
            ) -> ::std::task::Poll<Option<Result<::http_body::Frame<Self::Data>, Self::Error>>> {
                self.get_mut().poll_any(cx)
            }

            fn is_end_stream(&self) -> bool {
                let $body = self;
                $is_over
            }
        }
    };
}

mod access;
mod audited_call;
mod authenticate;
mod boundaries;
mod bulk_scheduler;
mod call;
mod checked_request;
mod compiler;
mod compressed_objects;
mod compression;
mod denials;
mod discovery;
mod encoder;
mod exceeded_limit;
mod explain;
mod frame;
mod generated;
mod get;
mod grant;
mod held_snapshots;
#[cfg(feature = "kubernetes-api")]
mod http_call;
mod layer;
mod list;
mod metrics;
mod open_streams;
mod opening;
mod page;
mod past;
mod peers;
mod query;
mod quotas;
mod recheck;
mod request;
mod resource;
mod resource_end;
mod routes;
mod service;
mod stats;
mod status;
mod status_body;
mod subscribe;
mod time_slice;
#[cfg(feature = "otel")]
mod trace_context;
mod until;
mod views;
mod watch;
mod watch_end;
mod watchers;

pub use frame::{WireArena, WireFrame};
#[cfg(feature = "kubernetes-api")]
pub(crate) use http_call::{HttpCall, HttpMethod, ListEnd, ListProgress, Listing, ObjectsWanted, Outcome};
pub use layer::{Body, CallRequest, RequestBody, ResponseBody};
pub use metrics::RpcMetrics;
#[cfg(any(test, fuzzing))]
pub(crate) use page::fuzzing;
#[cfg(feature = "kubernetes-api")]
pub(crate) use peers::PeerCall;
pub use quotas::{ListRate, QuotaConfig};
pub use resource::{KubernetesApi, MostRecent, ResourceCalls, ServedResource};
pub use resource_end::ResourceEnd;
pub use routes::{CallService, GeneratedServices, Routes};
pub use service::{AccessConfig, Lifecycle, Service, ServiceConfig};
pub use stats::ShownChanges;
#[cfg(feature = "kubernetes-api")]
pub(crate) use status::ApiError;
pub use views::ResourceViews;
#[cfg(feature = "kubernetes-api")]
pub(crate) use watch::{LastChange, LineOptions};
pub use watchers::WatchLoad;
