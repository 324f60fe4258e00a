//! Standing problems of a resource: failures to read, reach or serve a part of its upstream.
//!
//! A problem is identified by its reason and its subject. It keeps its beginning for as long as it stands, also when its
//! message changes. At most [`MAX_HELD`] problems of each reason are held; further ones are counted.

use std::{collections::BTreeMap, fmt, time::SystemTime};

use serde::{Deserialize, Serialize};

named! {
    /// Kind of a [`Problem`]; [`ProblemReason::as_str`] is the contract's `Problem.reason`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
    #[serde(rename_all = "SCREAMING_SNAKE_CASE")]
    pub enum ProblemReason {
        /// Failure of the last list or watch.
        UpstreamUnreachable = "UPSTREAM_UNREACHABLE",
        /// Object larger than 3 MiB; it is not served.
        ObjectTooLarge = "OBJECT_TOO_LARGE",
        /// Object or part of a stream that cannot be read or has no valid key; it is not served.
        ObjectInvalid = "OBJECT_INVALID",
        /// File that is not served as it is.
        FileInvalid = "FILE_INVALID",
        /// Directory without a manifest since the start.
        DirectoryEmpty = "DIRECTORY_EMPTY",
        /// Missing reports of file changes by the operating system; only the periodic scan finds changes.
        NotificationsUnavailable = "NOTIFICATIONS_UNAVAILABLE",
        /// Namespace of the configuration that does not exist upstream.
        NamespaceNotFound = "NAMESPACE_NOT_FOUND",
        /// Lists at an interval in place of a watch, which the upstream does not serve.
        UpstreamPolled = "UPSTREAM_POLLED",
        /// Objects of the previous writer of a pipe that the present one has not confirmed.
        ObjectsUnconfirmed = "OBJECTS_UNCONFIRMED",
        /// Objects that may exist and that the source has not been able to read since its start.
        ObjectsUnread = "OBJECTS_UNREAD",
        /// Failed write of the state to `state_dir`.
        SnapshotNotWritten = "SNAPSHOT_NOT_WRITTEN",
        /// Objects that differ from those in a list of the upstream.
        VerifyDiffers = "VERIFY_DIFFERS",
    }
}

/// Standing problem.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Problem {
    /// Kind of the problem.
    pub reason: ProblemReason,
    /// Key of the object (`namespace/name`), file, namespace, or position in a stream; empty for the resource as a whole.
    pub subject: String,
    /// Line for people: the failure, its cause, and what to do.
    pub message: String,
    /// Start of the problem.
    pub since: SystemTime,
}

/// Difference made by a replacement of problems.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct ProblemChanges {
    /// New problems, and those whose message has changed.
    pub begun: Vec<Problem>,
    /// Problems that no longer stand.
    pub ended: Vec<Problem>,
    /// Number of problems that were found and are not held.
    pub omitted: usize,
}

/// Result of a report of one problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProblemReport {
    /// Repetition of the standing problem, with the same message.
    Known,
    /// New problem, or a new message of a standing one.
    News,
    /// Problem that is only counted, as 1,000 of its reason are held; with the number of those that are only counted.
    Omitted(usize),
}

/// Standing problems of one resource.
#[derive(Debug, Default)]
pub(super) struct Problems {
    by_reason: BTreeMap<ProblemReason, ReasonProblems>,
    /// Text of the oldest one, as [`Problem`] is displayed.
    oldest: Option<String>,
}

#[derive(Debug, Default)]
struct ReasonProblems {
    by_subject: BTreeMap<String, Problem>,
    /// Number of problems that are not held. A source that reports one problem at a time may count one of these twice, until
    /// its next list replaces them.
    omitted: usize,
}

/// Bound of held problems of one reason.
pub(super) const MAX_HELD: usize = 1000;
/// Bound of problems in a response.
pub(super) const MAX_SHOWN: usize = 100;
/// Bound of a subject and of a message, in characters.
const MAX_CHARS: usize = 1000;

// === impl Problem ===

impl Problem {
    /// Makes a problem that begins now. Subject and message are cut after 1,000 characters each, so that two subjects with the
    /// same first 1,000 characters are one.
    pub fn new(reason: ProblemReason, subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            reason,
            subject: shortened(subject.into()),
            message: shortened(message.into()),
            since: SystemTime::now(),
        }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subject, message, .. } = self;
        if subject.is_empty() { f.write_str(message) } else { write!(f, "{subject}: {message}") }
    }
}

fn shortened(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(MAX_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    text
}

// === impl Problems ===

impl Problems {
    /// Adds a problem, or updates the message of the one that stands with this reason and subject.
    pub(super) fn set(&mut self, problem: Problem) -> ProblemReport {
        let standing = self.by_reason.entry(problem.reason).or_default();
        let held = standing.by_subject.len();
        match standing.by_subject.get_mut(&problem.subject) {
            Some(known) if known.message == problem.message => return ProblemReport::Known,
            Some(known) => known.message = problem.message,
            None if held < MAX_HELD => drop(standing.by_subject.insert(problem.subject.clone(), problem)),
            None => {
                standing.omitted += 1;
                return ProblemReport::Omitted(standing.omitted);
            }
        }
        self.note_oldest();
        ProblemReport::News
    }

    /// Removes the problem with this reason and subject, if there is one.
    pub(super) fn clear(&mut self, reason: ProblemReason, subject: &str) -> Option<Problem> {
        let ended = self.by_reason.get_mut(&reason)?.by_subject.remove(subject)?;
        self.note_oldest();
        Some(ended)
    }

    /// Replaces every problem of these reasons. One that stood before keeps its beginning.
    pub(super) fn replace(&mut self, reasons: &[ProblemReason], found: Vec<Problem>) -> ProblemChanges {
        let mut before: BTreeMap<(ProblemReason, String), Problem> = BTreeMap::new();
        for standing in reasons.iter().filter_map(|reason| self.by_reason.remove(reason)) {
            before
                .extend(standing.by_subject.into_values().map(|known| ((known.reason, known.subject.clone()), known)));
        }
        let mut changes = ProblemChanges::default();
        for mut problem in found {
            let known = before.remove(&(problem.reason, problem.subject.clone()));
            let is_known = known.as_ref().is_some_and(|known| known.message == problem.message);
            if let Some(known) = known {
                problem.since = known.since;
            }
            if self.set(problem.clone()) == ProblemReport::News && !is_known {
                changes.begun.push(problem);
            }
        }
        changes.ended.extend(before.into_values());
        changes.omitted = reasons.iter().filter_map(|reason| self.by_reason.get(reason)).map(|of| of.omitted).sum();
        self.note_oldest();
        changes
    }

    pub(super) fn get(&self, reason: ProblemReason, subject: &str) -> Option<&Problem> {
        self.by_reason.get(&reason)?.by_subject.get(subject)
    }

    /// Returns the number of problems, held or not.
    pub(super) fn len(&self) -> usize {
        self.by_reason.values().map(|standing| standing.by_subject.len() + standing.omitted).sum()
    }

    /// Returns the text of the oldest.
    pub(super) fn oldest(&self) -> Option<&String> {
        self.oldest.as_ref()
    }

    /// Returns the oldest [`MAX_SHOWN`], the oldest first.
    pub(super) fn shown(&self) -> Vec<Problem> {
        let mut all: Vec<&Problem> = self.iter().collect();
        all.sort_by_key(|problem| problem.since);
        all.into_iter().take(MAX_SHOWN).cloned().collect()
    }

    /// Returns the held problems, by reason and subject.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Problem> {
        self.by_reason.values().flat_map(|standing| standing.by_subject.values())
    }

    fn note_oldest(&mut self) {
        self.oldest = self.iter().min_by_key(|problem| problem.since).map(Problem::to_string);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn at(second: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(second)
    }

    fn problem(subject: &str, message: &str, second: u64) -> Problem {
        Problem { since: at(second), ..Problem::new(ProblemReason::FileInvalid, subject, message) }
    }

    fn shown(problems: &Problems) -> Vec<(String, u64)> {
        let seconds = |problem: &Problem| problem.since.duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        problems.shown().iter().map(|problem| (problem.to_string(), seconds(problem))).collect()
    }

    #[test]
    fn a_standing_problem_keeps_its_start() {
        let mut problems = Problems::default();
        assert_eq!(problems.set(problem("a", "bad", 5)), ProblemReport::News);
        assert_eq!(problems.set(problem("b", "bad", 4)), ProblemReport::News);
        assert_eq!(problems.set(problem("a", "bad", 6)), ProblemReport::Known);
        assert_eq!(problems.set(problem("a", "worse", 7)), ProblemReport::News);
        assert_eq!(shown(&problems), [("b: bad".into(), 4), ("a: worse".into(), 5)]);
        assert_eq!(problems.oldest().unwrap(), "b: bad");

        let changes =
            problems.replace(&[ProblemReason::FileInvalid], vec![problem("a", "worse", 8), problem("c", "bad", 8)]);
        assert_eq!(changes.begun, [problem("c", "bad", 8)]);
        assert_eq!(changes.ended, [problem("b", "bad", 4)]);
        assert_eq!(shown(&problems), [("a: worse".into(), 5), ("c: bad".into(), 8)]);

        assert_eq!(problems.clear(ProblemReason::FileInvalid, "a").map(|ended| ended.since), Some(at(5)));
        assert_eq!(problems.clear(ProblemReason::FileInvalid, "a"), None);
        problems.set(problem("a", "worse", 9));
        assert_eq!(shown(&problems), [("c: bad".into(), 8), ("a: worse".into(), 9)], "begun anew");
    }

    #[test]
    fn a_replacement_affects_only_its_reasons() {
        let mut problems = Problems::default();
        problems.set(Problem::new(ProblemReason::SnapshotNotWritten, "", "full"));
        problems.set(problem("a", "bad", 5));
        let changes = problems.replace(&[ProblemReason::FileInvalid], Vec::new());
        assert_eq!((changes.ended.len(), problems.len()), (1, 1));
        assert_eq!(problems.oldest().unwrap(), "full", "of the resource as a whole");
    }

    #[test]
    fn held_and_shown_problems_are_bounded_and_all_are_counted() {
        let mut problems = Problems::default();
        let many = || (0..MAX_HELD + 5).map(|n| problem(&format!("{n:04}"), "bad", n as u64)).collect();
        let changes = problems.replace(&[ProblemReason::FileInvalid], many());
        assert_eq!((changes.begun.len(), changes.omitted, problems.len()), (MAX_HELD, 5, MAX_HELD + 5));
        let shown = shown(&problems);
        assert_eq!((shown.len(), &*shown[0].0, &*shown[99].0), (MAX_SHOWN, "0000: bad", "0099: bad"));
        let changes = problems.replace(&[ProblemReason::FileInvalid], many());
        assert_eq!((changes.begun.len(), changes.ended.len(), changes.omitted), (0, 0, 5), "as before");
        assert_eq!(problems.set(problem("one more", "bad", 0)), ProblemReport::Omitted(6));
        assert_eq!(problems.len(), MAX_HELD + 6);

        let long = "é".repeat(1 << 20);
        let problem = Problem::new(ProblemReason::ObjectInvalid, long.clone(), long);
        assert_eq!([problem.subject.chars().count(), problem.message.chars().count()], [MAX_CHARS + 1; 2]);
    }

    #[test]
    fn reasons_are_saved_under_their_names_in_the_contract() {
        for reason in ProblemReason::ALL {
            assert_eq!(serde_json::to_value(reason).unwrap(), reason.as_str());
        }
    }
}
