//! Tests of the `informerd` source.

use super::*;
use crate::{
    client::Query,
    net::{ServerAddress, TlsOptions},
    proto::pb,
};

fn relay(config: &Config, name: &str) -> RelayConfig {
    match &config.resources[name].source {
        SourceConfig::Informerd(relay) => relay.clone(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_relay_is_read_with_everything_that_it_can_have() {
    let yaml = "resources: { a: { source: { informerd: { endpoint: 'https://h:1/', resource: pods, \
                namespace: shop, name: web-0, label_selector: 'app=web,!canary', field_selector: spec.x=1, \
                expression: object.spec.x == 1, index: { name: node, values: [a, b] }, shard: spec.n:2/8, \
                view: { fields: [spec.x], drop: [spec.x.y] }, forward_identity: true, tls: { ca: ca.crt, cert: /tls.crt, key: tls.key } } } }, \
                b: { source: { informerd: { endpoint: 'unix:/run/x.sock' } } } }";
    let (directory, flags) = file(yaml, &["--relay=c=http://127.0.0.1:50051", "--relay=d=http://h:1/pods"]);
    let config = Config::load(&flags).unwrap();
    let directory = directory.path();
    let expected = RelayConfig {
        query: Query {
            namespace: Some("shop".to_owned()),
            name: Some("web-0".to_owned()),
            label_selector: "app=web,!canary".to_owned(),
            field_selector: "spec.x=1".to_owned(),
            expression: "object.spec.x == 1".to_owned(),
            index: Some(("node".to_owned(), vec!["a".to_owned(), "b".to_owned()])),
            shard: Some("spec.n:2/8".parse().unwrap()),
            view: Some(pb::View {
                fields: vec!["spec.x".to_owned()],
                drop: vec!["spec.x.y".to_owned()],
                ..pb::View::default()
            }),
            ..Query::of("pods")
        },
        tls: TlsOptions {
            authority: Some(directory.join("ca.crt")),
            identity: Some(("/tls.crt".into(), directory.join("tls.key"))),
            server_name: None,
        },
        forwards_identity: true,
        ..RelayConfig::new("https://h:1".parse().unwrap(), "")
    };
    assert_eq!(relay(&config, "a"), expected);
    let yaml = "resources: { a: { source: { informerd: { endpoint: 'http://h:1', view: { name: '@no-status' } } } } }";
    let view = relay(&load(yaml, &[]).unwrap(), "a").query.view;
    assert_eq!(view, Some(pb::View { name: "@no-status".to_owned(), ..pb::View::default() }));
    let yaml = "resources: { a: { source: { informerd: { endpoint: 'https://h:1/', token_file: token } } } }";
    let (directory, flags) = file(yaml, &[]);
    let endpoint: ServerAddress = "https://h:1".parse().unwrap();
    let endpoint = endpoint.with_token_file(directory.path().join("token")).unwrap();
    assert_eq!(relay(&Config::load(&flags).unwrap(), "a").endpoint, endpoint);
    for (name, endpoint, resource) in
        [("b", "unix:/run/x.sock", "b"), ("c", "http://127.0.0.1:50051", "c"), ("d", "http://h:1", "pods")]
    {
        assert_eq!(relay(&config, name), RelayConfig::new(endpoint.parse().unwrap(), resource));
    }
}

#[test]
fn missing_and_conflicting_keys_are_reported() {
    let key = "resources.a.source.informerd";
    for (written, problem) in [
        ("", format!("{key}.endpoint: is missing")),
        ("endpoint: h:1", format!("{key}.endpoint: expected an endpoint such as http://127.0.0.1:50051")),
        ("endpoint: 'http://h:1', resource: Pods", format!("{key}.resource: ")),
        ("endpoint: 'http://h:1', tls: { ca: x }", format!("{key}.tls: is only for an https:// endpoint")),
        (
            "endpoint: 'http://h:1', token_file: x",
            format!("{key}.token_file: is not sent in the clear; write an https://"),
        ),
        ("endpoint: 'https://h:1', tls: { cert: x }", format!("{key}.tls.key: is missing")),
        ("endpoint: 'http://h:1', label_selector: 'app in'", format!("{key}.label_selector: ")),
        ("endpoint: 'http://h:1', field_selector: spec.x", format!("{key}.field_selector: ")),
        (
            "endpoint: 'http://h:1', shard: 8/8",
            format!("{key}.shard: character 1: the first of 8 is 0/8, and the last 7/8"),
        ),
        ("endpoint: 'http://h:1', index: node", format!("{key}.index: expected a map of keys, found \"node\"")),
        ("endpoint: 'http://h:1', index: { values: [a] }", format!("{key}.index.name: is missing")),
        ("endpoint: 'http://h:1', index: { name: node }", format!("{key}.index.values: is missing")),
        (
            "endpoint: 'http://h:1', index: { name: node, values: [] }",
            format!("{key}.index.values: expected a list of 1 to 256 texts such as [node-a], found 0"),
        ),
        ("endpoint: 'http://h:1', view: small", format!("{key}.view: expected a map of keys, found \"small\"")),
        ("endpoint: 'http://h:1', view: { }", format!("{key}.view: is empty; write `fields`, `drop` or `name`")),
        (
            "endpoint: 'http://h:1', view: { fields: ['a['] }",
            format!("{key}.view.fields: character 3: expected '*', an index"),
        ),
        ("endpoint: 'http://h:1', view: { name: '' }", format!("{key}.view.name: expected a name, found \"\"")),
        ("endpoint: 'http://h:1', view: { name: a, drop: [b] }", format!("{key}.view.name: excludes `drop`; keep one")),
        (
            "endpoint: 'http://h:1', view: { fields: [a], only_if_changed: true }",
            format!("{key}.view.only_if_changed: unknown key; known here: fields, drop, name"),
        ),
        ("endpoints: ['http://h:1']", format!("{key}.endpoints: unknown key; did you mean `endpoint`?")),
    ] {
        let yaml = format!("resources: {{ a: {{ source: {{ informerd: {{ {written} }} }} }} }}");
        let found = load(&yaml, &["--files=b=."]).unwrap_err().to_string();
        assert!(found.contains(&problem), "{written}: {found}");
    }
    if cfg!(feature = "cel") {
        let yaml = "resources: { a: { source: { informerd: { endpoint: 'http://h:1', expression: 'object.' } } } }";
        let found = load(yaml, &[]).unwrap_err().to_string();
        assert!(found.contains(&format!("{key}.expression: ")), "{found}");
    }
    let yaml = "resources: { a: { source: { informerd: { endpoint: 'http://h:1' }, files: { path: . } } } }";
    let found = load(yaml, &[]).unwrap_err().to_string();
    assert!(found.contains("has `files` and `informerd`; keep one"), "{found}");
}
