//! What is known of the API between a list and a watch: which cluster it is, how its versions count, and where the resource is.

use std::time::Duration;

use tokio::time::Instant;

use super::{proof::Mark, replay::Replay};
use crate::{
    model::{Event, ResourceVersion, VersionError},
    source::lineage::new_lineage,
};

/// What one source knows.
#[derive(Debug, Default)]
pub(super) struct Known {
    /// The uid of the namespace kube-system, as far as it may be read.
    cluster: Option<String>,
    /// `None` while versions are the API's own.
    lineage: Option<Place>,
    /// `None` before the first list, and when the history is another one.
    position: Option<Position>,
    /// Every version stays open until the next: the API has made several changes at one that were not all deletions.
    leaves_open: bool,
}

/// Where the resource is.
#[derive(Debug, Clone)]
pub(super) struct Position {
    /// Everything up to here has been handed out.
    pub(super) version: ResourceVersion,
    openness: Openness,
    /// Changes at that version.
    changes: usize,
    /// The last change up to there.
    mark: Option<Mark>,
    pub(super) origin: Origin,
}

/// Whether more changes may come at a version (invariant 12).
///
/// The API makes one change at each version, but for deletions: all objects on one lease expire at one. The next version ends
/// it, and so does the second bookmark at it: the API server may send the first between two of its changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Openness {
    /// By a list or a bookmark.
    Closed,
    /// By a change, which is the only one.
    Changed,
    Open,
    /// Still open, and a bookmark has come.
    Bookmarked,
}

/// An event at the version where the resource is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Noted {
    /// Nothing more comes at it.
    pub(super) closes: bool,
    /// By the API's rules nothing more could come at it.
    pub(super) is_late: bool,
    /// The API's versions do not tell its changes apart.
    pub(super) is_beyond_bound: bool,
}

/// Whom a position is known from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// An earlier start: the API has not shown yet that its history is that one.
    EarlierStart,
    /// The API, by the list that was the last thing that happened, at this time.
    List(Instant),
    /// The API, by a watch that it closed as it should, which was the last thing that happened; it was seen at this time before.
    /// An API server that is killed, and a machine that is rolled back, end no answer that way.
    Closed(Instant),
    /// The API, by a watch. By now it may be another one, or one that was restored.
    Watch,
}

/// Where a resource is whose versions are not decimals.
#[derive(Debug)]
struct Place {
    version: ResourceVersion,
    /// What the API says instead.
    text: String,
    /// What it said before that. The version before is resumed from there: the API may have said the same for both.
    previous: String,
    /// The API has said the same for the version before.
    is_repeated: bool,
    /// Texts of the API: that of the last change, and the one before it.
    changed: String,
    before_change: String,
}

/// Changes of the API at one version; a lease of Kubernetes has at most 1,000 objects. When there are more its versions are of
/// no use, and what is at an open version is kept for whoever resumes before it.
pub(super) const MAX_CHANGES: usize = 10_000;

/// A cluster that is stopped, which closes its watches, takes longer than this until it answers again, restored. The close may
/// come late by then, and a proxy may hold requests. A connection in which nothing happens shows each 5 s that it is alive, by
/// default; where that takes longer, a watch that was closed needs a proof.
const RESTORE: Duration = Duration::from_secs(10);

// === impl Place ===

impl Place {
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
    /// Returns the version that a watch goes on from: nothing more comes at it.
    pub(super) fn safe(&self) -> ResourceVersion {
        if self.is_open() { self.version.previous() } else { self.version.clone() }
    }

    pub(super) fn is_open(&self) -> bool {
        matches!(self.openness, Openness::Open | Openness::Bookmarked)
    }

    /// Returns the last change, to be recognised.
    pub(super) fn mark(&self) -> Option<Mark> {
        let mark = self.mark.clone()?;
        Some(if self.is_open() { mark.open() } else { mark })
    }
}

// === impl Origin ===

impl Origin {
    /// Returns whether the API that answers now is the one that has just closed the watch: it is of the same history.
    pub(super) fn is_just_closed(self) -> bool {
        matches!(self, Self::Closed(at) if at.elapsed() < RESTORE)
    }

    /// Returns whether the API that answers now is the one that has just been listed.
    pub(super) fn is_just_listed(self) -> bool {
        matches!(self, Self::List(at) if at.elapsed() < RESTORE)
    }
}

// === impl Known ===

impl Known {
    /// Takes note of the cluster.
    ///
    /// # Errors
    ///
    /// What has changed, once: from now on the new cluster is the one to be kept.
    pub(super) fn check_cluster(&mut self, uid: &str) -> Result<(), String> {
        match self.cluster.replace(uid.to_owned()) {
            Some(known) if known != uid => {
                // What is known is of the old one.
                self.position = None;
                Err(format!("kube-system had the uid {known}, and has {uid}"))
            }
            _ => Ok(()),
        }
    }

    /// The uid of the namespace kube-system, as far as it may be read.
    pub(super) fn cluster(&self) -> Option<&str> {
        self.cluster.as_deref()
    }

    /// Where the resource is.
    pub(super) fn position(&self) -> Option<&Position> {
        self.position.as_ref()
    }

    /// Goes on from where an earlier start was: at a version, of which it had all, and perhaps a part of the next one.
    pub(super) fn resume(cluster: Option<String>, safe: ResourceVersion, is_open: bool, mark: Option<Mark>) -> Self {
        let (version, openness) = if is_open { (safe.next(), Openness::Open) } else { (safe, Openness::Closed) };
        let position = Position { version, openness, changes: 0, mark, origin: Origin::EarlierStart };
        Self { cluster, position: Some(position), ..Self::default() }
    }

    /// Returns the same for an API every version of which stays open until the next, or not.
    pub(super) fn with_open_versions(self, leaves_open: bool) -> Self {
        Self { leaves_open, ..self }
    }

    /// Returns whether every version stays open until the next.
    pub(super) fn leaves_open(&self) -> bool {
        self.leaves_open
    }

    /// Whether versions are the API's own.
    pub(super) fn is_decimal(&self) -> bool {
        self.lineage.is_none()
    }

    /// A source whose versions are not the API's own, whatever they look like.
    pub(super) fn opaque() -> Self {
        let mut known = Self::default();
        known.begin_lineage();
        known
    }

    /// From now on versions are counted here.
    pub(super) fn begin_lineage(&mut self) {
        let version = ResourceVersion::of_lineage(new_lineage(), 0);
        self.lineage = Some(Place {
            version,
            text: String::new(),
            previous: String::new(),
            is_repeated: false,
            changed: String::new(),
            before_change: String::new(),
        });
    }

    /// What the API calls a version; `None` for one that it cannot be asked for any more.
    pub(super) fn text_of(&self, version: &ResourceVersion) -> Option<String> {
        let Some(Place { version: current, text, previous, .. }) = &self.lineage else {
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

    /// The version of a change, which is another one than that before.
    pub(super) fn change(&mut self, text: &str) -> Result<ResourceVersion, VersionError> {
        let Some(place) = &mut self.lineage else { return ResourceVersion::parse_decimal(text) };
        let version = place.advance(text);
        if !place.is_repeated {
            text.clone_into(&mut place.changed);
            place.before_change.clone_from(&place.previous);
        }
        Ok(version)
    }

    /// The version of a state, which may be the one before.
    pub(super) fn state(&mut self, text: &str) -> Result<ResourceVersion, VersionError> {
        match &mut self.lineage {
            Some(place) if place.text == text && !text.is_empty() => Ok(place.version.clone()),
            Some(place) => Ok(place.advance(text)),
            None => ResourceVersion::parse_decimal(text),
        }
    }

    /// Goes back to the last change, whose version is counted here, and returns what the API has to replay; `None` when there was
    /// none since the list.
    pub(super) fn begin_replay(&mut self) -> Option<Replay> {
        let position = self.position.as_ref()?;
        let mark = position.mark.clone().filter(|mark| !mark.is_listed())?;
        let place = self.lineage.as_mut().filter(|place| !place.before_change.is_empty())?;
        place.text.clone_from(&place.changed);
        place.previous.clone_from(&place.before_change);
        let (before, text) = (place.before_change.clone(), place.changed.clone());
        Some(Replay { mark, before, text, is_open: position.is_open() })
    }

    /// A list has been read.
    pub(super) fn note_list(&mut self, version: &ResourceVersion, mark: Option<Mark>) {
        let (version, openness) = (version.clone(), Openness::Closed);
        self.position = Some(Position { version, openness, changes: 0, mark, origin: Origin::List(Instant::now()) });
    }

    /// Takes note of an event that is handed out, which is a deletion or not in the API's own words. One that contradicts what
    /// is known is not taken over by whom it is handed to.
    pub(super) fn note_event(&mut self, event: &Event, is_deletion: bool) -> Noted {
        // A change that is counted here has a number of its own, whatever the API calls it.
        let is_repeated = self.lineage.as_ref().is_some_and(|place| place.is_repeated);
        let is_same = |position: &Position| *event.version() == position.version || is_repeated;
        let (at_version, changes, known) = match self.position.take() {
            Some(position) if *event.version() < position.version => {
                self.position = Some(position);
                return Noted { closes: true, is_late: false, is_beyond_bound: false };
            }
            Some(position) if is_same(&position) => (position.openness, position.changes, position.mark),
            position => (Openness::Closed, 0, position.and_then(|position| position.mark)),
        };
        let change = Mark::of_event(event);
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
        let mark = match (known, change) {
            (Some(known), Some(change)) => Some(known.followed_by(change)),
            (known, change) => change.or(known),
        };
        let position = Position { version: event.version().clone(), openness, changes, mark, origin: Origin::Watch };
        let closes = !position.is_open();
        self.position = Some(position);
        Noted { closes, is_late, is_beyond_bound: changes > MAX_CHANGES && self.lineage.is_none() }
    }

    /// From now on every version stays open until the next.
    fn leave_open(&mut self, version: impl std::fmt::Display) {
        if !std::mem::replace(&mut self.leaves_open, true) {
            tracing::warn!(
                %version,
                "several changes at one version: from now on each is complete with the next version or the second bookmark"
            );
        }
    }

    /// The API, which was seen at this time before, has closed a watch, and everything in it has been handed out.
    pub(super) fn note_close(&mut self, seen: Instant) {
        if let Some(position) = self.position.as_mut().filter(|position| position.origin == Origin::Watch) {
            position.origin = Origin::Closed(seen);
        }
    }

    /// What is known is of another history.
    pub(super) fn forget(&mut self) {
        self.position = None;
    }

    /// Where a watch from this version begins, if the resource is there. That a list, or the close of a watch, was the last
    /// thing that happened is true once.
    pub(super) fn begin_watch(&mut self, from: &ResourceVersion) -> Option<Position> {
        let position =
            self.position.as_mut().filter(|position| position.version == *from || position.safe() == *from)?;
        let begun = position.clone();
        if matches!(position.origin, Origin::List(_) | Origin::Closed(_)) {
            position.origin = Origin::Watch;
        }
        Some(begun)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_cluster_is_told_once() {
        let mut known = Known::default();
        assert_eq!(known.check_cluster("a"), Ok(()));
        assert_eq!(known.check_cluster("a"), Ok(()));
        assert!(known.check_cluster("b").unwrap_err().contains("the uid a, and has b"));
        assert_eq!(known.check_cluster("b"), Ok(()));
    }

    /// Another API server that takes over at once is of the same history, and one that is restored has not started by then.
    #[tokio::test(start_paused = true)]
    async fn a_watch_that_was_closed_vouches_for_the_history_for_a_while() {
        let mut known = Known::default();
        let version = ResourceVersion::decimal(9);
        for (since_seen, is_known) in [(9, true), (10, false)] {
            known.note_list(&version, None);
            assert!(known.begin_watch(&version).is_some_and(|position| position.origin.is_just_listed()));
            known.note_close(Instant::now());
            let closed = known.begin_watch(&version).unwrap();
            tokio::time::advance(Duration::from_secs(since_seen)).await;
            assert_eq!(closed.origin.is_just_closed(), is_known);
            let again = known.begin_watch(&version).unwrap();
            assert_eq!(again.origin, Origin::Watch, "once");
            known.note_list(&version, None);
            let listed = known.begin_watch(&version).unwrap();
            tokio::time::advance(Duration::from_secs(since_seen)).await;
            assert_eq!(listed.origin.is_just_listed(), is_known);
        }
    }

    /// Invariant 12.
    #[test]
    fn versions_are_the_apis_own_or_counted_here() {
        let mut known = Known::default();
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
