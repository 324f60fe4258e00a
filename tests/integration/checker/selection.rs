//! What clients of the checker select, as a request says it and as it is meant.

use informerd::proto::pb;

use super::truth::Pod;

/// One of those below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Selection {
    All,
    Namespace,
    Name,
    Label,
    LabelSet,
    NoLabel,
    Field,
    NotField,
    Index,
    IndexOfNamespace,
    LabelAndField,
}

impl Selection {
    pub(crate) const EVERY: [Self; 11] = [
        Self::All,
        Self::Namespace,
        Self::Name,
        Self::Label,
        Self::LabelSet,
        Self::NoLabel,
        Self::Field,
        Self::NotField,
        Self::Index,
        Self::IndexOfNamespace,
        Self::LabelAndField,
    ];

    /// Those that a List can have: all but a name.
    pub(crate) const LISTED: [Self; 10] = [
        Self::All,
        Self::Namespace,
        Self::Label,
        Self::LabelSet,
        Self::NoLabel,
        Self::Field,
        Self::NotField,
        Self::Index,
        Self::IndexOfNamespace,
        Self::LabelAndField,
    ];

    /// Asks for it.
    pub(crate) fn ask(self, request: &mut pb::WatchRequest) {
        let index = |name: &str, values: &[&str]| {
            let values = values.iter().map(|value| (*value).to_owned()).collect();
            Some(pb::IndexMatch { name: name.to_owned(), values })
        };
        match self {
            Self::All => {}
            Self::Namespace => "shop".clone_into(&mut request.namespace),
            Self::Name => "a".clone_into(&mut request.name),
            Self::Label => "app=web".clone_into(&mut request.label_selector),
            Self::LabelSet => "app in (web,db)".clone_into(&mut request.label_selector),
            Self::NoLabel => "!app".clone_into(&mut request.label_selector),
            Self::Field => "spec.nodeName=n1".clone_into(&mut request.field_selector),
            Self::NotField => "spec.nodeName!=n1".clone_into(&mut request.field_selector),
            Self::Index => request.index = index("node", &["n1", "n2"]),
            Self::IndexOfNamespace => {
                request.index = index("app", &["db"]);
                "shop".clone_into(&mut request.namespace);
            }
            Self::LabelAndField => {
                "app!=db".clone_into(&mut request.label_selector);
                "metadata.name!=b,spec.nodeName!=n2".clone_into(&mut request.field_selector);
            }
        }
    }

    /// Whether it chooses the object. What is missing is the empty string to a field selector, and is in no index.
    pub(crate) fn matches(self, pod: &Pod) -> bool {
        let (namespace, name) = pod.key;
        match self {
            Self::All => true,
            Self::Namespace => namespace == "shop",
            Self::Name => name == "a",
            Self::Label => pod.app == Some("web"),
            Self::LabelSet => pod.app == Some("web") || pod.app == Some("db"),
            Self::NoLabel => pod.app.is_none(),
            Self::Field => pod.node == Some("n1"),
            Self::NotField => pod.node != Some("n1"),
            Self::Index => pod.node == Some("n1") || pod.node == Some("n2"),
            Self::IndexOfNamespace => pod.app == Some("db") && namespace == "shop",
            Self::LabelAndField => pod.app != Some("db") && name != "b" && pod.node != Some("n2"),
        }
    }
}
