//! One resource as the API serves it.

use std::sync::{Arc, OnceLock};

use tokio_util::sync::CancellationToken;

use super::{
    frame::WireFrame, held_snapshots::HeldSnapshots, resource_end::ResourceEnd, status::ApiError, views::ResourceViews,
    watch_end::WatchTotals,
};
use crate::{cache::InformerHandle, model::random_id, watch::QueueOptions};

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
    pub(super) fn id(&self) -> u64 {
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
