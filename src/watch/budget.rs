//! How long the writer may be held back.

use std::time::Duration;

use tokio::time::Instant;

/// A budget of waiting time that refills at a tenth of wall time, as the dispatch budget of the kube-apiserver's watch
/// cache refills at a twentieth (SEMANTICS 2.4).
#[derive(Debug, Clone)]
pub(super) struct TimeBudget {
    capacity: Duration,
    available: Duration,
    as_of: Instant,
}

/// Wall time in which one unit of budget is earned.
const REFILL_DIVISOR: u32 = 10;

// === impl TimeBudget ===

impl TimeBudget {
    /// A full budget.
    pub(super) fn new(capacity: Duration, now: Instant) -> Self {
        Self { capacity, available: capacity, as_of: now }
    }

    /// What can be spent from now on.
    pub(super) fn available(&self, now: Instant) -> Duration {
        let earned = now.saturating_duration_since(self.as_of) / REFILL_DIVISOR;
        self.available.saturating_add(earned).min(self.capacity)
    }

    /// Charges the time from `since` until `now`. What was earned in that time does not count.
    pub(super) fn charge(&mut self, since: Instant, now: Instant) {
        self.available = self.available(since).saturating_sub(now.saturating_duration_since(since));
        self.as_of = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// cacher `TestTimeBudget`, with our capacity and rate.
    #[test]
    fn a_budget_is_spent_by_waiting_and_refilled_at_a_tenth_of_wall_time() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut budget = TimeBudget::new(Duration::from_millis(500), start);
        assert_eq!(budget.available(at(10_000)), Duration::from_millis(500), "never above its capacity");
        budget.charge(at(10_000), at(10_400));
        assert_eq!(budget.available(at(10_400)), Duration::from_millis(100));
        assert_eq!(budget.available(at(11_400)), Duration::from_millis(200));
        budget.charge(at(11_400), at(12_400));
        assert_eq!(budget.available(at(12_400)), Duration::ZERO, "never below zero");
        assert_eq!(budget.available(at(13_400)), Duration::from_millis(100));
    }
}
