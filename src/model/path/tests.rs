//! Paths: their spelling, and the values that they lead to.

use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::Value;

use super::*;

fn path(text: &str) -> Path {
    text.parse().unwrap()
}

/// Renders the error of a text that is not a path.
fn error(text: &str) -> String {
    Path::parse(text).unwrap_err().to_string()
}

fn values(text: &str, json: &str) -> Vec<String> {
    path(text).values(json.as_bytes())
}

const POD: &str = r#"{"metadata":{"name":"web-1","labels":{"app.kubernetes.io/name":"web","tier":"front"}},
    "spec":{"nodeName":"node-a","hostNetwork":false,"priority":9007199254740993,"ratio":1.50,"none":null,
    "containers":[{"image":"nginx","ports":[80,443]},{"image":"side\u0063ar","ports":[]},
    {"ports":[9090,[1],{"a":1}]}]}}"#;

#[test]
fn every_spelling_of_a_path_has_one_canonical_text() {
    for (text, canonical) in [
        (".spec.nodeName", ".spec.nodeName"),
        ("spec.nodeName", ".spec.nodeName"),
        ("{.spec.nodeName}", ".spec.nodeName"),
        ("{spec['nodeName']}", ".spec.nodeName"),
        (".metadata.labels['app.kubernetes.io/name']", ".metadata.labels['app.kubernetes.io/name']"),
        (".metadata.labels[\"app.kubernetes.io/name\"]", ".metadata.labels['app.kubernetes.io/name']"),
        (".spec.containers[*].image", ".spec.containers[*].image"),
        (".spec.containers[007]", ".spec.containers[7]"),
        (".spec.containers[].image", ".spec.containers[*].image"),
        ("[*]", "[*]"),
        ("['']", "['']"),
        (r#"["it's \"so\""]"#, r#"['it\'s "so"']"#),
        (r"['back\\slash']", r"['back\\slash']"),
        ("0.$ref", ".0.$ref"),
        ("함.수", ".함.수"),
    ] {
        let parsed = path(text);
        assert_eq!(parsed.as_str(), canonical, "{text}");
        assert_eq!(parsed, path(canonical), "{text}");
    }
}

#[test]
fn an_error_points_at_the_character() {
    let key = "expected a key (of letters, digits and -_/:@$; any other is written ['key'])";
    let bracket = "expected '*', an index or a quoted key";
    let more = "expected '.', '[' or the end of the path";
    for (text, message) in [
        ("", format!("character 1: {key}: \"»\"")),
        (".", format!("character 2: {key}: \".»\"")),
        ("{}", format!("character 2: {key}: \"{{»}}\"")),
        (".spec..name", format!("character 7: {key}: \".spec.».name\"")),
        (".spec.", format!("character 7: {key}: \".spec.»\"")),
        (".['a']", format!("character 2: {key}: \".»['a']\"")),
        (".spec.*", format!("character 7: {key}: \".spec.»*\"")),
        (".é[", format!("character 4: {bracket}: \".é[»\"")),
        (".a[-1]", format!("character 4: {bracket}: \".a[»-1]\"")),
        (".a[b]", format!("character 4: {bracket}: \".a[»b]\"")),
        (".a[1", "character 5: expected ']': \".a[1»\"".into()),
        (".a[*", "character 5: expected ']': \".a[*»\"".into()),
        (".a['b]", "character 7: expected the closing ': \".a['b]»\"".into()),
        (r".a['b\n']", r#"character 7: expected '\' or a quote after '\': ".a['b\»n']""#.into()),
        (r".a['b\", r#"character 7: expected '\' or a quote after '\': ".a['b\»""#.into()),
        (".a[99999999999999999999]", "character 4: the index is too large: \".a[»99999999999999999999\"".into()),
        (".a b", format!("character 3: {more}: \".a» b\"")),
        (r".app\.io", format!("character 5: {more}: \".app»\\.io\"")),
        (".a}", format!("character 3: {more}: \".a»}}\"")),
        ("{.a", "character 4: expected '.', '[' or '}': \"{.a»\"".into()),
    ] {
        assert_eq!(error(text), message, "{text}");
    }
}

#[test]
fn paths_are_bounded() {
    assert_eq!(path(&".a".repeat(MAX_STEPS)).steps.len(), MAX_STEPS);
    assert_eq!(Path::parse(&".a".repeat(MAX_STEPS + 1)).unwrap_err().position(), 2 * MAX_STEPS + 1);
    assert_eq!(path(&format!(".{}", "a".repeat(MAX_BYTES - 1))).as_str().len(), MAX_BYTES);
    assert_eq!(Path::parse(&format!(".{}", "a".repeat(MAX_BYTES))).unwrap_err().position(), MAX_BYTES + 1);
    // Within a character of two bytes: the error is before it.
    assert_eq!(Path::parse(&format!("a{}", "é".repeat(MAX_BYTES))).unwrap_err().position(), MAX_BYTES / 2 + 1);
    // The canonical text counts too, so that it is itself a path.
    assert!(error(&format!("[\"{}\"]", "'".repeat(MAX_BYTES - 4))).contains(": path too long (limit: 1024 bytes): "));
}

#[test]
fn scalars_are_found_and_numbers_stay_exact() {
    for (text, expected) in [
        (".metadata.name", Some("web-1")),
        (".metadata.labels['app.kubernetes.io/name']", Some("web")),
        (".spec.nodeName", Some("node-a")),
        (".spec.hostNetwork", Some("false")),
        (".spec.priority", Some("9007199254740993")),
        (".spec.ratio", Some("1.50")),
        (".spec.containers[1].image", Some("sidecar")),
        (".spec.containers[0].ports[1]", Some("443")),
        (".spec.none", None),
        (".spec.missing", None),
        (".spec.nodeName.deeper", None),
        (".spec.none.deeper", None),
        (".spec.priority[0]", None),
        (".spec", None),
        (".spec.containers", None),
        (".spec.containers[0].ports", None),
        (".spec.containers[7].image", None),
        (".spec.containers.image", None),
        (".spec[0]", None),
        (".spec.containers[*].image", None),
    ] {
        assert_eq!(path(text).scalar(POD.as_bytes()).as_deref(), expected, "{text}");
    }
}

#[test]
fn an_array_gives_one_value_per_scalar() {
    assert_eq!(values(".spec.containers[*].image", POD), ["nginx", "sidecar"]);
    assert_eq!(values(".spec.containers[*].ports", POD), ["80", "443", "9090"]);
    assert_eq!(values(".spec.containers[*].ports[*]", POD), ["80", "443", "9090", "1"]);
    assert_eq!(values(".spec.containers[0].ports", POD), ["80", "443"]);
    assert_eq!(values(".spec.containers[*].ports[0]", POD), ["80", "9090"]);
    assert_eq!(values(".spec.nodeName", POD), ["node-a"]);
    assert_eq!(values("a", r#"{"a":[true,null,"x",1e3,-0,[2],{"b":3},""]}"#), ["true", "x", "1e3", "-0", ""]);
    assert_eq!(values("[*].n", r#" [ {"n" : 1 } , 5, "n", [], {"m":2}, { "n": [ 3 ] } ] "#), ["1", "3"]);
}

#[test]
fn the_wildcard_is_for_arrays_and_not_for_maps() {
    assert_eq!(values(".a[*]", r#"{"a":{"b":1,"c":2}}"#), [""; 0]);
    assert_eq!(values(".a[0]", r#"{"a":{"0":1}}"#), [""; 0]);
    assert_eq!(values(".a.0", r#"{"a":{"0":1}}"#), ["1"]);
}

#[test]
fn the_last_value_of_a_repeated_key_counts() {
    assert_eq!(values(".a", r#"{"a":1,"b":0,"a":2}"#), ["2"]);
    assert_eq!(values(".a.b", r#"{"a":{"b":1},"a":{"c":2}}"#), [""; 0]);
    assert_eq!(values("[*].a", r#"[{"a":1},{"a":2,"a":[3,4]}]"#), ["1", "3", "4"]);
    assert_eq!(path(".a").scalar(br#"{"a":1,"a":null}"#), None);
}

#[test]
fn a_key_is_compared_after_its_escapes() {
    assert_eq!(values(".name", r#"{"n\u0061me":"x"}"#), ["x"]);
    assert_eq!(values(r#"['"']"#, r#"{"\"":"x"}"#), ["x"]);
}

#[test]
fn text_that_is_not_json_has_no_values() {
    for json in ["", "{", r#"{"a":1"#, r#"{"a":1}}"#, r#"{"a":1} x"#, r#"{"a":1,"b":01}"#, r#"{"a":"x}"#, "nul", "\0"] {
        assert_eq!(values(".a", json), [""; 0], "{json:?}");
        assert_eq!(path(".a").scalar(json.as_bytes()), None, "{json:?}");
    }
    assert_eq!(path(".a").values(b"{\"a\":\"\xff\"}"), [""; 0]);
    assert_eq!(values(".a[*]", r#"{"a":["\ud800","x"]}"#), ["x"], "half a surrogate pair is no text");
}

#[test]
fn what_is_skipped_has_to_be_json_and_need_not_be_unicode() {
    for (json, expected) in [
        (r#"{"b":1e999,"a":"x"}"#, Some("x")),
        (r#"{"b":"\ud800","\ud800":1,"a":"x"}"#, Some("x")),
        (r#"{"b":"\x","a":"x"}"#, None),
        (r#"{"b":[1,],"a":"x"}"#, None),
        (r#"{"b":{"c":-},"a":"x"}"#, None),
    ] {
        assert_eq!(path(".a").scalar(json.as_bytes()).as_deref(), expected, "{json}");
        assert_eq!(path(".b.c").scalar(json.as_bytes()), None, "{json}");
    }
}

#[test]
fn deep_nesting_does_not_overflow_the_stack() {
    let deep = format!("{}{}", "[".repeat(200_000), "]".repeat(200_000));
    assert_eq!(values(".a", &format!(r#"{{"deep":{deep},"a":1}}"#)), ["1"]);
    assert_eq!(values(".a", &format!(r#"{{"a":{deep}}}"#)), [""; 0]);
    assert_eq!(values(&"[*]".repeat(MAX_STEPS), &deep), [""; 0]);
    assert_eq!(values(".a", &"[".repeat(200_000)), [""; 0]);
}

/// Finds the values of a path in a tree, which the module itself does not build.
fn naive(steps: &[Step], json: &Value, spread: bool, found: &mut Vec<String>) {
    let (rest, inner): (_, Vec<_>) = match (steps, json) {
        ([Step::Key(key), rest @ ..], Value::Object(map)) => (rest, map.get(&**key).into_iter().collect()),
        ([Step::Index(index), rest @ ..], Value::Array(array)) => (rest, array.get(*index).into_iter().collect()),
        ([Step::Every, rest @ ..], Value::Array(array)) => (rest, array.iter().collect()),
        ([], Value::Array(array)) if spread => {
            return array.iter().for_each(|value| naive(&[], value, false, found));
        }
        ([], Value::String(text)) => return found.push(text.clone()),
        ([], Value::Number(_) | Value::Bool(_)) => return found.push(json.to_string()),
        _ => return,
    };
    for value in inner {
        naive(rest, value, spread, found);
    }
}

fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,3}".prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 32, 4, |inner| {
        prop_oneof![
            vec(inner.clone(), 0..4).prop_map(Value::from),
            vec(("[ab']", inner), 0..3).prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

fn any_steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => "[ab']".prop_map(|key| Step::Key(key.into())),
        1 => (0..3_usize).prop_map(Step::Index),
        2 => Just(Step::Every),
    ];
    vec(step, 1..5)
}

proptest! {
    #![proptest_config(crate::property_config())]

    #[test]
    fn parsing_never_panics(text in ".{0,40}|[{}.a0*'\"\\\\\\[\\]é]{0,20}") {
        if let Ok(path) = Path::parse(&text) {
            prop_assert_eq!(Path::parse(path.as_str()), Ok(path));
        }
    }

    #[test]
    fn any_keys_survive_their_canonical_text(keys in vec(".{0,8}", 1..5)) {
        let steps: Vec<_> = keys.into_iter().map(|key| Step::Key(key.into())).collect();
        prop_assert_eq!(&*path(&canonical(&steps)).steps, steps);
    }

    #[test]
    fn the_walk_agrees_with_the_tree(steps in any_steps(), json in any_json()) {
        let path = path(&canonical(&steps));
        let mut expected = Vec::new();
        naive(&steps, &json, true, &mut expected);
        prop_assert_eq!(path.values(json.to_string().as_bytes()), expected);

        let mut expected = Vec::new();
        naive(&steps, &json, false, &mut expected);
        let expected = if steps.contains(&Step::Every) { None } else { expected.pop() };
        prop_assert_eq!(path.scalar(json.to_string().as_bytes()).map(Cow::into_owned), expected);
    }

    /// One pass for several paths, also for one path twice and for one that leads on from another.
    #[test]
    fn the_values_of_several_paths_are_those_of_each(paths in vec(any_steps(), 0..6), json in any_json()) {
        let paths: Vec<Path> = paths.iter().map(|steps| path(&canonical(steps))).collect();
        let json = json.to_string();
        let together: Vec<Vec<String>> = Path::values_of_json(&paths, json.as_bytes())
            .into_iter()
            .map(|values| values.into_iter().map(Cow::into_owned).collect())
            .collect();
        prop_assert_eq!(together, paths.iter().map(|path| path.values(json.as_bytes())).collect::<Vec<_>>());
    }

    /// Repeated keys, escapes, and text that is not JSON.
    #[test]
    fn the_walk_agrees_with_the_tree_about_any_text(
        steps in any_steps(),
        parts in vec(select(vec![
            "{", "}", "[", "]", ",", ":", "\"a\":", "\"b\":", "\"\\u0061\":", "\"'\":", "\"x\"", "\"\\n\"", "0", "-1", "true", "null", "01", " ",
        ]), 0..16),
    ) {
        let json = format!("{{\"a\":{}}}", parts.concat());
        let mut expected = Vec::new();
        if let Ok(tree) = serde_json::from_str(&json) {
            naive(&steps, &tree, true, &mut expected);
        }
        prop_assert_eq!(path(&canonical(&steps)).values(json.as_bytes()), expected, "{}", json);
    }

    #[test]
    fn evaluation_never_panics(json in vec(any::<u8>(), 0..64), text in "[{}\\[\\],:\"a0 \\\\]{0,40}") {
        for path in [path(".a"), path(".a[*]"), path("[0].a"), path("[*][*]")] {
            path.values(&json);
            path.values(text.as_bytes());
        }
    }
}
