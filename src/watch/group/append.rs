//! Appending a group's share of a publish cycle to its log, by the writer or by the thread that fills the group.

use std::task::Waker;

use super::Log;
use crate::{
    model::{Batch, Change, Reached, ResourceVersion},
    watch::{
        Frame,
        encoding::{Share, Span},
        run::Mark,
        window::Window,
    },
};

/// Part of a publish cycle that all groups have in common.
#[derive(Debug, Clone, Copy)]
pub(in crate::watch) struct Part<'a, F: Frame> {
    /// Number of the publish cycle.
    pub(in crate::watch) wake: u64,
    pub(in crate::watch) changes: &'a [(&'a Batch, &'a Change)],
    /// Offsets of its first change and after its last one.
    pub(in crate::watch) offset: u64,
    pub(in crate::watch) end: u64,
    /// Arenas of the group's format, which the spans refer to.
    pub(in crate::watch) arenas: &'a [F],
    pub(in crate::watch) queue_size: usize,
    pub(in crate::watch) window: &'a Window<F>,
}

/// State of a deferred group: threads fill its log, because the writer has no time for its selection.
#[derive(Debug, Clone)]
pub(in crate::watch) struct Deferred {
    /// Number of the deferral.
    pub(in crate::watch) id: u64,
    /// Position up to which the log has everything. For the group's readers it is what is distributed.
    pub(in crate::watch) filled: Reached,
}

// === impl Log ===

impl<F: Frame> Log<F> {
    /// Appends the group's share of a publish cycle to its log. Adds the slots that have become full under BLOCK to `full`,
    /// and the wakers of the parked slots to `wakers`.
    pub(in crate::watch) fn append(
        &mut self,
        part: &Part<'_, F>,
        share: Vec<Share>,
        full: &mut Vec<usize>,
        wakers: &mut Vec<Waker>,
    ) {
        self.pass(part, &share);
        if share.is_empty() {
            return;
        }
        self.push_runs(part, share);
        if part.wake < part.window.floor() {
            // Another thread has already dropped this cycle from the window.
            self.trim_below(part.window.floor());
        }
        self.trim_read();
        self.take_wakers(wakers);
        self.find_full(part.queue_size, full);
    }

    /// Moves slots past those of the events, about to be pushed, that they skip. A slot with an event to read skips no
    /// more.
    fn pass(&mut self, part: &Part<'_, F>, share: &[Share]) {
        let Self { leaving_out, slots, head, head_size, .. } = self;
        leaving_out.retain_mut(|leaving_out| {
            if leaving_out.is_over {
                return true;
            }
            let is_left_out = |share: &&Share| {
                let (batch, _) = part.changes[share.at];
                let has = |version: &ResourceVersion| batch.after <= *version && !batch.is_late();
                part.offset + (share.at as u64) < leaving_out.from || leaving_out.version.as_ref().is_some_and(has)
            };
            let left_out = share.iter().take_while(is_left_out);
            let (count, last) = (left_out.clone().count(), left_out.last());
            leaving_out.is_over = count < share.len();
            if let Some((slot, last)) = slots.get_mut(leaving_out.slot).zip(last) {
                leaving_out.offset = part.offset + last.at as u64 + 1;
                let size: u64 = share[..count].iter().map(|share| share.span.size()).sum();
                (slot.position, slot.position_size) = (*head + count as u64, *head_size + size);
            }
            // Its reader reads how far the version was skipped, and then removes this entry.
            leaving_out.version.is_some() || !leaving_out.is_over && part.end < leaving_out.from
        });
    }

    /// Makes one run of each sequence of adjacent events.
    fn push_runs(&mut self, part: &Part<'_, F>, share: Vec<Share>) {
        let mut share = share.into_iter().peekable();
        while let Some(first) = share.next() {
            let Span { arena, start, mut end } = first.span;
            let mut marks = vec![Mark { end: (end - start) as u32, changes: 1, version: first.version }];
            while let Some(next) = share.next_if(|next| Span { arena, start, end }.is_before(next.span)) {
                end = next.span.end;
                let changes = (next.at - first.at + 1) as u32;
                marks.push(Mark { end: (end - start) as u32, changes, version: next.version });
            }
            let (place, size) = ((part.wake, part.offset + first.at as u64), (end - start) as u64);
            self.push(place, part.arenas[arena].slice(start..end), size, marks.into());
        }
    }
}
