//! Parts of an object.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::model::{ObjectKey, ResourceVersion};

/// Parts of an [`Object`](super::Object), for sources that get them separately.
#[derive(Debug, Clone)]
pub struct ObjectParts {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Identity: another uid under the same key is another object. Empty if the source has none.
    pub uid: String,
    /// Version of the object's last change.
    pub version: ResourceVersion,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// API version, for example `apps/v1`; may be empty.
    pub api_version: String,
    /// Kind, for example `Deployment`; may be empty.
    pub kind: String,
    /// Media type of the body, for example `application/json`.
    pub media_type: &'static str,
    /// Bytes as the source provided them.
    pub body: Bytes,
}

// === impl ObjectParts ===

impl ObjectParts {
    /// Returns a key and a version, and nothing else: for an object that was deleted, or that cannot be served.
    pub fn bare(key: ObjectKey, version: ResourceVersion) -> Self {
        Self {
            key,
            uid: String::new(),
            version,
            labels: BTreeMap::new(),
            api_version: String::new(),
            kind: String::new(),
            media_type: "application/octet-stream",
            body: Bytes::new(),
        }
    }
}
