//! Rights: the attributes of a call, and the answer to them.

use std::collections::BTreeSet;

use crate::model::Namespaces;

/// Operation of a call, for the verbs that it needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Operation {
    /// Reads one object: the verb `get` or `list`.
    Get,
    /// Reads objects or values of an index: the verb `list`.
    List,
    /// Reads objects and then their changes: the verbs `list` and `watch`.
    Watch,
    /// Reads the watches of other callers: the verb `admin`.
    Inspect,
    /// Ends watches of other callers: the verb `disconnect`.
    Disconnect,
    /// Learns that the resource exists: any of the verbs `get`, `list` and `watch`.
    See,
}

/// Parts of an object that a call returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// Key, uid, version, labels and annotations. Whoever may read another format may read this one.
    Metadata,
    /// The body as a `Struct`.
    Struct,
    /// The body as text.
    Raw,
}

/// Attributes of a call: those that rights depend on.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Attributes {
    /// Operation on the resource.
    pub operation: Operation,
    /// Name of the resource, which need not exist.
    pub resource: String,
    /// Requested namespace; `None` for all.
    pub namespace: Option<String>,
    /// Name of the requested object; `None` for all.
    pub name: Option<String>,
    /// Format of the objects.
    pub format: Format,
    /// Name of the view that the bodies are limited to; `None` for whole bodies, and for parts that the call itself describes.
    pub view: Option<String>,
    /// True if the call selects by the body, for example by a field, so that the selection alone gives content away. It needs the
    /// right to read whole bodies, in any format.
    pub selects_content: bool,
    /// True if the resource holds Secrets.
    pub is_secret: bool,
}

/// Namespaces that a caller may read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// All namespaces of the request.
    All,
    /// These only; none only for [`Operation::See`].
    Only(Namespaces),
}

/// Reason why a call is not authorised.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// The caller lacks a right, whether the resource exists or not.
    #[error("access denied")]
    Denied,
    /// The authority cannot decide now.
    #[error("authorizer not available: {problem}")]
    Unavailable {
        /// Cause, without credentials.
        problem: String,
    },
    /// The caller requests all namespaces, may not read all of them, and there are too many to review each.
    #[error("the resource has objects in more than {limit} namespaces: name a namespace")]
    TooManyNamespaces {
        /// Number of namespaces that are reviewed for one request.
        limit: usize,
    },
}

/// Set of names, which may be all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Names {
    All,
    Only(BTreeSet<String>),
}

// === impl Operation ===

impl Operation {
    /// Returns true if the operation is on watches of others, which are of any namespace, and of this server alone.
    pub(super) fn is_about_watches(self) -> bool {
        matches!(self, Self::Inspect | Self::Disconnect)
    }
}

// === impl Attributes ===

impl Attributes {
    /// Returns the attributes of an operation on a whole resource that returns and selects by metadata only.
    pub fn new(operation: Operation, resource: impl Into<String>) -> Self {
        Self {
            operation,
            resource: resource.into(),
            namespace: None,
            name: None,
            format: Format::Metadata,
            view: None,
            selects_content: false,
            is_secret: false,
        }
    }
}

// === impl Names ===

impl Names {
    pub(super) fn contains(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Only(names) => names.contains(name),
        }
    }

    pub(super) fn union(self, other: &Self) -> Self {
        match (self, other) {
            (Self::Only(mut names), Self::Only(others)) => {
                names.extend(others.iter().cloned());
                Self::Only(names)
            }
            _ => Self::All,
        }
    }

    pub(super) fn intersection(self, other: Self) -> Self {
        match (self, other) {
            (Self::All, names) | (names, Self::All) => names,
            (Self::Only(mut names), Self::Only(others)) => {
                names.retain(|name| others.contains(name));
                Self::Only(names)
            }
        }
    }

    /// Returns the answer to a request for a namespace, or for all, of a caller who may read these.
    pub(super) fn scope(self, requested: Option<&str>) -> Result<Scope, AccessError> {
        match (self, requested) {
            (Self::All, _) => Ok(Scope::All),
            (Self::Only(names), Some(namespace)) if names.contains(namespace) => Ok(Scope::All),
            (Self::Only(names), None) if !names.is_empty() => Ok(Scope::Only(names.into_iter().collect())),
            _ => Err(AccessError::Denied),
        }
    }
}

impl Default for Names {
    /// Returns the empty set.
    fn default() -> Self {
        Self::Only(BTreeSet::new())
    }
}

impl<S: Into<String>> FromIterator<S> for Names {
    /// Returns the set of these names; `*` stands for all.
    fn from_iter<I: IntoIterator<Item = S>>(names: I) -> Self {
        let names: BTreeSet<String> = names.into_iter().map(Into::into).collect();
        if names.contains("*") { Self::All } else { Self::Only(names) }
    }
}
