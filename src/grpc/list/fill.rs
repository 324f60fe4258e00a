//! Objects of the next message of a List, read from the snapshot.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use super::{Filled, ListBody};
use crate::{
    grpc::{
        encoder::{Failed, ObjectField, SLICE_BYTES, is_costly},
        frame::{self, CHUNK_BYTES},
        time_slice::TimeSlice,
    },
    model::{MAX_MESSAGE_BYTES, Object},
    proto::PayloadFormat,
    transport::Room,
};

// === impl ListBody ===

impl ListBody {
    /// Encodes the next objects, until the message is large enough, the page ends, or the slice of time is over.
    pub(super) fn fill(&mut self, cx: &mut Context<'_>, room: Room, slice: &TimeSlice) -> Filled {
        if !room.allows(self.bytes) {
            // There was room for these objects when they were encoded.
            return Filled::Nothing(self.bytes);
        }
        let snapshot = Arc::clone(&self.snapshot);
        let after = self.position.last_checked.take();
        let scan = Arc::clone(&self.scan);
        let mut objects = scan.objects(&snapshot, after.as_ref());
        let (mut last, mut sent, mut is_page_full) = (None, None, false);
        let mut filled = Filled::Some;
        let mut encoded_objects = 0;
        let rest = self.head_bytes();
        let chunk = CHUNK_BYTES.saturating_sub(rest).min(room.bytes);
        let selects_all = self.selection.selects_all();
        // Nearly always, another client has had these objects encoded: a bound of their size is enough.
        let is_bound_enough =
            self.compressed.is_some() && self.format.payload == PayloadFormat::Raw && !is_costly(&self.format);
        loop {
            let Some(object) = objects.next() else {
                filled = Filled::All;
                break;
            };
            if selects_all || self.selection.matches_counted(object, &mut self.position.ahead) {
                if self.room == Some(0) {
                    is_page_full = true;
                    filled = Filled::All;
                    break;
                }
                let Self { next, format, service, caller, .. } = self;
                let field = if is_bound_enough && object.body().len() <= SLICE_BYTES {
                    None
                } else {
                    let encoder = (service.encoder(), *caller, frame::OBJECTS);
                    match next.field(cx, object, format, service.structs(), encoder) {
                        Poll::Ready(Ok(field)) => Some(field),
                        Poll::Ready(Err(Failed)) => {
                            filled = Filled::Failed;
                            break;
                        }
                        Poll::Pending => {
                            filled = Filled::Waiting;
                            break;
                        }
                    }
                };
                let length = field.as_ref().map_or(object.max_raw_len(), ObjectField::len);
                let (is_first, held) = (self.bytes == 0, self.bytes + length);
                if if is_first { !room.allows(held) } else { held > chunk } {
                    // The object is checked again for the next message.
                    filled = if is_first { Filled::Nothing(held) } else { Filled::Enough };
                    break;
                }
                if is_first && held > MAX_MESSAGE_BYTES - rest {
                    // The namespaces, which only the first message has, are a message without objects.
                    filled = Filled::Enough;
                    break;
                }
                if self.compressed.is_some() {
                    self.collected.push(Arc::clone(object));
                }
                if let Some(field) = field.filter(|_| self.compressed.is_none() || self.format.view.is_some()) {
                    self.objects.reserve(length);
                    field.write(&mut self.objects);
                }
                self.next.clear();
                self.bytes = held;
                self.room = self.room.map(|room| room - 1);
                self.position.send();
                sent = Some(object);
                encoded_objects += 1;
            }
            last = Some(object);
            if self.bytes >= chunk {
                filled = Filled::Enough;
                break;
            }
            if slice.is_over() {
                break;
            }
        }
        if let Some(audited) = &self.audited {
            audited.sends(encoded_objects);
        }
        let key = |object: &Arc<Object>| object.key().clone();
        self.position.sent = sent.map(key).or(self.position.sent.take());
        self.position.last_checked = last.map(key).or(after);
        if is_page_full {
            self.next_page_token = self.next_page_token();
        }
        filled
    }
}
