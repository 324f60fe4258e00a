//! Common parts of sources that call a server: its address, and the TLS files.

use std::path::PathBuf;

use serde_json::Value;

use super::{
    section::Section,
    value::{self, ValueError, quote},
};
use crate::net::{ServerAddress, TlsOptions};

/// Example endpoints for errors.
pub(super) const ETCD: &str = "http://127.0.0.1:2379";
const INFORMERD: &str = "http://127.0.0.1:50051";

/// Combines the files of a TLS section.
pub(super) fn tls(
    section: &Section<'_>,
    ca: Option<PathBuf>,
    cert: Option<PathBuf>,
    key: Option<PathBuf>,
    server_name: Option<String>,
) -> TlsOptions<PathBuf> {
    match (section.is_written("cert"), section.is_written("key")) {
        (true, false) => section.add("key", "is missing; write the path of the certificate's key in PEM"),
        (false, true) => section.add("cert", "is missing; write the path of the key's certificate in PEM"),
        _ => {}
    }
    let relative = |path: PathBuf| section.relative(&path);
    TlsOptions { authority: ca.map(relative), identity: cert.map(relative).zip(key.map(relative)), server_name }
}

/// Parses `http://HOST:PORT` or `https://HOST:PORT`.
pub(super) fn endpoint(text: &str, example: &str) -> Result<ServerAddress, ValueError> {
    let address = text.trim_end_matches('/').parse().ok();
    let address = address.filter(|address: &ServerAddress| text.contains("://") && !address.is_unix());
    address.ok_or_else(|| ValueError::new(format!("expected an endpoint such as {example}, found {}", quote(text))))
}

/// Reads the members of an etcd cluster: at least one, each once.
pub(super) fn endpoints(value: &Value) -> Result<Vec<ServerAddress>, ValueError> {
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
pub(super) fn relay_endpoint(value: &Value) -> Result<Option<ServerAddress>, ValueError> {
    parse_endpoint(value::text(value)?).map(Some)
}

/// Parses an endpoint in a flag.
pub(super) fn parse_endpoint(text: &str) -> Result<ServerAddress, ValueError> {
    match text.parse::<ServerAddress>() {
        Ok(address) if address.is_unix() => Ok(address),
        Err(error) if text.starts_with("unix:/") => Err(ValueError::new(error.to_string())),
        _ => endpoint(text, INFORMERD),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_has_a_scheme_a_host_and_a_port() {
        assert_eq!(endpoint("HTTP://h:1//", "x").unwrap().uri(), "http://h:1");
        for text in ["h:1", "http://h", "http://h:1/a", "http://u:p@h:1", "unix:/a", "http://h:99999", "http://:1", ""]
        {
            assert!(endpoint(text, "http://x:1").unwrap_err().to_string().contains("http://x:1"), "{text}");
        }
    }
}
