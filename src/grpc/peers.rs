//! Account of each peer, from the first HEADERS of a call on, before anybody is authenticated: its calls in progress, its requests,
//! and its streams of the services that need no credentials or bypass `watchers`.
//!
//! ```text
//!   HEADERS ──▶ call in progress ───────────────────────────────────▶ end of the response
//!          └──▶ request: headers, then each byte that arrives ──▶ end of the response
//!               of a Watch, an Until or a Subscribe stream, which have limits of their own, the headers: end of the first message
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
pub(crate) struct PeerCall {
    _permit: Permit,
    /// Charge that its account may end; boxed, because every watch has room for one.
    shed: Option<Box<Shed>>,
}

/// Charge of a stream of a service whose streams are limited, or of a request that is being answered.
#[derive(Debug)]
struct Shed {
    limited: Limited,
    charge: Arc<PeerCharge>,
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
/// Memory of a call beside its headers and its messages, in bytes: HTTP/2's stream, the futures and their spans.
const CALL_BYTES: usize = 6 << 10;
/// Maximum number of streams of the health service, and of reflection. A load balancer or a kubelet has one of each client.
const MAX_STREAMS: usize = 1024;
/// Maximum size of a request to the health service, in bytes: it has one name.
pub(super) const HEALTH_REQUEST_BYTES: usize = 1 << 10;
/// Calls beside watches: a part of the number of watches, as a divisor, and some more.
const SPARE_SHARE: usize = 4;
const SPARE_CALLS: usize = 100;
/// Maximum size of other requests: an expression of the longest kind, and as much again for selectors and a view.
pub(super) const MAX_REQUEST_BYTES: usize = 64 << 10;
/// Path prefix of the health service.
pub(super) const HEALTH_PATHS: &str = "/grpc.health.v1.Health/";
const HEALTH_WATCH_PATH: &str = "/grpc.health.v1.Health/Watch";
/// Path prefix of reflection, whose requests are streams.
pub(super) const REFLECTION_PATHS: &str = "/grpc.reflection.";

// === impl Peers ===

impl Peers {
    /// Creates the accounts for the calls beside this number of watches, and a part of the memory held for clients; a peer gets
    /// `percent` of each. A peer may always send a few of the largest requests.
    pub(super) fn new(watches: usize, memory: usize, percent: u32, refused: Rejections) -> Self {
        const LARGEST_REQUESTS: usize = 64;
        let requests = (memory / REQUESTS_SHARE).max(MAX_REQUEST_BYTES * LARGEST_REQUESTS).min(memory / 2);
        let calls = watches.saturating_add(watches / SPARE_SHARE + SPARE_CALLS);
        Self {
            calls: Quota::new(calls, percent),
            requests: PeerAccount::new(requests, percent),
            health_watches: PeerAccount::new(MAX_STREAMS, percent),
            reflections: PeerAccount::new(MAX_STREAMS, percent),
            refused,
        }
    }

    /// Returns the account of requests.
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
        let shed = stream.map(|(limited, account)| {
            let charge = Arc::new(account.charge(peer));
            charge.add(1);
            Box::new(Shed { limited, charge, refused: self.refused.clone() })
        });
        Ok(PeerCall { _permit: permit, shed })
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
    extensions.get().and_then(Peer::origin)
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
    /// Holds the charge of the request until the end of the response, unless the streams of the service are limited themselves.
    pub(super) fn holding(mut self, RequestCharge { charge, .. }: RequestCharge, refused: Rejections) -> Self {
        self.shed.get_or_insert_with(|| Box::new(Shed { limited: Limited::Requests, charge, refused }));
        self
    }

    /// Returns the place for the response. A watch releases the request, since it has limits of its own; so does the answer to a request
    /// that its account has ended.
    #[cfg(feature = "kubernetes-api")]
    pub(crate) fn of_response(self, is_watch: bool) -> Self {
        Self { shed: self.shed.filter(|shed| !is_watch && shed.charge.ended().is_none()), ..self }
    }

    /// Waits until the call must end, because its peer has newer ones, and counts that. Not polled again then. Never ready for a
    /// Watch, an Until or a Subscribe stream.
    pub(crate) fn poll_ended(&self, cx: &mut Context<'_>) -> Poll<ApiError> {
        let Some(Shed { limited, charge, refused }) = self.shed.as_deref() else { return Poll::Pending };
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

    /// Releases what is not of the body.
    pub(super) fn release_head(&self) {
        self.charge.sub(self.head);
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
