use super::*;
use crate::model::MAX_OBJECT_BYTES;

/// Returns the objects of a file, or the reason why a part of it cannot be read.
fn decode_as(format: Format, text: &str, kind: Option<&str>) -> Result<Vec<Object>, String> {
    let Decoded { objects, unread } = decoded_as(format, text, kind);
    unread.map_or(Ok(objects), |unread| Err(unread.reason))
}

fn decoded_as(format: Format, text: &str, kind: Option<&str>) -> Decoded {
    decode("dir/a.x", format, text.as_bytes(), kind, &ResourceVersion::decimal(7))
}

fn keys(objects: &[Object]) -> Vec<String> {
    objects.iter().map(|object| object.key().to_string()).collect()
}

fn bodies(objects: &[Object]) -> Vec<&str> {
    objects.iter().map(|object| std::str::from_utf8(object.body()).unwrap()).collect()
}

#[test]
fn json_bodies_are_the_bytes_of_the_file() {
    let text = "\u{feff}\n {\"metadata\": {\"name\":\"b\"},  \"n\":1.0}\t{\"metadata\":{\"name\":\"a\"}} \n [1]\n3 ";
    let objects = decode_as(Format::Json, text, None).unwrap();
    assert_eq!(keys(&objects), ["b", "a", "dir/a.x", "dir/a.x#2"]);
    let expected = [r#"{"metadata": {"name":"b"},  "n":1.0}"#, r#"{"metadata":{"name":"a"}}"#, "[1]", "3"];
    assert_eq!(bodies(&objects), expected);
}

#[test]
fn a_half_written_file_is_recognized() {
    for text in [r#"{"a":1} {"b":"#, r#"{"a":1}}"#, "{\"a\": \u{0}}", "nope"] {
        decode_as(Format::Json, text, None).unwrap_err();
    }
    for text in ["a: 1\n---\nb: [", "apiVersi", "a: b: c", "a: 1\n---\nmetadata:\n  na", "a\u{0}: 1"] {
        decode_as(Format::Yaml, text, None).unwrap_err();
    }
}

/// Each fault takes nothing else with it, and is reported in the words of the file: document, line and column, field, value and
/// remedy.
#[test]
fn a_fault_is_placed_in_the_file_and_the_rest_is_read() {
    let good = "kind: A\nmetadata: {name: good}\n";
    let label = |value: &str| {
        format!("# first\n{good}---\nkind: A\nmetadata:\n  name: b\n  labels:\n    enabled: {value} # x\n")
    };
    let yaml = [
        (
            label("on"),
            r#"document 2, line 9, column 14: metadata.labels.enabled: expected a string, found the boolean on; write "on""#,
        ),
        (
            label("1e3"),
            r#"document 2, line 9, column 14: metadata.labels.enabled: expected a string, found the number 1e3; write "1e3""#,
        ),
        (
            format!("{good}---\r\nmetadata: {{uid: 5, name: b}}\n---\n{good}"),
            r#"document 2, line 4, column 17: metadata.uid: expected a string, found the number 5; write "5""#,
        ),
        (format!("{good}---\nkind: A\nmetadata: [\n---\nkind: A\nmetadata: {{name: z}}"), "document 2, line "),
        (format!("{good}---\nkind: A\nkind: B\n"), r#"document 2, line 5, column 1: duplicate key "kind"; remove one"#),
        (
            format!("{good}---\nkind: List\nitems:\n- {{metadata: {{name: c}}}}\n- metadata:\n    name: [d]\n"),
            "document 2, line 8, column 11: items[1]: metadata.name: expected a string, found a list",
        ),
    ];
    for (text, expected) in yaml {
        let Decoded { objects, unread } = decoded_as(Format::Yaml, &text, None);
        let reason = unread.map(|unread| unread.reason).unwrap_or_default();
        assert!(reason.starts_with(expected), "{text}\n{reason}\n{expected}");
        assert_eq!(keys(&objects)[0], "good", "{text}");
    }
    let json =
        "{\"metadata\":{\"name\":\"good\"}}\n{\"metadata\":{\"name\":\"b\",\n \"labels\":{\"on\":true}}}\n{\"kind\":";
    let Decoded { objects, unread } = decoded_as(Format::Json, json, None);
    let Unread { count, reason } = unread.unwrap();
    assert_eq!((keys(&objects), count), (vec!["good".to_owned()], Some(2)));
    let expected = "value 2, line 3, column 17: metadata.labels.on: expected a string, found the boolean true; write \"true\"; \
                    value 3, line 4, column ";
    assert!(reason.starts_with(expected), "{reason}");
    let list = r#"{"kind":"List","items":[{"metadata":{"name":"good"}},{"metadata":{"name":5}}]}"#;
    let error = decode_as(Format::Json, list, None).unwrap_err();
    assert_eq!(error, "line 1, column 74: items[1]: metadata.name: expected a string, found the number 5; write \"5\"");
    let many = "---\nmetadata: {uid: 5}\n".repeat(9);
    let Unread { count, reason } = decoded_as(Format::Yaml, &many, None).unread.unwrap();
    assert!(count == Some(9) && reason.ends_with("; and 6 more"), "{reason}");
}

/// The number of the objects that a text without its structure contains is unknown.
#[test]
fn what_cannot_be_read_may_be_several_objects_if_its_text_may_continue() {
    let is_one = |text: &str| decoded_as(Format::Json, text, None).unread.unwrap().count == Some(1);
    for text in [
        r#"{"metadata":{"name":"a" "uid":"u"},"spec":{"x":[{"y":{}}, {}]}}"#,
        r#"{"metadata":{"name":"a"}} {"metadata":{"name":"b",}}"#,
        r#"{"kind":"List","items":[{"metadata":{"name":"a"}},{"me"#,
    ] {
        assert!(is_one(text), "{text}");
    }
    for text in [
        r#"{"metadata":{"name":"a",}} {"metadata":{"name":"b"}}"#,
        "{\"metadata\":{\"name\":\"a\"}\n{\"metadata\":{\"name\":\"b\"}}",
        r#"{"kind":"List","items":[{"metadata":{"name":"a"}} {"metadata":{"name":"b"}}]}"#,
        r#"{"kind":"List","items":[{"metadata":{"name":"a",}},{"metadata":{"name":"b"}}]}"#,
    ] {
        assert!(!is_one(text), "{text}");
    }
    let latin1 = decode("a.yaml", Format::Yaml, b"a: \xe9\n---\nb: 1\n", None, &ResourceVersion::decimal(7));
    assert_eq!(latin1.unread.unwrap().count, None);
}

#[test]
fn an_object_without_a_name_after_a_fault_has_no_certain_key() {
    let text = "a: 1\n---\nmetadata: {uid: 5}\n---\nb: 1\n";
    let Decoded { objects, unread } = decoded_as(Format::Yaml, text, None);
    assert_eq!((keys(&objects), unread.unwrap().count), (vec!["dir/a.x".to_owned()], Some(2)));
}

#[test]
fn a_fault_of_another_kind_is_not_one_of_the_resource() {
    let text = "kind: Service\nmetadata: {name: s, labels: {a: 1}}\n---\nkind: Pod\nmetadata: {name: p}\n";
    assert_eq!(keys(&decode_as(Format::Yaml, text, Some("pod")).unwrap()), ["p"]);
    decode_as(Format::Yaml, text, Some("service")).unwrap_err();
    decode_as(Format::Yaml, text, None).unwrap_err();
}

/// As `kubectl apply` reads these: YAML that is called JSON, and JSON values in a YAML file.
#[test]
fn the_content_decides_where_the_name_is_wrong() {
    let yaml = "kind: ConfigMap\nmetadata: {name: a}\n";
    assert_eq!(keys(&decode_as(Format::Json, yaml, None).unwrap()), ["a"]);
    let json = "{\"metadata\":{\"name\":\"a\"}}\n{\"metadata\":{\"name\":\"b\"}}\n";
    assert_eq!(keys(&decode_as(Format::Yaml, json, None).unwrap()), ["a", "b"]);
    let comments = "{ // comment\n \"metadata\":{\"name\":\"a\"}}";
    decode_as(Format::Json, comments, None).unwrap_err();
}

#[test]
fn numbers_without_a_fraction_are_integers_and_empty_items_are_nothing() {
    let text =
        "a: [0008, 0010, 1.0, 1e3, -2.0, 1.5, -0.0, 1e300]\n---\n{}\n---\nkind: List\nitems: [null, {}, {b: 1}]\n";
    let objects = decode_as(Format::Yaml, text, None).unwrap();
    assert_eq!(bodies(&objects), [r#"{"a":[8,8,1,1000,-2,1.5,-0.0,1e+300]}"#, r#"{"b":1}"#]);
}

#[test]
fn yaml_documents_become_json_and_empty_ones_are_skipped() {
    let text = "\n---\n# nothing\n---\nmetadata: {name: x}\nmode: 0644\nbig: 9007199254740993\nlow: -9223372036854775808\n\
                top: 18446744073709551615\nyes: \"no\"\n---\n~\n---\n- 1\n...\n---\nb: 1\n";
    let objects = decode_as(Format::Yaml, text, None).unwrap();
    assert_eq!(keys(&objects), ["x", "dir/a.x", "dir/a.x#2"]);
    let first = r#"{"big":9007199254740993,"low":-9223372036854775808,"metadata":{"name":"x"},"mode":420,"top":18446744073709551615,"yes":"no"}"#;
    assert_eq!(bodies(&objects), [first, "[1]", r#"{"b":1}"#]);
    assert!(decode_as(Format::Yaml, "# only a comment\n", None).unwrap().is_empty());
}

#[test]
fn anchors_and_merge_keys_are_resolved() {
    let text = "base: &b {a: 1}\nuse: *b\nmerged:\n  <<: *b\n  c: 2\n";
    let objects = decode_as(Format::Yaml, text, None).unwrap();
    assert_eq!(bodies(&objects), [r#"{"base":{"a":1},"merged":{"a":1,"c":2},"use":{"a":1}}"#]);
}

#[test]
fn a_dump_of_a_whole_cluster_can_be_read() {
    let pod =
        |at: usize| format!("- {{kind: Pod, metadata: {{name: p{at}}}, spec: {{a: [1, 2, 3, 4, 5, 6, 7, 8]}}}}\n");
    let list = format!("apiVersion: v1\nkind: List\nitems:\n{}", (0..20_000).map(pod).collect::<Vec<_>>().concat());
    assert_eq!(decode_as(Format::Yaml, &list, None).unwrap().len(), 20_000);
    assert_eq!(decode_as(Format::Yaml, &"---\na: 1\n".repeat(5_000), None).unwrap().len(), 5_000);
}

#[test]
fn alias_bombs_are_rejected_in_one_line() {
    let bomb = (1..10).fold(String::from("a0: &a0 [x]\n"), |text, n| {
        format!("{text}a{n}: &a{n} [{}]\n", vec![format!("*a{}", n - 1); 10].join(","))
    });
    let deep = format!("a: {}{}", "[".repeat(100_000), "]".repeat(100_000));
    for text in [bomb, deep, "- ".repeat(100_000), "---\n- 1\n".repeat(MAX_DOCUMENTS + 1)] {
        let error = decode_as(Format::Yaml, &text, None).unwrap_err();
        assert!(!error.contains('\n') && error.len() < 400, "{error}");
    }
}

#[test]
fn deep_json_does_not_overflow_the_stack() {
    let text = format!(r#"{{"kind":"List","items":{}{}}}"#, "[".repeat(100_000), "]".repeat(100_000));
    let _either = decode_as(Format::Json, &text, None);
    let mut nested = r#"{"a":1}"#.to_owned();
    for _ in 0..10 {
        nested = format!(r#"{{"kind":"List","items":[{nested}]}}"#);
    }
    assert!(decode_as(Format::Json, &nested, None).unwrap_err().contains("nested too deeply (limit: 4)"));
}

#[test]
fn a_list_is_expanded_to_its_items() {
    let json = r#"{"apiVersion":"v1","kind":"List","items":[{"kind":"Pod","metadata":{"name":"a"}},
        {"kind":"List","items":[{"kind":"Pod","metadata":{"name": "b"}}]}]}"#;
    let yaml = "apiVersion: v1\nkind: List\nitems:\n- {kind: Pod, metadata: {name: a}}\n\
                - {kind: List, items: [{kind: Pod, metadata: {name: b}}]}\n";
    let objects = decode_as(Format::Json, json, None).unwrap();
    assert_eq!(keys(&objects), ["a", "b"]);
    assert_eq!(objects[1].body(), br#"{"kind":"Pod","metadata":{"name": "b"}}"#);
    assert_eq!(keys(&decode_as(Format::Yaml, yaml, None).unwrap()), ["a", "b"]);
    assert!(decode_as(Format::Json, r#"{"kind":"List","items":null}"#, None).unwrap().is_empty());
    assert!(decode_as(Format::Yaml, "kind: List\n", None).unwrap().is_empty());
}

#[test]
fn the_items_of_a_typed_list_have_its_type() {
    let json = r#"{"apiVersion":"v1","kind":"PodList","metadata":{"resourceVersion":"5"},
        "items":[{"metadata":{"name":"a"}}]}"#;
    let yaml = "apiVersion: v1\nkind: PodList\nitems: [{metadata: {name: a}}]";
    for (format, text) in [(Format::Json, json), (Format::Yaml, yaml)] {
        let objects = decode_as(format, text, Some("pod")).unwrap();
        assert_eq!((objects[0].kind(), objects[0].api_version()), ("Pod", "v1"));
        assert_eq!(bodies(&objects), [r#"{"metadata":{"name":"a"}}"#]);
    }
    let own = r#"{"kind":"AllowList","metadata":{"name":"mine"},"items":[1,2]}"#;
    assert_eq!(keys(&decode_as(Format::Json, own, None).unwrap()), ["mine"]);
}

#[test]
fn only_objects_of_the_configured_kind_are_decoded() {
    let text = "kind: Pod\nmetadata: {name: a}\n---\nkind: Service\nmetadata: {name: b}\n---\nx: 1\n";
    assert_eq!(keys(&decode_as(Format::Yaml, text, Some("pOD")).unwrap()), ["a"]);
    assert!(decode_as(Format::Yaml, text, Some("Secret")).unwrap().is_empty());
}

#[test]
fn a_list_may_be_larger_than_an_object() {
    let item = format!(r#"{{"metadata":{{"name":"NAME"}},"x":"{}"}}"#, "x".repeat(MAX_OBJECT_BYTES / 2));
    let items = ["a", "b", "c"].map(|name| item.replace("NAME", name)).join(",");
    let list = format!(r#"{{"kind":"List","items":[{items}]}}"#);
    assert_eq!(keys(&decode_as(Format::Json, &list, None).unwrap()), ["a", "b", "c"]);
    assert_eq!(keys(&decode_as(Format::Yaml, &list, None).unwrap()), ["a", "b", "c"]);
    let single = format!(r#"{{"x":"{}"}}"#, "x".repeat(MAX_OBJECT_BYTES));
    assert!(decode_as(Format::Json, &single, None).unwrap_err().contains("object too large: "));
}

#[test]
fn the_file_extension_determines_the_format() {
    for (name, format) in [
        ("a.json", Some(Format::Json)),
        ("a.b.yaml", Some(Format::Yaml)),
        ("a.yml", Some(Format::Yaml)),
        ("a.yaml~", None),
        ("a", None),
        (".yaml", None),
        ("a.JSON", None),
    ] {
        assert_eq!(Format::of(name), format, "{name}");
    }
}
