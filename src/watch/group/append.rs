//! A group's share of a wake, put into its log: by the writer, or by the thread that fills the group.

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

/// The part of a wake that all groups have in common.
#[derive(Debug, Clone, Copy)]
pub(in crate::watch) struct Part<'a, F: Frame> {
    /// Its number.
    pub(in crate::watch) wake: u64,
    pub(in crate::watch) changes: &'a [(&'a Batch, &'a Change)],
    /// The offsets of its first change and after its last one.
    pub(in crate::watch) offset: u64,
    pub(in crate::watch) end: u64,
    /// With which its formats' arenas are sliced.
    pub(in crate::watch) arenas: &'a [F],
    pub(in crate::watch) queue_size: usize,
    pub(in crate::watch) window: &'a Window<F>,
}

/// A group that threads fill, because the writer has no time for its selection.
#[derive(Debug, Clone)]
pub(in crate::watch) struct Deferred {
    /// The number of the deferral.
    pub(in crate::watch) id: u64,
    /// Up to here everything is in the log: the head of its readers, as what is distributed is that of others.
    pub(in crate::watch) filled: Reached,
}

// === impl Log ===

impl<F: Frame> Log<F> {
    /// Puts the group's share of a wake into its log. The slots that have become full under BLOCK are added to `full`, and the
    /// wakers of those that wait to `wakers`.
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
            // Another thread has forgotten the wake before its runs were here.
            self.trim_below(part.window.floor());
        }
        self.trim_read();
        self.take_wakers(wakers);
        self.find_full(part.queue_size, full);
    }

    /// Moves slots past those of the events, which are about to be pushed, that they leave out. Who has something to read leaves
    /// out nothing more.
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
            // Its reader looks at how far a version was left out, and ends it.
            leaving_out.version.is_some() || !leaving_out.is_over && part.end < leaving_out.from
        });
    }

    /// Makes one run of what lies together.
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
