//! Requests with random parameters to informerd's API and to the API server: the same codes, reasons and objects, or a named difference.

use std::{
    collections::BTreeMap,
    env,
    fmt::Write,
    sync::Arc,
    time::{Duration, Instant},
};

use http::{HeaderValue, Request, header};
use http_body_util::BodyExt;
use kube::{Client, Config, client::Body};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    DEADLINE,
    apiserver::{ApiServer, CONFIG_MAPS},
    kubernetes::{Facade, fill},
};

/// Requests of a run; `INFORMERD_PARAMETERS_REQUESTS` overrides it, for thousands.
const REQUESTS: u64 = 400;
/// Requests at a time.
const PARALLEL: usize = 12;
/// Time for which a watch without an end of its own is read. Nothing is written meanwhile.
const WINDOW: Duration = Duration::from_millis(1500);

/// Request as it is drawn; tokens are those of each server.
#[derive(Debug, Clone)]
struct Draw {
    path: String,
    parameters: Vec<(&'static str, String)>,
    token: Option<Token>,
    accept: Vec<String>,
}

/// Value of `continue`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Token {
    /// Of the same request to the same server, with a limit.
    Own,
    /// Of the other server.
    Foreign,
    /// Of another kind.
    OtherKind,
    /// With a character in another one's place.
    Damaged,
    Text,
}

/// Versions of one kind that requests name.
#[derive(Debug, Clone)]
struct Versions {
    /// Of the last write.
    current: u64,
    /// Of a write since informerd has run, if there is one.
    old: u64,
    /// Of the first object, which was written before that.
    before: u64,
}

#[derive(Debug, Clone, PartialEq)]
struct Answer {
    status: u16,
    media_type: String,
    body: Content,
}

#[derive(Debug, Clone, PartialEq)]
enum Content {
    Document(Value),
    Events(Vec<Value>),
    Other,
}

/// Difference that stays.
struct Difference {
    name: &'static str,
    /// Request that has it.
    example: (&'static str, &'static str),
    is_it: fn(&Draw, &Answer, &Answer) -> bool,
}

/// Both servers.
struct Servers {
    theirs: Client,
    ours: Client,
    /// By plural name.
    versions: BTreeMap<String, Versions>,
}

const PATHS: &[&str] = &[
    "/api/v1/pods",
    "/api/v1/namespaces/a/pods",
    "/api/v1/namespaces/none/pods",
    "/api/v1/namespaces/a/pods/p1",
    "/api/v1/namespaces/a/pods/none",
    "/api/v1/configmaps",
    "/api/v1/namespaces/b/configmaps",
    "/api/v1/namespaces/b/configmaps/m1",
    "/api/v1/nodes",
    "/api/v1/nodes/n1",
    "/api/v1/services",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/namespaces/a/deployments/web",
];
const JSON: &str = "application/json";
const ACCEPTS: &[&str] = &[
    JSON,
    "application/json;as=Table;v=v1;g=meta.k8s.io",
    "application/json;as=Table;v=v1beta1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
    "application/json;as=PartialObjectMetadataList;v=v1beta1;g=meta.k8s.io",
    "application/json;as=Nothing;v=v1;g=meta.k8s.io",
    "application/vnd.kubernetes.protobuf",
    "application/cbor",
    "application/yaml",
    "*/*",
    "application/*",
    "text/html",
    "application/json;charset=utf-8",
    "application/json;q=0.5",
    "application/json;q=0",
    "",
];

// === impl Draw ===

impl Draw {
    fn of(random: &mut fastrand::Rng, versions: &BTreeMap<String, Versions>) -> Self {
        let path = random.choice(PATHS).copied().unwrap().to_owned();
        let versions = versions.iter().find(|(plural, _)| path.split('/').any(|part| part == **plural)).unwrap().1;
        let mut accept: Vec<String> = Vec::new();
        if random.u8(..) < 128 {
            let count = random.usize(1..=3);
            let clauses: Vec<&str> = (0..count).map(|_| *random.choice(ACCEPTS).unwrap()).collect();
            accept.push(clauses.join(if random.bool() { "," } else { ", " }));
        }
        let mut draw = Self { path, parameters: Vec::new(), token: None, accept };
        // A plain value twice as often as each other one.
        let mut add = |odds: u8, key: &'static str, values: &[&str]| {
            if random.u8(0..100) < odds {
                draw.parameters.push((key, (*random.choice(values).unwrap()).to_owned()));
            }
        };
        add(45, "watch", &["true", "true", "1", "t", "True", "false", "0", "x", ""]);
        add(80, "timeoutSeconds", &["1", "1", "1", "1", "0", "-1", "x", "1.5", ""]);
        add(30, "limit", &["1", "2", "500", "0", "-1", "x", "", "99999999999999999999"]);
        let Versions { current, old, before } = versions;
        let [current, old, before, future] =
            [*current, *old, *before, current + 1_000_000].map(|version| version.to_string());
        add(
            55,
            "resourceVersion",
            &["", "0", "0", &current, &current, &old, &old, &before, &future, "x", "-1", "1.0", "01"],
        );
        add(35, "resourceVersionMatch", &["Exact", "Exact", "NotOlderThan", "NotOlderThan", "exact", "x", ""]);
        add(
            30,
            "labelSelector",
            &[
                "app=web",
                "app!=web",
                "app in (web,db)",
                "!app",
                "app",
                "a b",
                "app in (",
                "app=web,",
                "=",
                "app==web",
                "app notin (x)",
            ],
        );
        add(
            30,
            "fieldSelector",
            &[
                "metadata.name=p1",
                "metadata.namespace=a",
                "spec.nodeName=n1",
                "metadata.name!=p1",
                "metadata.name==m1",
                "status.phase=Pending",
                "metadata.name=p1,metadata.namespace=a",
                "a b",
                "=",
                "metadata.name",
                "metadata.name=",
            ],
        );
        add(8, "fieldSelector", &["data.k=v", "metadata.uid=x", "spec.none=1"]);
        add(30, "sendInitialEvents", &["true", "true", "false", "1", "x", ""]);
        add(30, "allowWatchBookmarks", &["true", "false", "x", ""]);
        add(10, "pretty", &["true", "false", "x"]);
        add(10, "unknown", &["1"]);
        add(8, "includeObject", &["None", "Metadata", "Object", "x"]);
        add(10, "timeout", &["20s", "1m30s", "30.5s", "0s", "bad", "5", ""]);
        add(5, "limit", &["3"]);
        add(5, "resourceVersion", &["0"]);
        if draw.is_watch() {
            // Over at once, with some or all of the initial events, or an error in place of them.
            draw.parameters.retain(|parameter| *parameter != ("timeoutSeconds", "-1".to_owned()));
        }
        if draw.is_watch() && draw.get("resourceVersion") == Some(&*future) {
            // informerd waits for that version as long as the watch lasts.
            draw.parameters.retain(|(key, _)| *key != "timeoutSeconds");
            draw.parameters.push(("timeoutSeconds", "1".to_owned()));
        }
        if random.u8(0..100) < 20 {
            use Token::{Damaged, Foreign, OtherKind, Own, Text};
            draw.token = random.choice([Own, Own, Own, Own, Foreign, OtherKind, Damaged, Text]);
        }
        draw
    }

    /// Returns a request of the table of differences.
    fn example((target, accept): (&'static str, &'static str)) -> Self {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        let decode =
            |value: &str| form_urlencoded::parse(value.as_bytes()).map(|(value, _)| value.into_owned()).collect();
        let parameters = pairs.map(|(key, value)| (key, decode(value))).collect();
        let accept = if accept.is_empty() { Vec::new() } else { vec![accept.to_owned()] };
        Self { path: path.to_owned(), parameters, token: None, accept }
    }

    fn get(&self, key: &str) -> Option<&str> {
        // The first of two counts, as in Kubernetes.
        self.parameters.iter().find(|(found, _)| *found == key).map(|(_, value)| &**value)
    }

    /// Returns true for a request of one object.
    fn is_get(&self) -> bool {
        let parts = self.path.split('/').count();
        parts - if self.path.contains("/namespaces/") { 2 } else { 0 }
            > if self.path.starts_with("/apis") { 5 } else { 4 }
    }

    fn is_watch(&self) -> bool {
        self.get("watch").is_some_and(|value| !["false", "0"].contains(&&*value.to_lowercase()))
    }

    fn is_exact(&self) -> bool {
        self.get("resourceVersionMatch") == Some("Exact")
    }

    /// Returns true if the client accepts one of these types.
    fn accepts(&self, types: &[&str]) -> bool {
        self.accept.iter().any(|accept| types.iter().any(|found| accept.contains(found)))
    }

    fn target(&self, token: Option<&str>) -> String {
        let mut query = form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(&self.parameters);
        if let Some(token) = token {
            query.append_pair("continue", token);
        }
        format!("{}?{}", self.path, query.finish())
    }
}

// === impl Answer ===

impl Answer {
    fn document(&self) -> Option<Value> {
        if let Content::Document(document) = &self.body { Some(document.clone()) } else { None }
    }

    fn with(&self, map: &str, key: &str, value: &str) -> Option<Value> {
        let mut document = self.document()?;
        document.pointer_mut(map)?[key] = json!(value);
        Some(document)
    }

    fn without(&self, map: &str, key: &str) -> Option<Value> {
        let mut document = self.document()?;
        document.pointer_mut(map)?.as_object_mut()?.remove(key)?;
        Some(document)
    }

    /// Returns true for an error, as the status or in the first event.
    fn has_failed_with(&self, error: u16) -> bool {
        let code = match &self.body {
            Content::Events(events) => events.first().and_then(|event| event["object"]["code"].as_u64()),
            _ => None,
        };
        self.status == error || code == Some(error.into())
    }
}

// === impl Servers ===

impl Servers {
    /// Starts both, and writes.
    async fn start() -> (ApiServer, Facade, Self) {
        let apiserver = ApiServer::start().await;
        fill(&apiserver).await;
        let facade = Facade::start(&apiserver).await;
        let version = |object: &Value| object["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap();
        let kinds =
            ["/api/v1/pods", "/api/v1/configmaps", "/api/v1/nodes", "/api/v1/services", "/apis/apps/v1/deployments"];
        let (mut versions, path) = (BTreeMap::new(), CONFIG_MAPS.path("b"));
        for kind in kinds {
            let list = apiserver.ask("GET", kind, None).await.unwrap();
            let all: Vec<u64> = list["items"].as_array().unwrap().iter().map(version).collect();
            let (before, last) = (*all.iter().min().unwrap(), *all.iter().max().unwrap());
            let plural = kind.rsplit('/').next().unwrap().to_owned();
            versions.insert(plural, Versions { current: last, old: last, before });
        }
        for name in ["m1", "m2", "m3", "m4", "gone"] {
            let labels = json!({ "app": if name == "m2" { "db" } else { "web" } });
            let object = CONFIG_MAPS.object(&json!({ "name": name, "labels": labels }), &json!({ "k": "v" }));
            let old = version(&apiserver.ask("POST", &path, Some(&object)).await.unwrap());
            if name == "m3" {
                versions.get_mut("configmaps").unwrap().old = old;
            }
        }
        apiserver.ask("DELETE", &format!("{path}/gone"), None).await.unwrap();
        let pod = "/api/v1/namespaces/a/pods/p2".to_owned();
        for (path, label) in
            [(pod.clone(), "web"), (format!("{path}/m1"), "db"), (format!("{path}/m3"), "web"), (pod, "x")]
        {
            let patch = json!({ "metadata": { "labels": { "app": label, "changed": "yes" } } });
            let last = version(&apiserver.ask("PATCH", &path, Some(&patch)).await.unwrap());
            let of_kind = versions.get_mut(if path.ends_with("p2") { "pods" } else { "configmaps" }).unwrap();
            if label == "web" && path.ends_with("p2") {
                of_kind.old = last;
            }
            of_kind.current = last;
        }
        let theirs = apiserver.impatient_client().await;
        let mut config = Config::new(facade.address.parse().unwrap());
        config.default_retry = false;
        let servers = Self { theirs, ours: Client::try_from(config).unwrap(), versions };
        (apiserver, facade, servers)
    }

    /// Sends a request to both.
    async fn ask(&self, draw: &Draw) -> (Answer, Answer) {
        let (mut theirs, mut ours) = (None, None);
        if let Some(token) = draw.token {
            let mut listing = draw.clone();
            listing.path = if token == Token::OtherKind { "/api/v1/configmaps".to_owned() } else { draw.path.clone() };
            listing.parameters.retain(|(key, _)| ["labelSelector", "fieldSelector"].contains(key));
            listing.parameters.push(("limit", "1".to_owned()));
            listing.accept.clear();
            let token_of = async |client| match send(client, &listing, None, WINDOW).await.body {
                Content::Document(list) => list["metadata"]["continue"].as_str().unwrap_or("none").to_owned(),
                _ => "none".to_owned(),
            };
            let (of_theirs, of_ours) = (token_of(&self.theirs).await, token_of(&self.ours).await);
            let damage = |text: String| text.chars().rev().collect();
            (theirs, ours) = match token {
                Token::Own | Token::OtherKind => (Some(of_theirs), Some(of_ours)),
                Token::Foreign => (Some(of_ours), Some(of_theirs)),
                Token::Damaged => (Some(damage(of_theirs)), Some(damage(of_ours))),
                Token::Text => (Some("x".to_owned()), Some("x".to_owned())),
            };
        }
        let mut window = WINDOW;
        loop {
            let answers = tokio::join!(
                send(&self.theirs, draw, theirs.as_deref(), window),
                send(&self.ours, draw, ours.as_deref(), window)
            );
            // Where one of them was late.
            if answers.0 == answers.1 || !draw.is_watch() || window > WINDOW {
                return answers;
            }
            window = WINDOW * 4;
        }
    }
}

async fn send(client: &Client, draw: &Draw, token: Option<&str>, window: Duration) -> Answer {
    let mut request = Request::get(draw.target(token));
    for accept in &draw.accept {
        request = request.header(header::ACCEPT, HeaderValue::from_str(accept).unwrap());
    }
    let sent = tokio::time::timeout(DEADLINE, client.send(request.body(Body::empty()).unwrap())).await;
    let response = sent.unwrap_or_else(|_| panic!("no answer within {DEADLINE:?}: {draw:?}")).unwrap();
    let (head, mut body) = response.into_parts();
    let is_watch = draw.is_watch() && head.status.is_success() && (!draw.is_get());
    let (mut bytes, ends) = (Vec::new(), Instant::now() + if is_watch { window } else { DEADLINE });
    while let Ok(Some(frame)) = tokio::time::timeout_at(ends.into(), body.frame()).await {
        let Ok(frame) = frame else { break };
        bytes.extend_from_slice(frame.data_ref().map_or(&[][..], |data| data));
    }
    let media_type = head.headers.get(header::CONTENT_TYPE).map_or("", |value| value.to_str().unwrap()).to_owned();
    let body = if !media_type.starts_with(JSON) {
        Content::Other
    } else if is_watch {
        let lines = serde_json::Deserializer::from_slice(&bytes).into_iter().map_while(Result::ok);
        Content::Events(events(draw, lines.collect()))
    } else {
        let mut document = serde_json::from_slice(&bytes).unwrap_or_else(|error| panic!("{draw:?}: {error}"));
        strip(draw, &mut document);
        Content::Document(document)
    };
    Answer { status: head.status.as_u16(), media_type, body }
}

/// Returns the events without those whose time is not fixed, and the initial ones in one order.
fn events(draw: &Draw, mut events: Vec<Value>) -> Vec<Value> {
    let is_end = |event: &Value| event.pointer("/object/metadata/annotations/k8s.io~1initial-events-end").is_some();
    events.retain(|event| event["type"] != "BOOKMARK" || is_end(event) || draw.get("allowWatchBookmarks").is_none());
    for event in &mut events {
        if event["type"] == "BOOKMARK" {
            event["object"]["metadata"]["resourceVersion"] = json!("some");
        }
        strip(draw, &mut event["object"]);
    }
    if ["", "0"].contains(&draw.get("resourceVersion").unwrap_or_default()) || draw.get("sendInitialEvents").is_some() {
        events.sort_by_key(|event| {
            (event["type"] == "BOOKMARK", event.pointer("/object/metadata/uid").map(Value::to_string))
        });
    }
    events
}

/// Removes what two answers need not share: the version of a list, tokens, ages, texts of errors.
fn strip(draw: &Draw, document: &mut Value) {
    let kind = document["kind"].as_str().unwrap_or_default().to_owned();
    if kind == "Status" {
        let status = document.as_object_mut().unwrap();
        status.remove("message");
        if status.get("details") == Some(&json!({})) {
            status.remove("details");
        }
        let causes = document.pointer_mut("/details/causes").and_then(Value::as_array_mut);
        for cause in causes.into_iter().flatten() {
            cause.as_object_mut().unwrap().remove("message");
        }
        return;
    }
    if kind.ends_with("List") || kind == "Table" {
        let metadata = &mut document["metadata"];
        if !draw.is_exact() && metadata.get("resourceVersion").is_some() && !draw.is_get() {
            metadata["resourceVersion"] = json!("some");
        }
        if metadata.get("continue").is_some() {
            metadata["continue"] = json!("some");
        }
    }
    if kind == "Table" {
        let columns = document["columnDefinitions"].as_array_mut();
        let mut ages = Vec::new();
        for (at, column) in columns.into_iter().flatten().enumerate() {
            column.as_object_mut().unwrap().remove("description");
            if column["name"] == "Age" {
                ages.push(at);
            }
        }
        for row in document["rows"].as_array_mut().into_iter().flatten() {
            for at in &ages {
                row["cells"][at] = json!("some");
            }
        }
    }
    if document["kind"] == "PartialObjectMetadataList" {
        // As Go writes an empty list that it has not filled.
        if document["items"].is_null() {
            document["items"] = json!([]);
        }
        // Here they have none, as in protobuf: client-go compares them with those of watches.
        for item in document["items"].as_array_mut().into_iter().flatten() {
            let item = item.as_object_mut().unwrap();
            item.remove("kind");
            item.remove("apiVersion");
        }
    }
    without_managers(document);
}

fn without_managers(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.remove("managedFields");
            map.values_mut().for_each(without_managers);
        }
        Value::Array(items) => items.iter_mut().for_each(without_managers),
        _ => {}
    }
}

const DIFFERENCES: &[Difference] = &[
    Difference {
        name: "bodies are JSON: YAML and protobuf are types that are not served",
        example: ("/api/v1/pods?limit=1", "application/yaml"),
        is_it: |draw, theirs, ours| {
            !theirs.media_type.starts_with(JSON) && draw.accepts(&["yaml", "protobuf"]) && ours.media_type == JSON
        },
    },
    Difference {
        name: "tables and metadata are of meta.k8s.io/v1, not v1beta1",
        example: ("/api/v1/pods?limit=1", "application/json;as=Table;v=v1beta1;g=meta.k8s.io"),
        is_it: |draw, _, ours| draw.accepts(&["v1beta1"]) && [200, 406].contains(&ours.status),
    },
    Difference {
        name: "a type of lists for one object, or the other way round, is refused before the state is read, and for a watch, too",
        example: (
            "/api/v1/pods?watch=1&timeoutSeconds=1",
            "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
        ),
        is_it: |draw, theirs, ours| {
            draw.accepts(&["PartialObjectMetadata"]) && ours.status == 406 && (theirs.status != 200 || draw.is_watch())
        },
    },
    Difference {
        name: "application/* is JSON; the API server accepts it only after */*",
        example: ("/api/v1/pods", "application/*"),
        is_it: |draw, theirs, ours| draw.accepts(&["application/*"]) && theirs.status == 406 && ours.status != 406,
    },
    Difference {
        name: "an object at a version that is no number is 400, and a watch from it; the API server fails with 500",
        example: ("/api/v1/namespaces/a/pods/p1?resourceVersion=x", ""),
        is_it: |draw, theirs, ours| (draw.is_get() || draw.is_watch()) && (theirs.status, ours.status) == (500, 400),
    },
    Difference {
        name: "fields are any paths; the API server has a few for each kind",
        example: ("/api/v1/configmaps?fieldSelector=data.k%3Dv", ""),
        is_it: |draw, theirs, ours| draw.get("fieldSelector").is_some() && theirs.status == 400 && ours.status != 400,
    },
    Difference {
        name: "a field selector without a path is an error; the API server ignores it",
        example: ("/api/v1/pods?fieldSelector=%3D", ""),
        is_it: |draw, _, ours| draw.get("fieldSelector") == Some("=") && ours.status == 400,
    },
    Difference {
        name: "a watch from a version that the resource does not reach soon is refused; the API server waits with an open stream",
        example: ("/api/v1/nodes?watch=1&resourceVersion=1000000000&timeoutSeconds=1", ""),
        is_it: |draw, theirs, ours| draw.is_watch() && theirs.status == 200 && ours.has_failed_with(504),
    },
    Difference {
        name: "one object is read at exactly a version; the API server ignores that",
        example: ("/api/v1/nodes/n1?resourceVersion=1&resourceVersionMatch=Exact", ""),
        is_it: |draw, _, ours| draw.is_get() && draw.is_exact() && [200, 404, 410, 504].contains(&ours.status),
    },
    Difference {
        name: "the history begins when informerd starts",
        example: ("/api/v1/pods?resourceVersion=1&watch=1&timeoutSeconds=1", ""),
        is_it: |draw, _, ours| draw.get("resourceVersion").is_some() && ours.has_failed_with(410),
    },
    Difference {
        name: "timeout, the limit that a client has itself, is ignored",
        example: ("/api/v1/nodes/n1?timeout=bad", ""),
        is_it: |draw, theirs, _| {
            ["bad", "5"].contains(&draw.get("timeout").unwrap_or_default()) && theirs.status == 400
        },
    },
    Difference {
        name: "there is no next page that would be empty",
        example: ("/api/v1/namespaces/a/pods?limit=1&labelSelector=app%3Dweb", ""),
        is_it: |_, theirs, ours| ours.with("/metadata", "continue", "some") == theirs.document(),
    },
    Difference {
        name: "remainingItemCount is known of lists of all objects",
        example: ("/api/v1/namespaces/b/configmaps?limit=2", ""),
        is_it: |draw, theirs, ours| {
            draw.path.contains("/namespaces/") && ours.document() == theirs.without("/metadata", "remainingItemCount")
        },
    },
];

fn difference(draw: &Draw, theirs: &Answer, ours: &Answer) -> Option<&'static Difference> {
    DIFFERENCES.iter().find(|difference| (difference.is_it)(draw, theirs, ours))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_parameters_have_the_answers_of_the_api_server() {
    let number = |name: &str| env::var(name).ok().map(|text| text.parse::<u64>().expect("a number"));
    let (seed, count) =
        (number("INFORMERD_CHECKER_SEED").unwrap_or(1), number("INFORMERD_PARAMETERS_REQUESTS").unwrap_or(REQUESTS));
    let (_apiserver, _facade, servers) = Servers::start().await;
    let servers = Arc::new(servers);
    let mut draws: Vec<Draw> = DIFFERENCES.iter().map(|difference| Draw::example(difference.example)).collect();
    let mut random = fastrand::Rng::with_seed(seed);
    draws.extend((0..count).map(|_| Draw::of(&mut random, &servers.versions)));
    let (mut tasks, mut failures, mut draws) = (JoinSet::new(), String::new(), draws.into_iter());
    let mut found: BTreeMap<&str, u32> = BTreeMap::new();
    loop {
        while tasks.len() < PARALLEL
            && let Some(draw) = draws.next()
        {
            let servers = servers.clone();
            tasks.spawn(async move {
                let answers = servers.ask(&draw).await;
                (draw, answers)
            });
        }
        let Some(done) = tasks.join_next().await else { break };
        let (draw, (theirs, ours)) = done.unwrap();
        if theirs == ours {
            continue;
        }
        if let Some(difference) = difference(&draw, &theirs, &ours) {
            *found.entry(difference.name).or_default() += 1;
        } else {
            let _ = writeln!(
                failures,
                "{} {:?} {:?}\n  theirs {}\n  ours   {}\n  at     {}",
                draw.target(None),
                draw.token,
                draw.accept,
                show(&theirs),
                show(&ours),
                places(&theirs, &ours).join("; ")
            );
        }
    }
    println!("seed {seed}, {count} requests: {found:#?}");
    assert!(failures.is_empty(), "INFORMERD_CHECKER_SEED={seed}:\n{failures}");
    for Difference { name, .. } in DIFFERENCES {
        assert!(found.contains_key(name), "there is no such difference: {name}");
    }
}

/// Shows an answer in one line.
fn show(answer: &Answer) -> String {
    let body = match &answer.body {
        Content::Document(document) => document.to_string(),
        Content::Events(events) => json!(events).to_string(),
        Content::Other => String::new(),
    };
    format!("{} {} {}", answer.status, answer.media_type, body.chars().take(300).collect::<String>())
}

/// Returns the places at which two answers differ, with the values of both.
fn places(theirs: &Answer, ours: &Answer) -> Vec<String> {
    let value = |answer: &Answer| match &answer.body {
        Content::Document(document) => document.clone(),
        Content::Events(events) => json!(events),
        Content::Other => Value::Null,
    };
    let mut found = Vec::new();
    compare(&value(theirs), &value(ours), "", &mut found);
    found.truncate(4);
    found
}

fn compare(theirs: &Value, ours: &Value, path: &str, found: &mut Vec<String>) {
    match (theirs, ours) {
        (Value::Object(a), Value::Object(b)) => {
            let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
            for key in keys {
                compare(&theirs[key], &ours[key], &format!("{path}/{key}"), found);
            }
        }
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            for (at, (theirs, ours)) in a.iter().zip(b).enumerate() {
                compare(theirs, ours, &format!("{path}/{at}"), found);
            }
        }
        _ if theirs == ours => {}
        _ => {
            let short = |value: &Value| value.to_string().chars().take(160).collect::<String>();
            found.push(format!("{path}: {} / {}", short(theirs), short(ours)));
        }
    }
}
