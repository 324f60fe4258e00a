//! How a resource's source is doing: written by its Reflector and its source, read by every answer and by the probes. And,
//! the other way, whether anybody waits for what the source has not told yet.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Demand, Provenance};

/// Whether a resource can be served, and how fresh it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncState {
    /// There is no state yet: no list has been applied, and none was kept by an earlier start.
    Syncing,
    /// The upstream has proved itself alive within its heartbeat and the staleness bound, and has not failed since for longer
    /// than that bound.
    Synced,
    /// Served from the last known state: the upstream cannot be reached, or not yet after a warm start.
    Stale,
}

/// The shared record of one source's health; clones share it.
#[derive(Debug, Clone)]
pub struct SourceHealth {
    shared: Arc<Shared>,
}

/// A reading of [`SourceHealth`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthReport {
    /// Whether the resource can be served, and how fresh it is.
    pub state: SyncState,
    /// When the upstream last proved itself alive.
    pub seen_at: Option<SystemTime>,
    /// The last failure of list or watch while it lasts, or else the first standing problem, or why the state is not kept.
    pub last_error: Option<String>,
    /// How many standing problems the source reports (files that cannot be read, for example).
    pub problems: usize,
}

#[derive(Debug)]
struct Shared {
    heartbeat: Duration,
    stale_after: Duration,
    /// What `stale_micros` counts from.
    base: Instant,
    synced: AtomicBool,
    /// The source has said that its upstream is gone.
    lost: AtomicBool,
    /// At a relay: the upstream has said that its own is gone.
    stale_upstream: AtomicBool,
    /// When it turns STALE, unless it is alive before. Read without the lock, by every watch that is idle.
    stale_micros: AtomicU64,
    record: Mutex<Record>,
    demand: Demand,
    provenance: Provenance,
}

#[derive(Debug, Default)]
struct Record {
    seen_at: Option<SystemTime>,
    /// At a relay: when the origin was seen, as the upstream has it.
    origin_seen_at: Option<SystemTime>,
    failure: Option<String>,
    problems: Vec<String>,
    keeping: Option<String>,
}

// === impl SourceHealth ===

impl SourceHealth {
    /// The health of a source that has not been heard of yet. `heartbeat` is how often it proves itself alive
    /// ([`Duration::MAX`] if it may be silent for ever), and `stale_after` how far past that it may be silent, and how long it
    /// may fail.
    pub fn new(heartbeat: Duration, stale_after: Duration) -> Self {
        let shared = Shared {
            heartbeat,
            stale_after,
            base: Instant::now(),
            synced: AtomicBool::new(false),
            lost: AtomicBool::new(false),
            stale_upstream: AtomicBool::new(false),
            stale_micros: AtomicU64::new(0),
            record: Mutex::default(),
            demand: Demand::default(),
            provenance: Provenance::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// The upstream answered: a list, an event, a bookmark.
    pub fn alive(&self) {
        self.shared.lost.store(false, Ordering::Relaxed);
        let silence = self.shared.heartbeat.saturating_add(self.shared.stale_after);
        self.shared.stale_micros.store(self.shared.micros_after(silence), Ordering::Relaxed);
        let mut record = self.shared.record.lock();
        record.seen_at = Some(SystemTime::now());
        record.failure = None;
    }

    /// The upstream is gone for certain: STALE from now on, until it is alive.
    pub fn lost(&self) {
        self.shared.lost.store(true, Ordering::Relaxed);
    }

    /// At a relay: what the upstream says of its own upstream, which counts as long as the upstream itself is alive.
    pub fn relayed(&self, state: SyncState, seen_at: Option<SystemTime>) {
        self.shared.stale_upstream.store(state != SyncState::Synced, Ordering::Relaxed);
        self.shared.record.lock().origin_seen_at = seen_at;
    }

    /// A list or a watch failed. The state turns STALE if it is not alive `stale_after` from the first failure on.
    pub fn failed(&self, error: impl Into<String>) {
        let bound = self.shared.micros_after(self.shared.stale_after);
        self.shared.stale_micros.fetch_min(bound, Ordering::Relaxed);
        self.shared.record.lock().failure = Some(error.into());
    }

    /// The source reports what is wrong with its content now; an empty list means that nothing is.
    pub fn set_problems(&self, problems: Vec<String>) {
        self.shared.record.lock().problems = problems;
    }

    /// The state is one of an earlier start, when the upstream had last been seen at this time. It is STALE until the upstream
    /// is alive.
    pub fn resumed(&self, seen_at: Option<SystemTime>) {
        self.shared.record.lock().seen_at = seen_at;
    }

    /// Why the state cannot be kept for a later start; `None` when it can.
    pub fn set_keeping_problem(&self, problem: Option<String>) {
        self.shared.record.lock().keeping = problem;
    }

    /// There is a state: the first list has been applied, or that of an earlier start.
    pub fn synced(&self) {
        self.shared.synced.store(true, Ordering::Relaxed);
    }

    /// Whether anybody waits for what the source has not told yet.
    pub fn demand(&self) -> &Demand {
        &self.shared.demand
    }

    /// Where the objects come from.
    pub fn provenance(&self) -> &Provenance {
        &self.shared.provenance
    }

    /// The state alone.
    pub fn state(&self) -> SyncState {
        let has_said = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        let is_lost = has_said(&self.shared.lost) || has_said(&self.shared.stale_upstream);
        let is_stale =
            is_lost || self.shared.micros_after(Duration::ZERO) >= self.shared.stale_micros.load(Ordering::Relaxed);
        match (has_said(&self.shared.synced), is_stale) {
            (false, _) => SyncState::Syncing,
            (true, false) => SyncState::Synced,
            (true, true) => SyncState::Stale,
        }
    }

    /// Reads everything at once.
    pub fn report(&self) -> HealthReport {
        let record = self.shared.record.lock();
        HealthReport {
            state: self.state(),
            seen_at: record.origin_seen_at.or(record.seen_at),
            last_error: record.failure.as_ref().or(record.problems.first()).or(record.keeping.as_ref()).cloned(),
            problems: record.problems.len(),
        }
    }
}

// === impl Shared ===

impl Shared {
    /// A moment from now.
    fn micros_after(&self, time: Duration) -> u64 {
        u64::try_from(self.base.elapsed().saturating_add(time).as_micros()).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEARTBEAT: Duration = Duration::from_secs(5);
    const STALE_AFTER: Duration = Duration::from_secs(15);

    #[tokio::test(start_paused = true)]
    async fn a_source_is_stale_when_it_has_been_silent_past_its_heartbeat_and_the_bound() {
        let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
        assert_eq!(health.report().state, SyncState::Syncing);
        health.alive();
        assert_eq!(health.report().state, SyncState::Syncing, "alive, but no list was applied");
        health.synced();
        assert_eq!(health.report().state, SyncState::Synced);

        tokio::time::advance(HEARTBEAT).await;
        assert_eq!(health.state(), SyncState::Synced);
        health.failed("connection refused");
        let report = health.report();
        assert_eq!((report.state, report.last_error.as_deref()), (SyncState::Synced, Some("connection refused")));
        tokio::time::advance(STALE_AFTER).await;
        assert_eq!(health.report().state, SyncState::Stale);

        health.alive();
        let report = health.report();
        assert_eq!((report.state, report.last_error), (SyncState::Synced, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_fails_is_stale_without_waiting_for_its_heartbeat() {
        for heartbeat in [Duration::from_secs(120), Duration::MAX] {
            let health = SourceHealth::new(heartbeat, STALE_AFTER);
            health.alive();
            health.synced();
            tokio::time::advance(Duration::from_secs(60)).await;
            for _ in 0..5 {
                assert_eq!(health.state(), SyncState::Synced);
                health.failed("connection refused");
                tokio::time::advance(STALE_AFTER / 5).await;
            }
            assert_eq!(health.state(), SyncState::Stale);
            health.alive();
            tokio::time::advance(Duration::from_secs(100)).await;
            assert_eq!(health.state(), SyncState::Synced);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_may_be_silent_is_stale_only_when_it_is_lost() {
        let health = SourceHealth::new(Duration::MAX, STALE_AFTER);
        health.alive();
        health.synced();
        tokio::time::advance(Duration::from_secs(1 << 30)).await;
        assert_eq!(health.state(), SyncState::Synced);
        health.lost();
        assert_eq!(health.report().state, SyncState::Stale, "at once");
        health.alive();
        assert_eq!(health.state(), SyncState::Synced);
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_relay_is_told_of_the_origin_is_what_it_says() {
        let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
        let seen_at = Some(SystemTime::UNIX_EPOCH);
        health.alive();
        health.synced();
        health.relayed(SyncState::Stale, seen_at);
        health.alive();
        let report = health.report();
        assert_eq!((report.state, report.seen_at), (SyncState::Stale, seen_at));
        health.relayed(SyncState::Synced, seen_at);
        assert_eq!(health.state(), SyncState::Synced);
        tokio::time::advance(HEARTBEAT + STALE_AFTER + Duration::from_millis(1)).await;
        assert_eq!(health.state(), SyncState::Stale, "the upstream itself is silent");
    }

    #[tokio::test(start_paused = true)]
    async fn standing_problems_last_until_the_source_says_otherwise() {
        let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
        health.set_problems(vec!["a.yaml: bad".into(), "b.yaml: bad".into()]);
        health.alive();
        let report = health.report();
        assert_eq!((report.problems, report.last_error.as_deref()), (2, Some("a.yaml: bad")));
        health.failed("gone");
        assert_eq!(health.report().last_error.as_deref(), Some("gone"), "a failure comes first");
        health.set_problems(Vec::new());
        health.alive();
        health.set_keeping_problem(Some("full".into()));
        assert_eq!((health.report().problems, health.report().last_error), (0, Some("full".into())), "last of all");
        health.set_keeping_problem(None);
        assert_eq!(health.report().last_error, None);
    }
}
