//! Events of objects: upstream events, and the changes and batches that they become once applied.

use std::sync::Arc;

use super::{IndexValues, IndexedObject, Object, ResourceVersion};

/// Type of an event, in apimachinery's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventType {
    /// The object was created, or is new to the watcher.
    Added,
    /// The object was changed.
    Modified,
    /// The object was deleted, or left the watcher's selection; the event carries its last state.
    Deleted,
}

/// Cause of an event, where its type is ambiguous.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Cause {
    /// Plain change: created, updated, deleted.
    #[default]
    Change,
    /// ADDED: the object existed when the watch began.
    Initial,
    /// ADDED: the object already existed, and now matches the selection.
    EnteredSelection,
    /// DELETED: the object still exists, and no longer matches the selection.
    LeftSelection,
    /// DELETED: the source missed the deletion and found it at a relist; the object is its last known state.
    Inferred,
    /// DELETED: the object still exists upstream, and its newest state cannot be served, usually because it is larger than
    /// [`MAX_OBJECT_BYTES`](super::MAX_OBJECT_BYTES); the object is the last state that was served.
    NotServed,
    /// DELETED: the source has not reported the object for the time to live of the resource; the object is its last state.
    Expired,
}

/// Event of an upstream watch. The end of a watch, with or without an error, is the end of its stream.
///
/// The type is a hint: the store decides if an object is added or modified (client-go's `processDeltas`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// New state of an object, at its own version.
    Added(Arc<Object>),
    /// New state of an object, at its own version.
    Modified(Arc<Object>),
    /// Last state of an object, at the version of the deletion.
    Deleted(Arc<Object>),
    /// Key, uid and version of an object that exists, and whose new state cannot be served.
    NotServed(Arc<Object>),
    /// Last state of an object that goes for this cause, such as [`Cause::Expired`], and at this version.
    Removed(Arc<Object>, Cause),
    /// Version up to which nothing else changed; safe to resume from.
    Bookmark(ResourceVersion),
}

/// One applied change of one object: its state before and after, at least one of which is present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// State before; `None` if the object did not exist.
    pub old: Option<Arc<Object>>,
    /// State after; `None` if the object was deleted.
    pub new: Option<Arc<Object>>,
    /// Version of the change; for a deletion, of the deletion.
    pub version: ResourceVersion,
    /// [`Cause::Inferred`] for a deletion found at a relist, [`Cause::NotServed`] for an object that still exists and can
    /// no longer be served, [`Cause::Expired`] for one that the source no longer reports, else [`Cause::Change`].
    pub cause: Cause,
    /// Values of the indexes before and after; `None` if they have to be computed: in a relist, and after the change has been
    /// kept in the history.
    pub index_values: Option<Arc<IndexValues>>,
}

/// Changes that belong together: one upstream event, one transaction, or a whole relist. No client may resume from between
/// `before` and `after`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Version before the first change.
    pub before: ResourceVersion,
    /// Version after the last change.
    pub after: ResourceVersion,
    /// Changes in order; empty if only the version moved.
    pub changes: Vec<Change>,
    /// True for the result of a relist: other changes between `before` and `after` are unknown.
    pub is_relist: bool,
    /// True if `before` is safe to resume from, and `after` is not: further changes at `after` may follow, or these came at
    /// a version that was complete before.
    pub is_open: bool,
}

/// Version that a resource has been applied up to, and the last one that is complete.
///
/// Kubernetes deletes the objects of an expired lease by the hundred at one version, and its watch sends them one by one.
/// While more of them may follow, a client that resumes from that version would miss them. The version is *open* until a
/// change at a higher version or a bookmark closes it; until then clients resume from the version before it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AppliedVersion {
    version: ResourceVersion,
    safe: ResourceVersion,
}

/// Position in the changes of a resource that a reader has reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HistoryPosition {
    /// Version that is safe to resume from.
    pub version: ResourceVersion,
    /// Number of changes up to here, of all that the resource has had in this process, also inside a batch. It never
    /// decreases, even if the upstream's history was rewritten.
    pub offset: u64,
}

// === impl HistoryPosition ===

impl HistoryPosition {
    /// Returns true if what lies at `other` follows this position: at the same offset there may be relists without changes.
    pub fn is_before(&self, other: &Self) -> bool {
        (self.offset, &self.version) < (other.offset, &other.version)
    }
}

// === impl EventType ===

impl EventType {
    /// Returns the name in the Kubernetes API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Added => "ADDED",
            Self::Modified => "MODIFIED",
            Self::Deleted => "DELETED",
        }
    }
}

// === impl Batch ===

impl Batch {
    /// Returns the version to resume from once the whole batch has been delivered.
    pub fn safe(&self) -> &ResourceVersion {
        if self.is_open { &self.before } else { &self.after }
    }

    /// Returns true if its changes came at a version that was complete before.
    pub fn is_late(&self) -> bool {
        self.before == self.after && !self.changes.is_empty()
    }

    /// Returns true for a relist that moved the version: other changes in between are unknown.
    pub fn is_gap(&self) -> bool {
        self.is_relist && self.before != self.after
    }

    /// Returns the highest version of its changes, if that is above the version after them: where several watches make up a
    /// resource, one of them may be ahead of the version that all have reached. A client that resumes from a version below
    /// needs these changes again.
    pub fn ahead(&self) -> Option<&ResourceVersion> {
        let ahead = self.changes.iter().map(|change| &change.version).filter(|version| **version > self.after);
        ahead.filter(|_| !self.is_relist).reduce(|highest, version| if version > highest { version } else { highest })
    }
}

// === impl AppliedVersion ===

impl AppliedVersion {
    /// Returns a version that is complete.
    pub fn closed(version: ResourceVersion) -> Self {
        Self { safe: version.clone(), version }
    }

    /// Returns the version of the last change or bookmark.
    pub fn version(&self) -> &ResourceVersion {
        &self.version
    }

    /// Returns the last version that is complete: safe to resume from.
    pub fn safe(&self) -> &ResourceVersion {
        &self.safe
    }

    /// Returns true if more changes may follow at the version.
    pub fn is_open(&self) -> bool {
        self.safe != self.version
    }

    /// Advances to a version that is not lower. Without `closes`, more changes may follow at it; a version that is closed
    /// stays closed.
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
    /// Returns the version that is reached with this event.
    pub fn version(&self) -> &ResourceVersion {
        match self {
            Self::Added(object)
            | Self::Modified(object)
            | Self::Deleted(object)
            | Self::NotServed(object)
            | Self::Removed(object, _) => object.version(),
            Self::Bookmark(version) => version,
        }
    }

    /// Returns the object of the event; `None` for a bookmark.
    pub fn object(&self) -> Option<&Arc<Object>> {
        match self {
            Self::Added(object)
            | Self::Modified(object)
            | Self::Deleted(object)
            | Self::NotServed(object)
            | Self::Removed(object, _) => Some(object),
            Self::Bookmark(_) => None,
        }
    }

    /// Returns the size that counts against the bounds of queues, in bytes.
    pub fn weight(&self) -> usize {
        match self {
            Self::Added(object) | Self::Modified(object) | Self::Deleted(object) | Self::Removed(object, _) => {
                object.body().len()
            }
            Self::NotServed(_) | Self::Bookmark(_) => 0,
        }
    }
}

// === impl Change ===

impl Change {
    /// Returns the changed object: its new state, or its last one.
    pub fn object(&self) -> &Arc<Object> {
        // At least one is present: a change consists of the store's old state and an event's new one.
        self.new.as_ref().or(self.old.as_ref()).expect("a change has a state before or after it")
    }

    /// Returns the state before, with the values of its indexes.
    pub fn old_state(&self) -> Option<IndexedObject<'_>> {
        self.old.as_deref().map(|object| IndexedObject::new(object, self.index_values.as_deref(), true))
    }

    /// Returns the state after, with the values of its indexes.
    pub fn new_state(&self) -> Option<IndexedObject<'_>> {
        self.new.as_deref().map(|object| IndexedObject::new(object, self.index_values.as_deref(), false))
    }

    /// Returns the size that counts against the bounds of a publish cycle, in bytes.
    pub fn weight(&self) -> usize {
        self.object().body().len()
    }
}
