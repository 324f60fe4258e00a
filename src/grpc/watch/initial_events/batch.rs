//! Initial events for a client that requests them in batches: a message has many objects, like one of a List.
//!
//! A compressed message has the same objects for every client whose watch begins with the same state, whatever the room of each, so
//! it is compressed once.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use bytes::{Bytes, BytesMut};
use prost::Message as _;

use super::{Batch, INITIAL, InitialEvents, InitialProgress, Kind, Message};
use crate::{
    grpc::{
        call::Caller,
        compressed_objects::CompressedForm,
        encoder::SLICE_BYTES,
        frame::{self, BATCH, CHUNK_BYTES, PREFIX_BYTES},
        service::Service,
        time_slice::TimeSlice,
    },
    model::{Object, Selection},
    proto::{self, ObjectFormat, Structs, pb},
    transport::Room,
};

// === impl Batch ===

impl Batch {
    /// Returns the bytes of the message that waits for room.
    pub(super) fn encoded_bytes(&self) -> usize {
        self.complete.as_ref().map_or(0, |(message, _)| message.len())
    }

    fn push(&mut self, object: &Arc<Object>) {
        self.bytes += object.max_raw_len();
        self.objects.push(Arc::clone(object));
    }

    /// Completes the message with what was collected, if that is anything.
    fn complete(&mut self, form: &CompressedForm, format: &ObjectFormat, structs: &Structs) {
        let objects = std::mem::take(&mut self.objects);
        self.bytes = 0;
        if objects.is_empty() {
            return;
        }
        let make = || {
            let encoded = encode(&objects, format, structs);
            (encoded.len() - PREFIX_BYTES, move |to: &mut Vec<u8>| to.extend_from_slice(&encoded[PREFIX_BYTES..]))
        };
        let message = match form.get(&objects, make) {
            Some(compressed) => Message::Compressed(compressed),
            None => Message::Encoded(encode(&objects, format, structs)),
        };
        self.complete = Some((message, objects.len() as u64));
    }
}

// === impl InitialEvents ===

impl InitialEvents {
    /// Encodes the next message of as many initial events as fit into the room, at most about 64 KiB of them, but at least one.
    pub(super) fn next_batch(
        &mut self,
        cx: &mut Context<'_>,
        (selection, format): (&Selection, &ObjectFormat),
        (service, caller): (&Service, Caller),
        room: Room,
    ) -> (BytesMut, u64, InitialProgress) {
        let (mut message, mut events) = (begin(), 0);
        let after = self.last_checked.take();
        let mut objects = self.scan.objects(&self.snapshot, after.as_ref());
        let slice = TimeSlice::begin();
        let progress = loop {
            let Some(object) = objects.next() else { break InitialProgress::Done };
            if selection.matches_counted(object, &mut self.evaluations) {
                let encoder = (service.encoder(), caller, BATCH);
                let field = match self.next.field(cx, object, format, service.structs(), encoder) {
                    Poll::Ready(Ok(field)) => field,
                    _ if events > 0 => break InitialProgress::More,
                    Poll::Ready(Err(_)) => break InitialProgress::Failed,
                    Poll::Pending => break InitialProgress::Waiting,
                };
                let length = message.len() + field.len();
                if events > 0 && (length > CHUNK_BYTES || !room.allows(length)) {
                    break InitialProgress::More;
                }
                if !room.allows(length) {
                    break InitialProgress::TooLarge(length);
                }
                field.write(&mut message);
                self.next.clear();
                self.evaluations.add_selected();
                events += 1;
            }
            self.last_checked = Some(object.key().clone());
            if message.len() >= CHUNK_BYTES.min(room.bytes) || slice.is_over() {
                break InitialProgress::More;
            }
        };
        // The object after it is checked again.
        self.last_checked = self.last_checked.take().or(after);
        if events == 0 {
            return (BytesMut::new(), 0, progress);
        }
        set_length(&mut message);
        (message, events, progress)
    }

    /// Does the same for compressed messages, of which as many as fit into the room are sent together: a message that was compressed
    /// for another client costs less than a turn. One that is complete waits until the room has its size.
    pub(super) fn next_compressed(
        &mut self,
        cx: &mut Context<'_>,
        (selection, format, form): (&Selection, &ObjectFormat, &CompressedForm),
        (service, caller): (&Service, Caller),
        room: Room,
    ) -> (BytesMut, u64, InitialProgress) {
        let Self { snapshot, scan, last_checked, batch, next, evaluations, .. } = self;
        let Some(batch) = batch else { return (BytesMut::new(), 0, InitialProgress::Failed) };
        let after = last_checked.take();
        let mut objects = scan.objects(snapshot, after.as_ref()).peekable();
        let slice = TimeSlice::begin();
        let selects_all = selection.selects_all();
        let (mut buffer, mut events, mut last) = (BytesMut::new(), 0, None);
        let mut collect = |batch: &mut Batch| {
            while let Some(object) = objects.peek() {
                if selects_all || selection.matches_counted(object, evaluations) {
                    if object.body().len() <= SLICE_BYTES {
                        batch.push(object);
                    } else if !batch.objects.is_empty() {
                        // The large one comes alone.
                        batch.complete(form, format, service.structs());
                        return InitialProgress::More;
                    } else {
                        let (event_type, cause) = (INITIAL.event_type, INITIAL.cause);
                        let kind = Kind { event_type, cause, version: None, format, form: Some(form) };
                        match next.poll(cx, object, || kind.encode(object, service, caller)) {
                            Poll::Ready(Ok(message)) => batch.complete = Some((Message::Encoded(message), 1)),
                            Poll::Ready(Err(_)) => return InitialProgress::Failed,
                            Poll::Pending => return InitialProgress::Waiting,
                        }
                        next.clear();
                    }
                    evaluations.add_selected();
                }
                last = objects.next();
                if batch.bytes >= CHUNK_BYTES {
                    batch.complete(form, format, service.structs());
                }
                if batch.complete.is_some() || (!selects_all && slice.is_over()) {
                    return InitialProgress::More;
                }
            }
            batch.complete(form, format, service.structs());
            InitialProgress::Done
        };
        let mut progress = InitialProgress::More;
        while progress == InitialProgress::More {
            if batch.complete.is_none() {
                progress = collect(batch);
            }
            if let Some((message, _)) = &batch.complete {
                let length = buffer.len() + message.len();
                if !room.allows(length) || (events > 0 && length > CHUNK_BYTES.min(room.bytes)) {
                    progress = InitialProgress::TooLarge(length);
                    break;
                }
            }
            if let Some((message, count)) = batch.complete.take() {
                message.append(&mut buffer);
                events += count;
            }
            if slice.is_over() {
                break;
            }
        }
        *last_checked = last.map(|object| object.key().clone()).or(after);
        // What has not come with these messages comes after them.
        let progress = if events == 0 || progress == InitialProgress::Done { progress } else { InitialProgress::More };
        (buffer, events, progress)
    }
}

/// Encodes the message of several initial events, with its prefix.
fn encode(objects: &[Arc<Object>], format: &ObjectFormat, structs: &Structs) -> Bytes {
    let mut message = begin();
    frame::append_objects(&mut message, BATCH, objects, (format, structs));
    set_length(&mut message);
    message.freeze()
}

/// Returns the prefix, without the length, and what is before the objects of a message.
fn begin() -> BytesMut {
    let (event_type, cause) = (proto::event_type(INITIAL.event_type), proto::cause(INITIAL.cause));
    let rest = pb::WatchResponse { r#type: event_type.into(), cause: cause.into(), ..Default::default() };
    let mut message = BytesMut::with_capacity(PREFIX_BYTES + rest.encoded_len());
    frame::append(&mut message, &rest);
    message
}

/// Writes the length of a message to its prefix. It has a few MiB at most.
fn set_length(message: &mut BytesMut) {
    let length = (message.len() - PREFIX_BYTES) as u32;
    message[1..PREFIX_BYTES].copy_from_slice(&length.to_be_bytes());
}
