//! What sources that call a server have in common: where it is, and the files of TLS.

use std::path::{Path, PathBuf};

use http::Uri;
use serde_json::Value;

use super::{
    error::ConfigErrors,
    value::{self, ValueError, quote},
};

/// The files of TLS as they are written.
#[derive(Debug, Clone, Copy)]
pub(super) struct TlsFiles<'a> {
    pub(super) ca: Option<&'a Value>,
    pub(super) cert: Option<&'a Value>,
    pub(super) key: Option<&'a Value>,
}

/// Whom to trust, and our own certificate with its key.
pub(super) type Tls = (Option<PathBuf>, Option<(PathBuf, PathBuf)>);

// === impl TlsFiles ===

impl TlsFiles<'_> {
    /// Reads the paths below a key.
    pub(super) fn resolve(self, at: &str, directory: &Path, errors: &mut ConfigErrors) -> Tls {
        let file = |leaf: &str, written: Option<&Value>, errors: &mut ConfigErrors| {
            self::file(&format!("{at}.{leaf}"), written, directory, errors)
        };
        match (self.cert, self.key) {
            (Some(_), None) => {
                errors.add(&format!("{at}.key"), "is missing; write the path of the certificate's key in PEM");
            }
            (None, Some(_)) => {
                errors.add(&format!("{at}.cert"), "is missing; write the path of the key's certificate in PEM");
            }
            _ => {}
        }
        let identity = file("cert", self.cert, errors).zip(file("key", self.key, errors));
        (file("ca", self.ca, errors), identity)
    }
}

/// The path of a file, relative to the configuration file's directory.
pub(super) fn file(key: &str, written: Option<&Value>, directory: &Path, errors: &mut ConfigErrors) -> Option<PathBuf> {
    let path = errors.read(key, written, value::file)?;
    Some(directory.join(path).components().collect())
}

/// `http://HOST:PORT` or `https://HOST:PORT`.
pub(super) fn endpoint(text: &str, example: &str) -> Result<String, ValueError> {
    let uri = text.trim_end_matches('/').parse::<Uri>().ok().filter(|uri| {
        let is_known = matches!(uri.scheme_str(), Some("http" | "https"));
        let is_plain =
            uri.authority().is_some_and(|authority| !authority.as_str().contains('@') && !authority.host().is_empty());
        is_known && is_plain && uri.port_u16().is_some() && uri.path_and_query().is_none_or(|rest| rest == "/")
    });
    let uri =
        uri.ok_or_else(|| ValueError::new(format!("expected an endpoint such as {example}, found {}", quote(text))))?;
    Ok(uri.to_string().trim_end_matches('/').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_has_a_scheme_a_host_and_a_port() {
        assert_eq!(endpoint("http://h:1/", "x"), Ok("http://h:1".to_owned()));
        for text in ["h:1", "http://h", "http://h:1/a", "http://u:p@h:1", "unix:/a", "http://h:99999", "http://:1", ""]
        {
            assert!(endpoint(text, "http://x:1").unwrap_err().to_string().contains("http://x:1"), "{text}");
        }
    }
}
