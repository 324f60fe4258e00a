//! Ends of streams that the server decides, and their log lines.

use super::Peer;
use crate::log_throttle::LogThrottle;

named! {
    /// Reason for which the server has ended a stream that its body has not ended, or its connection.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum StreamEnd {
        /// Another part of the server has [reset](super::StreamHandle::reset) the stream.
        Evicted = "SLOW_CONSUMER",
        /// The client acknowledged nothing of the stream for `watch.progress_timeout`.
        Stalled = "STREAM_STALLED",
        /// More memory was held for all streams than the limit.
        Exhausted = "MEMORY_EXCEEDED",
        /// The same for the streams of its owner.
        OwnerExhausted = "QUOTA_EXCEEDED",
        /// The stream was open at the end of the drain period.
        Drained = "DRAINING",
        /// The client's socket took nothing for `watch.progress_timeout`.
        ConnectionStalled = "CONNECTION_STALLED",
        /// The client did not answer a PING.
        KeepAliveTimeout = "KEEPALIVE_TIMEOUT",
        /// The client did not complete a frame or a header block.
        IncompleteFrame = "INCOMPLETE_FRAME",
        /// The client did not follow HTTP/2, or exceeded one of its limits.
        ProtocolError = "PROTOCOL_ERROR",
        /// The stream failed in the server.
        Failed = "OTHER",
    }
}

/// Log lines about the ends of a listener's connections and streams: for each reason one in ten seconds.
#[derive(Debug, Default)]
pub(super) struct EndLog([LogThrottle; StreamEnd::ALL.len()]);

// === impl EndLog ===

impl EndLog {
    /// Logs the end of streams, if a line is due.
    pub(super) fn ended(&self, peer: Peer, end: StreamEnd, streams: usize) {
        if let Some(ends) = self.0[end as usize].poll() {
            let reason = end.as_str();
            tracing::info!(%peer, reason, streams, ends, "streams ended by the server");
        }
    }

    /// Returns true if a line was logged for this reason.
    #[cfg(test)]
    pub(super) fn has(&self, end: StreamEnd) -> bool {
        self.0[end as usize].poll().is_none()
    }
}
