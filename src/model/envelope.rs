//! Envelope of a JSON body, read once on receipt: type, key, identity and labels. Everything else is skipped without being
//! built, and strings that are verbatim in the body are not copied.

use std::{borrow::Cow, fmt, ops::Deref};

use serde::{
    Deserialize,
    de::{Deserializer, Error, MapAccess, Visitor},
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

/// String in JSON: borrowed, unless it has escapes. (serde never borrows a `Cow` within another type.)
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct JsonText<'a>(Cow<'a, str>);

#[derive(Deserialize)]
struct Fields<'a> {
    #[serde(rename = "apiVersion", borrow, default)]
    api_version: Option<JsonText<'a>>,
    #[serde(borrow, default)]
    kind: Option<JsonText<'a>>,
    #[serde(borrow, default)]
    metadata: Option<Metadata<'a>>,
}

#[derive(Deserialize, Default)]
struct Metadata<'a> {
    #[serde(borrow, default)]
    namespace: Option<JsonText<'a>>,
    #[serde(borrow, default)]
    name: Option<JsonText<'a>>,
    #[serde(borrow, default)]
    uid: Option<JsonText<'a>>,
    #[serde(rename = "resourceVersion", borrow, default)]
    resource_version: Option<JsonText<'a>>,
    #[serde(borrow, default)]
    labels: Option<Pairs<'a>>,
}

/// Entries of a map of strings, in the order of the text.
#[derive(Default)]
struct Pairs<'a>(Vec<(JsonText<'a>, JsonText<'a>)>);

struct PairsVisitor;

struct TextVisitor;

// === impl Envelope ===

impl<'de: 'a, 'a> Deserialize<'de> for Envelope<'a> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        let Fields { api_version, kind, metadata } = Fields::deserialize(json)?;
        let Metadata { namespace, name, uid, resource_version, labels } = metadata.unwrap_or_default();
        Ok(Self {
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

// === impl Pairs ===

impl<'a> Pairs<'a> {
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

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_map(PairsVisitor)
    }
}

impl<'de> Visitor<'de> for PairsVisitor {
    type Value = Pairs<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'de>, A::Error> {
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

impl<'de: 'a, 'a> Deserialize<'de> for JsonText<'a> {
    fn deserialize<D: Deserializer<'de>>(json: D) -> Result<Self, D::Error> {
        json.deserialize_str(TextVisitor)
    }
}

impl<'de> Visitor<'de> for TextVisitor {
    type Value = JsonText<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<JsonText<'de>, E> {
        Ok(text.into())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<JsonText<'de>, E> {
        Ok(JsonText(Cow::Owned(text.to_owned())))
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
