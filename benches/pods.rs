//! Pods as their controllers write them, at an API server.

use std::ops::Range;

use futures_util::future::join_all;
use serde_json::{Value, json};

use crate::apiserver::{ApiServer, ask};

/// Path of the pods.
pub(crate) const PODS: &str = "/api/v1/namespaces/a/pods";
const WRITERS: usize = 12;

/// Creates the objects over many connections at once.
pub(crate) async fn fill(apiserver: &ApiServer, range: Range<usize>) {
    let writing = (0..WRITERS).map(async |writer| {
        let client = apiserver.impatient_client().await;
        for at in range.clone().skip(writer).step_by(WRITERS) {
            ask(&client, "POST", PODS, Some(&pod(at))).await.unwrap();
        }
    });
    join_all(writing).await;
}

/// Returns a pod of a Deployment as its controller would write it; 2 KiB are unique to it.
fn pod(at: usize) -> Value {
    let (app, revision) = (format!("service-{}", at / 20), format!("{:08x}", at / 20 * 2_654_435_761 % (1 << 32)));
    let owner = json!({ "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": format!("{app}-{revision}"),
        "uid": format!("00000000-0000-4000-8000-{:012x}", at / 20), "controller": true, "blockOwnerDeletion": true });
    let environment: Vec<Value> =
        (0..8).map(|n| json!({ "name": format!("SETTING_{n}"), "value": format!("value-{n}-of-{app}") })).collect();
    let probe = |path: &str| json!({ "httpGet": { "path": path, "port": 8080 }, "periodSeconds": 10 });
    let container = |name: &str| {
        json!({ "name": name, "image": format!("registry.example.com/team/{app}/{name}:1.{}.0", at % 7),
            "ports": [{ "name": "http", "containerPort": 8080 }], "env": environment,
            "resources": { "requests": { "cpu": "100m", "memory": "128Mi" }, "limits": { "memory": "256Mi" } },
            "readinessProbe": probe("/readyz"), "livenessProbe": probe("/livez"),
            "volumeMounts": [{ "name": "config", "mountPath": "/etc/app", "readOnly": true }] })
    };
    let metadata = json!({ "name": format!("{app}-{revision}-{at:05}"), "ownerReferences": [owner],
        "labels": { "app": app, "pod-template-hash": revision, "team": format!("team-{}", at % 30) },
        "annotations": { "example.com/config-hash": revision.repeat(8) } });
    let spec = json!({ "containers": [container("main"), container("sidecar")], "nodeName": format!("node-{}", at % 200),
        "volumes": [{ "name": "config", "configMap": { "name": format!("{app}-config") } }] });
    json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec })
}
