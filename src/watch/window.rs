//! Memory accounting for all logs of a resource together: arenas, runs and marks, whatever the number of groups.
//!
//! The writer and the threads that fill deferred groups write it. A run belongs to the publish cycle that pushed it, and
//! every log drops it with that cycle: no log keeps what the window has dropped.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak, atomic::Ordering},
};

use tokio::time::Instant;

use super::{Frame, Retention, broadcaster::BroadcasterStats, encoding::Share, group::Group, run};
use crate::sync::{AtomicU64, Mutex};

/// Publish cycles that are retained.
#[derive(Debug)]
pub(super) struct Window<F: Frame> {
    retained: Mutex<Retained<F>>,
    /// Oldest cycle that is retained. Stored before any log is trimmed: a thread that appends to a log after that sees it.
    floor: AtomicU64,
}

#[derive(Debug)]
struct Retained<F: Frame> {
    bounds: Retention,
    wakes: VecDeque<RetainedWake<F>>,
    /// Number of the newest cycle.
    wake: u64,
    events: usize,
    size: usize,
    stats: Arc<BroadcasterStats>,
}

#[derive(Debug)]
struct RetainedWake<F: Frame> {
    wake: u64,
    events: usize,
    size: usize,
    at: Instant,
    /// Groups with runs of this cycle.
    groups: Box<[Weak<Group<F>>]>,
}

/// Logs with runs of dropped cycles.
#[derive(Debug)]
struct Forgotten<F: Frame> {
    /// Oldest cycle that is retained.
    floor: u64,
    groups: Vec<Weak<Group<F>>>,
}

// === impl Window ===

impl<F: Frame> Window<F> {
    pub(super) fn new(bounds: Retention, stats: Arc<BroadcasterStats>) -> Self {
        let retained = Retained { bounds, wakes: VecDeque::new(), wake: 0, events: 0, size: 0, stats };
        Self { retained: Mutex::new(retained), floor: AtomicU64::default() }
    }

    /// Returns the oldest cycle that is retained: older ones may have been dropped before their runs were appended.
    pub(super) fn floor(&self) -> u64 {
        self.floor.load(Ordering::Acquire)
    }

    /// Adds a cycle of `events` events, which were not counted elsewhere, with arenas of `arenas` bytes and these shares;
    /// and drops the oldest cycles beyond the bounds. Returns its number.
    pub(super) fn push<'a>(
        &self,
        events: usize,
        arenas: usize,
        shares: impl Iterator<Item = (&'a Arc<Group<F>>, &'a [Share])>,
        now: Instant,
    ) -> u64 {
        let (mut size, mut groups) = (arenas + size_of::<RetainedWake<F>>(), Vec::with_capacity(shares.size_hint().0));
        for (group, share) in shares.filter(|(_, share)| !share.is_empty()) {
            size += size_of::<Weak<Group<F>>>() + run::bytes::<F>(share);
            groups.push(Arc::downgrade(group));
        }
        let mut retained = self.retained.lock();
        retained.wake += 1;
        let wake = retained.wake;
        retained.wakes.push_back(RetainedWake { wake, events, size, at: now, groups: groups.into() });
        retained.events += events;
        retained.size += size;
        let forgotten = retained.forget_old(now);
        drop(retained);
        self.trim(forgotten);
        wake
    }

    /// Drops the oldest cycles beyond the bounds. Must be called periodically: a quiet resource has no publish cycles.
    pub(super) fn sweep(&self, now: Instant) {
        let forgotten = self.retained.lock().forget_old(now);
        self.trim(forgotten);
    }

    /// Drops from the logs what the window has dropped.
    fn trim(&self, Forgotten { floor, groups }: Forgotten<F>) {
        self.floor.fetch_max(floor, Ordering::AcqRel);
        for group in groups.into_iter().filter_map(|group| group.upgrade()) {
            group.log.lock().trim_below(floor);
        }
    }

    #[cfg(test)]
    pub(super) fn wake(&self) -> u64 {
        self.retained.lock().wake
    }
}

/// Spare capacity below which shrinking the list is not worthwhile.
const MIN_WAKES: usize = 64;

// === impl Retained ===

impl<F: Frame> Retained<F> {
    fn forget_old(&mut self, now: Instant) -> Forgotten<F> {
        let mut groups = Vec::new();
        while let Some(oldest) = self.wakes.front() {
            let is_old = now.saturating_duration_since(oldest.at) > self.bounds.age;
            let is_over = self.events > self.bounds.events || self.size > self.bounds.size;
            // Only age ends the newest cycle: a relist may be larger than all bounds, and cursors must still be able to
            // read it.
            if !is_old && (!is_over || oldest.wake == self.wake) {
                break;
            }
            self.events -= oldest.events;
            self.size -= oldest.size;
            groups.extend(self.wakes.pop_front().into_iter().flat_map(|oldest| oldest.groups));
        }
        if self.wakes.capacity() > 4 * self.wakes.len() + MIN_WAKES {
            self.wakes.shrink_to(2 * self.wakes.len());
        }
        self.stats.retained_size.store(self.size as u64, Ordering::Relaxed);
        Forgotten { floor: self.wakes.front().map_or(self.wake + 1, |oldest| oldest.wake), groups }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::watch::Deliveries;

    #[tokio::test(start_paused = true)]
    async fn a_list_of_wakes_that_was_long_gives_its_memory_back() {
        let bounds = Retention { events: usize::MAX, size: usize::MAX, age: Duration::from_secs(10) };
        let window = Window::<Deliveries>::new(bounds, Arc::default());
        let capacity = || window.retained.lock().wakes.capacity();
        for wakes in [40, 10_000] {
            for _ in 0..wakes {
                window.push(1, 0, [].into_iter(), Instant::now());
            }
            let long = capacity();
            assert!(long >= wakes && long <= 2 * wakes.max(64), "{long} while there are {wakes}");
            tokio::time::advance(Duration::from_secs(10)).await;
            window.sweep(Instant::now());
            assert_eq!(capacity(), long, "they are not too old yet");
            tokio::time::advance(Duration::from_millis(1)).await;
            window.sweep(Instant::now());
            assert_eq!(window.retained.lock().wakes.len(), 0);
            assert!(if wakes == 40 { capacity() == long } else { capacity() == 0 }, "{} of {long}", capacity());
        }
    }
}
