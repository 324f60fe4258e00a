//! Errors that a Reflector reports.

use crate::{
    cache::SourceError,
    model::{ObjectKey, ResourceVersion},
};

/// Failure of a Reflector's request, or of its store. The Reflector continues after each of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReflectorError {
    /// Failed list.
    #[error("list failed: {0}")]
    List(SourceError),
    /// Watch that could not be opened, or ended with an error.
    #[error("watch failed: {0}")]
    Watch(SourceError),
    /// Watch that closed within a second and without an event.
    #[error("watch failed: closed at once without an event")]
    WatchTooShort,
    /// Watch whose versions are not in order.
    #[error("watch failed: event at version {found} after version {after}")]
    VersionOrder {
        /// Version of the event.
        found: ResourceVersion,
        /// Version before it.
        after: ResourceVersion,
    },
    /// Failed resync of the store.
    #[error("resync failed: {0}")]
    Resync(String),
    /// List or events that the store rejected.
    #[error("store failed: {0}")]
    Store(String),
    /// Objects of another type than the expected one: one of an event, or some of a list. They are left out.
    #[error("unexpected type of {key}: found \"{found}\", expected \"{expected}\" (objects left out: {count})")]
    UnexpectedType {
        /// Key of the first of them.
        key: ObjectKey,
        /// Its API version and kind.
        found: String,
        /// Expected API version and kind.
        expected: String,
        /// Number of them.
        count: usize,
    },
}

// === impl ReflectorError ===

impl ReflectorError {
    /// Returns true if the upstream has answered that it is not ready.
    pub(super) fn is_not_yet(&self) -> bool {
        matches!(self, Self::List(SourceError::NotYet(_)) | Self::Watch(SourceError::NotYet(_)))
    }

    /// Returns true for a watch whose version has expired: the list that follows is the remedy.
    pub(super) fn is_expired_watch(&self) -> bool {
        matches!(self, Self::Watch(SourceError::Expired(_)))
    }
}
