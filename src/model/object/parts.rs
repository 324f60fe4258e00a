//! What an object is made of.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::model::{ObjectKey, ResourceVersion};

/// What an [`Object`](super::Object) is made of, for sources that know the parts by themselves.
#[derive(Debug, Clone)]
pub struct ObjectParts {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Identity: another uid under the same key is another object. Empty when the source has none.
    pub uid: String,
    /// The version of the object's last change.
    pub version: ResourceVersion,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// For example `apps/v1`; may be empty.
    pub api_version: String,
    /// For example `Deployment`; may be empty.
    pub kind: String,
    /// Of the body, for example `application/json`.
    pub media_type: &'static str,
    /// The bytes as the source gave them.
    pub body: Bytes,
}

// === impl ObjectParts ===

impl ObjectParts {
    /// A key and a version, and nothing else: what is said of an object that is gone, or that cannot be served.
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
