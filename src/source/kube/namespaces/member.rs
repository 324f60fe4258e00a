//! One of several namespaces: its position, and its watch.

use std::{pin::Pin, sync::Arc, time::Duration};

use futures_util::{Stream, StreamExt, stream};
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep_until};

use super::super::{
    head::Head,
    known::{KnownState, Position, PositionEvidence},
    probe::Probe,
    resume_check::{ResumePoint, SavedResumePoint},
    shared::KubeShared,
    watch::{self, KubeWatch},
};
use crate::{
    cache::{Delta, SourceError},
    model::ResourceVersion,
};

/// One namespace.
#[derive(Debug, Clone)]
pub(super) struct Member {
    pub(super) namespace: String,
    pub(super) shared: Arc<KubeShared>,
}

/// Events of a member, with its index.
pub(super) type MemberWatch = Pin<Box<dyn Stream<Item = (usize, Result<Delta, SourceError>)> + Send>>;

/// Open watch of one member.
pub(super) struct NamespaceWatch {
    member: Member,
    live: KubeWatch,
    opened_at: Instant,
    is_empty: bool,
}

/// Data saved for the next run.
#[derive(Serialize, Deserialize)]
pub(super) struct SavedMember {
    pub(super) namespace: String,
    /// Version up to which all events were received.
    pub(super) version: String,
    /// True if the version after it is known in part: its changes are in `resume_point`.
    #[serde(default)]
    pub(super) is_open: bool,
    /// True if every version stays open until the next.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(super) leaves_open: bool,
    #[serde(rename = "mark")]
    pub(super) resume_point: Option<SavedResumePoint>,
}

/// Shortest duration of a watch without events; a shorter one fails, so that it is not reopened at once.
const VERY_SHORT_WATCH: Duration = Duration::from_secs(1);
const PROBE_INTERVAL: Duration = Duration::from_secs(2);

// === impl Member ===

impl Member {
    /// Returns the last version whose events were all emitted; `None` without a position.
    pub(super) fn reached(&self) -> Option<ResourceVersion> {
        self.shared.known.lock().position().map(Position::safe)
    }

    /// Opens the watch of this namespace, for a resource that resumes from a merged version.
    pub(super) async fn follow(self, merged: &ResourceVersion) -> Result<NamespaceWatch, SourceError> {
        let position = self.shared.known.lock().position().cloned();
        // A namespace that is ahead by a bookmark alone lacks no events.
        let is_ahead =
            |position: &Position| position.resume_point().is_some_and(|resume_point| resume_point.version() > merged);
        let ahead = position.filter(|position| position.origin == PositionEvidence::EarlierStart && is_ahead(position));
        let live = match ahead {
            Some(position) => self.open_behind(merged, position).await?,
            None => self.open().await?,
        };
        Ok(NamespaceWatch { member: self, live, opened_at: Instant::now(), is_empty: true })
    }

    /// Opens the watch of a namespace that was ahead at the end of a previous run, at the merged version, which is that of its
    /// snapshot.
    async fn open_behind(&self, merged: &ResourceVersion, position: Position) -> Result<KubeWatch, SourceError> {
        let (resume_point, Position { version, .. }) = (position.resume_point(), position);
        self.shared.check_cluster().await?;
        if self.shared.head(&version, resume_point.as_ref()).await? != Head::HasMark {
            let text = format!(
                "cannot verify the history of namespace {}: no known change at version {version}",
                self.namespace
            );
            return Err(SourceError::Expired(text));
        }
        let live = watch::open(&self.shared, merged, None).await?;
        let mut known = self.shared.known.lock();
        let resumed = KnownState::resume(known.cluster().map(str::to_owned), merged.clone(), false, None);
        *known = resumed.with_open_versions(known.leaves_open());
        drop(known);
        Ok(live)
    }

    async fn open(&self) -> Result<KubeWatch, SourceError> {
        let expired = || SourceError::Expired(format!("no known state of namespace {}", self.namespace));
        let from = self.reached().ok_or_else(expired)?;
        let position = self.shared.known.lock().watch_position(&from);
        self.shared.watch(&from, position).await
    }

    pub(super) fn keep(&self) -> Option<SavedMember> {
        let known = self.shared.known.lock();
        let position = known.position()?;
        let (is_open, resume_point) = (position.is_open(), position.resume_point().as_ref().map(ResumePoint::keep));
        let (namespace, version) = (self.namespace.clone(), position.safe().to_string());
        Some(SavedMember { namespace, version, is_open, leaves_open: known.leaves_open(), resume_point })
    }

    /// Returns a later version up to which this namespace has no events, if the API shows one.
    pub(super) async fn probe(self, from: ResourceVersion) -> Option<ResourceVersion> {
        let begun = Instant::now();
        if let Probe::Quiet(version) = self.shared.probe(&from).await {
            return Some(version);
        }
        sleep_until(begun + PROBE_INTERVAL).await;
        None
    }
}

// === impl NamespaceWatch ===

impl NamespaceWatch {
    pub(super) fn into_stream(self, at: usize) -> MemberWatch {
        let deltas = stream::try_unfold(self, |mut followed| async move {
            let next = followed.next().await;
            next.map(|delta| Some((delta, followed)))
        });
        Box::pin(deltas.map(move |delta| (at, delta)))
    }

    pub(super) async fn next(&mut self) -> Result<Delta, SourceError> {
        loop {
            if let Some(delta) = self.live.next().await? {
                self.is_empty = false;
                return Ok(delta);
            }
            if self.is_empty && self.opened_at.elapsed() < VERY_SHORT_WATCH {
                let text = format!("watch of namespace {} closed at once", self.member.namespace);
                return Err(SourceError::Busy(text));
            }
            self.live = self.member.open().await?;
            (self.opened_at, self.is_empty) = (Instant::now(), true);
        }
    }
}

pub(super) fn not_decimal() -> SourceError {
    let text = "the API's versions are not decimals, so namespaces cannot be compared; configure a resource for each namespace";
    SourceError::Undecodable(text.to_owned())
}
