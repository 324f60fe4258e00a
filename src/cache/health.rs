//! How a resource's source is doing: written by its Reflector and its source, read by every answer and by the probes.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tokio::time::Instant;

/// Whether a resource can be served, and how fresh it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncState {
    /// No list has been applied yet.
    Syncing,
    /// The upstream has proved itself alive within its heartbeat and the staleness bound.
    Synced,
    /// Served from the last known state; the upstream cannot be reached.
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
    /// The last failure of list or watch while it lasts, or else the first standing problem.
    pub last_error: Option<String>,
    /// How many standing problems the source reports (files that cannot be read, for example).
    pub problems: usize,
}

#[derive(Debug)]
struct Shared {
    /// Silence longer than this is staleness: the source's heartbeat and `stale_after` together.
    silence_bound: Duration,
    record: Mutex<Record>,
}

#[derive(Debug, Default)]
struct Record {
    synced: bool,
    seen: Option<(Instant, SystemTime)>,
    failure: Option<String>,
    problems: Vec<String>,
}

// === impl SourceHealth ===

impl SourceHealth {
    /// The health of a source that has not been heard of yet. `heartbeat` is how often it proves itself alive, and
    /// `stale_after` how far past that it may be silent.
    pub fn new(heartbeat: Duration, stale_after: Duration) -> Self {
        let shared = Shared { silence_bound: heartbeat.saturating_add(stale_after), record: Mutex::default() };
        Self { shared: Arc::new(shared) }
    }

    /// The upstream answered: a list, an event, a bookmark.
    pub fn alive(&self) {
        let mut record = self.shared.record.lock();
        record.seen = Some((Instant::now(), SystemTime::now()));
        record.failure = None;
    }

    /// A list or a watch failed. The state turns STALE by time, not by this.
    pub fn failed(&self, error: impl Into<String>) {
        self.shared.record.lock().failure = Some(error.into());
    }

    /// The source reports what is wrong with its content now; an empty list means that nothing is.
    pub fn set_problems(&self, problems: Vec<String>) {
        self.shared.record.lock().problems = problems;
    }

    /// The first list has been applied.
    pub fn synced(&self) {
        self.shared.record.lock().synced = true;
    }

    /// Reads everything at once.
    pub fn report(&self) -> HealthReport {
        let record = self.shared.record.lock();
        let silent = record.seen.is_none_or(|(at, _)| at.elapsed() > self.shared.silence_bound);
        HealthReport {
            state: match (record.synced, silent) {
                (false, _) => SyncState::Syncing,
                (true, false) => SyncState::Synced,
                (true, true) => SyncState::Stale,
            },
            seen_at: record.seen.map(|(_, at)| at),
            last_error: record.failure.as_ref().or(record.problems.first()).cloned(),
            problems: record.problems.len(),
        }
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

        tokio::time::advance(HEARTBEAT + STALE_AFTER).await;
        health.failed("connection refused");
        let report = health.report();
        assert_eq!((report.state, report.last_error.as_deref()), (SyncState::Synced, Some("connection refused")));
        tokio::time::advance(Duration::from_millis(1)).await;
        assert_eq!(health.report().state, SyncState::Stale);

        health.alive();
        let report = health.report();
        assert_eq!((report.state, report.last_error), (SyncState::Synced, None));
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
        assert_eq!(health.report().last_error, None);
    }
}
