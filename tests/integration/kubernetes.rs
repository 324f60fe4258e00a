//! API of Kubernetes, over HTTP/1.1 on plain sockets: what kubectl and client-go send, and what they need to get.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use futures_util::future::BoxFuture;
use informerd::{
    auth::{
        Authentication, Authorizer, Identity, IdentityDetails, ReviewAttributes, ReviewConfig, ReviewError, Reviewer,
        Rules, Token, TokenReviewed,
    },
    cache::Delta,
    grpc::{AccessConfig, KubernetesApi, MostRecent},
    model::{ApiKind, Cause, Event, ResourceVersion},
    rest::RestService,
    transport::{Listener, Server},
    watch::{FullChannelPolicy, Retention},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

use crate::sandbox::{DEADLINE, Options, Sandbox, pod, pod_at, server_config};

/// API over the resource of a sandbox.
struct Api {
    sandbox: Sandbox,
    address: SocketAddr,
    _server: JoinHandle<()>,
}

/// Response to a request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) head: String,
    pub(crate) text: String,
}

/// Open watch.
struct Lines(BufReader<TcpStream>);

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    /// Returns code and reason of a `Status`.
    pub(crate) fn failure(&self) -> (u16, String) {
        let status = self.json();
        assert_eq!(
            (&status["kind"], &status["status"], &status["code"]),
            (&json!("Status"), &json!("Failure"), &json!(self.code))
        );
        (self.code, status["reason"].as_str().unwrap().to_owned())
    }

    fn names(&self) -> Vec<String> {
        let json = self.json();
        json["items"]
            .as_array()
            .unwrap()
            .iter()
            .map(|item| item["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    }
}

impl Lines {
    /// Returns the next event; none at the end of the watch.
    async fn next(&mut self) -> Option<Value> {
        let mut size = String::new();
        tokio::time::timeout(DEADLINE, self.0.read_line(&mut size)).await.expect("a line in time").unwrap();
        let size = usize::from_str_radix(size.trim(), 16).unwrap();
        if size == 0 {
            return None;
        }
        let mut line = String::new();
        self.0.read_line(&mut line).await.unwrap();
        assert_eq!(line.len(), size, "more lines in a chunk");
        self.0.read_line(&mut String::new()).await.unwrap();
        Some(serde_json::from_str(&line).unwrap())
    }

    /// Returns so many events in words: type, name, version.
    async fn words(&mut self, count: usize) -> Vec<String> {
        let mut words = Vec::new();
        while words.len() < count {
            words.push(event(&self.next().await.expect("an event")));
        }
        words
    }

    /// Returns so many events in words, also if several are in a chunk.
    async fn batch(&mut self, count: usize) -> Vec<String> {
        let mut words = Vec::new();
        while words.len() < count {
            let mut line = String::new();
            tokio::time::timeout(DEADLINE, self.0.read_line(&mut line)).await.expect("a line in time").unwrap();
            assert!(!line.is_empty(), "the watch has ended");
            // The others are sizes of chunks, and their ends.
            if line.starts_with('{') {
                words.push(event(&serde_json::from_str(&line).unwrap()));
            }
        }
        words
    }
}

fn event(line: &Value) -> String {
    let metadata = &line["object"]["metadata"];
    let name = metadata["name"].as_str().map(|name| format!(" {name}")).unwrap_or_default();
    let end = if metadata["annotations"]["k8s.io/initial-events-end"] == "true" { " END" } else { "" };
    format!(
        "{}{name} @{}{end}",
        line["type"].as_str().unwrap(),
        metadata["resourceVersion"].as_str().unwrap_or_default()
    )
}

const PODS: &str = "/api/v1/pods";
/// Query of client-go's reflector for a list as a watch.
const WATCH_LIST: &str =
    "watch=true&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&timeoutSeconds=400";

fn kind() -> ApiKind {
    ApiKind { short_names: vec!["po".to_owned()], ..ApiKind::new("", "v1", "pods", "Pod") }
}

impl Api {
    /// Starts one whose upstream confirms every state.
    async fn start(objects: &[(&str, &str)]) -> Self {
        Self::with(
            Options::default(),
            MostRecent::new(|at| Box::pin(async move { Ok(at.safe().clone()) })),
            false,
            objects,
        )
        .await
    }

    async fn with(options: Options, most_recent: MostRecent, warns: bool, objects: &[(&str, &str)]) -> Self {
        let api = KubernetesApi { kind: kind(), is_discovered: false, most_recent: Some(most_recent) };
        let options = Options { kubernetes: Some(Arc::new(api)), ..options };
        let objects = objects.iter().map(|(namespace, name)| pod(namespace, name, r#""nodeName":"n1""#)).collect();
        let sandbox = Sandbox::start_with(options, objects).await;
        let (address, server) = serve(&sandbox, warns).await;
        Self { sandbox, address, _server: server }
    }

    async fn send(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &str) -> (TcpStream, String) {
        send(self.address, method, target, headers, body).await
    }

    async fn ask(&self, method: &str, target: &str, headers: &[(&str, &str)], body: &str) -> Answer {
        ask(self.address, method, target, headers, body).await
    }

    async fn get(&self, target: &str) -> Answer {
        self.ask("GET", target, &[], "").await
    }

    async fn accept(&self, target: &str, accept: &str) -> Answer {
        self.ask("GET", target, &[("Accept", accept)], "").await
    }

    async fn watch(&self, query: &str) -> Lines {
        self.watch_at(PODS, query, &[]).await
    }

    async fn watch_at(&self, path: &str, query: &str, headers: &[(&str, &str)]) -> Lines {
        let (stream, head) = self.send("GET", &format!("{path}?{query}"), headers, "").await;
        assert!(head.starts_with("http/1.1 200 "), "{head}");
        Lines(BufReader::new(stream))
    }

    /// Applies a transaction: changes at one version.
    async fn transact(&mut self, names: &[&str]) -> ResourceVersion {
        let version = self.sandbox.version();
        let events = names.iter().map(|name| Event::Modified(pod_at("shop", name, "", &version)));
        let delta = Delta::Changes { events: events.collect(), closes: true };
        self.sandbox.say(delta).await;
        self.sandbox.reached(&version).await;
        version
    }
}

/// Serves the API over the resource of a sandbox.
pub(crate) async fn serve(sandbox: &Sandbox, warns: bool) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let bounds = server_config(&sandbox.state, Duration::from_secs(30), Duration::from_secs(5));
    let server =
        Server::new(RestService::new(sandbox.state.clone(), warns), RestService::is_watch, bounds).with_http1();
    (address, tokio::spawn(server.serve(Listener::Tcp(listener), sandbox.lifecycle.draining.clone())))
}

/// Sends a request, and returns the connection after the head of its response.
pub(crate) async fn send(
    address: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let headers = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect::<Vec<_>>().concat();
    let request = format!(
        "{method} {target} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let (mut head, mut byte) = (Vec::new(), [0]);
    while !head.ends_with(b"\r\n\r\n") {
        tokio::time::timeout(DEADLINE, stream.read_exact(&mut byte)).await.expect("a head in time").unwrap();
        head.push(byte[0]);
    }
    (stream, String::from_utf8(head).unwrap().to_lowercase())
}

/// Makes a request, and returns its whole response.
pub(crate) async fn ask(
    address: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let (head, text) = ask_bytes(address, method, target, headers, body).await;
    let text = String::from_utf8(text).unwrap();
    Answer { code: head.split(' ').nth(1).unwrap().parse().unwrap(), head, text }
}

/// Makes a request, and returns the head and the bytes of its response.
pub(crate) async fn ask_bytes(
    address: SocketAddr,
    method: &str,
    target: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> (String, Vec<u8>) {
    let mut all = vec![("Connection", "close")];
    all.extend_from_slice(headers);
    let (mut stream, head) = send(address, method, target, &all, body).await;
    let mut bytes = Vec::new();
    tokio::time::timeout(DEADLINE, stream.read_to_end(&mut bytes)).await.expect("a body in time").unwrap();
    if head.contains("transfer-encoding: chunked") {
        bytes = unchunked(&bytes);
    }
    (head, bytes)
}

/// Opens a watch, and returns the events before the end of the initial ones; or the code with which it is refused.
pub(crate) async fn watch_list(address: SocketAddr, target: &str, headers: &[(&str, &str)]) -> Result<Vec<Value>, u16> {
    let (stream, head) = send(address, "GET", target, headers, "").await;
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    if code != 200 {
        return Err(code);
    }
    let (mut stream, mut events) = (BufReader::new(stream), Vec::new());
    loop {
        let mut line = String::new();
        tokio::time::timeout(DEADLINE, stream.read_line(&mut line)).await.expect("a line in time").unwrap();
        assert!(!line.is_empty(), "the watch has ended before the end of the initial events");
        // The others are sizes of chunks, and their ends.
        if line.starts_with('{') {
            let event: Value = serde_json::from_str(&line).unwrap();
            if event["type"] == "BOOKMARK" {
                return Ok(events);
            }
            events.push(event);
        }
    }
}

fn unchunked(bytes: &[u8]) -> Vec<u8> {
    let (mut rest, mut whole) = (bytes, Vec::new());
    while let Some(at) = rest.windows(2).position(|window| window == b"\r\n") {
        let size = std::str::from_utf8(&rest[..at]).unwrap();
        let (size, after) = (usize::from_str_radix(size, 16).unwrap(), &rest[at + 2..]);
        if size == 0 {
            return whole;
        }
        whole.extend_from_slice(&after[..size]);
        rest = &after[size + 2..];
    }
    panic!("no end of {} bytes", bytes.len());
}

#[tokio::test]
async fn discovery_has_the_kinds_in_both_forms() {
    let api = Api::start(&[]).await;
    let aggregated = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json";
    let core = api.accept("/api", aggregated).await;
    assert!(
        core.head.contains("content-type: application/json;g=apidiscovery.k8s.io;v=v2;as=apigroupdiscoverylist"),
        "{}",
        core.head
    );
    let resource = &core.json()["items"][0]["versions"][0]["resources"][0];
    let response_kind = json!({ "group": "", "version": "v1", "kind": "Pod" });
    let expected = json!({ "resource": "pods", "singularResource": "pod", "shortNames": ["po"], "categories": [], "scope": "Namespaced",
        "verbs": ["get", "list", "watch"], "responseKind": response_kind });
    assert_eq!(*resource, expected);
    assert_eq!(api.accept("/apis", aggregated).await.json()["items"], json!([]));
    let old = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json";
    assert_eq!(api.accept("/api", old).await.json()["versions"], json!(["v1"]), "of which v2beta1 is not served");
    let list = api.get("/api/v1").await.json();
    assert_eq!(
        (&list["kind"], &list["resources"][0]["name"], &list["resources"][0]["namespaced"]),
        (&json!("APIResourceList"), &json!("pods"), &json!(true))
    );
    assert_eq!(api.get("/apis/apps/v1").await.failure(), (404, "NotFound".to_owned()));
    assert!(api.get("/version").await.json()["gitVersion"].as_str().unwrap().starts_with("v1."));
    let ready = api.get("/readyz").await;
    assert_eq!((ready.code, &*ready.text), (200, "ok"));
}

#[tokio::test]
async fn an_object_is_read_with_its_version() {
    let mut api = Api::start(&[("shop", "a")]).await;
    let pod = api.get("/api/v1/namespaces/shop/pods/a").await;
    assert_eq!(pod.code, 200);
    let json = pod.json();
    assert_eq!(
        (&json["kind"], &json["metadata"]["resourceVersion"], &json["spec"]["nodeName"]),
        (&json!("Pod"), &json!("1"), &json!("n1"))
    );
    api.sandbox.put("shop", "a", "").await;
    let newer = api.get("/api/v1/namespaces/shop/pods/a?resourceVersion=2").await.json();
    assert_eq!(newer["metadata"]["resourceVersion"], "2");
    let missing = api.get("/api/v1/namespaces/shop/pods/b").await;
    assert_eq!(missing.failure(), (404, "NotFound".to_owned()));
    assert_eq!(missing.json()["message"], "pods \"b\" not found");
    assert_eq!(api.get("/api/v1/pods/a").await.failure().0, 404, "the kind has namespaces");
    assert_eq!(api.get("/api/v1/namespaces/shop/pods/a/log").await.failure().0, 404);
    assert_eq!(api.get("/api/v1/things").await.failure().0, 404);
    assert_eq!(api.get("/api/v1/namespaces").await.failure().0, 404);
    assert_eq!(
        api.get("/api/v1/namespaces/shop").await.failure().0,
        403,
        "kubectl would say that there is no such namespace"
    );
    let head = api.ask("HEAD", "/api/v1/namespaces/shop/pods/a", &[], "").await;
    assert_eq!((head.code, head.text.len()), (200, 0));
    for method in ["PUT", "DELETE", "PATCH", "POST"] {
        assert_eq!(
            api.ask(method, "/api/v1/namespaces/shop/pods/a", &[], "{}").await.failure(),
            (405, "MethodNotAllowed".to_owned())
        );
    }
}

#[tokio::test]
async fn objects_of_the_cluster_are_in_no_namespace() {
    let most_recent = Some(MostRecent::new(|at| Box::pin(async move { Ok(at.safe().clone()) })));
    let kind = ApiKind { namespaced: false, ..kind() };
    let kubernetes = Some(Arc::new(KubernetesApi { kind, is_discovered: false, most_recent }));
    let sandbox = Sandbox::start_with(Options { kubernetes, ..Options::default() }, vec![pod("", "a", "")]).await;
    let (address, _server) = serve(&sandbox, false).await;
    for (path, code) in [(PODS, 200), ("/api/v1/pods/a", 200), ("/api/v1/namespaces/shop/pods", 404)] {
        assert_eq!(ask(address, "GET", path, &[], "").await.code, code, "{path}");
    }
}

#[tokio::test]
async fn a_list_has_items_without_a_type_and_pages() {
    let objects = [("a", "1"), ("a", "2"), ("b", "3"), ("b", "4"), ("b", "5")];
    let api = Api::start(&objects).await;
    let list = api.get(PODS).await;
    assert_eq!(list.names(), ["1", "2", "3", "4", "5"]);
    let json = list.json();
    assert_eq!(
        (&json["kind"], &json["apiVersion"], &json["metadata"]),
        (&json!("PodList"), &json!("v1"), &json!({ "resourceVersion": "1" }))
    );
    assert!(json["items"][0].get("kind").is_none() && json["items"][0].get("apiVersion").is_none());
    assert_eq!(api.get("/api/v1/namespaces/b/pods").await.names(), ["3", "4", "5"]);
    assert_eq!(api.get("/api/v1/namespaces/c/pods").await.names(), [""; 0]);
    let (mut names, mut remaining, mut token) = (Vec::new(), Vec::new(), String::new());
    loop {
        let page = api.get(&format!("{PODS}?limit=2&continue={token}")).await;
        names.extend(page.names());
        let metadata = page.json()["metadata"].clone();
        let Some(next) = metadata["continue"].as_str() else { break };
        remaining.push(metadata["remainingItemCount"].as_u64().unwrap());
        token = next.to_owned();
    }
    assert_eq!((names, remaining), (objects.map(|(_, name)| name.to_owned()).to_vec(), vec![3, 1]));
    assert_eq!(
        api.get(&format!("{PODS}?limit=2&resourceVersion=0")).await.names().len(),
        5,
        "any version has no pages"
    );
    let bad = api.get(&format!("{PODS}?continue=bad")).await.json();
    assert!(bad["code"] == 400 && bad["message"].as_str().unwrap().starts_with("continue key is not valid"), "{bad}");
    assert_eq!(
        api.get(&format!("/api/v1/namespaces/b/pods?limit=2&continue={token}")).await.failure().0,
        400,
        "of another query"
    );
    assert_eq!(api.get(&format!("{PODS}?labelSelector=app%3D3")).await.names(), ["3"]);
    assert_eq!(api.get(&format!("{PODS}?fieldSelector=metadata.name%3D4,spec.nodeName%3Dn1")).await.names(), ["4"]);
    assert_eq!(api.get(&format!("{PODS}?labelSelector=%3D%3D")).await.failure(), (400, "BadRequest".to_owned()));
    let selected = api.get(&format!("{PODS}?limit=1&labelSelector=app!%3D3")).await.json();
    assert!(selected["metadata"]["continue"].is_string() && selected["metadata"].get("remainingItemCount").is_none());
}

#[tokio::test]
async fn versions_are_those_of_the_request() {
    let mut api = Api::start(&[("shop", "a")]).await;
    api.sandbox.put("shop", "a", "").await;
    let version = ResourceVersion::decimal(2);
    api.sandbox.reached(&version).await;
    for query in ["resourceVersion=1", "resourceVersion=0", "resourceVersion=02&resourceVersionMatch=Exact"] {
        assert_eq!(api.get(&format!("{PODS}?{query}")).await.json()["metadata"]["resourceVersion"], "2", "{query}");
    }
    let past = api.get(&format!("{PODS}?resourceVersion=1&resourceVersionMatch=Exact")).await.json();
    let versions =
        [&past["metadata"], &past["items"][0]["metadata"]].map(|metadata| metadata["resourceVersion"].clone());
    assert_eq!(versions, ["1", "1"], "an earlier version");
    let one = "/api/v1/namespaces/shop/pods/a";
    let got = api.get(&format!("{one}?resourceVersion=1&resourceVersionMatch=Exact")).await.json();
    assert_eq!(got["metadata"]["resourceVersion"], "1");
    for query in ["resourceVersion=1", "resourceVersion=0&resourceVersionMatch=Exact", "resourceVersionMatch=Exact"] {
        assert_eq!(api.get(&format!("{one}?{query}")).await.json()["metadata"]["resourceVersion"], "2", "{query}");
    }
    assert_eq!(api.get(&format!("{PODS}?resourceVersion=x")).await.failure(), (400, "BadRequest".to_owned()));
    let invalid = api.get(&format!("{PODS}?resourceVersionMatch=Exact")).await;
    assert_eq!(invalid.failure(), (422, "Invalid".to_owned()));
    assert_eq!(invalid.json()["details"]["causes"][0]["field"], "resourceVersionMatch");
}

#[tokio::test]
async fn the_pages_of_an_earlier_version_are_of_that_version() {
    let mut api = Api::start(&[("shop", "a"), ("shop", "b"), ("shop", "c")]).await;
    let gone = api.sandbox.put("shop", "b", "").await;
    api.sandbox.delete(&gone).await;
    let later = api.sandbox.put("shop", "d", "").await;
    api.sandbox.reached(later.version()).await;
    let (mut names, mut query) = (Vec::new(), "resourceVersion=1&resourceVersionMatch=Exact&limit=1".to_owned());
    loop {
        let page = api.get(&format!("{PODS}?{query}")).await;
        assert_eq!(page.json()["metadata"]["resourceVersion"], "1");
        names.extend(page.names());
        let json = page.json();
        let Some(next) = json["metadata"]["continue"].as_str() else { break };
        query = format!("limit=1&continue={next}");
        let changed = api.sandbox.put("shop", "c", "").await;
        api.sandbox.reached(changed.version()).await;
    }
    assert_eq!(names, ["a", "b", "c"]);
}

#[tokio::test(start_paused = true)]
async fn a_version_that_is_not_reached_is_a_timeout_with_a_cause() {
    let options = Options { future_wait: Duration::from_secs(8), ..Options::default() };
    let most_recent = MostRecent::new(|at| Box::pin(async move { Ok(at.safe().clone()) }));
    let api = Api::with(options, most_recent, false, &[("shop", "a")]).await;
    let one = "/api/v1/namespaces/shop/pods/a";
    for (target, seconds) in [
        (format!("{PODS}?resourceVersion=9"), 3),
        (format!("{PODS}?resourceVersion=9&resourceVersionMatch=Exact"), 3),
        (format!("{one}?resourceVersion=9"), 3),
        (format!("{PODS}?{WATCH_LIST}&resourceVersion=9"), 3),
        (format!("{PODS}?watch=1&resourceVersion=9&timeoutSeconds=7"), 7),
        (format!("{PODS}?watch=1&resourceVersion=9&timeoutSeconds=600"), 8),
    ] {
        let begun = tokio::time::Instant::now();
        let late = api.get(&target).await;
        assert_eq!(begun.elapsed().as_secs(), seconds, "{target}");
        let json = late.json();
        let status = if late.code == 200 { &json["object"] } else { &json };
        assert_eq!((&status["code"], &status["reason"]), (&json!(504), &json!("Timeout")), "{target}");
        assert_eq!(status["details"]["causes"][0]["reason"], "ResourceVersionTooLarge");
        assert!(late.code == 200 || late.head.contains("retry-after: 1"), "{}", late.head);
    }
}

#[tokio::test]
async fn a_list_as_a_watch_ends_its_initial_events_with_the_annotated_bookmark() {
    let mut api = Api::start(&[("shop", "a")]).await;
    let mut watch = api.watch(WATCH_LIST).await;
    // The initial events are one chunk with their end, or two: the rest of the lines are sizes and ends of chunks.
    let mut words = Vec::new();
    let mut line = String::new();
    while words.len() < 2 {
        line.clear();
        assert!(watch.0.read_line(&mut line).await.unwrap() > 0);
        words.extend(serde_json::from_str::<Value>(&line).ok().filter(Value::is_object).map(|json| event(&json)));
    }
    watch.0.read_line(&mut line).await.unwrap();
    assert_eq!(words, ["ADDED a @1", "BOOKMARK @1 END"]);
    let changed = api.sandbox.put("shop", "a", "").await;
    assert_eq!(watch.words(1).await, ["MODIFIED a @2"]);
    api.sandbox.delete(&changed).await;
    let deleted = watch.next().await.unwrap();
    assert_eq!(event(&deleted), "DELETED a @3", "of the deletion");
    assert_eq!((&deleted["object"]["kind"], &deleted["object"]["apiVersion"]), (&json!("Pod"), &json!("v1")));
}

/// More changes may come at the version of the last one: the state at the bookmark is the one before it.
#[tokio::test]
async fn a_list_as_a_watch_is_of_a_version_that_is_complete() {
    let api = Api::start(&[("shop", "a")]).await;
    let version = ResourceVersion::decimal(3);
    let events = vec![Event::Modified(pod_at("shop", "b", "", &version))];
    api.sandbox.say(Delta::Changes { events: events.into(), closes: false }).await;
    api.sandbox.reached(&version).await;
    assert_eq!(api.watch(WATCH_LIST).await.batch(3).await, ["ADDED a @1", "BOOKMARK @2 END", "ADDED b @2"]);
}

#[tokio::test]
async fn a_watch_without_bookmarks_has_none() {
    let mut api = Api::start(&[("shop", "a")]).await;
    let mut watch = api.watch("watch=1&resourceVersion=0").await;
    assert_eq!(watch.words(1).await, ["ADDED a @1"]);
    api.sandbox.put("shop", "b", "").await;
    assert_eq!(watch.words(1).await, ["ADDED b @2"]);
    let longest = "timeoutSeconds=9223372036854775807";
    let mut selected = api.watch(&format!("watch=1&resourceVersion=1&fieldSelector=metadata.name%3Db&{longest}")).await;
    assert_eq!(selected.words(1).await, ["ADDED b @2"]);
}

#[tokio::test]
async fn a_watch_that_cannot_be_is_refused_before_its_head() {
    let api = Api::start(&[("shop", "a")]).await;
    for (query, code) in [
        ("sendInitialEvents=true", 422),
        ("sendInitialEvents=true&resourceVersionMatch=Exact", 422),
        ("resourceVersionMatch=NotOlderThan", 422),
        ("shardSelector=x", 400),
        ("resourceVersion=abc", 400),
        ("resourceVersion=abc&sendInitialEvents=true&resourceVersionMatch=NotOlderThan", 400),
        ("fieldSelector=%3D%3D%3D", 400),
        ("timeoutSeconds=x", 400),
    ] {
        assert_eq!(api.get(&format!("{PODS}?watch=1&{query}")).await.failure().0, code, "{query}");
    }
    let accept = [("Accept", "application/vnd.kubernetes.protobuf;stream=watch")];
    assert_eq!(
        api.ask("GET", &format!("{PODS}?watch=1"), &accept, "").await.failure(),
        (406, "NotAcceptable".to_owned())
    );
}

#[tokio::test]
async fn a_client_that_resumes_inside_a_batch_gets_all_of_it() {
    let mut api = Api::start(&[]).await;
    api.transact(&["x"]).await;
    let version = api.transact(&["a", "b", "c"]).await;
    api.transact(&["d"]).await;
    let mut watch = api.watch(&format!("watch=1&resourceVersion={version}")).await;
    assert_eq!(watch.batch(4).await, ["ADDED a @3", "ADDED b @3", "ADDED c @3", "ADDED d @4"]);
    // After a change that was alone, nothing is repeated.
    let mut watch = api.watch("watch=1&resourceVersion=4").await;
    api.transact(&["e"]).await;
    assert_eq!(watch.words(1).await, ["ADDED e @5"]);
}

/// The client was cut off inside of the transaction by another server, or by an earlier run of this one.
#[tokio::test]
async fn a_client_that_resumes_inside_the_batch_at_which_the_history_begins_gets_all_of_it() {
    let mut api = Api::start(&[("shop", "a"), ("shop", "b")]).await;
    let mut watch = api.watch("watch=1&resourceVersion=1").await;
    let mut selected = api.watch("watch=1&resourceVersion=1&fieldSelector=metadata.name%3Db").await;
    assert_eq!(watch.batch(2).await, ["ADDED a @1", "ADDED b @1"]);
    assert_eq!(selected.batch(1).await, ["ADDED b @1"]);
    api.transact(&["b"]).await;
    assert_eq!(watch.batch(1).await, ["MODIFIED b @2"]);
    assert_eq!(selected.batch(1).await, ["MODIFIED b @2"]);
    // The client may also lack a deletion. It lists at a later version now.
    let answer = api.get(&format!("{PODS}?watch=1&resourceVersion=1&timeoutSeconds=1")).await;
    assert_eq!((&answer.json()["type"], &answer.json()["object"]["code"]), (&json!("ERROR"), &json!(410)));
    // A transaction of which one object is left is not one for whoever has listed it.
    let api = Api::start(&[("shop", "a")]).await;
    let answer = api.get(&format!("{PODS}?watch=1&resourceVersion=1&timeoutSeconds=1")).await;
    assert_eq!((answer.code, &*answer.text), (200, ""));
}

#[tokio::test(start_paused = true)]
async fn a_batch_is_kept_until_whoever_may_lack_a_part_of_it_can_list_at_a_later_version() {
    let history = Retention { age: Duration::from_secs(1), ..Options::default().history };
    let most_recent = MostRecent::new(|at| Box::pin(async move { Ok(at.safe().clone()) }));
    let objects = [("shop", "a"), ("shop", "b")];
    let mut api = Api::with(Options { history, ..Options::default() }, most_recent, false, &objects).await;
    let version = api.sandbox.version();
    let gone = pod_at("shop", "b", "", &version);
    let events = vec![Event::Modified(pod_at("shop", "a", "", &version)), Event::Deleted(gone)];
    api.sandbox.say(Delta::Changes { events: events.into(), closes: true }).await;
    api.sandbox.reached(&version).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let target = format!("{PODS}?watch=1&resourceVersion=2&timeoutSeconds=1");
    let again = api.get(&target).await;
    let words: Vec<_> = again.text.lines().map(|line| event(&serde_json::from_str(line).unwrap())).collect();
    assert_eq!(words, ["MODIFIED a @2", "DELETED b @2"]);
    let bookmark = api.sandbox.version();
    api.sandbox.push(Event::Bookmark(bookmark.clone())).await;
    api.sandbox.reached(&bookmark).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let expired = api.get(&target).await.json();
    assert_eq!((&expired["type"], &expired["object"]["code"]), (&json!("ERROR"), &json!(410)));
    let list = api.get(&format!("{PODS}?resourceVersion=0")).await;
    assert_eq!((list.names(), &list.json()["metadata"]["resourceVersion"]), (vec!["a".to_owned()], &json!("3")));
    let answer = api.get(&format!("{PODS}?watch=1&resourceVersion=3&timeoutSeconds=1")).await;
    assert_eq!((answer.code, &*answer.text), (200, ""));
}

/// Once late changes of a version are evicted, the history begins at the next version.
#[tokio::test(start_paused = true)]
async fn a_client_inside_a_batch_after_late_changes_gets_all_of_it_or_lists_again() {
    let history = Retention { age: Duration::from_secs(30), ..Options::default().history };
    let most_recent = MostRecent::new(|at| Box::pin(async move { Ok(at.safe().clone()) }));
    let mut api = Api::with(Options { history, ..Options::default() }, most_recent, false, &[("shop", "a")]).await;
    api.sandbox.push(Event::Modified(pod("shop", "a", r#""late":1"#))).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let version = api.transact(&["b", "c"]).await;
    let resumed = async |api: &Api| {
        let answer = api.get(&format!("{PODS}?watch=1&resourceVersion={version}&timeoutSeconds=1")).await;
        answer.text.lines().map(|line| event(&serde_json::from_str(line).unwrap())).collect::<Vec<_>>()
    };
    assert_eq!(resumed(&api).await, ["MODIFIED a @1", "ADDED b @2", "ADDED c @2"]);
    api.transact(&["d"]).await;
    assert_eq!(resumed(&api).await, ["ERROR @"], "expired");
}

#[tokio::test]
async fn a_relist_is_its_batch_and_a_bookmark_and_a_client_inside_lists_again() {
    let api = Api::start(&[("shop", "gone"), ("shop", "same")]).await;
    api.sandbox.push(Event::Bookmark(ResourceVersion::decimal(2))).await;
    api.sandbox.reached(&ResourceVersion::decimal(2)).await;
    let mut watch = api.watch("watch=1&resourceVersion=2&allowWatchBookmarks=true").await;
    let at = |number: u128| ResourceVersion::decimal(number);
    let gone = pod_at("shop", "gone", "", &at(9));
    let events = vec![Event::Modified(pod_at("shop", "new", "", &at(5))), Event::Deleted(gone)];
    api.sandbox.say(Delta::Relist(events, Cause::Inferred)).await;
    let mut seen = watch.batch(4).await;
    seen.sort();
    // The deletion has a version at which the relist is not complete.
    assert_eq!(seen, ["ADDED new @5", "BOOKMARK @2", "BOOKMARK @9", "DELETED gone @8"]);
    for inside in ["5", "8"] {
        let answer = api.get(&format!("{PODS}?watch=1&resourceVersion={inside}")).await;
        let event = answer.json();
        let status = (&event["object"]["code"], &event["object"]["reason"]);
        assert_eq!((answer.code, &event["type"], status), (200, &json!("ERROR"), (&json!(410), &json!("Expired"))));
    }
    let inside = api.get(&format!("{PODS}?resourceVersion=5&resourceVersionMatch=Exact")).await;
    assert_eq!(inside.failure(), (410, "Expired".to_owned()), "inside the relist");
    // A list has the version of its end, at which a client may also lack a part of it.
    assert_eq!(api.get(&format!("{PODS}?resourceVersion=0")).await.json()["metadata"]["resourceVersion"], "9");
    let mut watch = api.watch("watch=1&resourceVersion=9").await;
    api.sandbox.push(Event::Modified(pod_at("shop", "later", "", &at(10)))).await;
    let mut seen = watch.batch(3).await;
    seen[..2].sort();
    assert_eq!(seen, ["ADDED new @5", "DELETED gone @8", "ADDED later @10"]);
}

#[tokio::test]
async fn a_drain_ends_a_watch_without_an_error() {
    let api = Api::start(&[("shop", "a")]).await;
    let mut watch = api.watch("watch=1&resourceVersion=1&allowWatchBookmarks=true").await;
    let waiting = async {
        let mut last = None;
        while let Some(line) = watch.next().await {
            last = Some(event(&line));
        }
        last
    };
    let drain = async { api.sandbox.lifecycle.draining.cancel() };
    let (last, ()) = tokio::join!(waiting, drain);
    assert_eq!(last.as_deref(), Some("BOOKMARK @1"));
}

#[tokio::test(start_paused = true)]
async fn a_watch_ends_after_its_timeout() {
    let api = Api::start(&[("shop", "a")]).await;
    let mut watch = api.watch("watch=1&resourceVersion=1&timeoutSeconds=7").await;
    let begun = tokio::time::Instant::now();
    assert_eq!(watch.next().await, None);
    assert_eq!(begun.elapsed().as_secs(), 7);
}

#[tokio::test(start_paused = true)]
async fn a_watch_whose_timeout_is_in_the_past_is_over() {
    let api = Api::start(&[("shop", "a")]).await;
    let mut watch = api.watch("watch=1&resourceVersion=1&timeoutSeconds=-1").await;
    let begun = tokio::time::Instant::now();
    assert_eq!(watch.next().await, None);
    assert_eq!(begun.elapsed().as_secs(), 0);
}

#[tokio::test]
async fn tables_and_partial_objects_are_served_to_whoever_accepts_them() {
    let api = Api::start(&[("shop", "a")]).await;
    let table = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json";
    let list = api.accept(PODS, table).await.json();
    assert_eq!((&list["kind"], &list["metadata"]["resourceVersion"]), (&json!("Table"), &json!("1")));
    let names: Vec<_> =
        list["columnDefinitions"].as_array().unwrap().iter().map(|column| column["name"].as_str().unwrap()).collect();
    assert_eq!(names[..5], ["Name", "Ready", "Status", "Restarts", "Age"]);
    assert_eq!(list["rows"][0]["cells"][0], "a");
    assert_eq!(api.accept("/api/v1/namespaces/shop/pods/a", table).await.json()["rows"].as_array().unwrap().len(), 1);
    let partial = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json";
    let list = api.accept(PODS, partial).await.json();
    assert_eq!(list["kind"], "PartialObjectMetadataList");
    assert!(list["items"][0].get("spec").is_none() && list["items"][0]["metadata"]["labels"]["app"] == "a");
    let mut watch = api.watch_at(PODS, "watch=1&resourceVersion=0", &[("Accept", table)]).await;
    let added = watch.next().await.unwrap();
    assert_eq!((&added["object"]["kind"], &added["object"]["rows"][0]["cells"][0]), (&json!("Table"), &json!("a")));
}

#[tokio::test(start_paused = true)]
async fn one_request_to_the_upstream_confirms_the_state_for_all_that_wait() {
    let asked = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&asked);
    let most_recent = MostRecent::new(move |at| {
        counted.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok(at.safe().clone())
        })
    });
    let api = Api::with(Options::default(), most_recent, false, &[("shop", "a")]).await;
    let all = futures_util::future::join_all((0..20).map(|_| api.get(PODS))).await;
    assert!(all.iter().all(|answer| answer.code == 200));
    let first = asked.load(Ordering::Relaxed);
    // Those that begin while it is under way need another one.
    assert!((1..=2).contains(&first), "{first}");
    assert_eq!(api.get(&format!("{PODS}?resourceVersion=0")).await.code, 200);
    assert_eq!(asked.load(Ordering::Relaxed), first, "any version needs none");
    let begun = tokio::time::Instant::now();
    for _ in 0..5 {
        api.get(PODS).await;
    }
    assert!(begun.elapsed() >= Duration::from_millis(400), "at most ten a second");
    assert_eq!(asked.load(Ordering::Relaxed), first + 5, "none is answered by an earlier one");
}

#[tokio::test]
async fn a_newer_state_is_waited_for() {
    let most_recent = MostRecent::new(|_| Box::pin(async { Ok(ResourceVersion::decimal(2)) }));
    let mut api = Api::with(Options::default(), most_recent, false, &[("shop", "a")]).await;
    let version = api.sandbox.version();
    let (list, ()) = tokio::join!(api.get(PODS), async {
        let event = Event::Modified(pod_at("shop", "b", "", &version));
        api.sandbox.push(event).await;
    });
    assert_eq!(list.names(), ["a", "b"]);
}

#[tokio::test]
async fn an_upstream_that_does_not_confirm_is_an_error_or_a_warning() {
    let failing = || MostRecent::new(|_| Box::pin(async { Err("the upstream is \"down\"".to_owned()) }));
    let api = Api::with(Options::default(), failing(), false, &[("shop", "a")]).await;
    let paths = [PODS.to_owned(), "/api/v1/namespaces/shop/pods/a".to_owned(), format!("{PODS}?{WATCH_LIST}")];
    for path in &paths {
        let answer = api.get(path).await;
        assert_eq!(answer.failure(), (503, "ServiceUnavailable".to_owned()), "{path}");
        assert!(answer.head.contains("retry-after: 1"));
    }
    assert_eq!(api.get(&format!("{PODS}?resourceVersion=0")).await.code, 200);
    let api = Api::with(Options::default(), failing(), true, &[("shop", "a")]).await;
    let answer = api.get(PODS).await;
    assert!(
        answer.code == 200 && answer.head.contains("warning: 299 - \"informerd: the state may not be"),
        "{}",
        answer.head
    );
    let (_, head) = api.send("GET", &format!("{PODS}?{WATCH_LIST}"), &[], "").await;
    assert!(head.contains("warning: 299"), "{head}");
}

fn authorized(directory: &TempDir) -> Options {
    let path = directory.path().join("tokens");
    let lines = [("all", "all"), ("shop", "shop"), ("none", "none")]
        .map(|(token, user)| crate::authentication::line(token, user));
    std::fs::write(&path, lines.concat()).unwrap();
    let rules = json!([
        { "subjects": ["user:all"], "verbs": ["*"], "resources": ["pods"], "namespaces": ["*"] },
        { "subjects": ["user:shop"], "verbs": ["get", "list", "watch"], "resources": ["pods"], "namespaces": ["shop"] },
    ]);
    let authorizer = Authorizer::of_rules(Rules::from_value(&rules).unwrap());
    let access = AccessConfig { authorizer: Some(authorizer), ..AccessConfig::default() };
    let token_file = Some(informerd::auth::TokenFile::load(&path).unwrap());
    let authentication = Some(Arc::new(Authentication { token_file, ..Authentication::default() }));
    Options { access, authentication, ..Options::default() }
}

/// It names the API server and its own account: callers with rights learn of it as little as from other methods.
#[tokio::test]
async fn the_error_of_the_upstream_is_for_the_log_where_callers_are_authorized() {
    let directory = TempDir::new().unwrap();
    for warns in [false, true] {
        let failing = MostRecent::new(|_| Box::pin(async { Err("https://10.0.0.1: forbidden: User sa".to_owned()) }));
        let api = Api::with(authorized(&directory), failing, warns, &[("shop", "a")]).await;
        let path = "/api/v1/namespaces/shop/pods";
        let answer = api.ask("GET", path, &[("Authorization", "Bearer shop")], "").await;
        assert_eq!(answer.code, if warns { 200 } else { 503 });
        let whole = format!("{}{}", answer.head, answer.text);
        assert!(whole.contains("see the server's log") && !whole.contains("10.0.0.1"), "{whole}");
    }
}

#[tokio::test]
async fn a_caller_gets_what_its_rights_allow_and_never_a_part_of_a_list() {
    let directory = TempDir::new().unwrap();
    let asked = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&asked);
    let most_recent = MostRecent::new(move |at| {
        counted.fetch_add(1, Ordering::Relaxed);
        Box::pin(async move { Ok(at.safe().clone()) })
    });
    let objects = [("shop", "a"), ("shop", "c"), ("other", "b")];
    let api = Api::with(authorized(&directory), most_recent, false, &objects).await;
    let by = async |token: &str, target: &str| {
        let bearer = format!("Bearer {token}");
        api.ask("GET", target, &[("Authorization", &bearer)], "").await
    };
    assert_eq!(by("all", PODS).await.names(), ["b", "a", "c"]);
    assert_eq!(by("shop", "/api/v1/namespaces/shop/pods").await.names(), ["a", "c"]);
    let first = "/api/v1/namespaces/shop/pods?limit=1";
    let page = by("shop", first).await.json();
    let next = format!("{first}&continue={}", page["metadata"]["continue"].as_str().unwrap());
    assert_eq!(by("all", &next).await.failure().0, 400, "of another user");
    assert_eq!(by("shop", &next).await.names(), ["c"]);
    let before = asked.load(Ordering::Relaxed);
    for path in [
        PODS.to_owned(),
        format!("{PODS}?watch=1&resourceVersion=0"),
        "/api/v1/namespaces/other/pods/b".to_owned(),
        "/api/v1/namespaces/other/pods".to_owned(),
    ] {
        let answer = by("shop", &path).await;
        assert_eq!(answer.failure(), (403, "Forbidden".to_owned()), "{path}");
        assert_eq!(by("none", &path).await.failure().0, 403, "{path}");
        let unknown = by("wrong", &path).await;
        assert_eq!(unknown.failure(), (401, "Unauthorized".to_owned()), "{path}");
        assert_eq!(api.get(&path).await.failure().0, 401, "{path}: without a token");
    }
    assert_eq!(asked.load(Ordering::Relaxed), before, "nobody else makes the upstream confirm anything");
    assert_eq!(by("none", "/api/v1/things").await.failure().0, 403, "nobody learns what there is");
    let watch = by("none", "/api/v1/things?watch=1").await.json();
    assert!(watch["message"].as_str().unwrap().contains("cannot watch resource \"things\""), "{watch}");
    assert_eq!(by("all", "/api/v1/things").await.failure().0, 403);
    let message = by("shop", PODS).await.json()["message"].as_str().unwrap().to_owned();
    assert!(
        message.starts_with(
            "pods is forbidden: User \"shop\" cannot list resource \"pods\" in API group \"\" at the cluster scope"
        ),
        "{message}"
    );
    assert_eq!(by("none", "/api").await.json()["versions"], json!([]), "discovery has what the caller may see");
    assert_eq!(by("shop", "/api").await.json()["versions"], json!(["v1"]));
    assert_eq!(api.get("/readyz").await.code, 200, "for a probe");

    for (token, verb, namespace, resource, allowed) in [
        ("all", "list", "", "pods", true),
        ("shop", "list", "", "pods", false),
        ("shop", "watch", "shop", "pods", true),
        ("shop", "get", "other", "pods", false),
        ("none", "get", "shop", "pods", false),
        ("all", "delete", "shop", "pods", false),
        ("all", "get", "shop", "secrets", false),
    ] {
        let attributes = json!({ "verb": verb, "namespace": namespace, "resource": resource });
        assert_eq!(reviewed(&api, token, &attributes).await, allowed, "{token} {attributes}");
    }
}

/// Returns what a review with these attributes allows.
async fn reviewed(api: &Api, token: &str, attributes: &Value) -> bool {
    let body = json!({ "spec": { "resourceAttributes": attributes } }).to_string();
    let bearer = format!("Bearer {token}");
    let path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews";
    let answer = api.ask("POST", path, &[("Authorization", &bearer)], &body).await;
    assert_eq!(answer.code, 201, "{attributes}");
    answer.json()["status"]["allowed"].as_bool().unwrap()
}

/// Authority that lets everybody read the pod "a" alone.
#[derive(Debug)]
struct OnePod;

impl Reviewer for OnePod {
    fn review_token(&self, token: &Token, _: &[String]) -> BoxFuture<'static, Result<TokenReviewed, ReviewError>> {
        let user = IdentityDetails { user: token.expose().to_owned(), ..IdentityDetails::default() };
        let reviewed = TokenReviewed { is_authenticated: true, user, audiences: Vec::new() };
        Box::pin(std::future::ready(Ok(reviewed)))
    }

    fn review_access(&self, _: &Identity, of: ReviewAttributes) -> BoxFuture<'static, Result<bool, ReviewError>> {
        Box::pin(std::future::ready(Ok(of.verb == "get" && of.namespace == "shop" && of.name == "a")))
    }
}

/// A review is of the access that a read of whole objects needs.
#[tokio::test]
async fn a_review_allows_what_a_read_is_allowed() {
    let directory = TempDir::new().unwrap();
    let confirmed = || MostRecent::new(|at| Box::pin(async move { Ok(at.safe().clone()) }));
    let objects = [("shop", "a"), ("shop", "b")];
    let check = async |api: &Api, token: &str, verb: &str, name: &str, allowed: bool| {
        let attributes = json!({ "verb": verb, "namespace": "shop", "resource": "pods", "name": name });
        assert_eq!(reviewed(api, token, &attributes).await, allowed, "{verb} {name}");
        let separator = if name.is_empty() { "" } else { "/" };
        let path = format!("/api/v1/namespaces/shop/pods{separator}{name}?resourceVersion=0");
        let bearer = format!("Bearer {token}");
        let code = api.ask("GET", &path, &[("Authorization", &bearer)], "").await.code;
        assert_eq!(code, if allowed { 200 } else { 403 }, "{path}");
    };
    let mut options = authorized(&directory);
    let rules = json!([{ "subjects": ["user:shop"], "verbs": ["*"], "resources": ["pods"], "namespaces": ["*"], "formats": ["METADATA"] }]);
    options.access.authorizer = Some(Authorizer::of_rules(Rules::from_value(&rules).unwrap()));
    let api = Api::with(options, confirmed(), false, &objects).await;
    check(&api, "shop", "list", "", false).await;

    let reviewer: Arc<dyn Reviewer> = Arc::new(OnePod);
    let kinds = ReviewConfig { resources: [].into(), ttl: Duration::from_secs(10), peer_share: 25 };
    let mut options = authorized(&directory);
    options.access.authorizer = Some(Authorizer::of_reviews(reviewer, kinds));
    let api = Api::with(options, confirmed(), false, &objects).await;
    for (verb, name, allowed) in [("get", "a", true), ("get", "b", false), ("list", "", false)] {
        check(&api, "all", verb, name, allowed).await;
    }

    let api = Api::with(Options { is_secret: true, ..Options::default() }, confirmed(), false, &objects).await;
    check(&api, "", "list", "", false).await;

    let api = Api::start(&objects).await;
    for (version, allowed) in [("v1", true), ("", true), ("*", true), ("v2", false)] {
        let attributes = json!({ "verb": "list", "resource": "pods", "version": version });
        assert_eq!(reviewed(&api, "", &attributes).await, allowed, "{version}");
    }
}

/// The watch is among those whose rights are checked again from the time at which it waits.
#[tokio::test(start_paused = true)]
async fn a_watch_whose_rights_are_revoked_while_it_waits_for_its_version_gets_no_object() {
    let directory = TempDir::new().unwrap();
    let most_recent = MostRecent::new(|at| Box::pin(async move { Ok(at.safe().clone()) }));
    let mut api = Api::with(authorized(&directory), most_recent, false, &[("shop", "a")]).await;
    let address = api.address;
    let waiting = tokio::spawn(async move {
        let target = "/api/v1/namespaces/shop/pods?watch=1&resourceVersion=3&timeoutSeconds=60";
        ask(address, "GET", target, &[("Authorization", "Bearer shop")], "").await
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let authorizer = api.sandbox.state.config().access.authorizer.clone().unwrap();
    authorizer.set_rules(Rules::default());
    tokio::time::sleep(Duration::from_secs(5)).await;
    for name in ["b", "c", "d"] {
        api.sandbox.put("shop", name, "").await;
    }
    let Answer { text, .. } = waiting.await.unwrap();
    assert!(text.contains("\"code\":403") && !text.contains("ADDED"), "{text}");
}

#[tokio::test]
async fn a_page_in_a_browser_reaches_no_objects_under_its_own_name() {
    let api = Api::start(&[("shop", "a")]).await;
    let mut stream = TcpStream::connect(api.address).await.unwrap();
    stream
        .write_all(format!("GET {PODS} HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n").as_bytes())
        .await
        .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
}

#[tokio::test(start_paused = true)]
async fn a_client_that_sends_nothing_is_closed() {
    let api = Api::start(&[]).await;
    for text in ["", "GET /api/v1/po", "GE"] {
        let mut stream = TcpStream::connect(api.address).await.unwrap();
        stream.write_all(text.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        tokio::time::timeout(DEADLINE, stream.read_to_end(&mut rest)).await.expect("an end in time").unwrap();
        assert!(rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"), "{text:?}");
    }
}

#[tokio::test]
async fn watches_are_among_those_of_grpc_and_their_rights_end_them() {
    use informerd::proto::pb;
    // There is no event for dropped ones in the Kubernetes API, whatever the policy of the resource.
    let options = Options { policy: FullChannelPolicy::Drop, ..Options::default() };
    let most_recent = MostRecent::new(|at| Box::pin(async move { Ok(at.safe().clone()) }));
    let api = Api::with(options, most_recent, false, &[("shop", "a")]).await;
    let mut watch = api.watch("watch=1&resourceVersion=0").await;
    watch.words(1).await;
    let channel = tonic::transport::Endpoint::new(api.sandbox.address().to_owned()).unwrap().connect().await.unwrap();
    let mut admin = pb::admin_service_client::AdminServiceClient::new(channel);
    let listed = admin.list_watchers(pb::ListWatchersRequest::default()).await.unwrap().into_inner().watchers;
    assert_eq!(listed.len(), 1);
    assert_eq!((&*listed[0].resource, listed[0].policy()), ("pods", pb::FullChannelPolicy::Replay));
}

/// The memory that is held for a client which reads nothing is counted, and its connection is closed.
#[tokio::test(start_paused = true)]
async fn a_client_that_reads_nothing_is_closed() {
    let api = Api::start(&[]).await;
    let spec = format!(r#""x":"{}""#, "x".repeat(256 << 10));
    let pods = (0..128).map(|name| pod("shop", &format!("p{name}"), &spec)).collect();
    api.sandbox.list(pods, 2).await;
    let (mut stream, head) = api.send("GET", &format!("{PODS}?resourceVersion=0"), &[], "").await;
    assert!(head.starts_with("http/1.1 200 "), "{head}");
    assert_eq!(api.sandbox.ledger.connections(), 1);
    let until = async |is_so: &dyn Fn() -> bool| {
        let waits = async {
            while !is_so() {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        tokio::time::timeout(DEADLINE, waits).await.expect("in time");
    };
    until(&|| api.sandbox.ledger.waiting().total() > 0).await;
    let bytes = api.sandbox.ledger.waiting().total();
    assert!(bytes < 1 << 20, "{bytes}");
    until(&|| api.sandbox.ledger.connections() == 0).await;
    assert_eq!(api.sandbox.ledger.waiting().total(), 0);
    let mut rest = Vec::new();
    drop(stream.read_to_end(&mut rest).await);
    assert!(rest.len() < 32 << 20, "not all of it");
}

/// Over HTTP/2 with its preface, and over a connection that is used again.
#[tokio::test]
async fn http_2_is_served_too_and_a_connection_of_http_1_again() {
    let api = Api::start(&[("shop", "a")]).await;
    let stream = TcpStream::connect(api.address).await.unwrap();
    let (client, connection) = h2::client::handshake(stream).await.unwrap();
    let driver = tokio::spawn(connection);
    let mut client = client.ready().await.unwrap();
    let request = http::Request::get(format!("http://localhost{PODS}")).body(()).unwrap();
    let (response, _) = client.send_request(request, true).unwrap();
    let (head, mut body) = response.await.unwrap().into_parts();
    assert_eq!(head.status, 200);
    let mut text = Vec::new();
    while let Some(data) = body.data().await {
        text.extend_from_slice(&data.unwrap());
    }
    assert_eq!(serde_json::from_slice::<Value>(&text).unwrap()["kind"], "PodList");
    assert!(body.trailers().await.unwrap().is_none(), "those of gRPC");
    driver.abort();

    let mut stream = TcpStream::connect(api.address).await.unwrap();
    for _ in 0..3 {
        stream.write_all(b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
        let (mut head, mut byte) = (Vec::new(), [0]);
        while !head.ends_with(b"\r\n\r\n") {
            stream.read_exact(&mut byte).await.unwrap();
            head.push(byte[0]);
        }
        let head = String::from_utf8(head).unwrap().to_lowercase();
        assert!(head.starts_with("http/1.1 200 "), "{head}");
        let mut body = unchunked_body(&mut stream, &head).await;
        assert_eq!(body.pop(), Some(b'\n'));
    }
}

/// Reads the body of a response on a connection that stays open.
async fn unchunked_body(stream: &mut TcpStream, head: &str) -> Vec<u8> {
    let length = head.lines().find_map(|line| line.strip_prefix("content-length: "));
    if let Some(length) = length {
        let mut body = vec![0; length.parse().unwrap()];
        stream.read_exact(&mut body).await.unwrap();
        return body;
    }
    let (mut body, mut byte) = (Vec::new(), [0]);
    while !body.ends_with(b"\r\n0\r\n\r\n") {
        stream.read_exact(&mut byte).await.unwrap();
        body.push(byte[0]);
    }
    unchunked(&body)
}
