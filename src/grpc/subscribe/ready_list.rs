//! Watches of a stream that were woken. Publishing an event wakes the stream once, however many of its watches have it.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Wake, Waker},
};

use futures_util::task::AtomicWaker;
use parking_lot::Mutex;

use crate::watch::wake_task;

/// Keys of the bodies that were woken since the stream took them.
///
/// A key is pushed before the task is woken, and the task takes the keys after it has registered its waker: no wake-up is lost.
#[derive(Debug, Default)]
pub(super) struct ReadyList {
    keys: Mutex<Vec<usize>>,
    task: AtomicWaker,
}

/// Waker of one body.
#[derive(Debug)]
pub(super) struct WatchWaker {
    key: usize,
    list: Arc<ReadyList>,
    /// True from its listing to its next turn.
    is_listed: AtomicBool,
}

// === impl ReadyList ===

impl ReadyList {
    /// Registers the waker of the stream.
    pub(super) fn register(&self, waker: &Waker) {
        self.task.register(waker);
    }

    /// Takes the keys.
    pub(super) fn take(&self) -> Vec<usize> {
        std::mem::take(&mut *self.keys.lock())
    }
}

// === impl WatchWaker ===

impl WatchWaker {
    pub(super) fn new(key: usize, list: &Arc<ReadyList>) -> Arc<Self> {
        Arc::new(Self { key, list: Arc::clone(list), is_listed: AtomicBool::new(false) })
    }

    /// Records that the body is polled after this: later events list it again.
    pub(super) fn clear(&self) {
        self.is_listed.store(false, Ordering::SeqCst);
    }
}

impl Wake for WatchWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_listed.swap(true, Ordering::SeqCst) {
            self.list.keys.lock().push(self.key);
            self.list.task.take().into_iter().for_each(wake_task);
        }
    }
}
