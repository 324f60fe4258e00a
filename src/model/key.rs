//! Key of an object: its namespace and its name.

use std::{fmt, sync::Arc};

/// Key of an object within its resource: namespace and name, ordered by namespace, then by name.
///
/// It prints as client-go's default key: `namespace/name`, or `name` alone for an object without a namespace. Both parts
/// are in one shared allocation, separated by NUL, so that comparing two keys is comparing two strings and a clone is a
/// reference count.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey(Arc<str>);

/// Indicates a namespace or name that cannot be a key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Empty name.
    #[error("the name is empty")]
    EmptyName,
    /// Part with a NUL, which separates the parts inside the key; no upstream allows it in either.
    #[error("namespace and name must not contain the NUL character")]
    Nul,
    /// Parts that are too long together.
    #[error("namespace and name have {0} bytes, more than {max}", max = ObjectKey::MAX_BYTES)]
    TooLong(usize),
}

const SEPARATOR: char = '\0';

// === impl ObjectKey ===

impl ObjectKey {
    /// Maximum size of both parts: page tokens, ids of events and paths of requests have keys.
    pub const MAX_BYTES: usize = 4096;

    /// Returns a key; `namespace` is empty for objects without one.
    pub fn new(namespace: &str, name: &str) -> Result<Self, KeyError> {
        if name.is_empty() {
            return Err(KeyError::EmptyName);
        }
        if namespace.contains(SEPARATOR) || name.contains(SEPARATOR) {
            return Err(KeyError::Nul);
        }
        let bytes = namespace.len() + name.len();
        if bytes > Self::MAX_BYTES {
            return Err(KeyError::TooLong(bytes));
        }
        Ok(Self::join(namespace, name))
    }

    /// Returns the lower bound of a namespace's keys: no object has it, and every object of the namespace sorts after it.
    pub fn first_of_namespace(namespace: &str) -> Self {
        Self::join(namespace, "")
    }

    /// Returns the namespace; empty if the object has none.
    pub fn namespace(&self) -> &str {
        self.0.split_once(SEPARATOR).map_or("", |(namespace, _)| namespace)
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        self.0.split_once(SEPARATOR).map_or("", |(_, name)| name)
    }

    fn join(namespace: &str, name: &str) -> Self {
        let mut text = String::with_capacity(namespace.len() + 1 + name.len());
        text.push_str(namespace);
        text.push(SEPARATOR);
        text.push_str(name);
        Self(text.into())
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.namespace() {
            "" => f.write_str(self.name()),
            namespace => write!(f, "{namespace}/{}", self.name()),
        }
    }
}

impl fmt::Debug for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// client-go `TestObjectNames`.
    #[test]
    fn a_key_prints_as_client_go_does() {
        assert_eq!(ObjectKey::new("shop", "web").unwrap().to_string(), "shop/web");
        assert_eq!(ObjectKey::new("", "node-a").unwrap().to_string(), "node-a");
        assert_eq!(ObjectKey::new("", "with/extra/slashes").unwrap().to_string(), "with/extra/slashes");
    }

    #[test]
    fn keys_sort_by_namespace_then_name() {
        let key = |namespace, name| ObjectKey::new(namespace, name).unwrap();
        // '-' sorts before '/', so a text order of "a-b/x" and "a/x" would be wrong.
        let mut keys = vec![key("a-b", "x"), key("a", "z"), key("a", "x"), key("", "x")];
        keys.sort();
        assert_eq!(keys, [key("", "x"), key("a", "x"), key("a", "z"), key("a-b", "x")]);
    }

    #[test]
    fn a_namespace_begins_at_its_first_key_and_ends_before_the_next() {
        let first = ObjectKey::first_of_namespace("a");
        assert!(first < ObjectKey::new("a", "\u{1}").unwrap());
        assert!(first > ObjectKey::new("", "zzz").unwrap());
        assert!(ObjectKey::new("a", "zzz").unwrap() < ObjectKey::first_of_namespace("a-b"));
    }

    #[test]
    fn invalid_keys_are_rejected() {
        assert_eq!(ObjectKey::new("a", ""), Err(KeyError::EmptyName));
        assert_eq!(ObjectKey::new("a\0b", "c"), Err(KeyError::Nul));
        assert!(ObjectKey::new("shop", &"n".repeat(4092)).is_ok());
        let error = ObjectKey::new("shop", &"n".repeat(4093)).unwrap_err();
        assert_eq!(error.to_string(), "namespace and name have 4097 bytes, more than 4096");
    }
}
