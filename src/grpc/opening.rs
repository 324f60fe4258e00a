//! Openings of the watches of a Subscribe stream, and what they may hold while the stream reads on.
//!
//! An opening works until it has joined, or until it waits for a first list or for a version. Those that work are limited in
//! number, and the stream reads no further request while there are more. Those that wait cost nothing but their requests: they
//! are limited in bytes, and one without room is answered at once, as at the end of its wait. So a stream always reads what its
//! client closes, pauses and resumes.

use std::sync::Arc;

use parking_lot::Mutex;

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

/// Largest number of openings that work at a time.
pub(super) const MAX_WORKING: usize = 64;
/// Bytes of the requests of those from which on no further one begins.
const MAX_WORKING_BYTES: usize = 64 << 10;
/// Largest number of openings that wait.
const MAX_WAITING: usize = 1024;
/// Largest number of bytes of their requests.
const MAX_WAITING_BYTES: usize = 256 << 10;

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
    fn openings_that_wait_leave_room_for_others_and_are_limited_themselves() {
        let openings = Arc::<Openings>::default();
        let working: Vec<_> = (0..MAX_WORKING).map(|_| openings.begin(100)).collect();
        assert!(!openings.has_room());
        assert!(working.iter().all(|slot| slot.wait() && slot.wait()) && openings.has_room());
        let more: Vec<_> = (MAX_WORKING..MAX_WAITING).map(|_| openings.begin(100)).collect();
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
