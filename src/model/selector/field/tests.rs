//! Field selectors: upstream's tables, bounds, and a naive model.

use bytes::Bytes;
use proptest::{collection::vec, prelude::*, sample::select};
use serde_json::{Map, Value};

use super::*;
use crate::model::{ObjectKey, ObjectParts, ResourceVersion, selector::MAX_BYTES, work};

fn selector(text: &str) -> FieldSelector {
    FieldSelector::parse(text).unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

fn object(json: &str) -> Object {
    Object::from_json(Bytes::copy_from_slice(json.as_bytes()), "file", ResourceVersion::decimal(1)).unwrap()
}

/// apimachinery `TestSelectorParse`: a parsed selector prints as it was written.
#[test]
fn a_selector_prints_as_it_was_written() {
    for text in
        ["x=a,y=b,z=c", "", "x!=a,y=b", r"x=a||y\=b", r"x=a\=\=b", "함=수", "x= a ", "metadata.name=web-1", "a['b.c']="]
    {
        assert_eq!(selector(text).to_string(), text);
    }
    for text in
        ["x=a||y=b", "x==a==b", "x=a,b", "x in (a)", "x in (a,b,c)", "x", "=a", " x=a", "x =a", "x!a", "x=a=", "x===a"]
    {
        assert!(FieldSelector::parse(text).is_err(), "{text:?}");
    }
}

/// apimachinery `TestSplitTerms` and `TestSplitTerm`, in our normal form.
#[test]
fn terms_end_at_commas_that_are_not_escaped() {
    for (text, normal) in [
        ("a=avalue", "a=avalue"),
        ("a=avalue,b=bvalue", "a=avalue,b=bvalue"),
        ("c!=cvalue,a=avalue,b==bvalue", "a=avalue,b=bvalue,c!=cvalue"),
        ("a=a,", "a=a"),
        (",,a=a", "a=a"),
        (",", ""),
        (r"k=\,,k2=v2", r"k=\,,k2=v2"),
        (r"k=\\,k2=v2", r"k=\\,k2=v2"),
        (r"k=\\\,,k2=v2", r"k=\\\,,k2=v2"),
        ("목=록,함=수", "목=록,함=수"),
        ("['a,b=c']=d", "['a,b=c']=d"),
    ] {
        assert_eq!(selector(text).to_string(), normal, "{text:?}");
    }
}

/// apimachinery `TestEscapeValue`.
#[test]
fn values_are_escaped_and_unescaped() {
    for (value, escaped) in [("", ""), ("a", "a"), ("=", r"\="), (",", r"\,"), (r"\", r"\\"), (r"\=\,\", r"\\\=\\\,\\")]
    {
        let parsed = selector(&format!("k={escaped}"));
        assert_eq!(*parsed.requirements[0].value, *value);
        assert_eq!(parsed.to_string(), format!("k={escaped}"));
    }
    for (invalid, position) in [(r"\", 4), (r"\\\", 6), (r"\a", 4), (r"\é", 4)] {
        let error = FieldSelector::parse(&format!("k={invalid}")).unwrap_err();
        assert!(error.to_string().contains(r": expected '\', ',' or '=' after '\': "), "{error}");
        assert_eq!(error.position(), position);
    }
}

/// apimachinery `TestDeterministicParse`, and every spelling of a path and of an operator.
#[test]
fn two_spellings_of_a_selector_are_equal() {
    for (one, other) in [
        ("x=a,a=x", "a=x,x=a"),
        ("x==a", "x=a"),
        (".x=a", "x=a"),
        ("{.x}=a", "x=a"),
        ("['x']=a", "x=a"),
        ("x=a,,x=a,", "x=a"),
    ] {
        assert_eq!(selector(one), selector(other), "{one:?} {other:?}");
    }
    assert_ne!(selector("x=a,x!=b"), selector("x=a"));
}

/// apimachinery `TestSelectorMatches`, `TestSetMatches`, `TestOneTermEqualSelector` and `TestEverything`.
#[test]
fn a_selector_matches_as_in_apimachinery() {
    let foo = r#"{"foo":"bar","baz":"blah","complex":"=value\\,\\"}"#;
    for (text, json, expected) in [
        ("", r#"{"x":"y"}"#, true),
        ("x=y", r#"{"x":"y"}"#, true),
        ("x=y,z=w", r#"{"x":"y","z":"w"}"#, true),
        ("x!=y,z!=w", r#"{"x":"z","z":"a"}"#, true),
        ("notin=in", r#"{"notin":"in"}"#, true),
        ("x=y", r#"{"x":"z"}"#, false),
        ("x=y,z=w", r#"{"x":"w","z":"w"}"#, false),
        ("x!=y,z!=w", r#"{"x":"z","z":"w"}"#, false),
        ("foo=bar", foo, true),
        ("baz=blah", foo, true),
        ("foo=bar,baz=blah", foo, true),
        (r"foo=bar,baz=blah,complex=\=value\\\,\\", foo, true),
        ("foo=blah", foo, false),
        ("baz=bar", foo, false),
        ("foo=bar,foobar=bar,baz=blah", foo, false),
        (r"foo=\=blah", foo, false),
    ] {
        assert_eq!(selector(text).matches(&object(json)), expected, "{text:?} {json}");
    }
    assert!(FieldSelector::default().is_empty() && selector(",").is_empty() && !selector("x=").is_empty());
}

/// A missing field is the empty string in selectors, as in kubectl.
#[test]
fn values_that_are_no_scalars_are_the_empty_text() {
    let json = r#"{"null":null,"map":{"a":1},"array":["a"],"empty":"","n":9007199254740993,"b":true,"f":1.50}"#;
    for path in ["null", "map", "array", "empty", "missing", "map.b", "n.deeper", "array[1]", "map[0]"] {
        assert!(selector(&format!("{path}=")).matches(&object(json)), "{path}");
        assert!(selector(&format!("{path}!=a")).matches(&object(json)), "{path}");
        assert!(!selector(&format!("{path}!=")).matches(&object(json)), "{path}");
    }
    assert!(selector("n=9007199254740993,b=true,f=1.50,map.a=1,array[0]=a").matches(&object(json)));
    assert!(selector("f!=1.5").matches(&object(json)), "numbers compare as they are written");
}

#[test]
fn name_and_namespace_are_those_of_the_key() {
    let named = object(r#"{"metadata":{"namespace":"shop","name":"web","uid":"u1"}}"#);
    assert!(selector("metadata.name=web,{.metadata['namespace']}=shop,metadata.uid=u1").matches(&named));
    assert!(!selector("metadata.name!=web").matches(&named));
    let file = object(r#"{"metadata":{"namespace":"shop"}}"#);
    assert!(
        selector("metadata.name=file,metadata.namespace=").matches(&file),
        "an object of a file, keyed by its path"
    );
}

#[test]
fn a_body_that_is_not_json_has_no_fields() {
    let raw = Object::new(ObjectParts {
        key: ObjectKey::new("shop", "web").unwrap(),
        uid: String::new(),
        version: ResourceVersion::decimal(1),
        labels: [("a".to_owned(), "b".to_owned())].into(),
        api_version: String::new(),
        kind: String::new(),
        media_type: "application/octet-stream",
        body: Bytes::from_static(br#"{"a":"b"}"#),
    });
    assert!(selector("a=,metadata.name=web,metadata.namespace=shop,metadata.labels.a=").matches(&raw));
    assert!(!selector("a=b").matches(&raw));
}

#[test]
fn an_error_points_at_the_character() {
    for (text, message) in [
        ("x", "character 2: expected '=', '==' or '!=': \"x»\""),
        ("a=b,x in (a)", "character 6: expected '=', '==' or '!=': \"a=b,x» in (a)\""),
        ("x!a", "character 2: expected '=', '==' or '!=': \"x»!a\""),
        ("x=a=b", "character 4: expected a value, in which '=' is written '\\=': \"x=a»=b\""),
        ("a=b,c[x]=d", "character 7: expected '*', an index or a quoted key: \"a=b,c[»x]=d\""),
        (
            "s['[*]'].list[*]=a",
            "character 14: [*] is not allowed in a field selector, which compares one value: \"s['[*]'].list»[*]=a\"",
        ),
    ] {
        assert_eq!(FieldSelector::parse(text).unwrap_err().to_string(), message, "{text}");
    }
}

#[test]
fn selectors_are_bounded() {
    let position = |text: &str| FieldSelector::parse(text).unwrap_err().position();
    let requirements = vec!["a=b"; MAX_REQUIREMENTS].join(",");
    selector(&format!("{requirements},"));
    assert_eq!(position(&format!("{requirements},a=b")), 4 * MAX_REQUIREMENTS + 1);

    let longest = format!("a={}", "b".repeat(MAX_BYTES - 2));
    assert_eq!(selector(&longest).to_string(), longest);
    assert_eq!(position(&format!("{longest}b")), MAX_BYTES + 1);
    // The escapes of the normal form make it longer than the bound.
    let quotes = format!("[\"{}\"]={}", "'".repeat(100), "b".repeat(MAX_BYTES - 105));
    assert_eq!(position(&quotes), MAX_BYTES + 1);
}

proptest! {
    #![proptest_config(crate::property_config())]

    #[test]
    fn parsing_never_panics(text in ".{0,40}|[ab.é,=!\\\\\\['\\]]{0,24}") {
        if let Ok(selector) = FieldSelector::parse(&text) {
            prop_assert_eq!(FieldSelector::parse(&selector.to_string()), Ok(selector));
        }
    }

    #[test]
    fn matching_agrees_with_the_model(
        terms in vec((select(vec!["a", "b", "c,=.d", "metadata.name"]), any::<bool>(), "[ab,=\\\\]{0,2}"), 0..4),
        fields in vec((select(vec!["a", "b", "c,=.d"]), "[ab,=\\\\]{0,2}"), 0..4),
    ) {
        let fields: Map<_, _> = fields.into_iter().map(|(key, value)| (key.to_owned(), value.into())).collect();
        let expected = terms.iter().all(|(key, equal, value)| {
            let field = fields.get(*key).and_then(Value::as_str).unwrap_or_default();
            let found = if *key == "metadata.name" { "file" } else { field };
            (found == value) == *equal
        });
        let write = |(key, equal, value): &(&str, bool, String)| {
            let path = if *key == "metadata.name" { (*key).to_owned() } else { format!("['{key}']") };
            let value = value.replace('\\', r"\\").replace(',', r"\,").replace('=', r"\=");
            format!("{path}{}{value}", if *equal { "=" } else { "!=" })
        };
        let text = terms.iter().map(write).collect::<Vec<_>>().join(",");
        let object = object(&Value::from(fields).to_string());
        prop_assert_eq!(selector(&text).matches(&object), expected, "{}", text);

        let reversed = terms.iter().rev().chain(&terms).map(write).collect::<Vec<_>>().join(",");
        prop_assert_eq!(selector(&reversed), selector(&text), "order and repetition do not matter");
        prop_assert_eq!(selector(&selector(&text).to_string()), selector(&text));
    }
}

#[test]
fn many_requirements_read_the_body_as_often_as_one() {
    let fields: Vec<String> = (0..64).map(|n| format!(r#""f{n}":{{"value":"{n}"}}"#)).collect();
    let object = object(&format!(r#"{{"metadata":{{"name":"a"}},"spec":{{{}}}}}"#, fields.join(",")));
    let work = |selector: &FieldSelector| {
        let before = work::done();
        assert!(selector.matches(&object));
        work::done() - before
    };
    let terms: Vec<String> = (0..64).map(|n| format!("spec.f{n}.value={n}")).collect();
    let one = work(&selector(&terms[63]));
    let all = work(&selector(&terms.join(",")));
    assert!(one > 0 && all <= one + one / 2, "{all} for all, {one} for one");
    // What the key decides reads no body.
    let other = selector(&format!("metadata.name!=a,{}", terms[0]));
    let before = work::done();
    assert!(!other.matches(&object));
    assert_eq!(work::done(), before);
}
