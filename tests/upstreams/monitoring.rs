//! The alerts and the dashboard of `deploy/`, by Prometheus: each alert fires, and each panel has data of a real server.

use std::{
    collections::BTreeSet,
    fs,
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::{
    DEADLINE,
    apiserver::{ADMIN, ApiServer},
    etcd::program,
    manifest::{items, text},
    port::free_address,
};

const RULES: &str = "helm/informerd/monitoring/prometheusrule.yaml";
const DASHBOARD: &str = "helm/informerd/monitoring/dashboard.json";

fn promtool(directory: &Path, arguments: &[&str]) {
    let mut command = Command::new(program("INFORMERD_PROMTOOL"));
    let output = command.args(arguments).current_dir(directory).stdin(Stdio::null()).output().unwrap();
    let written = [output.stdout, output.stderr].concat();
    assert!(output.status.success(), "promtool {arguments:?}: {}", String::from_utf8_lossy(&written));
}

#[test]
fn each_alert_fires_for_its_reason_and_is_quiet_before() {
    let rule: Value = serde_saphyr::from_str(&text(RULES)).unwrap();
    let tests: Value = serde_saphyr::from_str(&fs::read_to_string("tests/upstreams/alerts.yaml").unwrap()).unwrap();
    let directory = TempDir::new().unwrap();
    // JSON is YAML.
    fs::write(directory.path().join("rules.yaml"), rule["spec"].to_string()).unwrap();
    fs::write(directory.path().join("tests.yaml"), tests.to_string()).unwrap();
    promtool(directory.path(), &["check", "rules", "rules.yaml"]);
    promtool(directory.path(), &["test", "rules", "tests.yaml"]);

    let checks = || items(&tests["tests"]).iter().flat_map(|test| items(&test["alert_rule_test"]));
    let tested = |fires: bool| -> BTreeSet<&str> {
        let checks = checks().filter(|check| items(&check["exp_alerts"]).is_empty() != fires);
        checks.map(|check| check["alertname"].as_str().unwrap()).collect()
    };
    let rules = items(&rule["spec"]["groups"]).iter().flat_map(|group| items(&group["rules"]));
    let alerts: BTreeSet<&str> = rules.map(|rule| rule["alert"].as_str().unwrap()).collect();
    assert_eq!((tested(true), tested(false)), (alerts.clone(), alerts));
}

/// Process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

fn informerd(arguments: &[&str]) -> Process {
    let mut command = Command::new(env!("CARGO_BIN_EXE_informerd"));
    Process(command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

/// Returns the body of an answer with status 200.
async fn get(address: SocketAddr, path: &str) -> Option<String> {
    let mut stream = tokio::net::TcpStream::connect(address).await.ok()?;
    stream.write_all(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").as_bytes()).await.ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    head.contains(" 200 ").then(|| body.to_owned())
}

/// Returns the result of a query, as soon as it has one.
async fn queried(prometheus: SocketAddr, path: &str, is_there: impl Fn(&Value) -> bool) -> Value {
    let started = Instant::now();
    loop {
        let answer = get(prometheus, path).await;
        let answer: Option<Value> = answer.and_then(|body| serde_json::from_str(&body).ok());
        if let Some(answer) = answer.as_ref().filter(|answer| is_there(answer)) {
            return answer.clone();
        }
        assert!(started.elapsed() < DEADLINE, "no data for {path}: {answer:?}");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

fn escaped(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    text.bytes().map(|byte| if is_plain(byte) { char::from(byte).into() } else { format!("%{byte:02X}") }).collect()
}

/// A server over the API server with everything that the panels show: reviews of tokens and accesses, an audit log and snapshot files.
fn config(directory: &Path, grpc: SocketAddr, admin: SocketAddr) -> Value {
    json!({
        "listen": grpc.to_string(),
        "admin": { "listen": admin.to_string(), "open_metrics": true },
        "authentication": { "token_review": { "audiences": ["informerd"], "kubeconfig": "kubeconfig" } },
        "authorization": { "subject_access_review": { "kubeconfig": "kubeconfig" } },
        "quotas": { "streams": 1 },
        "audit": { "file": directory.join("audit.log") },
        "state_dir": "state",
        "state_interval": "1s",
        "resources": {
            "configmaps": { "source": { "kube": { "version": "v1", "plural": "configmaps", "kubeconfig": "kubeconfig" } } },
        },
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_panel_of_the_dashboard_has_data_of_a_server() {
    let apiserver = ApiServer::start().await;
    let directory = TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name);
    let file = |name: &str| path(name).to_str().unwrap().to_owned();
    apiserver.kubeconfig(&path("kubeconfig"), apiserver.address().port(), ADMIN);
    apiserver.kubectl(&["create", "serviceaccount", "client", "-n", "a"]);
    apiserver.kubectl(&[
        "create",
        "clusterrolebinding",
        "client",
        "--clusterrole",
        "cluster-admin",
        "--serviceaccount",
        "a:client",
    ]);
    let token = apiserver.kubectl(&["create", "token", "client", "-n", "a", "--audience", "informerd"]);
    fs::write(path("token"), token.trim()).unwrap();
    let (grpc, admin, prometheus) = (free_address(), free_address(), free_address());
    fs::write(path("config.yaml"), config(directory.path(), grpc, admin).to_string()).unwrap();
    let _server = informerd(&["serve", "--config", &file("config.yaml")]);
    let started = Instant::now();
    while get(admin, "/readyz").await.is_none() {
        assert!(started.elapsed() < DEADLINE, "the server is not ready");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }

    // One watch, and others that are refused because of the quota until the end.
    let endpoint = grpc.to_string();
    let client = ["watch", "configmaps", "--server", &endpoint, "--token-file", &file("token")].map(str::to_owned);
    let client: Vec<&str> = client.iter().map(String::as_str).collect();
    let _watch = informerd(&client);
    let _refused = informerd(&client);

    let scrape = json!({
        "global": { "scrape_interval": "500ms", "scrape_timeout": "500ms", "evaluation_interval": "1s" },
        "scrape_configs": [{
            "job_name": "informerd",
            // As a PodMonitor does.
            "static_configs": [{ "targets": [admin.to_string()], "labels": { "namespace": "informerd", "pod": "informerd-0" } }],
        }],
    });
    fs::write(path("prometheus.yaml"), scrape.to_string()).unwrap();
    let log = fs::File::create(path("prometheus.log")).unwrap();
    let mut command = Command::new(program("INFORMERD_PROMETHEUS"));
    command.arg(format!("--config.file={}", file("prometheus.yaml")));
    command.arg(format!("--storage.tsdb.path={}", file("data"))).arg(format!("--web.listen-address={prometheus}"));
    let _prometheus = Process(command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap());

    let dashboard: Value = serde_json::from_str(&text(DASHBOARD)).unwrap();
    let mut variables = Vec::new();
    for variable in items(&dashboard["templating"]["list"]).iter().filter(|variable| variable["type"] == "query") {
        // label_values(METRIC, LABEL)
        let query = variable["query"].as_str().unwrap();
        let inner = query.strip_prefix("label_values(").and_then(|rest| rest.strip_suffix(')')).unwrap();
        let (metric, label) = inner.rsplit_once(", ").unwrap();
        let metric = variables.iter().fold(metric.to_owned(), |metric, name| metric.replace(name, ".*"));
        let path = format!("/api/v1/label/{label}/values?match[]={}", escaped(&metric));
        queried(prometheus, &path, |answer| !items(&answer["data"]).is_empty()).await;
        variables.push(format!("${}", variable["name"].as_str().unwrap()));
    }
    assert_eq!(variables, ["$namespace", "$pod", "$resource"]);
    let mut shown = 0;
    for panel in items(&dashboard["panels"]) {
        for target in items(&panel["targets"]) {
            let query = target["expr"].as_str().unwrap().replace("$__rate_interval", "5s");
            let query = variables.iter().fold(query, |query, name| query.replace(name, ".*"));
            assert!(!query.contains('$'), "{query}");
            let path = format!("/api/v1/query?query={}", escaped(&query));
            let is_there = |answer: &Value| !items(&answer["data"]["result"]).is_empty();
            let answer = queried(prometheus, &path, is_there).await;
            // Each label of the legend is one of the result.
            let labels = answer["data"]["result"][0]["metric"].as_object().unwrap();
            for name in target["legendFormat"].as_str().unwrap().split("{{").skip(1) {
                let name = name.split("}}").next().unwrap();
                assert!(labels.contains_key(name), "{}: {name} is not in {labels:?}", panel["title"]);
            }
            shown += 1;
        }
    }
    assert!(shown > 40, "{shown} queries");
}
