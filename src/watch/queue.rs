//! Queue of a cursor whose policy may act: what its reader has not taken yet, as the writer and the threads see it.
//!
//! A queue holds no events: it is a part of the history. The number of unread changes is an upper bound of its length. Only beyond the
//! length, a *lookahead* counts the events of the selection, each change once, or merges them under COALESCE:
//!
//! - the reader, in slices, when it takes;
//! - the writer under BLOCK, when it has published;
//! - a thread, if the selection or the format is costly, or if the history is about to drop changes that were not counted or merged.
//!   The history keeps these meanwhile, within bounds: no count is ever inexact. A queue whose changes are gone expires.
//!
//! A thread takes the lookahead out of its queue while it works on it. Most queues have none. No waker is woken under the lock of a
//! queue.

mod block;
mod work;

use std::{
    sync::{Arc, atomic::Ordering},
    task::{Context, Poll, Waker},
};

use tokio::time::Instant;

use super::{
    CursorState, End, Frame, FullChannelPolicy, QueueOptions,
    blocks::Kind,
    budget::SharedBudget,
    coalesce::{DrainingGeneration, Size},
    history::Port,
    policy::{OnTake, State, Unread, on_take},
    replay::{Lookahead, ReplayPosition, Stop, Total},
    shared::Shared,
};
use crate::sync::Mutex;

/// Queue of a cursor.
#[derive(Debug)]
pub(super) struct Queue<F: Frame> {
    shared: Arc<Shared<F>>,
    kind: Arc<Kind<F>>,
    port: Arc<Port>,
    options: QueueOptions,
    inner: Mutex<Inner>,
}

#[derive(Debug)]
struct Inner {
    state: State,
    /// Position up to which the reader has taken.
    at: ReplayPosition,
    /// `None` if nothing beyond the reader's position was evaluated, or while a thread works on it.
    lookahead: Option<Box<Lookahead>>,
    /// Offset that the lookahead has reached.
    reached: u64,
    /// While a thread works on the lookahead: the number of events, and of suppressed changes, that the reader has taken meanwhile.
    taken_meanwhile: Option<(u64, u64)>,
    /// True if a thread will work on it, or does.
    is_queued: bool,
    /// Size of what has merged, and of what is delivered.
    merged: Size,
    delivered: Size,
    /// Number of events that the reader has lost and was not handed yet.
    losses: u64,
    waker: Option<Waker>,
    /// Set if the writer may wait for the reader.
    right: Option<BlockRight>,
}

/// Right of a reader to hold the writer back.
#[derive(Debug)]
struct BlockRight {
    /// Number of events that it must read before the writer may wait for it again.
    left_to_read: u64,
    /// True if the writer has gone on while a thread counts: if the queue was full, it does not wait for it until it has read.
    is_passed: bool,
    /// Number of events of its kind up to its position, and up to a published offset, if they were counted.
    read: Option<Total>,
    published: Option<(u64, Total)>,
    /// Budget of its client.
    budget: Arc<SharedBudget>,
}

/// Next step of a cursor.
#[derive(Debug)]
pub(super) enum Turn {
    /// It reads, up to an offset.
    Read(u64),
    /// It continues at a position, and this many events are lost; and so many changes before it were suppressed.
    Moved {
        to: ReplayPosition,
        lost: u64,
        suppressed: u64,
    },
    /// It delivers what has merged, and continues after that.
    Deliver(Box<DrainingGeneration>),
    Ended(End),
}

/// Outcome of a take from a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Read {
    Noted,
    /// The same, and the caller has to wake the writer.
    Frees,
    /// That has begun to merge since the reader's turn was decided: it takes nothing, and polls for its next turn.
    Refused,
}

/// Number of changes that a reader evaluates at a time.
const SLICE_CHANGES: usize = 1024;

// === impl Queue ===

impl<F: Frame> Queue<F> {
    pub(super) fn new(
        shared: Arc<Shared<F>>,
        kind: Arc<Kind<F>>,
        port: Arc<Port>,
        options: QueueOptions,
        at: ReplayPosition,
        state: State,
        budget: Option<Arc<SharedBudget>>,
    ) -> Self {
        let right = budget.map(|budget| BlockRight {
            left_to_read: options.length.max(1) as u64,
            is_passed: false,
            read: None,
            published: None,
            budget,
        });
        let inner = Inner {
            state,
            reached: at.offset,
            lookahead: None,
            at,
            taken_meanwhile: None,
            is_queued: false,
            merged: Size::default(),
            delivered: Size::default(),
            losses: 0,
            waker: None,
            right,
        };
        Self { shared, kind, port, options, inner: Mutex::new(inner) }
    }

    fn length(&self) -> u64 {
        self.options.length.max(1) as u64
    }

    /// Returns the offset up to which the reader has read; `None` if that is everything.
    fn read_up_to(&self, inner: &Inner) -> Option<u64> {
        self.port.position().map(|read| read.max(inner.at.offset))
    }

    /// Returns what is unread up to a published offset.
    fn unread(&self, inner: &Inner, head: u64) -> Unread {
        let at = self.read_up_to(inner).unwrap_or(head);
        let changes = head.saturating_sub(at);
        let counted =
            || inner.lookahead.as_ref().filter(|ahead| ahead.position.offset >= head).map(|ahead| ahead.events);
        let shared = || inner.right.as_ref().and_then(|right| right.counted(head));
        let events = if changes == 0 { Some(0) } else { shared().or_else(counted) };
        Unread { at, changes, events, length: self.length() }
    }

    /// Ends the time in which every policy behaves as REPLAY.
    pub(super) fn go_live(&self) {
        if let State::CatchingUp { has_initial_events } = &mut self.inner.lock().state {
            *has_initial_events = false;
        }
    }

    /// Lets the policy act from now on, if the initial events are delivered: the reader has had everything.
    pub(super) fn has_caught_up(&self) {
        let mut inner = self.inner.lock();
        if let State::CatchingUp { has_initial_events: false } = inner.state {
            inner.state = State::Live;
            match self.read_up_to(&inner) {
                // Something that concerns it has come meanwhile.
                Some(at) => self.acts_from(&inner, at),
                None => self.look_again(&inner, inner.at.offset),
            }
        }
    }

    /// Decides the next step of the reader, which has delivered everything that it took.
    pub(super) fn poll_turn(self: &Arc<Self>, cx: &Context<'_>, head: u64) -> Poll<Turn> {
        let mut guard = self.inner.lock();
        loop {
            let inner = &mut *guard;
            inner.delivered = Size::default();
            let unread = self.unread(inner, head);
            match on_take(self.options.policy, &inner.state, &unread) {
                OnTake::GoLive => {
                    inner.state = State::Live;
                    self.acts_from(inner, unread.at);
                }
                OnTake::Read => return Poll::Ready(Turn::Read(u64::MAX)),
                OnTake::ReadUntil(until) => return Poll::Ready(Turn::Read(until)),
                OnTake::Freeze => {
                    let Some(full_at) = inner.lookahead.as_ref().and_then(|ahead| ahead.full_at) else {
                        return Poll::Ready(Turn::Read(u64::MAX));
                    };
                    inner.state = State::Frozen { until: full_at, left: unread.length };
                }
                OnTake::Merge => inner.begin_merge(unread.at),
                OnTake::Count | OnTake::Drop | OnTake::Deliver if inner.is_at_thread() => {
                    inner.waker = Some(cx.waker().clone());
                    return Poll::Pending;
                }
                OnTake::Count if self.leaves_to_threads() => {
                    inner.waker = Some(cx.waker().clone());
                    let must_push = !std::mem::replace(&mut inner.is_queued, true);
                    drop(guard);
                    if must_push {
                        self.push();
                    }
                    return Poll::Pending;
                }
                OnTake::Count => match self.look(inner, head, SLICE_CHANGES) {
                    Ok(true) => {}
                    Ok(false) => {
                        cx.waker().wake_by_ref();
                        return Poll::Pending;
                    }
                    Err(stop) => self.stop(inner, stop),
                },
                OnTake::Drop => {
                    let Some(ahead) = inner.lookahead() else { return Poll::Pending };
                    let (lost, suppressed, to) = (ahead.events, ahead.suppressed, ahead.position.clone());
                    inner.lookahead = None;
                    (inner.at, inner.state, inner.losses) = (to.clone(), State::Live, 0);
                    return Poll::Ready(Turn::Moved { to, lost, suppressed });
                }
                OnTake::Deliver => {
                    let ready = match &mut inner.state {
                        State::Merging { ready } => ready.take(),
                        _ => None,
                    };
                    let Some(ahead) = inner.lookahead() else { return Poll::Pending };
                    let ready = ready.unwrap_or_else(|| ahead.take_merged::<F>(&self.kind.format));
                    let has_more = ahead.position.offset > ready.position().offset;
                    inner.at.clone_from(ready.position());
                    if !has_more {
                        inner.lookahead = None;
                        inner.state = State::Live;
                    }
                    self.measure(inner);
                    inner.delivered = ready.size();
                    return Poll::Ready(Turn::Deliver(ready));
                }
                OnTake::End(end) => return Poll::Ready(Turn::Ended(end)),
            }
        }
    }

    /// Records what the reader takes, and the suppressed changes among it, unless that has begun to merge since its turn. The writer may
    /// wait for the reader once that is enough, and continues once its queue is at most half full again.
    pub(super) fn note_read(&self, at: &ReplayPosition, events: u64, suppressed: u64) -> Read {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        if matches!(inner.state, State::Merging { .. }) {
            return Read::Refused;
        }
        inner.at.clone_from(at);
        match &mut inner.lookahead {
            Some(ahead) if ahead.position.offset > at.offset => ahead.pass(events, suppressed, self.length()),
            ahead => *ahead = None,
        }
        if let Some(taken) = &mut inner.taken_meanwhile {
            *taken = (taken.0 + events, taken.1 + suppressed);
        }
        if let State::Frozen { left, .. } = &mut inner.state {
            *left = left.saturating_sub(events);
        }
        let Some(right) = &mut inner.right else { return Read::Noted };
        if let Some(read) = &mut right.read {
            read.add(events);
        }
        let could_not_block = right.left_to_read > 0;
        right.left_to_read = right.left_to_read.saturating_sub(events);
        if could_not_block && right.left_to_read == 0 {
            self.acts_from(inner, at.offset);
        }
        if !matches!(inner.state, State::Blocking) {
            return Read::Noted;
        }
        let Unread { changes, events, length, .. } = self.unread(inner, self.shared.past.head());
        let is_freed = events.unwrap_or(changes) <= length / 2 && self.unblock(inner, Instant::now());
        if is_freed { Read::Frees } else { Read::Noted }
    }

    /// Lets the history keep what the queue needs, of which the policy acts from now on.
    fn acts_from(&self, inner: &Inner, at: u64) {
        self.shared.past.history().lock().keep_also_from(at);
        self.look_again(inner, at);
    }

    /// Lets the writer look at the queue when it may be full, if the writer may wait for it.
    fn look_again(&self, inner: &Inner, at: u64) {
        if inner.may_block() && matches!(inner.state, State::Live) {
            self.shared.signals.look_at(at.saturating_add(self.length()));
        }
    }

    fn leaves_to_threads(&self) -> bool {
        self.kind.is_costly() && self.shared.blocks.threads().is_some()
    }

    /// Counts or merges further changes, at most `most`. Returns true if it has reached the offset.
    fn look(&self, inner: &mut Inner, head: u64, most: usize) -> Result<bool, Stop> {
        let at = self.read_up_to(inner).unwrap_or(head);
        let begin = ReplayPosition { offset: at, ..inner.at.clone() };
        let Some(ahead) = inner.lookahead() else { return Ok(false) };
        ahead.begin(begin);
        let mut left = most;
        let is_done = ahead.advance::<F>(&self.shared.past, self.kind.selected(), head, self.bounds(), || {
            left = left.saturating_sub(1);
            left == 0
        })?;
        self.measure(inner);
        Ok(is_done)
    }

    /// Returns the length of the queue, and the bytes that merged changes may take.
    fn bounds(&self) -> (u64, usize) {
        (self.length(), self.shared.config.coalesce_size)
    }

    /// Notes what others see of the lookahead.
    fn measure(&self, inner: &mut Inner) {
        if inner.is_at_thread() {
            return;
        }
        let ahead = inner.lookahead.as_deref();
        let events = ahead.map_or(0, |ahead| ahead.events);
        (inner.reached, inner.merged) =
            ahead.map_or((inner.at.offset, Size::default()), |ahead| (ahead.position.offset, ahead.size()));
        if let State::Merging { ready: Some(ready) } = &inner.state {
            inner.merged = inner.merged.plus(ready.size());
        }
        inner.losses = match inner.state {
            State::Frozen { left, .. } => events.saturating_sub(left),
            State::Live if self.options.policy == FullChannelPolicy::Drop => events.saturating_sub(self.length()),
            _ => 0,
        };
    }

    /// Ends the queue before the others, unless it has ended.
    fn stop(&self, inner: &mut Inner, stop: Stop) {
        inner.lookahead = None;
        inner.merged = Size::default();
        if matches!(inner.state, State::Ended(_)) {
            return;
        }
        let stats = &self.shared.stats;
        let counter = if stop == Stop::TooLarge { &stats.overmerged } else { &stats.expired };
        counter.fetch_add(1, Ordering::Relaxed);
        inner.state = State::Ended(End::Expired { oldest: self.shared.oldest() });
    }

    /// Returns the number of events that wait, as far as they were counted, or of changes.
    pub(super) fn lag(&self) -> u64 {
        let unread = self.unread(&self.inner.lock(), self.shared.past.head());
        unread.events.unwrap_or(unread.changes)
    }

    /// Returns the state for operators.
    pub(super) fn state(&self) -> CursorState {
        let inner = self.inner.lock();
        let Inner { merged, delivered, .. } = *inner;
        match inner.state {
            State::Frozen { .. } => CursorState::Frozen,
            State::Blocking => CursorState::Blocking,
            State::CatchingUp { .. } | State::Live | State::Ended(_) if delivered == Size::default() => {
                CursorState::Following
            }
            State::Merging { .. } | State::CatchingUp { .. } | State::Live | State::Ended(_) => {
                let Size { entries, bodies, .. } = merged.plus(delivered);
                CursorState::Coalescing { entries, bodies }
            }
        }
    }

    /// Returns the number of events that were lost under DROP and not handed to the reader.
    pub(super) fn losses(&self) -> u64 {
        self.inner.lock().losses
    }

    /// Returns true while the policy discards or merges what is unread: the history need not keep that.
    pub(super) fn is_acting(&self) -> bool {
        matches!(self.inner.lock().state, State::Frozen { .. } | State::Merging { .. })
    }

    /// Returns true if it was evicted under BLOCK.
    pub(super) fn is_evicted(&self) -> bool {
        matches!(self.inner.lock().state, State::Ended(End::SlowConsumer))
    }
}

// === impl BlockRight ===

impl BlockRight {
    /// Returns the number of unread events up to a published offset, if they were counted for all of its kind.
    fn counted(&self, head: u64) -> Option<u64> {
        let (_, published) = self.published.filter(|(offset, _)| *offset == head)?;
        published.after(self.read?)
    }
}

// === impl Inner ===

impl Inner {
    fn begin_merge(&mut self, at: u64) {
        let ahead = Lookahead::merging(ReplayPosition { offset: at, ..self.at.clone() });
        (self.reached, self.lookahead, self.state) = (at, Some(Box::new(ahead)), State::Merging { ready: None });
    }

    fn is_at_thread(&self) -> bool {
        self.taken_meanwhile.is_some()
    }

    /// Returns the lookahead, which begins at the reader's position; `None` while a thread works on it.
    fn lookahead(&mut self) -> Option<&mut Lookahead> {
        let Self { lookahead, at, taken_meanwhile, .. } = self;
        let lookahead = taken_meanwhile.is_none().then_some(lookahead)?;
        Some(lookahead.get_or_insert_with(|| Box::new(Lookahead::at(at.clone()))))
    }

    /// Returns true if the reader waits for what merges.
    fn waits_for_merge(&self) -> bool {
        self.waker.is_some() && matches!(self.state, State::Merging { ready: None })
    }

    /// Returns true if the reader has read enough for the writer to wait for it.
    fn may_block(&self) -> bool {
        self.right.as_ref().is_some_and(|right| right.left_to_read == 0)
    }
}
