//! Account of each peer, from the first HEADERS of a call on, before anybody is authenticated: its calls in progress, the requests
//! that are not answered, and its streams of the services that need no credentials or bypass `watchers`.
//!
//! ```text
//!   HEADERS ──▶ call in progress ─────────────────────────────────▶ end of the response
//!          └──▶ request: headers, then each byte that arrives ──▶ response begins
//! ```
//!
//! A call above the limit of calls is refused. Requests and streams above theirs are accepted, and the oldest ones end
//! ([`PeerAccount`]).

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use http::{Extensions, HeaderMap};

use super::{
    exceeded_limit::{ExceededLimit, Limited},
    status::ApiError,
};
use crate::transport::{Origin, Peer, PeerAccount, PeerCharge, Permit, Quota, Rejections};

/// Accounts of all peers.
#[derive(Debug)]
pub(super) struct Peers {
    calls: Arc<Quota>,
    requests: Arc<PeerAccount>,
    health_watches: Arc<PeerAccount>,
    reflections: Arc<PeerAccount>,
    refused: Rejections,
}

/// Part of a call in the account of its peer, until it is dropped.
#[derive(Debug)]
pub(super) struct PeerCall {
    _permit: Permit,
    /// Place among the streams of its service, if these are limited; boxed, because every watch has room for one.
    stream: Option<Box<LimitedStream>>,
}

/// Stream of a service whose streams are limited.
#[derive(Debug)]
struct LimitedStream {
    limited: Limited,
    charge: PeerCharge,
    refused: Rejections,
}

/// Memory of a request that is not answered. The call and the body of its request share it.
#[derive(Debug, Clone)]
pub(super) struct RequestCharge {
    charge: Arc<PeerCharge>,
    /// Part that is not of the body.
    head: usize,
}

/// Service of a path, as far as the limits differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    HealthWatch,
    Reflection,
    Other,
}

/// Part of the memory held for all clients that requests may take which are not answered, as a divisor.
const REQUESTS_SHARE: usize = 8;
/// Memory of a call before its response begins, beside its headers and its message, in bytes: HTTP/2's stream, the futures and their
/// spans.
const CALL_BYTES: usize = 4 << 10;
/// Maximum number of streams of the health service, and of reflection. A load balancer or a kubelet has one of each client.
const MAX_STREAMS: usize = 1024;
/// Maximum size of a request to the health service, in bytes: it has one name.
pub(super) const HEALTH_REQUEST_BYTES: usize = 1 << 10;
/// Path prefix of the health service.
pub(super) const HEALTH_PATHS: &str = "/grpc.health.v1.Health/";
const HEALTH_WATCH_PATH: &str = "/grpc.health.v1.Health/Watch";
/// Path prefix of reflection, whose requests are streams.
pub(super) const REFLECTION_PATHS: &str = "/grpc.reflection.";

// === impl Peers ===

impl Peers {
    /// Creates the accounts for at most this number of calls, and a part of the memory held for clients; a peer gets `percent` of
    /// each. A peer may always send a few of the largest requests.
    pub(super) fn new(calls: usize, memory: usize, request_bytes: usize, percent: u32, refused: Rejections) -> Self {
        const LARGEST_REQUESTS: usize = 64;
        let requests = (memory / REQUESTS_SHARE).max(request_bytes.saturating_mul(LARGEST_REQUESTS));
        Self {
            calls: Quota::new(calls, percent),
            requests: PeerAccount::new(requests, percent),
            health_watches: PeerAccount::new(MAX_STREAMS, percent),
            reflections: PeerAccount::new(MAX_STREAMS, percent),
            refused,
        }
    }

    /// Returns the account of requests that are not answered.
    pub(super) fn requests(&self) -> &Arc<PeerAccount> {
        &self.requests
    }

    /// Counts a call, if that is within the limit.
    pub(super) fn call(&self, path: &str, extensions: &Extensions) -> Result<PeerCall, ApiError> {
        let peer = origin(extensions);
        let permit = self.calls.take(peer);
        let permit = permit.map_err(|exceeded| ExceededLimit::new(Limited::Calls, exceeded))?;
        let stream = match Kind::of(path) {
            Kind::HealthWatch => Some((Limited::HealthWatches, &self.health_watches)),
            Kind::Reflection => Some((Limited::Reflections, &self.reflections)),
            Kind::Other => None,
        };
        let stream = stream.map(|(limited, account)| {
            let charge = account.charge(peer);
            charge.add(1);
            Box::new(LimitedStream { limited, charge, refused: self.refused.clone() })
        });
        Ok(PeerCall { _permit: permit, stream })
    }

    /// Counts a request, of which the headers have arrived.
    pub(super) fn request(&self, headers: &HeaderMap, extensions: &Extensions) -> RequestCharge {
        let charge = self.requests.charge(origin(extensions));
        let headers: usize = headers.iter().map(|(name, value)| name.as_str().len() + value.len()).sum();
        let head = CALL_BYTES + headers;
        charge.add(head);
        RequestCharge { charge: Arc::new(charge), head }
    }
}

fn origin(extensions: &Extensions) -> Option<Origin> {
    extensions.get().map(Peer::origin)
}

// === impl Kind ===

impl Kind {
    fn of(path: &str) -> Self {
        if path == HEALTH_WATCH_PATH {
            Self::HealthWatch
        } else if path.starts_with(REFLECTION_PATHS) {
            Self::Reflection
        } else {
            Self::Other
        }
    }
}

// === impl PeerCall ===

impl PeerCall {
    /// Waits until the stream must end, because there are newer ones, and counts that. Not polled again then. Never ready for a call of another service.
    pub(super) fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<ApiError> {
        let Some(LimitedStream { limited, charge, refused }) = self.stream.as_deref() else { return Poll::Pending };
        charge.poll_ended(cx).map(|exceeded| {
            let exceeded = ExceededLimit::new(*limited, exceeded);
            refused.count(exceeded.bound());
            exceeded.into()
        })
    }
}

// === impl RequestCharge ===

impl RequestCharge {
    /// Creates a charge of a body alone.
    #[cfg(test)]
    pub(super) fn of_body(account: &Arc<PeerAccount>) -> Self {
        Self { charge: Arc::new(account.charge(None)), head: 0 }
    }

    /// Replaces the number of bytes of the body.
    pub(super) fn replace(&self, before: usize, now: usize) {
        if now >= before {
            self.charge.add(now - before);
        } else {
            self.charge.sub(before - now);
        }
    }

    /// Releases what is not of the body: the response begins.
    pub(super) fn release_head(&self) {
        self.charge.sub(self.head);
    }

    /// Releases everything.
    pub(super) fn release(&self) {
        self.charge.clear();
    }

    /// Waits until the request must end, because its peer, or all of them, hold too many bytes.
    pub(super) fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<ApiError> {
        self.charge.poll_ended(cx).map(|exceeded| ExceededLimit::new(Limited::Requests, exceeded).into())
    }

    /// Waits until the request must end.
    pub(super) async fn ended(&self) -> ApiError {
        std::future::poll_fn(|cx| self.poll_ended(cx)).await
    }
}
