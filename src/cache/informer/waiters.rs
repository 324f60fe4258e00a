//! Callers that wait for a version that this server has not reached yet, sorted by version, so that a change wakes only those
//! that wait for it: after a restore of the upstream every client may wait for a version far ahead.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::sync::Notify;

use crate::sync::Mutex;

/// All waiting callers.
#[derive(Debug, Default)]
pub(super) struct Waiters {
    by_number: Mutex<BTreeMap<WaiterKey, Arc<Notify>>>,
    next_id: AtomicU64,
}

/// One waiting caller; dropping it ends the wait.
#[derive(Debug)]
pub(super) struct Waiter<'a> {
    waiters: &'a Waiters,
    key: WaiterKey,
    woken: Arc<Notify>,
}

/// Number of a version, and number of the waiting caller.
type WaiterKey = (u128, u64);

// === impl Waiters ===

impl Waiters {
    /// Registers a wait for a state whose version has this number or a higher one. A wake-up before the first [`Waiter::woken`]
    /// is not missed.
    pub(super) fn wait(&self, number: u128) -> Waiter<'_> {
        let key = (number, self.next_id.fetch_add(1, Ordering::Relaxed));
        let woken = Arc::default();
        self.by_number.lock().insert(key, Arc::clone(&woken));
        Waiter { waiters: self, key, woken }
    }

    /// Wakes the callers that wait for this number or a lower one.
    pub(super) fn wake(&self, number: u128) {
        let woken = {
            let mut waiting = self.by_number.lock();
            let later = waiting.split_off(&(number, u64::MAX));
            std::mem::replace(&mut *waiting, later)
        };
        for waiter in woken.values() {
            waiter.notify_one();
        }
    }
}

// === impl Waiter ===

impl Waiter<'_> {
    /// Waits for the wake-up.
    pub(super) async fn woken(self) {
        self.woken.notified().await;
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.waiters.by_number.lock().remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task::spawn};

    use super::*;

    #[test]
    fn a_version_wakes_the_waiters_for_it_and_for_lower_ones() {
        let waiters = Waiters::default();
        let mut waiting = [3, 5, 5, 7, u128::MAX].map(|number| spawn(waiters.wait(number).woken()));
        waiters.wake(2);
        for waiter in &mut waiting {
            assert_pending!(waiter.poll());
        }
        waiters.wake(5);
        let are_woken = waiting.each_ref().map(tokio_test::task::Spawn::is_woken);
        assert_eq!(are_woken, [true, true, true, false, false]);
        for waiter in &mut waiting[..3] {
            assert_ready!(waiter.poll());
        }
        waiters.wake(u128::MAX);
        for waiter in &mut waiting[3..] {
            assert_ready!(waiter.poll());
        }
        assert!(waiters.by_number.lock().is_empty());
    }

    #[test]
    fn a_dropped_waiter_is_removed_and_an_earlier_wake_up_is_not_lost() {
        let waiters = Waiters::default();
        drop(waiters.wait(1));
        assert!(waiters.by_number.lock().is_empty());
        let waiter = waiters.wait(1);
        waiters.wake(1);
        assert_ready!(spawn(waiter.woken()).poll());
    }
}
