//! Proof that the history of another server is the one that a position belongs to (invariant 14).
//!
//! Pure. A server that was started again, and another replica, have another name. Their upstream may have been restored to an
//! older state, and may have counted on beyond the position. So the last change that is known has to be there, with all others at
//! its version, and no other change between it and the position:
//!
//! ```text
//!   Get of the last changed object
//!     ├─ it is as it was changed last ──────▶ watch after that change ──┐  nothing may come
//!     ├─ it has changed since, or is gone ──▶ watch from just before it ┤  up to the position
//!     ├─ it is older: the server is behind ─▶ wait until it is not      │
//!     └─ it is anything else ───────────────▶ another history ◀─────────┘  otherwise
//! ```
//!
//! A server whose history does not reach back so far answers that the version has expired; then the resource is listed.

use std::{collections::BTreeSet, sync::Arc};

use serde::{Deserialize, Serialize};

use super::message;
use crate::{
    cache::SourceError,
    model::{Event, Object, ObjectKey, ObjectParts, ResourceVersion},
    proto::pb::{Cause, EventType, WatchResponse},
    source::digest,
};

/// The last change of a resource that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mark {
    object: Arc<Object>,
    is_deleted: bool,
    /// It is the newest object of a list or relist: objects that came and went before that are not known.
    is_listed: bool,
    /// After a warm start: of the body, which the object does not have then. Empty if it was not kept.
    digest: Option<String>,
    batch: MarkedBatch,
}

/// All changes at the version of the last one. A change alone may be another history's as well, a deletion above all.
#[derive(Debug, Clone, PartialEq, Eq)]
enum MarkedBatch {
    /// Not known: of a list, of a version that is open, and of more changes than are kept.
    Unknown,
    /// The objects, and whether each is deleted.
    Known(Vec<(Arc<Object>, bool)>),
    /// After a warm start.
    Digest(String),
}

/// A mark, for a later start: its numbers and names, and the digest of its body.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct KeptMark {
    version: String,
    namespace: String,
    name: String,
    uid: String,
    is_deleted: bool,
    is_listed: bool,
    /// The version before kept none.
    #[serde(default)]
    digest: String,
    /// Of all changes at the version, if they are known.
    #[serde(default)]
    batch: Option<String>,
}

/// Meaning of a server's answer to a Get of the object that was changed last.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// It is as it was changed last.
    AsKnown,
    /// It has other bytes at the same version: another history, or another representation.
    OtherBody,
    /// It has changed since, or is gone.
    Later,
    /// The server has not reached that change.
    Behind,
    /// The server's history is another one, for this reason.
    OtherHistory(String),
}

/// Check of a stream that begins at or before the last known change, until it is beyond the position.
#[derive(Debug)]
pub(super) struct ResumeCheck {
    mark: Mark,
    position: ResourceVersion,
    /// The mark has been replayed, or the stream begins after it.
    is_confirmed: bool,
    /// The changes at its version that have been replayed, if the stream begins before it.
    replayed: Option<BTreeSet<String>>,
}

/// Changes of one version that are kept to be recognised; of more of them only the last one is.
const MAX_MARKED: usize = 4096;

// === impl Mark ===

impl Mark {
    /// The newest of a list's objects that its version covers; `None` of an empty list.
    pub(super) fn of_list(objects: &[Arc<Object>], version: &ResourceVersion) -> Option<Self> {
        let covered = objects.iter().filter(|object| object.version() <= version);
        covered.max_by_key(|object| object.version().number()).map(Self::listed)
    }

    /// The last change after a batch that is complete.
    pub(super) fn after_batch(before: Option<Self>, events: &[Event], is_relisted: bool) -> Option<Self> {
        if !is_relisted {
            let changes = || events.iter().filter_map(change);
            let Some((object, is_deleted)) = changes().next_back() else { return before };
            let is_at_version = |(other, _): &(Arc<Object>, bool)| other.version() == object.version();
            let batch: Vec<_> = changes().filter(is_at_version).take(MAX_MARKED + 1).collect();
            let batch = if batch.len() > MAX_MARKED { MarkedBatch::Unknown } else { MarkedBatch::Known(batch) };
            return Some(Self { object, is_deleted, is_listed: false, digest: None, batch });
        }
        let present = events.iter().filter_map(|event| match event {
            Event::Added(object) | Event::Modified(object) => Some(object),
            Event::Deleted(_) | Event::NotServed(_) | Event::Bookmark(_) => None,
        });
        let newest = present.max_by_key(|object| object.version().number()).map(Self::listed);
        let is_of_batch = |mark: &Self| {
            events.iter().any(|event| match event {
                Event::Added(of) | Event::Modified(of) | Event::Deleted(of) | Event::NotServed(of) => {
                    of.key() == mark.key()
                }
                Event::Bookmark(_) => false,
            })
        };
        match (newest, before) {
            (Some(newest), Some(before)) if newest.version() > before.version() => Some(newest),
            (newest, None) => newest,
            (_, Some(before)) if !is_of_batch(&before) => Some(Self { is_listed: true, ..before }.open()),
            (_, Some(_)) => None,
        }
    }

    /// Returns the mark of a version of which there may be other changes.
    pub(super) fn open(self) -> Self {
        Self { batch: MarkedBatch::Unknown, ..self }
    }

    pub(super) fn key(&self) -> &ObjectKey {
        self.object.key()
    }

    pub(super) fn version(&self) -> &ResourceVersion {
        self.object.version()
    }

    /// The version after which the change is replayed; `None` if there is none before it.
    pub(super) fn before(&self) -> Option<ResourceVersion> {
        // A watch after 0 has no meaning.
        let before = self.version().number().checked_sub(1).filter(|before| *before > 0)?;
        Some(ResourceVersion::decimal(before))
    }

    /// Judges what a server has under the key, at a version of its state, for a position.
    pub(super) fn judge(&self, position: &ResourceVersion, at: &ResourceVersion, found: Option<&Object>) -> Found {
        let has_reached = at >= self.version();
        match found {
            Some(object) if object.version() > position => Found::Later,
            Some(object) if self.is_of(object, false) && self.has_body_of(object) => Found::AsKnown,
            Some(object) if self.is_of(object, false) => Found::OtherBody,
            Some(object) if has_reached => Found::OtherHistory(format!(
                "{} is at version {}, and was {} at {}",
                self.key(),
                object.version(),
                if self.is_deleted { "deleted" } else { "changed last" },
                self.version()
            )),
            None if has_reached => Found::Later,
            _ => Found::Behind,
        }
    }

    pub(super) fn keep(&self) -> KeptMark {
        let Self { object, is_deleted, is_listed, digest, batch } = self;
        KeptMark {
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

    /// Returns the mark that was kept; `None` if it is none.
    pub(super) fn resume(kept: KeptMark) -> Option<Self> {
        let KeptMark { version, namespace, name, uid, is_deleted, is_listed, digest, batch } = kept;
        let (key, version) = (ObjectKey::new(&namespace, &name).ok()?, version.parse().ok()?);
        let object = Object::new(ObjectParts { uid, ..ObjectParts::bare(key, version) });
        let batch = batch.map_or(MarkedBatch::Unknown, MarkedBatch::Digest);
        Some(Self { object: Arc::new(object), is_deleted, is_listed, digest: Some(digest), batch })
    }

    fn listed(object: &Arc<Object>) -> Self {
        let (object, batch) = (Arc::clone(object), MarkedBatch::Unknown);
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

// === impl MarkedBatch ===

impl MarkedBatch {
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

/// Returns the object of a change, and whether it is deleted: the upstream does not have what it cannot serve.
fn change(event: &Event) -> Option<(Arc<Object>, bool)> {
    match event {
        Event::Added(object) | Event::Modified(object) => Some((Arc::clone(object), false)),
        Event::Deleted(object) | Event::NotServed(object) => Some((Arc::clone(object), true)),
        Event::Bookmark(_) => None,
    }
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
    /// Of a stream after the mark, which the server has.
    pub(super) fn after(mark: Mark, position: ResourceVersion) -> Self {
        Self { mark, position, is_confirmed: true, replayed: None }
    }

    /// Of a stream that has to begin with the mark.
    pub(super) fn from(mark: Mark, position: ResourceVersion) -> Self {
        Self { mark, position, is_confirmed: false, replayed: Some(BTreeSet::new()) }
    }

    /// Judges the next message. Returns whether it lies beyond the position: then everything up to there has been confirmed.
    /// Every earlier message is known.
    ///
    /// # Errors
    ///
    /// [`SourceError::HistoryChanged`] when it cannot be of the history of the position, [`SourceError::Expired`] when that
    /// cannot be told.
    pub(super) fn judge(&mut self, message: &WatchResponse) -> Result<bool, SourceError> {
        let Self { mark, position, is_confirmed, replayed } = self;
        let event_type = message.r#type();
        if !matches!(event_type, EventType::Added | EventType::Modified | EventType::Deleted | EventType::Bookmark) {
            return Ok(true);
        }
        let is_beyond = message::version(&message.resource_version)? >= *position;
        let at = message.object.as_ref().map(|object| object.resource_version.as_str());
        let is_of_mark = replayed.is_some() && at.is_some_and(|at| at == mark.version().to_string());
        if is_beyond && *is_confirmed && !is_of_mark {
            return self.end();
        }
        if message.relisted || message.cause() == Cause::Inferred {
            return Err(unclear("the upstream has relisted since"));
        }
        let not_replayed = || {
            let (key, at) = (mark.key(), mark.version());
            SourceError::HistoryChanged(format!(
                "{key} was changed last at {at}, and the upstream does not replay that"
            ))
        };
        if event_type == EventType::Bookmark {
            return if is_beyond { Err(not_replayed()) } else { Ok(false) };
        }
        let object = message::object(message.object.clone())?;
        if let Some(replayed) = replayed.as_mut().filter(|replayed| is_of_mark && replayed.len() <= MAX_MARKED) {
            replayed.insert(line(&object, event_type == EventType::Deleted));
        }
        match object.version() {
            version if version > position && *is_confirmed => self.end(),
            version if version > position => Err(not_replayed()),
            version if version > mark.version() && mark.is_listed => {
                Err(unclear("objects that came and went before the last list are not known"))
            }
            version if version > mark.version() => Err(SourceError::HistoryChanged(format!(
                "{} was changed at {version}, and nothing was changed between {} and {position}",
                object.key(),
                mark.version()
            ))),
            _ if !mark.is_of(&object, event_type == EventType::Deleted) => Ok(false),
            _ if mark.has_body_of(&object) => {
                *is_confirmed = true;
                Ok(false)
            }
            _ => Err(unclear("the last known change is replayed with other bytes")),
        }
    }

    /// Ends with a message that is beyond the position: all changes at the version of the mark have been replayed.
    fn end(&self) -> Result<bool, SourceError> {
        let Some(replayed) = &self.replayed else { return Ok(true) };
        let is_same = self.mark.batch.digest().is_none_or(|known| known == digest_of(replayed));
        if is_same { Ok(true) } else { Err(unclear("other changes were made at the version of the last known one")) }
    }
}

/// The resource has to be listed, which shows every difference.
pub(super) fn unclear(why: &str) -> SourceError {
    SourceError::Expired(format!("another server: {why}"))
}

#[cfg(test)]
mod tests;
