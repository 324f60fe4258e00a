//! Terms of a selection, each with its result for an object.

use super::Selection;
use crate::model::{IndexMatch, IndexedObject, Object, TermResult, excerpt};

/// One term of a selection, and its result for an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Term {
    /// Part of the selection that it belongs to.
    pub part: Part,
    /// Normal form of the term, for example `tier in (a,b)`.
    pub text: String,
    /// True if the term depends on the body of the object.
    pub reads_body: bool,
    /// Result, and the value that was found (for a shard, the hash; a long value is truncated), or the reason of a failed evaluation;
    /// `None` if the term was not evaluated.
    pub result: Option<(TermResult, String)>,
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
    /// [selected](Selection::matches) if all of them match. Without `bodies`, terms that depend on the object's body are not
    /// evaluated: a failed evaluation is counted, and the count would show the result.
    pub fn terms(&self, object: &Object, bodies: bool) -> Vec<Term> {
        let Self { namespace, namespaces, name, labels, fields, index, shard, expression } = self;
        let key = object.key();
        let mut terms = Vec::new();
        let mut add = |part, text: String, reads_body, result: Option<(bool, String)>| {
            let result_of = |is_match| if is_match { TermResult::Match } else { TermResult::NoMatch };
            let result = result.map(|(is_match, found)| (result_of(is_match), found));
            terms.push(Term { part, text, reads_body, result });
        };
        let is_evaluated = |reads_body: bool| bodies || !reads_body;
        if let Some(namespace) = namespace {
            let is_match = namespace == key.namespace();
            add(Part::Namespace, namespace.clone(), false, Some((is_match, key.namespace().to_owned())));
        }
        if let Some(namespaces) = namespaces {
            let result = (namespaces.contains(key.namespace()), key.namespace().to_owned());
            add(Part::Access, format!("namespace in ({namespaces})"), false, Some(result));
        }
        if let Some(name) = name {
            add(Part::Name, name.clone(), false, Some((name == key.name(), key.name().to_owned())));
        }
        for (text, is_match, found) in labels.terms(object.labels()) {
            add(Part::Labels, text, false, Some((is_match, found)));
        }
        for (text, reads_body, result) in fields.terms(object, bodies) {
            add(Part::Fields, text, reads_body, result);
        }
        if let Some(index @ IndexMatch { name, values, func }) = index {
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            let text = format!("{name} in ({})", values.join(","));
            let result = || {
                let found = IndexedObject::from(object).values(func);
                let found: Vec<_> = found.iter().map(|value| excerpt(value)).collect();
                (index.matches(object), excerpt(&found.join(",")).into_owned())
            };
            add(Part::Index, text, func.reads_body(), is_evaluated(func.reads_body()).then(result));
        }
        if let Some(shard) = shard {
            let result = || (shard.matches(object), format!("{:#018x}", shard.key().hash(object)));
            add(Part::Shard, shard.to_string(), shard.reads_body(), is_evaluated(shard.reads_body()).then(result));
        }
        if let Some(expression) = expression {
            let result = bodies.then(|| expression.explain(object));
            terms.push(Term { part: Part::Expression, text: expression.to_string(), reads_body: true, result });
        }
        terms
    }
}
