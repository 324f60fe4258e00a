//! `metav1.Status`: the reason for which an API server refuses a request.

use std::time::Duration;

use serde::Deserialize;

use crate::{cache::SourceError, source::watch_event::status_text};

/// Machine-readable part of `metav1.Status`.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Status {
    code: Option<u16>,
    reason: Option<String>,
    message: Option<String>,
    details: Option<Details>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Details {
    causes: Option<Vec<Cause>>,
    retry_after_seconds: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Cause {
    reason: Option<String>,
    message: Option<String>,
}

const TOO_LARGE: &str = "Too large resource version";

// === impl Status ===

impl Status {
    /// Parses a body; one of another kind gives an empty status.
    pub(super) fn read(text: &str) -> Self {
        serde_json::from_str(text).unwrap_or_default()
    }

    /// Returns the status code, for an ERROR event, which has no HTTP code.
    pub(super) fn code(&self) -> Option<u16> {
        self.code
    }

    /// Returns the delay that the server requests before the next request.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        self.details.as_ref()?.retry_after_seconds.map(Duration::from_secs)
    }

    /// Classifies a failure as a source error, by its HTTP code and reason.
    pub(super) fn error(&self, code: u16, url: &str, text: &str) -> SourceError {
        let reason = self.reason.as_deref().unwrap_or_default();
        let words = status_text(text);
        let words = if words.is_empty() { format!("HTTP {code}") } else { words };
        let told = |hint: &str| format!("{url}: {words}{hint}");
        if self.is_too_large() {
            return SourceError::VersionTooLarge(told(""));
        }
        match (code, reason) {
            (410, _) | (_, "Expired" | "Gone") => SourceError::Expired(told("")),
            // A proxy in front of the API, or an API that is starting or stopping, reports nothing about the version.
            (408 | 429 | 502 | 503, _) | (_, "TooManyRequests") => SourceError::Busy(told("")),
            (504, _) => SourceError::Incomplete(told("")),
            (401, _) => SourceError::Refused(told("; correct the credentials of the kubeconfig or the token")),
            (403, _) => SourceError::Refused(told("; grant the role that `informerd rbac` prints")),
            (404, _) => SourceError::Refused(told("; correct group, version and plural: see `kubectl api-resources`")),
            (400..=499, _) => SourceError::Refused(told("")),
            _ => SourceError::Unavailable(told("")),
        }
    }

    /// Returns true for each of the forms that servers have used for "resource version too large".
    fn is_too_large(&self) -> bool {
        let causes = || self.details.iter().filter_map(|details| details.causes.as_ref()).flatten();
        let is_timeout = self.reason.as_deref() == Some("Timeout");
        let says = |text: &Option<String>| text.as_ref().is_some_and(|text| text.contains(TOO_LARGE));
        causes().any(|cause| cause.reason.as_deref() == Some("ResourceVersionTooLarge"))
            || (is_timeout && (says(&self.message) || causes().any(|cause| says(&cause.message))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: u16, status: &str) -> SourceError {
        serde_json::from_str::<Status>(status).unwrap_or_default().error(code, "u", status)
    }

    /// The three forms are those of `TestReflectorFullListIfTooLarge`.
    #[test]
    fn a_version_that_is_too_large_is_recognised_in_each_of_its_forms() {
        for status in [
            r#"{"reason":"Timeout","code":504,"details":{"causes":[{"reason":"ResourceVersionTooLarge","message":"x"}]}}"#,
            r#"{"reason":"Timeout","code":504,"details":{"causes":[{"message":"Too large resource version"}]}}"#,
            r#"{"reason":"Timeout","code":504,"message":"Too large resource version: 20, current: 10"}"#,
        ] {
            assert!(matches!(error(504, status), SourceError::VersionTooLarge(_)), "{status}");
        }
        let other = r#"{"reason":"Timeout","code":504,"message":"etcd took too long"}"#;
        assert_eq!(error(504, other), SourceError::Incomplete("u: etcd took too long (Timeout)".to_owned()));
    }

    #[test]
    fn failures_are_classified_by_the_reaction_of_the_reflector() {
        for (code, status, expected) in [
            (410, r#"{"reason":"Expired","message":"m"}"#, SourceError::Expired("u: m (Expired)".into())),
            (200, r#"{"reason":"Gone","message":"m"}"#, SourceError::Expired("u: m (Gone)".into())),
            (429, "", SourceError::Busy("u: HTTP 429".into())),
            (422, r#"{"reason":"Invalid","message":"m"}"#, SourceError::Refused("u: m (Invalid)".into())),
            (503, "<html>\nno backend", SourceError::Busy("u: <html> no backend".into())),
            (
                500,
                r#"{"reason":"InternalError","message":"m"}"#,
                SourceError::Unavailable("u: m (InternalError)".into()),
            ),
        ] {
            assert_eq!(error(code, status), expected);
        }
        for (code, hint) in [(401, "credentials"), (403, "informerd rbac"), (404, "api-resources")] {
            assert!(error(code, "{}").to_string().contains(hint), "{code}");
        }
    }
}
