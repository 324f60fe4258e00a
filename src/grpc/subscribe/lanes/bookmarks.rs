//! Bookmarks of the lanes: at intervals, and for a changed state of the source.

use std::{
    task::{Context, Poll},
    time::Duration,
};

use bytes::BytesMut;
use smallvec::SmallVec;

use super::{Lanes, LanesTurn, MAX_WATCHES};
use crate::{
    grpc::{
        frame::{self, PREFIX_BYTES},
        subscribe::deliveries::{Deliveries, more_ids},
    },
    model::{HistoryPosition, Namespaces, ResourceVersion},
    proto::{self, pb},
};

/// Approximate size of a bookmark without its namespaces, in bytes.
const BOOKMARK_BYTES: usize = 512;

// === impl Lanes ===

impl Lanes {
    /// Handles lanes without events: adds a bookmark if one is due. Returns ready without a turn if there may be something to read.
    pub(super) fn poll_quiet(
        &mut self,
        cx: &mut Context<'_>,
        deliveries: &mut Deliveries,
        most: usize,
        must_fit: bool,
    ) -> Poll<Option<LanesTurn>> {
        let informer = self.resource.informer.clone();
        if informer.notify_seq() != self.notify_seq {
            // Rights may have changed: the next poll looks at them first.
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        self.status_changed = self.status_changed && informer.state() != self.reported_state;
        let is_changed = std::mem::take(&mut self.status_changed);
        let mut due: SmallVec<[Duration; 1]> = SmallVec::new();
        for (interval, timer, _) in &mut self.timers {
            if timer.poll(cx).is_ready() {
                timer.reset();
                due.push(*interval);
                // The next poll registers the waker.
                cx.waker().wake_by_ref();
            }
        }
        if is_changed || !due.is_empty() {
            self.make_due(|interval| is_changed || due.contains(interval));
        }
        while self.due > 0 {
            // Read first: what is distributed later may have events.
            let distributed = informer.distributed();
            let Some(distributed) = distributed.filter(|distributed| self.reader.advance(distributed.offset)) else {
                return Poll::Ready(None);
            };
            if let Some(turn) = self.hand_out_bookmark(&distributed, deliveries, most, must_fit) {
                return Poll::Ready(Some(turn));
            }
        }
        Poll::Pending
    }

    /// Makes the bookmarks of lanes due, by their intervals.
    fn make_due(&mut self, is_due: impl Fn(&Duration) -> bool) {
        for (_, lane) in self.reader.iter_mut() {
            if is_due(&lane.key.bookmark_interval) && !std::mem::replace(&mut lane.is_bookmark_due, true) {
                self.due += 1;
            }
        }
    }

    /// Adds the bookmark of the first lane for which it is due, with that of others that is alike, at a position that all have reached.
    fn hand_out_bookmark(
        &mut self,
        distributed: &HistoryPosition,
        deliveries: &mut Deliveries,
        most: usize,
        must_fit: bool,
    ) -> Option<LanesTurn> {
        let informer = self.resource.informer.clone();
        let mut first: Option<(Option<Namespaces>, ResourceVersion, bool)> = None;
        let (mut lanes, mut ids): (Vec<usize>, SmallVec<[u32; 4]>) = (Vec::new(), SmallVec::new());
        for (number, lane) in self.reader.iter_mut().filter(|(_, lane)| lane.is_bookmark_due) {
            let version = &lane.reached.version;
            let to = if *version < distributed.version { &distributed.version } else { version };
            let namespaces = &lane.key.selection.namespaces;
            let is_relisted = informer.is_relisted_between(version, to);
            let first = first.get_or_insert_with(|| (namespaces.clone(), to.clone(), is_relisted));
            let is_alike = (&first.0, &first.1, first.2) == (namespaces, to, is_relisted);
            if is_alike && (lanes.is_empty() || ids.len() + lane.watches.len() <= MAX_WATCHES) {
                lanes.push(number);
                ids.extend(lane.watches.iter().map(|(id, _)| *id));
            }
        }
        let (namespaces, version, relisted) = first?;
        let most_bytes = BOOKMARK_BYTES + frame::namespaces_len(namespaces.as_ref());
        let bytes = deliveries.with(most_bytes) + more_ids(ids.len());
        if bytes > most && (must_fit || !deliveries.is_empty()) {
            return Some(if deliveries.is_empty() { LanesTurn::TooLarge(bytes) } else { LanesTurn::Full });
        }
        let report = informer.report();
        if std::mem::replace(&mut self.reported_state, report.state) != report.state {
            // The others send it at once, too.
            self.make_due(|_| true);
        }
        let mut bookmark = pb::Bookmark {
            source_seen_at: report.seen_at.map(proto::timestamp),
            history: informer.history(self.history_id, namespaces.as_ref()),
            namespaces: proto::namespaces(namespaces.as_ref()),
            ..pb::Bookmark::default()
        };
        bookmark.set_source(proto::sync_state(report.state));
        let response = pb::WatchResponse { relisted, ..frame::bookmark(Some(&version), bookmark) };
        let mut buffer = BytesMut::new();
        frame::append(&mut buffer, &response);
        for number in lanes {
            let Some(lane) = self.reader.get_mut(number) else { continue };
            lane.is_bookmark_due = false;
            self.due -= 1;
            lane.reached =
                HistoryPosition { version: version.clone(), offset: lane.reached.offset.max(distributed.offset) };
            lane.reported.clone_from(&lane.reached);
            lane.record.sent(0, buffer.len(), Some(&version));
        }
        deliveries.push(ids, buffer.freeze().slice(PREFIX_BYTES..));
        None
    }
}
