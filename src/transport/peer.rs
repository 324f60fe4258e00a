//! Other end of a connection: a client, or a proxy that forwards the calls of many.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use http::{HeaderMap, Request};
use ipnet::IpNet;
use rustls::pki_types::CertificateDer;

use super::{
    Origin,
    identity::{CertificateExpiry, identity_of},
};
use crate::auth::{CertificateNames, Identity};

/// Peer of a call; an extension of each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Peer {
    /// A TCP address.
    Tcp(SocketAddr),
    /// A unix socket, which has no address.
    Unix {
        /// User of the peer's process when it connected, if the kernel reports it.
        uid: Option<u32>,
    },
    /// A trusted proxy that names no client.
    Proxy(SocketAddr),
    /// A client that a trusted proxy names.
    Forwarded {
        /// Its address.
        client: IpAddr,
        /// True if the proxy is on the machine of the server.
        by_local: bool,
    },
}

/// Other end of a connection, from which the peer of each call follows.
#[derive(Debug, Clone)]
pub(super) struct ConnectionPeer {
    pub(super) peer: Peer,
    /// Client that TLS has authenticated, if its certificate has names that can be used.
    pub(super) identity: Option<Identity>,
    /// Time at which its certificate expires, if it has one.
    pub(super) expiry: Option<CertificateExpiry>,
    trusted: TrustedPeers,
}

/// Addresses of the proxies whose word about their clients counts. Clones share the list.
#[derive(Debug, Clone, Default)]
pub struct TrustedPeers(Arc<[IpNet]>);

/// Header in which each proxy appends the address of its peer. Everything before the last one that is not trusted may be made up.
const FORWARDED_FOR: &str = "x-forwarded-for";

// === impl Peer ===

impl Peer {
    /// Returns the origin, which shares the limits with all its other connections; `None` if any number of clients may be behind it.
    pub fn origin(&self) -> Option<Origin> {
        match self {
            Self::Tcp(address) => Some(Origin::at(address.ip())),
            Self::Unix { uid } => Some(Origin::User(*uid)),
            Self::Proxy(_) => None,
            Self::Forwarded { client, .. } => Some(Origin::at(*client)),
        }
    }

    /// Returns true if the client is on the machine of the server, as far as that is certain: not behind a proxy.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => is_loopback(address),
            Self::Unix { .. } => true,
            Self::Proxy(_) | Self::Forwarded { .. } => false,
        }
    }

    /// Returns true if the connection comes from the machine of the server by TCP, as that of a browser there does.
    #[cfg(feature = "kubernetes-api")]
    pub fn is_over_loopback(&self) -> bool {
        match self {
            Self::Tcp(address) | Self::Proxy(address) => is_loopback(address),
            Self::Unix { .. } => false,
            Self::Forwarded { by_local, .. } => *by_local,
        }
    }
}

fn is_loopback(address: &SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) | Self::Proxy(address) => address.fmt(f),
            Self::Unix { .. } => f.write_str("unix"),
            Self::Forwarded { client, .. } => client.fmt(f),
        }
    }
}

// === impl ConnectionPeer ===

impl ConnectionPeer {
    pub(super) fn new(peer: Peer, trusted: &TrustedPeers) -> Self {
        let peer = match peer {
            Peer::Tcp(address) if trusted.contains(address.ip()) => Peer::Proxy(address),
            _ => peer,
        };
        Self { peer, identity: None, expiry: None, trusted: trusted.clone() }
    }

    /// Records the certificate of the client, which TLS has verified.
    pub(super) fn presents(&mut self, certificate: &CertificateDer<'_>, names: CertificateNames) {
        self.expiry = CertificateExpiry::of(certificate);
        let identity = identity_of(certificate, names);
        self.identity = identity.inspect_err(|problem| tracing::debug!(problem, "client certificate not used")).ok();
    }

    /// Adds the peer of a request, and the identity and the end of the certificate of the connection, to it.
    pub(super) fn introduce<B>(&self, request: &mut Request<B>) {
        let peer = self.of_call(request.headers());
        request.extensions_mut().insert(peer);
        if let Some(identity) = &self.identity {
            request.extensions_mut().insert(identity.clone());
        }
        if let Some(expiry) = self.expiry {
            request.extensions_mut().insert(expiry);
        }
    }

    fn of_call(&self, headers: &HeaderMap) -> Peer {
        let Peer::Proxy(proxy) = self.peer else { return self.peer };
        let client = self.trusted.client(headers);
        client.map_or(self.peer, |client| Peer::Forwarded { client, by_local: is_loopback(&proxy) })
    }
}

// === impl TrustedPeers ===

impl TrustedPeers {
    fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(&address))
    }

    /// Returns the last address in the header that is not that of a trusted proxy, else the first one.
    fn client(&self, headers: &HeaderMap) -> Option<IpAddr> {
        let mut client = None;
        let values = headers.get_all(FORWARDED_FOR).iter().rev();
        for text in values.map(|value| value.to_str().unwrap_or_default()).flat_map(|value| value.rsplit(',')) {
            // Nothing before a text that is no address can be believed.
            let Some(address) = address_of(text.trim()) else { break };
            client = Some(address);
            if !self.contains(address) {
                break;
            }
        }
        client
    }
}

impl FromIterator<IpNet> for TrustedPeers {
    fn from_iter<I: IntoIterator<Item = IpNet>>(networks: I) -> Self {
        Self(networks.into_iter().collect())
    }
}

/// Reads an address, with a port or without.
fn address_of(text: &str) -> Option<IpAddr> {
    let with_port = || text.parse::<SocketAddr>().ok().map(|address| address.ip());
    let in_brackets = || text.strip_prefix('[')?.strip_suffix(']')?.parse().ok();
    text.parse().ok().or_else(with_port).or_else(in_brackets)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trusted() -> TrustedPeers {
        ["10.0.0.0/8", "2001:db8::/32"].map(|network| network.parse().unwrap()).into_iter().collect()
    }

    /// Returns the peer of a call that these headers have, on a connection from an address.
    fn peer(from: &str, values: &[&str]) -> String {
        let (trusted, mut headers) = (trusted(), HeaderMap::new());
        for value in values {
            headers.append(FORWARDED_FOR, value.parse().unwrap());
        }
        let connection = Peer::Tcp(SocketAddr::new(from.parse().unwrap(), 7));
        let call = ConnectionPeer::new(connection, &trusted).of_call(&headers);
        format!("{call} {:?}", call.origin())
    }

    #[test]
    fn the_word_of_a_trusted_proxy_about_its_client_counts() {
        let client = "192.0.2.1 Some(Address(192.0.2.1))";
        for values in [
            &["192.0.2.1"][..],
            &["192.0.2.1:80"],
            &["192.0.2.1, 10.2.3.4"],
            &["192.0.2.1", "10.2.3.4,2001:db8::7"],
            &["203.0.113.9, 192.0.2.1,10.2.3.4"],
            &["text, 192.0.2.1"],
        ] {
            assert_eq!(peer("10.1.1.1", values), client, "{values:?}");
            assert_eq!(peer("::ffff:10.1.1.1", values), client, "{values:?}");
        }
        assert_eq!(peer("10.1.1.1", &["[2001:db9::1]:443"]), "2001:db9::1 Some(Address(2001:db9::))");
        assert_eq!(peer("10.1.1.1", &["[2001:db9::1]"]), "2001:db9::1 Some(Address(2001:db9::))");
        assert_eq!(
            peer("10.1.1.1", &["10.9.9.9, 10.2.3.4"]),
            "10.9.9.9 Some(Address(10.9.9.9))",
            "a client behind the proxies"
        );
        for values in [&[][..], &[""], &["unknown"], &["192.0.2.1, unknown"]] {
            assert_eq!(peer("10.1.1.1", values), "10.1.1.1:7 None", "{values:?}");
        }
    }

    #[test]
    fn the_word_of_others_does_not_count() {
        assert_eq!(peer("11.1.1.1", &["192.0.2.1"]), "11.1.1.1:7 Some(Address(11.1.1.1))");
        let unix = Peer::Unix { uid: Some(7) };
        assert_eq!(ConnectionPeer::new(unix, &trusted()).peer, unix);
        let tcp = Peer::Tcp(([127, 0, 0, 1], 7).into());
        assert_eq!(ConnectionPeer::new(tcp, &TrustedPeers::default()).peer, tcp);
    }

    #[test]
    fn nobody_behind_a_proxy_is_local() {
        let local = ([127, 0, 0, 1], 7).into();
        let forwarded = Peer::Forwarded { client: [127, 0, 0, 1].into(), by_local: true };
        for (peer, is_local) in [(Peer::Tcp(local), true), (Peer::Proxy(local), false), (forwarded, false)] {
            assert_eq!(peer.is_local(), is_local, "{peer:?}");
            #[cfg(feature = "kubernetes-api")]
            assert!(peer.is_over_loopback(), "{peer:?}: as a browser");
        }
        let trusted = TrustedPeers::from_iter(["127.0.0.0/8".parse().unwrap()]);
        let headers =
            HeaderMap::from_iter([(http::HeaderName::from_static(FORWARDED_FOR), "127.0.0.1".parse().unwrap())]);
        assert_eq!(ConnectionPeer::new(Peer::Tcp(local), &trusted).of_call(&headers), forwarded);
    }
}
