//! What a caller asks for, and the requests that it becomes.

use crate::proto::pb;

/// Which objects of which resource, and how their bodies are sent. The default chooses everything of the resource "", which
/// no server has: name one.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Query {
    /// A name from [`Client::resources`](super::Client::resources), for example "pods".
    pub resource: String,
    /// Only objects of this namespace.
    pub namespace: Option<String>,
    /// Only objects of this name.
    pub name: Option<String>,
    /// Kubernetes' syntax: `app=web,tier in (a,b),!canary`; empty = all.
    pub label_selector: String,
    /// `metadata.name=x,spec.nodeName!=n1`; empty = all.
    pub field_selector: String,
    /// CEL over `object`, true = keep: `object.spec.replicas > 1`; empty = all.
    pub expression: String,
    /// An index, and the values of which an object has at least one.
    pub index: Option<(String, Vec<String>)>,
    /// How bodies are sent; unspecified is STRUCT.
    pub format: pb::PayloadFormat,
}

// === impl Query ===

impl Query {
    /// Everything of a resource.
    pub fn of(resource: impl Into<String>) -> Self {
        Self { resource: resource.into(), ..Self::default() }
    }

    pub(super) fn watch_request(&self) -> pb::WatchRequest {
        pb::WatchRequest {
            resource: self.resource.clone(),
            namespace: self.namespace.clone().unwrap_or_default(),
            name: self.name.clone().unwrap_or_default(),
            label_selector: self.label_selector.clone(),
            field_selector: self.field_selector.clone(),
            expression: self.expression.clone(),
            index: self.index_match(),
            format: self.format.into(),
            ..Default::default()
        }
    }

    pub(super) fn list_request(&self) -> pb::ListRequest {
        pb::ListRequest {
            resource: self.resource.clone(),
            namespace: self.namespace.clone().unwrap_or_default(),
            label_selector: self.label_selector.clone(),
            field_selector: self.field_selector_with_name(),
            expression: self.expression.clone(),
            index: self.index_match(),
            format: self.format.into(),
            ..Default::default()
        }
    }

    pub(super) fn by_index_request(&self, index: &str, value: &str) -> pb::ByIndexRequest {
        pb::ByIndexRequest {
            resource: self.resource.clone(),
            index: index.to_owned(),
            value: value.to_owned(),
            namespace: self.namespace.clone().unwrap_or_default(),
            label_selector: self.label_selector.clone(),
            field_selector: self.field_selector_with_name(),
            expression: self.expression.clone(),
            format: self.format.into(),
            ..Default::default()
        }
    }

    fn index_match(&self) -> Option<pb::IndexMatch> {
        self.index.as_ref().map(|(name, values)| pb::IndexMatch { name: name.clone(), values: values.clone() })
    }

    /// The reads have no field for a name; `metadata.name` is the name of the key.
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
    fn a_name_is_a_requirement_of_the_reads() {
        let query =
            Query { name: Some(r"a,b=\c".to_owned()), field_selector: "spec.x=1".to_owned(), ..Query::of("pods") };
        let request = query.list_request();
        assert_eq!(request.field_selector, r"spec.x=1,metadata.name=a\,b\=\\c");
        assert!(FieldSelector::parse(&request.field_selector).is_ok());
        assert_eq!(query.watch_request().name, r"a,b=\c");
        assert_eq!(Query::of("pods").list_request().field_selector, "");
    }
}
