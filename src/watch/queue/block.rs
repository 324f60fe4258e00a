//! BLOCK: when the writer waits for a queue, and when it stops waiting.

use std::{sync::Arc, time::Duration};

use tokio::time::Instant;

use super::{Inner, Queue};
use crate::watch::{
    End, Frame,
    policy::{OnFull, OnPublish, State, on_full, on_publish},
    replay::Stop,
};

// === impl Queue ===

impl<F: Frame> Queue<F> {
    /// Looks at a queue under BLOCK after an offset was published, with `left` of the resource's budget: the writer may have to
    /// wait for it.
    pub(in crate::watch) fn fill(self: &Arc<Self>, head: u64, left: Duration, now: Instant) {
        let mut guard = self.inner.lock();
        let inner = &mut *guard;
        loop {
            let unread = self.unread(inner, head);
            match on_publish(self.options.policy, &inner.state, &unread, inner.may_block()) {
                OnPublish::Nothing => return,
                OnPublish::HasRoom(changes) => return self.shared.signals.look_at(head.saturating_add(changes)),
                OnPublish::Count if !inner.is_at_thread() && !self.leaves_to_threads() => {
                    if let Err(stop) = self.count(inner, head) {
                        return self.stop(inner, stop);
                    }
                }
                // The writer waits for a thread as for the client, but nobody is ended who may not be full.
                OnPublish::Count => {
                    let is_passed = inner.right.as_ref().is_some_and(|right| right.is_passed);
                    if !is_passed && inner.may_wait(left, now) == OnFull::Block {
                        self.block(inner, left, now);
                    } else {
                        inner.set_passed(true);
                        self.shared.signals.look_at(head);
                    }
                    let must_push = !std::mem::replace(&mut inner.is_queued, true);
                    drop(guard);
                    if must_push {
                        self.push();
                    }
                    return;
                }
                OnPublish::Block => {
                    self.block(inner, left, now);
                    return;
                }
            }
        }
    }

    /// Counts the unread events, once for all queues of the kind, and those up to the reader's position once for each queue.
    fn count(&self, inner: &mut Inner, head: u64) -> Result<(), Stop> {
        let Self { kind, shared, .. } = self;
        let published = kind.counted.up_to::<F>(head, &shared.past, kind.selected(), &inner.at);
        if let Some(right) = &mut inner.right {
            right.published = published.map(|published| (head, published));
            if right.counted(head).is_some() {
                return Ok(());
            }
        }
        self.look(inner, head, usize::MAX)?;
        let unread = inner.lookahead.as_ref().map(|ahead| ahead.events);
        if let Some(right) = &mut inner.right {
            right.read = published.zip(unread).map(|(published, unread)| published.before(unread));
        }
        Ok(())
    }

    /// Lets the writer wait for the queue, if the budgets allow that.
    fn block(&self, inner: &mut Inner, left: Duration, now: Instant) {
        let follows = inner.may_wait(left, now);
        if follows != OnFull::Block {
            return self.refuse(inner, follows);
        }
        inner.state = State::Blocking;
        if let Some(right) = &inner.right {
            right.budget.begin(now);
        }
        self.shared.signals.block(now);
    }

    /// Stops waiting for a queue that still holds the writer back when the resource's budget is spent. If its client has
    /// spent its own budget too, what it holds is discarded. Its reader is not parked: the queue is full.
    pub(in crate::watch) fn give_up(&self, now: Instant) {
        let mut inner = self.inner.lock();
        if !matches!(inner.state, State::Blocking) {
            return;
        }
        self.unblock(&mut inner, now);
        let is_counted = self.unread(&inner, self.shared.past.head()).events.is_some();
        let is_full = inner.lookahead.as_ref().is_some_and(|ahead| ahead.events >= self.length());
        let follows = inner.may_wait(Duration::ZERO, now);
        self.refuse(&mut inner, if is_counted || is_full { follows } else { OnFull::Replay });
    }

    /// Notes what a thread has counted since the writer has gone on without that.
    pub(super) fn note_counted(&self, inner: &mut Inner, is_done: bool) {
        let is_full = inner.lookahead.as_ref().is_some_and(|ahead| ahead.events >= self.length());
        if is_full && inner.right.as_ref().is_some_and(|right| right.is_passed) {
            self.refuse(inner, OnFull::Replay);
        }
        if is_full || is_done {
            inner.set_passed(false);
        }
    }

    /// Serves a full queue as under REPLAY, or ends it.
    fn refuse(&self, inner: &mut Inner, follows: OnFull) {
        self.shared.signals.count(follows);
        match follows {
            OnFull::End => inner.state = State::Ended(End::SlowConsumer),
            OnFull::Block | OnFull::Replay => {
                if let Some(right) = &mut inner.right {
                    right.left_to_read = self.length();
                }
            }
        }
    }

    /// Stops the writer's wait for the queue, if any. Returns true if the caller has to wake the writer.
    pub(super) fn unblock(&self, inner: &mut Inner, now: Instant) -> bool {
        if !matches!(inner.state, State::Blocking) {
            return false;
        }
        inner.state = State::Live;
        if let Some(right) = &inner.right {
            right.budget.end(now);
        }
        self.look_again(inner, inner.at.offset);
        self.shared.signals.unblock(now)
    }

    /// Ends the queue, unless its client was evicted: its reader is gone. The writer may look at it once more.
    pub(in crate::watch) fn leave(&self) {
        if !self.is_evicted() {
            self.end(Some(&End::Stopped));
        }
    }

    /// Ends the queue, of which the history has begun anew; or only the wait for it, if the reader may read what was published. Wakes
    /// the reader.
    pub(in crate::watch) fn end(&self, end: Option<&End>) {
        let (is_freed, waker) = {
            let mut inner = self.inner.lock();
            let is_freed = self.unblock(&mut inner, Instant::now());
            if let Some(end) = end {
                inner.state = State::Ended(end.clone());
            }
            (is_freed, inner.waker.take())
        };
        if is_freed {
            self.shared.signals.free();
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

// === impl Inner ===

impl Inner {
    fn set_passed(&mut self, is_passed: bool) {
        if let Some(right) = &mut self.right {
            right.is_passed = is_passed;
        }
    }

    /// Decides if the writer may wait for the queue, with `left` of the resource's budget.
    fn may_wait(&self, left: Duration, now: Instant) -> OnFull {
        let budget_left = self.right.as_ref().map_or(Duration::ZERO, |right| right.budget.left(now));
        on_full(left, budget_left)
    }
}
