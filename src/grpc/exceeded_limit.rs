//! Ends of calls above a limit: one that all callers or peers share, or a quota of the caller's own.

use std::time::Duration;

use tonic::Code;

use crate::{model::ResourceVersion, transport::Exceeded};

/// Limit that a call has reached: that of all, or that of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ExceededLimit {
    limited: Limited,
    exceeded: Exceeded,
    /// Time until a retry succeeds, if it is known.
    retry_after: Option<Duration>,
    /// Last version of the stream, if it may resume.
    after: Option<ResourceVersion>,
}

/// Thing of which callers hold a limited amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limited {
    /// Calls in progress.
    Calls,
    /// Bytes of requests that are not complete, or whose calls are in progress.
    Requests,
    /// Watches of the health service.
    HealthWatches,
    /// Streams of reflection.
    Reflections,
    /// Open watches.
    Watchers,
    /// Expressions that wait to be compiled.
    Compilations,
    /// States of earlier versions that are computed or being sent.
    PastStates,
    /// Quota of streams.
    Streams,
    /// Quota of lists in a second.
    Lists,
    /// Quota of responses with the objects of a snapshot.
    BulkResponses,
    /// Quota of bytes that wait for the caller.
    BytesHeld,
}

/// Properties of a limit.
struct Row {
    code: Code,
    reason: &'static str,
    /// Metric labels of the limit of all, and of that of one.
    bounds: [&'static str; 2],
    /// Problem, around the limit.
    problem: [&'static str; 2],
    /// Key of the limit of all, or of the quota.
    key: &'static str,
    /// Next step of the client.
    step: &'static str,
    /// Holder of a share; none for a quota.
    holder: Option<&'static str>,
}

/// Key of the quotas in the configuration.
const QUOTAS: &str = "quotas.";

// === impl ExceededLimit ===

impl ExceededLimit {
    pub(super) fn new(limited: Limited, exceeded: Exceeded) -> Self {
        Self { limited, exceeded, retry_after: None, after: None }
    }

    /// Returns the end above a quota with this value.
    pub(super) fn of_quota(limited: Limited, limit: usize) -> Self {
        Self::new(limited, Exceeded::Share(limit))
    }

    /// Adds the time until a retry succeeds.
    pub(super) fn retried_after(self, delay: Duration) -> Self {
        Self { retry_after: Some(delay), ..self }
    }

    /// Adds the version from which a stream may resume.
    pub(super) fn resumed_after(self, after: Option<ResourceVersion>) -> Self {
        Self { after, ..self }
    }

    /// Returns the code: clients open a stream again that ends with UNAVAILABLE.
    pub(super) fn code(&self) -> Code {
        self.limited.row().code
    }

    pub(super) fn reason(&self) -> &'static str {
        self.limited.row().reason
    }

    /// Returns the metric label.
    pub(super) fn bound(&self) -> &'static str {
        let [all, one] = self.limited.row().bounds;
        if matches!(self.exceeded, Exceeded::All(_)) { all } else { one }
    }

    pub(super) fn retry_after(&self) -> Option<Duration> {
        self.retry_after
    }

    pub(super) fn message(&self) -> String {
        let Row { problem: [before, after], key, step, holder, .. } = self.limited.row();
        let limit = self.exceeded.limit();
        let step = match (self.retry_after, &self.after) {
            (Some(delay), _) => format!("retry after {} ms, or {step}", delay.as_millis()),
            (None, Some(version)) => format!("{step}, and resume after version {version}"),
            (None, None) => step.to_owned(),
        };
        match (self.exceeded, holder) {
            (Exceeded::Share(_), Some(holder)) => format!(
                "{before}{limit} of this {holder}{after}, its share (limits.peer_share; {key}): {step}; if one address stands \
                 for many clients, add it to limits.trusted_peers"
            ),
            _ => format!("{before}{limit}{after} ({key}): {step}"),
        }
    }

    pub(super) fn metadata(&self) -> Vec<(&'static str, String)> {
        let quota = self.limited.row().key.strip_prefix(QUOTAS).map(|name| ("quota", name.to_owned()));
        let after = self.after.as_ref().map(|after| ("after", after.to_string()));
        quota.into_iter().chain([("limit", self.exceeded.limit().to_string())]).chain(after).collect()
    }
}

// === impl Limited ===

impl Limited {
    fn row(self) -> Row {
        match self {
            Self::Calls => shared(
                "TOO_MANY_CALLS",
                ["calls", "peer_calls"],
                ["too many calls: ", " are in progress"],
                "a quarter more than watch.max_watchers",
                "close some, or put many watches on one Subscribe stream",
                "peer",
            ),
            Self::Requests => shared(
                "REQUEST_MEMORY_EXCEEDED",
                ["request_memory", "peer_request_memory"],
                ["request ended: bytes of requests: more than ", ""],
                "a part of limits.memory",
                "send each at once, and fewer at a time",
                "peer",
            ),
            Self::HealthWatches => Row {
                code: Code::Unavailable,
                ..shared(
                    "TOO_MANY_HEALTH_WATCHES",
                    ["health_watches", "peer_health_watches"],
                    ["watch of health ended: more than ", " are open"],
                    "of 1024 in all",
                    "watch once for each client, or call Check",
                    "peer",
                )
            },
            Self::Reflections => Row {
                code: Code::Unavailable,
                ..shared(
                    "TOO_MANY_REFLECTIONS",
                    ["reflections", "peer_reflections"],
                    ["reflection ended: streams that are open: more than ", ""],
                    "of 1024 in all",
                    "close each after its answers",
                    "peer",
                )
            },
            Self::Watchers => shared(
                "TOO_MANY_WATCHERS",
                ["watchers", "peer_watchers"],
                ["too many watches: ", " are open"],
                "watch.max_watchers",
                "close some",
                "caller",
            ),
            Self::Compilations => shared(
                "TOO_MANY_COMPILATIONS",
                ["compilations", "peer_compilations"],
                ["too many expressions: ", " wait to be compiled"],
                "a bound of the server",
                "retry",
                "caller",
            ),
            Self::PastStates => shared(
                "TOO_MANY_PAST_STATES",
                ["past_states", "peer_past_states"],
                ["too many reads of earlier versions: ", " are answered, and others wait"],
                "a bound of the server",
                "retry",
                "caller",
            ),
            Self::Streams => quota(
                "quota_streams",
                ["quota exceeded: ", " streams of this caller are open"],
                "quotas.streams",
                "close some",
            ),
            Self::Lists => quota(
                "quota_lists_per_second",
                ["quota exceeded: this caller lists more than ", " times a second"],
                "quotas.lists_per_second",
                "watch instead",
            ),
            Self::BulkResponses => quota(
                "quota_bulk_responses",
                ["quota exceeded: ", " lists and snapshots are being sent to this caller"],
                "quotas.bulk_responses",
                "read them, and retry",
            ),
            Self::BytesHeld => quota(
                "quota_bytes_held",
                ["quota exceeded: more than ", " bytes wait for this caller"],
                "quotas.bytes_held",
                "read faster",
            ),
        }
    }
}

type Texts = [&'static str; 2];

/// Returns the row of a limit of the server, of which one holder has a share.
fn shared(
    reason: &'static str,
    bounds: Texts,
    problem: Texts,
    key: &'static str,
    step: &'static str,
    holder: &'static str,
) -> Row {
    Row { code: Code::ResourceExhausted, reason, bounds, problem, key, step, holder: Some(holder) }
}

/// Returns the row of a quota of one caller.
fn quota(bound: &'static str, problem: Texts, key: &'static str, step: &'static str) -> Row {
    let bounds = [bound; 2];
    Row { code: Code::ResourceExhausted, reason: "QUOTA_EXCEEDED", bounds, problem, key, step, holder: None }
}

#[cfg(test)]
mod tests {
    use tonic_types::StatusExt;

    use super::*;
    use crate::grpc::status::ApiError;

    #[test]
    fn a_refusal_names_its_quota_and_what_to_do() {
        let delay = Duration::from_millis(1500);
        let quota = |limited| ExceededLimit::of_quota(limited, 5);
        for (exceeded, name, step) in [
            (quota(Limited::Streams), "streams", "close some"),
            (quota(Limited::Lists).retried_after(delay), "lists_per_second", "retry after 1500 ms, or watch instead"),
            (quota(Limited::BulkResponses), "bulk_responses", "read them, and retry"),
            (
                quota(Limited::BytesHeld).resumed_after(Some(ResourceVersion::decimal(7))),
                "bytes_held",
                "read faster, and resume after version 7",
            ),
        ] {
            assert_eq!(exceeded.bound(), format!("quota_{name}"));
            let metadata = exceeded.metadata();
            assert_eq!(metadata[..2], [("quota", name.to_owned()), ("limit", "5".to_owned())]);
            assert_eq!(metadata.get(2), (name == "bytes_held").then(|| ("after", "7".to_owned())).as_ref());
            let status = ApiError::from(exceeded).to_status();
            assert_eq!(status.code(), Code::ResourceExhausted);
            assert!(status.message().ends_with(&format!("(quotas.{name}): {step}")), "{}", status.message());
            let retry_delay = status.get_details_retry_info().unwrap().retry_delay.unwrap();
            assert_eq!(retry_delay == delay, name == "lists_per_second");
        }
    }

    #[test]
    fn a_share_names_its_key() {
        let watchers = |exceeded| ExceededLimit::new(Limited::Watchers, exceeded);
        let (all, share) = (watchers(Exceeded::All(9)), watchers(Exceeded::Share(3)));
        assert_eq!(all.message(), "too many watches: 9 are open (watch.max_watchers): close some");
        assert_eq!(
            share.message(),
            "too many watches: 3 of this caller are open, its share (limits.peer_share; watch.max_watchers): close some; if one \
             address stands for many clients, add it to limits.trusted_peers"
        );
        assert_eq!([all.bound(), share.bound()], ["watchers", "peer_watchers"]);
        assert_eq!(share.metadata(), [("limit", "3".to_owned())]);
    }
}
