//! Measurements by subject and repetition, and comparison of the subjects.

use super::stats::Spread;

/// Measured quantity.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Metric {
    /// Key for programs; its last part is the unit.
    pub(super) key: &'static str,
    /// Heading for people.
    pub(super) heading: &'static str,
    /// Better direction; a ratio of n means "n times better".
    pub(super) better: Better,
}

/// Better direction of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Better {
    /// Lower values: a cost.
    Less,
    /// Higher values: a yield.
    More,
    /// None: the metric is not compared.
    Neither,
}

/// Measurements of one run of one subject.
pub(super) type Measured = Vec<(&'static Metric, f64)>;

/// Measurements of all runs, the first subject before those that it is compared with.
#[derive(Debug, Default)]
pub(super) struct Report {
    subjects: Vec<(&'static str, Vec<Measured>)>,
}

// === impl Report ===

impl Report {
    pub(super) fn add(&mut self, subject: &'static str, measured: Measured) {
        match self.subjects.iter_mut().find(|(name, _)| *name == subject) {
            Some((_, runs)) => runs.push(measured),
            None => self.subjects.push((subject, vec![measured])),
        }
    }

    /// Returns the metrics that any subject has, in order.
    pub(super) fn metrics(&self) -> Vec<&'static Metric> {
        let mut metrics: Vec<&'static Metric> = Vec::new();
        for (metric, _) in self.subjects.iter().flat_map(|(_, runs)| runs).flatten() {
            if !metrics.contains(metric) {
                metrics.push(metric);
            }
        }
        metrics
    }

    /// Returns the names of the subjects.
    pub(super) fn subjects(&self) -> impl Iterator<Item = &'static str> {
        self.subjects.iter().map(|(name, _)| *name)
    }

    /// Returns all values of a subject, by repetition.
    pub(super) fn values(&self, subject: &str, metric: &Metric) -> Vec<f64> {
        let runs = self.subjects.iter().filter(|(name, _)| *name == subject).flat_map(|(_, runs)| runs);
        runs.flatten().filter(|(found, _)| *found == metric).map(|(_, value)| *value).collect()
    }

    /// Returns the spread of a subject's values; none if there are none.
    pub(super) fn spread(&self, subject: &str, metric: &Metric) -> Option<Spread> {
        Spread::of(&self.values(subject, metric))
    }

    /// Returns how many times better the median of the first subject is than that of another; none if they do not compare.
    pub(super) fn ratio(&self, other: &str, metric: &Metric) -> Option<f64> {
        let (first, _) = self.subjects.first()?;
        let (first, other) = (self.spread(first, metric)?.median, self.spread(other, metric)?.median);
        let (better, worse) = match metric.better {
            Better::Less => (first, other),
            Better::More => (other, first),
            Better::Neither => return None,
        };
        (better > 0.0).then_some(worse / better)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COST: Metric = Metric { key: "cost_us", heading: "COST", better: Better::Less };
    const RATE: Metric = Metric { key: "rate", heading: "RATE", better: Better::More };
    const SIZE: Metric = Metric { key: "size", heading: "SIZE", better: Better::Neither };

    #[test]
    fn medians_are_compared_the_way_that_is_better() {
        let mut report = Report::default();
        for (cost, rate) in [(1.0, 10.0), (3.0, 30.0), (2.0, 20.0)] {
            report.add("ours", vec![(&COST, cost), (&RATE, rate), (&SIZE, 1.0)]);
            report.add("theirs", vec![(&COST, cost * 4.0), (&RATE, rate / 2.0)]);
        }
        assert_eq!(report.metrics(), [&COST, &RATE, &SIZE]);
        assert_eq!(report.subjects().collect::<Vec<_>>(), ["ours", "theirs"]);
        assert_eq!(report.spread("ours", &COST), Some(Spread { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(report.ratio("theirs", &COST), Some(4.0));
        assert_eq!(report.ratio("theirs", &RATE), Some(2.0));
        assert_eq!(report.ratio("theirs", &SIZE), None);
        assert_eq!(report.values("theirs", &RATE), [5.0, 15.0, 10.0]);
        assert_eq!(report.spread("theirs", &SIZE), None);
    }
}
