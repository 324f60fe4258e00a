//! Histogram of durations, which any number of threads observe without a lock.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// Histogram of durations, read at scrape.
#[derive(Debug, Default)]
pub struct DurationHistogram {
    /// Number of observations in each bucket, and above the last bound.
    counts: [AtomicU64; DURATION_BOUNDS.len() + 1],
    micros: AtomicU64,
}

/// Upper bounds of the buckets, in seconds.
pub const DURATION_BOUNDS: [f64; 16] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 15.0, 60.0];

// === impl DurationHistogram ===

impl DurationHistogram {
    /// Counts a duration.
    pub fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let bucket = DURATION_BOUNDS.partition_point(|bound| *bound < seconds);
        self.counts[bucket].fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Returns the number of observations in each bucket, and above the last bound.
    pub fn counts(&self) -> [u64; DURATION_BOUNDS.len() + 1] {
        std::array::from_fn(|bucket| self.counts[bucket].load(Ordering::Relaxed))
    }

    /// Returns the sum of all observations, in seconds.
    pub fn sum(&self) -> f64 {
        self.micros.load(Ordering::Relaxed) as f64 / 1e6
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_in_its_bucket() {
        let histogram = DurationHistogram::default();
        for micros in [0, 100, 101, 60_000_000, 61_000_000] {
            histogram.observe(Duration::from_micros(micros));
        }
        let counts = histogram.counts();
        assert_eq!((counts[0], counts[1], counts[15], counts[16]), (2, 1, 1, 1));
        assert!((histogram.sum() - 121.000_201).abs() < 1e-6);
    }
}
