//! Registry of the open watches: it limits their number, and lists them for operators.
//!
//! Each watch updates its own entry; `ListWatchers` reads them. The lag of a watch is read from its cursor or reader at the time of the
//! request: the body of a client that has stopped reading is not polled, and could not update it.

mod disconnect;
mod ended;
mod record;
mod watcher;

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::Mutex;
use prost::Message;
use tracing::Span;

pub(super) use self::{
    disconnect::disconnect,
    record::BodyRecord,
    watcher::{OwnInfo, WatchAccess, WatcherInfo},
};
use self::{
    ended::EndedWatches,
    record::{Counts, Gauge},
    watcher::Watcher,
};
use super::{
    audited_call::AuditedCall,
    call::Caller,
    exceeded_limit::{ExceededLimit, Limited},
    frame::WireFrame,
    grant::Grant,
    held_snapshots::{Age, Holder},
    resource::ServedResource,
    status::ApiError,
    watch_end::{Totals, WatchEnd},
};
use crate::{
    log_throttle::LogThrottle,
    model::{MAX_MESSAGE_BYTES, Namespaces, ResourceVersion, Selection},
    proto::{self, pb},
    transport::{Permit, Quota, StreamHandle},
    watch::{
        Cursor,
        FullChannelPolicy::{Block, Coalesce},
        PastGauge,
    },
};

/// Registry of the open watches.
#[derive(Debug)]
pub(super) struct Watchers {
    quota: Arc<Quota>,
    open: Mutex<Open>,
}

/// Load of the watches of one resource.
#[derive(Debug, Clone, Copy, Default)]
pub struct WatchLoad {
    /// Open watches.
    pub watchers: u64,
    /// Sums over these, and over all that have ended.
    pub sent: Totals,
    /// Watches that hold only a version now.
    pub parked: u64,
    /// Age of the oldest event that waits for one of them.
    pub max_lag: Duration,
}

#[derive(Debug, Default)]
struct Open {
    last_id: u64,
    watchers: OpenById,
    /// The open watches under COALESCE, by id.
    coalescing: OpenById,
    /// Number of watches that have ended.
    ends: u64,
    ended: EndedWatches,
}

type OpenById = BTreeMap<u64, Arc<Watcher>>;

/// Entry of one open watch; dropping it removes the watch.
#[derive(Debug)]
pub(super) struct WatcherEntry {
    id: u64,
    watcher: Arc<Watcher>,
    /// Record of the body that it reads.
    record: Arc<BodyRecord>,
    watchers: Arc<Watchers>,
    _permit: Permit,
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

/// Time between the ends of two watches when the server drains: a thousand a second, if the period allows it.
const DRAIN_STEP: Duration = Duration::from_millis(1);
/// Share of the drain period over which watches end; the remainder is for the data that they still have to send.
const DRAIN_SHARE: f64 = 0.8;
/// Number of slots into which the spread is divided.
const DRAIN_PLACES: u64 = 10_007;

/// Newest watches with which a new one is compared, to share with them what is alike.
const MAX_COMPARED: usize = 16;
/// Watches that are read under one acquisition of the lock, for which those that begin and end wait.
const WATCHES_PER_LOCK: usize = 256;
/// Maximum and default number of watches in one response.
const MAX_WATCHERS: usize = 10_000;
/// Most bytes of the watches of a page: what a client receives by default is larger, and each watch has a few bytes more.
const MAX_PAGE_BYTES: usize = MAX_MESSAGE_BYTES / 4 * 3;

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
        own: OwnInfo,
        selection: Arc<Selection>,
    ) -> Result<WatcherEntry, ApiError> {
        let permit = self.quota.take(info.caller.origin());
        let permit = permit.map_err(|exceeded| ExceededLimit::new(Limited::Watchers, exceeded))?;
        let mut open = self.open.lock();
        let last = open.watchers.values().rev().take(MAX_COMPARED);
        let alike = last.map(|other| &other.info).find(|other| other.is_like(&info)).cloned();
        let watcher = Arc::new(Watcher::new(alike.unwrap_or_else(|| Arc::new(info)), own, selection));
        open.last_id += 1;
        let id = open.last_id;
        if watcher.info.queue.policy == Coalesce {
            open.coalescing.insert(id, Arc::clone(&watcher));
        }
        open.watchers.insert(id, Arc::clone(&watcher));
        let record = watcher.record();
        Ok(WatcherEntry { id, watcher, record, watchers: Arc::clone(self), _permit: permit })
    }

    /// Changes the rights of an open watch. Returns true if they are other ones than before: the caller then wakes the watches of
    /// the resource ([`InformerHandle::notify_watches`](crate::cache::InformerHandle::notify_watches)).
    pub(super) fn set_access(&self, id: u64, access: WatchAccess) -> bool {
        let watcher = self.open.lock().watchers.get(&id).cloned();
        watcher.is_some_and(|watcher| watcher.access.set(access))
    }

    /// Returns the open watches with larger ids, in slices: each watch that is open all the time, and any of the others.
    fn each(&self, of: fn(&Open) -> &OpenById, after: u64) -> impl Iterator<Item = (u64, Arc<Watcher>)> {
        let mut after = Some(after);
        let slices = std::iter::from_fn(move || {
            let from = (Bound::Excluded(after?), Bound::Unbounded);
            let open = self.open.lock();
            let slice = of(&open).range(from).take(WATCHES_PER_LOCK).map(|(id, watcher)| (*id, Arc::clone(watcher)));
            let slice: Vec<(u64, Arc<Watcher>)> = slice.collect();
            after = slice.last().map(|(id, _)| *id);
            Some(slice)
        });
        slices.flatten()
    }

    /// Returns the open watches whose rights were checked, to check them again.
    pub(super) fn granted(&self) -> Vec<GrantedWatch> {
        let granted = |(id, watcher): (u64, Arc<Watcher>)| {
            let grant = Arc::clone(watcher.own.grant.as_ref()?);
            let namespaces = watcher.access.namespaces();
            Some(GrantedWatch { id, resource: Arc::clone(&watcher.info.resource), grant, namespaces })
        };
        self.each(|open| &open.watchers, 0).filter_map(granted).collect()
    }

    /// Resets the streams of clients that were evicted under BLOCK and have not received the reason: a client that reads nothing
    /// keeps its flow-control window shut. Checks at each `grace`; never returns.
    pub(super) async fn reset_evicted(&self, grace: Duration) {
        let (mut seen_evicted, log) = (BTreeSet::new(), LogThrottle::new());
        loop {
            tokio::time::sleep(grace).await;
            // On a Subscribe stream, others share the window; the end of a paused watch is sent.
            let is_resettable = |info: &WatcherInfo| info.queue.policy == Block && info.stream_id == 0;
            let mut found = BTreeSet::new();
            for (id, watcher) in self.each(|open| &open.watchers, 0) {
                if !is_resettable(&watcher.info) {
                    continue;
                }
                let gauge = watcher.record().gauge();
                if !gauge.is_some_and(|gauge| gauge.is_evicted()) {
                    continue;
                }
                match &watcher.own.stream {
                    Some(stream) if seen_evicted.contains(&id) => {
                        let WatcherInfo { resource, caller, .. } = &*watcher.info;
                        if let Some(ends) = log.poll() {
                            let (resource, peer) = (&resource.name, caller.peer);
                            tracing::info!(resource, ?peer, reason = "SLOW_CONSUMER", ends, "stream reset");
                        }
                        watcher.end.lock().get_or_insert_with(|| Box::new(WatchEnd::evicted()));
                        stream.reset();
                    }
                    _ => {
                        found.insert(id);
                    }
                }
            }
            seen_evicted = found;
        }
    }

    /// Returns the watches that have merged changes, or had some at the previous call, by the ids of their resources. `ages` has of
    /// each resource the age at the previous call, and that of now.
    pub(super) fn merging(&self, ages: &BTreeMap<u64, (Age, Age)>) -> BTreeMap<u64, Vec<Holder>> {
        let mut merging: BTreeMap<u64, Vec<Holder>> = BTreeMap::new();
        for (_, watcher) in self.each(|open| &open.coalescing, 0) {
            let id = watcher.info.resource.calls.id();
            if let Some((before, now)) = ages.get(&id)
                && let Some(holder) = watcher.merging(*before, *now)
            {
                merging.entry(id).or_default().push(holder);
            }
        }
        merging
    }

    /// Returns an open watch: its resource, its selection, and what operators see of it.
    pub(super) fn find(&self, id: u64) -> Option<(Arc<ServedResource>, Arc<Selection>, pb::Watcher)> {
        let watcher = self.open.lock().watchers.get(&id).cloned()?;
        let selection = watcher.record().selection();
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
        let following = self.each(|open| &open.watchers, after);
        let chosen = following.filter(|(_, watcher)| resources.contains(&*watcher.info.resource.name));
        let found: Vec<(u64, Arc<Watcher>)> = chosen.take(page_size + 1).collect();
        let mut watchers = Vec::new();
        if request.include_ended {
            let is_requested = |watcher: &pb::Watcher| resources.contains(&watcher.resource);
            watchers = self.open.lock().ended.after(after, is_requested);
        }
        watchers.extend(found.iter().map(|(id, watcher)| watcher.to_proto(*id)));
        watchers.sort_by_key(|watcher| watcher.id);
        // A watch that ended meanwhile is there twice, first as ended.
        watchers.dedup_by_key(|watcher| watcher.id);
        let mut bytes = 0;
        let fits = |watcher: &&pb::Watcher| {
            bytes += watcher.encoded_len();
            bytes <= MAX_PAGE_BYTES
        };
        let count = watchers.iter().take(page_size).take_while(fits).count().max(1);
        let has_more = watchers.len() > count;
        watchers.truncate(count);
        let next_page_token = watchers.last().filter(|_| has_more).map(|last| last.id.to_string()).unwrap_or_default();
        Ok(pb::ListWatchersResponse { watchers, next_page_token })
    }

    /// Returns the number of the open watches of a resource, of all if it is empty, and those that are furthest behind.
    pub(super) fn furthest_behind(&self, resource: &str, most: usize) -> (usize, Vec<pb::Watcher>) {
        let open = self.each(|open| &open.watchers, 0);
        let chosen = open.filter(|(_, watcher)| resource.is_empty() || watcher.info.resource.name == resource);
        let mut by_lag: Vec<(Reverse<Duration>, u64, Arc<Watcher>)> =
            chosen.map(|(id, watcher)| (Reverse(watcher.record().lag(&watcher.info.resource)), id, watcher)).collect();
        by_lag.sort_unstable_by_key(|(lag, id, _)| (*lag, *id));
        let behind = by_lag.iter().take(most).map(|(_, id, watcher)| watcher.to_proto(*id)).collect();
        (by_lag.len(), behind)
    }

    /// Returns the last watches of a resource that have ended, of all if it is empty.
    pub(super) fn ended(&self, resource: &str) -> Vec<pb::Watcher> {
        self.open.lock().ended.after(0, |watch| resource.is_empty() || watch.resource == resource)
    }

    /// Returns the load of the open watches and of those that have ended, by the id of their resource: of these resources, and of
    /// any others that have open watches.
    pub(super) fn loads<'a>(&self, resources: impl Iterator<Item = &'a ServedResource>) -> BTreeMap<u64, WatchLoad> {
        let mut loads: BTreeMap<u64, WatchLoad> = BTreeMap::new();
        let open: Vec<(u64, Arc<Watcher>)> = self.each(|open| &open.watchers, 0).collect();
        let resources: Vec<&ServedResource> = resources.collect();
        let ends = {
            let open = self.open.lock();
            for resource in resources {
                let load = loads.entry(resource.calls.id()).or_default();
                load.sent = resource.calls.watches().get();
            }
            open.ends
        };
        // Each watch counts once, among the ended ones or here, so that no sum decreases.
        for (_, watcher) in open.iter().filter(|(_, watcher)| !watcher.has_ended_by(ends)) {
            let load = loads.entry(watcher.info.resource.calls.id()).or_default();
            let Counts { events, bytes, suppressed, .. } = watcher.counts();
            load.watchers += 1;
            load.sent.events += events;
            load.sent.bytes += bytes;
            load.sent.suppressed += suppressed;
            let record = watcher.record();
            load.parked += u64::from(record.gauge().is_none());
            load.max_lag = load.max_lag.max(record.lag(&watcher.info.resource));
        }
        loads
    }
}

// === impl WatcherEntry ===

impl WatcherEntry {
    /// Returns the caller that opened the watch.
    pub(super) fn caller(&self) -> Caller {
        self.watcher.info.caller
    }

    /// Returns the id of the watch.
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Returns true if the rights of the watch have changed, and nobody has taken the change.
    pub(super) fn has_new_access(&self) -> bool {
        self.watcher.access.is_set()
    }

    /// Takes the change of the rights of the watch.
    pub(super) fn take_access(&self) -> Option<WatchAccess> {
        self.watcher.access.take()
    }

    /// Counts events that were handed to the transport, up to this version.
    pub(super) fn sent(&self, events: u64, bytes: usize, version: Option<&ResourceVersion>) {
        self.record.sent(events, bytes, version);
    }

    /// Counts bytes of bookmarks and errors.
    pub(super) fn sent_bytes(&self, bytes: usize) {
        self.record.sent_bytes(bytes);
    }

    /// Records the reason for which the server ends the watch; the first one counts.
    pub(super) fn ends(&self, end: impl Into<WatchEnd>) {
        let mut ended = self.watcher.end.lock();
        if ended.is_none() {
            *ended = Some(Box::new(end.into()));
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
        self.record.dropped(events);
    }

    /// Counts changes that the view suppressed.
    pub(super) fn suppressed(&self, changes: u64) {
        self.record.suppressed(changes);
    }

    /// Returns the record of a lane that begins with this watch, and reads with `reader`.
    pub(super) fn lane_record(&self, reader: PastGauge) -> Arc<BodyRecord> {
        let length = self.watcher.info.queue.length as u64;
        let mut progress = self.record.progress.lock();
        (progress.gauge, progress.state) = (Some(Gauge::Reader(reader, length)), pb::WatcherState::Live);
        drop(progress);
        Arc::clone(&self.record)
    }

    /// Is sent what a lane of its stream is sent, from now on.
    pub(super) fn share(&mut self, lane: &Arc<BodyRecord>) {
        self.record = Arc::clone(lane);
        self.watcher.share(Arc::clone(lane));
    }

    /// Is sent nothing of a lane any more.
    pub(super) fn unshare(&mut self) {
        self.record = self.watcher.unshare();
    }

    /// Returns its entry in the audit log.
    pub(super) fn audited(&self) -> Option<&AuditedCall> {
        self.watcher.own.audited.as_ref()
    }

    /// Returns the handle by which the transport ends this stream.
    pub(super) fn stream(&self) -> Option<StreamHandle> {
        self.watcher.own.stream.clone()
    }

    /// Sets the state of the watch.
    pub(super) fn enters(&self, state: pb::WatcherState) {
        self.record.progress.lock().state = state;
    }

    /// Sets the cursor that the watch reads; without one it is parked.
    pub(super) fn reads(&self, cursor: Option<&Cursor<WireFrame>>) {
        let mut progress = self.record.progress.lock();
        progress.gauge = cursor.map(|cursor| Gauge::Cursor(cursor.gauge()));
        if let Some(cursor) = cursor {
            progress.selection = Arc::clone(cursor.selection());
        }
    }
}

impl Drop for WatcherEntry {
    fn drop(&mut self) {
        let watcher = &self.watcher;
        watcher.unshare();
        let resource = &watcher.info.resource;
        if let Some(audited) = &watcher.own.audited {
            audited.sends(watcher.counts().events);
        }
        // What neither the watch nor the transport has ended, the client has.
        let by_transport = || watcher.own.stream.as_ref()?.ended().map(WatchEnd::from);
        let end = watcher.end.lock().take().map(|end| *end).or_else(by_transport).unwrap_or_else(WatchEnd::cancelled);
        let reason = end.reason();
        if let Some(span) = &watcher.span {
            span.record("informerd.end_reason", reason);
        }
        let ended = pb::Watcher {
            state: pb::WatcherState::Ended.into(),
            queued: 0,
            parked: false,
            bytes_held: 0,
            lag: None,
            ended_at: Some(proto::timestamp(SystemTime::now())),
            end_status: Some(end.into_status()),
            ..watcher.to_proto(self.id)
        };
        tracing::debug!(
            parent: watcher.span.as_deref().and_then(Span::id),
            resource = resource.name,
            reason,
            events = ended.sent,
            bytes = ended.bytes_sent,
            "watch ended"
        );
        let mut open = self.watchers.open.lock();
        open.watchers.remove(&self.id);
        open.coalescing.remove(&self.id);
        open.ends += 1;
        watcher.has_ended(open.ends);
        resource.calls.watches().add(reason, ended.sent, ended.bytes_sent, ended.suppressed);
        open.ended.push(ended);
    }
}

#[cfg(test)]
mod tests;
