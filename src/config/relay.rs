//! Keys and the flag of the `informerd` source.

use super::{
    SourceConfig,
    flags::Flagged,
    section::Section,
    table::{RelayIndexKeys, RelayKeys, RelayTlsKeys, RelayViewKeys},
    upstream::{self, parse_endpoint},
    value::{self, ValueError, quote},
};
use crate::{client::Query, model::View, proto::pb, source::relay::RelayConfig};

/// Reads the section of one resource. The upstream's resource has the same name unless the section sets it.
pub(super) fn resolve(section: &Section<'_>, name: &str) -> Option<SourceConfig> {
    let RelayKeys {
        endpoint,
        resource,
        token_file,
        forwards_identity,
        namespace,
        name: object,
        label_selector,
        field_selector,
        expression,
        shard,
    } = RelayKeys::read(section);
    let index = section.is_written("index").then(|| section.section("index")).flatten().map(|index| {
        let RelayIndexKeys { name, values } = RelayIndexKeys::read(&index);
        (name, values)
    });
    let tls = section.section_or_empty("tls");
    let RelayTlsKeys { ca, cert, key } = RelayTlsKeys::read(&tls);
    let is_tls = !tls.written_of(&["ca", "cert", "key"]).is_empty();
    if is_tls && endpoint.as_ref().is_some_and(|endpoint| !endpoint.is_tls()) {
        tls.add_here("is only for an https:// endpoint; change it, or remove this");
    }
    let tls = upstream::tls(&tls, ca, cert, key, None);
    let endpoint = match token_file.map(|file| section.relative(&file)) {
        None => endpoint,
        Some(file) => endpoint.and_then(|endpoint| {
            let with_token = endpoint.with_token_file(file);
            if with_token.is_none() {
                section
                    .add("token_file", "is not sent in the clear; write an https:// or unix: endpoint, or remove this");
            }
            with_token
        }),
    };
    let query = Query {
        namespace,
        name: object,
        label_selector,
        field_selector,
        expression,
        index,
        shard,
        view: view(section),
        ..Query::of(resource.unwrap_or_else(|| name.to_owned()))
    };
    Some(SourceConfig::Informerd(RelayConfig { query, forwards_identity, tls, ..RelayConfig::new(endpoint?, "") }))
}

/// Reads the part of each body to receive; all if the section is left out.
fn view(section: &Section<'_>) -> Option<pb::View> {
    let keys = section.is_written("view").then(|| section.section("view")).flatten()?;
    let RelayViewKeys { fields, drop, name } = RelayViewKeys::read(&keys);
    if section.has_problem("view") {
        return None;
    }
    let paths = keys.written_of(&["fields", "drop"]);
    match (&name, paths.first()) {
        (Some(_), Some(key)) => keys.add("name", format!("excludes `{key}`; keep one")),
        (None, None) => keys.add_here("is empty; write `fields`, `drop` or `name`, or remove it"),
        _ => {
            keys.check_here(View::parse(&fields, &drop));
        }
    }
    Some(pb::View { fields, drop, name: name.unwrap_or_default(), only_if_changed: false })
}

/// Reads `NAME=http://HOST:PORT[/RESOURCE]`: without a resource, the one of this name.
pub(super) fn parse_flag(text: &str) -> Flagged<'_> {
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
    let endpoint = parse_endpoint(&url[..at]).map_err(|_| expected())?;
    Ok((name, SourceConfig::Informerd(RelayConfig::new(endpoint, resource))))
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
            let relay = RelayConfig::new(endpoint.parse().unwrap(), resource);
            assert_eq!(parse_flag(text), Ok(("pods", SourceConfig::Informerd(relay))));
        }
        for text in ["pods", "pods=127.0.0.1:50051", "pods=http://h", "pods=ftp://h:1", "pods=http://:1"] {
            assert!(parse_flag(text).unwrap_err().to_string().contains("pods=http://127.0.0.1:50051"), "{text}");
        }
        assert!(parse_flag("pods=http://h:1/a/b").unwrap_err().to_string().contains("resource name has"));
        assert!(parse_flag("P=http://h:1").unwrap_err().to_string().contains("resource name has"));
    }

    #[test]
    fn an_endpoint_may_be_a_unix_socket() {
        assert_eq!(parse_endpoint("unix:/run/informerd.sock").unwrap().uri(), "unix:/run/informerd.sock");
        assert!(parse_endpoint("unix:informerd.sock").is_err() && parse_endpoint("unix:/run/").is_err());
    }
}
