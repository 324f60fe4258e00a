//! Proof that a list is one of the configured resource. A proxy, a mesh or an aggregated API may answer 200 with something else, such
//! as an empty list of another kind, which would empty the cache.

use super::{
    KubeConfig,
    resources::ApiResources,
    shared::{KubeShared, ListKind, ObjectList},
};
use crate::{cache::SourceError, source::text::one_line};

/// Kind of a list of metadata only, whatever the objects are.
const PARTIAL: &str = "PartialObjectMetadataList";

// === impl ListKind ===

impl ListKind {
    pub(super) fn get(&self) -> Option<String> {
        self.0.lock().clone()
    }

    /// Sets the kind that a previous run has accepted.
    pub(super) fn resume(&self, kind: Option<String>) {
        *self.0.lock() = kind;
    }

    /// Returns true if an answer of this kind contradicts the lists before it.
    pub(super) fn contradicts(&self, kind: &str) -> bool {
        kind != PARTIAL && self.0.lock().as_deref().is_some_and(|known| known != kind)
    }
}

// === impl KubeShared ===

impl KubeShared {
    /// Checks that a list is one of this resource: it has the kind of the lists before it. The first one has objects, or a kind that
    /// is no other one of its group and version. After a change of the kind, discovery has to have the new one.
    ///
    /// # Errors
    ///
    /// [`SourceError::Undecodable`] for a list of another kind.
    pub(super) async fn check_kind(&self, list: &ObjectList) -> Result<(), SourceError> {
        let ObjectList { kind, api_version, objects, .. } = list;
        let known = self.list_kind.get();
        let is_partial = self.config.is_metadata_only && kind == PARTIAL;
        if is_partial || known.as_ref() == Some(kind) {
            return Ok(());
        }
        let is_of_resource = if known.is_none() && !objects.is_empty() {
            true
        } else {
            let KubeConfig { group, version, plural, .. } = &self.config;
            let is_of_group = match api_version.split_once('/') {
                Some((named, of_version)) => (named, of_version) == (group, version),
                None => group.is_empty() && api_version == version,
            };
            match ApiResources::read(&self.api, &self.config).await.ok().filter(|resources| !resources.is_empty()) {
                Some(resources) if resources.is_list_of(plural, kind) => true,
                Some(resources) => known.is_none() && is_of_group && !resources.is_list_of_any(kind),
                None => known.is_none() && is_of_group,
            }
        };
        if !is_of_resource {
            let expected = known.unwrap_or_else(|| format!("that of {}", self.config.plural));
            return Err(SourceError::Undecodable(one_line(&format!(
                "list of kind {kind:?} and apiVersion {api_version:?}, expected {expected}; check what answers for the API"
            ))));
        }
        if !kind.is_empty() {
            *self.list_kind.0.lock() = Some(kind.clone());
        }
        Ok(())
    }
}
