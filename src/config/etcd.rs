//! Keys and flags of the `etcd` source.

use std::path::PathBuf;

use super::{
    ServeFlags, SourceConfig,
    flags::Flagged,
    section::{Input, Section},
    table::{EtcdKeys, EtcdTlsKeys},
    upstream::{self, ETCD},
    value::{self, ValueError, quote},
};
use crate::{net::ServerAddress, source::etcd::EtcdConfig};

const USERNAME_FLAG: &str = "--etcd-username (or INFORMERD_ETCD_USERNAME)";
const PASSWORD_FLAG: &str = "--etcd-password-file (or INFORMERD_ETCD_PASSWORD_FILE)";

/// Reads the section of one resource.
pub(super) fn resolve(section: &Section<'_>) -> SourceConfig {
    let EtcdKeys { endpoints, prefix, username, password_file } = EtcdKeys::read(section);
    match (section.is_written("username"), section.is_written("password_file")) {
        (true, false) => section.add("password_file", "is missing; write the path of a file with the password"),
        (false, true) => section.add("username", "is missing; write the user of the password"),
        _ => {}
    }
    let credentials = username.zip(password_file.map(|path| section.relative(&path)));

    let tls = section.section_or_empty("tls");
    let EtcdTlsKeys { ca, cert, key, server_name } = EtcdTlsKeys::read(&tls);
    let is_tls = !tls.written_of(&["ca", "cert", "key", "server_name"]).is_empty();
    if is_tls && !endpoints.iter().all(ServerAddress::is_tls) {
        tls.add_here("is only for https:// endpoints; change them, or remove it");
    }
    let tls = upstream::tls(&tls, ca, cert, key, server_name);
    SourceConfig::Etcd(EtcdConfig { credentials, tls, ..EtcdConfig::new("", endpoints, &prefix) })
}

/// Returns the user and the file of the password for every flag.
pub(super) fn flagged_credentials(flags: &ServeFlags, input: &Input<'_>) -> Option<(String, PathBuf)> {
    match (&flags.etcd_username, &flags.etcd_password_file) {
        (Some(_), None) => input.add(USERNAME_FLAG, "needs a password: --etcd-password-file FILE"),
        (None, Some(_)) => input.add(PASSWORD_FLAG, "needs a user: --etcd-username NAME"),
        _ => {}
    }
    flags.etcd_username.clone().zip(flags.etcd_password_file.clone())
}

/// Reads `NAME=http://HOST:PORT/PREFIX`: the prefix is everything from the slash after the port on, as it is.
pub(super) fn parse_flag(text: &str, credentials: Option<(String, PathBuf)>) -> Flagged<'_> {
    let expected = || {
        let what = "NAME=http://HOST:PORT/PREFIX such as settings=http://127.0.0.1:2379/settings/";
        ValueError::new(format!("expected {what}, found {}", quote(text)))
    };
    let (name, url) = text.split_once('=').ok_or_else(expected)?;
    value::check_resource_name(name)?;
    let authority = url.find("://").map(|at| at + 3).ok_or_else(expected)?;
    let at = url[authority..].find('/').map(|at| authority + at).ok_or_else(expected)?;
    let endpoints = vec![upstream::endpoint(&url[..at], ETCD)?];
    Ok((name, SourceConfig::Etcd(EtcdConfig { credentials, ..EtcdConfig::new("", endpoints, &url[at..]) })))
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
            let etcd = EtcdConfig::new("", vec![expected.parse().unwrap()], prefix);
            assert_eq!(parse_flag(text, None), Ok((name, SourceConfig::Etcd(etcd))));
        }
        for text in
            ["a", "a=127.0.0.1:2379/a/", "a=http://127.0.0.1:2379", "a=http:///a/", "a=ftp://h:1/", "a=http://h/a"]
        {
            assert!(parse_flag(text, None).unwrap_err().to_string().contains("http://127.0.0.1:2379"), "{text}");
        }
        assert!(parse_flag("A=http://h:1/", None).unwrap_err().to_string().contains("resource name has"));
    }
}
