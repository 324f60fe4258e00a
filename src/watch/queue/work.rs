//! Work of threads for a queue: to count or merge, in pieces, for its reader or before the history drops changes.

use std::{sync::Arc, task::Waker};

use tokio::time::Instant;

use super::Queue;
use crate::watch::{
    End, Frame, FullChannelPolicy,
    bulk::{Work, guarded},
    coalesce::DrainingGeneration,
    policy::{State, Unread},
    replay::{Lookahead, ReplayPosition, Stop},
};

/// Result of a piece of work.
struct Worked {
    is_done: bool,
    /// Merged changes, if the reader waits for them.
    merged: Option<Box<DrainingGeneration>>,
}

/// Time of one piece of work of a thread, in nanoseconds.
const SLICE: u64 = 500_000;

// === impl Queue ===

impl<F: Frame> Queue<F> {
    pub(super) fn push(self: &Arc<Self>) {
        match self.shared.blocks.threads() {
            Some(threads) => threads.push(Arc::<Self>::clone(self)),
            None => while self.work(|| false) {},
        }
    }

    /// Does a piece of work, until `is_over`. Returns true if there is more.
    pub(in crate::watch) fn work(self: &Arc<Self>, is_over: impl FnMut() -> bool) -> bool {
        let head = self.shared.past.head();
        let mut ahead = {
            let mut inner = self.inner.lock();
            if inner.is_at_thread() {
                return false;
            }
            let Some(at) = self.read_up_to(&inner) else {
                // The reader has everything that concerned it; what was published since is not checked for it yet.
                inner.is_queued = false;
                return false;
            };
            inner.taken_meanwhile = Some((0, 0));
            let begin = ReplayPosition { offset: at, ..inner.at.clone() };
            let mut ahead = inner.lookahead.take().unwrap_or_else(|| Box::new(Lookahead::at(begin.clone())));
            ahead.begin(begin);
            ahead
        };
        let worked = guarded(|| {
            let is_done = ahead.advance::<F>(&self.shared.past, self.kind.selected(), head, self.bounds(), is_over)?;
            let is_wanted = is_done && self.inner.lock().waits_for_merge();
            let merged = is_wanted.then(|| ahead.take_merged::<F>(&self.kind.format));
            Ok(Worked { is_done, merged })
        });
        let (has_more, is_freed, waker) = self.put_back(ahead, worked);
        if is_freed {
            self.shared.signals.free();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
        has_more
    }

    /// Puts a lookahead back. Returns true if there is more to do, if the writer has to be woken, and the waker of the reader.
    fn put_back(&self, mut ahead: Box<Lookahead>, worked: Option<Result<Worked, Stop>>) -> (bool, bool, Option<Waker>) {
        let mut inner = self.inner.lock();
        let inner = &mut *inner;
        let (taken, suppressed) = inner.taken_meanwhile.take().unwrap_or_default();
        let at = self.read_up_to(inner).unwrap_or(u64::MAX);
        let is_outdated = ahead.position.offset < at;
        if !is_outdated {
            // The history may have dropped what it has counted: nobody can count that again.
            ahead.pass(taken, suppressed, self.length());
            inner.lookahead = Some(ahead);
        }
        let (mut has_more, mut is_freed) = (false, false);
        // What the reader has read meanwhile may be gone, and what it would have merged is not.
        let must_repeat = is_outdated && matches!(worked, Some(Err(_)));
        if !must_repeat && !matches!(worked, Some(Ok(_))) {
            is_freed = self.unblock(inner, Instant::now());
        }
        match worked {
            Some(Err(_)) if must_repeat => has_more = true,
            Some(Ok(Worked { is_done, merged })) => {
                if let (State::Merging { ready }, Some(merged)) = (&mut inner.state, merged.filter(|_| !is_outdated)) {
                    *ready = Some(merged);
                }
                self.measure(inner);
                // The writer may wait for what was published meanwhile.
                let is_behind = inner.reached < self.shared.past.head();
                has_more = !is_done || is_behind && matches!(inner.state, State::Blocking);
                self.note_counted(inner, is_done);
            }
            Some(Err(stop)) => self.stop(inner, stop),
            None => {
                inner.state = State::Ended(End::Failed);
                inner.lookahead = None;
            }
        }
        inner.is_queued = has_more;
        let Unread { changes, events, length, .. } = self.unread(inner, self.shared.past.head());
        let has_room = !has_more && events.unwrap_or(changes) < length;
        is_freed |= has_room && self.unblock(inner, Instant::now());
        (has_more, is_freed, if has_more { None } else { inner.waker.take() })
    }

    /// Returns the offset from which on the queue needs changes that are not counted or merged; `u64::MAX` if it needs none. If that
    /// is before `limit`, from where on the history can keep them, what waits is lost or merges now.
    pub(in crate::watch) fn needs(self: &Arc<Self>, limit: u64) -> u64 {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        let Some(at) = self.read_up_to(inner) else { return u64::MAX };
        let is_dropping = self.options.policy == FullChannelPolicy::Drop;
        if is_dropping && at < limit && matches!(inner.state, State::Live | State::Frozen { .. }) {
            inner.state = State::Frozen { until: at, left: 0 };
        }
        let needed = match inner.state {
            State::Merging { .. } => inner.reached.max(at),
            State::Frozen { until, .. } if at >= until => inner.reached.max(at),
            State::Frozen { .. } => at,
            State::Live if is_dropping || self.options.policy == FullChannelPolicy::Coalesce => at,
            // The writer waits for it, or may with the next batch.
            State::Live | State::Blocking if inner.may_block() => return at,
            State::Live | State::CatchingUp { .. } | State::Blocking | State::Ended(_) => return u64::MAX,
        };
        if needed >= limit {
            return needed;
        }
        if matches!(inner.state, State::Live) {
            if inner.is_at_thread() {
                // A thread still counts what will merge.
                return needed;
            }
            inner.begin_merge(at);
        }
        if !std::mem::replace(&mut inner.is_queued, true) {
            drop(guard);
            self.push();
        }
        needed
    }

    /// Counts the losses of a reader that takes nothing.
    pub(in crate::watch) fn count_losses(self: &Arc<Self>) {
        let mut guard = self.inner.lock();
        let unread = self.unread(&guard, self.shared.past.head());
        let is_losing = match guard.state {
            State::Frozen { .. } => true,
            State::Live => self.options.policy == FullChannelPolicy::Drop && unread.changes > unread.length,
            _ => false,
        };
        if is_losing && unread.events.is_none() && !std::mem::replace(&mut guard.is_queued, true) {
            drop(guard);
            self.push();
        }
    }
}

impl<F: Frame> Work for Queue<F> {
    fn run(self: Arc<Self>) {
        let Some(threads) = self.shared.blocks.threads() else { return };
        let clock = threads.clock();
        let until = clock.now().saturating_add(SLICE);
        if self.work(|| clock.now() >= until) {
            self.push();
        }
    }
}
