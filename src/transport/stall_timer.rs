//! Reset of stalled streams, whose clients read nothing of the data to be sent. The rule is that of [`super::waiting`].
//!
//! A stream waits from the moment that it has data and cannot send it, until a byte of it is written. It is listed when it begins
//! to wait, and stays listed until a check finds that it does not wait any more: so a busy stream is listed once for each check,
//! and there is no timer while no stream waits.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep};

use super::{
    handle::ConnectionWakes,
    waiting::{Checked, Link, Received},
};

/// Timer that resets the streams of a connection that wait for too long.
#[derive(Debug)]
pub(super) struct StallTimer {
    timeout: Duration,
    /// Time of the next check; set while streams wait.
    timer: Option<Pin<Box<Sleep>>>,
    /// Bytes of all streams that were written at the last check, and the time at which they became more.
    moved: (usize, Instant),
}

/// Number of checks within the timeout of a stream.
const CHECKS_PER_TIMEOUT: u32 = 8;

// === impl StallTimer ===

impl StallTimer {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, timer: None, moved: (0, Instant::now()) }
    }

    /// Checks the waiting streams if it is time, and resets those that have waited for too long.
    pub(super) fn poll(&mut self, wakes: &ConnectionWakes, received: Received, cx: &mut Context<'_>) -> Checked {
        let mut all = Checked::default();
        loop {
            if self.timer.is_none() {
                if !wakes.waiting.has_new() {
                    return all;
                }
                self.set();
            }
            let Some(Poll::Ready(())) = self.timer.as_mut().map(|timer| timer.as_mut().poll(cx)) else { return all };
            self.timer = None;
            let (now, written) = (Instant::now(), wakes.written());
            if self.moved.0 != written {
                self.moved = (written, now);
            }
            let link = Link { now, moved: self.moved.1, received, written };
            let checked = wakes.waiting.reset_stalled(&link, self.timeout);
            all.stalled += checked.stalled;
            all.needs_ping |= checked.needs_ping;
            if checked.is_any_left {
                self.set();
            }
        }
    }

    /// Sets the timer for the next check.
    fn set(&mut self) {
        self.timer = Some(Box::pin(tokio::time::sleep(self.timeout / CHECKS_PER_TIMEOUT)));
    }
}
