//! Resources of one group and version, as discovery has them.

use serde::Deserialize;

use super::{KubeConfig, api::Api};
use crate::{cache::SourceError, model::ApiKind};

/// `metav1.APIResourceList`, as far as it is read.
#[derive(Debug, Default, Deserialize)]
pub(super) struct ApiResources {
    #[serde(default)]
    resources: Vec<ApiResource>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct ApiResource {
    name: String,
    #[serde(default)]
    singular_name: String,
    #[serde(default)]
    short_names: Vec<String>,
    #[serde(default)]
    categories: Vec<String>,
    #[serde(default)]
    kind: String,
    #[serde(default)]
    namespaced: bool,
}

/// Largest list of the resources of one group and version.
const MAX_BYTES: usize = 4 << 20;

// === impl ApiResources ===

impl ApiResources {
    /// Requests the resources of the configured group and version; an answer of another kind has none.
    pub(super) async fn read(api: &Api, config: &KubeConfig) -> Result<Self, SourceError> {
        let KubeConfig { group, version, .. } = config;
        let path = if group.is_empty() { format!("/api/{version}") } else { format!("/apis/{group}/{version}") };
        let list = api.get_within(&path, MAX_BYTES).await?;
        Ok(Self::parse(&list))
    }

    pub(super) fn parse(list: &[u8]) -> Self {
        serde_json::from_slice(list).unwrap_or_default()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.resources.is_empty()
    }

    /// Returns the kind of a resource, if it is there.
    pub(super) fn api_kind(&self, config: &KubeConfig) -> Option<ApiKind> {
        let KubeConfig { group, version, plural, .. } = config;
        let found = self.resources.iter().find(|resource| resource.name == *plural)?;
        let mut kind = ApiKind::new(group, version, plural, &found.kind);
        if !found.singular_name.is_empty() {
            kind.singular.clone_from(&found.singular_name);
        }
        kind.short_names.clone_from(&found.short_names);
        kind.categories.clone_from(&found.categories);
        kind.namespaced = found.namespaced;
        Some(kind)
    }

    /// Returns the singular and short names of a resource; none if it is not there.
    pub(super) fn aliases(self, plural: &str) -> Vec<String> {
        let found = self.resources.into_iter().find(|resource| resource.name == plural);
        found
            .map(|ApiResource { singular_name, mut short_names, .. }| {
                short_names.push(singular_name);
                short_names
            })
            .unwrap_or_default()
    }

    /// Returns true if this is the default kind of a resource's lists.
    pub(super) fn is_list_of(&self, plural: &str, kind: &str) -> bool {
        self.resources.iter().any(|resource| resource.name == plural && resource.has_list(kind))
    }

    /// Returns true if this is the default kind of the lists of any of the resources.
    pub(super) fn is_list_of_any(&self, kind: &str) -> bool {
        self.resources.iter().any(|resource| resource.has_list(kind))
    }
}

// === impl ApiResource ===

impl ApiResource {
    fn has_list(&self, kind: &str) -> bool {
        !self.kind.is_empty() && kind.strip_suffix("List") == Some(&self.kind)
    }
}
