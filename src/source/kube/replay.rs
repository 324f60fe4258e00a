//! Proof that the API still has the history followed before a connection broke, where versions are numbered by lineage.
//!
//! Pure. Such versions have no order, and a restored API may repeat one. So a watch begins at the API's text before the last
//! known change, which the API has to replay first, unchanged. All later events are new: a version reached only by a bookmark
//! holds no known change.

use super::resume_check::{ResumePoint, Verdict};
use crate::{cache::SourceError, model::Object};

/// Last known change that a watch has to replay.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) resume_point: ResumePoint,
    /// The API's texts: of the version before the change, and of the change.
    pub(super) before: String,
    pub(super) text: String,
    /// True if more changes may have that version.
    pub(super) is_open: bool,
}

// === impl Replay ===

impl Replay {
    /// Returns [`Verdict::Recognised`] for the last known change, and [`Verdict::Further`] for another one at its version.
    ///
    /// # Errors
    ///
    /// [`SourceError::Expired`] if the API does not replay the last known change unchanged: versions without an order cannot
    /// show that the history was rewritten.
    pub(super) fn judge(&self, is_deletion: bool, object: &Object, text: &str) -> Result<Verdict, SourceError> {
        let Self { resume_point, .. } = self;
        let is_same = object.key() == resume_point.key()
            && object.uid() == resume_point.uid()
            && is_deletion == resume_point.is_deleted()
            && (is_deletion || resume_point.is_written_as(object));
        match is_same {
            true if text == self.text => Ok(Verdict::Recognised),
            // The API may replay the deletions of one version in any order.
            false if text == self.text => Ok(Verdict::Further),
            _ => Err(self.is_missing()),
        }
    }

    /// Checks that a bookmark is not beyond the change.
    ///
    /// # Errors
    ///
    /// The same as of [`Replay::judge`].
    pub(super) fn check_bookmark(&self, text: &str) -> Result<(), SourceError> {
        if text == self.before || text == self.text { Ok(()) } else { Err(self.is_missing()) }
    }

    fn is_missing(&self) -> SourceError {
        SourceError::Expired(format!("upstream did not replay the last known change of {}", self.resume_point.key()))
    }
}
