//! The discovery of Prometheus, unchanged, over informerd and over the API server: its targets are the same.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    DEADLINE,
    apiserver::{ADMIN, ApiServer},
    etcd::program,
    kubernetes::{Facade, fill},
};

/// Discovery in a process.
struct Discovery {
    process: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

// === impl Discovery ===

impl Discovery {
    /// Starts one that reads from an upstream, with each role whose kinds are served.
    fn start(upstream: (&str, &str)) -> Self {
        let metadata = json!({ "node": true });
        let selectors = json!([{ "role": "pod", "label": "app=web", "field": "metadata.name!=p3" }]);
        let mut configs = json!({
            "nodes": { "role": "node" },
            "pods": { "role": "pod" },
            "pods-of-nodes": { "role": "pod", "attach_metadata": metadata, "namespaces": { "names": ["a"] } },
            "pods-selected": { "role": "pod", "selectors": selectors },
            "services": { "role": "service" },
        });
        for config in configs.as_object_mut().unwrap().values_mut() {
            config[upstream.0] = json!(upstream.1);
        }
        let mut process = Command::new(program("INFORMERD_TARGETS"))
            .arg(configs.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (commands, answers) = (process.stdin.take().unwrap(), BufReader::new(process.stdout.take().unwrap()));
        Self { process, commands, answers }
    }

    /// Returns the target groups of each configuration.
    fn groups(&mut self) -> Value {
        self.commands.write_all(b"\n").unwrap();
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        assert!(!line.is_empty(), "the discovery has ended: {:?}", self.process.wait());
        serde_json::from_str(&line).unwrap()
    }
}

impl Drop for Discovery {
    fn drop(&mut self) {
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// Waits until both have targets that hold, and the same.
fn settle(discoveries: &mut [Discovery; 2], holds: impl Fn(&Value) -> bool) {
    let started = Instant::now();
    loop {
        let [ours, theirs] = discoveries.each_mut().map(Discovery::groups);
        if holds(&theirs) && ours == theirs {
            return;
        }
        assert!(started.elapsed() < DEADLINE, "{ours:#}, not {theirs:#}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "tests/upstreams/run --strangers builds its program, and starts it"]
async fn the_targets_of_prometheus_are_those_over_the_api_server() {
    let apiserver = ApiServer::start().await;
    fill(&apiserver).await;
    let path = |name: &str| format!("/api/v1/namespaces/a/pods/{name}");
    for (name, address) in [("p1", "10.1.0.1"), ("p2", "10.1.0.2")] {
        let status =
            json!({ "podIP": address, "podIPs": [{ "ip": address }], "phase": "Running", "hostIP": "10.2.0.1" });
        let path = format!("{}/status", path(name));
        apiserver.ask("PATCH", &path, Some(&json!({ "status": status }))).await.unwrap();
    }
    let (facade, directory) = (Facade::start(&apiserver).await, TempDir::new().unwrap());
    let kubeconfig = directory.path().join("kubeconfig");
    apiserver.kubeconfig(&kubeconfig, apiserver.address().port(), ADMIN);
    let mut discoveries =
        [("api_server", &facade.address[..]), ("kubeconfig_file", kubeconfig.to_str().unwrap())].map(Discovery::start);
    // An address of each pod; a node has none.
    let pods = |groups: &Value, name: &str| groups[name].as_array().map_or(0, Vec::len);
    settle(&mut discoveries, |groups| {
        let counts = ["pods", "pods-of-nodes", "pods-selected", "services"].map(|name| pods(groups, name));
        // A pod without a node has no target there; the API server has a service of its own.
        counts == [2, 1, 1, 2]
    });
    let label = json!({ "metadata": { "labels": { "app": "web", "tier": "back" } } });
    apiserver.ask("PATCH", &path("p2"), Some(&label)).await.unwrap();
    let addresses = json!({ "status": { "addresses": [{ "type": "InternalIP", "address": "10.2.0.1" }] } });
    apiserver.ask("PATCH", "/api/v1/nodes/n1/status", Some(&addresses)).await.unwrap();
    settle(&mut discoveries, |groups| {
        pods(groups, "pods-selected") == 2
            && pods(groups, "nodes") == 1
            && groups["pods"].to_string().contains("\"back\"")
    });
    apiserver.ask("DELETE", &format!("{}?gracePeriodSeconds=0", path("p1")), None).await.unwrap();
    settle(&mut discoveries, |groups| pods(groups, "pods") == 1 && pods(groups, "pods-selected") == 1);
}
