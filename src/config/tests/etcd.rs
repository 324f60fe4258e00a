//! Tests of the `etcd` source.

use super::*;
use crate::net::TlsOptions;

fn etcd(config: &Config, name: &str) -> EtcdConfig {
    match &config.resources[name].source {
        SourceConfig::Etcd(etcd) => etcd.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_etcd_source_is_read_with_everything_that_it_can_have() {
    let yaml = "resources: { a: { source: { etcd: { endpoints: ['https://a:1', 'https://b:2/', 'https://a:1'], prefix: /a/, \
                username: reader, password_file: ./secret, \
                tls: { ca: ca.crt, cert: /tls.crt, key: tls.key, server_name: etcd } } } } }";
    let (directory, flags) = file(yaml, &["--etcd=b=http://127.0.0.1:2379/b/"]);
    let config = Config::load(&flags).unwrap();
    let directory = directory.path();
    let expected = EtcdConfig {
        credentials: Some(("reader".to_owned(), directory.join("secret"))),
        tls: TlsOptions {
            authority: Some(directory.join("ca.crt")),
            identity: Some(("/tls.crt".into(), directory.join("tls.key"))),
            server_name: Some("etcd".to_owned()),
        },
        ..EtcdConfig::new("", ["https://a:1", "https://b:2"].map(|address| address.parse().unwrap()).into(), "/a/")
    };
    assert_eq!(etcd(&config, "a"), expected);
    let plain = EtcdConfig::new("", vec!["http://127.0.0.1:2379".parse().unwrap()], "/b/");
    assert_eq!(etcd(&config, "b"), plain);
    let flags = ["--etcd=b=http://h:1/b/", "--etcd-username=me", "--etcd-password-file=secret"];
    let config = load("{}", &flags).unwrap();
    assert_eq!(etcd(&config, "b").credentials, Some(("me".to_owned(), "secret".into())));
}

#[test]
fn missing_and_conflicting_keys_are_reported() {
    let key = "resources.a.source.etcd";
    for (written, problem) in [
        ("", format!("{key}.endpoints: is missing")),
        ("endpoints: []", format!("{key}.endpoints: expected a list such as")),
        ("endpoints: [h:1]", format!("{key}.endpoints: expected an endpoint such as http://127.0.0.1:2379")),
        ("endpoints: ['http://h:1']", format!("{key}.prefix: is missing")),
        ("endpoints: ['http://h:1'], prefix: '', username: me", format!("{key}.password_file: is missing")),
        ("endpoints: ['http://h:1'], prefix: '', password_file: x", format!("{key}.username: is missing")),
        ("endpoints: ['http://h:1'], prefix: '', tls: { ca: x }", format!("{key}.tls: is only for https:// endpoints")),
        ("endpoints: ['https://h:1'], prefix: '', tls: { cert: x }", format!("{key}.tls.key: is missing")),
        ("endpoints: ['https://h:1'], prefix: '', tls: { key: x }", format!("{key}.tls.cert: is missing")),
        (
            "endpoints: ['https://h:1'], prefix: '', password: x",
            format!("{key}.password: unknown key; known here: endpoints, prefix, username, password_file"),
        ),
    ] {
        let yaml = format!("resources: {{ a: {{ source: {{ etcd: {{ {written} }} }} }} }}");
        let found = load(&yaml, &["--files=b=."]).unwrap_err().to_string();
        assert!(found.contains(&problem), "{written}: {found}");
    }
    let found = load("{}", &["--etcd=b=http://h:1/b/", "--etcd-username=me"]).unwrap_err().to_string();
    assert!(found.contains("needs a password: --etcd-password-file FILE"), "{found}");
}
