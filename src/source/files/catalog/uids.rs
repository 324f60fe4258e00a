//! Uids that manifests repeat, of the served objects.

use std::sync::Arc;

use super::Catalog;
use crate::model::ObjectKey;

impl Catalog {
    /// Gives each of the first objects a uid of its own.
    pub(super) fn claim_uids(&mut self) {
        let mut last: Option<&ObjectKey> = None;
        for claim in &self.claims {
            let object = self.files.get_mut(&claim.path).and_then(|file| file.objects.get_mut(claim.position as usize));
            if let Some(object) = object.filter(|_| last != Some(&claim.key))
                && let Some(other) = self.uids.claim(object, None)
            {
                *object = Arc::new(other);
            }
            last = Some(&claim.key);
        }
    }

    /// Returns the objects with another uid than their own, with the file of each, and the object that has it.
    pub(in crate::source::files) fn repeated_uids(
        &self,
    ) -> impl Iterator<Item = (&Arc<str>, &ObjectKey, &str, Option<&ObjectKey>)> {
        let path = |key| self.claims_of(key).next().map(|claim| &claim.path);
        self.uids.repeated().filter_map(move |(key, uid, other)| Some((path(key)?, key, uid, other)))
    }
}
