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

#[cfg(feature = "kube")]
mod access;
#[cfg(feature = "kube")]
mod api;
#[cfg(feature = "kube")]
mod body;
#[cfg(feature = "kube")]
mod client;
#[cfg(feature = "kube")]
mod connection;
#[cfg(feature = "kube")]
mod discovery;
#[cfg(feature = "kube")]
mod exec;
#[cfg(feature = "kube")]
mod feed;
#[cfg(any(test, fuzzing))]
#[cfg(feature = "kube")]
pub(crate) mod fuzzing;
#[cfg(feature = "kube")]
mod head;
#[cfg(feature = "kube")]
mod initial_events;
#[cfg(feature = "kube")]
mod initial_events_attempts;
#[cfg(feature = "kube")]
mod known;
#[cfg(feature = "kube")]
mod kubeconfig;
#[cfg(feature = "kube")]
mod line_reader;
#[cfg(feature = "kube")]
mod list;
#[cfg(feature = "kube")]
mod list_kind;
#[cfg(feature = "kube")]
mod namespaces;
#[cfg(feature = "kube")]
mod object;
#[cfg(feature = "kube")]
mod polling;
#[cfg(feature = "kube")]
mod pool;
#[cfg(feature = "kube")]
mod probe;
#[cfg(feature = "kube")]
mod proxy;
#[cfg(feature = "kube")]
mod replay;
#[cfg(feature = "kube")]
mod resources;
#[cfg(feature = "kube")]
mod resume_check;
#[cfg(all(feature = "kube", feature = "server"))]
mod reviews;
#[cfg(feature = "kube")]
mod sent_ahead;
#[cfg(feature = "kube")]
mod shared;
#[cfg(feature = "kube")]
mod source;
#[cfg(not(feature = "kube"))]
#[path = "kube/without.rs"]
mod source;
#[cfg(feature = "kube")]
mod status;
#[cfg(feature = "kube")]
mod tls;
#[cfg(feature = "kube")]
mod tunnel;
#[cfg(feature = "kube")]
mod unreadable;
#[cfg(feature = "kube")]
mod watch;

#[cfg(test)]
#[cfg(feature = "kube")]
mod tests;

use std::{path::PathBuf, time::Duration};

#[cfg(feature = "kube")]
pub use self::client::KubeClients;
#[cfg(all(feature = "kube", feature = "server"))]
pub use self::reviews::KubeReviewer;
pub use self::source::KubeSource;
#[cfg(not(feature = "kube"))]
pub use self::source::{KubeClients, KubeReviewer};
use crate::model::FieldCut;

/// State for one caller at a time, which uses a connection or a plugin while the others wait for the result.
#[cfg(feature = "kube")]
#[expect(clippy::disallowed_types, reason = "the others have nothing else to wait for")]
type SingleFlight<T> = tokio::sync::Mutex<T>;

/// Configuration of a [`KubeSource`]: the objects to follow, the cluster and the timeouts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeConfig {
    /// Name of the resource, for the log.
    pub resource: String,
    /// API group, such as `apps`; empty for the core group.
    pub group: String,
    /// Version of the group, such as `v1`.
    pub version: String,
    /// Plural name of the kind in paths, such as `pods`.
    pub plural: String,
    /// Selected namespace; empty for all, and for cluster-scoped kinds.
    pub namespace: String,
    /// Selected namespaces, at most 100, each with its own list and watch. Excludes `namespace`, and requires an API whose
    /// versions are decimals.
    pub namespaces: Vec<String>,
    /// Label selector of namespaces, of which at most 100 may match at a time; else as `namespaces`. Needs `list` and `watch`
    /// of namespaces.
    pub namespace_selector: String,
    /// Label selector of objects, as kubectl's `-l`; empty for all.
    pub label_selector: String,
    /// Field selector of objects, with the fields that the API supports; empty for all.
    pub field_selector: String,
    /// Cluster and user.
    pub cluster: KubeCluster,
    /// Fields to remove from bodies.
    pub drop_fields: FieldCut,
    /// True if only the metadata of objects is requested and kept: bodies are `PartialObjectMetadata` of `meta.k8s.io/v1`.
    pub is_metadata_only: bool,
    /// Objects on a page of a list. `None` means 500, or no pages where a limit would keep the API from using its cache.
    pub page_size: Option<u32>,
    /// Timeout of the API for the head of an answer, and for a page.
    pub answer_timeout: Duration,
    /// Longest silence of the API server. A connection silent for a third of it is probed; one silent for all of it is closed,
    /// and the resource is STALE as of the last contact. Values below 100 ms count as 100 ms.
    pub contact_timeout: Duration,
    /// Longest time without progress of a watch's initial events. An API that supports them begins with them.
    pub initial_events_timeout: Duration,
    /// True if the source numbers the versions itself, for an API whose decimals have no order.
    pub has_opaque_versions: bool,
    /// Minimum of the timeout requested for a watch; the actual one is random, up to twice as long.
    pub watch_timeout: Duration,
}

/// Cluster and user. With neither field set: those of `KUBECONFIG` or `~/.kube/config`, else those of the pod's service
/// account.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct KubeCluster {
    /// Path of a kubeconfig file.
    pub kubeconfig: Option<PathBuf>,
    /// Context in that file, in place of its current one.
    pub context: Option<String>,
}

// === impl KubeConfig ===

impl KubeConfig {
    /// Returns the configuration for all objects of a kind in all namespaces, with whole bodies and client-go's timeouts: a
    /// watch lasts 5 to 10 minutes.
    pub fn new(resource: &str, group: &str, version: &str, plural: &str) -> Self {
        Self {
            resource: resource.to_owned(),
            group: group.to_owned(),
            version: version.to_owned(),
            plural: plural.to_owned(),
            namespace: String::new(),
            namespaces: Vec::new(),
            namespace_selector: String::new(),
            label_selector: String::new(),
            field_selector: String::new(),
            cluster: KubeCluster::default(),
            drop_fields: FieldCut::default(),
            is_metadata_only: false,
            page_size: None,
            has_opaque_versions: false,
            answer_timeout: Duration::from_secs(60),
            contact_timeout: Duration::from_secs(15),
            initial_events_timeout: Duration::from_secs(20),
            watch_timeout: Duration::from_secs(300),
        }
    }
}
