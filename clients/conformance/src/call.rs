//! Handler calls that a script expects, as the driver prints them. A part that is left out is free.

use serde_json::{Value, json};

use super::message::Thing;

pub(crate) fn added(object: &Thing) -> Value {
    json!({ "event": "added", "object": object.json() })
}

pub(crate) fn updated(old: &Thing, new: &Thing) -> Value {
    json!({ "event": "updated", "old": old.json(), "object": new.json() })
}

/// Expects the deletion that the server has sent.
pub(crate) fn deleted(last: &Thing, cause: &str) -> Value {
    json!({ "event": "deleted", "object": last.json(), "cause": cause })
}

/// Expects a deletion of which the client has only the last state, so that its version is free.
pub(crate) fn deleted_at_any_version(last: &Thing, cause: &str) -> Value {
    let mut call = deleted(last, cause);
    if let Some(object) = call["object"].as_object_mut() {
        object.remove("version");
    }
    call
}

/// Expects a deletion that the client infers.
pub(crate) fn inferred(last: &Thing) -> Value {
    deleted_at_any_version(last, "INFERRED")
}

/// Returns true for an event line of a handler call.
pub(crate) fn is_call(event: &Value) -> bool {
    matches!(event["event"].as_str(), Some("added" | "updated" | "deleted"))
}

/// Returns true if a received value has everything that is expected.
pub(crate) fn matches(expected: &Value, received: &Value) -> bool {
    match (expected, received) {
        (Value::Object(expected), Value::Object(received)) => expected.iter().all(|(name, expected)| {
            let received = received.get(name);
            // Labels and bodies are compared whole.
            let is_whole = name == "labels" || name == "body";
            received.is_some_and(|received| if is_whole { expected == received } else { matches(expected, received) })
        }),
        _ => expected == received,
    }
}

/// Returns true if each received value matches another expected one.
pub(crate) fn match_in_any_order(expected: &[Value], received: &[Value]) -> bool {
    let mut rest: Vec<_> = expected.iter().collect();
    received.iter().all(|received| {
        let at = rest.iter().position(|expected| matches(expected, received));
        at.map(|at| rest.swap_remove(at)).is_some()
    })
}

/// Returns a line of the driver for people.
pub(crate) fn describe(event: &Value) -> String {
    let object = |object: &Value| {
        let key = format!("{}/{}", object["namespace"].as_str().unwrap_or("?"), object["name"].as_str().unwrap_or("?"));
        let version = object["version"].as_str().map(|version| format!(" version={version}")).unwrap_or_default();
        let (uid, labels) = (object["uid"].as_str().unwrap_or("?"), &object["labels"]);
        let body = object["body"].to_string();
        let body: String = body.chars().take(120).collect();
        format!("{key} uid={uid}{version} labels={labels} body={body}")
    };
    match event["event"].as_str() {
        Some("updated") => format!("updated {}\n             of {}", object(&event["object"]), object(&event["old"])),
        Some("deleted") => format!("deleted {} cause={}", object(&event["object"]), event["cause"]),
        Some("added") => format!("added {}", object(&event["object"])),
        _ => event.to_string().chars().take(300).collect(),
    }
}

/// Returns two logs, one below the other.
pub(crate) fn describe_both(expected: &[Value], received: &[Value]) -> String {
    let lines = |events: &[Value]| {
        let lines: Vec<_> = events.iter().map(|event| format!("\n      {}", describe(event))).collect();
        if lines.is_empty() { "\n      (none)".to_owned() } else { lines.concat() }
    };
    format!("\n    expected:{}\n    received:{}", lines(expected), lines(received))
}
