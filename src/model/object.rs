//! Object of a resource, immutable and shared.

mod parts;
mod record;

use std::{fmt, sync::Arc};

use bytes::Bytes;

pub use self::parts::ObjectParts;
use super::{KeyError, Lineage, ObjectKey, ResourceVersion, VersionError, envelope::Envelope};

/// Maximum size of an object's body: what a gRPC client with the default receive limit of 4 MiB can receive in any
/// language.
pub const MAX_OBJECT_BYTES: usize = 3 << 20;

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
    body_len: usize,
    media_type: &'static str,
    uid: Span,
    api_version: Span,
    kind: Span,
    /// Keys and values, sorted by key.
    labels: Box<[(Span, Span)]>,
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
    /// Text that is not JSON, or whose envelope has fields of the wrong type.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
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
}

/// Position of a UTF-8 string in the text of an object, as two numbers of 32 bits, far above [`MAX_OBJECT_BYTES`].
#[derive(Debug, Clone, Copy, Default)]
struct Span {
    at: u32,
    len: u32,
}

/// Builder of an object's text: finds the envelope in the body, and collects the strings that are not there.
struct TextBuilder<'a> {
    body: &'a [u8],
    rest: Vec<u8>,
}

const JSON: &str = "application/json";
const BYTES: &str = "application/octet-stream";

// === impl Object ===

impl Object {
    /// Returns an object made of its parts.
    pub fn new(parts: ObjectParts) -> Self {
        let ObjectParts { key, uid, version, labels, api_version, kind, media_type, body } = parts;
        let labels = labels.iter().map(|(key, value)| (key.as_str().into(), value.as_str().into())).collect();
        let (uid, api_version, kind) = (uid.as_str().into(), api_version.as_str().into(), kind.as_str().into());
        let envelope = Envelope { api_version, kind, uid, labels, ..Envelope::default() };
        Self::build(key, version, media_type, &body, &envelope)
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
        Ok(Self::build(key, version, JSON, body, &envelope))
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
        Ok(Self::build(key, version, JSON, body, &envelope))
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
        Ok(Self::build(key, version(&envelope.resource_version)?, JSON, body, &envelope))
    }

    fn envelope(body: &[u8]) -> Result<Envelope<'_>, ObjectError> {
        if body.len() > MAX_OBJECT_BYTES {
            return Err(ObjectError::TooLarge { size: body.len() });
        }
        // serde does not validate the bytes of strings that it skips.
        let body = str::from_utf8(body)?;
        if body.trim_start().starts_with('{') {
            return Ok(serde_json::from_str(body)?);
        }
        serde_json::from_str::<serde::de::IgnoredAny>(body)?;
        Ok(Envelope::default())
    }

    /// Builds an object. The namespace and the name of the envelope are ignored: the key has them.
    fn build(
        key: ObjectKey,
        version: ResourceVersion,
        media_type: &'static str,
        body: &[u8],
        envelope: &Envelope<'_>,
    ) -> Self {
        let Envelope { api_version, kind, uid, labels, .. } = envelope;
        let mut text = TextBuilder { body, rest: Vec::new() };
        Self {
            key,
            version,
            body_len: body.len(),
            media_type,
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
        let mut text = TextBuilder { body: &self.text, rest: Vec::new() };
        let (api_version, kind) = (text.span(api_version), text.span(kind));
        Self { api_version, kind, text: text.finish(), ..self.clone() }
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
        &self.text[..self.body_len]
    }

    /// Returns the body without copying it; the result keeps the object's text in memory.
    pub fn shared_body(&self) -> Bytes {
        let mut body = Bytes::from_owner(Arc::clone(&self.text));
        body.truncate(self.body_len);
        body
    }

    /// Returns the body if it is JSON, which paths can read.
    pub fn json(&self) -> Option<&[u8]> {
        (self.media_type == JSON).then(|| self.body())
    }

    /// Returns the text that holds the body. Only objects derived from one another share it.
    pub(super) fn text(&self) -> &Arc<[u8]> {
        &self.text
    }

    /// Returns the body if it is JSON, without copying it.
    pub(super) fn shared_json(&self) -> Option<Bytes> {
        (self.media_type == JSON).then(|| self.shared_body())
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
            .field("body", &format_args!("{}", self.body().escape_ascii()))
            .finish_non_exhaustive()
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
    /// Returns the position of a string: in the body if it was borrowed from there, else after it.
    fn span(&mut self, text: &str) -> Span {
        if text.is_empty() {
            return Span::default();
        }
        let offset = text.as_ptr().addr().checked_sub(self.body.as_ptr().addr());
        let at = offset.filter(|at| at + text.len() <= self.body.len()).unwrap_or_else(|| {
            self.rest.extend_from_slice(text.as_bytes());
            self.body.len() + self.rest.len() - text.len()
        });
        let within = |number: usize| u32::try_from(number).unwrap_or(u32::MAX);
        Span { at: within(at), len: within(text.len()) }
    }

    /// Copies the text once.
    fn finish(self) -> Arc<[u8]> {
        let Self { body, rest } = self;
        if rest.is_empty() { body.into() } else { [body, &rest].concat().into() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::{collection::btree_map, prelude::*};

    use super::*;

    fn parse(json: &str) -> Result<Object, ObjectError> {
        Object::from_json(Bytes::copy_from_slice(json.as_bytes()), "dir/file.json", ResourceVersion::decimal(7))
    }

    #[test]
    fn the_envelope_is_parsed_and_the_bytes_are_kept() {
        let text = r#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"w\u0065b","namespace":"shop","uid":"u1",
            "labels":{"tier":"front","app":"web"}},"spec":{"n":9007199254740993}}"#;
        let object = parse(text).unwrap();
        assert_eq!(object.key().to_string(), "shop/web");
        assert_eq!((object.kind(), object.api_version(), object.uid()), ("Pod", "v1", "u1"));
        assert_eq!(object.labels().iter().collect::<Vec<_>>(), [("app", "web"), ("tier", "front")]);
        assert_eq!(object.labels().get("tier"), Some("front"));
        assert_eq!(object.labels().get("none"), None);
        assert_eq!(object.body(), text.as_bytes());
        assert_eq!(&object.text[object.body_len..], b"", "the rest stands in the body");
        assert_eq!(object.shared_body(), text);
        assert_eq!(object.shared_body().as_ptr(), object.body().as_ptr(), "not copied");
    }

    #[test]
    fn an_object_without_a_name_is_keyed_by_its_default() {
        for json in [r#"{"a":1}"#, "[1,2]", "3", r#"{"metadata":{"namespace":"x"}}"#, r#"{"metadata":null}"#] {
            let object = parse(json).unwrap();
            assert_eq!((object.key().namespace(), object.key().name()), ("", "dir/file.json"), "{json}");
        }
    }

    #[test]
    fn an_object_may_say_its_own_version() {
        let read = |json: &str| Object::from_json_versioned(json, str::parse);
        let object = read(r#"{"metadata":{"name":"a","namespace":"n","resourceVersion":"12"}}"#).unwrap();
        assert_eq!((object.key().to_string().as_str(), object.version().number()), ("n/a", 12));
        for json in [r#"{"metadata":{"name":"a","resourceVersion":"x"}}"#, r#"{"metadata":{"name":"a"}}"#] {
            assert!(matches!(read(json), Err(ObjectError::Version(_))), "{json}");
        }
        assert!(matches!(read(r#"{"metadata":{"resourceVersion":"1"}}"#), Err(ObjectError::Key(_))), "no default name");
    }

    #[test]
    fn what_is_not_an_object_is_refused_with_its_position() {
        let error = parse(r#"{"metadata":{"name":5}}"#).unwrap_err().to_string();
        assert!(error.contains("line 1 column 21"), "{error}");
        assert!(matches!(parse("{"), Err(ObjectError::Json(_))));
        for body in [&b"{\"a\":\"\xff\"}"[..], b"[\"\xc3\x28\"]", b"\"\xed\xa0\x80\"", b"{\"\xff\":1}"] {
            let error = Object::from_json(body, "a", ResourceVersion::decimal(7)).unwrap_err();
            assert!(matches!(error, ObjectError::Encoding(_)), "{error}");
        }
        assert!(matches!(parse(r#"{"metadata":{"name":"a\u0000b"}}"#), Err(ObjectError::Key(KeyError::Nul))));
        let large = format!("{:?}", "x".repeat(MAX_OBJECT_BYTES));
        assert!(matches!(parse(&large), Err(ObjectError::TooLarge { .. })));
    }

    #[test]
    fn what_a_list_implies_is_added_to_an_object() {
        let object = parse(r#"{"metadata":{"name":"a","uid":"\u0075","labels":{"k":"v\n"}}}"#).unwrap();
        let typed = object.with_type("apps/v1", "Deployment").with_type("v1", "Pod");
        assert_eq!((typed.api_version(), typed.kind(), typed.uid()), ("v1", "Pod", "u"));
        assert_eq!((typed.body(), typed.labels(), typed.key()), (object.body(), object.labels(), object.key()));
        assert_eq!(typed.shared_body(), object.body());
        assert_ne!(typed, object);
        assert_eq!(typed.with_type("", ""), object);
    }

    /// Writes a text as JSON, every character as it is or escaped.
    fn written(text: &str, escaped: bool) -> String {
        if !escaped {
            return serde_json::json!(text).to_string();
        }
        let units = text.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect::<Vec<_>>().concat();
        format!("\"{units}\"")
    }

    proptest! {
        #![proptest_config(crate::property_config())]

        /// Both ways to make an object give the same one, wherever its envelope is.
        #[test]
        fn an_envelope_is_the_same_whether_it_stands_in_the_body_or_not(
            texts in prop::array::uniform5("[a-zä\"\n😀]{0,4}"),
            labels in btree_map("[a-cä/]{0,3}", "[a-z😀\\\\]{0,3}", 0..5),
            escaped in any::<bool>(),
        ) {
            let [namespace, name, uid, api_version, kind] = &texts;
            let name = format!("n{name}");
            let entries = labels.iter().rev().map(|(k, v)| format!("{}: {}", written(k, escaped), written(v, !escaped)));
            let json = format!(
                "{{\"kind\": {}, \"apiVersion\": {}, \"metadata\": {{\"labels\": {{{}}}, \"uid\": {}, \"namespace\": {}, \"name\": {}}}}}",
                written(kind, escaped), written(api_version, !escaped), entries.collect::<Vec<_>>().join(","),
                written(uid, escaped), written(namespace, escaped), written(&name, escaped),
            );
            let parsed = parse(&json).unwrap();
            let made = Object::new(ObjectParts {
                key: ObjectKey::new(namespace, &name).unwrap(),
                uid: uid.clone(),
                version: ResourceVersion::decimal(7),
                labels: labels.clone(),
                api_version: api_version.clone(),
                kind: kind.clone(),
                media_type: JSON,
                body: json.into(),
            });
            prop_assert_eq!(&parsed, &made);
            prop_assert_eq!((parsed.uid(), parsed.kind(), parsed.api_version()), (&**uid, &**kind, &**api_version));
            let listed: Vec<_> = labels.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            prop_assert_eq!(parsed.labels().iter().collect::<Vec<_>>(), listed);
            for (key, value) in &labels {
                prop_assert_eq!(parsed.labels().get(key), Some(value.as_str()));
            }
            prop_assert_eq!(parsed.labels().get("none"), None);
            prop_assert_eq!(parsed.at_version(ResourceVersion::decimal(8)).shared_body(), made.body());
        }
    }
}
