//! Configuration of the source.

use std::{path::PathBuf, time::Duration};

use crate::model::FieldCut;

/// Configuration of a [`KubeSource`](super::KubeSource): the objects to follow, the cluster and the timeouts.
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
