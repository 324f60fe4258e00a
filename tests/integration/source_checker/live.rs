//! Real source and its server in this process, in real time, with clients that record what they observe. It serves the sources
//! that read files and pipes, which cannot use a paused clock.

use std::{
    convert::Infallible,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Buf;
use http_body_util::BodyExt;
use informerd::{
    cache::{BackoffConfig, ListVersion, ListerWatcher, ReflectorConfig, SourceHealth},
    grpc::{self, Routes},
    proto::pb::{self, informer_service_client::InformerServiceClient},
    transport::Chunk,
};
use parking_lot::Mutex;
use tokio::task::JoinSet;
use tonic::{Code, body::Body};
use tower::{ServiceExt, util::BoxCloneService};

use super::{
    parallel::Counts,
    served::Served,
    timeline::{Objects, Seen, Timeline},
};

/// Served resource and its clients.
pub(crate) struct Live {
    client: Client,
    /// The same for the observers.
    watched: Arc<Mutex<Client>>,
    served: Option<Served>,
    observers: Vec<Arc<Observer>>,
    /// Observations of the client that lists.
    listed: Vec<Seen>,
    /// Number of contacts with the source during which the truth must hold.
    signs: u64,
    deadline: Duration,
    _tasks: JoinSet<()>,
}

/// Watching client, and what it has observed.
#[derive(Debug, Default)]
struct Observer {
    log: Mutex<Log>,
    resumes: AtomicU64,
    /// Watches that ended with UNAVAILABLE since the last restart of the server.
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Log {
    seen: Vec<Seen>,
    state: Objects,
    /// State of the upstream in the last bookmark.
    source: Option<pb::SyncState>,
    expired: u64,
    inferred: u64,
    deleted: u64,
    /// End of a watch for a reason that these sources do not have.
    violation: Option<String>,
}

/// Condition of a quiet point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Expected {
    /// The resource is SYNCED, and every client has the truth.
    Truth,
    /// The resource is STALE, and every client has that state.
    Stale,
    /// The same, and every client has the truth.
    Kept,
    /// The resource is STALE, because it may lack objects. Every client has been refused since the restart, and has the truth.
    Incomplete,
    /// There is no state yet.
    Syncing,
}

type Client = InformerServiceClient<BoxCloneService<http::Request<Body>, http::Response<Body>, Infallible>>;

/// Longest time that any wait may take.
const DEADLINE: Duration = Duration::from_secs(20);

/// Interval of bookmarks that a client requests.
const BOOKMARK_INTERVAL: Duration = Duration::from_millis(110);

/// Interval between two checks of an awaited condition.
const LOOK: Duration = Duration::from_millis(5);

// === impl Live ===

impl Live {
    /// Serves a source that reports contact by itself, or, with `signs` 0, one that does not. Its intervals are longer than the
    /// shortest ones by the given factor. Must be called on the runtime of the server.
    pub(crate) fn start<S: ListerWatcher + 'static>(
        source: S,
        health: SourceHealth,
        signs: u64,
        seed: u64,
        slower: u32,
        state_directory: &Path,
    ) -> Self {
        let served = Self::serve(source, health, state_directory);
        let client = in_process(served.routes.clone());
        let watched = Arc::new(Mutex::new(client.clone()));
        let mut tasks = JoinSet::new();
        let deadline = slower * DEADLINE;
        let observers: Vec<Arc<Observer>> = (0..2).map(|_| Arc::default()).collect();
        for (at, observer) in observers.iter().enumerate() {
            let hops = (at > 0).then_some(seed | 1);
            tasks.spawn(observe(Arc::clone(&watched), Arc::clone(observer), hops));
        }
        Self { client, watched, served: Some(served), observers, listed: Vec::new(), signs, deadline, _tasks: tasks }
    }

    /// Serves a source in place of the one before, as if the server was killed. Must be called on the runtime of the server.
    pub(crate) fn restart<S: ListerWatcher + 'static>(
        &mut self,
        source: S,
        health: SourceHealth,
        state_directory: &Path,
    ) {
        // It has locked the directory.
        drop(self.served.take());
        let served = Self::serve(source, health, state_directory);
        self.client = in_process(served.routes.clone());
        *self.watched.lock() = self.client.clone();
        for observer in &self.observers {
            observer.refused.store(0, Ordering::Relaxed);
        }
        self.served = Some(served);
    }

    /// Writes a snapshot for the next start.
    pub(crate) async fn save(&self) -> bool {
        match &self.served {
            Some(served) => served.save().await,
            None => false,
        }
    }

    fn serve<S: ListerWatcher + 'static>(source: S, health: SourceHealth, state_directory: &Path) -> Served {
        let (initial, max) = (Duration::from_millis(10), Duration::from_millis(50));
        let backoff = BackoffConfig { initial, max, ..BackoffConfig::default() };
        let config = ReflectorConfig { first_list: ListVersion::MostRecent, backoff, ..ReflectorConfig::default() };
        Served::start_with(source, health, state_directory, config)
    }

    /// Waits until the condition is met and holds for a few contacts with the source.
    pub(crate) async fn rest(&mut self, expected: Expected, truth: &Timeline) -> Result<(), String> {
        let (began, mut looks) = (Instant::now(), 0_u32);
        loop {
            let problem = match self.look(expected, truth).await {
                Err(problem) => problem,
                Ok(()) if expected != Expected::Truth || self.signs == 0 => return Ok(()),
                Ok(()) => {
                    let events =
                        || self.served.as_ref().map_or(0, |served| served.stats.events.load(Ordering::Relaxed));
                    let before = events();
                    while events() < before + self.signs && began.elapsed() < self.deadline {
                        tokio::time::sleep(LOOK).await;
                    }
                    match self.look(expected, truth).await {
                        Ok(()) => return Ok(()),
                        Err(problem) => problem,
                    }
                }
            };
            if let Some(violation) = self.violation() {
                return Err(violation);
            }
            // The observations may be wrong already; then there is no need to wait.
            looks += 1;
            if looks % 16 == 0 {
                self.verify(truth)?;
            }
            if began.elapsed() > self.deadline {
                return Err(format!("{expected:?} did not come within {:?}: {problem}", self.deadline));
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn look(&mut self, expected: Expected, truth: &Timeline) -> Result<(), String> {
        let resources = self.client.list_resources(pb::ListResourcesRequest {}).await;
        let resources = resources.map_err(|status| format!("ListResources: {status}"))?.into_inner().resources;
        let resource = resources.into_iter().next().ok_or("no resource")?;
        let (state, error) = (resource.state(), resource.last_error);
        let wanted = match expected {
            Expected::Syncing => pb::SyncState::Syncing,
            Expected::Stale | Expected::Kept | Expected::Incomplete => pb::SyncState::Stale,
            Expected::Truth => pb::SyncState::Synced,
        };
        if state != wanted {
            return Err(format!("the resource is {state:?} ({error})"));
        }
        if expected == Expected::Syncing {
            return Ok(());
        }
        if expected == Expected::Incomplete {
            for (at, observer) in self.observers.iter().enumerate() {
                let state = &observer.log.lock().state;
                if observer.refused.load(Ordering::Relaxed) < 2 || state != truth.current() {
                    return Err(format!("client {at}, incomplete: {} ({error})", difference(state, truth.current())));
                }
            }
            return Ok(());
        }
        let listed = self.list().await?;
        let mut wrong = None;
        let (has_truth, is_stale) = (expected != Expected::Stale, expected != Expected::Truth);
        if has_truth && listed != *truth.current() {
            wrong = Some(format!("List: {}", difference(&listed, truth.current())));
        }
        self.listed.push(Seen::All(listed));
        for (at, observer) in self.observers.iter().enumerate() {
            let log = observer.log.lock();
            if has_truth && log.state != *truth.current() {
                let difference = difference(&log.state, truth.current());
                wrong.get_or_insert(format!("client {at}, {state:?}: {difference} ({error})"));
            }
            if is_stale && log.source != Some(pb::SyncState::Stale) {
                wrong.get_or_insert(format!("client {at} has {:?}", log.source));
            }
        }
        wrong.map_or(Ok(()), Err)
    }

    async fn list(&mut self) -> Result<Objects, String> {
        let request = pb::ListRequest {
            resource: "things".to_owned(),
            format: pb::PayloadFormat::Raw.into(),
            ..pb::ListRequest::default()
        };
        let failed = |status: tonic::Status| format!("List: {status}");
        let mut chunks = self.client.list(request).await.map_err(failed)?.into_inner();
        let mut objects = Objects::new();
        while let Some(chunk) = chunks.message().await.map_err(failed)? {
            objects.extend(chunk.objects.iter().map(|object| (object.name.clone(), body(object))));
        }
        Ok(objects)
    }

    fn violation(&self) -> Option<String> {
        self.observers.iter().find_map(|observer| observer.log.lock().violation.clone())
    }

    /// Verifies all observations.
    pub(crate) fn verify(&self, truth: &Timeline) -> Result<(), String> {
        if let Some(violation) = self.violation() {
            return Err(violation);
        }
        truth.verify(&self.listed).map_err(|violation| format!("the client that lists: {violation}"))?;
        for (at, observer) in self.observers.iter().enumerate() {
            let seen = observer.log.lock().seen.clone();
            truth.verify(&seen).map_err(|violation| format!("client {at}: {violation}"))?;
        }
        Ok(())
    }

    /// Counts the observations.
    pub(crate) fn count(&self, counts: &mut Counts) {
        counts.add("list", self.listed.len() as u64);
        for observer in &self.observers {
            let log = observer.log.lock();
            counts.add("event", log.seen.len() as u64);
            counts.add("DELETED", log.deleted);
            counts.add("DELETED as inferred", log.inferred);
            counts.add("expired version", log.expired);
            counts.add("resume", observer.resumes.load(Ordering::Relaxed));
        }
    }
}

// === impl Log ===

impl Log {
    /// Applies one message. `initial` collects the initial events until they are complete.
    fn apply(&mut self, response: &pb::WatchResponse, initial: &mut Option<Objects>) {
        if let Some(bookmark) = &response.bookmark {
            self.source = Some(bookmark.source());
            if let Some(objects) = initial.take_if(|_| bookmark.initial_events_end) {
                self.state.clone_from(&objects);
                self.seen.push(Seen::All(objects));
            }
        }
        let Some(object) = &response.object else { return };
        let name = object.name.clone();
        if let Some(initial) = initial {
            initial.insert(name, body(object));
            return;
        }
        if response.r#type() == pb::EventType::Deleted {
            self.deleted += 1;
            self.inferred += u64::from(response.cause() == pb::Cause::Inferred);
            self.state.remove(&name);
            self.seen.push(Seen::NoObject(name));
        } else {
            self.state.insert(name.clone(), body(object));
            self.seen.push(Seen::Object(name, body(object)));
        }
    }
}

/// Watches until it is aborted. With `hops`, leaves after a few messages, also inside a batch, and resumes.
async fn observe(server: Arc<Mutex<Client>>, observer: Arc<Observer>, mut hops: Option<u64>) {
    let mut version = String::new();
    loop {
        let mut client = server.lock().clone();
        let request = pb::WatchRequest {
            resource: "things".to_owned(),
            format: pb::PayloadFormat::Raw.into(),
            resource_version: version.clone(),
            bookmark_interval: prost_types::Duration::try_from(BOOKMARK_INTERVAL).ok(),
            ..pb::WatchRequest::default()
        };
        let mut left = hops.as_mut().map_or(u64::MAX, |random| 1 + next_random(random) % 12);
        let mut initial = version.is_empty().then(Objects::new);
        if initial.is_none() {
            observer.resumes.fetch_add(1, Ordering::Relaxed);
        }
        let end = match client.watch(request).await {
            Err(status) => Some(status),
            Ok(watch) => {
                let mut watch = watch.into_inner();
                loop {
                    match watch.message().await {
                        Ok(Some(response)) => {
                            observer.log.lock().apply(&response, &mut initial);
                            if !response.resource_version.is_empty() {
                                version = response.resource_version;
                            }
                            // The client reads initial events to their end, because it cannot resume before.
                            left -= u64::from(initial.is_none());
                            if left == 0 {
                                break None;
                            }
                        }
                        Ok(None) => break Some(tonic::Status::ok("")),
                        Err(status) => break Some(status),
                    }
                }
            }
        };
        let Some(status) = end else { continue };
        match status.code() {
            // Not synced yet: resume.
            Code::Unavailable => drop(observer.refused.fetch_add(1, Ordering::Relaxed)),
            Code::OutOfRange => {
                observer.log.lock().expired += 1;
                version.clear();
            }
            _ => {
                let violation = format!("a watch ended with {:?}: {}", status.code(), status.message());
                observer.log.lock().violation.get_or_insert(violation);
                version.clear();
            }
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// Sleeps, as a script says, without waiting for any condition.
#[allow(clippy::disallowed_methods, reason = "the pauses of a writer are a part of the history")]
pub(crate) fn pause(time: Duration) {
    std::thread::sleep(time);
}

/// Knuth's random number generator, which is good enough here.
fn next_random(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn in_process(routes: Routes) -> Client {
    let whole = |frame: http_body::Frame<Chunk>| frame.map_data(|mut data| data.copy_to_bytes(data.remaining()));
    let routes = ServiceExt::<http::Request<Body>>::map_response(routes, move |response| {
        response.map(|body: grpc::Body| Body::new(body.map_frame(whole)))
    });
    InformerServiceClient::new(routes.boxed_clone()).max_decoding_message_size(64 << 20)
}

fn body(object: &pb::Object) -> String {
    match &object.body {
        Some(pb::object::Body::Raw(bytes)) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("not raw: {other:?}"),
    }
}

/// Returns some of the objects in which two states differ.
fn difference(found: &Objects, truth: &Objects) -> String {
    let names = found.keys().chain(truth.keys()).collect::<std::collections::BTreeSet<_>>();
    let differing = names.into_iter().filter(|name| found.get(*name) != truth.get(*name));
    let differing: Vec<String> =
        differing.take(4).map(|name| format!("{name} is {:?} for {:?}", found.get(name), truth.get(name))).collect();
    differing.join(", ")
}
