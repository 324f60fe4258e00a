//! The same types for unit tests: within a Shuttle execution each use is a scheduling point, elsewhere they behave as always.
//!
//! Shuttle treats every atomic operation as sequentially consistent: weaker orderings are not explored.

use std::{
    ops::{Deref, DerefMut},
    sync::{PoisonError, atomic::Ordering},
};

use shuttle::{current::try_get_current_task, sync as shuttled};

pub(crate) type AtomicBool = LockFree<std::sync::atomic::AtomicBool>;
pub(crate) type AtomicU64 = LockFree<std::sync::atomic::AtomicU64>;
pub(crate) type ArcSwap<T> = LockFree<arc_swap::ArcSwap<T>>;
pub(crate) type ArcSwapOption<T> = LockFree<arc_swap::ArcSwapOption<T>>;

/// A value that is read and written without a lock.
#[derive(Debug, Default)]
pub(crate) struct LockFree<T>(T);

/// A mutex whose waiting threads are registered with the scheduler.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T> {
    turn: shuttled::Mutex<()>,
    value: parking_lot::Mutex<T>,
}

/// The lock of a [`Mutex`], which is released in the order of the fields.
pub(crate) struct MutexGuard<'a, T> {
    value: Option<parking_lot::MutexGuard<'a, T>>,
    turn: Option<shuttled::MutexGuard<'a, ()>>,
    mutex: &'a Mutex<T>,
}

/// A condition variable whose waiting threads are registered with the scheduler.
#[derive(Debug, Default)]
pub(crate) struct Condvar {
    scheduled: shuttled::Condvar,
    plain: parking_lot::Condvar,
}

fn is_scheduled() -> bool {
    try_get_current_task().is_some()
}

// === impl LockFree ===

impl<T> Deref for LockFree<T> {
    type Target = T;

    fn deref(&self) -> &T {
        if is_scheduled() {
            // Another thread may go first.
            shuttled::atomic::AtomicBool::new(false).load(Ordering::SeqCst);
        }
        &self.0
    }
}

// === impl Mutex ===

impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { turn: shuttled::Mutex::new(()), value: parking_lot::Mutex::new(value) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let turn = is_scheduled().then(|| self.turn.lock().unwrap_or_else(PoisonError::into_inner));
        MutexGuard { value: Some(self.value.lock()), turn, mutex: self }
    }
}

// === impl MutexGuard ===

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("held but for the time of Condvar::wait")
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.value.as_mut().expect("held but for the time of Condvar::wait")
    }
}

// === impl Condvar ===

impl Condvar {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    pub(crate) fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        match guard.turn.take() {
            Some(turn) => {
                guard.value = None;
                guard.turn = Some(self.scheduled.wait(turn).unwrap_or_else(PoisonError::into_inner));
                guard.value = Some(guard.mutex.value.lock());
            }
            None => self.plain.wait(guard.value.as_mut().expect("held")),
        }
    }

    pub(crate) fn notify_one(&self) {
        if is_scheduled() {
            self.scheduled.notify_one();
        }
        self.plain.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        if is_scheduled() {
            self.scheduled.notify_all();
        }
        self.plain.notify_all();
    }
}
