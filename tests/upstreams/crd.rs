//! A CRD that changes while replicas follow its objects, and while one is down: other bytes at the same versions, and a version
//! that is not served for a while. The API's own list is the reference.

use std::{collections::BTreeMap, time::Instant};

use informerd::proto::pb;
use serde_json::{Value, json};

use crate::{
    DEADLINE,
    apiserver::{ADMIN, ApiServer},
    follow::{Follower, ReceivedEvent},
    killable::KillableServer,
    served::bodies,
};

const CRD: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const FOLLOWED: &str = "/apis/crd.example.com/v1";
const STORED: &str = "/apis/crd.example.com/v2";
const OBJECTS: usize = 20;

type Objects = BTreeMap<String, Value>;

/// Returns the versions of the CRD: the one that is followed, and the one that is stored.
fn versions(properties: &Value, is_served: bool) -> Value {
    let spec = json!({ "type": "object", "properties": properties });
    let schema = json!({ "openAPIV3Schema": { "type": "object", "properties": { "spec": spec } } });
    json!([
        { "name": "v1", "served": is_served, "storage": false, "schema": schema },
        { "name": "v2", "served": true, "storage": true, "schema": schema },
    ])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_serve_the_same_as_the_api_whatever_happens_to_its_crd() {
    let apiserver = ApiServer::start().await;
    let before = json!({ "n": { "type": "integer" }, "color": { "type": "string" } });
    let names = json!({ "plural": "widgets", "singular": "widget", "kind": "Widget" });
    let spec = json!({
        "group": "crd.example.com", "scope": "Namespaced", "names": names, "versions": versions(&before, true),
    });
    apiserver.post(CRD, &json!({ "metadata": { "name": "widgets.crd.example.com" }, "spec": spec })).await;
    for root in [FOLLOWED, STORED] {
        apiserver.until(&format!("{root}/widgets")).await;
    }
    for n in 0..OBJECTS {
        put(&apiserver, n).await;
    }
    let source = json!({ "group": "crd.example.com", "version": "v1", "plural": "widgets" });
    let mut replicas = [(); 3].map(|()| KillableServer::kube(&apiserver, ADMIN, source.clone()));
    for replica in &replicas {
        replica.synced().await;
    }
    equal(&apiserver, &replicas, |spec| spec["color"] == "red").await;
    let mut followers = Vec::new();
    for replica in &replicas[..2] {
        followers.push(Follower::start(replica.client().await, "").await);
    }
    // The third replica resumes from its earlier snapshot file.
    replicas[2].written().await;
    replicas[2].kill();

    // No object is written.
    let after = json!({ "n": { "type": "integer" }, "replicas": { "type": "integer", "default": 3 } });
    change(&apiserver, &versions(&after, true)).await;
    replicas[2].restart();
    let objects = equal(&apiserver, &replicas, |spec| spec["replicas"] == 3 && spec.get("color").is_none()).await;
    for (replica, follower) in replicas.iter().zip(&followers) {
        let told = told(replica, follower).await.split_off(OBJECTS);
        let told: BTreeMap<_, _> = told.into_iter().map(|told| (told.key.clone(), told)).collect();
        assert!(told.keys().eq(objects.keys()), "each object is MODIFIED: {told:?}");
        for (key, told) in told {
            assert_eq!((told.event_type, told.version), (pb::EventType::Modified, version(&objects[&key])), "{key}");
        }
    }

    change(&apiserver, &versions(&after, false)).await;
    for replica in &replicas {
        replica.until("stale", |resource| resource.state() == pb::SyncState::Stale).await;
        assert_eq!(served(replica).await, objects, "the state is kept");
    }
    put(&apiserver, OBJECTS).await;
    apiserver.ask("DELETE", &format!("{STORED}/namespaces/a/widgets/o-0"), None).await.unwrap();
    let patch = json!({ "spec": { "replicas": 7 } });
    apiserver.ask("PATCH", &format!("{STORED}/namespaces/b/widgets/o-1"), Some(&patch)).await.unwrap();
    change(&apiserver, &versions(&after, true)).await;
    let objects = equal(&apiserver, &replicas, |spec| spec["replicas"] == 3 || spec["n"] == 1).await;
    assert_eq!(objects.len(), OBJECTS);
    for replica in &replicas {
        replica.synced().await;
        assert_eq!(replica.count("cache_rewinds_total").await, 0);
    }
    for (replica, follower) in replicas.iter().zip(&followers) {
        told(replica, follower).await;
    }
}

/// Returns the events of a client up to the version of the replica. Its stream must not have ended.
async fn told(replica: &KillableServer, follower: &Follower) -> Vec<ReceivedEvent> {
    let resource = replica.until("listed", |resource| !resource.resource_version.is_empty()).await;
    follower.reach(resource.resource_version.parse().unwrap()).await.told
}

/// Creates an object of the stored version.
async fn put(apiserver: &ApiServer, n: usize) {
    let path = format!("{STORED}/namespaces/{}/widgets", ["a", "b"][n % 2]);
    let object = json!({
        "apiVersion": "crd.example.com/v2", "kind": "Widget",
        "metadata": { "name": format!("o-{n}") }, "spec": { "n": n, "color": "red" },
    });
    apiserver.post(&path, &object).await;
}

async fn change(apiserver: &ApiServer, versions: &Value) {
    let patch = json!({ "spec": { "versions": versions } });
    apiserver.ask("PATCH", &format!("{CRD}/widgets.crd.example.com"), Some(&patch)).await.unwrap();
}

/// Waits until the API has every object in this form, and each replica serves the same. Returns the objects.
async fn equal(apiserver: &ApiServer, replicas: &[KillableServer], has_form: fn(&Value) -> bool) -> Objects {
    let started = Instant::now();
    loop {
        let expected = listed(apiserver).await.unwrap_or_default();
        let mut is_equal = !expected.is_empty() && expected.values().all(|object| has_form(&object["spec"]));
        for replica in replicas {
            is_equal = is_equal && served(replica).await == expected;
        }
        if is_equal {
            return expected;
        }
        if started.elapsed() > DEADLINE {
            let served = served(&replicas[0]).await;
            panic!("not equal in time: {expected:?}, and the first replica {served:?}");
        }
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
}

/// Returns the API's own list.
async fn listed(apiserver: &ApiServer) -> Result<Objects, String> {
    let list = apiserver.ask("GET", &format!("{FOLLOWED}/widgets"), None).await?;
    let entry = |object: &Value| {
        let mut object = object.clone();
        object["metadata"].as_object_mut().unwrap().remove("managedFields");
        let text = |field: &str| object["metadata"][field].as_str().unwrap().to_owned();
        (format!("{}/{}", text("namespace"), text("name")), object)
    };
    Ok(list["items"].as_array().unwrap().iter().map(entry).collect())
}

async fn served(replica: &KillableServer) -> Objects {
    let bodies = bodies(replica.client().await, "things").await;
    bodies.into_iter().map(|(key, body)| (key, serde_json::from_str(&body).unwrap())).collect()
}

fn version(object: &Value) -> i64 {
    object["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
}
