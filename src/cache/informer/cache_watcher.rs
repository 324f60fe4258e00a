//! Watch of one client, after its initial events: the events that it missed, then the published ones.
//!
//! ```text
//!   Live ◀──────────────── Replay ◀──┐
//!    │ parked                │ more   │
//!    └─────▶ Joining ◀───────┘        │
//!               └─────────────────────┘
//! ```
//!
//! The events that a parked cursor can no longer read are in the history: the watch joins again from there, at the offset
//! that it has reached, and gets exactly those. So it does after its namespaces have changed ([`super::reselection`]).

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
};

use super::{
    InformerHandle, JoinError, Joined,
    join::Joining,
    reselection::{Reselecting, Reselection},
};
use crate::{
    cache::Snapshot,
    model::{HistoryPosition, Namespaces, ResourceVersion, Selection},
    watch::{BacklogReader, Cursor, End, Frame, Frames, Subscribe, Taken, TooLarge},
};

/// Watch of one client of an informer (the apiserver's `cacheWatcher`), in the form of a frame. It has neither a task nor a queue
/// of its own: its caller polls it, and first delivers the initial events, if the client wants them.
pub struct CacheWatcher<F: Frame> {
    informer: InformerHandle<F>,
    /// Options with which the watch joined, and with which it joins again.
    subscribe: Subscribe<F>,
    stage: Stage<F>,
    /// Number of the history that the versions belong to.
    history_id: u64,
    /// Number of suppressed changes of former stages that were not taken.
    suppressed: u64,
}

/// Stage of a [`CacheWatcher`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatcherStage {
    /// Delivery of missed events from the history.
    Replay,
    /// New join at the position that the watch has reached: after it was parked, or in the middle of missed events.
    Joining,
    /// Delivery of the published events.
    Live,
}

/// Result of one step of a [`CacheWatcher`].
#[derive(Debug, Clone)]
pub enum WatchStep<F> {
    /// The next events.
    Events {
        /// Events, in order; none after many changes of which none is selected: the caller yields.
        frames: Frames<F>,
        /// Number of the events.
        count: u64,
        /// True if a relist without an event follows them.
        is_relisted: bool,
    },
    /// Events are missing here, under DROP: [`Taken::Dropped`].
    Dropped {
        /// Number of missing events of the selection.
        count: u64,
        /// Last version before the gap.
        after: ResourceVersion,
    },
    /// The watch has entered another stage, without an event.
    Moved,
    /// The namespaces have changed: these objects leave the selection or enter it before the watch continues.
    Reselected(Box<Reselection>),
    /// The watch has ended; it must not be polled again.
    Ended(End),
    /// The watch has ended, because it cannot join again; it must not be polled again.
    NotResumed(JoinError),
}

/// Stage with its data, which is boxed where few watches are.
enum Stage<F: Frame> {
    /// Missed events; without a cursor, the history has more after them.
    Replay(Box<BacklogReader<F>>, Option<Cursor<F>>),
    /// With `true`, a relist on the way to the position must still be reported.
    Joining(HistoryPosition, bool, Joining<F>),
    Reselecting(Box<Reselecting<F>>),
    Live(Cursor<F>),
}

// === impl CacheWatcher ===

impl<F: Frame> CacheWatcher<F> {
    /// Returns the watch of a client that has joined, and the state that its initial events are. A client without initial events
    /// has everything up to a version of its own (`after`), or up to that state.
    pub fn new(
        informer: InformerHandle<F>,
        mut subscribe: Subscribe<F>,
        joined: Joined<F>,
        after: Option<ResourceVersion>,
    ) -> (Self, Snapshot) {
        let Joined { snapshot, backlog, cursor, history_id } = joined;
        if let Some(cursor) = &cursor {
            // The group's own selection is shared: there are many watches, and few selections.
            subscribe.selection = Arc::clone(cursor.selection());
        }
        let stage = match cursor {
            Some(cursor) if after.is_none() && backlog.batches.is_empty() => Stage::Live(cursor),
            cursor => {
                let version = after.unwrap_or_else(|| snapshot.safe_version().clone());
                let reached = HistoryPosition { version, offset: backlog.first + backlog.passed };
                Stage::Replay(Box::new(BacklogReader::new(backlog.batches, backlog.first, reached, false)), cursor)
            }
        };
        (Self { informer, subscribe, stage, history_id, suppressed: 0 }, snapshot)
    }

    /// Returns the options of the client.
    pub fn subscribe(&self) -> &Subscribe<F> {
        &self.subscribe
    }

    /// Returns the stage.
    pub fn stage(&self) -> WatcherStage {
        match &self.stage {
            Stage::Replay(..) => WatcherStage::Replay,
            Stage::Joining(..) | Stage::Reselecting(_) => WatcherStage::Joining,
            Stage::Live(_) => WatcherStage::Live,
        }
    }

    /// Returns true if the history has events that the watch has missed.
    pub fn has_backlog(&self) -> bool {
        matches!(&self.stage, Stage::Replay(backlog, _) if !backlog.is_done())
    }

    /// Returns the version to resume from.
    pub fn version(&self) -> &ResourceVersion {
        match &self.stage {
            Stage::Replay(backlog, _) => backlog.version(),
            Stage::Joining(reached, ..) => &reached.version,
            Stage::Reselecting(search) => &search.reached.version,
            Stage::Live(cursor) => cursor.version(),
        }
    }

    /// Returns the cursor; `None` while the watch holds only a version and reads the history.
    pub fn cursor(&self) -> Option<&Cursor<F>> {
        match &self.stage {
            Stage::Replay(_, cursor) => cursor.as_ref(),
            Stage::Joining(..) | Stage::Reselecting(_) => None,
            Stage::Live(cursor) => Some(cursor),
        }
    }

    /// Returns the number of the history that the versions belong to: [`InformerHandle::history_id`] when the client joined.
    pub fn history_id(&self) -> u64 {
        self.history_id
    }

    /// Returns true if the upstream's history was rewritten since the client joined, even if the cursor has not noticed yet. Then
    /// no version of this watch has a meaning, whatever it ends with.
    pub fn is_history_rewritten(&self) -> bool {
        self.informer.history_id() != self.history_id
    }

    /// Ends the initial events: all of them have been delivered.
    pub fn end_initial_events(&mut self) {
        if let Stage::Live(cursor) = &mut self.stage {
            cursor.go_live();
        }
    }

    /// Returns the watch of a client that has everything up to a position. With `has_gap`, a relist on the way to it must still be
    /// reported.
    pub fn resume(
        informer: InformerHandle<F>,
        subscribe: Subscribe<F>,
        reached: HistoryPosition,
        has_gap: bool,
        history_id: u64,
    ) -> Self {
        let stage = joining(&informer, &subscribe, reached, has_gap);
        Self { informer, subscribe, stage, history_id, suppressed: 0 }
    }

    /// Returns where a live watch stands that has nothing to take: its position, and the offset up to which it has everything.
    pub fn standing(&self) -> Option<(HistoryPosition, u64)> {
        let distributed = self.informer.distributed()?;
        let Stage::Live(cursor) = &self.stage else { return None };
        Some((cursor.reached().clone(), cursor.standing(distributed.offset)?))
    }

    /// Takes the number of changes that the format suppressed up to the version, since the last call.
    pub fn take_suppressed(&mut self) -> u64 {
        let suppressed = std::mem::take(&mut self.suppressed);
        match &mut self.stage {
            Stage::Live(cursor) => suppressed + cursor.take_suppressed(),
            Stage::Replay(..) | Stage::Joining(..) | Stage::Reselecting(_) => suppressed,
        }
    }

    /// Advances to everything published, if the watch has all of its events; returns true if so. Without it, a watch of few events
    /// stays where its last one was, and the history may drop what comes after that.
    pub fn advance_at_head(&mut self) -> bool {
        // Read before the cursor reports that it is at the head: by then it may be ahead of the head, but never of what was
        // published.
        let distributed = self.informer.distributed();
        let Stage::Live(cursor) = &mut self.stage else { return false };
        cursor.advance_at_head(distributed.as_deref())
    }

    /// Takes the next events, at most `max_size` in the unit of the frame, but at least one; with `must_fit` it takes none if the
    /// next one is larger. Or enters another stage.
    ///
    /// # Errors
    ///
    /// With `must_fit`, if the next event does not fit.
    ///
    /// # Cancel safety
    ///
    /// Nothing is taken unless it is returned.
    pub fn poll_next(
        &mut self,
        cx: &mut Context<'_>,
        max_size: usize,
        must_fit: bool,
    ) -> Poll<Result<WatchStep<F>, TooLarge>> {
        let step = match &mut self.stage {
            Stage::Replay(backlog, cursor) => {
                let Subscribe { selection, format, .. } = &self.subscribe;
                let taken = backlog.poll_take(cx, self.informer.backfill(), selection, format, max_size, must_fit);
                let (frame, count) = ready!(taken)?;
                if backlog.has_failed() {
                    return Poll::Ready(Ok(WatchStep::Ended(End::Failed)));
                }
                self.suppressed += backlog.take_suppressed();
                let is_done = backlog.is_done();
                let is_relisted = is_done && backlog.has_gap();
                self.informer.stats().replayed.fetch_add(count, Ordering::Relaxed);
                match cursor.take_if(|_| is_done) {
                    Some(mut cursor) => {
                        // Everything before the cursor has been taken.
                        cursor.go_live();
                        self.stage = Stage::Live(cursor);
                    }
                    None if is_done => {
                        let reached = backlog.reached();
                        self.join_after(reached, false);
                    }
                    None => {}
                }
                WatchStep::Events { frames: frame.into_iter().collect(), count, is_relisted }
            }
            Stage::Joining(reached, has_gap, joining) => match ready!(joining.as_mut().poll(cx)) {
                // The same version may also exist in the new history, where it is another state.
                Ok(Joined { history_id, .. }) if history_id != self.history_id => {
                    WatchStep::Ended(End::HistoryRewritten)
                }
                Ok(Joined { backlog, cursor, .. }) => {
                    let is_gap = backlog.is_after_gap || *has_gap;
                    let backlog = BacklogReader::new(backlog.batches, backlog.first, reached.clone(), is_gap);
                    self.stage = Stage::Replay(Box::new(backlog), cursor);
                    WatchStep::Moved
                }
                Err(error) => WatchStep::NotResumed(error),
            },
            Stage::Reselecting(search) => match ready!(search.poll(cx, &self.informer, self.history_id)) {
                Ok(Some(reselection)) => {
                    let (reached, has_gap) = (search.reached.clone(), search.has_gap);
                    self.join_after(reached, has_gap);
                    WatchStep::Reselected(reselection)
                }
                Ok(None) => WatchStep::Ended(End::HistoryRewritten),
                Err(error) => WatchStep::NotResumed(error),
            },
            Stage::Live(cursor) => {
                let taken = cursor.taken();
                match ready!(cursor.poll_take_fitting(cx, max_size, must_fit))? {
                    Taken::Frames(frames) => {
                        WatchStep::Events { frames, count: cursor.taken() - taken, is_relisted: false }
                    }
                    Taken::Dropped { count, after } => WatchStep::Dropped { count, after },
                    // The cursor can no longer read from the published events. The history may still have the events after it,
                    // even those of an expired cursor: under COALESCE it may be ahead of its group.
                    Taken::Parked | Taken::Ended(End::Expired { .. }) => {
                        let reached = cursor.reached().clone();
                        self.suppressed += cursor.take_suppressed();
                        self.informer.stats().parked.fetch_add(1, Ordering::Relaxed);
                        self.join_after(reached, false);
                        WatchStep::Moved
                    }
                    Taken::Ended(end) => WatchStep::Ended(end),
                }
            }
        };
        Poll::Ready(Ok(step))
    }

    /// Limits the selection to other namespaces, from the next step on. Before further events comes
    /// [`WatchStep::Reselected`]. Returns false, and must not be polled again, if the client has no state of one position: it has
    /// received a part of merged changes.
    pub fn reselect(&mut self, namespaces: Option<Namespaces>) -> bool {
        let (reached, has_gap, from) = match &mut self.stage {
            Stage::Replay(backlog, _) => (backlog.reached(), backlog.has_gap(), None),
            Stage::Joining(reached, has_gap, _) => (reached.clone(), *has_gap, None),
            // Nothing has left or entered yet: the client still has the state of these namespaces.
            Stage::Reselecting(search) if search.from.namespaces == namespaces => {
                self.subscribe.selection = Arc::clone(&search.from);
                let (reached, has_gap) = (search.reached.clone(), search.has_gap);
                self.join_after(reached, has_gap);
                return true;
            }
            // Here neither: it has the state of those before.
            Stage::Reselecting(search) => (search.reached.clone(), search.has_gap, Some(Arc::clone(&search.from))),
            Stage::Live(cursor) if cursor.is_draining() => return false,
            Stage::Live(cursor) => {
                self.suppressed += cursor.take_suppressed();
                (cursor.reached().clone(), false, None)
            }
        };
        let to = Selection { namespaces, ..Selection::clone(&self.subscribe.selection) };
        let selection = std::mem::replace(&mut self.subscribe.selection, Arc::new(to));
        let subscribe = Subscribe { initial_events: true, ..self.subscribe.clone() };
        let search = Reselecting::new(&self.informer, from.unwrap_or(selection), subscribe, reached, has_gap);
        self.stage = Stage::Reselecting(Box::new(search));
        true
    }

    /// Drops the cursor, if there is one, and joins again from the history after this position.
    fn join_after(&mut self, reached: HistoryPosition, has_gap: bool) {
        self.stage = joining(&self.informer, &self.subscribe, reached, has_gap);
    }
}

/// Joins from the history after a position.
fn joining<F: Frame>(
    informer: &InformerHandle<F>,
    subscribe: &Subscribe<F>,
    reached: HistoryPosition,
    has_gap: bool,
) -> Stage<F> {
    let subscribe = Subscribe { initial_events: true, ..subscribe.clone() };
    let joining = informer.clone().join_after(reached.clone(), subscribe);
    Stage::Joining(reached, has_gap, Box::pin(joining))
}

impl<F: Frame> fmt::Debug for CacheWatcher<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CacheWatcher")
            .field("selection", &self.subscribe.selection)
            .field("stage", &self.stage())
            .field("version", self.version())
            .finish_non_exhaustive()
    }
}
