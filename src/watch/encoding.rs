//! Encoding the changes of one wake, each at most once for each format and variant.

use std::{borrow::Borrow, collections::HashMap};

use super::{Frame, Notice};
use crate::model::{Batch, Cause, Change, ResourceVersion, Transition};

/// The arenas of one wake, and where in them each event lies.
pub(super) struct Encoding<'a, F: Frame> {
    changes: Vec<(&'a Batch, &'a Change)>,
    /// For each change up to the last that it is so of, whether a relist lies between its version and the one before it.
    relisted: Vec<bool>,
    formats: HashMap<F::Format, FormatArenas<F>>,
    encoded: u64,
}

/// One event of a group's share of a wake.
pub(super) struct Share {
    pub(super) span: Span,
    /// Safe to resume from once the event has been seen.
    pub(super) version: ResourceVersion,
    /// The change, by its place in the wake.
    pub(super) at: usize,
}

/// An event's place: arena, start, end.
#[derive(Debug, Clone, Copy)]
pub(super) struct Span {
    pub(super) arena: usize,
    pub(super) start: usize,
    pub(super) end: usize,
}

/// Arenas by format, frozen.
pub(super) type Arenas<F> = HashMap<<F as Frame>::Format, Vec<F>>;

struct FormatArenas<F: Frame> {
    full: Vec<F>,
    /// Bytes of the full ones.
    bytes: usize,
    open: F::Arena,
    /// By change, variant and whether it closes its batch.
    spans: HashMap<(usize, Variant, bool), Span, foldhash::fast::RandomState>,
}

/// The three ways in which one change can be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Variant {
    AsItIs,
    Entered,
    Left,
}

/// Past this an arena is frozen and the next begun: a retained slice keeps its whole arena in memory.
const ARENA_SIZE: usize = 128 << 10;

// === impl Span ===

impl Span {
    pub(super) fn size(self) -> u64 {
        (self.end - self.start) as u64
    }

    /// Returns whether the other one begins where this ends.
    pub(super) fn is_before(self, other: Self) -> bool {
        (self.arena, self.end) == (other.arena, other.start)
    }
}

// === impl Encoding ===

impl<'a, F: Frame> Encoding<'a, F> {
    /// `is_gap` is whether there was a relist since the last change that was told; and then, whether there is one.
    pub(super) fn new<B: Borrow<Batch>>(batches: &'a [B], is_gap: &mut bool) -> Self {
        let (mut changes, mut relisted) = (Vec::new(), Vec::new());
        for batch in batches.iter().map(Borrow::borrow) {
            // One that does not move the version leaves no gap.
            *is_gap |= batch.is_relist && batch.before != batch.after;
            let first = changes.len();
            changes.extend(batch.changes.iter().map(|change| (batch, change)));
            if *is_gap {
                relisted.resize(first, false);
                relisted.resize(changes.len(), true);
            }
            *is_gap &= batch.changes.is_empty();
        }
        Self { changes, relisted, formats: HashMap::new(), encoded: 0 }
    }

    /// The changes of the wake, in order, each with its batch.
    pub(super) fn changes(&self) -> &[(&'a Batch, &'a Change)] {
        &self.changes
    }

    /// Encodes the changes that concern a group's selection. The last event of a batch in its selection carries the batch's version, and
    /// those before it the version before the batch: there is no point to resume from inside a batch. Of an open batch all do.
    pub(super) fn share(
        &mut self,
        format: F::Format,
        selected: impl IntoIterator<Item = (usize, Transition)>,
    ) -> Vec<Share> {
        let Self { changes: all, relisted, formats, encoded } = self;
        let arenas = formats.entry(format).or_default();
        let mut selected = selected.into_iter().peekable();
        let mut share = Vec::new();
        while let Some((at, transition)) = selected.next() {
            let (batch, change) = all[at];
            let is_last = selected.peek().is_none_or(|(next, _)| !std::ptr::eq(all[*next].0, batch));
            let closes = is_last && !batch.is_open;
            let version = if closes { &batch.after } else { &batch.before };
            let Some(notice) = Notice::new(change, transition, version) else { continue };
            let relisted = relisted.get(at).is_some_and(|relisted| *relisted);
            let notice = Notice { relisted, open: batch.is_open, ..notice };
            let span = arenas.spans.entry((at, Variant::of(transition), closes)).or_insert_with(|| {
                *encoded += 1;
                encode(&mut arenas.full, &mut arenas.bytes, &mut arenas.open, format, &notice)
            });
            share.push(Share { span: *span, version: version.clone(), at });
        }
        share
    }

    /// How many events were encoded.
    pub(super) fn encoded(&self) -> u64 {
        self.encoded
    }

    /// The arenas, the bytes that all of them take, and the changes.
    pub(super) fn freeze(self) -> (Arenas<F>, usize, Vec<(&'a Batch, &'a Change)>) {
        let mut bytes = 0;
        let frozen = self.formats.into_iter().map(|(format, mut arenas)| {
            bytes += arenas.bytes + F::bytes(&arenas.open);
            arenas.full.push(F::freeze(arenas.open));
            (format, arenas.full)
        });
        let frozen = frozen.collect();
        (frozen, bytes, self.changes)
    }
}

/// Appends one event to the open arena, and begins another when that is full.
fn encode<F: Frame>(
    full: &mut Vec<F>,
    full_bytes: &mut usize,
    open: &mut F::Arena,
    format: F::Format,
    notice: &Notice<'_>,
) -> Span {
    let size = F::size(open);
    if size >= ARENA_SIZE {
        *full_bytes += F::bytes(open);
        full.push(F::freeze(std::mem::take(open)));
    }
    let start = F::size(open);
    F::encode(open, format, notice);
    Span { arena: full.len(), start, end: F::size(open) }
}

// === impl FormatArenas ===

impl<F: Frame> Default for FormatArenas<F> {
    fn default() -> Self {
        Self { full: Vec::new(), bytes: 0, open: F::Arena::default(), spans: HashMap::default() }
    }
}

// === impl Variant ===

impl Variant {
    fn of(transition: Transition) -> Self {
        match transition.cause {
            Cause::EnteredSelection => Self::Entered,
            Cause::LeftSelection => Self::Left,
            Cause::Change | Cause::Initial | Cause::Inferred | Cause::NotServed => Self::AsItIs,
        }
    }
}
