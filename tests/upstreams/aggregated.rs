//! informerd over an aggregated API: the API server in front proxies the requests to another API server, which has an etcd of its
//! own.

use std::fs;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    apiserver::{ADMIN, AGGREGATED, ApiServer, ask},
    authority::Authority,
    follow::Follower,
    kube::check,
    selection::Selection,
    served::{Served, bodies},
    truth::Truth,
};

fn source() -> Value {
    json!({ "group": "aggregated.example.com", "version": "v1", "plural": "things" })
}

/// Starts the API server in front and the one with the objects; the directory gets the certificates of the former as a proxy.
async fn start(directory: &TempDir) -> (ApiServer, ApiServer) {
    let authority = Authority::new();
    let (certificate, key) = authority.sign(&[]);
    let flag = |flag: &str, name: &str, bytes: Vec<u8>| {
        let path = directory.path().join(name);
        fs::write(&path, bytes).unwrap();
        format!("--{flag}={}", path.display())
    };

    // It trusts the identity that the other one puts into its request headers.
    let believed = flag("requestheader-client-ca-file", "ca.crt", authority.pem());
    let headers = ["--requestheader-username-headers=X-Remote-User", "--requestheader-group-headers=X-Remote-Group"];
    let behind = ApiServer::with(&[&believed, headers[0], headers[1]]).await;
    behind.define(AGGREGATED).await;

    let certificate = flag("proxy-client-cert-file", "proxy.crt", certificate);
    let key = flag("proxy-client-key-file", "proxy.key", key);
    let front = ApiServer::with(&[&certificate, &key]).await;
    let service = json!({ "type": "ExternalName", "externalName": "localhost" });
    front
        .post("/api/v1/namespaces/default/services", &json!({ "metadata": { "name": "behind" }, "spec": service }))
        .await;
    let service = json!({ "namespace": "default", "name": "behind", "port": behind.address().port() });
    let spec = json!({
        "group": "aggregated.example.com",
        "version": "v1",
        "service": service,
        "insecureSkipTLSVerify": true,
        "groupPriorityMinimum": 1_000,
        "versionPriority": 15,
    });
    let added = json!({ "metadata": { "name": "v1.aggregated.example.com" }, "spec": spec });
    front.post("/apis/apiregistration.k8s.io/v1/apiservices", &added).await;
    front.until(&AGGREGATED.all()).await;
    (front, behind)
}

/// Cuts connections, and kills either of the two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_client_receives_the_objects_of_an_aggregated_api_server() {
    let directory = TempDir::new().unwrap();
    let (mut front, mut behind) = start(&directory).await;
    let mut truth = Truth::new(19);
    for _ in 0..20 {
        front.write(&mut truth, AGGREGATED).await;
    }
    let mut metadata = source();
    (metadata["kubeconfig"], metadata["metadata_only"]) = (json!("kubeconfig"), json!(true));
    let metadata = ("metadata", json!({ "source": { "kube": metadata } }));
    let served = Served::kube_among(&front, ADMIN, source(), &[metadata]).await;
    let followers = served.followers().await;
    for n in 0..20 {
        front.write(&mut truth, AGGREGATED).await;
        if n % 7 == 0 {
            served.cut();
        }
    }
    check(&front, &followers, &mut truth, AGGREGATED, true).await;

    // The one that has the objects runs on, with its watch cache.
    front.kill();
    behind.write(&mut truth, AGGREGATED).await;
    front.restart().await;
    front.until(&AGGREGATED.all()).await;
    front.write(&mut truth, AGGREGATED).await;
    check(&front, &followers, &mut truth, AGGREGATED, true).await;
    assert_eq!(served.count("reflector_lists_total").await, 2, "one for each resource");
    // The API server behind converts them.
    let follower = Follower::of(served.client().await, Selection::default().resource("metadata")).await;
    follower.reach(truth.revision()).await;
    let objects = bodies(served.client().await, "metadata").await;
    let all = bodies(served.client().await, "things").await;
    assert!(objects.keys().eq(all.keys()), "{objects:?}");
    for body in objects.values() {
        assert!(
            body.starts_with(r#"{"kind":"PartialObjectMetadata","apiVersion":"meta.k8s.io/v1","metadata":{"#),
            "{body}"
        );
        assert!(!body.contains(r#""data""#), "{body}");
    }

    behind.kill();
    let refused = ask(&front.impatient_client().await, "GET", &AGGREGATED.all(), None).await.unwrap_err();
    assert!(refused.contains("503"), "{refused}");
    behind.restart().await;
    behind.write(&mut truth, AGGREGATED).await;
    check(&behind, &followers, &mut truth, AGGREGATED, false).await;
    assert!(served.count("reflector_lists_total").await <= 4);
    assert_eq!(served.count("cache_rewinds_total").await, 0);
}
