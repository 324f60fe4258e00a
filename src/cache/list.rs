//! List of a resource, and the differences in it that prove a rewritten history.

use std::sync::Arc;

use crate::model::{Object, ResourceVersion};

/// Whole resource at one version. Of two objects with the same key the last wins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    /// Every object, in any order.
    pub objects: Vec<Arc<Object>>,
    /// Version of the list: a watch from it has neither gap nor overlap.
    pub version: ResourceVersion,
    /// Objects that exist and cannot be served, with their keys and uids only. One that was served before is DELETED with
    /// [`Cause::NotServed`](crate::model::Cause::NotServed) instead of [`Cause::Inferred`](crate::model::Cause::Inferred).
    pub not_served: Vec<Arc<Object>>,
    /// Namespaces that earlier lists did not cover: their objects prove nothing about the history.
    pub new_namespaces: Vec<String>,
    /// Namespaces that earlier lists covered and this one does not.
    pub lost_namespaces: Vec<String>,
    /// True if the previous run may have sent clients changes above the version reached now, and this list hides their outcome:
    /// no client can resume from an older version.
    pub expires_older: bool,
}

/// Difference between a list and the held state, at known versions, that proves a rewritten history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum RewriteEvidence {
    /// Object at another version than the held one. The Kubernetes API can change the result of a field selector without a
    /// change of the object.
    Held,
    /// The same, or an object that is not held.
    Listed,
    /// The same, or other bytes at the same version: for upstreams that store bytes. The Kubernetes API encodes stored objects
    /// anew, by its own version and its conversions; a relay does not know the kind of its origin.
    Bytes,
}

// === impl List ===

impl List {
    /// Makes a list of objects that can all be served.
    pub fn new(objects: Vec<Arc<Object>>, version: ResourceVersion) -> Self {
        Self {
            objects,
            version,
            not_served: Vec::new(),
            new_namespaces: Vec::new(),
            lost_namespaces: Vec::new(),
            expires_older: false,
        }
    }
}
