//! Limit on bytes that several streams share, with a queue of the streams that wait for room.

use std::{
    collections::BTreeMap,
    num::NonZeroU64,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;

use super::body::MAX_ROOM;

/// Limit on bytes. A reservation is granted while there is any room, so the last one may exceed the limit.
#[derive(Debug)]
pub(super) struct Budget {
    limit: usize,
    /// Approximate number of bytes that one waiting stream will take.
    share: usize,
    bytes: AtomicUsize,
    /// True if streams wait; avoids the lock otherwise.
    has_waiting: AtomicBool,
    line: Mutex<WaitQueue>,
}

/// Place in the queue of a budget; its owner must [leave](Budget::leave) before dropping it.
#[derive(Debug, Default)]
pub(super) struct QueuePosition(Option<NonZeroU64>);

/// Waiting streams, in order.
#[derive(Debug, Default)]
struct WaitQueue {
    last: u64,
    wakers: BTreeMap<NonZeroU64, Waker>,
}

/// Limits on the unsent data of one connection.
#[derive(Debug)]
pub(super) struct Budgets {
    /// Messages that fit into their windows.
    pub(super) socket: Budget,
    /// Messages that are larger than their windows.
    pub(super) large: Budget,
}

/// Budget that a chunk counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BudgetKind {
    /// The chunk fits into its window, and waits for the socket.
    Socket,
    /// The chunk is larger than its window.
    Window,
}

/// Limit on the bytes that wait for the socket; below it, messages that fit into their windows are encoded.
const UNSENT_FITTING: usize = 512 << 10;
/// Limit on the bytes that wait for windows; below it, messages that are larger than their windows are encoded.
pub(super) const UNSENT_LARGE: usize = 512 << 10;

// === impl Budget ===

impl Budget {
    /// Creates a budget of which each waiting stream takes about `share` bytes.
    pub(super) const fn new(limit: usize, share: usize) -> Self {
        let line = Mutex::new(WaitQueue { last: 0, wakers: BTreeMap::new() });
        Self { limit, share, bytes: AtomicUsize::new(0), has_waiting: AtomicBool::new(false), line }
    }

    /// Reserves this many bytes if there is any room and no stream waits before; waits in the queue otherwise.
    pub(super) fn poll_reserve(&self, place: &mut QueuePosition, bytes: usize, cx: &mut Context<'_>) -> Poll<()> {
        // A reservation of nothing needs no lock, because it excludes no other.
        if bytes == 0 && place.0.is_none() && !self.has_waiting.load(Ordering::SeqCst) && self.room() > 0 {
            return Poll::Ready(());
        }
        let mut line = self.line.lock();
        // Set before the room is read: a release after that wakes the streams that wait.
        self.has_waiting.store(true, Ordering::SeqCst);
        let is_next = match place.0 {
            Some(number) => line.is_first(number),
            None => line.wakers.is_empty(),
        };
        if is_next && self.room() > 0 {
            self.bytes.fetch_add(bytes, Ordering::SeqCst);
            line.remove(place);
            self.wake(&line);
            return Poll::Ready(());
        }
        line.wait(place, cx.waker());
        Poll::Pending
    }

    /// Reserves this many bytes, even without room.
    pub(super) fn charge(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Releases bytes.
    pub(super) fn release(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        if self.has_waiting.load(Ordering::SeqCst) {
            self.wake(&self.line.lock());
        }
    }

    /// Returns the number of reserved bytes.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Gives up a place in the queue, and wakes the streams behind it if there is room.
    pub(super) fn leave(&self, place: &mut QueuePosition) {
        if place.0.is_some() {
            let mut line = self.line.lock();
            line.remove(place);
            self.wake(&line);
        }
    }

    fn room(&self) -> usize {
        self.limit.saturating_sub(self.bytes.load(Ordering::SeqCst))
    }

    /// Wakes as many of the first waiting streams as there is room for. None of their wakers locks this queue again.
    fn wake(&self, line: &WaitQueue) {
        self.has_waiting.store(!line.wakers.is_empty(), Ordering::SeqCst);
        let count = self.room().div_ceil(self.share);
        line.wakers.values().take(count).for_each(Waker::wake_by_ref);
    }
}

// === impl WaitQueue ===

impl WaitQueue {
    fn is_first(&self, number: NonZeroU64) -> bool {
        self.wakers.keys().next() == Some(&number)
    }

    fn remove(&mut self, place: &mut QueuePosition) {
        place.0.take().map(|number| self.wakers.remove(&number));
    }

    /// Waits at the place in the queue, or at a new one at its end.
    fn wait(&mut self, place: &mut QueuePosition, waker: &Waker) {
        if let Some(current) = place.0.and_then(|number| self.wakers.get_mut(&number)) {
            current.clone_from(waker);
            return;
        }
        self.last += 1;
        place.0 = NonZeroU64::new(self.last);
        place.0.map(|number| self.wakers.insert(number, waker.clone()));
    }
}

// === impl Budgets ===

impl Default for Budgets {
    fn default() -> Self {
        Self { socket: Budget::new(UNSENT_FITTING, MAX_ROOM), large: Budget::new(UNSENT_LARGE, UNSENT_LARGE) }
    }
}

impl Budgets {
    pub(super) fn of(&self, kept: BudgetKind) -> &Budget {
        match kept {
            BudgetKind::Socket => &self.socket,
            BudgetKind::Window => &self.large,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;

    type Waiting = task::Spawn<QueuePosition>;

    fn some(count: usize) -> Vec<Waiting> {
        (0..count).map(|_| task::spawn(QueuePosition::default())).collect()
    }

    fn reserve(budget: &Budget, place: &mut Waiting, bytes: usize) -> Poll<()> {
        place.enter(|cx, mut place| budget.poll_reserve(&mut place, bytes, cx))
    }

    fn woken(places: &[Waiting]) -> Vec<bool> {
        places.iter().map(task::Spawn::is_woken).collect()
    }

    #[test]
    fn waiting_streams_reserve_in_order_and_one_may_exceed_the_limit() {
        let budget = Budget::new(10, 10);
        let mut places = some(4);
        assert_ready!(reserve(&budget, &mut places[0], 9));
        assert_ready!(reserve(&budget, &mut places[0], 100));
        for place in &mut places[1..] {
            assert_pending!(reserve(&budget, place, 5));
            assert_pending!(reserve(&budget, place, 5));
        }
        budget.release(99);
        assert_eq!(woken(&places), [false; 4], "there is still no room");
        budget.release(5);
        assert_eq!(woken(&places), [false, true, false, false]);
        // A later reservation comes last, even one of nothing.
        assert_pending!(reserve(&budget, &mut places[0], 0));
        assert_ready!(reserve(&budget, &mut places[1], 1));
        assert_eq!(woken(&places), [false, false, true, false], "there is room for another");
        assert_ready!(reserve(&budget, &mut places[2], 5));
        assert_eq!(woken(&places), [false, false, false, false]);
        budget.release(5);
        assert_ready!(reserve(&budget, &mut places[3], 0));
        assert_eq!(woken(&places), [true, false, false, false]);
        assert_ready!(reserve(&budget, &mut places[0], 0));
        assert!(!budget.has_waiting.load(Ordering::SeqCst));
    }

    #[test]
    fn as_many_streams_are_woken_as_there_is_room_for() {
        let budget = Budget::new(10, 4);
        budget.charge(12);
        let mut places = some(4);
        for place in &mut places {
            assert_pending!(reserve(&budget, place, 0));
        }
        budget.release(6);
        assert_eq!(woken(&places), [true, false, false, false]);
        budget.release(1);
        assert_eq!(woken(&places), [true, true, false, false]);
        // A stream that is polled before its turn keeps waiting.
        assert_pending!(reserve(&budget, &mut places[1], 0));
        assert_ready!(reserve(&budget, &mut places[0], 0));
        assert_eq!(woken(&places), [false, true, true, false]);
    }

    #[test]
    fn a_stream_that_leaves_after_its_wake_up_wakes_the_next() {
        let budget = Budget::new(1, 1);
        budget.charge(1);
        let mut places = some(3);
        for place in &mut places {
            assert_pending!(reserve(&budget, place, 1));
        }
        budget.leave(&mut places[1]);
        assert_eq!(woken(&places), [false; 3]);
        budget.release(1);
        budget.leave(&mut places[0]);
        assert_eq!(woken(&places), [true, false, true]);
        assert_ready!(reserve(&budget, &mut places[2], 1));
        budget.leave(&mut places[2]);
        assert_pending!(reserve(&budget, &mut places[0], 1));
    }
}
