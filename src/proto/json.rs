//! Conversion of JSON to `google.protobuf.Struct` without an intermediate tree.

use std::{cell::Cell, fmt};

use prost::Message;
use prost_types::{ListValue, Struct, Value, value::Kind};
use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::model::Object;

/// Maximum depth of maps: clients in every language decode messages nested up to 100 deep, and a map in a map takes three levels.
const MAX_DEPTH: usize = 30;

/// Lower bounds on the encoded size of a value in a list or map, with its length prefixes, in bytes.
const NUMBER_BYTES: usize = 11;
const TEXT_BYTES: usize = 4;
const OTHER_BYTES: usize = 4;

/// Converts a JSON map to a Struct. Returns `None` if the text is not a map, is nested deeper than clients can decode, or is
/// larger than `max_bytes` as a Struct, which takes many times the size of short numbers in text: with their default limit,
/// clients could never receive it.
pub(super) fn to_struct(json: &[u8], max_bytes: usize) -> Option<Struct> {
    // Only a map is worth parsing.
    if json.iter().find(|b| !b.is_ascii_whitespace()) != Some(&b'{') {
        return None;
    }
    let left = Cell::new(max_bytes + OTHER_BYTES);
    let mut text = serde_json::Deserializer::from_slice(json);
    let root = ValueSeed { depth: 0, left: &left }.deserialize(&mut text).ok()?;
    text.end().ok()?;
    match root.kind {
        Some(Kind::StructValue(fields)) if fields.encoded_len() <= max_bytes => Some(fields),
        _ => None,
    }
}

/// Converts the body of an object, unless a message of the object would be too large with it.
pub(super) fn of(object: &Object) -> Option<Struct> {
    to_struct(object.json()?, object.max_body_bytes())
}

#[derive(Clone, Copy)]
struct ValueSeed<'a> {
    depth: usize,
    /// Number of bytes that the Struct may still have: parsing stops as soon as it is certainly too large.
    left: &'a Cell<usize>,
}

// === impl ValueSeed ===

impl ValueSeed<'_> {
    fn deeper<E: Error>(self) -> Result<Self, E> {
        if self.depth >= MAX_DEPTH {
            return Err(E::custom("nested too deep for a Struct"));
        }
        Ok(Self { depth: self.depth + 1, ..self })
    }

    fn value<E: Error>(self, kind: Kind, bytes: usize) -> Result<Value, E> {
        let left = self.left.get().checked_sub(bytes).ok_or_else(|| E::custom("too large for a Struct"))?;
        self.left.set(left);
        Ok(Value { kind: Some(kind) })
    }
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        self.value(Kind::NullValue(0), OTHER_BYTES)
    }

    fn visit_bool<E: Error>(self, bool: bool) -> Result<Value, E> {
        self.value(Kind::BoolValue(bool), OTHER_BYTES)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        self.visit_f64(number as f64)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        self.visit_f64(number as f64)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        self.value(Kind::NumberValue(number), NUMBER_BYTES)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Value, E> {
        let bytes = TEXT_BYTES + text.len();
        self.value(Kind::StringValue(text), bytes)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let seed = self.deeper()?;
        let mut values = Vec::new();
        while let Some(value) = seq.next_element_seed(seed)? {
            values.push(value);
        }
        self.value(Kind::ListValue(ListValue { values }), OTHER_BYTES)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let seed = self.deeper()?;
        let mut fields = Struct::default().fields;
        while let Some(key) = map.next_key::<String>()? {
            fields.insert(key, map.next_value_seed(seed)?);
        }
        self.value(Kind::StructValue(Struct { fields }), OTHER_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::MAX_OBJECT_BYTES;

    fn to_struct(json: &[u8]) -> Option<Struct> {
        super::to_struct(json, MAX_OBJECT_BYTES)
    }

    #[test]
    fn every_kind_of_value_has_its_struct_value() {
        let json = br#" {"s":"x","n":1.5,"i":-3,"b":true,"z":null,"l":[1,{"a":"\u00e9"}],"m":{}} "#;
        let fields = to_struct(json).unwrap().fields;
        let kind = |name: &str| fields[name].kind.clone().unwrap();
        assert_eq!(kind("s"), Kind::StringValue("x".into()));
        assert_eq!(kind("n"), Kind::NumberValue(1.5));
        assert_eq!(kind("i"), Kind::NumberValue(-3.0));
        assert_eq!(kind("b"), Kind::BoolValue(true));
        assert_eq!(kind("z"), Kind::NullValue(0));
        assert_eq!(kind("m"), Kind::StructValue(Struct::default()));
        let Kind::ListValue(list) = kind("l") else { panic!("a list") };
        assert_eq!(list.values.len(), 2);
    }

    #[test]
    fn only_maps_within_the_depth_limit_have_a_struct() {
        for json in ["[]", "1", "", "{", "\"{}\"", "{}x"] {
            assert!(to_struct(json.as_bytes()).is_none(), "{json}");
        }
        let nested = |depth: usize| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        assert!(to_struct(nested(MAX_DEPTH).as_bytes()).is_some());
        assert!(to_struct(nested(MAX_DEPTH + 1).as_bytes()).is_none());
        assert!(to_struct("[".repeat(100_000).as_bytes()).is_none());
    }

    /// A client with the usual limit can receive every Struct that is sent.
    #[test]
    fn bodies_too_large_as_a_struct_have_none() {
        for element in ["1", "\"a\"", "null", "[]", "{}", "{\"a\":1.5}"] {
            let fields =
                |elements: usize| to_struct(format!("{{\"l\":[{}]}}", vec![element; elements].join(",")).as_bytes());
            let each = fields(2).unwrap().encoded_len() - fields(1).unwrap().encoded_len();
            // Leaves room for longer length prefixes of the list, its value and its field.
            let most = fields((MAX_OBJECT_BYTES - 30) / each).unwrap().encoded_len();
            assert!((MAX_OBJECT_BYTES - 30 - each..=MAX_OBJECT_BYTES).contains(&most), "{element}: {most}");
            assert!(fields(MAX_OBJECT_BYTES / each).is_none(), "{element}");
        }
    }

    /// Clients with the usual recursion limit can decode the deepest Struct that is sent.
    #[test]
    fn the_deepest_struct_can_be_decoded() {
        let json = format!("{}1{}", "{\"a\":".repeat(MAX_DEPTH), "}".repeat(MAX_DEPTH));
        let encoded = to_struct(json.as_bytes()).unwrap().encode_to_vec();
        // Nested once more in Object and WatchResponse, as on the wire.
        assert!(Struct::decode(&*encoded).is_ok());
    }
}
