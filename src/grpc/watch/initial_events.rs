//! Events from a snapshot, encoded piece by piece: the initial events of a watch, which are the state at which it joined, or the
//! objects that leave its selection and enter it when its namespaces change.

use std::{collections::BTreeMap, slice, sync::Arc};

use bytes::{Bytes, BytesMut};

use super::super::{
    compressed_objects::CompressedForm,
    compression::Compressed,
    frame::{self, CHUNK_BYTES},
    held_snapshots::HeldSnapshot,
    time_slice::TimeSlice,
};
use crate::{
    cache::{Reselection, Scan, Snapshot},
    model::{Cause, EventType, Object, ObjectKey, ObjectParts, Selection, Transition},
    proto::{EncodedEvent, EncodedObject, ObjectFormat, PayloadFormat, Structs},
    transport::Room,
};

/// Objects that are still to be sent, read from the snapshot at the client's pace.
#[derive(Debug)]
pub(super) struct InitialEvents {
    snapshot: Snapshot,
    scan: Scan,
    last_checked: Option<ObjectKey>,
    /// Change of the namespaces; none for the initial events.
    reselection: Option<Box<Reselection>>,
    /// Cache of compressed events; none if they are not compressed.
    compressed: Option<CompressedForm>,
    _held: Option<HeldSnapshot>,
}

/// Progress of the initial events after one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InitialProgress {
    /// There may be more.
    More,
    /// The next event does not fit into the room; it needs this many bytes.
    TooLarge(usize),
    /// There are no more.
    Done,
}

/// Message of one event.
enum Message<'a> {
    Plain(EncodedEvent<'a>),
    Compressed(Arc<Compressed>),
}

const INITIAL: Transition = Transition { event_type: EventType::Added, cause: Cause::Initial };

// === impl InitialEvents ===

impl InitialEvents {
    /// Creates the initial events of a selection, from the first object on.
    pub(super) fn new(snapshot: Snapshot, selection: &Selection, compressed: Option<CompressedForm>) -> Self {
        let scan = Scan::of(selection);
        Self { snapshot, scan, last_checked: None, reselection: None, compressed, _held: None }
    }

    /// Creates the events of a change of the namespaces.
    pub(super) fn of_reselection(reselection: Box<Reselection>) -> Self {
        let (snapshot, scan) = (reselection.snapshot.clone(), reselection.scan.clone());
        Self { snapshot, scan, last_checked: None, reselection: Some(reselection), compressed: None, _held: None }
    }

    /// Returns true if the events are those of a change of the namespaces.
    pub(super) fn is_reselection(&self) -> bool {
        self.reselection.is_some()
    }

    /// Keeps the snapshot accounted for until the initial events are sent.
    #[must_use]
    pub(super) fn holding(self, held: HeldSnapshot) -> Self {
        Self { _held: Some(held), ..self }
    }

    /// Encodes the next initial events that fit into the room. Returns the bytes, the number of events, and the progress.
    pub(super) fn next(
        &mut self,
        selection: &Selection,
        format: &ObjectFormat,
        structs: &Structs,
        room: Room,
    ) -> (BytesMut, u64, InitialProgress) {
        let (mut buffer, mut events) = (BytesMut::new(), 0);
        let after = self.last_checked.take();
        let mut objects = self.scan.objects(&self.snapshot, after.as_ref());
        let slice = TimeSlice::begin();
        loop {
            let earlier = self.reselection.as_mut().and_then(|reselection| reselection.earlier.pop());
            let is_earlier = earlier.is_some();
            let next = earlier.as_ref().or_else(|| objects.next());
            let Some(object) = next else { return (buffer, events, InitialProgress::Done) };
            let (transition, version) = match &self.reselection {
                None => (selection.matches(object).then_some(INITIAL), None),
                Some(reselection) if !is_earlier && reselection.is_later(object.key()) => (None, None),
                Some(reselection) => (reselection.transition(object), Some(&reselection.version)),
            };
            if let Some(Transition { event_type, cause }) = transition {
                let bare = (event_type == EventType::Deleted).then(|| without_content(object));
                let event = || {
                    let encoded = match &bare {
                        Some(bare) => EncodedObject::new(bare, bare.version(), &PayloadFormat::Metadata.into()),
                        None => EncodedObject::shared(object, object.version(), format, structs),
                    };
                    EncodedEvent::new(event_type, cause, version, encoded, 0)
                };
                let compressed = self.compressed.as_ref().and_then(|form| {
                    form.get(slice::from_ref(object), || {
                        let event = event();
                        (event.len(), move |to: &mut Vec<u8>| event.write(to))
                    })
                });
                let message = compressed.map_or_else(|| Message::Plain(event()), Message::Compressed);
                let length = buffer.len() + message.len();
                if !room.allows(length) {
                    // The object is checked again when there is room.
                    self.last_checked = self.last_checked.take().or(after);
                    if let Some(reselection) = &mut self.reselection {
                        reselection.earlier.extend(earlier);
                    }
                    let went = if events == 0 { InitialProgress::TooLarge(length) } else { InitialProgress::More };
                    return (buffer, events, went);
                }
                message.append(&mut buffer);
                events += 1;
            }
            if !is_earlier {
                self.last_checked = Some(object.key().clone());
            }
            if buffer.len() >= CHUNK_BYTES.min(room.bytes) {
                break;
            }
            if slice.is_over() {
                break;
            }
        }
        self.last_checked = self.last_checked.take().or(after);
        (buffer, events, InitialProgress::More)
    }
}

// === impl Message ===

impl Message<'_> {
    /// Returns its size with its prefix.
    fn len(&self) -> usize {
        match self {
            Self::Plain(event) => frame::event_len(event),
            Self::Compressed(compressed) => compressed.len(),
        }
    }

    fn append(&self, buffer: &mut BytesMut) {
        match self {
            Self::Plain(event) => frame::append_event(buffer, event),
            Self::Compressed(compressed) => compressed.append(buffer),
        }
    }
}

/// Returns an object of which only key, uid and version are left: its watcher may no longer read the others.
fn without_content(object: &Object) -> Object {
    Object::new(ObjectParts {
        key: object.key().clone(),
        uid: object.uid().to_owned(),
        version: object.version().clone(),
        labels: BTreeMap::new(),
        api_version: String::new(),
        kind: String::new(),
        media_type: "",
        body: Bytes::new(),
    })
}

#[cfg(all(test, feature = "cel"))]
mod tests {
    use super::*;
    use crate::{
        cache::{Indexer, List},
        model::{Expression, Indexers, Object, ResourceVersion},
    };

    /// An evaluation that takes longer than a slice is alone in its piece; cheap ones share a piece.
    #[test]
    fn a_piece_ends_with_its_time_slice() {
        let object = |n: usize| {
            let list = vec!["1"; 2000].join(",");
            let json = format!(r#"{{"metadata":{{"name":"o{n}"}},"list":[{list}]}}"#);
            Arc::new(Object::from_json(json, "", ResourceVersion::decimal(1)).unwrap())
        };
        let list = List::new((0..20).map(object).collect(), ResourceVersion::decimal(1));
        let snapshot = Indexer::new(Arc::new(Indexers::default()), list).snapshot();
        let pieces = |expression: Option<&str>| {
            let expression = expression.map(|text| Expression::parse(text).unwrap().with_max_steps(100_000));
            let selection = Selection { expression, ..Selection::default() };
            let mut initial = InitialEvents::new(snapshot.clone(), &selection, None);
            (1..1000)
                .find(|_| {
                    let room = Room { bytes: usize::MAX, is_strict: false };
                    initial.next(&selection, &PayloadFormat::Metadata.into(), &Structs::new(1), room).2
                        == InitialProgress::Done
                })
                .unwrap()
        };
        // Runs until its steps are spent, and selects nothing.
        let costly = "object.list.all(a, object.list.all(b, a + b == 2))";
        assert_eq!(pieces(Some(costly)), 20 + 1, "the last one finds the end");
        assert!(pieces(None) < 20);
    }
}
