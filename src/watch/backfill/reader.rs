//! Position of one client in its backlog.

use std::{
    fmt,
    sync::{Arc, Weak},
    task::{Context, Poll, ready},
};

use super::{Backfill, Block};
use crate::{
    model::{Batch, HistoryPosition, ResourceVersion, Selection},
    watch::{Frame, Replay, TooLarge, replay::ReplayPosition},
};

/// Past batches that a client still has to receive. Of their events it holds only its position.
pub struct BacklogReader<F: Frame> {
    batches: Vec<Arc<Batch>>,
    /// Offset of the first change of the first batch.
    first: u64,
    /// Position after them.
    end: HistoryPosition,
    position: ReplayPosition,
    /// Block that it reads, if that is still kept, and its next step there.
    block: Weak<Block<F>>,
    at: usize,
    /// Number of suppressed changes that were passed.
    suppressed: u64,
    /// True if making the next events has panicked.
    has_failed: bool,
}

/// Slice of consecutive events, and their number.
type Taken<F> = (Option<F>, u64);

/// Maximum number of blocks without an event for the client that are read in one call.
const MAX_EMPTY_BLOCKS: usize = 16;

// === impl BacklogReader ===

impl<F: Frame> BacklogReader<F> {
    /// Returns the reader of batches whose first change has the offset `first`, for a client at a position before them or,
    /// by its offset, inside the first of them. `is_gap` is true if a relist must still be reported to it.
    pub fn new(batches: Vec<Arc<Batch>>, first: u64, reached: HistoryPosition, is_gap: bool) -> Self {
        let HistoryPosition { version, offset } = reached;
        let mut last = &version;
        for batch in &batches {
            last = if batch.safe() > last { batch.safe() } else { last };
        }
        let changes: usize = batches.iter().map(|batch| batch.changes.len()).sum();
        let end = HistoryPosition { version: last.clone(), offset: first + changes as u64 };
        Self {
            end,
            batches,
            first,
            position: ReplayPosition { version, offset, is_gap },
            block: Weak::new(),
            at: 0,
            suppressed: 0,
            has_failed: false,
        }
    }

    /// Returns the version that is safe to resume from after what was taken up to now.
    pub fn version(&self) -> &ResourceVersion {
        &self.position.version
    }

    /// Returns the same with its offset.
    pub fn reached(&self) -> HistoryPosition {
        HistoryPosition { version: self.position.version.clone(), offset: self.position.offset }
    }

    /// Takes the number of changes that were suppressed up to its position, since the last call.
    pub fn take_suppressed(&mut self) -> u64 {
        std::mem::take(&mut self.suppressed)
    }

    /// Returns true if a relist on the way to the version must still be reported to the client.
    pub fn has_gap(&self) -> bool {
        self.position.is_gap
    }

    /// Returns true if everything has been taken.
    pub fn is_done(&self) -> bool {
        self.batches.is_empty() || self.position.offset >= self.end.offset && self.position.version >= self.end.version
    }

    /// Returns true if making the next events has panicked: there will be none.
    pub fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// Takes the next events of a selection, at most `max_size` in the unit of the frame, but at least one; with `must_fit`
    /// it takes none if the first is larger. Returns no event once everything has been taken, or after many changes without
    /// one in the selection. Selection and format must be the same at each call.
    pub fn poll_take(
        &mut self,
        cx: &Context<'_>,
        backfill: &Arc<Backfill<F>>,
        selection: &Arc<Selection>,
        format: &F::Format,
        max_size: usize,
        must_fit: bool,
    ) -> Poll<Result<Taken<F>, TooLarge>> {
        for _ in 0..MAX_EMPTY_BLOCKS {
            if self.is_done() {
                break;
            }
            let kept = self.block.upgrade().filter(|block| self.at < block.steps.len());
            let block = if let Some(kept) = kept {
                kept
            } else {
                let key = (Arc::clone(selection), format.clone(), self.position.clone());
                let block = ready!(backfill.poll_block(cx, &key, || self.replay()));
                if block.has_failed {
                    self.has_failed = true;
                    break;
                }
                (self.block, self.at) = (Arc::downgrade(&block), 0);
                if block.steps.is_empty() {
                    // Nothing follows any more.
                    self.batches.clear();
                }
                block
            };
            let (frame, events) = match self.take(&block, max_size, must_fit) {
                Ok(taken) => taken,
                Err(too_large) => return Poll::Ready(Err(too_large)),
            };
            if events > 0 {
                return Poll::Ready(Ok((frame, events)));
            }
        }
        Poll::Ready(Ok((None, 0)))
    }

    /// Takes the next events from a block.
    fn take(&mut self, block: &Block<F>, max_size: usize, must_fit: bool) -> Result<Taken<F>, TooLarge> {
        let start = self.at.checked_sub(1).map_or(0, |last| block.steps[last].end);
        let (mut end, mut events) = (start, 0);
        // A shared block may contain more than this client's backlog.
        while let Some(step) = block.steps.get(self.at).filter(|_| !self.is_done()) {
            let size = step.end - start;
            if size > max_size && step.is_event && (events > 0 || must_fit) {
                if events == 0 {
                    return Err(TooLarge(Some(size)));
                }
                break;
            }
            events += u64::from(step.is_event);
            self.suppressed += step.suppressed;
            end = step.end;
            self.position.clone_from(&step.position);
            self.at += 1;
        }
        Ok(((events > 0).then(|| block.frame.slice(start..end)), events))
    }

    /// Returns the replay of what follows its position.
    fn replay(&self) -> Replay {
        let ReplayPosition { version, offset, is_gap } = self.position.clone();
        let mut first = self.first;
        // A relist without changes may lie before the position or after it.
        let is_passed = |batch: &&Arc<Batch>| {
            let end = first + batch.changes.len() as u64;
            let is_passed = end <= offset && (end > first || batch.after <= version);
            first = if is_passed { end } else { first };
            is_passed
        };
        let passed = self.batches.iter().take_while(is_passed).count();
        let rest = self.batches[passed..].iter().cloned();
        let first = self.first + self.batches[..passed].iter().map(|batch| batch.changes.len() as u64).sum::<u64>();
        Replay::new(rest, first, HistoryPosition { version, offset }).after_gap(is_gap)
    }
}

impl<F: Frame> Clone for BacklogReader<F> {
    fn clone(&self) -> Self {
        let Self { batches, first, end, position, block, at, suppressed, has_failed } = self;
        let (batches, end, position, block) = (batches.clone(), end.clone(), position.clone(), Weak::clone(block));
        let (first, at, suppressed, has_failed) = (*first, *at, *suppressed, *has_failed);
        Self { batches, first, end, position, block, at, suppressed, has_failed }
    }
}

impl<F: Frame> fmt::Debug for BacklogReader<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BacklogReader")
            .field("position", &self.position)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}
