//! Appending a group's share of a publish cycle to its log, by the writer or by the thread that fills the group; trimming
//! of the log, and the memory that it releases.

use std::sync::atomic::Ordering;

use smallvec::{SmallVec, smallvec};
use tokio::time::Instant;

use super::{Log, MIN_TRIM_RUNS, Slot, Wakers};
use crate::{
    model::{Batch, Change, ResourceVersion},
    sync::AtomicU64,
    watch::{
        Frame,
        encoding::{GroupShare, Share, Span},
        run::Mark,
    },
};

/// Part of a publish cycle that all groups have in common.
#[derive(Debug, Clone, Copy)]
pub(in crate::watch) struct Part<'a, F: Frame> {
    /// Number of the publish cycle.
    pub(in crate::watch) cycle: u64,
    /// Time of the publish cycle.
    pub(in crate::watch) at: Instant,
    pub(in crate::watch) changes: &'a [(&'a Batch, &'a Change)],
    /// Offsets of its first change and after its last one.
    pub(in crate::watch) offset: u64,
    pub(in crate::watch) end: u64,
    /// Arenas of the group's format, which the spans refer to.
    pub(in crate::watch) arenas: &'a [F],
    pub(in crate::watch) queue_size: usize,
    /// Oldest cycle that is retained.
    pub(in crate::watch) floor: &'a AtomicU64,
}

/// Spare capacity of a list below which shrinking it is not worth the time.
const MIN_CAPACITY: usize = 8;

// === impl Log ===

impl<F: Frame> Log<F> {
    /// Appends the group's share of a publish cycle to its log. Adds the slots that have become full under BLOCK to `full`,
    /// and the wakers of the parked slots to `wakers`.
    pub(in crate::watch) fn append(
        &mut self,
        part: &Part<'_, F>,
        share: GroupShare,
        full: &mut Vec<usize>,
        wakers: &mut Wakers,
    ) {
        self.pass(part, &share);
        let GroupShare { events, suppressed } = share;
        let is_quiet = events.is_empty();
        self.push_runs(part, events);
        if let Some(last) = suppressed.last() {
            self.suppressed = self.suppressed.wrapping_add(suppressed.len() as u32);
            self.suppressed_to = part.offset + *last as u64 + 1;
        }
        if is_quiet {
            return;
        }
        let floor = part.floor.load(Ordering::Acquire);
        if part.cycle < floor {
            // Another thread has already dropped this cycle from the window.
            self.trim_below(floor);
        }
        self.trim_read();
        self.take_wakers(wakers);
        self.find_full(part.queue_size, full);
    }

    /// Moves slots past those of the events, about to be pushed, that they skip. A slot with an event to read skips no
    /// more.
    fn pass(&mut self, part: &Part<'_, F>, GroupShare { events: share, suppressed }: &GroupShare) {
        let Self { skipping, slots, head, head_size, .. } = self;
        skipping.retain_mut(|skipping| {
            if skipping.is_over {
                return true;
            }
            let is_left_out = |at: usize| {
                let (batch, _) = part.changes[at];
                let has = |version: &ResourceVersion| batch.after <= *version && !batch.is_late();
                part.offset + (at as u64) < skipping.from || skipping.version.as_ref().is_some_and(has)
            };
            if let Some(slot) = slots.get_mut(skipping.slot) {
                let left_out = suppressed.iter().filter(|at| is_left_out(**at)).count();
                slot.suppressed = slot.suppressed.wrapping_add(left_out as u32);
            }
            let left_out = share.iter().take_while(|share| is_left_out(share.at));
            let (count, last) = (left_out.clone().count(), left_out.last());
            skipping.is_over = count < share.len();
            if let Some((slot, last)) = slots.get_mut(skipping.slot).zip(last) {
                skipping.offset = part.offset + last.at as u64 + 1;
                let size: u64 = share[..count].iter().map(|share| share.span.size()).sum();
                (slot.position, slot.position_size) = (*head + count as u64, *head_size + size);
            }
            // Its reader reads how far the version was skipped, and then removes this entry.
            skipping.version.is_some() || !skipping.is_over && part.end < skipping.from
        });
    }

    /// Makes one run of each sequence of adjacent events.
    fn push_runs(&mut self, part: &Part<'_, F>, share: SmallVec<[Share; 1]>) {
        let mut share = share.into_iter().peekable();
        while let Some(first) = share.next() {
            let Span { arena, start, mut end } = first.span;
            let suppressed = self.suppressed.wrapping_add(first.suppressed);
            let mut passed = first.passed;
            let mut marks = smallvec![Mark {
                end: (end - start) as u32,
                changes: (first.end - first.at) as u32,
                version: first.version,
            }];
            let follows = |next: &Share, end| Span { arena, start, end }.is_before(next.span);
            while let Some(next) = share.next_if(|next| follows(next, end) && next.suppressed == first.suppressed) {
                (end, passed) = (next.span.end, next.passed);
                let changes = (next.end - first.at) as u32;
                marks.push(Mark { end: (end - start) as u32, changes, version: next.version });
            }
            let (place, size) = ((part.cycle, part.at, part.offset + first.at as u64), (end - start) as u64);
            let counts = (suppressed, self.suppressed.wrapping_add(passed));
            self.push(place, counts, part.arenas[arena].slice(start..end), size, marks);
        }
    }

    /// Drops the runs that every slot has read, once enough runs were pushed to make the scan worthwhile.
    pub(in crate::watch) fn trim_read(&mut self) {
        if self.trim_after > 0 {
            return;
        }
        // Slots that the log has passed, or that read no more from it, retain nothing.
        let tail = self.tail();
        let reads = |slot: &&Slot| slot.position >= tail && slot.state.reads_log();
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
        while self.runs.front().is_some_and(|run| run.cycle < floor) {
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
        self.removed_slots += 1;
        if 2 * self.removed_slots <= self.slots.capacity() + MIN_CAPACITY {
            return;
        }
        self.removed_slots = 0;
        let enough = 2 * self.slots.len() + MIN_CAPACITY;
        if self.slots.capacity() > enough {
            self.slots.shrink_to_fit();
        }
        self.parked.shrink_to(enough);
        self.skipping.shrink_to(enough);
    }
}
