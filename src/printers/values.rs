//! Values of cells, from the body of an object.

use serde_json::Value;

/// Text of an empty cell.
pub(crate) const NONE: &str = "<none>";

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(_) | Value::Bool(_) => Some(value.to_string()),
        _ => None,
    }
}

pub(crate) fn text_or(body: &Value, pointer: &str, default: &str) -> String {
    body.pointer(pointer).and_then(scalar).unwrap_or_else(|| default.to_owned())
}

pub(crate) fn text(body: &Value, pointer: &str) -> String {
    text_or(body, pointer, NONE)
}

pub(crate) fn items<'a>(body: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    body.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

pub(crate) fn join(parts: impl Iterator<Item = String>) -> String {
    let joined = parts.collect::<Vec<_>>().join(",");
    if joined.is_empty() { NONE.to_owned() } else { joined }
}

/// Returns the number of keys.
pub(crate) fn data(body: &Value) -> usize {
    let keys = |key: &str| body.get(key).and_then(Value::as_object).map_or(0, serde_json::Map::len);
    keys("data") + keys("binaryData") + keys("stringData")
}

pub(crate) fn images(body: &Value, containers: &str) -> String {
    join(items(body, containers).filter_map(|container| container.get("image").and_then(scalar)))
}

/// Formats labels as `labels.Set.String`, in the order of their texts.
pub(crate) fn pairs(map: Option<&Value>) -> String {
    let entries = map.and_then(Value::as_object).into_iter().flatten();
    let mut pairs: Vec<String> =
        entries.map(|(key, value)| format!("{key}={}", scalar(value).unwrap_or_default())).collect();
    pairs.sort_unstable();
    join(pairs.into_iter())
}

/// Formats ports as kubectl: 80/TCP, or 80:30080/TCP with a node port.
pub(crate) fn ports(body: &Value) -> String {
    join(items(body, "/spec/ports").map(|port| {
        let node = port.get("nodePort").and_then(scalar).map(|node| format!(":{node}")).unwrap_or_default();
        format!("{}{node}/{}", text(port, "/port"), text_or(port, "/protocol", "TCP"))
    }))
}

pub(crate) fn node_status(body: &Value) -> String {
    let is_ready = |condition: &&Value| condition.get("type").is_some_and(|of| of == "Ready");
    let status = match items(body, "/status/conditions").find(is_ready).map(|ready| text(ready, "/status")).as_deref() {
        Some("True") => "Ready",
        // Also if it is "Unknown", because the kubelet has stopped.
        Some(_) => "NotReady",
        None => "Unknown",
    };
    let is_cordoned = body.pointer("/spec/unschedulable").and_then(Value::as_bool) == Some(true);
    if is_cordoned { format!("{status},SchedulingDisabled") } else { status.to_owned() }
}

/// Returns the address of this type of a node.
pub(crate) fn address(body: &Value, kind: &str) -> String {
    let is_of_type = |address: &&Value| address.get("type").is_some_and(|of| of == kind);
    items(body, "/status/addresses").find(is_of_type).map_or(NONE.to_owned(), |address| text(address, "/address"))
}

/// Returns the ready and the wanted replicas of a deployment. One replica is the API's own default.
pub(crate) fn deployment_ready(body: &Value) -> String {
    format!("{}/{}", text_or(body, "/status/readyReplicas", "0"), text_or(body, "/spec/replicas", "1"))
}
