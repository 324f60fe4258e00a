//! What a client asked to see of a resource, and what a change is to it.

use std::fmt;

use super::{Cause, Change, EventType, Expression, FieldSelector, IndexMatch, LabelSelector, Object};

/// A choice among the objects of a resource: those that meet every part. The default chooses all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selection {
    /// Only objects of this namespace; empty for those that have none.
    pub namespace: Option<String>,
    /// Only objects of this name.
    pub name: Option<String>,
    /// By labels.
    pub labels: LabelSelector,
    /// By fields.
    pub fields: FieldSelector,
    /// By the values of one index.
    pub index: Option<IndexMatch>,
    /// By an expression.
    pub expression: Option<Expression>,
}

/// What a change is to a selection: the type and the cause of the event that its watchers get.
///
/// An ADDED or MODIFIED carries the new state. A DELETED carries the old state, the last that matched, at the version
/// of the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transition {
    /// Not always the type of the upstream's event.
    pub event_type: EventType,
    /// Why.
    pub cause: Cause,
}

// === impl Selection ===

impl Selection {
    /// Whether the object meets every part. The cheap parts are asked first: key, labels, index, fields, then the
    /// expression.
    pub fn matches(&self, object: &Object) -> bool {
        let Self { namespace, name, labels, fields, index, expression } = self;
        let key = object.key();
        namespace.as_ref().is_none_or(|namespace| namespace == key.namespace())
            && name.as_ref().is_none_or(|name| name == key.name())
            && labels.matches(object.labels())
            && index.as_ref().is_none_or(|index| index.matches(object))
            && fields.matches(object)
            && expression.as_ref().is_none_or(|expression| expression.matches(object))
    }

    /// Whether all objects are chosen.
    pub fn is_everything(&self) -> bool {
        let Self { namespace, name, labels, fields, index, expression } = self;
        namespace.is_none()
            && name.is_none()
            && labels.is_empty()
            && fields.is_empty()
            && index.is_none()
            && expression.is_none()
    }

    /// What the change is to this selection; nothing when it did not match before and does not match now.
    ///
    /// The rule of the apiserver's `cacheWatcher` (`convertToWatchEvent`): an object that enters the selection is
    /// ADDED, one that leaves it is DELETED, whatever the upstream called the change.
    pub fn transition(&self, change: &Change) -> Option<Transition> {
        let matches = |object: &Object| self.matches(object);
        let (event_type, cause) = match (change.old.as_deref().map(matches), change.new.as_deref().map(matches)) {
            (None, Some(true)) => (EventType::Added, Cause::Change),
            (Some(false), Some(true)) => (EventType::Added, Cause::EnteredSelection),
            (Some(true), Some(true)) => (EventType::Modified, Cause::Change),
            (Some(true), Some(false)) => (EventType::Deleted, Cause::LeftSelection),
            (Some(true), None) => (EventType::Deleted, change.cause),
            (None | Some(false), None | Some(false)) => return None,
        };
        Some(Transition { event_type, cause })
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { namespace, name, labels, fields, index, expression } = self;
        let mut parts = Vec::new();
        if let Some(namespace) = namespace {
            parts.push(format!("namespace={namespace}"));
        }
        if let Some(name) = name {
            parts.push(format!("name={name}"));
        }
        if !labels.is_empty() {
            parts.push(format!("labels={labels}"));
        }
        if !fields.is_empty() {
            parts.push(format!("fields={fields}"));
        }
        if let Some(IndexMatch { name, values, .. }) = index {
            let values: Vec<_> = values.iter().map(String::as_str).collect();
            parts.push(format!("index={name} in ({})", values.join(",")));
        }
        if let Some(expression) = expression {
            parts.push(format!("expression={expression}"));
        }
        if parts.is_empty() {
            parts.push("everything".to_owned());
        }
        f.write_str(&parts.join(" "))
    }
}

#[cfg(test)]
mod tests;
