//! API server with Secrets and `ConfigMap`s, which reviews tokens, and fails on demand.

use std::{collections::BTreeMap, convert::Infallible, net::SocketAddr, sync::Arc};

use axum::{
    Router,
    body::{Body, Bytes},
    extract::Request,
    response::Response,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    net::TcpListener,
    sync::{mpsc, watch},
};
use tokio_stream::{StreamExt, wrappers::ReceiverStream};

/// API server; clones share it.
#[derive(Clone)]
pub(super) struct Kube {
    state: Arc<Mutex<State>>,
    changed: Arc<watch::Sender<()>>,
}

struct State {
    /// Token of its clients.
    token: String,
    /// Tokens that it authenticates, and their users.
    users: BTreeMap<String, String>,
    mode: Mode,
    version: u64,
    /// Objects, by plural and by namespace and name.
    objects: BTreeMap<&'static str, BTreeMap<(String, String), Value>>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Mode {
    Serving,
    /// Every request fails with this code.
    Failing(u16),
    /// Answers have the wrong form, with secrets in the wrong places.
    Malformed,
}

// === impl Kube ===

impl Kube {
    /// Starts a server for clients with this token.
    pub(super) async fn start(token: &str, users: &[(&str, &str)]) -> (Self, SocketAddr) {
        let users = users.iter().map(|(token, user)| ((*token).to_owned(), (*user).to_owned())).collect();
        let state = State { token: token.to_owned(), users, mode: Mode::Serving, version: 1, objects: BTreeMap::new() };
        let this = Self { state: Arc::new(Mutex::new(state)), changed: Arc::default() };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let served = this.clone();
        let router = Router::new().fallback(move |request: Request| {
            let served = served.clone();
            async move { served.answer(request).await }
        });
        tokio::spawn(async move { axum::serve(listener, router).await });
        (this, address)
    }

    /// Changes the answers. Open watches end.
    pub(super) fn set_mode(&self, mode: Mode) {
        self.state.lock().mode = mode;
        self.changed.send_replace(());
    }

    /// Puts an object.
    pub(super) fn put(&self, plural: &'static str, namespace: &str, name: &str, content: &Value) {
        let mut state = self.state.lock();
        state.version += 1;
        let kind = if plural == "secrets" { "Secret" } else { "ConfigMap" };
        let mut object = json!({
            "apiVersion": "v1",
            "kind": kind,
            "metadata": {
                "namespace": namespace, "name": name, "uid": name, "resourceVersion": state.version.to_string(),
                "labels": { "app": "web" },
            },
        });
        object.as_object_mut().unwrap().extend(content.as_object().unwrap().clone());
        state.objects.entry(plural).or_default().insert((namespace.to_owned(), name.to_owned()), object);
        drop(state);
        self.changed.send_replace(());
    }

    async fn answer(&self, request: Request) -> Response {
        let (head, body) = request.into_parts();
        let body: Value =
            serde_json::from_slice(&axum::body::to_bytes(body, 1 << 20).await.unwrap()).unwrap_or_default();
        let changes = self.changed.subscribe();
        let state = self.state.lock();
        let authorization = head.headers.get("authorization").and_then(|value| value.to_str().ok());
        if authorization != Some(&*format!("Bearer {}", state.token)) {
            return failure(401);
        }
        if let Mode::Failing(code) = state.mode {
            return failure(code);
        }
        let query = head.uri.query().unwrap_or_default();
        let plural = head.uri.path().strip_prefix("/api/v1/").and_then(|name| state.objects.get_key_value(name));
        match plural {
            _ if head.uri.path().ends_with("/tokenreviews") => success(&state.review(&body)),
            None => failure(404),
            // As of an API server without this feature.
            Some(_) if query.contains("sendInitialEvents") => failure(422),
            Some((plural, _)) if query.contains("watch=") => {
                let from = query.split('&').find_map(|part| part.strip_prefix("resourceVersion="));
                let from = from.and_then(|from| from.parse().ok()).unwrap_or(0);
                self.watch(plural, from, changes)
            }
            Some((plural, objects)) => success(&state.list(plural, objects.values())),
        }
    }

    fn watch(&self, plural: &'static str, mut sent: u64, mut changes: watch::Receiver<()>) -> Response {
        let (sender, lines) = mpsc::channel(16);
        let this = self.clone();
        tokio::spawn(async move {
            loop {
                let news: Vec<(u64, Value)> = {
                    let state = this.state.lock();
                    let version = |object: &Value| object["metadata"]["resourceVersion"].as_str()?.parse().ok();
                    let objects = state.objects[plural].values();
                    let numbered = objects.map(|object| (version(object).unwrap(), object));
                    let mut news: Vec<_> = numbered
                        .filter(|(version, _)| *version > sent)
                        .map(|(version, object)| (version, state.shown(object)))
                        .collect();
                    news.sort_by_key(|(version, _)| *version);
                    if let Mode::Failing(_) = state.mode {
                        return;
                    }
                    news
                };
                for (version, object) in news {
                    sent = version;
                    let line = json!({ "type": "MODIFIED", "object": object }).to_string() + "\n";
                    if sender.send(line).await.is_err() {
                        return;
                    }
                }
                if changes.changed().await.is_err() {
                    return;
                }
            }
        });
        let lines = ReceiverStream::new(lines).map(|line| Ok::<_, Infallible>(Bytes::from(line)));
        Response::new(Body::from_stream(lines))
    }
}

// === impl State ===

impl State {
    fn list<'a>(&self, plural: &str, objects: impl Iterator<Item = &'a Value>) -> Value {
        let kind = if plural == "secrets" { "SecretList" } else { "ConfigMapList" };
        let items: Vec<Value> = objects.map(|object| self.shown(object)).collect();
        let metadata = json!({ "resourceVersion": self.version.to_string() });
        json!({ "apiVersion": "v1", "kind": kind, "metadata": metadata, "items": items })
    }

    /// Returns an object, in a malformed answer with its content where metadata and labels are expected.
    fn shown(&self, object: &Value) -> Value {
        let mut shown = object.clone();
        if self.mode == Mode::Malformed {
            let content = object.get("data").unwrap_or_default()["key"].clone();
            match self.version % 3 {
                0 => shown["metadata"] = content,
                1 => shown["metadata"]["labels"] = content,
                _ => shown["metadata"]["labels"]["app"] = json!([content]),
            }
        }
        shown
    }

    fn review(&self, review: &Value) -> Value {
        let token = review["spec"]["token"].as_str().unwrap_or_default();
        let status = match (self.mode, self.users.get(token)) {
            // It repeats the token in a wrong place.
            (Mode::Malformed, _) => json!(token),
            (_, Some(user)) => json!({
                "authenticated": true, "user": { "username": user }, "audiences": review["spec"]["audiences"],
            }),
            (_, None) => json!({ "authenticated": false, "error": format!("unknown token {token}") }),
        };
        json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": review["spec"], "status": status })
    }
}

fn success(body: &Value) -> Response {
    let mut response = Response::new(Body::from(body.to_string()));
    response.headers_mut().insert("content-type", "application/json".parse().unwrap());
    response
}

fn failure(code: u16) -> Response {
    let status = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "code": code, "message": "not now", "reason": "Unknown",
    });
    let mut response = success(&status);
    *response.status_mut() = code.try_into().unwrap();
    response
}
