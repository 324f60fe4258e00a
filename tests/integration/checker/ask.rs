//! What clients ask that is answered once, as a request says it.

use std::time::Duration;

use informerd::proto::pb;
use prost::Message;

use super::{selection::Selection, truth::Key};

/// One call.
#[derive(Debug, Clone)]
pub(crate) struct Ask {
    pub(crate) what: What,
    pub(crate) has_bodies: bool,
    /// Not older than this.
    pub(crate) min: Option<String>,
    /// Of the call.
    pub(crate) deadline: Option<Duration>,
}

#[derive(Debug, Clone)]
pub(crate) enum What {
    List { query: Query, page_size: u32, page: Option<PageOf> },
    Get(Key),
}

/// Which objects.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Query {
    pub(crate) selection: Selection,
    /// By ByIndex, if the selection can be had by it.
    pub(crate) is_by_index: bool,
}

/// A page after the first.
#[derive(Debug, Clone)]
pub(crate) struct PageOf {
    /// The call that was answered with the page before.
    pub(crate) previous: usize,
    /// As it was given out, or something else.
    pub(crate) token: String,
    pub(crate) twist: Twist,
}

/// Which version a state has to have reached.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Min {
    /// As far from the newest.
    Near(i64),
    /// One of another source.
    Foreign,
}

/// What is wrong about a page token.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Twist {
    None,
    /// It is used with another format (0), another `min_resource_version` (1), or another selection.
    OtherQuery(u8),
    /// It is no token.
    Garbage,
}

impl Ask {
    /// Its path, and the request.
    pub(crate) fn encode(&self) -> (&'static str, Vec<u8>) {
        let format = if self.has_bodies { pb::PayloadFormat::Raw } else { pb::PayloadFormat::Metadata };
        let (format, resource) = (format.into(), "pods".to_owned());
        let min_resource_version = self.min.clone().unwrap_or_default();
        match &self.what {
            What::Get((namespace, name)) => {
                let (namespace, name) = ((*namespace).to_owned(), (*name).to_owned());
                let request = pb::GetRequest { resource, namespace, name, format, min_resource_version };
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
                        page_size,
                        page_token,
                        min_resource_version,
                        ..Default::default()
                    };
                    return ("ByIndex", request.encode_to_vec());
                }
                let mut watch = pb::WatchRequest::default();
                query.selection.ask(&mut watch);
                let request = pb::ListRequest {
                    resource,
                    namespace: watch.namespace,
                    label_selector: watch.label_selector,
                    field_selector: watch.field_selector,
                    expression: String::new(),
                    format,
                    page_size,
                    page_token,
                    min_resource_version,
                    index: watch.index,
                };
                ("List", request.encode_to_vec())
            }
        }
    }
}

impl Query {
    /// Index, value and namespace.
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
}
