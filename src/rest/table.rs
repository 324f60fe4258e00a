//! Tables: the configured columns of a kind, else those that an API server prints for the kinds that most clusters are read for, and
//! name and age for others.

use std::{collections::BTreeSet, time::SystemTime};

use serde_json::{Value, json};

use crate::{
    model::{ApiKind, ColumnType, PrinterColumn},
    printers::{
        age::age,
        pod,
        values::{self, NONE, items, join, text, text_or},
    },
};

/// Column of a kind, which is a string also where its cells are numbers.
struct Column {
    name: &'static str,
    /// Not 0 for a column that only `-o wide` shows.
    priority: u8,
    show: fn(&Value, SystemTime) -> Value,
}

const STRING: &str = "string";

const AGE: Column = narrow("Age", |body, now| json!(creation(body, now)));

const fn narrow(name: &'static str, show: fn(&Value, SystemTime) -> Value) -> Column {
    Column { name, priority: 0, show }
}

const fn wide(name: &'static str, show: fn(&Value, SystemTime) -> Value) -> Column {
    Column { name, priority: 1, show }
}

const POD: &[Column] = &[
    narrow("Ready", |body, _| json!(pod::ready(body))),
    narrow("Status", |body, _| json!(pod::status(body))),
    narrow("Restarts", |body, now| json!(pod::restarts(body, now))),
    AGE,
    wide("IP", |body, _| json!(text(body, "/status/podIP"))),
    wide("Node", |body, _| json!(text(body, "/spec/nodeName"))),
    wide("Nominated Node", |body, _| json!(text(body, "/status/nominatedNodeName"))),
    wide("Readiness Gates", |body, _| json!(readiness_gates(body))),
];
const NODE: &[Column] = &[
    narrow("Status", |body, _| json!(values::node_status(body))),
    narrow("Roles", |body, _| json!(roles(body))),
    AGE,
    narrow("Version", |body, _| json!(text_or(body, "/status/nodeInfo/kubeletVersion", ""))),
    wide("Internal-IP", |body, _| json!(values::address(body, "InternalIP"))),
    wide("External-IP", |body, _| json!(values::address(body, "ExternalIP"))),
    wide("OS-Image", |body, _| json!(text_or(body, "/status/nodeInfo/osImage", UNKNOWN))),
    wide("Kernel-Version", |body, _| json!(kernel(body))),
    wide("Container-Runtime", |body, _| json!(text_or(body, "/status/nodeInfo/containerRuntimeVersion", UNKNOWN))),
];
const DEPLOYMENT: &[Column] = &[
    narrow("Ready", |body, _| json!(values::deployment_ready(body))),
    narrow("Up-to-date", |body, _| number(body, "/status/updatedReplicas")),
    narrow("Available", |body, _| number(body, "/status/availableReplicas")),
    AGE,
    wide("Containers", |body, _| json!(names(body, "/spec/template/spec/containers"))),
    wide("Images", |body, _| json!(values::images(body, "/spec/template/spec/containers"))),
    wide("Selector", |body, _| json!(selector(body.pointer("/spec/selector")))),
];
const SERVICE: &[Column] = &[
    narrow("Type", |body, _| json!(text_or(body, "/spec/type", "ClusterIP"))),
    narrow("Cluster-IP", |body, _| json!(text(body, "/spec/clusterIP"))),
    narrow("External-IP", |body, _| json!(external(body))),
    narrow("Port(s)", |body, _| json!(values::ports(body))),
    AGE,
    wide("Selector", |body, _| json!(values::pairs(body.pointer("/spec/selector")))),
];
const CONFIG_MAP: &[Column] = &[narrow("Data", |body, _| json!(values::data(body))), AGE];
const SECRET: &[Column] = &[
    narrow("Type", |body, _| json!(text_or(body, "/type", "Opaque"))),
    narrow("Data", |body, _| json!(values::data(body))),
    AGE,
];
const OTHER: &[Column] = &[AGE];
const UNKNOWN: &str = "<unknown>";

/// Returns the columns of a kind for which none are configured.
fn columns(kind: &ApiKind) -> &'static [Column] {
    if !kind.columns.is_empty() {
        return &[];
    }
    match (&*kind.group, &*kind.kind) {
        ("", "Pod") => POD,
        ("", "Node") => NODE,
        ("apps", "Deployment") => DEPLOYMENT,
        ("", "Service") => SERVICE,
        ("", "ConfigMap") => CONFIG_MAP,
        ("", "Secret") => SECRET,
        _ => OTHER,
    }
}

/// Returns the definitions of the columns of a kind.
pub(super) fn definitions(kind: &ApiKind) -> Value {
    let name = json!({ "name": "Name", "type": STRING, "format": "name", "description": "", "priority": 0 });
    let column = |name: &str, column_type, priority| json!({ "name": name, "type": column_type, "format": "", "description": "", "priority": priority });
    let configured = kind.columns.iter().map(|own| column(&own.name, own.column_type.name(), u8::from(own.is_wide)));
    let others = columns(kind).iter().map(|Column { name, priority, .. }| column(name, STRING, *priority));
    [name].into_iter().chain(configured).chain(others).collect()
}

/// Returns the cells of an object, and the conditions of its row, if it has any.
pub(super) fn row(kind: &ApiKind, name: &str, json: &[u8], now: SystemTime) -> (Value, Option<Value>) {
    let configured = kind.columns.iter().map(|column| configured_cell(column, json, now));
    let body = if kind.columns.is_empty() { serde_json::from_slice(json).unwrap_or_default() } else { Value::Null };
    let others = columns(kind).iter().map(|column| (column.show)(&body, now));
    ([json!(name)].into_iter().chain(configured).chain(others).collect(), conditions(kind, &body))
}

/// Returns the conditions of the row of a pod that has ended.
fn conditions(kind: &ApiKind, body: &Value) -> Option<Value> {
    let phase = body.pointer("/status/phase").filter(|_| (&*kind.group, &*kind.kind) == ("", "Pod"))?;
    let message = match phase.as_str()? {
        "Succeeded" => "The pod has completed successfully.",
        "Failed" => "The pod failed.",
        _ => return None,
    };
    Some(json!([{ "type": "Completed", "status": "True", "reason": phase, "message": message }]))
}

/// Returns the value at the path of a column; null if there is none of its type.
fn configured_cell(column: &PrinterColumn, json: &[u8], now: SystemTime) -> Value {
    let values = column.path.values(json);
    let Some(first) = values.first() else { return Value::Null };
    let parsed = |is_one: fn(&Value) -> bool| serde_json::from_str(first).ok().filter(is_one).unwrap_or_default();
    match column.column_type {
        ColumnType::String => json!(values.join(",")),
        ColumnType::Integer => parsed(|value| value.is_i64() || value.is_u64()),
        ColumnType::Number => parsed(Value::is_number),
        ColumnType::Boolean => parsed(Value::is_boolean),
        ColumnType::Date => json!(age(first, now)),
    }
}

fn creation(body: &Value, now: SystemTime) -> String {
    match body.pointer("/metadata/creationTimestamp").and_then(Value::as_str) {
        Some(created) => age(created, now),
        None => UNKNOWN.to_owned(),
    }
}

fn number(body: &Value, pointer: &str) -> Value {
    json!(body.pointer(pointer).and_then(Value::as_i64).unwrap_or_default())
}

fn names(body: &Value, containers: &str) -> String {
    items(body, containers).map(|container| text_or(container, "/name", "")).collect::<Vec<_>>().join(",")
}

/// Returns the version of the kernel of a node, and its architecture.
fn kernel(body: &Value) -> String {
    let version = text_or(body, "/status/nodeInfo/kernelVersion", UNKNOWN);
    match &*text_or(body, "/status/nodeInfo/architecture", "") {
        "" => version,
        architecture => format!("{version} ({architecture})"),
    }
}

fn readiness_gates(body: &Value) -> String {
    let gates: Vec<String> =
        items(body, "/spec/readinessGates").map(|gate| text_or(gate, "/conditionType", "")).collect();
    if gates.is_empty() {
        return NONE.to_owned();
    }
    let is_true = |gate: &&String| {
        items(body, "/status/conditions")
            .any(|condition| text(condition, "/type") == **gate && text(condition, "/status") == "True")
    };
    format!("{}/{}", gates.iter().filter(is_true).count(), gates.len())
}

fn roles(body: &Value) -> String {
    let labels = body.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten();
    let mut roles: Vec<&str> = labels
        .filter_map(|(key, value)| match key.strip_prefix("node-role.kubernetes.io/") {
            Some(role) => Some(role),
            None if key == "kubernetes.io/role" => value.as_str(),
            None => None,
        })
        .filter(|role| !role.is_empty())
        .collect();
    roles.sort_unstable();
    roles.dedup();
    join(roles.into_iter().map(str::to_owned))
}

/// Returns the external addresses of a service.
fn external(body: &Value) -> String {
    let addresses = |pointer: &'static str| items(body, pointer).filter_map(Value::as_str).map(str::to_owned);
    match &*text_or(body, "/spec/type", "ClusterIP") {
        "ExternalName" => text_or(body, "/spec/externalName", ""),
        "LoadBalancer" => {
            let ingress = items(body, "/status/loadBalancer/ingress").filter_map(|ingress| {
                let of = |key: &str| ingress.get(key).and_then(Value::as_str).filter(|text| !text.is_empty());
                of("ip").or_else(|| of("hostname")).map(str::to_owned)
            });
            let ingress: BTreeSet<String> = ingress.collect();
            let all: Vec<String> = ingress.into_iter().chain(addresses("/spec/externalIPs")).collect();
            if all.is_empty() { "<pending>".to_owned() } else { all.join(",") }
        }
        _ => join(addresses("/spec/externalIPs")),
    }
}

/// Formats a label selector as `labels.Selector.String`, whose requirements are in the order of their keys.
fn selector(selector: Option<&Value>) -> String {
    let Some(selector) = selector else { return NONE.to_owned() };
    let labels = selector.get("matchLabels").and_then(Value::as_object).into_iter().flatten();
    let labels = labels.map(|(key, value)| (key.clone(), format!("{key}={}", value.as_str().unwrap_or_default())));
    let expressions = items(selector, "/matchExpressions").map(|expression| {
        let key = text_or(expression, "/key", "");
        let mut values: Vec<&str> = items(expression, "/values").filter_map(Value::as_str).collect();
        values.sort_unstable();
        let values = values.join(",");
        let text = match &*text_or(expression, "/operator", "") {
            "In" => format!("{key} in ({values})"),
            "NotIn" => format!("{key} notin ({values})"),
            "DoesNotExist" => format!("!{key}"),
            _ => key.clone(),
        };
        (key, text)
    });
    let mut parts: Vec<(String, String)> = labels.chain(expressions).collect();
    parts.sort();
    join(parts.into_iter().map(|(_, text)| text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(group: &str, kind: &str, body: &Value) -> Vec<(String, Value)> {
        row_of(&ApiKind::new(group, "v1", "x", kind), body)
    }

    fn row_of(kind: &ApiKind, body: &Value) -> Vec<(String, Value)> {
        let names = definitions(kind);
        let names = names.as_array().unwrap().iter().map(|column| column["name"].as_str().unwrap().to_owned());
        let (cells, _) = super::row(kind, "web", body.to_string().as_bytes(), SystemTime::UNIX_EPOCH);
        names.zip(cells.as_array().unwrap().clone()).collect()
    }

    fn cell(row: &[(String, Value)], name: &str) -> Value {
        row.iter().find(|(found, _)| found == name).unwrap_or_else(|| panic!("no {name}")).1.clone()
    }

    #[test]
    fn each_kind_has_the_columns_of_an_api_server() {
        let names = |group: &str, kind: &str| {
            row(group, kind, &json!({})).into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        assert_eq!(
            names("", "Pod"),
            ["Name", "Ready", "Status", "Restarts", "Age", "IP", "Node", "Nominated Node", "Readiness Gates"]
        );
        assert_eq!(names("", "Service"), ["Name", "Type", "Cluster-IP", "External-IP", "Port(s)", "Age", "Selector"]);
        assert_eq!(names("apps", "Deployment")[..5], ["Name", "Ready", "Up-to-date", "Available", "Age"]);
        assert_eq!(names("", "Deployment"), ["Name", "Age"], "another group");
        assert_eq!(names("", "ConfigMap"), ["Name", "Data", "Age"]);
        assert_eq!(names("", "Secret"), ["Name", "Type", "Data", "Age"]);
    }

    #[test]
    fn configured_columns_replace_those_of_the_kind() {
        let column = |name: &str, column_type, is_wide, path: &str| PrinterColumn {
            name: name.to_owned(),
            column_type,
            is_wide,
            path: path.parse().unwrap(),
        };
        let columns = vec![
            column("Phase", ColumnType::String, false, ".status.phase"),
            column("Images", ColumnType::String, true, ".spec.c[*].image"),
            column("Size", ColumnType::Integer, false, ".spec.size"),
            column("Load", ColumnType::Number, false, ".spec.load"),
            column("On", ColumnType::Boolean, false, ".spec.on"),
            column("Since", ColumnType::Date, false, ".spec.since"),
        ];
        let kind = ApiKind { columns, ..ApiKind::new("", "v1", "pods", "Pod") };
        let body = json!({ "status": { "phase": "Up" }, "spec": { "c": [{ "image": "a" }, { "image": "b" }], "size": 3,
            "load": 0.5, "on": false, "since": "1970-01-01T00:00:00Z" } });
        let of = |row: Vec<(String, Value)>| row.into_iter().map(|(_, cell)| cell).collect::<Vec<_>>();
        let all = [json!("web"), json!("Up"), json!("a,b"), json!(3), json!(0.5), json!(false), json!("0s")];
        assert_eq!(of(row_of(&kind, &body)), all);
        let other = json!({ "spec": { "size": "x", "load": true, "on": 1, "since": "x" }, "status": { "phase": {} } });
        let null = Value::Null;
        let none = [json!("web"), null.clone(), null.clone(), null.clone(), null.clone(), null, json!("<invalid>")];
        assert_eq!(of(row_of(&kind, &other)), none);
        let definitions = definitions(&kind);
        assert_eq!((&definitions[2]["priority"], &definitions[3]["type"]), (&json!(1), &json!("integer")));
        assert_eq!(definitions.as_array().unwrap().len(), 7);
    }

    #[test]
    fn cells_are_those_of_kubectl() {
        let service = json!({ "spec": { "type": "LoadBalancer", "clusterIP": "10.0.0.1", "externalIPs": ["9.9.9.9"], "ports": [{ "port": 80 }] },
            "status": { "loadBalancer": { "ingress": [{ "hostname": "lb" }] } } });
        let found = row("", "Service", &service);
        assert_eq!((cell(&found, "External-IP"), cell(&found, "Port(s)")), (json!("lb,9.9.9.9"), json!("80/TCP")));
        assert_eq!(
            cell(&row("", "Service", &json!({ "spec": { "type": "LoadBalancer" } })), "External-IP"),
            "<pending>"
        );
        assert_eq!(cell(&row("", "Service", &json!({})), "External-IP"), NONE);
        let deployment = json!({ "spec": { "replicas": 3, "selector": { "matchLabels": { "b": "1", "a": "2" },
            "matchExpressions": [{ "key": "c", "operator": "In", "values": ["y", "x"] }, { "key": "d", "operator": "DoesNotExist" }] } },
            "status": { "readyReplicas": 1, "updatedReplicas": 2 } });
        let found = row("apps", "Deployment", &deployment);
        assert_eq!(
            (cell(&found, "Ready"), cell(&found, "Up-to-date"), cell(&found, "Available")),
            (json!("1/3"), json!(2), json!(0))
        );
        assert_eq!(cell(&found, "Selector"), "a=2,b=1,c in (x,y),!d", "by key");
        let of_labels =
            json!({ "spec": { "selector": { "matchLabels": { "app.kubernetes.io/name": "x", "app": "w" } } } });
        let found = row("apps", "Deployment", &of_labels);
        assert_eq!(cell(&found, "Selector"), "app=w,app.kubernetes.io/name=x");
        let of_labels = json!({ "spec": { "selector": { "app.kubernetes.io/name": "x", "app": "w" } } });
        let found = row("", "Service", &of_labels);
        assert_eq!(cell(&found, "Selector"), "app.kubernetes.io/name=x,app=w", "by text");
        let ingress = json!([{ "ip": "10.0.0.9" }, { "hostname": "b" }, { "ip": "10.0.0.1" }, { "hostname": "b" }]);
        let service =
            json!({ "spec": { "type": "LoadBalancer" }, "status": { "loadBalancer": { "ingress": ingress } } });
        assert_eq!(cell(&row("", "Service", &service), "External-IP"), "10.0.0.1,10.0.0.9,b");
        let info = |info: Value| row("", "Node", &json!({ "status": { "nodeInfo": info } }));
        let found = info(json!({ "kernelVersion": "6.1", "architecture": "amd64" }));
        assert_eq!(cell(&found, "Kernel-Version"), "6.1 (amd64)");
        assert_eq!(cell(&info(json!({ "kernelVersion": "6.1" })), "Kernel-Version"), "6.1");
        let node =
            json!({ "metadata": { "labels": { "node-role.kubernetes.io/worker": "", "kubernetes.io/role": "edge" } } });
        assert_eq!(cell(&row("", "Node", &node), "Roles"), "edge,worker");
        let gated = json!({ "spec": { "readinessGates": [{ "conditionType": "a" }, { "conditionType": "b" }] },
            "status": { "conditions": [{ "type": "b", "status": "True" }] } });
        assert_eq!(cell(&row("", "Pod", &gated), "Readiness Gates"), "1/2");
        let created = json!({ "metadata": { "creationTimestamp": "1970-01-01T00:00:00Z" } });
        assert_eq!(
            (cell(&row("x", "Y", &created), "Age"), cell(&row("x", "Y", &json!({})), "Age")),
            (json!("0s"), json!(UNKNOWN))
        );
    }
}
