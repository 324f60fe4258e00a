//! Distribution of events: one writer publishes batches, and any number of cursors read them, each at its own pace.
//!
//! ```text
//!   publish ──▶ select and translate, once per group ──▶ encode, once per format and variant ──▶ arena
//!                                                                                                │ runs (slices)
//!   Cursor ◀── position in the group's log ◀── one short lock ◀──────────────────────── group's log
//! ```
//!
//! - One task owns the [`Broadcaster`]. Subscribing and publishing both take `&mut self`, which orders them; apimachinery's
//!   Broadcaster orders them with `blockQueue`.
//! - Watchers with the same selection and format form a group. The writer selects and encodes a group's events once. It
//!   routes a change only to the groups that its name, namespace, labels or values of fields and indexes may concern.
//! - Expressions, and selections that must be evaluated for every change, have a bounded share of the writer's time. A
//!   group that does not fit is deferred: separate threads fill its log, until it fits again or ends because it has not
//!   kept up with the history.
//! - A client's queue is its position in the group's log. Its length is a subtraction; the [`FullChannelPolicy`] decides
//!   what follows when it is full.
//! - Under COALESCE, separate threads merge all that a full queue holds, from the published batches and not from the log.
//! - A group's log keeps what its cursors have not read, within the [`Retention`].
//! - A client that lags behind the logs reads from a history, encoded once for all clients at the same position:
//!   [`Backfill`].
//! - No event is silently lost. A cursor yields every event of its selection in order, or reports how many are missing and
//!   after which version, or ends with a reason.
//!
//! Not here: the origin of the events (`cache`) and the form of a frame on the wire (`grpc`). This module is generic over
//! the [`Frame`]; [`Deliveries`] is the frame for users of the library.
//!
//! Independent of the rest: [`StreamWatcher`], a byte stream as an upstream watch.

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
