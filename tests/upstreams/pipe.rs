//! `kubectl get pods -A -w --output-watch-events -o json` into standard input, and into a named pipe again and again.

use std::{
    fs::{self, File},
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use informerd::proto::pb::{self, EventType, informer_service_client::InformerServiceClient};
use kube::Client;
use serde_json::{Value, json};
use tempfile::TempDir;
use tonic::{Streaming, transport::Channel};

use crate::{
    DEADLINE,
    apiserver::{ADMIN, ApiServer, ask},
    etcd::program,
    port::free_address,
};

/// Process that is killed at the end of the test.
struct Running(Child);

const PODS: &str = "/api/v1/namespaces/a/pods";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_output_of_kubectl_is_served_and_outlives_it() {
    let apiserver = ApiServer::start().await;
    let api = apiserver.impatient_client().await;
    create(&api, "first").await;
    let directory = TempDir::new().unwrap();
    let mut kubectl = kubectl(&apiserver, directory.path(), Stdio::piped());
    let address = free_address().to_string();
    let informerd = Command::new(env!("CARGO_BIN_EXE_informerd"))
        .args(["serve", "--stream", "pods=-", "--listen", &address, "--admin-listen", "none"])
        .stdin(kubectl.0.stdout.take().unwrap())
        .stderr(Stdio::null())
        .spawn();
    let _informerd = Running(informerd.unwrap());
    let mut client = connect(&address).await;

    let request = pb::WatchRequest {
        resource: "pods".to_owned(),
        namespace: "a".to_owned(),
        format: pb::PayloadFormat::Raw.into(),
        ..pb::WatchRequest::default()
    };
    let mut watch = client.watch(request).await.unwrap().into_inner();
    assert_eq!(next(&mut watch).await, (EventType::Added, "first".to_owned(), json!("Pending")));
    create(&api, "second").await;
    assert_eq!(next(&mut watch).await, (EventType::Added, "second".to_owned(), json!("Pending")));
    let running = json!({ "status": { "phase": "Running" } });
    ask(&api, "PATCH", &format!("{PODS}/second/status"), Some(&running)).await.unwrap();
    assert_eq!(next(&mut watch).await, (EventType::Modified, "second".to_owned(), json!("Running")));
    ask(&api, "DELETE", &format!("{PODS}/first"), None).await.unwrap();
    // The API server sets its deletionTimestamp first.
    assert_eq!(next(&mut watch).await, (EventType::Modified, "first".to_owned(), json!("Pending")));
    assert_eq!(next(&mut watch).await, (EventType::Deleted, "first".to_owned(), json!("Pending")));

    kubectl.0.kill().unwrap();
    until(&mut client, pb::SyncState::Stale).await;
    let (resource, namespace, name) = ("pods".to_owned(), "a".to_owned(), "second".to_owned());
    let request = pb::GetRequest { resource, namespace, name, ..pb::GetRequest::default() };
    let kept = client.get(request).await.unwrap().into_inner();
    assert_eq!(kept.source(), pb::SyncState::Stale);
    // Clients received nothing of it either, and no stream ended.
    let told = tokio::time::timeout(Duration::ZERO, next(&mut watch)).await;
    assert!(told.is_err(), "{told:?}");
}

/// `while :; do kubectl get pods -A -w --output-watch-events -o json >pods.pipe; done`: kubectl ends with each restart of an API
/// server, and begins again with the full state. It does not write deletions from the meantime.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pod_that_was_deleted_while_kubectl_was_away_is_deleted_once_the_next_one_has_listed() {
    let apiserver = ApiServer::start().await;
    let api = apiserver.impatient_client().await;
    create(&api, "first").await;
    create(&api, "second").await;
    let directory = TempDir::new().unwrap();
    let pipe = directory.path().join("pods.pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let config = directory.path().join("informerd.yaml");
    fs::write(&config, "resources: { pods: { source: { stream: { path: pods.pipe, confirm_after: 3s } } } }").unwrap();
    let address = free_address().to_string();
    let informerd = Command::new(env!("CARGO_BIN_EXE_informerd"))
        .args(["serve", "--listen", &address, "--admin-listen", "none", "--config"])
        .arg(config)
        .stderr(Stdio::null())
        .spawn();
    let _informerd = Running(informerd.unwrap());
    let mut client = connect(&address).await;
    until(&mut client, pb::SyncState::Synced).await;
    // Opened here, so that the end of kubectl is the end of the writer: a shell opens it in a process of its own.
    let writer = || Stdio::from(File::options().write(true).open(&pipe).unwrap());
    let first = kubectl(&apiserver, directory.path(), writer());
    let request = pb::WatchRequest {
        resource: "pods".to_owned(),
        namespace: "a".to_owned(),
        format: pb::PayloadFormat::Raw.into(),
        ..pb::WatchRequest::default()
    };
    let mut watch = client.watch(request).await.unwrap().into_inner();
    for name in ["first", "second"] {
        assert_eq!(next(&mut watch).await, (EventType::Added, name.to_owned(), json!("Pending")));
    }
    drop(first);
    until(&mut client, pb::SyncState::Stale).await;
    ask(&api, "DELETE", &format!("{PODS}/first"), None).await.unwrap();
    create(&api, "third").await;

    let _second = kubectl(&apiserver, directory.path(), writer());
    assert_eq!(next(&mut watch).await, (EventType::Added, "third".to_owned(), json!("Pending")));
    let unconfirmed = resource(&mut client).await;
    assert_eq!((unconfirmed.state(), unconfirmed.objects), (pb::SyncState::Stale, 3));
    assert_eq!(unconfirmed.problems[0].reason, "OBJECTS_UNCONFIRMED");
    assert_eq!(next(&mut watch).await, (EventType::Deleted, "first".to_owned(), json!("Pending")));
    until(&mut client, pb::SyncState::Synced).await;
    assert_eq!(resource(&mut client).await.problems, []);
    let patch = json!({ "status": { "phase": "Running" } });
    ask(&api, "PATCH", &format!("{PODS}/second/status"), Some(&patch)).await.unwrap();
    assert_eq!(next(&mut watch).await, (EventType::Modified, "second".to_owned(), json!("Running")));
}

/// Starts kubectl, which writes the pods of all namespaces and their changes.
fn kubectl(apiserver: &ApiServer, directory: &Path, stdout: Stdio) -> Running {
    let kubeconfig = directory.join("kubeconfig");
    apiserver.kubeconfig(&kubeconfig, apiserver.address().port(), ADMIN);
    let kubectl = Command::new(program("INFORMERD_KUBERNETES"))
        .args(["kubectl", "get", "pods", "-A", "-w", "--output-watch-events", "-o", "json"])
        .env("KUBECONFIG", kubeconfig)
        .stdin(Stdio::null())
        .stdout(stdout)
        .spawn();
    Running(kubectl.unwrap())
}

async fn create(api: &Client, name: &str) {
    let container = json!({ "name": "c", "image": "scratch" });
    let pod = json!({ "metadata": { "name": name }, "spec": { "containers": [container] } });
    ask(api, "POST", PODS, Some(&pod)).await.unwrap();
}

async fn connect(address: &str) -> InformerServiceClient<Channel> {
    let started = Instant::now();
    loop {
        match InformerServiceClient::connect(format!("http://{address}")).await {
            Ok(client) => return client,
            Err(error) => assert!(started.elapsed() < DEADLINE, "{error}"),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Returns the next event: its type, the pod, and its phase.
async fn next(watch: &mut Streaming<pb::WatchResponse>) -> (EventType, String, Value) {
    loop {
        let message = tokio::time::timeout(DEADLINE, watch.message()).await.expect("an event in time");
        let message = message.unwrap().expect("it goes on");
        let event_type = message.r#type();
        let Some(pb::Object { name, body: Some(pb::object::Body::Raw(body)), .. }) = message.object else { continue };
        let pod: Value = serde_json::from_slice(&body).unwrap();
        return (event_type, name, pod["status"]["phase"].clone());
    }
}

async fn resource(client: &mut InformerServiceClient<Channel>) -> pb::Resource {
    let answer = client.list_resources(pb::ListResourcesRequest {}).await.unwrap().into_inner();
    answer.resources.into_iter().next().unwrap()
}

async fn until(client: &mut InformerServiceClient<Channel>, state: pb::SyncState) {
    let started = Instant::now();
    loop {
        let resource = resource(client).await;
        if resource.state() == state {
            return;
        }
        assert!(started.elapsed() < DEADLINE, "{state:?} in time: {resource:?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
