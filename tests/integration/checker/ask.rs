//! Unary calls of clients, and their requests.

use std::time::Duration;

use informerd::proto::pb;
use prost::Message;

use super::{
    pod::{Key, Pod},
    selection::Selection,
    view::Form,
};

/// Names of resources; a server has the first, or the first two.
pub(crate) const RESOURCES: [&str; 3] = ["pods", "jobs", "nodes"];

/// One call.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    /// Index of its resource.
    pub(crate) resource: usize,
    pub(crate) what: What,
    pub(crate) form: Form,
    /// Minimum version of the state.
    pub(crate) min: Option<String>,
    /// Deadline of the call.
    pub(crate) deadline: Option<Duration>,
}

#[derive(Debug, Clone)]
pub(crate) enum What {
    List {
        query: Query,
        page_size: u32,
        page: Option<PageOf>,
    },
    Get(Key),
    Until {
        selection: Selection,
        conditions: Vec<Condition>,
    },
    /// Request for the values of an index.
    Values {
        index: Index,
        page_size: u32,
    },
}

/// Index by which objects are found.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Index {
    App,
    Node,
    Namespace,
}

/// Condition of a wait.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Condition {
    Added,
    Modified,
    Deleted,
    Synced,
    Count(usize),
    AtLeast(usize),
    Named(&'static str),
    DeletedNamed(&'static str),
    App(&'static str),
    /// Met by an object that has a node, but not this one.
    NotNode(&'static str),
}

/// Selection of a list.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Query {
    pub(crate) selection: Selection,
    /// True if the request uses ByIndex, where the selection permits it.
    pub(crate) is_by_index: bool,
}

/// Page after the first.
#[derive(Debug, Clone)]
pub(crate) struct PageOf {
    /// Index of the call that returned the page before.
    pub(crate) previous: usize,
    /// Token as issued, or a wrong one.
    pub(crate) token: String,
    pub(crate) twist: Twist,
}

/// Minimum version of a state.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Min {
    /// Version at this distance from the newest.
    Near(i64),
    /// Version of another source.
    Foreign,
}

/// Error of a page token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Twist {
    None,
    /// Used with another format (0), another `min_resource_version` (1), another resource (2), another view (3), or another
    /// selection.
    OtherQuery(u8),
    /// Not a token.
    Garbage,
}

impl Ask {
    /// Returns the path and the encoded request.
    pub(crate) fn encode(&self) -> (&'static str, Vec<u8>) {
        let (format, view) = (self.form.format.into(), self.form.ask());
        let resource = RESOURCES[self.resource].to_owned();
        let min_resource_version = self.min.clone().unwrap_or_default();
        match &self.what {
            What::Until { selection, conditions } => {
                let mut watch = pb::WatchRequest { resource, format, view, min_resource_version, ..Default::default() };
                selection.ask(&mut watch);
                let conditions = conditions.iter().map(|condition| condition.text()).collect();
                ("Until", pb::UntilRequest { watch: Some(watch), conditions }.encode_to_vec())
            }
            What::Values { index, page_size } => {
                let (index, page_size, page_token) = (index.name().to_owned(), *page_size, String::new());
                let request = pb::ListIndexValuesRequest { resource, index, page_size, page_token };
                ("ListIndexValues", request.encode_to_vec())
            }
            What::Get((namespace, name)) => {
                let (namespace, name) = ((*namespace).to_owned(), (*name).to_owned());
                let request = pb::GetRequest {
                    resource,
                    namespace,
                    name,
                    format,
                    min_resource_version,
                    view,
                    ..Default::default()
                };
                ("Get", request.encode_to_vec())
            }
            What::List { query, page_size, page } => {
                let (page_size, page_token) = (*page_size, page.as_ref().map(|page| page.token.clone()));
                let page_token = page_token.unwrap_or_default();
                if let Some((index, value, namespace)) = query.by_index() {
                    let (index, value, namespace) = (index.to_owned(), value.to_owned(), namespace.to_owned());
                    let request = pb::ByIndexRequest {
                        resource,
                        index,
                        value,
                        namespace,
                        format,
                        view,
                        page_size,
                        page_token,
                        min_resource_version,
                        ..Default::default()
                    };
                    return ("ByIndex", request.encode_to_vec());
                }
                let mut watch = pb::WatchRequest::default();
                query.selection.ask(&mut watch);
                if let Some(((namespace, name), index)) = query.like() {
                    let request = pb::ByIndexRequest {
                        resource,
                        index: index.name().to_owned(),
                        namespace: watch.namespace,
                        label_selector: watch.label_selector,
                        field_selector: watch.field_selector,
                        expression: watch.expression,
                        format,
                        view,
                        page_size,
                        page_token,
                        min_resource_version,
                        shard: watch.shard,
                        like: Some(pb::ObjectKey { namespace: namespace.to_owned(), name: name.to_owned() }),
                        ..Default::default()
                    };
                    return ("ByIndex", request.encode_to_vec());
                }
                let request = pb::ListRequest {
                    resource,
                    namespace: watch.namespace,
                    label_selector: watch.label_selector,
                    field_selector: watch.field_selector,
                    expression: watch.expression,
                    format,
                    view,
                    page_size,
                    page_token,
                    min_resource_version,
                    index: watch.index,
                    shard: watch.shard,
                    ..Default::default()
                };
                ("List", request.encode_to_vec())
            }
        }
    }
}

impl Ask {
    /// Returns its selection, if its expression must be compiled, and its conditions.
    pub(crate) fn compiled(&self) -> (Option<Selection>, &[Condition]) {
        match &self.what {
            What::List { query, .. } => (Some(query.selection), &[]),
            What::Until { selection, conditions } => (Some(*selection), conditions),
            What::Get(_) | What::Values { .. } => (None, &[]),
        }
    }
}

impl Query {
    /// Returns index, value and namespace.
    fn by_index(self) -> Option<(&'static str, &'static str, &'static str)> {
        match self.selection {
            _ if !self.is_by_index => None,
            Selection::Namespace => Some(("namespace", "shop", "")),
            Selection::Label => Some(("app", "web", "")),
            Selection::Field => Some(("node", "n1", "")),
            Selection::IndexOfNamespace => Some(("app", "db", "shop")),
            _ => None,
        }
    }

    /// Returns the object by whose values it also selects, and their index.
    pub(crate) fn like(self) -> Option<(Key, Index)> {
        match self.selection {
            _ if !self.is_by_index => None,
            Selection::LabelSet => Some((("shop", "a"), Index::Node)),
            Selection::NotField => Some((("shop", "b"), Index::App)),
            Selection::NoLabel | Selection::NodeShard => Some((("shop", "a"), Index::Namespace)),
            _ => None,
        }
    }
}

impl Index {
    fn name(self) -> &'static str {
        match self {
            Self::App => "app",
            Self::Node => "node",
            Self::Namespace => "namespace",
        }
    }

    /// Returns the value by which an object is found.
    pub(crate) fn value(self, pod: &Pod) -> Option<&'static str> {
        match self {
            Self::App => pod.app,
            Self::Node => pod.node,
            Self::Namespace => Some(pod.key.0),
        }
    }
}

impl Condition {
    pub(crate) fn text(self) -> String {
        match self {
            Self::Added => "type == 'ADDED'".to_owned(),
            Self::Modified => "type == 'MODIFIED'".to_owned(),
            Self::Deleted => "type == 'DELETED'".to_owned(),
            Self::Synced => "type == 'SYNCED'".to_owned(),
            Self::Count(count) => format!("count == {count}"),
            Self::AtLeast(count) => format!("count >= {count}"),
            Self::Named(name) => format!("object.metadata.name == '{name}'"),
            Self::DeletedNamed(name) => format!("type == 'DELETED' && object.metadata.name == '{name}'"),
            Self::App(app) => format!("object.metadata.labels.app == '{app}'"),
            Self::NotNode(node) => format!("object.spec.nodeName != '{node}'"),
        }
    }

    /// Returns true if the condition is met; a missing object, label, node or count never meets one.
    pub(crate) fn is_met(self, event_type: &str, pod: Option<&Pod>, count: Option<usize>) -> bool {
        let named = |name: &str| pod.is_some_and(|pod| pod.key.1 == name);
        match self {
            Self::Added => event_type == "ADDED",
            Self::Modified => event_type == "MODIFIED",
            Self::Deleted => event_type == "DELETED",
            Self::Synced => event_type == "SYNCED",
            Self::Count(is) => count == Some(is),
            Self::AtLeast(least) => count.is_some_and(|count| count >= least),
            Self::Named(name) => named(name),
            Self::DeletedNamed(name) => event_type == "DELETED" && named(name),
            Self::App(app) => pod.and_then(|pod| pod.app) == Some(app),
            Self::NotNode(node) => pod.and_then(|pod| pod.node).is_some_and(|is| is != node),
        }
    }
}
