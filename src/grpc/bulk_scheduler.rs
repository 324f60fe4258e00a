//! Scheduler of bulk responses (lists, snapshots, replays): limits how many of them run at once, so that they do not delay live
//! events.
//!
//! A thousand clients that begin to watch together receive a snapshot each. If each of their connections encoded its next piece
//! as soon as there is room, a live event would wait behind a thousand pieces in the runtime's queue, at every step of its path.
//! So only a few of them are in that queue at a time: the others wait here, and a task that yields to everything else wakes them
//! one after the other. Origins take turns, and so do the connections of each origin, so that a client with few calls does not
//! wait for all calls of a client with many.
//!
//! A stream that was woken may ignore it: a client that shuts its flow-control window meanwhile delays no other.

use std::{
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
};

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::call::Caller;
use crate::turns::FairQueue;

/// Scheduler of all bulk responses.
#[derive(Debug)]
pub(super) struct BulkScheduler {
    /// Number of streams that are woken at a time; with no more streams than that, none waits.
    at_once: usize,
    count: AtomicUsize,
    waiting: Mutex<FairQueue<Arc<WaitingWaker>>>,
    queued: Notify,
}

/// Registration of one bulk response with the scheduler.
#[derive(Debug)]
pub(super) struct BulkPermit {
    scheduler: Arc<BulkScheduler>,
    caller: Caller,
    ticket: Option<Arc<WaitingWaker>>,
    /// True from its turn until its piece is encoded.
    is_scheduled: bool,
}

/// Waker of a waiting stream; none once it was woken or dropped.
type WaitingWaker = Mutex<Option<Waker>>;

// === impl BulkScheduler ===

impl BulkScheduler {
    pub(super) fn new(at_once: usize) -> Arc<Self> {
        let (count, waiting) = (AtomicUsize::new(0), Mutex::default());
        Arc::new(Self { at_once, count, waiting, queued: Notify::new() })
    }

    /// Registers a bulk response to a caller.
    pub(super) fn begin(self: &Arc<Self>, caller: Caller) -> BulkPermit {
        self.count.fetch_add(1, Ordering::Relaxed);
        BulkPermit { scheduler: Arc::clone(self), caller, ticket: None, is_scheduled: false }
    }

    /// Wakes the waiting streams in order; never returns.
    ///
    /// # Cancel safety
    ///
    /// Safe: all waiting streams stay queued.
    pub(super) async fn run(&self) {
        loop {
            let called = (0..self.at_once).map_while(|_| self.next()).map(Waker::wake).count();
            if called == 0 {
                self.queued.notified().await;
            } else {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Takes the waker of the first stream that still waits.
    fn next(&self) -> Option<Waker> {
        loop {
            let ticket = self.waiting.lock().pop()?;
            // Bound to a name, so that the ticket is unlocked before the waker is woken or dropped.
            let waker = ticket.lock().take();
            if waker.is_some() {
                return waker;
            }
        }
    }
}

// === impl BulkPermit ===

impl BulkPermit {
    /// Waits for the turn to encode one piece, which lasts until it is [spent](Self::release).
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_scheduled {
            return Poll::Ready(());
        }
        if let Some(ticket) = &self.ticket {
            let mut waits = ticket.lock();
            let displaced = match &mut *waits {
                Some(waker) if waker.will_wake(cx.waker()) => return Poll::Pending,
                Some(waker) => std::mem::replace(waker, cx.waker().clone()),
                None => {
                    drop(waits);
                    self.ticket = None;
                    self.is_scheduled = true;
                    return Poll::Ready(());
                }
            };
            drop(waits);
            drop(displaced);
            return Poll::Pending;
        }
        if self.scheduler.count.load(Ordering::Relaxed) <= self.scheduler.at_once {
            self.is_scheduled = true;
            return Poll::Ready(());
        }
        let ticket = Arc::new(Mutex::new(Some(cx.waker().clone())));
        self.scheduler.waiting.lock().push(self.caller.party(), Arc::clone(&ticket));
        self.ticket = Some(ticket);
        self.scheduler.queued.notify_one();
        Poll::Pending
    }

    /// Waits for the turn.
    ///
    /// # Cancel safety
    ///
    /// Safe: nothing is lost.
    pub(super) async fn ready(&mut self) {
        poll_fn(|cx| self.poll(cx)).await;
    }

    /// Ends the turn, after the piece was encoded. A stream without room for its piece keeps the turn.
    pub(super) fn release(&mut self) {
        self.is_scheduled = false;
    }
}

impl Drop for BulkPermit {
    fn drop(&mut self) {
        self.scheduler.count.fetch_sub(1, Ordering::Relaxed);
        let waker = self.ticket.take().and_then(|ticket| ticket.lock().take());
        drop(waker);
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;
    use crate::transport::Peer;

    fn turns(turns: &Arc<BulkScheduler>, count: usize) -> Vec<task::Spawn<BulkPermit>> {
        (0..count).map(|_| task::spawn(turns.begin(Caller::default()))).collect()
    }

    /// Encodes a piece if it is the stream's turn.
    fn poll(permit: &mut task::Spawn<BulkPermit>) -> Poll<()> {
        permit.enter(|cx, mut permit| permit.poll(cx).map(|()| permit.release()))
    }

    #[test]
    fn few_streams_never_wait() {
        let turns_of_two = BulkScheduler::new(2);
        let mut some = turns(&turns_of_two, 3);
        drop(some.pop());
        for permit in &mut some {
            (0..3).for_each(|_| assert_ready!(poll(permit)));
        }
        assert!(turns_of_two.waiting.lock().is_empty());
    }

    #[tokio::test]
    async fn a_client_with_few_calls_does_not_wait_for_all_calls_of_another() {
        let turns = BulkScheduler::new(1);
        let at = |port| Caller::new(Some(Peer::Tcp(([127, 0, 0, 1], port).into())), None);
        let mut some: Vec<_> = (0..1000).map(|_| task::spawn(turns.begin(at(1)))).collect();
        some.push(task::spawn(turns.begin(at(2))));
        for permit in &mut some {
            assert_pending!(poll(permit));
        }
        let mut calls = task::spawn(turns.run());
        (0..2).for_each(|_| assert_pending!(calls.poll()));
        assert!(some[0].is_woken() && some[1000].is_woken() && !some[1].is_woken());
    }

    #[tokio::test]
    async fn a_permit_lasts_until_its_piece_is_encoded() {
        let turns_of_one = BulkScheduler::new(1);
        let mut some = turns(&turns_of_one, 2);
        assert_pending!(poll(&mut some[0]));
        let mut calls = task::spawn(turns_of_one.run());
        assert_pending!(calls.poll());
        for _ in 0..3 {
            assert_ready!(some[0].enter(|cx, mut permit| permit.poll(cx)));
        }
        assert_ready!(poll(&mut some[0]));
        assert_pending!(poll(&mut some[0]));
    }

    #[tokio::test]
    async fn streams_take_turns_and_dropped_or_idle_ones_delay_nobody() {
        let turns_of_two = BulkScheduler::new(2);
        let mut some = turns(&turns_of_two, 6);
        for permit in &mut some {
            assert_pending!(poll(permit));
            assert_pending!(poll(permit));
        }
        drop(some.remove(1));
        let mut calls = task::spawn(turns_of_two.run());
        assert_pending!(calls.poll());
        let woken = |some: &[task::Spawn<BulkPermit>]| some.iter().map(task::Spawn::is_woken).collect::<Vec<_>>();
        assert_eq!(woken(&some), [true, true, false, false, false], "in order, and not the one who has gone");
        // The first encodes its piece and queues for the next one; the second ignores its turn.
        assert_ready!(poll(&mut some[0]));
        assert_pending!(poll(&mut some[0]));
        assert_pending!(calls.poll());
        assert_eq!(woken(&some), [false, true, true, true, false]);
        assert_pending!(calls.poll());
        assert_eq!(woken(&some), [true, true, true, true, true]);
        (1..5).for_each(|at| assert_ready!(poll(&mut some[at])));
        assert_pending!(calls.poll());
        assert!(turns_of_two.waiting.lock().is_empty());
        drop(some.drain(1..));
        assert_ready!(poll(&mut some[0]));
        assert_ready!(poll(&mut some[0]), "it is the only one now");
    }
}
