//! Distribution: one writer publishes batches, any number of cursors read them, each at its own pace.
//!
//! ```text
//!   publish ──▶ select and translate, once per group ──▶ encode, once per format and variant ──▶ arena
//!                                                                                                │ runs (slices)
//!   Cursor ◀── position in the group's log ◀── one short lock ◀──────────────────────── group's log
//! ```
//!
//! - The [`Broadcaster`] is owned by one task; that it is `&mut self` orders subscribing with publishing, which is how
//!   apimachinery's Broadcaster joins a new watcher exactly (`blockQueue`).
//! - Watchers with the same selection and format form a group. What they are sent is computed and encoded once. A change
//!   is routed to the groups that its name, its namespace or its index values may concern; the others are not asked.
//! - Selections that have to be asked about every change, and expressions, have a bounded share of the writer. A group that
//!   does not fit is deferred: threads of their own fill its log, until it fits again or has not kept up with the history.
//! - The queue of a client is its position in the group's log; a full queue is a subtraction, and the
//!   [`FullChannelPolicy`] says what follows.
//! - Under COALESCE all that a full queue holds merges, from what was published and not from the log, by threads of their own.
//! - A group's log keeps what its cursors have not read, and nothing past the [`Retention`].
//! - What lies behind the logs a client is told from a history, encoded once for all that are at the same place:
//!   [`Backfill`].
//! - Nothing is silently lost: a cursor yields every event of its selection in order, or says how many are missing and
//!   after which version, or ends with a reason.
//!
//! Deliberately not here: where the events come from (`cache`), and what a frame looks like on the wire (`grpc`): the
//! engine is generic over the [`Frame`]. [`Deliveries`] is the frame for users of the library.
//!
//! Also here, and apart from all that: [`StreamWatcher`], a byte stream as an upstream watch.

mod backfill;
mod broadcaster;
mod budget;
mod bulk;
mod coalesce;
mod cursor;
mod encoding;
mod filler;
mod frame;
mod group;
mod merger;
mod policy;
mod replay;
mod room;
mod routes;
mod run;
mod selection_budget;
mod stream_watcher;
mod until;
mod window;

pub use backfill::{Backfill, BacklogReader};
pub use broadcaster::{Broadcaster, BroadcasterStats, Subscribe};
pub use budget::Client;
pub use bulk::BulkThreads;
pub use cursor::{Cursor, CursorGauge, Frames, Taken, TooLarge};
pub use frame::{Deliveries, Delivery, Frame, Notice};
pub use policy::{BroadcasterConfig, CursorState, End, FullChannelPolicy, QueueOptions, Retention};
pub use replay::Replay;
#[cfg(test)]
pub(crate) use selection_budget::Stepped;
pub use stream_watcher::{DecodeError, Decoder, StreamWatcher, UndecodableEvent};
pub use until::Until;

#[cfg(test)]
mod tests;
