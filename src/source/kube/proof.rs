//! Proof that the API still has the history that a previous run followed, or this one until the connection broke.
//!
//! Pure. A restored cluster has the same uid, and may have reached versions beyond the last known one. So a watch begins just
//! before the last known change: the API has to replay it, and no other change up to the known version. API servers keep the
//! last changes of each resource in memory. One that was started after the change answers that the version is too old; then the
//! source lists the resource, and the cache compares the list with its objects.
//!
//! Many objects can be deleted at one version: those of an expired lease. The API replays them in any order. It has to replay
//! all of the known ones; while their version is open there may be further ones.

use std::{collections::BTreeSet, sync::Arc};

use serde::{Deserialize, Serialize};

use crate::{
    cache::SourceError,
    model::{Event, Object, ObjectKey, ObjectParts, ResourceVersion},
    source::digest,
};

/// Last known change of a resource, with the others at its version, for comparison with a replay.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    object: Arc<Object>,
    is_deleted: bool,
    /// Digest of the object's bytes, if a previous run read them.
    digest: Option<String>,
    /// True if the object is the newest of a list. Deletions between its version and the list are not known.
    is_listed: bool,
    /// Other known changes at its version.
    others: BTreeSet<MarkedChange>,
    /// True if there may be unknown changes at its version.
    has_more: bool,
}

/// Identity of a change, for comparison.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct MarkedChange {
    key: ObjectKey,
    uid: String,
    is_deleted: bool,
}

/// A mark as saved for the next run: versions, names and digests only.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct KeptMark {
    version: String,
    namespace: String,
    name: String,
    uid: String,
    is_deleted: bool,
    is_listed: bool,
    #[serde(default)]
    digest: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    others: Vec<KeptChange>,
    #[serde(default)]
    has_more: bool,
}

/// Namespace, name, uid, and true for a deletion.
type KeptChange = (String, String, String, bool);

/// Comparison of a watch that begins before the known version with the known changes, until the watch is beyond that version.
#[derive(Debug)]
pub(super) struct Recognition {
    mark: Mark,
    known: ResourceVersion,
    /// Known changes that the API has not replayed yet.
    missing: BTreeSet<MarkedChange>,
}

/// Relation of an event to the known history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Received before.
    Old,
    /// Received before; it shows that the history is the same.
    Recognised,
    /// New, as all later events.
    New,
    /// Event of the open version; the next one may be an old one.
    Further,
}

/// Bound of the changes of one version that are kept for comparison; further ones are accepted without.
const MAX_MARKED: usize = 4096;

// === impl Mark ===

impl Mark {
    /// Returns the mark of the last event; `None` for a bookmark.
    pub(super) fn of_event(event: &Event) -> Option<Self> {
        let (object, is_deleted) = match event {
            Event::Added(object) | Event::Modified(object) | Event::NotServed(object) => (object, false),
            Event::Deleted(object) => (object, true),
            Event::Bookmark(_) => return None,
        };
        Some(Self::new(Arc::clone(object), is_deleted, false))
    }

    /// Returns the mark of a list; `None` for an empty one.
    pub(super) fn of_list(objects: &[Arc<Object>]) -> Option<Self> {
        let newest = objects.iter().max_by_key(|object| object.version().number())?;
        let at_newest = objects.iter().filter(|object| object.version() == newest.version());
        let mark = Self::new(Arc::clone(newest), false, false);
        let mark = at_newest.fold(mark, |mark, object| mark.followed_by(Self::new(Arc::clone(object), false, false)));
        Some(Self { is_listed: true, ..mark })
    }

    fn new(object: Arc<Object>, is_deleted: bool, is_listed: bool) -> Self {
        Self { object, is_deleted, digest: None, is_listed, others: BTreeSet::new(), has_more: false }
    }

    /// Returns the mark after a later change, added to this one if it is at the same version.
    pub(super) fn followed_by(mut self, change: Self) -> Self {
        let is_same = self.object.version() == change.object.version();
        if self.is_listed || !is_same {
            return change;
        }
        let change = change.marked();
        if change != self.marked() && !self.others.contains(&change) {
            if self.others.len() < MAX_MARKED {
                self.others.insert(change);
            } else {
                self.has_more = true;
            }
        }
        self
    }

    /// Returns the mark while its version is open.
    pub(super) fn open(self) -> Self {
        Self { has_more: true, ..self }
    }

    /// Returns true if the deletion of an object is among the known changes.
    pub(super) fn has_deletion(&self, last: &Object) -> bool {
        let deletion = MarkedChange { key: last.key().clone(), uid: last.uid().to_owned(), is_deleted: true };
        self.version() == last.version() && (self.marked() == deletion || self.others.contains(&deletion))
    }

    fn marked(&self) -> MarkedChange {
        let Self { object, is_deleted, .. } = self;
        MarkedChange { key: object.key().clone(), uid: object.uid().to_owned(), is_deleted: *is_deleted }
    }

    /// Returns the version to watch from, so that the API replays the change first; `None` if there is none before it.
    pub(super) fn before(&self) -> Option<ResourceVersion> {
        // 0 would mean any version.
        let before = self.object.version().number().checked_sub(1).filter(|before| *before > 0)?;
        Some(ResourceVersion::decimal(before))
    }

    pub(super) fn key(&self) -> &ObjectKey {
        self.object.key()
    }

    pub(super) fn uid(&self) -> &str {
        self.object.uid()
    }

    /// Returns the version of the change.
    pub(super) fn version(&self) -> &ResourceVersion {
        self.object.version()
    }

    pub(super) fn is_deleted(&self) -> bool {
        self.is_deleted
    }

    /// Returns true if the object is the newest of a list, and not a received change.
    pub(super) fn is_listed(&self) -> bool {
        self.is_listed
    }

    pub(super) fn keep(&self) -> KeptMark {
        let Self { object, is_deleted, digest, is_listed, others, has_more } = self;
        let key = object.key();
        let kept = |MarkedChange { key, uid, is_deleted }: &MarkedChange| {
            (key.namespace().to_owned(), key.name().to_owned(), uid.clone(), *is_deleted)
        };
        KeptMark {
            version: object.version().to_string(),
            namespace: key.namespace().to_owned(),
            name: key.name().to_owned(),
            uid: object.uid().to_owned(),
            is_deleted: *is_deleted,
            is_listed: *is_listed,
            digest: digest.clone().or_else(|| Some(digest::of_body(object))),
            others: others.iter().map(kept).collect(),
            has_more: *has_more,
        }
    }

    /// Returns a saved mark, as far as the comparison needs it; `None` if it is not valid.
    pub(super) fn resume(kept: KeptMark) -> Option<Self> {
        let KeptMark { version, namespace, name, uid, is_deleted, is_listed, digest, others, has_more } = kept;
        let other = |(namespace, name, uid, is_deleted): KeptChange| {
            Some(MarkedChange { key: ObjectKey::new(&namespace, &name).ok()?, uid, is_deleted })
        };
        let others = others.into_iter().map(other).collect::<Option<_>>()?;
        let (key, version) = (ObjectKey::new(&namespace, &name).ok()?, version.parse().ok()?);
        let object = Object::new(ObjectParts { uid, ..ObjectParts::bare(key, version) });
        // Older snapshot files have no digest: the bytes are not compared.
        let digest = digest.or_else(|| Some(String::new()));
        Some(Self { object: Arc::new(object), is_deleted, digest, is_listed, others, has_more })
    }

    /// Returns true if an object has the bytes of the last known change.
    pub(super) fn is_written_as(&self, object: &Object) -> bool {
        match &self.digest {
            None => self.object.body() == object.body(),
            Some(digest) => digest.is_empty() || *digest == digest::of_body(object),
        }
    }
}

// === impl Recognition ===

impl Recognition {
    /// Returns the comparison for a history known up to a version.
    pub(super) fn new(mark: Mark, known: ResourceVersion) -> Self {
        let missing = [mark.marked()].into_iter().chain(mark.others.iter().cloned()).collect();
        Self { mark, known, missing }
    }

    /// Returns true if the API has replayed the last known changes.
    pub(super) fn is_recognised(&self) -> bool {
        self.missing.is_empty()
    }

    /// Compares the next event with the known history.
    ///
    /// # Errors
    ///
    /// [`SourceError::HistoryChanged`] if the event contradicts the known history, [`SourceError::Expired`] if that is unclear.
    pub(super) fn judge(&mut self, event: &Event) -> Result<Verdict, SourceError> {
        let Self { mark, known, missing } = self;
        let marked = mark.object.version();
        let told = Mark::of_event(event);
        if let Some(told) = told.as_ref().filter(|told| told.object.version() == marked) {
            let change = told.marked();
            // A client that resumes from before an open version may lack its known changes.
            let at_open = mark.has_more && known == marked;
            if missing.remove(&change) {
                // API servers of two versions write it differently, and so may a restored history.
                if change == mark.marked() && !mark.is_deleted && !mark.is_written_as(&told.object) {
                    return Err(SourceError::Expired(format!(
                        "{} has other bytes at version {marked}",
                        mark.object.key()
                    )));
                }
                return Ok(if at_open { Verdict::Further } else { Verdict::Recognised });
            }
            if change == mark.marked() || mark.others.contains(&change) {
                return Ok(Verdict::Old);
            }
            // Several changes at one version are deletions, unless the API is known to break that rule.
            let is_alike = told.is_deleted || !mark.is_deleted || mark.others.iter().any(|other| !other.is_deleted);
            if mark.has_more && is_alike {
                // Only changes of the last version can still be emitted.
                return Ok(if at_open { Verdict::Further } else { Verdict::Old });
            }
        }
        // The API may send a bookmark between two changes of a version, the first of which may be of objects that are not
        // selected.
        let is_one_of_several = mark.is_deleted || mark.has_more || !mark.others.is_empty();
        let is_before = event.version() < marked || event.version() == marked && is_one_of_several;
        match told {
            None if !missing.is_empty() && is_before => Ok(Verdict::Old),
            _ if !missing.is_empty() => Err(SourceError::HistoryChanged(format!(
                "upstream did not replay the last known change of {} (version {marked})",
                mark.object.key()
            ))),
            _ if event.version() > known => Ok(Verdict::New),
            None if event.version() == known => Ok(Verdict::New),
            None => Ok(Verdict::Old),
            Some(_) if mark.is_listed => {
                Err(SourceError::Expired("changes before the list of the previous run are unknown".to_owned()))
            }
            Some(told) => Err(SourceError::HistoryChanged(format!(
                "unknown change of {} at version {}",
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
            digest: None,
            others: Vec::new(),
            has_more: false,
        };
        Mark::resume(kept).unwrap().object
    }

    fn bookmark(version: u128) -> Event {
        Event::Bookmark(ResourceVersion::decimal(version))
    }

    /// Returns the comparison for a history known up to 9, with the last change at 5.
    fn recognition(is_deleted: bool, is_listed: bool) -> Recognition {
        let mark = Mark::new(object("a", "u", 5), is_deleted, is_listed);
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

    /// The object may have been deleted before the list.
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

    /// An API server of another version, or a restored history, writes other bytes.
    #[test]
    fn other_bytes_at_the_same_version_are_listed() {
        let written = |body: &str| {
            let body =
                format!(r#"{{"metadata":{{"namespace":"n","name":"a","uid":"u","resourceVersion":"5"}},"v":{body}}}"#);
            let version = |text: &str| text.parse();
            Arc::new(Object::from_json_versioned(bytes::Bytes::from(body), version).unwrap())
        };
        let mark = Mark::of_event(&Event::Modified(written("1"))).unwrap();
        let kept = serde_json::from_str(&serde_json::to_string(&mark.keep()).unwrap()).unwrap();
        for mark in [mark, Mark::resume(kept).unwrap()] {
            let judged = |body| {
                let event = Event::Added(written(body));
                Recognition::new(mark.clone(), ResourceVersion::decimal(9)).judge(&event)
            };
            assert_eq!(judged("1"), Ok(Verdict::Recognised));
            assert!(matches!(judged("2"), Err(SourceError::Expired(_))));
        }
    }

    fn deleted(name: &str, version: u128) -> Event {
        Event::Deleted(object(name, "u", version))
    }

    /// Returns the saved mark of the deletions of `a`, `b` and `c` at 5.
    fn expired() -> Mark {
        let marks = ["a", "b", "c", "b"].map(|name| Mark::of_event(&deleted(name, 5)).unwrap());
        let mark = marks.into_iter().reduce(Mark::followed_by).unwrap();
        Mark::resume(serde_json::from_str(&serde_json::to_string(&mark.keep()).unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn all_known_changes_of_a_version_are_replayed_in_any_order() {
        for (mark, known, verdict) in [
            (expired(), 5, Verdict::Recognised),
            (expired().open(), 5, Verdict::Further),
            (expired(), 9, Verdict::Recognised),
        ] {
            let mut recognition = Recognition::new(mark, ResourceVersion::decimal(known));
            assert_eq!(recognition.judge(&bookmark(4)), Ok(Verdict::Old));
            for name in ["c", "a", "b"] {
                assert!(!recognition.is_recognised());
                assert_eq!(recognition.judge(&deleted(name, 5)), Ok(verdict), "{name}");
                assert_eq!(recognition.judge(&deleted(name, 5)), Ok(Verdict::Old), "{name} again");
            }
            assert!(recognition.is_recognised());
            assert_eq!(recognition.judge(&bookmark(known)), Ok(Verdict::New));
            assert_eq!(recognition.judge(&deleted("d", known + 1)), Ok(Verdict::New));
        }
    }

    #[test]
    fn one_that_is_missing_is_another_history_and_a_bookmark_between_them_is_none() {
        for last in [deleted("d", 6), bookmark(6)] {
            let mut recognition = Recognition::new(expired().open(), ResourceVersion::decimal(5));
            assert_eq!(recognition.judge(&deleted("b", 5)), Ok(Verdict::Further));
            assert_eq!(recognition.judge(&bookmark(5)), Ok(Verdict::Old));
            assert_eq!(recognition.judge(&deleted("c", 5)), Ok(Verdict::Further));
            let judged = recognition.judge(&last);
            assert!(matches!(judged, Err(SourceError::HistoryChanged(_))), "a is missing: {judged:?}");
        }
    }

    /// Objects of two namespaces expire with one lease; the source follows one of them, and the API sends a bookmark after the
    /// other.
    #[test]
    fn a_bookmark_may_come_before_the_first_selected_change_of_a_version() {
        let mut recognition = Recognition::new(Mark::of_event(&deleted("a", 5)).unwrap(), ResourceVersion::decimal(5));
        assert_eq!(recognition.judge(&bookmark(5)), Ok(Verdict::Old));
        assert_eq!(recognition.judge(&deleted("a", 5)), Ok(Verdict::Recognised));
        let mut recognition = Recognition::new(Mark::of_event(&deleted("a", 5)).unwrap(), ResourceVersion::decimal(5));
        assert_eq!(recognition.judge(&bookmark(5)), Ok(Verdict::Old));
        assert!(matches!(recognition.judge(&bookmark(6)), Err(SourceError::HistoryChanged(_))));
    }

    #[test]
    fn a_further_one_is_new_while_the_version_is_open() {
        let judged =
            |mark: Mark, known: u128| Recognition::new(mark, ResourceVersion::decimal(known)).judge(&deleted("d", 5));
        assert_eq!(judged(expired().open(), 5), Ok(Verdict::Further));
        let written = Event::Modified(object("d", "u", 5));
        let judged_written = Recognition::new(expired().open(), ResourceVersion::decimal(5)).judge(&written);
        assert!(matches!(judged_written, Err(SourceError::HistoryChanged(_))), "a write is alone at its version");
        assert_eq!(judged(expired().open(), 9), Ok(Verdict::Old), "a bookmark at 9 came after it");
        assert!(matches!(judged(expired(), 5), Err(SourceError::HistoryChanged(_))));
        let later = expired().followed_by(Mark::of_event(&deleted("a", 6)).unwrap());
        assert_eq!((later.others.len(), later.before()), (0, Some(ResourceVersion::decimal(5))));
    }

    #[test]
    fn of_more_changes_than_are_marked_the_rest_is_not_missed() {
        let marks = (0..MAX_MARKED + 3).map(|n| Mark::of_event(&deleted(&format!("o{n}"), 5)).unwrap());
        let mark = marks.reduce(Mark::followed_by).unwrap();
        assert_eq!((mark.others.len(), mark.has_more), (MAX_MARKED, true));
    }
}
