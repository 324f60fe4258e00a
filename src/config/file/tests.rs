use std::{collections::BTreeSet, fmt::Write};

use proptest::prelude::*;

use super::*;

fn problems(bytes: &[u8]) -> String {
    let mut errors = ConfigErrors::default();
    let raw = parse("c.yaml", bytes, &mut errors);
    assert!(raw.is_some() || !errors.is_empty());
    errors.to_string()
}

#[test]
fn anything_but_one_yaml_document_is_rejected_with_its_position() {
    for (text, problem) in [
        ("listen: [", "c.yaml:1:9: unclosed bracket"),
        ("listen: a\n  b: c", "c.yaml:2:"),
        ("listen: \"a", "c.yaml:1:"),
        ("a: 1\n\tb: 2", "c.yaml:1:4: while scanning a plain scalar, found a tab"),
        ("watch:\n  a: 1\n  a: 2", "c.yaml:3:3: duplicate key: \"a\""),
        ("a: 1\n---\nb: 2", "c.yaml:3:1: second YAML document: a configuration has one"),
        ("- a", "c.yaml: expected a map of keys such as `listen: 127.0.0.1:50051`, found a list"),
        ("text", "c.yaml: expected a map of keys such as `listen: 127.0.0.1:50051`, found \"text\""),
        ("a: *b", "c.yaml:1:4: "),
        ("a: .nan", "c.yaml:1:4: value `.nan` is not a finite number"),
    ] {
        let found = problems(text.as_bytes());
        assert!(found.starts_with(problem), "{text:?}: {found}");
        assert_eq!(found.lines().count(), 1, "{text:?}: {found}");
    }
    assert_eq!(problems(b"a: 1\nb: \xff"), "c.yaml:2: is not UTF-8");
    let large = vec![b'#'; MAX_FILE_BYTES + 1];
    assert_eq!(problems(&large), "c.yaml: is larger than 1 MiB");
    assert_eq!(problems(&large[1..]), "");
}

#[test]
fn a_file_without_content_is_empty() {
    for text in ["", "\n", "# nothing\n", "---\n", "---\n...\n", "{}", "null", "~", "\u{feff}"] {
        assert_eq!(problems(text.as_bytes()), "", "{text:?}");
    }
    assert_eq!(problems("\u{feff}watch: {}".as_bytes()), "");
}

#[test]
fn aliases_are_bounded() {
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..12 {
        let below = format!("*a{}, ", n - 1).repeat(10);
        writeln!(bomb, "a{n}: &a{n} [{}]", below.trim_end_matches(", ")).unwrap();
    }
    let found = problems(bomb.as_bytes());
    assert!(found.contains("is nested too deeply, or too large with its aliases expanded"), "{found}");

    let long = format!("a: &a {}\nb: [{}]", "x".repeat(500_000), "*a, ".repeat(99));
    assert!(problems(long.as_bytes()).contains("too large with its aliases expanded"));

    let deep = format!("a: {}{}", "[".repeat(100), "]".repeat(100));
    assert!(problems(deep.as_bytes()).contains("is nested too deeply"));

    let shared = "watch: &w { queue_length: 5 }\nhistory: { age: &age 5m }\nstale_after: *age\nlimits: {}";
    assert_eq!(problems(shared.as_bytes()), "");
}

#[test]
fn every_unknown_key_is_named() {
    let text = "
lisen: 1
tls: { certificate: a }
watch: { queue_lenght: 1 }
limits: { memry: 5 }
resources:
  pods:
    source: { zookeeper: { endpoint: x }, files: { pth: x } }
    indexes: { node: { expresion: x, lable: y }, \"a.b\": { z: 1 } }
  7: { x: 1 }
";
    assert_eq!(
        problems(text.as_bytes()).lines().collect::<BTreeSet<_>>(),
        BTreeSet::from([
            "lisen: unknown key; did you mean `listen`?",
            "tls.certificate: unknown key; known here: cert, key, client_ca",
            "watch.queue_lenght: unknown key; did you mean `queue_length`?",
            "limits.memry: unknown key; did you mean `memory`?",
            "resources.pods.source.zookeeper: unknown key; known here: files, stream, etcd, kube, informerd",
            "resources.pods.source.files.pth: unknown key; did you mean `path`?",
            "resources.pods.indexes.node.expresion: unknown key; did you mean `expression`?",
            "resources.pods.indexes.node.lable: unknown key; did you mean `label`?",
            "resources.pods.indexes.\"a.b\".z: unknown key; known here: path, label, expression",
            "resources.7.x: unknown key; known here: source, drop_fields, indexes, views, allowed_views, ttl, optional, allow_secrets, snapshot, verify_interval, kubernetes, kubernetes_columns, read_only_clients, authorize_as",
        ])
    );
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("none.yaml");
    let mut errors = ConfigErrors::default();
    assert!(read(&path, &mut errors).is_none());
    assert!(read(directory.path(), &mut errors).is_none());
    let lines = errors.to_string();
    let (first, second) = lines.split_once('\n').unwrap();
    assert!(first.starts_with(&format!("{}: no such file: set --config", path.display())), "{first}");
    assert!(second.starts_with(&format!("{}: cannot be read: ", directory.path().display())), "{second}");
}

proptest! {
    #![proptest_config(crate::property_config())]

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        problems(&bytes);
    }

    #[test]
    fn no_yaml_panics(text in r#"((watch|resources|listen|pods|source|files|a|<<|[&*]a|!!int|!x)?[:\-?,\[\]{}'"|> \n#]{1,3}( |  |\n|[0-9]{1,20}|true|~|é)?){0,30}"#) {
        problems(text.as_bytes());
    }
}
