//! Events that were encoded a moment ago. At a moderate rate all readers read the same event at about the same time, and most selections
//! see it alike: those of which each has a single reader share it here. Equal bytes are then also the same memory.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
};

use crate::{
    model::{Cause, EventType, Object, ResourceVersion},
    sync::Mutex,
    watch::{BroadcasterStats, Frame, GroupEvent},
};

/// Last events of one resource that were encoded for a selection with a single reader.
pub(super) struct Encoded<F: Frame> {
    last: Mutex<VecDeque<Entry<F>>>,
    stats: Arc<BroadcasterStats>,
}

struct Entry<F: Frame> {
    format: F::Format,
    /// Parts of the event on which its encoding depends. The objects stay alive, so that their addresses identify them.
    event_type: EventType,
    cause: Cause,
    object: Arc<Object>,
    previous: Option<Arc<Object>>,
    versions: [ResourceVersion; 2],
    flags: [bool; 2],
    event: EncodedEvent<F>,
}

/// One event.
#[derive(Clone)]
pub(super) struct EncodedEvent<F> {
    pub(super) frame: F,
    /// Size in the unit of the frame, and bytes of memory.
    pub(super) size: usize,
    pub(super) bytes: usize,
}

/// Number of events that are kept, until the next sweep.
const KEPT: usize = 8;
/// Largest size of one of them, in bytes.
const MAX_BYTES: usize = 64 << 10;

// === impl Encoded ===

impl<F: Frame> Encoded<F> {
    pub(super) fn new(stats: Arc<BroadcasterStats>) -> Self {
        Self { last: Mutex::default(), stats }
    }

    /// Returns an event in a format.
    pub(super) fn get(&self, format: &F::Format, event: &GroupEvent<'_>) -> EncodedEvent<F> {
        let found = self.last.lock().iter().find(|entry| entry.is_of(format, event)).map(|entry| entry.event.clone());
        if let Some(found) = found {
            return found;
        }
        let mut arena = F::Arena::default();
        F::encode(&mut arena, format, event);
        self.stats.encoded.fetch_add(1, Ordering::Relaxed);
        let (size, bytes) = (F::size(&arena), F::bytes(&arena));
        let encoded = EncodedEvent { frame: F::freeze(arena), size, bytes };
        if bytes <= MAX_BYTES {
            let entry = Entry::new(format, event, encoded.clone());
            let mut last = self.last.lock();
            let oldest = if last.len() < KEPT { None } else { last.pop_front() };
            last.push_back(entry);
            drop(last);
            drop(oldest);
        }
        encoded
    }

    /// Forgets all.
    pub(super) fn clear(&self) {
        let last = std::mem::take(&mut *self.last.lock());
        drop(last);
    }
}

// === impl Entry ===

impl<F: Frame> Entry<F> {
    fn new(format: &F::Format, of: &GroupEvent<'_>, event: EncodedEvent<F>) -> Self {
        Self {
            format: format.clone(),
            event_type: of.event_type,
            cause: of.cause,
            object: Arc::clone(of.object),
            previous: of.previous.cloned(),
            versions: [of.object_version.clone(), of.version.clone()],
            flags: [of.relisted, of.open],
            event,
        }
    }

    fn is_of(&self, format: &F::Format, event: &GroupEvent<'_>) -> bool {
        Arc::ptr_eq(&self.object, event.object)
            && self.previous.as_ref().map(Arc::as_ptr) == event.previous.map(Arc::as_ptr)
            && (self.event_type, self.cause, self.flags)
                == (event.event_type, event.cause, [event.relisted, event.open])
            && self.versions.each_ref() == [event.object_version, event.version]
            && self.format == *format
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::watch::Deliveries;

    fn version(number: u128) -> ResourceVersion {
        ResourceVersion::decimal(number)
    }

    #[test]
    fn an_event_is_shared_only_with_an_equal_one() {
        let object = || {
            Arc::new(Object::from_json(Bytes::from_static(b"{\"metadata\":{\"name\":\"a\"}}"), "", version(1)).unwrap())
        };
        let (objects, versions) = ([object(), object()], [version(1), version(2)]);
        let event = GroupEvent {
            event_type: EventType::Modified,
            cause: Cause::Change,
            object: &objects[0],
            previous: Some(&objects[0]),
            object_version: &versions[0],
            version: &versions[0],
            coalesced: 0,
            relisted: false,
            open: false,
        };
        let others = [
            GroupEvent { event_type: EventType::Added, ..event },
            GroupEvent { cause: Cause::EnteredSelection, ..event },
            GroupEvent { object: &objects[1], ..event },
            GroupEvent { previous: Some(&objects[1]), ..event },
            GroupEvent { previous: None, ..event },
            GroupEvent { object_version: &versions[1], ..event },
            GroupEvent { version: &versions[1], ..event },
            GroupEvent { relisted: true, ..event },
            GroupEvent { open: true, ..event },
        ];
        for other in &others {
            let encoded = Encoded::<Deliveries>::new(Arc::default());
            let encodings = || encoded.stats.encoded.load(Ordering::Relaxed);
            for (event, expected) in [(&event, 1), (other, 2), (&event, 2), (other, 2)] {
                encoded.get(&(), event);
                assert_eq!(encodings(), expected, "{other:?}");
            }
        }
    }
}
