//! Watch: outside the generated trait, because its frames are encoded once for all watchers, and a stock codec would encode
//! (or copy) them for each.
//!
//! A call is opened (`open.rs`: the request is checked and joined), then its body (`body.rs`) is polled by the
//! connection: initial events from the snapshot, then frames from the cursor, with bookmarks in between. There is no task and
//! no queue of its own: HTTP/2's flow control is what slows a cursor down.

mod body;
mod initial_events;
mod open;
mod timer;

pub(super) use open::{open, open_with};
