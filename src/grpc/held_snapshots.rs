//! Memory that streams reference besides the data that they are sent: old states, through snapshots and through merged changes.
//!
//! A replaced state stays in the history for a while; after that only streams that began before its replacement reference it.
//! The oldest stream is charged for the states that were replaced until the next one began, that one for those replaced until
//! the one after it began, and the youngest for those replaced until the history begins. So each state is charged once, however
//! many streams there are, and no stream is charged for more than it references.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use parking_lot::Mutex;

use crate::{cache::Snapshot, transport::StreamHandle, turns::FairPermit};

/// Snapshots of one resource that streams answer from.
#[derive(Debug, Default)]
pub(super) struct HeldSnapshots {
    last: AtomicU64,
    held: Mutex<BTreeMap<(Age, u64), Holder>>,
}

/// Snapshot that a stream answers from; dropping this ends the charge.
#[derive(Debug)]
pub(super) struct HeldSnapshot {
    snapshots: Arc<HeldSnapshots>,
    key: (Age, u64),
    /// Permit of a state that was computed for the stream.
    permit: Option<FairPermit>,
}

/// Position of a state of a resource in time: the number of its history, and the bytes that were replaced before it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Age {
    history_id: u64,
    replaced: u64,
}

/// Holder of states of a resource.
#[derive(Debug, Clone)]
pub(super) struct Holder {
    pub(super) charge: Arc<StreamCharge>,
    /// Age of its oldest state: it references no state that was replaced before.
    pub(super) since: Age,
    /// Size of all its states, in bytes.
    pub(super) bodies: u64,
    /// Memory that only this holder uses, in bytes.
    pub(super) own: usize,
}

/// Bytes that one holder keeps for its stream, which may have several: dropping this ends the charge.
#[derive(Debug)]
pub(super) struct StreamCharge {
    stream: Option<StreamHandle>,
    bytes: AtomicUsize,
}

/// Divides the bytes that were replaced before the history begins among the holders, which are sorted by age, the oldest first.
fn shares(holders: &[Holder], begin: Age) -> impl Iterator<Item = u64> {
    let next = holders.iter().skip(1).map(|holder| Some(holder.since)).chain([None]);
    holders.iter().zip(next).map(move |(holder, next)| {
        let end = next.filter(|next| next.history_id == holder.since.history_id).map_or(u64::MAX, |next| next.replaced);
        let end = if holder.since.history_id < begin.history_id { end } else { end.min(begin.replaced) };
        end.saturating_sub(holder.since.replaced).min(holder.bodies)
    })
}

// === impl HeldSnapshots ===

impl HeldSnapshots {
    /// Records that a stream answers from a snapshot.
    pub(super) fn hold(self: &Arc<Self>, snapshot: &Snapshot, stream: Option<StreamHandle>) -> HeldSnapshot {
        let since = Age::of(snapshot);
        let key = (since, self.last.fetch_add(1, Ordering::Relaxed));
        let charge = Arc::new(StreamCharge::new(stream));
        self.held.lock().insert(key, Holder { charge, since, bodies: snapshot.size(), own: 0 });
        HeldSnapshot { snapshots: Arc::clone(self), key, permit: None }
    }

    /// Charges the streams that began before the history does, and those with merged changes. Returns the sum, in bytes.
    pub(super) fn charge(&self, merging: Vec<Holder>, begin: Age) -> usize {
        let mut holders = self.older_than(begin);
        holders.extend(merging);
        holders.sort_by_key(|holder| holder.since);
        let mut kept = 0;
        for (holder, share) in holders.iter().zip(shares(&holders, begin)) {
            let bytes = holder.own + share as usize;
            kept += bytes;
            holder.charge.set(bytes);
        }
        kept
    }

    fn older_than(&self, begin: Age) -> Vec<Holder> {
        self.held.lock().range(..(begin, 0)).map(|(_, holder)| holder.clone()).collect()
    }
}

// === impl HeldSnapshot ===

impl HeldSnapshot {
    /// Keeps the permit of a state that was computed for the stream.
    pub(super) fn with_permit(mut self, permit: Option<FairPermit>) -> Self {
        self.permit = permit;
        self
    }
}

impl Drop for HeldSnapshot {
    fn drop(&mut self) {
        drop(self.snapshots.held.lock().remove(&self.key));
    }
}

// === impl StreamCharge ===

impl StreamCharge {
    pub(super) fn new(stream: Option<StreamHandle>) -> Self {
        Self { stream, bytes: AtomicUsize::new(0) }
    }

    fn set(&self, bytes: usize) {
        let before = self.bytes.swap(bytes, Ordering::Relaxed);
        if let Some(stream) = self.stream.as_ref().filter(|_| before != bytes) {
            stream.keep(before, bytes);
        }
    }
}

impl Drop for StreamCharge {
    fn drop(&mut self) {
        self.set(0);
    }
}

// === impl Age ===

impl Age {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        Self { history_id: snapshot.history_id(), replaced: snapshot.replaced_bytes() }
    }

    /// Returns the age at which `bytes` fewer had been replaced.
    pub(super) fn before(self, bytes: u64) -> Self {
        Self { replaced: self.replaced.saturating_sub(bytes), ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn age(history_id: u64, replaced: u64) -> Age {
        Age { history_id, replaced }
    }

    fn of(holders: &[(Age, u64)], begin: Age) -> Vec<u64> {
        let holder =
            |&(since, bodies): &(Age, u64)| Holder { charge: Arc::new(StreamCharge::new(None)), since, bodies, own: 0 };
        let holders: Vec<Holder> = holders.iter().map(holder).collect();
        shares(&holders, begin).collect()
    }

    #[test]
    fn every_state_is_charged_once_and_no_holder_beyond_its_own() {
        let begin = age(0, 100);
        assert_eq!(of(&[(age(0, 10), 1000)], begin), [90]);
        assert_eq!(of(&[(age(0, 10), 50)], begin), [50], "no more than all of it");
        assert_eq!(of(&[(age(0, 10), 1000), (age(0, 30), 1000), (age(0, 30), 1000)], begin), [20, 0, 70]);
        assert_eq!(of(&[(age(0, 10), 1000), (age(0, 120), 1000)], begin), [90, 0], "the history has the rest");
    }

    #[test]
    fn states_of_a_rewritten_history_are_not_covered_by_the_history() {
        let holders = [(age(0, 10), 1000), (age(0, 30), 1000), (age(1, 5), 1000)];
        assert_eq!(of(&holders, age(1, 8)), [20, 1000, 3]);
    }
}
