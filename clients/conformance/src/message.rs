//! Objects and messages of the scripted servers.

#![allow(clippy::needless_pass_by_value, reason = "a version is a number or a text")]

use std::time::Duration;

use bytes::Bytes;
use informerd::proto::pb::{self, EventType, WatchResponse};
use prost_types::Timestamp;
use serde_json::{Value, json};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

/// Name of the scripted resource.
pub(crate) const RESOURCE: &str = "things";

/// Object of the scripted resource.
#[derive(Clone)]
pub(crate) struct Thing {
    pub(crate) object: pb::Object,
    n: i64,
}

/// Creates an object in the namespace "shop", with the label app=web, a JSON body, and a uid of its own.
pub(crate) fn thing(name: &str, version: impl ToString) -> Thing {
    let object = pb::Object {
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: format!("uid-{name}"),
        resource_version: version.to_string(),
        labels: [("app".to_owned(), "web".to_owned())].into(),
        api_version: "v1".to_owned(),
        kind: "Thing".to_owned(),
        media_type: "application/json".to_owned(),
        body: None,
    };
    Thing { object, n: 1 }.with_body()
}

// === impl Thing ===

impl Thing {
    /// Returns a new state of the object, with another number in its body.
    pub(crate) fn n(mut self, n: i64) -> Self {
        self.n = n;
        self.with_body()
    }

    /// Returns the object at another version.
    pub(crate) fn at(mut self, version: impl ToString) -> Self {
        self.object.resource_version = version.to_string();
        self
    }

    pub(crate) fn uid(mut self, uid: &str) -> Self {
        uid.clone_into(&mut self.object.uid);
        self.with_body()
    }

    pub(crate) fn namespace(mut self, namespace: &str) -> Self {
        namespace.clone_into(&mut self.object.namespace);
        self.with_body()
    }

    /// Returns the object with the label `app`, and without a change of its body.
    pub(crate) fn app(mut self, app: &str) -> Self {
        self.object.labels = [("app".to_owned(), app.to_owned())].into();
        self
    }

    /// Returns the object with a body that is not JSON.
    pub(crate) fn text(mut self, text: &str) -> Self {
        "application/octet-stream".clone_into(&mut self.object.media_type);
        self.object.body = Some(pb::object::Body::Raw(Bytes::copy_from_slice(text.as_bytes())));
        self
    }

    /// Returns the object with a JSON body of about this many bytes.
    pub(crate) fn padded(mut self, bytes: usize) -> Self {
        let body = json!({ "n": self.n, "padding": "x".repeat(bytes) });
        self.object.body = Some(pb::object::Body::Raw(body.to_string().into()));
        self
    }

    /// Returns the key, the uid and the version alone, as a server sends an object that the caller may no longer read.
    pub(crate) fn bare(&self) -> Self {
        let Self { object, n } = self.clone();
        let pb::Object { namespace, name, uid, resource_version, .. } = object;
        Self { object: pb::Object { namespace, name, uid, resource_version, ..pb::Object::default() }, n }
    }

    fn with_body(mut self) -> Self {
        let pb::Object { namespace, name, uid, .. } = &self.object;
        let body = json!({ "metadata": { "namespace": namespace, "name": name, "uid": uid }, "n": self.n });
        self.object.body = Some(pb::object::Body::Raw(body.to_string().into()));
        self
    }

    /// Returns the key as a driver prints it.
    pub(crate) fn key(&self) -> String {
        let pb::Object { namespace, name, .. } = &self.object;
        if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}") }
    }

    /// Returns the object as a driver prints it.
    pub(crate) fn json(&self) -> Value {
        let pb::Object { namespace, name, uid, resource_version, labels, media_type, body, .. } = &self.object;
        let body = match body {
            Some(pb::object::Body::Raw(bytes)) if media_type == "application/json" => {
                serde_json::from_slice(bytes).ok()
            }
            _ => None,
        };
        json!({
            "namespace": namespace, "name": name, "uid": uid, "version": resource_version, "labels": labels,
            "body": body.unwrap_or(Value::Null),
        })
    }
}

fn event(event_type: EventType, version: impl ToString, object: &Thing) -> WatchResponse {
    WatchResponse {
        r#type: event_type.into(),
        resource_version: version.to_string(),
        object: Some(object.object.clone()),
        ..WatchResponse::default()
    }
}

/// Creates an ADDED. `version` is that of the event, the version to resume from.
pub(crate) fn added(version: impl ToString, object: &Thing) -> WatchResponse {
    event(EventType::Added, version, object)
}

/// Creates a MODIFIED.
pub(crate) fn modified(version: impl ToString, object: &Thing) -> WatchResponse {
    event(EventType::Modified, version, object)
}

/// Creates a DELETED of a deletion that the upstream reported.
pub(crate) fn deleted(version: impl ToString, object: &Thing) -> WatchResponse {
    event(EventType::Deleted, version, object)
}

/// Creates a DELETED with a cause.
pub(crate) fn deleted_by(cause: pb::Cause, version: impl ToString, object: &Thing) -> WatchResponse {
    WatchResponse { cause: cause.into(), ..deleted(version, object) }
}

/// Creates an event of the initial events.
pub(crate) fn initial(object: &Thing) -> WatchResponse {
    WatchResponse { cause: pb::Cause::Initial.into(), ..added("", object) }
}

/// Creates a message with several of the initial events.
pub(crate) fn initial_batch(objects: &[&Thing]) -> WatchResponse {
    let batch = objects.iter().map(|thing| thing.object.clone()).collect();
    WatchResponse { r#type: EventType::Added.into(), cause: pb::Cause::Initial.into(), batch, ..Default::default() }
}

/// Marks an event of a version that is still open.
pub(crate) fn open(event: WatchResponse) -> WatchResponse {
    WatchResponse { open: true, ..event }
}

/// Creates a BOOKMARK with the state SYNCED.
pub(crate) fn bookmark(version: impl ToString, history: &str) -> WatchResponse {
    let bookmark = pb::Bookmark {
        source: pb::SyncState::Synced.into(),
        source_seen_at: Some(seen_at(0)),
        history: history.to_owned(),
        ..pb::Bookmark::default()
    };
    WatchResponse {
        r#type: EventType::Bookmark.into(),
        resource_version: version.to_string(),
        bookmark: Some(bookmark),
        ..WatchResponse::default()
    }
}

/// Creates the BOOKMARK at the end of the initial events.
pub(crate) fn initial_end(version: impl ToString, history: &str) -> WatchResponse {
    let mut message = bookmark(version, history);
    if let Some(bookmark) = &mut message.bookmark {
        bookmark.initial_events_end = true;
    }
    message
}

/// Returns a time of contact of the upstream: the beginning of 2026 and some seconds.
pub(crate) fn seen_at(seconds: i64) -> Timestamp {
    Timestamp { seconds: 1_767_225_600 + seconds, nanos: 0 }
}

/// Creates a DROPPED whose hole begins after a version.
pub(crate) fn dropped(version: impl ToString, count: u64, after: impl ToString) -> WatchResponse {
    let dropped = pb::Dropped { count, after_resource_version: after.to_string() };
    WatchResponse {
        r#type: EventType::Dropped.into(),
        resource_version: version.to_string(),
        dropped: Some(dropped),
        ..WatchResponse::default()
    }
}

/// Creates a status of informerd, with its reason.
pub(crate) fn status(code: Code, reason: &str) -> Status {
    let details = ErrorDetails::with_error_info(reason, "informerd", [("current".to_owned(), "1".to_owned())]);
    Status::with_error_details(code, format!("scripted {reason}"), details)
}

/// Creates a status with a delay before the next attempt.
pub(crate) fn status_after(code: Code, reason: &str, delay: Duration) -> Status {
    let mut details = ErrorDetails::with_error_info(reason, "informerd", []);
    details.set_retry_info(Some(delay));
    Status::with_error_details(code, format!("scripted {reason}"), details)
}

/// Creates the ERROR of a status, the last message of a watch.
pub(crate) fn error(version: &str, status: &Status) -> WatchResponse {
    let details = <tonic_types::Status as prost::Message>::decode(status.details()).unwrap_or_default().details;
    let error = tonic_types::Status { code: status.code().into(), message: status.message().to_owned(), details };
    WatchResponse {
        r#type: EventType::Error.into(),
        resource_version: version.to_owned(),
        error: Some(error),
        ..WatchResponse::default()
    }
}
