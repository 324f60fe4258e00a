//! Clients of the server: two that stay, two that leave after every few events and resume, and one that lists. One of each two
//! receives whole bodies, the other a part of them, and changes of that part alone.
//!
//! Each applies what it receives to a state, by the rules of the contract alone.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    fmt::Write,
    sync::Arc,
    time::Duration,
};

use http_body_util::BodyExt;
use informerd::{
    grpc::Routes,
    proto::pb::{self, EventType},
};
use parking_lot::Mutex;
use prost::Message;
use serde_json::{Map, Value};
use tokio::{sync::watch, task::JoinSet};
use tower::Service;

use super::upstream::Key;
use crate::checker::client::{framed, pieces, status};

/// Object as a client received it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) uid: String,
    pub(crate) version: String,
    pub(crate) body: Vec<u8>,
}

/// State of one client after everything that it received.
#[derive(Debug, Default)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts, not a state machine")]
pub(crate) struct View {
    pub(crate) objects: BTreeMap<Key, Held>,
    /// True if the initial events are complete.
    pub(crate) is_complete: bool,
    pub(crate) version: String,
    history: String,
    /// State of the upstream in the last bookmark.
    pub(crate) source: Option<pb::SyncState>,
    /// True if a stream is open.
    pub(crate) is_connected: bool,
    /// Number of ends of streams by reason.
    pub(crate) ends: BTreeMap<String, u64>,
    pub(crate) resumes: u64,
    pub(crate) events: u64,
    /// Number of changes that bookmarks count as suppressed.
    pub(crate) suppressed: u64,
    /// Objects that were DELETED by "the change itself".
    pub(crate) deleted: BTreeSet<Key>,
    /// First message that breaks the contract.
    pub(crate) wrong: Option<String>,
    /// True if the stream began with the initial events, so that every event must fit.
    is_exact: bool,
    /// True if it requests a part of each body.
    pub(crate) is_part: bool,
    /// Number of consecutive errors for a version that the server has not reached yet.
    too_large: u32,
    /// Last messages, each with the number of its repetitions, for the report.
    log: VecDeque<(String, u32)>,
}

/// Result of a list.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Listed {
    pub(crate) objects: BTreeMap<Key, Held>,
    pub(crate) version: String,
    pub(crate) source: i32,
}

/// Watching clients.
#[derive(Debug)]
pub(crate) struct Clients {
    server: watch::Sender<Option<Routes>>,
    views: Vec<(&'static str, Arc<Mutex<View>>)>,
    _tasks: JoinSet<()>,
}

const RETRY: Duration = Duration::from_millis(50);
const RESOURCE: &str = "things";

/// Fields of the bodies that a part has, each with the field of the map there that it has alone.
const PART: [(&str, Option<&str>); 4] =
    [("metadata", Some("labels")), ("spec", Some("color")), ("half", None), ("restored", None)];

// === impl Clients ===

impl Clients {
    /// Returns clients without a server.
    pub(crate) fn new(hop: usize) -> Self {
        let (server, servers) = watch::channel(None);
        let mut tasks = JoinSet::new();
        let clients = [
            ("the client that stays", None, false),
            ("the client that hops", Some(hop), false),
            ("the client of a part that stays", None, true),
            ("the client of a part that hops", Some(hop), true),
        ];
        let views = clients.map(|(name, hop, is_part)| {
            let view = Arc::new(Mutex::new(View { is_part, ..View::default() }));
            tasks.spawn(follow(servers.clone(), Arc::clone(&view), hop));
            (name, view)
        });
        Self { server, views: views.into(), _tasks: tasks }
    }

    /// Sets the server from now on; `None` while there is none.
    pub(crate) fn go_to(&self, server: Option<Routes>) {
        self.server.send_replace(server);
    }

    /// Discards all versions, as a client must whose version may be of a rewritten history.
    pub(crate) fn forget(&self) {
        for (_, view) in &self.views {
            view.lock().reset();
        }
    }

    pub(crate) fn views(&self) -> &[(&'static str, Arc<Mutex<View>>)] {
        &self.views
    }
}

async fn follow(mut servers: watch::Receiver<Option<Routes>>, view: Arc<Mutex<View>>, hop: Option<usize>) {
    let mut patience = hop;
    loop {
        let server = servers.borrow_and_update().clone();
        let Some(mut routes) = server else {
            if servers.changed().await.is_err() {
                return;
            }
            continue;
        };
        let before = view.lock().version.clone();
        let left = tokio::select! {
            _ = servers.changed() => false,
            left = session(&mut routes, &view, patience) => left,
        };
        let after = {
            let mut view = view.lock();
            view.is_connected = false;
            view.version.clone()
        };
        // A client that always left inside a batch would never get to its end.
        patience = if left && before == after { patience.map(|events| events * 2) } else { hop };
        if !left {
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Runs one stream. Returns true if the client left after `patience` events.
async fn session(routes: &mut Routes, view: &Mutex<View>, patience: Option<usize>) -> bool {
    let request = view.lock().begin();
    let request = http::Request::post("/informerd.v1.InformerService/Watch")
        .header("content-type", "application/grpc")
        .body(framed(&request.encode_to_vec()));
    let Ok(response) = routes.call(request.unwrap()).await;
    if let Some(status) = status(response.headers()) {
        view.lock().end(&status.reason);
        return false;
    }
    view.lock().is_connected = true;
    let mut body = std::pin::pin!(response.into_body());
    let mut left = patience.unwrap_or(usize::MAX);
    while let Some(frame) = body.frame().await {
        let frame = match frame {
            Ok(frame) => frame,
            Err(error) => {
                view.lock().end(&format!("broken: {error}"));
                return false;
            }
        };
        match frame.into_data() {
            Ok(data) => {
                for piece in pieces(data).unwrap() {
                    let message = pb::WatchResponse::decode(piece).unwrap();
                    let is_event = message.object.is_some();
                    view.lock().take(message);
                    left -= usize::from(is_event);
                    if left == 0 {
                        return true;
                    }
                }
            }
            Err(frame) => {
                let status = frame.into_trailers().ok().and_then(|trailers| status(&trailers));
                view.lock().end(status.as_ref().map_or("", |status| &status.reason));
                return false;
            }
        }
    }
    view.lock().end("no status");
    false
}

// === impl View ===

impl View {
    fn reset(&mut self) {
        self.objects.clear();
        self.version.clear();
        self.history.clear();
        (self.is_complete, self.too_large) = (false, 0);
    }

    fn begin(&mut self) -> pb::WatchRequest {
        let is_resumed = self.is_complete && !self.version.is_empty();
        if !is_resumed {
            self.reset();
        }
        self.resumes += u64::from(is_resumed);
        self.is_exact = !is_resumed;
        self.note(if is_resumed { format!("resume after {}", self.version) } else { "begin".to_owned() });
        let initial_events = if is_resumed { pb::InitialEvents::Unspecified } else { pb::InitialEvents::Send };
        pb::WatchRequest {
            resource: RESOURCE.to_owned(),
            resource_version: self.version.clone(),
            initial_events: initial_events.into(),
            history: self.history.clone(),
            format: pb::PayloadFormat::Raw.into(),
            view: self.is_part.then(|| pb::View { fields: fields(), only_if_changed: true, ..Default::default() }),
            ..Default::default()
        }
    }

    fn end(&mut self, reason: &str) {
        self.note(format!("end {reason}"));
        *self.ends.entry(reason.to_owned()).or_default() += 1;
        self.too_large = if reason == "RESOURCE_VERSION_TOO_LARGE" { self.too_large + 1 } else { 0 };
        if matches!(reason, "HISTORY_CHANGED" | "RESOURCE_VERSION_EXPIRED") || self.too_large > 2 {
            self.reset();
        }
    }

    fn note(&mut self, text: String) {
        if let Some((_, times)) = self.log.back_mut().filter(|(last, _)| *last == text) {
            *times += 1;
            return;
        }
        self.log.push_back((text, 1));
        if self.log.len() > 40 {
            self.log.pop_front();
        }
    }

    /// Returns the last messages.
    pub(crate) fn log(&self) -> String {
        let times = |times: &u32| if *times > 1 { format!(" ({times} times)") } else { String::new() };
        let lines: Vec<String> = self.log.iter().map(|(line, count)| format!("\n    {line}{}", times(count))).collect();
        lines.concat()
    }

    fn break_off(&mut self, why: String) {
        self.note(format!("wrong: {why}"));
        self.wrong.get_or_insert(why);
    }

    /// Returns an object as the client holds it: of a part the values alone, and not the version, which may be an older one.
    fn held(&self, object: pb::Object) -> (Key, Held) {
        let (key, held) = if self.is_part && object.body.is_none() {
            held(pb::Object { body: Some(pb::object::Body::Raw(Vec::new().into())), ..object })
        } else {
            held(object)
        };
        let values = serde_json::from_slice::<Value>(&held.body).ok().filter(|_| self.is_part);
        (key, Held { body: values.map_or(held.body, |values| serde_json::to_vec(&values).unwrap()), ..held })
    }

    fn take(&mut self, message: pb::WatchResponse) {
        let event_type = message.r#type();
        let version = &message.resource_version;
        if !version.is_empty() {
            if number(version) < number(&self.version) && self.is_complete {
                self.break_off(format!("the version {version} after {}", self.version));
            }
            self.version.clone_from(version);
        }
        let mut text = format!("{} @{version}", event_type.as_str_name().trim_start_matches("EVENT_TYPE_"));
        if let Some(bookmark) = &message.bookmark {
            self.source = Some(bookmark.source());
            self.history.clone_from(&bookmark.history);
            self.is_complete |= bookmark.initial_events_end;
            self.suppressed += bookmark.suppressed;
            write!(text, " {:?} {}", bookmark.source(), bookmark.history).unwrap();
        }
        // A relist repeats what it has changed: a client may have received a state in between.
        let (cause, is_repeated) = (message.cause(), self.is_part && message.relisted);
        let Some(object) = message.object else { return self.note(text) };
        self.events += 1;
        let (namespace, name, uid, at) = (&object.namespace, &object.name, &object.uid, &object.resource_version);
        write!(text, " {namespace}/{name} {uid} at {at}").unwrap();
        self.note(text);
        if object.media_type == "application/json" && event_type != EventType::Deleted {
            let is_json = match &object.body {
                Some(pb::object::Body::Raw(body)) => is_json(body),
                // Of what is not a map there is no part.
                None => self.is_part,
                Some(pb::object::Body::Struct(_)) => false,
            };
            if !is_json {
                self.break_off(format!("{}/{} as application/json, which it is not", object.namespace, object.name));
            }
        }
        let (key, held) = self.held(object);
        let before = self.objects.get(&key);
        let is_another = |before: &Held| if self.is_part { before.body != held.body } else { *before != held };
        let fits = match event_type {
            EventType::Added => before.is_none(),
            EventType::Modified => {
                before.is_some_and(|before| (is_another(before) || is_repeated) && before.uid == held.uid)
            }
            EventType::Deleted => before.is_some_and(|before| before.uid == held.uid),
            _ => false,
        };
        if !fits && self.is_exact {
            self.break_off(format!("{event_type:?} of {key:?} {held:?} after {before:?}"));
        }
        match event_type {
            EventType::Deleted => {
                self.objects.remove(&key);
                if cause == pb::Cause::Unspecified {
                    self.deleted.insert(key);
                }
            }
            _ => drop(self.objects.insert(key, held)),
        }
    }
}

fn held(object: pb::Object) -> (Key, Held) {
    let body = match object.body {
        Some(pb::object::Body::Raw(body)) => body.to_vec(),
        other => format!("{other:?}").into_bytes(),
    };
    ((object.namespace, object.name), Held { uid: object.uid, version: object.resource_version, body })
}

/// Returns the fields of a part as paths.
fn fields() -> Vec<String> {
    let paths = PART.iter().map(|(outer, inner)| inner.map_or((*outer).to_owned(), |inner| format!("{outer}.{inner}")));
    paths.collect()
}

/// Returns a part of a body; empty for one that is not a map.
pub(crate) fn part(body: &[u8]) -> Vec<u8> {
    let Ok(Value::Object(body)) = serde_json::from_slice(body) else { return Vec::new() };
    let mut kept = Map::new();
    for (outer, inner) in PART {
        match (body.get(outer), inner) {
            (Some(value), None) => drop(kept.insert(outer.to_owned(), value.clone())),
            (Some(Value::Object(map)), Some(inner)) => {
                let of_it = map.get_key_value(inner).map(|(key, value)| (key.clone(), value.clone()));
                kept.insert(outer.to_owned(), Value::Object(of_it.into_iter().collect()));
            }
            (Some(_) | None, _) => {}
        }
    }
    serde_json::to_vec(&kept).unwrap()
}

fn is_json(body: &[u8]) -> bool {
    std::str::from_utf8(body).is_ok_and(|text| serde_json::from_str::<serde::de::IgnoredAny>(text).is_ok())
}

/// Returns the number of a version, without the lineage before it.
fn number(version: &str) -> u128 {
    version.rsplit('.').next().and_then(|number| number.parse().ok()).unwrap_or_default()
}

/// Lists all objects.
///
/// # Errors
///
/// Returns the reason.
pub(crate) async fn list(routes: &mut Routes, page_size: u32) -> Result<Listed, String> {
    let mut listed = Listed::default();
    let mut page_token = String::new();
    loop {
        let format = pb::PayloadFormat::Raw.into();
        let resource = RESOURCE.to_owned();
        let message = pb::ListRequest { resource, page_size, page_token, format, ..Default::default() };
        let request = http::Request::post("/informerd.v1.InformerService/List")
            .header("content-type", "application/grpc")
            .header("grpc-timeout", "200m");
        let Ok(response) = routes.call(request.body(framed(&message.encode_to_vec())).unwrap()).await;
        if let Some(status) = status(response.headers()) {
            return Err(status.reason);
        }
        let mut body = std::pin::pin!(response.into_body());
        page_token = String::new();
        while let Some(frame) = body.frame().await {
            match frame.map_err(|error| error.to_string())?.into_data() {
                Ok(data) => {
                    for piece in pieces(data)? {
                        let part = pb::ListResponse::decode(piece).map_err(|error| error.to_string())?;
                        listed.objects.extend(part.objects.into_iter().map(held));
                        if !part.resource_version.is_empty() {
                            (listed.version, listed.source) = (part.resource_version, part.source);
                        }
                        if !part.next_page_token.is_empty() {
                            page_token = part.next_page_token;
                        }
                    }
                }
                Err(frame) => {
                    let status = frame.into_trailers().ok().and_then(|trailers| status(&trailers));
                    if let Some(status) = status.filter(|status| status.code != 0) {
                        return Err(status.reason);
                    }
                }
            }
        }
        if page_token.is_empty() {
            return Ok(listed);
        }
    }
}
