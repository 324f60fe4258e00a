//! Variables of an expression.

use bytes::Bytes;

/// Event as a [`Condition`](super::Condition) receives it.
#[derive(Clone, Copy, Debug)]
pub struct EventView<'a> {
    /// `type`: one of the constants here.
    pub event_type: &'a str,
    /// `object`: its JSON body; null without one.
    pub body: Option<&'a Bytes>,
    /// `count`: number of objects after this event; missing while unknown.
    pub count: Option<u64>,
}

pub(super) const OBJECT: &str = "object";
pub(super) const TYPE: &str = "type";
pub(super) const COUNT: &str = "count";

// === impl EventView ===

impl EventView<'_> {
    /// The object was created, or is new to the watcher.
    pub const ADDED: &'static str = "ADDED";
    /// The object was changed.
    pub const MODIFIED: &'static str = "MODIFIED";
    /// The object was deleted, or left the watcher's selection.
    pub const DELETED: &'static str = "DELETED";
    /// End of the initial events.
    pub const SYNCED: &'static str = "SYNCED";
}
