//! The Watch call. It bypasses the generated trait: its frames are encoded once for all watchers, and a stock codec would encode
//! (or copy) them for each.
//!
//! `open.rs` checks the request and joins the watch; then the connection polls its body (`body.rs`): initial events from the
//! snapshot, then frames from the cursor, with bookmarks in between. A watch has neither a task nor a queue of its own: HTTP/2
//! flow control slows down its cursor.

mod body;
mod initial_events;
mod open;
#[cfg(test)]
pub(super) mod tests;
mod timer;

#[cfg(feature = "kubernetes-api")]
pub(super) use self::open::open_lines;
#[cfg(feature = "kubernetes-api")]
pub(crate) use self::open::{LastChange, LineOptions};
pub(super) use self::{
    body::{AttachedWatch, Detached, LaneKey, Standing, WatchBody},
    open::{access, open, open_with},
    timer::BookmarkTimer,
};
