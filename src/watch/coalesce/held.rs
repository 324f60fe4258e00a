//! The memory of what has merged for clients under COALESCE, all of a resource together.
//!
//! Counted are keys and what clients have of them, for each client: states that several hold count as often. The latest
//! states are the cache's.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use crate::watch::broadcaster::BroadcasterStats;

/// The bound of a resource.
#[derive(Debug)]
pub(in crate::watch) struct CoalesceBound {
    bytes: u64,
    holders: AtomicU64,
    stats: Arc<BroadcasterStats>,
}

/// One client's share of what is held: charged to the bound, and reported to those who look at the client.
#[derive(Debug)]
pub(in crate::watch) struct Held {
    bound: Arc<CoalesceBound>,
    /// The memory of the entries.
    entries: usize,
    /// The size of the bodies of what the client has.
    bodies: usize,
    /// The size of what its queue held when it became full, until it has been sent.
    queue: usize,
}

// === impl CoalesceBound ===

impl CoalesceBound {
    pub(in crate::watch) fn new(bytes: usize, stats: Arc<BroadcasterStats>) -> Arc<Self> {
        Arc::new(Self { bytes: bytes as u64, holders: AtomicU64::new(0), stats })
    }

    /// Counts a client that was ended for what it held.
    pub(in crate::watch) fn count(&self) {
        self.stats.overmerged.fetch_add(1, Ordering::Relaxed);
    }

    fn charge(&self, size: usize) {
        self.stats.coalesced_size.fetch_add(size as u64, Ordering::Relaxed);
    }

    fn discharge(&self, size: usize) {
        self.stats.coalesced_size.fetch_sub(size as u64, Ordering::Relaxed);
    }
}

// === impl Held ===

impl Held {
    /// Begins the share of a client whose queue holds so much.
    pub(in crate::watch) fn new(bound: &Arc<CoalesceBound>, queue: usize) -> Self {
        bound.holders.fetch_add(1, Ordering::Relaxed);
        bound.charge(queue);
        Self { bound: Arc::clone(bound), entries: 0, bodies: 0, queue }
    }

    /// Begins another share.
    pub(in crate::watch) fn of_another(&self) -> Self {
        Self::new(&self.bound, 0)
    }

    /// Charges the body of a state that the client has.
    pub(in crate::watch) fn add_body(&mut self, size: usize) {
        self.bodies += size;
        self.bound.charge(size);
    }

    /// Charges the entries, whose memory has changed.
    pub(in crate::watch) fn set_entries(&mut self, size: usize) {
        self.bound.charge(size);
        self.bound.discharge(std::mem::replace(&mut self.entries, size));
    }

    /// Discharges what its queue held.
    pub(in crate::watch) fn release_queue(&mut self) {
        self.bound.discharge(std::mem::take(&mut self.queue));
    }

    /// Returns the memory of the entries.
    pub(in crate::watch) fn entries(&self) -> usize {
        self.entries
    }

    /// Returns the size of the bodies of what the client has, and of what its queue held.
    pub(in crate::watch) fn bodies(&self) -> usize {
        self.bodies + self.queue
    }

    /// Returns whether its client ends: when all together hold more than half of what they may, and it more than its part of
    /// that half; or when they hold more than they may.
    pub(in crate::watch) fn is_too_much(&self) -> bool {
        let (all, bound) = (self.bound.stats.coalesced_size.load(Ordering::Relaxed), self.bound.bytes);
        let parts = ((self.entries + self.bodies + self.queue) as u64)
            .saturating_mul(self.bound.holders.load(Ordering::Relaxed));
        all > bound || all > bound / 2 && parts > bound / 2
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.bound.holders.fetch_sub(1, Ordering::Relaxed);
        self.bound.discharge(self.entries + self.bodies + self.queue);
    }
}
