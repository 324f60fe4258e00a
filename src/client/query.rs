//! Selection of objects by a caller, and its translation to requests.

use crate::{model::Shard, proto::pb};

/// Selection of objects of a resource, and the form of their bodies. The default has the resource "", which no server has:
/// set a name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Query {
    /// Name from [`Client::resources`](super::Client::resources), for example "pods".
    pub resource: String,
    /// Namespace of the objects; all if none.
    pub namespace: Option<String>,
    /// Name of the objects; all if none.
    pub name: Option<String>,
    /// Label selector in Kubernetes' syntax: `app=web,tier in (a,b),!canary`; empty = all.
    pub label_selector: String,
    /// Field selector: `metadata.name=x,spec.nodeName!=n1`; empty = all.
    pub field_selector: String,
    /// CEL expression over `object`, true = keep: `object.spec.replicas > 1`; empty = all.
    pub expression: String,
    /// Index, and the values of which an object must have at least one.
    pub index: Option<(String, Vec<String>)>,
    /// Shard of the objects; all if none. A server without the capability "shards" is an error.
    pub shard: Option<Shard>,
    /// Format of the bodies; unspecified is STRUCT.
    pub format: pb::PayloadFormat,
    /// Part of each body to receive; all if none. A server without the capability "views" is an error.
    pub view: Option<pb::View>,
}

/// Makes a request with the parts of a query that every request has by the same names, and these others.
macro_rules! request {
    ($query:ident, $message:ident { $($field:ident: $value:expr),* $(,)? }) => {
        pb::$message {
            resource: $query.resource.clone(),
            namespace: $query.namespace.clone().unwrap_or_default(),
            label_selector: $query.label_selector.clone(),
            expression: $query.expression.clone(),
            shard: $query.shard.as_ref().map(pb::Shard::from),
            format: $query.format.into(),
            view: $query.view.clone(),
            $($field: $value,)*
            ..Default::default()
        }
    };
}

// === impl Query ===

impl Query {
    /// Selects everything of a resource.
    pub fn of(resource: impl Into<String>) -> Self {
        Self { resource: resource.into(), ..Self::default() }
    }

    pub(crate) fn watch_request(&self) -> pb::WatchRequest {
        request! { self, WatchRequest {
            name: self.name.clone().unwrap_or_default(),
            field_selector: self.field_selector.clone(),
            index: self.index_match(),
        } }
    }

    pub(super) fn list_request(&self) -> pb::ListRequest {
        request! { self, ListRequest { field_selector: self.field_selector_with_name(), index: self.index_match() } }
    }

    pub(super) fn by_index_request(&self, index: &str) -> pb::ByIndexRequest {
        request! { self, ByIndexRequest { index: index.to_owned(), field_selector: self.field_selector_with_name() } }
    }

    pub(super) fn changes_request(&self) -> pb::ChangesRequest {
        request! { self, ChangesRequest {
            name: self.name.clone().unwrap_or_default(),
            field_selector: self.field_selector.clone(),
            index: self.index_match(),
        } }
    }

    fn index_match(&self) -> Option<pb::IndexMatch> {
        self.index.as_ref().map(|(name, values)| pb::IndexMatch { name: name.clone(), values: values.clone() })
    }

    /// Returns the field selector with a requirement for the name: reads have no field for it, `metadata.name` is the key's name.
    fn field_selector_with_name(&self) -> String {
        let Some(name) = &self.name else { return self.field_selector.clone() };
        let mut selector = self.field_selector.clone();
        if !selector.is_empty() {
            selector.push(',');
        }
        selector.push_str("metadata.name=");
        for c in name.chars() {
            if matches!(c, '\\' | ',' | '=') {
                selector.push('\\');
            }
            selector.push(c);
        }
        selector
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::FieldSelector;

    #[test]
    fn reads_select_a_name_by_a_field_requirement() {
        let query =
            Query { name: Some(r"a,b=\c".to_owned()), field_selector: "spec.x=1".to_owned(), ..Query::of("pods") };
        let request = query.list_request();
        assert_eq!(request.field_selector, r"spec.x=1,metadata.name=a\,b\=\\c");
        assert!(FieldSelector::parse(&request.field_selector).is_ok());
        assert_eq!(query.watch_request().name, r"a,b=\c");
        assert_eq!(Query::of("pods").list_request().field_selector, "");
    }
}
