//! Objects of an informer by key, and their indexes.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use arc_swap::ArcSwap;
use imbl::{OrdMap, OrdSet};

use crate::proto::pb;

/// Function that returns the values of an object in an index.
pub(super) type IndexFunction = Arc<dyn Fn(&pb::Object) -> Vec<String> + Send + Sync>;

/// Key of an object: namespace and name.
pub(super) type Key = (String, String);

/// State of an informer at one version. Cheap to clone.
#[derive(Clone, Default)]
pub struct InformerSnapshot {
    version: String,
    objects: OrdMap<Key, Arc<pb::Object>>,
    /// Values and keys, in the order of the index functions.
    indexes: Vec<OrdSet<(String, Key)>>,
    names: Arc<[String]>,
}

/// Writer of the store.
pub(super) struct Store {
    functions: Vec<IndexFunction>,
    state: InformerSnapshot,
}

/// State that readers see.
#[derive(Debug, Default)]
pub(super) struct Published(ArcSwap<InformerSnapshot>);

// === impl InformerSnapshot ===

impl InformerSnapshot {
    /// Returns the version of the state: a Watch from here misses nothing. Empty before the first list.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Returns the number of objects.
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Returns true if there is no object.
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Returns the object with this key. The namespace is empty for an object that has none.
    pub fn get(&self, namespace: &str, name: &str) -> Option<&Arc<pb::Object>> {
        self.objects.get(&(namespace.to_owned(), name.to_owned()))
    }

    /// Returns all objects, sorted by namespace and name.
    pub fn list(&self) -> impl ExactSizeIterator<Item = &Arc<pb::Object>> {
        self.objects.values()
    }

    /// Returns the objects with a value of an index, sorted by namespace and name; none for an index that does not exist.
    pub fn by_index(&self, index: &str, value: &str) -> Vec<&Arc<pb::Object>> {
        let from = (value.to_owned(), Key::default());
        let entries = self.index(index).into_iter().flat_map(|entries| entries.range(from.clone()..));
        entries.take_while(|(found, _)| found == value).filter_map(|(_, key)| self.objects.get(key)).collect()
    }

    /// Returns the values of an index, sorted; none for an index that does not exist.
    pub fn index_values(&self, index: &str) -> Vec<&str> {
        let mut values: Vec<&str> = self.index(index).into_iter().flatten().map(|(value, _)| value.as_str()).collect();
        values.dedup();
        values
    }

    fn index(&self, name: &str) -> Option<&OrdSet<(String, Key)>> {
        let at = self.names.iter().position(|known| known == name)?;
        self.indexes.get(at)
    }
}

impl fmt::Debug for InformerSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, objects, names, .. } = self;
        f.debug_struct("InformerSnapshot")
            .field("version", version)
            .field("objects", &objects.len())
            .field("indexes", names)
            .finish_non_exhaustive()
    }
}

// === impl Store ===

impl Store {
    pub(super) fn new(functions: Vec<(String, IndexFunction)>) -> Self {
        let (names, functions): (Vec<_>, Vec<_>) = functions.into_iter().unzip();
        let indexes = vec![OrdSet::new(); names.len()];
        Self { functions, state: InformerSnapshot { indexes, names: names.into(), ..InformerSnapshot::default() } }
    }

    pub(super) fn get(&self, key: &Key) -> Option<&Arc<pb::Object>> {
        self.state.objects.get(key)
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &Key> {
        self.state.objects.keys()
    }

    /// Stores a state of an object, in place of the one before, which it returns.
    pub(super) fn insert(&mut self, key: Key, object: Arc<pb::Object>) -> Option<Arc<pb::Object>> {
        let before = self.remove(&key);
        for (function, entries) in self.functions.iter().zip(&mut self.state.indexes) {
            for value in values(function, &object) {
                entries.insert((value, key.clone()));
            }
        }
        self.state.objects.insert(key, object);
        before
    }

    pub(super) fn remove(&mut self, key: &Key) -> Option<Arc<pb::Object>> {
        let removed = self.state.objects.remove(key)?;
        for (function, entries) in self.functions.iter().zip(&mut self.state.indexes) {
            for value in values(function, &removed) {
                entries.remove(&(value, key.clone()));
            }
        }
        Some(removed)
    }

    pub(super) fn set_version(&mut self, version: &str) {
        version.clone_into(&mut self.state.version);
    }

    pub(super) fn version(&self) -> &str {
        &self.state.version
    }

    /// Shows the present state to readers.
    pub(super) fn publish(&self, published: &Published) {
        published.0.store(Arc::new(self.state.clone()));
    }
}

impl Published {
    pub(super) fn load(&self) -> InformerSnapshot {
        InformerSnapshot::clone(&self.0.load())
    }
}

/// Returns the values of an index. An object on which the function panics has none.
fn values(function: &IndexFunction, object: &pb::Object) -> Vec<String> {
    catch_unwind(AssertUnwindSafe(|| function(object))).unwrap_or_else(|_| {
        tracing::error!(namespace = object.namespace, name = object.name, "index function panicked");
        Vec::new()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, apps: &str) -> Arc<pb::Object> {
        let labels = [("apps".to_owned(), apps.to_owned())].into();
        Arc::new(pb::Object { name: name.to_owned(), labels, ..pb::Object::default() })
    }

    #[test]
    fn an_object_on_which_an_index_function_panics_has_no_value() {
        let function: IndexFunction = Arc::new(|object| vec![object.labels["apps"].parse::<u8>().unwrap().to_string()]);
        let mut store = Store::new(vec![("apps".to_owned(), function)]);
        let key = |name: &str| (String::new(), name.to_owned());
        store.insert(key("a"), object("a", "x"));
        store.insert(key("b"), object("b", "7"));
        assert_eq!(store.state.index_values("apps"), ["7"]);
        assert!(store.remove(&key("a")).is_some());
    }

    #[test]
    fn an_index_follows_its_objects() {
        let function: IndexFunction =
            Arc::new(|object| object.labels["apps"].split(' ').map(str::to_owned).collect::<Vec<_>>());
        let mut store = Store::new(vec![("apps".to_owned(), function)]);
        let key = |name: &str| (String::new(), name.to_owned());
        let found = |store: &Store, value: &str| -> Vec<String> {
            store.state.by_index("apps", value).into_iter().map(|object| object.name.clone()).collect()
        };
        store.insert(key("b"), object("b", "web db"));
        store.insert(key("a"), object("a", "web"));
        assert_eq!(
            (found(&store, "web"), found(&store, "db")),
            (vec!["a".to_owned(), "b".to_owned()], vec!["b".to_owned()])
        );
        assert_eq!(store.state.index_values("apps"), ["db", "web"]);
        store.insert(key("b"), object("b", "webs"));
        assert_eq!((found(&store, "web"), found(&store, "db")), (vec!["a".to_owned()], vec![]));
        let before = store.state.clone();
        assert!(store.remove(&key("b")).is_some() && store.remove(&key("b")).is_none());
        assert_eq!(store.state.index_values("apps"), ["web"]);
        assert_eq!((before.len(), before.by_index("apps", "webs").len()), (2, 1), "a snapshot stays as it was");
        assert!(store.state.by_index("other", "web").is_empty() && store.state.get("", "a").is_some());
    }
}
