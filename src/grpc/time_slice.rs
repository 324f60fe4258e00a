//! Slices of time, after which a call that scans many objects yields.

use std::time::{Duration, Instant};

/// Time for which one call scans objects or changes before it yields.
///
/// It limits the time instead of the number of objects: an expression over a large object takes thousands of times as long as a
/// comparison of keys.
#[derive(Debug)]
pub(super) struct TimeSlice {
    ends_at: Instant,
}

/// Length of a slice: short against network delays, long against a task switch.
const LENGTH: Duration = Duration::from_micros(500);

#[cfg(test)]
thread_local! {
    static LENGTH_HERE: std::cell::Cell<Duration> = const { std::cell::Cell::new(LENGTH) };
    /// Number of checks with which a slice ends, and of those that were made.
    static CHECKS: std::cell::Cell<(u64, u64)> = const { std::cell::Cell::new((u64::MAX, 0)) };
}

// === impl TimeSlice ===

impl TimeSlice {
    /// Begins a slice.
    pub(super) fn begin() -> Self {
        Self { ends_at: Instant::now() + Self::length() }
    }

    #[cfg(not(test))]
    fn length() -> Duration {
        LENGTH
    }

    #[cfg(test)]
    fn length() -> Duration {
        LENGTH_HERE.get()
    }

    /// Lets no slice of this thread end: for a test that counts what one call does, however slow the machine is.
    #[cfg(test)]
    pub(super) fn never_end() {
        LENGTH_HERE.set(Duration::from_secs(3600));
    }

    /// Lets each check of this thread whose number is a multiple of this end its slice, whatever the time.
    #[cfg(test)]
    pub(super) fn end_with_check(number: u64) {
        Self::never_end();
        CHECKS.set((number, 0));
    }

    /// Returns true if the slice is over. Callers check it after each object, so that each slice makes progress.
    pub(super) fn is_over(&self) -> bool {
        #[cfg(test)]
        {
            let (number, made) = CHECKS.get();
            CHECKS.set((number, made + 1));
            if (made + 1).is_multiple_of(number) {
                return true;
            }
        }
        Instant::now() >= self.ends_at
    }

    /// Yields if the slice is over, and begins the next one.
    ///
    /// # Cancel safety
    ///
    /// Safe: nothing is lost.
    pub(super) async fn end(&mut self) {
        if self.is_over() {
            tokio::task::yield_now().await;
            *self = Self::begin();
        }
    }
}
