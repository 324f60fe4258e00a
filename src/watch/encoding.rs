//! Encoding of the changes of one publish cycle, each at most once for each format and variant.

use std::{borrow::Borrow, collections::HashMap, fmt};

use foldhash::fast::RandomState;
use smallvec::SmallVec;

use super::{Frame, GroupEvent, selected::Selected};
use crate::model::{Batch, Cause, Change, ResourceVersion, Transition};

/// Arenas of one publish cycle, and the position of each event in them.
pub(super) struct Encoding<'a, F: Frame> {
    changes: SmallVec<[(&'a Batch, &'a Change); 1]>,
    /// Offset of the first change.
    first: u64,
    /// Relists in order: the position of the first change from which one is the last, and its offset.
    relists: SmallVec<[(usize, u64); 1]>,
    formats: Formats<F>,
    encoded: u64,
}

/// Arenas of one publish cycle by format. An empty one serves the next cycle, which then allocates none.
pub(super) type Formats<F> = HashMap<<F as Frame>::Format, FormatArenas<F>, RandomState>;

/// A group's share of a publish cycle.
#[derive(Default)]
pub(super) struct GroupShare {
    pub(super) events: SmallVec<[Share; 1]>,
    /// Positions of the changes in the cycle that its format suppresses.
    pub(super) suppressed: Vec<usize>,
}

/// One event of a group's share of a publish cycle.
pub(super) struct Share {
    pub(super) span: Span,
    /// Version that is safe to resume from once the event has been delivered.
    pub(super) version: ResourceVersion,
    /// Position of the change in the cycle.
    pub(super) at: usize,
    /// Number of suppressed changes of the cycle before it.
    pub(super) suppressed: u32,
    /// The same with those after it in its batch, if it carries the version after that; and the position after them.
    pub(super) passed: u32,
    pub(super) end: usize,
}

/// Position of an event: arena, start, end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) arena: usize,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Arenas of one format.
pub(super) struct FormatArenas<F: Frame> {
    full: SmallVec<[F; 1]>,
    /// Bytes of the full arenas.
    bytes: usize,
    open: F::Arena,
    /// First event, and its position: at a moderate rate there is no other one in a cycle.
    first: Option<(EventKey, Span)>,
    /// Positions of the other events.
    others: HashMap<EventKey, Span, RandomState>,
}

/// Key of an event: its change, the variant, a flag that is true for the last event of a closed batch, and one that is true after a
/// relist.
type EventKey = (usize, Variant, bool, bool);

/// Form in which a change is encoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Variant {
    Unchanged,
    Entered,
    Left,
}

/// Size beyond which an arena is frozen and the next begun: a retained slice keeps its whole arena in memory.
const ARENA_SIZE: usize = 128 << 10;

// === impl GroupShare ===

impl GroupShare {
    pub(super) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.suppressed.is_empty()
    }
}

// === impl Share ===

impl Share {
    /// Returns true if the next event can follow this one in a run.
    pub(super) fn is_before(&self, next: &Self) -> bool {
        self.span.is_before(next.span) && self.suppressed == next.suppressed
    }
}

// === impl Span ===

impl Span {
    pub(super) fn size(self) -> u64 {
        (self.end - self.start) as u64
    }

    /// Returns true if the other span begins where this one ends.
    pub(super) fn is_before(self, other: Self) -> bool {
        (self.arena, self.end) == (other.arena, other.start)
    }
}

// === impl Encoding ===

impl<'a, F: Frame> Encoding<'a, F> {
    /// Prepares the encoding of batches, whose first change has the offset `first`. `last_relist` is the offset of the last
    /// relist before them; it is updated. `formats` must be empty.
    pub(super) fn new<B: Borrow<Batch>>(
        batches: &'a [B],
        first: u64,
        last_relist: &mut Option<u64>,
        formats: Formats<F>,
    ) -> Self {
        let (mut changes, mut relists) = (SmallVec::new(), SmallVec::from_iter(last_relist.map(|relist| (0, relist))));
        for batch in batches.iter().map(Borrow::borrow) {
            // A relist that does not change the version leaves no gap.
            if batch.is_gap() {
                let relist = first + changes.len() as u64;
                relists.push((changes.len(), relist));
                *last_relist = Some(relist);
            }
            changes.extend(batch.changes.iter().map(|change| (batch, change)));
        }
        Self { changes, first, relists, formats, encoded: 0 }
    }

    /// Returns the changes of the cycle, in order, each with its batch.
    pub(super) fn changes(&self) -> &[(&'a Batch, &'a Change)] {
        &self.changes
    }

    /// Encodes the selected changes for a group whose last event ended at the offset `reached`. The last event of a batch in
    /// its selection carries the batch's version, and the earlier ones the version before the batch, because no client may
    /// resume from inside a batch. In an open batch every event carries the version before it. The first batch after a relist
    /// reports it, also if the selection has no change of the relist itself.
    pub(super) fn share(&mut self, format: &F::Format, mut reached: u64, selected: Selected) -> GroupShare {
        let Self { changes: all, first, relists, formats, encoded } = self;
        let arenas = formats.entry(format.clone()).or_default();
        let Selected { events, suppressed } = selected;
        let mut selected = events.into_iter().peekable();
        let mut share = SmallVec::new();
        while let Some((at, transition)) = selected.next() {
            let (batch, change) = all[at];
            let is_last = selected.peek().is_none_or(|(next, _)| !std::ptr::eq(all[*next].0, batch));
            let closes = is_last && !batch.is_open;
            let version = if closes { &batch.after } else { &batch.before };
            let Some(notice) = GroupEvent::new(change, transition, version) else { continue };
            let last_relist = relists[..relists.partition_point(|(from, _)| *from <= at)].last();
            let relisted = last_relist.is_some_and(|(_, relist)| *relist >= reached);
            if is_last {
                reached = *first + at as u64 + 1;
            }
            let notice = GroupEvent { relisted, open: batch.is_open, ..notice };
            let key = (at, Variant::of(transition), closes, relisted);
            let span = arenas.span(&key).unwrap_or_else(|| {
                *encoded += 1;
                arenas.encode(key, format, &notice)
            });
            let is_passed = |passed: &usize| *passed < at || closes && std::ptr::eq(all[*passed].0, batch);
            let before = suppressed.partition_point(|before| *before < at) as u32;
            let passed = suppressed.partition_point(is_passed) as u32;
            let end = suppressed[..passed as usize].last().map_or(0, |last| last + 1).max(at + 1);
            share.push(Share { span, version: version.clone(), at, suppressed: before, passed, end });
        }
        GroupShare { events: share, suppressed }
    }

    /// Returns the number of encoded events.
    pub(super) fn encoded(&self) -> u64 {
        self.encoded
    }

    /// Makes all arenas immutable. Returns the bytes that they take.
    pub(super) fn freeze(&mut self) -> usize {
        self.formats.values_mut().map(FormatArenas::freeze).sum()
    }

    /// Returns the arenas of a format, once they are immutable.
    pub(super) fn arenas(&self, format: &F::Format) -> &[F] {
        self.formats.get(format).map_or(&[], |arenas| &arenas.full)
    }

    /// Returns the memory of the formats, for the next cycle.
    pub(super) fn into_formats(self) -> Formats<F> {
        let mut formats = self.formats;
        formats.clear();
        formats
    }
}

// === impl FormatArenas ===

impl<F: Frame> FormatArenas<F> {
    /// Returns the position of an event, if it is encoded.
    fn span(&self, key: &EventKey) -> Option<Span> {
        let first = self.first.as_ref().filter(|(first, _)| first == key);
        first.map(|(_, span)| span).or_else(|| self.others.get(key)).copied()
    }

    /// Appends an event to the open arena, and first begins another if that is full.
    fn encode(&mut self, key: EventKey, format: &F::Format, notice: &GroupEvent<'_>) -> Span {
        if F::size(&self.open) >= ARENA_SIZE {
            self.freeze();
        }
        let start = F::size(&self.open);
        F::encode(&mut self.open, format, notice);
        let span = Span { arena: self.full.len(), start, end: F::size(&self.open) };
        match self.first {
            None => self.first = Some((key, span)),
            Some(_) => drop(self.others.insert(key, span)),
        }
        span
    }

    /// Makes the open arena immutable. Returns the bytes of all.
    fn freeze(&mut self) -> usize {
        self.bytes += F::bytes(&self.open);
        self.full.push(F::freeze(std::mem::take(&mut self.open)));
        self.bytes
    }
}

impl<F: Frame> Default for FormatArenas<F> {
    fn default() -> Self {
        Self { full: SmallVec::new(), bytes: 0, open: F::Arena::default(), first: None, others: HashMap::default() }
    }
}

impl<F: Frame> fmt::Debug for FormatArenas<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FormatArenas").field("bytes", &self.bytes).finish_non_exhaustive()
    }
}

// === impl Variant ===

impl Variant {
    fn of(transition: Transition) -> Self {
        match transition.cause {
            Cause::EnteredSelection => Self::Entered,
            Cause::LeftSelection => Self::Left,
            Cause::Change | Cause::Initial | Cause::Inferred | Cause::NotServed | Cause::Expired => Self::Unchanged,
        }
    }
}
