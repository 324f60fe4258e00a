//! The tests that controller-runtime has for its cache, whose reads go to informerd and whose writes to the API server.

use std::{
    fs,
    process::{Command, Stdio},
};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    apiserver::{ADMIN, ApiServer},
    etcd::program,
    kubernetes::Facade,
};

/// Tests that fail over informerd, with the reason.
const EXCEPTIONS: &[(&str, &str)] = &[];
/// Kinds that the tests read.
const KINDS: [(&str, &str); 6] =
    [("", "pods"), ("", "nodes"), ("", "services"), ("", "namespaces"), ("", "serviceaccounts"), ("", "configmaps")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "tests/upstreams/run --strangers builds its program, and starts it"]
async fn the_tests_of_the_cache_of_controller_runtime_pass() {
    let apiserver = ApiServer::start().await;
    // The tests compare objects with what the API server has answered to their writes.
    let facade = Facade::of(&apiserver, &KINDS, &json!([])).await;
    let directory = TempDir::new().unwrap();
    let path = |name: &str| directory.path().join(name);
    apiserver.kubeconfig(&path("kubeconfig"), apiserver.address().port(), ADMIN);
    let mut command = Command::new(program("INFORMERD_CONTROLLERS"));
    command.args(["-test.run", "^TestSource$", "-test.timeout", "10m", "-ginkgo.no-color"]);
    command.arg(format!("-ginkgo.json-report={}", path("report").display())).current_dir(directory.path());
    command.env("KUBECONFIG", path("kubeconfig")).env("INFORMERD_ADDRESS", &facade.address).stdin(Stdio::null());
    let output = tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let report = fs::read(path("report")).unwrap_or_else(|error| panic!("no report: {error}; {said}"));
    let report: Value = serde_json::from_slice(&report).unwrap();
    let specs = report[0]["SpecReports"].as_array().unwrap().iter().filter(|spec| spec["LeafNodeType"] == "It");
    let (mut passed, mut wrong) = (0, Vec::new());
    for spec in specs {
        let containers = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten();
        let words: Vec<&str> = containers.chain([&spec["LeafNodeText"]]).filter_map(Value::as_str).collect();
        let name = words.join(" ");
        let is_exception = EXCEPTIONS.iter().any(|(exception, _)| *exception == name);
        match (spec["State"] == "passed", is_exception) {
            (true, false) => passed += 1,
            (false, true) => {}
            (true, true) => wrong.push(format!("{name} passes: remove it from the exceptions")),
            (false, false) => wrong.push(format!("{name}: {} {}", spec["State"], spec["Failure"]["Message"])),
        }
    }
    println!("{passed} passed, {} named with a reason", EXCEPTIONS.len());
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(passed > 250, "{passed} passed; {said}");
}
