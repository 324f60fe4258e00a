//! The `kube` source: one kind of object of a Kubernetes API, in all namespaces or in some.
//!
//! ```text
//!          ┌─▶ initial events of a watch, or pages ──▶ objects ──┐
//!   Api ───┤                                                     ├──▶ KnownState (version scheme, cluster, position) ──▶ List, Delta
//!          └─▶ lines of a watch ──▶ events ──────────────────────┘
//! ```
//!
//! The application makes one source for each configured resource, and the resource's Reflector drives it. `api` sends requests
//! and classifies their failures, `list` reads pages, `watch` reads streams, `object` reads bodies and versions.
//!
//! Below `api`, all resources of one kubeconfig and context share a `client`:
//!
//! ```text
//!   client ──▶ access: kubeconfig, tls, proxy, exec (credentials; renewed when they expire or the server refuses them)
//!      │
//!      └─────▶ pool of connections: dial, tunnel, tls, HTTP/2 or HTTP/1.1 (with a check that the peer is alive)
//! ```
//!
//! - Bodies are the bytes received, except that configured fields are cut (`FieldCut`), and that the type, which a page omits
//!   from its items, is put in front. The API writes it there in events too, so an object is the same in a list and in a watch.
//! - Versions are the API's own decimals. If the API has others, the source numbers them itself, under a lineage.
//! - The source never emits a list older than the last known version. When an API server lags behind, the source requests the
//!   most recent state, which the server cannot answer from its cache; only that answer can show by its version that the
//!   history was rewritten. A changed uid of the namespace kube-system shows another cluster.
//! - After a restart, and after a broken connection, the watch begins before the last known change, which the API has to replay
//!   first (`resume_check`). If the API server no longer has that change, the source lists the resource.
//! - Before the source reopens a watch, one request reads the current version of the cluster and the object that changed last
//!   (`head`). Without it, a watch from a version lost in a restore would be silent until the cluster reached that version
//!   again. After a watch that the API has just closed normally, that request is proof enough.
//! - A version that stands still is compared with that of the cluster (`feed`): a connection that is alive does not prove that its
//!   watches are fed.
//! - Versions numbered by lineage have no order in the API and no predecessor. A broken watch resumes from the API's text
//!   before the last change, which the API has to replay first; without a change since the list, the source lists the resource.
//! - The first list of an API that streams initial events is a watch (`initial_events`). From any other API the source lists, and
//!   tries initial events again at the next connection, then every 10 minutes.
//!
//! Through `reviews` the API server also decides who a caller of this server is, and what it may read.
//!
//! The Reflector waits, relists and backs off, not the source. The source itself obeys only Retry-After: it sends no request
//! of the resource earlier.

mod api;
mod client;
mod config;
mod discovery;
mod feed;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzzing;
mod head;
mod initial_events;
mod initial_events_attempts;
mod known;
mod line_reader;
mod list;
mod list_kind;
mod namespaces;
mod object;
mod polling;
mod probe;
mod replay;
mod resources;
mod resume_check;
#[cfg(feature = "server")]
mod reviews;
mod sent_ahead;
mod shared;
mod source;
mod status;
mod unreadable;
mod watch;

#[cfg(test)]
mod tests;

#[cfg(feature = "server")]
pub use self::reviews::KubeReviewer;
pub use self::{
    client::KubeClients,
    config::{KubeCluster, KubeConfig},
    source::KubeSource,
};

/// State for one caller at a time, which uses a connection or a plugin while the others wait for the result.
#[expect(clippy::disallowed_types, reason = "the others have nothing else to wait for")]
type SingleFlight<T> = tokio::sync::Mutex<T>;
