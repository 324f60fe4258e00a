//! Entry of an index, and the positions to look for in it.

use std::{cmp::Ordering, sync::Arc};

use equivalent::{Comparable, Equivalent};
use imbl::OrdSet;

use crate::model::ObjectKey;

/// Index value and key of an object that has it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct IndexEntry {
    pub(super) value: Arc<str>,
    pub(super) key: ObjectKey,
}

/// Position in an index: that of an entry or, without a key, before all entries of the value.
pub(super) struct IndexPosition<'a> {
    pub(super) value: &'a str,
    pub(super) key: Option<&'a ObjectKey>,
}

// === impl IndexEntry ===

impl IndexEntry {
    /// Returns an entry for this index. It shares the text of the value with the other entries of the value.
    pub(super) fn new(index: &OrdSet<Self>, value: &str, key: &ObjectKey) -> Self {
        let of_value = index.get_next(&IndexPosition { value, key: None }).filter(|entry| *entry.value == *value);
        let value = of_value.map_or_else(|| Arc::from(value), |entry| Arc::clone(&entry.value));
        Self { value, key: key.clone() }
    }
}

// === impl IndexPosition ===

impl Equivalent<IndexEntry> for IndexPosition<'_> {
    fn equivalent(&self, entry: &IndexEntry) -> bool {
        self.compare(entry).is_eq()
    }
}

impl Comparable<IndexEntry> for IndexPosition<'_> {
    fn compare(&self, entry: &IndexEntry) -> Ordering {
        self.value.cmp(&entry.value).then_with(|| self.key.map_or(Ordering::Less, |key| key.cmp(&entry.key)))
    }
}
