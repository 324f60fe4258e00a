//! Slices of time: whoever looks at many objects lets others go on after each.

use std::time::{Duration, Instant};

/// A time for which one call looks at objects or changes before others get their turn.
///
/// Time and not their number: an expression over a large object takes thousands of times as long as a comparison of keys.
#[derive(Debug)]
pub(super) struct Slice {
    ends_at: Instant,
}

/// Short against the delays of a network, long against the switch to another task.
const LENGTH: Duration = Duration::from_micros(500);

// === impl Slice ===

impl Slice {
    /// Begins one.
    pub(super) fn begin() -> Self {
        Self { ends_at: Instant::now() + LENGTH }
    }

    /// Returns whether it is over. Asked after each object, so that every slice goes on by one at least.
    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.ends_at
    }

    /// Lets others go on if it is over, and begins the next one.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(super) async fn end(&mut self) {
        if self.is_over() {
            tokio::task::yield_now().await;
            *self = Self::begin();
        }
    }
}
