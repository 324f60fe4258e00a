//! Requests that a source must not make.

use std::time::Duration;

use http::Uri;
use tokio::time::Instant;

use super::{Answer, PATH, RetryAfter};

/// The first of them, and what shows the next ones.
#[derive(Debug, Default)]
pub(crate) struct Misdeeds {
    first: Option<String>,
    /// Several sources of one process know nothing of the answers to each other.
    has_several: bool,
    /// No request earlier, by the last answer.
    not_before: Option<Instant>,
    answered_at: Option<Instant>,
    /// The network was cut, which an answer of the same instant may not outlive, whichever was first.
    cut_at: Option<Instant>,
}

impl Misdeeds {
    pub(crate) fn of(has_several: bool) -> Self {
        Self { has_several, ..Self::default() }
    }

    /// The first request that must not be made.
    pub(crate) fn first(&self) -> Option<String> {
        self.first.clone()
    }

    /// Another process knows nothing of what this one was answered.
    pub(crate) fn has_new_process(&mut self) {
        self.not_before = None;
    }

    /// Takes note of a cut: answers of this instant may not come.
    pub(crate) fn lose_answers(&mut self) {
        self.cut_at = Some(Instant::now());
        if self.answered_at == Some(Instant::now()) {
            self.not_before = None;
        }
    }

    /// A request without the selector, which alone is allowed.
    pub(super) fn note_forbidden(&mut self, uri: &Uri) {
        self.first.get_or_insert(format!("{uri} was requested, and only requests with the selector are allowed"));
    }

    /// A request and the answer to it, if that was drawn.
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
            // A date has no fraction of a second.
            RetryAfter::Date(seconds) => Some(Instant::now() + Duration::from_secs(seconds - 1)),
        };
    }
}
