//! Tests of the `kube` source.

use super::*;
use crate::model::{FieldCut, Path as FieldPath};

fn kube(config: &Config, name: &str) -> KubeConfig {
    match &config.resources[name].source {
        SourceConfig::Kube(kube) => kube.clone(),
        other => panic!("{other:?}"),
    }
}

fn cut(path: &str) -> FieldCut {
    FieldCut::new([FieldPath::parse(path).unwrap()]).unwrap()
}

#[test]
fn a_kube_source_is_read_with_everything_that_it_can_have() {
    let yaml = "resources: { a: { drop_fields: [.status], source: { kube: { group: apps, version: v1, plural: deployments, \
                namespace: shop, label_selector: 'app in (a,b)', field_selector: metadata.name=x, metadata_only: true, \
                versions: opaque, kubeconfig: ./c, context: d } } }, \
                b: { source: { kube: { version: v1, plural: pods } } }, \
                n: { source: { kube: { version: v1, plural: pods, namespaces: [shop, stock] } } }, \
                s: { source: { kube: { version: v1, plural: pods, namespace_selector: team=shop } } }, c: { drop_fields: [], source: { kube: { version: v1, plural: x } } } }";
    let (directory, flags) = file(yaml, &["--kube=d=v1/pods", "--kubeconfig=f", "--kube-context=e"]);
    let config = Config::load(&flags).unwrap();
    let expected = KubeConfig {
        namespace: "shop".to_owned(),
        label_selector: "app in (a,b)".to_owned(),
        field_selector: "metadata.name=x".to_owned(),
        is_metadata_only: true,
        has_opaque_versions: true,
        cluster: KubeCluster { kubeconfig: Some(directory.path().join("c")), context: Some("d".to_owned()) },
        ..KubeConfig::new("", "apps", "v1", "deployments")
    };
    assert_eq!(kube(&config, "a"), expected);
    assert_eq!(config.resources["a"].drop_fields(), cut("status"));
    let plain = kube(&config, "b");
    assert_eq!((plain.group.as_str(), plain.namespace.as_str(), &plain.cluster), ("", "", &KubeCluster::default()));
    assert!(!plain.is_metadata_only && !plain.has_opaque_versions);
    assert_eq!(kube(&config, "n").namespaces, ["shop", "stock"]);
    assert_eq!(kube(&config, "s").namespace_selector, "team=shop");
    let json = br#"{"metadata":{"annotations":{"kubectl.kubernetes.io/last-applied-configuration":"{}","a":"b"},"managedFields":[]}}"#;
    assert_eq!(&*config.resources["b"].drop_fields().apply(json), br#"{"metadata":{"annotations":{"a":"b"}}}"#);
    assert_eq!(config.resources["c"].drop_fields(), FieldCut::default());
    assert_eq!(config.resources["d"].drop_fields(), config.resources["b"].drop_fields());
    let flagged =
        KubeConfig { cluster: KubeCluster { kubeconfig: Some("f".into()), context: Some("e".to_owned()) }, ..plain };
    assert_eq!(kube(&config, "d"), flagged);
}

#[test]
fn missing_and_conflicting_keys_are_reported() {
    let key = "resources.a.source.kube";
    let all = "version: v1, plural: pods";
    for (written, problem) in [
        ("", format!("{key}.version: is missing; write for example v1")),
        ("version: v1", format!("{key}.plural: is missing; write for example pods")),
        (
            "version: v1, plural: Pods",
            format!("{key}.plural: expected the plural name of a kind, as in API paths, such as pods"),
        ),
        (&format!("{all}, namespace: 'a,b'"), format!("{key}.namespace: expected one namespace")),
        (&format!("{all}, contact_timeout: 3s"), format!("{key}.contact_timeout: is no key any more")),
        (&format!("{all}, group: A"), format!("{key}.group: expected an API group such as apps")),
        (&format!("{all}, label_selector: 'a in'"), format!("{key}.label_selector: ")),
        (&format!("{all}, metadata_only: 1"), format!("{key}.metadata_only: expected true or false, found")),
        (&format!("{all}, versions: decimal"), format!("{key}.versions: expected auto or opaque, found")),
        (&format!("{all}, namespacez: x"), format!("{key}.namespacez: unknown key; did you mean `namespace`?")),
        (
            &format!("{all}, namespaces: x"),
            format!("{key}.namespaces: expected a list of 1 to 100 namespaces such as [shop, stock], found"),
        ),
        (&format!("{all}, namespaces: []"), format!("{key}.namespaces: expected a list of 1 to 100 namespaces")),
        (&format!("{all}, namespaces: [a, '']"), format!("{key}.namespaces: expected a namespace, found")),
        (
            &format!("{all}, namespaces: [a, b, a]"),
            format!("{key}.namespaces: expected each namespace once, found \"a\" again"),
        ),
        (
            &format!("{all}, namespace: '', namespaces: [a]"),
            format!("{key}.namespaces: excludes `namespace`; keep one"),
        ),
        (
            &format!("{all}, namespace_selector: a=b, namespaces: [a]"),
            format!("{key}.namespace_selector: excludes `namespaces`; keep one"),
        ),
        (
            &format!("{all}, namespace_selector: ''"),
            format!("{key}.namespace_selector: expected a label selector such as"),
        ),
        (&format!("{all}, namespace_selector: 'a in'"), format!("{key}.namespace_selector: ")),
        (
            &format!("{all}, versions: opaque, namespace_selector: a=b"),
            format!("{key}.namespace_selector: needs the API's own versions; remove `versions: opaque`"),
        ),
        (
            &format!("{all}, versions: opaque, namespaces: [a]"),
            format!("{key}.namespaces: needs the API's own versions; remove `versions: opaque`"),
        ),
    ] {
        let yaml = format!("resources: {{ a: {{ source: {{ kube: {{ {written} }} }} }} }}");
        let found = load(&yaml, &["--files=b=."]).unwrap_err().to_string();
        assert!(found.contains(&problem), "{written}: {found}");
    }
    for (written, problem) in [
        ("drop_fields: x, source: { kube: { version: v1, plural: a } }", "expected a list of paths"),
        ("drop_fields: [metadata.uid], source: { kube: { version: v1, plural: a } }", "it identifies the object"),
        (
            "drop_fields: [a], source: { etcd: {} }",
            "resources.a.drop_fields: is only for `kube`, `files` and `stream` sources",
        ),
        ("source: { files: { path: x }, kube: { version: v1, plural: a } }", "has `files` and `kube`; keep one"),
    ] {
        let found = load(&format!("resources: {{ a: {{ {written} }} }}"), &["--files=b=."]).unwrap_err().to_string();
        assert!(found.contains(problem), "{written}: {found}");
    }
}

/// An index by such a field would be empty.
#[test]
fn an_index_by_a_field_outside_of_the_metadata_is_rejected() {
    let load = |metadata_only: bool| {
        let indexes = "owner: { path: '.metadata.ownerReferences[*].uid' }, kind: { path: kind }, app: { label: app }, \
                       node: { path: .spec.nodeName }, first: { path: '[0].x' }";
        let kube = format!("version: v1, plural: pods, metadata_only: {metadata_only}");
        load(&format!("resources: {{ a: {{ indexes: {{ {indexes} }}, source: {{ kube: {{ {kube} }} }} }} }}"), &[])
    };
    assert!(load(false).is_ok());
    let found = load(true).unwrap_err().to_string();
    let problem = |path| {
        format!("path {path:?} has no value under metadata_only; write a path below .metadata, or remove metadata_only")
    };
    let expected = [("first", "[0].x"), ("node", ".spec.nodeName")]
        .map(|(index, path)| format!("resources.a.indexes.{index}.path: {}", problem(path)));
    assert_eq!(found.lines().collect::<Vec<_>>(), expected);
}

/// Secrets are the one resource that a configuration has to allow.
#[test]
fn secrets_are_served_only_with_their_key() {
    let relay = "informerd: { endpoint: 'http://h:1'";
    let refused = |name: &str, source: &str| {
        let (_directory, flags) = file(format!("resources: {{ {name}: {{ source: {{ {source} }} }} }}"), &[]);
        Config::load(&flags).unwrap_err().to_string()
    };
    for (name, source) in [
        ("tokens", "kube: { version: v1, plural: secrets }".to_owned()),
        ("tokens", "kube: { version: v1, plural: secrets, metadata_only: true }".to_owned()),
        ("secrets", format!("{relay} }}")),
        ("tokens", format!("{relay}, resource: secrets }}")),
    ] {
        let error = refused(name, &source);
        let expected =
            format!("resources.{name}: resource {name:?} has Secrets: write `resources.{name}.allow_secrets: true`");
        assert!(error.starts_with(&expected) && error.lines().count() == 1, "{error}");
        let (_directory, flags) =
            file(format!("resources: {{ {name}: {{ allow_secrets: true, source: {{ {source} }} }} }}"), &[]);
        let resource = &Config::load(&flags).unwrap().resources[name];
        assert_eq!(resource.is_secret(), !source.contains("metadata_only"), "{source}");
    }
    let error = Config::load(&flags(&["--kube=tokens=v1/secrets"])).unwrap_err().to_string();
    assert!(error.starts_with("--kube: resource \"tokens\" has Secrets: "), "{error}");
    let error = Config::load(&flags(&["--relay=secrets=http://h:1"])).unwrap_err().to_string();
    assert!(error.starts_with("--relay: resource \"secrets\" has Secrets: "), "{error}");
    // Others of this name, and other names of a relay's resource, need no key.
    let config = Config::load(&flags(&["--kube=secrets=example.com/v1/secrets", "--relay=tokens=http://h:1"])).unwrap();
    assert!(config.resources.values().all(|resource| !resource.is_secret()));
    let (_directory, flags) =
        file("resources: { pods: { allow_secrets: true, source: { kube: { version: v1, plural: pods } } } }", &[]);
    let error = Config::load(&flags).unwrap_err().to_string();
    assert!(error.starts_with("resources.pods.allow_secrets: is only for"), "{error}");
}

/// Resources whose clients would miss changes, or erase fields.
#[test]
fn the_kubernetes_api_refuses_what_its_clients_cannot_use() {
    let load = |keys: &str| {
        let yaml = format!("{{ resources: {{ pods: {{ {keys} }} }} }}");
        super::load(&yaml, &[]).map(drop).map_err(|errors| errors.to_string())
    };
    let kube = "source: { kube: { version: v1, plural: pods";
    let good = [
        format!("kubernetes: auto, drop_fields: [.metadata.managedFields], {kube} }} }}"),
        format!("kubernetes: auto, drop_fields: [], {kube} }} }}"),
        format!("kubernetes: auto, read_only_clients: true, {kube}, metadata_only: true }} }}"),
        "kubernetes: example.com/v1/things=Thing, source: { etcd: { endpoints: [\"http://h:1\"], prefix: /x/ } }"
            .to_owned(),
    ];
    for keys in good {
        assert_eq!(load(&keys), Ok(()), "{keys}");
    }
    let whole = "drop_fields: [.metadata.managedFields]";
    for (keys, problem) in [
        (format!("kubernetes: auto, {kube} }} }}"), "and `drop_fields`"),
        (format!("kubernetes: auto, drop_fields: [.status], {kube} }} }}"), "and `drop_fields`"),
        (format!("kubernetes: auto, {whole}, {kube}, metadata_only: true }} }}"), "a part of each object"),
        (format!("kubernetes: auto, {whole}, allowed_views: [\"@metadata\"], {kube} }} }}"), "whole objects"),
        (
            format!("kubernetes: auto, read_only_clients: true, allowed_views: [\"@metadata\"], {kube} }} }}"),
            "whole objects",
        ),
        (format!("kubernetes: auto, {whole}, {kube}, versions: opaque }} }}"), "the API's own versions"),
        (format!("kubernetes: auto, {whole}, {kube}, namespaces: [a, b] }} }}"), "would miss changes"),
        (format!("kubernetes: auto, {whole}, {kube}, namespace_selector: a=b }} }}"), "would miss changes"),
        ("kubernetes: auto, source: { files: { path: . } }".to_owned(), "integers in the order of the changes"),
        ("kubernetes: auto, source: { stream: { path: \"-\" } }".to_owned(), "integers in the order of the changes"),
        (format!("kubernetes: pods, {whole}, {kube} }} }}"), "expected auto, or"),
    ] {
        let found = load(&keys).unwrap_err();
        assert!(found.contains(problem), "{keys}: {found}");
    }
    let source =
        "kubernetes: example.com/v1/things=Thing, source: { etcd: { endpoints: [\"http://h:1\"], prefix: /x/ } }";
    let two = super::load(&format!("{{ resources: {{ a: {{ {source} }}, b: {{ {source} }} }} }}"), &[]).unwrap_err();
    assert!(two.to_string().contains("like `a`"), "{two}");
}

#[test]
#[cfg(feature = "kubernetes-api")]
fn the_address_of_the_kubernetes_api_is_as_safe_as_that_of_grpc() {
    let load = |keys: &str| {
        super::load(&format!("{{ {keys}, resources: {{ a: {{ source: {{ files: {{ path: . }} }} }} }} }}"), &[])
    };
    assert_eq!(load("kubernetes: { listen: none }").unwrap().kubernetes_listen(), None);
    let config = load("kubernetes: { listen: 127.0.0.1:8001, stale_reads: warn }").unwrap();
    assert_eq!(
        (config.kubernetes_listen().map(ToString::to_string), config.kubernetes.warns),
        (Some("127.0.0.1:8001".to_owned()), true)
    );
    for (keys, problem) in [
        ("kubernetes: { listen: \":8001\" }", "is not loopback and has no `tls`"),
        ("kubernetes: { listen: 127.0.0.1:50051 }", "is already the address of gRPC"),
        ("kubernetes: { stale_reads: perhaps }", "expected refuse or warn"),
    ] {
        let found = load(keys).unwrap_err().to_string();
        assert!(found.contains(problem), "{keys}: {found}");
    }
}
