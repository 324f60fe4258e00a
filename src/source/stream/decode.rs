//! Decoding of one event of the stream.
//!
//! `reader` calls it with the bytes that `framing` found; without I/O. An object's body is the received bytes, in an allocation
//! of its own.

use std::{borrow::Cow, collections::BTreeMap};

use base64::{Engine, engine::general_purpose::STANDARD};
use serde::{Deserialize, de::Error};
use serde_json::value::RawValue;

use crate::{
    model::{Envelope, EventType, JsonText, MAX_OBJECT_BYTES, Object, ObjectError, ObjectKey, ResourceVersion},
    source::watch_event::{self, Beside, INITIAL_EVENTS_END, status_text},
};

/// Content of one event.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum StreamEvent {
    /// An object was added, modified or deleted.
    Change(EventType, Object),
    /// BOOKMARK: the upstream is in contact.
    Alive {
        /// True if every existing object has been written before it (`sendInitialEvents` of the Kubernetes API).
        is_initial_end: bool,
    },
    /// ERROR: the upstream of the stream failed, with this message.
    Failure(String),
}

/// Relevant part of a bookmark.
#[derive(Deserialize)]
struct Bookmark {
    metadata: Annotated,
}

#[derive(Deserialize)]
struct Annotated {
    annotations: BTreeMap<String, String>,
}

/// Decodes one event, whose object gets this version.
///
/// # Errors
///
/// The reason why it is no event, in one line.
pub(super) fn decode(event: &[u8], version: &ResourceVersion) -> Result<StreamEvent, String> {
    let object = |text: &str, beside: &Beside<'_>| match beside {
        // An object has no key except for its name, which must not be empty.
        Beside { namespace: None, name: None, uid: None, .. } if !text.is_empty() => {
            Object::from_json(text, "", version.clone())
        }
        beside => identified(text, beside, version.clone()),
    };
    Ok(match watch_event::decode(event, object)? {
        watch_event::DecodedEvent::Change(event_type, object) => StreamEvent::Change(event_type, object),
        watch_event::DecodedEvent::Bookmark(object) => StreamEvent::Alive { is_initial_end: is_initial_end(object) },
        watch_event::DecodedEvent::Failure(status) => StreamEvent::Failure(status_text(status)),
    })
}

/// Returns an object of any bytes, with those parts of its identity that are beside it in place of its own.
fn identified(text: &str, beside: &Beside<'_>, version: ResourceVersion) -> Result<Object, ObjectError> {
    let Beside { namespace, name, uid, data } = *beside;
    let bytes = match data {
        Some(data) if text.is_empty() => Cow::Owned(
            STANDARD
                .decode(&*string(data)?)
                .map_err(|error| serde_json::Error::custom(format_args!("`data` is not base64: {error}")))?,
        ),
        _ => Cow::Borrowed(text.as_bytes()),
    };
    if bytes.len() > MAX_OBJECT_BYTES {
        return Err(ObjectError::TooLarge { size: bytes.len() });
    }
    let (media_type, own) = Object::any_envelope(&bytes);
    let part = |beside: Option<&RawValue>, own: &JsonText<'_>| {
        beside.map_or_else(|| Ok(own.to_string()), |text| string(text).map(|text| text.to_string()))
    };
    let key = ObjectKey::new(&part(namespace, &own.namespace)?, &part(name, &own.name)?)?;
    let uid = part(uid, &own.uid)?;
    let envelope = Envelope { uid: uid.as_str().into(), ..own };
    Object::from_text(key, version, media_type, &bytes, bytes.len(), &envelope).checked()
}

fn string(json: &RawValue) -> serde_json::Result<JsonText<'_>> {
    serde_json::from_str(json.get())
}

fn is_initial_end(object: &str) -> bool {
    // A bookmark without annotations has no other relevant field.
    serde_json::from_str(object).is_ok_and(|Bookmark { metadata: Annotated { annotations } }| {
        annotations.get(INITIAL_EVENTS_END).is_some_and(|value| value == "true")
    })
}

#[cfg(test)]
mod tests {
    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;

    fn decoded(event: &str) -> Result<StreamEvent, String> {
        decode(event.as_bytes(), &ResourceVersion::decimal(7))
    }

    fn change(event: &str) -> (EventType, Object) {
        match decoded(event).unwrap() {
            StreamEvent::Change(event_type, object) => (event_type, object),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_body_of_an_object_is_the_received_bytes() {
        let body = "{\n  \"kind\": \"Pod\",\"metadata\":{\"namespace\":\"shop\",\n\"name\":\"w\\u0065b\",\"uid\":\"u\"},\"n\":1.50}";
        let (event_type, object) = change(&format!("{{ \"type\" : \"ADDED\", \"object\" :  {body} }}"));
        assert_eq!((event_type, object.key().to_string().as_str(), object.uid()), (EventType::Added, "shop/web", "u"));
        assert_eq!(object.body(), body.as_bytes());
        assert_eq!(object.version(), &ResourceVersion::decimal(7));
    }

    #[test]
    fn parts_of_the_identity_beside_an_object_stand_in_place_of_its_own() {
        let identified = |event: &str| {
            let (_, object) = change(&format!(r#"{{"type":"ADDED",{event}}}"#));
            (object.key().to_string(), object.uid().to_owned(), String::from_utf8_lossy(object.body()).into_owned())
        };
        let pod = r#"{"metadata":{"namespace":"shop","name":"web","uid":"u"}}"#;
        for (event, key, uid, body) in [
            (format!(r#""object":{pod},"uid":"5""#), "shop/web", "5", pod),
            (format!(r#""namespace":"","object":{pod}"#), "web", "u", pod),
            (format!(r#""object":{pod},"name":"a/bé""#), "shop/a/bé", "u", pod),
            (format!(r#""object":{pod},"data":{{}},"kind":5"#), "shop/web", "u", pod),
            (r#""object":null,"name":"a""#.to_owned(), "a", "", "null"),
            (r#""object":{"kind":5},"name":"a","uid":"7""#.to_owned(), "a", "7", r#"{"kind":5}"#),
            (r#""data":"aGVsbG8=","name":"a""#.to_owned(), "a", "", "hello"),
            (r#""data":"","namespace":"n","name":"a""#.to_owned(), "n/a", "", ""),
        ] {
            assert_eq!(identified(&event), (key.to_owned(), uid.to_owned(), body.to_owned()), "{event}");
        }
        let (_, object) = change(r#"{"type":"DELETED","data":"/w==","name":"a"}"#);
        assert_eq!((object.media_type(), object.body()), ("application/octet-stream", &b"\xff"[..]));
    }

    #[test]
    fn types_are_those_of_apimachinery_and_other_fields_are_ignored() {
        for (name, expected) in
            [("ADDED", EventType::Added), ("MODIFIED", EventType::Modified), ("DELETED", EventType::Deleted)]
        {
            let event = format!(r#"{{"object":{{"metadata":{{"name":"a"}}}},"at":[1],"type":"{name}"}}"#);
            assert_eq!(change(&event).0, expected);
        }
        for (object, is_initial_end) in [
            (r#","object":{"kind":"Pod"}"#, false),
            ("", false),
            (
                r#","object":{"metadata":{"resourceVersion":"5","annotations":{"k8s.io/initial-events-end":"false"}}}"#,
                false,
            ),
            (
                r#","object":{"metadata":{"resourceVersion":"5","annotations":{"k8s.io/initial-events-end":"true"}}}"#,
                true,
            ),
        ] {
            let event = format!(r#"{{"type":"BOOKMARK"{object}}}"#);
            assert_eq!(decoded(&event), Ok(StreamEvent::Alive { is_initial_end }), "{event}");
        }
    }

    #[test]
    fn a_failure_has_the_message_of_the_upstream() {
        for (object, words) in [
            (r#"{"kind":"Status","message":"too old: 5","reason":"Expired","code":410}"#, "too old: 5 (Expired)"),
            (r#"{"message":"a\nb"}"#, "a b"),
            (r#"{"message":5}"#, r#"{"message":5}"#),
            (r#""text""#, r#""text""#),
        ] {
            let event = format!(r#"{{"type":"ERROR","object":{object}}}"#);
            assert_eq!(decoded(&event), Ok(StreamEvent::Failure(words.to_owned())));
        }
        assert_eq!(decoded(r#"{"type":"ERROR"}"#), Ok(StreamEvent::Failure(String::new())));
    }

    #[test]
    fn input_without_an_event_or_a_key_is_rejected_in_one_line() {
        for (event, problem) in [
            ("{}", "not a watch event"),
            (
                r#"{"kind":"Pod","metadata":{"name":"a"}}"#,
                "not a watch event: no `type`; run kubectl with --output-watch-events",
            ),
            (r#"{"type":"added","object":{}}"#, "unknown type \"added\""),
            (r#"{"type":5}"#, "invalid type: integer, expected a string"),
            (r#"{"type":"ADDED","type":"ADDED"}"#, "duplicate field `type`"),
            (r#"{"type":"ADDED"}"#, "event without an `object`"),
            (r#"{"type":"ADDED","object":null}"#, "event without an `object`"),
            (r#"{"type":"ADDED","object":5}"#, "metadata: the name is empty"),
            (r#"{"type":"ADDED","object":{},"uid":"5"}"#, "metadata: the name is empty"),
            (r#"{"type":"ADDED","object":{},"name":""}"#, "metadata: the name is empty"),
            (r#"{"type":"ADDED","object":{},"name":5}"#, "invalid type: integer, expected a string"),
            (r#"{"type":"ADDED","data":"x","name":"a"}"#, "`data` is not base64: "),
            (r#"{"type":"ADDED","data":5,"name":"a"}"#, "invalid type: integer, expected a string"),
            (r#"{"type":"ADDED","data":"aGVsbG8="}"#, "metadata: the name is empty"),
            (r#"{"type":"ADDED","name":"a"}"#, "event without an `object`"),
            (r#"{"type":"ADDED","object":{"metadata":{"namespace":"x"}}}"#, "metadata: the name is empty"),
            (
                r#"{"type":"DELETED","object":{"metadata":{"name":[]}}}"#,
                "metadata.name: expected a string, found a list",
            ),
            (r#"{"type":"ADDED","object":{"metadata":{"name":"a"},"b":nope}}"#, "expected ident"),
            ("{\"type\":\"ADDED\u{1b}[31m\"}", "control character"),
        ] {
            let found = decoded(event).unwrap_err();
            assert!(found.starts_with(problem), "{event}: {found}");
            assert!(!found.contains('\n') && !found.contains(" at line "), "{found}");
        }
        for name in ["", r#","name":"a""#] {
            let large = format!(r#"{{"type":"ADDED","object":{{"x":"{}"}}{name}}}"#, "x".repeat(MAX_OBJECT_BYTES));
            assert!(decoded(&large).unwrap_err().contains("receive at most 3145728"));
        }
        decode(b"{\"type\":\"ADDED\xff\"}", &ResourceVersion::decimal(1)).unwrap_err();
    }

    proptest! {
        #![proptest_config(crate::property_config())]

        /// The fast path and the slow path have the same result, also for invalid events.
        #[test]
        fn white_space_does_not_change_an_event(
            name in select(vec!["ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR", "added", ""]),
            parts in vec(select(vec![
                r#"{"metadata":{"name":"a"},"x":[1,"}"]}"#, r#"{"metadata":{"name":""}}"#, r#"{"metadata":{"name":5}}"#,
                r#","metadata":1"#, r#","object":{}"#, r#","type":"ADDED""#, r#","y":{}"#, "}", "{", "5", "null", " ", "\n", "\u{c}",
            ]), 0..4),
            ends in any::<bool>(),
        ) {
            let end = if ends { "}" } else { "}\r" };
            let compact = format!(r#"{{"type":"{name}","object":{}{end}"#, parts.concat());
            let spaced = format!(r#"{{ "type":"{name}","object":{}{end}"#, parts.concat());
            prop_assert_eq!(decoded(&compact), decoded(&spaced));
        }
    }
}
