//! informerd lists and watches each upstream resource **once**, keeps it in an indexed in-memory cache, and serves any number
//! of clients over gRPC.
//!
//! ```text
//!  upstream ──▶ source ──▶ Reflector ──▶ queue ──▶ informer task ──▶ Indexer (snapshots) ──▶ List, ByIndex, Get
//!  (kube,     ListerWatcher list+watch  ordered     one writer  │
//!   etcd, files, stream, informerd)     deltas                  └──▶ Broadcaster ──▶ per-client queues ──▶ Watch
//!
//!  informer ──▶ snapshot file ──▶ the next start, which serves it at once and watches from its version
//!
//!  server ──▶ client: lists, and watches that resume by themselves
//!         └─▶ source of a relay: the same resource, served again
//! ```
//!
//! Modules, in reading order:
//!
//! - [`model`]: keys, versions, objects, changes, selectors, expressions, indexes. No IO, no async.
//! - [`watch`]: the fan-out. Groups of watchers, events encoded once, one cursor with its own bound for each client.
//! - [`cache`]: the single writer of each resource, its snapshots and indexes, the Reflector that feeds it, the
//!   [`cache::ListerWatcher`] that every upstream implements, and the snapshot files that the next start begins with;
//!   [`cache::SharedInformer`], for programs.
//! - [`proto`]: the generated messages, and their only conversion from and to the model.
//! - [`source`]: the upstreams: a resource of a Kubernetes API, a prefix of an etcd cluster, a directory of manifests, a stream
//!   of watch events, and another informerd.
//! - [`grpc`]: requests to queries; snapshots and cursors to responses.
//! - `rest`, a feature: the same to clients of Kubernetes, over its own API; and as JSON and server-sent events. `printers`: the cells of its tables, and of the command line's.
//! - [`auth`]: who a caller is, and what it may read.
//! - [`audit`]: the audit log, as lines that a thread writes.
//! - [`transport`]: connections and their bytes; none of the messages.
//! - `turns`: the queues in which callers wait for what is bounded.
//! - [`client`]: the client library: calls with typed errors, watches that resume when their stream ends, and informers.
//! - `net`: the address of a server and TLS with it, dialling, and files that are read again when they change.
//! - [`config`], [`telemetry`], [`admin`]: the configuration; logs and metrics; the probes. `process`: the
//!   load of this process.
//! - [`mirror`]: a directory with a file for each object of a resource of a server.
//! - [`app`] and [`cli`]: the composition of everything, and the command line.
//! - `testing`, a feature: fakes for the tests of programs, and a server for them.
//! - [`census`]: counts of live values, empty in a release build. `log_throttle`: the rate of log lines. `sync`: locks whose schedule a test can explore.
//!
//! Imports point inward; a test reads the sources to enforce it:
//! `main → cli → {app, client, mirror}`, `mirror → {admin, source}`,
//! `app → {config, telemetry, admin, transport, grpc, source} → proto → {cache, watch} → model`,
//! `rest → {grpc, admin, printers}`, `grpc → {transport → auth → {model, net, turns}, audit}`, `{source, config} → {client → {proto, net}, auth}` (a relay is a client).
//! `model`, `watch` and `cache` never name tonic, prost, clap or hyper; `grpc` and `source` never import each other; only `app` sees
//! all layers of the server.
//!
//! Words of our own, such as lineage, cursor and lane, are in `docs/glossary.md`.
//!
//! Rules everywhere: one writer per resource, in the server on its own thread; a watch joins without a gap or an overlap; the
//! server reports in band every event that it does not send; everything is bounded.

/// Implements `Debug` for a struct, with some of its fields: `debug_fields!(Name { field })`; or with expressions of it:
/// `debug_fields!([K: Key] Name<K>, this => { len: this.entries.len() })`.
macro_rules! debug_fields {
    ($([$($bound:tt)*])? $name:ident $(<$($of:ident),+>)? { $($field:ident),* $(,)? }) => {
        debug_fields!($([$($bound)*])? $name $(<$($of),+>)?, this => { $($field: this.$field),* });
    };
    ($([$($bound:tt)*])? $name:ident $(<$($of:ident),+>)?, $this:ident => { $($field:ident: $e:expr),* $(,)? }) => {
        impl $(<$($bound)*>)? ::std::fmt::Debug for $name $(<$($of),+>)? {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                #[allow(unused_variables, reason = "nothing may be listed")]
                let $this = self;
                f.debug_struct(stringify!($name))$(.field(stringify!($field), &$e))*.finish_non_exhaustive()
            }
        }
    };
}

/// Defines an enum whose values have names in the contract.
macro_rules! named {
    ($(#[$attribute:meta])* pub enum $enum:ident { $($(#[doc = $doc:literal])* $value:ident = $name:literal,)* }) => {
        $(#[$attribute])*
        pub enum $enum { $($(#[doc = $doc])* $value,)* }

        impl $enum {
            /// Every value, in the order of the contract.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$value),*];

            /// Returns the name in the contract.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$value => $name),* }
            }
        }
    };
}

#[cfg(feature = "server")]
#[doc(hidden)]
pub mod admin;
#[cfg(feature = "server")]
pub mod app;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod audit;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod auth;
pub mod cache;
#[doc(hidden)]
pub mod census;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod cli;
#[cfg(feature = "client")]
pub mod client;
#[cfg(feature = "server")]
pub mod config;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod grpc;
mod log_throttle;
#[cfg(feature = "cli")]
#[doc(hidden)]
pub mod mirror;
pub mod model;
#[cfg(any(feature = "client", feature = "kube"))]
mod net;
#[cfg(any(feature = "cli", feature = "kubernetes-api"))]
mod printers;
#[cfg(feature = "server")]
mod process;
#[cfg(feature = "client")]
pub mod proto;
#[cfg(feature = "kubernetes-api")]
#[doc(hidden)]
pub mod rest;
#[cfg(any(feature = "client", feature = "kube"))]
pub mod source;
mod sync;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod telemetry;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(feature = "server")]
#[doc(hidden)]
pub mod transport;
#[cfg(feature = "server")]
mod turns;
pub mod watch;

/// Returns proptest's default configuration, except that it keeps failures, which are replayed first, in `tests/`.
#[cfg(test)]
fn property_config() -> proptest::test_runner::Config {
    use proptest::test_runner::{Config, FileFailurePersistence};
    Config::with_failure_persistence(FileFailurePersistence::SourceParallel("tests/proptest-regressions"))
}

/// Compiles and runs the examples in the library page of the documentation.
#[cfg(all(doctest, feature = "testing"))]
#[doc = include_str!("../docs/library.md")]
mod library_page {}
