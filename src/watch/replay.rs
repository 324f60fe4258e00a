//! What batches of the past are to one selection: how a client that was away, or was parked, is brought up to date.
//!
//! Off the writer, for one client, and bounded at each step. The versions are those that the client would have been given
//! live: inside a batch the version before it, with the batch's last event in the selection the batch's own.

use std::{collections::VecDeque, sync::Arc};

use super::{Frame, Notice};
use crate::model::{Batch, Reached, ResourceVersion, Selection, Transition};

/// Batches that are still to be told, and how far the client has been told.
#[derive(Debug)]
pub struct Replay {
    batches: VecDeque<Arc<Batch>>,
    /// The offset of the first change of the first batch.
    first: u64,
    /// The next change of the first batch to be looked at.
    at: usize,
    /// Looked at and in the selection, but not told: whether it is the batch's last is not known yet.
    held: Option<(usize, Transition)>,
    version: ResourceVersion,
    /// There was a relist since the last event that was told.
    is_gap: bool,
}

/// A place in a replay: whatever comes next depends on it and on the batches alone.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Place {
    pub(super) version: ResourceVersion,
    pub(super) offset: u64,
    /// There was a relist since the last event that was told.
    pub(super) is_gap: bool,
}

// === impl Replay ===

impl Replay {
    /// Makes the replay of batches whose first change has the offset `first`, for a client that has reached a place before
    /// them or, by its offset, inside the first of them.
    pub fn new(batches: impl IntoIterator<Item = Arc<Batch>>, first: u64, reached: Reached) -> Self {
        let Reached { version, offset } = reached;
        let at = offset.saturating_sub(first) as usize;
        Self { batches: batches.into_iter().collect(), first, at, held: None, version, is_gap: false }
    }

    /// Notes a relist before the first batch, of which the client has to be told.
    #[must_use]
    pub fn after_gap(self, is_gap: bool) -> Self {
        Self { is_gap, ..self }
    }

    /// Safe to resume from after what was encoded up to now.
    pub fn version(&self) -> &ResourceVersion {
        &self.version
    }

    /// What is reached once everything has been told.
    pub fn reached(&self) -> Reached {
        Reached { version: self.version.clone(), offset: self.first + self.at as u64 }
    }

    /// Where another replay would go on: before what is held back.
    pub(super) fn place(&self) -> Place {
        let at = self.held.map_or(self.at, |(at, _)| at);
        Place { version: self.version.clone(), offset: self.first + at as u64, is_gap: self.is_gap }
    }

    /// Whether it stands between two batches.
    pub(super) fn is_between(&self) -> bool {
        self.at == 0 && self.held.is_none()
    }

    /// Whether everything has been told.
    pub fn is_done(&self) -> bool {
        self.batches.is_empty()
    }

    /// Encodes the next events of a selection, until the arena has `max_size` or `is_enough` says so, which is asked after
    /// each step with the number of steps; a step looks at one change, or ends a batch. Returns how many events were
    /// encoded. A selection and a format are to be the same for the whole replay.
    pub fn encode<F: Frame>(
        &mut self,
        selection: &Selection,
        format: F::Format,
        arena: &mut F::Arena,
        max_size: usize,
        is_enough: impl Fn(usize) -> bool,
    ) -> u64 {
        let mut encoded = 0;
        for steps in 0.. {
            let Some(batch) = self.batches.front().cloned() else { break };
            if F::size(arena) >= max_size || steps > 0 && is_enough(steps) {
                break;
            }
            self.is_gap |= batch.is_relist && batch.before != batch.after && !self.has_passed(&batch);
            let Some(change) = batch.changes.get(self.at) else {
                let end = self.not_before(batch.safe());
                let told = self.tell::<F>(&batch, &end, format, arena);
                self.is_gap &= told == 0;
                encoded += told;
                self.version = end;
                self.batches.pop_front();
                (self.first, self.at) = (self.first + batch.changes.len() as u64, 0);
                continue;
            };
            let is_known = self.has_passed(&batch) && change.version <= self.version;
            if let Some(transition) = selection.transition(change).filter(|_| !is_known) {
                let before = self.not_before(&batch.before);
                encoded += self.tell::<F>(&batch, &before, format, arena);
                self.held = Some((self.at, transition));
            }
            self.at += 1;
        }
        encoded
    }

    /// Whether the client has a batch, but for its changes that were [ahead](Batch::ahead) of the version that it has.
    fn has_passed(&self, batch: &Batch) -> bool {
        batch.after < self.version || batch.after == self.version && !batch.is_late()
    }

    /// A version, unless the client is past it: it may come back in between the versions of two batches, and never goes back.
    fn not_before(&self, version: &ResourceVersion) -> ResourceVersion {
        if *version < self.version { self.version.clone() } else { version.clone() }
    }

    /// Encodes the event that was held back, at a version.
    fn tell<F: Frame>(
        &mut self,
        batch: &Batch,
        version: &ResourceVersion,
        format: F::Format,
        arena: &mut F::Arena,
    ) -> u64 {
        let Some((at, transition)) = self.held.take() else { return 0 };
        let Some(notice) = Notice::new(&batch.changes[at], transition, version) else { return 0 };
        let notice = Notice { relisted: self.is_gap, open: batch.is_open, ..notice };
        F::encode(arena, format, &notice);
        self.version.clone_from(version);
        1
    }
}

#[cfg(test)]
pub(super) mod tests;
