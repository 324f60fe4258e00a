//! The keys and flags of the `etcd` source.

use std::path::Path;

use serde_json::Value;

use super::{
    EtcdResource, EtcdTlsConfig, SourceConfig,
    error::ConfigErrors,
    raw::{RawEtcd, RawEtcdTls, ServeFlags},
    upstream::{self, TlsFiles},
    value::{self, ValueError, quote},
};

const EXAMPLE: &str = "http://127.0.0.1:2379";
const USERNAME_FLAG: &str = "--etcd-username (or INFORMERD_ETCD_USERNAME)";
const PASSWORD_FLAG: &str = "--etcd-password-file (or INFORMERD_ETCD_PASSWORD_FILE)";

/// `--etcd NAME=URL/PREFIX`, read.
#[derive(Debug, PartialEq, Eq)]
struct EtcdFlag<'a> {
    name: &'a str,
    endpoint: String,
    prefix: &'a str,
}

/// Reads the section of one resource.
pub(super) fn resolve(key: &str, raw: RawEtcd, directory: &Path, errors: &mut ConfigErrors) -> Option<SourceConfig> {
    let at = |leaf: &str| format!("{key}.{leaf}");
    if raw.endpoints.is_none() {
        errors.add(&at("endpoints"), "is missing; write for example [\"http://127.0.0.1:2379\"]");
    }
    let endpoints = errors.read(&at("endpoints"), raw.endpoints.as_ref(), endpoints);
    if raw.prefix.is_none() {
        errors
            .add(&at("prefix"), "is missing; write what the keys begin with, such as /settings/, or \"\" for all keys");
    }
    let prefix = errors.read(&at("prefix"), raw.prefix.as_ref(), |prefix| value::text(prefix).map(str::to_owned));

    let username = errors.read(&at("username"), raw.username.as_ref(), |name| value::text(name).map(str::to_owned));
    let password_file = upstream::file(&at("password_file"), raw.password_file.as_ref(), directory, errors);
    match (&raw.username, &raw.password_file) {
        (Some(_), None) => errors.add(&at("password_file"), "is missing; write the path of a file with the password"),
        (None, Some(_)) => errors.add(&at("username"), "is missing; write whose password it is"),
        _ => {}
    }

    let RawEtcdTls { ca, cert, key: private_key, server_name } =
        errors.section(&at("tls"), raw.tls).unwrap_or_default();
    let is_tls = [&ca, &cert, &private_key, &server_name].iter().any(|written| written.is_some());
    if is_tls && endpoints.iter().flatten().any(|endpoint| endpoint.starts_with("http://")) {
        errors.add(&at("tls"), "is for endpoints with https:// alone; write them so, or remove it");
    }
    let files = TlsFiles { ca: ca.as_ref(), cert: cert.as_ref(), key: private_key.as_ref() };
    let (ca, identity) = files.resolve(&at("tls"), directory, errors);
    let server_name =
        errors.read(&at("tls.server_name"), server_name.as_ref(), |name| value::text(name).map(str::to_owned));
    let tls = EtcdTlsConfig { ca, identity, server_name };
    let credentials = username.zip(password_file);
    Some(SourceConfig::Etcd(EtcdResource { endpoints: endpoints?, prefix: prefix?, credentials, tls }))
}

/// The resources that flags name.
pub(super) fn flagged(flags: &ServeFlags, errors: &mut ConfigErrors) -> Vec<(&'static str, String, SourceConfig)> {
    match (&flags.etcd_username, &flags.etcd_password_file) {
        (Some(_), None) => errors.add(USERNAME_FLAG, "needs the password too: --etcd-password-file FILE"),
        (None, Some(_)) => errors.add(PASSWORD_FLAG, "needs the user too: --etcd-username NAME"),
        _ => {}
    }
    let credentials = flags.etcd_username.clone().zip(flags.etcd_password_file.clone());
    let mut sources = Vec::new();
    for text in &flags.etcd {
        if let Some(EtcdFlag { name, endpoint, prefix }) = errors.check("--etcd", parse_flag(text)) {
            let resource = EtcdResource {
                endpoints: vec![endpoint],
                prefix: prefix.to_owned(),
                credentials: credentials.clone(),
                tls: EtcdTlsConfig::default(),
            };
            sources.push(("--etcd", name.to_owned(), SourceConfig::Etcd(resource)));
        }
    }
    sources
}

/// At least one; each once.
fn endpoints(value: &Value) -> Result<Vec<String>, ValueError> {
    let list = value.as_array().filter(|list| !list.is_empty());
    let list = list.ok_or_else(|| {
        ValueError::new(format!("expected a list such as [\"http://127.0.0.1:2379\"], found {}", value::found(value)))
    })?;
    let mut endpoints = Vec::new();
    for value in list {
        let endpoint = upstream::endpoint(value::text(value)?, EXAMPLE)?;
        if !endpoints.contains(&endpoint) {
            endpoints.push(endpoint);
        }
    }
    Ok(endpoints)
}

/// Reads `NAME=http://HOST:PORT/PREFIX`: the prefix is everything from the slash after the port on, as it is.
fn parse_flag(text: &str) -> Result<EtcdFlag<'_>, ValueError> {
    let expected = || {
        let what = "NAME=http://HOST:PORT/PREFIX such as settings=http://127.0.0.1:2379/settings/";
        ValueError::new(format!("expected {what}, found {}", quote(text)))
    };
    let (name, url) = text.split_once('=').ok_or_else(expected)?;
    value::check_resource_name(name)?;
    let authority = url.find("://").map(|at| at + 3).ok_or_else(expected)?;
    let at = url[authority..].find('/').map(|at| authority + at).ok_or_else(expected)?;
    Ok(EtcdFlag { name, endpoint: upstream::endpoint(&url[..at], EXAMPLE)?, prefix: &url[at..] })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_is_an_endpoint_and_a_prefix() {
        for (text, name, expected, prefix) in [
            ("a=http://127.0.0.1:2379/a/", "a", "http://127.0.0.1:2379", "/a/"),
            ("a=https://etcd.example:2379/", "a", "https://etcd.example:2379", "/"),
            ("a=http://[::1]:2379/a=b?c//", "a", "http://[::1]:2379", "/a=b?c//"),
        ] {
            assert_eq!(parse_flag(text), Ok(EtcdFlag { name, endpoint: expected.to_owned(), prefix }));
        }
        for text in
            ["a", "a=127.0.0.1:2379/a/", "a=http://127.0.0.1:2379", "a=http:///a/", "a=ftp://h:1/", "a=http://h/a"]
        {
            assert!(parse_flag(text).unwrap_err().to_string().contains("http://127.0.0.1:2379"), "{text}");
        }
        assert!(parse_flag("A=http://h:1/").unwrap_err().to_string().contains("name of a resource"));
    }
}
