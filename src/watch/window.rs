//! Memory accounting for all logs of a resource together: arenas, runs and marks, whatever the number of groups.
//!
//! The writer and the threads that fill deferred groups write it. A run belongs to the publish cycle that pushed it, and
//! every log drops it with that cycle: no log keeps what the window has dropped.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak, atomic::Ordering},
};

use smallvec::SmallVec;
use tokio::time::Instant;

use super::{Frame, Retention, config::BroadcasterStats, encoding::Share, group::Group, run};
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
    cycles: VecDeque<RetainedCycle<F>>,
    /// Number of the newest cycle.
    cycle: u64,
    events: usize,
    size: usize,
    stats: Arc<BroadcasterStats>,
}

#[derive(Debug)]
struct RetainedCycle<F: Frame> {
    cycle: u64,
    events: usize,
    size: usize,
    at: Instant,
    /// Groups with runs of this cycle.
    groups: SmallVec<[Weak<Group<F>>; 1]>,
}

/// Logs with runs of dropped cycles.
#[derive(Debug)]
struct DroppedCycles<F: Frame> {
    /// Oldest cycle that is retained.
    floor: u64,
    groups: Vec<Weak<Group<F>>>,
}

// === impl Window ===

impl<F: Frame> Window<F> {
    pub(super) fn new(bounds: Retention, stats: Arc<BroadcasterStats>) -> Self {
        let retained = Retained { bounds, cycles: VecDeque::new(), cycle: 0, events: 0, size: 0, stats };
        Self { retained: Mutex::new(retained), floor: AtomicU64::default() }
    }

    /// Returns the oldest cycle that is retained: older ones may have been dropped before their runs were appended.
    pub(super) fn floor(&self) -> &AtomicU64 {
        &self.floor
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
        let (mut size, mut groups) =
            (arenas + size_of::<RetainedCycle<F>>(), SmallVec::with_capacity(shares.size_hint().0));
        for (group, share) in shares.filter(|(_, share)| !share.is_empty()) {
            size += size_of::<Weak<Group<F>>>() + run::bytes::<F>(share);
            groups.push(Arc::downgrade(group));
        }
        let mut retained = self.retained.lock();
        retained.cycle += 1;
        let cycle = retained.cycle;
        retained.cycles.push_back(RetainedCycle { cycle, events, size, at: now, groups });
        retained.events += events;
        retained.size += size;
        let forgotten = retained.evict_old(now);
        drop(retained);
        self.trim(forgotten);
        cycle
    }

    /// Drops the oldest cycles beyond the bounds. Must be called periodically: a quiet resource has no publish cycles.
    pub(super) fn sweep(&self, now: Instant) {
        let forgotten = self.retained.lock().evict_old(now);
        self.trim(forgotten);
    }

    /// Drops from the logs what the window has dropped.
    fn trim(&self, DroppedCycles { floor, groups }: DroppedCycles<F>) {
        self.floor.fetch_max(floor, Ordering::AcqRel);
        for group in groups.into_iter().filter_map(|group| group.upgrade()) {
            group.log.lock().trim_below(floor);
        }
    }

    #[cfg(test)]
    pub(super) fn cycle(&self) -> u64 {
        self.retained.lock().cycle
    }
}

/// Spare capacity below which shrinking the list is not worthwhile.
const MIN_CYCLES: usize = 64;

// === impl Retained ===

impl<F: Frame> Retained<F> {
    fn evict_old(&mut self, now: Instant) -> DroppedCycles<F> {
        let mut groups = Vec::new();
        while let Some(oldest) = self.cycles.front() {
            let is_old = now.saturating_duration_since(oldest.at) > self.bounds.age;
            let is_over = self.events > self.bounds.events || self.size > self.bounds.size;
            // Only age ends the newest cycle: a relist may be larger than all bounds, and cursors must still be able to
            // read it.
            if !is_old && (!is_over || oldest.cycle == self.cycle) {
                break;
            }
            self.events -= oldest.events;
            self.size -= oldest.size;
            groups.extend(self.cycles.pop_front().into_iter().flat_map(|oldest| oldest.groups));
        }
        if self.cycles.capacity() > 4 * self.cycles.len() + MIN_CYCLES {
            self.cycles.shrink_to(2 * self.cycles.len());
        }
        self.stats.retained_size.store(self.size as u64, Ordering::Relaxed);
        DroppedCycles { floor: self.cycles.front().map_or(self.cycle + 1, |oldest| oldest.cycle), groups }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::watch::Deliveries;

    #[tokio::test(start_paused = true)]
    async fn a_list_of_cycles_that_was_long_releases_its_memory() {
        let bounds = Retention { events: usize::MAX, size: usize::MAX, age: Duration::from_secs(10) };
        let window = Window::<Deliveries>::new(bounds, Arc::default());
        let capacity = || window.retained.lock().cycles.capacity();
        for cycles in [40, 10_000] {
            for _ in 0..cycles {
                window.push(1, 0, [].into_iter(), Instant::now());
            }
            let long = capacity();
            assert!(long >= cycles && long <= 2 * cycles.max(64), "{long} while there are {cycles}");
            tokio::time::advance(Duration::from_secs(10)).await;
            window.sweep(Instant::now());
            assert_eq!(capacity(), long, "they are not too old yet");
            tokio::time::advance(Duration::from_millis(1)).await;
            window.sweep(Instant::now());
            assert_eq!(window.retained.lock().cycles.len(), 0);
            assert!(if cycles == 40 { capacity() == long } else { capacity() == 0 }, "{} of {long}", capacity());
        }
    }
}
