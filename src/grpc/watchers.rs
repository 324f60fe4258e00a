//! Registry of the open watches: it limits their number, and lists them for operators.
//!
//! Each watch updates its own entry; `ListWatchers` reads them. The lag of a watch is read from its cursor at the time of the
//! request: the body of a client that has stopped reading is not polled, and could not update it.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;

use super::{
    audited_call::AuditedCall,
    call::Caller,
    frame::WireFrame,
    grant::Grant,
    held_snapshots::{Age, Holder},
    resource::ServedResource,
    status::ApiError,
};
use crate::{
    auth::Identity,
    model::{Namespaces, ResourceVersion, Selection},
    proto::{self, pb},
    transport::{Permit, Quota, StreamHandle},
    watch::{
        Cursor, CursorGauge, CursorState,
        FullChannelPolicy::{Block, Coalesce},
        QueueOptions,
    },
};

/// Registry of the open watches.
#[derive(Debug)]
pub(super) struct Watchers {
    quota: Arc<Quota>,
    open: Mutex<Open>,
}

#[derive(Debug, Default)]
struct Open {
    last_id: u64,
    watchers: BTreeMap<u64, Arc<Watcher>>,
    /// The open watches under COALESCE, by id.
    coalescing: BTreeMap<u64, Arc<Watcher>>,
}

/// Entry of one open watch; dropping it removes the watch.
#[derive(Debug)]
pub(super) struct WatcherEntry {
    id: u64,
    watcher: Arc<Watcher>,
    watchers: Arc<Watchers>,
    _permit: Permit,
}

/// Properties of a watch that do not change while it is open.
#[derive(Debug)]
pub(super) struct WatcherInfo {
    pub(super) resource: Arc<ServedResource>,
    pub(super) caller: Caller,
    pub(super) identity: Option<Identity>,
    /// Rights that were checked when it was opened; none where nobody is authorized.
    pub(super) grant: Option<Arc<Grant>>,
    pub(super) queue: QueueOptions,
    /// View as the client requested it.
    pub(super) view: Option<pb::View>,
    pub(super) audited: Option<AuditedCall>,
}

/// Change of the rights of an open watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum WatchAccess {
    /// The caller may read these namespaces now, or all.
    Namespaces(Option<Namespaces>),
    /// The watch ends.
    Ended(ApiError),
}

/// Change of the rights of a watch, until its body acts on it: before it takes another event.
#[derive(Debug)]
struct NewAccess {
    is_set: AtomicBool,
    state: Mutex<AccessState>,
}

#[derive(Debug)]
struct AccessState {
    /// Newest namespaces.
    namespaces: Option<Namespaces>,
    change: Option<WatchAccess>,
    /// True if the watch ends: no later change revokes that.
    is_ended: bool,
}

/// Open watch whose rights were checked.
#[derive(Debug)]
pub(super) struct GrantedWatch {
    pub(super) id: u64,
    pub(super) resource: Arc<ServedResource>,
    pub(super) grant: Arc<Grant>,
    /// Namespaces that it is limited to, if it is.
    pub(super) namespaces: Option<Namespaces>,
}

#[derive(Debug)]
struct Watcher {
    info: WatcherInfo,
    access: NewAccess,
    stream: Option<StreamHandle>,
    since: SystemTime,
    sent: Sent,
    dropped: AtomicU64,
    suppressed: AtomicU64,
    progress: Mutex<Progress>,
}

/// Everything that a delivery changes, in one cache line: an event for a thousand watches misses it a thousand times.
#[derive(Debug)]
#[repr(align(64))]
struct Sent(Mutex<SentEvents>);

#[derive(Debug)]
struct SentEvents {
    count: u64,
    at: SystemTime,
    version: Option<ResourceVersion>,
}

#[derive(Debug)]
struct Progress {
    selection: Arc<Selection>,
    state: pb::WatcherState,
    /// True if the last check found changes merged for this watch.
    is_merging: bool,
    /// Age of the resource at the last check that found no merged changes.
    not_merging_at: Option<Age>,
    /// Gauge of the cursor; a parked watch has none.
    gauge: Option<CursorGauge<WireFrame>>,
}

/// Time between the ends of two watches when the server drains: a thousand a second, if the period allows it.
const DRAIN_STEP: Duration = Duration::from_millis(1);
/// Share of the drain period over which watches end; the remainder is for the data that they still have to send.
const DRAIN_SHARE: f64 = 0.8;
/// Number of slots into which the spread is divided.
const DRAIN_PLACES: u64 = 10_007;

/// Maximum and default number of watches in one response.
const MAX_WATCHERS: usize = 10_000;

// === impl Watchers ===

impl Watchers {
    /// Creates an empty registry for at most `limit` watches; one origin may have `peer_share` percent of them.
    pub(super) fn new(limit: usize, peer_share: u32) -> Self {
        Self { quota: Quota::new(limit, peer_share), open: Mutex::default() }
    }

    /// Adds a watch, unless the limit is reached.
    pub(super) fn enter(
        self: &Arc<Self>,
        info: WatcherInfo,
        selection: Arc<Selection>,
        stream: Option<StreamHandle>,
    ) -> Result<WatcherEntry, ApiError> {
        let permit = self.quota.take(info.caller.origin()).map_err(ApiError::TooManyWatchers)?;
        let (now, state) = (SystemTime::now(), pb::WatcherState::Unspecified);
        let access = NewAccess::new(selection.namespaces.clone());
        let progress = Mutex::new(Progress { selection, state, is_merging: false, not_merging_at: None, gauge: None });
        let sent = Sent(Mutex::new(SentEvents { count: 0, at: now, version: None }));
        let watcher = Arc::new(Watcher {
            info,
            access,
            stream,
            since: now,
            sent,
            dropped: AtomicU64::new(0),
            suppressed: AtomicU64::new(0),
            progress,
        });
        let mut open = self.open.lock();
        open.last_id += 1;
        let id = open.last_id;
        if watcher.info.queue.policy == Coalesce {
            open.coalescing.insert(id, Arc::clone(&watcher));
        }
        open.watchers.insert(id, Arc::clone(&watcher));
        Ok(WatcherEntry { id, watcher, watchers: Arc::clone(self), _permit: permit })
    }

    /// Changes the rights of an open watch. Returns true if they are other ones than before: the caller then wakes the watches of
    /// the resource ([`InformerHandle::notify_watches`](crate::cache::InformerHandle::notify_watches)).
    pub(super) fn set_access(&self, id: u64, access: WatchAccess) -> bool {
        let watcher = self.open.lock().watchers.get(&id).cloned();
        watcher.is_some_and(|watcher| watcher.access.set(access))
    }

    /// Returns the open watches whose rights were checked, to check them again.
    pub(super) fn granted(&self) -> Vec<GrantedWatch> {
        let open = self.open.lock();
        let granted = |(id, watcher): (&u64, &Arc<Watcher>)| {
            let grant = Arc::clone(watcher.info.grant.as_ref()?);
            let namespaces = watcher.access.state.lock().namespaces.clone();
            Some(GrantedWatch { id: *id, resource: Arc::clone(&watcher.info.resource), grant, namespaces })
        };
        open.watchers.iter().filter_map(granted).collect()
    }

    /// Resets the streams of clients that were evicted under BLOCK and have not received the reason: a client that reads nothing
    /// keeps its flow-control window shut. Checks at each `grace`; never returns.
    pub(super) async fn reset_evicted(&self, grace: Duration) {
        let mut untold = BTreeSet::new();
        loop {
            tokio::time::sleep(grace).await;
            let blocking: Vec<(u64, Arc<Watcher>)> = {
                let open = self.open.lock();
                let blocking = open.watchers.iter().filter(|(_, watcher)| watcher.info.queue.policy == Block);
                blocking.map(|(id, watcher)| (*id, Arc::clone(watcher))).collect()
            };
            let mut found = BTreeSet::new();
            for (id, watcher) in blocking {
                let gauge = watcher.progress.lock().gauge.clone();
                if !gauge.is_some_and(|gauge| gauge.is_evicted()) {
                    continue;
                }
                match &watcher.stream {
                    Some(stream) if untold.contains(&id) => {
                        let WatcherInfo { resource, caller, .. } = &watcher.info;
                        tracing::debug!(resource = resource.name, peer = ?caller.peer, "stream reset");
                        stream.reset();
                    }
                    _ => {
                        found.insert(id);
                    }
                }
            }
            untold = found;
        }
    }

    /// Returns the watches of a resource that have merged changes, or had some at the previous call. The resource has the age
    /// `now`, and had the age `before` at the previous call.
    pub(super) fn merging(&self, resource: &ServedResource, before: Age, now: Age) -> Vec<Holder> {
        let coalescing: Vec<Arc<Watcher>> = {
            let open = self.open.lock();
            let of_resource = |watcher: &&Arc<Watcher>| watcher.info.resource.name == resource.name;
            open.coalescing.values().filter(of_resource).cloned().collect()
        };
        coalescing.iter().filter_map(|watcher| watcher.merging(before, now)).collect()
    }

    /// Returns an open watch: its resource, its selection, and what operators see of it.
    pub(super) fn find(&self, id: u64) -> Option<(Arc<ServedResource>, Arc<Selection>, pb::Watcher)> {
        let watcher = self.open.lock().watchers.get(&id).cloned()?;
        let selection = Arc::clone(&watcher.progress.lock().selection);
        Some((Arc::clone(&watcher.info.resource), selection, watcher.to_proto(id)))
    }

    /// Answers `ListWatchers` with the watches of these resources.
    pub(super) fn list(
        &self,
        request: &pb::ListWatchersRequest,
        resources: &BTreeSet<String>,
    ) -> Result<pb::ListWatchersResponse, ApiError> {
        let after: u64 = match request.page_token.as_str() {
            "" => 0,
            token => token.parse().map_err(|_| ApiError::Invalid {
                reason: "PAGE_TOKEN_INVALID",
                field: "page_token",
                message: "not a token of this server; pass next_page_token unchanged".to_owned(),
            })?,
        };
        let page_size = match request.page_size as usize {
            0 => MAX_WATCHERS,
            size => size.min(MAX_WATCHERS),
        };
        let is_asked_for = |watcher: &Watcher| resources.contains(&*watcher.info.resource.name);
        let mut found: Vec<(u64, Arc<Watcher>)> = {
            let open = self.open.lock();
            let following = open.watchers.range((Bound::Excluded(after), Bound::Unbounded));
            let chosen = following.filter(|(_, watcher)| is_asked_for(watcher));
            chosen.take(page_size + 1).map(|(id, watcher)| (*id, Arc::clone(watcher))).collect()
        };
        let has_more = found.len() > page_size;
        found.truncate(page_size);
        let next_page_token = found.last().filter(|_| has_more).map(|(id, _)| id.to_string()).unwrap_or_default();
        let watchers = found.iter().map(|(id, watcher)| watcher.to_proto(*id)).collect();
        Ok(pb::ListWatchersResponse { watchers, next_page_token })
    }
}

// === impl WatcherEntry ===

impl WatcherEntry {
    /// Returns the caller that opened the watch.
    pub(super) fn caller(&self) -> Caller {
        self.watcher.info.caller
    }

    /// Returns the id of the watch.
    #[cfg(test)]
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Returns true if the rights of the watch have changed, and nobody has taken the change.
    pub(super) fn has_new_access(&self) -> bool {
        // Whoever sees another value takes the change under a lock. Whoever does not is woken after it was set.
        self.watcher.access.is_set.load(Ordering::Relaxed)
    }

    /// Takes the change of the rights of the watch.
    pub(super) fn take_access(&self) -> Option<WatchAccess> {
        self.watcher.access.take()
    }

    /// Counts events that were handed to the transport, up to this version.
    pub(super) fn sent(&self, events: u64, version: Option<&ResourceVersion>) {
        let mut sent = self.watcher.sent.0.lock();
        sent.count += events;
        sent.at = SystemTime::now();
        if let Some(version) = version {
            match &mut sent.version {
                Some(reached) => reached.clone_from(version),
                reached => *reached = Some(version.clone()),
            }
        }
    }

    /// Returns the delay between the start of the drain and the end of this watch, at most `period`. A few watches end at once;
    /// many are spread, so that their clients do not reconnect at the same time.
    pub(super) fn drain_delay(&self, period: Duration) -> Duration {
        let open = self.watchers.open.lock().watchers.len();
        let spread = (DRAIN_STEP * u32::try_from(open).unwrap_or(u32::MAX)).min(period.mul_f64(DRAIN_SHARE));
        // Consecutive ids mostly belong to one client; the prime factor spreads them.
        spread.mul_f64((self.id * 7919 % DRAIN_PLACES) as f64 / DRAIN_PLACES as f64)
    }

    /// Counts events that were lost under DROP.
    pub(super) fn dropped(&self, events: u64) {
        self.watcher.dropped.fetch_add(events, Ordering::Relaxed);
    }

    /// Counts changes that the view suppressed.
    pub(super) fn suppressed(&self, changes: u64) {
        self.watcher.suppressed.fetch_add(changes, Ordering::Relaxed);
    }

    /// Returns the handle by which the transport ends this stream.
    pub(super) fn stream(&self) -> Option<StreamHandle> {
        self.watcher.stream.clone()
    }

    /// Sets the state of the watch.
    pub(super) fn enters(&self, state: pb::WatcherState) {
        self.watcher.progress.lock().state = state;
    }

    /// Sets the cursor that the watch reads; without one it is parked.
    pub(super) fn reads(&self, cursor: Option<&Cursor<WireFrame>>) {
        let mut progress = self.watcher.progress.lock();
        progress.gauge = cursor.map(Cursor::gauge);
        if let Some(cursor) = cursor {
            progress.selection = Arc::clone(cursor.selection());
        }
    }
}

impl Drop for WatcherEntry {
    fn drop(&mut self) {
        if let Some(audited) = &self.watcher.info.audited {
            audited.sends(self.watcher.sent.0.lock().count);
        }
        let mut open = self.watchers.open.lock();
        open.watchers.remove(&self.id);
        open.coalescing.remove(&self.id);
    }
}

// === impl NewAccess ===

impl NewAccess {
    fn new(namespaces: Option<Namespaces>) -> Self {
        let state = AccessState { namespaces, change: None, is_ended: false };
        Self { is_set: AtomicBool::new(false), state: Mutex::new(state) }
    }

    fn set(&self, access: WatchAccess) -> bool {
        let mut state = self.state.lock();
        match &access {
            _ if state.is_ended => return false,
            WatchAccess::Ended(_) => state.is_ended = true,
            WatchAccess::Namespaces(namespaces) if *namespaces == state.namespaces => return false,
            WatchAccess::Namespaces(namespaces) => state.namespaces.clone_from(namespaces),
        }
        state.change = Some(access);
        self.is_set.store(true, Ordering::Relaxed);
        true
    }

    fn take(&self) -> Option<WatchAccess> {
        let mut state = self.state.lock();
        self.is_set.store(false, Ordering::Relaxed);
        state.change.take()
    }
}

// === impl Watcher ===

impl Watcher {
    /// Returns the changes that are merged for this watch; an empty holder once after they were sent; none otherwise.
    fn merging(&self, before: Age, now: Age) -> Option<Holder> {
        let gauge = self.progress.lock().gauge.clone();
        let state = gauge.as_ref().and_then(CursorGauge::state);
        let mut progress = self.progress.lock();
        let holder = |since, own, bodies| Holder { stream: self.stream.clone(), since, own, bodies };
        if let Some(CursorState::Coalescing { entries, bodies }) = state {
            progress.is_merging = true;
            return Some(holder(progress.not_merging_at.unwrap_or(before), entries, bodies as u64));
        }
        progress.not_merging_at = Some(now);
        std::mem::take(&mut progress.is_merging).then(|| holder(now, 0, 0))
    }

    /// Returns the state for operators: while the watch is live, it depends on the cursor.
    fn state(state: pb::WatcherState, gauge: Option<&CursorGauge<WireFrame>>) -> pb::WatcherState {
        match gauge.filter(|_| state == pb::WatcherState::Live).and_then(CursorGauge::state) {
            Some(CursorState::Frozen) => pb::WatcherState::Frozen,
            Some(CursorState::Blocking) => pb::WatcherState::Blocking,
            Some(CursorState::Coalescing { .. }) => pb::WatcherState::Coalescing,
            Some(CursorState::Following) | None => state,
        }
    }

    fn to_proto(&self, id: u64) -> pb::Watcher {
        let WatcherInfo { resource, caller, identity, queue, view, .. } = &self.info;
        let (selection, state, gauge) = {
            let Progress { selection, state, gauge, .. } = &*self.progress.lock();
            (Arc::clone(selection), *state, gauge.clone())
        };
        let (count, at, version) = {
            let SentEvents { count, at, version } = &*self.sent.0.lock();
            (*count, *at, version.clone())
        };
        let lag = gauge.as_ref().and_then(CursorGauge::lag);
        pb::Watcher {
            id,
            resource: resource.name.clone(),
            peer: caller.peer.map(|peer| peer.to_string()).unwrap_or_default(),
            identity: identity.as_ref().map(Identity::to_string).unwrap_or_default(),
            selection: selection.described(resource.is_secret),
            policy: proto::full_channel_policy_name(queue.policy).into(),
            queue_length: u32::try_from(queue.length).unwrap_or(u32::MAX),
            queued: lag.map_or(0, |lag| u32::try_from(lag).unwrap_or(u32::MAX)),
            sent: count,
            dropped: self.dropped.load(Ordering::Relaxed),
            resource_version: version.map(|version| version.to_string()).unwrap_or_default(),
            since: Some(proto::timestamp(self.since)),
            last_progress: Some(proto::timestamp(at)),
            parked: gauge.is_none(),
            state: Self::state(state, gauge.as_ref()).into(),
            bytes_held: self.stream.as_ref().map_or(0, StreamHandle::bytes_held) as u64,
            suppressed: self.suppressed.load(Ordering::Relaxed),
            view: view.clone(),
        }
    }
}
