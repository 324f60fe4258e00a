//! Refusals of calls above a quota of their caller.

use std::time::Duration;

use crate::model::ResourceVersion;

/// Quota that a caller has reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ExceededQuota {
    Streams(usize),
    Lists { per_second: u32, retry_after: Duration },
    BulkResponses(usize),
    BytesHeld { limit: usize, after: Option<ResourceVersion> },
}

// === impl ExceededQuota ===

impl ExceededQuota {
    /// Returns the name, which is that of the key in the configuration.
    fn name(&self) -> &'static str {
        match self {
            Self::Streams(_) => "streams",
            Self::Lists { .. } => "lists_per_second",
            Self::BulkResponses(_) => "bulk_responses",
            Self::BytesHeld { .. } => "bytes_held",
        }
    }

    /// Returns the metric label.
    pub(super) fn bound(&self) -> &'static str {
        match self {
            Self::Streams(_) => "quota_streams",
            Self::Lists { .. } => "quota_lists_per_second",
            Self::BulkResponses(_) => "quota_bulk_responses",
            Self::BytesHeld { .. } => "quota_bytes_held",
        }
    }

    /// Returns the time until a retry succeeds, if it is known.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        if let Self::Lists { retry_after, .. } = self { Some(*retry_after) } else { None }
    }

    pub(super) fn message(&self) -> String {
        let (problem, step) = match self {
            Self::Streams(limit) => (format!("{limit} streams of this caller are open"), "close some".to_owned()),
            Self::Lists { per_second, retry_after } => (
                format!("this caller lists more than {per_second} times a second"),
                format!("retry after {} ms, or watch instead", retry_after.as_millis()),
            ),
            Self::BulkResponses(limit) => (
                format!("{limit} lists and snapshots are being sent to this caller"),
                "read them, and retry".to_owned(),
            ),
            Self::BytesHeld { limit, after } => {
                let resume =
                    after.as_ref().map_or_else(String::new, |after| format!(", and resume after version {after}"));
                (format!("more than {limit} bytes wait for this caller"), format!("read faster{resume}"))
            }
        };
        format!("quota exceeded: {problem} (quotas.{}): {step}", self.name())
    }

    pub(super) fn metadata(&self) -> Vec<(&'static str, String)> {
        let (limit, after) = match self {
            Self::Streams(limit) | Self::BulkResponses(limit) => (limit.to_string(), None),
            Self::Lists { per_second, .. } => (per_second.to_string(), None),
            Self::BytesHeld { limit, after } => (limit.to_string(), after.as_ref()),
        };
        let after = after.map(|after| ("after", after.to_string()));
        [("quota", self.name().to_owned()), ("limit", limit)].into_iter().chain(after).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::status::ApiError;

    #[test]
    fn a_refusal_names_its_quota_and_what_to_do() {
        let retry_after = Duration::from_millis(1500);
        for (exceeded, name) in [
            (ExceededQuota::Streams(5), "streams"),
            (ExceededQuota::Lists { per_second: 5, retry_after }, "lists_per_second"),
            (ExceededQuota::BulkResponses(5), "bulk_responses"),
            (ExceededQuota::BytesHeld { limit: 5, after: Some(ResourceVersion::decimal(7)) }, "bytes_held"),
        ] {
            let is_held = matches!(exceeded, ExceededQuota::BytesHeld { .. });
            assert_eq!(exceeded.bound(), format!("quota_{name}"));
            let metadata = exceeded.metadata();
            assert_eq!(metadata[..2], [("quota", name.to_owned()), ("limit", "5".to_owned())]);
            assert_eq!(metadata.get(2), is_held.then(|| ("after", "7".to_owned())).as_ref());
            let status = ApiError::from(exceeded).to_status();
            assert_eq!(status.code(), tonic::Code::ResourceExhausted);
            assert!(status.message().contains(&format!("(quotas.{name}): ")), "{}", status.message());
            let delay = tonic_types::StatusExt::get_details_retry_info(&status).unwrap().retry_delay.unwrap();
            assert_eq!(delay == retry_after, name == "lists_per_second");
        }
    }
}
