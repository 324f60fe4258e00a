//! One open watch: what it is, its rights, and how much of what a body hands out it was sent.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use parking_lot::Mutex;
use tracing::Span;

use super::record::{BodyRecord, Counts, now, time_of};
use crate::{
    auth::Identity,
    grpc::{
        audited_call::AuditedCall,
        call::Caller,
        grant::Grant,
        held_snapshots::{Age, Holder},
        resource::ServedResource,
        status::ApiError,
        watch_end::WatchEnd,
    },
    model::{Namespaces, Selection},
    proto::{self, PayloadFormat, pb},
    transport::StreamHandle,
    watch::QueueOptions,
};

/// Properties that most watches of a client have in common, and share.
#[derive(Debug)]
pub(in crate::grpc) struct WatcherInfo {
    pub(in crate::grpc) resource: Arc<ServedResource>,
    pub(in crate::grpc) caller: Caller,
    pub(in crate::grpc) identity: Option<Identity>,
    pub(in crate::grpc) queue: QueueOptions,
    pub(in crate::grpc) format: PayloadFormat,
    /// View as the client requested it.
    pub(in crate::grpc) view: Option<Box<pb::View>>,
    /// Client program.
    pub(in crate::grpc) user_agent: Arc<str>,
    /// Number of its Subscribe stream; 0 of a watch with a stream of its own.
    pub(in crate::grpc) stream_id: u64,
}

/// Properties of one watch alone.
#[derive(Debug)]
pub(in crate::grpc) struct OwnInfo {
    /// Rights that were checked when it was opened; none where nobody is authorized.
    pub(in crate::grpc) grant: Option<Arc<Grant>>,
    pub(in crate::grpc) audited: Option<AuditedCall>,
    /// Handle of its stream, if its connection polls it.
    pub(in crate::grpc) stream: Option<StreamHandle>,
    /// Id that its client has chosen; 0 of a watch with a stream of its own.
    pub(in crate::grpc) watch_id: u32,
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

/// Open watch. Its size counts: an idle one that is attached has little else.
#[derive(Debug)]
pub(super) struct Watcher {
    pub(super) info: Arc<WatcherInfo>,
    pub(super) own: OwnInfo,
    pub(super) access: NewAccess,
    /// Time at which it was opened, in nanoseconds since 1970.
    since: u64,
    reading: Mutex<Reading>,
    /// Reason for which the server ends it.
    pub(super) end: Mutex<Option<Box<WatchEnd>>>,
    /// Number of watches that had ended with it; 0 while it is open.
    ends: AtomicU64,
    /// Span in which it was opened, if that is enabled.
    pub(super) span: Option<Box<Span>>,
}

/// Body that a watch receives from, its own or another one's, and what it was sent besides.
#[derive(Debug)]
struct Reading {
    record: Arc<BodyRecord>,
    /// Difference between what the watch was sent and what its body has sent, modulo 2^64; 0 of a watch with a body of its own.
    offset: Counts,
    /// Bytes that it was sent before it was attached to a lane.
    bytes_before: Option<u64>,
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

// === impl WatcherInfo ===

impl WatcherInfo {
    /// Returns true if these are the same properties.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let Self { resource, caller, identity, queue, format, view, user_agent, stream_id } = self;
        *stream_id == other.stream_id
            && Arc::ptr_eq(resource, &other.resource)
            && *caller == other.caller
            && *queue == other.queue
            && *format == other.format
            && *identity == other.identity
            && *user_agent == other.user_agent
            && *view == other.view
    }
}

// === impl Watcher ===

impl Watcher {
    pub(super) fn new(info: Arc<WatcherInfo>, own: OwnInfo, selection: Arc<Selection>) -> Self {
        let access = NewAccess::new(selection.namespaces.clone());
        let record = Arc::new(BodyRecord::new(selection, Counts::default()));
        let reading = Reading { record, offset: Counts::default(), bytes_before: None };
        let span = Some(Span::current()).filter(|span| !span.is_none()).map(Box::new);
        let (reading, end, ends) = (Mutex::new(reading), Mutex::new(None), AtomicU64::new(0));
        Self { info, own, access, since: now(), reading, end, ends, span }
    }

    /// Records that the watch has ended, as the last one of so many.
    pub(super) fn has_ended(&self, ends: u64) {
        self.ends.store(ends, Ordering::Release);
    }

    /// Returns true if the watch was one of the first `ends` that have ended.
    pub(super) fn has_ended_by(&self, ends: u64) -> bool {
        (1..=ends).contains(&self.ends.load(Ordering::Acquire))
    }

    /// Returns the record of the body that the watch reads.
    pub(super) fn record(&self) -> Arc<BodyRecord> {
        Arc::clone(&self.reading.lock().record)
    }

    /// Returns what the watch was sent, also while it was attached to a lane.
    pub(super) fn counts(&self) -> Counts {
        self.reading.lock().counts()
    }

    /// Is attached to a lane from now on.
    pub(super) fn share(&self, record: Arc<BodyRecord>) {
        let mut reading = self.reading.lock();
        let counts = reading.counts();
        self.audit(&mut reading, counts);
        let offset = counts.minus(record.counts());
        *reading = Reading { record, offset, bytes_before: Some(counts.bytes) };
    }

    /// Has a body of its own from now on, and returns its record. Without a shared one, that is the same as before.
    pub(super) fn unshare(&self) -> Arc<BodyRecord> {
        let mut reading = self.reading.lock();
        if reading.bytes_before.is_some() {
            let counts = reading.counts();
            self.audit(&mut reading, counts);
            let record = Arc::new(reading.record.split(counts));
            *reading = Reading { record, offset: Counts::default(), bytes_before: None };
        }
        Arc::clone(&reading.record)
    }

    /// Adds to the audit log what the watch was sent of another one's body: the bytes of its own are counted as they are sent.
    fn audit(&self, reading: &mut Reading, counts: Counts) {
        if let (Some(before), Some(audited)) = (reading.bytes_before.take(), &self.own.audited) {
            audited.sends_bytes((counts.bytes - before) as usize);
        }
    }

    /// Returns the changes that are merged for this watch: none if it is attached.
    pub(super) fn merging(&self, before: Age, now: Age) -> Option<Holder> {
        let record = {
            let reading = self.reading.lock();
            reading.bytes_before.is_none().then(|| Arc::clone(&reading.record))
        };
        record?.merging(self.own.stream.as_ref(), before, now)
    }

    pub(super) fn to_proto(&self, id: u64) -> pb::Watcher {
        let WatcherInfo { resource, caller, identity, queue, format, view, user_agent, stream_id } = &*self.info;
        let OwnInfo { stream, watch_id, .. } = &self.own;
        // Both at one time: the numbers do not decrease when the watch shares no longer.
        let (record, Counts { events, bytes, dropped, suppressed }) = {
            let reading = self.reading.lock();
            (Arc::clone(&reading.record), reading.counts())
        };
        let (state, queued) = record.state();
        let (progress, version) = record.reached();
        pb::Watcher {
            id,
            resource: resource.name.clone(),
            peer: caller.peer.map(|peer| peer.to_string()).unwrap_or_default(),
            identity: identity.as_ref().map(Identity::to_string).unwrap_or_default(),
            selection: record.selection().described(resource.is_secret),
            policy: proto::full_channel_policy_name(queue.policy).into(),
            queue_length: u32::try_from(queue.length).unwrap_or(u32::MAX),
            queued: queued.map_or(0, |queued| u32::try_from(queued).unwrap_or(u32::MAX)),
            sent: events,
            dropped: dropped + record.unreported_losses(),
            resource_version: version.map(|version| version.to_string()).unwrap_or_default(),
            since: Some(proto::timestamp(time_of(self.since))),
            last_progress: Some(proto::timestamp(progress)),
            parked: queued.is_none(),
            state: state.into(),
            bytes_held: stream.as_ref().map_or(0, StreamHandle::bytes_held) as u64,
            suppressed,
            lag: proto::duration_message(record.lag(resource)),
            bytes_sent: bytes,
            format: proto::payload_format(*format).into(),
            view: view.as_deref().cloned(),
            user_agent: user_agent.to_string(),
            stream_id: *stream_id,
            watch_id: *watch_id,
            ended_at: None,
            end_status: None,
        }
    }
}

// === impl Reading ===

impl Reading {
    fn counts(&self) -> Counts {
        self.record.counts().plus(self.offset)
    }
}
