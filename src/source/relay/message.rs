//! Conversion of the upstream's messages to the model, byte for byte.

use std::sync::Arc;

use bytes::Bytes;

use crate::{
    cache::{Problem, ProblemReason, SourceError, SourceHealth, SyncState, UnreadableItem},
    model::{self, Event, Object, ObjectKey, ObjectParts, ResourceVersion},
    proto::{
        self,
        pb::{self, Cause, EventType, WatchResponse},
    },
    source::{problems::subject_of, text::one_line},
};

/// Object that cannot be read: of a newer upstream, or without a name.
#[derive(Debug)]
pub(super) struct UnreadableObject {
    /// Its identity, as far as that can be read.
    pub(super) identity: UnreadableItem,
    /// Object with its key, uid and version alone, for a deletion; `None` if these cannot be read.
    pub(super) bare: Option<Object>,
    pub(super) problem: Problem,
}

/// Converts a message to an event, for a watch under REPLAY after the initial events. What enters the selection is added, what
/// leaves it is deleted.
pub(super) fn event(message: &WatchResponse, object: Object) -> Result<Event, SourceError> {
    let cause = message.cause();
    if cause == Cause::Initial || message.coalesced > 0 {
        let problem =
            format!("unexpected cause {} and {} coalesced events under REPLAY", cause.as_str_name(), message.coalesced);
        return Err(SourceError::Undecodable(problem));
    }
    let event_type = message.r#type();
    let object = Arc::new(object);
    Ok(match event_type {
        EventType::Added => Event::Added(object),
        EventType::Deleted if cause == Cause::NotServed => Event::NotServed(object),
        EventType::Deleted if cause == Cause::Expired => Event::Removed(object, model::Cause::Expired),
        EventType::Deleted => Event::Deleted(object),
        _ => Event::Modified(object),
    })
}

/// Returns true if an object is deleted because this relay may no longer read it: it has neither a body nor a media type, which
/// one has whose body a view leaves out.
pub(super) fn is_withheld(message: &WatchResponse) -> bool {
    let is_bare = |object: &pb::Object| object.body.is_none() && object.media_type.is_empty();
    message.cause() == Cause::LeftSelection && message.object.as_ref().is_some_and(is_bare)
}

/// Returns an object of which a view may have left out the body, because that is no JSON map: it has an empty one.
pub(super) fn with_body(object: Option<pb::Object>) -> Option<pb::Object> {
    let empty = pb::object::Body::Raw(Bytes::new());
    object.map(|object| pb::Object { body: object.body.or(Some(empty)), ..object })
}

/// Converts an object with its version.
pub(super) fn object(object: Option<pb::Object>) -> Result<Object, SourceError> {
    let object = object.ok_or_else(|| SourceError::Undecodable("event without an object".to_owned()))?;
    readable(object).map_err(|unreadable| SourceError::Undecodable(unreadable.problem.to_string()))
}

/// Converts an object, or returns the problem with it, so that the others can be served.
pub(super) fn readable(object: pb::Object) -> Result<Object, Box<UnreadableObject>> {
    let (key, uid) = (ObjectKey::new(&object.namespace, &object.name).ok(), object.uid.clone());
    let version = object.resource_version.clone();
    read(object).map_err(|problem| {
        let subject = key.as_ref().map_or_else(|| format!("uid {}", one_line(&uid)), subject_of);
        let message = format!("{}; its last readable state is served", one_line(&problem));
        let bare = key.clone().zip(version.parse().ok());
        Box::new(UnreadableObject {
            bare: bare
                .map(|(key, version)| Object::new(ObjectParts { uid: uid.clone(), ..ObjectParts::bare(key, version) })),
            problem: Problem::new(ProblemReason::ObjectInvalid, subject, message),
            identity: UnreadableItem { key, uid },
        })
    })
}

/// Parses a version, which must not be empty.
pub(super) fn version(text: &str) -> Result<ResourceVersion, SourceError> {
    text.parse().map_err(|error| SourceError::Undecodable(format!("{error}")))
}

/// Reports the state of the origin in a bookmark at this version to `health`, and returns it.
pub(super) fn report_origin(bookmark: &pb::Bookmark, at: &ResourceVersion, health: &SourceHealth) -> SyncState {
    let state = match bookmark.source() {
        pb::SyncState::Stale | pb::SyncState::Syncing => SyncState::Stale,
        pb::SyncState::Synced | pb::SyncState::Unspecified => SyncState::Synced,
    };
    health.record_origin(state, bookmark.source_seen_at.and_then(proto::system_time));
    if state == SyncState::Synced {
        health.complete_at(at.clone());
    }
    state
}

fn read(object: pb::Object) -> Result<Object, String> {
    if !matches!(object.body, Some(pb::object::Body::Raw(_))) {
        return Err("no raw body".to_owned());
    }
    proto::model_object(object)?.checked().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{model::JSON, proto::PayloadFormat};

    proptest! {
        #![proptest_config(crate::property_config())]

        /// Covers whatever an origin may serve, from any kind of source.
        #[test]
        fn a_relayed_object_is_unchanged(
            text in "[a-z{}\"é\n]{0,20}",
            (uid, kind, label) in ("[a-z0-9]{0,3}", "[A-Z]{0,2}", "[a-z]{1,3}"),
            (is_json, has_labels, is_typed) in any::<(bool, bool, bool)>(),
            number in 1_u64..,
        ) {
            let version = ResourceVersion::of_lineage("abc".into(), u128::from(number));
            let json = serde_json::json!({ "kind": kind, "x": text, "metadata": { "labels": { &label: text } } });
            let body = if is_json { Bytes::from(json.to_string()) } else { Bytes::from(text.clone()) };
            let labels = has_labels.then(|| (label.clone(), text.clone())).into_iter().collect();
            let object = Object::new(ObjectParts {
                key: ObjectKey::new("ns", "a/b").unwrap(),
                uid,
                version: version.clone(),
                labels,
                api_version: if is_typed { "v1".to_owned() } else { String::new() },
                kind,
                media_type: if is_json { JSON } else { "application/octet-stream" },
                body,
            });
            prop_assert_eq!(read(proto::object(&object, &version, PayloadFormat::Raw)).unwrap(), object);
        }
    }

    #[test]
    fn messages_that_cannot_be_relayed_are_rejected_with_the_reason() {
        let good = pb::Object {
            name: "a".to_owned(),
            resource_version: "5".to_owned(),
            media_type: JSON.to_owned(),
            body: Some(pb::object::Body::Raw(Bytes::from_static(b"{}"))),
            ..pb::Object::default()
        };
        assert!(object(Some(good.clone())).is_ok());
        for (bad, problem) in [
            (pb::Object { name: String::new(), ..good.clone() }, "the name is empty"),
            (pb::Object { resource_version: "x".to_owned(), ..good.clone() }, "x"),
            (pb::Object { media_type: "image/png".to_owned(), ..good.clone() }, "a newer informerd"),
            (pb::Object { body: None, ..good.clone() }, "no raw body"),
        ] {
            let error = object(Some(bad)).unwrap_err();
            assert!(matches!(&error, SourceError::Undecodable(text) if text.contains(problem)), "{error}");
        }
        let event = |cause: Cause, coalesced| {
            let object = Some(good.clone());
            let (r#type, cause) = (EventType::Added.into(), cause.into());
            let message = WatchResponse { r#type, cause, coalesced, ..WatchResponse::default() };
            event(&message, super::object(object).unwrap())
        };
        assert!(event(Cause::Unspecified, 0).is_ok());
        assert!(matches!(event(Cause::EnteredSelection, 0), Ok(Event::Added(_))));
        assert!(event(Cause::Initial, 0).is_err() && event(Cause::Unspecified, 1).is_err());
    }
}
