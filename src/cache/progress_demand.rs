//! Number of callers that wait for a version that this server has not reached yet.

use std::sync::Arc;

use tokio::sync::watch;

/// Number of callers that wait for a later state of a resource: readers write it, and a source reads it. While it is not zero, a
/// source whose upstream can report its current version requests that report. Clones share the number.
#[derive(Debug, Clone, Default)]
pub struct ProgressDemand {
    waiting: Arc<watch::Sender<usize>>,
    is_met: bool,
}

/// Guard of one waiting caller; dropping it ends the wait.
#[derive(Debug)]
pub struct ProgressGuard {
    demand: ProgressDemand,
}

// === impl ProgressDemand ===

impl ProgressDemand {
    /// Creates the demand of a source that reads it, and soon reports the version of its upstream.
    pub fn met() -> Self {
        Self { is_met: true, ..Self::default() }
    }

    /// Returns true if a source reads it.
    pub fn is_met(&self) -> bool {
        self.is_met
    }

    /// Registers a waiting caller.
    pub fn wait(&self) -> ProgressGuard {
        self.waiting.send_modify(|count| *count += 1);
        ProgressGuard { demand: self.clone() }
    }

    /// Returns true if a caller waits.
    pub fn is_wanted(&self) -> bool {
        *self.waiting.borrow() > 0
    }

    /// Waits until a caller does.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn wanted(&self) {
        // `self` holds the sender, so there is no error.
        drop(self.waiting.subscribe().wait_for(|count| *count > 0).await);
    }
}

// === impl ProgressGuard ===

impl Drop for ProgressGuard {
    fn drop(&mut self) {
        self.demand.waiting.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;

    #[test]
    fn progress_is_wanted_while_a_caller_waits() {
        let demand = ProgressDemand::default();
        let mut wanted = task::spawn(demand.wanted());
        assert_pending!(wanted.poll());
        let (first, second) = (demand.wait(), demand.wait());
        assert!(wanted.is_woken());
        assert_ready!(wanted.poll());
        drop(first);
        assert!(demand.is_wanted());
        drop(second);
        assert!(!demand.is_wanted());
    }
}
