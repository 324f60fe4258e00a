//! JSON into `google.protobuf.Struct`, without a tree in between.

use std::fmt;

use prost_types::{ListValue, Struct, Value, value::Kind};
use serde::{
    Deserialize,
    de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor},
};

/// Clients in every language decode messages nested up to 100 deep; a map in a map costs three of them.
const MAX_DEPTH: usize = 30;

/// The Struct of a JSON map. `None` when the text is not a map, or is nested deeper than clients can decode.
pub(super) fn to_struct(json: &[u8]) -> Option<Struct> {
    struct Root(Struct);
    impl<'de> Deserialize<'de> for Root {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            match (ValueSeed { depth: 0 }).deserialize(deserializer)?.kind {
                Some(Kind::StructValue(fields)) => Ok(Self(fields)),
                _ => Err(D::Error::custom("not a map")),
            }
        }
    }
    // Not worth a scan of anything else than a map.
    if json.iter().find(|b| !b.is_ascii_whitespace()) != Some(&b'{') {
        return None;
    }
    serde_json::from_slice::<Root>(json).ok().map(|root| root.0)
}

#[derive(Clone, Copy)]
struct ValueSeed {
    depth: usize,
}

// === impl ValueSeed ===

impl ValueSeed {
    fn deeper<E: Error>(self) -> Result<Self, E> {
        if self.depth >= MAX_DEPTH {
            return Err(E::custom("nested too deep for a Struct"));
        }
        Ok(Self { depth: self.depth + 1 })
    }
}

impl<'de> DeserializeSeed<'de> for ValueSeed {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any JSON value")
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(value(Kind::NullValue(0)))
    }

    fn visit_bool<E: Error>(self, bool: bool) -> Result<Value, E> {
        Ok(value(Kind::BoolValue(bool)))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Value, E> {
        self.visit_f64(number as f64)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Value, E> {
        self.visit_f64(number as f64)
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Value, E> {
        Ok(value(Kind::NumberValue(number)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Value, E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Value, E> {
        Ok(value(Kind::StringValue(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let seed = self.deeper()?;
        let mut values = Vec::new();
        while let Some(value) = seq.next_element_seed(seed)? {
            values.push(value);
        }
        Ok(value(Kind::ListValue(ListValue { values })))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let seed = self.deeper()?;
        let mut fields = Struct::default().fields;
        while let Some(key) = map.next_key::<String>()? {
            fields.insert(key, map.next_value_seed(seed)?);
        }
        Ok(value(Kind::StructValue(Struct { fields })))
    }
}

fn value(kind: Kind) -> Value {
    Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn what_is_not_a_map_or_is_too_deep_has_no_struct() {
        for json in ["[]", "1", "", "{", "\"{}\"", "{}x"] {
            assert!(to_struct(json.as_bytes()).is_none(), "{json}");
        }
        let nested = |depth: usize| format!("{}1{}", "{\"a\":".repeat(depth), "}".repeat(depth));
        assert!(to_struct(nested(MAX_DEPTH).as_bytes()).is_some());
        assert!(to_struct(nested(MAX_DEPTH + 1).as_bytes()).is_none());
        assert!(to_struct("[".repeat(100_000).as_bytes()).is_none());
    }

    /// The deepest Struct that is sent can be decoded with the usual recursion limit.
    #[test]
    fn the_deepest_struct_can_be_decoded() {
        use prost::Message;
        let json = format!("{}1{}", "{\"a\":".repeat(MAX_DEPTH), "}".repeat(MAX_DEPTH));
        let encoded = to_struct(json.as_bytes()).unwrap().encode_to_vec();
        // Nested once more in Object and WatchResponse, as it is on the wire.
        assert!(Struct::decode(&*encoded).is_ok());
    }
}
