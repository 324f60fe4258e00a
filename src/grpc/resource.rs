//! One resource as the API serves it.

use super::{frame::WireFrame, views::ResourceViews};
use crate::{cache::InformerHandle, watch::QueueOptions};

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
}
