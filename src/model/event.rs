//! What happens to objects: upstream events, and the changes and batches that they become once applied.

use std::sync::Arc;

use super::{Object, ResourceVersion};

/// The type of an event, by apimachinery's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    /// The object was created, or is new to the watcher.
    Added,
    /// The object was changed.
    Modified,
    /// The object was deleted, or is gone for the watcher; the event carries its last state.
    Deleted,
}

/// Why an event was sent, where its type does not say it all.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The change itself: created, updated, deleted.
    #[default]
    Change,
    /// ADDED: the object existed when the watch began.
    Initial,
    /// ADDED: the object existed, and now matches the selection.
    EnteredSelection,
    /// DELETED: the object still exists, and no longer matches the selection.
    LeftSelection,
    /// DELETED: the deletion was missed, and found at a relist; the object is its last known state.
    Inferred,
    /// DELETED: the object still exists upstream, and its newest state cannot be served, usually because it is larger than
    /// [`MAX_OBJECT_BYTES`](super::MAX_OBJECT_BYTES); the object is the last state that was served.
    NotServed,
}

/// One event of an upstream watch. The end of a watch, with or without an error, is the end of its stream.
///
/// The type is a hint: whether an object is added or modified, the store decides (client-go's `processDeltas`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The object's new state, at its own version.
    Added(Arc<Object>),
    /// The object's new state, at its own version.
    Modified(Arc<Object>),
    /// The object's last state, at the version of the deletion.
    Deleted(Arc<Object>),
    /// The object exists, and its new state cannot be served: its key, uid and version alone.
    NotServed(Arc<Object>),
    /// Nothing changed up to this version; it is safe to resume from.
    Bookmark(ResourceVersion),
}

/// One applied change of one object: its state before and after. At least one of them is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The state before; `None` when the object did not exist.
    pub old: Option<Arc<Object>>,
    /// The state after; `None` when the object was deleted.
    pub new: Option<Arc<Object>>,
    /// The version of the change: for a deletion, of the deletion.
    pub version: ResourceVersion,
    /// [`Cause::Inferred`] for a deletion found at a relist, [`Cause::NotServed`] for an object that still exists and can
    /// no longer be served, else [`Cause::Change`].
    pub cause: Cause,
}

/// Changes that belong together: one upstream event, one transaction, or a whole relist. Between `before` and `after`
/// there is no point to resume from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// The version before the first change.
    pub before: ResourceVersion,
    /// The version after the last change.
    pub after: ResourceVersion,
    /// In order; empty when only the version moved.
    pub changes: Vec<Change>,
    /// What was found at a relist: nobody knows what else happened between `before` and `after`.
    pub is_relist: bool,
    /// `after` is not safe to resume from, and `before` still is: further changes at `after` may come, or these came at a
    /// version that was complete before.
    pub is_open: bool,
}

/// The version that a resource has been applied up to, and the last one that is complete.
///
/// Kubernetes deletes the objects of an expired lease by the hundred at one version, and its watch sends them one by one: as
/// long as more of them may come, whoever resumes from that version would miss them. It is *open* until a change at a higher
/// version or a bookmark closes it, and until then the version before it is the one to resume from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Applied {
    version: ResourceVersion,
    safe: ResourceVersion,
}

/// A place in the changes of a resource that a reader has reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reached {
    /// Safe to resume from.
    pub version: ResourceVersion,
    /// The number of changes up to here, of all that the resource has had in this process, also inside a batch. It never
    /// decreases, even when the upstream's history was rewritten.
    pub offset: u64,
}

// === impl Batch ===

impl Batch {
    /// The version to resume from once the whole batch has been seen.
    pub fn safe(&self) -> &ResourceVersion {
        if self.is_open { &self.before } else { &self.after }
    }

    /// Whether its changes came at a version that was complete before.
    pub fn is_late(&self) -> bool {
        self.before == self.after && !self.changes.is_empty()
    }

    /// The highest version of its changes, if that is above the version after them: where several watches make up a resource,
    /// one of them may be ahead of the version that all have reached. Whoever resumes from a version below needs them again.
    pub fn ahead(&self) -> Option<&ResourceVersion> {
        let ahead = self.changes.iter().map(|change| &change.version).filter(|version| **version > self.after);
        ahead.filter(|_| !self.is_relist).reduce(|highest, version| if version > highest { version } else { highest })
    }
}

// === impl Applied ===

impl Applied {
    /// A version that is complete.
    pub fn closed(version: ResourceVersion) -> Self {
        Self { safe: version.clone(), version }
    }

    /// The version of the last change or bookmark.
    pub fn version(&self) -> &ResourceVersion {
        &self.version
    }

    /// The last version that is complete: safe to resume from.
    pub fn safe(&self) -> &ResourceVersion {
        &self.safe
    }

    /// Whether more changes may come at the version.
    pub fn is_open(&self) -> bool {
        self.safe != self.version
    }

    /// Moves on to a version that is not lower. Without `closes`, more changes may come at it; a version that is closed
    /// stays so.
    pub fn advance(&mut self, version: &ResourceVersion, closes: bool) {
        let is_later = *version != self.version;
        if is_later {
            self.version.clone_from(version);
        }
        match (closes, is_later) {
            (true, _) => self.safe.clone_from(version),
            (false, true) => self.safe = version.previous(),
            (false, false) => {}
        }
    }
}

// === impl Event ===

impl Event {
    /// The version that is reached with this event.
    pub fn version(&self) -> &ResourceVersion {
        match self {
            Self::Added(object) | Self::Modified(object) | Self::Deleted(object) | Self::NotServed(object) => {
                object.version()
            }
            Self::Bookmark(version) => version,
        }
    }

    /// The size that counts against the bounds of queues, in bytes.
    pub fn weight(&self) -> usize {
        match self {
            Self::Added(object) | Self::Modified(object) | Self::Deleted(object) => object.body().len(),
            Self::NotServed(_) | Self::Bookmark(_) => 0,
        }
    }
}

// === impl Change ===

impl Change {
    /// The object that the change is about: its new state, or its last one.
    pub fn object(&self) -> &Arc<Object> {
        // Both are never absent together: a change is made from the store's old state and an event's new one.
        self.new.as_ref().or(self.old.as_ref()).expect("a change has a state before or after it")
    }

    /// The size that counts against the bounds of a wake, in bytes.
    pub fn weight(&self) -> usize {
        self.object().body().len()
    }
}
