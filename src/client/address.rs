//! Address of a server.

use std::{fmt, str::FromStr, sync::Arc};

use http::uri::Authority;

/// Address of a server: `127.0.0.1:50051`, `informerd.example:50051`, `http://127.0.0.1:50051`, `[::1]:50051`,
/// `https://informerd.example:50051` or `unix:/run/informerd.sock`.
///
/// A port is required. The path of a Unix socket is absolute and has at most 107 bytes. The printed form parses to the same
/// address; it omits `http://`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ServerAddress(Kind);

#[derive(Clone, PartialEq, Eq, Hash)]
enum Kind {
    /// Host and port.
    Tcp(Arc<str>),
    /// Host and port, with TLS.
    Tls(Arc<str>, Arc<TlsOptions>),
    /// Absolute path of a Unix socket.
    Unix(Arc<str>),
}

/// Trust roots and identity of a TLS client.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct TlsOptions {
    /// PEM certificates that may have signed the server's; without them, those that the system trusts.
    pub authority: Option<Vec<u8>>,
    /// Certificate and key of the client in PEM.
    pub identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// Error for a text that is not the address of a server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid server address {text:?}: {problem}; examples: 127.0.0.1:50051, https://informerd.example:50051, \
     unix:/run/informerd.sock"
)]
pub struct AddressError {
    text: String,
    problem: &'static str,
}

/// `sun_path` of Linux without its final NUL.
const MAX_UNIX_PATH_BYTES: usize = 107;
/// Longest excerpt of a text that an error quotes.
const MAX_QUOTED_CHARS: usize = 80;

// === impl ServerAddress ===

impl ServerAddress {
    /// Returns the URI that the transport connects to.
    pub(super) fn endpoint_uri(&self) -> String {
        match &self.0 {
            Kind::Tcp(authority) => format!("http://{authority}"),
            Kind::Tls(authority, _) => format!("https://{authority}"),
            Kind::Unix(path) => format!("unix:{path}"),
        }
    }

    /// Returns the TLS options; none for a server without TLS.
    pub(super) fn tls(&self) -> Option<&TlsOptions> {
        match &self.0 {
            Kind::Tls(_, options) => Some(options),
            Kind::Tcp(_) | Kind::Unix(_) => None,
        }
    }

    /// Returns the same server with other TLS options; `None` if the address does not use TLS.
    pub fn with_tls(&self, options: TlsOptions) -> Option<Self> {
        match &self.0 {
            Kind::Tls(authority, _) => Some(Self(Kind::Tls(Arc::clone(authority), Arc::new(options)))),
            Kind::Tcp(_) | Kind::Unix(_) => None,
        }
    }

    /// Returns true if this is a Unix socket, which has no authority of its own.
    pub fn is_unix(&self) -> bool {
        matches!(self.0, Kind::Unix(_))
    }
}

impl FromStr for ServerAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let error = |problem| AddressError { text: text.chars().take(MAX_QUOTED_CHARS).collect(), problem };
        if let Some(path) = text.strip_prefix("unix:") {
            // gRPC's own spelling is unix:///absolute/path.
            let path = path.strip_prefix("//").unwrap_or(path);
            return check_path(path).map(|()| Self(Kind::Unix(path.into()))).map_err(error);
        }
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let authority = rest.strip_suffix('/').filter(|_| rest.len() < text.len()).unwrap_or(rest);
        let kind = match scheme {
            "http" => Kind::Tcp(authority.into()),
            "https" => Kind::Tls(authority.into(), Arc::default()),
            _ => return Err(error("scheme is not http, https or unix")),
        };
        check_authority(authority).map(|()| Self(kind)).map_err(error)
    }
}

fn check_path(path: &str) -> Result<(), &'static str> {
    if !path.starts_with('/') || path.ends_with('/') || path.contains('\0') {
        return Err("path of the socket is not absolute");
    }
    if path.len() > MAX_UNIX_PATH_BYTES {
        return Err("path of the socket is longer than 107 bytes");
    }
    Ok(())
}

fn check_authority(text: &str) -> Result<(), &'static str> {
    if text.contains(['/', '?', '#', '@']) {
        return Err("more than a host and a port");
    }
    // More than one colon and no brackets.
    if !text.starts_with('[') && text.matches(':').count() > 1 {
        return Err("IPv6 address without brackets");
    }
    let authority = text.parse::<Authority>().map_err(|_| "host is neither a name nor an IP address")?;
    if authority.host().is_empty() {
        return Err("host is missing");
    }
    match authority.port_u16() {
        Some(0) => Err("port is 0"),
        Some(_) => Ok(()),
        None if text.ends_with(|c: char| c.is_ascii_digit()) && text.contains(':') && !text.ends_with(']') => {
            Err("port is above 65535")
        }
        None => Err("port is missing"),
    }
}

impl fmt::Display for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Kind::Tcp(authority) => f.write_str(authority),
            Kind::Tls(authority, _) => write!(f, "https://{authority}"),
            Kind::Unix(path) => write!(f, "unix:{path}"),
        }
    }
}

impl fmt::Debug for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_and_printed() {
        for (text, printed, uri) in [
            ("127.0.0.1:50051", "127.0.0.1:50051", "http://127.0.0.1:50051"),
            ("http://127.0.0.1:50051", "127.0.0.1:50051", "http://127.0.0.1:50051"),
            ("http://informerd:50051/", "informerd:50051", "http://informerd:50051"),
            ("[::1]:1", "[::1]:1", "http://[::1]:1"),
            ("localhost:65535", "localhost:65535", "http://localhost:65535"),
            ("https://informerd:50051/", "https://informerd:50051", "https://informerd:50051"),
            ("unix:/run/a.sock", "unix:/run/a.sock", "unix:/run/a.sock"),
            ("unix:///run/a b.sock", "unix:/run/a b.sock", "unix:/run/a b.sock"),
        ] {
            let address: ServerAddress = text.parse().unwrap();
            assert_eq!((address.to_string().as_str(), address.endpoint_uri().as_str()), (printed, uri), "{text}");
            assert_eq!(printed.parse(), Ok(address));
        }
    }

    #[test]
    fn what_is_no_address_is_refused_in_one_line_with_examples() {
        for (text, problem) in [
            ("", "host is neither"),
            ("50051", "port is missing"),
            (":50051", "host is missing"),
            ("localhost", "port is missing"),
            ("http://localhost", "port is missing"),
            ("[::1]", "port is missing"),
            ("::1:50051", "IPv6 address"),
            ("localhost:0", "port is 0"),
            ("localhost:65536", "port is above"),
            ("localhost:", "port is missing"),
            ("a b:1", "host is neither"),
            ("https://localhost", "port is missing"),
            ("ftp://localhost:1", "scheme is not"),
            ("http://localhost:1/pods", "more than a host"),
            ("me@localhost:1", "more than a host"),
            ("unix:a.sock", "path of the socket is not absolute"),
            ("unix:/run/", "path of the socket is not absolute"),
        ] {
            let error = text.parse::<ServerAddress>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("invalid server address {text:?}: {problem}")), "{error}");
            assert!(
                error.contains("127.0.0.1:50051") && error.contains("unix:/run") && !error.contains('\n'),
                "{error}"
            );
        }
        assert!(format!("unix:/{}", "a".repeat(106)).parse::<ServerAddress>().is_ok());
        assert!(format!("unix:/{}", "a".repeat(107)).parse::<ServerAddress>().is_err());
    }
}
