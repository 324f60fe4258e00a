//! Names of a kind, as the discovery of a Kubernetes API has them.

/// Kind of a Kubernetes API.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct ApiKind {
    /// API group; empty for the core.
    pub group: String,
    /// Version of the group, such as `v1`.
    pub version: String,
    /// Plural name in paths, such as `pods`.
    pub plural: String,
    /// Kind, such as `Pod`.
    pub kind: String,
    /// Singular name for commands, such as `pod`.
    pub singular: String,
    /// Short names for commands, such as `po`.
    pub short_names: Vec<String>,
    /// Groups of kinds for commands, such as `all`.
    pub categories: Vec<String>,
    /// True if its objects are in namespaces.
    pub namespaced: bool,
}

// === impl ApiKind ===

impl ApiKind {
    /// Returns the kind without its names in commands: it has the singular name of its kind, and no short one.
    pub fn new(group: &str, version: &str, plural: &str, kind: &str) -> Self {
        let names = [group, version, plural, kind].map(str::to_owned);
        let [group, version, plural, kind] = names;
        let (singular, short_names, categories) = (kind.to_lowercase(), Vec::new(), Vec::new());
        Self { group, version, plural, kind, singular, short_names, categories, namespaced: true }
    }

    /// Returns `GROUP/VERSION`, or the version alone in the core group: the `apiVersion` of its objects.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() { self.version.clone() } else { format!("{}/{}", self.group, self.version) }
    }
}
