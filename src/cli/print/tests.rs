//! Helpers that the tests of `print` share.

use bytes::Bytes;
use serde_json::Value;

use super::*;
use crate::proto::pb;

/// Returns an object as the server sends it under RAW, at version 7.
pub(super) fn object(json: &str) -> pb::Object {
    let body: Value = serde_json::from_str(json).unwrap();
    let text = |pointer: &str| body.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let labels = body.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten();
    pb::Object {
        namespace: text("/metadata/namespace"),
        name: Some(text("/metadata/name")).filter(|name| !name.is_empty()).unwrap_or("unnamed".to_owned()),
        uid: text("/metadata/uid"),
        resource_version: "7".to_owned(),
        labels: labels.map(|(key, value)| (key.clone(), value.as_str().unwrap().to_owned())).collect(),
        api_version: text("/apiVersion"),
        kind: text("/kind"),
        media_type: "application/json".to_owned(),
        body: Some(pb::object::Body::Raw(Bytes::copy_from_slice(json.as_bytes()))),
    }
}

pub(super) fn config_map(namespace: &str, name: &str) -> pb::Object {
    object(&format!(
        r#"{{"apiVersion":"v1","kind":"ConfigMap","metadata":{{"namespace":"{namespace}","name":"{name}"}},"data":{{"a":"010","n":"yes"}}}}"#
    ))
}

#[test]
fn terminal_controls_are_escaped() {
    assert_eq!(escape("plain é 漢"), "plain é 漢");
    assert_eq!(escape("a\u{1b}[31m\r\nb\u{9b}c\u{202e}d"), "a\\u{1b}[31m\\r\\nb\\u{9b}c\\u{202e}d");
}

#[test]
fn a_reference_is_accepted_by_get() {
    let of = |namespace: &str, name: &str| {
        reference(&pb::Object { namespace: namespace.to_owned(), name: name.to_owned(), ..Default::default() })
    };
    assert_eq!(of("shop", "web"), "shop/web");
    assert_eq!(of("", "node-a"), "node-a");
    assert_eq!(of("", "dir/flags.json"), "/dir/flags.json");
}

#[test]
fn a_requested_color_needs_no_terminal() {
    assert!(Color::Always.is_on() && !Color::Never.is_on());
}
