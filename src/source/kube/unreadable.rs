//! Objects of an API that exist and cannot be read: no name, a field of the wrong type. Each is a problem of its own, so that the
//! others can be served, and what is held of it stays.

use std::collections::BTreeMap;

use serde::de::IgnoredAny;
use serde_json::value::RawValue;

use crate::{
    cache::{Problem, ProblemReason, UnreadableItem},
    model::{Object, ObjectError, ObjectKey, ObjectParts, ResourceVersion},
    source::{problems::subject_of, text::escaped, watch_event::describe},
};

/// Object that cannot be read.
#[derive(Debug)]
pub(super) struct UnreadableObject {
    /// Its identity, as far as that can be read.
    pub(super) identity: UnreadableItem,
    pub(super) problem: Problem,
    /// Text of its version; empty if it cannot be read.
    version: String,
    /// True if only its version is none of the expected kind.
    pub(super) has_other_version: bool,
}

// === impl UnreadableObject ===

impl UnreadableObject {
    /// Returns the object of this text. Without a readable key or uid the problem has the place as its subject.
    pub(super) fn of(text: &[u8], error: &ObjectError, place: &str) -> Self {
        let fields: BTreeMap<String, &RawValue> = serde_json::from_slice(text).unwrap_or_default();
        let metadata = fields.get("metadata").and_then(|metadata| serde_json::from_str(metadata.get()).ok());
        let metadata: BTreeMap<String, &RawValue> = metadata.unwrap_or_default();
        let text = |name: &str| match metadata.get(name) {
            None => Some(String::new()),
            Some(text) => serde_json::from_str::<Option<String>>(text.get()).ok().map(Option::unwrap_or_default),
        };
        let key =
            text("namespace").zip(text("name")).and_then(|(namespace, name)| ObjectKey::new(&namespace, &name).ok());
        let uid = text("uid").unwrap_or_default();
        let subject = match &key {
            Some(key) => subject_of(key),
            None if uid.is_empty() => place.to_owned(),
            None => format!("uid {}", escaped(&uid)),
        };
        let message = format!("{}; its last readable state is served", describe(error));
        Self {
            problem: Problem::new(ProblemReason::ObjectInvalid, subject, message),
            identity: UnreadableItem { key, uid },
            version: text("resourceVersion").unwrap_or_default(),
            has_other_version: matches!(error, ObjectError::Version(_)),
        }
    }

    /// Returns the object of a watch event; the error itself if the text is not JSON, so that the event is none.
    pub(super) fn of_event(text: &str, error: ObjectError) -> Result<Self, ObjectError> {
        serde_json::from_str::<IgnoredAny>(text)?;
        match error {
            ObjectError::Encoding(_) => Err(error),
            error => Ok(Self::of(text.as_bytes(), &error, "an event of the watch")),
        }
    }

    /// Returns an object with its key, uid and version alone, for a deletion, and the text of the version; `None` if these cannot be
    /// read.
    pub(super) fn bare(&self, version: impl FnOnce(&str) -> Option<ResourceVersion>) -> Option<(Object, String)> {
        let UnreadableItem { key, uid } = &self.identity;
        let parts = ObjectParts::bare(key.clone()?, version(&self.version)?);
        Some((Object::new(ObjectParts { uid: uid.clone(), ..parts }), self.version.clone()))
    }
}
