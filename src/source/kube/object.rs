//! Objects of an API: the bytes to keep of them, and the ones that cannot be served.

use std::{borrow::Cow, collections::BTreeMap};

use serde::{Deserialize, Deserializer, de::IgnoredAny};
use serde_json::value::RawValue;

use super::KubeConfig;
use crate::{
    cache::{Problem, ProblemReason},
    model::{FieldCut, JsonText, Object, ObjectError, ObjectKey, ObjectParts, ResourceVersion},
    source::{problems::subject_of, watch_event::INITIAL_EVENTS_END},
};

/// One decoded object.
#[derive(Debug)]
pub(super) struct DecodedObject {
    pub(super) object: Object,
    /// The API's text for its version, if that is not a decimal.
    pub(super) text: String,
    /// Reason for which it cannot be served; the object then has only its key, uid and version.
    pub(super) problem: Option<Problem>,
}

/// Object decoder.
#[derive(Debug, Clone, Copy)]
pub(super) struct ObjectDecoder<'a> {
    cut: &'a FieldCut,
    is_metadata_only: bool,
    /// True if versions have to be decimals.
    is_decimal: bool,
}

/// Type of the items of a list, which omit their own.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct ItemType<'a> {
    pub(super) api_version: &'a str,
    pub(super) kind: &'a str,
}

impl<'a> ItemType<'a> {
    /// Returns the type of the items of a list of this type.
    pub(super) fn of_list(kind: Option<&'a str>, api_version: Option<&'a str>) -> Self {
        let kind = kind.and_then(|kind| kind.strip_suffix("List")).unwrap_or_default();
        Self { kind, api_version: api_version.unwrap_or_default() }
    }
}

/// Content of a bookmark's object.
#[derive(Debug, Default)]
pub(super) struct Bookmark {
    pub(super) version: String,
    /// Kind and API version of the objects; empty if it has none.
    pub(super) kind: String,
    pub(super) api_version: String,
    /// True if the bookmark ends the initial events.
    pub(super) ends_initial_events: bool,
}

/// apimachinery's `TypeMeta`: presence of its fields, with any value.
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct TypeMeta {
    api_version: Written,
    kind: Written,
}

/// Presence of a field.
#[derive(Default)]
struct Written(bool);

/// Part of an object that a `PartialObjectMetadata` has.
#[derive(Deserialize)]
struct Partial<'a> {
    #[serde(borrow)]
    metadata: &'a RawValue,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Bare<'a> {
    #[serde(borrow, default)]
    kind: Option<JsonText<'a>>,
    #[serde(borrow, default)]
    api_version: Option<JsonText<'a>>,
    #[serde(borrow)]
    metadata: BareMetadata<'a>,
}

#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct BareMetadata<'a> {
    #[serde(borrow)]
    namespace: Option<JsonText<'a>>,
    #[serde(borrow)]
    name: Option<JsonText<'a>>,
    #[serde(borrow)]
    uid: Option<JsonText<'a>>,
    #[serde(borrow)]
    resource_version: Option<JsonText<'a>>,
    annotations: Option<BTreeMap<String, String>>,
}

/// Placeholder of a version until it is numbered.
const UNCOUNTED: ResourceVersion = ResourceVersion::decimal(1);

// === impl ObjectDecoder ===

impl<'a> ObjectDecoder<'a> {
    pub(super) fn new(config: &'a KubeConfig, is_decimal: bool) -> Self {
        let KubeConfig { drop_fields, is_metadata_only, .. } = config;
        Self { cut: drop_fields, is_metadata_only: *is_metadata_only, is_decimal }
    }

    /// Decodes one object.
    ///
    /// # Errors
    ///
    /// The object has no key, or no version of the expected kind. One that is only too large gives an item.
    pub(super) fn read(self, body: &[u8]) -> Result<DecodedObject, ObjectError> {
        let body = self.cut.apply(body);
        if self.is_metadata_only { self.read_cut(&partial(&body)?) } else { self.read_cut(&body) }
    }

    /// Decodes an item of a list, which has the type before its items (and omits it in them).
    pub(super) fn read_listed(self, body: &[u8], listed: ItemType<'_>) -> Result<DecodedObject, ObjectError> {
        if self.is_metadata_only {
            return self.read(body);
        }
        let body = self.cut.apply(body);
        let TypeMeta { api_version: Written(has_version), kind: Written(has_kind) } = serde_json::from_slice(&body)?;
        let body = if has_version || has_kind || listed.kind.is_empty() { body } else { typed(&body, listed) };
        self.read_cut(&body)
    }

    fn read_cut(self, body: &[u8]) -> Result<DecodedObject, ObjectError> {
        let mut text = String::new();
        let version = |found: &str| {
            if self.is_decimal {
                return ResourceVersion::parse_decimal(found);
            }
            found.clone_into(&mut text);
            Ok(UNCOUNTED)
        };
        match Object::from_json_versioned(body, version) {
            Ok(object) => Ok(DecodedObject { object, text, problem: None }),
            Err(error) if error.is_too_large() => self.bare(body, &error),
            Err(error) => Err(error),
        }
    }

    /// Returns an item without a body for an object too large to be served, so that the others can be served.
    fn bare(self, body: &[u8], error: &ObjectError) -> Result<DecodedObject, ObjectError> {
        let Bare { metadata, .. } = serde_json::from_slice(body)?;
        let text = metadata.resource_version.as_deref().unwrap_or_default();
        let version = if self.is_decimal { ResourceVersion::parse_decimal(text)? } else { UNCOUNTED };
        let namespace = metadata.namespace.as_deref().unwrap_or_default();
        let key = ObjectKey::new(namespace, metadata.name.as_deref().unwrap_or_default())?;
        let problem = Problem::new(ProblemReason::ObjectTooLarge, subject_of(&key), error.to_string());
        let uid = metadata.uid.as_deref().unwrap_or_default().to_owned();
        let object = Object::new(ObjectParts { uid, ..ObjectParts::bare(key, version) });
        Ok(DecodedObject { object, text: text.to_owned(), problem: Some(problem) })
    }
}

// === impl Written ===

impl<'de> Deserialize<'de> for Written {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        IgnoredAny::deserialize(json).map(|_| Self(true))
    }
}

// === impl Bookmark ===

impl Bookmark {
    /// Decodes the object of a bookmark.
    pub(super) fn read(object: &str) -> Result<Self, ObjectError> {
        let Bare { kind, api_version, metadata } = serde_json::from_str(object)?;
        let annotations = metadata.annotations.unwrap_or_default();
        Ok(Self {
            kind: kind.as_deref().unwrap_or_default().to_owned(),
            api_version: api_version.as_deref().unwrap_or_default().to_owned(),
            version: metadata.resource_version.as_deref().unwrap_or_default().to_owned(),
            ends_initial_events: annotations.get(INITIAL_EVENTS_END).is_some_and(|value| value == "true"),
        })
    }
}

/// Returns a `PartialObjectMetadata`, byte for byte as an API server of Kubernetes writes it. If the API ignores the type
/// and answers with whole objects, the rest of them is dropped.
fn partial(body: &[u8]) -> Result<Vec<u8>, ObjectError> {
    let Partial { metadata } = serde_json::from_slice(body)?;
    Ok(format!(r#"{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{metadata}}}"#).into())
}

/// Puts the type first, as the API writes it in watch events.
fn typed<'a>(body: &'a [u8], listed: ItemType<'_>) -> Cow<'a, [u8]> {
    let Some(rest) = body.strip_prefix(b"{") else { return body.into() };
    let ItemType { api_version, kind } = listed;
    let head = format!(r#"{{"kind":{},"apiVersion":{},"#, serde_json::json!(kind), serde_json::json!(api_version));
    [head.as_bytes(), rest].concat().into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{MAX_OBJECT_BYTES, Path};

    const LISTED: ItemType<'static> = ItemType { api_version: "v1", kind: "Pod" };

    fn reader(cut: &FieldCut) -> ObjectDecoder<'_> {
        ObjectDecoder { cut, is_metadata_only: false, is_decimal: true }
    }

    #[test]
    fn an_item_of_a_list_has_the_bytes_of_an_event() {
        let cut = FieldCut::new([Path::parse("metadata.managedFields").unwrap()]).unwrap();
        let listed = br#"{"metadata":{"name":"a","resourceVersion":"5","managedFields":[{}]},"n":1.50}"#;
        let told = br#"{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a","resourceVersion":"5","managedFields":[]},"n":1.50}"#;
        let (listed, told) = (reader(&cut).read_listed(listed, LISTED).unwrap(), reader(&cut).read(told).unwrap());
        assert_eq!(listed.object, told.object);
        let typed = br#"{"kind":"X","metadata":{"name":"a","resourceVersion":"5"}}"#;
        assert_eq!(reader(&cut).read_listed(typed, LISTED).unwrap().object.body(), typed, "as it came");
        let without = br#"{"kind":"","apiVersion":null,"metadata":{"name":"a","resourceVersion":"5"}}"#;
        assert_eq!(reader(&cut).read_listed(without, LISTED).unwrap().object.body(), without, "as it came");
    }

    /// The first is as the API server of Kubernetes writes it, the others as an API that does not support the type.
    #[test]
    fn only_the_metadata_of_a_whole_object_is_kept() {
        let cut = FieldCut::new([Path::parse("metadata.managedFields").unwrap()]).unwrap();
        let reader = ObjectDecoder { is_metadata_only: true, ..reader(&cut) };
        let metadata = r#""metadata":{"name":"a","resourceVersion":"5","labels":{"x":"y"}}"#;
        let expected = format!(r#"{{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1",{metadata}}}"#);
        let managed = metadata.replace("}}", r#"},"managedFields":[{"manager":"k"}]}"#);
        let large = "x".repeat(MAX_OBJECT_BYTES);
        for body in [
            expected.clone(),
            format!(r#"{{"kind":"Secret","apiVersion":"v1",{metadata},"data":{{"metadata":"c2VjcmV0"}}}}"#),
            format!(r#"{{"data":{{"a":"c2VjcmV0"}}, {managed} ,"stringData":"{large}"}}"#),
            format!("{{{metadata}}}"),
        ] {
            for item in [reader.read(body.as_bytes()).unwrap(), reader.read_listed(body.as_bytes(), LISTED).unwrap()] {
                assert_eq!(str::from_utf8(item.object.body()).unwrap(), expected, "{}", &body[..80]);
                assert_eq!((item.object.kind(), item.problem), ("PartialObjectMetadata", None));
            }
        }
        assert!(reader.read(br#"{"kind":"Secret","data":{}}"#).is_err(), "it has no name");
    }

    #[test]
    fn an_object_that_is_too_large_keeps_its_key() {
        let cut = FieldCut::default();
        let large = "x".repeat(MAX_OBJECT_BYTES);
        let metadata = r#"{"name":"a","namespace":"n","uid":"u","resourceVersion":"5"}"#;
        let body = format!(r#"{{"metadata":{metadata},"x":"{large}"}}"#);
        let item = reader(&cut).read(body.as_bytes()).unwrap();
        assert_eq!(item.object.uid(), "u");
        assert_eq!((item.object.key().to_string().as_str(), item.object.version().number()), ("n/a", 5));
        assert!(item.problem.unwrap().message.contains("receive at most 3145728"));
        let cut = FieldCut::new([Path::parse("x").unwrap()]).unwrap();
        assert_eq!(reader(&cut).read(body.as_bytes()).unwrap().problem, None, "what is cut does not count");
    }

    #[test]
    fn a_version_that_is_no_decimal_is_a_text() {
        let cut = FieldCut::default();
        let body = br#"{"metadata":{"name":"a","resourceVersion":"x-1"}}"#;
        assert!(matches!(reader(&cut).read(body), Err(ObjectError::Version(_))));
        let like_ours = br#"{"metadata":{"name":"a","resourceVersion":"abc.7"}}"#;
        assert!(matches!(reader(&cut).read(like_ours), Err(ObjectError::Version(_))));
        assert_eq!(ObjectDecoder { is_decimal: false, ..reader(&cut) }.read(body).unwrap().text, "x-1");
    }

    /// `TestWatchList`: a bookmark with any other value does not count.
    #[test]
    fn a_bookmark_ends_the_initial_events_only_if_the_annotation_is_true() {
        let read = |value: &str| {
            let annotations = format!(r#"{{"{INITIAL_EVENTS_END}":"{value}"}}"#);
            Bookmark::read(&format!(r#"{{"metadata":{{"resourceVersion":"7","annotations":{annotations}}}}}"#)).unwrap()
        };
        assert!(read("true").ends_initial_events && !read("1").ends_initial_events);
        let plain = Bookmark::read(r#"{"kind":"Pod","metadata":{"resourceVersion":"7"}}"#).unwrap();
        assert_eq!((plain.version.as_str(), plain.ends_initial_events), ("7", false));
    }
}
