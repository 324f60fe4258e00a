//! The keys and the flag of the `informerd` source.

use std::path::Path;

use serde_json::Value;

use super::{
    RelayResource, SourceConfig,
    error::ConfigErrors,
    raw::{RawRelay, RawRelayTls, ServeFlags},
    upstream::{self, TlsFiles},
    value::{self, ValueError, quote},
};

const EXAMPLE: &str = "http://127.0.0.1:50051";

/// `--relay NAME=URL[/RESOURCE]`, read.
#[derive(Debug, PartialEq, Eq)]
struct RelayFlag<'a> {
    name: &'a str,
    endpoint: String,
    resource: &'a str,
}

/// Reads the section of one resource, whose name is that of the upstream's unless that is written.
pub(super) fn resolve(
    key: &str,
    name: &str,
    raw: RawRelay,
    directory: &Path,
    errors: &mut ConfigErrors,
) -> Option<SourceConfig> {
    let at = |leaf: &str| format!("{key}.{leaf}");
    if raw.endpoint.is_none() {
        errors.add(&at("endpoint"), format!("is missing; write for example {EXAMPLE}"));
    }
    let endpoint =
        errors.read(&at("endpoint"), raw.endpoint.as_ref(), |endpoint| self::endpoint(value::text(endpoint)?));
    let resource = errors.read(&at("resource"), raw.resource.as_ref(), resource);
    let tls_key = at("tls");
    let RawRelayTls { ca, cert, key } = errors.section(&tls_key, raw.tls).unwrap_or_default();
    let files = TlsFiles { ca: ca.as_ref(), cert: cert.as_ref(), key: key.as_ref() };
    let is_tls = [files.ca, files.cert, files.key].iter().any(Option::is_some);
    if is_tls && endpoint.as_ref().is_some_and(|endpoint| !endpoint.starts_with("https://")) {
        errors.add(&tls_key, "is for an endpoint with https:// alone; write it so, or remove it");
    }
    let (ca, identity) = files.resolve(&tls_key, directory, errors);
    let resource = resource.unwrap_or_else(|| name.to_owned());
    Some(SourceConfig::Informerd(RelayResource { endpoint: endpoint?, resource, ca, identity }))
}

/// The resources that flags name.
pub(super) fn flagged(flags: &ServeFlags, errors: &mut ConfigErrors) -> Vec<(&'static str, String, SourceConfig)> {
    let mut sources = Vec::new();
    for text in &flags.relay {
        if let Some(RelayFlag { name, endpoint, resource }) = errors.check("--relay", parse_flag(text)) {
            let resource = RelayResource { endpoint, resource: resource.to_owned(), ca: None, identity: None };
            sources.push(("--relay", name.to_owned(), SourceConfig::Informerd(resource)));
        }
    }
    sources
}

/// `http://HOST:PORT`, `https://HOST:PORT` or `unix:/path`.
fn endpoint(text: &str) -> Result<String, ValueError> {
    let is_socket = text.strip_prefix("unix:").is_some_and(|path| path.starts_with('/') && !path.ends_with('/'));
    if is_socket { Ok(text.to_owned()) } else { upstream::endpoint(text, EXAMPLE) }
}

fn resource(value: &Value) -> Result<String, ValueError> {
    let name = value::text(value)?;
    value::check_resource_name(name)?;
    Ok(name.to_owned())
}

/// Reads `NAME=http://HOST:PORT[/RESOURCE]`: without a resource, the one of this name.
fn parse_flag(text: &str) -> Result<RelayFlag<'_>, ValueError> {
    let expected = || {
        let what = "NAME=http://HOST:PORT[/RESOURCE] such as pods=http://127.0.0.1:50051";
        ValueError::new(format!("expected {what}, found {}", quote(text)))
    };
    let (name, url) = text.split_once('=').ok_or_else(expected)?;
    value::check_resource_name(name)?;
    let authority = url.find("://").map(|at| at + 3).ok_or_else(expected)?;
    let at = url[authority..].find('/').map_or(url.len(), |at| authority + at);
    let resource = match url[at..].trim_matches('/') {
        "" => name,
        resource => resource,
    };
    value::check_resource_name(resource)?;
    Ok(RelayFlag { name, endpoint: endpoint(&url[..at]).map_err(|_| expected())?, resource })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_an_endpoint_and_perhaps_another_name() {
        for (text, endpoint, resource) in [
            ("pods=http://127.0.0.1:50051", "http://127.0.0.1:50051", "pods"),
            ("pods=http://127.0.0.1:50051/", "http://127.0.0.1:50051", "pods"),
            ("pods=https://informerd.example:50051/all-pods", "https://informerd.example:50051", "all-pods"),
            ("pods=http://[::1]:50051/a.b", "http://[::1]:50051", "a.b"),
        ] {
            let endpoint = endpoint.to_owned();
            assert_eq!(parse_flag(text), Ok(RelayFlag { name: "pods", endpoint, resource }));
        }
        for text in ["pods", "pods=127.0.0.1:50051", "pods=http://h", "pods=ftp://h:1", "pods=http://:1"] {
            assert!(parse_flag(text).unwrap_err().to_string().contains("pods=http://127.0.0.1:50051"), "{text}");
        }
        assert!(parse_flag("pods=http://h:1/a/b").unwrap_err().to_string().contains("name of a resource"));
        assert!(parse_flag("P=http://h:1").unwrap_err().to_string().contains("name of a resource"));
    }

    #[test]
    fn an_endpoint_may_be_a_unix_socket() {
        assert_eq!(endpoint("unix:/run/informerd.sock"), Ok("unix:/run/informerd.sock".to_owned()));
        assert!(endpoint("unix:informerd.sock").is_err() && endpoint("unix:/run/").is_err());
    }
}
