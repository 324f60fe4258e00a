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
pub(super) struct ResumePoint {
    object: Arc<Object>,
    is_deleted: bool,
    /// Digest of the object's bytes, if a previous run read them.
    digest: Option<String>,
    /// True if the object is the newest of a list. Deletions between its version and the list are not known.
    is_listed: bool,
    /// Other known changes at its version.
    others: BTreeSet<ChangeId>,
    /// True if there may be unknown changes at its version.
    has_more: bool,
}

/// Identity of a change, for comparison.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ChangeId {
    key: ObjectKey,
    uid: String,
    is_deleted: bool,
}

/// A resume point as saved for the next run: versions, names and digests only.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct SavedResumePoint {
    version: String,
    namespace: String,
    name: String,
    uid: String,
    is_deleted: bool,
    is_listed: bool,
    #[serde(default)]
    digest: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    others: Vec<SavedChange>,
    #[serde(default)]
    has_more: bool,
}

/// Namespace, name, uid, and true for a deletion.
type SavedChange = (String, String, String, bool);

/// Comparison of a watch that begins before the known version with the known changes, until the watch is beyond that version.
#[derive(Debug)]
pub(super) struct ResumeCheck {
    resume_point: ResumePoint,
    known: ResourceVersion,
    /// Known changes that the API has not replayed yet.
    missing: BTreeSet<ChangeId>,
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

// === impl ResumePoint ===

impl ResumePoint {
    /// Returns the resume point of the last event; `None` for a bookmark.
    pub(super) fn of_event(event: &Event) -> Option<Self> {
        let (object, is_deleted) = match event {
            Event::Added(object) | Event::Modified(object) | Event::NotServed(object) => (object, false),
            Event::Deleted(object) | Event::Removed(object, _) => (object, true),
            Event::Bookmark(_) => return None,
        };
        Some(Self::new(Arc::clone(object), is_deleted, false))
    }

    /// Returns the resume point of a list; `None` for an empty one.
    pub(super) fn of_list(objects: &[Arc<Object>]) -> Option<Self> {
        let newest = objects.iter().max_by_key(|object| object.version().number())?;
        let at_newest = objects.iter().filter(|object| object.version() == newest.version());
        let resume_point = Self::new(Arc::clone(newest), false, false);
        let resume_point = at_newest.fold(resume_point, |resume_point, object| {
            resume_point.followed_by(Self::new(Arc::clone(object), false, false))
        });
        Some(Self { is_listed: true, ..resume_point })
    }

    fn new(object: Arc<Object>, is_deleted: bool, is_listed: bool) -> Self {
        Self { object, is_deleted, digest: None, is_listed, others: BTreeSet::new(), has_more: false }
    }

    /// Returns the resume point after a later change, added to this one if it is at the same version.
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

    /// Returns the resume point while its version is open.
    pub(super) fn open(self) -> Self {
        Self { has_more: true, ..self }
    }

    /// Returns true if the deletion of an object is among the known changes.
    pub(super) fn has_deletion(&self, last: &Object) -> bool {
        let deletion = ChangeId { key: last.key().clone(), uid: last.uid().to_owned(), is_deleted: true };
        self.version() == last.version() && (self.marked() == deletion || self.others.contains(&deletion))
    }

    fn marked(&self) -> ChangeId {
        let Self { object, is_deleted, .. } = self;
        ChangeId { key: object.key().clone(), uid: object.uid().to_owned(), is_deleted: *is_deleted }
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

    pub(super) fn keep(&self) -> SavedResumePoint {
        let Self { object, is_deleted, digest, is_listed, others, has_more } = self;
        let key = object.key();
        let kept = |ChangeId { key, uid, is_deleted }: &ChangeId| {
            (key.namespace().to_owned(), key.name().to_owned(), uid.clone(), *is_deleted)
        };
        SavedResumePoint {
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

    /// Returns a saved resume point, as far as the comparison needs it; `None` if it is not valid.
    pub(super) fn resume(kept: SavedResumePoint) -> Option<Self> {
        let SavedResumePoint { version, namespace, name, uid, is_deleted, is_listed, digest, others, has_more } = kept;
        let other = |(namespace, name, uid, is_deleted): SavedChange| {
            Some(ChangeId { key: ObjectKey::new(&namespace, &name).ok()?, uid, is_deleted })
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

// === impl ResumeCheck ===

impl ResumeCheck {
    /// Returns the comparison for a history known up to a version.
    pub(super) fn new(resume_point: ResumePoint, known: ResourceVersion) -> Self {
        let missing = [resume_point.marked()].into_iter().chain(resume_point.others.iter().cloned()).collect();
        Self { resume_point, known, missing }
    }

    /// Returns true if the API has replayed the last known changes.
    pub(super) fn is_recognised(&self) -> bool {
        self.missing.is_empty()
    }

    /// Compares the next event with the known history.
    ///
    /// # Errors
    ///
    /// [`SourceError::HistoryRewritten`] if the event contradicts the known history, [`SourceError::Expired`] if that is unclear.
    pub(super) fn judge(&mut self, event: &Event) -> Result<Verdict, SourceError> {
        let Self { resume_point, known, missing } = self;
        let marked = resume_point.object.version();
        let told = ResumePoint::of_event(event);
        if let Some(told) = told.as_ref().filter(|told| told.object.version() == marked) {
            let change = told.marked();
            // A client that resumes from before an open version may lack its known changes.
            let at_open = resume_point.has_more && known == marked;
            if missing.remove(&change) {
                // API servers of two versions write it differently, and so may a restored history.
                if change == resume_point.marked()
                    && !resume_point.is_deleted
                    && !resume_point.is_written_as(&told.object)
                {
                    return Err(SourceError::Expired(format!(
                        "{} has other bytes at version {marked}",
                        resume_point.object.key()
                    )));
                }
                return Ok(if at_open { Verdict::Further } else { Verdict::Recognised });
            }
            if change == resume_point.marked() || resume_point.others.contains(&change) {
                return Ok(Verdict::Old);
            }
            // Several changes at one version are deletions, unless the API is known to break that rule.
            let is_alike = told.is_deleted
                || !resume_point.is_deleted
                || resume_point.others.iter().any(|other| !other.is_deleted);
            if resume_point.has_more && is_alike {
                // Only changes of the last version can still be emitted.
                return Ok(if at_open { Verdict::Further } else { Verdict::Old });
            }
        }
        // The API may send a bookmark between two changes of a version, the first of which may be of objects that are not
        // selected.
        let is_one_of_several = resume_point.is_deleted || resume_point.has_more || !resume_point.others.is_empty();
        let is_before = event.version() < marked || event.version() == marked && is_one_of_several;
        match told {
            None if !missing.is_empty() && is_before => Ok(Verdict::Old),
            _ if !missing.is_empty() => Err(SourceError::HistoryRewritten(format!(
                "upstream did not replay the last known change of {} (version {marked})",
                resume_point.object.key()
            ))),
            _ if event.version() > known => Ok(Verdict::New),
            None if event.version() == known => Ok(Verdict::New),
            None => Ok(Verdict::Old),
            Some(_) if resume_point.is_listed => {
                Err(SourceError::Expired("changes before the list of the previous run are unknown".to_owned()))
            }
            Some(told) => Err(SourceError::HistoryRewritten(format!(
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
        let kept = SavedResumePoint {
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
        ResumePoint::resume(kept).unwrap().object
    }

    fn bookmark(version: u128) -> Event {
        Event::Bookmark(ResourceVersion::decimal(version))
    }

    /// Returns the comparison for a history known up to 9, with the last change at 5.
    fn resume_check(is_deleted: bool, is_listed: bool) -> ResumeCheck {
        let resume_point = ResumePoint::new(object("a", "u", 5), is_deleted, is_listed);
        let resume_point =
            ResumePoint::resume(serde_json::from_str(&serde_json::to_string(&resume_point.keep()).unwrap()).unwrap())
                .unwrap();
        assert_eq!(resume_point.before(), Some(ResourceVersion::decimal(4)));
        ResumeCheck::new(resume_point, ResourceVersion::decimal(9))
    }

    #[test]
    fn the_last_change_is_replayed_before_new_ones() {
        for end in [Event::Added(object("b", "v", 10)), bookmark(9), bookmark(12)] {
            let mut resume_check = resume_check(false, false);
            assert_eq!(resume_check.judge(&bookmark(4)), Ok(Verdict::Old));
            assert_eq!(
                resume_check.judge(&Event::Added(object("a", "u", 5))),
                Ok(Verdict::Recognised),
                "added or modified"
            );
            assert_eq!(resume_check.judge(&bookmark(7)), Ok(Verdict::Old));
            assert_eq!(resume_check.judge(&end), Ok(Verdict::New));
        }
        let deleted = Event::Deleted(object("a", "u", 5));
        assert_eq!(resume_check(true, false).judge(&deleted), Ok(Verdict::Recognised));
    }

    #[test]
    fn any_other_replay_is_a_rewritten_history() {
        let others = [
            Event::Modified(object("b", "u", 5)),
            Event::Modified(object("a", "v", 5)),
            Event::Modified(object("a", "u", 6)),
            Event::Deleted(object("a", "u", 5)),
            bookmark(5),
        ];
        for other in others {
            let judged = resume_check(false, false).judge(&other);
            assert!(matches!(judged, Err(SourceError::HistoryRewritten(_))), "{other:?}: {judged:?}");
        }
        let mut resume_check = resume_check(false, false);
        resume_check.judge(&Event::Modified(object("a", "u", 5))).unwrap();
        let judged = resume_check.judge(&Event::Deleted(object("b", "v", 9)));
        assert!(matches!(judged, Err(SourceError::HistoryRewritten(_))), "{judged:?}");
    }

    /// The object may have been deleted before the list.
    #[test]
    fn changes_that_a_list_does_not_show_prove_nothing() {
        let mut resume_check = resume_check(false, true);
        resume_check.judge(&Event::Modified(object("a", "u", 5))).unwrap();
        let judged = resume_check.judge(&Event::Added(object("b", "v", 7)));
        assert!(matches!(judged, Err(SourceError::Expired(_))), "{judged:?}");
    }

    #[test]
    fn the_resume_point_of_a_list_is_its_newest_object() {
        assert_eq!(ResumePoint::of_list(&[]), None);
        let resume_point =
            ResumePoint::of_list(&[object("a", "u", 5), object("b", "u", 7), object("c", "u", 6)]).unwrap();
        assert_eq!((resume_point.before(), resume_point.is_listed), (Some(ResourceVersion::decimal(6)), true));
        assert_eq!(ResumePoint::of_list(&[object("a", "u", 1)]).unwrap().before(), None);
    }

    /// An API server of another version, or a restored history, writes other bytes.
    #[test]
    fn other_bytes_at_the_same_version_lead_to_a_list() {
        let written = |body: &str| {
            let body =
                format!(r#"{{"metadata":{{"namespace":"n","name":"a","uid":"u","resourceVersion":"5"}},"v":{body}}}"#);
            let version = |text: &str| text.parse();
            Arc::new(Object::from_json_versioned(bytes::Bytes::from(body), version).unwrap())
        };
        let resume_point = ResumePoint::of_event(&Event::Modified(written("1"))).unwrap();
        let kept = serde_json::from_str(&serde_json::to_string(&resume_point.keep()).unwrap()).unwrap();
        for resume_point in [resume_point, ResumePoint::resume(kept).unwrap()] {
            let judged = |body| {
                let event = Event::Added(written(body));
                ResumeCheck::new(resume_point.clone(), ResourceVersion::decimal(9)).judge(&event)
            };
            assert_eq!(judged("1"), Ok(Verdict::Recognised));
            assert!(matches!(judged("2"), Err(SourceError::Expired(_))));
        }
    }

    fn deleted(name: &str, version: u128) -> Event {
        Event::Deleted(object(name, "u", version))
    }

    /// Returns the saved resume point of the deletions of `a`, `b` and `c` at 5.
    fn expired() -> ResumePoint {
        let marks = ["a", "b", "c", "b"].map(|name| ResumePoint::of_event(&deleted(name, 5)).unwrap());
        let resume_point = marks.into_iter().reduce(ResumePoint::followed_by).unwrap();
        ResumePoint::resume(serde_json::from_str(&serde_json::to_string(&resume_point.keep()).unwrap()).unwrap())
            .unwrap()
    }

    #[test]
    fn all_known_changes_of_a_version_are_replayed_in_any_order() {
        for (resume_point, known, verdict) in [
            (expired(), 5, Verdict::Recognised),
            (expired().open(), 5, Verdict::Further),
            (expired(), 9, Verdict::Recognised),
        ] {
            let mut resume_check = ResumeCheck::new(resume_point, ResourceVersion::decimal(known));
            assert_eq!(resume_check.judge(&bookmark(4)), Ok(Verdict::Old));
            for name in ["c", "a", "b"] {
                assert!(!resume_check.is_recognised());
                assert_eq!(resume_check.judge(&deleted(name, 5)), Ok(verdict), "{name}");
                assert_eq!(resume_check.judge(&deleted(name, 5)), Ok(Verdict::Old), "{name} again");
            }
            assert!(resume_check.is_recognised());
            assert_eq!(resume_check.judge(&bookmark(known)), Ok(Verdict::New));
            assert_eq!(resume_check.judge(&deleted("d", known + 1)), Ok(Verdict::New));
        }
    }

    #[test]
    fn a_missing_change_is_a_rewritten_history_and_a_bookmark_in_between_is_not() {
        for last in [deleted("d", 6), bookmark(6)] {
            let mut resume_check = ResumeCheck::new(expired().open(), ResourceVersion::decimal(5));
            assert_eq!(resume_check.judge(&deleted("b", 5)), Ok(Verdict::Further));
            assert_eq!(resume_check.judge(&bookmark(5)), Ok(Verdict::Old));
            assert_eq!(resume_check.judge(&deleted("c", 5)), Ok(Verdict::Further));
            let judged = resume_check.judge(&last);
            assert!(matches!(judged, Err(SourceError::HistoryRewritten(_))), "a is missing: {judged:?}");
        }
    }

    /// Objects of two namespaces expire with one lease; the source follows one of them, and the API sends a bookmark after the
    /// other.
    #[test]
    fn a_bookmark_may_come_before_the_first_selected_change_of_a_version() {
        let mut resume_check =
            ResumeCheck::new(ResumePoint::of_event(&deleted("a", 5)).unwrap(), ResourceVersion::decimal(5));
        assert_eq!(resume_check.judge(&bookmark(5)), Ok(Verdict::Old));
        assert_eq!(resume_check.judge(&deleted("a", 5)), Ok(Verdict::Recognised));
        let mut resume_check =
            ResumeCheck::new(ResumePoint::of_event(&deleted("a", 5)).unwrap(), ResourceVersion::decimal(5));
        assert_eq!(resume_check.judge(&bookmark(5)), Ok(Verdict::Old));
        assert!(matches!(resume_check.judge(&bookmark(6)), Err(SourceError::HistoryRewritten(_))));
    }

    #[test]
    fn a_further_change_is_new_while_the_version_is_open() {
        let judged = |resume_point: ResumePoint, known: u128| {
            ResumeCheck::new(resume_point, ResourceVersion::decimal(known)).judge(&deleted("d", 5))
        };
        assert_eq!(judged(expired().open(), 5), Ok(Verdict::Further));
        let written = Event::Modified(object("d", "u", 5));
        let judged_written = ResumeCheck::new(expired().open(), ResourceVersion::decimal(5)).judge(&written);
        assert!(matches!(judged_written, Err(SourceError::HistoryRewritten(_))), "a write is alone at its version");
        assert_eq!(judged(expired().open(), 9), Ok(Verdict::Old), "a bookmark at 9 came after it");
        assert!(matches!(judged(expired(), 5), Err(SourceError::HistoryRewritten(_))));
        let later = expired().followed_by(ResumePoint::of_event(&deleted("a", 6)).unwrap());
        assert_eq!((later.others.len(), later.before()), (0, Some(ResourceVersion::decimal(5))));
    }

    #[test]
    fn changes_beyond_the_limit_of_a_resume_point_need_not_be_replayed() {
        let marks = (0..MAX_MARKED + 3).map(|n| ResumePoint::of_event(&deleted(&format!("o{n}"), 5)).unwrap());
        let resume_point = marks.reduce(ResumePoint::followed_by).unwrap();
        assert_eq!((resume_point.others.len(), resume_point.has_more), (MAX_MARKED, true));
    }
}
