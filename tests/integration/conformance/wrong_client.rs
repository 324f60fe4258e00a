//! Simple client that breaks one rule on demand, as clients do that are written in an hour.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::{StreamExt, stream::BoxStream};
use informerd::{
    client::{Client, ClientError, ServerAddress},
    proto::pb::{self, informer_service_client::InformerServiceClient},
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::{
    sync::mpsc::{UnboundedReceiver, UnboundedSender},
    task::JoinHandle,
};
use tonic::{Code, Status};

/// Rule that the client breaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// Resumes without the history.
    IgnoresHistory,
    /// Applies each event at once.
    AppliesHalfBatches,
    /// Takes another version for another object in a list.
    ComparesVersions,
    /// Ends with its first stream.
    NeverReconnects,
    /// Begins with an empty store when it lists again.
    ForgetsTheState,
    /// Waits for a message for ever.
    TrustsSilence,
    /// Resumes over the connection of a server that drains.
    KeepsTheConnection,
    /// Takes another uid for another state of the object.
    IgnoresUids,
    /// Reads on after a DROPPED.
    SkipsHoles,
    /// Reconnects when the source is STALE.
    TakesStaleForDead,
    /// Gives up after a refusal whose reason it does not know.
    ReadsReasonsOnly,
    /// Requests batches of initial events, and reads single ones.
    IgnoresBatches,
}

type Messages = BoxStream<'static, Result<pb::WatchResponse, Status>>;

struct State {
    fault: Fault,
    lines: UnboundedSender<Value>,
    objects: BTreeMap<(String, String), pb::Object>,
    position: String,
    version: String,
    history: String,
    listed: Option<BTreeMap<(String, String), pb::Object>>,
    pending: Vec<(pb::EventType, pb::Cause, pb::Object)>,
    has_synced: bool,
    is_current: bool,
    is_stale: bool,
    source_seen_at: Value,
    received_at: Option<Instant>,
    /// Silence after which it is not healthy.
    limit: Duration,
}

#[derive(PartialEq)]
enum Next {
    Continue,
    /// Resume over the same connection, or another.
    Resume {
        moves: bool,
    },
    List,
}

/// Answers the commands of the suite, until they end.
pub(crate) async fn run(fault: Fault, mut commands: UnboundedReceiver<String>, lines: UnboundedSender<Value>) {
    let state = State {
        fault,
        lines: lines.clone(),
        objects: BTreeMap::new(),
        position: String::new(),
        version: String::new(),
        history: String::new(),
        listed: None,
        pending: Vec::new(),
        has_synced: false,
        is_current: false,
        is_stale: false,
        source_seen_at: Value::Null,
        received_at: None,
        limit: Duration::ZERO,
    };
    let (state, mut following) = (Arc::new(Mutex::new(state)), None::<JoinHandle<()>>);
    while let Some(command) = commands.recv().await {
        let command: Value = serde_json::from_str(&command).unwrap();
        let reply = match command["do"].as_str() {
            Some("start") => {
                following = Some(tokio::spawn(follow(fault, command, Arc::clone(&state))));
                continue;
            }
            Some("state") => state.lock().reply(&command),
            _ => {
                if let Some(following) = following.take() {
                    following.abort();
                    drop(following.await);
                }
                json!({ "reply": command["id"] })
            }
        };
        drop(lines.send(reply));
    }
}

async fn follow(fault: Fault, start: Value, state: Arc<Mutex<State>>) {
    let address: ServerAddress = start["target"].as_str().unwrap().parse().unwrap();
    let connect = || Client::connect_lazy(&address).unwrap();
    let interval = Duration::from_millis(start["bookmark_interval_ms"].as_u64().unwrap());
    let silence = if fault == Fault::TrustsSilence { Duration::from_secs(3600) } else { interval * 3 };
    state.lock().limit = silence;
    let mut client = connect();
    loop {
        let mut next = Next::Resume { moves: false };
        let request = state.lock().request(&start, interval);
        let opened = if fault == Fault::IgnoresBatches {
            open_unread(&address, request).await
        } else {
            client.open(request).await.map(StreamExt::boxed)
        };
        match opened {
            Ok(mut stream) => {
                state.lock().begin();
                next = loop {
                    let message = match tokio::time::timeout(silence, stream.next()).await {
                        Ok(Some(Ok(message))) => message,
                        Ok(_) => break Next::Resume { moves: false },
                        Err(_) => break Next::Resume { moves: true },
                    };
                    let next = state.lock().apply(message);
                    if next != Next::Continue {
                        break next;
                    }
                };
            }
            Err(error) if fault == Fault::ReadsReasonsOnly && error.reason() != Some("RESOURCE_VERSION_EXPIRED") => {
                return;
            }
            Err(error) if error.code() == Code::OutOfRange => next = Next::List,
            Err(_) => {}
        }
        state.lock().is_current = false;
        if fault == Fault::NeverReconnects {
            return;
        }
        match next {
            Next::List => state.lock().forget(),
            Next::Resume { moves: true } if fault != Fault::KeepsTheConnection => client = connect(),
            _ => {}
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Opens a Watch whose batches are not taken apart.
async fn open_unread(address: &ServerAddress, request: pb::WatchRequest) -> Result<Messages, ClientError> {
    let request = pb::WatchRequest { batch_initial_events: true, ..request };
    let mut service = InformerServiceClient::connect(format!("http://{address}")).await.unwrap();
    Ok(service.watch(request).await.unwrap().into_inner().boxed())
}

// === impl State ===

impl State {
    fn request(&self, start: &Value, interval: Duration) -> pb::WatchRequest {
        let policy = format!("FULL_CHANNEL_POLICY_{}", start["policy"].as_str().unwrap());
        let policy = pb::FullChannelPolicy::from_str_name(&policy);
        let history = if self.fault == Fault::IgnoresHistory { String::new() } else { self.history.clone() };
        pb::WatchRequest {
            resource: start["resource"].as_str().unwrap().to_owned(),
            resource_version: self.position.clone(),
            history,
            format: pb::PayloadFormat::Raw.into(),
            bookmark_interval: prost_types::Duration::try_from(interval).ok(),
            queue: policy.map(|policy| pb::QueueOptions { policy: policy.into(), length: 0 }),
            ..pb::WatchRequest::default()
        }
    }

    fn begin(&mut self) {
        self.pending.clear();
        self.listed = self.position.is_empty().then(BTreeMap::new);
    }

    fn forget(&mut self) {
        (self.position, self.history) = (String::new(), String::new());
        if self.fault == Fault::ForgetsTheState {
            self.objects.clear();
        }
    }

    fn apply(&mut self, message: pb::WatchResponse) -> Next {
        self.received_at = Some(Instant::now());
        let (event_type, cause) = (message.r#type(), message.cause());
        match event_type {
            pb::EventType::Bookmark => return self.bookmark(message.bookmark.unwrap(), &message.resource_version),
            pb::EventType::Dropped if self.fault == Fault::SkipsHoles => self.advance(&message.resource_version),
            pb::EventType::Dropped => {
                self.advance(&message.dropped.unwrap().after_resource_version);
                return Next::Resume { moves: false };
            }
            pb::EventType::Error if message.error.unwrap().code == Code::OutOfRange as i32 => return Next::List,
            pb::EventType::Error | pb::EventType::Unspecified => return Next::Resume { moves: false },
            pb::EventType::Added | pb::EventType::Modified | pb::EventType::Deleted => {
                let Some(object) = message.object else { return Next::Continue };
                if let Some(listed) = &mut self.listed {
                    listed.insert((object.namespace.clone(), object.name.clone()), object);
                    return Next::Continue;
                }
                self.pending.push((event_type, cause, object));
                if self.fault == Fault::AppliesHalfBatches {
                    self.complete();
                }
                self.advance(&message.resource_version);
            }
        }
        Next::Continue
    }

    fn bookmark(&mut self, bookmark: pb::Bookmark, version: &str) -> Next {
        if bookmark.initial_events_end {
            self.replace();
            version.clone_into(&mut self.position);
            version.clone_into(&mut self.version);
            if !std::mem::replace(&mut self.has_synced, true) {
                self.print(json!({ "event": "synced" }));
            }
        } else {
            self.advance(version);
        }
        self.is_stale = bookmark.source() == pb::SyncState::Stale;
        self.source_seen_at = json!(bookmark.source_seen_at.map(|at| at.to_string()));
        self.history = bookmark.history;
        self.is_current = true;
        if bookmark.draining || self.is_stale && self.fault == Fault::TakesStaleForDead {
            Next::Resume { moves: true }
        } else {
            Next::Continue
        }
    }

    fn advance(&mut self, version: &str) {
        if self.position != version {
            self.complete();
            version.clone_into(&mut self.position);
            version.clone_into(&mut self.version);
        }
    }

    fn complete(&mut self) {
        for (event_type, cause, object) in std::mem::take(&mut self.pending) {
            let key = (object.namespace.clone(), object.name.clone());
            if event_type != pb::EventType::Deleted {
                self.put(&object, false);
            } else if self.objects.remove(&key).is_some() {
                self.delete(&object, cause);
            }
        }
    }

    fn replace(&mut self) {
        let listed = self.listed.take().unwrap();
        let gone: Vec<_> = self.objects.keys().filter(|key| !listed.contains_key(key)).cloned().collect();
        for key in gone {
            let last = self.objects.remove(&key).unwrap();
            self.delete(&last, pb::Cause::Inferred);
        }
        for object in listed.into_values() {
            self.put(&object, true);
        }
    }

    fn put(&mut self, object: &pb::Object, is_listed: bool) {
        let key = (object.namespace.clone(), object.name.clone());
        let Some(old) = self.objects.insert(key, object.clone()) else {
            return self.print(json!({ "event": "added", "object": object_json(object) }));
        };
        let compares_versions = is_listed && self.fault == Fault::ComparesVersions;
        if old.uid != object.uid && self.fault != Fault::IgnoresUids {
            self.delete(&old, pb::Cause::Inferred);
            self.print(json!({ "event": "added", "object": object_json(object) }));
        } else if old.body != object.body
            || old.labels != object.labels
            || (compares_versions && old.resource_version != object.resource_version)
        {
            self.print(json!({ "event": "updated", "old": object_json(&old), "object": object_json(object) }));
        }
    }

    fn delete(&self, last: &pb::Object, cause: pb::Cause) {
        let cause = cause.as_str_name().trim_start_matches("CAUSE_").replace("UNSPECIFIED", "DELETED");
        self.print(json!({ "event": "deleted", "object": object_json(last), "cause": cause }));
    }

    fn print(&self, line: Value) {
        drop(self.lines.send(line));
    }

    fn reply(&self, command: &Value) -> Value {
        let age = self.received_at.map(|at| at.elapsed());
        let is_silent = age.is_none_or(|age| age >= self.limit);
        let is_healthy = self.is_current && !is_silent;
        let state = match (is_silent, self.is_current, self.is_stale) {
            (true, ..) => "DISCONNECTED",
            (false, false, _) => "SYNCING",
            (false, true, true) => "STALE",
            (false, true, false) => "LIVE",
        };
        let mut by_app = BTreeMap::<&str, Vec<String>>::new();
        for object in self.objects.values() {
            let key = format!("{}/{}", object.namespace, object.name);
            by_app.entry(&object.labels["app"]).or_default().push(key);
        }
        json!({
            "reply": command["id"],
            "version": self.version,
            "state": state,
            "healthy": is_healthy,
            "last_message_age_ms": age.map(|age| age.as_millis() as u64),
            "source_seen_at": self.source_seen_at,
            "objects": self.objects.values().map(object_json).collect::<Vec<_>>(),
            "by_app": by_app,
        })
    }
}

fn object_json(object: &pb::Object) -> Value {
    let body = match &object.body {
        Some(pb::object::Body::Raw(bytes)) => serde_json::from_slice(bytes).unwrap_or_default(),
        _ => Value::Null,
    };
    json!({
        "namespace": object.namespace, "name": object.name, "uid": object.uid, "version": object.resource_version,
        "labels": object.labels, "body": body,
    })
}
