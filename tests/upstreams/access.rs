//! Rights of callers by the API server: service accounts with real tokens, and Roles in some namespaces only.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    process::Command,
    time::Duration,
};

use informerd::proto::pb::{self, informer_service_client::InformerServiceClient};
use serde_json::json;
use tempfile::TempDir;
use tonic::{Code, Request, Status, Streaming, transport::Channel};
use tonic_types::StatusExt;

use crate::{
    DEADLINE,
    apiserver::{ApiServer, READER, THINGS},
    gate::Gate,
    kube::things,
    served::Served,
};

const RBAC: &str = "/apis/rbac.authorization.k8s.io/v1";
const AUDIENCE: &str = "informerd";

/// Client with the token of a service account.
#[derive(Clone)]
struct Caller {
    client: InformerServiceClient<Channel>,
    token: String,
}

/// Objects that a stream has delivered, and the namespaces that it is limited to.
struct Stream {
    messages: Streaming<pb::WatchResponse>,
    objects: BTreeSet<String>,
    namespaces: Vec<String>,
    causes: BTreeMap<String, pb::Cause>,
}

// === impl Caller ===

impl Caller {
    /// Signs in as an account, with a token for these audiences.
    async fn new(apiserver: &ApiServer, served: &Served, account: &str, audiences: &[&str]) -> Self {
        let (namespace, name) = account.split_once('/').unwrap();
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token");
        let request = json!({ "spec": { "audiences": audiences, "expirationSeconds": 3600 } });
        let answer = apiserver.ask("POST", &path, Some(&request)).await.unwrap();
        let token = answer["status"]["token"].as_str().unwrap().to_owned();
        Self { client: served.client().await, token }
    }

    fn request<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", format!("Bearer {}", self.token).parse().unwrap());
        request
    }

    /// Lists a namespace, or all; returns the objects, and the namespaces that the answer is limited to.
    async fn list(&self, namespace: &str) -> Result<(BTreeSet<String>, Vec<String>), (Code, String)> {
        let list =
            pb::ListRequest { resource: "things".into(), namespace: namespace.into(), ..pb::ListRequest::default() };
        let mut chunks =
            self.client.clone().list(self.request(list)).await.map_err(|status| refusal(&status))?.into_inner();
        let (mut objects, mut namespaces) = (BTreeSet::new(), Vec::new());
        while let Some(chunk) = chunks.message().await.map_err(|status| refusal(&status))? {
            objects.extend(chunk.objects.iter().map(key));
            namespaces = chunk.namespaces;
        }
        Ok((objects, namespaces))
    }

    async fn get(&self, namespace: &str, name: &str) -> Result<String, (Code, String)> {
        let get = pb::GetRequest {
            resource: "things".into(),
            namespace: namespace.into(),
            name: name.into(),
            ..pb::GetRequest::default()
        };
        let answer = self.client.clone().get(self.request(get)).await.map_err(|status| refusal(&status))?.into_inner();
        Ok(key(&answer.object.unwrap()))
    }

    async fn watch(&self) -> Stream {
        let mut request = pb::WatchRequest { resource: "things".into(), ..pb::WatchRequest::default() };
        request.set_initial_events(pb::InitialEvents::Send);
        let messages = self.client.clone().watch(self.request(request)).await.unwrap().into_inner();
        Stream { messages, objects: BTreeSet::new(), namespaces: Vec::new(), causes: BTreeMap::new() }
    }
}

fn refusal(status: &Status) -> (Code, String) {
    let reason = status.get_error_details().error_info().map(|info| info.reason.clone());
    (status.code(), reason.unwrap_or_default())
}

fn key(object: &pb::Object) -> String {
    format!("{}/{}", object.namespace, object.name)
}

// === impl Stream ===

impl Stream {
    /// Reads until the stream has these objects and namespaces.
    async fn until(&mut self, objects: &[&str], namespaces: &[&str]) {
        let reached = async {
            while !(self.objects.iter().eq(objects) && self.namespaces == namespaces) {
                self.next().await.expect("no end");
            }
        };
        let reached = tokio::time::timeout(DEADLINE, reached).await;
        assert!(reached.is_ok(), "not {objects:?} in {namespaces:?}, but {:?} in {:?}", self.objects, self.namespaces);
    }

    /// Reads until the end.
    async fn end(&mut self) -> (Code, String) {
        let ended = async {
            loop {
                if let Err(status) = self.next().await {
                    return refusal(&status);
                }
            }
        };
        tokio::time::timeout(DEADLINE, ended).await.expect("an end")
    }

    async fn next(&mut self) -> Result<(), Status> {
        let message = self.messages.message().await?.expect("no end without a status");
        if let Some(bookmark) = &message.bookmark {
            self.namespaces.clone_from(&bookmark.namespaces);
        }
        if let Some(object) = &message.object {
            self.causes.insert(key(object), message.cause());
            match message.r#type() {
                pb::EventType::Deleted => self.objects.remove(&key(object)),
                _ => self.objects.insert(key(object)),
            };
        }
        Ok(())
    }
}

/// Grants an account the right to read things in a namespace, and waits until the API server's authorizer has the Role.
async fn grant(apiserver: &ApiServer, account: &str, namespace: &str) {
    let (own, name) = account.split_once('/').unwrap();
    let path = format!("{RBAC}/namespaces/{namespace}");
    let rules = json!([{ "apiGroups": ["example.com"], "resources": ["things"], "verbs": ["get", "list", "watch"] }]);
    apiserver.post(&format!("{path}/roles"), &json!({ "metadata": { "name": name }, "rules": rules })).await;
    let subjects = json!([{ "kind": "ServiceAccount", "namespace": own, "name": name }]);
    let role = json!({ "kind": "Role", "apiGroup": "rbac.authorization.k8s.io", "name": name });
    let binding = json!({ "metadata": { "name": name }, "subjects": subjects, "roleRef": role });
    apiserver.post(&format!("{path}/rolebindings"), &binding).await;
    until_reviewed(apiserver, account, namespace, true).await;
}

/// Revokes it, and waits until the API server's authorizer has noticed.
async fn revoke(apiserver: &ApiServer, account: &str, namespace: &str) {
    let (_, name) = account.split_once('/').unwrap();
    apiserver.ask("DELETE", &format!("{RBAC}/namespaces/{namespace}/rolebindings/{name}"), None).await.unwrap();
    until_reviewed(apiserver, account, namespace, false).await;
}

async fn until_reviewed(apiserver: &ApiServer, account: &str, namespace: &str, is_allowed: bool) {
    let user = format!("system:serviceaccount:{}", account.replace('/', ":"));
    let attributes = json!({ "namespace": namespace, "verb": "watch", "group": "example.com", "resource": "things" });
    let review = json!({ "spec": { "user": user, "resourceAttributes": attributes } });
    let reviewed = async {
        loop {
            let path = "/apis/authorization.k8s.io/v1/subjectaccessreviews";
            let answer = apiserver.ask("POST", path, Some(&review)).await.unwrap();
            if answer["status"]["allowed"] == is_allowed {
                return;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, reviewed).await.expect("the authorizer in time");
}

async fn put(apiserver: &ApiServer, namespace: &str, name: &str) {
    let object = THINGS.object(&json!({ "name": name }), &json!({ "value": "0" }));
    apiserver.post(&THINGS.path(namespace), &object).await;
}

/// Starts an API server with an object in each namespace and these accounts.
async fn start(accounts: &[&str]) -> ApiServer {
    let apiserver = ApiServer::start().await;
    for account in accounts {
        let (namespace, name) = account.split_once('/').unwrap();
        let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts");
        apiserver.post(&path, &json!({ "metadata": { "name": name } })).await;
    }
    for namespace in ["a", "b", "c"] {
        put(&apiserver, namespace, "x").await;
    }
    apiserver
}

/// Starts informerd as a user with the role that `informerd rbac` prints, and no other right.
async fn serve(apiserver: &ApiServer, cache: &str) -> Served {
    let gate = Gate::to(apiserver.address()).await;
    let directory = TempDir::new().unwrap();
    apiserver.kubeconfig(&directory.path().join("kubeconfig"), gate.port(), READER);
    let mut source = things();
    source["kubeconfig"] = json!("kubeconfig");
    let config = json!({
        "admin": { "open_metrics": true },
        "authentication": { "token_review": { "audiences": [AUDIENCE], "kubeconfig": "kubeconfig" } },
        "authorization": {
            "recheck": "10s", "subject_access_review": { "cache": cache, "kubeconfig": "kubeconfig" },
        },
        "resources": { "things": { "source": { "kube": source } } },
    });
    let path = directory.path().join("config.yaml");
    fs::write(&path, config.to_string()).unwrap();
    let role = Command::new(env!("CARGO_BIN_EXE_informerd")).arg("rbac").arg("--config").arg(path).output().unwrap();
    let role = String::from_utf8(role.stdout).unwrap();
    apiserver.create(&format!("{RBAC}/clusterroles"), &role).await;
    apiserver.bind("informerd", READER).await;
    Served::configured(directory, vec![gate], &config).await
}

fn keys(keys: &[&str]) -> BTreeSet<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

/// Waits until a caller's list has these objects: the first one may come before the server's own list and role.
async fn until_listed(caller: &Caller, objects: &[&str]) {
    let listed = async {
        while caller.list("").await.map(|(found, _)| found) != Ok(keys(objects)) {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    let listed = tokio::time::timeout(DEADLINE, listed).await;
    assert!(listed.is_ok(), "not {objects:?}, but {:?}", caller.list("").await);
}

/// A watch of all namespaces by a caller without a cluster role, while its Roles change.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_service_account_reads_the_namespaces_of_its_roles() {
    let (web, other) = ("a/web", "b/other");
    let apiserver = start(&[web, other]).await;
    grant(&apiserver, web, "a").await;
    grant(&apiserver, web, "b").await;
    let served = serve(&apiserver, "0s").await;
    let caller = Caller::new(&apiserver, &served, web, &[AUDIENCE]).await;
    until_listed(&caller, &["a/x", "b/x"]).await;

    let denied = Err((Code::PermissionDenied, "ACCESS_DENIED".to_owned()));
    assert_eq!(caller.list("").await, Ok((keys(&["a/x", "b/x"]), vec!["a".to_owned(), "b".to_owned()])));
    assert_eq!(caller.list("a").await, Ok((keys(&["a/x"]), Vec::new())));
    assert_eq!(caller.get("b", "x").await, Ok("b/x".to_owned()));
    for (namespace, name) in [("c", "x"), ("c", "none"), ("none", "x")] {
        assert_eq!(caller.get(namespace, name).await, denied.clone().map(|()| String::new()), "{namespace}/{name}");
        assert_eq!(caller.list(namespace).await.map(drop), denied, "{namespace}");
    }
    let stranger = Caller::new(&apiserver, &served, other, &[AUDIENCE]).await;
    assert_eq!(stranger.list("").await.map(drop), denied);
    let elsewhere = Caller::new(&apiserver, &served, web, &["elsewhere"]).await;
    let invalid = Err((Code::Unauthenticated, "CREDENTIALS_INVALID".to_owned()));
    assert_eq!(elsewhere.list("").await.map(drop), invalid);
    let forged = Caller { token: format!("{}x", caller.token), ..caller.clone() };
    assert_eq!(forged.list("").await.map(drop), invalid);

    let mut stream = caller.watch().await;
    stream.until(&["a/x", "b/x"], &["a", "b"]).await;
    put(&apiserver, "c", "y").await;
    put(&apiserver, "b", "y").await;
    stream.until(&["a/x", "b/x", "b/y"], &["a", "b"]).await;
    // A namespace appears, and another one is left.
    apiserver.post("/api/v1/namespaces", &json!({ "metadata": { "name": "d" } })).await;
    grant(&apiserver, web, "d").await;
    put(&apiserver, "d", "x").await;
    stream.until(&["a/x", "b/x", "b/y", "d/x"], &["a", "b", "d"]).await;
    // One without objects stays: the next check, which finds the revoked Role, does not take it for another one.
    apiserver.ask("DELETE", &format!("{}/x", THINGS.path("d")), None).await.unwrap();
    stream.until(&["a/x", "b/x", "b/y"], &["a", "b", "d"]).await;
    revoke(&apiserver, web, "b").await;
    stream.until(&["a/x"], &["a", "d"]).await;
    assert_eq!(stream.causes["b/x"], pb::Cause::LeftSelection);
    put(&apiserver, "d", "y").await;
    stream.until(&["a/x", "d/y"], &["a", "d"]).await;
    put(&apiserver, "b", "z").await;
    for namespace in ["a", "d"] {
        revoke(&apiserver, web, namespace).await;
    }
    assert_eq!(stream.end().await, (Code::PermissionDenied, "ACCESS_DENIED".to_owned()));
    assert!(!stream.causes.keys().any(|key| key.starts_with("c/") || key == "b/z"), "{:?}", stream.causes);
    assert_eq!(caller.list("").await.map(drop), denied);
}

/// Without the API server, new callers are refused, and known ones are served.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn callers_with_a_known_decision_are_served_while_the_api_server_is_down() {
    let (web, other) = ("a/web", "b/other");
    let mut apiserver = start(&[web, other]).await;
    grant(&apiserver, web, "a").await;
    grant(&apiserver, other, "b").await;
    let served = serve(&apiserver, "5m").await;
    let caller = Caller::new(&apiserver, &served, web, &[AUDIENCE]).await;
    let stranger = Caller::new(&apiserver, &served, other, &[AUDIENCE]).await;
    until_listed(&caller, &["a/x"]).await;
    let mut stream = caller.watch().await;
    stream.until(&["a/x"], &["a"]).await;

    apiserver.kill();
    served.cut();
    let unavailable = Err((Code::Unavailable, "AUTHORIZER_UNAVAILABLE".to_owned()));
    assert_eq!(stranger.list("").await.map(drop), unavailable);
    assert_eq!(caller.list("").await, Ok((keys(&["a/x"]), vec!["a".to_owned()])));
    // Not known is whether the caller may get this object.
    assert_eq!(caller.get("a", "x").await, unavailable.map(|()| String::new()));

    apiserver.restart().await;
    until_listed(&stranger, &["b/x"]).await;
    put(&apiserver, "a", "y").await;
    stream.until(&["a/x", "a/y"], &["a"]).await;
}
