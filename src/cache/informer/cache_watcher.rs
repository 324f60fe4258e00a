//! Watch of one client, after its initial events: the events that it missed, then the published ones, from one cursor. Once its
//! namespaces have changed, it first gets what that changes ([`super::reselection`]), and then continues where it was.

use std::{
    mem,
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, ready},
};

use super::{
    InformerHandle, JoinError, Joined,
    reselection::{Reselecting, Reselection},
};
use crate::{
    cache::Snapshot,
    model::{HistoryPosition, Namespaces, ResourceVersion, Selection},
    watch::{Cursor, End, Frame, Frames, Subscribe, Taken, TooLarge},
};

/// Watch of one client of an informer (the apiserver's `cacheWatcher`), in the form of a frame. It has neither a task nor a queue
/// of its own: its caller polls it, and first delivers the initial events, if the client wants them.
pub struct CacheWatcher<F: Frame> {
    informer: InformerHandle<F>,
    /// Options with which the watch joined, and with which it continues after a change of its namespaces.
    subscribe: Subscribe<F>,
    stage: Stage<F>,
    /// Number of the history that the versions belong to.
    history_id: u64,
    /// Number of suppressed changes of former cursors that were not taken.
    suppressed: u64,
}

/// Stage of a [`CacheWatcher`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WatcherStage {
    /// Delivery of missed events.
    Replay,
    /// Search for what a change of the namespaces changes.
    Reselecting,
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
    /// The namespaces have changed: these objects leave the selection or enter it before the watch continues.
    Reselected(Box<Reselection>),
    /// The watch has ended; it must not be polled again.
    Ended(End),
    /// The watch has ended, because the state at its version is not known any more; it must not be polled again.
    NotResumed(JoinError),
}

/// Stage with its data, which is boxed where few watches are.
enum Stage<F: Frame> {
    Reading(Cursor<F>),
    Reselecting(Box<Reselecting>),
}

// === impl CacheWatcher ===

impl<F: Frame> CacheWatcher<F> {
    /// Returns the watch of a client that has joined, and the state that its initial events are.
    pub fn new(informer: InformerHandle<F>, mut subscribe: Subscribe<F>, joined: Joined<F>) -> (Self, Snapshot) {
        let Joined { snapshot, cursor, history_id } = joined;
        // That of its kind is shared: there are many watches, and few selections.
        subscribe.selection = Arc::clone(cursor.selection());
        (Self { informer, subscribe, stage: Stage::Reading(cursor), history_id, suppressed: 0 }, snapshot)
    }

    /// Returns the options of the client.
    pub fn subscribe(&self) -> &Subscribe<F> {
        &self.subscribe
    }

    /// Returns the stage.
    pub fn stage(&self) -> WatcherStage {
        match &self.stage {
            Stage::Reselecting(_) => WatcherStage::Reselecting,
            Stage::Reading(cursor) if cursor.is_resuming() => WatcherStage::Replay,
            Stage::Reading(_) => WatcherStage::Live,
        }
    }

    /// Returns true if the history has events that the watch has missed.
    pub fn has_backlog(&self) -> bool {
        let distributed = self.informer.distributed();
        let is_behind = |cursor: &Cursor<F>| distributed.is_some_and(|to| cursor.reached().offset < to.offset);
        matches!(&self.stage, Stage::Reading(cursor) if cursor.is_resuming() && is_behind(cursor))
    }

    /// Returns the version to resume from.
    pub fn version(&self) -> &ResourceVersion {
        match &self.stage {
            Stage::Reading(cursor) => cursor.version(),
            Stage::Reselecting(search) => &search.reached.version,
        }
    }

    /// Returns the cursor; `None` while the namespaces change.
    pub fn cursor(&self) -> Option<&Cursor<F>> {
        match &self.stage {
            Stage::Reading(cursor) => Some(cursor),
            Stage::Reselecting(_) => None,
        }
    }

    /// Gives up the queue of a watch that takes nothing more, and must not be polled again: no writer waits for it.
    pub fn leave_queue(&self) {
        if let Stage::Reading(cursor) = &self.stage {
            cursor.leave_queue();
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
        if let Stage::Reading(cursor) = &mut self.stage {
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
        let stage = Stage::Reading(informer.cursor_at(subscribe.clone(), reached, has_gap));
        Self { informer, subscribe, stage, history_id, suppressed: 0 }
    }

    /// Returns where a live watch stands that has nothing to take, and skips nothing of what follows: its position, and the offset up to
    /// which it has everything.
    pub fn standing(&self) -> Option<(HistoryPosition, u64)> {
        let distributed = self.informer.distributed()?;
        let Stage::Reading(cursor) = &self.stage else { return None };
        // A client that has resumed from an open version has some of the changes that follow.
        let is_ahead = *cursor.version() > distributed.version;
        if cursor.is_resuming() || cursor.has_gap() || is_ahead {
            return None;
        }
        Some((cursor.reached(), cursor.standing(distributed.offset)?))
    }

    /// Takes the number of changes that the format suppressed up to the version, since the last call.
    pub fn take_suppressed(&mut self) -> u64 {
        let suppressed = std::mem::take(&mut self.suppressed);
        match &mut self.stage {
            Stage::Reading(cursor) => suppressed + cursor.take_suppressed(),
            Stage::Reselecting(_) => suppressed,
        }
    }

    /// Advances to everything published, if the watch has all of its events; returns true if so. Without it, a watch of few events
    /// stays where its last one was, and the history may drop what comes after that.
    pub fn advance_at_head(&mut self) -> bool {
        // Read before the cursor reports that it is at the head: by then it may be ahead of the head, but never of what was
        // published.
        let distributed = self.informer.distributed();
        let Stage::Reading(cursor) = &mut self.stage else { return false };
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
        if self.is_history_rewritten() {
            return Poll::Ready(Ok(WatchStep::Ended(End::HistoryRewritten)));
        }
        let step = match &mut self.stage {
            Stage::Reselecting(search) => match ready!(search.poll(cx, &self.informer, self.history_id)) {
                Ok(Some(reselection)) => {
                    let (reached, has_gap) = (search.reached.clone(), search.has_gap);
                    self.continue_at(reached, has_gap);
                    WatchStep::Reselected(reselection)
                }
                Ok(None) => WatchStep::Ended(End::HistoryRewritten),
                Err(error) => WatchStep::NotResumed(error),
            },
            Stage::Reading(cursor) => {
                let (taken, was_resuming) = (cursor.taken(), cursor.is_resuming());
                let polled = cursor.poll_take_fitting(cx, max_size, must_fit);
                // The client has missed a relist without an event of its own.
                if polled.is_pending() && was_resuming && !cursor.is_resuming() && cursor.take_gap() {
                    let frames = Frames::new();
                    return Poll::Ready(Ok(WatchStep::Events { frames, count: 0, is_relisted: true }));
                }
                match ready!(polled)? {
                    Taken::Frames(frames) => {
                        let count = cursor.taken() - taken;
                        if was_resuming {
                            self.informer.stats().replayed.fetch_add(count, Ordering::Relaxed);
                        }
                        WatchStep::Events { frames, count, is_relisted: false }
                    }
                    Taken::Dropped { count, after } => WatchStep::Dropped { count, after },
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
            // Nothing has left or entered yet: the client still has the state of these namespaces.
            Stage::Reselecting(search) if search.from.namespaces == namespaces => {
                self.subscribe.selection = Arc::clone(&search.from);
                let (reached, has_gap) = (search.reached.clone(), search.has_gap);
                self.continue_at(reached, has_gap);
                return true;
            }
            // Here neither: it has the state of those before.
            Stage::Reselecting(search) => (search.reached.clone(), search.has_gap, Some(Arc::clone(&search.from))),
            Stage::Reading(cursor) if cursor.is_draining() => return false,
            Stage::Reading(cursor) => {
                self.suppressed += cursor.take_suppressed();
                (cursor.reached(), cursor.has_gap(), None)
            }
        };
        let to = Arc::new(Selection { namespaces, ..Selection::clone(&self.subscribe.selection) });
        let selection = std::mem::replace(&mut self.subscribe.selection, Arc::clone(&to));
        let search = Reselecting::new(from.unwrap_or(selection), to, reached, has_gap);
        self.stage = Stage::Reselecting(Box::new(search));
        true
    }

    /// Takes the relist that must still be reported.
    pub fn take_gap(&mut self) -> bool {
        match &mut self.stage {
            Stage::Reselecting(search) => mem::take(&mut search.has_gap),
            Stage::Reading(cursor) => cursor.take_gap(),
        }
    }

    /// Continues at a position with the present selection.
    fn continue_at(&mut self, reached: HistoryPosition, has_gap: bool) {
        self.stage = Stage::Reading(self.informer.cursor_at(self.subscribe.clone(), reached, has_gap));
    }
}

debug_fields!([F: Frame] CacheWatcher<F>, this => {
    selection: this.subscribe.selection,
    stage: this.stage(),
    version: this.version(),
});
