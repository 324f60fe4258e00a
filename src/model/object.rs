//! Object of a resource, immutable and shared.

use std::{borrow::Cow, collections::BTreeMap, fmt, sync::Arc};

use bytes::Bytes;
use serde::de::IgnoredAny;

use super::{FieldCut, KeyError, ObjectKey, ResourceVersion, VersionError, envelope::Envelope};

mod field_error;
#[cfg(feature = "server")]
mod parsed_body;
mod size;

pub use field_error::FieldError;

#[cfg(feature = "server")]
pub(crate) use parsed_body::ParsedBody;
pub use size::{MAX_MESSAGE_BYTES, MAX_OBJECT_BYTES};

/// Object as its source provided it: the bytes, and the envelope that was parsed from them once.
///
/// The whole pipeline shares objects as `Arc<Object>` and never changes them; a change makes another object. There are very
/// many objects, so each takes two allocations besides its key: itself, and one text that it shares with copies of it at
/// other versions. The envelope consists of positions in that text, which begins with the body. Strings that are not
/// verbatim in the body, because of escapes or another origin, follow the body.
#[derive(Clone)]
pub struct Object {
    key: ObjectKey,
    version: ResourceVersion,
    text: Arc<[u8]>,
    media_type: &'static str,
    body_len: u32,
    /// True if the body is JSON in UTF-8, and not only of its media type: nothing that reads it has to check that again.
    is_json: bool,
    uid: Span,
    api_version: Span,
    kind: Span,
    /// Keys and values, sorted by key.
    labels: Box<[(Span, Span)]>,
}

/// Parts of an [`Object`], for sources that get them separately.
#[derive(Debug, Clone)]
pub struct ObjectParts {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Identity: another uid under the same key is another object. Empty if the source has none.
    pub uid: String,
    /// Version of the object's last change.
    pub version: ResourceVersion,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// API version, for example `apps/v1`; may be empty.
    pub api_version: String,
    /// Kind, for example `Deployment`; may be empty.
    pub kind: String,
    /// Media type of the body, for example `application/json`.
    pub media_type: &'static str,
    /// Bytes as the source provided them.
    pub body: Bytes,
}

/// Labels of an object, sorted by key.
#[derive(Clone, Copy)]
pub struct Labels<'a> {
    text: &'a [u8],
    labels: &'a [(Span, Span)],
}

/// Indicates bytes that are not an object.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// Bytes that are not UTF-8, and so not JSON (RFC 8259, 8.1).
    #[error("not UTF-8: {0}")]
    Encoding(#[from] std::str::Utf8Error),
    /// Text that is not JSON, or whose envelope cannot be read.
    #[error("{}", json_problem(.0))]
    Json(#[from] serde_json::Error),
    /// Field of the envelope with a value of the wrong type.
    #[error("{0}")]
    Field(FieldError),
    /// Namespace or name that cannot be a key.
    #[error("metadata: {0}")]
    Key(#[from] KeyError),
    /// Text of a version that cannot be one.
    #[error("metadata: {0}")]
    Version(#[from] VersionError),
    /// Body larger than [`MAX_OBJECT_BYTES`].
    #[error("object too large: {size} bytes (gRPC clients receive at most {MAX_OBJECT_BYTES})")]
    TooLarge {
        /// Size of the body in bytes.
        size: usize,
    },
    /// Body and envelope that are too large together: no message of them is within [`MAX_MESSAGE_BYTES`].
    #[error(
        "object too large: {size} bytes with its labels, which a message has beside the body (gRPC clients receive at \
         most {MAX_MESSAGE_BYTES})"
    )]
    MessageTooLarge {
        /// Size of body and envelope in bytes.
        size: usize,
    },
}

/// Position of a UTF-8 string in the text of an object, as two numbers of 32 bits, far above [`MAX_OBJECT_BYTES`].
#[derive(Debug, Clone, Copy, Default)]
struct Span {
    at: u32,
    len: u32,
}

/// Builder of an object's text: finds the envelope in it, and collects the strings that are not there.
struct TextBuilder<'a> {
    text: &'a [u8],
    rest: Vec<u8>,
}

/// Media type of JSON.
pub(crate) const JSON: &str = "application/json";
const BYTES: &str = "application/octet-stream";

// === impl Object ===

impl Object {
    /// Returns an object made of its parts.
    pub fn new(parts: ObjectParts) -> Self {
        let ObjectParts { key, uid, version, labels, api_version, kind, media_type, body } = parts;
        let labels = labels.iter().map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect();
        let (uid, api_version, kind) = (uid.as_str().into(), api_version.as_str().into(), kind.as_str().into());
        let envelope = Envelope { api_version, kind, uid, labels, ..Envelope::default() };
        let is_json = media_type == JSON && is_json(&body);
        Self { is_json, ..Self::from_text(key, version, media_type, &body, body.len(), &envelope) }
    }

    /// Parses a JSON body in Kubernetes' form, and copies it. An object without `metadata.name` gets `default_name`, in no
    /// namespace: a source that has another name for it (a path) can serve bodies that are not manifests.
    ///
    /// # Errors
    ///
    /// Fails if the bytes are not JSON in UTF-8, an envelope field has the wrong type, the key is invalid or the body too
    /// large. Nothing has been copied then.
    pub fn from_json(
        body: impl AsRef<[u8]>,
        default_name: &str,
        version: ResourceVersion,
    ) -> Result<Self, ObjectError> {
        let body = body.as_ref();
        let envelope = Self::envelope(body)?;
        let key = match &*envelope.name {
            "" => ObjectKey::new("", default_name)?,
            name => ObjectKey::new(&envelope.namespace, name)?,
        };
        Self::from_text(key, version, JSON, body, body.len(), &envelope).checked()
    }

    /// Parses a body of a source that has the key and the uid from elsewhere: those of the body are ignored.
    ///
    /// # Errors
    ///
    /// Fails as [`Object::from_json`] does.
    pub fn from_json_of(
        key: ObjectKey,
        uid: &str,
        body: impl AsRef<[u8]>,
        version: ResourceVersion,
    ) -> Result<Self, ObjectError> {
        let body = body.as_ref();
        let envelope = Envelope { uid: uid.into(), ..Self::envelope(body)? };
        Self::from_text(key, version, JSON, body, body.len(), &envelope).checked()
    }

    /// Parses a body of a source whose objects have a name and their own version. `version` converts
    /// `metadata.resourceVersion`, which is empty if it is missing.
    ///
    /// # Errors
    ///
    /// Fails as [`Object::from_json`] does, and with the errors of `version`.
    pub fn from_json_versioned(
        body: impl AsRef<[u8]>,
        version: impl FnOnce(&str) -> Result<ResourceVersion, VersionError>,
    ) -> Result<Self, ObjectError> {
        let body = body.as_ref();
        let envelope = Self::envelope(body)?;
        let key = ObjectKey::new(&envelope.namespace, &envelope.name)?;
        let version = version(&envelope.resource_version)?;
        Self::from_text(key, version, JSON, body, body.len(), &envelope).checked()
    }

    fn envelope(body: &[u8]) -> Result<Envelope<'_>, ObjectError> {
        if body.len() > MAX_OBJECT_BYTES {
            return Err(ObjectError::TooLarge { size: body.len() });
        }
        // serde does not validate the bytes of strings that it skips.
        let body = str::from_utf8(body)?;
        if body.trim_start().starts_with('{') {
            return serde_json::from_str(body)
                .map_err(|error| FieldError::find(body).map_or_else(|| error.into(), ObjectError::Field));
        }
        serde_json::from_str::<IgnoredAny>(body)?;
        Ok(Envelope::default())
    }

    /// Returns the media type and the envelope of any bytes, for sources that have the key from elsewhere. JSON counts as JSON
    /// whatever its fields are, but only in UTF-8.
    #[cfg(feature = "client")]
    pub(crate) fn any_envelope(body: &[u8]) -> (&'static str, Envelope<'_>) {
        if let Ok(envelope) = Self::envelope(body) {
            return (JSON, envelope);
        }
        (if is_json(body) { JSON } else { BYTES }, Envelope::default())
    }

    /// Returns an object with this text, which begins with the body: known to be JSON if it is of that type. Strings of the envelope
    /// that are not in the text follow it. The namespace and the name of the envelope are ignored: the key has them.
    pub(crate) fn from_text(
        key: ObjectKey,
        version: ResourceVersion,
        media_type: &'static str,
        text: &[u8],
        body_len: usize,
        envelope: &Envelope<'_>,
    ) -> Self {
        let Envelope { api_version, kind, uid, labels, .. } = envelope;
        let mut text = TextBuilder { text, rest: Vec::new() };
        Self {
            key,
            version,
            media_type,
            body_len: within(body_len),
            is_json: media_type == JSON,
            uid: text.span(uid),
            api_version: text.span(api_version),
            kind: text.span(kind),
            labels: labels.iter().map(|(key, value)| (text.span(key), text.span(value))).collect(),
            text: text.finish(),
        }
    }

    /// Returns the same object at another version.
    #[must_use]
    pub fn at_version(&self, version: ResourceVersion) -> Self {
        Self { version, ..self.clone() }
    }

    /// Returns the same object with a type that its body does not have.
    #[must_use]
    pub fn with_type(&self, api_version: &str, kind: &str) -> Self {
        let mut text = TextBuilder { text: &self.text, rest: Vec::new() };
        let (api_version, kind) = (text.span(api_version), text.span(kind));
        Self { api_version, kind, text: text.finish(), ..self.clone() }
    }

    /// Returns the same object with another identity than that in its body.
    #[must_use]
    pub fn with_uid(&self, uid: &str) -> Self {
        let mut text = TextBuilder { text: &self.text, rest: Vec::new() };
        let uid = text.span(uid);
        Self { uid, text: text.finish(), ..self.clone() }
    }

    /// Returns the same object without these fields of its JSON body, and without the labels among them; itself if it has none of
    /// the fields.
    #[must_use]
    pub fn without(self: Arc<Self>, fields: &FieldCut) -> Arc<Self> {
        let Some(Cow::Owned(body)) = self.json().map(|json| fields.apply(json)) else { return self };
        // The source may have accepted a body whose envelope cannot be read: it has no labels.
        let mut envelope = Self::envelope(&body).unwrap_or_default();
        envelope.uid = self.uid().into();
        // The source may have the type from elsewhere.
        if (&*envelope.api_version, &*envelope.kind) != (self.api_version(), self.kind()) {
            (envelope.api_version, envelope.kind) = (self.api_version().into(), self.kind().into());
        }
        let (key, version) = (self.key.clone(), self.version.clone());
        Arc::new(Self::from_text(key, version, self.media_type, &body, body.len(), &envelope))
    }

    /// Returns the same object with the key of another one that has an equal key, so that memory holds the key only once,
    /// however often the object changes.
    #[must_use]
    pub fn keyed_as(self, other: &Self) -> Self {
        debug_assert_eq!(self.key, other.key);
        Self { key: other.key.clone(), ..self }
    }

    /// Returns namespace and name.
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Returns the identity; empty if the source has none.
    pub fn uid(&self) -> &str {
        self.uid.of(&self.text)
    }

    /// Returns the version of the object's last change.
    pub fn version(&self) -> &ResourceVersion {
        &self.version
    }

    /// Returns the labels.
    pub fn labels(&self) -> Labels<'_> {
        Labels { text: &self.text, labels: &self.labels }
    }

    /// Returns the API version, for example `apps/v1`; empty if the body has none.
    pub fn api_version(&self) -> &str {
        self.api_version.of(&self.text)
    }

    /// Returns the kind, for example `Deployment`; empty if the body has none.
    pub fn kind(&self) -> &str {
        self.kind.of(&self.text)
    }

    /// Returns the media type of the body, for example `application/json`.
    pub fn media_type(&self) -> &'static str {
        self.media_type
    }

    /// Returns the bytes as the source provided them.
    pub fn body(&self) -> &[u8] {
        &self.text[..self.body_len as usize]
    }

    /// Returns the body without copying it; the result keeps the object's text in memory.
    pub fn shared_body(&self) -> Bytes {
        let mut body = Bytes::from_owner(Arc::clone(&self.text));
        body.truncate(self.body_len as usize);
        body
    }

    /// Returns the body if it is JSON in UTF-8, which paths can read.
    pub fn json(&self) -> Option<&[u8]> {
        self.is_json.then(|| self.body())
    }

    /// Returns the text that holds the body and the strings of the envelope. Only objects derived from one another share it.
    #[cfg(any(feature = "kube", feature = "server"))]
    pub(crate) fn text(&self) -> &Arc<[u8]> {
        &self.text
    }

    /// Returns the body if it is JSON, without copying it.
    pub(super) fn shared_json(&self) -> Option<Bytes> {
        self.is_json.then(|| self.shared_body())
    }
}

impl PartialEq for Object {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
            && self.version == other.version
            && self.media_type == other.media_type
            && self.uid() == other.uid()
            && self.api_version() == other.api_version()
            && self.kind() == other.kind()
            && self.labels() == other.labels()
            && self.body() == other.body()
    }
}

impl Eq for Object {}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object")
            .field("key", &self.key)
            .field("version", &self.version)
            .field("uid", &self.uid())
            .field("api_version", &self.api_version())
            .field("kind", &self.kind())
            .field("labels", &self.labels())
            .field("media_type", &self.media_type)
            // The body itself may be a secret, and this is for logs.
            .field("body_bytes", &self.body().len())
            .finish_non_exhaustive()
    }
}

// === impl ObjectParts ===

impl ObjectParts {
    /// Returns a key and a version, and nothing else: for an object that was deleted, or that cannot be served.
    pub fn bare(key: ObjectKey, version: ResourceVersion) -> Self {
        Self {
            key,
            uid: String::new(),
            version,
            labels: BTreeMap::new(),
            api_version: String::new(),
            kind: String::new(),
            media_type: BYTES,
            body: Bytes::new(),
        }
    }
}

// === impl Labels ===

impl<'a> Labels<'a> {
    /// Returns the value of a label.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        let Self { text, labels } = self;
        let at = labels.binary_search_by(|(found, _)| found.of(text).cmp(key)).ok()?;
        Some(labels[at].1.of(text))
    }

    /// Returns keys and values, sorted by key.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&'a str, &'a str)> + use<'a> {
        let Self { text, labels } = *self;
        labels.iter().map(move |(key, value)| (key.of(text), value.of(text)))
    }
}

impl PartialEq for Labels<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Labels<'_> {}

impl fmt::Debug for Labels<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

/// Returns the problem of a text as JSON, and its place. A value that is not as expected is not quoted: it may be a secret.
pub(crate) fn json_problem(error: &serde_json::Error) -> String {
    let problem = error.to_string();
    if problem.starts_with("unknown field") {
        return problem;
    }
    let unquoted = problem.rsplit_once(", expected ").and_then(|(found, expected)| {
        let (found, _) = found.split_once(['"', '`'])?;
        Some(format!("{}, expected {expected}", found.trim_end()))
    });
    unquoted.unwrap_or(problem)
}

/// Returns true for JSON in UTF-8.
fn is_json(body: &[u8]) -> bool {
    str::from_utf8(body).is_ok_and(|text| serde_json::from_str::<IgnoredAny>(text).is_ok())
}

/// Returns a position or a length in a text, which are far below the maximum.
fn within(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

// === impl Span ===

impl Span {
    fn of(self, text: &[u8]) -> &str {
        let at = self.at as usize;
        // Valid: every span was made of a string at its position.
        text.get(at..at + self.len as usize).and_then(|text| str::from_utf8(text).ok()).unwrap_or_default()
    }
}

// === impl TextBuilder ===

impl TextBuilder<'_> {
    /// Returns the position of a string: in the text if it was borrowed from there, else after it.
    fn span(&mut self, string: &str) -> Span {
        if string.is_empty() {
            return Span::default();
        }
        let offset = string.as_ptr().addr().checked_sub(self.text.as_ptr().addr());
        let at = offset.filter(|at| at + string.len() <= self.text.len()).unwrap_or_else(|| {
            self.rest.extend_from_slice(string.as_bytes());
            self.text.len() + self.rest.len() - string.len()
        });
        Span { at: within(at), len: within(string.len()) }
    }

    /// Copies the text once.
    fn finish(self) -> Arc<[u8]> {
        let Self { text, rest } = self;
        if rest.is_empty() { text.into() } else { [text, &rest].concat().into() }
    }
}

#[cfg(test)]
mod tests;
