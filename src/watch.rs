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
//! - A format may suppress a MODIFIED that changes nothing in it: the change takes no place in the log, and is counted. It is
//!   decided from the two states of the change alone, so it is the same live, in a replay, and after a resume.
//! - A client's queue is its position in the group's log. Its length is a subtraction; the [`FullChannelPolicy`] decides
//!   what follows when it is full (`policy`).
//! - Under COALESCE, separate threads merge all that a full queue holds, from the published batches and not from the log.
//! - A group's log keeps what its cursors have not read, within the [`Retention`].
//! - A client that lags behind the logs reads from a history, encoded once for all clients at the same position:
//!   [`Backfill`].
//! - No event is silently lost. A cursor yields every event of its selection in order, or reports how many are missing and
//!   after which version, or ends with a reason.
//!
//! Not here: the origin of the events (`cache`) and the form of a frame on the wire (`grpc`). This module is generic over
//! the [`Frame`]; [`Deliveries`] is that of watches in the same process ([`InformerWatch`](crate::cache::InformerWatch)).
//!
//! Independent of the rest: small watches ([`EmptyWatch`], [`ProxyWatcher`], [`StreamWatcher`], [`Recorder`]), and [`until()`].
//!
//! # From apimachinery's names
//!
//! | `k8s.io/apimachinery/pkg/watch`, and `k8s.io/client-go/tools/watch` | here |
//! |---|---|
//! | `Interface` | any [`Stream`](tokio_stream::Stream); dropping it is `Stop` |
//! | `Event`, `EventType` | [`model::Event`](crate::model::Event), [`model::EventType`](crate::model::EventType) |
//! | `Broadcaster`, `NewBroadcaster` | [`Broadcaster`]; a watcher is a [`Cursor`] |
//! | `FullChannelBehavior` | [`FullChannelPolicy`], per watcher |
//! | `Filter` | `StreamExt::filter_map`; to select objects, a [`Selection`](crate::model::Selection), which also translates events |
//! | `NewEmptyWatch` | [`EmptyWatch`] |
//! | `ProxyWatcher` | [`ProxyWatcher`] |
//! | `Recorder` | [`Recorder`] |
//! | `StreamWatcher`, `Decoder` | [`StreamWatcher`], [`Decoder`] |
//! | `Until`, `UntilWithoutRetry`, `ConditionFunc` | [`until()`], a closure |
//! | `RetryWatcher` | `client::Watch` |
//! | `UntilWithSync` | `client::Client::until` |
//! | `FakeWatcher`, `RaceFreeFakeWatcher` | the same in `testing` |
//!
//! There is no trait for `Interface`, and no adaptor for `Filter`:
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! use informerd::watch::ProxyWatcher;
//! use tokio_stream::StreamExt;
//!
//! let (sender, receiver) = tokio::sync::mpsc::channel(4);
//! let watch = ProxyWatcher::new(receiver);
//! for event in ["foo", "bar", "baz", "qux"] {
//!     sender.send(event).await.unwrap();
//! }
//!
//! // Filter: what the closure returns passes, changed or not.
//! let mut filtered = watch.filter_map(|event| (!event.starts_with('b')).then(|| event.to_uppercase()));
//! assert_eq!(filtered.next().await.as_deref(), Some("FOO"));
//! assert_eq!(filtered.next().await.as_deref(), Some("QUX"));
//!
//! // Stop: every adaptor drops the watch that it holds.
//! drop(filtered);
//! assert!(sender.is_closed());
//! # }
//! ```

mod backfill;
mod broadcaster;
mod budget;
mod bulk;
mod coalesce;
mod config;
mod cursor;
mod empty;
mod encoding;
mod filler;
mod frame;
mod group;
mod histogram;
mod history;
mod merger;
mod policy;
mod proxy;
mod recorder;
mod replay;
mod routes;
mod run;
mod selected;
mod selection_budget;
mod stream_watcher;
mod until;
mod window;
mod writer_signals;

pub use backfill::{Backfill, BacklogReader};
pub use broadcaster::{Broadcaster, Subscribe};
pub use budget::Client;
pub use bulk::BulkThreads;
#[cfg(test)]
pub(crate) use bulk::PlannedPanic;
#[cfg(feature = "server")]
pub(crate) use bulk::Work as BulkWork;
pub use config::{BroadcasterConfig, BroadcasterStats, MAX_QUEUE_LENGTH, Retention};
pub use cursor::{Cursor, CursorGauge, Taken, TooLarge, Waiting};
pub use empty::EmptyWatch;
pub use frame::{Deliveries, Delivery, Frame, Frames, GroupEvent};
pub use histogram::{DURATION_BOUNDS, DurationHistogram};
pub use history::{Backlog, LaneEvent, Past, PastGauge, Read, Reader, SelectedBatch};
pub(crate) use history::{History, NotInHistory, bytes_of};
pub use policy::{CursorState, End, FullChannelPolicy, QueueOptions};
pub use proxy::{ProxyWatcher, StopHandle};
pub use recorder::{Record, Recorder};
pub use replay::Replay;
#[cfg(test)]
pub(crate) use selection_budget::Stepped;
pub use stream_watcher::{DecodeError, Decoder, StreamWatcher, UndecodableEvent};
pub use until::{Until, UntilError, until};

#[cfg(test)]
pub(crate) mod tests;
