//! Events from a snapshot, encoded piece by piece: the initial events of a watch, which are the state at which it joined, or the
//! objects that leave its selection and enter it when its namespaces change.

mod batch;

use std::{
    collections::BTreeMap,
    slice,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{BufMut, Bytes, BytesMut};

use super::super::{
    call::Caller,
    compressed_objects::{CompressedForm, Use},
    compression::Compressed,
    encoder::{Encoding, NextObject, SLICE_BYTES, is_costly},
    frame::{self, CHUNK_BYTES, WireFrame},
    held_snapshots::HeldSnapshot,
    service::Service,
    time_slice::TimeSlice,
};
use crate::{
    cache::{Reselection, Scan, Snapshot},
    model::{Cause, Evaluations, EventType, Object, ObjectKey, ObjectParts, ResourceVersion, Selection, Transition},
    proto::{self, EncodedEvent, EncodedObject, LineEvent, LineFormat, ObjectFormat, PayloadFormat, Structs, pb},
    transport::Room,
    watch::Subscribe,
};

/// Objects that are still to be sent, read from the snapshot at the client's pace.
#[derive(Debug)]
pub(super) struct InitialEvents {
    snapshot: Snapshot,
    scan: Scan,
    last_checked: Option<ObjectKey>,
    /// Version of the objects; none for all of them.
    at: Option<ResourceVersion>,
    /// Change of the namespaces; none for the initial events.
    reselection: Option<Box<Reselection>>,
    /// Cache of compressed events; none if they are not compressed.
    compressed: Option<CompressedForm>,
    /// Message that is collected, if the client reads batches.
    batch: Option<Batch>,
    /// Next event, while it is encoded on a bulk thread.
    next: NextObject,
    /// Evaluations of the expression for the initial events.
    evaluations: Evaluations,
    _held: Option<HeldSnapshot>,
}

/// Message of initial events that are compressed together, until it is sent.
#[derive(Debug, Default)]
struct Batch {
    /// Objects of the message that is collected.
    objects: Vec<Arc<Object>>,
    /// About the size of these before the compression, in bytes.
    bytes: usize,
    /// Complete message, and the number of its events.
    complete: Option<(Message<'static>, u64)>,
}

/// Progress of the initial events after one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InitialProgress {
    /// There may be more.
    More,
    /// The next event does not fit into the room; it needs this many bytes.
    TooLarge(usize),
    /// A bulk thread encodes the next event.
    Waiting,
    /// A bulk thread has failed to do so.
    Failed,
    /// There are no more.
    Done,
}

/// Message of one event, or of a batch.
#[derive(Debug)]
enum Message<'a> {
    Plain(EncodedEvent<'a>),
    Compressed(Arc<Compressed>),
    /// Encoded with its prefix.
    Encoded(Bytes),
}

/// Form and circumstances of an event of an object.
#[derive(Clone, Copy)]
struct Kind<'a> {
    event_type: EventType,
    cause: Cause,
    version: Option<&'a ResourceVersion>,
    format: &'a ObjectFormat,
    form: Option<&'a CompressedForm>,
}

const INITIAL: Transition = Transition { event_type: EventType::Added, cause: Cause::Initial };

// === impl InitialEvents ===

impl InitialEvents {
    /// Creates the initial events of a watch, from the first object on.
    pub(super) fn new(
        snapshot: Snapshot,
        Subscribe { selection, format, .. }: &Subscribe<WireFrame>,
        service: &Service,
        has_batches: bool,
    ) -> Self {
        let usage = if has_batches { Use::Batch } else { Use::InitialEvent };
        let compressed = service.compressed().form(format, usage);
        Self { compressed, batch: has_batches.then(Batch::default), ..Self::of(snapshot, Scan::of(selection)) }
    }

    /// Creates the events of a change of the namespaces.
    pub(super) fn of_reselection(reselection: Box<Reselection>) -> Self {
        let (snapshot, scan) = (reselection.snapshot.clone(), reselection.scan.clone());
        Self { reselection: Some(reselection), ..Self::of(snapshot, scan) }
    }

    fn of(snapshot: Snapshot, scan: Scan) -> Self {
        Self {
            snapshot,
            scan,
            last_checked: None,
            at: None,
            reselection: None,
            compressed: None,
            batch: None,
            next: NextObject::default(),
            evaluations: Evaluations::default(),
            _held: None,
        }
    }

    /// Leaves out the objects of other versions.
    pub(super) fn at(self, version: ResourceVersion) -> Self {
        Self { at: Some(version), ..self }
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

    /// Returns the bookmark at their end.
    pub(super) fn end(&self) -> pb::Bookmark {
        let expression_errors = proto::expression_errors(&self.evaluations);
        pb::Bookmark { initial_events_end: self.reselection.is_none(), expression_errors, ..Default::default() }
    }

    /// Returns the bytes that are encoded and do not wait in a buffer.
    pub(super) fn encoded_bytes(&self) -> usize {
        self.next.bytes() + self.batch.as_ref().map_or(0, Batch::encoded_bytes)
    }

    /// Encodes the next initial events that fit into the room. Returns the bytes, the number of events, and the progress.
    pub(super) fn next(
        &mut self,
        cx: &mut Context<'_>,
        (selection, format): (&Selection, &ObjectFormat),
        (service, caller): (&Service, Caller),
        room: Room,
    ) -> (BytesMut, u64, InitialProgress) {
        match self.compressed.clone().filter(|_| self.batch.is_some()) {
            Some(form) => return self.next_compressed(cx, (selection, format, &form), (service, caller), room),
            None if self.batch.is_some() => return self.next_batch(cx, (selection, format), (service, caller), room),
            None => {}
        }
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
                None if self.at.as_ref().is_some_and(|at| at != object.version()) => (None, None),
                None => (selection.matches_counted(object, &mut self.evaluations).then_some(INITIAL), None),
                Some(reselection) if !is_earlier && reselection.is_later(object.key()) => (None, None),
                Some(reselection) => (reselection.transition(object), Some(&reselection.version)),
            };
            if let Some(Transition { event_type, cause }) = transition {
                let bare = (event_type == EventType::Deleted).then(|| without_content(object));
                let kind = Kind { event_type, cause, version, format, form: self.compressed.as_ref() };
                let is_large = object.body().len() > SLICE_BYTES && (is_costly(format) || self.compressed.is_some());
                let message = match &bare {
                    // A watch with lines has no namespaces that change.
                    Some(bare) => {
                        let encoded = EncodedObject::new(bare, bare.version(), &PayloadFormat::Metadata.into());
                        Message::Plain(EncodedEvent::new(event_type, cause, version, encoded, 0))
                    }
                    None if is_large => match self.next.poll(cx, object, || kind.encode(object, service, caller)) {
                        Poll::Ready(Ok(message)) => Message::Encoded(message),
                        waits => {
                            let went =
                                if waits.is_pending() { InitialProgress::Waiting } else { InitialProgress::Failed };
                            self.last_checked = self.last_checked.take().or(after);
                            if let Some(reselection) = &mut self.reselection {
                                reselection.earlier.extend(earlier);
                            }
                            return (buffer, events, if events == 0 { went } else { InitialProgress::More });
                        }
                    },
                    None => kind.message(object, service.structs()),
                };
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
                self.next.clear();
                self.evaluations.add_selected();
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

// === impl Kind ===

impl Kind<'_> {
    fn message<'o>(&self, object: &'o Arc<Object>, structs: &Structs) -> Message<'o> {
        let Self { event_type, cause, version, format, form } = *self;
        if let Some(LineFormat(lines)) = &format.lines {
            let mut line = BytesMut::new();
            let (at, payload) = (object.version(), format.payload);
            let event = LineEvent {
                event_type,
                cause,
                object,
                version: at,
                change_version: at,
                safe_version: version,
                coalesced: 0,
                payload,
            };
            lines.event(&event, &mut line);
            return Message::Encoded(line.freeze());
        }
        let event = || {
            let encoded = EncodedObject::shared(object, object.version(), format, structs);
            EncodedEvent::new(event_type, cause, version, encoded, 0)
        };
        let compressed = form.and_then(|form| {
            form.get(slice::from_ref(object), || {
                let event = event();
                (event.len(), move |to: &mut Vec<u8>| event.write(to))
            })
        });
        compressed.map_or_else(|| Message::Plain(event()), Message::Compressed)
    }

    /// Encodes the message of a large object on a bulk thread.
    fn encode(&self, object: &Arc<Object>, service: &Service, caller: Caller) -> Encoding<Bytes> {
        let Self { event_type, cause, version, format, form } = *self;
        let (version, format, form) = (version.cloned(), format.clone(), form.cloned());
        let (object, structs) = (Arc::clone(object), Arc::clone(service.structs()));
        service.encoder().encode(caller, move || {
            let (version, form) = (version.as_ref(), form.as_ref());
            let message = Kind { event_type, cause, version, format: &format, form }.message(&object, &structs);
            let mut buffer = BytesMut::with_capacity(message.len());
            message.append(&mut buffer);
            buffer.freeze()
        })
    }
}

// === impl Message ===

impl Message<'_> {
    /// Returns its size with its prefix.
    fn len(&self) -> usize {
        match self {
            Self::Plain(event) => frame::event_len(event),
            Self::Compressed(compressed) => compressed.len(),
            Self::Encoded(message) => message.len(),
        }
    }

    fn append(&self, buffer: &mut BytesMut) {
        match self {
            Self::Plain(event) => frame::append_event(buffer, event),
            Self::Compressed(compressed) => compressed.append(buffer),
            Self::Encoded(message) => buffer.put_slice(message),
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
mod tests;
