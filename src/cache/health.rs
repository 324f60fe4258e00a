//! Health of a resource's source: the Reflector and its source write it; responses and probes read it.
//!
//! Problems of a resource are reported through [`SourceHealth`]: one at a time ([`SourceHealth::set_problem`],
//! [`SourceHealth::clear_problem`]), or all of some reasons at once ([`SourceHealth::replace_problems`]). They appear in
//! `ListResources` and in the metric `informerd_source_problems`; the oldest appears in `last_error`. A failed list or watch
//! ([`SourceHealth::record_failure`]) is a problem until the upstream is alive again.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Problem, ProblemChanges, ProblemReason, ProblemReport, problem::Problems};
use crate::model::{ApiKind, ResourceVersion};

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
    /// Last failure of a list or watch while it lasts, otherwise the reason for which a watch counts as not fed, otherwise the oldest
    /// standing problem, otherwise the reason for which the state is not SYNCED: only a state that is has none.
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
    /// True if objects may exist that the source has not been able to read since its start.
    incomplete: AtomicBool,
    /// True if the first list of this run had items that could not be read, and are unread.
    unread: AtomicBool,
    /// True if an open watch does not bring the changes that the upstream has.
    unfed: AtomicBool,
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
    /// Parts of the resource whose watches are not fed, each with the evidence.
    unfed: BTreeMap<String, String>,
    /// Version of the first list of this run, if it had items that are unread.
    unread_since: Option<ResourceVersion>,
    /// Version of the first list that is incomplete, if the upstream assigns the versions.
    incomplete_since: Option<ResourceVersion>,
    /// Version whose state contains all objects, while that of the resource does not.
    complete_at: Option<ResourceVersion>,
    /// Namespaces that the source follows, sorted; empty for all.
    namespaces: Vec<String>,
    /// Other names of the kind upstream, sorted.
    aliases: Vec<String>,
    api_kind: Option<ApiKind>,
    /// All failed lists and watches: a test that looks at the state from time to time misses those that were short.
    #[cfg(test)]
    failures: Vec<String>,
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
            incomplete: AtomicBool::new(false),
            unread: AtomicBool::new(false),
            unfed: AtomicBool::new(false),
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

    /// Returns the bound of a silence beyond the heartbeat.
    pub fn stale_after(&self) -> Duration {
        self.shared.stale_after
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

    /// Reports that the open watch of a part of the resource (a namespace; empty for the whole) does not bring the changes that
    /// the upstream has, or that the upstream does not answer whether there are any. The resource is STALE for this reason, in spite
    /// of contact, until [`clear_unfed`](Self::clear_unfed).
    pub fn set_unfed(&self, part: &str, reason: impl Into<String>) {
        let mut record = self.shared.record.lock();
        record.unfed.insert(part.to_owned(), reason.into());
        self.shared.unfed.store(true, Ordering::Relaxed);
    }

    /// Reports that the watch of a part is fed again, or is none any more.
    pub fn clear_unfed(&self, part: &str) {
        if self.shared.unfed.load(Ordering::Relaxed) {
            let mut record = self.shared.record.lock();
            record.unfed.remove(part);
            self.shared.unfed.store(!record.unfed.is_empty(), Ordering::Relaxed);
        }
    }

    /// Returns true if the watch of a part is not fed.
    pub fn is_unfed(&self, part: &str) -> bool {
        self.shared.unfed.load(Ordering::Relaxed) && self.shared.record.lock().unfed.contains_key(part)
    }

    /// Reports that objects may exist which the source has not been able to read since its start. The resource is STALE, and
    /// nobody may take for deleted what it lacks: a client with a version of an earlier run keeps its objects, and resumes later.
    /// Versions before `since`, that of the list, are of an earlier run; `None` if versions do not last longer than a run.
    pub fn mark_incomplete(&self, problem: impl Into<String>, since: Option<ResourceVersion>) {
        self.shared.incomplete.store(true, Ordering::Relaxed);
        let mut record = self.shared.record.lock();
        record.complete_at = None;
        record.incomplete_since = record.incomplete_since.take().or(since);
        record.problems.set(Problem::new(ProblemReason::ObjectsUnread, "", problem));
    }

    /// Reports that the state of this version has all objects. The resource is complete when it has reached that version.
    pub fn complete_at(&self, version: ResourceVersion) {
        if self.is_incomplete() {
            self.shared.record.lock().complete_at = Some(version);
        }
    }

    /// Returns true if objects may exist that the source has not been able to read since its start.
    pub fn is_incomplete(&self) -> bool {
        self.shared.incomplete.load(Ordering::Relaxed)
    }

    /// Reports an object that exists, and that could not be read since the first list of this run, with the version of that list; or
    /// that there is none.
    pub(crate) fn set_unread(&self, unread: Option<(ResourceVersion, Problem)>) {
        if unread.is_none() && !self.shared.unread.load(Ordering::Relaxed) {
            return;
        }
        let (since, problem) = unread.unzip();
        let mut record = self.shared.record.lock();
        self.shared.unread.store(since.is_some(), Ordering::Relaxed);
        record.unread_since = since;
        let of_source = record.problems.get(ProblemReason::ObjectsUnread, "").cloned();
        record.problems.replace(&[ProblemReason::ObjectsUnread], of_source.into_iter().chain(problem).collect());
    }

    /// Returns true if a state at `current` may lack objects that a client has at `version`: it is one of an earlier run.
    #[cfg(feature = "server")]
    pub(crate) fn may_lack(&self, version: &ResourceVersion, current: Option<&ResourceVersion>) -> bool {
        let is_other = current.is_none_or(|current| !current.same_lineage(version));
        let is_earlier = |since: fn(&HealthRecord) -> &Option<ResourceVersion>| {
            is_other || since(&self.shared.record.lock()).as_ref().is_some_and(|since| version < since)
        };
        self.is_incomplete() && is_earlier(|record| &record.incomplete_since)
            || self.shared.unread.load(Ordering::Relaxed) && is_earlier(|record| &record.unread_since)
    }

    /// Records that the resource has reached a version, which clients can read.
    pub(crate) fn note_reached(&self, version: &ResourceVersion) {
        if !self.is_incomplete() {
            return;
        }
        let mut record = self.shared.record.lock();
        if record.complete_at.take_if(|complete_at| *version >= *complete_at).is_some() {
            record.problems.clear(ProblemReason::ObjectsUnread, "");
            record.incomplete_since = None;
            self.shared.incomplete.store(false, Ordering::Relaxed);
        }
    }

    /// Records a failed list or watch: the problem [`ProblemReason::UpstreamUnreachable`], until the next contact. The state
    /// turns STALE if there is none within `stale_after` from the first failure.
    pub fn record_failure(&self, error: impl Into<String>) {
        let bound = self.shared.micros_after(self.shared.stale_after);
        self.shared.stale_micros.fetch_min(bound, Ordering::Relaxed);
        let problem = Problem::new(ProblemReason::UpstreamUnreachable, "", error);
        #[cfg(test)]
        self.shared.record.lock().failures.push(problem.message.clone());
        self.set_problem(problem);
    }

    #[cfg(test)]
    pub(crate) fn failures(&self) -> Vec<String> {
        self.shared.record.lock().failures.clone()
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

    /// Reports the kind as the upstream's own discovery has it.
    pub fn set_api_kind(&self, kind: ApiKind) {
        self.shared.record.lock().api_kind = Some(kind);
    }

    /// Returns the kind, once the source has reported it.
    pub fn api_kind(&self) -> Option<ApiKind> {
        self.shared.record.lock().api_kind.clone()
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
        let HealthShared { lost, stale_upstream, unconfirmed, incomplete, unread, unfed, .. } = &*self.shared;
        let flags = [lost, stale_upstream, unconfirmed, incomplete, unread, unfed];
        let is_lost = flags.into_iter().any(|flag| flag.load(Ordering::Relaxed));
        let is_stale =
            is_lost || self.shared.micros_after(Duration::ZERO) >= self.shared.stale_micros.load(Ordering::Relaxed);
        if is_stale { SyncState::Stale } else { SyncState::Synced }
    }

    /// Returns all values, for a resource that has objects.
    pub fn report(&self) -> HealthReport {
        let record = self.shared.record.lock();
        let failure = record.problems.get(ProblemReason::UpstreamUnreachable, "").map(|failure| &failure.message);
        let state = self.state();
        let told = failure.or(record.unfed.values().next()).or(record.problems.oldest()).cloned();
        HealthReport {
            state,
            seen_at: record.origin_seen_at.or(record.seen_at),
            last_error: told.or_else(|| (state != SyncState::Synced).then(|| self.stale_reason(&record))),
            problems: record.problems.len(),
        }
    }

    /// Returns the reason for a state that is not synced, of which no failure and no problem is known.
    fn stale_reason(&self, record: &HealthRecord) -> String {
        let is_set = |flag: &AtomicBool| flag.load(Ordering::Relaxed);
        if self.shared.stale_micros.load(Ordering::Relaxed) == 0 {
            return "no contact with the upstream since the start".to_owned();
        }
        if is_set(&self.shared.lost) {
            return "changes of the upstream were missed: it is listed again".to_owned();
        }
        if is_set(&self.shared.unconfirmed) {
            return "the upstream has yet to confirm the objects".to_owned();
        }
        if is_set(&self.shared.stale_upstream) {
            return "the upstream has no contact with its own upstream; see its last_error".to_owned();
        }
        let silence = record.seen_at.and_then(|at| at.elapsed().ok()).unwrap_or_default().as_secs();
        let (heartbeat, stale_after) = (self.shared.heartbeat, self.shared.stale_after);
        format!(
            "the upstream has been silent for {silence} s (expected every {heartbeat:?}, stale after another {stale_after:?})"
        )
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
mod tests;
