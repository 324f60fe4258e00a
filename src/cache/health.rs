//! Health of a resource's source: the Reflector and its source write it; responses and probes read it.
//!
//! Problems of a resource are reported through [`SourceHealth`]: one at a time ([`SourceHealth::set_problem`],
//! [`SourceHealth::clear_problem`]), or all of some reasons at once ([`SourceHealth::replace_problems`]). They appear in
//! `ListResources` and in the metric `informerd_source_problems`; the oldest appears in `last_error`. A failed list or watch
//! ([`SourceHealth::record_failure`]) is a problem until the upstream is alive again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Problem, ProblemChanges, ProblemReason, ProblemReport, problem::Problems};

/// Availability and freshness of a resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SyncState {
    /// No state yet: no list has been applied, and no snapshot file has been read.
    Syncing,
    /// The last contact with the upstream is not older than its heartbeat plus the staleness bound, and the source has not been
    /// failing for longer than that bound.
    Synced,
    /// The last known state is served: the upstream is unreachable, or there was no contact yet after a warm start.
    Stale,
}

/// Record of one source's health; clones share it.
#[derive(Debug, Clone)]
pub struct SourceHealth {
    shared: Arc<HealthShared>,
}

/// Values of [`SourceHealth`] at one moment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HealthReport {
    /// Availability and freshness of the resource.
    pub state: SyncState,
    /// Time of the last contact with the upstream.
    pub seen_at: Option<SystemTime>,
    /// Last failure of a list or watch while it lasts, otherwise the oldest standing problem.
    pub last_error: Option<String>,
    /// Number of standing problems.
    pub problems: usize,
}

#[derive(Debug)]
struct HealthShared {
    heartbeat: Duration,
    stale_after: Duration,
    /// Start of `stale_micros`.
    base: Instant,
    /// True if the source has reported that it lost its upstream.
    lost: AtomicBool,
    /// At a relay: true if the upstream has reported that its own upstream is not synced.
    stale_upstream: AtomicBool,
    /// True if the upstream has yet to confirm that all of the objects exist.
    unconfirmed: AtomicBool,
    /// Time at which the state turns STALE unless there is contact before. Every idle watch reads it, without the lock.
    stale_micros: AtomicU64,
    late_changes: AtomicU64,
    record: Mutex<HealthRecord>,
}

#[derive(Debug, Default)]
struct HealthRecord {
    seen_at: Option<SystemTime>,
    /// At a relay: time of the last contact with the origin, as the upstream reports it.
    origin_seen_at: Option<SystemTime>,
    problems: Problems,
    /// Namespaces that the source follows, sorted; empty for all.
    namespaces: Vec<String>,
    /// Other names of the kind upstream, sorted.
    aliases: Vec<String>,
}

// === impl SourceHealth ===

impl SourceHealth {
    /// Makes the health of a source without contact so far. `heartbeat` is the interval at which the upstream proves itself
    /// alive ([`Duration::MAX`] if it may be silent for ever). `stale_after` bounds the silence beyond that, and the time for
    /// which the source may fail.
    pub fn new(heartbeat: Duration, stale_after: Duration) -> Self {
        let shared = HealthShared {
            heartbeat,
            stale_after,
            base: Instant::now(),
            lost: AtomicBool::new(false),
            stale_upstream: AtomicBool::new(false),
            unconfirmed: AtomicBool::new(false),
            stale_micros: AtomicU64::new(0),
            late_changes: AtomicU64::new(0),
            record: Mutex::default(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Records contact with the upstream: a list, an event, a bookmark.
    pub fn record_contact(&self) {
        self.shared.lost.store(false, Ordering::Relaxed);
        self.shared.stale_micros.store(self.shared.micros_after(self.max_silence()), Ordering::Relaxed);
        let mut record = self.shared.record.lock();
        record.seen_at = Some(SystemTime::now());
        record.problems.clear(ProblemReason::UpstreamUnreachable, "");
    }

    /// Returns the time without contact after which the state is STALE.
    pub fn max_silence(&self) -> Duration {
        self.shared.heartbeat.saturating_add(self.shared.stale_after)
    }

    /// Returns the time of the last contact with the upstream; at a relay that is the next server, not the origin.
    pub fn contact_at(&self) -> Option<SystemTime> {
        self.shared.record.lock().seen_at
    }

    /// Counts a change at a version that the rules of the upstream's API had completed before.
    pub fn count_late_change(&self) {
        self.shared.late_changes.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of changes at versions that had been complete.
    pub fn late_changes(&self) -> u64 {
        self.shared.late_changes.load(Ordering::Relaxed)
    }

    /// Marks the upstream as lost, or changes of it as missed, for certain: STALE until the next contact (a list, or an event
    /// of a watch that resumes without a gap).
    pub fn mark_lost(&self) {
        self.shared.lost.store(true, Ordering::Relaxed);
    }

    /// Records at a relay the state of the upstream's own upstream. It counts as long as the upstream itself is alive.
    pub fn record_origin(&self, state: SyncState, seen_at: Option<SystemTime>) {
        self.shared.stale_upstream.store(state != SyncState::Synced, Ordering::Relaxed);
        self.shared.record.lock().origin_seen_at = seen_at;
    }

    /// Sets whether the upstream has yet to confirm that the objects exist. Meanwhile the state is STALE, in spite of contact.
    pub fn set_unconfirmed(&self, is_unconfirmed: bool) {
        self.shared.unconfirmed.store(is_unconfirmed, Ordering::Relaxed);
    }

    /// Records a failed list or watch: the problem [`ProblemReason::UpstreamUnreachable`], until the next contact. The state
    /// turns STALE if there is none within `stale_after` from the first failure.
    pub fn record_failure(&self, error: impl Into<String>) {
        let bound = self.shared.micros_after(self.shared.stale_after);
        self.shared.stale_micros.fetch_min(bound, Ordering::Relaxed);
        self.set_problem(Problem::new(ProblemReason::UpstreamUnreachable, "", error));
    }

    /// Records the loss of a connection whose last contact was at `since`. The state turns STALE if there is none within
    /// `stale_after` from then.
    pub fn record_lost_contact(&self, since: Instant) {
        let silence = since.saturating_duration_since(self.shared.base).saturating_add(self.shared.stale_after);
        let bound = u64::try_from(silence.as_micros()).unwrap_or(u64::MAX);
        self.shared.stale_micros.fetch_min(bound, Ordering::Relaxed);
    }

    /// Returns true if a list or a watch has failed and there was no contact with the upstream since.
    pub fn has_failed(&self) -> bool {
        self.shared.record.lock().problems.get(ProblemReason::UpstreamUnreachable, "").is_some()
    }

    /// Reports a problem, or a new message of the standing one with its reason and subject, which keeps its beginning.
    pub fn set_problem(&self, problem: Problem) -> ProblemReport {
        self.shared.record.lock().problems.set(problem)
    }

    /// Ends the problem with this reason and subject, and returns it; `None` if there is none.
    pub fn clear_problem(&self, reason: ProblemReason, subject: &str) -> Option<Problem> {
        self.shared.record.lock().problems.clear(reason, subject)
    }

    /// Replaces all problems of these reasons by those in `found`, whose reasons must be among them, and returns the
    /// difference. Problems of other reasons stay.
    pub fn replace_problems(&self, reasons: &[ProblemReason], found: Vec<Problem>) -> ProblemChanges {
        self.shared.record.lock().problems.replace(reasons, found)
    }

    /// Returns the oldest 100 standing problems, the oldest first.
    pub fn problems(&self) -> Vec<Problem> {
        self.shared.record.lock().problems.shown()
    }

    /// Returns all held problems of these reasons, for the next run.
    pub fn problems_of(&self, reasons: &[ProblemReason]) -> Vec<Problem> {
        let record = self.shared.record.lock();
        record.problems.iter().filter(|problem| reasons.contains(&problem.reason)).cloned().collect()
    }

    /// Reports the other names of the kind, singular and short ones.
    pub fn set_aliases(&self, mut aliases: Vec<String>) {
        aliases.retain(|alias| !alias.is_empty());
        aliases.sort();
        aliases.dedup();
        self.shared.record.lock().aliases = aliases;
    }

    /// Returns the other names of the kind, sorted; empty until the source has reported them.
    pub fn aliases(&self) -> Vec<String> {
        self.shared.record.lock().aliases.clone()
    }

    /// Reports the namespaces that the source follows; none means all.
    pub fn set_namespaces(&self, mut namespaces: Vec<String>) {
        namespaces.sort();
        namespaces.dedup();
        self.shared.record.lock().namespaces = namespaces;
    }

    /// Returns the namespaces that the source follows, sorted; empty if it follows all, or has no namespaces.
    pub fn namespaces(&self) -> Vec<String> {
        self.shared.record.lock().namespaces.clone()
    }

    /// Records that the state is the snapshot of the previous run, with the time of its last contact. It is STALE until the
    /// next contact with the upstream.
    pub fn mark_resumed(&self, seen_at: Option<SystemTime>) {
        self.shared.record.lock().seen_at = seen_at;
    }

    /// Returns the state of a resource that has objects: synced or stale.
    pub fn state(&self) -> SyncState {
        let flags = [&self.shared.lost, &self.shared.stale_upstream, &self.shared.unconfirmed];
        let is_lost = flags.into_iter().any(|flag| flag.load(Ordering::Relaxed));
        let is_stale =
            is_lost || self.shared.micros_after(Duration::ZERO) >= self.shared.stale_micros.load(Ordering::Relaxed);
        if is_stale { SyncState::Stale } else { SyncState::Synced }
    }

    /// Returns all values, for a resource that has objects.
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

// === impl HealthShared ===

impl HealthShared {
    /// Returns a moment from now, in microseconds since `base`.
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
    async fn a_source_is_stale_after_a_silence_of_its_heartbeat_and_the_bound() {
        let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
        assert_eq!(health.report().state, SyncState::Stale);
        health.record_contact();
        assert_eq!(health.report().state, SyncState::Synced);

        tokio::time::advance(HEARTBEAT).await;
        assert_eq!(health.state(), SyncState::Synced);
        health.record_failure("connection refused");
        let report = health.report();
        assert_eq!((report.state, report.last_error.as_deref()), (SyncState::Synced, Some("connection refused")));
        tokio::time::advance(STALE_AFTER).await;
        assert_eq!(health.report().state, SyncState::Stale);

        health.record_contact();
        let report = health.report();
        assert_eq!((report.state, report.last_error), (SyncState::Synced, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_fails_is_stale_without_waiting_for_its_heartbeat() {
        for heartbeat in [Duration::from_secs(120), Duration::MAX] {
            let health = SourceHealth::new(heartbeat, STALE_AFTER);
            health.record_contact();
            tokio::time::advance(Duration::from_secs(60)).await;
            for _ in 0..5 {
                assert_eq!(health.state(), SyncState::Synced);
                health.record_failure("connection refused");
                tokio::time::advance(STALE_AFTER / 5).await;
            }
            assert_eq!(health.state(), SyncState::Stale);
            health.record_contact();
            tokio::time::advance(Duration::from_secs(100)).await;
            assert_eq!(health.state(), SyncState::Synced);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_connection_counts_from_the_last_contact() {
        let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
        health.record_contact();
        let contact = Instant::now();
        tokio::time::advance(STALE_AFTER.saturating_sub(Duration::from_secs(1))).await;
        health.record_lost_contact(contact);
        health.record_failure("no answer");
        assert_eq!(health.state(), SyncState::Synced);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(health.state(), SyncState::Stale);
        health.record_contact();
        assert_eq!(health.state(), SyncState::Synced);
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_may_be_silent_is_stale_only_when_it_is_lost() {
        let health = SourceHealth::new(Duration::MAX, STALE_AFTER);
        health.record_contact();
        tokio::time::advance(Duration::from_secs(1 << 30)).await;
        assert_eq!(health.state(), SyncState::Synced);
        health.mark_lost();
        assert_eq!(health.report().state, SyncState::Stale, "at once");
        health.record_contact();
        assert_eq!(health.state(), SyncState::Synced);
    }

    #[tokio::test(start_paused = true)]
    async fn a_relay_reports_the_state_of_its_origin() {
        let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
        let seen_at = Some(SystemTime::UNIX_EPOCH);
        health.record_contact();
        health.record_origin(SyncState::Stale, seen_at);
        health.record_contact();
        let report = health.report();
        assert_eq!((report.state, report.seen_at), (SyncState::Stale, seen_at));
        health.record_origin(SyncState::Synced, seen_at);
        assert_eq!(health.state(), SyncState::Synced);
        tokio::time::advance(HEARTBEAT + STALE_AFTER + Duration::from_millis(1)).await;
        assert_eq!(health.state(), SyncState::Stale, "the upstream itself is silent");
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_with_unconfirmed_objects_is_stale_despite_contact() {
        let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
        health.set_unconfirmed(true);
        health.record_contact();
        assert_eq!(health.state(), SyncState::Stale);
        health.set_unconfirmed(false);
        assert_eq!(health.state(), SyncState::Synced);
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_a_problem_until_contact_and_comes_first_in_last_error() {
        let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
        let invalid = |path: &str| Problem::new(ProblemReason::FileInvalid, path, "bad");
        health.replace_problems(&[ProblemReason::FileInvalid], vec![invalid("a.yaml"), invalid("b.yaml")]);
        health.record_contact();
        let report = health.report();
        assert_eq!((report.problems, report.last_error.as_deref()), (2, Some("a.yaml: bad")));
        health.record_failure("gone");
        let since = health.problems()[2].since;
        health.record_failure("gone for good");
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
        health.record_contact();
        assert_eq!((health.report().problems, health.report().last_error), (0, None));
        health.set_problem(Problem::new(ProblemReason::SnapshotNotWritten, "", "full"));
        assert_eq!(health.report().last_error.as_deref(), Some("full"));
        assert!(health.clear_problem(ProblemReason::SnapshotNotWritten, "").is_some());
        assert_eq!(health.report().last_error, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_has_failed_until_contact_and_may_begin_with_the_last_contact_of_the_previous_run() {
        let health = SourceHealth::new(HEARTBEAT, STALE_AFTER);
        assert!(!health.has_failed());
        health.record_failure("gone");
        assert!(health.has_failed());
        health.record_contact();
        assert!(!health.has_failed());
        let seen_at = Some(SystemTime::UNIX_EPOCH);
        health.mark_resumed(seen_at);
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
