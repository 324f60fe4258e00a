//! Which objects of a snapshot are looked at for a selection: as few as its namespace or index allow.

use std::{iter::Peekable, sync::Arc};

use crate::{
    cache::Snapshot,
    model::{Object, ObjectKey, Selection},
};

/// A way through a snapshot, sorted by key. The selection still decides about each object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Scan {
    /// All, or those of one namespace.
    Objects { namespace: Option<String> },
    /// Those under at least one value of an index.
    Index { name: String, values: Vec<String> },
}

// === impl Scan ===

impl Scan {
    /// The shortest way for a selection.
    pub(super) fn of(selection: &Selection) -> Self {
        match &selection.index {
            Some(index) => Self::Index { name: index.name.clone(), values: index.values.iter().cloned().collect() },
            None => Self::Objects { namespace: selection.namespace.clone() },
        }
    }

    /// The objects after a key.
    pub(super) fn objects<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        after: Option<&ObjectKey>,
    ) -> Box<dyn Iterator<Item = &'a Arc<Object>> + 'a> {
        match self {
            Self::Objects { namespace } => Box::new(snapshot.objects(namespace.as_deref(), after)),
            Self::Index { name, values } => {
                let of_value = |value: &'a String| snapshot.by_index(name, value, after).map(Iterator::peekable);
                Box::new(merge(values.iter().filter_map(of_value).collect()))
            }
        }
    }
}

/// Merges sequences that are sorted by key; what is in several of them comes once.
fn merge<'a, I>(mut sorted: Vec<Peekable<I>>) -> impl Iterator<Item = &'a Arc<Object>>
where
    I: Iterator<Item = &'a Arc<Object>>,
{
    std::iter::from_fn(move || {
        let next = sorted.iter_mut().filter_map(|objects| objects.peek().copied()).min_by_key(|object| object.key())?;
        for objects in &mut sorted {
            objects.next_if(|object| object.key() == next.key());
        }
        Some(next)
    })
}
