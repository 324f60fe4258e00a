//! What could not be applied of a stream: told to the resource's health and to the log, for as long as the source lives.
//!
//! A stream does not come again, so that nothing mends it. Written by `reader`. Bounded: the latest [`MAX_REPORTED`] are
//! reported, the newest first, and the log has the first of them and then fewer and fewer.

use std::collections::VecDeque;

use crate::cache::SourceHealth;

/// The lines that are reported, and that are logged without gaps.
const MAX_REPORTED: usize = 100;

/// The problems of one stream.
#[derive(Debug)]
pub(super) struct Problems {
    resource: String,
    health: SourceHealth,
    newest_first: VecDeque<String>,
    count: usize,
}

// === impl Problems ===

impl Problems {
    /// None yet.
    pub(super) fn new(resource: String, health: SourceHealth) -> Self {
        Self { resource, health, newest_first: VecDeque::new(), count: 0 }
    }

    /// There is another one, in one line.
    pub(super) fn add(&mut self, problem: String) {
        self.count += 1;
        if self.count <= MAX_REPORTED || self.count.is_power_of_two() {
            let (resource, count) = (&*self.resource, self.count);
            tracing::warn!(source = "stream", resource, problem, count, "a part of the stream is not applied");
        }
        self.newest_first.truncate(MAX_REPORTED - 1);
        self.newest_first.push_front(problem);
        let earlier = self.count - self.newest_first.len();
        let rest = (earlier > 0).then(|| format!("and {earlier} earlier"));
        self.health.set_problems(self.newest_first.iter().cloned().chain(rest).collect());
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_newest_is_reported_first_and_the_oldest_are_counted() {
        let health = SourceHealth::new(Duration::MAX, Duration::ZERO);
        let mut problems = Problems::new("r".into(), health.clone());
        for at in 1..=MAX_REPORTED {
            problems.add(format!("line {at}"));
        }
        let report = health.report();
        assert_eq!((report.problems, report.last_error.as_deref()), (100, Some("line 100")));
        problems.add("line 101".into());
        let report = health.report();
        assert_eq!((report.problems, report.last_error.as_deref()), (101, Some("line 101")));
    }
}
