//! Count of the work that a thread has done, for tests of costs: they compare work, and not time.

use std::cell::Cell;

thread_local! {
    static DONE: Cell<usize> = const { Cell::new(0) };
}

/// Adds work of this thread, in the unit of the test.
pub(crate) fn add(work: usize) {
    DONE.set(DONE.get() + work);
}

/// Returns the work of this thread up to now.
pub(crate) fn done() -> usize {
    DONE.get()
}
