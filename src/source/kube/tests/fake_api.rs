//! Scripted Kubernetes API: a store with versions and compaction behind lists, pages and watches, and scripted faults.

mod text;
mod watches;

use std::{
    collections::{BTreeMap, VecDeque},
    convert::Infallible,
    fmt::Display,
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use axum::{Router, body::Body, extract::Request, response::Response, serve::ListenerExt};
use bytes::Bytes;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch};
use tokio_stream::{StreamExt, wrappers::WatchStream};

pub(super) use self::text::{bookmark, event, expired, failure};
use self::text::{is_exact, is_probe, partial, refuse, selects, success, summary, typed, without_initial_events};

/// A scripted API; clones share it.
#[derive(Clone)]
pub(super) struct FakeApi {
    store: Arc<Mutex<Store>>,
    /// Revision that watches wait for.
    head: Arc<watch::Sender<u64>>,
}

/// History of the API, and its behaviour.
pub(super) struct Store {
    history: Vec<Change>,
    pub(super) revision: u64,
    compacted: u64,
    /// Uid of the namespace kube-system; `None` if reading it is forbidden.
    pub(super) cluster: Option<&'static str>,
    /// Bearer token that requests need, if any.
    pub(super) token: Option<&'static str>,
    /// Prefix of each version.
    pub(super) prefix: &'static str,
    /// True if it supports `PartialObjectMetadata`.
    pub(super) knows_partial: bool,
    /// True if it supports initial events.
    pub(super) streams: bool,
    /// Error of the version of a list at an exact version.
    pub(super) inexact: u64,
    /// Existing namespaces; `None` if reading them is forbidden.
    pub(super) namespaces: Option<Vec<&'static str>>,
    /// Number of revisions by which lists and watches lag behind.
    pub(super) lag: u64,
    /// Revision at which the watch cache stands still, for all namespaces (the empty text) or for one.
    pub(super) stands_still: Option<(&'static str, u64)>,
    pub(super) bookmarks: Bookmarks,
    /// True if it opens a watch from a version it has not reached yet, and is silent until then.
    pub(super) opens_the_future: bool,
    /// Faults of the next lists and watches, each used once.
    pub(super) lists: VecDeque<Fault>,
    pub(super) watches: VecDeque<Fault>,
    /// Faults of the next requests for the kinds of the group, or for a namespace.
    pub(super) others: VecDeque<Fault>,
    /// Body of the refusal of lists without a limit.
    pub(super) one_piece: Option<String>,
    /// Kind of the resource in discovery; empty if it is not there.
    pub(super) kind: &'static str,
    /// Only name that may be listed and watched, if not all.
    pub(super) only: Option<&'static str>,
    /// Summaries of the requests.
    pub(super) asked: Vec<String>,
    /// Path and query of the last request for the resource.
    pub(super) target: String,
    /// User agent of that request.
    pub(super) user_agent: String,
    /// Number of liveness requests.
    pub(super) probes: usize,
}

/// Scripted fault of one request.
pub(super) enum Fault {
    /// An unsuccessful answer: its code, the seconds of Retry-After, and its body.
    Refuse(u16, Option<u64>, String),
    /// A watch that sends these lines and is closed.
    Tell(Vec<String>),
    /// A watch without the requested initial events.
    Ignore,
    /// A watch that sends so many of the past events, and is silent then.
    Hold(usize),
    /// A success with this body.
    Answer(String),
    /// An action before the regular answer.
    Then(Box<dyn FnOnce(&FakeApi) + Send>),
    /// The same after a delay.
    Late(Duration, Box<dyn FnOnce(&FakeApi) + Send>),
}

/// Watches that have bookmarks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bookmarks {
    None,
    /// Those with the short time of a probe, at their end.
    OfProbes,
    /// All of them, once a minute.
    All,
}

#[derive(Clone)]
struct Change {
    revision: u64,
    key: String,
    /// Uid and value; `None` for a deletion.
    state: Option<(String, String)>,
}

/// Query of a request, with the namespace of its path.
type Query = BTreeMap<String, String>;

const NAMESPACE: &str = "namespace of the path";
const NAMESPACES: &str = "namespaces alone";
/// Key that is present if only metadata is requested.
const PARTIAL: &str = "type of the answer";

// === impl FakeApi ===

impl FakeApi {
    pub(super) fn new() -> Self {
        let store = Store {
            history: Vec::new(),
            revision: 1,
            compacted: 0,
            cluster: Some("u-1"),
            token: None,
            prefix: "",
            knows_partial: true,
            streams: true,
            inexact: 0,
            namespaces: None,
            lag: 0,
            stands_still: None,
            bookmarks: Bookmarks::OfProbes,
            opens_the_future: false,
            lists: VecDeque::new(),
            watches: VecDeque::new(),
            others: VecDeque::new(),
            one_piece: None,
            kind: "Widget",
            only: None,
            asked: Vec::new(),
            target: String::new(),
            user_agent: String::new(),
            probes: 0,
        };
        Self { store: Arc::new(Mutex::new(store)), head: Arc::new(watch::Sender::new(1)) }
    }

    /// Serves the API, for as long as the test lasts.
    pub(super) async fn listen(&self) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let fake = self.clone();
        let router = Router::new().fallback(move |request: Request| {
            let fake = fake.clone();
            async move { fake.answer(request).await }
        });
        let listener = listener.tap_io(|stream| stream.set_nodelay(true).unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        address
    }

    /// Writes changes such as `a=1` or `-a`, each at its own version.
    pub(super) fn write(&self, changes: &str) {
        for change in changes.split_whitespace() {
            let mut store = self.store.lock();
            store.revision += 1;
            let revision = store.revision;
            let (key, state) = match change.split_once('=') {
                Some((key, value)) => {
                    let uid = store
                        .state_at(revision)
                        .get(key)
                        .map_or_else(|| format!("u{revision}"), |(uid, _)| uid.clone());
                    (key, Some((uid, value.to_owned())))
                }
                None => (change.trim_start_matches('-'), None),
            };
            store.history.push(Change { revision, key: key.to_owned(), state });
        }
        let revision = self.revision();
        self.head.send_replace(revision);
    }

    /// Deletes all of them at one version, as the expiry of a lease does.
    pub(super) fn expire(&self, keys: &[&str]) {
        let revision = self.set(|store| {
            store.revision += 1;
            let revision = store.revision;
            let deleted = |key: &&str| Change { revision, key: (*key).to_owned(), state: None };
            store.history.extend(keys.iter().map(deleted));
            revision
        });
        self.head.send_replace(revision);
    }

    pub(super) fn set<T>(&self, change: impl FnOnce(&mut Store) -> T) -> T {
        change(&mut self.store.lock())
    }

    /// Writes something of another kind.
    pub(super) fn write_elsewhere(&self) {
        let revision = self.set(|store| {
            store.revision += 1;
            store.revision
        });
        self.head.send_replace(revision);
    }

    /// Makes the watch cache of a namespace (of all, for the empty text) stand still, or go on.
    pub(super) fn stand_still(&self, namespace: Option<&'static str>) {
        self.set(|store| store.stands_still = namespace.map(|namespace| (namespace, store.revision)));
        self.head.send_modify(|_| ());
    }

    /// Makes watches from lower versions expire.
    pub(super) fn compact(&self, revision: u64) {
        self.store.lock().compacted = revision;
    }

    /// Restores a past state, as from a backup.
    pub(super) fn restore(&self, revision: u64) {
        let mut store = self.store.lock();
        store.history.retain(|change| change.revision <= revision);
        store.revision = revision;
    }

    pub(super) fn revision(&self) -> u64 {
        self.store.lock().revision
    }

    /// Returns an event line with the present object.
    pub(super) fn line(&self, event_type: &str, key: &str) -> String {
        let store = self.store.lock();
        let change = &store.state_of(store.revision)[key];
        event(event_type, &typed(&store.object(key, change)))
    }

    /// Returns the state: key to uid and value.
    pub(super) fn state(&self) -> BTreeMap<String, (String, String)> {
        let store = self.store.lock();
        store.state_at(store.revision)
    }

    pub(super) fn asked(&self) -> Vec<String> {
        self.store.lock().asked.clone()
    }

    /// Returns the state at a past revision.
    pub(super) fn state_at(&self, revision: u64) -> BTreeMap<String, (String, String)> {
        self.store.lock().state_at(revision)
    }

    async fn answer(&self, request: Request) -> Response {
        let uri = request.uri();
        let mut query: Query =
            form_urlencoded::parse(uri.query().unwrap_or_default().as_bytes()).into_owned().collect();
        if uri.path() == "/api/v1/namespaces" {
            // Each namespace is an object with a key such as `@shop`.
            query.insert(NAMESPACES.to_owned(), String::new());
        }
        if let Some((_, rest)) = uri.path().split_once("/namespaces/") {
            query.insert(NAMESPACE.to_owned(), rest.split('/').next().unwrap_or_default().to_owned());
        }
        let accept = request.headers()["accept"].to_str().unwrap();
        if accept.contains(";as=") && self.set(|store| store.knows_partial) {
            // As Kubernetes negotiates: a list has another type than an object.
            let list = if query.contains_key("watch") { "" } else { "List" };
            let expected =
                format!("application/json;as=PartialObjectMetadata{list};g=meta.k8s.io;v=v1,application/json");
            if accept != expected {
                return refuse(406, None, &json!({"reason": "NotAcceptable", "message": accept}).to_string());
            }
            query.insert(PARTIAL.to_owned(), String::new());
        }
        let authorization = request.headers().get("authorization").map(|value| value.to_str().unwrap().to_owned());
        let expected = self.set(|store| store.token.map(|token| format!("Bearer {token}")));
        if expected.is_some() && expected != authorization {
            return refuse(401, None, &json!({"reason": "Unauthorized", "message": "who?"}).to_string());
        }
        if let Some(answer) = self.about(uri.path()).await {
            return answer;
        }
        let user_agent = request.headers().get("user-agent").map_or("", |value| value.to_str().unwrap());
        self.set(|store| {
            uri.to_string().clone_into(&mut store.target);
            user_agent.clone_into(&mut store.user_agent);
        });
        let is_watch = query.contains_key("watch");
        let forbidden = self.set(|store| store.only).is_some_and(|name| {
            let wanted = format!("metadata.name={name}");
            query.get("fieldSelector").is_none_or(|fields| fields.split(',').all(|field| field != wanted))
        });
        if forbidden {
            return refuse(403, None, &json!({"reason": "Forbidden", "message": "all names"}).to_string());
        }
        let one_piece = self.set(|store| store.one_piece.clone());
        let one_piece = one_piece.filter(|_| !is_watch && !query.contains_key("limit"));
        let fault = self.set(|store| {
            store.asked.push(summary(&query));
            if one_piece.is_some() {
                return one_piece.map(|body| Fault::Refuse(504, None, body));
            }
            if is_watch { store.watches.pop_front() } else { store.lists.pop_front() }
        });
        match fault {
            Some(Fault::Refuse(code, patience, body)) => refuse(code, patience, &body),
            Some(Fault::Tell(lines)) => success(lines.join("\n") + "\n"),
            Some(Fault::Answer(body)) => success(body),
            Some(Fault::Hold(count)) => {
                let store = self.store.lock();
                let from = store.number(query.get("resourceVersion").map_or("", String::as_str));
                let lines = store.events_after(from, &query);
                let some: String = lines.split_inclusive('\n').take(count).collect();
                let told = tokio_stream::once(Ok::<_, Infallible>(Bytes::from(some)));
                success(Body::from_stream(told.chain(tokio_stream::pending())))
            }
            Some(Fault::Ignore) => self.watch(&without_initial_events(query)),
            Some(Fault::Then(then)) => {
                then(self);
                self.serve(&query, is_watch)
            }
            Some(Fault::Late(time, then)) => {
                tokio::time::sleep(time).await;
                then(self);
                self.serve(&query, is_watch)
            }
            None => self.serve(&query, is_watch),
        }
    }

    /// Answers a request for other things than objects.
    async fn about(&self, path: &str) -> Option<Response> {
        if path == "/version" {
            self.set(|store| store.probes += 1);
            return Some(success("{}".to_owned()));
        }
        let is_namespace = path.strip_prefix("/api/v1/namespaces/").is_some_and(|name| !name.contains('/'));
        let is_other = path == "/apis/example.com/v1" || is_namespace && !path.ends_with("/kube-system");
        if is_other && let Some(answer) = self.other().await {
            return Some(answer);
        }
        if path == "/apis/example.com/v1" {
            let resource = |plural: &str, kind: &str| json!({"name": plural, "kind": kind, "namespaced": true});
            let kind = self.set(|store| store.kind);
            let mut resources = vec![resource("secrets", "Secret")];
            resources.extend((!kind.is_empty()).then(|| resource("widgets", kind)));
            return Some(success(json!({"kind": "APIResourceList", "resources": resources}).to_string()));
        }
        if path == "/api/v1/namespaces/kube-system" {
            return Some(match self.set(|store| store.cluster) {
                Some(uid) => success(json!({"metadata": {"name": "kube-system", "uid": uid}}).to_string()),
                None => refuse(403, None, &json!({"reason": "Forbidden", "message": "no"}).to_string()),
            });
        }
        if let Some(name) = path.strip_prefix("/api/v1/namespaces/").filter(|name| !name.contains('/')) {
            return Some(match self.set(|store| store.namespaces.clone()) {
                Some(names) if names.contains(&name) => success(json!({"metadata": {"name": name}}).to_string()),
                Some(_) => refuse(404, None, &json!({"reason": "NotFound", "message": "not found"}).to_string()),
                None => refuse(403, None, &json!({"reason": "Forbidden", "message": "no"}).to_string()),
            });
        }
        None
    }

    /// Returns the answer of the next fault of a request for something else.
    async fn other(&self) -> Option<Response> {
        match self.set(|store| store.others.pop_front())? {
            Fault::Refuse(code, patience, body) => Some(refuse(code, patience, &body)),
            Fault::Answer(body) => Some(success(body)),
            Fault::Hold(_) => std::future::pending().await,
            _ => None,
        }
    }

    fn serve(&self, query: &Query, is_watch: bool) -> Response {
        let store = self.store.lock();
        let text = query.get("resourceVersion").map_or("", String::as_str);
        let asked = store.number(text);
        let is_initial = query.contains_key("sendInitialEvents");
        if is_initial && !store.streams {
            return refuse(
                422,
                None,
                &json!({"reason": "Invalid", "message": "sendInitialEvents is forbidden"}).to_string(),
            );
        }
        // Without a version the most recent state is requested, which an API server that lags behind waits for.
        let known = if text.is_empty() { store.revision } else { store.revision - store.lag };
        if asked > known && !(store.opens_the_future && is_watch && !is_initial) {
            let causes =
                json!({"causes": [{"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}]});
            return refuse(
                504,
                None,
                &json!({"reason": "Timeout", "code": 504, "message": "x", "details": causes}).to_string(),
            );
        }
        if is_watch && !is_initial && asked < store.compacted {
            return success(format!("{}\n", expired()));
        }
        drop(store);
        if is_watch { self.watch(query) } else { self.list(query, known) }
    }

    fn list(&self, query: &Query, known: u64) -> Response {
        let store = self.store.lock();
        let asked = store.number(query.get("resourceVersion").map_or("", String::as_str));
        let limit = query.get("limit").map_or(usize::MAX, |limit| limit.parse().unwrap());
        let (revision, from) = match query.get("continue") {
            Some(token) => {
                let (revision, from) = token.split_once('/').unwrap();
                (revision.parse().unwrap(), from.to_owned())
            }
            None if is_exact(query) => (asked + store.inexact, String::new()),
            None => (known, String::new()),
        };
        if revision < store.compacted {
            let text =
                json!({"reason": "Expired", "code": 410, "message": "the continue parameter is too old"}).to_string();
            return refuse(410, None, &text);
        }
        let all = store.state_of(revision);
        let rest: Vec<_> = all.into_iter().filter(|(key, _)| *key >= from && selects(query, key)).collect();
        let next = rest.get(limit).map(|(key, _)| format!("{revision}/{key}"));
        // As the built-in types of Kubernetes: items omit their type.
        let is_partial = query.contains_key(PARTIAL);
        let item = |(key, change): &(String, Change)| partial(query, store.object(key, change));
        let items: Vec<Value> = rest.iter().take(limit).map(item).collect();
        let kind = if is_partial { "PartialObjectMetadataList" } else { "WidgetList" };
        let metadata = json!({"resourceVersion": format!("{}{revision}", store.prefix), "continue": next});
        success(json!({"kind": kind, "apiVersion": "example.com/v1", "metadata": metadata, "items": items}).to_string())
    }
}

// === impl Store ===

impl Store {
    fn number(&self, text: &str) -> u64 {
        text.trim_start_matches(self.prefix).parse().unwrap_or(0)
    }

    fn state_of(&self, revision: u64) -> BTreeMap<String, Change> {
        let mut state = BTreeMap::new();
        for change in self.history.iter().filter(|change| change.revision <= revision) {
            match change.state {
                Some(_) => state.insert(change.key.clone(), change.clone()),
                None => state.remove(&change.key),
            };
        }
        state
    }

    fn state_at(&self, revision: u64) -> BTreeMap<String, (String, String)> {
        self.state_of(revision).into_iter().map(|(key, change)| (key, change.state.unwrap())).collect()
    }

    fn object(&self, key: &str, change: &Change) -> Value {
        let version = format!("{}{}", self.prefix, change.revision);
        let (uid, value) = change.state.clone().unwrap_or_else(|| {
            let before = self.state_at(change.revision - 1);
            before.get(key).cloned().unwrap_or_default()
        });
        let (namespace, name) = key.split_once('/').unwrap_or(("", key.trim_start_matches('@')));
        let mut object = serde_json::Map::new();
        let metadata = json!({
            "name": name, "namespace": namespace, "uid": uid, "resourceVersion": version, "managedFields": [{"manager": "x"}],
        });
        object.insert("metadata".into(), metadata);
        object.insert("value".into(), value.into());
        object.into()
    }
}
