//! Bookmarks of one watch: at intervals, for a changed state of the source, and at the end of the stream.

use std::task::{Context, Poll, ready};

use bytes::BytesMut;

use super::{StepResult, WatchBody};
use crate::{
    cache::WatcherStage,
    grpc::frame,
    proto::{self, pb},
    transport::Room,
    watch::Cursor,
};

/// Approximate maximum size of a bookmark without its namespaces, in bytes.
const BOOKMARK_BYTES: usize = 512;

// === impl WatchBody ===

impl WatchBody {
    /// Returns the approximate maximum size of a bookmark, in bytes.
    pub(super) fn bookmark_bytes(&self) -> usize {
        BOOKMARK_BYTES + frame::namespaces_len(self.watch.subscribe().selection.namespaces.as_ref())
    }

    /// Encodes a response.
    pub(super) fn append(&self, buffer: &mut BytesMut, response: &pb::WatchResponse) {
        frame::append_to_watch(buffer, response, &self.watch.subscribe().format, self.bookmark_lines);
    }

    /// Creates a bookmark at this client's own position, with the state of the source.
    pub(super) fn bookmark(&mut self, mut bookmark: pb::Bookmark) -> pb::WatchResponse {
        let report = self.resource.informer.report();
        (self.reported_state, self.status_changed) = (report.state, false);
        bookmark.set_source(proto::sync_state(report.state));
        bookmark.source_seen_at = report.seen_at.map(proto::timestamp);
        let (informer, history_id) = (&self.resource.informer, self.watch.history_id());
        bookmark.history = if self.is_changing() {
            informer.unfinished_history(history_id)
        } else {
            informer.history(history_id, self.namespaces())
        };
        bookmark.namespaces = proto::namespaces(self.namespaces());
        bookmark.suppressed = self.watch.take_suppressed();
        self.watcher.suppressed(bookmark.suppressed);
        // Events come before a bookmark.
        self.is_resuming = false;
        frame::bookmark(self.position(), bookmark)
    }

    /// Advances to the newest version, if no event comes first. Returns true if a relist lies in between.
    fn advance(&mut self) -> Option<bool> {
        let before = self.watch.version().clone();
        let has_gap = self.watch.cursor().is_some_and(Cursor::has_gap);
        let has_advanced = self.stage() == Some(WatcherStage::Live) && self.watch.advance_at_head();
        has_advanced.then(|| has_gap || self.resource.informer.is_relisted_between(&before, self.watch.version()))
    }

    /// Creates the bookmark at the end of the stream. A server that has listed since the last bookmark has no history from there on.
    pub(super) fn last_bookmark(&mut self, draining: bool) -> pb::WatchResponse {
        let has_gap = self.watch.cursor().is_some_and(Cursor::has_gap);
        let relisted = self.advance().unwrap_or(has_gap);
        pb::WatchResponse { relisted, ..self.bookmark(pb::Bookmark { draining, ..Default::default() }) }
    }

    /// Handles a cursor without events: sends a bookmark if one is due, or returns ready for the next step.
    pub(super) fn poll_quiet(&mut self, cx: &mut Context<'_>, room: Room) -> Poll<StepResult> {
        // A watch that was notified before it waited at its cursor is not woken: check again at once.
        if self.resource.informer.notify_seq() != self.notify_seq {
            return Poll::Ready(StepResult::Progress);
        }
        // A change of the source's state is sent at once, a version at the interval.
        self.status_changed = self.status_changed && self.resource.informer.state() != self.reported_state;
        if !self.status_changed {
            ready!(self.bookmarks.poll(cx));
        }
        if room.is_shut() {
            // Made when there is room: it is of that time, and until then nothing hides the end of the watch.
            return Poll::Ready(StepResult::TooLarge(self.bookmark_bytes()));
        }
        let Some(relisted) = self.advance() else {
            // Merged changes, or events that have arrived since, wake the watch.
            return Poll::Pending;
        };
        let bookmark = self.bookmark(pb::Bookmark::default());
        self.send(&[pb::WatchResponse { relisted, ..bookmark }]);
        self.bookmarks.reset();
        Poll::Ready(StepResult::Progress)
    }
}
