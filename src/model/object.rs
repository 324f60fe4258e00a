//! One object of a resource, immutable and shared.

use std::{borrow::Cow, collections::BTreeMap};

use bytes::Bytes;
use serde::Deserialize;

use super::{KeyError, ObjectKey, ResourceVersion};

/// The largest body of an object: what a gRPC client with the default receive limit of 4 MiB can take in any language.
pub const MAX_OBJECT_BYTES: usize = 3 << 20;

/// An object as its source gave it: the bytes, and the envelope that was parsed from them once.
///
/// Objects are shared as `Arc<Object>` through the whole pipeline and never changed; a change is another object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    key: ObjectKey,
    uid: Box<str>,
    version: ResourceVersion,
    labels: Labels,
    api_version: Box<str>,
    kind: Box<str>,
    media_type: &'static str,
    body: Bytes,
}

/// What an [`Object`] is made of, for sources that know the parts by themselves.
#[derive(Debug, Clone)]
pub struct ObjectParts {
    /// Namespace and name.
    pub key: ObjectKey,
    /// Identity: another uid under the same key is another object. Empty when the source has none.
    pub uid: String,
    /// The version of the object's last change.
    pub version: ResourceVersion,
    /// Labels.
    pub labels: Labels,
    /// For example `apps/v1`; may be empty.
    pub api_version: String,
    /// For example `Deployment`; may be empty.
    pub kind: String,
    /// Of the body, for example `application/json`.
    pub media_type: &'static str,
    /// The bytes as the source gave them.
    pub body: Bytes,
}

/// The labels of an object, sorted by key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Labels(Box<[(Box<str>, Box<str>)]>);

/// Indicates bytes that are not an object.
#[derive(Debug, thiserror::Error)]
pub enum ObjectError {
    /// Not JSON, or the envelope has fields of the wrong type.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
    /// The namespace or the name cannot be a key.
    #[error("metadata: {0}")]
    Key(#[from] KeyError),
    /// The body is larger than [`MAX_OBJECT_BYTES`].
    #[error("the object has {size} bytes, more than the {MAX_OBJECT_BYTES} that gRPC clients can receive")]
    TooLarge {
        /// In bytes.
        size: usize,
    },
}

/// The borrowed view of what the envelope needs; everything else is skipped without being built.
#[derive(Deserialize)]
struct Envelope<'a> {
    #[serde(rename = "apiVersion", borrow, default)]
    api_version: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    metadata: Option<Metadata<'a>>,
}

#[derive(Deserialize, Default)]
struct Metadata<'a> {
    #[serde(borrow, default)]
    namespace: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    name: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    uid: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    labels: Option<BTreeMap<Cow<'a, str>, Cow<'a, str>>>,
}

const JSON: &str = "application/json";

// === impl Object ===

impl Object {
    /// Makes an object of its parts.
    pub fn new(parts: ObjectParts) -> Self {
        let ObjectParts { key, uid, version, labels, api_version, kind, media_type, body } = parts;
        let (uid, api_version, kind) = (uid.into(), api_version.into(), kind.into());
        Self { key, uid, version, labels, api_version, kind, media_type, body }
    }

    /// Parses a JSON body in Kubernetes' form. An object without `metadata.name` gets `default_name`, in no namespace:
    /// a source that has another name for it (a path) can serve what is not a manifest.
    ///
    /// # Errors
    ///
    /// When the bytes are not JSON, an envelope field has the wrong type, the key is impossible or the body too large.
    pub fn from_json(body: Bytes, default_name: &str, version: ResourceVersion) -> Result<Self, ObjectError> {
        if body.len() > MAX_OBJECT_BYTES {
            return Err(ObjectError::TooLarge { size: body.len() });
        }
        let is_map = body.iter().find(|b| !b.is_ascii_whitespace()) == Some(&b'{');
        let parts = if is_map {
            let Envelope { api_version, kind, metadata } = serde_json::from_slice(&body)?;
            let metadata = metadata.unwrap_or_default();
            let name = metadata.name.unwrap_or_default();
            let key = if name.is_empty() {
                ObjectKey::new("", default_name)?
            } else {
                ObjectKey::new(&metadata.namespace.unwrap_or_default(), &name)?
            };
            ObjectParts {
                key,
                uid: metadata.uid.unwrap_or_default().into_owned(),
                version,
                labels: metadata.labels.unwrap_or_default().into_iter().collect(),
                api_version: api_version.unwrap_or_default().into_owned(),
                kind: kind.unwrap_or_default().into_owned(),
                media_type: JSON,
                body: Bytes::new(),
            }
        } else {
            serde_json::from_slice::<serde::de::IgnoredAny>(&body)?;
            ObjectParts {
                key: ObjectKey::new("", default_name)?,
                uid: String::new(),
                version,
                labels: Labels::default(),
                api_version: String::new(),
                kind: String::new(),
                media_type: JSON,
                body: Bytes::new(),
            }
        };
        Ok(Self::new(ObjectParts { body, ..parts }))
    }

    /// The same object at another version.
    #[must_use]
    pub fn at_version(&self, version: ResourceVersion) -> Self {
        Self { version, ..self.clone() }
    }

    /// Namespace and name.
    pub fn key(&self) -> &ObjectKey {
        &self.key
    }

    /// Identity; empty when the source has none.
    pub fn uid(&self) -> &str {
        &self.uid
    }

    /// The version of the object's last change.
    pub fn version(&self) -> &ResourceVersion {
        &self.version
    }

    /// Labels.
    pub fn labels(&self) -> &Labels {
        &self.labels
    }

    /// For example `apps/v1`; empty when the body has none.
    pub fn api_version(&self) -> &str {
        &self.api_version
    }

    /// For example `Deployment`; empty when the body has none.
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// Of the body, for example `application/json`.
    pub fn media_type(&self) -> &'static str {
        self.media_type
    }

    /// The bytes as the source gave them.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The body, when it is JSON: what paths can look into.
    pub fn json(&self) -> Option<&[u8]> {
        self.json_body().map(|body| &body[..])
    }

    /// The same, to be shared.
    pub(super) fn json_body(&self) -> Option<&Bytes> {
        (self.media_type == JSON).then_some(&self.body)
    }
}

// === impl Labels ===

impl Labels {
    /// The value of a label.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.binary_search_by(|(k, _)| (**k).cmp(key)).ok().map(|at| &*self.0[at].1)
    }

    /// Keys and values, sorted by key.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &str)> {
        self.0.iter().map(|(key, value)| (&**key, &**value))
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Labels {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(labels: I) -> Self {
        let sorted: BTreeMap<String, String> = labels.into_iter().map(|(k, v)| (k.into(), v.into())).collect();
        Self(sorted.into_iter().map(|(k, v)| (k.into(), v.into())).collect())
    }
}

#[cfg(test)]
mod tests {
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
    }

    #[test]
    fn an_object_without_a_name_is_keyed_by_its_default() {
        for json in [r#"{"a":1}"#, "[1,2]", "3", r#"{"metadata":{"namespace":"x"}}"#, r#"{"metadata":null}"#] {
            let object = parse(json).unwrap();
            assert_eq!((object.key().namespace(), object.key().name()), ("", "dir/file.json"), "{json}");
        }
    }

    #[test]
    fn what_is_not_an_object_is_refused_with_its_position() {
        let error = parse(r#"{"metadata":{"name":5}}"#).unwrap_err().to_string();
        assert!(error.contains("line 1 column 21"), "{error}");
        assert!(matches!(parse("{"), Err(ObjectError::Json(_))));
        assert!(matches!(parse(r#"{"metadata":{"name":"a\u0000b"}}"#), Err(ObjectError::Key(KeyError::Nul))));
        let large = format!("{:?}", "x".repeat(MAX_OBJECT_BYTES));
        assert!(matches!(parse(&large), Err(ObjectError::TooLarge { .. })));
    }
}
