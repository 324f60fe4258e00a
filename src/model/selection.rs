//! Selection of a client among the objects of a resource, and the effect of a change on it.

mod term;

use std::fmt;

pub use self::term::{Part, Term};
use super::{
    Cause, Change, Evaluations, EventType, Expression, FieldSelector, IndexMatch, IndexedObject, LabelSelector,
    Namespaces, Object, Shard,
};

/// Choice among the objects of a resource: those that meet every part. The default chooses all of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selection {
    /// Namespace of the objects; empty for objects without one.
    pub namespace: Option<String>,
    /// Namespaces to which the caller's rights limit the selection; `None` if they do not.
    pub namespaces: Option<Namespaces>,
    /// Name of the object.
    pub name: Option<String>,
    /// Label selector.
    pub labels: LabelSelector,
    /// Field selector.
    pub fields: FieldSelector,
    /// Values of one index.
    pub index: Option<IndexMatch>,
    /// Shard.
    pub shard: Option<Shard>,
    /// Expression.
    pub expression: Option<Expression>,
}

/// Effect of a change on a selection: the type and the cause of the event for its watchers.
///
/// An ADDED or MODIFIED carries the new state. A DELETED carries the old state, the last that matched, at the version
/// of the change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Transition {
    /// Type of the event, which may differ from the upstream's.
    pub event_type: EventType,
    /// Cause of the event.
    pub cause: Cause,
}

// === impl Selection ===

impl Selection {
    /// Returns true if the object meets every part. Cheap parts are tested first: key, labels, shard, index, fields, then
    /// the expression.
    pub fn matches(&self, object: &Object) -> bool {
        self.matches_indexed(object.into())
    }

    /// Does the same. An object that only the expression excludes is added to `evaluations`.
    pub fn matches_counted(&self, object: &Object, evaluations: &mut Evaluations) -> bool {
        self.rest_matches(object.into())
            && self.expression.as_ref().is_none_or(|expression| expression.matches_counted(object, evaluations))
    }

    fn matches_indexed(&self, indexed: IndexedObject<'_>) -> bool {
        self.rest_matches(indexed)
            && self.expression.as_ref().is_none_or(|expression| expression.matches(indexed.object()))
    }

    /// Returns true if the object meets every part but the expression.
    fn rest_matches(&self, indexed: IndexedObject<'_>) -> bool {
        let Self { namespace, namespaces, name, labels, fields, index, shard, expression: _ } = self;
        let object = indexed.object();
        let key = object.key();
        namespace.as_ref().is_none_or(|namespace| namespace == key.namespace())
            && namespaces.as_ref().is_none_or(|namespaces| namespaces.contains(key.namespace()))
            && name.as_ref().is_none_or(|name| name == key.name())
            && labels.matches(object.labels())
            && shard.as_ref().is_none_or(|shard| shard.matches(object))
            && index.as_ref().is_none_or(|index| index.matches(indexed))
            && fields.matches(object)
    }

    /// Returns true if all objects are chosen.
    pub fn selects_all(&self) -> bool {
        *self == Self::default()
    }

    /// Returns true if the selection depends on more than the key, the uid and the labels of an object.
    pub fn reads_body(&self) -> bool {
        let Self { fields, index, shard, expression, .. } = self;
        fields.reads_body()
            || index.as_ref().is_some_and(|index| index.func.reads_body())
            || shard.as_ref().is_some_and(Shard::reads_body)
            || expression.is_some()
    }

    /// Returns the effect of the change on this selection; `None` if the object matches neither before nor after it.
    ///
    /// Follows the apiserver's `cacheWatcher` (`convertToWatchEvent`): an object that enters the selection is ADDED, one
    /// that leaves it is DELETED, whatever the type of the upstream's event.
    pub fn transition(&self, change: &Change) -> Option<Transition> {
        let matches = |state| self.matches_indexed(state);
        let (event_type, cause) = match (change.old_state().map(matches), change.new_state().map(matches)) {
            (None, Some(true)) => (EventType::Added, Cause::Change),
            (Some(false), Some(true)) => (EventType::Added, Cause::EnteredSelection),
            (Some(true), Some(true)) => (EventType::Modified, Cause::Change),
            (Some(true), Some(false)) => (EventType::Deleted, Cause::LeftSelection),
            (Some(true), None) => (EventType::Deleted, change.cause),
            (None | Some(false), None | Some(false)) => return None,
        };
        Some(Transition { event_type, cause })
    }

    /// Returns the selection as a text for logs and operators. That of secrets omits what it compares bodies with.
    pub fn described(&self, is_secret: bool) -> String {
        let Self { namespace, namespaces, name, labels, fields, index, shard, expression } = self;
        let shown = |part: String, reads_body: bool| if is_secret && reads_body { "…".to_owned() } else { part };
        let parts = [
            namespace.as_ref().map(|namespace| format!("namespace={namespace}")),
            namespaces.as_ref().map(|namespaces| format!("namespace in ({namespaces})")),
            name.as_ref().map(|name| format!("name={name}")),
            (!labels.is_empty()).then(|| format!("labels={labels}")),
            (!fields.is_empty()).then(|| format!("fields={}", shown(fields.to_string(), fields.reads_body()))),
            index.as_ref().map(|IndexMatch { name, values, func }| {
                let values: Vec<_> = values.iter().map(String::as_str).collect();
                format!("index={name} in ({})", shown(values.join(","), func.reads_body()))
            }),
            shard.as_ref().map(|shard| format!("shard={}", shown(shard.to_string(), shard.reads_body()))),
            expression.as_ref().map(|expression| format!("expression={}", shown(expression.to_string(), true))),
        ];
        let parts: Vec<_> = parts.into_iter().flatten().collect();
        if parts.is_empty() { "everything".to_owned() } else { parts.join(" ") }
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.described(false))
    }
}

#[cfg(test)]
mod tests;
