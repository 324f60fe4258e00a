//! Metadata only: Secrets without their data, as the API server itself writes them.

use std::collections::BTreeMap;

use http::{Request, header};
use informerd::proto::pb;
use serde_json::value::RawValue;
use serde_json::{Value, json};

use crate::{
    apiserver::{ADMIN, ApiServer},
    follow::Follower,
    selection::Selection,
    served::{Served, bodies},
};

const SECRETS: &str = "/api/v1/namespaces/a/secrets";
const SECRET: &str = "aHVudGVyMg==";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn secrets_are_served_without_their_data_and_followed() {
    // By the initial events of a watch, and in pages.
    for flags in [&[][..], &["--feature-gates=WatchList=false"]] {
        let apiserver = ApiServer::with(flags).await;
        for name in ["a", "b", "c"] {
            apiserver.post(SECRETS, &secret(name)).await;
        }
        apiserver.post(SECRETS, &json!({ "metadata": { "name": "other" }, "data": { "password": SECRET } })).await;
        let source =
            json!({ "version": "v1", "plural": "secrets", "label_selector": "suite=truth", "metadata_only": true });
        let mut all = source.clone();
        all["kubeconfig"] = json!("kubeconfig");
        let all = json!({ "source": { "kube": all }, "drop_fields": [], "allow_secrets": true });
        let served = Served::kube_among(&apiserver, ADMIN, source, &[("all", all)]).await;
        let follower = Follower::start(served.client().await, "").await;
        assert_eq!(follower.followed().told.len(), 3);

        // A change of the data alone changes the version in the metadata.
        let change = json!({ "stringData": { "password": "other" } });
        apiserver.ask("PATCH", &format!("{SECRETS}/a"), Some(&change)).await.unwrap();
        served.cut();
        let change = json!({ "metadata": { "labels": { "colour": "red" } } });
        apiserver.ask("PATCH", &format!("{SECRETS}/b"), Some(&change)).await.unwrap();
        apiserver.ask("DELETE", &format!("{SECRETS}/c"), None).await.unwrap();
        apiserver.post(SECRETS, &secret("d")).await;
        let expected = listed(&apiserver).await;
        let last = expected.values().map(|body| version(body)).max().unwrap();
        let told = follower.reach(last).await.told;
        let changes: Vec<_> = told[3..].iter().map(|told| (told.event_type, &*told.key)).collect();
        let (added, modified, deleted) = (pb::EventType::Added, pb::EventType::Modified, pb::EventType::Deleted);
        assert_eq!(changes, [(modified, "a/a"), (modified, "a/b"), (deleted, "a/c"), (added, "a/d")]);
        for told in &told {
            let body: BTreeMap<String, Value> = serde_json::from_str(told.value.as_ref().unwrap()).unwrap();
            assert_eq!(body.keys().collect::<Vec<_>>(), ["apiVersion", "kind", "metadata"]);
            assert_eq!(
                (&body["kind"], &body["apiVersion"]),
                (&json!("PartialObjectMetadata"), &json!("meta.k8s.io/v1"))
            );
            assert!(body["metadata"].get("managedFields").is_none());
        }

        Follower::of(served.client().await, Selection::default().resource("all")).await.reach(last).await;
        assert_eq!(bodies(served.client().await, "all").await, expected, "to the byte");
        let is_equal =
            |name: &str| (Some(0), format!("# {name}: {} objects are those of the upstream\n", expected.len()));
        assert_eq!(served.verify("things").await, is_equal("things"));
        let (code, note) = served.verify("all").await;
        assert_eq!((code, note.contains("are those of the upstream")), (Some(0), true), "{note}");
        assert_eq!(served.count("reflector_lists_total").await, 2, "one for each resource");
        assert_eq!(served.count("cache_rewinds_total").await, 0);
    }
}

fn secret(name: &str) -> Value {
    json!({ "metadata": { "name": name, "labels": { "suite": "truth" } }, "data": { "password": SECRET } })
}

fn version(body: &str) -> i64 {
    let body: Value = serde_json::from_str(body).unwrap();
    body["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}

/// Returns the API server's own list of metadata.
async fn listed(apiserver: &ApiServer) -> BTreeMap<String, String> {
    #[derive(serde::Deserialize)]
    struct List<'a> {
        #[serde(borrow)]
        items: Vec<&'a RawValue>,
    }
    let accept = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
    let request = Request::get(format!("{SECRETS}?labelSelector=suite%3Dtruth")).header(header::ACCEPT, accept);
    let list = apiserver.client.request_text(request.body(Vec::new()).unwrap()).await.unwrap();
    let key = |item: &str| {
        let item: Value = serde_json::from_str(item).unwrap();
        format!("a/{}", item["metadata"]["name"].as_str().unwrap())
    };
    let List { items } = serde_json::from_str(&list).unwrap();
    items.into_iter().map(|item| (key(item.get()), item.get().to_owned())).collect()
}
