//! Trimming of a log, and the memory that it releases.

use super::{Log, MIN_TRIM_RUNS, Slot};
use crate::watch::Frame;

/// Spare capacity of a list below which shrinking it is not worth the time.
const MIN_CAPACITY: usize = 8;

// === impl Log ===

impl<F: Frame> Log<F> {
    /// Drops the runs that every slot has read, once enough runs were pushed to make the scan worthwhile.
    pub(in crate::watch) fn trim_read(&mut self) {
        if self.trim_after > 0 {
            return;
        }
        // Slots that the log has passed, or that read no more from it, retain nothing.
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

    /// Drops the runs that are no longer retained, read or not.
    pub(in crate::watch) fn trim_below(&mut self, floor: u64) {
        while self.runs.front().is_some_and(|run| run.wake < floor) {
            self.runs.pop_front();
        }
        self.shrink_runs(0);
    }

    /// Reserves room for one more run, and not for many: the window charges twice the number of runs.
    pub(super) fn reserve_run(&mut self) {
        if self.runs.len() == self.runs.capacity() {
            self.runs.reserve_exact(1 + self.runs.len() / 2);
        }
    }

    /// Releases the spare memory of the list of runs, if it has room for more than `least` beside twice its length.
    fn shrink_runs(&mut self, least: usize) {
        if self.runs.capacity() > 2 * self.runs.len() + least {
            self.runs.shrink_to(self.runs.len() + self.runs.len() / 2);
        }
    }

    /// Releases the spare memory of the lists of slots, once enough slots were removed to pay for it.
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
