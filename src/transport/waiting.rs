//! Streams of a connection that wait, and the rule by which the one that stalls is found.
//!
//! A stream with data to send waits for one of two:
//!
//! - *Its own window is shut*: its client has not acknowledged the stream's own bytes. The stream is stalled after the timeout,
//!   whatever its neighbours do: a client that reads only some of its streams does not hold the others' memory.
//! - *Its own window is open*: it waits for its neighbours, which use the connection's window, the socket or the queue of large
//!   messages. It is not stalled while any byte of its connection is written; afterwards it has several times the timeout,
//!   because the end of those that hold it up makes room.
//!
//! In both cases the time begins when the client has received what was written before. The answer to a PING that was sent later
//! shows that; without one the client has had it after as long as [the slowest link](SLOWEST_LINK) needs for what may be on its
//! way. So a client that reads is not ended because of a slow link, whose buffers hold data for any length of time.

use std::time::Duration;

use tokio::time::Instant;

use super::handle::{StreamHandle, Waiting, WaitingStreams};

/// A waiting stream, as the ledger sees it.
#[derive(Debug)]
pub(super) struct LongWaiting {
    pub(super) stream: StreamHandle,
    /// Time at which it last made progress or began to wait, as far as the checks have seen it.
    pub(super) since: Instant,
}

/// Progress of a connection, at a check of its streams.
#[derive(Debug, Clone, Copy)]
pub(super) struct Link {
    pub(super) now: Instant,
    /// Time at which bytes of any stream were last written, as far as the checks have seen it.
    pub(super) moved: Instant,
    pub(super) received: Received,
    /// Bytes of all streams that were written.
    pub(super) written: usize,
}

/// Last PING that the client has answered: it had received everything that was written before.
#[derive(Debug, Clone, Copy)]
pub(super) struct Received {
    /// Time at which the PING was sent.
    pub(super) sent: Instant,
    /// Time of the answer.
    pub(super) at: Instant,
    /// Bytes of all streams that were written before the PING.
    pub(super) written: usize,
}

/// Result of checking all streams.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Checked {
    /// Number of streams that were reset.
    pub(super) stalled: usize,
    /// True if there are streams that wait.
    pub(super) is_any_left: bool,
    /// True if it is unknown how much the client has received: a PING must be sent.
    pub(super) needs_ping: bool,
}

/// Result of checking a stream.
enum CheckResult {
    Waits,
    /// It waits, and its client may not have received its last bytes.
    WaitsForLink,
    /// The stream does not wait any more.
    Left,
    /// The stream was reset.
    Stalled,
}

/// Slowest link whose clients are not ended, in bytes per second, if they do not answer a PING.
const SLOWEST_LINK: f64 = 16.0 * 1024.0;
/// Largest number of bytes that are taken to be on their way: what the kernel buffers for a connection.
const MAX_IN_FLIGHT: usize = 4 << 20;
/// Factor for the timeout of streams that wait for their neighbours: those are reset first, and make room.
const NEIGHBOURS_FACTOR: u32 = 2;
/// The same for those whose own bytes are all acknowledged: others come first.
const ACKNOWLEDGED_FACTOR: u32 = 3;

// === impl WaitingStreams ===

impl WaitingStreams {
    /// Checks the waiting streams, and records their progress.
    pub(super) fn check(&self, now: Instant, mut found: impl FnMut(LongWaiting)) {
        for waiting in &mut self.0.lock().streams {
            if let Some(stream) = waiting.stream.upgrade().map(StreamHandle) {
                let is_waiting = stream.is_waiting();
                waiting.note_progress(&stream, !is_waiting, now);
                if is_waiting {
                    found(LongWaiting { stream, since: waiting.since });
                }
            }
        }
    }

    /// Resets the streams that have waited for too long.
    pub(super) fn reset_stalled(&self, link: &Link, timeout: Duration) -> Checked {
        let mut checked = Checked::default();
        let mut listed = self.0.lock();
        listed.has_new = false;
        listed.streams.retain_mut(|waiting| match waiting.check(link, timeout) {
            CheckResult::Waits => true,
            CheckResult::WaitsForLink => {
                checked.needs_ping = true;
                true
            }
            CheckResult::Left => false,
            CheckResult::Stalled => {
                checked.stalled += 1;
                false
            }
        });
        listed.shrink();
        checked.is_any_left = !listed.streams.is_empty();
        checked
    }
}

// === impl Waiting ===

impl Waiting {
    /// Records the progress since the last check; `is_new` is true if the stream did not wait.
    fn note_progress(&mut self, stream: &StreamHandle, is_new: bool, now: Instant) {
        let written = stream.0.progress.written();
        if is_new || self.written != written {
            (self.since, self.written) = (now, written);
        }
    }

    fn check(&mut self, link: &Link, timeout: Duration) -> CheckResult {
        let Some(stream) = self.stream.upgrade().map(StreamHandle) else { return CheckResult::Left };
        let progress = &stream.0.progress;
        let is_new = !stream.is_waiting();
        if is_new {
            progress.end();
            // It may have begun to wait again before `end`, and then it did not add itself to the list.
            if !stream.is_waiting() || !progress.begin() {
                return CheckResult::Left;
            }
        }
        let was_paused = std::mem::replace(&mut self.was_paused, stream.is_paused());
        // While it was paused, its client had nothing to read.
        self.note_progress(&stream, is_new || (was_paused && !self.was_paused), link.now);
        if self.was_paused {
            return CheckResult::Waits;
        }
        let (since, factor) = match stream.is_window_shut() {
            true => (self.since, 1),
            false if stream.has_unacknowledged() => (self.since.max(link.moved), NEIGHBOURS_FACTOR),
            false => (self.since.max(link.moved), ACKNOWLEDGED_FACTOR),
        };
        let timeout = timeout * factor;
        let arrival = match self.received {
            Some((at, arrived)) if at == since => Arrival::Known(arrived),
            _ => link.arrival(since),
        };
        if let Arrival::Known(arrived) = arrival {
            self.received = Some((since, arrived));
        }
        match arrival {
            Arrival::Known(arrived) | Arrival::Estimated(arrived) if link.now >= arrived + timeout => {
                stream.stall();
                CheckResult::Stalled
            }
            Arrival::Estimated(_) if since < link.now => CheckResult::WaitsForLink,
            Arrival::Known(_) | Arrival::Estimated(_) => CheckResult::Waits,
        }
    }
}

/// Time at which the client has received everything that was written before another time.
enum Arrival {
    /// It has answered a PING since then.
    Known(Instant),
    Estimated(Instant),
}

// === impl Link ===

impl Link {
    fn arrival(&self, written_at: Instant) -> Arrival {
        if self.received.sent >= written_at {
            return Arrival::Known(self.received.at);
        }
        Arrival::Estimated(written_at + self.received.time_on_the_way(self.written))
    }
}

// === impl Received ===

impl Received {
    /// Returns the time that the slowest link needs for what was written since.
    pub(super) fn time_on_the_way(&self, written: usize) -> Duration {
        let in_flight = written.wrapping_sub(self.written).min(MAX_IN_FLIGHT);
        Duration::from_secs_f64(in_flight as f64 / SLOWEST_LINK)
    }
}

#[cfg(test)]
mod tests {
    use std::{future::Ready, sync::Arc};

    use super::*;
    use crate::transport::streams::Streams;

    #[test]
    fn streams_that_are_over_leave_the_list() {
        let (streams, waiting) = (Streams::<Ready<()>>::new(), WaitingStreams::default());
        let open: Vec<StreamHandle> = (0..100).map(|_| streams.handle()).collect();
        for stream in &open {
            waiting.push(stream);
        }
        for _ in 0..10_000 {
            waiting.push(&streams.handle());
        }
        let listed = waiting.0.lock();
        assert!((100..=200).contains(&listed.streams.len()), "{} streams", listed.streams.len());
        assert!(open.iter().all(|stream| listed.streams.iter().any(|it| it.stream.as_ptr() == Arc::as_ptr(&stream.0))));
        drop(listed);
        drop(open);
        let now = Instant::now();
        let received = Received { sent: now, at: now, written: 0 };
        waiting.reset_stalled(&Link { now, moved: now, received, written: 0 }, Duration::from_secs(30));
        let listed = waiting.0.lock();
        assert_eq!((listed.streams.len(), listed.streams.capacity() <= 16), (0, true));
    }
}
