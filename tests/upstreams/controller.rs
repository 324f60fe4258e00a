//! The example `kube_controller` over an API server that is killed: every config map has the number of its pods.

use std::{collections::BTreeMap, time::Instant};

use informerd::source::kube::KubeCluster;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use crate::{
    DEADLINE,
    apiserver::{ADMIN, ApiServer, CONFIG_MAPS},
};

#[path = "../../examples/kube_controller.rs"]
#[expect(dead_code, reason = "its main is that of a program")]
mod kube_controller;

const PODS: &str = "/api/v1/namespaces/a/pods";

async fn pod(apiserver: &ApiServer, name: &str, config: &str) {
    let metadata = json!({ "name": name, "labels": { "config": config } });
    let spec = json!({ "containers": [{ "name": "c", "image": "none" }] });
    apiserver.post(PODS, &json!({ "metadata": metadata, "spec": spec })).await;
}

/// Waits until the config maps have these annotations.
async fn expect(apiserver: &ApiServer, expected: [(&str, &str); 2]) {
    let expected = BTreeMap::from(expected);
    let started = Instant::now();
    loop {
        let list = apiserver.ask("GET", &CONFIG_MAPS.path("a"), None).await.unwrap();
        let counts = list["items"].as_array().unwrap().iter().filter_map(|item| {
            let count = item["metadata"]["annotations"]["example.com/pods"].as_str()?;
            Some((item["metadata"]["name"].as_str()?, count))
        });
        let counts: BTreeMap<_, _> = counts.filter(|(name, _)| expected.contains_key(name)).collect();
        if counts == expected {
            return;
        }
        assert!(started.elapsed() < DEADLINE, "{counts:?}");
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_controller_writes_what_it_reads_from_an_api_server_that_is_killed() {
    let mut apiserver = ApiServer::start().await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("kubeconfig");
    apiserver.kubeconfig(&path, apiserver.address().port(), ADMIN);
    let cluster = KubeCluster { kubeconfig: Some(path), context: None };
    let (end, ended) = oneshot::channel::<()>();
    let client = apiserver.impatient_client().await;
    let run = kube_controller::run((cluster, client), async { drop(ended.await) });

    let steps = async {
        for name in ["one", "two"] {
            apiserver.post(&CONFIG_MAPS.path("a"), &json!({ "metadata": { "name": name } })).await;
        }
        expect(&apiserver, [("one", "0"), ("two", "0")]).await;
        for n in 0..5 {
            pod(&apiserver, &format!("p{n}"), "one").await;
        }
        pod(&apiserver, "q", "two").await;
        pod(&apiserver, "r", "none").await;
        expect(&apiserver, [("one", "5"), ("two", "1")]).await;

        apiserver.kill();
        apiserver.restart().await;
        let label: Value = json!({ "metadata": { "labels": { "config": "two" } } });
        apiserver.ask("PATCH", &format!("{PODS}/p0"), Some(&label)).await.unwrap();
        let now = json!({ "gracePeriodSeconds": 0 });
        apiserver.ask("DELETE", &format!("{PODS}/p1"), Some(&now)).await.unwrap();
        expect(&apiserver, [("one", "3"), ("two", "2")]).await;
        end.send(()).unwrap();
    };
    let (ran, ()) = tokio::join!(run, steps);
    ran.unwrap();
}
