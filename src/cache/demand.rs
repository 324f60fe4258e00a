//! Whether somebody waits for what the upstream has not told yet.

use std::sync::Arc;

use tokio::sync::watch;

/// How many wait for a later state of a resource. Raised by those who wait, read by a source that can ask its upstream how
/// far it is (invariant 13); clones share it.
#[derive(Debug, Clone, Default)]
pub struct Demand {
    waiting: Arc<watch::Sender<usize>>,
}

/// Somebody waits, until it is dropped.
#[derive(Debug)]
pub struct Waiting {
    demand: Demand,
}

// === impl Demand ===

impl Demand {
    /// Somebody waits from now on.
    pub fn wait(&self) -> Waiting {
        self.waiting.send_modify(|count| *count += 1);
        Waiting { demand: self.clone() }
    }

    /// Whether anybody waits.
    pub fn is_wanted(&self) -> bool {
        *self.waiting.borrow() > 0
    }

    /// Waits until somebody does.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub async fn wanted(&self) {
        // The sender lives as long as this, so that there is no error.
        drop(self.waiting.subscribe().wait_for(|count| *count > 0).await);
    }
}

// === impl Waiting ===

impl Drop for Waiting {
    fn drop(&mut self) {
        self.demand.waiting.send_modify(|count| *count -= 1);
    }
}

#[cfg(test)]
mod tests {
    use tokio_test::{assert_pending, assert_ready, task};

    use super::*;

    #[test]
    fn it_is_wanted_as_long_as_anybody_waits() {
        let demand = Demand::default();
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
