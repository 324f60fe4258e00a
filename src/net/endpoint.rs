//! Address of a server, TLS with it and the token for it: plain data, for the configuration, the client library and the sources.

use std::{
    borrow::Cow,
    fmt, fs,
    io::Read,
    net::IpAddr,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
};

use http::uri::Authority;
use tonic::{
    metadata::AsciiMetadataValue,
    transport::{Certificate, ClientTlsConfig, Identity},
};

/// Address of a server: `127.0.0.1:50051`, `informerd.example:50051`, `http://127.0.0.1:50051`, `[::1]:50051`,
/// `https://informerd.example:50051` or `unix:/run/informerd.sock`.
///
/// A port is required. The path of a Unix socket is absolute and has at most 107 bytes. The printed form parses to the same
/// address; it omits `http://`. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ServerAddress {
    uri: Arc<str>,
    /// Empty without TLS.
    tls: Arc<TlsOptions>,
    token_file: Option<Arc<Path>>,
}

/// Trust roots and identity of a TLS client: PEM, or the paths of files with it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct TlsOptions<T = Vec<u8>> {
    /// Certificates that may have signed the server's; without them, those that the system trusts.
    pub authority: Option<T>,
    /// Certificate of the client and its key.
    pub identity: Option<(T, T)>,
    /// Name in the server's certificate; without it, the host of the address.
    pub server_name: Option<String>,
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

/// Largest token, in bytes; a header of HTTP/2 has at most 16 KiB.
const MAX_TOKEN_BYTES: u64 = 8 << 10;
/// `sun_path` of Linux without its final NUL.
const MAX_UNIX_PATH_BYTES: usize = 107;
/// Longest excerpt of a text that an error quotes.
const MAX_QUOTED_CHARS: usize = 80;

// === impl ServerAddress ===

impl ServerAddress {
    /// Returns the address with its scheme: `http://HOST:PORT`, `https://HOST:PORT` or `unix:/path`.
    pub fn uri(&self) -> &str {
        &self.uri
    }

    /// Returns the TLS options; none for a server without TLS.
    pub(crate) fn tls(&self) -> Option<&TlsOptions> {
        self.is_tls().then_some(&*self.tls)
    }

    /// Returns the same server with other TLS options; `None` if the address does not use TLS.
    pub fn with_tls(&self, options: TlsOptions) -> Option<Self> {
        self.is_tls().then(|| Self { tls: Arc::new(options), ..self.clone() })
    }

    /// Returns the same server with a bearer token for each call, from a file that is read at each call: tokens of service
    /// accounts are renewed in place. `None` if the token would pass a network in the clear: for an address that is neither https
    /// nor a Unix socket nor this host.
    pub fn with_token_file(&self, path: impl Into<PathBuf>) -> Option<Self> {
        let is_private = self.is_tls() || self.is_unix() || self.is_loopback();
        is_private.then(|| Self { token_file: Some(path.into().into()), ..self.clone() })
    }

    /// Returns the `authorization` header of a call; none without a token.
    ///
    /// # Errors
    ///
    /// The path of the file and the problem, in one line, without the token.
    pub(crate) fn authorization(&self) -> Result<Option<AsciiMetadataValue>, String> {
        self.token_file.as_deref().map(authorization).transpose()
    }

    /// Returns true if calls carry a token.
    pub(crate) fn has_token_file(&self) -> bool {
        self.token_file.is_some()
    }

    fn is_loopback(&self) -> bool {
        let authority = self.uri.strip_prefix("http://").and_then(|authority| authority.parse::<Authority>().ok());
        authority.is_some_and(|authority| {
            let host = authority.host().trim_matches(['[', ']']);
            host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
        })
    }

    /// Returns true if the address uses TLS.
    pub fn is_tls(&self) -> bool {
        self.uri.starts_with("https:")
    }

    /// Returns true if this is a Unix socket, which has no authority of its own.
    pub fn is_unix(&self) -> bool {
        self.uri.starts_with("unix:")
    }
}

impl FromStr for ServerAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<Self, AddressError> {
        let shown = without_credentials(text);
        let error = |problem| AddressError { text: shown.chars().take(MAX_QUOTED_CHARS).collect(), problem };
        let of = |uri: String| Self { uri: uri.into(), tls: Arc::default(), token_file: None };
        if let Some(path) = text.strip_prefix("unix:") {
            // gRPC's own spelling is unix:///absolute/path.
            let path = path.strip_prefix("//").unwrap_or(path);
            return check_path(path).map(|()| of(format!("unix:{path}"))).map_err(error);
        }
        let (scheme, rest) = text.split_once("://").unwrap_or(("http", text));
        let authority = rest.strip_suffix('/').filter(|_| rest.len() < text.len()).unwrap_or(rest);
        let scheme = scheme.to_ascii_lowercase();
        if scheme != "http" && scheme != "https" {
            return Err(error("scheme is not http, https or unix"));
        }
        check_authority(authority).map(|()| of(format!("{scheme}://{authority}"))).map_err(error)
    }
}

/// Returns a text for an error: of a URL with a user and a password, without them.
pub(crate) fn without_credentials(text: &str) -> Cow<'_, str> {
    let begin = text.find("://").map_or(0, |at| at + "://".len());
    match text[begin..].rsplit_once('@') {
        Some((_, rest)) => format!("{}…@{rest}", &text[..begin]).into(),
        None => text.into(),
    }
}

/// Returns the header with the token in a file.
fn authorization(path: &Path) -> Result<AsciiMetadataValue, String> {
    let problem = |problem: &dyn fmt::Display| format!("token file {}: {problem}", path.display());
    let mut token = String::new();
    let file = fs::File::open(path).map_err(|error| problem(&error))?;
    file.take(MAX_TOKEN_BYTES + 1).read_to_string(&mut token).map_err(|error| problem(&error))?;
    let token = token.trim_ascii();
    match token.len() as u64 {
        0 => return Err(problem(&"it is empty")),
        1..=MAX_TOKEN_BYTES => {}
        _ => return Err(problem(&format_args!("the token has more than {MAX_TOKEN_BYTES} bytes"))),
    }
    let header = AsciiMetadataValue::try_from(format!("Bearer {token}"));
    let mut header = header.map_err(|_| problem(&"the token has characters that no header may have"))?;
    // Not to be shown by Debug, and not to be kept in the compression state of HTTP/2.
    header.set_sensitive(true);
    Ok(header)
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
        f.write_str(self.uri.strip_prefix("http://").unwrap_or(&self.uri))
    }
}

impl fmt::Debug for ServerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl TlsOptions ===

impl<T> Default for TlsOptions<T> {
    fn default() -> Self {
        Self { authority: None, identity: None, server_name: None }
    }
}

impl<T> TlsOptions<T> {
    /// Converts each certificate and key.
    ///
    /// # Errors
    ///
    /// The first error of a conversion.
    pub fn try_map<U, E>(&self, convert: impl Fn(&T) -> Result<U, E>) -> Result<TlsOptions<U>, E> {
        let identity = self.identity.as_ref().map(|(cert, key)| Ok((convert(cert)?, convert(key)?)));
        Ok(TlsOptions {
            authority: self.authority.as_ref().map(&convert).transpose()?,
            identity: identity.transpose()?,
            server_name: self.server_name.clone(),
        })
    }
}

impl TlsOptions {
    pub(crate) fn config(&self) -> ClientTlsConfig {
        let mut config = ClientTlsConfig::new();
        config = match &self.authority {
            Some(pem) => config.ca_certificate(Certificate::from_pem(pem)),
            None => config.with_native_roots(),
        };
        if let Some((cert, key)) = &self.identity {
            config = config.identity(Identity::from_pem(cert, key));
        }
        match &self.server_name {
            Some(name) => config.domain_name(name),
            None => config,
        }
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
            assert_eq!((address.to_string().as_str(), address.uri()), (printed, uri), "{text}");
            assert_eq!(printed.parse(), Ok(address));
        }
    }

    #[test]
    fn a_token_is_for_addresses_that_do_not_send_it_in_the_clear() {
        let with_token = |text: &str| text.parse::<ServerAddress>().unwrap().with_token_file("/token").is_some();
        for text in ["https://h:1", "unix:/a.sock", "127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"] {
            assert!(with_token(text), "{text}");
        }
        for text in ["h:1", "10.0.0.1:1", "[2001:db8::1]:1", "0.0.0.0:1", "localhost.example:1"] {
            assert!(!with_token(text), "{text}");
        }
    }

    #[test]
    fn a_token_is_the_text_of_its_file_and_is_not_shown() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let address: ServerAddress = "https://h:1".parse().unwrap();
        assert_eq!(address.authorization(), Ok(None));
        let address = address.with_token_file(file.path()).unwrap().with_tls(TlsOptions::default()).unwrap();
        let path = file.path().display();
        for (text, problem) in [
            ("", "it is empty"),
            (" \n", "it is empty"),
            (&"x".repeat(8193), "the token has more than 8192 bytes"),
            ("canary\nb", "the token has characters that no header may have"),
        ] {
            fs::write(file.path(), text).unwrap();
            assert_eq!(address.authorization().unwrap_err(), format!("token file {path}: {problem}"));
        }
        fs::write(file.path(), "canary\n").unwrap();
        let header = address.authorization().unwrap().unwrap();
        assert_eq!(header.to_str().unwrap(), "Bearer canary");
        assert!(!format!("{header:?} {address:?} {address}").contains("canary"));
        drop(file);
        assert!(address.authorization().unwrap_err().contains("No such file"));
    }

    #[test]
    fn invalid_addresses_are_rejected_in_one_line_with_examples() {
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
        for text in ["canary:canary@h:1", "https://canary:canary@h:1", "http://canary:can@ry@h:1"] {
            let error = text.parse::<ServerAddress>().unwrap_err().to_string();
            assert!(error.contains("…@h:1\": more than a host") && !error.contains("canary"), "{error}");
        }
        assert!(format!("unix:/{}", "a".repeat(106)).parse::<ServerAddress>().is_ok());
        assert!(format!("unix:/{}", "a".repeat(107)).parse::<ServerAddress>().is_err());
    }
}
