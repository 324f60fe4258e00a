//! State of one source between a list and a watch: the cluster, its version scheme, and the position of the resource.

use std::time::Duration;

use tokio::time::Instant;

use super::{replay::Replay, resume_check::ResumePoint};
use crate::{
    model::{Event, ResourceVersion, VersionError},
    source::lineage::new_lineage,
};

/// State of one source.
#[derive(Debug, Default)]
pub(super) struct KnownState {
    /// Uid of the namespace kube-system; `None` if it may not be read.
    cluster: Option<String>,
    /// Numbering of the versions; `None` while they are the API's own.
    lineage: Option<LineagePosition>,
    /// `None` before the first list, and after the history was rewritten.
    position: Option<Position>,
    /// True if every version stays open until the next: the API made several changes at one that were not all deletions.
    leaves_open: bool,
    /// True once a list had a decimal version: the versions stay the API's own for the whole run.
    has_decimals: bool,
}

/// Position of the resource in the API's history.
#[derive(Debug, Clone)]
pub(super) struct Position {
    /// Version up to which all events have been emitted.
    pub(super) version: ResourceVersion,
    openness: Openness,
    /// Number of changes at that version.
    changes: usize,
    /// Last change up to there.
    resume_point: Option<ResumePoint>,
    pub(super) origin: PositionEvidence,
    /// Time since which the version stands still.
    pub(super) since: Instant,
}

/// State of a version: open if more changes may have it.
///
/// The API makes one change at each version, except for deletions: all objects on one lease expire at one. The next version
/// closes it, and so does the second bookmark at it: the API server may send the first between two of its changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Openness {
    /// Closed by a list or a bookmark.
    Closed,
    /// Closed by its only change.
    Changed,
    Open,
    /// Still open after one bookmark.
    Bookmarked,
}

/// Effect of an event on the version of the resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EventEffect {
    /// True if no more changes have this version.
    pub(super) closes: bool,
    /// True if by the API's rules the version could not have this change.
    pub(super) is_late: bool,
    /// True if too many changes have the version: the API's versions do not distinguish changes.
    pub(super) is_beyond_bound: bool,
}

/// Evidence for a position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum PositionEvidence {
    /// A previous run; the API has not shown yet that it has the same history.
    EarlierStart,
    /// A list at this time, with no event since.
    List(Instant),
    /// A watch that the API closed normally, with no event since; the API was last seen at this time, before the close. A
    /// killed API server, or a machine that is rolled back, ends no answer that way.
    Closed(Instant),
    /// A watch. The API may be another one by now, or may have been restored.
    Watch,
}

/// Position of a resource whose versions are not decimals.
#[derive(Debug)]
struct LineagePosition {
    version: ResourceVersion,
    /// The API's text for the version.
    text: String,
    /// The API's text before that. A watch resumes the previous version from it, since the API may have had the same text for
    /// both.
    previous: String,
    /// True if the API had the same text for the previous version.
    is_repeated: bool,
    /// The API's texts: that of the last change, and the one before it.
    changed: String,
    before_change: String,
}

/// Largest number of changes at one version; a lease of Kubernetes has at most 1,000 objects. With more, the API's versions are
/// of no use, and the changes at an open version stay in memory for clients that resume before it.
pub(super) const MAX_CHANGES: usize = 10_000;

/// Lower bound of the time from the stop of a cluster, which closes its watches, until it answers again, restored. The bound
/// allows for a late close, and for requests that a proxy holds. By default an idle connection shows every 5 s that it is
/// alive; where that takes longer, a closed watch needs a proof.
const RESTORE: Duration = Duration::from_secs(10);

// === impl LineagePosition ===

impl LineagePosition {
    fn advance(&mut self, text: &str) -> ResourceVersion {
        self.version = self.version.next();
        self.is_repeated = self.text == text && !text.is_empty();
        if !self.is_repeated {
            self.previous = std::mem::replace(&mut self.text, text.to_owned());
        }
        self.version.clone()
    }
}

// === impl Position ===

impl Position {
    /// Returns the last closed version, from which a watch resumes.
    pub(super) fn safe(&self) -> ResourceVersion {
        if self.is_open() { self.version.previous() } else { self.version.clone() }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.openness, Openness::Open | Openness::Bookmarked)
    }

    /// Returns the last change, for the API to replay.
    pub(super) fn resume_point(&self) -> Option<ResumePoint> {
        let resume_point = self.resume_point.clone()?;
        Some(if self.is_open() { resume_point.open() } else { resume_point })
    }
}

// === impl PositionEvidence ===

impl PositionEvidence {
    /// Returns true if the API has just closed the watch: it still has the same history.
    pub(super) fn is_just_closed(self) -> bool {
        matches!(self, Self::Closed(at) if at.elapsed() < RESTORE)
    }

    /// Returns true if the API has just answered a list: it still has the same history.
    pub(super) fn is_just_listed(self) -> bool {
        matches!(self, Self::List(at) if at.elapsed() < RESTORE)
    }
}

// === impl KnownState ===

impl KnownState {
    /// Compares the cluster with the last known one, which it replaces.
    ///
    /// # Errors
    ///
    /// The difference, reported once: the next call compares with the new cluster.
    pub(super) fn check_cluster(&mut self, uid: &str) -> Result<(), String> {
        match self.cluster.replace(uid.to_owned()) {
            Some(known) if known != uid => {
                // The position is one of the old cluster.
                self.position = None;
                Err(format!("uid of kube-system changed from {known} to {uid}"))
            }
            _ => Ok(()),
        }
    }

    /// Returns the uid of the namespace kube-system; `None` if it may not be read.
    pub(super) fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }

    /// Returns the position of the resource.
    pub(super) fn position(&self) -> Option<&Position> {
        self.position.as_ref()
    }

    /// Returns the state of a previous run: complete up to a version, and perhaps with a part of the next one.
    pub(super) fn resume(
        cluster: Option<String>,
        safe: ResourceVersion,
        is_open: bool,
        resume_point: Option<ResumePoint>,
    ) -> Self {
        let (version, openness) = if is_open { (safe.next(), Openness::Open) } else { (safe, Openness::Closed) };
        let (origin, since) = (PositionEvidence::EarlierStart, Instant::now());
        let position = Position { version, openness, changes: 0, resume_point, origin, since };
        Self { cluster, position: Some(position), has_decimals: true, ..Self::default() }
    }

    /// Sets whether every version stays open until the next.
    pub(super) fn with_open_versions(self, leaves_open: bool) -> Self {
        Self { leaves_open, ..self }
    }

    /// Returns true if every version stays open until the next.
    pub(super) fn leaves_open(&self) -> bool {
        self.leaves_open
    }

    /// Returns true if versions are the API's own.
    pub(super) fn is_decimal(&self) -> bool {
        self.lineage.is_none()
    }

    /// Returns the state for an API whose versions are opaque, even if they look like decimals.
    pub(super) fn opaque() -> Self {
        let mut known = Self::default();
        known.begin_lineage();
        known
    }

    /// Returns true until a list had a decimal version, or versions are numbered by lineage.
    pub(super) fn may_begin_lineage(&self) -> bool {
        self.lineage.is_none() && !self.has_decimals
    }

    /// Returns true if the last list had no version at all: there is nothing to watch from.
    pub(super) fn is_unversioned(&self) -> bool {
        self.lineage.as_ref().is_some_and(|place| place.text.is_empty() && place.version.number() > 0)
    }

    /// Numbers all further versions in a new lineage.
    pub(super) fn begin_lineage(&mut self) {
        let version = ResourceVersion::of_lineage(new_lineage(), 0);
        self.lineage = Some(LineagePosition {
            version,
            text: String::new(),
            previous: String::new(),
            is_repeated: false,
            changed: String::new(),
            before_change: String::new(),
        });
    }

    /// Returns the API's text for a version; `None` for one that the API can no longer be queried for.
    pub(super) fn text_of(&self, version: &ResourceVersion) -> Option<String> {
        let Some(LineagePosition { version: current, text, previous, .. }) = &self.lineage else {
            return version.lineage().is_none().then(|| version.to_string());
        };
        let text = if version == current {
            text
        } else if current.number() > 0 && *version == current.previous() {
            previous
        } else {
            return None;
        };
        Some(text.clone()).filter(|text| !text.is_empty())
    }

    /// Returns the version of a change, which always differs from the previous one where versions are numbered by lineage.
    pub(super) fn change(&mut self, text: &str) -> Result<ResourceVersion, VersionError> {
        let Some(place) = &mut self.lineage else { return ResourceVersion::parse_decimal(text) };
        let version = place.advance(text);
        if !place.is_repeated {
            text.clone_into(&mut place.changed);
            place.before_change.clone_from(&place.previous);
        }
        Ok(version)
    }

    /// Returns the version of a state, which may be the same as before.
    pub(super) fn state(&mut self, text: &str) -> Result<ResourceVersion, VersionError> {
        match &mut self.lineage {
            Some(place) if place.text == text && !text.is_empty() => Ok(place.version.clone()),
            Some(place) => Ok(place.advance(text)),
            None => ResourceVersion::parse_decimal(text),
        }
    }

    /// Does the same for a list, which has to have a version of the same kind as the lists before it.
    ///
    /// # Errors
    ///
    /// The difference: an answer of something else than the API.
    pub(super) fn state_of_list(&mut self, text: &str) -> Result<ResourceVersion, String> {
        match &self.lineage {
            Some(place) if text.is_empty() && !place.text.is_empty() => {
                Err("list without a version; the lists before it had versions".to_owned())
            }
            _ => self.state(text).map_err(|error| format!("list: {error}")),
        }
    }

    /// Rewinds to the last change, where versions are numbered by lineage, and returns what the API has to replay; `None`
    /// without a change since the list.
    pub(super) fn begin_replay(&mut self) -> Option<Replay> {
        let position = self.position.as_ref()?;
        let resume_point = position.resume_point.clone().filter(|resume_point| !resume_point.is_listed())?;
        let place = self.lineage.as_mut().filter(|place| !place.before_change.is_empty())?;
        place.text.clone_from(&place.changed);
        place.previous.clone_from(&place.before_change);
        let (before, text) = (place.before_change.clone(), place.changed.clone());
        Some(Replay { resume_point, before, text, is_open: position.is_open() })
    }

    /// Records a list.
    pub(super) fn note_list(&mut self, version: &ResourceVersion, resume_point: Option<ResumePoint>) {
        self.has_decimals |= version.lineage().is_none();
        let (since, version, openness) = (self.since(version), version.clone(), Openness::Closed);
        self.position = Some(Position {
            version,
            openness,
            changes: 0,
            resume_point,
            origin: PositionEvidence::List(Instant::now()),
            since,
        });
    }

    /// Returns the time since which a version stands still that the resource has now.
    fn since(&self, version: &ResourceVersion) -> Instant {
        let same = self.position.as_ref().filter(|position| position.version == *version);
        same.map_or_else(Instant::now, |position| position.since)
    }

    /// Records an event that is to be emitted; `is_deletion` is true if the API sent it as DELETED. The cache rejects an event
    /// below the position, which stays as it is.
    pub(super) fn note_event(&mut self, event: &Event, is_deletion: bool) -> EventEffect {
        // A change numbered by lineage always has its own number, even if the API repeats its text.
        let is_repeated = self.lineage.as_ref().is_some_and(|place| place.is_repeated);
        let is_same = |position: &Position| *event.version() == position.version || is_repeated;
        let since = self.since(event.version());
        let (at_version, changes, known) = match self.position.take() {
            Some(position) if *event.version() < position.version => {
                self.position = Some(position);
                return EventEffect { closes: true, is_late: false, is_beyond_bound: false };
            }
            Some(position) if is_same(&position) => (position.openness, position.changes, position.resume_point),
            position => (Openness::Closed, 0, position.and_then(|position| position.resume_point)),
        };
        let change = ResumePoint::of_event(event);
        let is_late = match at_version {
            _ if change.is_none() => false,
            Openness::Closed => false,
            Openness::Changed => true,
            Openness::Open | Openness::Bookmarked => !is_deletion,
        };
        if is_late {
            self.leave_open(event.version());
        }
        let openness = match (&change, at_version) {
            (Some(_), _) if is_deletion || self.leaves_open => Openness::Open,
            (Some(_), _) | (None, Openness::Changed) => Openness::Changed,
            (None, Openness::Open) => Openness::Bookmarked,
            (None, _) => Openness::Closed,
        };
        let changes = changes + usize::from(change.is_some());
        let resume_point = match (known, change) {
            (Some(known), Some(change)) => Some(known.followed_by(change)),
            (known, change) => change.or(known),
        };
        let position = Position {
            version: event.version().clone(),
            openness,
            changes,
            resume_point,
            origin: PositionEvidence::Watch,
            since,
        };
        let closes = !position.is_open();
        self.position = Some(position);
        EventEffect { closes, is_late, is_beyond_bound: changes > MAX_CHANGES && self.lineage.is_none() }
    }

    /// Leaves every further version open until the next.
    fn leave_open(&mut self, version: impl std::fmt::Display) {
        if !std::mem::replace(&mut self.leaves_open, true) {
            tracing::warn!(
                %version,
                "several changes at one version: a version is now complete with the next version or the second bookmark"
            );
        }
    }

    /// Records that the API closed a watch, all of whose events have been emitted. The API was last seen at this time.
    pub(super) fn note_close(&mut self, seen: Instant) {
        if let Some(position) = self.position.as_mut().filter(|position| position.origin == PositionEvidence::Watch) {
            position.origin = PositionEvidence::Closed(seen);
        }
    }

    /// Drops the position, which belongs to a history that was rewritten.
    pub(super) fn forget(&mut self) {
        self.position = None;
    }

    /// Returns the position for a watch from this version, if the resource is there.
    pub(super) fn watch_position(&self, from: &ResourceVersion) -> Option<Position> {
        self.position().filter(|position| position.version == *from || position.safe() == *from).cloned()
    }

    /// Records that a watch from the position is open: a list or a close counts as the last event for one watch only. An attempt to
    /// open one, which a busy API refuses, leaves it.
    pub(super) fn note_watch(&mut self) {
        if let Some(position) = &mut self.position
            && matches!(position.origin, PositionEvidence::List(_) | PositionEvidence::Closed(_))
        {
            position.origin = PositionEvidence::Watch;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_cluster_is_reported_once() {
        let mut known = KnownState::default();
        assert_eq!(known.check_cluster("a"), Ok(()));
        assert_eq!(known.check_cluster("a"), Ok(()));
        assert!(known.check_cluster("b").unwrap_err().contains("changed from a to b"));
        assert_eq!(known.check_cluster("b"), Ok(()));
    }

    /// Another API server that takes over at once has the same history; one that is restored has not started by then.
    #[tokio::test(start_paused = true)]
    async fn a_just_closed_watch_confirms_the_history_for_a_while() {
        let mut known = KnownState::default();
        let version = ResourceVersion::decimal(9);
        for (since_seen, is_known) in [(9, true), (10, false)] {
            known.note_list(&version, None);
            let position = || known.watch_position(&version).unwrap().origin;
            assert!(position().is_just_listed() && position().is_just_listed(), "until a watch is open");
            known.note_watch();
            known.note_close(Instant::now());
            let closed = known.watch_position(&version).unwrap();
            tokio::time::advance(Duration::from_secs(since_seen)).await;
            assert_eq!(closed.origin.is_just_closed(), is_known);
            known.note_watch();
            let again = known.watch_position(&version).unwrap();
            assert_eq!(again.origin, PositionEvidence::Watch, "once");
            known.note_list(&version, None);
            let listed = known.watch_position(&version).unwrap();
            tokio::time::advance(Duration::from_secs(since_seen)).await;
            assert_eq!(listed.origin.is_just_listed(), is_known);
        }
    }

    #[test]
    fn versions_are_decimals_of_the_api_or_numbered_by_lineage() {
        let mut known = KnownState::default();
        let version = known.change("12").unwrap();
        assert_eq!((version.to_string(), known.text_of(&version)), ("12".to_owned(), Some("12".to_owned())));
        assert!(known.change("a12").is_err());
        known.begin_lineage();
        assert_eq!(known.text_of(&version), None, "another numbering");
        let first = known.state("a12").unwrap();
        assert_eq!((known.text_of(&first).as_deref(), first.number()), (Some("a12"), 1));
        assert_eq!(known.state("a12").unwrap(), first, "nothing happened");
        let second = known.change("a12").unwrap();
        assert!(second > first && known.text_of(&first).is_none());
        let unnamed = known.state("").unwrap();
        assert!(unnamed > second && known.text_of(&unnamed).is_none(), "there is nothing to watch from");
        assert!(known.state("").unwrap() > unnamed);
    }
}
