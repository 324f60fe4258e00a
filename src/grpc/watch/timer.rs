//! Timer of the bookmarks of a silent watch, which show its client that no events are missing.

use std::{
    pin::Pin,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::time::{Instant, Sleep};

/// Timer of a watch's bookmarks. Polling a runtime timer costs more than handing out an event, and a busy watch waits after each
/// event: so the runtime timer is polled once per waker and interval.
#[derive(Debug)]
pub(super) struct BookmarkTimer {
    interval: Duration,
    due: Pin<Box<Sleep>>,
    /// Waker that the runtime timer will wake.
    registered_waker: Option<Waker>,
    /// True if the first bookmark is due at once.
    is_due: bool,
}

// === impl BookmarkTimer ===

impl BookmarkTimer {
    /// Creates a timer that is due after the interval, or else at once.
    pub(super) fn new(interval: Duration, is_due: bool) -> Self {
        Self { interval, due: Box::pin(tokio::time::sleep(interval)), registered_waker: None, is_due }
    }

    /// Returns ready if the timer is due, and stays ready until [`reset`](Self::reset).
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_due {
            return Poll::Ready(());
        }
        let is_asked = self.registered_waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        if is_asked && !self.due.is_elapsed() {
            return Poll::Pending;
        }
        let due = self.due.as_mut().poll(cx);
        self.registered_waker = due.is_pending().then(|| cx.waker().clone());
        due
    }

    /// Resets the timer: it is due one interval from now.
    pub(super) fn reset(&mut self) {
        self.due.as_mut().reset(Instant::now() + self.interval);
        self.registered_waker = None;
        self.is_due = false;
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn the_timer_wakes_the_waker_that_polled_it_last() {
        let mut timer = BookmarkTimer::new(INTERVAL, false);
        let (mut first, mut last) = (task::spawn(()), task::spawn(()));
        for _ in 0..2 {
            first.enter(|cx, _| assert_pending!(timer.poll(cx)));
            for _ in 0..3 {
                last.enter(|cx, _| assert_pending!(timer.poll(cx)));
            }
            tokio::time::sleep(INTERVAL.checked_sub(Duration::from_millis(2)).unwrap()).await;
            last.enter(|cx, _| assert_pending!(timer.poll(cx)));
            assert!(!last.is_woken());
            tokio::time::sleep(Duration::from_millis(4)).await;
            assert_eq!((first.is_woken(), last.is_woken()), (false, true));
            last.enter(|cx, _| assert_ready!(timer.poll(cx)));
            timer.reset();
        }
    }
}
