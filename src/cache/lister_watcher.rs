//! The port that every upstream implements and a Reflector drives.
//!
//! The trait stands here and not in `source`, because imports point inward: the Reflector that drives it is in `cache`.

use std::{pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use tokio_stream::Stream;

use super::Delta;
use crate::model::{Object, ResourceVersion};

/// Lists a resource and watches it from the list's version, without a gap (client-go's `ListerWatcher`).
///
/// A call that fails leaves nothing to clean up. Dropping a future or a watch stops it and releases what it holds.
pub trait ListerWatcher: Send + Sync + 'static {
    /// Returns every object at one version. Pages, if the upstream has them, are the implementation's affair.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the list; nothing is lost.
    fn list(&self, at: ListVersion) -> impl Future<Output = Result<List, SourceError>> + Send;

    /// Opens a watch of everything that happens strictly after `from`.
    fn watch(&self, from: ResourceVersion) -> impl Future<Output = Result<Watch, SourceError>> + Send;

    /// How often a healthy upstream proves itself alive (an event, a bookmark). A source that has been silent for longer
    /// than this and `stale_after`, or has failed for `stale_after`, is STALE; one that may be silent for ever says
    /// [`Duration::MAX`].
    fn heartbeat(&self) -> Duration;

    /// Returns the evidence that a list gives of another history.
    fn evidence(&self) -> Evidence {
        Evidence::Listed
    }

    /// How a later start goes on where this one was; `None` for a source that cannot, and begins with a list.
    fn warm_start(&self) -> Option<&dyn WarmStart> {
        None
    }
}

/// Difference of a list, at versions that are known, that proves another history (invariant 14).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Evidence {
    /// An object at another version than it is held at. The Kubernetes API can change what a field selector selects without a
    /// change of the object.
    Held,
    /// That, and an object that is not held.
    Listed,
    /// That, and other bytes at the same version: where the upstream stores bytes. The Kubernetes API writes stored objects as
    /// its own version and its conversions have them; a relay does not know what its origin follows.
    Bytes,
}

/// A source whose upstream can be followed from a version that an earlier start had reached: it counts by itself, and its
/// history can be recognised.
pub trait WarmStart: Send + Sync {
    /// What of the configuration the objects depend upon, in one line: a state with another one is of something else.
    fn identity(&self) -> String;

    /// What the history can be recognised by at the version that was handed out last. It comes back to
    /// [`WarmStart::resume`] of a later start, perhaps of a later version. `None` before the first list, and after the history
    /// has changed until it is listed.
    fn proof(&self) -> Option<Bytes>;

    /// Takes a history up, before anything else is asked, so that [`ListerWatcher::watch`] goes on from this version. Whether
    /// the upstream's history is still this one is found out there.
    ///
    /// # Errors
    ///
    /// When the proof cannot be read, or is not of this version. Nothing has been taken up then.
    fn resume(&self, version: &ResourceVersion, proof: &[u8]) -> Result<(), String>;
}

/// An upstream watch: events and transactions in upstream order. Its end without an error is a normal close, to be resumed
/// from the last version; an error is its last item (apimachinery's `watch.Interface`; `Stop` is dropping it).
pub type Watch = Pin<Box<dyn Stream<Item = Result<Delta, SourceError>> + Send>>;

/// How fresh a list has to be (SEMANTICS 1.25).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListVersion {
    /// Any cached state, perhaps an old one: `resourceVersion=0`.
    Any,
    /// Not older than this.
    NotOlderThan(ResourceVersion),
    /// The most recent state, by the upstream's quorum: `resourceVersion` empty.
    MostRecent,
}

/// A whole resource at one version. Of two objects with the same key the last wins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    /// Every object, in any order.
    pub objects: Vec<Arc<Object>>,
    /// A watch from here has neither gap nor overlap.
    pub version: ResourceVersion,
    /// Objects that exist and cannot be served, by their keys and uids alone: one that was served before is DELETED with
    /// [`Cause::NotServed`](crate::model::Cause::NotServed) instead of
    /// [`Cause::Inferred`](crate::model::Cause::Inferred).
    pub not_served: Vec<Arc<Object>>,
    /// Namespaces that lists before this one were not of: their objects prove nothing of the history.
    pub new_namespaces: Vec<String>,
    /// Namespaces that lists before this one were of, and this one is not.
    pub lost_namespaces: Vec<String>,
    /// An earlier start may have sent clients changes above the version that the resource has reached, and this list hides what
    /// became of them: no client can resume from an older version.
    pub expires_older: bool,
}

impl List {
    /// Makes a list of objects that can all be served.
    pub fn new(objects: Vec<Arc<Object>>, version: ResourceVersion) -> Self {
        Self {
            objects,
            version,
            not_served: Vec::new(),
            new_namespaces: Vec::new(),
            lost_namespaces: Vec::new(),
            expires_older: false,
        }
    }
}

/// Why an upstream list or watch failed, by what the Reflector does next (SEMANTICS 1.25-1.27).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The version is gone upstream: list again.
    #[error("the version is too old for the upstream: {0}")]
    Expired(String),
    /// The version is ahead of the upstream's member that was asked: list the most recent state.
    #[error("the version is ahead of the upstream: {0}")]
    VersionTooLarge(String),
    /// "Connection refused" or "too many requests": back off and ask again, and never list for it.
    #[error("the upstream cannot serve now: {0}")]
    Busy(String),
    /// The upstream has proved that its history is another one, which the versions alone may not show: the next list ends
    /// every watch of the resource.
    #[error("the upstream's history has changed: {0}")]
    HistoryChanged(String),
    /// A watch that was open broke: watch again, at once if it had lasted or brought something, and never list for it.
    #[error("the watch broke: {0}")]
    Broken(String),
    /// The upstream refuses the request: the credentials, the rights or the resource itself are missing, or it does not know
    /// what is requested. Back off and send the same request again; a watch that was served since the last list needs no list.
    #[error("{0}")]
    Refused(String),
    /// The upstream began a list and did not finish it, or ran out of time for it: list the most recent state, which comes in
    /// pages; a watch is opened again after a delay.
    #[error("the upstream cannot serve now: {0}")]
    Incomplete(String),
    /// Anything else that may pass: back off, then list and watch again.
    #[error("{0}")]
    Unavailable(String),
    /// The upstream sent what cannot be read or keyed. It does not count as applied: list again.
    #[error("the upstream sent what cannot be read: {0}")]
    Undecodable(String),
}
