//! JSON schema of the configuration file, for editors and for the values of the Helm chart.
//!
//! It has every key with its type and the bounds of numbers. What has to hold between keys is checked by the program only.

use serde_json::{Map, Value, json};

use super::{keys::reference, rows::Key};
use crate::proto::Compression;

const POLICIES: [&str; 4] = ["drop", "block", "replay", "coalesce"];

/// Returns the schema (JSON Schema, draft 7) of the configuration file.
pub fn json_schema() -> Value {
    let mut schema = section();
    for key in reference() {
        let path: Vec<&str> = key.path.split('.').collect();
        insert(&mut schema, &path, of_key(key));
    }
    let resource = &mut schema["properties"]["resources"]["additionalProperties"];
    resource["required"] = json!(["source"]);
    for exclusive in ["/properties/source", "/properties/indexes/additionalProperties"] {
        let one = resource.pointer_mut(exclusive).expect("a section of the table");
        (one["minProperties"], one["maxProperties"]) = (json!(1), json!(1));
    }
    schema["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    schema
}

/// Returns the schema of a map of keys, none of them known yet.
fn section() -> Value {
    json!({ "type": "object", "additionalProperties": false, "properties": {} })
}

fn insert(section_of: &mut Value, path: &[&str], leaf: Value) {
    let [first, rest @ ..] = path else { return };
    let place = if first.starts_with('<') {
        &mut section_of["additionalProperties"]
    } else {
        section_of["properties"].as_object_mut().expect("a section").entry(*first).or_insert(Value::Null)
    };
    if rest.is_empty() {
        *place = leaf;
        return;
    }
    if !place.is_object() {
        *place = section();
    }
    insert(place, rest, leaf);
}

/// Returns the schema of a value, from its form such as `duration, 100ms to 5m`.
fn of_key(key: &Key) -> Value {
    let form = key.form.replace('_', " ");
    let (form, or_none) = form.strip_suffix(" or none").map_or((form.as_str(), ""), |form| (form, "|none"));
    let (name, bounds) = form.split_once(", ").unwrap_or((form, ""));
    let texts = || json!({ "type": "array", "items": { "type": "string" } });
    let value = match name {
        "boolean" => json!({ "type": "boolean" }),
        "count" => number(bounds, 0),
        "positive count" | "integer" => number(bounds, 1),
        "duration" | "positive duration" => {
            let pattern = format!("^(([0-9]+(us|ms|s|m|h))+|0{or_none})$");
            json!({ "type": ["string", "integer"], "pattern": pattern, "maximum": 0 })
        }
        "size" | "positive size" => {
            json!({ "type": ["string", "integer"], "pattern": "^[0-9]+([KMGT]iB?)?$", "minimum": 0 })
        }
        "policy" => json!({ "enum": POLICIES }),
        "certificate user" => json!({ "enum": ["cn", "san"] }),
        "policies" => json!({ "type": "array", "items": { "enum": POLICIES }, "minItems": 1 }),
        "compressions" => {
            let names: Vec<_> = Compression::ALL.iter().map(|compression| compression.name()).collect();
            json!({ "type": "array", "items": { "enum": names } })
        }
        "rules" => json!({ "type": "array", "items": { "type": "object" } }),
        "field paths" | "paths" => texts(),
        "names" | "namespaces" | "texts" | "endpoints" | "view names" | "host names" | "networks"
        | "printer columns" => {
            let mut list = texts();
            list["minItems"] = json!(1);
            list
        }
        "address" | "address or socket" | "auto or opaque" | "directory" | "endpoint" | "expression" | "field path"
        | "kubernetes name" | "refuse or warn" | "file" | "file or dash" | "kind" | "label" | "shard" | "text" => {
            json!({ "type": "string" })
        }
        // Anything; a test finds it.
        _ => json!({}),
    };
    let Value::Object(mut schema) = value else { return value };
    schema.insert("description".to_owned(), json!(key.meaning));
    if let Some(default) = key.default {
        describe_default(&mut schema, default);
    }
    Value::Object(schema)
}

/// Adds the default, as the file would have it.
fn describe_default(schema: &mut Map<String, Value>, default: &str) {
    let is_text =
        schema.get("type").is_some_and(|kind| kind == "string" || kind.is_array()) || schema.contains_key("enum");
    let parsed = serde_json::from_str(default).ok().filter(|_| !is_text);
    if let Some(value) = parsed.or_else(|| is_text.then(|| json!(default))) {
        schema.insert("default".to_owned(), value);
    }
}

fn number(bounds: &str, least: u64) -> Value {
    let parse = |text: &str| text.parse::<u64>().ok();
    match bounds.split_once(" to ").and_then(|(least, most)| Some((parse(least)?, parse(most)?))) {
        Some((least, most)) => json!({ "type": "integer", "minimum": least, "maximum": most }),
        None => json!({ "type": "integer", "minimum": least }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_has_its_type_and_its_bounds() {
        let schema = json_schema();
        for key in reference() {
            let parts = key.path.split('.').map(|part| match part.strip_prefix('<') {
                Some(_) => "/additionalProperties".to_owned(),
                None => format!("/properties/{part}"),
            });
            let found = schema.pointer(&parts.collect::<String>()).unwrap_or_else(|| panic!("no {}", key.path));
            assert_eq!(found["description"], key.meaning, "{}", key.path);
            assert!(found.get("type").or(found.get("enum")).is_some(), "{}: unknown form {}", key.path, key.form);
        }
        let resource = &schema["properties"]["resources"]["additionalProperties"];
        assert_eq!(
            (&resource["required"], &resource["properties"]["source"]["maxProperties"]),
            (&json!(["source"]), &json!(1))
        );
        for (pointer, expected) in [
            ("watch/properties/max_watchers", json!({ "type": "integer", "minimum": 1, "default": 100_000 })),
            ("limits/properties/peer_share", json!({ "type": "integer", "minimum": 1, "maximum": 100, "default": 25 })),
            ("insecure", json!({ "type": "boolean", "default": false })),
            ("watch/properties/full_channel_policy", json!({ "enum": POLICIES, "default": "replay" })),
            ("listen", json!({ "type": "string", "default": "127.0.0.1:50051" })),
        ] {
            let mut found = schema.pointer(&format!("/properties/{pointer}")).unwrap().clone();
            found.as_object_mut().unwrap().remove("description");
            assert_eq!(found, expected, "{pointer}");
        }
    }

    #[test]
    fn forms_that_are_written_as_text_have_a_pattern() {
        let pattern = |pointer: &str| json_schema().pointer(pointer).unwrap()["pattern"].as_str().unwrap().to_owned();
        assert_eq!(pattern("/properties/history/properties/bytes"), "^[0-9]+([KMGT]iB?)?$");
        assert_eq!(pattern("/properties/drain/properties/delay"), "^(([0-9]+(us|ms|s|m|h))+|0)$");
        let stream = "/properties/resources/additionalProperties/properties/source/properties/stream";
        assert_eq!(pattern(&format!("{stream}/properties/confirm_after")), "^(([0-9]+(us|ms|s|m|h))+|0|none)$");
    }
}
