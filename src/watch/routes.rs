//! Which groups a change may concern, without asking every group.
//!
//! A group whose selection asks for a name, for values of an index or for a namespace is found under them; a change is
//! looked up with what its old and its new state have. All other groups see every change. A route is only a coarse sieve:
//! whether a change is in a selection, the selection says.

use std::collections::{BTreeSet, HashMap};

use crate::{
    model::{Change, IndexFunc, IndexMatch, Object, Selection},
    planted::planted,
};

/// Groups by what routes to them; a group is a number.
#[derive(Debug, Default)]
pub(super) struct Routes {
    unrouted: BTreeSet<usize>,
    names: Map,
    namespaces: Map,
    indexes: HashMap<IndexFunc, Map>,
}

/// Ordered sets, because one key may have very many groups, which come and go one by one.
type Map = HashMap<String, BTreeSet<usize>, foldhash::fast::RandomState>;

// === impl Routes ===

impl Routes {
    pub(super) fn insert(&mut self, selection: &Selection, group: usize) {
        self.update(selection, |groups| groups.insert(group));
    }

    pub(super) fn remove(&mut self, selection: &Selection, group: usize) {
        self.update(selection, |groups| groups.remove(&group));
    }

    /// The groups that see every change.
    pub(super) fn unrouted(&self) -> &BTreeSet<usize> {
        &self.unrouted
    }

    /// Adds the other groups that the change may concern, each once.
    pub(super) fn find(&self, change: &Change, groups: &mut Vec<usize>) {
        let key = change.object().key();
        groups.extend(self.names.get(key.name()).into_iter().flatten());
        groups.extend(self.namespaces.get(key.namespace()).into_iter().flatten());
        let old = || change.old.iter().filter(|_| change.new.is_none() || !planted!(RoutedByTheNewState));
        let states = || old().chain(&change.new);
        for (func, values) in &self.indexes {
            let of_state = |object| func.values(object);
            for value in states().map(AsRef::<Object>::as_ref).flat_map(of_state) {
                groups.extend(values.get(&value).into_iter().flatten());
            }
        }
        // More than one value may lead to a group.
        groups.sort_unstable();
        groups.dedup();
    }

    fn update(&mut self, selection: &Selection, mut update: impl FnMut(&mut BTreeSet<usize>) -> bool) {
        let mut at = |map: &mut Map, key: &String| {
            let groups = map.entry(key.clone()).or_default();
            update(groups);
            if groups.is_empty() {
                map.remove(key);
            }
        };
        match selection {
            Selection { name: Some(name), .. } => at(&mut self.names, name),
            Selection { index: Some(IndexMatch { func, values, .. }), .. } => {
                let map = self.indexes.entry(func.clone()).or_default();
                for value in values {
                    at(map, value);
                }
                if map.is_empty() {
                    self.indexes.remove(func);
                }
            }
            Selection { namespace: Some(namespace), .. } => at(&mut self.namespaces, namespace),
            _ => {
                update(&mut self.unrouted);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;

    use super::*;
    use crate::model::{Cause, ResourceVersion};

    fn object(namespace: &str, name: &str, app: &str) -> Arc<Object> {
        let json =
            format!(r#"{{"metadata":{{"namespace":"{namespace}","name":"{name}","labels":{{"app":"{app}"}}}}}}"#);
        Arc::new(Object::from_json(Bytes::from(json), "", ResourceVersion::decimal(1)).unwrap())
    }

    fn found(routes: &Routes, old: Option<Arc<Object>>, new: Option<Arc<Object>>) -> Vec<usize> {
        let change = Change { old, new, version: ResourceVersion::decimal(1), cause: Cause::Change };
        let mut groups = Vec::new();
        routes.find(&change, &mut groups);
        groups
    }

    fn by_app(values: &[&str]) -> Selection {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        let index = IndexMatch { name: "app".into(), func: IndexFunc::Label("app".into()), values };
        Selection { index: Some(index), ..Selection::default() }
    }

    #[test]
    fn a_change_leads_to_the_groups_of_its_name_its_namespace_and_the_values_before_and_after_it() {
        let selections = [
            Selection::default(),
            Selection { name: Some("a".into()), namespace: Some("shop".into()), ..Selection::default() },
            Selection { namespace: Some("shop".into()), ..Selection::default() },
            by_app(&["web", "db"]),
            by_app(&["db"]),
            by_app(&[]),
        ];
        let mut routes = Routes::default();
        for (group, selection) in selections.iter().enumerate() {
            routes.insert(selection, group);
        }
        assert_eq!(*routes.unrouted(), BTreeSet::from([0]));
        assert_eq!(found(&routes, None, Some(object("shop", "a", "none"))), [1, 2]);
        assert_eq!(found(&routes, Some(object("", "b", "web")), None), [3]);
        assert_eq!(found(&routes, Some(object("", "b", "web")), Some(object("", "b", "db"))), [3, 4], "each once");
        assert_eq!(found(&routes, None, Some(object("", "b", "none"))), [0; 0]);

        for (group, selection) in selections.iter().enumerate() {
            routes.remove(selection, group);
        }
        let Routes { unrouted, names, namespaces, indexes } = routes;
        assert!(
            unrouted.is_empty() && names.is_empty() && namespaces.is_empty() && indexes.is_empty(),
            "nothing leaks"
        );
    }
}
