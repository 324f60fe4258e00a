//! Variables of the environment in the texts of the configuration file: `${env:NAME}`.
//!
//! A value is inserted into a text, and never read as YAML. So one file can be for all pods of a `DaemonSet`, each with the name of its
//! node.

use serde_json::{Map, Value};

use super::{
    error::{ConfigErrors, join},
    value::quote,
};

const BEGIN: &str = "${env:";

/// Replaces the variables in all texts; adds a problem for each that is not set.
pub(super) fn expand(
    file: &mut Map<String, Value>,
    variable: impl Fn(&str) -> Option<String>,
    errors: &mut ConfigErrors,
) {
    expand_map(file, &mut Vec::new(), &variable, errors);
}

fn expand_map(
    map: &mut Map<String, Value>,
    path: &mut Vec<String>,
    variable: &impl Fn(&str) -> Option<String>,
    errors: &mut ConfigErrors,
) {
    for (key, value) in map {
        path.push(key.clone());
        expand_value(value, path, variable, errors);
        path.pop();
    }
}

fn expand_value(
    value: &mut Value,
    path: &mut Vec<String>,
    variable: &impl Fn(&str) -> Option<String>,
    errors: &mut ConfigErrors,
) {
    match value {
        Value::String(text) if text.contains(BEGIN) => match expand_text(text, variable) {
            Ok(expanded) => *text = expanded,
            Err(problem) => errors.add(&join(path), problem),
        },
        Value::Array(values) => values.iter_mut().for_each(|value| expand_value(value, path, variable, errors)),
        Value::Object(map) => expand_map(map, path, variable, errors),
        _ => {}
    }
}

fn expand_text(text: &str, variable: &impl Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut parts = text.split(BEGIN);
    let mut expanded = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let is_name = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
        let (name, rest) = part
            .split_once('}')
            .filter(|(name, _)| is_name(name))
            .ok_or_else(|| format!("expected ${{env:NAME}}, such as ${{env:NODE_NAME}}, found {}", quote(text)))?;
        let value = variable(name)
            .ok_or_else(|| format!("there is no environment variable {name}; set it, or write a value instead"))?;
        expanded += &value;
        expanded += rest;
    }
    Ok(expanded)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn expanded(file: &Value) -> (Value, String) {
        let mut file = file.as_object().unwrap().clone();
        let mut errors = ConfigErrors::default();
        let variable = |name: &str| match name {
            "NODE_NAME" => Some("node-a".to_owned()),
            "NESTED" => Some("${env:NODE_NAME}: [x]".to_owned()),
            "EMPTY" => Some(String::new()),
            _ => None,
        };
        expand(&mut file, variable, &mut errors);
        (Value::Object(file), errors.to_string())
    }

    #[test]
    fn variables_are_replaced_in_texts_at_any_depth_and_once() {
        let file = json!({
            "a": { "b": ["${env:NODE_NAME}", { "c": "x=${env:NODE_NAME},y=${env:EMPTY}" }] },
            "d": "${env:NESTED}",
            "e": "$NODE_NAME ${NODE_NAME} $(NODE_NAME) }",
            "${env:NODE_NAME}": 1,
        });
        let expected = json!({
            "a": { "b": ["node-a", { "c": "x=node-a,y=" }] },
            "d": "${env:NODE_NAME}: [x]",
            "e": "$NODE_NAME ${NODE_NAME} $(NODE_NAME) }",
            "${env:NODE_NAME}": 1,
        });
        assert_eq!(expanded(&file), (expected, String::new()));
    }

    #[test]
    fn a_variable_that_is_not_set_is_an_error_with_its_key() {
        for (text, problem) in [
            ("${env:OTHER}", "a.b: there is no environment variable OTHER; set it, or write a value instead"),
            ("${env:NODE_NAME", "a.b: expected ${env:NAME}, such as ${env:NODE_NAME}, found \"${env:NODE_NAME\""),
            ("${env:}", "a.b: expected ${env:NAME}, such as ${env:NODE_NAME}, found \"${env:}\""),
            ("${env:A-B}", "a.b: expected ${env:NAME}, such as ${env:NODE_NAME}, found \"${env:A-B}\""),
        ] {
            assert_eq!(expanded(&json!({ "a": { "b": [text] } })).1, problem);
        }
    }
}
