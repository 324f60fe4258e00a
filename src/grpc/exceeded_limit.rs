//! Ends of calls above a limit that their peer shares with all others.

use tonic::Code;

use crate::transport::Exceeded;

/// Limit of all peers, and of one for its share, that a call has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExceededLimit {
    limited: Limited,
    exceeded: Exceeded,
}

/// Thing of which peers hold a limited amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Limited {
    /// Calls in progress.
    Calls,
    /// Bytes of requests that are not answered.
    Requests,
    /// Watches of the health service.
    HealthWatches,
    /// Streams of reflection.
    Reflections,
}

// === impl ExceededLimit ===

impl ExceededLimit {
    pub(super) fn new(limited: Limited, exceeded: Exceeded) -> Self {
        Self { limited, exceeded }
    }

    /// Returns the code: clients open a stream again that ends with UNAVAILABLE.
    pub(super) fn code(self) -> Code {
        match self.limited {
            Limited::Calls | Limited::Requests => Code::ResourceExhausted,
            Limited::HealthWatches | Limited::Reflections => Code::Unavailable,
        }
    }

    pub(super) fn reason(self) -> &'static str {
        match self.limited {
            Limited::Calls => "TOO_MANY_CALLS",
            Limited::Requests => "REQUEST_MEMORY_EXCEEDED",
            Limited::HealthWatches => "TOO_MANY_HEALTH_WATCHES",
            Limited::Reflections => "TOO_MANY_REFLECTIONS",
        }
    }

    /// Returns the metric label.
    pub(super) fn bound(self) -> &'static str {
        match (self.limited, self.exceeded) {
            (Limited::Calls, Exceeded::All(_)) => "calls",
            (Limited::Calls, Exceeded::Share(_)) => "peer_calls",
            (Limited::Requests, Exceeded::All(_)) => "request_memory",
            (Limited::Requests, Exceeded::Share(_)) => "peer_request_memory",
            (Limited::HealthWatches, Exceeded::All(_)) => "health_watches",
            (Limited::HealthWatches, Exceeded::Share(_)) => "peer_health_watches",
            (Limited::Reflections, Exceeded::All(_)) => "reflections",
            (Limited::Reflections, Exceeded::Share(_)) => "peer_reflections",
        }
    }

    pub(super) fn limit(self) -> usize {
        self.exceeded.limit()
    }

    pub(super) fn message(self) -> String {
        let limit = self.limit();
        let (problem, of_all, step) = match self.limited {
            Limited::Calls => (
                format!("too many calls: {limit}{} are in progress", self.of_peer()),
                "limits.calls",
                "close some, or put many watches on one Subscribe stream",
            ),
            Limited::Requests => (
                format!("request ended: requests{} that are not answered hold more than {limit} bytes", self.of_peer()),
                "an eighth of limits.memory",
                "send each at once, and fewer at a time",
            ),
            Limited::HealthWatches => (
                format!("watch of health ended: more than {limit}{} are open", self.of_peer()),
                "of 1024 in all",
                "watch once for each client, or call Check",
            ),
            Limited::Reflections => (
                format!("reflection ended: more than {limit} streams{} are open", self.of_peer()),
                "of 1024 in all",
                "close each after its answers",
            ),
        };
        match self.exceeded {
            Exceeded::All(_) => format!("{problem} ({of_all}): {step}"),
            Exceeded::Share(_) => format!(
                "{problem}, its share (limits.peer_share; {of_all}): {step}; raise limits.peer_share if one address stands for many \
                 clients"
            ),
        }
    }

    fn of_peer(self) -> &'static str {
        match self.exceeded {
            Exceeded::All(_) => "",
            Exceeded::Share(_) => " of this peer",
        }
    }
}
