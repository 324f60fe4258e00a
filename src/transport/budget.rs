//! A bound on bytes that several streams share, and the line of those that wait for it.

use std::{
    collections::BTreeMap,
    num::NonZeroU64,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;

use super::body::MAX_ROOM;

/// A bound on bytes. It is exceeded by at most what one reservation takes: as long as there is any room, the next is granted.
#[derive(Debug)]
pub(super) struct Budget {
    limit: usize,
    /// The bytes that one of the streams in line takes, more or less.
    share: usize,
    bytes: AtomicUsize,
    /// Spares the lock as long as nobody waits.
    has_waiting: AtomicBool,
    line: Mutex<Line>,
}

/// A place in the line of a budget; to be [left](Budget::leave) before it is dropped.
#[derive(Debug, Default)]
pub(super) struct Place(Option<NonZeroU64>);

/// Those who wait, in order.
#[derive(Debug, Default)]
struct Line {
    last: u64,
    wakers: BTreeMap<NonZeroU64, Waker>,
}

/// The bounds on what one connection keeps unsent.
#[derive(Debug)]
pub(super) struct Budgets {
    /// Messages that fit into their windows.
    pub(super) socket: Budget,
    /// Messages that are larger than their windows.
    pub(super) large: Budget,
}

/// The bound that a chunk counts against.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kept {
    /// It fits into its window, and waits for the socket.
    ForTheSocket,
    /// It is larger than its window.
    ForItsWindow,
}

/// A message that fits into its window is made while fewer bytes than this wait for the socket.
const UNSENT_FITTING: usize = 512 << 10;
/// A message that is larger than its window is made while fewer bytes than this wait for windows.
pub(super) const UNSENT_LARGE: usize = 512 << 10;
// === impl Budget ===

impl Budget {
    /// Makes a bound of which each that waits takes a share, more or less.
    pub(super) const fn new(limit: usize, share: usize) -> Self {
        let line = Mutex::new(Line { last: 0, wakers: BTreeMap::new() });
        Self { limit, share, bytes: AtomicUsize::new(0), has_waiting: AtomicBool::new(false), line }
    }

    /// Takes this many bytes if there is any room and nobody waits before; waits in line otherwise.
    pub(super) fn poll_reserve(&self, place: &mut Place, bytes: usize, cx: &mut Context<'_>) -> Poll<()> {
        // To take nothing needs no lock: it excludes nobody.
        if bytes == 0 && place.0.is_none() && !self.has_waiting.load(Ordering::SeqCst) && self.room() > 0 {
            return Poll::Ready(());
        }
        let mut line = self.line.lock();
        // Before it looks: who releases looks for those who wait afterwards.
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

    /// Takes this many bytes, room or not.
    pub(super) fn charge(&self, bytes: usize) {
        self.bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Gives bytes back.
    pub(super) fn release(&self, bytes: usize) {
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
        if self.has_waiting.load(Ordering::SeqCst) {
            self.wake(&self.line.lock());
        }
    }

    /// Returns what is taken.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Gives up a place, and lets those behind it move up.
    pub(super) fn leave(&self, place: &mut Place) {
        if place.0.is_some() {
            let mut line = self.line.lock();
            line.remove(place);
            self.wake(&line);
        }
    }

    fn room(&self) -> usize {
        self.limit.saturating_sub(self.bytes.load(Ordering::SeqCst))
    }

    /// Wakes the first in line, as many as there is room for. A waker of this module's users never comes back here.
    fn wake(&self, line: &Line) {
        self.has_waiting.store(!line.wakers.is_empty(), Ordering::SeqCst);
        let count = self.room().div_ceil(self.share);
        line.wakers.values().take(count).for_each(Waker::wake_by_ref);
    }
}

// === impl Line ===

impl Line {
    fn is_first(&self, number: NonZeroU64) -> bool {
        self.wakers.keys().next() == Some(&number)
    }

    fn remove(&mut self, place: &mut Place) {
        place.0.take().map(|number| self.wakers.remove(&number));
    }

    /// Keeps a place at the end of the line, or the one that there is.
    fn wait(&mut self, place: &mut Place, waker: &Waker) {
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

impl Budgets {
    pub(super) fn new() -> Self {
        Self { socket: Budget::new(UNSENT_FITTING, MAX_ROOM), large: Budget::new(UNSENT_LARGE, UNSENT_LARGE) }
    }

    pub(super) fn of(&self, kept: Kept) -> &Budget {
        match kept {
            Kept::ForTheSocket => &self.socket,
            Kept::ForItsWindow => &self.large,
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;

    type Waiting = task::Spawn<Place>;

    fn some(count: usize) -> Vec<Waiting> {
        (0..count).map(|_| task::spawn(Place::default())).collect()
    }

    fn reserve(budget: &Budget, place: &mut Waiting, bytes: usize) -> Poll<()> {
        place.enter(|cx, mut place| budget.poll_reserve(&mut place, bytes, cx))
    }

    fn woken(places: &[Waiting]) -> Vec<bool> {
        places.iter().map(task::Spawn::is_woken).collect()
    }

    #[test]
    fn what_is_left_is_taken_in_order_and_exceeded_by_one() {
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
        // Who comes now comes last, also for nothing.
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
    fn as_many_are_woken_as_there_is_room_for() {
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
        // Who comes before its turn waits on.
        assert_pending!(reserve(&budget, &mut places[1], 0));
        assert_ready!(reserve(&budget, &mut places[0], 0));
        assert_eq!(woken(&places), [false, true, true, false]);
    }

    #[test]
    fn who_leaves_after_it_was_woken_lets_the_next_in() {
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
