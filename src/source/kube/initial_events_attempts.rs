//! Attempts to read the initial events of a watch.

use std::time::Duration;

use tokio::time::Instant;

/// Record of attempts. A failure concerns the API server of that connection: the next connection gets another attempt. After a
/// second failure there is one attempt every 10 minutes.
#[derive(Debug, Default)]
pub(super) struct InitialEventsAttempts {
    failures: u32,
    retry_at: Option<Instant>,
}

const RETRY_AFTER: Duration = Duration::from_secs(600);

// === impl InitialEventsAttempts ===

impl InitialEventsAttempts {
    /// Returns true if the source should request initial events now.
    pub(super) fn are_worthwhile(&self) -> bool {
        self.retry_at.is_none_or(|at| Instant::now() >= at)
    }

    /// Records that the initial events were read to their end.
    pub(super) fn succeeded(&mut self) {
        *self = Self::default();
    }

    /// Records that the API refused them, or did not end them in time.
    pub(super) fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
        self.retry_at = Some(Instant::now() + RETRY_AFTER);
    }

    /// Records that the next request uses another connection, perhaps to another API server.
    pub(super) fn has_new_connection(&mut self) {
        if self.failures <= 1 {
            self.retry_at = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_tried_again_at_the_next_connection_and_then_every_tenth_minute() {
        let mut initial = InitialEventsAttempts::default();
        assert!(initial.are_worthwhile());
        initial.failed();
        assert!(!initial.are_worthwhile());
        initial.has_new_connection();
        assert!(initial.are_worthwhile());
        initial.failed();
        initial.has_new_connection();
        assert!(!initial.are_worthwhile(), "another connection makes no difference");
        tokio::time::advance(RETRY_AFTER).await;
        assert!(initial.are_worthwhile());
        initial.failed();
        tokio::time::advance(RETRY_AFTER).await;
        initial.succeeded();
        initial.failed();
        initial.has_new_connection();
        assert!(initial.are_worthwhile());
    }
}
