//! What a log forgets, and the memory that it gives back.

use super::{Log, MIN_TRIM_RUNS, Slot};
use crate::watch::Frame;

/// A list with room for so many more than it has is not worth the time to make it smaller.
const MIN_CAPACITY: usize = 8;

// === impl Log ===

impl<F: Frame> Log<F> {
    /// Forgets what every slot has read, when it has become worth looking.
    pub(in crate::watch) fn trim_read(&mut self) {
        if self.trim_after > 0 {
            return;
        }
        // Slots that have been passed, or will read nothing more, keep nothing.
        let tail = self.tail();
        let reads = |slot: &&Slot| slot.position >= tail && !slot.evicted && !slot.is_merging();
        let low = self.slots.iter().map(|(_, slot)| slot).filter(reads).map(|slot| slot.position).min();
        let low = low.unwrap_or(self.head);
        while self.runs.front().is_some_and(|run| run.end() <= low) {
            self.runs.pop_front();
        }
        self.trim_after = self.runs.len().max(MIN_TRIM_RUNS);
        self.shrink_runs(MIN_CAPACITY);
    }

    /// Forgets what is no longer retained, read or not.
    pub(in crate::watch) fn trim_below(&mut self, floor: u64) {
        while self.runs.front().is_some_and(|run| run.wake < floor) {
            self.runs.pop_front();
        }
        self.shrink_runs(0);
    }

    /// Makes room for one more run, and not for very many: the window counts twice as many as there are.
    pub(super) fn reserve_run(&mut self) {
        if self.runs.len() == self.runs.capacity() {
            self.runs.reserve_exact(1 + self.runs.len() / 2);
        }
    }

    /// Gives back what a list of runs that was long takes, if that is more than this beside twice its length.
    fn shrink_runs(&mut self, least: usize) {
        if self.runs.capacity() > 2 * self.runs.len() + least {
            self.runs.shrink_to(self.runs.len() + self.runs.len() / 2);
        }
    }

    /// Gives back what lists of slots take that were long, when as many have gone as it takes time to look at.
    pub(super) fn shrink_slots(&mut self) {
        self.gone += 1;
        if 2 * self.gone <= self.slots.capacity() + MIN_CAPACITY {
            return;
        }
        self.gone = 0;
        let enough = 2 * self.slots.len() + MIN_CAPACITY;
        if self.slots.capacity() > enough {
            self.slots.shrink_to_fit();
        }
        self.parked.shrink_to(enough);
        self.leaving_out.shrink_to(enough);
    }
}
