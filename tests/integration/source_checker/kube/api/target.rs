//! Objects of a request.

use super::{PATH, PLURAL, Query};
use crate::source_checker::{kube::partial, upstream::Key};

/// Objects that a request is about.
pub(super) struct Target {
    pub(super) namespace: Option<String>,
    pub(super) name: Option<String>,
    /// True for one object by its path.
    pub(super) is_one: bool,
    pub(super) has_selector: bool,
    /// True if only their metadata is requested.
    pub(super) is_metadata: bool,
}

impl Target {
    pub(super) fn of(path: &str, query: &Query) -> Option<Self> {
        let rest = path.strip_prefix(PATH)?;
        let (namespace, rest) = match rest.strip_prefix("namespaces/") {
            Some(rest) => {
                let (namespace, rest) = rest.split_once('/')?;
                (Some(namespace.to_owned()), rest)
            }
            None => (None, rest),
        };
        let rest = rest.strip_prefix(PLURAL)?;
        let one = rest.strip_prefix('/').map(str::to_owned);
        let fields = query.get("fieldSelector").map_or("", String::as_str);
        let by =
            |field: &str| fields.split(',').find_map(|term| term.strip_prefix(&format!("{field}=")).map(str::to_owned));
        let has_selector = !fields.is_empty() || query.get("labelSelector").is_some_and(|labels| !labels.is_empty());
        let (is_one, by_name) = (one.is_some(), by("metadata.name"));
        Some(Self {
            namespace: namespace.or_else(|| by("metadata.namespace")),
            name: one.or(by_name),
            is_one,
            has_selector,
            is_metadata: false,
        })
    }

    pub(super) fn shape(&self, object: String) -> String {
        if self.is_metadata { partial(object.as_bytes()) } else { object }
    }

    pub(super) fn is_of(&self, (namespace, name): &Key) -> bool {
        self.namespace.as_ref().is_none_or(|wanted| wanted == namespace)
            && self.name.as_ref().is_none_or(|wanted| wanted == name)
    }
}
