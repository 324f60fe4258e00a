//! Interface that every upstream implements and the Reflector drives.
//!
//! The trait is here and not in `source`, because imports point inward: the Reflector is in `cache`.

use std::{
    pin::Pin,
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use tokio_stream::Stream;

use super::{Delta, List, ProgressDemand, Provenance, RewriteEvidence};
use crate::model::{Object, ResourceVersion};

/// Call that finds the time at which an object was created upstream; `None` for an object that does not show it.
pub type CreationTime = fn(&Object) -> Option<SystemTime>;

/// Lists a resource and watches it from the list's version, without a gap (client-go's `ListerWatcher`).
///
/// A call that fails leaves nothing to clean up. Dropping a future or a watch stops it and releases what it holds.
pub trait ListerWatcher: Send + Sync + 'static {
    /// Returns every object at one version. The implementation reads the pages, if the upstream has them.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the list; nothing is lost.
    fn list(&self, at: ListVersion) -> impl Future<Output = Result<List, SourceError>> + Send;

    /// Opens a watch of all changes strictly after `from`.
    fn watch(&self, from: ResourceVersion) -> impl Future<Output = Result<Watch, SourceError>> + Send;

    /// Returns the interval at which a healthy upstream proves itself alive (an event, a bookmark). A source is STALE after a
    /// silence of this and `stale_after`, or after failing for `stale_after`. A source that may be silent for ever returns
    /// [`Duration::MAX`].
    fn heartbeat(&self) -> Duration;

    /// Returns the differences in a list that prove a rewritten history.
    fn rewrite_evidence(&self) -> RewriteEvidence {
        RewriteEvidence::Listed
    }

    /// Returns the demand that the source reads, if its upstream can report progress.
    fn demand(&self) -> ProgressDemand {
        ProgressDemand::default()
    }

    /// Returns the call that finds the time at which an object was created, if the upstream records that: the delay from there until
    /// an addition is distributed is measured.
    fn creation_time(&self) -> Option<CreationTime> {
        None
    }

    /// Returns the servers that the objects come through, which a relay writes.
    fn provenance(&self) -> Provenance {
        Provenance::default()
    }

    /// Returns the means to resume in the next run; `None` for a source that cannot, and begins with a list.
    fn warm_start(&self) -> Option<&dyn WarmStart> {
        None
    }
}

/// Source that can begin with the state of the previous run: the upstream assigns the versions, and the source can recognise its
/// history; or the source compares the objects with what it reads ([`WarmStart::resume_with`]).
pub trait WarmStart: Send + Sync {
    /// Returns the part of the configuration that the objects depend on, in one line: a snapshot with another one is foreign.
    fn identity(&self) -> String;

    /// Returns the proof of the history at the last version that the source has returned. The next run, perhaps of a newer
    /// informerd, passes it to [`WarmStart::resume`]. `None` before the first list, and from a rewrite of the history until the
    /// next list.
    fn proof(&self) -> Option<Bytes>;

    /// Resumes a history, before any other request, so that [`ListerWatcher::watch`] continues from this version. That watch
    /// checks if the upstream still has this history.
    ///
    /// # Errors
    ///
    /// If the proof cannot be read, or is of another version. The source then has no history to resume.
    fn resume(&self, version: &ResourceVersion, proof: &[u8]) -> Result<(), String>;

    /// Resumes with the objects of the previous run. A source that assigns the versions itself gives them, and the list, versions
    /// of this run: the previous one may have assigned more of its own than the snapshot has.
    ///
    /// # Errors
    ///
    /// As of [`WarmStart::resume`].
    fn resume_with(&self, list: &mut List, proof: &[u8]) -> Result<(), String> {
        self.resume(&list.version, proof)
    }
}

/// Upstream watch: events and transactions in upstream order. An end without an error is a normal close, and the Reflector
/// resumes from the last version; an error is the last item (apimachinery's `watch.Interface`; `Stop` is dropping it).
pub type Watch = Pin<Box<dyn Stream<Item = Result<Delta, SourceError>> + Send>>;

/// Freshness of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum ListVersion {
    /// Any cached state, perhaps an old one: `resourceVersion=0`.
    #[default]
    Any,
    /// State at this version or a later one.
    NotOlderThan(ResourceVersion),
    /// Most recent state, by the upstream's quorum: `resourceVersion` empty.
    MostRecent,
}

/// Reason why an upstream list or watch failed, by the Reflector's reaction.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// The upstream no longer has the version: list again.
    #[error("resource version expired upstream: {0}")]
    Expired(String),
    /// The version is ahead of the upstream's member that answered: list the most recent state.
    #[error("resource version not reached upstream: {0}")]
    VersionTooLarge(String),
    /// The upstream answers, and has not reached what is requested: retry after a short and constant delay, without a list.
    #[error("upstream not ready: {0}")]
    NotYet(String),
    /// "Connection refused" or "too many requests": retry after a delay, without a list.
    #[error("upstream unavailable: {0}")]
    Busy(String),
    /// The upstream's history was rewritten, which the versions alone may not show: the next list ends every watch of the
    /// resource.
    #[error("upstream history rewritten: {0}")]
    HistoryRewritten(String),
    /// An open watch broke: watch again without a list, at once if it had lasted or delivered something.
    #[error("watch broken: {0}")]
    Broken(String),
    /// The upstream refuses the request: the credentials, the rights or the resource itself are missing, or it does not support
    /// the request. Repeat the request after a delay; a watch that was served since the last list needs no list.
    #[error("{0}")]
    Refused(String),
    /// The upstream began a list and did not finish it, or timed out: list the most recent state, which comes in pages; open a
    /// watch again after a delay.
    #[error("upstream unavailable: {0}")]
    Incomplete(String),
    /// Any other error that may pass: list and watch again after a delay.
    #[error("{0}")]
    Unavailable(String),
    /// The upstream sent data that cannot be read or keyed. It does not count as applied: list again.
    #[error("invalid upstream data: {0}")]
    Undecodable(String),
}
