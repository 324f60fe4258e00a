//! PINGs: they detect connections whose peer has vanished, and show how much of the data a client has received.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use h2::{Ping, PingPong};
use tokio::time::{Instant, Sleep};

use super::waiting::Received;

/// Sender of PINGs, which waits for their answers.
pub(super) struct KeepAlive {
    pings: PingPong,
    timer: Pin<Box<Sleep>>,
    /// Time and place in the data of the PING that is not answered yet.
    awaited: Option<(Instant, usize)>,
    received: Received,
}

/// Time between an answer and the next PING.
const INTERVAL: Duration = Duration::from_secs(30);
/// Maximum time for an answer, beside the time that a slow link needs for the data before it.
const TIMEOUT: Duration = Duration::from_secs(20);

// === impl KeepAlive ===

impl KeepAlive {
    pub(super) fn new(pings: PingPong) -> Self {
        let now = Instant::now();
        let received = Received { sent: now, at: now, written: 0 };
        Self { pings, timer: Box::pin(tokio::time::sleep(INTERVAL)), awaited: None, received }
    }

    /// Returns ready once for each PING without an answer in time. So many bytes of all streams were `written`.
    pub(super) fn poll(&mut self, written: usize, cx: &mut Context<'_>) -> Poll<()> {
        loop {
            if let Some((sent, written)) = self.awaited
                && self.pings.poll_pong(cx).is_ready()
            {
                self.received = Received { sent, at: Instant::now(), written };
                self.wait(INTERVAL, None);
            }
            if self.timer.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            if self.awaited.is_some() {
                self.wait(INTERVAL, None);
                return Poll::Ready(());
            }
            if !self.ping(written) {
                self.wait(INTERVAL, None);
            }
        }
    }

    /// Sends a PING, if none is on its way. Returns false if there is one, or if the connection is about to end. The connection must
    /// be polled then.
    pub(super) fn ping(&mut self, written: usize) -> bool {
        let is_sent = self.awaited.is_none() && self.pings.send_ping(Ping::opaque()).is_ok();
        if is_sent {
            self.wait(TIMEOUT + self.received.time_on_the_way(written), Some((Instant::now(), written)));
        }
        is_sent
    }

    /// Returns the last PING that was answered, or the start of the connection.
    pub(super) fn received(&self) -> Received {
        self.received
    }

    /// Closes the connection after this time, unless its client answers a PING meanwhile.
    pub(super) fn close_after(&mut self, timeout: Duration) {
        self.wait(timeout, Some((self.received.sent, self.received.written)));
    }

    fn wait(&mut self, period: Duration, awaited: Option<(Instant, usize)>) {
        self.timer.as_mut().reset(Instant::now() + period);
        self.awaited = awaited;
    }
}
