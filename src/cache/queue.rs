//! Queues of objects by key: client-go's `Queue`.
//!
//! ```text
//!                        ┌──────────── KeyQueue ────────────┐
//!   add, replace, … ──▶  │ line of keys ──▶ in processing ──┼──▶ done
//!   waits if it is full  │      ▲                  │        │
//!                        │      └── Requeue, panic, dropped │
//!                        └──────────────────────────────────┘
//! ```
//!
//! - A [`Fifo`] hands out the newest object of a key, a [`DeltaFifo`] the deltas of a key since it was handed out last.
//! - Any number of tasks may pop. A key in processing is not handed out again until that is over: its next item waits.
//! - A [`WorkQueue`] has keys alone, with delays and priorities, for workers that look up the objects.
//! - Nothing is lost: if the future of [`Queue::pop`] is dropped or its function panics, the item returns to its place.

mod delta_fifo;
mod deltas;
mod fifo;
mod key_queue;
mod work_queue;

pub use self::{
    delta_fifo::{DeltaFifo, DeltaFifoOptions, KnownObjects},
    deltas::{Deltas, ObjectDelta, Tombstone},
    fifo::Fifo,
    work_queue::{
        AddOptions, BucketRateLimiter, ExponentialRateLimiter, MaxOfRateLimiter, RateLimiter, WorkItem, WorkKey,
        WorkQueue, WorkQueueConfig, WorkQueueFull, WorkQueueStats,
    },
};
use super::{KeyError, Store};

/// Store whose items are handed out in the order in which their keys were queued.
///
/// [`Store::add`], [`Store::update`] and [`Queue::add_if_not_present`] of a key that is neither queued nor in processing wait while
/// 1,024 others are queued, and the deletions that a [`DeltaFifo`] queues do, too; [`Store::replace`] and [`Store::resync`] never wait.
/// So a function that [`Queue::pop`] calls must not wait for the addition of another key to the same queue.
pub trait Queue: Store {
    /// Waits for an item, removes it, and calls `process` with it, and with true if it belongs to the first batch. Returns the item
    /// once the future of `process` is ready.
    ///
    /// A closed queue first hands out everything that it has.
    ///
    /// # Errors
    ///
    /// If the queue is closed and has nothing queued or in processing, or if `process` returns an error.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, or `process` panics, the item returns to the front of the queue, together with what was queued for
    /// its key since. An object of a [`Fifo`] that was replaced or deleted since does not return.
    fn pop<P, F, E>(&self, process: P) -> impl Future<Output = Result<Self::Item, PopError<Self::Item, E>>> + Send
    where
        P: FnOnce(Self::Item, bool) -> F + Send,
        F: Future<Output = Result<(), ProcessError<E>>> + Send,
        E: Send;

    /// Queues an item if nothing is queued for its key.
    fn add_if_not_present(&self, item: Self::Item) -> impl Future<Output = Result<(), KeyError>> + Send;

    /// Returns the key of an item.
    fn key_of_item(&self, item: &Self::Item) -> Result<Self::Key, KeyError>;

    /// Returns true once the first batch has been processed: the items of the first [`Store::replace`], or nothing if there was an
    /// addition, an update or a deletion before it, also one that changed nothing.
    fn has_synced(&self) -> bool;

    /// Ends [`Queue::pop`] once everything has been handed out, and the waiting of additions: a closed queue accepts them.
    fn close(&self);

    /// Returns true once the queue is closed.
    fn is_closed(&self) -> bool;
}

/// Error of the function that processes an item.
#[doc(alias = "ErrRequeue")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ProcessError<E> {
    /// Puts the item back at the end, unless something newer is queued for its key. [`Queue::pop`] fails with the error, if there is
    /// one.
    Requeue(Option<E>),
    /// The item is gone, and [`Queue::pop`] fails with the error.
    Failed(E),
}

/// Reason why [`Queue::pop`] has no processed item.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PopError<I, E> {
    /// Closed queue with nothing queued or in processing.
    #[error("the queue is closed")]
    Closed,
    /// Error of an item that was put back.
    #[error("{0}")]
    Requeued(E),
    /// Error of an item that is gone from the queue.
    #[error("{error}")]
    Failed {
        /// Item.
        item: I,
        /// Error of its processing.
        error: E,
    },
}

// === impl ProcessError ===

impl<E> From<E> for ProcessError<E> {
    fn from(error: E) -> Self {
        Self::Failed(error)
    }
}

#[cfg(test)]
mod tests;
