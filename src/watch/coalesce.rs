//! COALESCE: the events that bring a lagging client to the latest state of each key.
//!
//! All that the full queue of such a client holds merges per key into a [`Generation`], which is sent as a whole once it is
//! complete. The state that the client has and the latest state of the key decide its events:
//!
//! | client has | latest state | events |
//! |---|---|---|
//! | none | some | ADDED |
//! | some | same uid | MODIFIED |
//! | some | other uid | DELETED, ADDED |
//! | some | none | DELETED, with the state that the client has |
//! | none | none | none |
//!
//! Entering and leaving a selection follow the same rules.
//!
//! A [queue](super::queue) writes a generation; then its cursor reads it. Neither holds a lock meanwhile.

use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    sync::Arc,
};

use super::{Frame, GroupEvent, replay::ReplayPosition};
use crate::{
    census::{Alive, Kind},
    model::{Batch, Cause, Change, EventType, HistoryPosition, Object, ObjectKey, ResourceVersion, Transition},
};

/// Changes merged by key.
#[derive(Debug, Clone)]
pub(super) struct Generation {
    pending: HashMap<ObjectKey, Pending, foldhash::fast::RandomState>,
    /// Number of merged events, for the order of the keys.
    merged: u64,
    /// Events of keys that were added and deleted again: nothing else is left of them.
    vanished: u32,
    /// Versions that are safe to resume from: before the first merged event, and after the last one.
    versions: Option<(ResourceVersion, ResourceVersion)>,
    /// Size of the bodies that the client has of all keys, and of the latest ones.
    had: usize,
    now: usize,
    _alive: Alive,
}

/// Memory of merged changes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Size {
    /// Memory of the entries themselves.
    pub(super) entries: usize,
    /// Size of the bodies that they refer to.
    pub(super) bodies: usize,
    /// Part of `bodies` that the cache no longer has.
    pub(super) had: usize,
}

/// Merged changes of one key.
#[derive(Debug, Clone)]
struct Pending {
    /// State that the client has.
    had: Option<Arc<Object>>,
    /// Latest state, if it is in the selection.
    now: Option<Arc<Object>>,
    /// Last change that removed the state that the client has: its version and its cause.
    deleted_by: (ResourceVersion, Cause),
    /// Cause of the addition of the latest state.
    added_by: Cause,
    events: u32,
    /// True if a relist has changed it: then the client may have received another state than `had`.
    is_in_gap: bool,
    /// Position of the last change among all.
    order: u64,
}

/// Generation that is being delivered.
#[derive(Debug, Clone)]
pub(super) struct DrainingGeneration {
    drained: VecDeque<CoalescedEvent>,
    /// Versions that are safe to resume from: before its first event, and after its last one.
    versions: Option<(ResourceVersion, ResourceVersion)>,
    /// Position up to which everything has merged.
    position: ReplayPosition,
    size: Size,
    /// Number of merged changes that the format suppresses.
    suppressed: u64,
    _alive: Alive,
}

#[derive(Debug, Clone)]
struct CoalescedEvent {
    event_type: EventType,
    cause: Cause,
    object: Arc<Object>,
    previous: Option<Arc<Object>>,
    object_version: ResourceVersion,
    coalesced: u32,
}

// === impl Generation ===

impl Default for Generation {
    fn default() -> Self {
        let (pending, alive) = (HashMap::default(), Alive::new(Kind::Merging, 0));
        Self { pending, merged: 0, vanished: 0, versions: None, had: 0, now: 0, _alive: alive }
    }
}

impl Generation {
    pub(super) fn size(&self) -> Size {
        let entries = self.pending.capacity() * size_of::<(ObjectKey, Pending)>();
        Size { entries, bodies: self.had + self.now, had: self.had }
    }

    /// Merges a change, by its transition in the client's selection.
    pub(super) fn merge(&mut self, batch: &Batch, change: &Change, transition: Transition) {
        let now = match transition.event_type {
            EventType::Deleted => None,
            EventType::Added | EventType::Modified => change.new.clone(),
        };
        self.merged += 1;
        let after = batch.safe();
        let (_, last) = self.versions.get_or_insert_with(|| (batch.before.clone(), after.clone()));
        if *last < *after {
            last.clone_from(after);
        }
        let order = self.merged;
        let mut entry = match self.pending.entry(change.object().key().clone()) {
            Entry::Occupied(entry) => entry,
            Entry::Vacant(entry) => {
                let had = change.old.clone().filter(|_| transition.event_type != EventType::Added);
                self.had += size_of_body(had.as_ref());
                let deleted_by = (change.version.clone(), transition.cause);
                entry.insert_entry(Pending {
                    had,
                    now: None,
                    deleted_by,
                    added_by: Cause::Change,
                    events: 0,
                    is_in_gap: false,
                    order,
                })
            }
        };
        let pending = entry.get_mut();
        pending.is_in_gap |= batch.is_gap();
        match transition.event_type {
            EventType::Added => pending.added_by = transition.cause,
            EventType::Modified => {}
            EventType::Deleted => {
                let had = pending.had.as_ref().zip(change.old.as_ref());
                if had.is_some_and(|(had, old)| is_same(had, old)) {
                    pending.deleted_by = (change.version.clone(), transition.cause);
                }
            }
        }
        self.now = self.now + size_of_body(now.as_ref()) - size_of_body(pending.now.as_ref());
        pending.now = now;
        pending.events = pending.events.saturating_add(1);
        pending.order = order;
        if pending.had.is_none() && pending.now.is_none() {
            self.vanished = self.vanished.saturating_add(entry.remove().events);
        }
    }

    /// Returns the events to deliver, ordered by each key's last change, to the client that reaches a position with them.
    /// The last event also counts the events that vanished without a trace. With `has_previous`, each MODIFIED keeps the state
    /// that the client has. Of a key whose MODIFIED is suppressed nothing is delivered, and all its events count as suppressed.
    pub(super) fn drain(
        self,
        position: ReplayPosition,
        has_previous: bool,
        is_suppressed: impl Fn(&Object, &Object) -> bool,
    ) -> DrainingGeneration {
        let Self { pending, mut vanished, versions, .. } = self;
        let mut pending: Vec<Pending> = pending.into_values().collect();
        pending.sort_unstable_by_key(|pending| pending.order);
        let mut drained = VecDeque::with_capacity(pending.len());
        let mut suppressed = 0;
        for pending in pending {
            let may_be_suppressed = pending.is_modified().filter(|_| !pending.is_in_gap);
            if may_be_suppressed.is_some_and(|(had, now)| is_suppressed(had, now)) {
                suppressed += u64::from(pending.events);
                continue;
            }
            vanished = vanished.saturating_add(pending.drain(&mut drained, has_previous));
        }
        if let Some(CoalescedEvent { coalesced, .. }) = drained.back_mut() {
            *coalesced = coalesced.saturating_add(vanished);
        }
        let (mut bodies, mut had) = (0, 0);
        for CoalescedEvent { event_type, object, previous, .. } in &drained {
            let deleted = Some(object).filter(|_| *event_type == EventType::Deleted);
            bodies += object.body().len() + size_of_body(previous.as_ref());
            had += size_of_body(deleted.or(previous.as_ref()));
        }
        // Inside of a batch its version is not reached: who has that is not sent the rest.
        let reached = |after| if position.version < after { position.version.clone() } else { after };
        let versions = versions.map(|(before, after)| (before, reached(after)));
        let size = Size { entries: drained.capacity() * size_of::<CoalescedEvent>(), bodies, had };
        DrainingGeneration { drained, versions, position, size, suppressed, _alive: Alive::new(Kind::Merging, 0) }
    }
}

// === impl Pending ===

impl Pending {
    /// Returns the states between which the client would receive a MODIFIED; `None` if it would receive anything else.
    fn is_modified(&self) -> Option<(&Object, &Object)> {
        let states = self.had.as_ref().zip(self.now.as_ref());
        let (had, now) = states.filter(|(had, now)| !Arc::ptr_eq(had, now) && is_same(had, now))?;
        Some((had, now))
    }

    /// Appends the events of this key. Returns the number of events that left no trace.
    fn drain(self, drained: &mut VecDeque<CoalescedEvent>, has_previous: bool) -> u32 {
        let Self { had, now, deleted_by: (deleted_at, deleted_by), added_by, events, .. } = self;
        let count = drained.len();
        let deleted = |object| CoalescedEvent {
            event_type: EventType::Deleted,
            cause: deleted_by,
            object,
            previous: None,
            object_version: deleted_at,
            coalesced: 0,
        };
        let upserted = |previous: Option<Arc<Object>>, object: Arc<Object>, cause| CoalescedEvent {
            event_type: if previous.is_some() { EventType::Modified } else { EventType::Added },
            cause,
            object_version: object.version().clone(),
            object,
            previous: previous.filter(|_| has_previous),
            coalesced: 0,
        };
        match (had, now) {
            (None, None) => {}
            (None, Some(now)) => drained.push_back(upserted(None, now, added_by)),
            (Some(had), None) => drained.push_back(deleted(had)),
            // Left and entered again unchanged, or changed back: nothing is new to the client.
            (Some(had), Some(now)) if Arc::ptr_eq(&had, &now) => {}
            (Some(had), Some(now)) if is_same(&had, &now) => {
                drained.push_back(upserted(Some(had), now, Cause::Change));
            }
            (Some(had), Some(now)) => {
                drained.push_back(deleted(had));
                drained.push_back(upserted(None, now, added_by));
            }
        }
        let drained_now = u32::try_from(drained.len() - count).unwrap_or(u32::MAX);
        let further = events.saturating_sub(drained_now);
        match drained.back_mut().filter(|_| drained_now > 0) {
            Some(last) => {
                last.coalesced = further;
                0
            }
            None => events,
        }
    }
}

// === impl DrainingGeneration ===

impl DrainingGeneration {
    /// Returns the memory of its entries, and the size of the bodies that it had at first.
    pub(super) fn size(&self) -> Size {
        self.size
    }

    /// Returns the position up to which everything has merged.
    pub(super) fn position(&self) -> &ReplayPosition {
        &self.position
    }

    /// Returns the number of merged changes that were suppressed.
    pub(super) fn suppressed(&self) -> u64 {
        self.suppressed
    }

    /// Returns true if everything has been delivered.
    pub(super) fn is_done(&self) -> bool {
        self.drained.is_empty()
    }

    /// Returns what a client that was at `before` reaches once everything has been delivered.
    pub(super) fn after(&self, before: &HistoryPosition) -> HistoryPosition {
        let after = self.versions.as_ref().map(|(_, after)| after).filter(|after| **after > before.version);
        let version = after.unwrap_or(&before.version).clone();
        HistoryPosition { version, offset: self.position.offset.max(before.offset) }
    }

    /// Returns the version of all but the last event, for a client that was at `reached`: the one before the first merged
    /// change.
    pub(super) fn before(&self, reached: &HistoryPosition) -> ResourceVersion {
        let before = self.versions.as_ref().map(|(before, _)| before).filter(|before| **before > reached.version);
        before.unwrap_or(&reached.version).clone()
    }

    /// Encodes the next events for a client that was at `before`, until there is `max_size` of them, but at least one.
    /// Returns their number too.
    pub(super) fn encode<F: Frame>(
        &mut self,
        before: &HistoryPosition,
        format: &F::Format,
        max_size: usize,
    ) -> (F, u64) {
        let (mut arena, mut events) = (F::Arena::default(), 0);
        let (before, after) = (&before.version, &self.after(before).version);
        while let Some(CoalescedEvent { event_type, cause, object, previous, object_version, coalesced }) =
            self.drained.pop_front()
        {
            let is_last = self.drained.is_empty();
            let version = if is_last { after } else { before };
            // Clients that must see relist gaps and open versions do not use merged changes.
            let (relisted, open) = (false, false);
            let (object, previous, object_version) = (&object, previous.as_ref(), &object_version);
            let notice =
                GroupEvent { event_type, cause, object, previous, object_version, version, coalesced, relisted, open };
            F::encode(&mut arena, format, &notice);
            events += 1;
            if F::size(&arena) >= max_size {
                break;
            }
        }
        (F::freeze(arena), events)
    }
}

// === impl Size ===

impl Size {
    /// Returns the sum.
    pub(super) fn plus(self, other: Self) -> Self {
        let Self { entries, bodies, had } = self;
        Self { entries: entries + other.entries, bodies: bodies + other.bodies, had: had + other.had }
    }

    /// Returns the bytes that count against the bound.
    pub(super) fn held(self) -> usize {
        self.entries + self.had
    }
}

fn size_of_body(object: Option<&Arc<Object>>) -> usize {
    object.map_or(0, |object| object.body().len())
}

/// Returns true if both are states of one object. Objects of a source without uids always count as the same.
fn is_same(a: &Object, b: &Object) -> bool {
    a.uid() == b.uid() || a.uid().is_empty() || b.uid().is_empty()
}

#[cfg(test)]
mod tests;
