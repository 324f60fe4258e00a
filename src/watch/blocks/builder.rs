//! Blocks, and how they are made: change by change.

use std::sync::{Arc, atomic::Ordering};

use super::{
    encoded::{Encoded, EncodedEvent},
    kind::{Key, Kind},
};
use crate::{
    census::{self, Alive},
    watch::{BroadcasterStats, Frame, Replay, replay::ReplayPosition},
};

/// Events that follow one position.
pub(in crate::watch) struct Block<F> {
    pub(in crate::watch) frame: F,
    pub(in crate::watch) steps: Box<[Step]>,
    pub(super) bytes: usize,
    /// True if making it has panicked. It is kept as others are: the same events would fail again.
    pub(in crate::watch) has_failed: bool,
    _alive: Alive,
}

/// Event, or changes without one.
pub(in crate::watch) struct Step {
    /// End of the step in the frame.
    pub(in crate::watch) end: usize,
    pub(in crate::watch) is_event: bool,
    /// Number of suppressed changes before that position, since the last step.
    pub(in crate::watch) suppressed: u64,
    /// Position reached with it.
    pub(in crate::watch) position: ReplayPosition,
}

/// Block in progress.
pub(super) struct BlockBuilder<F: Frame> {
    pub(super) kind: Arc<Kind<F>>,
    pub(super) begin: ReplayPosition,
    replay: Replay,
    /// Size at which it ends.
    size: usize,
    arena: F::Arena,
    /// True if at most one event follows, which other selections may have.
    is_single: bool,
    single: Option<EncodedEvent<F>>,
    steps: Vec<Step>,
    encoded: u64,
    has_failed: bool,
}

/// Size, in the unit of the frame, at which a block ends: as much as a client takes at a time.
pub(super) const BLOCK_SIZE: usize = 64 << 10;
/// Number of changes between two offsets at which blocks end.
pub(super) const BLOCK_CHANGES: u64 = 256;

// === impl BlockBuilder ===

impl<F: Frame> BlockBuilder<F> {
    pub(super) fn new(
        kind: &Arc<Kind<F>>,
        begin: &ReplayPosition,
        replay: Replay,
        size: usize,
        is_single: bool,
    ) -> Self {
        Self {
            kind: Arc::clone(kind),
            begin: begin.clone(),
            replay,
            size: size.clamp(1, BLOCK_SIZE),
            arena: F::Arena::default(),
            is_single,
            single: None,
            steps: Vec::new(),
            encoded: 0,
            has_failed: false,
        }
    }

    /// Evaluates the next change, and encodes its event. Returns true if the block is complete.
    pub(super) fn step(&mut self, others: &Encoded<F>) -> bool {
        let Self { kind, begin, replay, size, arena, is_single, single, steps, encoded, .. } = self;
        if replay.is_done() {
            return true;
        }
        let told = replay.next::<F>(&kind.selection, &kind.format, |replayed| {
            if *is_single {
                *single = Some(others.get(&kind.format, &replayed.event));
            } else {
                F::encode(arena, &kind.format, &replayed.event);
                *encoded += 1;
            }
        });
        if told == 0 && !replay.is_between() {
            return false;
        }
        let end = single.as_ref().map_or_else(|| F::size(arena), |single| single.size);
        let position = replay.position();
        let is_whole = end >= *size || position.offset / BLOCK_CHANGES != begin.offset / BLOCK_CHANGES;
        let step = Step { end, is_event: told > 0, suppressed: replay.take_suppressed(), position };
        match steps.last_mut() {
            Some(last) if !last.is_event && !step.is_event => {
                last.suppressed += step.suppressed;
                last.position = step.position;
            }
            _ => steps.push(step),
        }
        is_whole || replay.is_done()
    }

    pub(super) fn finish(self, stats: &BroadcasterStats) -> Block<F> {
        let Self { arena, single, steps, encoded, has_failed, .. } = self;
        stats.encoded.fetch_add(encoded, Ordering::Relaxed);
        let single = single.map(|EncodedEvent { frame, bytes, .. }| (frame, bytes));
        let (frame, bytes) = single.unwrap_or_else(|| {
            let bytes = F::bytes(&arena);
            (F::freeze(arena), bytes)
        });
        let bytes = bytes + size_of_val(&*steps) + size_of::<Block<F>>() + 2 * size_of::<Key>();
        Block { frame, steps: steps.into(), bytes, has_failed, _alive: Alive::new(census::Kind::Block, bytes) }
    }

    /// Drops what was made, after a panic. Returns true: the block is complete.
    pub(super) fn fail(&mut self) -> bool {
        (self.arena, self.single, self.has_failed) = (F::Arena::default(), None, true);
        self.steps.clear();
        true
    }
}
