//! What is put into a group's log: pieces of an arena in which every event was encoded once.

use std::{fmt, ops::Range, sync::Arc};

use crate::model::{Cause, Change, EventType, Object, ResourceVersion, Transition};

/// A piece of a frozen arena: the encoded form of one or more events, one after the other. A clone is a reference count.
///
/// The grpc layer's frame is bytes on the wire; [`Deliveries`] is the one for users of the library.
pub trait Frame: Clone + fmt::Debug + Send + Sync + 'static {
    /// What else an encoding depends on (the payload format).
    type Format: Copy + Eq + std::hash::Hash + fmt::Debug + Send + Sync + 'static;
    /// An arena that is being filled.
    type Arena: Default + Send;

    /// Appends one event.
    fn encode(arena: &mut Self::Arena, format: Self::Format, notice: &Notice<'_>);

    /// How much the arena holds; where the next event will begin. At most `u32::MAX`.
    fn size(arena: &Self::Arena) -> usize;

    /// Ends the filling.
    fn freeze(arena: Self::Arena) -> Self;

    /// The part between two positions of [`Frame::size`].
    fn slice(&self, range: Range<usize>) -> Self;

    /// Bytes of memory that the arena takes once it is frozen.
    fn bytes(arena: &Self::Arena) -> usize;
}

/// One event as one group of watchers is to be told of it.
#[derive(Debug, Clone, Copy)]
pub struct Notice<'a> {
    /// ADDED, MODIFIED or DELETED.
    pub event_type: EventType,
    /// Why.
    pub cause: Cause,
    /// The new state; for DELETED the last one that the watcher has.
    pub object: &'a Arc<Object>,
    /// Of the object; for DELETED, of the deletion or of the change that made it leave.
    pub object_version: &'a ResourceVersion,
    /// Safe to resume from once this event has been seen.
    pub version: &'a ResourceVersion,
    /// Under COALESCE: how many further events this one stands for.
    pub coalesced: u32,
    /// There was a relist between the version that was told before and this one.
    pub relisted: bool,
    /// More changes at the version of this one may come: [`Batch::is_open`](crate::model::Batch::is_open).
    pub open: bool,
}

/// One event, as a user of the library gets it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// ADDED, MODIFIED or DELETED.
    pub event_type: EventType,
    /// Why.
    pub cause: Cause,
    /// The new state; for DELETED the last one that the watcher has.
    pub object: Arc<Object>,
    /// Of the object; for DELETED, of the deletion or of the change that made it leave.
    pub object_version: ResourceVersion,
    /// Safe to resume from once this event has been seen.
    pub version: ResourceVersion,
    /// Under COALESCE: how many further events this one stands for.
    pub coalesced: u32,
}

/// Events by reference: the [`Frame`] of the library. Its unit of size is the event.
#[derive(Debug, Clone)]
pub struct Deliveries {
    events: Arc<[Delivery]>,
    range: Range<usize>,
}

// === impl Notice ===

impl<'a> Notice<'a> {
    /// What a change is to a group of watchers, at the version to resume from. `None` when the change has not the state
    /// that the transition tells of, which no selection gives.
    pub fn new(change: &'a Change, transition: Transition, version: &'a ResourceVersion) -> Option<Self> {
        let Transition { event_type, cause } = transition;
        let (object, object_version) = match event_type {
            EventType::Deleted => (change.old.as_ref()?, &change.version),
            EventType::Added | EventType::Modified => {
                let new = change.new.as_ref()?;
                (new, new.version())
            }
        };
        Some(Self { event_type, cause, object, object_version, version, coalesced: 0, relisted: false, open: false })
    }
}

// === impl Deliveries ===

impl Deliveries {
    /// The events of this piece.
    pub fn as_slice(&self) -> &[Delivery] {
        &self.events[self.range.clone()]
    }
}

impl Frame for Deliveries {
    type Format = ();
    type Arena = Vec<Delivery>;

    fn encode(arena: &mut Vec<Delivery>, (): (), notice: &Notice<'_>) {
        arena.push(Delivery {
            event_type: notice.event_type,
            cause: notice.cause,
            object: Arc::clone(notice.object),
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

    fn bytes(arena: &Vec<Delivery>) -> usize {
        size_of_val(&**arena)
    }
}
