//! View of a cursor from outside.

use std::sync::{Arc, Weak};

use tokio::time::Instant;

use crate::watch::{CursorState, Frame, PastGauge, queue::Queue};

/// View of a cursor's lag and state from outside.
#[derive(Debug, Clone)]
pub struct CursorGauge<F: Frame> {
    pub(super) past: PastGauge,
    pub(super) queue: Option<Weak<Queue<F>>>,
}

// === impl CursorGauge ===

impl<F: Frame> CursorGauge<F> {
    /// Returns the offset that the cursor reads next; `None` while it is parked.
    #[cfg(test)]
    pub(in crate::watch) fn reads_at(&self) -> Option<u64> {
        self.past.position()
    }

    /// Returns the number of events that wait for the cursor, if they were counted, or else that of all changes.
    pub fn lag(&self) -> u64 {
        self.queue().map_or_else(|| self.past.lag(), |queue| queue.lag())
    }

    /// Returns the time at which the oldest change was published that waits for the cursor.
    pub fn waiting_since(&self) -> Option<Instant> {
        self.past.waiting_since()
    }

    /// Returns what the policy does with the cursor.
    pub fn state(&self) -> CursorState {
        self.queue().map_or(CursorState::Following, |queue| queue.state())
    }

    /// Returns the number of events that the cursor has lost under DROP and that its reader has not taken yet.
    pub fn unreported_losses(&self) -> u64 {
        self.queue().map_or(0, |queue| queue.losses())
    }

    /// Returns true if the cursor was evicted under BLOCK, and its reader has not dropped it yet.
    pub fn is_evicted(&self) -> bool {
        self.queue().is_some_and(|queue| queue.is_evicted())
    }

    fn queue(&self) -> Option<Arc<Queue<F>>> {
        self.queue.as_ref().and_then(Weak::upgrade)
    }
}
