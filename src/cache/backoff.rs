//! Delay before the next request to an upstream after a failure.

use std::time::Duration;

use tokio::time::Instant;

/// Bounds of a [`Backoff`]. The default has the constants of client-go's reflector: 800 ms, doubled up to 30 s, jitter 1, reset
/// after 2 minutes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct BackoffConfig {
    /// First delay.
    pub initial: Duration,
    /// Largest delay, before jitter.
    pub max: Duration,
    /// Randomness of a delay: `d` becomes one in `[d, d + jitter * d)`, so that clients of one upstream do not return together.
    pub jitter: f64,
    /// Time without a delay after which the next one is the first again.
    pub reset_after: Duration,
}

/// Growing delay.
#[derive(Debug)]
pub struct Backoff {
    config: BackoffConfig,
    next: Duration,
    last_at: Option<Instant>,
}

const FACTOR: u32 = 2;

// === impl BackoffConfig ===

impl Default for BackoffConfig {
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(800),
            max: Duration::from_secs(30),
            jitter: 1.0,
            reset_after: Duration::from_secs(120),
        }
    }
}

// === impl Backoff ===

impl Backoff {
    /// Makes a backoff that begins with the first delay.
    pub fn new(config: BackoffConfig) -> Self {
        Self { next: config.initial, config, last_at: None }
    }

    /// Returns the next delay, which the caller waits from `now` on.
    pub fn next_delay(&mut self, now: Instant) -> Duration {
        if self.last_at.is_some_and(|last| now.saturating_duration_since(last) > self.config.reset_after) {
            self.next = self.config.initial;
        }
        let delay = self.next;
        self.next = (delay * FACTOR).min(self.config.max);
        let jittered = delay + delay.mul_f64((fastrand::f64() * self.config.jitter).max(0.0));
        // Healthy time counts from the end of the delay.
        self.last_at = Some(now + jittered);
        jittered
    }

    /// Makes the next delay the first again: the upstream has recovered.
    pub fn reset(&mut self) {
        self.next = self.config.initial;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_the_maximum_and_reset_after_health() {
        let mut backoff = Backoff::new(BackoffConfig { jitter: 0.0, ..BackoffConfig::default() });
        let mut now = Instant::now();
        let mut delays = Vec::new();
        for _ in 0..8 {
            let delay = backoff.next_delay(now);
            delays.push(delay.as_millis());
            now += delay;
        }
        assert_eq!(delays, [800, 1600, 3200, 6400, 12_800, 25_600, 30_000, 30_000]);
        now += Duration::from_secs(120);
        assert_eq!(backoff.next_delay(now).as_millis(), 30_000, "exactly at the bound it is not reset");
        now += Duration::from_secs(30 + 121);
        assert_eq!(backoff.next_delay(now).as_millis(), 800);
        assert_eq!(backoff.next_delay(now).as_millis(), 1600);
        backoff.reset();
        assert_eq!(backoff.next_delay(now).as_millis(), 800);
    }

    /// client-go `TestNewReflectorWithCustomBackoff`.
    #[test]
    fn the_first_delay_and_the_longest_are_those_of_the_configuration() {
        let [initial, max] = [10, 100].map(Duration::from_millis);
        let mut backoff = Backoff::new(BackoffConfig { initial, max, jitter: 0.0, ..BackoffConfig::default() });
        let now = Instant::now();
        assert_eq!([(); 6].map(|()| backoff.next_delay(now).as_millis()), [10, 20, 40, 80, 100, 100]);
    }

    #[test]
    fn jitter_keeps_a_delay_between_itself_and_its_double() {
        let mut seen = std::collections::HashSet::new();
        for _ in 0..200 {
            let delay = Backoff::new(BackoffConfig::default()).next_delay(Instant::now());
            assert!((Duration::from_millis(800)..Duration::from_millis(1600)).contains(&delay), "{delay:?}");
            seen.insert(delay);
        }
        assert!(seen.len() > 100, "delays differ");
    }
}
