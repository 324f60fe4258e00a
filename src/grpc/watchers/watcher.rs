//! One open watch: its own record of what it was sent, and its state for operators.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use parking_lot::Mutex;
use tracing::Span;

use crate::{
    auth::Identity,
    grpc::{
        audited_call::AuditedCall,
        call::{Caller, Subscription},
        frame::WireFrame,
        grant::Grant,
        held_snapshots::{Age, Holder, StreamCharge},
        resource::ServedResource,
        status::ApiError,
        watch_end::WatchEnd,
    },
    model::{Namespaces, ResourceVersion, Selection},
    proto::{self, PayloadFormat, pb},
    transport::StreamHandle,
    watch::{CursorGauge, CursorState, QueueOptions, Waiting},
};

/// Properties of a watch that do not change while it is open.
#[derive(Debug)]
pub(in crate::grpc) struct WatcherInfo {
    pub(in crate::grpc) resource: Arc<ServedResource>,
    pub(in crate::grpc) caller: Caller,
    pub(in crate::grpc) identity: Option<Identity>,
    /// Rights that were checked when it was opened; none where nobody is authorized.
    pub(in crate::grpc) grant: Option<Arc<Grant>>,
    pub(in crate::grpc) queue: QueueOptions,
    pub(in crate::grpc) format: PayloadFormat,
    /// View as the client requested it.
    pub(in crate::grpc) view: Option<Box<pb::View>>,
    /// Client program.
    pub(in crate::grpc) user_agent: Arc<str>,
    pub(in crate::grpc) audited: Option<AuditedCall>,
    /// Its place on a Subscribe stream; none of a stream of its own.
    pub(in crate::grpc) subscription: Option<Subscription>,
}

/// Change of the rights of an open watch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::grpc) enum WatchAccess {
    /// The caller may read these namespaces now, or all.
    Namespaces(Option<Namespaces>),
    /// The watch ends.
    Ended(ApiError),
}

/// Change of the rights of a watch, until its body acts on it: before it takes another event.
#[derive(Debug)]
pub(super) struct NewAccess {
    is_set: AtomicBool,
    state: Mutex<AccessState>,
}

#[derive(Debug)]
struct AccessState {
    /// Newest namespaces.
    namespaces: Option<Namespaces>,
    change: Option<Box<WatchAccess>>,
    /// True if the watch ends: no later change revokes that.
    is_ended: bool,
}

/// Open watch.
#[derive(Debug)]
pub(super) struct Watcher {
    pub(super) info: WatcherInfo,
    pub(super) access: NewAccess,
    pub(super) stream: Option<StreamHandle>,
    since: SystemTime,
    pub(super) sent: Sent,
    pub(super) dropped: AtomicU64,
    pub(super) suppressed: AtomicU64,
    pub(super) progress: Mutex<Progress>,
    /// Reason for which the server ends it.
    pub(super) end: Mutex<Option<Box<WatchEnd>>>,
    /// Span of its stream.
    pub(super) span: Span,
}

/// Everything that a delivery changes, in one cache line: an event for a thousand watches misses it a thousand times.
#[derive(Debug)]
#[repr(align(64))]
pub(super) struct Sent(pub(super) Mutex<SentEvents>);

#[derive(Debug)]
pub(super) struct SentEvents {
    count: u64,
    pub(super) bytes: u64,
    /// Time of the last progress, in nanoseconds since 1970: half the size of a `SystemTime`.
    at: u64,
    version: Option<ResourceVersion>,
}

const _: () = assert!(size_of::<Sent>() == 64);

#[derive(Debug)]
pub(super) struct Progress {
    pub(super) selection: Arc<Selection>,
    pub(super) state: pb::WatcherState,
    /// Charge of the changes that the last check found merged for this watch.
    merged: Option<Arc<StreamCharge>>,
    /// Age of the resource at the last check that found no merged changes.
    not_merging_at: Option<Age>,
    /// Gauge of the cursor; a parked watch has none.
    pub(super) gauge: Option<CursorGauge<WireFrame>>,
    /// The watch whose body this one shares.
    pub(super) shares: Option<Box<Shares>>,
}

/// Watch of a Subscribe stream that sends the same to another one, and what it had sent before.
#[derive(Debug)]
pub(super) struct Shares {
    pub(super) body_of: Arc<Watcher>,
    before: Counts,
}

/// Numbers of what a watch was sent.
#[derive(Debug, Clone, Default)]
pub(super) struct Counts {
    pub(super) events: u64,
    pub(super) bytes: u64,
    pub(super) dropped: u64,
    pub(super) suppressed: u64,
    /// Time of the last progress, in nanoseconds since 1970.
    at: u64,
    version: Option<ResourceVersion>,
}

// === impl NewAccess ===

impl NewAccess {
    fn new(namespaces: Option<Namespaces>) -> Self {
        let state = AccessState { namespaces, change: None, is_ended: false };
        Self { is_set: AtomicBool::new(false), state: Mutex::new(state) }
    }

    /// Returns the newest namespaces.
    pub(super) fn namespaces(&self) -> Option<Namespaces> {
        self.state.lock().namespaces.clone()
    }

    /// Returns true if there is a change that nobody has taken.
    pub(super) fn is_set(&self) -> bool {
        // Whoever sees another value takes the change under a lock. Whoever does not is woken after it was set.
        self.is_set.load(Ordering::Relaxed)
    }

    pub(super) fn set(&self, access: WatchAccess) -> bool {
        let mut state = self.state.lock();
        match &access {
            _ if state.is_ended => return false,
            WatchAccess::Ended(_) => state.is_ended = true,
            WatchAccess::Namespaces(namespaces) if *namespaces == state.namespaces => return false,
            WatchAccess::Namespaces(namespaces) => state.namespaces.clone_from(namespaces),
        }
        state.change = Some(Box::new(access));
        self.is_set.store(true, Ordering::Relaxed);
        true
    }

    pub(super) fn take(&self) -> Option<WatchAccess> {
        let mut state = self.state.lock();
        self.is_set.store(false, Ordering::Relaxed);
        state.change.take().map(|change| *change)
    }
}

// === impl Watcher ===

impl Watcher {
    pub(super) fn new(info: WatcherInfo, selection: Arc<Selection>, stream: Option<StreamHandle>) -> Self {
        let state = pb::WatcherState::Unspecified;
        Self {
            info,
            access: NewAccess::new(selection.namespaces.clone()),
            stream,
            since: SystemTime::now(),
            sent: Sent(Mutex::new(SentEvents { count: 0, bytes: 0, at: now(), version: None })),
            dropped: AtomicU64::new(0),
            suppressed: AtomicU64::new(0),
            progress: Mutex::new(Progress {
                selection,
                state,
                merged: None,
                not_merging_at: None,
                gauge: None,
                shares: None,
            }),
            end: Mutex::new(None),
            span: Span::current(),
        }
    }

    /// Returns the watch whose body this one shares.
    fn body_of(&self) -> Option<Arc<Self>> {
        self.progress.lock().shares.as_ref().map(|shares| Arc::clone(&shares.body_of))
    }

    /// Returns what the watch was sent, also while it shared the body of another.
    pub(super) fn counts(&self) -> Counts {
        // Held while the numbers are read: they do not decrease when the watch shares no longer.
        let progress = self.progress.lock();
        let own = self.own_counts();
        let Some(Shares { body_of, before }) = progress.shares.as_deref() else { return own };
        let shared = body_of.own_counts();
        Counts {
            events: own.events + shared.events - before.events,
            bytes: own.bytes + shared.bytes - before.bytes,
            dropped: own.dropped + shared.dropped - before.dropped,
            suppressed: own.suppressed + shared.suppressed - before.suppressed,
            at: shared.at,
            version: shared.version,
        }
    }

    fn own_counts(&self) -> Counts {
        let (events, bytes, at, version) = {
            let SentEvents { count, bytes, at, version } = &*self.sent.0.lock();
            (*count, *bytes, *at, version.clone())
        };
        let (dropped, suppressed) = (self.dropped.load(Ordering::Relaxed), self.suppressed.load(Ordering::Relaxed));
        Counts { events, bytes, dropped, suppressed, at, version }
    }

    /// Shares the body of another watch from now on.
    pub(super) fn share(&self, body_of: &Arc<Self>) {
        let (before, selection) = (body_of.own_counts(), Arc::clone(&body_of.progress.lock().selection));
        let mut progress = self.progress.lock();
        // The same: its own would take memory for each watch.
        progress.selection = selection;
        progress.shares = Some(Box::new(Shares { body_of: Arc::clone(body_of), before }));
        progress.gauge = None;
    }

    /// Shares no body any more, and counts what it was sent meanwhile as its own.
    pub(super) fn unshare(&self) {
        let Counts { events, bytes, dropped, suppressed, at, version } = self.counts();
        let mut progress = self.progress.lock();
        if progress.shares.take().is_none() {
            return;
        }
        let mut sent = self.sent.0.lock();
        if let Some(audited) = &self.info.audited {
            audited.sends_bytes((bytes - sent.bytes) as usize);
        }
        *sent = SentEvents { count: events, bytes, at, version };
        self.dropped.store(dropped, Ordering::Relaxed);
        self.suppressed.store(suppressed, Ordering::Relaxed);
    }

    /// Returns true if the watch holds only a version.
    pub(super) fn is_parked(&self) -> bool {
        self.body_of().map_or_else(|| self.progress.lock().gauge.is_none(), |other| other.is_parked())
    }

    /// Returns the age of the oldest event that waits for the watch; zero if there is none.
    pub(super) fn lag(&self) -> Duration {
        if let Some(other) = self.body_of() {
            return other.lag();
        }
        let gauge = self.progress.lock().gauge.clone();
        let since = match gauge.as_ref().and_then(CursorGauge::waiting) {
            Some(Waiting::Nothing) => None,
            Some(Waiting::Since(at)) => Some(at),
            Some(Waiting::After(Some(version))) => self.info.resource.informer.waiting_since(&version),
            Some(Waiting::After(None)) | None => {
                let version = self.sent.0.lock().version.clone();
                version.and_then(|version| self.info.resource.informer.waiting_since(&version))
            }
        };
        since.map_or(Duration::ZERO, |at| at.elapsed())
    }

    /// Returns the changes that are merged for this watch; an empty holder once after they were sent; none otherwise.
    pub(super) fn merging(&self, before: Age, now: Age) -> Option<Holder> {
        let gauge = self.progress.lock().gauge.clone();
        let state = gauge.as_ref().and_then(CursorGauge::state);
        let mut progress = self.progress.lock();
        if let Some(CursorState::Coalescing { entries, bodies }) = state {
            let since = progress.not_merging_at.unwrap_or(before);
            let charge = progress.merged.get_or_insert_with(|| Arc::new(StreamCharge::new(self.stream.clone())));
            return Some(Holder { charge: Arc::clone(charge), since, own: entries, bodies: bodies as u64 });
        }
        progress.not_merging_at = Some(now);
        progress.merged.take().map(|charge| Holder { charge, since: now, own: 0, bodies: 0 })
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

    pub(super) fn to_proto(&self, id: u64) -> pb::Watcher {
        let WatcherInfo { resource, caller, identity, queue, format, view, user_agent, subscription, .. } = &self.info;
        let place = subscription.map(|Subscription { stream_id, watch_id, .. }| (stream_id, watch_id));
        let (stream_id, watch_id) = place.unwrap_or_default();
        let other = self.body_of();
        let (selection, state, gauge) = {
            let Progress { selection, state, gauge, .. } = &*other.as_deref().unwrap_or(self).progress.lock();
            (Arc::clone(selection), *state, gauge.clone())
        };
        let Counts { events, bytes, dropped, suppressed, at, version } = self.counts();
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
            sent: events,
            dropped,
            resource_version: version.map(|version| version.to_string()).unwrap_or_default(),
            since: Some(proto::timestamp(self.since)),
            last_progress: Some(proto::timestamp(UNIX_EPOCH + Duration::from_nanos(at))),
            parked: gauge.is_none(),
            state: Self::state(state, gauge.as_ref()).into(),
            bytes_held: self.stream.as_ref().map_or(0, StreamHandle::bytes_held) as u64,
            suppressed,
            lag: prost_types::Duration::try_from(self.lag()).ok(),
            bytes_sent: bytes,
            format: proto::payload_format(*format).into(),
            view: view.as_deref().cloned(),
            user_agent: user_agent.to_string(),
            stream_id,
            watch_id,
            ended_at: None,
            end_status: None,
        }
    }
}

// === impl SentEvents ===

impl SentEvents {
    /// Counts events that were handed to the transport, up to this version.
    pub(super) fn add(&mut self, events: u64, bytes: usize, version: Option<&ResourceVersion>) {
        self.count += events;
        self.bytes += bytes as u64;
        self.at = now();
        if let Some(version) = version {
            match &mut self.version {
                Some(reached) => reached.clone_from(version),
                reached => *reached = Some(version.clone()),
            }
        }
    }
}

/// Returns the present time, in nanoseconds since 1970.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
