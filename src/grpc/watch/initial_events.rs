//! The state at which a watch joined, as events, piece by piece.

use bytes::BytesMut;

use super::{
    super::{frame, scan::Scan},
    body::{CHUNK_BYTES, SCAN_OBJECTS},
};
use crate::{
    cache::Snapshot,
    model::{Cause, EventType, ObjectKey, Selection},
    planted::planted,
    proto::{EncodedEvent, EncodedObject, PayloadFormat, Structs},
};

/// The objects that are still to be sent, pulled from the snapshot at the client's own pace.
#[derive(Debug)]
pub(super) struct InitialEvents {
    snapshot: Snapshot,
    scan: Scan,
    looked_at: Option<ObjectKey>,
}

// === impl InitialEvents ===

impl InitialEvents {
    /// Those of a selection, from the first on.
    pub(super) fn new(snapshot: Snapshot, selection: &Selection) -> Self {
        Self { snapshot, scan: Scan::of(selection), looked_at: None }
    }

    /// The next initial events, encoded, how many they are, and whether they were the last.
    pub(super) fn next(
        &mut self,
        selection: &Selection,
        format: PayloadFormat,
        structs: &Structs,
    ) -> (BytesMut, u64, bool) {
        let (mut buffer, mut events) = (BytesMut::new(), 0);
        let after = self.looked_at.take();
        let mut objects = self.scan.objects(&self.snapshot, after.as_ref());
        for _ in 0..SCAN_OBJECTS {
            let Some(object) = objects.next() else { return (buffer, events, true) };
            if selection.matches(object) || planted!(InitialEventsAreNotSelected) {
                let object = EncodedObject::shared(object, object.version(), format, structs);
                let event = EncodedEvent::new(EventType::Added, Cause::Initial, None, object, 0);
                frame::append_event(&mut buffer, &event);
                events += 1;
            }
            self.looked_at = Some(object.key().clone());
            if buffer.len() >= CHUNK_BYTES {
                if planted!(SkippedAtAChunkBoundary)
                    && let Some(skipped) = objects.next()
                {
                    self.looked_at = Some(skipped.key().clone());
                }
                break;
            }
        }
        (buffer, events, false)
    }
}
