//! Common parts of sources that call a server: its address, and the TLS files.

use std::path::PathBuf;

use http::Uri;
use serde_json::Value;

use super::{
    section::Section,
    value::{self, ValueError, quote},
};

/// Example endpoints for errors.
pub(super) const ETCD: &str = "http://127.0.0.1:2379";
const INFORMERD: &str = "http://127.0.0.1:50051";

/// Certificates to trust, and the client's own certificate with its key.
pub(super) type Tls = (Option<PathBuf>, Option<(PathBuf, PathBuf)>);

/// Combines the files of a TLS section.
pub(super) fn tls(section: &Section<'_>, ca: Option<PathBuf>, cert: Option<PathBuf>, key: Option<PathBuf>) -> Tls {
    match (section.is_written("cert"), section.is_written("key")) {
        (true, false) => section.add("key", "is missing; write the path of the certificate's key in PEM"),
        (false, true) => section.add("cert", "is missing; write the path of the key's certificate in PEM"),
        _ => {}
    }
    let relative = |path: PathBuf| section.relative(&path);
    (ca.map(relative), cert.map(relative).zip(key.map(relative)))
}

/// Parses `http://HOST:PORT` or `https://HOST:PORT`.
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

/// Reads the members of an etcd cluster: at least one, each once.
pub(super) fn endpoints(value: &Value) -> Result<Vec<String>, ValueError> {
    let list = value.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| {
        ValueError::new(format!("expected a list such as [\"http://127.0.0.1:2379\"], found {}", value::found(value)))
    })?;
    let mut endpoints = Vec::new();
    for value in list {
        let endpoint = endpoint(value::text(value)?, ETCD)?;
        if !endpoints.contains(&endpoint) {
            endpoints.push(endpoint);
        }
    }
    Ok(endpoints)
}

/// Reads another informerd: `http://HOST:PORT`, `https://HOST:PORT` or `unix:/path`.
pub(super) fn relay_endpoint(value: &Value) -> Result<String, ValueError> {
    parse_endpoint(value::text(value)?)
}

/// Parses an endpoint in a flag.
pub(super) fn parse_endpoint(text: &str) -> Result<String, ValueError> {
    let is_socket = text.strip_prefix("unix:").is_some_and(|path| path.starts_with('/') && !path.ends_with('/'));
    if is_socket { Ok(text.to_owned()) } else { endpoint(text, INFORMERD) }
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
