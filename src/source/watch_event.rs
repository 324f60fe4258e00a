//! One watch event as JSON, `metav1.WatchEvent`: its type, and the bytes of its object.
//!
//! Pure. The source that reads the event interprets the object, and acts on bookmarks and failures.

use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;

use super::text::one_line;
use crate::model::{EventType, JsonText, ObjectError, json_problem};

/// Decoded event. The objects of bookmarks and failures are JSON, or empty if absent.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DecodedEvent<'a, T> {
    /// An added, modified or deleted object.
    Change(EventType, T),
    /// Object of a BOOKMARK event.
    Bookmark(&'a str),
    /// Object of an ERROR event.
    Failure(&'a str),
}

/// Annotation of the bookmark that ends the initial events of a watch with `sendInitialEvents`; its value is "true".
pub(super) const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// Fields of an event beside its type and object, as `informerd record` writes them (`client::WatchEventEncoder`). An API server
/// sends none.
#[derive(Debug, Default)]
#[cfg_attr(not(feature = "server"), expect(dead_code, reason = "a stream has them, and the Kubernetes API does not"))]
pub(super) struct Beside<'a> {
    pub(super) namespace: Option<&'a RawValue>,
    pub(super) name: Option<&'a RawValue>,
    pub(super) uid: Option<&'a RawValue>,
    /// Bytes in place of an object.
    pub(super) data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct WatchEvent<'a> {
    #[serde(rename = "type", borrow, default)]
    event_type: Option<JsonText<'a>>,
    /// Object, which may be null.
    #[serde(borrow, default, deserialize_with = "present")]
    object: Option<&'a RawValue>,
    #[serde(borrow, default)]
    namespace: Option<&'a RawValue>,
    #[serde(borrow, default)]
    name: Option<&'a RawValue>,
    #[serde(borrow, default)]
    uid: Option<&'a RawValue>,
    #[serde(borrow, default)]
    data: Option<&'a RawValue>,
}

/// Readable part of a `metav1.Status`.
#[derive(Deserialize)]
struct Status<'a> {
    #[serde(borrow, default)]
    message: Option<JsonText<'a>>,
    #[serde(borrow, default)]
    reason: Option<JsonText<'a>>,
}

/// Decodes one event; `object` converts the text of a change, which is empty if the event has `data` instead. If `object` fails,
/// it may be called again with the same text.
///
/// # Errors
///
/// The reason in one line.
pub(super) fn decode<'a, T>(
    event: &'a [u8],
    mut object: impl FnMut(&'a str, &Beside<'a>) -> Result<T, ObjectError>,
) -> Result<DecodedEvent<'a, T>, String> {
    if let Some((event_type, text)) = compact(event)
        && let Ok(made) = object(text, &Beside::default())
    {
        return Ok(DecodedEvent::Change(event_type, made));
    }
    let WatchEvent { event_type, object: text, data, namespace, name, uid } =
        serde_json::from_slice(event).map_err(|error| explain(&error))?;
    // Only an object that is named elsewhere can be null.
    let text = text.filter(|text| name.is_some() || text.get() != "null");
    let of_none = || text.map_or("", RawValue::get);
    let event_type = match event_type.as_deref() {
        Some("ADDED") => EventType::Added,
        Some("MODIFIED") => EventType::Modified,
        Some("DELETED") => EventType::Deleted,
        Some("BOOKMARK") => return Ok(DecodedEvent::Bookmark(of_none())),
        Some("ERROR") => return Ok(DecodedEvent::Failure(of_none())),
        Some(other) => return Err(one_line(&format!("unknown type {other:?}"))),
        None => return Err("not a watch event: no `type`; run kubectl with --output-watch-events".to_owned()),
    };
    let text = match text {
        Some(text) => text.get(),
        None if data.is_some() => "",
        None => return Err("event without an `object`".to_owned()),
    };
    let made = object(text, &Beside { namespace, name, uid, data });
    made.map(|made| DecodedEvent::Change(event_type, made)).map_err(|error| describe(&error))
}

fn present<'de, D: Deserializer<'de>>(json: D) -> Result<Option<&'de RawValue>, D::Error> {
    <&RawValue>::deserialize(json).map(Some)
}

/// Returns the type and object of a change in the compact form that Go and most others write: no blanks, and the type first. If
/// the object is valid JSON, so is the event, which then needs no parsing of its own. Any other form takes the general path.
fn compact(event: &[u8]) -> Option<(EventType, &str)> {
    let rest = event.strip_prefix(b"{\"type\":\"")?;
    let after = |event_type, name: &[u8]| Some((event_type, rest.strip_prefix(name)?.strip_prefix(b"\",\"object\":")?));
    let (event_type, rest) = after(EventType::Modified, b"MODIFIED")
        .or_else(|| after(EventType::Added, b"ADDED"))
        .or_else(|| after(EventType::Deleted, b"DELETED"))?;
    // Surrounding blanks would not be part of the object.
    let object = rest.strip_suffix(b"}").filter(|object| object.starts_with(b"{") && object.ends_with(b"}"))?;
    Some((event_type, str::from_utf8(object).ok()?))
}

/// Returns the message and reason of a `metav1.Status` in one line; any other text as it is.
pub(super) fn status_text(status: &str) -> String {
    match serde_json::from_str(status) {
        Ok(Status { message: Some(message), reason }) if !message.is_empty() => {
            let reason = reason.map(|reason| format!(" ({})", &*reason)).unwrap_or_default();
            one_line(&format!("{}{reason}", &*message))
        }
        _ => one_line(status),
    }
}

/// Returns the error in one line, without the position, which is relative to the object and not to its event or list.
pub(super) fn describe(error: &ObjectError) -> String {
    match error {
        ObjectError::Json(error) => explain(error),
        other => one_line(&other.to_string()),
    }
}

fn explain(error: &serde_json::Error) -> String {
    let text = json_problem(error);
    one_line(text.rsplit_once(" at line ").map_or(&*text, |(problem, _)| problem))
}
