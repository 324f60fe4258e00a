//! Statistics: a histogram of latencies, and the median of repetitions.

/// Histogram of durations in nanoseconds, in buckets at most a sixty-fourth wide.
#[derive(Debug, Clone)]
pub(super) struct Histogram {
    buckets: Box<[u64]>,
    count: u64,
}

/// Median of some repetitions, and their extremes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Spread {
    /// Middle value; of an even number, the mean of the middle two.
    pub(super) median: f64,
    /// Minimum.
    pub(super) min: f64,
    /// Maximum.
    pub(super) max: f64,
}

/// Base-2 logarithm of the number of buckets for each power of two.
const BITS: u32 = 6;
const STEPS: usize = 1 << BITS;
const BUCKETS: usize = (64 - BITS as usize + 1) * STEPS;

// === impl Histogram ===

impl Histogram {
    pub(super) fn new() -> Self {
        Self { buckets: vec![0; BUCKETS].into(), count: 0 }
    }

    pub(super) fn add(&mut self, nanos: u64) {
        self.buckets[bucket(nanos)] += 1;
        self.count += 1;
    }

    pub(super) fn clear(&mut self) {
        self.buckets.fill(0);
        self.count = 0;
    }

    /// Returns the quantile in nanoseconds, rounded down to its bucket: the lowest duration that this share does not exceed. None
    /// if nothing was counted.
    pub(super) fn quantile(&self, share: f64) -> Option<u64> {
        let wanted = ((self.count as f64 * share).ceil() as u64).clamp(1, self.count.max(1));
        let mut seen = 0;
        let at = self.buckets.iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        Some(floor(at))
    }
}

fn bucket(nanos: u64) -> usize {
    if nanos < STEPS as u64 {
        return nanos as usize;
    }
    let exponent = nanos.ilog2() - BITS;
    (exponent as usize + 1) * STEPS + (nanos >> exponent) as usize - STEPS
}

/// Returns the lower bound of a bucket.
fn floor(at: usize) -> u64 {
    match (at / STEPS, at % STEPS) {
        (0, step) => step as u64,
        (power, step) => ((STEPS + step) as u64) << (power - 1),
    }
}

// === impl Spread ===

impl Spread {
    /// Returns the spread of some values; none if there are none.
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        let middle = sorted.len() / 2;
        let median =
            if sorted.len() % 2 == 1 { sorted[middle] } else { f64::midpoint(sorted[middle - 1], sorted[middle]) };
        Some(Self { median, min, max })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_lies_in_its_bucket() {
        for value in (0..1000).chain([u64::MAX, u64::MAX - 1, 1 << 40, (1 << 40) - 1, 123_456_789]) {
            let at = bucket(value);
            assert!(floor(at) <= value, "{value}");
            assert!(at + 1 == BUCKETS || floor(at + 1) > value, "{value}");
            assert!(value - floor(at) <= value / STEPS as u64, "{value}");
        }
        assert!(bucket(u64::MAX) < BUCKETS);
    }

    #[test]
    fn quantiles_are_those_of_the_values() {
        let mut histogram = Histogram::new();
        assert_eq!(histogram.quantile(0.5), None);
        (1..=50).for_each(|value| histogram.add(value));
        assert_eq!(histogram.quantile(0.5), Some(25));
        assert_eq!(histogram.quantile(0.99), Some(50));
        assert_eq!(histogram.quantile(0.0), Some(1));
        histogram.clear();
        (1..=100_000).for_each(|value| histogram.add(value));
        let near = |found: u64, expected: u64| found <= expected && expected - found <= expected / 64 + 1;
        assert!(near(histogram.quantile(0.99).unwrap(), 99_000));
    }

    #[test]
    fn the_median_is_the_middle() {
        let spread = |values: &[f64]| Spread::of(values).map(|spread| (spread.median, spread.min, spread.max));
        assert_eq!(spread(&[]), None);
        assert_eq!(spread(&[3.0, 1.0, 2.0]), Some((2.0, 1.0, 3.0)));
        assert_eq!(spread(&[4.0, 1.0, 2.0, 3.0]), Some((2.5, 1.0, 4.0)));
    }
}
