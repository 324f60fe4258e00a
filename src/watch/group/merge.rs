//! COALESCE: the state of a slot beside the log, and the steps of its reader and of the threads that merge for it.
//!
//! A slot follows the log until its queue is full at a take, or until the history is about to drop events that it has not
//! taken. From then on its changes merge ([`Merger`](crate::watch::merger::Merger)), from the published batches and not
//! from the log. When everything in its queue has merged, its reader takes the generation, and follows the log again if
//! nothing more was published. A generation is taken out of its slot while a thread works on it.

use std::task::Waker;

use super::{Log, Phase, Slot};
use crate::{
    model::Reached,
    watch::{
        End, Frame,
        coalesce::{Generation, Size, Telling},
    },
};

/// State of a slot under COALESCE.
#[derive(Debug)]
pub(in crate::watch) struct Coalescing {
    /// Offset before which the client has, did not select, or has merged everything.
    since: u64,
    merging: Option<Merging>,
    /// Complete generation, until the reader takes it.
    ready: Option<Box<Telling>>,
    sizes: Sizes,
    end: Option<End>,
}

/// Sizes of what a slot under COALESCE holds.
#[derive(Debug, Clone, Copy, Default)]
struct Sizes {
    merged: Size,
    ready: Size,
    /// Size of what the reader has taken, until it takes again.
    told: Size,
}

/// Generation that is being filled.
#[derive(Debug)]
struct Merging {
    /// `None` while a thread works on it.
    generation: Option<Box<Generation>>,
    /// True if the reader waits for it.
    is_wanted: bool,
    /// True if a thread will work on it, or does.
    is_queued: bool,
}

/// Next step of a reader under COALESCE.
#[derive(Debug)]
pub(in crate::watch) enum Due {
    /// The reader reads the log.
    Log,
    /// The reader waits until everything has merged, and the caller must start the merge.
    Merge,
    /// The reader waits for a merge that has been started.
    Wait,
    /// The reader delivers a generation.
    Tell(Box<Telling>),
    /// The reader ends.
    End(End),
}

/// Need of a slot for published batches.
#[derive(Debug, Clone, Copy)]
pub(in crate::watch) struct Look {
    /// Offset from which on it needs them.
    pub(in crate::watch) since: u64,
    /// True if they may have to be merged for it later.
    pub(in crate::watch) lags: bool,
    /// True if they must be merged for it now.
    pub(in crate::watch) is_due: bool,
}

/// Consequence of a merge step for a slot.
#[derive(Debug)]
pub(in crate::watch) enum PutBack {
    /// Its reader has unsubscribed.
    Gone(Box<Generation>),
    /// Its reader does not wait for it.
    Done,
    /// There is more to merge.
    Again,
    /// Its log has events that the merger has not received yet.
    Behind,
    /// The generation is complete, and the reader waits for it.
    Tell(Box<Generation>),
    /// The generation takes more memory than it may.
    TooLarge(Box<Generation>),
}

// === impl Log ===

impl<F: Frame> Log<F> {
    /// Decides the next step of a reader that has reached a position and has delivered everything that it took.
    pub(in crate::watch) fn due(&mut self, index: usize, queue_size: usize, reached: &Reached) -> Due {
        let (unread, head, head_size, head_offset) =
            (self.unread(index), self.head, self.head_size, self.head_reached.offset);
        let slot = &mut self.slots[index];
        let Some(coalescing) = slot.coalescing.as_mut().filter(|_| slot.phase == Phase::Live) else { return Due::Log };
        coalescing.sizes.told = Size::default();
        if let Some(end) = coalescing.end.clone() {
            return Due::End(end);
        }
        if let Some(telling) = coalescing.ready.take() {
            coalescing.sizes.told = std::mem::take(&mut coalescing.sizes.ready);
            return Due::Tell(telling);
        }
        let Some(merging) = &mut coalescing.merging else {
            let lag = head - slot.position;
            let is_over = lag > slot.queue.length.max(1) as u64 || head_size - slot.position_size > queue_size as u64;
            let is_gone = lag > 0 && unread.is_none();
            if !is_over && !is_gone {
                return Due::Log;
            }
            coalescing.since = coalescing.since.max(reached.offset).max(unread.unwrap_or_default());
            coalescing.merging = Some(Merging::new(true));
            return Due::Merge;
        };
        let is_idle = merging.generation.as_ref().is_some_and(|generation| generation.is_empty());
        if is_idle && coalescing.since >= head_offset {
            // Nothing was published since then: it follows the log again.
            coalescing.merging = None;
            (slot.position, slot.position_size) = (head, head_size);
            let since = coalescing.since;
            // A deferred group may be filled to less.
            self.leave_out(index, since, None);
            return Due::Log;
        }
        merging.is_wanted = true;
        if std::mem::replace(&mut merging.is_queued, true) { Due::Wait } else { Due::Merge }
    }

    /// Records that the reader of a slot has taken everything before an offset from the log.
    pub(in crate::watch) fn note_taken(&mut self, index: usize, offset: u64) {
        if let Some(coalescing) = &mut self.slots[index].coalescing {
            coalescing.since = coalescing.since.max(offset);
        }
    }

    /// Checks a slot when everything up to an offset is in the logs, and starts to merge if it needs events before `limit`.
    /// Returns `None` if it needs none.
    pub(in crate::watch) fn look(&mut self, (index, id): (usize, u64), to: u64, limit: u64) -> Option<Look> {
        let is_at_head = self.slots.get(index).filter(|slot| slot.id == id)?.position == self.head;
        let filled = self.deferred.as_ref().map_or(to, |deferred| deferred.filled.offset.min(to));
        let at = if is_at_head { Some(filled) } else { self.unread(index) };
        let slot = &mut self.slots[index];
        let coalescing = slot.coalescing.as_mut().filter(|coalescing| coalescing.end.is_none())?;
        if coalescing.merging.is_none() {
            coalescing.since = coalescing.since.max(at.unwrap_or_default());
        }
        let since = coalescing.since;
        if slot.phase != Phase::Live {
            // If the log no longer has its position, the slot gets parked.
            return at.map(|_| Look { since, lags: false, is_due: false });
        }
        let is_near = since < limit;
        let Some(merging) = &mut coalescing.merging else {
            let is_due = is_near && !is_at_head;
            coalescing.merging = is_due.then(|| Merging::new(false));
            return Some(Look { since, lags: !is_at_head && !is_due, is_due });
        };
        let is_due = is_near && !merging.is_queued;
        merging.is_queued |= is_due;
        Some(Look { since, lags: !merging.is_queued, is_due })
    }

    /// Takes the generation that is being filled out of a slot, with the offset up to which it has merged.
    pub(in crate::watch) fn take_generation(&mut self, slot: (usize, u64)) -> Option<(Box<Generation>, u64)> {
        let coalescing = self.coalescing_of(slot)?;
        let generation = coalescing.merging.as_mut()?.generation.take()?;
        Some((generation, coalescing.since))
    }

    /// Puts a generation back, merged up to an offset; `is_all` if that is everything published. Its memory is limited to
    /// `bound`.
    pub(in crate::watch) fn put_back(
        &mut self,
        slot: (usize, u64),
        generation: Box<Generation>,
        (to, is_all): (u64, bool),
        bound: usize,
    ) -> PutBack {
        let head_offset = self.head_reached.offset;
        let Some(Coalescing { since, merging: Some(merging), sizes, .. }) = self.coalescing_of(slot) else {
            return PutBack::Gone(generation);
        };
        *since = to;
        sizes.merged = generation.size();
        if sizes.merged.held() + sizes.ready.held() + sizes.told.held() > bound {
            return PutBack::TooLarge(generation);
        }
        if is_all && merging.is_wanted && to >= head_offset {
            return PutBack::Tell(generation);
        }
        merging.generation = Some(generation);
        match (is_all, merging.is_wanted) {
            (false, _) => PutBack::Again,
            (true, true) => PutBack::Behind,
            (true, false) => {
                merging.is_queued = false;
                PutBack::Done
            }
        }
    }

    /// Hands a complete generation to the reader, and begins the next one. Returns the waker of the reader, or the
    /// generation if the reader has unsubscribed.
    pub(in crate::watch) fn give(
        &mut self,
        slot: (usize, u64),
        telling: Box<Telling>,
    ) -> Result<Option<Waker>, Box<Telling>> {
        let Some(coalescing) = self.coalescing_of(slot) else { return Err(telling) };
        coalescing.sizes = Sizes { merged: Size::default(), ready: telling.size(), ..coalescing.sizes };
        coalescing.ready = Some(telling);
        coalescing.merging = Some(Merging { is_queued: false, ..Merging::new(false) });
        Ok(self.slots[slot.0].waker.take())
    }

    /// Ends a slot. Returns the waker of its reader, and what had merged.
    pub(in crate::watch) fn lose(&mut self, slot: (usize, u64), end: End) -> Option<(Option<Waker>, Coalescing)> {
        let coalescing = self.coalescing_of(slot)?;
        let lost = Coalescing { end: Some(end), ..Coalescing::new(coalescing.since) };
        let merged = std::mem::replace(coalescing, lost);
        Some((self.slots[slot.0].waker.take(), merged))
    }

    fn coalescing_of(&mut self, (index, id): (usize, u64)) -> Option<&mut Coalescing> {
        self.slots.get_mut(index).filter(|slot| slot.id == id)?.coalescing.as_deref_mut()
    }

    /// Returns the offset of the next event of a slot; `None` if it is at the head, or the log no longer has its position.
    fn unread(&self, index: usize) -> Option<u64> {
        let position = self.slots[index].position;
        let run = self.runs.get(self.runs.partition_point(|run| run.end() <= position))?;
        let mark = run.marks.get(position.checked_sub(run.first)? as usize)?;
        Some(run.offset + u64::from(mark.changes) - 1)
    }
}

// === impl Slot ===

impl Slot {
    /// Returns true if its queue merges, so that it does not read the log.
    pub(in crate::watch) fn is_merging(&self) -> bool {
        self.coalescing.as_ref().is_some_and(|coalescing| coalescing.merging.is_some() || coalescing.end.is_some())
    }

    /// Returns the memory of the merged entries, and the size of the bodies that they and the delivered generation refer
    /// to; `None` if there are neither.
    pub(in crate::watch) fn merged_size(&self) -> Option<(usize, usize)> {
        let coalescing = self.coalescing.as_ref()?;
        let Sizes { merged, ready, told } = coalescing.sizes;
        let is_some = coalescing.merging.is_some() || told != Size::default();
        is_some.then_some((merged.entries + ready.entries, merged.bodies + ready.bodies + told.bodies))
    }
}

// === impl Coalescing ===

impl Coalescing {
    /// Returns the state of a slot whose client has everything before an offset.
    pub(super) fn new(since: u64) -> Self {
        Self { since, merging: None, ready: None, sizes: Sizes::default(), end: None }
    }
}

// === impl Merging ===

impl Merging {
    /// Returns an empty generation, for a thread to work on.
    fn new(is_wanted: bool) -> Self {
        Self { generation: Some(Box::default()), is_wanted, is_queued: true }
    }
}
