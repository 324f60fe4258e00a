//! Indexes: named functions from an object to the values under which it is found.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    fmt,
    hash::{Hash, Hasher},
    panic::{AssertUnwindSafe, catch_unwind},
    ptr,
    sync::Arc,
};

use smallvec::SmallVec;

use super::{Expression, Object, Path, path::Values};

/// Index function, which computes the values of an object: client-go's `IndexFunc`, as data, so that it can be configured, or as
/// a closure of a program. An object without a value is not indexed.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum IndexFunc {
    /// Namespace of the key; no value for an object without one.
    Namespace,
    /// Value of the label with this key; no value if the label is missing.
    Label(String),
    /// Scalars at a path of a JSON body, as [`Path::values`] writes them.
    Path(Path),
    /// Result of an expression for the object, as [`Expression::values`] writes it.
    Expression(Expression),
    /// Result of a closure ([`IndexFunc::custom`]), with a name for logs.
    Custom(String, IndexClosure),
}

/// Closure of an index. It is equal to its clones only.
#[derive(Clone)]
pub struct IndexClosure(Arc<Closure>);

type Closure = dyn Fn(&Object) -> Vec<String> + Send + Sync;

/// Indexes of a resource in the order of their names: client-go's `Indexers`. `namespace` is always present.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Indexers(BTreeMap<String, IndexFunc>);

/// Indicates an index that cannot be defined.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IndexersError {
    /// Name of the built-in index.
    #[error("index {NAMESPACE:?} is built in; choose another name")]
    BuiltIn,
    /// Name that is given twice.
    #[error("index {name:?} is defined twice")]
    Duplicate {
        /// Name as it was given.
        name: String,
    },
    /// Text that is not a name.
    #[error(
        "invalid index name {name:?}: expected at most {MAX_NAME_BYTES} lowercase letters, digits, '-', '_' and \
         '.', with a letter or digit at both ends"
    )]
    Name {
        /// Text as it was given.
        name: String,
    },
}

/// Choice of objects by an index: those under at least one of the values.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IndexMatch {
    /// Name of the index.
    pub name: String,
    /// Function of the index.
    pub func: IndexFunc,
    /// Values; without any, no object is chosen.
    pub values: BTreeSet<String>,
}

/// Values of the indexes of a resource for the states before and after a change, each in the order of the indexes. Those of the
/// namespace are left out: the key has them.
#[derive(Debug, PartialEq, Eq)]
pub struct IndexValues {
    indexers: Arc<Indexers>,
    /// Values before the change; `None` if they are those after it.
    old: Option<Box<[OwnedValues]>>,
    new: SmallVec<[OwnedValues; 2]>,
}

/// Values of one index, nearly always one at most.
type OwnedValues = SmallVec<[String; 1]>;

/// Object with the values of its indexes, as far as they are known: each costs a walk through the body.
#[derive(Debug, Clone, Copy)]
pub struct IndexedObject<'a> {
    object: &'a Object,
    values: Option<(&'a Indexers, &'a [OwnedValues])>,
}

/// Name of client-go's `NamespaceIndex`.
const NAMESPACE: &str = "namespace";

/// Maximum length of a name, as of a DNS label: names of indexes are labels of metrics and keys of configuration.
const MAX_NAME_BYTES: usize = 63;

// === impl IndexFunc ===

impl IndexFunc {
    /// Returns a function that calls a closure. The writer of the resource calls it, for each change: it should be quick. An
    /// object on which it panics has no value, which is logged.
    ///
    /// ```
    /// use informerd::model::{IndexFunc, Object, ResourceVersion};
    ///
    /// let by_app = IndexFunc::custom("app", |pod: &Object| {
    ///     pod.labels().get("app").map(str::to_uppercase).into_iter().collect()
    /// });
    /// let web = br#"{"metadata":{"name":"web","labels":{"app":"shop"}}}"#;
    /// let web = Object::from_json(web, "", ResourceVersion::decimal(1)).unwrap();
    /// assert_eq!(by_app.values(&web), ["SHOP"]);
    /// ```
    pub fn custom(name: impl Into<String>, closure: impl Fn(&Object) -> Vec<String> + Send + Sync + 'static) -> Self {
        Self::Custom(name.into(), IndexClosure(Arc::new(closure)))
    }

    /// Does the same with a closure that may fail: an object for which it does has no value, which is logged.
    pub fn fallible<E: fmt::Display>(
        name: impl Into<String>,
        closure: impl Fn(&Object) -> Result<Vec<String>, E> + Send + Sync + 'static,
    ) -> Self {
        let name = name.into();
        Self::custom(name.clone(), move |object| {
            closure(object).unwrap_or_else(|error| {
                tracing::error!(index = name, object = %object.key(), %error, "index function failed");
                Vec::new()
            })
        })
    }

    /// Returns true if the values may depend on more than the key and the labels of an object.
    pub fn reads_body(&self) -> bool {
        !matches!(self, Self::Namespace | Self::Label(_))
    }

    /// Returns the values of the object, sorted and each once.
    pub fn values(&self, object: &Object) -> Vec<String> {
        owned(self.found(object))
    }

    fn found<'a>(&self, object: &'a Object) -> Values<'a> {
        let owned = |values: Vec<String>| as_set(values.into_iter().map(Cow::Owned).collect());
        match self {
            Self::Namespace => {
                Some(object.key().namespace()).filter(|n| !n.is_empty()).map(Cow::Borrowed).into_iter().collect()
            }
            Self::Label(key) => object.labels().get(key).map(Cow::Borrowed).into_iter().collect(),
            Self::Path(path) => found_at([path], object).pop().unwrap_or_default(),
            Self::Expression(expression) => owned(expression.values(object)),
            Self::Custom(name, IndexClosure(closure)) => {
                let values = catch_unwind(AssertUnwindSafe(|| closure(object)));
                owned(values.unwrap_or_else(|_| {
                    tracing::error!(index = name, object = %object.key(), "index function panicked");
                    Vec::new()
                }))
            }
        }
    }
}

/// Returns the values at these paths of the object, in one pass through its body.
fn found_at<'a, 'p>(paths: impl IntoIterator<Item = &'p Path>, object: &'a Object) -> SmallVec<[Values<'a>; 4]> {
    let found = object.json().map(|json| Path::values_of_json(paths, json)).unwrap_or_default();
    found.into_iter().map(as_set).collect()
}

fn owned<C: FromIterator<String>>(values: Values<'_>) -> C {
    values.into_iter().map(Cow::into_owned).collect()
}

fn as_set(mut values: Values<'_>) -> Values<'_> {
    values.sort_unstable();
    values.dedup();
    values
}

// === impl IndexClosure ===

impl IndexClosure {
    fn address(&self) -> *const () {
        Arc::as_ptr(&self.0).cast()
    }
}

impl PartialEq for IndexClosure {
    fn eq(&self, other: &Self) -> bool {
        ptr::eq(self.address(), other.address())
    }
}

impl Eq for IndexClosure {}

impl Hash for IndexClosure {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.address().hash(state);
    }
}

debug_fields!(IndexClosure {});

// === impl Indexers ===

impl Indexers {
    /// Returns the indexes of a resource: the given ones, and `namespace`.
    ///
    /// # Errors
    ///
    /// Fails if a name is `namespace`, is given twice, or is not of the form `[a-z0-9]([-a-z0-9_.]*[a-z0-9])?` with at most
    /// 63 characters.
    pub fn new(functions: impl IntoIterator<Item = (String, IndexFunc)>) -> Result<Self, IndexersError> {
        Self::default().with(functions)
    }

    /// Returns these indexes and the given ones.
    ///
    /// # Errors
    ///
    /// Fails as [`Indexers::new`] does, also for the name of an index that exists.
    pub fn with(&self, functions: impl IntoIterator<Item = (String, IndexFunc)>) -> Result<Self, IndexersError> {
        let mut indexers = self.clone();
        for (name, func) in functions {
            if name == NAMESPACE {
                return Err(IndexersError::BuiltIn);
            }
            if !is_name(&name) {
                return Err(IndexersError::Name { name });
            }
            if indexers.0.contains_key(&name) {
                return Err(IndexersError::Duplicate { name });
            }
            indexers.0.insert(name, func);
        }
        Ok(indexers)
    }

    /// Returns the function of an index.
    pub fn get(&self, name: &str) -> Option<&IndexFunc> {
        self.0.get(name)
    }

    /// Returns names and functions, sorted by name.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &IndexFunc)> {
        self.0.iter().map(|(name, func)| (&**name, func))
    }

    /// Returns the names, sorted.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }

    /// Returns the values of an object in the order of the indexes, without those of the namespace: the key has them. The paths
    /// among them take one pass through the body.
    pub(crate) fn values<'a>(&self, object: &'a Object) -> SmallVec<[Values<'a>; 4]> {
        let paths = self.0.values().filter_map(|func| if let IndexFunc::Path(path) = func { Some(path) } else { None });
        let mut at_paths = found_at(paths, object).into_iter();
        let values = self.0.values().map(|func| match func {
            IndexFunc::Namespace => Values::new(),
            IndexFunc::Path(_) => at_paths.next().unwrap_or_default(),
            IndexFunc::Label(_) | IndexFunc::Expression(_) | IndexFunc::Custom(..) => func.found(object),
        });
        values.collect()
    }

    /// Returns the number of failed evaluations of the expressions among them.
    pub fn expression_errors(&self) -> u64 {
        let errors = self.0.values().map(|func| match func {
            IndexFunc::Expression(expression) => expression.errors(),
            IndexFunc::Namespace | IndexFunc::Label(_) | IndexFunc::Path(_) | IndexFunc::Custom(..) => 0,
        });
        errors.sum()
    }

    /// Returns the number of indexes; at least one.
    #[expect(clippy::len_without_is_empty, reason = "there is always `namespace`")]
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

impl Default for Indexers {
    /// Returns the indexes with `namespace` only.
    fn default() -> Self {
        Self(BTreeMap::from([(NAMESPACE.to_owned(), IndexFunc::Namespace)]))
    }
}

// === impl IndexMatch ===

impl IndexMatch {
    /// Maximum number of values that a request or a configuration may name, as many as a requirement of a selector may have.
    pub const MAX_VALUES: usize = 256;

    /// Returns true if the object is under one of the values.
    pub fn matches<'a>(&self, object: impl Into<IndexedObject<'a>>) -> bool {
        object.into().values(&self.func).iter().any(|value| self.values.contains(value))
    }
}

// === impl IndexValues ===

impl IndexValues {
    /// Returns the [values](Indexers::values) before and after a change.
    pub(crate) fn new(
        indexers: &Arc<Indexers>,
        old: SmallVec<[Values<'_>; 4]>,
        new: SmallVec<[Values<'_>; 4]>,
    ) -> Self {
        let old = (old != new).then(|| old.into_iter().map(owned).collect());
        Self { indexers: Arc::clone(indexers), old, new: new.into_iter().map(owned).collect() }
    }
}

// === impl IndexedObject ===

impl<'a> IndexedObject<'a> {
    /// Returns the state of an object before a change, or after it.
    pub(super) fn new(object: &'a Object, values: Option<&'a IndexValues>, is_old: bool) -> Self {
        let values = values
            .map(|IndexValues { indexers, old, new }| (&**indexers, old.as_deref().filter(|_| is_old).unwrap_or(new)));
        Self { object, values }
    }

    /// Returns the object.
    pub fn object(&self) -> &'a Object {
        self.object
    }

    /// Returns the values of an index, sorted and each once.
    pub fn values(&self, func: &IndexFunc) -> Cow<'a, [String]> {
        let known = self.values.filter(|_| *func != IndexFunc::Namespace).and_then(|(indexers, values)| {
            indexers.0.values().zip(values).find_map(|(known, values)| (known == func).then_some(&values[..]))
        });
        known.map_or_else(|| Cow::Owned(func.values(self.object)), Cow::Borrowed)
    }
}

impl<'a> From<&'a Object> for IndexedObject<'a> {
    fn from(object: &'a Object) -> Self {
        Self { object, values: None }
    }
}

/// Returns true if a text has the form of the names of indexes and views.
pub(super) fn is_name(name: &str) -> bool {
    let edge = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let inner = |b: u8| edge(b) || matches!(b, b'-' | b'_' | b'.');
    let (Some(first), Some(last)) = (name.bytes().next(), name.bytes().last()) else {
        return false;
    };
    name.len() <= MAX_NAME_BYTES && edge(first) && edge(last) && name.bytes().all(inner)
}

#[cfg(test)]
mod tests {
    use std::hash::BuildHasher;

    use bytes::Bytes;
    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;
    use crate::model::{ObjectKey, ObjectParts, ResourceVersion};

    fn object(json: &str) -> Object {
        Object::from_json(Bytes::copy_from_slice(json.as_bytes()), "file", ResourceVersion::decimal(1)).unwrap()
    }

    fn path(text: &str) -> IndexFunc {
        IndexFunc::Path(Path::parse(text).unwrap())
    }

    const POD: &str = r#"{"metadata":{"namespace":"shop","name":"web","labels":{"app":"web","empty":""}},
        "users":["oscar","bert","oscar",null,7,true,{"a":1}],"node":"a"}"#;

    /// client-go `TestGetIndexFuncValues` and `TestMultiIndexKeys`: the values under which one object is found.
    #[test]
    fn values_are_sorted_and_each_once() {
        let pod = object(POD);
        assert_eq!(IndexFunc::Namespace.values(&pod), ["shop"]);
        assert_eq!(IndexFunc::Label("app".into()).values(&pod), ["web"]);
        assert_eq!(IndexFunc::Label("empty".into()).values(&pod), [""]);
        assert_eq!(path(".users[*]").values(&pod), ["7", "bert", "oscar", "true"]);
        assert_eq!(path(".users").values(&pod), ["7", "bert", "oscar", "true"]);
        assert_eq!(path(".node").values(&pod), ["a"]);
    }

    #[test]
    fn objects_without_a_value_are_not_indexed() {
        let bare = object("{}");
        for func in [IndexFunc::Namespace, IndexFunc::Label("app".into()), path(".users"), path(".node")] {
            assert_eq!(func.values(&bare), [""; 0], "{func:?}");
        }
        let raw = Object::new(ObjectParts {
            key: ObjectKey::new("shop", "web").unwrap(),
            uid: String::new(),
            version: ResourceVersion::decimal(1),
            labels: std::collections::BTreeMap::new(),
            api_version: String::new(),
            kind: String::new(),
            media_type: "text/plain",
            body: Bytes::from_static(br#"{"node":"a"}"#),
        });
        assert_eq!(path(".node").values(&raw), [""; 0]);
        assert_eq!(IndexFunc::Namespace.values(&raw), ["shop"]);
    }

    #[test]
    fn namespace_is_an_index_of_every_resource() {
        let indexers = Indexers::new([("node".into(), path(".node")), ("app".into(), path(".app"))]).unwrap();
        assert_eq!(indexers.names().collect::<Vec<_>>(), ["app", "namespace", "node"]);
        assert_eq!(indexers.iter().map(|(name, _)| name).collect::<Vec<_>>(), ["app", "namespace", "node"]);
        assert_eq!(indexers.len(), 3);
        assert_eq!(indexers.get("namespace"), Some(&IndexFunc::Namespace));
        assert_eq!(indexers.get("node"), Some(&path(".node")));
        assert_eq!(indexers.get("none"), None);
        assert_eq!(Indexers::new([]), Ok(Indexers::default()));
    }

    /// client-go's `AddIndexers`: a name that exists already is an error.
    #[test]
    fn invalid_index_definitions_are_rejected() {
        let new = |names: &[&str]| Indexers::new(names.iter().map(|name| ((*name).to_owned(), IndexFunc::Namespace)));
        assert_eq!(new(&["a", "namespace"]), Err(IndexersError::BuiltIn));
        assert_eq!(new(&["a", "b", "a"]), Err(IndexersError::Duplicate { name: "a".into() }));
        for name in ["", "A", "-a", "a-", ".", "a b", "é", "a/b", &"a".repeat(64)] {
            assert_eq!(new(&[name]), Err(IndexersError::Name { name: name.into() }));
        }
        assert!(new(&["a", "0", "by-node.v1_x", &"a".repeat(63)]).is_ok());
        assert_eq!(IndexersError::BuiltIn.to_string(), "index \"namespace\" is built in; choose another name");
    }

    #[test]
    fn a_closure_is_equal_to_its_clones_only() {
        let users = || IndexFunc::custom("users", |pod: &Object| vec![pod.key().to_string(), "all".to_owned()]);
        let (first, second) = (users(), users());
        assert_eq!(first.values(&object(POD)), ["all", "shop/web"]);
        assert_eq!(first, first.clone());
        assert_ne!(first, second);
        let hash = |func: &IndexFunc| foldhash::fast::FixedState::default().hash_one(func);
        assert_eq!(hash(&first), hash(&first.clone()));
        assert!(format!("{first:?}").contains("users"));
    }

    #[test]
    fn a_match_is_by_one_of_the_values() {
        let under = |values: &[&str]| IndexMatch {
            name: "user".into(),
            func: path(".users"),
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        };
        assert!(under(&["bert"]).matches(&object(POD)));
        assert!(under(&["x", "oscar"]).matches(&object(POD)));
        assert!(!under(&["x", ""]).matches(&object(POD)));
        assert!(!under(&[]).matches(&object(POD)));
        assert!(!under(&["", "bert"]).matches(&object("{}")), "nothing is not the empty value");
    }

    #[test]
    fn the_values_of_all_indexes_are_those_of_each() {
        let functions = [
            ("users", path(".users")),
            ("app", IndexFunc::Label("app".into())),
            ("node", path(".node")),
            ("name", IndexFunc::custom("name", |pod| vec![pod.key().name().to_owned()])),
            ("none", path(".none")),
        ];
        let indexers = Indexers::new(functions.map(|(name, func)| (name.to_owned(), func))).unwrap();
        for pod in [object(POD), object("{}")] {
            let each =
                indexers.iter().map(|(_, func)| if *func == IndexFunc::Namespace { vec![] } else { func.values(&pod) });
            assert_eq!(
                indexers.values(&pod).into_iter().map(owned::<Vec<_>>).collect::<Vec<_>>(),
                each.collect::<Vec<_>>()
            );
        }
    }

    proptest! {
        #![proptest_config(crate::property_config())]

        #[test]
        fn any_array_of_texts_is_indexed_as_a_set(texts in vec(".{0,3}", 0..8), asked in select(vec!["", "a", "b"])) {
            let json = serde_json::json!({ "users": texts }).to_string();
            let set: BTreeSet<_> = texts.into_iter().collect();
            prop_assert_eq!(path(".users").values(&object(&json)), set.iter().cloned().collect::<Vec<_>>());
            let values = BTreeSet::from([asked.to_owned()]);
            let index = IndexMatch { name: "user".into(), func: path(".users[*]"), values };
            prop_assert_eq!(index.matches(&object(&json)), set.contains(asked));
        }
    }
}
