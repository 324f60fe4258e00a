//! Proof that the history of the API is the one that was followed before: by an earlier start, or until the connection broke
//! (invariant 14).
//!
//! Pure. A cluster that was restored has the same uid, and may have counted on beyond the version that is known. So the last
//! change that is known has to be told again, and nothing between it and that version: a watch begins just before it. API
//! servers keep the last changes of each resource for as long as they run, and one that has begun after the change says that
//! it is too old; then the resource is listed, and the cache compares the list with what it holds.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    cache::SourceError,
    model::{Event, Object, ObjectKey, ObjectParts, ResourceVersion},
};

/// The last change of a resource that is known, to be recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    object: Arc<Object>,
    is_deleted: bool,
    /// It is the newest of a list. What was deleted between it and the list is not known.
    is_listed: bool,
}

/// A mark, for a later start: its numbers and names only.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KeptMark {
    version: String,
    namespace: String,
    name: String,
    uid: String,
    is_deleted: bool,
    is_listed: bool,
}

/// A watch that begins before the version that is known, until it is beyond it.
#[derive(Debug)]
pub(super) struct Recognition {
    mark: Mark,
    known: ResourceVersion,
    is_told: bool,
}

/// What an event of such a watch is.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It was told to the earlier start.
    Old,
    /// It shows that the history is the same, and was told to the earlier start.
    Recognised,
    /// It has not been told, and neither has what follows.
    New,
}

// === impl Mark ===

impl Mark {
    /// Of what was told last.
    pub(super) fn of_event(event: &Event) -> Option<Self> {
        let (object, is_deleted) = match event {
            Event::Added(object) | Event::Modified(object) | Event::NotServed(object) => (object, false),
            Event::Deleted(object) => (object, true),
            Event::Bookmark(_) => return None,
        };
        Some(Self { object: Arc::clone(object), is_deleted, is_listed: false })
    }

    /// Of a list; none of an empty one.
    pub(super) fn of_list(objects: &[Arc<Object>]) -> Option<Self> {
        let newest = objects.iter().max_by_key(|object| object.version().number())?;
        Some(Self { object: Arc::clone(newest), is_deleted: false, is_listed: true })
    }

    /// The version to watch from, so that the change is told first; `None` if there is none before it.
    pub(super) fn before(&self) -> Option<ResourceVersion> {
        // 0 would be any version.
        let before = self.object.version().number().checked_sub(1).filter(|before| *before > 0)?;
        Some(ResourceVersion::decimal(before))
    }

    pub(super) fn key(&self) -> &ObjectKey {
        self.object.key()
    }

    pub(super) fn uid(&self) -> &str {
        self.object.uid()
    }

    /// The version of the change.
    pub(super) fn version(&self) -> &ResourceVersion {
        self.object.version()
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.is_deleted
    }

    pub(super) fn keep(&self) -> KeptMark {
        let Self { object, is_deleted, is_listed } = self;
        let key = object.key();
        KeptMark {
            version: object.version().to_string(),
            namespace: key.namespace().to_owned(),
            name: key.name().to_owned(),
            uid: object.uid().to_owned(),
            is_deleted: *is_deleted,
            is_listed: *is_listed,
        }
    }

    /// What was kept, as far as it has to be recognised; `None` if it is none.
    pub(super) fn resume(kept: KeptMark) -> Option<Self> {
        let KeptMark { version, namespace, name, uid, is_deleted, is_listed } = kept;
        let (key, version) = (ObjectKey::new(&namespace, &name).ok()?, version.parse().ok()?);
        let object = Object::new(ObjectParts { uid, ..ObjectParts::bare(key, version) });
        Some(Self { object: Arc::new(object), is_deleted, is_listed })
    }

    /// Not by their bytes, which API servers of two versions write differently.
    fn is(&self, other: &Self) -> bool {
        let parts = |mark: &Self| (mark.object.version().clone(), mark.object.uid().to_owned(), mark.is_deleted);
        self.object.key() == other.object.key() && parts(self) == parts(other)
    }
}

// === impl Recognition ===

impl Recognition {
    /// The mark of the history that is known up to a version.
    pub(super) fn new(mark: Mark, known: ResourceVersion) -> Self {
        Self { mark, known, is_told: false }
    }

    /// Returns whether the last known change has been replayed.
    pub(super) fn is_recognised(&self) -> bool {
        self.is_told
    }

    /// What the next event is.
    ///
    /// # Errors
    ///
    /// [`SourceError::HistoryChanged`] when it cannot be of the history that is known, [`SourceError::Expired`] when that
    /// cannot be told.
    pub(super) fn judge(&mut self, event: &Event) -> Result<Verdict, SourceError> {
        let Self { mark, known, is_told } = self;
        let marked = mark.object.version();
        match Mark::of_event(event) {
            Some(told) if !*is_told && mark.is(&told) => {
                *is_told = true;
                Ok(Verdict::Recognised)
            }
            None if !*is_told && event.version() < marked => Ok(Verdict::Old),
            _ if !*is_told => Err(SourceError::HistoryChanged(format!(
                "{} was changed last at {marked}, and that is not told again",
                mark.object.key()
            ))),
            _ if event.version() > known => Ok(Verdict::New),
            None if event.version() == known => Ok(Verdict::New),
            None => Ok(Verdict::Old),
            Some(_) if mark.is_listed => Err(SourceError::Expired(
                "what was changed up to the list of the earlier start is not known".to_owned(),
            )),
            Some(told) => Err(SourceError::HistoryChanged(format!(
                "{} was changed at {}, of which nothing is known",
                told.object.key(),
                told.object.version()
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(name: &str, uid: &str, version: u128) -> Arc<Object> {
        let kept = KeptMark {
            version: version.to_string(),
            namespace: "n".into(),
            name: name.into(),
            uid: uid.into(),
            is_deleted: false,
            is_listed: false,
        };
        Mark::resume(kept).unwrap().object
    }

    fn bookmark(version: u128) -> Event {
        Event::Bookmark(ResourceVersion::decimal(version))
    }

    /// Known up to 9, and changed last at 5.
    fn recognition(is_deleted: bool, is_listed: bool) -> Recognition {
        let mark = Mark { object: object("a", "u", 5), is_deleted, is_listed };
        let mark = Mark::resume(serde_json::from_str(&serde_json::to_string(&mark.keep()).unwrap()).unwrap()).unwrap();
        assert_eq!(mark.before(), Some(ResourceVersion::decimal(4)));
        Recognition::new(mark, ResourceVersion::decimal(9))
    }

    #[test]
    fn what_was_told_last_is_told_again_and_then_what_is_new() {
        for end in [Event::Added(object("b", "v", 10)), bookmark(9), bookmark(12)] {
            let mut recognition = recognition(false, false);
            assert_eq!(recognition.judge(&bookmark(4)), Ok(Verdict::Old));
            assert_eq!(
                recognition.judge(&Event::Added(object("a", "u", 5))),
                Ok(Verdict::Recognised),
                "added or modified"
            );
            assert_eq!(recognition.judge(&bookmark(7)), Ok(Verdict::Old));
            assert_eq!(recognition.judge(&end), Ok(Verdict::New));
        }
        let deleted = Event::Deleted(object("a", "u", 5));
        assert_eq!(recognition(true, false).judge(&deleted), Ok(Verdict::Recognised));
    }

    #[test]
    fn anything_else_is_another_history() {
        let others = [
            Event::Modified(object("b", "u", 5)),
            Event::Modified(object("a", "v", 5)),
            Event::Modified(object("a", "u", 6)),
            Event::Deleted(object("a", "u", 5)),
            bookmark(5),
        ];
        for other in others {
            let judged = recognition(false, false).judge(&other);
            assert!(matches!(judged, Err(SourceError::HistoryChanged(_))), "{other:?}: {judged:?}");
        }
        let mut recognition = recognition(false, false);
        recognition.judge(&Event::Modified(object("a", "u", 5))).unwrap();
        let judged = recognition.judge(&Event::Deleted(object("b", "v", 9)));
        assert!(matches!(judged, Err(SourceError::HistoryChanged(_))), "{judged:?}");
    }

    /// It may have been deleted before the list.
    #[test]
    fn what_a_list_does_not_show_proves_nothing() {
        let mut recognition = recognition(false, true);
        recognition.judge(&Event::Modified(object("a", "u", 5))).unwrap();
        let judged = recognition.judge(&Event::Added(object("b", "v", 7)));
        assert!(matches!(judged, Err(SourceError::Expired(_))), "{judged:?}");
    }

    #[test]
    fn the_mark_of_a_list_is_its_newest_and_may_have_nothing_before_it() {
        assert_eq!(Mark::of_list(&[]), None);
        let mark = Mark::of_list(&[object("a", "u", 5), object("b", "u", 7), object("c", "u", 6)]).unwrap();
        assert_eq!((mark.before(), mark.is_listed), (Some(ResourceVersion::decimal(6)), true));
        assert_eq!(Mark::of_list(&[object("a", "u", 1)]).unwrap().before(), None);
    }
}
