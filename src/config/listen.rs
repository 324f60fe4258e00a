//! Addresses to listen on.

use std::{
    fmt,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    path::PathBuf,
    str::FromStr,
};

use serde_json::Value;

use super::value::{self, ValueError, quote};

/// Address to listen on, such as `127.0.0.1:50051`, `[::1]:50051`, `localhost:50051`, `:50051` or `unix:/run/informerd.sock`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddr {
    /// TCP address. Port 0 is any free port.
    Tcp(SocketAddr),
    /// Unix domain socket: an absolute path of at most 107 bytes.
    Unix(PathBuf),
}

/// `sun_path` of Linux without its final NUL.
const MAX_UNIX_PATH_BYTES: usize = 107;

/// Reads an address of the file.
pub(super) fn address_or_socket(value: &Value) -> Result<ListenAddr, ValueError> {
    value::text(value)?.parse()
}

/// Reads the address of HTTP for operators; `none` is read elsewhere.
pub(super) fn address(value: &Value) -> Result<SocketAddr, ValueError> {
    let text = value::text(value)?;
    let what = "IP:PORT such as 127.0.0.1:9464 or [::1]:9464, localhost:PORT, :PORT, or none";
    tcp_address(text).ok_or_else(|| ValueError::new(format!("expected {what}, found {}", quote(text))))
}

/// Returns a TCP address. As in Go, `:PORT` is every address of this machine; `localhost` is resolved here, to IPv4.
fn tcp_address(text: &str) -> Option<SocketAddr> {
    let port = |text: &str| text.parse().ok().filter(|_| text.bytes().all(|b| b.is_ascii_digit()));
    if let Some(text) = text.strip_prefix("localhost:") {
        return Some((Ipv4Addr::LOCALHOST, port(text)?).into());
    }
    if let Some(text) = text.strip_prefix(':') {
        return Some((Ipv6Addr::UNSPECIFIED, port(text)?).into());
    }
    text.parse().ok()
}

// === impl ListenAddr ===

impl ListenAddr {
    /// Returns true if only processes on the same machine can connect.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Tcp(address) => address.ip().to_canonical().is_loopback(),
            Self::Unix(_) => true,
        }
    }
}

impl FromStr for ListenAddr {
    type Err = ValueError;

    fn from_str(text: &str) -> Result<Self, ValueError> {
        if let Some(path) = text.strip_prefix("unix:") {
            // gRPC's own spelling is unix:///absolute/path.
            let path = path.strip_prefix("//").unwrap_or(path);
            if !path.starts_with('/') || path.ends_with('/') || path.contains('\0') {
                return Err(ValueError::new(format!(
                    "expected an absolute path as in unix:/run/informerd.sock, found {}",
                    quote(text)
                )));
            }
            if path.len() > MAX_UNIX_PATH_BYTES {
                return Err(ValueError::new(format!(
                    "the path of a Unix socket has at most {MAX_UNIX_PATH_BYTES} bytes, this one has {}",
                    path.len()
                )));
            }
            return Ok(Self::Unix(path.into()));
        }
        tcp_address(text).map(Self::Tcp).ok_or_else(|| {
            ValueError::new(format!(
                "expected IP:PORT such as 127.0.0.1:50051 or [::1]:50051, localhost:PORT, :PORT, or unix:/path/of/socket, found {}",
                quote(text)
            ))
        })
    }
}

impl fmt::Display for ListenAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_and_printed() {
        for (text, printed, is_local) in [
            ("127.0.0.1:50051", "127.0.0.1:50051", true),
            ("127.8.0.1:0", "127.8.0.1:0", true),
            ("[::1]:1", "[::1]:1", true),
            ("[::ffff:127.0.0.1]:1", "[::ffff:127.0.0.1]:1", true),
            ("0.0.0.0:50051", "0.0.0.0:50051", false),
            ("[::]:50051", "[::]:50051", false),
            ("192.168.1.2:1", "192.168.1.2:1", false),
            ("localhost:50051", "127.0.0.1:50051", true),
            (":50051", "[::]:50051", false),
            ("unix:/run/a.sock", "unix:/run/a.sock", true),
            ("unix:///run/a.sock", "unix:/run/a.sock", true),
        ] {
            let address: ListenAddr = text.parse().unwrap();
            assert_eq!((address.to_string().as_str(), address.is_local()), (printed, is_local), "{text}");
            assert_eq!(printed.parse(), Ok(address));
        }
    }

    #[test]
    fn invalid_addresses_are_rejected() {
        for text in [
            "",
            "50051",
            ":",
            ":+1",
            ":65536",
            "localhost",
            "localhost:x",
            "host:1",
            "127.0.0.1",
            "http://127.0.0.1:1",
            "127.0.0.1:65536",
        ] {
            let problem = text.parse::<ListenAddr>().unwrap_err().to_string();
            assert!(problem.starts_with("expected IP:PORT such as 127.0.0.1:50051"), "{text}: {problem}");
            assert!(problem.ends_with(&format!("found {text:?}")), "{text}: {problem}");
        }
        for text in ["unix:", "unix:a.sock", "unix://a.sock", "unix:/run/", "unix:/a\0b"] {
            let problem = text.parse::<ListenAddr>().unwrap_err().to_string();
            assert!(problem.starts_with("expected an absolute path as in unix:/run"), "{text}: {problem}");
        }
        assert!(format!("unix:/{}", "a".repeat(106)).parse::<ListenAddr>().is_ok());
        let problem = format!("unix:/{}", "a".repeat(107)).parse::<ListenAddr>().unwrap_err();
        assert_eq!(problem.to_string(), "the path of a Unix socket has at most 107 bytes, this one has 108");
    }
}
