//! One call: its client, its deadline and its single request message.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{Arc, LazyLock},
    time::Duration,
};

use http::{Extensions, HeaderMap, header};
use http_body_util::BodyExt;
use prost::Message;
use tokio::time::Instant;

use super::{
    audited_call::AuditedCall,
    grant::Authenticated,
    opening::OpeningSlot,
    request::{Messages, payload},
    status::ApiError,
};
use crate::{
    auth::{Credentials, Identity},
    model::excerpt,
    proto::Compression,
    transport::{CertificateExpiry, Origin, Peer, StreamHandle},
    turns::Party,
    watch::Client,
};

/// Properties of a call besides its request; of a watch on a Subscribe stream, those of that stream.
#[derive(Debug, Clone)]
pub(super) struct Call {
    /// Peer that made the call, if the transport has set it.
    pub(super) peer: Option<Peer>,
    /// Identity of the client, if it was authenticated, or if its certificate has a name.
    pub(super) identity: Option<Identity>,
    /// Identity of the client whose credentials these are, if it makes the call on behalf of another.
    pub(super) impersonator: Option<Identity>,
    /// Credentials of the client, if it was authenticated with them.
    pub(super) credentials: Option<Credentials>,
    /// Time at which the certificate of its connection expires, if it has one.
    pub(super) expiry: Option<CertificateExpiry>,
    /// Handle by which the transport resets the stream, if its connection polls it.
    pub(super) stream: Option<StreamHandle>,
    /// Client program, as it describes itself.
    pub(super) user_agent: Arc<str>,
    /// Entry in the audit log, if there is one.
    pub(super) audited: Option<AuditedCall>,
    /// Maximum time to wait for the first list.
    pub(super) wait: Duration,
    /// Compression of the response; none for a watch on a Subscribe stream.
    pub(super) compression: Option<Compression>,
    /// Its place on a Subscribe stream, if it is a watch there.
    pub(super) subscription: Option<Subscription>,
}

/// Place of a watch on a Subscribe stream.
#[derive(Debug, Clone)]
pub(super) struct Subscription {
    /// Number of the stream, unique in this process and not 0.
    pub(super) stream_id: u64,
    /// Id that the client has chosen.
    pub(super) watch_id: u32,
    /// Time at which the stream was opened.
    pub(super) began: Instant,
    /// Its part of the openings of the stream.
    pub(super) opening: Arc<OpeningSlot>,
}

/// Authenticated client that makes a call on behalf of another: an extension of the request.
#[derive(Debug, Clone)]
pub(super) struct Impersonator(pub(super) Identity);

/// Caller, as the limits see it: everything that is open for an origin shares them, and its connections take turns.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(super) struct Caller {
    /// Connection of the caller, by address and port. All unix sockets of one user count as one.
    pub(super) peer: Option<Peer>,
    /// Hash of the user's name.
    user: Option<u64>,
}

/// Maximum time that a read waits for a resource that has not synced; a client's deadline shortens it.
const MAX_WAIT: Duration = Duration::from_secs(10);

// === impl Call ===

impl Call {
    pub(super) fn new(headers: &HeaderMap, extensions: &Extensions) -> Self {
        Self {
            peer: extensions.get().copied(),
            identity: extensions.get().cloned(),
            impersonator: extensions.get::<Impersonator>().map(|Impersonator(identity)| identity.clone()),
            credentials: extensions.get().cloned(),
            expiry: extensions.get().copied(),
            stream: extensions.get().cloned(),
            user_agent: user_agent(headers),
            audited: extensions.get().cloned(),
            wait: wait_of(timeout_of(headers)),
            compression: None,
            subscription: None,
        }
    }

    /// Returns the call of a watch on this stream, which has its own entry in the audit log.
    pub(super) fn of_watch(&self, subscription: Subscription) -> Self {
        let audited = self.audited.as_ref().map(AuditedCall::of_watch);
        Self { audited, subscription: Some(subscription), ..self.clone() }
    }

    /// Returns the caller, if there is an identity.
    pub(super) fn authenticated(&self) -> Option<Authenticated> {
        let (impersonator, credentials) = (self.impersonator.clone(), self.credentials.clone());
        self.identity.clone().map(|identity| Authenticated { identity, impersonator, credentials })
    }

    /// Returns the user and uid of the caller, to whom page tokens are bound.
    pub(super) fn user(&self) -> Option<(&str, &str)> {
        self.identity.as_ref().map(|identity| (identity.user(), &*identity.details().uid))
    }

    /// Returns the caller, whose limits the call uses.
    pub(super) fn caller(&self) -> Caller {
        Caller::new(self.peer, self.identity.as_ref())
    }
}

// === impl Caller ===

impl Caller {
    pub(super) fn new(peer: Option<Peer>, identity: Option<&Identity>) -> Self {
        // Without a secret key, a user could choose a name with the hash of another.
        static KEY: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        Self { peer, user: identity.map(|identity| KEY.hash_one(identity.user())) }
    }

    /// Returns the origin whose share of the limits the calls use: the user, wherever its connections come from, or the peer if
    /// nobody has authenticated the user. `None` if neither is known.
    pub(super) fn origin(&self) -> Option<Origin> {
        self.user.map(Origin::Identity).or_else(|| self.peer.as_ref().and_then(Peer::origin))
    }

    /// Returns the caller as the queues see it. Callers without a known origin count as one.
    pub(super) fn party(&self) -> Party {
        Party::new(&self.origin(), self)
    }

    /// Returns the client whose BLOCK budget the watches use. Without a known origin, each watch has a budget of its own.
    pub(super) fn client(&self) -> Client {
        match self.origin() {
            Some(Origin::Identity(user)) => Client::Identity(user),
            Some(Origin::Address(address)) => Client::Address(address),
            Some(Origin::User(Some(uid))) => Client::User(uid),
            Some(Origin::User(None)) | None => Client::Watch,
        }
    }
}

/// Returns the client program of a request, at most as long as an excerpt.
fn user_agent(headers: &HeaderMap) -> Arc<str> {
    let text = headers.get(header::USER_AGENT).and_then(|text| text.to_str().ok());
    excerpt(text.unwrap_or_default()).into()
}

/// Reads the single message of a request.
pub(super) async fn message<M: Message + Default>(body: Messages) -> Result<M, ApiError> {
    let message = body.collect().await?.to_bytes();
    M::decode(payload(&message)?).map_err(|error| ApiError::request(error.to_string()))
}

/// Returns the time for which a call may wait: up to its deadline, at most [`MAX_WAIT`]. A tenth of the deadline is left for the
/// response: otherwise the client would see `DEADLINE_EXCEEDED` instead of the reason.
pub(super) fn wait_of(timeout: Option<Duration>) -> Duration {
    timeout.map_or(MAX_WAIT, |timeout| (timeout / 10 * 9).min(MAX_WAIT))
}

/// Parses the `grpc-timeout` header of gRPC over HTTP/2: at most 8 digits and a unit. A malformed value counts as no deadline.
pub(super) fn timeout_of(headers: &HeaderMap) -> Option<Duration> {
    let text = headers.get("grpc-timeout")?.to_str().ok()?;
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        "H" => Duration::from_secs(count * 3600),
        "M" => Duration::from_secs(count * 60),
        "S" => Duration::from_secs(count),
        "m" => Duration::from_millis(count),
        "u" => Duration::from_micros(count),
        "n" => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::auth::IdentityDetails;

    fn named(user: &str) -> Identity {
        Identity::new(IdentityDetails { user: user.to_owned(), ..IdentityDetails::default() })
    }

    #[test]
    fn a_client_is_a_host_a_network_or_a_user() {
        let client = |peer: Option<Peer>| Caller::new(peer, None).client();
        let tcp = |text: &str| client(Some(Peer::Tcp(text.parse().unwrap())));
        assert_eq!(tcp("10.1.2.3:1"), tcp("10.1.2.3:2"), "whatever its connection");
        assert_ne!(tcp("10.1.2.3:1"), tcp("10.1.2.4:1"));
        assert_eq!(tcp("[2001:db8::1]:1"), tcp("[2001:db8::2]:1"));
        assert_eq!(client(Some(Peer::Unix { uid: Some(7) })), Client::User(7));
        assert_eq!(client(Some(Peer::Unix { uid: None })), Client::Watch);
        assert_eq!(client(None), Client::Watch);
    }

    #[test]
    fn a_user_is_one_origin_behind_many_peers_and_one_peer_has_many_users() {
        let at = |peer: &str, user: &str| Caller::new(Some(Peer::Tcp(peer.parse().unwrap())), Some(&named(user)));
        let same = [at("10.0.0.1:1", "a"), at("10.0.0.2:2", "a")];
        assert_eq!((same[0].origin(), same[0].client()), (same[1].origin(), same[1].client()));
        assert_ne!(same[0], same[1], "its connections take turns");
        let other = at("10.0.0.1:1", "b");
        assert_ne!((same[0].origin(), same[0].client()), (other.origin(), other.client()));
        let unnamed = Caller::new(same[0].peer, None);
        assert_eq!(unnamed.origin(), same[0].peer.as_ref().and_then(Peer::origin));
        assert!(matches!(Caller::new(None, Some(&named("a"))).origin(), Some(Origin::Identity(_))));
    }

    #[test]
    fn a_deadline_bounds_the_wait() {
        let wait = |text: &'static str| {
            let headers = [("grpc-timeout", text)].map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()));
            wait_of(timeout_of(&headers.into_iter().collect()))
        };
        assert_eq!(wait("300m"), Duration::from_millis(270));
        assert_eq!(wait("2S"), Duration::from_millis(1800));
        for text in ["1H", "99999999M", "x", "S", "123456789S", "-1S"] {
            assert_eq!(wait(text), MAX_WAIT, "{text}");
        }
        assert_eq!(wait_of(None), MAX_WAIT);
    }

    #[test]
    fn deadlines_are_read_as_grpc_writes_them() {
        let timeout = |text: &'static str| {
            timeout_of(&HeaderMap::from_iter([("grpc-timeout".parse().unwrap(), text.parse().unwrap())]))
        };
        let read = ["300m", "2S", "1H", "3M", "7u", "9n"].map(|text| timeout(text).unwrap());
        let millis = [300, 2000, 3_600_000, 180_000].map(Duration::from_millis);
        assert_eq!(read[..4], millis);
        assert_eq!(read[4..], [Duration::from_micros(7), Duration::from_nanos(9)]);
        for text in ["x", "S", "", "123456789S", "-1S", "1.5S"] {
            assert_eq!(timeout(text), None, "{text}");
        }
    }
}
