//! Distribution of events: one writer publishes batches, and any number of cursors read them, each at its own pace.
//!
//! ```text
//!   publish ──▶ history, offset ──▶ wakes the cursors that a change may concern
//!                   ▲
//!   Cursor ──▶ its position: selects, and encodes once for all cursors of the same selection and format there
//! ```
//!
//! - The history of a resource is its only past, addressed by offset. One task owns the [`Broadcaster`]: it records batches, publishes
//!   their end, and wakes. It encodes nothing, and evaluates a selection only to spare a wake-up. It routes a change only to the cursors
//!   that its name, namespace, labels or values of fields and indexes may concern.
//! - A [`Cursor`] is a position. What follows it in a selection and a format is a block, which the first cursor there makes for all.
//!   Expressions and costly formats are left to threads.
//! - A format may suppress a MODIFIED that changes nothing in it: the change is counted. It is
//!   decided from the two states of the change alone, so it is the same live, in a replay, and after a resume.
//! - A client's queue is the part of the history that it has not taken. The number of changes is an upper bound of its length; beyond
//!   that its events are counted, and the [`FullChannelPolicy`] decides what follows when it is full (`policy`, `queue`).
//! - The history keeps what a queue under DROP or COALESCE needs until it is counted or merged, within twice its bounds.
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

mod blocks;
mod broadcaster;
mod budget;
mod bulk;
mod coalesce;
mod config;
mod cursor;
mod cursors;
mod empty;
mod frame;
mod histogram;
mod history;
mod policy;
mod proxy;
mod queue;
mod recorder;
mod replay;
mod routes;
mod shared;
mod stream_watcher;
mod until;
mod writer_signals;

pub use broadcaster::Broadcaster;
pub use budget::Client;
pub use bulk::BulkThreads;
#[cfg(feature = "server")]
pub(crate) use bulk::Work as BulkWork;
#[cfg(test)]
pub(crate) use bulk::{PlannedPanic, Stepped};
pub use config::{BroadcasterConfig, BroadcasterStats, MAX_QUEUE_LENGTH, Retention};
pub use cursor::{Cursor, CursorGauge, Taken, TooLarge};
pub(crate) use cursors::Cursors;
pub use cursors::Subscribe;
pub use empty::EmptyWatch;
pub use frame::{Deliveries, Delivery, Frame, Frames, GroupEvent};
pub use histogram::{DURATION_BOUNDS, DurationHistogram};
#[cfg(feature = "server")]
pub(crate) use history::wake_task;
pub use history::{Backlog, LaneEvent, Past, PastGauge, Read, Reader, SelectedBatch};
pub(crate) use history::{History, NotInHistory, bytes_of};
pub use policy::{CursorState, End, FullChannelPolicy, QueueOptions};
pub use proxy::{ProxyWatcher, StopHandle};
pub use recorder::{Record, Recorder};
pub use replay::Replay;
pub use stream_watcher::{DecodeError, Decoder, StreamWatcher, UndecodableEvent};
pub use until::{Until, UntilError, until};

#[cfg(test)]
pub(crate) mod tests;
