//! What is known of the API between a list and a watch: which cluster it is, how its versions count, and where the resource is.

use super::proof::Mark;
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
}

/// Where the resource is.
#[derive(Debug, Clone)]
pub(super) struct Position {
    /// Everything up to here has been handed out.
    pub(super) version: ResourceVersion,
    /// The last change up to there.
    pub(super) mark: Option<Mark>,
    pub(super) origin: Origin,
}

/// Whom a position is known from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Origin {
    /// An earlier start: the API has not shown yet that its history is that one.
    EarlierStart,
    /// The API, by the list that was the last thing that happened.
    List,
    /// The API, by a watch that it closed as it should, which was the last thing that happened. An API server that is killed,
    /// and a machine that is rolled back, end no answer that way.
    Closed,
    /// The API, by a watch. By now it may be another one, or one that was restored.
    Watch,
}

/// Where a resource is whose versions are not decimals.
#[derive(Debug)]
struct Place {
    version: ResourceVersion,
    /// What the API says instead.
    text: String,
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

    /// Goes on from where an earlier start was.
    pub(super) fn resume(cluster: Option<String>, version: ResourceVersion, mark: Option<Mark>) -> Self {
        let position = Position { version, mark, origin: Origin::EarlierStart };
        Self { cluster, lineage: None, position: Some(position) }
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
        self.lineage = Some(Place { version, text: String::new() });
    }

    /// What the API calls a version; `None` for one that it cannot be asked for any more.
    pub(super) fn text_of(&self, version: &ResourceVersion) -> Option<String> {
        match &self.lineage {
            None => version.lineage().is_none().then(|| version.to_string()),
            Some(place) => (place.version == *version && !place.text.is_empty()).then(|| place.text.clone()),
        }
    }

    /// The version of a change, which is another one than that before.
    pub(super) fn change(&mut self, text: &str) -> Result<ResourceVersion, VersionError> {
        match &mut self.lineage {
            None => text.parse(),
            Some(place) => {
                *place = Place { version: place.version.next(), text: text.to_owned() };
                Ok(place.version.clone())
            }
        }
    }

    /// The version of a state, which may be the one before.
    pub(super) fn state(&mut self, text: &str) -> Result<ResourceVersion, VersionError> {
        match &self.lineage {
            Some(place) if place.text == text && !text.is_empty() => Ok(place.version.clone()),
            _ => self.change(text),
        }
    }

    /// A list has been read.
    pub(super) fn note_list(&mut self, version: &ResourceVersion, mark: Option<Mark>) {
        self.position = Some(Position { version: version.clone(), mark, origin: Origin::List });
    }

    /// An event is handed out. One that contradicts what is known is not taken over by whom it is handed to.
    pub(super) fn note_event(&mut self, event: &Event) {
        if self.position.as_ref().is_some_and(|position| event.version() < &position.version) {
            return;
        }
        let known = self.position.take().and_then(|position| position.mark);
        let mark = Mark::of_event(event).or(known);
        self.position = Some(Position { version: event.version().clone(), mark, origin: Origin::Watch });
    }

    /// The API has closed a watch, and everything in it has been handed out.
    pub(super) fn note_close(&mut self) {
        if let Some(position) = self.position.as_mut().filter(|position| position.origin == Origin::Watch) {
            position.origin = Origin::Closed;
        }
    }

    /// What is known is of another history.
    pub(super) fn forget(&mut self) {
        self.position = None;
    }

    /// Where a watch from this version begins, if the resource is there. That a list, or the close of a watch, was the last
    /// thing that happened is true once.
    pub(super) fn begin_watch(&mut self, from: &ResourceVersion) -> Option<Position> {
        let position = self.position.as_mut().filter(|position| position.version == *from)?;
        let begun = position.clone();
        if matches!(position.origin, Origin::List | Origin::Closed) {
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
