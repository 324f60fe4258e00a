//! Timer of the bookmarks of a silent watch, which show its client that no events are missing.

use std::{
    pin::{Pin, pin},
    task::{Context, Poll, Waker},
    time::Duration,
};

use tokio::{
    task::coop::unconstrained,
    time::{Instant, Sleep},
};

/// Shortest bookmark interval; more frequent bookmarks would cost more than they are worth.
pub(super) const MIN_BOOKMARK_INTERVAL: Duration = Duration::from_millis(100);

/// Timer of a watch's bookmarks. Polling a runtime timer costs more than handing out an event, and a busy watch waits after each
/// event: so the runtime timer is polled once per waker and interval.
#[derive(Debug)]
pub(in crate::grpc) struct BookmarkTimer {
    interval: Duration,
    /// Time from which it is due at multiples of the interval, as all timers of a stream with this interval are.
    aligned_to: Option<Instant>,
    due: Pin<Box<Sleep>>,
    /// Waker that the runtime timer will wake.
    registered_waker: Option<Waker>,
    /// True if the first bookmark is due at once.
    is_due: bool,
}

// === impl BookmarkTimer ===

impl BookmarkTimer {
    /// Creates a timer that is due after the interval, or else at once.
    pub(in crate::grpc) fn new(interval: Duration, aligned_to: Option<Instant>, is_due: bool) -> Self {
        let due = Box::pin(tokio::time::sleep_until(next(interval, aligned_to)));
        Self { interval, aligned_to, due, registered_waker: None, is_due }
    }

    /// Returns the interval.
    pub(super) fn interval(&self) -> Duration {
        self.interval
    }

    /// Returns true if the timer is due.
    pub(in crate::grpc) fn is_due(&self) -> bool {
        self.is_due || self.due.deadline() <= Instant::now()
    }

    /// Returns ready if the timer is due, and stays ready until [`reset`](Self::reset).
    pub(in crate::grpc) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_due {
            return Poll::Ready(());
        }
        let is_asked = self.registered_waker.as_ref().is_some_and(|waker| waker.will_wake(cx.waker()));
        if is_asked && !self.due.is_elapsed() {
            return Poll::Pending;
        }
        // A task that has used up its budget would be woken at once, and the waker not be registered with the timer.
        let due = pin!(unconstrained(self.due.as_mut())).poll(cx);
        self.registered_waker = due.is_pending().then(|| cx.waker().clone());
        due
    }

    /// Resets the timer: it is due one interval from now, or earlier if it is aligned.
    pub(in crate::grpc) fn reset(&mut self) {
        self.due.as_mut().reset(next(self.interval, self.aligned_to));
        self.registered_waker = None;
        self.is_due = false;
    }
}

/// Returns the time at which a timer is due next.
fn next(interval: Duration, aligned_to: Option<Instant>) -> Instant {
    let now = Instant::now();
    let Some(began) = aligned_to else { return now + interval };
    let since = now.saturating_duration_since(began);
    let past = since.as_nanos() % interval.as_nanos().max(1);
    now + interval - Duration::from_nanos(u64::try_from(past).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use tokio::task::coop::{has_budget_remaining, poll_proceed};
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;

    const INTERVAL: Duration = Duration::from_secs(30);

    #[tokio::test(start_paused = true)]
    async fn the_timer_wakes_the_waker_that_polled_it_last() {
        let mut timer = BookmarkTimer::new(INTERVAL, None, false);
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

    /// A connection polls many watches at a time: bookmarks that are due use up the budget of its task.
    #[tokio::test(start_paused = true)]
    async fn timers_wake_that_were_polled_by_a_task_without_budget() {
        let mut timers: Vec<_> = (0..10).map(|_| BookmarkTimer::new(INTERVAL, None, false)).collect();
        let mut watches: Vec<_> = timers.iter().map(|_| task::spawn(())).collect();
        while has_budget_remaining() {
            // Each bookmark that is sent uses up a part.
            assert_ready!(task::spawn(()).enter(|cx, _| poll_proceed(cx))).made_progress();
        }
        for (timer, watch) in timers.iter_mut().zip(&mut watches) {
            watch.enter(|cx, _| assert_pending!(timer.poll(cx)));
        }
        // A poll without budget wakes its task at once: that must not be all it gets.
        tokio::task::yield_now().await;
        for (timer, watch) in timers.iter_mut().zip(&mut watches) {
            watch.enter(|cx, _| assert_pending!(timer.poll(cx)));
        }
        tokio::time::sleep(INTERVAL + Duration::from_millis(1)).await;
        assert_eq!(watches.iter().filter(|watch| !watch.is_woken()).count(), 0, "not woken");
    }

    #[tokio::test(start_paused = true)]
    async fn aligned_timers_are_due_together() {
        let (mut timers, began) = (Vec::new(), Instant::now());
        for _ in 0..10 {
            timers.push(BookmarkTimer::new(INTERVAL, Some(began), false));
            tokio::time::sleep(INTERVAL / 20).await;
        }
        let due = timers[0].due.deadline();
        assert!(timers.iter().all(|timer| timer.due.deadline() == due || timer.due.deadline() == due + INTERVAL));
        tokio::time::sleep(INTERVAL).await;
        timers.iter_mut().for_each(BookmarkTimer::reset);
        let due: Vec<_> = timers.iter().map(|timer| timer.due.deadline()).collect();
        assert!(due.iter().all(|at| *at == due[0] && *at <= Instant::now() + INTERVAL), "{due:?}");
    }
}
