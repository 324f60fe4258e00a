//! Columns of the kinds that most clusters are read for; of others `-o custom-columns` shows any field. They show fields of the object, and no data of a Secret.

use std::time::SystemTime;

use serde_json::Value;

use super::{
    pod,
    values::{NONE, address, data, deployment_ready, images, node_status, pairs, ports, text, text_or},
};

/// Column of one kind: its header, and the function from a body to its cell.
pub(crate) struct KindColumn {
    pub(crate) header: &'static str,
    /// True if only `-o wide` shows it.
    pub(crate) wide: bool,
    show: Show,
}

enum Show {
    Body(fn(&Value) -> String),
    /// With the time of the output, for ages.
    Aged(fn(&Value, SystemTime) -> String),
}

// === impl KindColumn ===

impl KindColumn {
    /// Returns the cell for a body.
    pub(crate) fn show(&self, body: &Value, now: SystemTime) -> String {
        match self.show {
            Show::Body(show) => show(body),
            Show::Aged(show) => show(body, now),
        }
    }
}

/// Returns the columns of a kind; none for an unknown kind.
pub(crate) fn columns(api_version: &str, kind: &str) -> &'static [KindColumn] {
    // Without a slash it is the core group; manifests may omit it.
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    match (group, kind) {
        ("", "Pod") => POD,
        ("", "Service") => SERVICE,
        ("", "ConfigMap") => CONFIG_MAP,
        ("", "Secret") => SECRET,
        ("", "Node") => NODE,
        ("apps", "Deployment") => DEPLOYMENT,
        ("", "Deployment") if api_version.is_empty() => DEPLOYMENT,
        _ => &[],
    }
}

const POD: &[KindColumn] = &[
    narrow("READY", pod::ready),
    narrow("STATUS", |body| Some(pod::status(body)).filter(|status| !status.is_empty()).unwrap_or(NONE.to_owned())),
    KindColumn { header: "RESTARTS", wide: false, show: Show::Aged(pod::restarts) },
    narrow("NODE", |body| text(body, "/spec/nodeName")),
    wide("IP", |body| text(body, "/status/podIP")),
    wide("IMAGES", |body| images(body, "/spec/containers")),
];
const SERVICE: &[KindColumn] = &[
    // The API's own default, for manifests that omit it.
    narrow("TYPE", |body| text_or(body, "/spec/type", "ClusterIP")),
    narrow("CLUSTER-IP", |body| text(body, "/spec/clusterIP")),
    narrow("PORT(S)", ports),
    wide("SELECTOR", |body| pairs(body.pointer("/spec/selector"))),
];
const CONFIG_MAP: &[KindColumn] = &[narrow("DATA", |body| data(body).to_string())];
const SECRET: &[KindColumn] =
    &[narrow("TYPE", |body| text_or(body, "/type", "Opaque")), narrow("DATA", |body| data(body).to_string())];
const NODE: &[KindColumn] = &[
    narrow("STATUS", node_status),
    wide("INTERNAL-IP", |body| address(body, "InternalIP")),
    wide("KUBELET", |body| text(body, "/status/nodeInfo/kubeletVersion")),
];
const DEPLOYMENT: &[KindColumn] =
    &[narrow("READY", deployment_ready), wide("IMAGES", |body| images(body, "/spec/template/spec/containers"))];

const fn narrow(header: &'static str, show: fn(&Value) -> String) -> KindColumn {
    KindColumn { header, wide: false, show: Show::Body(show) }
}

const fn wide(header: &'static str, show: fn(&Value) -> String) -> KindColumn {
    KindColumn { header, wide: true, show: Show::Body(show) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn show(api_version: &str, kind: &str, body: &Value) -> Vec<String> {
        let show = |column: &KindColumn| format!("{}={}", column.header, column.show(body, SystemTime::UNIX_EPOCH));
        columns(api_version, kind).iter().map(show).collect()
    }

    #[test]
    fn each_kind_shows_what_is_in_the_object() {
        let pod = json!({"spec": {"nodeName": "node-a", "containers": [{"image": "a:1"}, {"name": "x"}, {"image": "b:2"}]},
            "status": {"phase": "Running", "podIP": "10.0.0.1"}});
        assert_eq!(
            show("v1", "Pod", &pod),
            ["READY=0/3", "STATUS=Running", "RESTARTS=0", "NODE=node-a", "IP=10.0.0.1", "IMAGES=a:1,b:2"]
        );
        let deployment = json!({"spec": {"replicas": 3, "template": {"spec": {"containers": [{"image": "a:1"}]}}},
            "status": {"readyReplicas": 2}});
        assert_eq!(show("apps/v1", "Deployment", &deployment), ["READY=2/3", "IMAGES=a:1"]);
        assert_eq!(show("", "Deployment", &json!({})), ["READY=0/1", "IMAGES=<none>"]);
        let service = json!({"spec": {"type": "NodePort", "clusterIP": "10.1.0.1", "selector": {"app": "web"},
            "ports": [{"port": 80, "nodePort": 30080}, {"port": 53, "protocol": "UDP"}]}});
        let expected = ["TYPE=NodePort", "CLUSTER-IP=10.1.0.1", "PORT(S)=80:30080/TCP,53/UDP", "SELECTOR=app=web"];
        assert_eq!(show("v1", "Service", &service), expected);
        assert_eq!(show("v1", "ConfigMap", &json!({"data": {"a": "1", "b": ""}, "binaryData": {"c": ""}})), ["DATA=3"]);
        let node = json!({"spec": {"unschedulable": true}, "status": {"conditions": [{"type": "DiskPressure", "status": "True"},
            {"type": "Ready", "status": "False"}], "addresses": [{"type": "InternalIP", "address": "10.0.0.2"}]}});
        let expected = ["STATUS=NotReady,SchedulingDisabled", "INTERNAL-IP=10.0.0.2", "KUBELET=<none>"];
        assert_eq!(show("v1", "Node", &node), expected);
        for (status, shown) in [(json!([{"type": "Ready", "status": "Unknown"}]), "NotReady"), (json!([]), "Unknown")] {
            let node = json!({"status": {"conditions": status}});
            assert_eq!(show("v1", "Node", &node)[0], format!("STATUS={shown}"), "{node}");
        }
    }

    #[test]
    fn a_secret_shows_the_number_of_its_keys_and_never_a_value() {
        let secret =
            json!({"type": "kubernetes.io/tls", "data": {"tls.key": "c2VjcmV0"}, "stringData": {"x": "secret"}});
        assert_eq!(show("v1", "Secret", &secret), ["TYPE=kubernetes.io/tls", "DATA=2"]);
    }

    #[test]
    fn the_same_kind_in_another_group_is_another_kind() {
        assert!(columns("serving.knative.dev/v1", "Service").is_empty());
        assert!(columns("v1", "Deployment").is_empty() && columns("", "Widget").is_empty());
    }

    #[test]
    fn fields_of_unexpected_types_are_tolerated() {
        for body in [json!(null), json!([]), json!("x"), json!({"spec": [], "status": 5, "data": "x"})] {
            for kind in ["Pod", "Service", "ConfigMap", "Secret", "Node", "Deployment"] {
                assert!(show("", kind, &body).iter().all(|cell| !cell.is_empty()));
            }
        }
    }
}
