//! One resource as the API serves it.

use std::sync::{Arc, OnceLock};

use futures_util::future::BoxFuture;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::{
    frame::WireFrame, held_snapshots::HeldSnapshots, resource_end::ResourceEnd, status::ApiError, views::ResourceViews,
    watch_end::WatchTotals,
};
use crate::{
    cache::InformerHandle,
    model::{ApiKind, AppliedVersion, ResourceVersion, random_id},
    watch::QueueOptions,
};

/// One resource as the API serves it.
#[derive(Debug, Clone)]
pub struct ServedResource {
    /// Name of the resource in requests.
    pub name: String,
    /// Kind of its source, for example "files".
    pub source: &'static str,
    /// True if the server is ready also while this resource has not synced.
    pub optional: bool,
    /// True if clients receive only the metadata of objects, unless an authorization rule allows more.
    pub is_secret: bool,
    /// Queue of a client that requests no queue options.
    pub queue: QueueOptions,
    /// Views of its objects.
    pub views: ResourceViews,
    /// Handle to the cache of the resource.
    pub informer: InformerHandle<WireFrame>,
    /// State of its calls.
    pub calls: ResourceCalls,
    /// Kind as which the Kubernetes API has it, if it does.
    pub kubernetes: Option<Arc<KubernetesApi>>,
}

/// Kind as which the Kubernetes API has a resource.
pub struct KubernetesApi {
    /// Names of the kind, as far as they are configured.
    pub kind: ApiKind,
    /// True if the source reports the other names.
    pub is_discovered: bool,
    /// Request for a version that proves a state to be recent; none if the source has its own way.
    pub most_recent: Option<MostRecent>,
}

/// Requests to the upstream for the version that a state needs to be as recent as the request.
#[cfg_attr(not(feature = "kubernetes-api"), expect(dead_code, reason = "without the API nobody reads so"))]
pub struct MostRecent {
    pub(super) request: Box<VersionRequest>,
    /// Last answer. The callers behind the one that requests it wait for the lock.
    #[expect(clippy::disallowed_types, reason = "the others have nothing else to wait for")]
    pub(super) last: tokio::sync::Mutex<Option<Confirmed>>,
}

/// Request for the version that a state at this version needs.
type VersionRequest = dyn Fn(AppliedVersion) -> BoxFuture<'static, Result<ResourceVersion, String>> + Send + Sync;

/// Answer of the upstream.
#[cfg_attr(not(feature = "kubernetes-api"), expect(dead_code, reason = "as above"))]
pub(super) struct Confirmed {
    /// Time of the request: the answer is for every caller that began to wait before.
    pub(super) requested: Instant,
    pub(super) version: Result<ResourceVersion, String>,
}

/// State that the calls of a resource share, and the reason why they end before the server does. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct ResourceCalls {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    /// Random id: a resource that replaces another one of the same name has another.
    id: u64,
    /// Snapshots that streams answer from.
    snapshots: Arc<HeldSnapshots>,
    /// Sums over the watches that have ended.
    watches: WatchTotals,
    end: OnceLock<ResourceEnd>,
    ended: CancellationToken,
}

// === impl ServedResource ===

impl ServedResource {
    /// Returns the error of calls of a resource that is no longer served; `None` while it is.
    pub(super) fn ended(&self) -> Option<ApiError> {
        let end = self.calls.inner.end.get();
        end.map(|end| ApiError::ResourceEnded { resource: self.name.clone(), end: *end })
    }

    /// Returns this error, or the one of a resource that is no longer served: its watches end like those of a server that shuts
    /// down.
    pub(super) fn or_ended(&self, error: ApiError) -> ApiError {
        if error == ApiError::Draining { self.ended().unwrap_or(error) } else { error }
    }
}

// === impl KubernetesApi ===

debug_fields!(KubernetesApi { kind });

// === impl MostRecent ===

debug_fields!(MostRecent {});

impl MostRecent {
    /// Makes requests of this kind, one at a time.
    pub fn new(
        request: impl Fn(AppliedVersion) -> BoxFuture<'static, Result<ResourceVersion, String>> + Send + Sync + 'static,
    ) -> Self {
        #[expect(clippy::disallowed_types, reason = "as above")]
        let last = tokio::sync::Mutex::default();
        Self { request: Box::new(request), last }
    }
}

// === impl ResourceCalls ===

impl ResourceCalls {
    /// Lets calls that wait for the resource end. Its watches end when its informer does. The first end counts.
    pub fn end(&self, end: ResourceEnd) {
        self.inner.end.get_or_init(|| end);
        self.inner.ended.cancel();
    }

    /// Waits until the resource is no longer served. Cancel-safe.
    pub(super) async fn until_ended(&self) {
        self.inner.ended.cancelled().await;
    }

    /// Returns an id that no other resource has, nor a later one of the same name.
    pub(crate) fn id(&self) -> u64 {
        self.inner.id
    }

    /// Returns the sums over the watches that have ended.
    pub(super) fn watches(&self) -> &WatchTotals {
        &self.inner.watches
    }

    /// Returns the snapshots that streams answer from.
    pub(super) fn snapshots(&self) -> &Arc<HeldSnapshots> {
        &self.inner.snapshots
    }
}

// === impl Inner ===

impl Default for Inner {
    fn default() -> Self {
        let (snapshots, end, ended) = (Arc::default(), OnceLock::new(), CancellationToken::new());
        Self { id: random_id(), snapshots, watches: WatchTotals::default(), end, ended }
    }
}
