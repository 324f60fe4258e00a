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

    /// Returns a text that is equal for equal sets only, at every server and after a restart: the 128 bits of FNV-1a over the
    /// sorted namespaces, each with a NUL, which is in none of them, at its end.
    pub fn digest(&self) -> String {
        const OFFSET_BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
        const PRIME: u128 = 0x0100_0000_0000_0000_0000_013b;
        let bytes = self.iter().flat_map(|namespace| namespace.bytes().chain([0]));
        format!("{:032x}", bytes.fold(OFFSET_BASIS, |hash, byte| (hash ^ u128::from(byte)).wrapping_mul(PRIME)))
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Clients keep the digest in the history of a watch, and send it to servers of other releases.
    #[test]
    fn a_digest_is_the_same_at_every_server() {
        let digest = |namespaces: &[&str]| namespaces.iter().copied().collect::<Namespaces>().digest();
        assert_eq!(digest(&[]), "6c62272e07bb014262b821756295c58d", "the offset basis of FNV-1a with 128 bits");
        assert_eq!(digest(&["b", "a", "b"]), digest(&["a", "b"]));
        let sets: [&[&str]; 7] = [&[], &[""], &["a"], &["b"], &["a", "b"], &["ab"], &["", "a"]];
        assert_eq!(sets.iter().map(|set| digest(set)).collect::<BTreeSet<_>>().len(), sets.len());
        assert_eq!(digest(&["a"]).len(), 32);
    }

    #[test]
    fn namespaces_are_sorted_and_each_once() {
        let set: Namespaces = ["b", "a", "b", "c"].into_iter().collect();
        assert_eq!((set.iter().collect::<Vec<_>>(), set.to_string().as_str()), (vec!["a", "b", "c"], "a,b,c"));
        assert_eq!(set.starting_at("aa").collect::<Vec<_>>(), ["b", "c"]);
    }
}
