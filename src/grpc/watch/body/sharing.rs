//! One body for several watches of a Subscribe stream that receive the same: of one group, with the same queue and intervals.
//!
//! A watch gives up its own body when it has nothing to hand out and stands where the other one does. What it keeps is its entry in
//! the registry, and its permits. It gets a body of its own again, at the position of the other, when it is paused, or its rights
//! change.

use std::time::Duration;

use tonic::Code;

use super::WatchBody;
use crate::{
    cache::{Standing, SyncState},
    grpc::{
        audited_call::AuditedCall,
        quotas::QuotaPermit,
        status::ApiError,
        views::OpenView,
        watchers::{WatchAccess, WatcherEntry},
    },
    watch::{FullChannelPolicy, QueueOptions},
};

/// Parts of a watch that are its own while it shares the body of another.
#[derive(Debug)]
pub(in crate::grpc) struct SharingWatch {
    watcher: WatcherEntry,
    quota: QuotaPermit,
    open_view: Option<OpenView>,
}

/// Properties in which watches are alike that share a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::grpc) struct SharingKey {
    group: usize,
    queue: QueueOptions,
    bookmark_interval: Duration,
}

// === impl WatchBody ===

impl WatchBody {
    /// Returns the properties in which another watch must be like this one to share its body from now on, where it must stand, and the
    /// state of the source that it must have reported last. None while the watch has something to hand out, or may end by itself.
    pub(in crate::grpc) fn shareable(&self) -> Option<(SharingKey, (Standing, SyncState))> {
        let Self { ready, end, is_over, initial, is_resuming, status_changed, ends_at, drain_at, .. } = self;
        let has_more = ready.is_some() || end.is_some() || initial.is_some() || ends_at.is_some() || drain_at.is_some();
        let is_moving = *is_over || *is_resuming || *status_changed || self.is_notified() || self.is_changing();
        let queue = self.watch.subscribe().queue;
        // Under BLOCK, each reader has a right of its own to hold the writer back.
        if has_more || is_moving || queue.policy == FullChannelPolicy::Block || self.watcher.has_new_access() {
            return None;
        }
        let standing = self.watch.standing()?;
        let (group, bookmark_interval) = (standing.group, self.bookmarks.interval());
        Some((SharingKey { group, queue, bookmark_interval }, (standing, self.reported_state)))
    }

    /// Gives up the body: the client receives what that of the other watch hands out, which is alike.
    pub(in crate::grpc) fn share(self, other: &Self) -> SharingWatch {
        let Self { watcher, quota, open_view, .. } = self;
        watcher.share(&other.watcher);
        SharingWatch { watcher, quota, open_view }
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
        let SharingWatch { watcher, quota, open_view } = next;
        watcher.unshare();
        watcher.reads(self.watch.cursor());
        watcher.enters(self.state());
        let before = SharingWatch {
            watcher: std::mem::replace(&mut self.watcher, watcher),
            quota: std::mem::replace(&mut self.quota, quota),
            open_view: std::mem::replace(&mut self.open_view, open_view),
        };
        before.watcher.share(&self.watcher);
        before
    }

    /// Returns a body of its own for a watch that has shared this one, at the same position and with the same to hand out; the watch
    /// itself if that is not possible now.
    pub(in crate::grpc) fn split(&self, sharing: SharingWatch) -> Result<Self, SharingWatch> {
        let is_possible = self.end.is_none() && !self.is_over && self.initial.is_none() && self.drain_at.is_none();
        let Some(watch) = self.watch.split().filter(|_| is_possible) else { return Err(sharing) };
        let SharingWatch { watcher, quota, open_view } = sharing;
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
            ends_at: None,
            drained: None,
            notify_seq: self.notify_seq,
            status_changed: self.status_changed,
            drain_at: None,
            ready: self.ready.clone(),
            end: None,
            is_over: false,
            watcher,
            quota,
            open_view,
        };
        body.watcher.reads(body.watch.cursor());
        body.watcher.enters(body.state());
        Ok(body)
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
    pub(in crate::grpc) fn moves_to(&self, body: &WatchBody) {
        self.watcher.unshare();
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
