//! Number of callers that wait for a version that this server has not reached yet, and the upstream's confirmations for them.

use std::sync::Arc;

use tokio::{sync::watch, time::Instant};

use crate::model::ResourceVersion;

/// Number of callers that wait for a later state of a resource: readers write it, and a source reads it. While it is not zero, a
/// source whose upstream can report its current version requests that report. Clones share the number.
#[derive(Debug, Clone, Default)]
pub struct ProgressDemand {
    waiting: Arc<watch::Sender<usize>>,
    confirmed: Arc<watch::Sender<Option<Confirmation>>>,
    is_met: bool,
}

/// Time at which the upstream had no change above a version.
#[derive(Debug)]
struct Confirmation {
    at: Instant,
    version: ResourceVersion,
}

/// Guard of one waiting caller; dropping it ends the wait.
#[derive(Debug)]
pub struct ProgressGuard {
    demand: ProgressDemand,
}

// === impl ProgressDemand ===

impl ProgressDemand {
    /// Creates the demand of a source that reads it, soon reports the version of its upstream, and [confirms](Self::confirm) it.
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

    /// Returns true if a caller waits for a confirmation.
    pub fn wants_confirmation(&self) -> bool {
        self.confirmed.receiver_count() > 0
    }

    /// Records that the upstream had no change above a version at this time: that of the request which it has answered with the
    /// version.
    pub fn confirm(&self, at: Instant, version: ResourceVersion) {
        self.confirmed.send_replace(Some(Confirmation { at, version }));
    }

    /// Waits for a version that the upstream confirms for this time or a later one.
    ///
    /// # Cancel safety
    ///
    /// May be dropped at any time.
    pub fn confirmed_since(&self, since: Instant) -> impl Future<Output = ResourceVersion> {
        // At once, so that the source sees it before it sees that the caller waits.
        let mut confirmed = self.confirmed.subscribe();
        async move {
            loop {
                if let Some(Confirmation { at, version }) = &*confirmed.borrow_and_update()
                    && *at >= since
                {
                    return version.clone();
                }
                // `self` holds the sender, so there is no error.
                drop(confirmed.changed().await);
            }
        }
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

    #[tokio::test(start_paused = true)]
    async fn a_confirmation_is_for_those_who_waited_before_its_request() {
        let (demand, begun) = (ProgressDemand::met(), Instant::now());
        demand.confirm(begun, ResourceVersion::decimal(7));
        assert_eq!(demand.confirmed_since(begun).await, ResourceVersion::decimal(7));
        assert!(!demand.wants_confirmation());
        let later = begun + std::time::Duration::from_millis(1);
        let mut waiting = task::spawn(demand.confirmed_since(later));
        assert_pending!(waiting.poll());
        assert!(demand.wants_confirmation());
        demand.confirm(begun, ResourceVersion::decimal(8));
        assert_pending!(waiting.poll());
        demand.confirm(later, ResourceVersion::decimal(9));
        assert_eq!(assert_ready!(waiting.poll()), ResourceVersion::decimal(9));
    }
}
