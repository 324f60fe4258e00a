//! Set of namespaces.

use std::{collections::BTreeSet, fmt, ops::Bound, sync::Arc};

/// Sorted set of namespaces, cheap to clone; equality is by value. The empty text stands for objects without a namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Namespaces(Arc<BTreeSet<String>>);

// === impl Namespaces ===

impl Namespaces {
    /// Returns true if the namespace is in the set.
    pub fn contains(&self, namespace: &str) -> bool {
        self.0.contains(namespace)
    }

    /// Returns the namespaces, sorted.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Returns the namespaces from this one on, sorted.
    pub fn starting_at<'a>(&'a self, first: &str) -> impl Iterator<Item = &'a str> + use<'a> {
        self.0.range::<str, _>((Bound::Included(first), Bound::Unbounded)).map(String::as_str)
    }
}

impl<S: Into<String>> FromIterator<S> for Namespaces {
    fn from_iter<I: IntoIterator<Item = S>>(namespaces: I) -> Self {
        Self(Arc::new(namespaces.into_iter().map(Into::into).collect()))
    }
}

impl fmt::Display for Namespaces {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, namespace) in self.iter().enumerate() {
            let separator = if at == 0 { "" } else { "," };
            write!(f, "{separator}{namespace}")?;
        }
        Ok(())
    }
}
