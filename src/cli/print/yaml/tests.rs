use proptest::{collection::vec, prelude::*};
use serde_json::{Value, json};

use super::*;

fn yaml(json: &str) -> String {
    let mut out = String::new();
    write(&Document::parse(json.as_bytes()).unwrap(), 0, &mut out);
    out
}

fn read(yaml: &str) -> Value {
    serde_saphyr::from_str(yaml).unwrap_or_else(|error| panic!("{error}\n{yaml}"))
}

#[test]
fn yaml_has_the_layout_of_kubectl() {
    let json = r#"{"apiVersion":"v1","metadata":{"labels":{},"name":"web"},"spec":{"containers":[{"image":"a/b:1.2",
        "args":["-v","--x=1",[1,[2]],[]]},{}],"empty":[]},"x":[[{"a":1,"b":{"c":2}}]]}"#;
    let expected = "\
apiVersion: v1
metadata:
  labels: {}
  name: web
spec:
  containers:
  - image: a/b:1.2
    args:
    - -v
    - \"--x=1\"
    - - 1
      - - 2
    - []
  - {}
  empty: []
x:
- - a: 1
    b:
      c: 2
";
    assert_eq!(yaml(json), expected);
    assert_eq!(read(expected), serde_json::from_str::<Value>(json).unwrap());
    assert_eq!((yaml("1"), yaml("{}"), yaml("[]")), ("1\n".to_owned(), "{}\n".to_owned(), "[]\n".to_owned()));
}

#[test]
fn numbers_keep_every_digit_and_strings_stay_strings() {
    let json = r#"{"n":9007199254740993,"f":1.10,"big":123456789012345678901234567890,"s":"010","y":"yes"}"#;
    let expected =
        "\"n\": 9007199254740993\nf: 1.10\nbig: 123456789012345678901234567890\ns: \"010\"\n\"y\": \"yes\"\n";
    assert_eq!(yaml(json), expected);
    for quoted in [
        "",
        "010",
        "0x1F",
        "0o7",
        "1e3",
        "1_000",
        "1.5",
        ".5",
        "-.5",
        "+1",
        "1:30",
        "190:20:30",
        "2025-11-21",
        "2025-11-21T10:00:00Z",
        "yes",
        "No",
        "ON",
        "true",
        "NULL",
        "~",
        "null",
        ".inf",
        "-.INF",
        ".NaN",
        "y",
        "=",
        "<<",
        "---",
        "...",
        "- a",
        "a: b",
        "a #b",
        " a",
        "a ",
        "a:",
        "#a",
        "*a",
        "&a",
        "!a",
        "%a",
        "@a",
        "`a",
        "'a",
        "\"a",
        "[a",
        "{a",
        "?",
        "|",
        ">",
        "a\tb",
        "a\u{85}b",
        "a\u{a0}b",
        "\u{feff}a",
    ] {
        let text = yaml(&Value::from(quoted).to_string());
        assert!(text.starts_with('"'), "{quoted:?}: {text}");
        assert_eq!(read(&text), quoted);
    }
    for plain in ["10.32.0.44", "a", "v1.2.3", "2f72463c-1663", "/etc", "10.0.0.0/8", "é", "a:b", "a#b", "100m", "1Gi"]
    {
        assert_eq!(yaml(&Value::from(plain).to_string()), format!("{plain}\n"));
        assert_eq!(read(&yaml(&Value::from(plain).to_string())), plain);
    }
}

#[test]
fn texts_of_several_lines_are_block_literals() {
    let json = json!({"a": {"f": "x: 1\n  - y\n"}, "b": ["l1\nl2", "keep\n\n", " lead\nx", "tab\n\tx\n"]}).to_string();
    let expected = "\
a:
  f: |
    x: 1
      - y
b:
- |-
  l1
  l2
- |+
  keep

- \" lead\\nx\"
- |
  tab
  \tx
";
    assert_eq!(yaml(&json), expected);
    assert_eq!(read(expected), serde_json::from_str::<Value>(&json).unwrap());
}

#[test]
fn strings_cannot_control_the_terminal() {
    let text = yaml(&json!({"a": "\u{1b}[31m\u{9b}\u{202e}", "b\u{7}": "x\n\u{1b}]0;"}).to_string());
    assert_eq!(text, "a: \"\\u001b[31m\\u009b\\u202e\"\n\"b\\u0007\": \"x\\n\\u001b]0;\"\n");
}

#[test]
fn long_keys_and_deep_nesting_can_be_read() {
    let json = format!(r#"{{"{}":[1,{{"a":2}}],"x":{{"{}":{{"b":"c"}}}}}}"#, "k".repeat(1100), "é".repeat(600));
    assert_eq!(read(&yaml(&json)), serde_json::from_str::<Value>(&json).unwrap());
    let depth = 50;
    let json = format!("{}\"yes\"{}", "{\"a\":[".repeat(depth / 2), "]}".repeat(depth / 2));
    assert_eq!(read(&yaml(&json)), serde_json::from_str::<Value>(&json).unwrap());
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(yaml(&deep).len() < 400_000);
}

fn any_json() -> impl Strategy<Value = Value> {
    let text = prop_oneof![".{0,12}", "[-+.0-9eE_:xob]{0,8}", "[ a#:\n\t'\"|>-]{0,8}", "(?s).{0,8}"];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        text.prop_map(Value::from)
    ];
    leaf.prop_recursive(5, 40, 5, |inner| {
        let key = prop_oneof!["[a-z]{1,4}", "(?s).{0,5}", "[-0-9.:#? ]{0,4}"];
        let map = vec((key, inner.clone()), 0..5).prop_map(|entries| Value::Object(entries.into_iter().collect()));
        prop_oneof![vec(inner, 0..5).prop_map(Value::Array), map]
    })
}

proptest! {
    #![proptest_config(crate::property_config())]

    #[test]
    fn written_yaml_is_read_back_unchanged(value in any_json()) {
        let text = yaml(&value.to_string());
        prop_assert_eq!(read(&text), value, "{}", text);
    }
}
