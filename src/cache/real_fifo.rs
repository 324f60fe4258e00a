//! The ordered queue between Reflector and informer.
//!
//! client-go's `RealFIFO` in its atomic form (SEMANTICS 3.3): deltas in the order of their arrival, no grouping by key, no
//! deduplication, deletions of unknown keys too, and a Replace as one element: the consumer computes the difference
//! against its own store when it gets there. Pushed by the Reflector, popped by the informer; bounded in events and bytes,
//! so that an informer that stands still holds its upstream back.

use std::collections::VecDeque;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::List;
use crate::model::Event;

/// What a Reflector found out.
#[derive(Debug, Clone)]
pub enum Delta {
    /// A whole list, which replaces everything.
    Replace(List),
    /// One event of a watch.
    Event(Event),
    /// The events of one transaction of the upstream, all at one version: nobody gets to resume in between.
    Transaction(Vec<Event>),
}

/// The bounds of a [`RealFifo`]. One element is always taken, however large it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FifoBounds {
    /// Elements.
    pub events: usize,
    /// Bytes of bodies; a Replace counts as none, because its size is the upstream's.
    pub bytes: usize,
}

/// The queue. One task pushes and one pops.
#[derive(Debug)]
pub struct RealFifo {
    bounds: FifoBounds,
    state: Mutex<State>,
    pushed: Notify,
    popped: Notify,
}

#[derive(Debug, Default)]
struct State {
    deltas: VecDeque<Delta>,
    bytes: usize,
    closed: bool,
}

// === impl RealFifo ===

impl RealFifo {
    /// An empty queue.
    pub fn new(bounds: FifoBounds) -> Self {
        Self { bounds, state: Mutex::default(), pushed: Notify::new(), popped: Notify::new() }
    }

    /// Appends a delta, after waiting for room. A closed queue takes it too: closing only ends an empty queue.
    ///
    /// # Cancel safety
    ///
    /// When the future is dropped before it is ready, the delta was not queued.
    pub async fn push(&self, delta: Delta) {
        let mut delta = Some(delta);
        loop {
            let popped = self.popped.notified();
            // Woken when the lock is free, as everywhere.
            if self.state.lock().push(&mut delta, self.bounds) {
                self.pushed.notify_one();
                return;
            }
            popped.await;
        }
    }

    /// Removes up to `max_events` deltas and about `max_bytes` of them from the front, but at least one; a Replace comes
    /// alone. `None` once the queue is closed and empty.
    ///
    /// # Cancel safety
    ///
    /// Nothing is removed unless it is returned.
    pub async fn pop_batch(&self, max_events: usize, max_bytes: usize) -> Option<Vec<Delta>> {
        loop {
            let pushed = self.pushed.notified();
            let (batch, is_closed) = {
                let mut state = self.state.lock();
                (state.pop_batch(max_events, max_bytes), state.closed)
            };
            if !batch.is_empty() {
                self.popped.notify_one();
                return Some(batch);
            }
            if is_closed {
                return None;
            }
            pushed.await;
        }
    }

    /// Lets [`RealFifo::pop_batch`] end once everything has been popped.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.pushed.notify_one();
    }

    /// How many deltas wait.
    pub fn len(&self) -> usize {
        self.state.lock().deltas.len()
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

// === impl State ===

impl State {
    /// Takes the delta if there is room for it. Whether it did.
    fn push(&mut self, delta: &mut Option<Delta>, bounds: FifoBounds) -> bool {
        let has_room = self.deltas.len() < bounds.events && self.bytes < bounds.bytes;
        let Some(delta) = delta.take_if(|_| has_room || self.deltas.is_empty()) else { return false };
        self.bytes += delta.weight();
        self.deltas.push_back(delta);
        true
    }

    fn pop_batch(&mut self, max_events: usize, max_bytes: usize) -> Vec<Delta> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some(delta) = self.deltas.front() {
            let is_full = batch.len() >= max_events.max(1) || bytes >= max_bytes;
            if !batch.is_empty() && (is_full || delta.is_replace()) {
                break;
            }
            bytes += delta.weight();
            let is_replace = delta.is_replace();
            batch.extend(self.deltas.pop_front());
            if is_replace {
                break;
            }
        }
        self.bytes -= bytes;
        batch
    }
}

// === impl Delta ===

impl Delta {
    fn weight(&self) -> usize {
        match self {
            Self::Replace(_) => 0,
            Self::Event(event) => event.weight(),
            Self::Transaction(events) => events.iter().map(Event::weight).sum(),
        }
    }

    fn is_replace(&self) -> bool {
        matches!(self, Self::Replace(_))
    }
}

impl Default for FifoBounds {
    fn default() -> Self {
        Self { events: 1024, bytes: 16 << 20 }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bytes::Bytes;
    use tokio_test::{assert_pending, assert_ready, task::spawn};

    use super::*;
    use crate::model::{Object, ResourceVersion};

    fn object(name: &str, version: u128) -> Arc<Object> {
        let version = ResourceVersion::decimal(version);
        Arc::new(Object::from_json(Bytes::from_static(b"{\"a\":1}"), name, version).unwrap())
    }

    fn replace(version: u128) -> Delta {
        Delta::Replace(List { objects: Vec::new(), version: ResourceVersion::decimal(version) })
    }

    fn versions(batch: &[Delta]) -> Vec<String> {
        let text = |delta: &Delta| match delta {
            Delta::Replace(list) => format!("replace {}", list.version),
            Delta::Event(event) => event.version().to_string(),
            Delta::Transaction(_) => unreachable!("none is pushed"),
        };
        batch.iter().map(text).collect()
    }

    /// `TestRealFIFO_basic`, `_addUpdate`, `_detectLineJumpers`, `_enqueueingNoLister`: arrival order, no grouping by key,
    /// no deduplication, deletions of unknown keys as well.
    #[tokio::test]
    async fn deltas_come_out_in_the_order_of_their_arrival() {
        let fifo = RealFifo::new(FifoBounds::default());
        for event in [
            Event::Added(object("foo", 10)),
            Event::Added(object("bar", 1)),
            Event::Modified(object("foo", 11)),
            Event::Modified(object("foo", 13)),
            Event::Deleted(object("unknown", 30)),
            Event::Deleted(object("unknown", 30)),
        ] {
            fifo.push(Delta::Event(event)).await;
        }
        let batch = fifo.pop_batch(100, usize::MAX).await.unwrap();
        assert_eq!(versions(&batch), ["10", "1", "11", "13", "30", "30"]);
    }

    /// `TestRealFIFO_ReplaceAtomicPop`, `_PopMultipleDeltaInBatch`: where a batch ends.
    #[tokio::test]
    async fn a_batch_ends_at_its_bounds_and_a_replace_comes_alone() {
        let fifo = RealFifo::new(FifoBounds::default());
        for version in 1..=5 {
            fifo.push(Delta::Event(Event::Modified(object("a", version)))).await;
        }
        fifo.push(replace(6)).await;
        fifo.push(replace(7)).await;
        fifo.push(Delta::Event(Event::Bookmark(ResourceVersion::decimal(8)))).await;
        let mut batches = Vec::new();
        while !fifo.is_empty() {
            batches.push(versions(&fifo.pop_batch(3, usize::MAX).await.unwrap()).join(" "));
        }
        assert_eq!(batches, ["1 2 3", "4 5", "replace 6", "replace 7", "8"]);

        for version in 1..=3 {
            fifo.push(Delta::Event(Event::Modified(object("a", version)))).await;
        }
        assert_eq!(fifo.pop_batch(100, 8).await.unwrap().len(), 2, "by bytes: each body has 7");
    }

    /// `TestRealFIFO_PopShouldUnblockWhenClosed`, and a closed queue still drains.
    #[tokio::test]
    async fn closing_ends_an_empty_queue_and_not_before() {
        let fifo = RealFifo::new(FifoBounds::default());
        let mut pop = spawn(fifo.pop_batch(1, 1));
        assert_pending!(pop.poll());
        fifo.close();
        assert!(pop.is_woken());
        assert!(assert_ready!(pop.poll()).is_none());
        fifo.push(replace(1)).await;
        assert_eq!(fifo.pop_batch(1, 1).await.unwrap().len(), 1);
        assert!(fifo.pop_batch(1, 1).await.is_none());
    }

    #[tokio::test]
    async fn a_full_queue_holds_its_producer_back_and_a_cancelled_push_queues_nothing() {
        let fifo = RealFifo::new(FifoBounds { events: 1, bytes: 1 });
        fifo.push(replace(1)).await;
        {
            let mut cancelled = spawn(fifo.push(replace(2)));
            assert_pending!(cancelled.poll());
        }
        let mut push = spawn(fifo.push(Delta::Event(Event::Added(object("larger than the bound", 3)))));
        assert_pending!(push.poll());
        assert_eq!(versions(&fifo.pop_batch(9, 9).await.unwrap()), ["replace 1"]);
        assert!(push.is_woken());
        assert_ready!(push.poll());
        assert_eq!(versions(&fifo.pop_batch(9, 9).await.unwrap()), ["3"]);
    }
}
