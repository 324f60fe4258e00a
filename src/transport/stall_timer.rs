//! Reset of stalled streams, whose clients read nothing of the data to be sent.
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

use super::handle::WaitingStreams;

/// Timer that resets the streams of a connection that wait for too long.
#[derive(Debug)]
pub(super) struct StallTimer {
    timeout: Duration,
    /// Time of the next check; set while streams wait.
    timer: Option<Pin<Box<Sleep>>>,
}

/// Number of checks within the timeout of a stream.
const CHECKS_PER_TIMEOUT: u32 = 8;

// === impl StallTimer ===

impl StallTimer {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, timer: None }
    }

    /// Checks the waiting streams if it is time, and resets those that have waited for too long. Returns their number.
    pub(super) fn poll(&mut self, waiting: &WaitingStreams, cx: &mut Context<'_>) -> usize {
        let mut reset = 0;
        loop {
            if self.timer.is_none() {
                if !waiting.has_new() {
                    return reset;
                }
                self.timer = Some(Box::pin(tokio::time::sleep(self.timeout / CHECKS_PER_TIMEOUT)));
            }
            let Some(Poll::Ready(())) = self.timer.as_mut().map(|timer| timer.as_mut().poll(cx)) else { return reset };
            self.timer = None;
            let (stalled, are_none_left) = waiting.reset_stalled(Instant::now(), self.timeout);
            reset += stalled;
            if !are_none_left {
                self.timer = Some(Box::pin(tokio::time::sleep(self.timeout / CHECKS_PER_TIMEOUT)));
            }
        }
    }
}
