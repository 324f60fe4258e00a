//! An object is the same however it was made.

use proptest::{collection::btree_map, prelude::*};

use super::{size::REST_BYTES, *};
use crate::model::{IndexFunc, Path};

fn parse(json: &str) -> Result<Object, ObjectError> {
    Object::from_json(Bytes::copy_from_slice(json.as_bytes()), "dir/file.json", ResourceVersion::decimal(7))
}

#[test]
fn the_envelope_is_parsed_and_the_bytes_are_kept() {
    let text = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"w\u0065b","namespace":"shop","uid":"u1",
        "labels":{"tier":"front","app":"web"}},"spec":{"n":9007199254740993}}"#;
    let object = parse(text).unwrap();
    assert_eq!(object.key().to_string(), "shop/web");
    assert_eq!((object.kind(), object.api_version(), object.uid()), ("Pod", "v1", "u1"));
    assert_eq!(object.labels().iter().collect::<Vec<_>>(), [("app", "web"), ("tier", "front")]);
    assert_eq!(object.labels().get("tier"), Some("front"));
    assert_eq!(object.labels().get("none"), None);
    assert_eq!(object.body(), text.as_bytes());
    assert_eq!(&object.text[object.body().len()..], b"", "the rest stands in the body");
    assert_eq!(object.shared_body(), text);
    assert_eq!(object.shared_body().as_ptr(), object.body().as_ptr(), "not copied");
}

#[test]
fn an_object_without_a_name_is_keyed_by_its_default() {
    for json in [r#"{"a":1}"#, "[1,2]", "3", r#"{"metadata":{"namespace":"x"}}"#, r#"{"metadata":null}"#] {
        let object = parse(json).unwrap();
        assert_eq!((object.key().namespace(), object.key().name()), ("", "dir/file.json"), "{json}");
    }
}

#[test]
fn an_object_may_contain_its_own_version() {
    let read = |json: &str| Object::from_json_versioned(json, str::parse);
    let object = read(r#"{"metadata":{"name":"a","namespace":"n","resourceVersion":"12"}}"#).unwrap();
    assert_eq!((object.key().to_string().as_str(), object.version().number()), ("n/a", 12));
    for json in [r#"{"metadata":{"name":"a","resourceVersion":"x"}}"#, r#"{"metadata":{"name":"a"}}"#] {
        assert!(matches!(read(json), Err(ObjectError::Version(_))), "{json}");
    }
    assert!(matches!(read(r#"{"metadata":{"resourceVersion":"1"}}"#), Err(ObjectError::Key(_))), "no default name");
}

#[test]
fn bytes_that_are_no_object_are_rejected_with_the_field_or_the_position() {
    let error = parse(r#"{"metadata":{"name":5}}"#).unwrap_err().to_string();
    assert_eq!(error, r#"metadata.name: expected a string, found the number 5; write "5""#);
    let error = parse(r#"{"metadata":{"name":"a",}}"#).unwrap_err().to_string();
    assert!(error.contains("line 1 column 25"), "{error}");
    assert!(matches!(parse("{"), Err(ObjectError::Json(_))));
    for body in [&b"{\"a\":\"\xff\"}"[..], b"[\"\xc3\x28\"]", b"\"\xed\xa0\x80\"", b"{\"\xff\":1}"] {
        let error = Object::from_json(body, "a", ResourceVersion::decimal(7)).unwrap_err();
        assert!(matches!(error, ObjectError::Encoding(_)), "{error}");
    }
    assert!(matches!(parse(r#"{"metadata":{"name":"a\u0000b"}}"#), Err(ObjectError::Key(KeyError::Nul))));
    let large = format!("{:?}", "x".repeat(MAX_OBJECT_BYTES));
    assert!(matches!(parse(&large), Err(ObjectError::TooLarge { .. })));
}

#[test]
fn an_object_is_too_large_with_labels_that_no_message_has_room_for() {
    let labelled =
        |bytes: usize| parse(&format!(r#"{{"metadata":{{"name":"a","labels":{{"l":"{}"}}}}}}"#, "x".repeat(bytes)));
    // Body and envelope have the label.
    let most = (MAX_MESSAGE_BYTES - REST_BYTES) / 2;
    assert!(labelled(most - 100).is_ok());
    let error = labelled(most).unwrap_err();
    assert!(matches!(error, ObjectError::MessageTooLarge { size } if size > MAX_MESSAGE_BYTES - REST_BYTES), "{error}");
}

/// A source of a program may say so of any bytes.
#[test]
fn a_body_that_is_not_json_has_no_values_whatever_its_media_type() {
    for (body, is_json) in [
        (&b"{\"a\":1}"[..], true),
        (b"{\"a\":1", false),
        (b"{\"a\":1,\"b\":\"\xff\"}", false),
        (b"{\"a\":1,\"b\":01}", false),
    ] {
        let bare = ObjectParts::bare(ObjectKey::new("", "a").unwrap(), ResourceVersion::decimal(1));
        let object = Object::new(ObjectParts { media_type: JSON, body: Bytes::from_static(body), ..bare });
        assert_eq!((object.json().is_some(), object.media_type(), object.body()), (is_json, JSON, body));
        let values = IndexFunc::Path(Path::parse("a").unwrap()).values(&object);
        assert_eq!(values, if is_json { vec!["1"] } else { Vec::new() });
    }
}

#[test]
fn the_type_that_a_list_implies_is_added_to_an_object() {
    let object = parse(r#"{"metadata":{"name":"a","uid":"\u0075","labels":{"k":"v\n"}}}"#).unwrap();
    let typed = object.with_type("apps/v1", "Deployment").with_type("v1", "Pod");
    assert_eq!((typed.api_version(), typed.kind(), typed.uid()), ("v1", "Pod", "u"));
    assert_eq!((typed.body(), typed.labels(), typed.key()), (object.body(), object.labels(), object.key()));
    assert_eq!(typed.shared_body(), object.body());
    assert_ne!(typed, object);
    assert_eq!(typed.with_type("", ""), object);
}

#[test]
fn an_object_without_some_fields_keeps_all_other_bytes_and_its_identity() {
    let fields = |paths: &[&str]| FieldCut::new(paths.iter().map(|path| Path::parse(path).unwrap())).unwrap();
    let body = r#"{"kind":"Pod", "metadata":{"name":"a","labels":{"x":"y","z":"\u0041"},"uid":"u"},"n":1.50}"#;
    let object = Arc::new(parse(body).unwrap());
    let without = |paths: &[&str]| Arc::clone(&object).without(&fields(paths));
    assert!(Arc::ptr_eq(&without(&["status", ".metadata.labels.w"]), &object));
    let cut = without(&["n", ".metadata.labels.x"]);
    assert_eq!(*cut, parse(&body.replace(r#","n":1.50"#, "").replace(r#""x":"y","#, "")).unwrap());
    assert_eq!((cut.labels().get("x"), cut.labels().get("z"), cut.uid()), (None, Some("A"), "u"));
    let typed = Arc::new(object.with_type("v1", "Node")).without(&fields(&["n"]));
    assert_eq!((typed.api_version(), typed.kind(), typed.version()), ("v1", "Node", object.version()));
    let key = object.key().clone();
    let bytes =
        Arc::new(Object::new(ObjectParts { body: body.into(), ..ObjectParts::bare(key, object.version().clone()) }));
    assert!(Arc::ptr_eq(&Arc::clone(&bytes).without(&fields(&["n"])), &bytes), "its media type is not JSON");
}

/// Writes a text as JSON, every character as it is or escaped.
fn written(text: &str, escaped: bool) -> String {
    if !escaped {
        return serde_json::json!(text).to_string();
    }
    let units = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect::<Vec<_>>().concat();
    format!("\"{units}\"")
}

proptest! {
    #![proptest_config(crate::property_config())]

    /// Both ways to make an object give the same one, wherever its envelope is.
    #[test]
    fn an_envelope_is_the_same_whether_it_stands_in_the_body_or_not(
        texts in prop::array::uniform5("[a-zä\"\n😀]{0,4}"),
        labels in btree_map("[a-cä/]{0,3}", "[a-z😀\\\\]{0,3}", 0..5),
        escaped in any::<bool>(),
    ) {
        let [namespace, name, uid, api_version, kind] = &texts;
        let name = format!("n{name}");
        let entries = labels.iter().rev().map(|(k, v)| format!("{}: {}", written(k, escaped), written(v, !escaped)));
        let json = format!(
            "{{\"kind\": {}, \"apiVersion\": {}, \"metadata\": {{\"labels\": {{{}}}, \"uid\": {}, \"namespace\": {}, \"name\": {}}}}}",
            written(kind, escaped), written(api_version, !escaped), entries.collect::<Vec<_>>().join(","),
            written(uid, escaped), written(namespace, escaped), written(&name, escaped),
        );
        let parsed = parse(&json).unwrap();
        let made = Object::new(ObjectParts {
            key: ObjectKey::new(namespace, &name).unwrap(),
            uid: uid.clone(),
            version: ResourceVersion::decimal(7),
            labels: labels.clone(),
            api_version: api_version.clone(),
            kind: kind.clone(),
            media_type: JSON,
            body: json.into(),
        });
        prop_assert_eq!(&parsed, &made);
        prop_assert_eq!((parsed.uid(), parsed.kind(), parsed.api_version()), (&**uid, &**kind, &**api_version));
        let listed: Vec<_> = labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
        prop_assert_eq!(parsed.labels().iter().collect::<Vec<_>>(), listed);
        for (key, value) in &labels {
            prop_assert_eq!(parsed.labels().get(key), Some(value.as_str()));
        }
        prop_assert_eq!(parsed.labels().get("none"), None);
        prop_assert_eq!(parsed.at_version(ResourceVersion::decimal(8)).shared_body(), made.body());
    }
}

#[test]
fn texts_lists_and_maps_of_the_wrong_type_are_not_quoted() {
    for (body, problem) in [
        (r#"{"metadata":"canary\", expected x"}"#, "metadata: expected a map, found a string"),
        (r#"{"metadata":{"labels":"canary"}}"#, "metadata.labels: expected a map, found a string"),
        (r#"{"metadata":{"labels":{"a":["canary"]}}}"#, "metadata.labels.a: expected a string, found a list"),
        (r#"{"kind":["canary"]}"#, "kind: expected a string, found a list"),
        (r#"{"kind":"canary"#, "EOF while parsing a string at line 1 column "),
    ] {
        let found = Object::from_json(body, "x", ResourceVersion::decimal(1)).unwrap_err().to_string();
        assert!(found.starts_with(problem) && !found.contains("canary"), "{found}");
    }
}
