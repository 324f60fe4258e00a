//! Ends of streams that the server decides, and their log lines.

use std::{
    fmt,
    sync::atomic::{AtomicU8, Ordering},
};

use super::Peer;
use crate::log_throttle::LogThrottle;

/// Reason for which the server has ended a stream that its body has not ended, or its connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum StreamEnd {
    /// Another part of the server has [reset](super::StreamHandle::reset) the stream.
    Evicted = 1,
    /// The client acknowledged nothing of the stream for `watch.progress_timeout`.
    Stalled,
    /// More memory was held for all streams than the limit.
    Exhausted,
    /// The same for the streams of its owner.
    OwnerExhausted,
    /// The stream was open at the end of the drain period.
    Drained,
    /// The client's socket took nothing for `watch.progress_timeout`.
    ConnectionStalled,
    /// The client did not answer a PING.
    KeepAliveTimeout,
    /// The client did not complete a frame or a header block.
    IncompleteFrame,
    /// The client did not follow HTTP/2, or exceeded one of its limits.
    ProtocolError,
    /// The stream failed in the server.
    Failed,
}

/// End of a stream or a connection, set at most once.
#[derive(Default)]
pub(super) struct EndCell(AtomicU8);

/// Log lines about the ends of a listener's connections and streams: for each reason one in ten seconds.
#[derive(Debug, Default)]
pub(super) struct EndLog([LogThrottle; StreamEnd::ALL.len()]);

// === impl StreamEnd ===

impl StreamEnd {
    /// All reasons.
    pub const ALL: [Self; 10] = [
        Self::Evicted,
        Self::Stalled,
        Self::Exhausted,
        Self::OwnerExhausted,
        Self::Drained,
        Self::ConnectionStalled,
        Self::KeepAliveTimeout,
        Self::IncompleteFrame,
        Self::ProtocolError,
        Self::Failed,
    ];

    /// Returns the name of the reason, as metrics and the status of a watch have it.
    pub fn reason(self) -> &'static str {
        match self {
            Self::Evicted => "SLOW_CONSUMER",
            Self::Stalled => "STREAM_STALLED",
            Self::Exhausted => "MEMORY_EXCEEDED",
            Self::OwnerExhausted => "QUOTA_EXCEEDED",
            Self::Drained => "DRAINING",
            Self::ConnectionStalled => "CONNECTION_STALLED",
            Self::KeepAliveTimeout => "KEEPALIVE_TIMEOUT",
            Self::IncompleteFrame => "INCOMPLETE_FRAME",
            Self::ProtocolError => "PROTOCOL_ERROR",
            Self::Failed => "OTHER",
        }
    }

    /// Returns its place in [`ALL`](Self::ALL).
    fn index(self) -> usize {
        self as usize - 1
    }
}

// === impl EndCell ===

impl EndCell {
    pub(super) fn get(&self) -> Option<StreamEnd> {
        let number = usize::from(self.0.load(Ordering::Acquire));
        StreamEnd::ALL.get(number.checked_sub(1)?).copied()
    }

    /// Sets the end, unless there is one.
    pub(super) fn set(&self, end: StreamEnd) {
        // Fails if there is one.
        self.0.compare_exchange(0, end as u8, Ordering::AcqRel, Ordering::Acquire).ok();
    }
}

impl fmt::Debug for EndCell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

// === impl EndLog ===

impl EndLog {
    /// Logs the end of streams, if a line is due.
    pub(super) fn ended(&self, peer: Peer, end: StreamEnd, streams: usize) {
        if let Some(ends) = self.0[end.index()].poll() {
            let reason = end.reason();
            tracing::info!(%peer, reason, streams, ends, "streams ended by the server");
        }
    }

    /// Returns true if a line was logged for this reason.
    #[cfg(test)]
    pub(super) fn has(&self, end: StreamEnd) -> bool {
        self.0[end.index()].poll().is_none()
    }
}
