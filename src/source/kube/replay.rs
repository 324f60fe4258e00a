//! Proof that the history of the API is the one that was followed before a connection broke, where versions are counted here.
//!
//! Pure. Such versions have no order, and an API that was restored may have one again. So a watch begins at the text before the
//! last known change, which has to come first, as it was. What follows it is new: a version that was reached by a bookmark
//! alone holds nothing that is known.

use super::proof::{Mark, Verdict};
use crate::{cache::SourceError, model::Object};

/// Last known change that a watch has to replay.
#[derive(Debug)]
pub(super) struct Replay {
    pub(super) mark: Mark,
    /// The API's texts: of the version before the change, and of that of the change.
    pub(super) before: String,
    pub(super) text: String,
    /// More changes may come at that version.
    pub(super) is_open: bool,
}

// === impl Replay ===

impl Replay {
    /// Returns [`Verdict::Recognised`] for the last known change, and [`Verdict::Further`] for another one at its version.
    ///
    /// # Errors
    ///
    /// [`SourceError::Expired`] when the last known change is not replayed as it was: versions without an order do not show
    /// another history.
    pub(super) fn judge(&self, is_deletion: bool, object: &Object, text: &str) -> Result<Verdict, SourceError> {
        let Self { mark, .. } = self;
        let is_same = object.key() == mark.key()
            && object.uid() == mark.uid()
            && is_deletion == mark.is_deleted()
            && (is_deletion || mark.is_written_as(object));
        match is_same {
            true if text == self.text => Ok(Verdict::Recognised),
            // Of several deletions any may come first.
            false if text == self.text => Ok(Verdict::Further),
            _ => Err(self.is_missing()),
        }
    }

    /// Checks that a bookmark is not beyond the change.
    ///
    /// # Errors
    ///
    /// As [`Replay::judge`].
    pub(super) fn check_bookmark(&self, text: &str) -> Result<(), SourceError> {
        if text == self.before || text == self.text { Ok(()) } else { Err(self.is_missing()) }
    }

    fn is_missing(&self) -> SourceError {
        SourceError::Expired(format!("the last known change of {} is not replayed", self.mark.key()))
    }
}
