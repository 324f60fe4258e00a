//! The past that is kept for cursors that lag, over all groups of a resource.
//!
//! Written by the writer and by the threads that fill deferred groups. A run belongs to the wake that it was pushed in, and
//! is forgotten with it.

use std::{
    collections::VecDeque,
    sync::{Arc, atomic::Ordering},
};

use tokio::time::Instant;

use super::{Retention, broadcaster::BroadcasterStats};

/// The wakes that are retained.
#[derive(Debug)]
pub(super) struct Window {
    bounds: Retention,
    wakes: VecDeque<RetainedWake>,
    /// The newest one.
    wake: u64,
    events: usize,
    size: usize,
    stats: Arc<BroadcasterStats>,
}

#[derive(Debug)]
struct RetainedWake {
    wake: u64,
    events: usize,
    size: usize,
    at: Instant,
}

// === impl Window ===

impl Window {
    pub(super) fn new(bounds: Retention, stats: Arc<BroadcasterStats>) -> Self {
        Self { bounds, wakes: VecDeque::new(), wake: 0, events: 0, size: 0, stats }
    }

    /// Adds a wake of so many events, which nobody else has counted. Returns its number and the oldest that is retained.
    pub(super) fn push(&mut self, events: usize, size: usize, now: Instant) -> (u64, u64) {
        self.wake += 1;
        self.wakes.push_back(RetainedWake { wake: self.wake, events, size, at: now });
        self.events += events;
        self.size += size;
        (self.wake, self.forget_old(now))
    }

    /// Forgets the oldest wakes past the bounds. Returns the oldest that is retained.
    pub(super) fn forget_old(&mut self, now: Instant) -> u64 {
        while let Some(oldest) = self.wakes.front() {
            let is_old = now.saturating_duration_since(oldest.at) > self.bounds.age;
            let is_over = self.events > self.bounds.events || self.size > self.bounds.size;
            // Only age ends the newest wake: a relist may be larger than all bounds, and has to be read somehow.
            if !is_old && (!is_over || oldest.wake == self.wake) {
                break;
            }
            self.events -= oldest.events;
            self.size -= oldest.size;
            self.wakes.pop_front();
        }
        self.stats.retained_size.store(self.size as u64, Ordering::Relaxed);
        self.wakes.front().map_or(self.wake + 1, |oldest| oldest.wake)
    }

    /// Forgets all of them.
    pub(super) fn clear(&mut self) {
        self.wakes.clear();
        (self.events, self.size) = (0, 0);
        self.stats.retained_size.store(0, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn wake(&self) -> u64 {
        self.wake
    }
}
