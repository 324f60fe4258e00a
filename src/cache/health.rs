//! How a resource's source is doing: written by its Reflector and its source, read by every answer and by the probes. And,
//! the other way, whether anybody waits for what the source has not told yet.
//!
//! Problems of a resource are reported here, by anyone who has the [`SourceHealth`]: one at a time
//! ([`SourceHealth::set_problem`], [`SourceHealth::clear_problem`]), or all of some reasons at once
//! ([`SourceHealth::replace_problems`]). They appear in `ListResources`, in the metric `informerd_source_problems` and, by the
//! oldest, in `last_error`. A failure of a list or watch ([`SourceHealth::failed`]) is one of them, until the upstream is alive.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Demand, Problem, ProblemChanges, ProblemReason, ProblemReport, Provenance, problem::Problems};

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
    /// The last failure of list or watch while it lasts, or else the oldest standing problem.
    pub last_error: Option<String>,
    /// The number of standing problems.
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
    /// The source is not certain that all of its objects exist.
    unconfirmed: AtomicBool,
    /// When it turns STALE, unless it is alive before. Read without the lock, by every watch that is idle.
    stale_micros: AtomicU64,
    late_changes: AtomicU64,
    record: Mutex<Record>,
    demand: Demand,
    provenance: Provenance,
}

#[derive(Debug, Default)]
struct Record {
    seen_at: Option<SystemTime>,
    /// At a relay: when the origin was seen, as the upstream has it.
    origin_seen_at: Option<SystemTime>,
    problems: Problems,
    /// The namespaces that the source follows, sorted; empty for all.
    namespaces: Vec<String>,
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
            unconfirmed: AtomicBool::new(false),
            stale_micros: AtomicU64::new(0),
            late_changes: AtomicU64::new(0),
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
        record.problems.clear(ProblemReason::UpstreamUnreachable, "");
    }

    /// Counts a change at a version that had been complete, by the rules of the upstream's API.
    pub fn count_late_change(&self) {
        self.shared.late_changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of changes at versions that had been complete.
    pub fn late_changes(&self) -> u64 {
        self.shared.late_changes.load(Ordering::Relaxed)
    }

    /// The upstream is gone for certain, or changes of it have been missed for certain: STALE from now on, until it is alive
    /// (a list, or an event of a watch that goes on without a gap).
    pub fn lost(&self) {
        self.shared.lost.store(true, Ordering::Relaxed);
    }

    /// At a relay: what the upstream says of its own upstream, which counts as long as the upstream itself is alive.
    pub fn relayed(&self, state: SyncState, seen_at: Option<SystemTime>) {
        self.shared.stale_upstream.store(state != SyncState::Synced, Ordering::Relaxed);
        self.shared.record.lock().origin_seen_at = seen_at;
    }

    /// Sets whether the upstream has yet to confirm that the objects exist: STALE while it has, however alive it is.
    pub fn set_unconfirmed(&self, is_unconfirmed: bool) {
        self.shared.unconfirmed.store(is_unconfirmed, Ordering::Relaxed);
    }

    /// A list or a watch failed: the problem [`ProblemReason::UpstreamUnreachable`], until the upstream is alive. The state
    /// turns STALE if it is not alive `stale_after` from the first failure on.
    pub fn failed(&self, error: impl Into<String>) {
        let bound = self.shared.micros_after(self.shared.stale_after);
        self.shared.stale_micros.fetch_min(bound, Ordering::Relaxed);
        self.set_problem(Problem::new(ProblemReason::UpstreamUnreachable, "", error));
    }

    /// A connection was lost on which the upstream was last heard from at this time. The state turns STALE if it is not alive
    /// `stale_after` from then on.
    pub fn out_of_contact(&self, since: Instant) {
        let silence = since.saturating_duration_since(self.shared.base).saturating_add(self.shared.stale_after);
        let bound = u64::try_from(silence.as_micros()).unwrap_or(u64::MAX);
        self.shared.stale_micros.fetch_min(bound, Ordering::Relaxed);
    }

    /// Returns whether a list or a watch has failed and the upstream has not been alive since.
    pub fn has_failed(&self) -> bool {
        self.shared.record.lock().problems.get(ProblemReason::UpstreamUnreachable, "").is_some()
    }

    /// Reports a problem, or a new message of the one that stands with its reason and subject; that one keeps its beginning.
    pub fn set_problem(&self, problem: Problem) -> ProblemReport {
        self.shared.record.lock().problems.set(problem)
    }

    /// Ends the problem with this reason and subject, and returns it; `None` when there is none.
    pub fn clear_problem(&self, reason: ProblemReason, subject: &str) -> Option<Problem> {
        self.shared.record.lock().problems.clear(reason, subject)
    }

    /// Replaces all problems of these reasons by those that were found, whose reasons have to be among them, and returns the
    /// difference. Problems of other reasons stay.
    pub fn replace_problems(&self, reasons: &[ProblemReason], found: Vec<Problem>) -> ProblemChanges {
        self.shared.record.lock().problems.replace(reasons, found)
    }

    /// Returns the standing problems: the oldest 100, the oldest first.
    pub fn problems(&self) -> Vec<Problem> {
        self.shared.record.lock().problems.shown()
    }

    /// Returns all problems of these reasons that are held, for a later start.
    pub fn problems_of(&self, reasons: &[ProblemReason]) -> Vec<Problem> {
        let record = self.shared.record.lock();
        record.problems.iter().filter(|problem| reasons.contains(&problem.reason)).cloned().collect()
    }

    /// Reports the namespaces that the source follows; none means all.
    pub fn set_namespaces(&self, mut namespaces: Vec<String>) {
        namespaces.sort();
        namespaces.dedup();
        self.shared.record.lock().namespaces = namespaces;
    }

    /// Returns the namespaces that the source follows, sorted; empty when it follows all, or has no namespaces.
    pub fn namespaces(&self) -> Vec<String> {
        self.shared.record.lock().namespaces.clone()
    }

    /// The state is one of an earlier start, when the upstream had last been seen at this time. It is STALE until the upstream
    /// is alive.
    pub fn resumed(&self, seen_at: Option<SystemTime>) {
        self.shared.record.lock().seen_at = seen_at;
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
        if self.shared.synced.load(Ordering::Relaxed) { self.state_of_objects() } else { SyncState::Syncing }
    }

    fn state_of_objects(&self) -> SyncState {
        let flags = [&self.shared.lost, &self.shared.stale_upstream, &self.shared.unconfirmed];
        let is_lost = flags.into_iter().any(|flag| flag.load(Ordering::Relaxed));
        let is_stale =
            is_lost || self.shared.micros_after(Duration::ZERO) >= self.shared.stale_micros.load(Ordering::Relaxed);
        if is_stale { SyncState::Stale } else { SyncState::Synced }
    }

    /// Reads everything at once, for whoever has objects: they can be read shortly before [`Self::synced`] says so.
    pub fn report_of_objects(&self) -> HealthReport {
        HealthReport { state: self.state_of_objects(), ..self.report() }
    }

    /// Reads everything at once.
    pub fn report(&self) -> HealthReport {
        let record = self.shared.record.lock();
        let failure = record.problems.get(ProblemReason::UpstreamUnreachable, "").map(|failure| &failure.message);
        HealthReport {
            state: self.state(),
            seen_at: record.origin_seen_at.or(record.seen_at),
            last_error: failure.or(record.problems.oldest()).cloned(),
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
    async fn a_lost_connection_counts_from_the_last_contact() {
        let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
        health.alive();
        health.synced();
        let contact = Instant::now();
        tokio::time::advance(STALE_AFTER.saturating_sub(Duration::from_secs(1))).await;
        health.out_of_contact(contact);
        health.failed("no answer");
        assert_eq!(health.state(), SyncState::Synced);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(health.state(), SyncState::Stale);
        health.alive();
        assert_eq!(health.state(), SyncState::Synced);
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
    async fn objects_that_can_be_read_are_stale_or_synced() {
        let health = SourceHealth::new(Duration::from_secs(1), Duration::from_secs(3));
        health.resumed(Some(SystemTime::now()));
        let states = || (health.state(), health.report().state, health.report_of_objects().state);
        assert_eq!(states(), (SyncState::Syncing, SyncState::Syncing, SyncState::Stale));
        health.alive();
        assert_eq!(states(), (SyncState::Syncing, SyncState::Syncing, SyncState::Synced));
        health.synced();
        assert_eq!(states(), (SyncState::Synced, SyncState::Synced, SyncState::Synced));
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_with_unconfirmed_objects_is_stale_however_alive_it_is() {
        let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
        health.synced();
        health.set_unconfirmed(true);
        health.alive();
        assert_eq!(health.state(), SyncState::Stale);
        health.set_unconfirmed(false);
        assert_eq!(health.state(), SyncState::Synced);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_a_problem_until_the_upstream_is_alive_and_comes_first_in_last_error() {
        let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
        let invalid = |path: &str| Problem::new(ProblemReason::FileInvalid, path, "bad");
        health.replace_problems(&[ProblemReason::FileInvalid], vec![invalid("a.yaml"), invalid("b.yaml")]);
        health.alive();
        let report = health.report();
        assert_eq!((report.problems, report.last_error.as_deref()), (2, Some("a.yaml: bad")));
        health.failed("gone");
        let since = health.problems()[2].since;
        health.failed("gone for good");
        let report = health.report();
        assert_eq!((report.problems, report.last_error.as_deref()), (3, Some("gone for good")));
        let failure = health.problems().remove(2);
        assert_eq!(
            (failure.reason, failure.since),
            (ProblemReason::UpstreamUnreachable, since),
            "of the first failure"
        );
        assert!(health.replace_problems(&[ProblemReason::FileInvalid], Vec::new()).begun.is_empty());
        assert_eq!(health.report().problems, 1, "a replacement leaves other reasons alone");
        health.alive();
        assert_eq!((health.report().problems, health.report().last_error), (0, None));
        health.set_problem(Problem::new(ProblemReason::SnapshotNotWritten, "", "full"));
        assert_eq!(health.report().last_error.as_deref(), Some("full"));
        assert!(health.clear_problem(ProblemReason::SnapshotNotWritten, "").is_some());
        assert_eq!(health.report().last_error, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_has_failed_until_it_is_alive_and_may_begin_with_what_an_earlier_start_saw() {
        let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
        assert!(!health.has_failed());
        health.failed("gone");
        assert!(health.has_failed());
        health.alive();
        assert!(!health.has_failed());
        let seen_at = Some(SystemTime::UNIX_EPOCH);
        health.resumed(seen_at);
        assert_eq!(health.report().seen_at, seen_at);
        assert_eq!(health.late_changes(), 0);
        health.count_late_change();
        assert_eq!(health.late_changes(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn namespaces_are_sorted_and_problems_are_found_by_their_reasons() {
        let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
        assert!(health.namespaces().is_empty());
        health.set_namespaces(["b", "a", "b"].map(str::to_owned).to_vec());
        assert_eq!(health.namespaces(), ["a", "b"]);
        health.set_problem(Problem::new(ProblemReason::FileInvalid, "a.yaml", "bad"));
        health.set_problem(Problem::new(ProblemReason::SnapshotNotWritten, "", "full"));
        let subjects = |reason| -> Vec<String> {
            health.problems_of(&[reason]).into_iter().map(|problem| problem.subject).collect()
        };
        assert_eq!(subjects(ProblemReason::FileInvalid), ["a.yaml"]);
        assert_eq!(subjects(ProblemReason::UpstreamUnreachable), [""; 0]);
    }
}
