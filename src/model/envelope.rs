//! Envelope of a JSON body, read once on receipt: type, key, identity and labels. Everything else is skipped without being
//! built, and strings that are verbatim in the body are not copied.

use std::{borrow::Cow, fmt, marker::PhantomData, ops::Deref};

use serde::{
    Deserialize,
    de::{Deserializer, IgnoredAny, MapAccess, Visitor},
};

/// Envelope of an object, borrowed from the text that it was read from. Missing and null fields are empty.
#[derive(Debug, Default)]
pub(crate) struct Envelope<'a> {
    pub(crate) api_version: JsonText<'a>,
    pub(crate) kind: JsonText<'a>,
    pub(crate) namespace: JsonText<'a>,
    pub(crate) name: JsonText<'a>,
    pub(crate) uid: JsonText<'a>,
    pub(crate) resource_version: JsonText<'a>,
    /// Labels, sorted by key, and each key once.
    pub(crate) labels: Vec<(JsonText<'a>, JsonText<'a>)>,
}

/// String in JSON: borrowed, unless it has escapes. (Within another type serde borrows no `Cow` that is not marked so.)
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
pub struct JsonText<'a>(#[serde(borrow)] Cow<'a, str>);

#[derive(Default)]
struct Metadata<'a> {
    namespace: Option<JsonText<'a>>,
    name: Option<JsonText<'a>>,
    uid: Option<JsonText<'a>>,
    resource_version: Option<JsonText<'a>>,
    labels: Option<Pairs<'a, JsonText<'a>>>,
}

/// Visitors of maps in which the last of several fields with one name counts, as for all who read values by path.
struct EnvelopeVisitor;
struct MetadataVisitor;

/// Entries of a map, in the order of the text.
pub(crate) struct Pairs<'a, V>(Vec<(JsonText<'a>, V)>);

struct PairsVisitor<V>(PhantomData<V>);

// === impl Envelope ===

impl<'de: 'a, 'a> Deserialize<'de> for Envelope<'a> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_map(EnvelopeVisitor)
    }
}

impl<'de> Visitor<'de> for EnvelopeVisitor {
    type Value = Envelope<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Envelope<'de>, A::Error> {
        let (mut api_version, mut kind, mut metadata) = (None, None, None);
        while let Some(field) = map.next_key::<JsonText<'_>>()? {
            match &*field {
                "apiVersion" => api_version = map.next_value()?,
                "kind" => kind = map.next_value()?,
                "metadata" => metadata = map.next_value()?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        let Metadata { namespace, name, uid, resource_version, labels } = metadata.unwrap_or_default();
        Ok(Envelope {
            api_version: api_version.unwrap_or_default(),
            kind: kind.unwrap_or_default(),
            namespace: namespace.unwrap_or_default(),
            name: name.unwrap_or_default(),
            uid: uid.unwrap_or_default(),
            resource_version: resource_version.unwrap_or_default(),
            labels: labels.map(Pairs::into_map).unwrap_or_default(),
        })
    }
}

// === impl Metadata ===

impl<'de: 'a, 'a> Deserialize<'de> for Metadata<'a> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_map(MetadataVisitor)
    }
}

impl<'de> Visitor<'de> for MetadataVisitor {
    type Value = Metadata<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata<'de>, A::Error> {
        let mut metadata = Metadata::default();
        while let Some(field) = map.next_key::<JsonText<'_>>()? {
            match &*field {
                "namespace" => metadata.namespace = map.next_value()?,
                "name" => metadata.name = map.next_value()?,
                "uid" => metadata.uid = map.next_value()?,
                "resourceVersion" => metadata.resource_version = map.next_value()?,
                "labels" => metadata.labels = map.next_value()?,
                _ => drop(map.next_value::<IgnoredAny>()?),
            }
        }
        Ok(metadata)
    }
}

// === impl Pairs ===

impl<'a> Pairs<'a, JsonText<'a>> {
    /// Sorts the entries. The last value of a repeated key counts, as in every map of serde's.
    fn into_map(self) -> Vec<(JsonText<'a>, JsonText<'a>)> {
        let Self(mut pairs) = self;
        // Go writes maps sorted.
        if !pairs.is_sorted_by(|(a, _), (b, _)| a < b) {
            pairs.reverse();
            pairs.sort_by(|(a, _), (b, _)| a.cmp(b));
            pairs.dedup_by(|(later, _), (kept, _)| later == kept);
        }
        pairs
    }
}

impl<'a, V> Deref for Pairs<'a, V> {
    type Target = [(JsonText<'a>, V)];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

impl<'de: 'a, 'a, V: Deserialize<'de>> Deserialize<'de> for Pairs<'a, V> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_map(PairsVisitor(PhantomData))
    }
}

impl<'de, V: Deserialize<'de>> Visitor<'de> for PairsVisitor<V> {
    type Value = Pairs<'de, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'de, V>, A::Error> {
        let mut pairs = Vec::new();
        while let Some(pair) = map.next_entry()? {
            pairs.push(pair);
        }
        Ok(Pairs(pairs))
    }
}

// === impl JsonText ===

impl<'a> From<&'a str> for JsonText<'a> {
    fn from(text: &'a str) -> Self {
        Self(Cow::Borrowed(text))
    }
}

impl Deref for JsonText<'_> {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::{collection::vec, prelude::*};

    use super::*;

    fn is_borrowed(text: &JsonText<'_>) -> bool {
        matches!(text.0, Cow::Borrowed(_))
    }

    #[test]
    fn only_strings_with_escapes_are_copied() {
        let json = r#"{"kind":"Pod","metadata":{"name":"w\u0065b","labels":{"b":"x\ty","a":"z"}}}"#;
        let Envelope { kind, name, labels, uid, .. } = serde_json::from_str(json).unwrap();
        assert!(is_borrowed(&kind) && !is_borrowed(&name), "{kind:?} {name:?}");
        assert_eq!((&*kind, &*name, &*uid), ("Pod", "web", ""));
        assert_eq!(labels.iter().map(|(_, value)| is_borrowed(value)).collect::<Vec<_>>(), [true, false]);
    }

    /// Paths and expressions read the last one, too.
    #[test]
    fn the_last_of_repeated_fields_counts() {
        for json in [
            r#"{"kind":"A","metadata":{"name":"a","uid":"u","labels":{"t":"1"}},"kind":"B","metadata":{"name":"b","labels":{"t":"2"}}}"#,
            r#"{"kind":"B","metadata":{"name":"a","labels":{"t":"1"},"name":"b","labels":{"t":"2"}}}"#,
        ] {
            let Envelope { kind, name, uid, labels, .. } = serde_json::from_str(json).unwrap();
            assert_eq!((&*kind, &*name, &*uid), ("B", "b", ""));
            assert_eq!(labels.iter().map(|(key, value)| (&**key, &**value)).collect::<Vec<_>>(), [("t", "2")]);
        }
    }

    proptest! {
        #![proptest_config(crate::property_config())]

        #[test]
        fn labels_equal_a_map_that_serde_reads(pairs in vec(("[a-c\"é]{0,2}", "[a-z\n]{0,3}"), 0..6)) {
            let entry = |(key, value): &(String, String)| format!("{}:{}", serde_json::json!(key), serde_json::json!(value));
            let map = format!("{{{}}}", pairs.iter().map(entry).collect::<Vec<_>>().join(","));
            let expected: BTreeMap<String, String> = serde_json::from_str(&map).unwrap();
            let json = format!(r#"{{"metadata":{{"labels":{map}}}}}"#);
            let Envelope { labels, .. } = serde_json::from_str(&json).unwrap();
            let found: Vec<(&str, &str)> = labels.iter().map(|(key, value)| (&**key, &**value)).collect();
            prop_assert_eq!(found, expected.iter().map(|(key, value)| (&**key, &**value)).collect::<Vec<_>>());
        }
    }
}
