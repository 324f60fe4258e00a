//! Watch of a Subscribe stream that receives from a lane of the stream, in place of a body of its own.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::WatchBody;
use crate::{
    cache::{CacheWatcher, ProgressGuard, SyncState},
    grpc::{
        audited_call::AuditedCall, frame::WireFrame, quotas::QuotaPermit, resource::ServedResource, service::Service,
        watchers::WatcherEntry,
    },
    model::{HistoryPosition, Selection},
    proto::{ObjectFormat, PayloadFormat},
    watch::{Frame, FullChannelPolicy, QueueOptions, Subscribe},
};

/// Parts of an attached watch that are its own.
#[derive(Debug)]
pub(in crate::grpc) struct AttachedWatch {
    pub(in crate::grpc) watcher: WatcherEntry,
    quota: QuotaPermit,
    waiting: Option<ProgressGuard>,
}

/// Properties in which watches are alike that one lane serves.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::grpc) struct LaneKey {
    pub(in crate::grpc) selection: Arc<Selection>,
    pub(in crate::grpc) format: ObjectFormat,
    pub(in crate::grpc) queue: QueueOptions,
    pub(in crate::grpc) bookmark_interval: Duration,
}

/// Place where a watch stands that has nothing to hand out.
#[derive(Debug, Clone)]
pub(in crate::grpc) struct Standing {
    /// Position of the last message to the client.
    pub(in crate::grpc) reached: HistoryPosition,
    /// Offset up to which it has everything.
    pub(in crate::grpc) offset: u64,
    /// Number of its history.
    pub(in crate::grpc) history_id: u64,
    /// State of the source that it reported last, and the number of notifications that it has seen.
    pub(in crate::grpc) reported_state: SyncState,
    pub(in crate::grpc) notify_seq: u64,
}

/// Properties of a lane with which a watch continues by itself.
#[derive(Debug)]
pub(in crate::grpc) struct Detached<'a> {
    pub(in crate::grpc) service: &'a Service,
    pub(in crate::grpc) resource: &'a Arc<ServedResource>,
    pub(in crate::grpc) key: &'a LaneKey,
    pub(in crate::grpc) reached: HistoryPosition,
    /// True if a relist on the way to the position must still be reported.
    pub(in crate::grpc) has_gap: bool,
    pub(in crate::grpc) history_id: u64,
    pub(in crate::grpc) reported_state: SyncState,
    /// Start of the intervals of its bookmarks, and true if one is due.
    pub(in crate::grpc) began: Instant,
    pub(in crate::grpc) is_bookmark_due: bool,
}

// === impl WatchBody ===

impl WatchBody {
    /// Returns true if the watch can be attached at some time: its events are cheap to select and to encode, and its policy never acts.
    pub(in crate::grpc) fn is_attachable(&self) -> bool {
        let Subscribe { selection, format, queue, .. } = self.watch.subscribe();
        let is_cheap = !selection.reads_body() && !WireFrame::is_costly(format);
        is_cheap
            && format.payload != PayloadFormat::Struct
            && queue.policy == FullChannelPolicy::Replay
            && self.ends_at.is_none()
            && self.open_view.is_none()
    }

    /// Returns the place where the watch stands; `None` while it has something to hand out, or ends soon.
    pub(in crate::grpc) fn standing(&self) -> Option<(LaneKey, Standing)> {
        let is_notified = self.resource.informer.notify_seq() != self.notify_seq;
        let is_joining = self.initial.is_some() || self.is_resuming;
        let is_moving = is_joining || self.ready.is_some() || self.status_changed || self.is_changing();
        let is_ending = self.end.is_some() || self.is_over || self.drain_at.is_some();
        if is_moving || is_ending || is_notified || self.bookmarks.is_due() || self.watcher.has_new_access() {
            return None;
        }
        let (reached, offset) = self.watch.standing()?;
        let Subscribe { selection, format, queue, .. } = self.watch.subscribe();
        let (selection, format) = (Arc::clone(selection), format.clone());
        let key = LaneKey { selection, format, queue: *queue, bookmark_interval: self.bookmarks.interval() };
        let (history_id, reported_state, notify_seq) = (self.watch.history_id(), self.reported_state, self.notify_seq);
        Some((key, Standing { reached, offset, history_id, reported_state, notify_seq }))
    }

    /// Returns true if a relist must still be reported.
    #[cfg(test)]
    pub(in crate::grpc) fn has_gap(&self) -> bool {
        self.watch.cursor().is_some_and(crate::watch::Cursor::has_gap)
    }

    /// Gives up the body.
    pub(in crate::grpc) fn attach(self) -> AttachedWatch {
        let Self { watcher, quota, waiting, .. } = self;
        AttachedWatch { watcher, quota, waiting }
    }

    /// Returns the entry of the watch in the audit log.
    pub(in crate::grpc) fn audited(&self) -> Option<&AuditedCall> {
        self.watcher.audited()
    }

    /// Returns the resource.
    pub(in crate::grpc) fn resource(&self) -> &Arc<ServedResource> {
        &self.resource
    }
}

// === impl AttachedWatch ===

impl AttachedWatch {
    /// Returns the entry of the watch in the audit log.
    pub(in crate::grpc) fn audited(&self) -> Option<&AuditedCall> {
        self.watcher.audited()
    }

    /// Returns a body that continues at the position of the lane.
    pub(in crate::grpc) fn detach(self, detached: Detached<'_>) -> WatchBody {
        let Self { mut watcher, quota, waiting } = self;
        let Detached { service, resource, key, reached, has_gap, history_id, reported_state, began, is_bookmark_due } =
            detached;
        let LaneKey { selection, format, queue, bookmark_interval } = key.clone();
        watcher.unshare();
        let namespaces = selection.namespaces.clone();
        let client = watcher.caller().client();
        let subscribe = Subscribe { selection, format, queue, client, initial_events: true };
        let watch = CacheWatcher::resume(resource.informer.clone(), subscribe, reached, has_gap, history_id);
        let body = WatchBody {
            service: service.clone(),
            resource: Arc::clone(resource),
            initial: None,
            watch,
            is_resuming: false,
            namespaces,
            reported_state,
            waiting,
            bookmarks: super::BookmarkTimer::new(bookmark_interval, Some(began), is_bookmark_due),
            bookmark_lines: super::BookmarkLines::default(),
            ends_at: None,
            drained: None,
            notify_seq: resource.informer.notify_seq(),
            status_changed: resource.informer.state() != reported_state,
            drain_at: None,
            ready: None,
            end: None,
            is_over: false,
            watcher,
            quota,
            open_view: None,
        };
        body.enters_stage();
        body
    }
}
