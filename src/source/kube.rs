//! The `kube` source: one kind of object of a Kubernetes API, in all namespaces or in one.
//!
//! ```text
//!          ┌─▶ initial events of a watch, or pages ──▶ objects ──┐
//!   Api ───┤                                                     ├──▶ Known (whose versions, which cluster) ──▶ List, Delta
//!          └─▶ lines of a watch ──▶ events ──────────────────────┘
//! ```
//!
//! Made by the application from its configuration, one for each resource; driven by the resource's Reflector. `api` knows
//! requests and what their failures mean (SEMANTICS 1.25-1.27), `list` pages, `watch` streams, `object` bodies and versions.
//!
//! Below `api`, all resources of one kubeconfig and context share a `client`:
//!
//! ```text
//!   client ──▶ access: kubeconfig, tls, proxy, exec (what a request needs; renewed when it expires or is refused)
//!      │
//!      └─────▶ pool of connections: dial, tunnel, tls, HTTP/2 or HTTP/1.1 (and whether the peer is there)
//! ```
//!
//! - Bodies are the bytes that came, but for the fields that are cut (`FieldCut`) and for the type that a page leaves out of
//!   its items: it is put in front, as the API itself writes it in events, so that an object is the same whichever way it came.
//! - Versions are the API's own decimals; an API that has others is served by lineage, for good (invariant 12).
//! - A list is never older than what is known (invariant 14). An API server that lags behind is asked for the most recent
//!   state, which it cannot answer out of its own cache; only that can show a rewind by its version. Another uid of the
//!   namespace kube-system shows another cluster.
//! - A later start watches from the last change that is known, which has to be told again (`proof`); so does a watch that
//!   broke. If the API server has forgotten that change since, the resource is listed.
//! - Before a watch is opened again one request reads how far the cluster is and the object that changed last (`head`): a
//!   watch from a version that was lost in a restore would be silent until the cluster has counted up to it. A watch that the
//!   API has closed as it should needs no more than that.
//! - Versions that are counted here have no order in the API, nor a number before them. A watch that broke goes on from the text
//!   before the last change, which has to come first; if there was none since the list, the resource is listed.
//! - The first list of an API that streams initial events is a watch (`initial`). An API that does not is listed, and gets
//!   another try at a new connection, then every 10 minutes.
//!
//! Deliberately not here: waiting, relisting and backing off, which are the Reflector's; but for the time that an answer asks
//! for (Retry-After), which no request of the resource undercuts.

#[cfg(feature = "kube")]
mod access;
#[cfg(feature = "kube")]
mod api;
#[cfg(feature = "kube")]
mod attempts;
#[cfg(feature = "kube")]
mod body;
#[cfg(feature = "kube")]
mod client;
#[cfg(feature = "kube")]
mod connection;
#[cfg(feature = "kube")]
mod exec;
#[cfg(any(test, fuzzing))]
#[cfg(feature = "kube")]
pub(crate) mod fuzzing;
#[cfg(feature = "kube")]
mod head;
#[cfg(feature = "kube")]
mod initial;
#[cfg(feature = "kube")]
mod known;
#[cfg(feature = "kube")]
mod kubeconfig;
#[cfg(feature = "kube")]
mod lines;
#[cfg(feature = "kube")]
mod list;
#[cfg(feature = "kube")]
mod namespaces;
#[cfg(feature = "kube")]
mod object;
#[cfg(feature = "kube")]
mod pool;
#[cfg(feature = "kube")]
mod proof;
#[cfg(feature = "kube")]
mod proxy;
#[cfg(feature = "kube")]
mod reading;
#[cfg(feature = "kube")]
mod replay;
#[cfg(feature = "kube")]
mod sent_ahead;
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
mod watch;

#[cfg(test)]
#[cfg(feature = "kube")]
mod tests;

use std::{path::PathBuf, time::Duration};

#[cfg(feature = "kube")]
pub use self::client::KubeClients;
#[cfg(not(feature = "kube"))]
pub use self::source::KubeClients;
pub use self::source::KubeSource;
use crate::model::FieldCut;

/// State that one caller at a time works on, over a connection or with a plugin, while the others wait for the result.
#[cfg(feature = "kube")]
#[expect(clippy::disallowed_types, reason = "the others have nothing else to wait for")]
type SingleFlight<T> = tokio::sync::Mutex<T>;

/// What a [`KubeSource`] follows, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KubeConfig {
    /// The name of the resource, for the log.
    pub resource: String,
    /// The API group, such as `apps`; empty for the core.
    pub group: String,
    /// The version of the group, such as `v1`.
    pub version: String,
    /// The kind as it is written in paths, such as `pods`.
    pub plural: String,
    /// Only this namespace; empty for all, and for what has none.
    pub namespace: String,
    /// Only these namespaces, at most 100, each with a list and a watch of its own; instead of `namespace`, and only of an API
    /// whose versions are decimals.
    pub namespaces: Vec<String>,
    /// Only namespaces with these labels, at most 100 at a time, as with `namespaces`; needs `list` and `watch` of namespaces.
    pub namespace_selector: String,
    /// Only objects with these labels, as kubectl's `-l`; empty for all.
    pub label_selector: String,
    /// Only objects with these fields, as far as the API can select by them; empty for all.
    pub field_selector: String,
    /// Which cluster, and as whom.
    pub cluster: KubeCluster,
    /// What is not kept of bodies.
    pub drop_fields: FieldCut,
    /// Only the metadata of objects is requested and kept: bodies are `PartialObjectMetadata` of `meta.k8s.io/v1`.
    pub is_metadata_only: bool,
    /// Objects on a page of a list; `None` for 500 where pages are of use, and none where the API would not use its cache.
    pub page_size: Option<u32>,
    /// How long the API may take to begin an answer, and for a page.
    pub answer_timeout: Duration,
    /// How long the API server may give no sign of life. A connection that is silent for a third of it is asked for one; one
    /// that is silent for all of it is closed, and the resource is STALE by the time of the last contact. At least 100 ms; less counts as that.
    pub contact_timeout: Duration,
    /// How long the initial events of a watch may make no progress: an API that has them to send begins with them.
    pub initial_events_timeout: Duration,
    /// Versions are counted here, whatever they look like: for an API whose decimals are in no order.
    pub has_opaque_versions: bool,
    /// How long the API is asked to keep a watch open, at least; at most twice as long, at random.
    pub watch_timeout: Duration,
}

/// Which cluster, and as whom. With neither, that of `KUBECONFIG` or `~/.kube/config`, or else the one that this runs in.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct KubeCluster {
    /// A kubeconfig file.
    pub kubeconfig: Option<PathBuf>,
    /// A context of it, instead of its current one.
    pub context: Option<String>,
}

// === impl KubeConfig ===

impl KubeConfig {
    /// All objects of a kind in all namespaces, whole, with the times of client-go: a watch of 5 to 10 minutes.
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
