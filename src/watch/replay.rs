//! Replay of past batches for one selection, for a client that resumes or was parked.
//!
//! It runs outside of the writer, for one client, and is bounded at each step. Its versions are those that the client would
//! have received live: events carry the version before their batch, and the batch's last event in the selection the batch's
//! own.

mod counted;
mod lookahead;

use std::{collections::VecDeque, sync::Arc};

pub(super) use self::{
    counted::{Counted, Total},
    lookahead::{Lookahead, Stop},
};
use super::{Frame, GroupEvent};
use crate::model::{Batch, Change, EventType, HistoryPosition, ResourceVersion, Selection, Transition};

/// Batches that are still to be replayed, and the position of the client.
#[derive(Debug)]
pub struct Replay {
    batches: VecDeque<Arc<Batch>>,
    /// Offset of the first change of the first batch.
    first: u64,
    /// Next change of the first batch to evaluate.
    at: usize,
    /// Selected change that is not encoded yet, because a later one may prove to be the batch's last.
    held: Option<(usize, Transition)>,
    /// Number of suppressed changes before the one that is held back, and after it.
    suppressed: (u64, u64),
    version: ResourceVersion,
    /// True if there was a relist since the last event.
    is_gap: bool,
}

/// Consequence of a change for the watchers of a selection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Event(Transition),
    /// A MODIFIED that is none in the format.
    Suppressed,
}

/// Event of a replay: with its batch, its change and its transition.
pub(super) struct Replayed<'a> {
    pub(super) event: GroupEvent<'a>,
    pub(super) batch: &'a Batch,
    pub(super) change: &'a Change,
    pub(super) transition: Transition,
}

/// Position in a replay, which with the batches determines everything that follows.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReplayPosition {
    pub(super) version: ResourceVersion,
    pub(super) offset: u64,
    /// True if there was a relist since the last event.
    pub(super) is_gap: bool,
}

// === impl ReplayPosition ===

impl Clone for ReplayPosition {
    fn clone(&self) -> Self {
        Self { version: self.version.clone(), ..*self }
    }

    /// Copies as the version does: every cursor copies the position of every event, on all threads.
    fn clone_from(&mut self, other: &Self) {
        self.version.clone_from(&other.version);
        (self.offset, self.is_gap) = (other.offset, other.is_gap);
    }
}

// === impl Replay ===

impl Replay {
    /// Returns the replay of batches whose first change has the offset `first`, for a client at a position before them or,
    /// by its offset, inside the first of them.
    pub fn new(batches: impl IntoIterator<Item = Arc<Batch>>, first: u64, reached: HistoryPosition) -> Self {
        let HistoryPosition { version, offset } = reached;
        let at = offset.saturating_sub(first) as usize;
        Self {
            batches: batches.into_iter().collect(),
            first,
            at,
            held: None,
            suppressed: (0, 0),
            version,
            is_gap: false,
        }
    }

    /// Sets if a relist before the first batch must be reported to the client.
    #[must_use]
    pub fn after_gap(self, is_gap: bool) -> Self {
        Self { is_gap, ..self }
    }

    /// Returns the version that is safe to resume from after what was encoded up to now.
    pub fn version(&self) -> &ResourceVersion {
        &self.version
    }

    /// Returns the position that is reached after everything was encoded.
    pub fn reached(&self) -> HistoryPosition {
        HistoryPosition { version: self.version.clone(), offset: self.first + self.at as u64 }
    }

    /// Returns the position from which another replay would continue: before the event that is held back.
    pub(super) fn position(&self) -> ReplayPosition {
        let at = self.held.map_or(self.at, |(at, _)| at);
        ReplayPosition { version: self.version.clone(), offset: self.first + at as u64, is_gap: self.is_gap }
    }

    /// Takes the number of changes before [`Self::position`] that the format suppresses, since the last call.
    pub(super) fn take_suppressed(&mut self) -> u64 {
        std::mem::take(&mut self.suppressed.0)
    }

    /// Returns true if it is between two batches.
    pub(super) fn is_between(&self) -> bool {
        self.at == 0 && self.held.is_none()
    }

    /// Returns true if everything has been replayed.
    pub fn is_done(&self) -> bool {
        self.batches.is_empty()
    }

    /// Evaluates the next change, or ends a batch. Appends the event of a selection that this completes, if any; returns
    /// their number. Selection and format must be the same for the whole replay.
    pub fn step<F: Frame>(&mut self, selection: &Selection, format: &F::Format, arena: &mut F::Arena) -> u64 {
        self.next::<F>(selection, format, |replayed| F::encode(arena, format, &replayed.event))
    }

    /// Does the same, and passes the event to `sink`.
    pub(super) fn next<F: Frame>(
        &mut self,
        selection: &Selection,
        format: &F::Format,
        sink: impl FnOnce(Replayed<'_>),
    ) -> u64 {
        let Some(batch) = self.batches.front().cloned() else { return 0 };
        self.is_gap |= batch.is_gap() && !self.has_passed(&batch);
        let Some(change) = batch.changes.get(self.at) else {
            let end = self.not_before(batch.safe());
            let told = self.pass_held(&batch, &end, sink);
            self.is_gap &= told == 0;
            self.version = end;
            self.batches.pop_front();
            (self.first, self.at) = (self.first + batch.changes.len() as u64, 0);
            return told;
        };
        let is_known = self.has_passed(&batch) && change.version <= self.version;
        let (mut told, at) = (0, self.at);
        match outcome::<F>(selection, format, &batch, change).filter(|_| !is_known) {
            Some(Outcome::Event(transition)) => {
                let before = self.not_before(&batch.before);
                told = self.pass_held(&batch, &before, sink);
                self.held = Some((at, transition));
            }
            Some(Outcome::Suppressed) if self.held.is_some() => self.suppressed.1 += 1,
            Some(Outcome::Suppressed) => self.suppressed.0 += 1,
            None => {}
        }
        self.at += 1;
        told
    }

    /// Returns true if the client has a batch, except for its changes [ahead](Batch::ahead) of the version that the client
    /// has.
    fn has_passed(&self, batch: &Batch) -> bool {
        batch.after < self.version || batch.after == self.version && !batch.is_late()
    }

    /// Returns a version, or the client's own if that is higher: the client may resume between the versions of two batches,
    /// and its version never decreases.
    fn not_before(&self, version: &ResourceVersion) -> ResourceVersion {
        if *version < self.version { self.version.clone() } else { version.clone() }
    }

    /// Passes on the event that was held back, at a version.
    fn pass_held(&mut self, batch: &Batch, version: &ResourceVersion, sink: impl FnOnce(Replayed<'_>)) -> u64 {
        let Some((at, transition)) = self.held.take() else { return 0 };
        self.suppressed.0 += std::mem::take(&mut self.suppressed.1);
        let change = &batch.changes[at];
        let Some(event) = GroupEvent::new(change, transition, version) else { return 0 };
        let event = GroupEvent { relisted: self.is_gap, open: batch.is_open, ..event };
        sink(Replayed { event, batch, change, transition });
        self.version.clone_from(version);
        1
    }
}

/// Returns the consequence of a change. It depends on the two states of the change alone: so it is the same live and for a client
/// that resumes. A client has the old state, because each change before it was sent, or suppressed as equal.
///
/// Changes of a relist are never suppressed: a client that was cut off inside of a batch, and resumes before it, may have
/// received a state in between from the server that had this batch.
fn outcome<F: Frame>(selection: &Selection, format: &F::Format, batch: &Batch, change: &Change) -> Option<Outcome> {
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

#[cfg(test)]
pub(super) mod tests;
