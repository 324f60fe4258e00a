//! Encoded events: slices of an arena.

use std::{fmt, ops::Range, sync::Arc};

use smallvec::SmallVec;

use crate::model::{Cause, Change, EventType, Object, ResourceVersion, Transition};

/// Slice of a frozen arena: the encoded form of one or more consecutive events. A clone is a reference count.
///
/// The grpc layer's frame is bytes on the wire; [`Deliveries`] is that of watches in the same process.
pub trait Frame: Clone + fmt::Debug + Send + Sync + 'static {
    /// Further input of the encoding (the payload format, and a view).
    type Format: Clone + Eq + std::hash::Hash + fmt::Debug + Send + Sync + 'static;
    /// Arena that is being filled.
    type Arena: Default + Send;

    /// True if the frame refers to [`GroupEvent::previous`]: merged changes then keep it in memory.
    const HAS_PREVIOUS: bool;

    /// Returns true if a MODIFIED is suppressed for a client that has the state `had`, because the new one is no other in this
    /// format.
    fn is_suppressed(_format: &Self::Format, _had: &Object, _now: &Object) -> bool {
        false
    }

    /// Returns true if [`Self::is_suppressed`] and [`Self::encode`] take time, because the format is a view or compresses.
    fn is_costly(_format: &Self::Format) -> bool {
        false
    }

    /// Appends one event.
    fn encode(arena: &mut Self::Arena, format: &Self::Format, notice: &GroupEvent<'_>);

    /// Returns the size of the arena, which is the position of the next event. At most `u32::MAX`.
    fn size(arena: &Self::Arena) -> usize;

    /// Makes the arena immutable.
    fn freeze(arena: Self::Arena) -> Self;

    /// Returns the part between two positions of [`Frame::size`].
    fn slice(&self, range: Range<usize>) -> Self;

    /// Returns the bytes of memory that the arena takes once it is frozen.
    fn bytes(arena: &Self::Arena) -> usize;
}

/// Consecutive slices: a single one if they were published together.
pub type Frames<F> = SmallVec<[F; 1]>;

/// One event, as it is encoded for all readers with one selection and format: for one that has received every event before it.
#[derive(Debug, Clone, Copy)]
pub struct GroupEvent<'a> {
    /// ADDED, MODIFIED or DELETED.
    pub event_type: EventType,
    /// Cause of the event.
    pub cause: Cause,
    /// New state; for DELETED the last state that the watcher has.
    pub object: &'a Arc<Object>,
    /// For MODIFIED, the state that the watcher has. Under COALESCE, `None` for a frame without [`Frame::HAS_PREVIOUS`].
    pub previous: Option<&'a Arc<Object>>,
    /// Version of the object; for DELETED, of the deletion or of the change by which it left the selection.
    pub object_version: &'a ResourceVersion,
    /// Version that is safe to resume from once this event has been delivered.
    pub version: &'a ResourceVersion,
    /// Under COALESCE: number of further events that this one stands for.
    pub coalesced: u32,
    /// True if there was a relist between the previously reported version and this one.
    pub relisted: bool,
    /// True if more changes at this version may follow: [`Batch::is_open`](crate::model::Batch::is_open).
    pub open: bool,
}

/// One event, as a program with a watch in the same process receives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// ADDED, MODIFIED or DELETED.
    pub event_type: EventType,
    /// Cause of the event.
    pub cause: Cause,
    /// New state; for DELETED the last state that the watcher has.
    pub object: Arc<Object>,
    /// For MODIFIED, the state that the watcher received last, whatever the policy: under COALESCE, the one before all the changes
    /// that the event stands for. `None` for ADDED and DELETED, and under DROP if no event of the object has reached the watcher.
    pub previous: Option<Arc<Object>>,
    /// Version of the object; for DELETED, of the deletion or of the change by which it left the selection.
    pub object_version: ResourceVersion,
    /// Version that is safe to resume from once this event has been delivered.
    pub version: ResourceVersion,
    /// Under COALESCE: number of further events that this one stands for.
    pub coalesced: u32,
}

/// Events by reference: the [`Frame`] of programs with watches in the same process. Its unit of size is the event.
#[derive(Debug, Clone)]
pub struct Deliveries {
    events: Arc<[Delivery]>,
    range: Range<usize>,
}

// === impl GroupEvent ===

impl<'a> GroupEvent<'a> {
    /// Returns the event of a change for a group of watchers, at the version to resume from. Returns `None` if the change
    /// lacks the state that the transition needs; no selection produces such a transition.
    pub fn new(change: &'a Change, transition: Transition, version: &'a ResourceVersion) -> Option<Self> {
        let Transition { event_type, cause } = transition;
        let (object, object_version) = match event_type {
            EventType::Deleted => (change.old.as_ref()?, &change.version),
            EventType::Added | EventType::Modified => {
                let new = change.new.as_ref()?;
                (new, new.version())
            }
        };
        let previous = change.old.as_ref().filter(|_| event_type == EventType::Modified);
        let (coalesced, relisted, open) = (0, false, false);
        Some(Self { event_type, cause, object, previous, object_version, version, coalesced, relisted, open })
    }
}

// === impl Deliveries ===

impl Deliveries {
    /// Returns the events of this slice.
    pub fn as_slice(&self) -> &[Delivery] {
        &self.events[self.range.clone()]
    }
}

impl Frame for Deliveries {
    type Format = ();
    type Arena = Vec<Delivery>;

    const HAS_PREVIOUS: bool = true;

    fn encode(arena: &mut Vec<Delivery>, (): &(), notice: &GroupEvent<'_>) {
        arena.push(Delivery {
            event_type: notice.event_type,
            cause: notice.cause,
            object: Arc::clone(notice.object),
            previous: notice.previous.cloned(),
            object_version: notice.object_version.clone(),
            version: notice.version.clone(),
            coalesced: notice.coalesced,
        });
    }

    fn size(arena: &Vec<Delivery>) -> usize {
        arena.len()
    }

    fn freeze(arena: Vec<Delivery>) -> Self {
        let range = 0..arena.len();
        Self { events: arena.into(), range }
    }

    fn slice(&self, range: Range<usize>) -> Self {
        let range = self.range.start + range.start..self.range.start + range.end;
        Self { events: Arc::clone(&self.events), range }
    }

    /// Returns the bytes of the events, and of the states that the store no longer has.
    fn bytes(arena: &Vec<Delivery>) -> usize {
        let old_states = arena.iter().filter_map(|delivery| match delivery.event_type {
            EventType::Added => None,
            EventType::Modified => delivery.previous.as_ref(),
            EventType::Deleted => Some(&delivery.object),
        });
        size_of_val(&**arena) + old_states.map(|object| object.body().len()).sum::<usize>()
    }
}
