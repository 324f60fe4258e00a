//! Terms of a selection, each with its result for an object.

use super::Selection;
use crate::model::{IndexMatch, IndexedObject, Object, ShardKey, TermResult};

/// One term of a selection, and its result for an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// Part of the selection that it belongs to.
    pub part: Part,
    /// Normal form of the term, for example `tier in (a,b)`.
    pub text: String,
    /// Result.
    pub result: TermResult,
    /// Value that was found (for a shard, the hash), or the reason of a failed evaluation.
    pub found: String,
    /// True if the term depends on the body of the object.
    pub reads_body: bool,
}

/// Part of a selection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Part {
    /// Namespace.
    Namespace,
    /// Namespaces to which the rights of the caller limit the selection.
    Access,
    /// Name.
    Name,
    /// Label selector.
    Labels,
    /// Field selector.
    Fields,
    /// Index.
    Index,
    /// Shard.
    Shard,
    /// Expression.
    Expression,
}

// === impl Selection ===

impl Selection {
    /// Returns every term with its result for the object, those after one that does not match, too. The object is
    /// [selected](Selection::matches) if all of them match.
    pub fn terms(&self, object: &Object) -> Vec<Term> {
        let Self { namespace, namespaces, name, labels, fields, index, shard, expression } = self;
        let key = object.key();
        let mut terms = Vec::new();
        let mut add = |part, text: String, is_match: bool, found: String, reads_body| {
            let result = if is_match { TermResult::Match } else { TermResult::NoMatch };
            terms.push(Term { part, text, result, found, reads_body });
        };
        if let Some(namespace) = namespace {
            let is_match = namespace == key.namespace();
            add(Part::Namespace, namespace.clone(), is_match, key.namespace().to_owned(), false);
        }
        if let Some(namespaces) = namespaces {
            let is_match = namespaces.contains(key.namespace());
            add(Part::Access, format!("namespace in ({namespaces})"), is_match, key.namespace().to_owned(), false);
        }
        if let Some(name) = name {
            add(Part::Name, name.clone(), name == key.name(), key.name().to_owned(), false);
        }
        for (text, is_match, found) in labels.terms(object.labels()) {
            add(Part::Labels, text, is_match, found, false);
        }
        for (text, is_match, found, reads_body) in fields.terms(object) {
            add(Part::Fields, text, is_match, found, reads_body);
        }
        if let Some(index @ IndexMatch { name, values, func }) = index {
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            let found = IndexedObject::from(object).values(func).join(",");
            let text = format!("{name} in ({})", values.join(","));
            add(Part::Index, text, index.matches(object), found, func.reads_body());
        }
        if let Some(shard) = shard {
            let found = format!("{:#018x}", shard.key().hash(object));
            let reads_body = matches!(shard.key(), ShardKey::Path(_));
            add(Part::Shard, shard.to_string(), shard.matches(object), found, reads_body);
        }
        if let Some(expression) = expression {
            let (result, found) = expression.explain(object);
            terms.push(Term { part: Part::Expression, text: expression.to_string(), result, found, reads_body: true });
        }
        terms
    }
}
