//! States that requests read: the present one, once it has reached a version; or that of exactly one version, also of an earlier one,
//! which is computed from the history of the resource.
//!
//! `changes` answers Changes: the net difference between two of them.
//!
//! A state takes time and memory for each object that has changed since, so as many exist at a time as there are permits, and bulk
//! threads compute them. A call keeps its permit until its response is sent. Callers take turns, and one has its share at most.

mod changes;

use std::{future::poll_fn, sync::Arc, time::Duration};

use tokio::time::timeout;

pub(super) use self::changes::changes;
use super::{
    call::{Call, Caller},
    exceeded_limit::{ExceededLimit, Limited},
    frame::WireFrame,
    query,
    quotas::MAX_PAST_STATES,
    resource::ServedResource,
    service::Service,
    status::ApiError,
};
use crate::{
    cache::{InformerHandle, JoinError, NetChange, Snapshot},
    model::{Object, ObjectKey, ResourceVersion, excerpt},
    proto::pb,
    transport::Exceeded,
    turns::{Class, FairPermit, Full},
};

/// Version that a request reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AtVersion {
    /// Any.
    Any,
    NotOlderThan(ResourceVersion),
    Exact(PastVersion),
}

/// Version of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct PastVersion {
    pub(super) version: ResourceVersion,
    /// Name of the history that the client has received with the version; empty for the present one.
    pub(super) history: String,
}

/// State that a request reads.
#[derive(Debug)]
pub(super) struct ReadState {
    pub(super) snapshot: Arc<Snapshot>,
    /// Permit of a state that was computed, to be kept as long as the state.
    pub(super) permit: Option<FairPermit>,
}

/// Net difference of two versions, and a snapshot whose age is that of its oldest state.
pub(super) struct Difference {
    pub(super) changes: Vec<NetChange>,
    pub(super) since: Snapshot,
    pub(super) permit: FairPermit,
}

// === impl AtVersion ===

impl AtVersion {
    /// Parses the version of a request, which `field` has.
    pub(super) fn parse(
        field: &'static str,
        text: &str,
        version_match: i32,
        history: String,
    ) -> Result<Self, ApiError> {
        let version = query::version(field, text)?;
        let invalid = |message: String| {
            let field = "resource_version_match";
            ApiError::Invalid { reason: "RESOURCE_VERSION_INVALID", field, message }
        };
        match (pb::ResourceVersionMatch::try_from(version_match), version) {
            (Ok(pb::ResourceVersionMatch::Exact), Some(version)) => Ok(Self::Exact(PastVersion { version, history })),
            (Ok(pb::ResourceVersionMatch::Exact), None) => Err(invalid(format!("EXACT needs a version in {field}"))),
            (Ok(pb::ResourceVersionMatch::Unspecified), Some(version)) => Ok(Self::NotOlderThan(version)),
            (Ok(pb::ResourceVersionMatch::Unspecified), None) => Ok(Self::Any),
            (Err(_), _) => Err(invalid(format!("{version_match} is not a value of ResourceVersionMatch"))),
        }
    }
}

/// Checks that a history of which a client has a version is this one.
fn check_history(resource: &ServedResource, history: &str, history_id: u64) -> Result<(), ApiError> {
    if resource.informer.is_another_history(history, history_id) { Err(ApiError::HistoryRewritten) } else { Ok(()) }
}

// === impl Service ===

impl Service {
    /// Returns the state that a request reads. Waits for a later version as long as the call may.
    pub(super) async fn state(
        &self,
        resource: &ServedResource,
        at: &AtVersion,
        call: &Call,
    ) -> Result<ReadState, ApiError> {
        let (past, present) = match at {
            AtVersion::Any => (None, self.snapshot(resource, None, call.wait).await?),
            AtVersion::NotOlderThan(version) => (None, self.snapshot(resource, Some(version), call.wait).await?),
            AtVersion::Exact(past) => (Some(past), self.complete(resource, past, call.wait).await?),
        };
        let is_present =
            |past: &&PastVersion| *present.safe_version() == past.version && *present.version() == past.version;
        let Some(PastVersion { version, history }) = past.filter(|past| !is_present(past)) else {
            return Ok(ReadState { snapshot: present, permit: None });
        };
        let of = version.clone();
        let (state, permit) = self.compute(resource, call, move |informer| informer.state_at(&of)).await?;
        let snapshot = Arc::new(state.map_err(|error| ApiError::join(error, Some(version), &resource.name))?);
        check_history(resource, history, snapshot.history_id())?;
        Ok(ReadState { snapshot, permit: Some(permit) })
    }

    /// Returns an object at a version, the version to watch from, and the number of the history.
    pub(super) async fn read(
        &self,
        resource: &ServedResource,
        key: &ObjectKey,
        at: &AtVersion,
        call: &Call,
    ) -> Result<(Option<Arc<Object>>, ResourceVersion, u64), ApiError> {
        let snapshot = match at {
            AtVersion::Any => self.snapshot(resource, None, call.wait).await?,
            AtVersion::NotOlderThan(version) => self.snapshot(resource, Some(version), call.wait).await?,
            AtVersion::Exact(past) => {
                let (object, history_id) = self.object_at(resource, (key, past), call).await?;
                return Ok((object, past.version.clone(), history_id));
            }
        };
        Ok((snapshot.get(key).cloned(), snapshot.safe_version().clone(), snapshot.history_id()))
    }

    /// Returns an object as it was at exactly a version, and the number of the history; none if it did not exist.
    pub(super) async fn object_at(
        &self,
        resource: &ServedResource,
        (key, past): (&ObjectKey, &PastVersion),
        call: &Call,
    ) -> Result<(Option<Arc<Object>>, u64), ApiError> {
        self.complete(resource, past, call.wait).await?;
        let (key, of) = (key.clone(), past.version.clone());
        let (object, _) = self.compute(resource, call, move |informer| informer.object_at(&key, &of)).await?;
        let found = object.map_err(|error| ApiError::join(error, Some(&past.version), &resource.name))?;
        check_history(resource, &past.history, found.1)?;
        Ok(found)
    }

    /// Returns the net difference between two versions of one history.
    pub(super) async fn difference(
        &self,
        resource: &ServedResource,
        [from, to]: [&PastVersion; 2],
        call: &Call,
    ) -> Result<Difference, ApiError> {
        self.complete(resource, to, call.wait).await?;
        let (begin, end) = (from.version.clone(), to.version.clone());
        let (found, permit) =
            self.compute(resource, call, move |informer| informer.changes_between(&begin, &end)).await?;
        let (changes, since) =
            found.map_err(|(error, version)| ApiError::join(error, Some(&version), &resource.name))?;
        check_history(resource, &from.history, since.history_id())?;
        Ok(Difference { changes, since, permit })
    }

    /// Returns the current applied state of a resource, at `min_version` or later. Waits up to `wait` for it.
    pub(super) async fn snapshot(
        &self,
        resource: &ServedResource,
        min_version: Option<&ResourceVersion>,
        wait: Duration,
    ) -> Result<Arc<Snapshot>, ApiError> {
        let snapshot = self.reached(resource, min_version, wait).await?;
        if let Some(min) = min_version.filter(|min| !min.same_lineage(snapshot.version())) {
            self.can_replace(resource, min)?;
            let message = format!(
                "{} is not a version of this source (current: {})",
                excerpt(&min.to_string()),
                snapshot.version()
            );
            return Err(ApiError::Invalid {
                reason: "RESOURCE_VERSION_INVALID",
                field: "min_resource_version",
                message,
            });
        }
        Ok(snapshot)
    }

    /// Returns the first state that is at or after a version, or that belongs to another lineage, which can never reach the
    /// version. Waits up to `wait` for it.
    pub(super) async fn reached(
        &self,
        resource: &ServedResource,
        version: Option<&ResourceVersion>,
        wait: Duration,
    ) -> Result<Arc<Snapshot>, ApiError> {
        let is_there = |at: &ResourceVersion, wanted: &ResourceVersion| !at.same_lineage(wanted) || at >= wanted;
        let is_enough = |snapshot: &Snapshot| version.is_none_or(|wanted| is_there(snapshot.version(), wanted));
        self.reached_when(resource, version, wait, is_enough).await
    }

    /// Returns the first state that the predicate accepts, which accepts none below a version. Waits up to `wait` for it.
    pub(super) async fn reached_when(
        &self,
        resource: &ServedResource,
        version: Option<&ResourceVersion>,
        wait: Duration,
        is_enough: impl Fn(&Snapshot) -> bool,
    ) -> Result<Arc<Snapshot>, ApiError> {
        tokio::select! {
            // A state that is there is returned even while the server drains.
            biased;
            // Cancel-safe: `wait_for` documents it.
            snapshot = resource.informer.wait_for(version.map_or(0, ResourceVersion::number), is_enough) => Ok(snapshot),
            () = tokio::time::sleep(wait) => Err(self.not_reached(resource, version)),
            () = self.draining().cancelled() => Err(ApiError::Draining),
            () = resource.calls.until_ended() => Err(resource.or_ended(ApiError::Draining)),
        }
    }

    /// Returns the error for a wait that timed out.
    fn not_reached(&self, resource: &ServedResource, min_version: Option<&ResourceVersion>) -> ApiError {
        if let Some((snapshot, wanted)) = resource.informer.snapshot().zip(min_version) {
            return ApiError::VersionTooLarge { wanted: wanted.clone(), current: snapshot.version().to_string() };
        }
        self.not_synced(resource)
    }

    /// Waits until a version is complete.
    ///
    /// # Errors
    ///
    /// If it is of another lineage or history, or not complete in time.
    async fn complete(
        &self,
        resource: &ServedResource,
        PastVersion { version, history }: &PastVersion,
        wait: Duration,
    ) -> Result<Arc<Snapshot>, ApiError> {
        // A version of another history is rejected at once instead of waited for.
        check_history(resource, history, resource.informer.history_id())?;
        let is_complete = |snapshot: &Snapshot| {
            let safe = snapshot.safe_version();
            !safe.same_lineage(version) || safe >= version
        };
        let snapshot = self.reached_when(resource, Some(version), wait, is_complete).await?;
        check_history(resource, history, snapshot.history_id())?;
        if snapshot.version().same_lineage(version) {
            return Ok(snapshot);
        }
        self.can_replace(resource, version)?;
        let oldest = resource.informer.oldest().unwrap_or_else(|| snapshot.safe_version().clone());
        let error = JoinError::Expired { oldest, current: snapshot.safe_version().clone() };
        Err(ApiError::join(error, Some(version), &resource.name))
    }

    /// Computes something from the history on a bulk thread, once there is a permit. The permit returns with the outcome.
    async fn compute<T: Send + 'static>(
        &self,
        resource: &ServedResource,
        call: &Call,
        compute: impl FnOnce(&InformerHandle<WireFrame>) -> T + Send + 'static,
    ) -> Result<(T, FairPermit), ApiError> {
        let permit = self.past_permit(call.caller(), call.wait).await?;
        let informer = resource.informer.clone();
        // A call that is cancelled leaves its permit with the work, which takes memory until its end.
        let mut work = self.encoder().encode(call.caller(), move || (compute(&informer), permit));
        poll_fn(|cx| work.poll(cx)).await.map_err(|_| ApiError::Internal)
    }

    /// Waits for a permit. No class of callers has more of them.
    async fn past_permit(&self, caller: Caller, wait: Duration) -> Result<FairPermit, ApiError> {
        let permit = timeout(wait, self.quotas().past_states().acquire(caller.party(), Class::Known, 0)).await;
        let exceeded = match permit {
            Ok(Ok(permit)) => return Ok(permit),
            Ok(Err(Full::Share(limit))) => Exceeded::Share(limit),
            Ok(Err(Full::All(limit))) => Exceeded::All(limit),
            Err(_) => Exceeded::All(MAX_PAST_STATES),
        };
        Err(ExceededLimit::new(Limited::PastStates, exceeded).into())
    }
}
