//! Errors with which connections end.

use std::{io::ErrorKind, time::Duration};

use super::StreamEnd;

/// Error with which a connection ended.
#[derive(Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("{0}")]
    Http(#[from] h2::Error),
    #[error("{0}")]
    Io(#[from] std::io::Error),
    #[error("no HTTP/2 preface from the client within {0:?} (limits.request_timeout)")]
    NoPreface(Duration),
    #[error("incomplete frame or header block: the client did not complete it within {0:?} (limits.request_timeout)")]
    Incomplete(Duration),
    #[error("write stalled: the client read nothing for {0:?}")]
    Stuck(Duration),
}

// === impl ConnectionError ===

impl ConnectionError {
    /// Returns the metric label of the limit that was exceeded, if there is one.
    pub(super) fn refused_for(&self) -> Option<&'static str> {
        match self {
            Self::NoPreface(_) => Some("preface_timeout"),
            Self::Incomplete(_) => Some("headers_timeout"),
            Self::Http(_) | Self::Io(_) | Self::Stuck(_) => None,
        }
    }

    /// Returns true if the peer has been sent the reason, after everything else.
    pub(super) fn is_written(&self) -> bool {
        matches!(self, Self::Http(error) if error.is_library())
    }

    /// Returns the end of its streams; none if the client has closed the connection.
    pub(super) fn end(&self) -> Option<StreamEnd> {
        match self {
            Self::Stuck(_) => Some(StreamEnd::ConnectionStalled),
            Self::Incomplete(_) | Self::NoPreface(_) => Some(StreamEnd::IncompleteFrame),
            Self::Http(error) if error.is_library() => Some(StreamEnd::ProtocolError),
            Self::Http(_) | Self::Io(_) => None,
        }
    }

    /// Returns the error as it is if the kernel ends connections after this time without progress.
    pub(super) fn timed_by_kernel(self, timeout: Duration) -> Self {
        let io = match &self {
            Self::Http(error) => error.get_io(),
            Self::Io(error) => Some(error),
            _ => None,
        };
        if io.is_some_and(|io| io.kind() == ErrorKind::TimedOut) { Self::Stuck(timeout) } else { self }
    }
}
