//! Changes that concern a group: those that its watchers receive, and those that its format suppresses.

use smallvec::SmallVec;

use super::Frame;
use crate::model::{Batch, Change, EventType, Selection, Transition};

/// Changes of a publish cycle that concern a group, by their position in the cycle.
#[derive(Debug, Default)]
pub(super) struct Selected {
    /// One of each cycle at a moderate rate, and then without an allocation for each group.
    pub(super) events: SmallVec<[(usize, Transition); 2]>,
    pub(super) suppressed: Vec<usize>,
}

/// Consequence of a change for the watchers of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    Event(Transition),
    /// A MODIFIED that is none in the group's format.
    Suppressed,
}

// === impl Selected ===

impl Selected {
    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.suppressed.is_empty()
    }

    /// Adds a change at a position after the others, if it concerns the group.
    pub(super) fn add(&mut self, at: usize, outcome: Option<Outcome>) {
        match outcome {
            Some(Outcome::Event(transition)) => self.events.push((at, transition)),
            Some(Outcome::Suppressed) => self.suppressed.push(at),
            None => {}
        }
    }
}

/// Returns the consequence of a change. It depends on the two states of the change alone: so it is the same live and for a client
/// that resumes. A client has the old state, because each change before it was sent, or suppressed as equal.
///
/// Changes of a relist are never suppressed: a client that was cut off inside of a batch, and resumes before it, may have
/// received a state in between from the server that had this batch.
pub(super) fn outcome<F: Frame>(
    selection: &Selection,
    format: &F::Format,
    batch: &Batch,
    change: &Change,
) -> Option<Outcome> {
    let transition = selection.transition(change)?;
    let states = change.old.as_deref().zip(change.new.as_deref());
    let is_suppressed = |(had, now)| F::is_suppressed(format, had, now);
    let may_be_suppressed = transition.event_type == EventType::Modified && !batch.is_gap();
    Some(if may_be_suppressed && states.is_some_and(is_suppressed) {
        Outcome::Suppressed
    } else {
        Outcome::Event(transition)
    })
}
