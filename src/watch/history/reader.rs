//! Reader of a resource's past for several selections, its *lanes*: each change is evaluated once for each of them, on the thread of
//! whoever polls.
//!
//! It has neither a queue nor a log, but an offset. A lane has no position of its own: whoever adds one has everything that it selects
//! before the offset of the reader, and nothing after it.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
    task::{Context, Poll},
};

use slab::Slab;

use super::{
    PastBatch,
    past::{Past, PastGauge, Port},
};
use crate::{
    model::{Batch, HistoryPosition, Selection, Transition},
    watch::routes::Routes,
};

/// Reader of a [`Past`]; `T` is what its owner keeps for each lane. Dropping it removes its lanes.
#[derive(Debug)]
pub struct Reader<T> {
    past: Arc<Past>,
    port: Arc<Port>,
    /// Offset up to which everything was returned.
    at: u64,
    is_parked: bool,
    lanes: Slab<ReaderLane<T>>,
    routes: Routes,
    /// Batches that were read; the first one begins at the offset.
    batches: VecDeque<PastBatch>,
    /// Next change of the first batch to evaluate, and what was selected before it.
    next: usize,
    found: Vec<LaneEvent>,
    /// Lanes that a change has found: empty between two changes.
    routed: Vec<usize>,
}

#[derive(Debug)]
struct ReaderLane<T> {
    selection: Arc<Selection>,
    /// Number of the selection in the past.
    number: usize,
    value: T,
}

/// Change that a lane selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LaneEvent {
    /// Position of the change in its batch.
    pub change: usize,
    /// Key of the lane.
    pub lane: usize,
    /// Event of the change in its selection.
    pub transition: Transition,
    /// True if it is the last change of the batch that the lane selects.
    pub is_last: bool,
}

/// Batch with changes that lanes select.
#[derive(Debug, Clone)]
pub struct SelectedBatch {
    /// Batch.
    pub batch: Arc<Batch>,
    /// Offset of its first change.
    pub first: u64,
    /// Changes that lanes select, in order.
    pub selected: Vec<LaneEvent>,
    /// Last relist up to it.
    pub last_relist: Option<HistoryPosition>,
}

/// Result of a poll.
#[derive(Debug)]
pub enum Read {
    /// The next batch of which a lane selects something.
    Batch(SelectedBatch),
    /// The caller yields: many changes were evaluated.
    More,
    /// The reader cannot continue: the history has dropped what follows, the next batch is too large to be evaluated for all lanes
    /// together, or nothing follows. Each lane continues from [`Reader::offset`] by itself.
    Stopped,
}

/// Largest number of changes that are read at a time.
const READ_CHANGES: usize = 256;
/// Largest number of changes of a batch.
const BATCH_CHANGES: usize = 1024;
/// Largest number of changes that all lanes select of a batch.
const BATCH_SELECTED: usize = 1 << 16;
/// Number of evaluations of one poll.
const EVALUATIONS: usize = 4096;

// === impl Reader ===

impl<T> Reader<T> {
    /// Returns a reader without lanes at an offset, where a batch begins.
    pub fn new(past: Arc<Past>, at: u64) -> Self {
        Self {
            past,
            port: Arc::new(Port::new(at)),
            at,
            is_parked: false,
            lanes: Slab::new(),
            routes: Routes::default(),
            batches: VecDeque::new(),
            next: 0,
            found: Vec::new(),
            routed: Vec::new(),
        }
    }

    /// Returns the offset up to which everything was returned.
    pub fn offset(&self) -> u64 {
        self.at
    }

    /// Returns the number of batches that were read and are not returned yet.
    #[cfg(test)]
    pub(crate) fn read_ahead(&self) -> usize {
        self.batches.len()
    }

    /// Returns true if the reader has lanes.
    pub fn has_lanes(&self) -> bool {
        !self.lanes.is_empty()
    }

    /// Returns a lane.
    pub fn get(&self, lane: usize) -> Option<&T> {
        self.lanes.get(lane).map(|lane| &lane.value)
    }

    /// Returns a lane.
    pub fn get_mut(&mut self, lane: usize) -> Option<&mut T> {
        self.lanes.get_mut(lane).map(|lane| &mut lane.value)
    }

    /// Returns the lanes, each with its key.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        self.lanes.iter_mut().map(|(key, lane)| (key, &mut lane.value))
    }

    /// Returns a gauge of its lag.
    pub fn gauge(&self) -> PastGauge {
        PastGauge::new(&self.past, &self.port)
    }

    /// Returns true if somebody who has exactly what a selection selects before `offset` has the same at the offset of this reader: at
    /// most a few changes lie in between, of which it selects none, and no relist.
    pub fn is_joinable(&mut self, selection: &Selection, offset: u64) -> bool {
        if self.next > 0 {
            return false;
        }
        let (from, to) = (offset.min(self.at), offset.max(self.at));
        if from == to {
            return true;
        }
        if to - from > READ_CHANGES as u64 {
            return false;
        }
        let history = self.past.history().lock();
        if history.last_relist(to).is_some_and(|relist| relist.offset >= from) {
            return false;
        }
        let Some(batches) = history.read(from, to, READ_CHANGES) else { return false };
        drop(history);
        batches.iter().flat_map(|(batch, _)| &batch.changes).all(|change| selection.transition(change).is_none())
    }

    /// Adds a lane that [is joinable](Self::is_joinable). Returns its key.
    pub fn add(&mut self, selection: Arc<Selection>, value: T) -> usize {
        let number = self.past.add(&self.port, &selection);
        // What was published before was not checked for this selection.
        if std::mem::take(&mut self.is_parked) {
            self.port.end_parking(self.at);
        }
        let key = self.lanes.vacant_key();
        self.routes.insert(&selection, key);
        self.lanes.insert(ReaderLane { selection, number, value })
    }

    /// Removes a lane.
    pub fn remove(&mut self, lane: usize) -> T {
        let ReaderLane { selection, number, value } = self.lanes.remove(lane);
        self.past.remove(number);
        self.routes.remove(&selection, lane);
        self.found.retain(|selected| selected.lane != lane);
        value
    }

    /// Advances to a position that was distributed before the call, if the reader has read everything up to there. Returns true if so.
    pub fn advance(&mut self, distributed: u64) -> bool {
        let is_there = self.is_parked && self.port.advance(distributed);
        if is_there {
            self.move_to(self.at.max(distributed));
        }
        is_there
    }

    /// Reads on.
    ///
    /// # Cancel safety
    ///
    /// Nothing is passed unless it is returned.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Read> {
        let mut left = EVALUATIONS;
        loop {
            if let Some((batch, last_relist)) = self.batches.front().cloned() {
                if batch.changes.len() > BATCH_CHANGES || self.found.len() > BATCH_SELECTED {
                    return Poll::Ready(self.stop());
                }
                if left == 0 {
                    return Poll::Ready(Read::More);
                }
                if self.evaluate(&batch, &mut left)
                    && let Some(selected) = self.pass(batch, last_relist)
                {
                    return Poll::Ready(Read::Batch(selected));
                }
                continue;
            }
            if self.is_parked {
                let Some(from) = self.port.repark(cx.waker()) else { return Poll::Pending };
                self.is_parked = false;
                self.move_to(self.at.max(from));
            }
            let head = self.past.head();
            if self.at < head {
                let read = self.past.history().lock().read(self.at, head, READ_CHANGES);
                match read {
                    Some(batches) if !batches.is_empty() => self.batches.extend(batches),
                    _ => return Poll::Ready(self.stop()),
                }
                continue;
            }
            if self.at > head || self.past.has_ended() {
                return Poll::Ready(self.stop());
            }
            let is_still_there = || self.past.head() == self.at && !self.past.has_ended();
            self.is_parked = self.port.park_at_head(self.at, cx.waker(), is_still_there);
            if self.is_parked {
                return Poll::Pending;
            }
        }
    }

    /// Drops what was read and is not evaluated yet: the next poll reads it again.
    pub fn drop_ahead(&mut self) {
        if self.next == 0 {
            self.batches.clear();
        }
    }

    fn stop(&mut self) -> Read {
        self.batches.clear();
        self.found.clear();
        self.next = 0;
        Read::Stopped
    }

    fn move_to(&mut self, at: u64) {
        self.at = at;
        self.port.reads(at);
    }

    /// Evaluates the first batch, as far as evaluations are left. Returns true if it is complete.
    fn evaluate(&mut self, batch: &Batch, left: &mut usize) -> bool {
        let Self { lanes, routes, next, found, routed, .. } = self;
        while let Some(change) = batch.changes.get(*next) {
            if *left == 0 || found.len() > BATCH_SELECTED {
                return false;
            }
            routes.find(change, routed);
            *left = left.saturating_sub(1 + routed.len() + routes.unrouted().len());
            for lane in routes.unrouted().iter().copied().chain(routed.drain(..)) {
                if let Some(transition) = lanes[lane].selection.transition(change) {
                    found.push(LaneEvent { change: *next, lane, transition, is_last: true });
                }
            }
            *next += 1;
        }
        true
    }

    /// Passes the first batch, which was evaluated. Returns it if a lane selects something.
    fn pass(&mut self, batch: Arc<Batch>, last_relist: Option<HistoryPosition>) -> Option<SelectedBatch> {
        self.batches.pop_front();
        self.next = 0;
        let (first, mut selected) = (self.at, std::mem::take(&mut self.found));
        self.move_to(first + batch.changes.len() as u64);
        if batch.changes.len() > 1 {
            let mut seen = HashSet::new();
            for selected in selected.iter_mut().rev() {
                selected.is_last = seen.insert(selected.lane);
            }
        }
        if selected.is_empty() {
            return None;
        }
        Some(SelectedBatch { batch, first, selected, last_relist })
    }
}

impl<T> Drop for Reader<T> {
    fn drop(&mut self) {
        for (_, lane) in &self.lanes {
            self.past.remove(lane.number);
        }
    }
}

// === impl SelectedBatch ===

impl SelectedBatch {
    /// Returns the position after the change of an event, from which its watch continues.
    pub fn reached(&self, selected: &LaneEvent) -> HistoryPosition {
        let is_closed = selected.is_last && !self.batch.is_open;
        let version = if is_closed { &self.batch.after } else { &self.batch.before };
        HistoryPosition { version: version.clone(), offset: self.first + selected.change as u64 + 1 }
    }
}
