//! Streams whose clients take nothing of what is to be sent: they are reset after a time.
//!
//! A stream waits from the moment that it has something to send and cannot, until a byte of it is written. It is listed when it
//! begins to wait, and stays listed until a look finds that it waits no more: so a busy stream is listed once for each look, and
//! when no stream waits there is no timer.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use tokio::time::{Instant, Sleep};

use super::handle::WaitingStreams;

/// Resets the streams of a connection that wait for too long.
#[derive(Debug)]
pub(super) struct Stalled {
    timeout: Duration,
    /// While there are any that wait.
    timer: Option<Pin<Box<Sleep>>>,
}

/// The connection looks so often in the time after which a stream is reset.
const LOOKS: u32 = 8;

// === impl Stalled ===

impl Stalled {
    pub(super) fn new(timeout: Duration) -> Self {
        Self { timeout, timer: None }
    }

    /// Looks at the streams that wait when it is time, and resets those that have waited for too long. Returns their number.
    pub(super) fn poll(&mut self, waiting: &WaitingStreams, cx: &mut Context<'_>) -> usize {
        let mut reset = 0;
        loop {
            if self.timer.is_none() {
                if !waiting.has_new() {
                    return reset;
                }
                self.timer = Some(Box::pin(tokio::time::sleep(self.timeout / LOOKS)));
            }
            let Some(Poll::Ready(())) = self.timer.as_mut().map(|timer| timer.as_mut().poll(cx)) else { return reset };
            self.timer = None;
            let (stalled, are_none_left) = waiting.reset_stalled(Instant::now(), self.timeout);
            reset += stalled;
            if !are_none_left {
                self.timer = Some(Box::pin(tokio::time::sleep(self.timeout / LOOKS)));
            }
        }
    }
}
