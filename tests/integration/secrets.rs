//! Resources of Secrets: their clients receive metadata only, and a relay serves them only on request.

use std::sync::Arc;

use informerd::{
    grpc::ShownChanges,
    model::{Object, ResourceVersion},
    proto::pb::{self, informer_service_client::InformerServiceClient},
    source::relay::RelayConfig,
};
use tonic::{Code, Status, transport::Channel};

use crate::sandbox::{DEADLINE, Options, Sandbox, next, reason, relay_of, watch_pods};

/// Data that must not leave the server, as the API sends it.
const CANARY: &str = "Y2FuYXJ5";

fn secret(name: &str) -> Arc<Object> {
    let body = format!(
        r#"{{"apiVersion":"v1","kind":"Secret","metadata":{{"namespace":"shop","name":"{name}","labels":{{"app":"web"}}}},"data":{{"key":"{CANARY}"}},"spec":{{"nodeName":"{CANARY}"}}}}"#
    );
    Arc::new(Object::from_json(&body, "", ResourceVersion::decimal(1)).unwrap())
}

async fn secrets() -> Sandbox {
    let options = Options { is_secret: true, source: "kube", ..Options::default() };
    Sandbox::start_with(options, vec![secret("a"), secret("b")]).await
}

async fn denied<T: std::fmt::Debug>(call: impl Future<Output = Result<T, Status>>) {
    let status = call.await.expect_err("denied");
    assert_eq!((status.code(), reason(&status).as_str()), (Code::PermissionDenied, "ACCESS_DENIED"), "{status:?}");
    let message = status.message();
    assert!(message.contains("METADATA only") && message.contains("authorization rule"), "{message}");
    assert!(!message.contains(CANARY), "{message}");
}

fn list(format: pb::PayloadFormat) -> pb::ListRequest {
    pb::ListRequest { resource: "pods".into(), format: format.into(), ..Default::default() }
}

fn index(name: &str, value: &str) -> pb::IndexMatch {
    pb::IndexMatch { name: name.into(), values: vec![value.into()] }
}

fn until(format: pb::PayloadFormat, condition: &str) -> pb::UntilRequest {
    let watch = Some(pb::WatchRequest { format: format.into(), ..watch_pods() });
    pb::UntilRequest { watch, conditions: vec![condition.into()] }
}

/// Returns the objects of a List, each of which has the metadata and no body.
async fn listed(client: &mut InformerServiceClient<Channel>, request: pb::ListRequest) -> Vec<String> {
    let mut stream = client.list(request).await.unwrap().into_inner();
    let mut names = Vec::new();
    while let Some(response) = stream.message().await.unwrap() {
        for object in response.objects {
            assert_eq!((object.body, &*object.labels["app"]), (None, "web"));
            names.push(object.name);
        }
    }
    names
}

#[tokio::test]
async fn clients_of_secrets_receive_their_metadata() {
    let sandbox = secrets().await;
    let mut client = sandbox.client().await;
    for format in [pb::PayloadFormat::Unspecified, pb::PayloadFormat::Metadata] {
        let request = pb::WatchRequest { format: format.into(), label_selector: "app=web".into(), ..watch_pods() };
        let mut watch = client.watch(request).await.unwrap().into_inner();
        for name in ["a", "b"] {
            let object = next(&mut watch).await.object.unwrap();
            assert_eq!((&*object.name, object.body), (name, None));
        }
        assert_eq!(listed(&mut client, list(format)).await, ["a", "b"]);
        let by_name = pb::ListRequest { field_selector: "metadata.name=b".into(), ..list(format) };
        assert_eq!(listed(&mut client, by_name).await, ["b"]);
        let by_label = pb::ListRequest { index: Some(index("app", "web")), ..list(format) };
        assert_eq!(listed(&mut client, by_label).await, ["a", "b"]);
        let (namespace, name) = ("shop".into(), "a".into());
        let request =
            pb::GetRequest { resource: "pods".into(), namespace, name, format: format.into(), ..Default::default() };
        assert_eq!(client.get(request).await.unwrap().into_inner().object.unwrap().body, None);
        let met = client.until(until(format, "count >= 2")).await.unwrap().into_inner();
        assert_eq!(met.event.unwrap().r#type(), pb::EventType::Bookmark);
        let met = client.until(until(format, "type == 'ADDED'")).await.unwrap().into_inner();
        assert_eq!(met.event.unwrap().object.unwrap().body, None);
    }
}

#[tokio::test]
async fn whatever_depends_on_the_body_of_a_secret_is_denied() {
    let sandbox = secrets().await;
    let client = sandbox.in_process();
    let called = || client.clone();
    for format in [pb::PayloadFormat::Struct, pb::PayloadFormat::Raw] {
        denied(called().watch(pb::WatchRequest { format: format.into(), ..watch_pods() })).await;
        denied(called().list(list(format))).await;
        let get =
            pb::GetRequest { resource: "pods".into(), name: "a".into(), format: format.into(), ..Default::default() };
        denied(called().get(get)).await;
        denied(called().until(until(format, "type == 'SYNCED'"))).await;
    }
    let metadata = || list(pb::PayloadFormat::Metadata);
    denied(called().list(pb::ListRequest { field_selector: format!("data.key={CANARY}"), ..metadata() })).await;
    denied(called().list(pb::ListRequest { expression: "object.data.key == 'x'".into(), ..metadata() })).await;
    denied(called().list(pb::ListRequest { index: Some(index("node", CANARY)), ..metadata() })).await;
    denied(called().watch(pb::WatchRequest { field_selector: "data.key!=x".into(), ..watch_pods() })).await;
    denied(called().until(until(pb::PayloadFormat::Metadata, "object.data.key != 'x'"))).await;
    let (resource, name) = (|| "pods".to_owned(), || "node".to_owned());
    let by_index =
        pb::ByIndexRequest { resource: resource(), index: name(), value: CANARY.into(), ..Default::default() };
    denied(called().by_index(by_index)).await;
    let like = Some(pb::ObjectKey { namespace: "shop".into(), name: "a".into() });
    denied(called().by_index(pb::ByIndexRequest { resource: resource(), index: name(), like, ..Default::default() }))
        .await;
    let values = pb::ListIndexValuesRequest { resource: resource(), index: name(), ..Default::default() };
    denied(called().list_index_values(values)).await;
}

/// A relay cannot read the configuration of its upstream: it sees Secrets when they arrive, and serves none of them.
#[tokio::test]
async fn the_page_of_operators_never_has_the_body_of_a_secret() {
    let mut sandbox = secrets().await;
    let secret = sandbox.put("shop", "a", &format!(r#""nodeName":"{CANARY}""#)).await;
    sandbox.reached(secret.version()).await;
    let object = Some(("shop".to_owned(), "a".to_owned()));
    let shown = ShownChanges { resource: "pods".to_owned(), object, ..ShownChanges::default() };
    let changes = sandbox.state.debug_changes(&shown, true).unwrap();
    assert_eq!((changes["changes"].as_array().unwrap().len(), &changes["bodies"]), (1, &false.into()));
    assert!(!changes.to_string().contains(CANARY), "{changes}");
}

#[tokio::test]
async fn a_relay_refuses_secrets_that_it_may_not_serve() {
    for (source, allows_secrets, is_served) in
        [("kube", false, false), ("informerd", false, false), ("kube", true, true), ("files", false, true)]
    {
        let origin = Sandbox::start_with(Options { source, ..Options::default() }, vec![secret("a")]).await;
        let relay = Some(RelayConfig { allows_secrets, ..relay_of(origin.address()) });
        let relay = Sandbox::start_unsynced(Options { relay, ..Options::default() }).await;
        let outcome = async {
            loop {
                let error = relay.informer.report().last_error.unwrap_or_default();
                if error.contains("`allow_secrets: true`") || relay.informer.snapshot().is_some() {
                    return error;
                }
                tokio::time::sleep(std::time::Duration::from_millis(5)).await;
            }
        };
        let error = tokio::time::timeout(DEADLINE, outcome).await.unwrap();
        assert_eq!(relay.informer.snapshot().is_some(), is_served, "{source}: {error}");
        assert!(is_served || error.contains("resource \"pods\" has Secrets") && !error.contains(CANARY), "{error}");
    }
}
