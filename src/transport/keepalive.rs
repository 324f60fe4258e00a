//! Keepalive pings, which detect connections whose peer has vanished.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep};

/// Sender of pings, which waits for their answers.
pub(super) struct KeepAlive {
    pings: PingPong,
    timer: Pin<Box<Sleep>>,
    is_awaited: bool,
}

/// Time between an answer and the next ping.
const INTERVAL: Duration = Duration::from_secs(30);
/// Maximum time for an answer.
const TIMEOUT: Duration = Duration::from_secs(20);

// === impl KeepAlive ===

impl KeepAlive {
    pub(super) fn new(pings: PingPong) -> Self {
        Self { pings, timer: Box::pin(tokio::time::sleep(INTERVAL)), is_awaited: false }
    }

    /// Returns ready once for each ping without an answer in time.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if self.is_awaited && self.pings.poll_pong(cx).is_ready() {
                self.wait(INTERVAL, false);
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if self.is_awaited {
                self.wait(INTERVAL, false);
                return Poll::Ready(());
            }
            // Fails when the connection is about to end.
            match self.pings.send_ping(Ping::opaque()) {
                Ok(()) => self.wait(TIMEOUT, true),
                Err(_) => self.wait(INTERVAL, false),
            }
        }
    }

    /// Closes the connection after this time, unless its client answers a ping meanwhile.
    pub(super) fn close_after(&mut self, timeout: Duration) {
        self.wait(timeout, true);
    }

    fn wait(&mut self, period: Duration, is_awaited: bool) {
        self.timer.as_mut().reset(Instant::now() + period);
        self.is_awaited = is_awaited;
    }
}
