//! The memory of all logs of a resource together: arenas, runs and marks, whatever the number of groups.
//!
//! Written by the writer and by the threads that fill deferred groups. A run belongs to the wake that it was pushed in, and
//! is forgotten with it, in every log: no log keeps what the window has forgotten.

use std::{
    collections::VecDeque,
    sync::{Arc, Weak, atomic::Ordering},
};

use tokio::time::Instant;

use super::{Frame, Retention, broadcaster::BroadcasterStats, encoding::Share, group::Group, run};
use crate::sync::{AtomicU64, Mutex};

/// The wakes that are retained.
#[derive(Debug)]
pub(super) struct Window<F: Frame> {
    retained: Mutex<Retained<F>>,
    /// The oldest wake that is retained. It is stored before any log is trimmed: whoever appends to a log after that sees it.
    floor: AtomicU64,
}

#[derive(Debug)]
struct Retained<F: Frame> {
    bounds: Retention,
    wakes: VecDeque<RetainedWake<F>>,
    /// The newest one.
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
    /// Those that have runs of it.
    groups: Box<[Weak<Group<F>>]>,
}

/// Logs that have runs of forgotten wakes.
#[derive(Debug)]
struct Forgotten<F: Frame> {
    /// The oldest wake that is retained.
    floor: u64,
    groups: Vec<Weak<Group<F>>>,
}

// === impl Window ===

impl<F: Frame> Window<F> {
    pub(super) fn new(bounds: Retention, stats: Arc<BroadcasterStats>) -> Self {
        let retained = Retained { bounds, wakes: VecDeque::new(), wake: 0, events: 0, size: 0, stats };
        Self { retained: Mutex::new(retained), floor: AtomicU64::default() }
    }

    /// Returns the oldest wake that is retained: older ones may have been forgotten before they were appended.
    pub(super) fn floor(&self) -> u64 {
        self.floor.load(Ordering::Acquire)
    }

    /// Adds a wake of so many events, which nobody else has counted, with arenas of so many bytes, of which these are the
    /// shares; and forgets the oldest wakes past the bounds. Returns its number.
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

    /// Forgets the oldest wakes past the bounds. To be called from time to time: a quiet resource is not published to.
    pub(super) fn sweep(&self, now: Instant) {
        let forgotten = self.retained.lock().forget_old(now);
        self.trim(forgotten);
    }

    /// Forgets in the logs what the window has forgotten.
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

/// Below this it is not worth it to give memory back.
const MIN_WAKES: usize = 64;

// === impl Retained ===

impl<F: Frame> Retained<F> {
    fn forget_old(&mut self, now: Instant) -> Forgotten<F> {
        let mut groups = Vec::new();
        while let Some(oldest) = self.wakes.front() {
            let is_old = now.saturating_duration_since(oldest.at) > self.bounds.age;
            let is_over = self.events > self.bounds.events || self.size > self.bounds.size;
            // Only age ends the newest wake: a relist may be larger than all bounds, and has to be read somehow.
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
