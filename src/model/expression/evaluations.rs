//! Number of objects for which an expression was evaluated, and of those for which it failed.

use super::Failure;
use crate::model::{Object, ObjectKey};

/// Evaluations of an expression for the objects of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evaluations {
    /// Number of objects for which the expression was evaluated.
    pub evaluated: u64,
    /// Number of those for which it failed.
    pub failed: u64,
    /// First object for which it failed, and the reason.
    pub first: Option<Box<(ObjectKey, String)>>,
}

// === impl Evaluations ===

impl Evaluations {
    /// Counts an object that is selected. Its reader calls this once the object is sent: until then it may be evaluated again.
    pub fn add_selected(&mut self) {
        self.evaluated += 1;
    }

    /// Counts an object that is not selected, with the failure if the evaluation failed.
    pub(super) fn add_other(&mut self, object: &Object, failure: Option<(Failure, u64)>) {
        self.evaluated += 1;
        if let Some((failure, max_steps)) = failure {
            self.failed += 1;
            self.first.get_or_insert_with(|| Box::new((object.key().clone(), failure.reason(max_steps))));
        }
    }

    /// Adds those of the objects that come next, and takes them.
    pub fn append(&mut self, next: &mut Self) {
        let Self { evaluated, failed, first } = std::mem::take(next);
        self.evaluated += evaluated;
        self.failed += failed;
        self.first = self.first.take().or(first);
    }
}
