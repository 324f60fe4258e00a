//! End of a watch, and the sums over all watches of a resource that have ended.

use parking_lot::Mutex;
use tonic::Code;

use super::status::ApiError;
use crate::transport::StreamEnd;

/// End of a watch.
#[derive(Debug, Clone)]
pub(super) struct WatchEnd {
    reason: &'static str,
    status: tonic_types::Status,
}

/// Sums over the watches of a resource that have ended.
#[derive(Debug, Default)]
pub(super) struct WatchTotals(Mutex<Totals>);

/// Sums over watches.
#[derive(Debug, Clone, Copy, Default)]
pub struct Totals {
    /// Events that they were sent, initial events included.
    pub events: u64,
    /// Bytes of these, and of bookmarks.
    pub bytes: u64,
    /// Changes that views have suppressed.
    pub suppressed: u64,
    /// Number of ends by reason, in the order of [`END_REASONS`].
    pub(super) ends: [u64; END_REASONS.len()],
}

/// Reasons for the end of a watch, as the metric has them: those of the API, and those without a status of the server.
pub(super) const END_REASONS: [&str; 27] = [
    "CANCELLED",
    "TIMEOUT",
    "CONDITION_MET",
    "DEADLINE_EXCEEDED",
    "STREAM_STALLED",
    "CONNECTION_STALLED",
    "KEEPALIVE_TIMEOUT",
    "INCOMPLETE_FRAME",
    "PROTOCOL_ERROR",
    "DRAINING",
    "DISCONNECTED",
    "RESOURCE_REMOVED",
    "RESOURCE_REPLACED",
    "RESOURCE_VERSION_EXPIRED",
    "RESOURCE_VERSION_TOO_LARGE",
    "HISTORY_CHANGED",
    "ACCESS_CHANGED",
    "ACCESS_DENIED",
    "IMPERSONATION_DENIED",
    "CREDENTIALS_INVALID",
    "CREDENTIALS_EXPIRED",
    "AUTHORIZER_UNAVAILABLE",
    "SLOW_CONSUMER",
    "MEMORY_EXCEEDED",
    "QUOTA_EXCEEDED",
    "NOT_SYNCED",
    OTHER,
];
const OTHER: &str = "OTHER";

// === impl WatchEnd ===

impl WatchEnd {
    fn new(reason: &'static str, code: Code, message: &str) -> Self {
        let status = tonic_types::Status { code: code.into(), message: message.to_owned(), details: Vec::new() };
        Self { reason, status }
    }

    /// Returns the end by a client that has left.
    pub(super) fn cancelled() -> Self {
        Self::new("CANCELLED", Code::Cancelled, "the client cancelled the call or closed its connection")
    }

    /// Returns the end after the time that the request has set.
    pub(super) fn timeout() -> Self {
        Self::new("TIMEOUT", Code::Ok, "")
    }

    /// Returns the end of the watch of an Until whose conditions are met.
    pub(super) fn condition_met() -> Self {
        Self::new("CONDITION_MET", Code::Ok, "")
    }

    /// Returns the end at the deadline of the call.
    pub(super) fn deadline_exceeded() -> Self {
        Self::new("DEADLINE_EXCEEDED", Code::DeadlineExceeded, "the deadline of the call has passed")
    }

    /// Returns the end of a client that was evicted under BLOCK and has not read the reason.
    pub(super) fn evicted() -> Self {
        let message = "evicted under BLOCK: the client did not keep up, and has not read this";
        Self::new("SLOW_CONSUMER", Code::ResourceExhausted, message)
    }

    /// Returns the reason, as the metric has it.
    pub(super) fn reason(&self) -> &'static str {
        self.reason
    }

    pub(super) fn into_status(self) -> tonic_types::Status {
        self.status
    }
}

/// End of a watch whose stream or connection the transport has ended; the client may not have received a status.
impl From<StreamEnd> for WatchEnd {
    fn from(end: StreamEnd) -> Self {
        let (code, message) = match end {
            StreamEnd::Evicted => return Self::evicted(),
            StreamEnd::Stalled => {
                (Code::ResourceExhausted, "reset: the client read nothing of the stream for watch.progress_timeout")
            }
            StreamEnd::Exhausted => {
                (Code::ResourceExhausted, "reset: more memory was held for clients than limits.memory")
            }
            StreamEnd::OwnerExhausted => {
                (Code::ResourceExhausted, "reset: more memory was held for the caller than quotas.bytes_held")
            }
            StreamEnd::Drained => (Code::Unavailable, "reset: the server shut down, and its drain period was over"),
            StreamEnd::ConnectionStalled => {
                (Code::ResourceExhausted, "connection closed: the client read nothing for watch.progress_timeout")
            }
            StreamEnd::KeepAliveTimeout => (Code::Unavailable, "connection closed: the client answered no PING"),
            StreamEnd::IncompleteFrame => {
                (Code::InvalidArgument, "connection closed: the client completed no frame for limits.request_timeout")
            }
            StreamEnd::ProtocolError => {
                (Code::InvalidArgument, "connection closed: the client did not follow HTTP/2, or its limits")
            }
            StreamEnd::Failed => (Code::Internal, "the stream failed; the server's log has the reason"),
        };
        Self::new(end.as_str(), code, message)
    }
}

impl From<&ApiError> for WatchEnd {
    fn from(error: &ApiError) -> Self {
        let (_, reason) = error.code_and_reason();
        let reason = END_REASONS.into_iter().find(|known| *known == reason).unwrap_or(OTHER);
        Self { reason, status: error.to_proto() }
    }
}

// === impl WatchTotals ===

impl WatchTotals {
    /// Adds a watch that has ended.
    pub(super) fn add(&self, reason: &str, events: u64, bytes: u64, suppressed: u64) {
        let mut totals = self.0.lock();
        totals.events += events;
        totals.bytes += bytes;
        totals.suppressed += suppressed;
        if let Some(at) = END_REASONS.iter().position(|known| *known == reason) {
            totals.ends[at] += 1;
        }
    }

    /// Returns the sums.
    pub(super) fn get(&self) -> Totals {
        *self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_end_has_a_reason_of_the_metric() {
        for (end, reason) in [
            (WatchEnd::cancelled(), "CANCELLED"),
            (WatchEnd::timeout(), "TIMEOUT"),
            (WatchEnd::condition_met(), "CONDITION_MET"),
            (WatchEnd::deadline_exceeded(), "DEADLINE_EXCEEDED"),
            (WatchEnd::from(StreamEnd::Stalled), "STREAM_STALLED"),
            (WatchEnd::from(StreamEnd::ConnectionStalled), "CONNECTION_STALLED"),
            (WatchEnd::from(&ApiError::Draining), "DRAINING"),
            (WatchEnd::from(&ApiError::Disconnected), "DISCONNECTED"),
            (WatchEnd::from(&ApiError::HistoryRewritten), "HISTORY_CHANGED"),
            (WatchEnd::from(&ApiError::Internal), OTHER),
        ] {
            assert_eq!(end.reason(), reason);
            let totals = WatchTotals::default();
            totals.add(end.reason(), 1, 2, 3);
            assert_eq!(totals.get().ends.iter().sum::<u64>(), 1);
        }
    }

    #[test]
    fn no_end_by_the_transport_counts_as_one_by_the_client() {
        for end in StreamEnd::ALL {
            let watch_end = WatchEnd::from(end);
            assert_eq!(watch_end.reason(), end.as_str());
            assert!(END_REASONS.contains(&end.as_str()), "{end:?}");
            let status = watch_end.into_status();
            assert!(status.code != i32::from(Code::Cancelled) && !status.message.is_empty(), "{end:?}");
        }
    }
}
