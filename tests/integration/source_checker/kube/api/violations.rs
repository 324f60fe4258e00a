//! Requests that a source must not make.

use std::time::Duration;

use http::Uri;
use tokio::time::Instant;

use super::{Answer, PATH, RetryAfter};

/// First forbidden request, and the state by which further ones are recognized.
#[derive(Debug, Default)]
pub(crate) struct Violations {
    first: Option<String>,
    /// True if several sources of one process do not share what the API answers.
    has_several: bool,
    /// Earliest time of the next request, by the last answer.
    not_before: Option<Instant>,
    answered_at: Option<Instant>,
    /// Time of a network cut, which may lose an answer of the same instant.
    cut_at: Option<Instant>,
}

impl Violations {
    pub(crate) fn of(has_several: bool) -> Self {
        Self { has_several, ..Self::default() }
    }

    /// Returns the first forbidden request.
    pub(crate) fn first(&self) -> Option<String> {
        self.first.clone()
    }

    /// Resets what the API has answered, which a new process of the source does not have.
    pub(crate) fn has_new_process(&mut self) {
        self.not_before = None;
    }

    /// Records a cut: answers of this instant may be lost.
    pub(crate) fn lose_answers(&mut self) {
        self.cut_at = Some(Instant::now());
        if self.answered_at == Some(Instant::now()) {
            self.not_before = None;
        }
    }

    /// Records a request without the selector, which is forbidden.
    pub(super) fn note_forbidden(&mut self, uri: &Uri) {
        self.first.get_or_insert(format!("{uri} was requested, and only requests with the selector are allowed"));
    }

    /// Records a request, and its answer if that was drawn.
    pub(super) fn note(&mut self, uri: &Uri, answer: Option<Answer>) {
        if !uri.path().starts_with(PATH) && uri.path() != "/api/v1/namespaces/kube-system" || self.has_several {
            return;
        }
        let early = self.not_before.map(|at| at.duration_since(Instant::now())).filter(|early| !early.is_zero());
        if let Some(early) = early {
            self.first.get_or_insert(format!("{uri} was requested {early:?} before the end of Retry-After"));
        }
        self.answered_at = Some(Instant::now());
        self.not_before = match answer.map_or(RetryAfter::None, |answer| answer.retry_after) {
            _ if self.cut_at == self.answered_at => None,
            RetryAfter::None => None,
            RetryAfter::Seconds(seconds) => Some(Instant::now() + Duration::from_secs(seconds)),
            // A date has no fractions of a second.
            RetryAfter::Date(seconds) => Some(Instant::now() + Duration::from_secs(seconds - 1)),
        };
    }
}
