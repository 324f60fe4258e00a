//! informerd lists and watches each upstream resource **once**, keeps it in an indexed in-memory cache, and serves any number
//! of clients over gRPC.
//!
//! ```text
//!  upstream ──▶ source ──▶ Reflector ──▶ queue ──▶ informer task ──▶ Indexer (snapshots) ──▶ List, ByIndex, Get
//!  (kube,     ListerWatcher list+watch  ordered     one writer  │
//!   etcd, files, stream, informerd)     deltas                  └──▶ Broadcaster ──▶ per-client cursors ──▶ Watch
//!
//!  informer ──▶ file of its state ──▶ the next start, which serves it at once and watches from its version
//!
//!  server ──▶ client: lists, and watches that resume by themselves
//!         └─▶ source of a relay: the same resource, told on
//! ```
//!
//! The rooms, in reading order:
//!
//! - [`model`]: keys, versions, objects, changes, selectors, expressions, indexes. No IO, no async.
//! - [`watch`]: the fan-out. Groups of watchers, events encoded once, one cursor with its own bound for each client.
//! - [`cache`]: the one writer of each resource, its snapshots and indexes, the Reflector that feeds it, the
//!   [`cache::ListerWatcher`] that every upstream implements, and the files that a later start begins with.
//! - [`proto`]: the generated messages, and the only way between them and the model.
//! - [`source`]: the upstreams: a kind of object of a Kubernetes API, a prefix of an etcd cluster, a directory of
//!   manifests, a stream of watch events, and another informerd.
//! - [`grpc`]: requests into queries, snapshots and cursors into answers.
//! - [`transport`]: connections; bytes, and none of our messages.
//! - [`client`]: the other end: calls with typed errors, and watches that survive what happens to their streams.
//! - [`config`], [`telemetry`], [`admin`]: what the user writes; logs and metrics; probes.
//! - [`app`] and [`cli`]: everything connected, and the command line.
//! - [`census`]: what is alive, of which nothing is left in a release. `sync`: locks whose order a test can explore.
//!
//! Imports point inward, and a test reads the sources to enforce it:
//! `main → cli → {app, client}`, `app → {config, telemetry, admin, transport, grpc, source} → proto → {cache, watch} →
//! model`, `grpc → transport`, `source → client → proto` (a relay is a client). `model`, `watch` and `cache` never
//! name tonic, prost, clap or hyper; `grpc` and `source` never import each other; only `app` sees all layers of the server.
//!
//! What holds everywhere: one writer per resource, on a thread of its own; a watch is joined exactly; whatever a client is
//! not sent, it is told of in band; everything has a bound.

#[cfg(feature = "server")]
#[doc(hidden)]
pub mod admin;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod app;
pub mod cache;
#[doc(hidden)]
pub mod census;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod config;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod grpc;
pub mod model;
#[cfg(feature = "client")]
pub mod proto;
#[cfg(feature = "server")]
pub mod source;
mod sync;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod telemetry;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod transport;
pub mod watch;

/// Returns proptest's own configuration, but for the place of failures, which are replayed before new cases: `tests/` has them.
#[cfg(test)]
fn property_config() -> proptest::test_runner::Config {
    use proptest::test_runner::{Config, FileFailurePersistence};
    Config::with_failure_persistence(FileFailurePersistence::SourceParallel("tests/proptest-regressions"))
}

/// Compiles the example of the page on the library.
#[cfg(doctest)]
#[doc = include_str!("../docs/library.md")]
mod library_page {}
