//! Opening of a watch: checks the request, and joins.

use std::{fmt, sync::Arc, time::Duration};

use tokio::time::Instant;

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
    body::{Begin, Opened, WatchBody},
};
use crate::{
    auth::Operation,
    cache::{InformerHandle, JoinError, Joined, Start},
    model::{ResourceVersion, Selection},
    proto::{self, BookmarkLines, ObjectFormat, pb},
    turns::FairPermit,
    watch::{MAX_QUEUE_LENGTH, QueueOptions, Subscribe},
};
#[cfg(feature = "kubernetes-api")]
use crate::{
    model::{Change, ObjectKey},
    proto::LineFormat,
    watch::FullChannelPolicy,
};

/// Shortest bookmark interval; more frequent bookmarks would cost more than they are worth.
const MIN_BOOKMARK_INTERVAL: Duration = Duration::from_millis(100);

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

/// Waits for the version of an object, and returns the one after which a client resumes that has seen it, and how.
#[cfg(feature = "kubernetes-api")]
async fn resume_point(
    service: &Service,
    resource: &ServedResource,
    from: ResourceVersion,
    future_wait: Duration,
) -> Result<(ResourceVersion, Begin), ApiError> {
    service.can_replace(resource, &from)?;
    service.reached(resource, Some(&from), future_wait).await?;
    let resume_point = resource.informer.resume_point(from.clone());
    let (from, repeats) = resume_point.map_err(|error| ApiError::join(error, Some(&from), &resource.name))?;
    Ok((from.clone(), if repeats { Begin::At(from) } else { Begin::After(from) }))
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

async fn join_with(
    mut access: Access<'_>,
    request: &pb::WatchRequest,
    queue: QueueOptions,
    options: LineOptions,
    call: Call,
) -> Result<WatchBody, ApiError> {
    let caller = call.caller();
    let parts = Parts { name: &request.name, ..parts!(request, caller) };
    let selection = query::selection(&mut access, parts).await?;
    if access.format.lines.is_some() {
        access.check_whole()?;
    }
    let (service, resource, mut format) = (access.service, Arc::clone(&access.resource), access.format.clone());
    let from = query::version("resource_version", &request.resource_version)?;
    let begin = begin(request, from.clone())?;
    let bookmark_interval =
        duration("bookmark_interval", request.bookmark_interval)?.unwrap_or(service.config().bookmark_interval);
    let timeout = duration("timeout", request.timeout)?;
    let min_version = query::version("min_resource_version", &request.min_resource_version)?;

    let complete = (request.complete_initial_events && begin == Begin::InitialEvents).then(|| call.clone());
    let future_wait = future_wait(service, &format, timeout);
    let selection = Arc::new(selection);
    let stream_quota = service.quotas().stream(&call)?;
    let bulk_quota = if begin == Begin::InitialEvents { service.quotas().bulk_response(&call)? } else { None };
    #[cfg(feature = "kubernetes-api")]
    let resuming = options.has_objects_only.then(|| call.clone());
    let Call { identity, stream, wait, user_agent, audited, subscription, .. } = call;
    let user = identity.as_ref().map_or_else(String::new, ToString::to_string);
    let grant = access.take_grant();
    let (stream_id, watch_id) =
        subscription.as_ref().map(|place| (place.stream_id, place.watch_id)).unwrap_or_default();
    let info = WatcherInfo {
        resource: Arc::clone(&resource),
        caller,
        identity,
        queue,
        format: format.payload,
        view: request.view.clone().map(Box::new),
        user_agent,
        stream_id,
    };
    let own = OwnInfo { grant: grant.clone(), audited: audited.clone(), stream, watch_id };
    let open_view = resource.views.open(&resource.name, &mut format)?;
    let watcher = service.watchers().enter(info, own, Arc::clone(&selection))?;
    // A change of rights so far has passed by a call that waited. Later ones are left at the entry.
    if let Some(grant) = grant.filter(|_| access.is_outdated()) {
        let checked = service.check_again(&grant, selection.namespaces.as_ref()).await;
        let namespaces = checked.inspect_err(|refusal| watcher.ends(refusal))?;
        service.watchers().set_access(watcher.id(), WatchAccess::Namespaces(namespaces));
    }
    #[cfg(feature = "kubernetes-api")]
    let (from, begin, bulk_quota) = match (from, &resuming) {
        (Some(version), Some(call)) => {
            let resumed = async {
                let (from, begin) = resume_point(service, &resource, version, future_wait).await?;
                let has_state = matches!(begin, Begin::At(_));
                let bulk_quota = if has_state { service.quotas().bulk_response(call)? } else { None };
                Ok((Some(from), begin, bulk_quota))
            };
            resumed.await.inspect_err(|refusal| watcher.ends(refusal))?
        }
        (from, _) => (from, begin, bulk_quota),
    };
    if let Some(audited) = audited {
        audited.begins_from(&begin.to_string());
        audited.begins(&selection, &format, resource.is_secret);
    }

    let subscribe =
        Subscribe { selection, format, queue, client: caller.client(), initial_events: begin != Begin::Bookmark };
    let opening = subscription.as_ref().map(|place| &*place.opening);
    let at = JoinAt { from, min_version, history: &request.history, wait, future_wait, complete, opening };
    let joined = at.join(service, &resource, &subscribe).await;
    let (joined, permit) = joined.inspect_err(|refusal| watcher.ends(refusal))?;
    #[cfg(feature = "kubernetes-api")]
    let joined = options.after_last(joined, &resource, &request.history);
    tracing::debug!(
        resource = resource.name,
        selection = subscribe.selection.described(resource.is_secret),
        user,
        "watch joined"
    );
    Ok(WatchBody::new(Opened {
        service: service.clone(),
        resource: Arc::clone(&resource),
        subscribe,
        begin,
        joined,
        has_batches: request.batch_initial_events,
        bookmark_interval: bookmark_interval.max(MIN_BOOKMARK_INTERVAL),
        bookmark_lines: options.bookmarks,
        // The watches of a stream send their bookmarks together.
        aligned_to: subscription.map(|subscription| subscription.began),
        waiting: (bookmark_interval <= MIN_BOOKMARK_INTERVAL).then(|| resource.informer.demand().wait()),
        ends_at: timeout.map(|timeout| Instant::now() + timeout),
        watcher,
        stream_quota,
        bulk_quota,
        permit,
        open_view,
    }))
}

/// Returns the maximum time to wait for the version that a client has: over another protocol than gRPC, no longer than the watch.
fn future_wait(service: &Service, format: &ObjectFormat, timeout: Option<Duration>) -> Duration {
    let timeout = timeout.filter(|_| format.lines.is_some());
    timeout.unwrap_or(Duration::MAX).min(service.config().future_wait)
}

/// Place at which a watch joins.
struct JoinAt<'a> {
    /// Version that the client has.
    from: Option<ResourceVersion>,
    min_version: Option<ResourceVersion>,
    /// History of that version.
    history: &'a str,
    /// Maximum time to wait for the first list, and for the version that the client has.
    wait: Duration,
    future_wait: Duration,
    /// Call whose initial events are those of a complete version.
    complete: Option<Call>,
    /// Part of the openings of its stream, on which others must not wait for this one.
    opening: Option<&'a OpeningSlot>,
}

impl JoinAt<'_> {
    /// Checks that the client can resume, and joins.
    async fn join(
        self,
        service: &Service,
        resource: &ServedResource,
        subscribe: &Subscribe<WireFrame>,
    ) -> Result<(Joined<WireFrame>, Option<FairPermit>), ApiError> {
        let Self { from, min_version, history, wait, future_wait, complete, opening } = self;
        let is_same = |history_id: u64| {
            let is_another = from.is_some() && resource.informer.is_another_history(history, history_id);
            if is_another { Err(ApiError::HistoryRewritten) } else { Ok(()) }
        };
        if let Some(from) = &from {
            service.can_replace(resource, from)?;
            if has_other_access(&subscribe.selection, history) {
                return Err(ApiError::AccessChanged);
            }
        }
        // A version of another history is rejected at once instead of waited for.
        is_same(resource.informer.history_id())?;
        waits(opening, wait, |wait| service.snapshot(resource, min_version.as_ref(), wait)).await?;
        let start = match &from {
            Some(from) => Start::After(from.clone()),
            None if complete.is_some() => Start::Complete,
            None => Start::Now,
        };
        let joined = join(service, resource, start, subscribe, (opening, future_wait)).await?;
        is_same(joined.history_id)?;
        let version = joined.snapshot.safe_version();
        let Some(call) = complete.filter(|_| version != joined.snapshot.version()) else { return Ok((joined, None)) };
        // More changes may come at the open version: the state before them is one of the past.
        let history = resource.informer.history(joined.history_id, None);
        let at = &AtVersion::Exact(PastVersion { version: version.clone(), history });
        let read = waits(opening, wait, |wait| {
            let call = Call { wait, ..call.clone() };
            async move { service.state(resource, at, &call).await }
        });
        let ReadState { snapshot, permit } = read.await?;
        Ok((Joined { snapshot: Arc::unwrap_or_clone(snapshot), ..joined }, permit))
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
