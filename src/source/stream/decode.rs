//! Decoding of one event of the stream.
//!
//! `reader` calls it with the bytes that `framing` found; without I/O. An object's body is the received bytes, in an allocation
//! of its own.

use std::collections::BTreeMap;

use serde::Deserialize;

use crate::{
    model::{EventType, Object, ResourceVersion},
    source::watch_event::{self, INITIAL_EVENTS_END, status_text},
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
    // An object of a stream has no key except for its name, which must not be empty.
    let object = |text| Object::from_json(text, "", version.clone());
    Ok(match watch_event::decode(event, object)? {
        watch_event::DecodedEvent::Change(event_type, object) => StreamEvent::Change(event_type, object),
        watch_event::DecodedEvent::Bookmark(object) => StreamEvent::Alive { is_initial_end: is_initial_end(object) },
        watch_event::DecodedEvent::Failure(status) => StreamEvent::Failure(status_text(status)),
    })
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
    use crate::model::MAX_OBJECT_BYTES;

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
            (r#"{"type":5}"#, "invalid type: integer `5`"),
            (r#"{"type":"ADDED","type":"ADDED"}"#, "duplicate field `type`"),
            (r#"{"type":"ADDED"}"#, "event without an `object`"),
            (r#"{"type":"ADDED","object":null}"#, "event without an `object`"),
            (r#"{"type":"ADDED","object":5}"#, "metadata: the name is empty"),
            (r#"{"type":"ADDED","object":{"metadata":{"namespace":"x"}}}"#, "metadata: the name is empty"),
            (r#"{"type":"DELETED","object":{"metadata":{"name":[]}}}"#, "invalid type: sequence"),
            (r#"{"type":"ADDED","object":{"metadata":{"name":"a"},"b":nope}}"#, "expected ident"),
            ("{\"type\":\"ADDED\u{1b}[31m\"}", "control character"),
        ] {
            let found = decoded(event).unwrap_err();
            assert!(found.starts_with(problem), "{event}: {found}");
            assert!(!found.contains('\n') && !found.contains(" at line "), "{found}");
        }
        let large = format!(r#"{{"type":"ADDED","object":{{"x":"{}"}}}}"#, "x".repeat(MAX_OBJECT_BYTES));
        assert!(decoded(&large).unwrap_err().contains("receive at most 3145728"));
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
