//! Events as lines of text, for clients of another protocol than gRPC. The protocol's own module has the encoders.

use std::{
    fmt,
    hash::{Hash, Hasher},
    sync::Arc,
};

use bytes::BytesMut;

use super::{PayloadFormat, pb};
use crate::model::{Cause, EventType, Object, ResourceVersion};

/// Encoder of events as lines of text.
pub trait LineEncoder: fmt::Debug + Send + Sync + 'static {
    /// Appends the line of an event.
    fn event(&self, event: &LineEvent<'_>, buffer: &mut BytesMut);

    /// Appends the lines of a message that is no event of an object: a bookmark, a gap or an error; perhaps none.
    fn message(&self, message: &pb::WatchResponse, bookmarks: BookmarkLines, buffer: &mut BytesMut);
}

/// Event of an object.
#[derive(Debug, Clone, Copy)]
pub struct LineEvent<'a> {
    /// Type of the event.
    pub event_type: EventType,
    /// Cause of the event.
    pub cause: Cause,
    /// Object; the last state of a deleted one.
    pub object: &'a Object,
    /// Version of the object after the event, from which a client that has no other version resumes.
    pub version: &'a ResourceVersion,
    /// Version of the change itself.
    pub change_version: &'a ResourceVersion,
    /// Version that is safe to resume from after the event: that before its batch, inside one; none for an initial event.
    pub safe_version: Option<&'a ResourceVersion>,
    /// Number of further events that this one stands for.
    pub coalesced: u32,
    /// Part of the object that the client may read.
    pub payload: PayloadFormat,
}

/// Bookmarks that a client reads.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BookmarkLines {
    /// True if it reads any.
    pub is_wanted: bool,
    /// True if it waits for the one at the end of the initial events.
    pub marks_end: bool,
}

/// Encoder that watches share. Those with the same encoder are of one group, and share its lines.
#[derive(Debug, Clone)]
pub struct LineFormat(pub Arc<dyn LineEncoder>);

// === impl LineFormat ===

impl PartialEq for LineFormat {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for LineFormat {}

impl Hash for LineFormat {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).cast::<()>().hash(state);
    }
}
