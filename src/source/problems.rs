//! Lasting problems of one source's content, reported to the resource's health and to the log.
//!
//! The log has a line for each problem that begins, or whose message changes, and for each that ends: at most [`MAX_LOGGED`] of
//! either for one list or scan, and one line with the number of the rest.

use serde::{Deserialize, Serialize};

use super::text::escaped;
use crate::{
    cache::{Problem, ProblemReason, ProblemReport, SourceHealth},
    model::ObjectKey,
};

/// Reporter of the problems of one source.
#[derive(Debug)]
pub(super) struct Problems {
    /// Kind of the source, for the log.
    source: &'static str,
    resource: String,
    health: SourceHealth,
}

/// Problems with single objects, saved for the next run.
#[derive(Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct SavedProblems(Vec<Problem>);

/// Reasons for not serving single objects of an upstream.
pub(super) const OBJECT_REASONS: [ProblemReason; 2] = [ProblemReason::ObjectTooLarge, ProblemReason::ObjectInvalid];

const MAX_LOGGED: usize = 100;

// === impl Problems ===

impl Problems {
    pub(super) fn new(source: &'static str, resource: String, health: SourceHealth) -> Self {
        Self { source, resource, health }
    }

    /// Replaces all problems of these reasons with those found by a list or scan.
    pub(super) fn replace(&self, reasons: &[ProblemReason], found: Vec<Problem>) {
        let changes = self.health.replace_problems(reasons, found);
        changes.begun.iter().take(MAX_LOGGED).for_each(|problem| self.log_begun(problem));
        changes.ended.iter().take(MAX_LOGGED).for_each(|problem| self.log_ended(problem));
        let rest = |of: &[Problem]| of.len().saturating_sub(MAX_LOGGED);
        let (more_begun, more_ended) = (rest(&changes.begun) + changes.omitted, rest(&changes.ended));
        let is_news = !changes.begun.is_empty() || !changes.ended.is_empty();
        if is_news && more_begun + more_ended > 0 {
            tracing::warn!(
                source = self.source,
                resource = self.resource,
                more_begun,
                more_ended,
                "further problems not logged"
            );
        }
    }

    /// Reports one problem.
    pub(super) fn set(&self, problem: &Problem) {
        match self.health.set_problem(problem.clone()) {
            ProblemReport::News => self.log_begun(problem),
            // An endless source may have endless problems.
            ProblemReport::Omitted(count) if count.is_power_of_two() => self.log_begun(problem),
            ProblemReport::Omitted(_) | ProblemReport::Known => {}
        }
    }

    /// Reports one problem with an object, in place of any earlier one.
    pub(super) fn set_object(&self, problem: &Problem) {
        for reason in OBJECT_REASONS.into_iter().filter(|reason| *reason != problem.reason) {
            self.health.clear_problem(reason, &problem.subject);
        }
        self.set(problem);
    }

    /// Ends the problems with an object that can be served, or was removed.
    pub(super) fn clear_object(&self, subject: &str) {
        for ended in OBJECT_REASONS.iter().filter_map(|reason| self.health.clear_problem(*reason, subject)) {
            self.log_ended(&ended);
        }
    }

    /// Returns the problems with single objects, to be saved for the next run.
    pub(super) fn keep(&self) -> SavedProblems {
        SavedProblems(self.health.problems_of(&OBJECT_REASONS))
    }

    /// Restores the problems with single objects of a previous run.
    pub(super) fn resume(&self, kept: SavedProblems) {
        self.replace(&OBJECT_REASONS, kept.0);
    }

    fn log_begun(&self, problem: &Problem) {
        let (Self { source, resource, .. }, Problem { reason, subject, message, .. }) = (self, problem);
        tracing::warn!(source, resource, reason = reason.as_str(), subject, message, "problem found");
    }

    fn log_ended(&self, problem: &Problem) {
        let (Self { source, resource, .. }, Problem { reason, subject, .. }) = (self, problem);
        tracing::info!(source, resource, reason = reason.as_str(), subject, "problem resolved");
    }
}

/// Returns an object's key as the subject of a problem, escaped to one line.
pub(super) fn subject_of(key: &ObjectKey) -> String {
    escaped(&key.to_string()).into_owned()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn an_object_has_one_problem_until_it_can_be_served() {
        let health = SourceHealth::new(Duration::ZERO, Duration::ZERO);
        let problems = Problems::new("etcd", "r".into(), health.clone());
        let invalid = |subject: &str| Problem::new(ProblemReason::ObjectInvalid, subject, "bad");
        let large = |subject: &str| Problem::new(ProblemReason::ObjectTooLarge, subject, "large");
        problems.replace(&OBJECT_REASONS, vec![invalid("a"), invalid("b")]);
        problems.set_object(&large("a"));
        let shown = || health.problems().iter().map(|of| format!("{} {of}", of.reason.as_str())).collect::<Vec<_>>();
        assert_eq!(shown(), ["OBJECT_INVALID b: bad", "OBJECT_TOO_LARGE a: large"]);

        let kept = serde_json::to_string(&problems.keep()).unwrap();
        let later = SourceHealth::new(Duration::ZERO, Duration::ZERO);
        Problems::new("etcd", "r".into(), later.clone()).resume(serde_json::from_str(&kept).unwrap());
        assert_eq!(later.problems(), health.problems(), "with their beginning");

        problems.clear_object("a");
        problems.clear_object("c");
        assert_eq!(shown(), ["OBJECT_INVALID b: bad"]);
        problems.replace(&OBJECT_REASONS, Vec::new());
        assert_eq!(health.report().problems, 0);
    }
}
