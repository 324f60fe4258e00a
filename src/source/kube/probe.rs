//! Short second watch from a version, which shows whether there are changes after it.
//!
//! kube-apiserver sends a bookmark two seconds before the end of a watch, at the version that its watch cache has reached.

use std::{sync::Arc, time::Duration};

use tokio::time::sleep;

use super::{known::Position, object::Bookmark, shared::KubeShared, watch::KubeWatch};
use crate::{
    model::{AppliedVersion, EventType, Object, ResourceVersion},
    source::watch_event::DecodedEvent,
};

/// Result of a short watch.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Probe {
    /// There is no change up to this later version.
    Quiet(ResourceVersion),
    /// There is a change, at this version.
    Change(ResourceVersion),
    /// Neither was sent in time.
    Unknown,
}

/// Timeout of a probe.
pub(super) const PROBE_TIME: Duration = Duration::from_secs(4);
/// The same for a caller that waits. The API sends no bookmark in a watch of two seconds.
const SHORT_PROBE_TIME: Duration = Duration::from_secs(3);
/// Time after the start of a probe at which the most recent version is requested.
const REQUEST_AFTER: Duration = Duration::from_millis(500);

// === impl KubeShared ===

impl KubeShared {
    /// Watches from a version for a short time, beside the open watch.
    pub(super) async fn probe(self: &Arc<Self>, from: &ResourceVersion) -> Probe {
        self.probe_for(from, PROBE_TIME).await
    }

    async fn probe_for(self: &Arc<Self>, from: &ResourceVersion, time: Duration) -> Probe {
        let query = [("resourceVersion", &*from.to_string())];
        let Ok(live) = KubeWatch::open_for(self, &query, time).await else { return Probe::Unknown };
        tokio::select! {
            found = self.first_of(live, from) => found,
            () = self.requests_progress() => Probe::Unknown,
        }
    }

    /// Returns the version that a state at `at` needs to be as recent as this call: its own, if there is no change after it up to the
    /// most recent version of the cluster. A state with a deletion at that very version is as recent as the API's own, which sends no
    /// bookmark then.
    pub(super) async fn needed_version(self: &Arc<Self>, at: AppliedVersion) -> Result<ResourceVersion, String> {
        let unknown = || "the API does not return the most recent version".to_owned();
        let present = self.most_recent_version().await?.ok_or_else(unknown)?;
        let has_all = *at.version() >= present && !self.known.lock().leaves_open();
        let at = at.safe().clone();
        if has_all || at >= present {
            return Ok(at);
        }
        match self.probe_for(&at, SHORT_PROBE_TIME).await {
            Probe::Quiet(version) if version >= present => Ok(at),
            Probe::Change(version) if version >= present => Ok(version),
            // The open watch soon has the changes in between.
            Probe::Quiet(_) | Probe::Change(_) => Ok(present),
            Probe::Unknown => Err("the API sent neither a change nor a bookmark".to_owned()),
        }
    }

    /// Returns the first change or later bookmark of a watch.
    async fn first_of(&self, mut live: KubeWatch, from: &ResourceVersion) -> Probe {
        while let Ok(Some(received)) = live.line().await {
            match live.decode(&received) {
                Ok(DecodedEvent::Bookmark(object)) => {
                    let version = Bookmark::read(object).ok();
                    let version = version.and_then(|bookmark| ResourceVersion::parse_decimal(&bookmark.version).ok());
                    match version {
                        Some(version) if version > *from => return Probe::Quiet(version),
                        Some(_) => {}
                        None => return Probe::Unknown,
                    }
                }
                // The API repeats the known deletions of an open version.
                Ok(DecodedEvent::Change(EventType::Deleted, Ok(item))) if self.has_deleted(&item.object) => {}
                Ok(DecodedEvent::Change(_, Ok(item))) => return Probe::Change(item.object.version().clone()),
                // The open watch passes over it, too.
                Ok(DecodedEvent::Change(_, Err(_))) => {}
                Ok(DecodedEvent::Failure(_)) | Err(_) => return Probe::Unknown,
            }
        }
        Probe::Unknown
    }

    fn has_deleted(&self, last: &Object) -> bool {
        let resume_point = self.known.lock().position().and_then(Position::resume_point);
        resume_point.is_some_and(|resume_point| resume_point.has_deletion(last))
    }

    /// Makes kube-apiserver query etcd's revision, as it does for a list of the most recent state: it sends no bookmark at a
    /// version that it knew when the watch was opened. Never completes.
    async fn requests_progress(&self) {
        sleep(REQUEST_AFTER).await;
        drop(self.most_recent_version().await);
        std::future::pending::<()>().await;
    }
}
