//! Lanes of a stream for one resource: attached watches with equal selection, format, queue and interval.
//!
//! Watches are *apart* as long as they have a body: while they are opened, receive initial events, resume, are paused, or where a
//! policy acts or an event is costly. They attach when they have nothing to hand out and the reader of the lanes has read as much as
//! they have. Then each change is evaluated once for each lane, encoded once for the stream, and sent once with the ids of all that
//! receive it alike. A watch leaves its lane at the reader's offset, which costs the same however many others there are.

mod bookmarks;

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::deliveries::{Deliveries, more_ids};
use crate::{
    cache::SyncState,
    grpc::{
        frame::{PREFIX_BYTES, WireArena, WireFrame},
        resource::ServedResource,
        service::Service,
        watch::{AttachedWatch, BookmarkTimer, Detached, LaneKey, Standing, WatchBody},
        watchers::BodyRecord,
    },
    model::{HistoryPosition, Transition},
    proto::ObjectFormat,
    watch::{BroadcasterStats, Frame, GroupEvent, LaneEvent, Read, Reader, SelectedBatch},
};

/// Lanes of one resource.
pub(super) struct Lanes {
    service: Service,
    resource: Arc<ServedResource>,
    stats: Arc<BroadcasterStats>,
    /// Number of the history that is read.
    history_id: u64,
    reader: Reader<Lane>,
    /// Lanes with room for another watch.
    by_key: HashMap<LaneKey, usize>,
    /// Start of the stream, to which bookmarks are aligned.
    began: Instant,
    /// Timers of the bookmarks, by interval, and the number of their lanes.
    timers: Vec<(Duration, BookmarkTimer, usize)>,
    /// Number of lanes whose bookmark is due.
    due: usize,
    /// State of the source that was reported last, and the number of notifications that were seen.
    reported_state: SyncState,
    notify_seq: u64,
    status_changed: bool,
    /// Batch of which events are handed out, and the next of them.
    batch: Option<(SelectedBatch, usize)>,
    /// Events of one change that are encoded.
    pending: Vec<Pending>,
}

/// Attached watches that receive the same.
#[derive(Debug)]
struct Lane {
    key: LaneKey,
    watches: Vec<(u32, AttachedWatch)>,
    record: Arc<BodyRecord>,
    /// Position of the last message.
    reached: HistoryPosition,
    /// Position up to which relists were reported.
    reported: HistoryPosition,
    is_bookmark_due: bool,
}

/// Encoded message, and the lanes that receive it.
struct Pending {
    lanes: Vec<usize>,
    /// Without its prefix.
    message: Bytes,
    reached: HistoryPosition,
    /// True for the last event of a batch.
    is_last: bool,
}

/// Encoded form of a change: its transition, true for the last event of a batch, true after a relist, and its format.
type Variant<'a> = (Transition, bool, bool, &'a ObjectFormat, Pending);

/// Result of a turn.
pub(super) enum LanesTurn {
    /// They have nothing more for now.
    Nothing,
    /// They have more, for which there is no room in this response.
    Full,
    /// Their next message needs this many bytes.
    TooLarge(usize),
    /// The reader cannot go on: all watches leave.
    Stopped,
}

/// Largest number of watches of a lane, whose ids are in each of its deliveries: these have at most 64 KiB.
const MAX_WATCHES: usize = 1024;

// === impl Lanes ===

impl Lanes {
    /// Returns lanes that begin where a watch stands; `None` of a resource without state.
    pub(super) fn new(
        service: &Service,
        resource: &Arc<ServedResource>,
        standing: &Standing,
        began: Instant,
    ) -> Option<Self> {
        let informer = &resource.informer;
        Some(Self {
            service: service.clone(),
            resource: Arc::clone(resource),
            stats: informer.watch_stats()?,
            history_id: standing.history_id,
            reader: Reader::new(Arc::clone(informer.past()), standing.offset),
            by_key: HashMap::new(),
            began,
            timers: Vec::new(),
            due: 0,
            reported_state: standing.reported_state,
            notify_seq: standing.notify_seq,
            status_changed: false,
            batch: None,
            pending: Vec::new(),
        })
    }

    /// Returns true if there is no watch.
    pub(super) fn is_empty(&self) -> bool {
        !self.reader.has_lanes()
    }

    /// Returns the bytes that are encoded and not handed out, and those of the batch that they are from.
    pub(super) fn encoded_bytes(&self) -> usize {
        let changes = self.batch.iter().flat_map(|(selected, _)| &selected.batch.changes);
        let objects = changes.flat_map(|change| change.old.iter().chain(&change.new));
        let bodies: usize = objects.map(|object| object.body().len()).sum();
        self.pending.iter().map(|pending| pending.message.len()).sum::<usize>() + bodies
    }

    /// Returns true if a watch that stands at this place can attach now. Otherwise it can after the next event, or the next bookmark.
    pub(super) fn admits(&mut self, key: &LaneKey, standing: &Standing) -> bool {
        let Standing { reached, offset, history_id, reported_state, .. } = standing;
        let is_alike = (*history_id, *reported_state) == (self.history_id, self.reported_state);
        if !is_alike || self.batch.is_some() || !self.pending.is_empty() {
            return false;
        }
        if let Some(distributed) = self.resource.informer.distributed() {
            self.reader.advance(distributed.offset);
        }
        let lane = self.by_key.get(key).and_then(|lane| self.reader.get(*lane));
        // Otherwise one of them has learned of a relist, and the other has not.
        let is_of_both = |lane: &Lane| {
            let reported = &lane.reported;
            let (from, to) = if reached.is_before(reported) { (reached, reported) } else { (reported, reached) };
            !self.has_relist(from, to.offset)
        };
        lane.is_none_or(is_of_both) && self.reader.is_joinable(&key.selection, *offset)
    }

    /// Returns true if a relist lies between a position and an offset.
    fn has_relist(&self, from: &HistoryPosition, up_to: u64) -> bool {
        self.resource.informer.past().has_relist_between(&from.version, from.offset, up_to + 1)
    }

    /// Attaches a watch that [may](Self::admits). Returns the key of its lane.
    pub(super) fn attach(&mut self, key: &LaneKey, standing: Standing, id: u32, mut watch: AttachedWatch) -> usize {
        self.stats.watchers.fetch_add(1, Ordering::Relaxed);
        let found = self.by_key.get(key).copied();
        let number = found.unwrap_or_else(|| {
            let record = watch.watcher.lane_record(self.reader.gauge());
            self.count_timer(key.bookmark_interval);
            let (reported, selection) = (standing.reached.clone(), Arc::clone(&key.selection));
            let (watches, reached) = (Vec::with_capacity(1), standing.reached.clone());
            let lane = Lane { key: key.clone(), watches, record, reached, reported, is_bookmark_due: false };
            let number = self.reader.add(selection, lane);
            self.by_key.insert(key.clone(), number);
            number
        });
        if let Some(lane) = self.reader.get_mut(number) {
            watch.watcher.share(&lane.record);
            // A bookmark may have led one of them to a later version at the same offset: its version must not decrease, and the others have
            // everything up to that version, too.
            if lane.reached.is_before(&standing.reached) {
                lane.reached = standing.reached;
            }
            // A list that doubles would leave up to half of its memory unused; this one is bounded.
            if lane.watches.len() == lane.watches.capacity() {
                lane.watches.reserve_exact(1 + lane.watches.len() / 8);
            }
            lane.watches.push((id, watch));
            if lane.watches.len() == MAX_WATCHES {
                self.by_key.remove(key);
            }
        }
        number
    }

    fn count_timer(&mut self, interval: Duration) {
        if let Some((.., lanes)) = self.timers.iter_mut().find(|(of, ..)| *of == interval) {
            *lanes += 1;
        } else {
            self.timers.push((interval, BookmarkTimer::new(interval, Some(self.began), false), 1));
        }
    }

    /// Removes a watch from its lane. Returns it with its key and the position of the lane, if it is there.
    fn take(&mut self, number: usize, id: u32) -> Option<(AttachedWatch, LaneKey, HistoryPosition, HistoryPosition)> {
        let lane = self.reader.get_mut(number)?;
        let at = lane.watches.iter().position(|(other, _)| *other == id)?;
        let (_, watch) = lane.watches.swap_remove(at);
        let (key, reached, reported) = (lane.key.clone(), lane.reached.clone(), lane.reported.clone());
        let is_empty = lane.watches.is_empty();
        self.stats.watchers.fetch_sub(1, Ordering::Relaxed);
        if is_empty {
            self.remove(number);
        } else {
            self.by_key.entry(key.clone()).or_insert(number);
        }
        Some((watch, key, reached, reported))
    }

    /// Removes a lane without watches.
    fn remove(&mut self, number: usize) {
        let Lane { key, is_bookmark_due, .. } = self.reader.remove(number);
        self.due -= usize::from(is_bookmark_due);
        if self.by_key.get(&key) == Some(&number) {
            self.by_key.remove(&key);
        }
        for pending in &mut self.pending {
            pending.lanes.retain(|lane| *lane != number);
        }
        if let Some((batch, next)) = &mut self.batch {
            let is_of_lane = |selected: &LaneEvent| selected.lane == number;
            // Those that were encoded move the next one: otherwise an event of another lane would be left out.
            *next -= batch.selected[..*next].iter().filter(|selected| is_of_lane(selected)).count();
            batch.selected.retain(|selected| !is_of_lane(selected));
        }
        if let Some(at) = self.timers.iter().position(|(interval, ..)| *interval == key.bookmark_interval) {
            self.timers[at].2 -= 1;
            if self.timers[at].2 == 0 {
                self.timers.swap_remove(at);
            }
        }
    }

    /// Removes a watch that is closed.
    pub(super) fn close(&mut self, number: usize, id: u32) -> Option<AttachedWatch> {
        self.take(number, id).map(|(watch, ..)| watch)
    }

    /// Removes a watch. Returns a body that continues at its position.
    pub(super) fn detach(&mut self, number: usize, id: u32) -> Option<WatchBody> {
        // Of the batch of which events are handed out, the lane has those up to its position.
        let offset = self.batch.as_ref().map_or(self.reader.offset(), |(batch, _)| batch.first);
        let is_bookmark_due = self.is_bookmark_due(number);
        let (watch, key, mut reached, reported) = self.take(number, id)?;
        reached.offset = reached.offset.max(offset);
        let has_gap = self.has_relist(&reported, reached.offset);
        Some(watch.detach(Detached {
            service: &self.service,
            resource: &self.resource,
            key: &key,
            reached,
            has_gap,
            history_id: self.history_id,
            reported_state: self.reported_state,
            began: self.began,
            is_bookmark_due,
        }))
    }

    fn is_bookmark_due(&self, number: usize) -> bool {
        let Some(lane) = self.reader.get(number) else { return false };
        let is_of = |(interval, timer, _): &(Duration, BookmarkTimer, usize)| {
            *interval == lane.key.bookmark_interval && timer.is_due()
        };
        lane.is_bookmark_due || self.timers.iter().any(is_of)
    }

    /// Returns the watches, each with the key of its lane.
    pub(super) fn watches(&mut self) -> Vec<(usize, u32)> {
        self.reader.iter_mut().flat_map(|(key, lane)| lane.watches.iter().map(move |(id, _)| (key, *id))).collect()
    }

    /// Returns the watches whose rights have changed.
    pub(super) fn changed(&mut self) -> Vec<(usize, u32)> {
        let notify_seq = self.resource.informer.notify_seq();
        if std::mem::replace(&mut self.notify_seq, notify_seq) == notify_seq {
            return Vec::new();
        }
        self.status_changed = true;
        let lanes = self.reader.iter_mut();
        let watches = lanes.flat_map(|(key, lane)| lane.watches.iter().map(move |(id, watch)| (key, *id, watch)));
        watches.filter(|(.., watch)| watch.watcher.has_new_access()).map(|(key, id, _)| (key, id)).collect()
    }

    /// Adds what the lanes have to a response, up to `most` bytes of it. With `must_fit`, a message that is larger alone is not added.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        deliveries: &mut Deliveries,
        most: usize,
        must_fit: bool,
    ) -> LanesTurn {
        loop {
            while let Some(pending) = self.pending.pop() {
                if let Some(turn) = self.hand_out(pending, deliveries, most, must_fit) {
                    return turn;
                }
            }
            if self.encode_next() {
                continue;
            }
            match self.reader.poll(cx) {
                Poll::Ready(Read::Batch(batch)) => self.batch = Some((batch, 0)),
                Poll::Ready(Read::More) => {
                    cx.waker().wake_by_ref();
                    return LanesTurn::Nothing;
                }
                Poll::Ready(Read::Stopped) => return LanesTurn::Stopped,
                Poll::Pending => match self.poll_quiet(cx, deliveries, most, must_fit) {
                    Poll::Ready(None) => {}
                    Poll::Ready(Some(turn)) => return turn,
                    Poll::Pending => return LanesTurn::Nothing,
                },
            }
        }
    }

    /// Adds a message to the response, for all of its lanes. Keeps it for those for which there is no room.
    fn hand_out(
        &mut self,
        mut pending: Pending,
        deliveries: &mut Deliveries,
        most: usize,
        must_fit: bool,
    ) -> Option<LanesTurn> {
        while !pending.lanes.is_empty() {
            let count = self.fitting(&pending.lanes);
            let lanes = pending.lanes.len() - count..;
            let ids: SmallVec<[u32; 4]> =
                pending.lanes[lanes.clone()].iter().flat_map(|lane| self.ids(*lane)).collect();
            let bytes = deliveries.with(PREFIX_BYTES + pending.message.len()) + more_ids(ids.len());
            if bytes > most && (must_fit || !deliveries.is_empty()) {
                self.pending.push(pending);
                if deliveries.is_empty() {
                    // The client may read nothing more: what follows is read again when it does.
                    self.reader.drop_ahead();
                    return Some(LanesTurn::TooLarge(bytes));
                }
                return Some(LanesTurn::Full);
            }
            for lane in pending.lanes.drain(lanes) {
                let Some(lane) = self.reader.get_mut(lane) else { continue };
                lane.reached.clone_from(&pending.reached);
                if pending.is_last {
                    lane.reported.clone_from(&pending.reached);
                }
                lane.record.sent(1, PREFIX_BYTES + pending.message.len(), Some(&pending.reached.version));
                self.stats.delivered.fetch_add(1, Ordering::Relaxed);
            }
            deliveries.push(ids, pending.message.clone());
        }
        None
    }

    /// Returns the number of the last lanes whose watches are few enough for one delivery, at least one.
    fn fitting(&self, lanes: &[usize]) -> usize {
        let mut ids = 0;
        let watches = |lane: &usize| self.reader.get(*lane).map_or(0, |lane| lane.watches.len());
        let fits = |lane: &&usize| {
            ids += watches(lane);
            ids <= MAX_WATCHES
        };
        lanes.iter().rev().take_while(fits).count().max(1)
    }

    fn ids(&self, lane: usize) -> impl Iterator<Item = u32> {
        self.reader.get(lane).into_iter().flat_map(|lane| lane.watches.iter().map(|(id, _)| *id))
    }

    /// Encodes the events of the next change of the batch. Returns false if there is none.
    fn encode_next(&mut self) -> bool {
        let Some((batch, next)) = &mut self.batch else { return false };
        let Some(first) = batch.selected.get(*next) else {
            self.batch = None;
            return false;
        };
        let of_change = batch.selected[*next..].iter().take_while(|selected| selected.change == first.change);
        let mut variants: SmallVec<[Variant<'_>; 2]> = SmallVec::new();
        let mut count = 0;
        for selected in of_change {
            count += 1;
            let Some(lane) = self.reader.get(selected.lane) else { continue };
            let is_relisted = batch.last_relist.as_ref().is_some_and(|relist| lane.reported.is_before(relist));
            let is_alike = |(transition, is_last, relisted, format, _): &&mut (_, _, _, &ObjectFormat, _)| {
                (*transition, *is_last, *relisted) == (selected.transition, selected.is_last, is_relisted)
                    && **format == lane.key.format
            };
            if let Some((.., pending)) = variants.iter_mut().find(is_alike) {
                pending.lanes.push(selected.lane);
                continue;
            }
            let reached = batch.reached(selected);
            let change = &batch.batch.changes[selected.change];
            let Some(event) = GroupEvent::new(change, selected.transition, &reached.version) else { continue };
            let event = GroupEvent { relisted: is_relisted, open: batch.batch.is_open, ..event };
            let mut arena = WireArena::default();
            WireFrame::encode(&mut arena, &lane.key.format, &event);
            let message = WireFrame::freeze(arena).0.slice(PREFIX_BYTES..);
            self.stats.encoded.fetch_add(1, Ordering::Relaxed);
            let pending = Pending { lanes: vec![selected.lane], message, reached, is_last: selected.is_last };
            variants.push((selected.transition, selected.is_last, is_relisted, &lane.key.format, pending));
        }
        *next += count;
        self.pending.extend(variants.into_iter().map(|(.., pending)| pending));
        true
    }
}

impl Drop for Lanes {
    fn drop(&mut self) {
        let watches: usize = self.reader.iter_mut().map(|(_, lane)| lane.watches.len()).sum();
        self.stats.watchers.fetch_sub(watches as u64, Ordering::Relaxed);
    }
}

#[cfg(test)]
pub(super) mod tests;
