//! Earlier states of a resource, from a later one and the changes in between.

use std::sync::Arc;

use super::{Indexer, Snapshot, cost};
use crate::model::{AppliedVersion, Cause, Change, Object, ObjectKey, ResourceVersion};

// === impl Snapshot ===

impl Snapshot {
    /// Returns the state before the given changes, which are the last ones, in reverse order.
    pub fn before(&self, changes: &[Change]) -> Self {
        let mut past = Indexer { indexers: Arc::clone(&self.indexers), state: self.clone() };
        past.state.replaced = past.state.replaced.saturating_sub(cost(changes));
        past.state.offset = past.state.offset.saturating_sub(changes.len() as u64);
        for Change { old, new, version, .. } in changes {
            match (old, new) {
                (Some(old), _) => drop(past.put(old)),
                (None, Some(new)) => drop(past.delete(new, version, Cause::Change)),
                (None, None) => {}
            }
        }
        past.state
    }

    /// Returns the number of changes of the resource up to this state, of all in this process.
    pub(in crate::cache) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the state as that of its last complete version, without whose later changes it is.
    pub(in crate::cache) fn at_safe_version(self) -> Self {
        Self { applied: AppliedVersion::closed(self.applied.safe().clone()), ..self }
    }

    /// Returns the state at a complete version, in which these objects were as given; `None` stands for one that did not exist.
    /// `replaced` is the cost of all changes since.
    pub(in crate::cache) fn with_earlier<'a>(
        &self,
        version: &ResourceVersion,
        earlier: impl IntoIterator<Item = (&'a ObjectKey, Option<&'a Arc<Object>>)>,
        replaced: u64,
    ) -> Self {
        let mut past = Indexer { indexers: Arc::clone(&self.indexers), state: self.clone() };
        for (key, object) in earlier {
            match (object, self.objects.get(key)) {
                (Some(object), _) => drop(past.put(object)),
                (None, Some(present)) => drop(past.delete(present, version, Cause::Change)),
                (None, None) => {}
            }
        }
        let applied = AppliedVersion::closed(version.clone());
        Self { applied, replaced: self.replaced.saturating_sub(replaced), ..past.state }
    }
}
