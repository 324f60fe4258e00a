//! Changes that were counted or merged for a cursor before it has taken them.

use super::ReplayPosition;
use crate::{
    model::Selection,
    watch::{
        Deliveries, Frame, Past,
        coalesce::{DrainingGeneration, Generation, Size},
    },
};

/// Part of a queue that was evaluated: from the reader's position up to one of its own.
#[derive(Debug)]
pub(in crate::watch) struct Lookahead {
    pub(in crate::watch) position: ReplayPosition,
    /// Number of events, and of suppressed changes.
    pub(in crate::watch) events: u64,
    pub(in crate::watch) suppressed: u64,
    /// Offset at which the queue is full.
    pub(in crate::watch) full_at: Option<u64>,
    /// Under COALESCE: what has merged.
    generation: Option<Box<Generation>>,
}

/// Reason why a queue ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::watch) enum Stop {
    /// The history does not have what follows.
    NotKept,
    /// The merged changes take too much memory.
    TooLarge,
}

/// Number of changes that are read from the history at a time.
const READ_CHANGES: usize = 256;

// === impl Lookahead ===

impl Lookahead {
    /// Returns one that has counted nothing yet.
    pub(in crate::watch) fn at(position: ReplayPosition) -> Self {
        Self { position, events: 0, suppressed: 0, full_at: None, generation: None }
    }

    /// Returns one that merges what follows a position.
    pub(in crate::watch) fn merging(position: ReplayPosition) -> Self {
        Self { generation: Some(Box::default()), ..Self::at(position) }
    }

    /// Begins at a position, if it has not reached that.
    pub(in crate::watch) fn begin(&mut self, position: ReplayPosition) {
        if self.position.offset < position.offset {
            let generation = self.generation.take();
            *self = Self { generation, ..Self::at(position) };
        }
    }

    /// Passes events that the reader has taken, and suppressed changes among them.
    pub(in crate::watch) fn pass(&mut self, events: u64, suppressed: u64, length: u64) {
        self.events = self.events.saturating_sub(events);
        self.suppressed = self.suppressed.saturating_sub(suppressed);
        self.full_at = self.full_at.filter(|_| self.events >= length);
    }

    /// Evaluates what follows up to a published offset, until `is_over`. Returns true if it has reached that.
    pub(in crate::watch) fn advance<F: Frame>(
        &mut self,
        past: &Past,
        (selection, format): (&Selection, &F::Format),
        head: u64,
        (length, coalesce_size): (u64, usize),
        mut is_over: impl FnMut() -> bool,
    ) -> Result<bool, Stop> {
        let Self { position, events, suppressed, full_at, generation } = self;
        while position.offset < head {
            let mut replay = past.history().lock().replay(position, head, READ_CHANGES).ok_or(Stop::NotKept)?;
            if replay.is_done() {
                // The history has begun anew.
                return Err(Stop::NotKept);
            }
            while !replay.is_done() {
                let told = match generation {
                    Some(generation) => replay.next::<Deliveries>(selection, &(), |replayed| {
                        generation.merge(replayed.batch, replayed.change, replayed.transition);
                    }),
                    None => replay.next::<F>(selection, format, |_| {}),
                };
                *suppressed += replay.take_suppressed();
                *events += told;
                if told > 0 && *events == length {
                    *full_at = Some(replay.position().offset);
                }
                if generation.as_ref().is_some_and(|generation| generation.size().held() > coalesce_size) {
                    return Err(Stop::TooLarge);
                }
                // An event that is held back is evaluated again: at least one change is passed.
                if is_over() && replay.position() != *position {
                    *position = replay.position();
                    return Ok(position.offset >= head);
                }
            }
            *position = replay.position();
        }
        Ok(true)
    }

    /// Takes what has merged, to be delivered. What follows merges anew.
    pub(in crate::watch) fn take_merged<F: Frame>(&mut self, format: &F::Format) -> Box<DrainingGeneration> {
        let merged = self.generation.replace(Box::default()).unwrap_or_default();
        self.events = 0;
        let is_suppressed = |had: &_, now: &_| F::is_suppressed(format, had, now);
        Box::new(merged.drain(self.position.clone(), F::HAS_PREVIOUS, is_suppressed))
    }

    /// Returns the size of what has merged.
    pub(in crate::watch) fn size(&self) -> Size {
        self.generation.as_ref().map_or_else(Size::default, |generation| generation.size())
    }
}
