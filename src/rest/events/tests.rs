use std::sync::Arc;

use bytes::Bytes;

use super::*;
use crate::{
    grpc::ApiError,
    model::{EventType, ObjectParts},
    rest::encode::Encoders,
};

const WHOLE: EventForm = EventForm { has_bodies: true, is_ordered: true };

fn encoder(form: EventForm) -> EventEncoder {
    EventEncoder { history: "run.0".to_owned(), form }
}

fn object(name: &str, body: &str) -> Object {
    Object::from_json(Bytes::from(body.to_owned()), name, ResourceVersion::decimal(7)).unwrap()
}

/// Returns the text of an event of an object whose change has version 9, after which a client resumes from `safe`.
fn encoded(form: EventForm, object: &Object, safe: Option<u128>) -> String {
    let (version, safe) = (ResourceVersion::decimal(9), safe.map(ResourceVersion::decimal));
    let event = LineEvent {
        event_type: EventType::Modified,
        cause: Cause::Change,
        object,
        version: &version,
        change_version: &version,
        safe_version: safe.as_ref(),
        coalesced: 0,
        payload: PayloadFormat::Raw,
    };
    let mut buffer = BytesMut::new();
    encoder(form).event(&event, &mut buffer);
    String::from_utf8(buffer.to_vec()).unwrap()
}

fn id_of(text: &str) -> Option<EventId> {
    text.lines().find_map(|line| line.strip_prefix("id: ")).map(|id| EventId::parse(id).unwrap())
}

fn data_of(text: &str) -> Value {
    let data: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
    assert_eq!(data.len(), 1, "{text}");
    serde_json::from_str(data[0]).unwrap()
}

#[test]
fn an_event_is_an_id_and_one_line_of_data() {
    let text = encoded(WHOLE, &object("web", "{\"kind\":\"Thing\",\r\n\"n\":1e3,\n \"a\":\"b\\nc\"}\n"), Some(9));
    assert_eq!(
        text,
        "id: 9;run.0\ndata: {\"type\":\"MODIFIED\",\"object\":{\"name\":\"web\",\"resourceVersion\":\"9\",\"kind\":\"Thing\",\
         \"body\":{\"kind\":\"Thing\",  \"n\":1e3,  \"a\":\"b\\nc\"} }}\n\n"
    );
    assert_eq!(data_of(&text)["object"]["body"]["a"], "b\nc", "a line inside a text stays");
    let initial = encoded(WHOLE, &object("web", "{}"), None);
    assert_eq!(id_of(&initial), None, "nobody resumes from inside the initial events");
}

#[test]
fn the_envelope_is_that_of_grpc() {
    let body = r#"{"apiVersion":"apps/v1","kind":"Thing","metadata":{"namespace":"shop","name":"a","uid":"u","labels":{"x\"":"y"}}}"#;
    let object = object("other", body);
    let parsed: Value = serde_json::from_str(body).unwrap();
    let envelope = json!({ "namespace": "shop", "name": "a", "uid": "u", "resourceVersion": "9", "apiVersion": "apps/v1",
        "kind": "Thing", "labels": { "x\"": "y" } });
    let mut whole = envelope.clone();
    whole["body"] = parsed;
    assert_eq!(data_of(&encoded(WHOLE, &object, Some(9)))["object"], whole);
    let bare = EventForm { has_bodies: false, ..WHOLE };
    assert_eq!(data_of(&encoded(bare, &object, Some(9)))["object"], envelope);
    let mut buffer = BytesMut::new();
    put_object(&object, &ResourceVersion::decimal(9), (PayloadFormat::Metadata, true), &mut buffer);
    assert_eq!(serde_json::from_slice::<Value>(&buffer).unwrap(), envelope, "no right to the body");
}

#[test]
fn a_body_that_is_no_json_is_base64() {
    let object = Object::new(ObjectParts {
        key: ObjectKey::new("", "a").unwrap(),
        uid: String::new(),
        version: ResourceVersion::decimal(7),
        labels: std::collections::BTreeMap::new(),
        api_version: String::new(),
        kind: String::new(),
        media_type: "application/octet-stream",
        body: Bytes::from_static(&[0xff, b'\n', 0]),
    });
    let found = &data_of(&encoded(WHOLE, &object, Some(9)))["object"];
    assert_eq!((&found["mediaType"], &found["raw"]), (&json!("application/octet-stream"), &json!("/woA")));
    assert!(found.get("body").is_none());
}

#[test]
fn an_id_inside_a_batch_names_the_last_change() {
    for (namespace, name) in [("shop", "web"), ("", "a/b;c %d"), ("ä", "x\ny")] {
        let Ok(key) = ObjectKey::new(namespace, name) else { continue };
        let metadata = json!({ "namespace": namespace, "name": name });
        let object = object("x", &json!({ "metadata": metadata }).to_string());
        let id = id_of(&encoded(WHOLE, &object, Some(5))).unwrap();
        let last = Some(LastChange { key, version: ResourceVersion::decimal(9) });
        assert_eq!(id, EventId { version: ResourceVersion::decimal(5), history: "run.0".to_owned(), last });
        let merged = EventForm { is_ordered: false, ..WHOLE };
        assert_eq!(
            id_of(&encoded(merged, &object, Some(5))).unwrap().last,
            None,
            "merged events have an order of their own"
        );
    }
    assert_eq!(EventId::parse("5").unwrap().history, "");
    assert_eq!(EventId::parse("abc.5;h").unwrap().version.to_string(), "abc.5");
    for wrong in ["", "x", "5;h;9", "5;h;x;a/b", "5;h;9;ab", "5;h;9;a/%ff", "05"] {
        assert_eq!(EventId::parse(wrong), None, "{wrong:?}");
    }
}

#[test]
fn causes_and_merged_events_are_named() {
    let (object, version) = (object("web", "{}"), ResourceVersion::decimal(9));
    let event = LineEvent {
        event_type: EventType::Deleted,
        cause: Cause::LeftSelection,
        object: &object,
        version: &version,
        change_version: &version,
        safe_version: Some(&version),
        coalesced: 3,
        payload: PayloadFormat::Raw,
    };
    let mut buffer = BytesMut::new();
    encoder(WHOLE).event(&event, &mut buffer);
    let data = data_of(&String::from_utf8_lossy(&buffer));
    assert_eq!(
        (&data["type"], &data["cause"], &data["coalesced"]),
        (&json!("DELETED"), &json!("LEFT_SELECTION"), &json!(3))
    );
}

#[test]
fn other_messages_have_names_and_ids() {
    let message = |message: pb::WatchResponse| {
        let mut buffer = BytesMut::new();
        encoder(WHOLE).message(&message, BookmarkLines::default(), &mut buffer);
        String::from_utf8(buffer.to_vec()).unwrap()
    };
    let bookmark = pb::Bookmark { initial_events_end: true, source: pb::SyncState::Stale.into(), ..Default::default() };
    let bookmark = pb::WatchResponse {
        r#type: pb::EventType::Bookmark.into(),
        resource_version: "5".to_owned(),
        bookmark: Some(bookmark),
        ..Default::default()
    };
    assert_eq!(
        message(bookmark.clone()),
        "event: bookmark\nid: 5;run.0\ndata: {\"initialEventsEnd\":true,\"resourceVersion\":\"5\",\"source\":\"STALE\",\"type\":\"BOOKMARK\"}\n\n"
    );
    let relisted = data_of(&message(pb::WatchResponse { relisted: true, ..bookmark.clone() }));
    assert_eq!(relisted["relisted"], true);
    assert_eq!(
        message(pb::WatchResponse { resource_version: String::new(), ..bookmark }),
        "",
        "nothing to resume from"
    );
    let dropped = pb::Dropped { count: 4, after_resource_version: "5".to_owned() };
    let dropped = pb::WatchResponse {
        r#type: pb::EventType::Dropped.into(),
        resource_version: "9".to_owned(),
        dropped: Some(dropped),
        ..Default::default()
    };
    let text = message(dropped);
    assert!(text.starts_with("event: dropped\nid: 9;run.0\n"), "{text}");
    assert_eq!((&data_of(&text)["count"], &data_of(&text)["afterResourceVersion"]), (&json!(4), &json!("5")));
    let error = |refusal: &ApiError| {
        let error = pb::WatchResponse { error: Some(refusal.to_proto()), ..Default::default() };
        message(pb::WatchResponse { r#type: pb::EventType::Error.into(), ..error })
    };
    let text = error(&ApiError::HistoryRewritten);
    assert!(text.starts_with("event: error\ndata: "), "{text}");
    assert_eq!((&data_of(&text)["code"], &data_of(&text)["kind"]), (&json!(410), &json!("Status")));
    assert_eq!(error(&ApiError::Draining), "", "the client resumes");
}

#[test]
fn watches_of_one_history_and_form_share_an_encoder() {
    let encoders = Encoders::default();
    let first = encoders.share((1, WHOLE), encoder(WHOLE));
    assert!(Arc::ptr_eq(&first, &encoders.share((1, WHOLE), encoder(WHOLE))));
    let later = EventEncoder { history: "run.1".to_owned(), ..encoder(WHOLE) };
    assert!(!Arc::ptr_eq(&first, &encoders.share((1, WHOLE), later)));
}
