//! Check that an open watch is fed: that the API server sends the changes which the cluster has.
//!
//! An API server whose watch cache stands still, because etcd does not answer it or an object cannot be decoded, keeps its watches
//! open, answers PINGs, and goes on sending bookmarks at one version. In a live cluster the version of a quiet resource advances
//! with each bookmark. So a version that stands still is compared with the most recent one, by a list with `limit=1`:
//!
//! | answer | conclusion |
//! |---|---|
//! | the same version (a cluster at rest), or none that can be compared; the API refuses the list | fed |
//! | a higher version, which the watch reaches within `stale_after` | fed |
//! | a higher version, and a short second watch has no change up to it | fed |
//! | a higher version, and a second watch without any line, of a resource without bookmarks (Events) | fed |
//! | a higher version otherwise, an error, or no answer | STALE after `stale_after`, for this reason |
//!
//! A resource that is not fed is checked again every few seconds. If a second watch has sent a change that the open one lacks, the
//! source opens another one in its place.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::{known::Position, probe::Probe, shared::KubeShared};
use crate::{cache::SourceError, model::ResourceVersion};

/// Evidence against a watch.
struct Missing {
    reason: String,
    /// Version that the watch has to reach; without one, any later version is enough.
    wanted: Option<ResourceVersion>,
    /// True if another watch has sent a change that this one lacks.
    is_change: bool,
}

/// Time for which a version stands still before it is checked: two intervals of kube-apiserver's bookmarks
/// (`bookmarkFrequency`).
const QUIET: Duration = Duration::from_secs(2 * 60);
/// The same, at most, where bookmarks advance more slowly: etcd reports progress every 10 minutes by default.
const MAX_QUIET: Duration = Duration::from_secs(15 * 60);
/// Shortest time from the first evidence to STALE: that of a short watch, and of the requests around it.
const MIN_PATIENCE: Duration = Duration::from_secs(10);
/// Interval of the checks while there is evidence.
const RECHECK: Duration = Duration::from_secs(10);
/// Interval at which the position is compared meanwhile.
const LOOK: Duration = Duration::from_secs(1);

/// Checks the feed of an open watch for as long as it is polled. Completes when the watch lacks a change that another one has.
pub(super) async fn keep_checking(shared: Arc<KubeShared>) -> SourceError {
    let part = shared.config.namespace.clone();
    let mut due = Instant::now();
    loop {
        if !shared.health.is_unfed(&part) {
            let next = shared.quiet_until().max(due);
            if next > Instant::now() {
                sleep_until(next).await;
                continue;
            }
        }
        if let Err(error) = check(&shared, &part).await {
            return error;
        }
        if shared.health.is_unfed(&part) {
            tracing::info!(resource = shared.config.resource, namespace = part, "watch fed again");
            shared.health.clear_unfed(&part);
        }
        due = Instant::now() + QUIET;
    }
}

/// Waits until the watch has proved to be fed. It is reported as not fed once that takes too long.
async fn check(shared: &Arc<KubeShared>, part: &str) -> Result<(), SourceError> {
    let Some((at, since)) = shared.known.lock().position().map(|position| (position.version.clone(), position.since))
    else {
        return Ok(());
    };
    let patience = shared.health.stale_after().max(MIN_PATIENCE);
    let late_at = Instant::now() + patience;
    let mut was_behind = false;
    loop {
        let next_at = Instant::now() + RECHECK;
        let found = timeout(patience, shared.missing(&at)).await;
        let Missing { reason, wanted, is_change } = match found {
            Ok(None) => {
                shared.note_pace(&at, since, was_behind);
                return Ok(());
            }
            Ok(Some(missing)) => missing,
            Err(_) => Missing::of_error(format!("no answer to a list with limit=1 within {patience:?}")),
        };
        was_behind |= wanted.is_some();
        loop {
            let is_fed = shared.reached().is_none_or(|reached| match &wanted {
                Some(wanted) => reached >= *wanted,
                None => reached > at,
            });
            if is_fed {
                shared.note_pace(&at, since, was_behind);
                return Ok(());
            }
            if Instant::now() >= late_at {
                let problem = format!("the watch stands still at version {at}: {reason}");
                if !shared.health.is_unfed(part) {
                    tracing::warn!(resource = shared.config.resource, problem, "watch not fed");
                }
                shared.health.set_unfed(part, problem.clone());
                if is_change {
                    return Err(SourceError::Broken(problem));
                }
            }
            if Instant::now() >= next_at {
                break;
            }
            sleep(LOOK).await;
        }
    }
}

// === impl Missing ===

impl Missing {
    fn of_error(reason: String) -> Self {
        Self { reason, wanted: None, is_change: false }
    }
}

// === impl KubeShared ===

impl KubeShared {
    /// Records that the API has sent a bookmark.
    pub(super) fn note_bookmark(&self) {
        self.feed.has_bookmarks.store(true, Ordering::Relaxed);
    }

    /// Records that the resource lacks nothing, after it stood still at a version since then. If it was behind the cluster, and there was
    /// no change in between, the API's bookmarks are that slow.
    fn note_pace(&self, at: &ResourceVersion, since: Instant, was_behind: bool) {
        let changed = self.known.lock().position().and_then(Position::resume_point);
        if was_behind && changed.is_none_or(|change| change.version() <= at) {
            let mut pace = self.feed.pace.lock();
            *pace = (*pace).max(since.elapsed());
        }
    }

    /// Returns the time until which the version may stand still.
    fn quiet_until(&self) -> Instant {
        let quiet = self.feed.pace.lock().mul_f64(1.5).clamp(QUIET, MAX_QUIET);
        self.known.lock().position().map_or_else(Instant::now, |position| position.since) + quiet
    }

    /// Returns the version of the last event or bookmark.
    fn reached(&self) -> Option<ResourceVersion> {
        self.known.lock().position().map(|position| position.version.clone())
    }

    /// Compares a version with the most recent one of the cluster; `None` if the watch lacks nothing.
    async fn missing(self: &Arc<Self>, at: &ResourceVersion) -> Option<Missing> {
        let present = match self.most_recent_version().await {
            Ok(present) => present?,
            Err(reason) => return Some(Missing::of_error(reason)),
        };
        let checked = self.feed.checked.lock().clone();
        if at.lineage().is_some() || present <= *at || checked.is_some_and(|checked| present <= checked) {
            return None;
        }
        let safe = self.known.lock().position().map(Position::safe)?;
        let (has, wanted, is_change) = match self.probe(&safe).await {
            Probe::Change(version) if version > *at => (format!("a change at {version}"), version, true),
            Probe::Quiet(version) if version >= present => return self.note_fed(present),
            Probe::Quiet(_) | Probe::Unknown if self.feed.has_bookmarks.load(Ordering::Relaxed) => {
                (format!("version {present}"), present, false)
            }
            // A change that is known already, as at a version that is still open; or a resource without bookmarks.
            _ => return self.note_fed(present),
        };
        Some(Missing { reason: format!("the cluster has {has}"), wanted: Some(wanted), is_change })
    }

    /// Records that nothing is missing at this version of the cluster.
    fn note_fed(&self, present: ResourceVersion) -> Option<Missing> {
        *self.feed.checked.lock() = Some(present);
        None
    }
}
