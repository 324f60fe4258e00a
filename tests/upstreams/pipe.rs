//! `kubectl get pods -A -w --output-watch-events -o json | informerd serve --stream pods=-`.

use std::{
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

/// A process that does not outlive the test.
struct Running(Child);

const PODS: &str = "/api/v1/namespaces/a/pods";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_kubectl_tells_is_served_and_outlives_it() {
    let apiserver = ApiServer::start().await;
    let api = apiserver.impatient_client().await;
    create(&api, "first").await;
    let directory = TempDir::new().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    apiserver.kubeconfig(&kubeconfig, apiserver.address().port(), ADMIN);
    let kubectl = Command::new(program("INFORMERD_KUBERNETES"))
        .args(["kubectl", "get", "pods", "-A", "-w", "--output-watch-events", "-o", "json"])
        .env("KUBECONFIG", kubeconfig)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn();
    let mut kubectl = Running(kubectl.unwrap());
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
    // It is marked first.
    assert_eq!(next(&mut watch).await, (EventType::Modified, "first".to_owned(), json!("Pending")));
    assert_eq!(next(&mut watch).await, (EventType::Deleted, "first".to_owned(), json!("Pending")));

    kubectl.0.kill().unwrap();
    let started = Instant::now();
    while state(&mut client).await != pb::SyncState::Stale {
        assert!(started.elapsed() < DEADLINE, "it is stale in time");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let (resource, namespace, name) = ("pods".to_owned(), "a".to_owned(), "second".to_owned());
    let request = pb::GetRequest { resource, namespace, name, ..pb::GetRequest::default() };
    let kept = client.get(request).await.unwrap().into_inner();
    assert_eq!(kept.source(), pb::SyncState::Stale);
    // Nothing was told of it either, and nobody was ended.
    let told = tokio::time::timeout(Duration::ZERO, next(&mut watch)).await;
    assert!(told.is_err(), "{told:?}");
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

/// The next event: which pod, and its phase.
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

async fn state(client: &mut InformerServiceClient<Channel>) -> pb::SyncState {
    let answer = client.list_resources(pb::ListResourcesRequest {}).await.unwrap().into_inner();
    answer.resources[0].state()
}

impl Drop for Running {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
