//! Proxy for connections to an API server.
//!
//! `proxy-url` of the kubeconfig has precedence, for every host. Without it the environment is used as kubectl does, by the
//! rules of `golang.org/x/net/http/httpproxy`: `HTTPS_PROXY` or `HTTP_PROXY` by the scheme of the API server, unless its host
//! is `localhost`, a loopback address, or in `NO_PROXY`. Go does not support `ALL_PROXY`.

use std::net::IpAddr;

use http::Uri;
use percent_encoding::percent_decode_str;

use super::kubeconfig::Env;

/// A proxy with the origin of its configuration.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Proxy {
    pub(super) kind: ProxyKind,
    pub(super) host: String,
    pub(super) port: u16,
    /// User and password.
    pub(super) credentials: Option<(String, String)>,
    /// Key or variable, for errors.
    pub(super) origin: &'static str,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ProxyKind {
    /// CONNECT, in plain text up to the proxy.
    Http,
    /// CONNECT, over TLS.
    Https,
    /// RFC 1928; the proxy resolves names.
    Socks5,
}

/// One entry of `NO_PROXY`.
#[derive(Debug, PartialEq, Eq)]
enum Exception {
    All,
    Network(IpAddr, u8),
    Address(IpAddr, Option<u16>),
    /// A domain; the flag is true if the entry includes the host of that name besides its subdomains.
    Domain {
        suffix: String,
        is_host: bool,
        port: Option<u16>,
    },
}

const KEY: &str = "proxy-url of the kubeconfig";

// === impl Proxy ===

impl Proxy {
    /// Returns the proxy for an API server.
    pub(super) fn choose(
        proxy_url: Option<&str>,
        is_tls: bool,
        host: &str,
        port: u16,
        env: Env<'_>,
    ) -> Result<Option<Self>, String> {
        if let Some(url) = proxy_url.filter(|url| !url.is_empty()) {
            return Self::parse(url, KEY).map(Some);
        }
        let names = if is_tls { ["HTTPS_PROXY", "https_proxy"] } else { ["HTTP_PROXY", "http_proxy"] };
        let Some((origin, url)) = names.into_iter().find_map(|name| Some((name, env(name)?))) else {
            return Ok(None);
        };
        let exceptions = env("NO_PROXY").or_else(|| env("no_proxy")).unwrap_or_default();
        if is_excepted(&exceptions, host, port) {
            return Ok(None);
        }
        // As Go: a host and port without a scheme.
        let url = if url.contains("://") { url } else { format!("http://{url}") };
        Self::parse(&url, origin).map(Some)
    }

    fn parse(url: &str, origin: &'static str) -> Result<Self, String> {
        // Errors do not repeat the URL, which may contain a password.
        let problem = |why: &str| format!("{origin} is not a valid proxy: {why}; write for example http://proxy:3128");
        let uri: Uri = url.parse().map_err(|error: http::uri::InvalidUri| problem(&error.to_string()))?;
        let (kind, default_port) = match uri.scheme_str() {
            Some("http") => (ProxyKind::Http, 80),
            Some("https") => (ProxyKind::Https, 443),
            Some("socks5" | "socks5h") => (ProxyKind::Socks5, 1080),
            Some(other) => {
                return Err(problem(&format!("unsupported scheme {other:?} (supported: http, https, socks5)")));
            }
            None => return Err(problem("no scheme")),
        };
        let authority = uri.authority().ok_or_else(|| problem("no host"))?;
        let host = authority.host().trim_matches(['[', ']']);
        if host.is_empty() {
            return Err(problem("no host"));
        }
        let credentials = authority.as_str().rsplit_once('@').map(|(user_info, _)| {
            let (user, password) = user_info.split_once(':').unwrap_or((user_info, ""));
            let decode = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
            (decode(user), decode(password))
        });
        let port = uri.port_u16().unwrap_or(default_port);
        Ok(Self { kind, host: host.to_owned(), port, credentials, origin })
    }
}

/// Returns true if the environment excludes a host from the proxy.
fn is_excepted(list: &str, host: &str, port: u16) -> bool {
    let host = host.trim_matches(['[', ']']).to_ascii_lowercase();
    // As Go, an IPv4-mapped IPv6 address is the IPv4 address.
    let address = host.parse().ok().map(|address: IpAddr| address.to_canonical());
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    list.split(',').filter_map(Exception::parse).any(|exception| exception.holds(&host, address, port))
}

// === impl Exception ===

impl Exception {
    fn parse(text: &str) -> Option<Self> {
        let text = text.trim().to_ascii_lowercase();
        if text == "*" {
            return Some(Self::All);
        }
        if let Some((network, length)) = text.split_once('/')
            && let (Ok(network), Ok(length)) = (network.parse::<IpAddr>(), length.parse::<u8>())
            && length <= if network.is_ipv4() { 32 } else { 128 }
        {
            return Some(Self::Network(network, length));
        }
        let (host, port) = match text.rsplit_once(':') {
            // An IPv6 address contains colons.
            Some((host, port)) if !host.contains(':') || host.starts_with('[') && host.ends_with(']') => {
                (host, Some(port.parse().ok()?))
            }
            _ => (&*text, None),
        };
        let host = host.trim_matches(['[', ']']);
        if let Ok(address) = host.parse() {
            return Some(Self::Address(address, port));
        }
        let host = host.strip_prefix('*').filter(|rest| rest.starts_with('.')).unwrap_or(host);
        let domain = |suffix: String, is_host| Self::Domain { suffix, is_host, port };
        match host.strip_prefix('.') {
            _ if host.is_empty() => None,
            Some(_) => Some(domain(host.to_owned(), false)),
            None => Some(domain(format!(".{host}"), true)),
        }
    }

    fn holds(&self, host: &str, address: Option<IpAddr>, port: u16) -> bool {
        let is_port = |expected: &Option<u16>| expected.is_none_or(|expected| expected == port);
        match self {
            Self::All => true,
            Self::Network(network, length) => address.is_some_and(|address| contains(*network, *length, address)),
            Self::Address(expected, port) => address == Some(expected.to_canonical()) && is_port(port),
            Self::Domain { suffix, is_host, port } => {
                (host.ends_with(suffix) || *is_host && host == &suffix[1..]) && is_port(port)
            }
        }
    }
}

fn contains(network: IpAddr, length: u8, address: IpAddr) -> bool {
    let bits = |address| match address {
        IpAddr::V4(address) => (u128::from(u32::from(address)) << 96, 32),
        IpAddr::V6(address) => (u128::from(address), 128),
    };
    let ((network, width), (address, other)) = (bits(network), bits(address));
    let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
    width == other && network & mask == address & mask
}

#[cfg(test)]
#[path = "tests/proxy.rs"]
mod tests;
