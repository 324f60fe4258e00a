//! Opening of a watch: checks the request, and joins.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    super::{
        access::{Access, Wanted},
        call::Call,
        frame::WireFrame,
        opening::OpeningSlot,
        past::{AtVersion, PastVersion, ReadState},
        query::{self, Parts, parts},
        resource::ServedResource,
        service::Service,
        status::ApiError,
        watchers::{OwnInfo, WatchAccess, WatcherInfo},
    },
    body::{Begin, WatchBody, WatchPlan},
    timer::MIN_BOOKMARK_INTERVAL,
};
use crate::{
    auth::Operation,
    cache::{InformerHandle, JoinError, Joined, Start},
    model::{ResourceVersion, Selection},
    proto::{self, BookmarkLines, pb},
    turns::FairPermit,
    watch::{MAX_QUEUE_LENGTH, QueueOptions, Subscribe},
};
#[cfg(feature = "kubernetes-api")]
use crate::{
    model::{Change, ObjectKey},
    proto::LineFormat,
    watch::FullChannelPolicy,
};

/// Checks and joins a watch.
pub(in super::super) async fn open(
    service: &Service,
    request: pb::WatchRequest,
    call: Call,
) -> Result<WatchBody, ApiError> {
    let access = access(service, &request, &call).await?;
    let queue = queue(service, &access.resource, request.queue.unwrap_or_default())?;
    open_with(access, &request, queue, call).await
}

/// Checks the rights of a watch.
pub(in super::super) async fn access<'a>(
    service: &'a Service,
    request: &pb::WatchRequest,
    call: &Call,
) -> Result<Access<'a>, ApiError> {
    let objects = Wanted::objects(Operation::Watch, &request.resource, &request.namespace, request.format);
    service.access(call, Wanted { name: &request.name, view: request.view.as_ref(), ..objects }).await
}

/// Checks and joins a watch of a resource, with a queue that the server has chosen.
pub(in super::super) async fn open_with(
    access: Access<'_>,
    request: &pb::WatchRequest,
    queue: QueueOptions,
    call: Call,
) -> Result<WatchBody, ApiError> {
    join_with(access, request, queue, LineOptions::default(), call).await
}

/// Options of a watch whose events are lines.
#[derive(Debug, Default)]
pub(crate) struct LineOptions {
    /// Bookmarks that the client reads.
    pub(crate) bookmarks: BookmarkLines,
    /// True if the client has only versions of objects, and resumes from the last one, which may be inside a batch.
    #[cfg(feature = "kubernetes-api")]
    pub(crate) has_objects_only: bool,
    /// Last change that the client received of a batch of which it may lack others.
    #[cfg(feature = "kubernetes-api")]
    pub(crate) last: Option<LastChange>,
}

/// Change of a batch, in the order of this server.
#[cfg(feature = "kubernetes-api")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LastChange {
    pub(crate) key: ObjectKey,
    pub(crate) version: ResourceVersion,
}

/// Checks and joins a watch whose events are lines.
#[cfg(feature = "kubernetes-api")]
pub(in super::super) async fn open_lines(
    mut access: Access<'_>,
    request: &pb::WatchRequest,
    (lines, options): (LineFormat, LineOptions),
    call: Call,
) -> Result<WatchBody, ApiError> {
    access.format.lines = Some(lines);
    let (service, resource) = (access.service, &access.resource);
    let queue = match &service.config().allowed_policies {
        _ if !options.has_objects_only => queue(service, resource, request.queue.unwrap_or_default())?,
        allowed if allowed.contains(&FullChannelPolicy::Replay) => {
            QueueOptions { policy: FullChannelPolicy::Replay, ..resource.queue }
        }
        _ => resource.queue,
    };
    join_with(access, request, queue, options, call).await
}

// === impl LineOptions ===

#[cfg(feature = "kubernetes-api")]
impl LineOptions {
    /// Skips what the client has. At another server, or in another history, a batch may have another order: it comes again.
    fn after_last(&self, mut joined: Joined<WireFrame>, resource: &ServedResource, history: &str) -> Joined<WireFrame> {
        if let Some(LastChange { key, version: last }) = &self.last
            && history == resource.informer.history(joined.history_id, None)
        {
            joined.cursor.skip_through(|Change { old, new, version, .. }| {
                let is_version = version == last || new.as_ref().is_some_and(|new| new.version() == last);
                is_version && new.as_ref().or(old.as_ref()).is_some_and(|object| object.key() == key)
            });
        }
        joined
    }
}

/// Opens a watch: its plan passes the checks, and joins.
async fn join_with(
    access: Access<'_>,
    request: &pb::WatchRequest,
    queue: QueueOptions,
    options: LineOptions,
    call: Call,
) -> Result<WatchBody, ApiError> {
    let plan = WatchPlan::check(access, request, queue, &options, &call).await?;
    let joined = plan.join(request, &call).await;
    let (joined, permit) = joined.inspect_err(|refusal| plan.watcher.ends(refusal))?;
    let WatchPlan { resource, subscribe, .. } = &plan;
    #[cfg(feature = "kubernetes-api")]
    let joined = options.after_last(joined, resource, &request.history);
    tracing::debug!(
        resource = resource.name,
        selection = subscribe.selection.described(resource.is_secret),
        user = call.identity.as_ref().map_or_else(String::new, ToString::to_string),
        "watch joined"
    );
    Ok(WatchBody::new(plan, joined, permit))
}

// === impl WatchPlan ===

impl WatchPlan {
    /// Checks a request, and enters the watch: from then on it counts as one, and operators see it.
    async fn check(
        mut access: Access<'_>,
        request: &pb::WatchRequest,
        queue: QueueOptions,
        options: &LineOptions,
        call: &Call,
    ) -> Result<Self, ApiError> {
        let caller = call.caller();
        let parts = Parts { name: &request.name, ..parts!(request, caller) };
        let selection = Arc::new(query::selection(&mut access, parts).await?);
        if access.format.lines.is_some() {
            access.check_whole()?;
        }
        let (service, resource, mut format) = (access.service, Arc::clone(&access.resource), access.format.clone());
        let begin = begin(request, query::version("resource_version", &request.resource_version)?)?;
        let bookmark_interval =
            duration("bookmark_interval", request.bookmark_interval)?.unwrap_or(service.config().bookmark_interval);
        let timeout = duration("timeout", request.timeout)?;
        let min_version = query::version("min_resource_version", &request.min_resource_version)?;
        let stream_quota = service.quotas().stream(call)?;
        let bulk_quota = if begin == Begin::InitialEvents { service.quotas().bulk_response(call)? } else { None };
        let (subscription, grant) = (call.subscription.as_ref(), access.take_grant());
        let info = WatcherInfo {
            resource: Arc::clone(&resource),
            caller,
            identity: call.identity.clone(),
            queue,
            format: format.payload,
            view: request.view.clone().map(Box::new),
            user_agent: Arc::clone(&call.user_agent),
            stream_id: subscription.map_or(0, |place| place.stream_id),
        };
        let own = OwnInfo {
            grant: grant.clone(),
            audited: call.audited.clone(),
            stream: call.stream.clone(),
            watch_id: subscription.map_or(0, |place| place.watch_id),
        };
        let open_view = resource.views.open(&resource.name, &mut format)?;
        let watcher = service.watchers().enter(info, own, Arc::clone(&selection))?;
        // A change of rights so far has passed by a call that waited. Later ones are left at the entry.
        if let Some(grant) = grant.filter(|_| access.is_outdated()) {
            let checked = service.check_again(&grant, selection.namespaces.as_ref()).await;
            let namespaces = checked.inspect_err(|refusal| watcher.ends(refusal))?;
            service.watchers().set_access(watcher.id(), WatchAccess::Namespaces(namespaces));
        }
        let subscribe =
            Subscribe { selection, format, queue, client: caller.client(), initial_events: begin != Begin::Bookmark };
        #[cfg_attr(not(feature = "kubernetes-api"), expect(unused_mut, reason = "it resumes inside of batches"))]
        let mut plan = Self {
            service: service.clone(),
            resource,
            subscribe,
            begin,
            min_version,
            has_batches: request.batch_initial_events,
            bookmark_interval: bookmark_interval.max(MIN_BOOKMARK_INTERVAL),
            bookmark_lines: options.bookmarks,
            // The watches of a stream send their bookmarks together.
            aligned_to: subscription.map(|place| place.began),
            timeout,
            watcher,
            stream_quota,
            bulk_quota,
            open_view,
        };
        #[cfg(feature = "kubernetes-api")]
        if let (true, Some(version)) = (options.has_objects_only, plan.begin.version().cloned()) {
            let resumed = plan.resume_at_object(version, call).await;
            resumed.inspect_err(|refusal| plan.watcher.ends(refusal))?;
        }
        if let Some(audited) = &call.audited {
            audited.begins_from(&plan.begin.to_string());
            audited.begins(&plan.subscribe.selection, &plan.subscribe.format, plan.resource.is_secret);
        }
        Ok(plan)
    }

    /// Waits for the version of an object, and begins after the one that a client resumes from which has seen it.
    #[cfg(feature = "kubernetes-api")]
    async fn resume_at_object(&mut self, version: ResourceVersion, call: &Call) -> Result<(), ApiError> {
        let (service, resource) = (&self.service, &self.resource);
        service.can_replace(resource, &version)?;
        service.reached(resource, Some(&version), self.future_wait()).await?;
        let resume_point = resource.informer.resume_point(version.clone());
        let (from, repeats) = resume_point.map_err(|error| ApiError::join(error, Some(&version), &resource.name))?;
        self.begin = Begin::After(from.clone());
        if repeats {
            self.bulk_quota = service.quotas().bulk_response(call)?;
            self.begin = Begin::At(from);
        }
        Ok(())
    }

    /// Returns the maximum time to wait for the version that a client has: over another protocol than gRPC, no longer than the watch.
    fn future_wait(&self) -> Duration {
        let timeout = self.timeout.filter(|_| self.subscribe.format.lines.is_some());
        timeout.unwrap_or(Duration::MAX).min(self.service.config().future_wait)
    }

    /// Checks that the client can resume, and joins. The permit is that of a state of the past, with which the watch begins.
    async fn join(
        &self,
        request: &pb::WatchRequest,
        call: &Call,
    ) -> Result<(Joined<WireFrame>, Option<FairPermit>), ApiError> {
        let Self { service, resource, subscribe, begin, min_version, .. } = self;
        let (from, history) = (begin.version(), &*request.history);
        // On a stream others must not wait for this one.
        let opening = call.subscription.as_ref().map(|place| &*place.opening);
        let is_same = |history_id: u64| {
            let is_another = from.is_some() && resource.informer.is_another_history(history, history_id);
            if is_another { Err(ApiError::HistoryRewritten) } else { Ok(()) }
        };
        if let Some(from) = from {
            service.can_replace(resource, from)?;
            if has_other_access(&subscribe.selection, history) {
                return Err(ApiError::AccessChanged);
            }
        }
        // A version of another history is rejected at once instead of waited for.
        is_same(resource.informer.history_id())?;
        let min = min_version.as_ref();
        // A minimum of the same lineage is refused as the version itself is, and the client begins anew.
        if min.zip(from).is_some_and(|(min, from)| min.same_lineage(from)) {
            waits(opening, call.wait, |wait| service.reached(resource, min, wait)).await?;
        } else {
            waits(opening, call.wait, |wait| service.snapshot(resource, min, wait)).await?;
        }
        let is_complete = request.complete_initial_events && *begin == Begin::InitialEvents;
        let start = match from {
            Some(from) => Start::After(from.clone()),
            None if is_complete => Start::Complete,
            None => Start::Now,
        };
        let joined = join(service, resource, start, subscribe, (opening, self.future_wait())).await?;
        is_same(joined.history_id)?;
        let version = joined.snapshot.safe_version();
        if !is_complete || version == joined.snapshot.version() {
            return Ok((joined, None));
        }
        // More changes may come at the open version: the state before them is one of the past.
        let history = resource.informer.history(joined.history_id, None);
        let at = &AtVersion::Exact(PastVersion { version: version.clone(), history });
        let read = waits(opening, call.wait, |wait| {
            let call = Call { wait, ..call.clone() };
            async move { service.state(resource, at, &call).await }
        });
        let ReadState { snapshot, permit } = read.await?;
        Ok((Joined { snapshot: Arc::unwrap_or_clone(snapshot), ..joined }, permit))
    }
}

// === impl Begin ===

impl Begin {
    /// Returns the version that the client has.
    fn version(&self) -> Option<&ResourceVersion> {
        match self {
            Self::InitialEvents | Self::Bookmark => None,
            Self::At(version) | Self::After(version) => Some(version),
        }
    }
}

/// Waits for something up to a time. An opening on a stream counts as one that waits meanwhile, and does not wait if there is no
/// room for that.
async fn waits<T, F: Future<Output = Result<T, ApiError>>>(
    opening: Option<&OpeningSlot>,
    wait: Duration,
    reached: impl Fn(Duration) -> F,
) -> Result<T, ApiError> {
    let Some(opening) = opening else { return reached(wait).await };
    match reached(Duration::ZERO).await {
        Err(_) if opening.wait() => reached(wait).await,
        at_once => at_once,
    }
}

/// Returns true if a client that resumes with this history may have had other rights: it has objects that it may no longer read,
/// or lacks some that it may read now.
fn has_other_access(selection: &Selection, history: &str) -> bool {
    // Whoever requests one namespace may read all of it, or nothing.
    selection.namespace.is_none() && !InformerHandle::<WireFrame>::is_history_of(history, selection.namespaces.as_ref())
}

/// Joins. If `start` is a version that this server has not reached yet, waits for it first: replicas differ in their progress.
async fn join(
    service: &Service,
    resource: &ServedResource,
    start: Start,
    subscribe: &Subscribe<WireFrame>,
    (opening, future_wait): (Option<&OpeningSlot>, Duration),
) -> Result<Joined<WireFrame>, ApiError> {
    let from = match &start {
        Start::After(from) => Some(from),
        Start::Now | Start::Complete => None,
    };
    loop {
        match (resource.informer.join(&start, subscribe.clone()), from) {
            (Ok(joined), _) => return Ok(joined),
            (Err(JoinError::TooLarge { .. }), Some(from)) => {
                waits(opening, future_wait, |wait| service.reached(resource, Some(from), wait)).await?;
            }
            (Err(error), _) => {
                if let (JoinError::Expired { .. }, Some(from)) = (&error, from) {
                    service.can_replace(resource, from)?;
                }
                return Err(resource.or_ended(ApiError::join(error, from, &resource.name)));
            }
        }
    }
}

/// Returns the first part of the stream, from the request.
fn begin(request: &pb::WatchRequest, from: Option<ResourceVersion>) -> Result<Begin, ApiError> {
    let invalid = |message: &str| ApiError::Invalid {
        reason: "INITIAL_EVENTS_INVALID",
        field: "initial_events",
        message: message.to_owned(),
    };
    match (pb::InitialEvents::try_from(request.initial_events), from) {
        (Ok(pb::InitialEvents::Send), Some(_)) => {
            Err(invalid("INITIAL_EVENTS_SEND and resource_version are mutually exclusive; leave out one of them"))
        }
        (Ok(pb::InitialEvents::Send | pb::InitialEvents::Unspecified), None) => Ok(Begin::InitialEvents),
        (Ok(pb::InitialEvents::None), None) => Ok(Begin::Bookmark),
        (Ok(pb::InitialEvents::None | pb::InitialEvents::Unspecified), Some(from)) => Ok(Begin::After(from)),
        (Err(_), _) => Err(invalid("unsupported value; supported: INITIAL_EVENTS_SEND (1), INITIAL_EVENTS_NONE (2)")),
    }
}

/// As in the audit log: the version, or a name in upper case.
impl fmt::Display for Begin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InitialEvents => f.write_str("LIST"),
            Self::Bookmark => f.write_str("NOW"),
            Self::At(version) | Self::After(version) => write!(f, "{version}"),
        }
    }
}

/// Returns the queue options that a client requests, within the server's limits.
fn queue(service: &Service, resource: &ServedResource, asked: pb::QueueOptions) -> Result<QueueOptions, ApiError> {
    let config = service.config();
    let policy = match proto::full_channel_policy(asked.policy) {
        Ok(policy) => policy.unwrap_or(resource.queue.policy),
        Err(message) => {
            return Err(ApiError::Invalid { reason: "POLICY_INVALID", field: "queue.policy", message });
        }
    };
    if !config.allowed_policies.contains(&policy) {
        return Err(ApiError::Invalid {
            reason: "POLICY_NOT_ALLOWED",
            field: "queue.policy",
            message: format!("{policy:?} is not allowed by this server; allowed: {:?}", config.allowed_policies),
        });
    }
    let length = match asked.length as usize {
        0 => resource.queue.length,
        length if length <= MAX_QUEUE_LENGTH => length,
        length => {
            let message = format!("{length} is larger than {MAX_QUEUE_LENGTH}");
            return Err(ApiError::Invalid { reason: "QUEUE_LENGTH_INVALID", field: "queue.length", message });
        }
    };
    Ok(QueueOptions { policy, length })
}

/// Parses an optional duration, which must be positive.
fn duration(field: &'static str, duration: Option<prost_types::Duration>) -> Result<Option<Duration>, ApiError> {
    let Some(given) = duration else { return Ok(None) };
    let parsed = proto::duration(given).filter(|duration| !duration.is_zero());
    let Some(parsed) = parsed.filter(|duration| *duration <= MAX_DURATION) else {
        let message = format!("expected a duration between 1ns and {} days", MAX_DURATION.as_secs() / 86_400);
        return Err(ApiError::Invalid { reason: "DURATION_INVALID", field, message });
    };
    Ok(Some(parsed))
}

/// Maximum duration: ten years.
const MAX_DURATION: Duration = Duration::from_secs(3650 * 86_400);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cache::{FifoBounds, Informer, InformerConfig, RealFifo, SourceHealth},
        model::Namespaces,
    };

    /// A history from any server decides, after any restart: its digest depends on the namespaces alone.
    #[test]
    fn a_client_resumes_with_the_namespaces_of_its_history_only() {
        let handle = || {
            let health = SourceHealth::new(Duration::MAX, Duration::MAX);
            Informer::<WireFrame>::new(
                Arc::new(RealFifo::new(FifoBounds::default())),
                health,
                InformerConfig::default(),
            )
            .1
        };
        let sets: [Option<&[&str]>; 5] = [None, Some(&[]), Some(&["a"]), Some(&["a", "b"]), Some(&["ab"])];
        let sets = sets.map(|set| set.map(|set| set.iter().copied().collect::<Namespaces>()));
        for now in &sets {
            let selection = Selection { namespaces: now.clone(), ..Selection::default() };
            let of_one = Selection { namespace: Some("a".into()), ..Selection::default() };
            for before in &sets {
                let history = handle().history(7, before.as_ref());
                assert_eq!(has_other_access(&selection, &history), before != now, "{before:?} then {now:?}");
                assert!(!has_other_access(&of_one, &history), "its namespace is checked by itself");
            }
            assert!(has_other_access(&selection, &handle().unfinished_history(7)), "{now:?}");
            assert_eq!(has_other_access(&selection, ""), now.is_some(), "without a history");
            assert_eq!(has_other_access(&selection, "of-an-old-server.3"), now.is_some());
        }
        let (here, limited) = (handle(), &sets[2]);
        for history in [here.history(7, limited.as_ref()), here.history(7, None), here.unfinished_history(7)] {
            assert!(here.is_another_history(&history, 8) && !here.is_another_history(&history, 7), "{history}");
            assert!(!handle().is_another_history(&history, 8), "of another server");
        }
    }
}
