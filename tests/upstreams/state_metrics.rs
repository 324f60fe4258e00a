//! kube-state-metrics, unchanged, over informerd and over the API server: its metrics are the same.

use std::{
    collections::BTreeSet,
    net::SocketAddr,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::json;
use tempfile::TempDir;

use crate::{
    DEADLINE,
    apiserver::{ADMIN, ApiServer, CONFIG_MAPS},
    etcd::program,
    kubernetes::{Facade, fill},
    port::free_address,
};

/// Process of kube-state-metrics.
struct StateMetrics {
    address: SocketAddr,
    process: Child,
}

// === impl StateMetrics ===

impl StateMetrics {
    fn start(upstream: [&str; 2]) -> Self {
        let [address, telemetry] = [(); 2].map(|()| free_address());
        let process = Command::new(program("INFORMERD_STATE_METRICS"))
            .args(upstream)
            .args(["--resources", "pods,nodes,services,configmaps,deployments", "--host", "127.0.0.1"])
            .args(["--port", &address.port().to_string(), "--telemetry-host", "127.0.0.1"])
            .args(["--telemetry-port", &telemetry.port().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { address, process }
    }

    /// Returns the samples; none as long as there is no answer.
    fn samples(&self) -> BTreeSet<String> {
        let url = format!("http://{}/metrics", self.address);
        let answer = Command::new("curl").args(["--silent", "--max-time", "10", &url]).output().unwrap();
        let text = String::from_utf8(answer.stdout).unwrap();
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
    }
}

impl Drop for StateMetrics {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_metrics_of_kube_state_metrics_are_those_over_the_api_server() {
    let apiserver = ApiServer::start().await;
    fill(&apiserver).await;
    let (facade, directory) = (Facade::start(&apiserver).await, TempDir::new().unwrap());
    let kubeconfig = directory.path().join("kubeconfig");
    apiserver.kubeconfig(&kubeconfig, apiserver.address().port(), ADMIN);
    let ours = StateMetrics::start(["--apiserver", &facade.address]);
    let theirs = StateMetrics::start(["--kubeconfig", kubeconfig.to_str().unwrap()]);
    for round in 0..3 {
        if round > 0 {
            let name = format!("more-{round}");
            apiserver.post(&CONFIG_MAPS.path("b"), &CONFIG_MAPS.object(&json!({ "name": name }), &json!({}))).await;
            let pod = format!("/api/v1/namespaces/a/pods/p{round}?gracePeriodSeconds=0");
            apiserver.ask("DELETE", &pod, None).await.unwrap();
        }
        let (pods, config_maps) = (4 - round, 1 + round);
        let is_current = |samples: &BTreeSet<String>| {
            let count = |name: &str| samples.iter().filter(|sample| sample.starts_with(name)).count();
            count("kube_pod_info{") == pods && count("kube_configmap_info{") >= config_maps
        };
        let started = Instant::now();
        loop {
            let (ours, theirs) = (ours.samples(), theirs.samples());
            if is_current(&theirs) && ours == theirs {
                println!("{} samples", theirs.len());
                break;
            }
            let differ: Vec<&String> = ours.symmetric_difference(&theirs).take(20).collect();
            assert!(started.elapsed() < DEADLINE, "round {round}: {} and {}: {differ:#?}", ours.len(), theirs.len());
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
