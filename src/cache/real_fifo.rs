//! Ordered queue between Reflector and informer.
//!
//! client-go's `RealFIFO` in its atomic form: deltas in order of arrival, without grouping by key or deduplication, deletions
//! of unknown keys included. A Replace is one delta; the informer computes the difference to its store when it pops it. The
//! Reflector pushes, the informer pops. The queue is bounded in deltas and bytes, so that a blocked informer holds its upstream
//! back.

use std::{collections::VecDeque, convert::Infallible};

use bytes::Bytes;
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::{
    sync::{Notify, oneshot},
    time::Instant,
};

use super::{Checkpoint, List};
use crate::model::{Cause, Event, ResourceVersion};

/// Result of a list or a watch of the Reflector, or a request for a checkpoint.
#[derive(Debug)]
pub enum Delta {
    /// Whole list, which replaces everything.
    Replace(List),
    /// First list after the upstream has proved that its history was rewritten.
    HistoryRewritten(List),
    /// Events up to one version, in upstream order: no watch resumes between them. The last one has that version.
    Changes {
        /// Events, at least one.
        events: Events,
        /// True if no further event comes at this version.
        closes: bool,
    },
    /// Request for a checkpoint; no change.
    Checkpoint {
        /// Proof of the history up to here.
        proof: Bytes,
        /// Receiver of the checkpoint; dropped if there is no state.
        reply: oneshot::Sender<Checkpoint>,
    },
    /// Result of a relist by the upstream itself, or of a transaction that follows one silently, up to the version of the last
    /// event, with the cause of the deletions. Other changes in between are unknown.
    Relist(Vec<Event>, Cause),
}

/// Events of one [`Delta`]. Nearly always there is one, which takes no allocation.
pub type Events = SmallVec<[Event; 1]>;

/// Bounds of a [`RealFifo`]. It always takes one delta, however large.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FifoBounds {
    /// Number of deltas.
    pub deltas: usize,
    /// Bytes of bodies. A list counts as none: the upstream determines its size.
    pub bytes: usize,
}

/// Queue with one pushing and one popping task.
#[doc(alias = "RealFIFO")]
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
    /// Number of lists, each of which is popped alone.
    lists: usize,
    closed: bool,
    /// Deltas and bytes that the informer waits for before it is woken.
    gathers: Option<(usize, usize)>,
    /// Number of deltas before the measured one, and the time at which that was queued. There is at most one, so that the clock is
    /// read once for each publish cycle.
    measured: Option<(usize, Instant)>,
    /// Time at which the measured delta of the last cycle was queued.
    received: Option<Instant>,
}

// === impl RealFifo ===

impl RealFifo {
    /// Makes an empty queue.
    pub fn new(bounds: FifoBounds) -> Self {
        Self { bounds, state: Mutex::default(), pushed: Notify::new(), popped: Notify::new() }
    }

    /// Appends a delta, after waiting for space. A closed queue takes it too: closing only ends an empty queue.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before it is ready, the delta was not queued.
    pub async fn push(&self, delta: Delta) {
        match self.append(delta).await {
            Ok(()) => {}
        }
    }

    /// Does the same, as the store of a Reflector: each further future around it would copy the delta.
    pub(super) async fn append(&self, delta: Delta) -> Result<(), Infallible> {
        let mut delta = Some(delta);
        loop {
            let popped = self.popped.notified();
            // The wake-up follows the release of the lock, as everywhere.
            let is_enough = self.state.lock().push(&mut delta, self.bounds);
            if let Some(is_enough) = is_enough {
                if is_enough {
                    self.pushed.notify_one();
                }
                return Ok(());
            }
            popped.await;
        }
    }

    /// Removes up to `max_deltas` from the front, until they have `max_bytes`, and at least one; a list is popped alone.
    /// `None` once the queue is closed and empty.
    ///
    /// # Cancel safety
    ///
    /// Nothing is removed unless it is returned.
    pub async fn pop_batch(&self, max_deltas: usize, max_bytes: usize) -> Option<Vec<Delta>> {
        loop {
            let pushed = self.pushed.notified();
            let (batch, is_closed) = {
                let mut state = self.state.lock();
                state.gathers = None;
                (state.pop_batch(max_deltas, max_bytes), state.closed)
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

    /// Waits until `until`, or until the queue has as much as [`RealFifo::pop_batch`] would take at once, or a list.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn gather(&self, max_deltas: usize, max_bytes: usize, until: Instant) {
        while Instant::now() < until {
            let pushed = self.pushed.notified();
            let is_enough = {
                let mut state = self.state.lock();
                // A full queue takes no more, so its bounds limit the wait.
                state.gathers = Some((max_deltas.min(self.bounds.deltas), max_bytes.min(self.bounds.bytes)));
                state.is_enough()
            };
            // Cancel-safe: a notification without a waiter is kept.
            let is_over = tokio::select! {
                () = std::future::ready(()), if is_enough => true,
                () = pushed => false,
                () = tokio::time::sleep_until(until) => true,
            };
            if is_over {
                break;
            }
        }
    }

    /// Lets [`RealFifo::pop_batch`] end once everything has been popped.
    pub fn close(&self) {
        self.state.lock().closed = true;
        self.pushed.notify_one();
    }

    /// Takes the time at which one of the deltas that were popped last was queued; the first one, unless they were queued together
    /// with earlier ones.
    pub fn take_received(&self) -> Option<Instant> {
        self.state.lock().received.take()
    }

    /// Returns the bytes of the bodies that are queued.
    pub fn bytes(&self) -> usize {
        self.state.lock().bytes
    }

    /// Returns the number of queued deltas.
    pub fn len(&self) -> usize {
        self.state.lock().deltas.len()
    }

    /// Returns true if the queue is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

// === impl State ===

impl State {
    /// Takes the delta if there is space for it, and returns true if the informer has to be woken; `None` without space.
    fn push(&mut self, delta: &mut Option<Delta>, bounds: FifoBounds) -> Option<bool> {
        let has_room = self.deltas.len() < bounds.deltas && self.bytes < bounds.bytes;
        let delta = delta.take_if(|_| has_room || self.deltas.is_empty())?;
        self.bytes += delta.weight();
        self.lists += usize::from(delta.is_list());
        self.measured.get_or_insert_with(|| (self.deltas.len(), Instant::now()));
        self.deltas.push_back(delta);
        Some(self.is_enough())
    }

    /// Returns true if the queue has what the informer waits for.
    fn is_enough(&self) -> bool {
        let Some((deltas, bytes)) = self.gathers else { return true };
        self.closed || self.lists > 0 || self.deltas.len() >= deltas || self.bytes >= bytes
    }

    fn pop_batch(&mut self, max_deltas: usize, max_bytes: usize) -> Vec<Delta> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        while let Some(delta) = self.deltas.front() {
            let is_full = batch.len() >= max_deltas.max(1) || bytes >= max_bytes;
            let is_list = delta.is_list();
            if !batch.is_empty() && (is_full || is_list) {
                break;
            }
            bytes += delta.weight();
            batch.extend(self.deltas.pop_front());
            if is_list {
                self.lists -= 1;
                break;
            }
        }
        self.bytes -= bytes;
        if let Some((before, at)) = self.measured {
            self.measured = before.checked_sub(batch.len()).map(|before| (before, at));
            self.received = self.measured.is_none().then_some(at);
        }
        batch
    }
}

// === impl Delta ===

impl Delta {
    /// Makes a delta of one event, after which nothing else comes at its version.
    pub fn event(event: Event) -> Self {
        Self::transaction([event])
    }

    /// Makes a delta of all events of a version.
    pub fn transaction(events: impl IntoIterator<Item = Event>) -> Self {
        Self::Changes { events: events.into_iter().collect(), closes: true }
    }

    /// Returns the version that the delta reaches; none for a checkpoint or for changes without events, which no source makes.
    pub fn version(&self) -> Option<&ResourceVersion> {
        match self {
            Self::Replace(list) | Self::HistoryRewritten(list) => Some(&list.version),
            Self::Changes { events, .. } => events.last().map(Event::version),
            Self::Relist(events, _) => events.last().map(Event::version),
            Self::Checkpoint { .. } => None,
        }
    }

    /// Returns true if nothing else comes at its version.
    pub fn closes(&self) -> bool {
        !matches!(self, Self::Changes { closes: false, .. })
    }

    /// Returns true if it is one bookmark and nothing else.
    pub fn is_bookmark(&self) -> bool {
        matches!(self, Self::Changes { events, .. } if matches!(&events[..], [Event::Bookmark(_)]))
    }

    fn weight(&self) -> usize {
        match self {
            Self::Replace(_) | Self::HistoryRewritten(_) | Self::Checkpoint { .. } => 0,
            Self::Changes { events, .. } => events.iter().map(Event::weight).sum(),
            Self::Relist(events, _) => events.iter().map(Event::weight).sum(),
        }
    }

    fn is_list(&self) -> bool {
        matches!(self, Self::Replace(_) | Self::HistoryRewritten(_))
    }
}

impl Default for FifoBounds {
    fn default() -> Self {
        Self { deltas: 1024, bytes: 16 << 20 }
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use bytes::Bytes;
    use tokio_test::{assert_pending, assert_ready, task::spawn};

    use super::*;
    use crate::model::{Object, ResourceVersion};

    fn object(name: &str, version: u128) -> Arc<Object> {
        let version = ResourceVersion::decimal(version);
        Arc::new(Object::from_json(Bytes::from_static(b"{\"a\":1}"), name, version).unwrap())
    }

    fn replace(version: u128) -> Delta {
        Delta::Replace(List::new(Vec::new(), ResourceVersion::decimal(version)))
    }

    fn versions(batch: &[Delta]) -> Vec<String> {
        let text = |delta: &Delta| match delta {
            Delta::Replace(list) => format!("replace {}", list.version),
            Delta::Changes { events, .. } if events.len() == 1 => events[0].version().to_string(),
            other => unreachable!("{other:?} is not pushed"),
        };
        batch.iter().map(text).collect()
    }

    #[test]
    fn only_a_delta_of_one_bookmark_is_a_bookmark() {
        let bookmark = || Event::Bookmark(ResourceVersion::decimal(2));
        let event = || Event::Added(object("a", 1));
        assert!(Delta::event(bookmark()).is_bookmark());
        assert!(!Delta::event(event()).is_bookmark() && !Delta::transaction([event(), bookmark()]).is_bookmark());
        assert!(!replace(2).is_bookmark());
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
            fifo.push(Delta::event(event)).await;
        }
        let batch = fifo.pop_batch(100, usize::MAX).await.unwrap();
        assert_eq!(versions(&batch), ["10", "1", "11", "13", "30", "30"]);
    }

    /// `TestRealFIFO_ReplaceAtomicPop`, `_PopMultipleDeltaInBatch`: the end of a batch.
    #[tokio::test]
    async fn a_batch_ends_at_its_bounds_and_a_replace_comes_alone() {
        let fifo = RealFifo::new(FifoBounds::default());
        for version in 1..=5 {
            fifo.push(Delta::event(Event::Modified(object("a", version)))).await;
        }
        fifo.push(replace(6)).await;
        fifo.push(replace(7)).await;
        fifo.push(Delta::event(Event::Bookmark(ResourceVersion::decimal(8)))).await;
        let mut batches = Vec::new();
        while !fifo.is_empty() {
            batches.push(versions(&fifo.pop_batch(3, usize::MAX).await.unwrap()).join(" "));
        }
        assert_eq!(batches, ["1 2 3", "4 5", "replace 6", "replace 7", "8"]);

        for version in 1..=3 {
            fifo.push(Delta::event(Event::Modified(object("a", version)))).await;
        }
        assert_eq!(fifo.pop_batch(100, 8).await.unwrap().len(), 2, "by bytes: each body has 7");
    }

    /// `TestRealFIFO_PopShouldUnblockWhenClosed`, and a closed queue still drains.
    #[tokio::test]
    async fn a_closed_queue_ends_once_it_is_empty() {
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

    #[tokio::test(start_paused = true)]
    async fn gathering_ends_with_a_full_batch_or_a_delta_that_comes_alone_or_at_the_deadline() {
        let fifo = RealFifo::new(FifoBounds { deltas: 9, bytes: usize::MAX });
        let event = || Delta::event(Event::Added(object("a", 1)));
        let until = Instant::now() + Duration::from_millis(5);
        {
            let mut gather = spawn(fifo.gather(3, usize::MAX, until));
            assert_pending!(gather.poll());
            for _ in 0..2 {
                fifo.push(event()).await;
                assert!(!gather.is_woken(), "one wake for all of them");
            }
            fifo.push(event()).await;
            assert!(gather.is_woken());
            assert_ready!(gather.poll());
        }
        let began = Instant::now();
        fifo.gather(3, usize::MAX, until).await;
        fifo.gather(99, 21, until).await;
        assert_eq!(began.elapsed(), Duration::ZERO, "three of 7 bytes are there");
        {
            let mut gather = spawn(fifo.gather(99, usize::MAX, until));
            assert_pending!(gather.poll());
            fifo.push(replace(1)).await;
            assert_ready!(gather.poll());
        }
        fifo.push(event()).await;
        let began = Instant::now();
        fifo.gather(99, usize::MAX, until).await;
        assert_eq!(began.elapsed(), Duration::ZERO, "a list between others");
        while !fifo.is_empty() {
            fifo.pop_batch(99, usize::MAX).await;
        }
        fifo.gather(3, usize::MAX, until).await;
        assert_eq!(Instant::now(), until);
        {
            // A dropped `gather` does not delay the next calls.
            let mut gather = spawn(fifo.gather(3, usize::MAX, until + Duration::from_secs(1)));
            assert_pending!(gather.poll());
        }
        let mut pop = spawn(fifo.pop_batch(3, usize::MAX));
        assert_pending!(pop.poll());
        fifo.push(event()).await;
        assert!(pop.is_woken());
        let full = RealFifo::new(FifoBounds { deltas: 1, bytes: usize::MAX });
        full.push(event()).await;
        full.gather(3, usize::MAX, until + Duration::from_secs(1)).await;
        assert_eq!(Instant::now(), until, "a full queue is not waited for");
    }

    #[tokio::test]
    async fn a_full_queue_blocks_its_producer_and_a_cancelled_push_queues_nothing() {
        let fifo = RealFifo::new(FifoBounds { deltas: 1, bytes: 1 });
        fifo.push(replace(1)).await;
        {
            let mut cancelled = spawn(fifo.push(replace(2)));
            assert_pending!(cancelled.poll());
        }
        let mut push = spawn(fifo.push(Delta::event(Event::Added(object("larger than the bound", 3)))));
        assert_pending!(push.poll());
        assert_eq!(versions(&fifo.pop_batch(9, 9).await.unwrap()), ["replace 1"]);
        assert!(push.is_woken());
        assert_ready!(push.poll());
        assert_eq!(versions(&fifo.pop_batch(9, 9).await.unwrap()), ["3"]);

        let fifo = RealFifo::new(FifoBounds { deltas: 9, bytes: 14 });
        for version in 1..=2 {
            fifo.push(Delta::event(Event::Added(object("of 7 bytes", version)))).await;
        }
        let mut push = spawn(fifo.push(replace(3)));
        assert_pending!(push.poll());
        assert_eq!(versions(&fifo.pop_batch(1, 9).await.unwrap()), ["1"]);
        assert_ready!(push.poll());
    }
}
