//! COALESCE: what a client that lags is told of each key at last.
//!
//! While such a client lags, changes merge per key into its filling [`Generation`]; when it has been handed what it was being
//! sent, the filling generation becomes the next to be sent. What is told of a key is decided by what the client has and the
//! latest state: none, then some is ADDED; same uid MODIFIED; other uid DELETED and ADDED; some, then none DELETED, with the
//! state that the client has; none, then none nothing. Entering and leaving a selection are the same algebra.
//!
//! Written by the writer (merging, under the group's lock) until it is taken; then read by one cursor, without any lock.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use super::{Frame, Notice};
use crate::{
    model::{Cause, Change, EventType, Object, ObjectKey, Reached, ResourceVersion, Transition},
    planted::planted,
};

/// Changes merged by key.
#[derive(Debug, Default)]
pub(super) struct Generation {
    pending: HashMap<ObjectKey, Pending, foldhash::fast::RandomState>,
    /// Counts the merged events, for the order of the keys.
    merged: u64,
    /// The size of the bodies of both states of all keys.
    bodies: usize,
}

/// What became of one key.
#[derive(Debug)]
struct Pending {
    /// What the client has.
    had: Option<Arc<Object>>,
    /// What there is now, in its selection.
    now: Option<Arc<Object>>,
    /// The last change by which what the client has went away: its version, and why.
    gone: (ResourceVersion, Cause),
    /// Why what there is now came.
    came: Cause,
    events: u32,
    /// The last change's place among all.
    place: u64,
}

/// A generation that is being told.
#[derive(Debug)]
pub(super) struct Telling {
    told: VecDeque<Told>,
    /// What every event but the last carries.
    before: ResourceVersion,
    /// What is reached with the last one, which carries its version: the generation is complete.
    after: Reached,
}

#[derive(Debug)]
struct Told {
    event_type: EventType,
    cause: Cause,
    object: Arc<Object>,
    object_version: ResourceVersion,
    coalesced: u32,
}

// === impl Generation ===

impl Generation {
    /// How many keys wait.
    pub(super) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Returns the memory of its entries, and the size of the bodies that they refer to.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.pending.capacity() * size_of::<(ObjectKey, Pending)>(), self.bodies)
    }

    /// Adds what a change is to the client's selection.
    pub(super) fn merge(&mut self, change: &Change, transition: Transition) {
        let now = match transition.event_type {
            EventType::Deleted => None,
            EventType::Added | EventType::Modified => change.new.clone(),
        };
        self.merged += 1;
        let place = self.merged;
        let bodies = &mut self.bodies;
        let pending = self.pending.entry(change.object().key().clone()).or_insert_with(|| {
            let had = change.old.clone().filter(|_| transition.event_type != EventType::Added);
            *bodies += had.as_ref().map_or(0, |had| had.body().len());
            let gone = (change.version.clone(), transition.cause);
            Pending { had, now: None, gone, came: Cause::Change, events: 0, place }
        });
        match transition.event_type {
            EventType::Added => pending.came = transition.cause,
            EventType::Modified => {}
            EventType::Deleted => {
                let had = pending.had.as_ref().zip(change.old.as_ref());
                if had.is_some_and(|(had, old)| is_same(had, old)) {
                    pending.gone = (change.version.clone(), transition.cause);
                }
                if pending.had.is_some() && planted!(CoalescedDeletionHasTheLastState) {
                    pending.had.clone_from(&change.old);
                }
            }
        }
        let size = |object: &Option<Arc<Object>>| object.as_ref().map_or(0, |object| object.body().len());
        self.bodies = self.bodies + size(&now) - size(&pending.now);
        pending.now = now;
        pending.events = pending.events.saturating_add(1);
        if !planted!(GenerationIsByTheFirstChange) {
            pending.place = place;
        }
    }

    /// Everything that waits, by each key's last change. Events that vanished without a trace are counted with the last one.
    pub(super) fn tell(self, before: ResourceVersion, after: Reached) -> Telling {
        let mut pending: Vec<Pending> = self.pending.into_values().collect();
        pending.sort_unstable_by_key(|pending| pending.place);
        let (mut told, mut vanished) = (VecDeque::with_capacity(pending.len()), 0_u32);
        for pending in pending {
            vanished = vanished.saturating_add(pending.tell(&mut told));
        }
        if let Some(Told { coalesced, .. }) =
            told.back_mut().filter(|_| vanished == 0 || !planted!(VanishedIsNotCounted))
        {
            *coalesced = coalesced.saturating_add(vanished);
        }
        Telling { told, before, after }
    }
}

// === impl Pending ===

impl Pending {
    /// Tells what the client has to know. Returns how many events left no trace.
    fn tell(self, told: &mut VecDeque<Told>) -> u32 {
        let Self { had, now, gone: (gone_at, gone), came, events, .. } = self;
        let count = told.len();
        let deleted = |object| Told {
            event_type: EventType::Deleted,
            cause: gone,
            object,
            object_version: gone_at,
            coalesced: 0,
        };
        let upserted = |event_type, object: Arc<Object>, cause| Told {
            event_type,
            cause,
            object_version: object.version().clone(),
            object,
            coalesced: 0,
        };
        match (had, now) {
            (None, None) => {}
            (None, Some(now)) => told.push_back(upserted(EventType::Added, now, came)),
            (Some(_), None) if planted!(CoalescingLosesADeletion) => {}
            (Some(had), None) => told.push_back(deleted(had)),
            // Left and entered again as it was, or changed back: nothing is new to the client.
            (Some(had), Some(now)) if Arc::ptr_eq(&had, &now) => {}
            (Some(had), Some(now)) if is_same(&had, &now) || planted!(CoalescingMergesAcrossUids) => {
                told.push_back(upserted(EventType::Modified, now, Cause::Change));
            }
            (Some(had), Some(now)) => {
                let mut deleted = deleted(had);
                if planted!(ReplacedIsDeletedAtTheNewVersion) {
                    deleted.object_version.clone_from(now.version());
                }
                told.push_back(deleted);
                told.push_back(upserted(EventType::Added, now, came));
            }
        }
        let told_now = u32::try_from(told.len() - count).unwrap_or(u32::MAX);
        let further = events.saturating_sub(told_now);
        match told.back_mut().filter(|_| told_now > 0) {
            Some(last) => {
                last.coalesced = if further > 0 && planted!(CoalescedIsMiscounted) { further + 1 } else { further };
                0
            }
            None => events,
        }
    }
}

// === impl Telling ===

impl Telling {
    /// Returns the memory of its entries.
    pub(super) fn size(&self) -> usize {
        self.told.capacity() * size_of::<Told>()
    }

    /// Whether everything has been told.
    pub(super) fn is_done(&self) -> bool {
        self.told.is_empty()
    }

    /// What is reached when everything has been told.
    pub(super) fn after(&self) -> &Reached {
        &self.after
    }

    /// Encodes the next events, until there is `max_size` of them, but at least one. Returns how many they are.
    pub(super) fn encode<F: Frame>(&mut self, format: F::Format, max_size: usize) -> (F, u64) {
        let (mut arena, mut events) = (F::Arena::default(), 0);
        while let Some(Told { event_type, cause, object, object_version, coalesced }) = self.told.pop_front() {
            let is_last = self.told.is_empty();
            let is_complete = is_last && !planted!(GenerationEndsWithoutItsVersion);
            let version = if is_complete || !is_last && planted!(VersionInsideAGeneration) {
                &self.after.version
            } else {
                &self.before
            };
            // Merged changes are not for who has to know of gaps and open versions.
            let (relisted, open) = (false, false);
            let (object, object_version) = (&object, &object_version);
            let notice = Notice { event_type, cause, object, object_version, version, coalesced, relisted, open };
            F::encode(&mut arena, format, &notice);
            events += 1;
            if F::size(&arena) >= max_size {
                break;
            }
        }
        (F::freeze(arena), events)
    }
}

/// Whether both are states of one object. A source without uids cannot show that they are not.
fn is_same(a: &Object, b: &Object) -> bool {
    a.uid() == b.uid() || a.uid().is_empty() || b.uid().is_empty()
}

#[cfg(test)]
mod tests;
