//! Openings of the watches of a Subscribe stream, and what they may hold while the stream reads on.
//!
//! An opening is queued until it may begin, and works until it has joined, or until it waits for a first list or for a version.
//! Those that work are limited in number. Those that wait cost nothing but their requests: they are limited in bytes, and one
//! without room is answered at once, as at the end of its wait. The stream reads requests until the queue is full, so what its
//! client closes, pauses and resumes is read also while openings work slowly, as beside an authority that does not answer.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use prost::Message;

use crate::proto::pb;

/// Openings of one stream that have not begun, in the order of their requests.
#[derive(Debug, Default)]
pub(super) struct QueuedOpenings {
    queue: BTreeMap<u64, pb::OpenWatch>,
    next_place: u64,
    /// Bytes of their requests.
    bytes: usize,
}

/// Openings of one stream.
#[derive(Debug, Default)]
pub(super) struct Openings(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    working: Load,
    waiting: Load,
}

/// Openings, and the bytes of their requests.
#[derive(Debug, Default)]
struct Load {
    number: usize,
    bytes: usize,
}

/// Part of one opening; dropping it is its end.
#[derive(Debug)]
pub(super) struct OpeningSlot {
    openings: Arc<Openings>,
    bytes: usize,
    is_waiting: Mutex<bool>,
}

/// Number of queued openings, and of the bytes of their requests, from which on the stream reads no further request.
const MAX_QUEUED: usize = 1024;
const MAX_QUEUED_BYTES: usize = 256 << 10;
/// Size of a queued opening beside its texts: the decoded request, and its entry among the watches of the stream.
const QUEUED_BYTES: usize = size_of::<pb::OpenWatch>() + 64;
/// Largest number of openings that work at a time.
const MAX_WORKING: usize = 64;
/// Bytes of the requests of those from which on no further one begins.
const MAX_WORKING_BYTES: usize = 64 << 10;
/// Largest number of openings that wait: each holds about as much as an open watch.
const MAX_WAITING: usize = 16 << 10;
/// Largest number of bytes of their requests.
const MAX_WAITING_BYTES: usize = 2 << 20;

// === impl QueuedOpenings ===

impl QueuedOpenings {
    /// Adds an opening, and returns its place.
    pub(super) fn push(&mut self, open: pb::OpenWatch) -> u64 {
        let place = self.next_place;
        self.next_place += 1;
        self.bytes += open.encoded_len();
        self.queue.insert(place, open);
        place
    }

    pub(super) fn pop(&mut self) -> Option<pb::OpenWatch> {
        let (_, open) = self.queue.pop_first()?;
        self.bytes -= open.encoded_len();
        if self.queue.is_empty() {
            // Otherwise an idle stream would hold a node of the map.
            self.queue.clear();
        }
        Some(open)
    }

    pub(super) fn remove(&mut self, place: u64) {
        self.bytes -= self.queue.remove(&place).map_or(0, |open| open.encoded_len());
    }

    pub(super) fn clear(&mut self) {
        self.queue.clear();
        self.bytes = 0;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Returns the bytes that the openings hold.
    pub(super) fn held(&self) -> usize {
        self.bytes + self.queue.len() * QUEUED_BYTES
    }

    /// Returns true if no further request is to be read.
    pub(super) fn is_full(&self) -> bool {
        self.queue.len() >= MAX_QUEUED || self.bytes >= MAX_QUEUED_BYTES
    }
}

// === impl Openings ===

impl Openings {
    /// Returns true if another opening may begin.
    pub(super) fn has_room(&self) -> bool {
        let Counts { working, .. } = &*self.0.lock();
        working.number < MAX_WORKING && working.bytes < MAX_WORKING_BYTES
    }

    /// Begins an opening, whose request has this many bytes.
    pub(super) fn begin(self: &Arc<Self>, bytes: usize) -> OpeningSlot {
        self.0.lock().working.add(bytes);
        OpeningSlot { openings: Arc::clone(self), bytes, is_waiting: Mutex::new(false) }
    }
}

// === impl OpeningSlot ===

impl OpeningSlot {
    /// Begins to wait. Returns false if there is no room: the opening must not wait then.
    pub(super) fn wait(&self) -> bool {
        let (mut is_waiting, mut counts) = (self.is_waiting.lock(), self.openings.0.lock());
        let Counts { working, waiting } = &mut *counts;
        if !*is_waiting && waiting.number < MAX_WAITING && waiting.bytes + self.bytes <= MAX_WAITING_BYTES {
            working.remove(self.bytes);
            waiting.add(self.bytes);
            *is_waiting = true;
        }
        *is_waiting
    }
}

impl Drop for OpeningSlot {
    fn drop(&mut self) {
        let mut counts = self.openings.0.lock();
        let load = if *self.is_waiting.get_mut() { &mut counts.waiting } else { &mut counts.working };
        load.remove(self.bytes);
    }
}

// === impl Load ===

impl Load {
    fn add(&mut self, bytes: usize) {
        self.number += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: usize) {
        self.number -= 1;
        self.bytes -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queued_openings_are_limited_in_number_and_bytes() {
        let watch = |bytes: usize| Some(pb::WatchRequest { resource: "x".repeat(bytes), ..Default::default() });
        let open = |id, bytes| pb::OpenWatch { id, watch: watch(bytes) };
        let mut queued = QueuedOpenings::default();
        let places: Vec<u64> = (0..MAX_QUEUED)
            .map(|id| {
                assert!(!queued.is_full(), "{id}");
                queued.push(open(id as u32, 10))
            })
            .collect();
        assert!(queued.is_full(), "too many");
        queued.remove(places[7]);
        queued.remove(places[7]);
        assert!(!queued.is_full());
        queued.push(open(7, MAX_QUEUED_BYTES));
        assert_eq!(queued.pop().map(|open| open.id), Some(0));
        assert!(queued.is_full(), "too many bytes");
        let rest: Vec<u32> = std::iter::from_fn(|| queued.pop()).map(|open| open.id).collect();
        assert!(rest.iter().copied().eq((1..MAX_QUEUED as u32).filter(|id| *id != 7).chain([7])));
        assert!(queued.is_empty() && !queued.is_full() && queued.bytes == 0);
    }

    #[test]
    fn openings_that_wait_leave_room_for_others_and_are_limited_themselves() {
        let openings = Arc::<Openings>::default();
        let working: Vec<_> = (0..MAX_WORKING).map(|_| openings.begin(50)).collect();
        assert!(!openings.has_room());
        assert!(working.iter().all(|slot| slot.wait() && slot.wait()) && openings.has_room());
        let more: Vec<_> = (MAX_WORKING..MAX_WAITING).map(|_| openings.begin(50)).collect();
        assert!(more.iter().all(OpeningSlot::wait) && openings.has_room());
        let one_more = openings.begin(1);
        assert!(!one_more.wait(), "too many wait");
        drop(working);
        let large = openings.begin(MAX_WAITING_BYTES / 2);
        assert!(!openings.has_room(), "too many bytes of those that work");
        assert!(one_more.wait() && large.wait() && openings.has_room());
        let too_large = openings.begin(MAX_WAITING_BYTES / 2);
        assert!(!too_large.wait(), "too many bytes wait");
        drop((more, one_more, large, too_large));
        let Counts { working, waiting } = &*openings.0.lock();
        assert_eq!([working.number, working.bytes, waiting.number, waiting.bytes], [0; 4]);
    }
}
