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

/// Ids of the watches that were woken since the stream took them.
///
/// An id is pushed before the task is woken, and the task takes the ids after it has registered its waker: no wake-up is lost.
#[derive(Debug, Default)]
pub(super) struct ReadyList {
    ids: Mutex<Vec<u32>>,
    task: AtomicWaker,
}

/// Waker of one watch.
#[derive(Debug)]
pub(super) struct WatchWaker {
    id: u32,
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

    /// Takes the ids.
    pub(super) fn take(&self) -> Vec<u32> {
        std::mem::take(&mut *self.ids.lock())
    }
}

// === impl WatchWaker ===

impl WatchWaker {
    pub(super) fn new(id: u32, list: &Arc<ReadyList>) -> Arc<Self> {
        Arc::new(Self { id, list: Arc::clone(list), is_listed: AtomicBool::new(false) })
    }

    /// Records that the watch is polled after this: later events list it again.
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
            self.list.ids.lock().push(self.id);
            self.list.task.wake();
        }
    }
}
