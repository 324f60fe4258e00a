//! A resource as it is served.

use super::frame::WireFrame;
use crate::{cache::InformerHandle, watch::QueueOptions};

/// One resource as it is served.
#[derive(Debug, Clone)]
pub struct ServedResource {
    /// What clients call it.
    pub name: String,
    /// The kind of its source: "files".
    pub source: &'static str,
    /// Whether the server is ready without it.
    pub optional: bool,
    /// The queue of a client that asks for nothing.
    pub queue: QueueOptions,
    /// Its cache.
    pub informer: InformerHandle<WireFrame>,
}
