//! Several namespaces in one resource over a real API server: writes in some, silence in others, cuts, and clients that resume
//! from any version.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use informerd::proto::pb::{self, informer_service_client::InformerServiceClient};
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tonic::transport::Channel;

use crate::{
    DEADLINE,
    apiserver::{ADMIN, ApiServer, CONFIG_MAPS, READER, ask},
    killable::{KillableServer, refusal},
    served::{Served, bodies},
};

type Client = InformerServiceClient<Channel>;
/// Versions by key.
type State = BTreeMap<String, String>;

fn source(namespaces: &Value) -> Value {
    json!({ "version": "v1", "plural": "configmaps", "namespaces": namespaces })
}

async fn put(apiserver: &ApiServer, key: &str, value: &str) -> String {
    let (namespace, name) = key.split_once('/').unwrap();
    let all = CONFIG_MAPS.path(namespace);
    let data = json!({ "value": value });
    let object = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data });
    let written = match apiserver.ask("PATCH", &format!("{all}/{name}"), Some(&json!({ "data": data }))).await {
        Ok(written) => written,
        Err(_) => apiserver.ask("POST", &all, Some(&object)).await.unwrap(),
    };
    written["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
}

async fn delete(apiserver: &ApiServer, key: &str) {
    let (namespace, name) = key.split_once('/').unwrap();
    apiserver.ask("DELETE", &format!("{}/{name}", CONFIG_MAPS.path(namespace)), None).await.unwrap();
}

/// Returns the objects of these namespaces in the API, now or at a version.
async fn truth(apiserver: &ApiServer, namespaces: &[&str], at: Option<&str>) -> State {
    let query = at.map_or(String::new(), |at| format!("?resourceVersion={at}&resourceVersionMatch=Exact"));
    let mut state = State::new();
    for namespace in namespaces {
        let list = apiserver.ask("GET", &format!("{}{query}", CONFIG_MAPS.path(namespace)), None).await.unwrap();
        for item in list["items"].as_array().unwrap() {
            let metadata = &item["metadata"];
            let key = format!("{namespace}/{}", metadata["name"].as_str().unwrap());
            state.insert(key, metadata["resourceVersion"].as_str().unwrap().to_owned());
        }
    }
    state
}

async fn served_state(client: &Client) -> State {
    let version = |body: &String| {
        let body: Value = serde_json::from_str(body).unwrap();
        body["metadata"]["resourceVersion"].as_str().unwrap().to_owned()
    };
    bodies(client.clone(), "things").await.iter().map(|(key, body)| (key.clone(), version(body))).collect()
}

/// Waits until the server has the same objects as the API.
async fn equal(apiserver: &ApiServer, client: &Client, namespaces: &[&str]) {
    let started = Instant::now();
    loop {
        let (expected, found) = (truth(apiserver, namespaces, None).await, served_state(client).await);
        if expected == found {
            return;
        }
        assert!(started.elapsed() < 2 * DEADLINE, "{expected:?} is not {found:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn watch(client: &Client, after: &str) -> tonic::Streaming<pb::WatchResponse> {
    let request = pb::WatchRequest {
        resource: "things".to_owned(),
        resource_version: after.to_owned(),
        initial_events: if after.is_empty() { pb::InitialEvents::Send } else { pb::InitialEvents::Unspecified }.into(),
        bookmark_interval: Some(prost_types::Duration { seconds: 1, nanos: 0 }),
        ..pb::WatchRequest::default()
    };
    client.clone().watch(request).await.unwrap().into_inner()
}

/// Folds a watch from one version to another, and returns the versions that it could be resumed from.
async fn follow(client: &Client, after: &str, state: &mut State, until: &str) -> BTreeSet<u64> {
    let mut stream = watch(client, after).await;
    let (mut versions, mut last) = (BTreeSet::new(), 0);
    let until: u64 = until.parse().unwrap();
    while last < until {
        let message = tokio::time::timeout(2 * DEADLINE, stream.message()).await.expect("in time").unwrap().unwrap();
        if let Ok(version) = message.resource_version.parse() {
            assert!(version >= last, "versions of a stream never go back");
            last = version;
            versions.insert(version);
        }
        let event_type = message.r#type();
        let Some(object) = message.object else { continue };
        let key = format!("{}/{}", object.namespace, object.name);
        match event_type {
            pb::EventType::Deleted => drop(state.remove(&key)),
            _ => drop(state.insert(key, object.resource_version)),
        }
    }
    versions
}

async fn list_at(client: &Client, version: &str) -> Duration {
    let started = Instant::now();
    let request = pb::ListRequest {
        resource: "things".to_owned(),
        min_resource_version: version.to_owned(),
        ..pb::ListRequest::default()
    };
    let mut answer = client.clone().list(request).await.unwrap().into_inner();
    while answer.message().await.unwrap().is_some() {}
    started.elapsed()
}

/// Writes objects of another kind all the time, as any cluster does.
fn live(apiserver: &ApiServer) -> JoinHandle<()> {
    let client = apiserver.client.clone();
    tokio::spawn(async move {
        for n in 0_u64.. {
            let secret = json!({ "metadata": { "name": format!("s-{n}") } });
            ask(&client, "POST", "/api/v1/namespaces/c/secrets", Some(&secret)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_namespaces_are_one_resource() {
    let apiserver = ApiServer::start().await;
    for key in ["a/x", "b/x", "c/x"] {
        put(&apiserver, key, "0").await;
    }
    let served = Served::kube(&apiserver, ADMIN, source(&json!(["a", "b", "late"]))).await;
    let client = served.client().await;
    equal(&apiserver, &client, &["a", "b"]).await;
    let resource = served.resource("things").await;
    assert_eq!(resource.namespaces, ["a", "b", "late"]);
    let problems: Vec<_> = resource.problems.iter().map(|problem| (&*problem.reason, &*problem.subject)).collect();
    assert_eq!(problems, [("NAMESPACE_NOT_FOUND", "late")]);

    let life = live(&apiserver);
    // An event arrives at once, though the other namespaces are quiet; the version once all have reached it, which the
    // server requests.
    let mut stream = watch(&client, "").await;
    while !stream.message().await.unwrap().unwrap().bookmark.is_some_and(|bookmark| bookmark.initial_events_end) {}
    put(&apiserver, "c/x", "1").await;
    let started = Instant::now();
    let version = put(&apiserver, "a/x", "1").await;
    let told = loop {
        let message = stream.message().await.unwrap().unwrap();
        if message.object.is_some() {
            break message;
        }
    };
    let latency = started.elapsed();
    assert!(told.open && latency < Duration::from_secs(1), "{latency:?}: {told:?}");
    let waited = list_at(&client, &version).await;
    assert!(waited < Duration::from_secs(10), "{waited:?}");
    println!("an event of one namespace takes {latency:?}, and a list at its version {waited:?}");

    // Cuts, and a namespace that is created now.
    let mut versions = BTreeSet::new();
    for round in 0..5 {
        served.cut();
        for n in 0..5 {
            put(&apiserver, &format!("a/{n}"), &format!("{round}")).await;
            put(&apiserver, &format!("c/{n}"), &format!("{round}")).await;
        }
        put(&apiserver, "b/y", &format!("{round}")).await;
        delete(&apiserver, "a/3").await;
        let end = put(&apiserver, "a/x", &format!("round {round}")).await;
        equal(&apiserver, &client, &["a", "b"]).await;
        list_at(&client, &end).await;
        let mut state = State::new();
        versions.extend(follow(&client, "", &mut state, &end).await);
        assert_eq!(state, truth(&apiserver, &["a", "b"], None).await, "round {round}");
    }
    apiserver.post("/api/v1/namespaces", &json!({ "metadata": { "name": "late" } })).await;
    put(&apiserver, "late/x", "1").await;
    equal(&apiserver, &client, &["a", "b", "late"]).await;
    let started = Instant::now();
    while !served.resource("things").await.problems.is_empty() {
        assert!(started.elapsed() < DEADLINE);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!((served.count("reflector_lists_total").await, served.count("cache_rewinds_total").await), (1, 0));

    // A client at any of these versions, at any server, gets the rest.
    let end = put(&apiserver, "late/x", "2").await;
    list_at(&client, &end).await;
    let (first, last) = (versions.first().unwrap(), end.parse::<u64>().unwrap());
    let all = ["a", "b", "late"];
    for from in (*first..last).step_by(3) {
        let from = from.to_string();
        let mut state = truth(&apiserver, &all, Some(&from)).await;
        follow(&client, &from, &mut state, &end).await;
        assert_eq!(state, truth(&apiserver, &all, None).await, "after {from}");
    }
    life.abort();
}

/// Checks that the server resumes in each namespace, also in a quiet one, and that its clients resume.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_server_of_several_namespaces_resumes_where_it_was() {
    let apiserver = ApiServer::start().await;
    for key in ["a/x", "b/x", "c/x", "default/quiet"] {
        put(&apiserver, key, "0").await;
    }
    let all = ["a", "b", "default"];
    let mut served = KillableServer::kube(&apiserver, ADMIN, source(&json!(all)));
    served.synced().await;
    let life = live(&apiserver);
    let (mut state, mut last, mut has_listed) = (State::new(), String::new(), false);
    for round in 0..4 {
        for n in 0..5 {
            put(&apiserver, &format!("a/{n}"), &format!("{round}")).await;
            put(&apiserver, &format!("c/{n}"), &format!("{round}")).await;
        }
        delete(&apiserver, "a/3").await;
        let end = put(&apiserver, "b/y", &format!("{round}")).await;
        let client = served.client().await;
        equal(&apiserver, &client, &all).await;
        list_at(&client, &end).await;
        // A list after the restart can hide what the run before has sent (`List::expires_older`): then the client lists again. Where
        // the history was recognised, each version is still there.
        let has_expired = has_listed
            && refusal(&mut watch(&client, &last).await)
                .await
                .is_some_and(|status| status.code() == tonic::Code::OutOfRange);
        if has_expired {
            (state, last) = (State::new(), String::new());
        }
        follow(&client, &last, &mut state, &end).await;
        assert_eq!(state, truth(&apiserver, &all, None).await, "round {round}");
        // The last change proves the history of a namespace that was ahead when the state was written, unless it was a deletion.
        let is_recognised = round % 2 == 0;
        if is_recognised {
            served.kept(end.parse().unwrap()).await;
        } else {
            served.written().await;
        }
        last = end;
        served.kill();
        // A final deletion, in one namespace or in none.
        put(&apiserver, "b/z", &format!("{round}")).await;
        put(&apiserver, "a/3", &format!("{round}")).await;
        if round > 1 {
            delete(&apiserver, "b/z").await;
        }
        served.restart();
        served.synced().await;
        equal(&apiserver, &served.client().await, &all).await;
        let lists = served.count("reflector_lists_total").await;
        assert!(lists <= u64::from(!is_recognised), "round {round}");
        has_listed = lists == 1;
        assert_eq!(served.count("cache_rewinds_total").await, 0, "round {round}");
    }
    life.abort();
}

/// Adds the label to namespaces and removes it, and creates and deletes namespaces.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_selector_of_namespaces_is_followed() {
    let apiserver = ApiServer::start().await;
    let label = async |namespace: &str, team: Value| {
        let change = json!({ "metadata": { "labels": { "team": team } } });
        apiserver.ask("PATCH", &format!("/api/v1/namespaces/{namespace}"), Some(&change)).await.unwrap();
    };
    for key in ["a/x", "b/x", "c/x"] {
        put(&apiserver, key, "0").await;
    }
    label("a", json!("shop")).await;
    let source = json!({ "version": "v1", "plural": "configmaps", "namespace_selector": "team=shop" });
    let served = Served::kube(&apiserver, ADMIN, source).await;
    let client = served.client().await;
    equal(&apiserver, &client, &["a"]).await;
    label("b", json!("shop")).await;
    equal(&apiserver, &client, &["a", "b"]).await;
    put(&apiserver, "b/y", "0").await;
    equal(&apiserver, &client, &["a", "b"]).await;
    label("a", Value::Null).await;
    equal(&apiserver, &client, &["b"]).await;
    served.cut();
    label("b", json!("other")).await;
    equal(&apiserver, &client, &[]).await;
    label("c", json!("shop")).await;
    equal(&apiserver, &client, &["c"]).await;
    put(&apiserver, "c/y", "0").await;
    equal(&apiserver, &client, &["c"]).await;
    assert_eq!(served.resource("things").await.namespaces, ["c"]);
    assert_eq!(served.count("cache_rewinds_total").await, 0);
}

/// Checks that a Role in each namespace is enough.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_role_in_each_namespace_is_enough() {
    let apiserver = ApiServer::start().await;
    let rbac = "rbac.authorization.k8s.io";
    for namespace in ["a", "b"] {
        let rules = json!([{ "apiGroups": [""], "resources": ["configmaps"], "verbs": ["list", "watch"] }]);
        let path = format!("/apis/{rbac}/v1/namespaces/{namespace}");
        apiserver.post(&format!("{path}/roles"), &json!({ "metadata": { "name": "r" }, "rules": rules })).await;
        let subjects = json!([{ "kind": "User", "apiGroup": rbac, "name": READER }]);
        let role = json!({ "kind": "Role", "apiGroup": rbac, "name": "r" });
        let binding = json!({ "metadata": { "name": "r" }, "subjects": subjects, "roleRef": role });
        apiserver.post(&format!("{path}/rolebindings"), &binding).await;
    }
    for namespace in ["a", "b"] {
        may_list(&apiserver, namespace).await;
    }
    put(&apiserver, "a/x", "0").await;
    let served = Served::kube(&apiserver, READER, source(&json!(["a", "b"]))).await;
    let client = served.client().await;
    equal(&apiserver, &client, &["a", "b"]).await;
    put(&apiserver, "b/x", "0").await;
    // A namespace that was empty until the connection broke has no last change, and is listed again.
    equal(&apiserver, &client, &["a", "b"]).await;
    served.cut();
    put(&apiserver, "a/x", "1").await;
    equal(&apiserver, &client, &["a", "b"]).await;
    assert!(served.resource("things").await.problems.is_empty());
    assert_eq!(served.count("reflector_lists_total").await, 1);
}

/// Waits until the API server's authorizer lets the reader list: it receives Roles through a watch of its own.
async fn may_list(apiserver: &ApiServer, namespace: &str) {
    let attributes = json!({ "namespace": namespace, "verb": "list", "resource": "configmaps" });
    let review = json!({ "spec": { "user": READER, "resourceAttributes": attributes } });
    let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
    let started = Instant::now();
    while apiserver.ask("POST", path, Some(&review)).await.unwrap()["status"]["allowed"] != true {
        assert!(started.elapsed() < DEADLINE, "{READER} may not list in {namespace}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
