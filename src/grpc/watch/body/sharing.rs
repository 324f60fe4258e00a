//! One body for several watches of a Subscribe stream that receive the same: of one group, with the same queue and intervals.
//!
//! A watch gives up its own body when it has nothing to hand out and stands where the other one does. What it keeps is its entry in
//! the registry, and its permits. It gets a body of its own again, at the position of the other, when it is paused, or its rights
//! change.

use std::time::Duration;

use tonic::Code;

use super::WatchBody;
use crate::{
    cache::{CacheWatcher, SyncState},
    grpc::{
        audited_call::AuditedCall,
        frame::WireFrame,
        quotas::QuotaPermit,
        status::ApiError,
        views::OpenView,
        watchers::{WatchAccess, WatcherEntry},
    },
    watch::{CursorStanding, QueueOptions},
};

/// Parts of a watch that are its own while it shares the body of another.
#[derive(Debug)]
pub(in crate::grpc) struct SharingWatch {
    watcher: WatcherEntry,
    quota: QuotaPermit,
    open_view: Option<Box<OpenView>>,
}

/// Place where a watch stands that has nothing to hand out, the number of its history, and the state of the source that it reported
/// last.
type Standing = (CursorStanding, u64, SyncState);

/// Properties in which watches are alike that share a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::grpc) struct SharingKey {
    group: usize,
    queue: QueueOptions,
    bookmark_interval: Duration,
}

// === impl WatchBody ===

impl WatchBody {
    /// Returns the properties in which another watch must be like this one to share its body from now on, and the place where both must
    /// stand. `None` while the watch has something to hand out, or may end by itself.
    pub(in crate::grpc) fn shareable(&self) -> Option<(SharingKey, Standing)> {
        let Self { ready, is_resuming, status_changed, ends_at, .. } = self;
        let is_moving = ready.is_some() || *is_resuming || *status_changed || self.is_notified() || self.is_changing();
        if is_moving || ends_at.is_some() || self.is_ending() || self.watcher.has_new_access() {
            return None;
        }
        let (standing, history_id) = self.watch.standing()?;
        let (queue, bookmark_interval) = (self.watch.subscribe().queue, self.bookmarks.interval());
        let key = SharingKey { group: standing.group, queue, bookmark_interval };
        Some((key, (standing, history_id, self.reported_state)))
    }

    /// Returns true if the watch ends, or will soon, with all that share its body.
    pub(in crate::grpc) fn is_ending(&self) -> bool {
        self.end.is_some() || self.is_over || self.drain_at.is_some()
    }

    /// Gives up the body: the client receives what that of the other watch hands out, which is alike.
    pub(in crate::grpc) fn share(self, other: &mut Self) -> SharingWatch {
        let Self { mut watcher, quota, open_view, .. } = self;
        watcher.share(&other.watcher);
        other.serves(other.watches + 1);
        SharingWatch { watcher, quota, open_view }
    }

    /// Records that one of the watches that share this body does so no more.
    pub(in crate::grpc) fn loses_watch(&mut self) {
        self.serves(self.watches - 1);
    }

    fn serves(&mut self, watches: u32) {
        self.watches = watches;
        if let Some(cursor) = self.watch.cursor() {
            cursor.serve(watches);
        }
    }

    /// Returns true if the rights of the watch have changed.
    pub(in crate::grpc) fn has_new_access(&self) -> bool {
        self.watcher.has_new_access()
    }

    /// Returns true if the source of the resource, or the rights of its watches, may have changed since the last call of
    /// [`poll_bounded`](crate::transport::BoundedBody::poll_bounded).
    pub(in crate::grpc) fn is_notified(&self) -> bool {
        self.resource.informer.notify_seq() != self.notify_seq
    }

    /// Becomes the body of a watch that shares it. Returns what the one keeps whose body it was.
    pub(in crate::grpc) fn change_owner(&mut self, next: SharingWatch) -> SharingWatch {
        let SharingWatch { mut watcher, quota, open_view } = next;
        watcher.unshare();
        let mut before = SharingWatch {
            watcher: std::mem::replace(&mut self.watcher, watcher),
            quota: std::mem::replace(&mut self.quota, quota),
            open_view: std::mem::replace(&mut self.open_view, open_view),
        };
        self.enters_stage();
        before.watcher.share(&self.watcher);
        before
    }

    /// Returns a watch that receives the same as this one from now on; `None` if that is possible only later.
    pub(in crate::grpc) fn duplicate(&self) -> Option<CacheWatcher<WireFrame>> {
        self.watch.duplicate()
    }

    /// Returns a body of its own for a watch that has shared this one, with the same to hand out. `watch` is a duplicate of this one's.
    pub(in crate::grpc) fn split(&self, watch: CacheWatcher<WireFrame>, sharing: SharingWatch) -> Self {
        let SharingWatch { mut watcher, quota, open_view } = sharing;
        watcher.unshare();
        let body = Self {
            service: self.service.clone(),
            resource: self.resource.clone(),
            initial: None,
            watch,
            is_resuming: self.is_resuming,
            namespaces: self.namespaces.clone(),
            reported_state: self.reported_state,
            waiting: self.waiting.is_some().then(|| self.resource.informer.demand().wait()),
            bookmarks: self.bookmarks.duplicate(),
            bookmark_lines: self.bookmark_lines,
            ends_at: None,
            drained: None,
            notify_seq: self.notify_seq,
            status_changed: self.status_changed,
            drain_at: None,
            ready: self.ready.clone(),
            end: None,
            is_over: false,
            watcher,
            watches: 1,
            quota,
            open_view,
        };
        body.enters_stage();
        body
    }
}

// === impl SharingWatch ===

impl SharingWatch {
    /// Returns true if the rights of the watch have changed.
    pub(in crate::grpc) fn has_new_access(&self) -> bool {
        self.watcher.has_new_access()
    }

    /// Ends the watch if its rights have changed, and returns the reason. It resumes with its new rights, if it has any.
    pub(in crate::grpc) fn end_for_access(&self) -> Option<ApiError> {
        let refusal = match self.watcher.take_access()? {
            WatchAccess::Ended(refusal) => refusal,
            WatchAccess::Namespaces(_) => ApiError::AccessChanged,
        };
        self.watcher.ends(&refusal);
        if let Some(audited) = self.audited() {
            audited.ends(refusal.to_status().code());
        }
        Some(refusal)
    }

    /// Shares the body of another watch from now on.
    pub(in crate::grpc) fn moves_to(&mut self, body: &WatchBody) {
        self.watcher.share(&body.watcher);
    }

    /// Records that the watch has ended with the one whose body it shares.
    pub(in crate::grpc) fn ends_with(&self, body: &WatchBody, code: Code) {
        self.watcher.ends_as(&body.watcher);
        if let Some(audited) = self.audited() {
            audited.ends(code);
        }
    }

    /// Returns the entry of the watch in the audit log.
    pub(in crate::grpc) fn audited(&self) -> Option<&AuditedCall> {
        self.watcher.audited()
    }
}
