//! Check, without I/O, that another server has the history that a position belongs to.
//!
//! A server that was restarted, and another replica, have another name. Their upstream may have been restored to an older
//! state, and may have continued beyond the position with other changes. So the server has to have the last known change, with
//! all others at its version, and no other change between it and the position:
//!
//! ```text
//!   Get of the last changed object
//!     ├─ same as last known ──────────────────▶ watch after that change ───┐  no change may come
//!     ├─ changed since, deleted or left ──────▶ watch from just before it ─┤  up to the position
//!     ├─ older: the server is behind ─────────▶ wait until it is not       │
//!     └─ anything else ───────────────────────▶ other history ◀────────────┘  otherwise
//! ```
//!
//! A server whose history does not reach back so far reports that the version has expired; then the Reflector relists.

use std::{collections::BTreeSet, sync::Arc};

use serde::{Deserialize, Serialize};

use super::message;
use crate::{
    cache::SourceError,
    model::{Event, Object, ObjectKey, ObjectParts, ResourceVersion},
    proto::pb::{Cause, EventType, WatchResponse},
    source::digest,
};

/// Last known change of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ResumePoint {
    object: Arc<Object>,
    is_deleted: bool,
    /// True if it is the newest object of a list or relist: objects created and deleted before that are not known.
    is_listed: bool,
    /// Digest of the body, which the object lacks after a warm start. Empty if it was not stored.
    digest: Option<String>,
    batch: BatchChanges,
}

/// Changes at the version of the last one. A single change may occur in another history as well, above all a deletion.
#[derive(Debug, Clone, PartialEq, Eq)]
enum BatchChanges {
    /// Changes that are not known: of a list, of an open version, or more than the limit.
    Unknown,
    /// Objects, each with true if it is deleted.
    Known(Vec<(Arc<Object>, bool)>),
    /// Digest of the changes, after a warm start.
    Digest(String),
}

/// Point to resume from, as the snapshot of the resource stores it: numbers and names, and the digest of the body.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct SavedResumePoint {
    version: String,
    namespace: String,
    name: String,
    uid: String,
    is_deleted: bool,
    is_listed: bool,
    /// Digest of the body; empty if an earlier version of informerd stored the resume point.
    #[serde(default)]
    digest: String,
    /// Digest of all changes at the version, if they are known.
    #[serde(default)]
    batch: Option<String>,
}

/// Meaning of a server's answer to a Get of the object that was changed last.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ServerVerdict {
    /// The object is the same as after the last known change.
    AsKnown,
    /// The object has other bytes at the same version: another history, or another representation.
    OtherBody,
    /// The object has changed since, was deleted, or has left the selection.
    Later,
    /// The server has not reached that change.
    Behind,
    /// The server has another history, for this reason.
    OtherHistory(String),
}

/// Check of a stream that begins at or before the last known change, until it is beyond the position.
#[derive(Debug)]
pub(super) struct ResumeCheck {
    resume_point: ResumePoint,
    position: ResourceVersion,
    /// True if the resume point has been replayed, or the stream begins after it.
    is_confirmed: bool,
    /// Replayed changes at the resume point's version, if the stream begins before it.
    replayed: Option<BTreeSet<String>>,
}

/// Limit of the changes of one version that are kept for the check; above it only the last one is.
const MAX_MARKED: usize = 4096;

// === impl ResumePoint ===

impl ResumePoint {
    /// Returns the resume point of the newest object of a list that its version covers; `None` of an empty list.
    pub(super) fn of_list(objects: &[Arc<Object>], version: &ResourceVersion) -> Option<Self> {
        let covered = objects.iter().filter(|object| object.version() <= version);
        covered.max_by_key(|object| object.version().number()).map(Self::listed)
    }

    /// Returns the last change after a complete batch.
    pub(super) fn after_batch(before: Option<Self>, events: &[Event], is_relisted: bool) -> Option<Self> {
        if !is_relisted {
            let changes = || events.iter().filter_map(change);
            let Some((object, is_deleted)) = changes().next_back() else { return before };
            let is_at_version = |(other, _): &(Arc<Object>, bool)| other.version() == object.version();
            let batch: Vec<_> = changes().filter(is_at_version).take(MAX_MARKED + 1).collect();
            let batch = if batch.len() > MAX_MARKED { BatchChanges::Unknown } else { BatchChanges::Known(batch) };
            return Some(Self { object, is_deleted, is_listed: false, digest: None, batch });
        }
        let present = events.iter().filter_map(|event| match event {
            Event::Added(object) | Event::Modified(object) => Some(object),
            Event::Deleted(_) | Event::NotServed(_) | Event::Removed(_, _) | Event::Bookmark(_) => None,
        });
        let newest = present.max_by_key(|object| object.version().number()).map(Self::listed);
        let is_of_batch = |resume_point: &Self| {
            events.iter().filter_map(Event::object).any(|object| object.key() == resume_point.key())
        };
        match (newest, before) {
            (Some(newest), Some(before)) if newest.version() > before.version() => Some(newest),
            (newest, None) => newest,
            (_, Some(before)) if !is_of_batch(&before) => Some(Self { is_listed: true, ..before }.open()),
            (_, Some(_)) => None,
        }
    }

    /// Returns the resume point without its batch, for a version that may have other changes.
    pub(super) fn open(self) -> Self {
        Self { batch: BatchChanges::Unknown, ..self }
    }

    pub(super) fn key(&self) -> &ObjectKey {
        self.object.key()
    }

    pub(super) fn version(&self) -> &ResourceVersion {
        self.object.version()
    }

    /// Returns the version after which the change is replayed; `None` if there is none before it.
    pub(super) fn before(&self) -> Option<ResourceVersion> {
        // A watch after 0 has no meaning.
        let before = self.version().number().checked_sub(1).filter(|before| *before > 0)?;
        Some(ResourceVersion::decimal(before))
    }

    /// Judges a server's object under the key, read at a version of the server's state, for a position.
    pub(super) fn judge(
        &self,
        position: &ResourceVersion,
        at: &ResourceVersion,
        found: Option<&Object>,
    ) -> ServerVerdict {
        let has_reached = at >= self.version();
        match found {
            Some(object) if object.version() > position => ServerVerdict::Later,
            // It has left the selection, or it exists again: the replay shows if it was by that change.
            Some(object) if self.is_deleted && object.version() >= self.version() => ServerVerdict::Later,
            Some(object) if self.is_of(object, false) && self.has_body_of(object) => ServerVerdict::AsKnown,
            Some(object) if self.is_of(object, false) => ServerVerdict::OtherBody,
            Some(object) if has_reached => ServerVerdict::OtherHistory(format!(
                "{} is at version {}, but was {} at {}",
                self.key(),
                object.version(),
                if self.is_deleted { "deleted" } else { "changed last" },
                self.version()
            )),
            None if has_reached => ServerVerdict::Later,
            _ => ServerVerdict::Behind,
        }
    }

    pub(super) fn keep(&self) -> SavedResumePoint {
        let Self { object, is_deleted, is_listed, digest, batch } = self;
        SavedResumePoint {
            batch: batch.digest(),
            version: object.version().to_string(),
            namespace: object.key().namespace().to_owned(),
            name: object.key().name().to_owned(),
            uid: object.uid().to_owned(),
            is_deleted: *is_deleted,
            is_listed: *is_listed,
            digest: digest.clone().unwrap_or_else(|| digest::of_body(object)),
        }
    }

    /// Returns the resume point that was stored; `None` if it is invalid.
    pub(super) fn resume(kept: SavedResumePoint) -> Option<Self> {
        let SavedResumePoint { version, namespace, name, uid, is_deleted, is_listed, digest, batch } = kept;
        let (key, version) = (ObjectKey::new(&namespace, &name).ok()?, version.parse().ok()?);
        let object = Object::new(ObjectParts { uid, ..ObjectParts::bare(key, version) });
        let batch = batch.map_or(BatchChanges::Unknown, BatchChanges::Digest);
        Some(Self { object: Arc::new(object), is_deleted, is_listed, digest: Some(digest), batch })
    }

    fn listed(object: &Arc<Object>) -> Self {
        let (object, batch) = (Arc::clone(object), BatchChanges::Unknown);
        Self { object, is_deleted: false, is_listed: true, digest: None, batch }
    }

    fn is_of(&self, object: &Object, is_deleted: bool) -> bool {
        let known = &*self.object;
        let is_same = known.key() == object.key() && known.version() == object.version();
        // A server that did not know the object deletes it without a uid.
        is_same && self.is_deleted == is_deleted && (is_deleted || known.uid() == object.uid())
    }

    fn has_body_of(&self, object: &Object) -> bool {
        match &self.digest {
            _ if self.is_deleted => true,
            None => self.object.body() == object.body(),
            Some(digest) => digest.is_empty() || *digest == digest::of_body(object),
        }
    }
}

// === impl BatchChanges ===

impl BatchChanges {
    /// Returns the digest of the changes, if they are known.
    fn digest(&self) -> Option<String> {
        match self {
            Self::Unknown => None,
            Self::Known(changes) => {
                let lines = changes.iter().map(|(object, is_deleted)| line(object, *is_deleted)).collect();
                Some(digest_of(&lines))
            }
            Self::Digest(digest) => Some(digest.clone()),
        }
    }
}

/// Returns the object of a change, and true if it is deleted: the upstream deletes an object that it cannot serve.
fn change(event: &Event) -> Option<(Arc<Object>, bool)> {
    let is_deleted = !matches!(event, Event::Added(_) | Event::Modified(_));
    event.object().map(|object| (Arc::clone(object), is_deleted))
}

/// Describes a change, the same at every server.
fn line(object: &Object, is_deleted: bool) -> String {
    let (key, what) = (object.key(), if is_deleted { "-" } else { "+" });
    format!("{what}{:?}/{:?}", key.namespace(), key.name())
}

fn digest_of(lines: &BTreeSet<String>) -> String {
    let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
    digest::of(text.as_bytes())
}

// === impl ResumeCheck ===

impl ResumeCheck {
    /// Returns a check for a stream after the resume point, which the server has.
    pub(super) fn after(resume_point: ResumePoint, position: ResourceVersion) -> Self {
        Self { resume_point, position, is_confirmed: true, replayed: None }
    }

    /// Returns a check for a stream that has to begin with the resume point.
    pub(super) fn from(resume_point: ResumePoint, position: ResourceVersion) -> Self {
        Self { resume_point, position, is_confirmed: false, replayed: Some(BTreeSet::new()) }
    }

    /// Judges the next message. Returns true if it is beyond the position: then everything up to the position is confirmed.
    /// Every earlier message is known.
    ///
    /// # Errors
    ///
    /// [`SourceError::HistoryRewritten`] if it cannot belong to the history of the position, [`SourceError::Expired`] if the check
    /// cannot decide.
    pub(super) fn judge(&mut self, message: &WatchResponse) -> Result<bool, SourceError> {
        let Self { resume_point, position, is_confirmed, replayed } = self;
        let event_type = message.r#type();
        if !matches!(event_type, EventType::Added | EventType::Modified | EventType::Deleted | EventType::Bookmark) {
            return Ok(true);
        }
        let is_beyond = message::version(&message.resource_version)? >= *position;
        let at = message.object.as_ref().map(|object| object.resource_version.as_str());
        let is_of_mark = replayed.is_some() && at.is_some_and(|at| at == resume_point.version().to_string());
        if is_beyond && *is_confirmed && !is_of_mark {
            return self.end();
        }
        if message.relisted || message.cause() == Cause::Inferred {
            return Err(unclear("the upstream relisted"));
        }
        let not_replayed = || {
            let (key, at) = (resume_point.key(), resume_point.version());
            SourceError::HistoryRewritten(format!(
                "upstream did not replay the last known change of {key} (version {at})"
            ))
        };
        if event_type == EventType::Bookmark {
            return if is_beyond { Err(not_replayed()) } else { Ok(false) };
        }
        // One that cannot be read was passed over before, too.
        let Ok(object) = message::object(message.object.clone()) else { return Ok(false) };
        if let Some(replayed) = replayed.as_mut().filter(|replayed| is_of_mark && replayed.len() <= MAX_MARKED) {
            replayed.insert(line(&object, event_type == EventType::Deleted));
        }
        match object.version() {
            version if version > position && *is_confirmed => self.end(),
            version if version > position => Err(not_replayed()),
            version if version > resume_point.version() && resume_point.is_listed => {
                Err(unclear("objects added and deleted before the last list are unknown"))
            }
            version if version > resume_point.version() => Err(SourceError::HistoryRewritten(format!(
                "unknown change of {} at version {version}, between {} and {position}",
                object.key(),
                resume_point.version()
            ))),
            _ if !resume_point.is_of(&object, event_type == EventType::Deleted) => Ok(false),
            _ if resume_point.has_body_of(&object) => {
                *is_confirmed = true;
                Ok(false)
            }
            _ => Err(unclear("last known change replayed with other bytes")),
        }
    }

    /// Ends the check at a message beyond the position: the batch of the resume point has to have been replayed in full.
    fn end(&self) -> Result<bool, SourceError> {
        let Some(replayed) = &self.replayed else { return Ok(true) };
        let is_same = self.resume_point.batch.digest().is_none_or(|known| known == digest_of(replayed));
        if is_same { Ok(true) } else { Err(unclear("other changes at the version of the last known one")) }
    }
}

/// Returns the error of a check without a decision: the resource has to be listed, which shows every difference.
pub(super) fn unclear(why: &str) -> SourceError {
    SourceError::Expired(format!("cannot verify the history at another server: {why}"))
}

#[cfg(test)]
mod tests;
