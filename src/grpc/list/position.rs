//! Position of a List in its snapshot.

use crate::model::{Evaluations, ObjectKey};

/// Position of a List, and the evaluations of its expression up to there.
#[derive(Debug, Default)]
pub(super) struct Position {
    /// Key of the last object that was checked.
    pub(super) last_checked: Option<ObjectKey>,
    /// Key of the last object that was sent.
    pub(super) sent: Option<ObjectKey>,
    /// Evaluations up to the last object that was sent.
    pub(super) evaluations: Evaluations,
    /// Evaluations after it. Another page checks these objects again.
    pub(super) ahead: Evaluations,
}

// === impl Position ===

impl Position {
    /// Counts an object that is sent.
    pub(super) fn send(&mut self) {
        self.ahead.add_selected();
        self.evaluations.append(&mut self.ahead);
    }

    /// Returns true if an evaluation has failed.
    pub(super) fn has_failures(&self) -> bool {
        self.evaluations.failed + self.ahead.failed > 0
    }

    /// Returns the evaluations of a page that is complete.
    pub(super) fn evaluations(&mut self, is_last_page: bool) -> &Evaluations {
        if is_last_page {
            self.evaluations.append(&mut self.ahead);
        }
        &self.evaluations
    }
}
