//! Rate limit for log lines that other programs can cause: one of each kind in ten seconds, with the number of events.

use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

#[cfg(test)]
pub(crate) mod test_log;

/// Rate limit for log lines of one kind.
#[derive(Debug, Default)]
pub(crate) struct LogThrottle(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    last: Option<Instant>,
    /// Number of events since the last line.
    held_back: u64,
}

/// Least time between two lines.
const INTERVAL: Duration = Duration::from_secs(10);

// === impl LogThrottle ===

impl LogThrottle {
    pub(crate) const fn new() -> Self {
        Self(Mutex::new(State { last: None, held_back: 0 }))
    }

    /// Counts an event. If a line is due, returns the number of events since the last one.
    pub(crate) fn poll(&self) -> Option<u64> {
        let mut state = self.0.lock();
        state.held_back += 1;
        if state.last.is_some_and(|last| last.elapsed() < INTERVAL) {
            return None;
        }
        state.last = Some(Instant::now());
        Some(std::mem::take(&mut state.held_back))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn repeated_log_lines_are_one_in_ten_seconds() {
        let log = LogThrottle::new();
        assert_eq!([log.poll(), log.poll(), log.poll()], [Some(1), None, None]);
        tokio::time::advance(INTERVAL).await;
        assert_eq!([log.poll(), log.poll()], [Some(3), None]);
    }
}
