//! Choice of the objects of a snapshot that are checked for a selection: as few as its namespaces or index allow.

use std::{cmp::Reverse, collections::BinaryHeap, iter::Peekable, sync::Arc};

use super::Snapshot;
use crate::model::{Namespaces, Object, ObjectKey, Selection};

/// Scan of a snapshot, sorted by key. The selection still decides about each object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scan {
    /// At most this object.
    Object {
        /// Key of the object.
        key: ObjectKey,
    },
    /// All objects, or those of one namespace.
    Objects {
        /// Namespace of the objects.
        namespace: Option<String>,
    },
    /// The objects of these namespaces.
    Namespaces {
        /// Namespaces of the objects.
        namespaces: Namespaces,
    },
    /// The objects under at least one of these values of an index.
    Index {
        /// Name of the index.
        name: String,
        /// Values of the index.
        values: Vec<String>,
    },
}

/// Maximum number of values whose objects are merged: beginning to do so takes time for each of them, however few objects follow.
/// No request names more; the values of an object may be more.
const MAX_MERGED: usize = 256;

// === impl Scan ===

impl Scan {
    /// Chooses the cheapest scan for a selection.
    pub fn of(selection: &Selection) -> Self {
        let key = match (&selection.namespace, &selection.name) {
            (Some(namespace), Some(name)) => ObjectKey::new(namespace, name).ok(),
            (_, _) => None,
        };
        match (key, &selection.index) {
            (Some(key), _) => Self::Object { key },
            (None, Some(index)) if index.values.len() <= MAX_MERGED => {
                Self::Index { name: index.name.clone(), values: index.values.iter().cloned().collect() }
            }
            (None, _) => match (&selection.namespace, &selection.namespaces) {
                (None, Some(namespaces)) => Self::Namespaces { namespaces: namespaces.clone() },
                (namespace, _) => Self::Objects { namespace: namespace.clone() },
            },
        }
    }

    /// Returns the objects after a key.
    pub fn objects<'a>(
        &'a self,
        snapshot: &'a Snapshot,
        after: Option<&ObjectKey>,
    ) -> Box<dyn Iterator<Item = &'a Arc<Object>> + 'a> {
        match self {
            Self::Object { key } => {
                Box::new(snapshot.get(key).filter(|object| after.is_none_or(|after| object.key() > after)).into_iter())
            }
            Self::Objects { namespace } => Box::new(snapshot.objects(namespace.as_deref(), after)),
            Self::Namespaces { namespaces } => {
                // Keys are sorted by namespace, as the set is.
                let rest = namespaces.starting_at(after.map_or("", ObjectKey::namespace));
                let after = after.cloned();
                Box::new(rest.flat_map(move |namespace| snapshot.objects(Some(namespace), after.as_ref())))
            }
            Self::Index { name, values } => {
                let of_value = |value: &'a String| snapshot.by_index(name, value, after);
                Box::new(merge(values.iter().filter_map(of_value).collect()))
            }
        }
    }
}

/// Merges sequences that are sorted by key, without duplicates.
fn merge<'a, I>(sorted: Vec<I>) -> impl Iterator<Item = &'a Arc<Object>>
where
    I: Iterator<Item = &'a Arc<Object>>,
{
    let mut sorted: Vec<_> = sorted.into_iter().map(Iterator::peekable).collect();
    let first = |(at, objects): (usize, &mut Peekable<I>)| Some(Reverse((objects.peek()?.key(), at)));
    let mut firsts: BinaryHeap<_> = sorted.iter_mut().enumerate().filter_map(first).collect();
    let mut last = None;
    std::iter::from_fn(move || {
        loop {
            let Reverse((key, at)) = firsts.pop()?;
            let object = sorted[at].next();
            firsts.extend(first((at, &mut sorted[at])));
            if last.replace(key) != Some(key) {
                return object;
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cache::{Indexer, List},
        model::{Indexers, ResourceVersion},
    };

    fn snapshot(keys: &[(&str, &str)]) -> Snapshot {
        let version = ResourceVersion::decimal(1);
        let object = |&(namespace, name): &(&str, &str)| {
            let json = format!(r#"{{"metadata":{{"namespace":"{namespace}","name":"{name}"}}}}"#);
            Arc::new(Object::from_json(json, "", version.clone()).unwrap())
        };
        let list = List::new(keys.iter().map(object).collect(), version.clone());
        Indexer::new(Arc::new(Indexers::default()), list).snapshot()
    }

    fn found(selection: &Selection, snapshot: &Snapshot, after: Option<&ObjectKey>) -> Vec<String> {
        Scan::of(selection).objects(snapshot, after).map(|object| object.key().to_string()).collect()
    }

    #[test]
    fn one_object_is_looked_up() {
        let snapshot = snapshot(&[("a", "x"), ("a", "y"), ("b", "x"), ("", "x")]);
        let of = |namespace: &str, name: &str| Selection {
            namespace: Some(namespace.to_owned()),
            name: Some(name.to_owned()),
            ..Selection::default()
        };
        for (namespace, name, expected) in [("a", "x", "a/x"), ("", "x", "x")] {
            assert_eq!(found(&of(namespace, name), &snapshot, None), [expected]);
            let key = ObjectKey::new(namespace, name).unwrap();
            assert!(found(&of(namespace, name), &snapshot, Some(&key)).is_empty(), "after itself");
        }
        assert_eq!(found(&of("b", "x"), &snapshot, Some(&ObjectKey::new("a", "y").unwrap())), ["b/x"]);
        assert!(found(&of("b", "y"), &snapshot, None).is_empty());
    }

    #[test]
    fn the_namespaces_of_a_caller_are_merged_in_key_order() {
        let snapshot = snapshot(&[("", "n"), ("a", "x"), ("a-b", "x"), ("a-b", "y"), ("b", "x"), ("c", "x")]);
        let of = |namespace: Option<&str>, namespaces: &[&str]| Selection {
            namespace: namespace.map(str::to_owned),
            namespaces: Some(namespaces.iter().copied().collect()),
            ..Selection::default()
        };
        let keys = ["a/x", "a-b/x", "a-b/y", "c/x"];
        let selection = of(None, &["c", "none", "a-b", "a"]);
        assert_eq!(found(&selection, &snapshot, None), keys);
        for (object, passed) in snapshot.objects(None, None).zip([0, 1, 2, 3, 3, 4]) {
            assert_eq!(found(&selection, &snapshot, Some(object.key())), keys[passed..], "after {}", object.key());
        }
        assert_eq!(found(&of(None, &["", "b"]), &snapshot, None), ["n", "b/x"]);
        assert_eq!(found(&of(Some("b"), &["b", "c"]), &snapshot, None), ["b/x"]);
        assert!(found(&of(None, &[]), &snapshot, None).is_empty());
    }

    #[test]
    fn objects_under_several_values_come_once_in_key_order() {
        let snapshot = snapshot(&[("c", "1"), ("a", "2"), ("b", "1"), ("a", "1"), ("d", "1")]);
        let objects: Vec<_> = snapshot.objects(None, None).collect();
        let merged = merge(
            vec![vec![1, 3], vec![], vec![0, 1, 2], vec![1, 3]]
                .into_iter()
                .map(|places| places.into_iter().map(|at| objects[at]).collect::<Vec<_>>().into_iter())
                .collect(),
        );
        let keys: Vec<_> = merged.map(|object| object.key().to_string()).collect();
        assert_eq!(keys, ["a/1", "a/2", "b/1", "c/1"]);
    }
}
