use bytes::Bytes;
use serde_json::Value;

use super::*;
use crate::{
    grpc::ApiError,
    model::{Cause, EventType, ObjectKey},
};

fn kind() -> ApiKind {
    ApiKind::new("apps", "v1", "things", "Thing")
}

fn object(body: &'static str) -> Object {
    Object::from_json(Bytes::from_static(body.as_bytes()), "web", ResourceVersion::decimal(7)).unwrap()
}

fn encoded(form: Form, object: &Object) -> (Value, Value) {
    let encoder = Encoder::new(kind(), form);
    let (mut alone, mut list) = (BytesMut::new(), BytesMut::new());
    encoder.object(object, PayloadFormat::Raw, &mut alone);
    encoder.list_head(&mut list);
    encoder.item(object, PayloadFormat::Raw, &mut list);
    let end = ListEnd { version: ResourceVersion::decimal(9), next: Some("next".to_owned()), remaining: Some(3) };
    encoder.end(&end, &mut list);
    (serde_json::from_slice(&alone).unwrap(), serde_json::from_slice(&list).unwrap())
}

const BODY: &str = r#"{"spec":{"n":1e3},"kind":"Other","metadata":{"uid":"u","name":"old","resourceVersion":"5","labels":{"a":"b"},
    "annotations":{"x\"y":"z"}},"apiVersion":"v9"}"#;

#[test]
fn an_object_has_its_version_and_its_type_and_an_item_no_type() {
    let object = object(BODY);
    let (alone, list) = encoded(Form::Object, &object);
    let metadata = json!({ "name": "old", "uid": "u", "resourceVersion": "7", "labels": { "a": "b" }, "annotations": { "x\"y": "z" } });
    let expected = json!({ "kind": "Thing", "apiVersion": "apps/v1", "metadata": metadata, "spec": { "n": 1e3 } });
    assert_eq!(alone, expected);
    assert_eq!(list["items"], json!([{ "metadata": metadata, "spec": { "n": 1e3 } }]));
    assert_eq!((&list["kind"], &list["apiVersion"]), (&json!("ThingList"), &json!("apps/v1")));
    assert_eq!(list["metadata"], json!({ "resourceVersion": "9", "continue": "next", "remainingItemCount": 3 }));
    let mut buffer = BytesMut::new();
    Encoder::new(kind(), Form::Object).object(&object, PayloadFormat::Raw, &mut buffer);
    assert!(String::from_utf8_lossy(&buffer).contains(r#""spec":{"n":1e3}"#), "as it was written");
}

#[test]
fn the_metadata_alone_is_a_partial_object() {
    let (alone, list) = encoded(Form::Metadata, &object(BODY));
    assert_eq!((&alone["kind"], &alone["apiVersion"]), (&json!("PartialObjectMetadata"), &json!("meta.k8s.io/v1")));
    assert_eq!(alone["metadata"]["annotations"], json!({ "x\"y": "z" }));
    assert_eq!(alone.as_object().unwrap().len(), 3);
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert_eq!(list["items"], json!([{ "metadata": alone["metadata"] }]), "without a type, as in protobuf");
    let mut buffer = BytesMut::new();
    Encoder::new(kind(), Form::Metadata).object(&object(BODY), PayloadFormat::Metadata, &mut buffer);
    let bare: Value = serde_json::from_slice(&buffer).unwrap();
    assert_eq!(
        bare["metadata"],
        json!({ "name": "old", "uid": "u", "resourceVersion": "7", "labels": { "a": "b" } }),
        "no annotations"
    );
}

#[test]
fn a_body_that_is_no_map_is_the_data_of_an_object() {
    for (body, data) in [("[1,2]", json!([1, 2])), ("5", json!(5))] {
        let (alone, _) = encoded(Form::Object, &object(body));
        assert_eq!(alone["data"], data);
        assert_eq!((&alone["metadata"]["name"], &alone["metadata"]["resourceVersion"]), (&json!("web"), &json!("7")));
    }
}

#[test]
fn a_table_has_a_row_with_the_metadata_of_each_object() {
    let (_, table) = encoded(Form::Table(Include::Metadata), &object(BODY));
    assert_eq!((&table["kind"], &table["apiVersion"]), (&json!("Table"), &json!("meta.k8s.io/v1")));
    assert_eq!(table["rows"][0]["cells"], json!(["old", "<unknown>"]));
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(table["columnDefinitions"].as_array().unwrap().len(), 2);
    let (_, table) = encoded(Form::Table(Include::Object), &object(BODY));
    assert_eq!(
        (&table["rows"][0]["object"]["kind"], &table["rows"][0]["object"]["spec"]),
        (&json!("Thing"), &json!({ "n": 1e3 }))
    );
    let (_, table) = encoded(Form::Table(Include::None), &object(BODY));
    assert_eq!(table["rows"][0].get("object"), Some(&json!(null)));
}

#[test]
fn the_row_of_a_pod_that_has_ended_says_so() {
    let row = |kind: &str, phase: &str| {
        let body = format!(r#"{{"metadata":{{"name":"web"}},"status":{{"phase":"{phase}"}}}}"#);
        let object = Object::from_json(Bytes::from(body), "web", ResourceVersion::decimal(7)).unwrap();
        let mut buffer = BytesMut::new();
        let encoder = Encoder::new(ApiKind::new("", "v1", "x", kind), Form::Table(Include::None));
        encoder.object(&object, PayloadFormat::Raw, &mut buffer);
        serde_json::from_slice::<Value>(&buffer).unwrap()["rows"][0].clone()
    };
    for (phase, message) in [("Succeeded", "The pod has completed successfully."), ("Failed", "The pod failed.")] {
        let condition = json!({ "type": "Completed", "status": "True", "reason": phase, "message": message });
        assert_eq!(row("Pod", phase)["conditions"], json!([condition]));
        assert_eq!(row("Job", phase).get("conditions"), None);
    }
    assert_eq!(row("Pod", "Running").get("conditions"), None);
}

/// Returns the event of a change, whose object has its whole body.
fn change<'a>(event_type: EventType, object: &'a Object, version: &'a ResourceVersion) -> LineEvent<'a> {
    LineEvent {
        event_type,
        cause: Cause::Change,
        object,
        version,
        change_version: version,
        safe_version: None,
        coalesced: 0,
        payload: PayloadFormat::Raw,
    }
}

fn lines(buffer: &BytesMut) -> Vec<Value> {
    assert!(buffer.is_empty() || buffer.ends_with(b"\n"));
    String::from_utf8_lossy(buffer).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn a_deletion_has_its_own_version() {
    let (encoder, object, mut buffer) = (Encoder::new(kind(), Form::Object), object(BODY), BytesMut::new());
    let version = ResourceVersion::decimal(12);
    for event_type in [EventType::Added, EventType::Modified, EventType::Deleted] {
        encoder.event(&change(event_type, &object, &version), &mut buffer);
    }
    let lines = lines(&buffer);
    let types: Vec<_> = lines.iter().map(|line| line["type"].as_str().unwrap()).collect();
    assert_eq!(types, ["ADDED", "MODIFIED", "DELETED"]);
    assert!(
        lines
            .iter()
            .all(|line| line["object"]["metadata"]["resourceVersion"] == "12" && line["object"]["kind"] == "Thing")
    );
}

/// Clients of Kubernetes read a watch line by line.
#[test]
fn an_event_is_one_line_also_of_a_body_with_line_breaks() {
    let body = "{\"spec\":{\n\"a\":\"x\\ny\"\r\n},\"metadata\":{\"name\":\"web\",\"labels\":{\n\"x\":\"y\"}}}";
    let (object, version) = (object(body), ResourceVersion::decimal(7));
    for form in [Form::Object, Form::Metadata, Form::Table(Include::Object)] {
        let mut buffer = BytesMut::new();
        for _ in 0..2 {
            let event = change(EventType::Added, &object, &version);
            Encoder::new(kind(), form).event(&event, &mut buffer);
        }
        let text = String::from_utf8(buffer.to_vec()).unwrap();
        assert!(text.matches('\n').count() == 2 && !text.contains('\r'), "{form:?}: {text:?}");
        let lines = lines(&buffer);
        assert_eq!((lines.len(), &lines[0]), (2, &lines[1]), "{form:?}");
        if form == Form::Object {
            assert_eq!(lines[0]["object"]["spec"], json!({ "a": "x\ny" }), "a line break in a text is escaped");
        }
    }
}

/// A body of etcd may have the uid of another object.
#[test]
fn the_uid_is_that_of_the_writer_or_else_the_served_one() {
    let uid = |body: &'static [u8]| {
        let key = ObjectKey::new("shop", "web").unwrap();
        let object =
            Object::from_json_of(key, "5/shop/web", Bytes::from_static(body), ResourceVersion::decimal(7)).unwrap();
        let mut buffer = BytesMut::new();
        Encoder::new(kind(), Form::Object).object(&object, PayloadFormat::Raw, &mut buffer);
        let text = String::from_utf8(buffer.to_vec()).unwrap();
        assert_eq!(text.matches("\"uid\"").count(), 1, "{text}");
        serde_json::from_str::<Value>(&text).unwrap()["metadata"]["uid"].clone()
    };
    assert_eq!(uid(br#"{"metadata":{"uid":"u","name":"web"},"spec":{}}"#), "u");
    assert_eq!(uid(br#"{"metadata":{"name":"web"},"spec":{}}"#), "5/shop/web");
}

#[test]
fn bookmarks_are_sent_to_whoever_reads_them_and_mark_the_end_for_whoever_waits_for_it() {
    let message = |version: &str, is_end: bool| {
        let bookmark = pb::Bookmark { initial_events_end: is_end, ..Default::default() };
        let mut message =
            pb::WatchResponse { bookmark: Some(bookmark), resource_version: version.to_owned(), ..Default::default() };
        message.set_type(pb::EventType::Bookmark);
        message
    };
    let encode = |form: Form, message: &pb::WatchResponse, is_wanted: bool, marks_end: bool| {
        let mut buffer = BytesMut::new();
        Encoder::new(kind(), form).message(message, BookmarkLines { is_wanted, marks_end }, &mut buffer);
        lines(&buffer)
    };
    let line = |annotations: Option<Value>| {
        let mut metadata = json!({ "resourceVersion": "5", "creationTimestamp": null });
        if let Some(annotations) = annotations {
            metadata["annotations"] = annotations;
        }
        vec![
            json!({ "type": "BOOKMARK", "object": { "kind": "Thing", "apiVersion": "apps/v1", "metadata": metadata } }),
        ]
    };
    let end = json!({ INITIAL_EVENTS_END: "true" });
    assert_eq!(encode(Form::Object, &message("5", true), true, true), line(Some(end)));
    assert_eq!(encode(Form::Object, &message("5", false), true, true), line(None));
    assert_eq!(encode(Form::Object, &message("5", true), true, false), line(None));
    assert!(encode(Form::Object, &message("5", true), false, true).is_empty());
    assert!(encode(Form::Object, &message("", false), true, true).is_empty(), "nothing to resume from");
    assert_eq!(encode(Form::Metadata, &message("5", false), true, true)[0]["object"]["kind"], "PartialObjectMetadata");
    for include in [Include::None, Include::Metadata, Include::Object] {
        let table = encode(Form::Table(include), &message("5", true), true, true)[0]["object"].clone();
        assert_eq!((&table["kind"], &table["metadata"]["resourceVersion"]), (&json!("Table"), &json!("5")));
        let row = &table["rows"][0];
        let kind = if include == Include::Object { "Thing" } else { "PartialObjectMetadata" };
        assert_eq!(row["object"]["kind"], kind, "{include:?}");
        let metadata = &row["object"]["metadata"];
        assert_eq!(
            (&metadata["resourceVersion"], &metadata["annotations"][INITIAL_EVENTS_END]),
            (&json!("5"), &json!("true"))
        );
        assert_eq!(row["cells"].as_array().unwrap().len(), 2, "as many as there are columns");
    }
    let progress = encode(Form::Table(Include::None), &message("5", false), true, true)[0]["object"].clone();
    assert_eq!((&progress["rows"][0]["object"], &progress["metadata"]["resourceVersion"]), (&json!(null), &json!("5")));
    let mut error = pb::WatchResponse { error: Some(ApiError::HistoryRewritten.to_proto()), ..Default::default() };
    error.set_type(pb::EventType::Error);
    let lines = encode(Form::Object, &error, false, false);
    assert_eq!((&lines[0]["type"], &lines[0]["object"]["code"]), (&json!("ERROR"), &json!(410)));
}

#[test]
fn watches_of_one_kind_and_form_share_an_encoder() {
    let encoders = Encoders::default();
    let of = |resource, kind: &ApiKind, form| encoders.share((resource, form), Encoder::new(kind.clone(), form));
    let first = of(1, &kind(), Form::Object);
    assert!(Arc::ptr_eq(&first, &of(1, &kind(), Form::Object)));
    assert!(!Arc::ptr_eq(&first, &of(2, &kind(), Form::Object)), "another resource");
    assert!(!Arc::ptr_eq(&first, &of(1, &kind(), Form::Metadata)), "another form");
    let renamed = ApiKind { kind: "Else".to_owned(), ..kind() };
    assert!(!Arc::ptr_eq(&first, &of(1, &renamed, Form::Object)), "another kind");
    drop(first);
    of(3, &kind(), Form::Object);
    assert_eq!(encoders.0.lock().len(), 1, "those that nobody uses are forgotten");
}
