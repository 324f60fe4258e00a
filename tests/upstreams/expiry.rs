//! Events on shared leases: the API server deletes hundreds of objects at one resourceVersion, and every connection on the way to
//! a client is cut inside that version.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use futures_util::future::try_join_all;
use http::Request;
use http_body_util::BodyExt;
use informerd::proto::pb::{self, FullChannelPolicy, informer_service_client::InformerServiceClient};
use kube::client::Body;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::task::JoinHandle;
use tonic::{Code, Status, transport::Channel};
use tonic_types::StatusExt;

use crate::{
    DEADLINE,
    apiserver::{ADMIN, ApiServer},
    gate::Gate,
    killable::KillableServer,
    selection::Selection,
    served::{Served, bodies},
    truth::{Changes, Truth},
};

/// Objects by namespace and name, with their resourceVersions.
type State = BTreeMap<String, i64>;
/// Names of the objects that were deleted at each resourceVersion.
type Deletions = BTreeMap<i64, BTreeSet<String>>;

/// Watch of the API itself, for the deletions that it reports.
struct Reported {
    expiry: Arc<Mutex<Expiry>>,
    reading: JoinHandle<()>,
}

#[derive(Debug, Default, Clone)]
struct Expiry {
    deletions: Deletions,
    /// Bytes of the deletions at each version, as the API sends them.
    bytes: BTreeMap<i64, usize>,
}

/// Client that resumes from the end of its last stream.
struct Resuming {
    folded: Arc<Mutex<Folded>>,
    running: JoinHandle<()>,
}

/// Sum of a client's streams.
#[derive(Debug, Default, Clone)]
struct Folded {
    state: State,
    deletions: Deletions,
    /// Version of the last message, to resume from.
    version: String,
    /// History of the last bookmark.
    history: String,
    leaves: usize,
    /// Reasons of the streams that ended with a version that could not be resumed from.
    refused: Vec<String>,
}

const ALL: &str = "/api/v1/events";
const EVENTS: usize = 600;
/// Age of the other Events at which the last ones are created: these expire later, and complete the version of the others.
const KEPT_AFTER: Duration = Duration::from_secs(17);
const KEPT: usize = 5;
/// Least number of deletions at one version that the test accepts. The API server takes a new lease once a second.
const AT_ONE_VERSION: usize = 50;
/// Bytes of informerd to a relay, and of a relay to a client: within what informerd receives before its own first cut.
const CUT_AFTER: usize = 2_000;

/// Longest time until everybody has the state. A relay may have backed off for up to a minute when its upstream begins to answer.
const AGREEMENT: Duration = Duration::from_secs(180);

#[allow(clippy::print_stdout, reason = "figures of the run")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn events_that_expire_at_one_version_leave_no_deleted_object_wherever_it_is_cut() {
    let apiserver = ApiServer::with(&["--event-ttl=20s"]).await;
    let gate = Gate::to(apiserver.address()).await;
    let reported = Reported::by(&apiserver).await;
    let source = json!({ "version": "v1", "plural": "events" });
    let mut served = KillableServer::kube_through(gate.port(), &apiserver, ADMIN, source.clone());
    served.synced().await;
    let killed_gate = Gate::to(apiserver.address()).await;
    let mut killed = KillableServer::kube_through(killed_gate.port(), &apiserver, ADMIN, source);
    killed.synced().await;
    let relay_of_killed = Served::relay_of(killed.address()).await;
    let stays = |address| vec![Resuming::start(&format!("http://{address}"), Selection::default(), false)];
    let of_killed = [killed.address(), relay_of_killed.address()].map(stays);
    let relay = Served::relay_of(served.address()).await;
    let to_relay = Gate::to(relay.address()).await;
    let urls = [format!("http://{}", served.address()), to_relay.url()];
    let mut clients = urls.each_ref().map(|url| Resuming::three(url));

    let created = Instant::now();
    apiserver.create_events("expires", EVENTS).await;
    println!("{EVENTS} Events within {:?}", created.elapsed());
    tokio::time::sleep(KEPT_AFTER.saturating_sub(created.elapsed())).await;
    apiserver.create_events("kept", KEPT).await;
    let before = apiserver.events().await;
    assert_eq!(before.len(), EVENTS + KEPT, "none has expired yet");
    everybody_agrees(&apiserver, &served, Some(&relay), &clients).await;
    let mut truth = Truth::new(0);
    truth.note(*before.values().max().unwrap(), Changes::new());
    everybody_agrees(&apiserver, &killed, Some(&relay_of_killed), &of_killed).await;
    killed.kept(truth.revision()).await;

    // The connection is frozen while they expire; it is then cut in the middle of the version with the most deletions.
    gate.freeze(true);
    killed_gate.freeze(true);
    let Expiry { deletions: expired, bytes } = reported.of(EVENTS).await;
    let at_one_version: Vec<usize> = expired.values().map(BTreeSet::len).collect();
    println!("deleted at one version, {:?} after the first was created: {at_one_version:?}", created.elapsed());
    assert!(*at_one_version.iter().max().unwrap() >= AT_ONE_VERSION, "{at_one_version:?}");
    let (version, length) = bytes.iter().max_by_key(|(_, length)| **length).unwrap();
    let before: usize = bytes.range(..version).map(|(_, length)| length).sum();
    gate.cut_after(before + length / 2);
    relay.gates[0].cut_after(CUT_AFTER);
    to_relay.cut_after(CUT_AFTER);
    killed_gate.cut_after(before + length / 2);
    gate.freeze(false);
    killed_gate.freeze(false);
    until("informerd is cut", || !gate.is_to_cut()).await;
    gate.refuse(true);
    until("the other informerd is cut", || !killed_gate.is_to_cut()).await;
    killed_gate.refuse(true);
    for client in [&clients[0][0], &of_killed[0][0], &of_killed[1][0]] {
        let sent = || client.folded().deletions.get(version).map_or(0, BTreeSet::len);
        until("a part of the version has been sent", || (1..expired[version].len()).contains(&sent())).await;
    }
    killed.kill();
    killed.restart();
    // While the API server refuses it, it serves its snapshot.
    let kept = killed.until("served", |resource| !resource.resource_version.is_empty()).await.resource_version;
    for (name, gate) in [("the relay", &relay.gates[0]), ("a client of the relay", &to_relay)] {
        until(&format!("{name} is cut"), || !gate.is_to_cut()).await;
    }
    for (clients, url) in clients.iter_mut().zip(&urls) {
        until("those who leave have left", || clients[1..].iter().all(|client| client.folded().leaves > 0)).await;
        let late = Resuming::start(url, Selection::default(), false);
        until("a late client has the state", || !late.folded().version.is_empty()).await;
        clients.push(late);
    }
    for gate in [&gate, &killed_gate] {
        gate.refuse(false);
        for bytes in [length / 4, length / 2] {
            gate.cut_after(bytes);
            until("informerd is cut again", || !gate.is_to_cut()).await;
        }
    }
    // Nothing completes the version at which the last ones expire: the API server sends no bookmarks for Events.
    let expired = reported.of(EVENTS + KEPT).await.deletions;
    everybody_agrees(&apiserver, &served, Some(&relay), &clients).await;
    for (at, client) in clients.iter().flat_map(|clients| clients[..3].iter().enumerate()) {
        assert_eq!(client.folded().deletions, expired, "client {at}: every deletion, at its version");
    }
    for (counter, expected) in [("reflector_lists", 1), ("cache_rewinds", 0), ("source_late_changes", 0)] {
        let counter = format!("{counter}_total");
        assert_eq!((served.count(&counter).await, relay.count(&counter).await), (expected, expected), "{counter}");
    }

    // Killed with all of a version that nothing has completed yet, too: it starts from before that, and its relay is ahead of it.
    // No client is behind the snapshot, so each can resume.
    served.kill();
    served.restart();
    served.synced().await;
    everybody_agrees(&apiserver, &served, Some(&relay), &clients).await;
    everybody_agrees(&apiserver, &killed, Some(&relay_of_killed), &of_killed).await;
    apiserver.create_events("last", 1).await;
    everybody_agrees(&apiserver, &served, Some(&relay), &clients).await;
    everybody_agrees(&apiserver, &killed, Some(&relay_of_killed), &of_killed).await;
    for counter in ["reflector_lists_total", "cache_rewinds_total", "source_late_changes_total"] {
        assert_eq!((served.count(counter).await, killed.count(counter).await), (0, 0), "{counter}");
    }
    let resumes = before == 0 && kept == truth.revision().to_string();
    few_lists(&relay, 2).await;
    few_lists(&relay_of_killed, if resumes { 1 } else { 2 }).await;
    let leaves: usize = clients.iter().flatten().map(|client| client.folded().leaves).sum();
    println!("{leaves} leaves, {} connections to the API server, in {:?}", gate.accepted(), created.elapsed());
}

/// Checks the lists of a relay whose informerd was killed. The origin's history begins at its snapshot. The relay resumes there
/// if no deletion was complete and the last change is not before that; otherwise it lists, unless a bookmark has advanced it to
/// the version of the snapshot. A list that the starting origin does not answer in time does not count.
async fn few_lists(relay: &Served, most: u64) {
    assert_eq!(relay.count("cache_rewinds_total").await, 0);
    let (asked, failed) =
        (relay.count("reflector_lists_total").await, relay.count("reflector_list_failures_total").await);
    assert!((1..=most).contains(&(asked - failed)), "{asked} lists of a relay, of which {failed} failed, for {most}");
}

// === impl ApiServer ===

impl ApiServer {
    async fn create_events(&self, prefix: &str, count: usize) {
        let path = "/api/v1/namespaces/a/events";
        let create = async |at: usize| {
            let metadata = json!({ "name": format!("{prefix}-{at}") });
            let event = json!({ "metadata": metadata, "involvedObject": { "namespace": "a" }, "reason": "Test" });
            self.ask("POST", path, Some(&event)).await
        };
        let each = (0..count).map(create);
        try_join_all(each).await.unwrap();
    }

    async fn events(&self) -> State {
        let list = self.ask("GET", ALL, None).await.unwrap();
        list["items"].as_array().unwrap().iter().map(entry).collect()
    }
}

// === impl Reported ===

impl Reported {
    /// Watches from now on.
    async fn by(apiserver: &ApiServer) -> Self {
        let list = apiserver.ask("GET", ALL, None).await.unwrap();
        let version = list["metadata"]["resourceVersion"].as_str().unwrap();
        let target = format!("{ALL}?watch=1&timeoutSeconds=600&resourceVersion={version}");
        let answer = apiserver.client.send(Request::get(target).body(Body::empty()).unwrap()).await.unwrap();
        let expiry = Arc::new(Mutex::new(Expiry::default()));
        let notes = Arc::clone(&expiry);
        let reading = tokio::spawn(async move {
            let (mut body, mut read) = (answer.into_body(), Vec::new());
            while let Some(frame) = body.frame().await {
                read.extend_from_slice(frame.unwrap().data_ref().unwrap());
                while let Some(end) = read.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = read.drain(..=end).collect();
                    let event: Value = serde_json::from_slice(&line).unwrap();
                    if event["type"] == "DELETED" {
                        let (name, version) = entry(&event["object"]);
                        let mut expiry = notes.lock();
                        expiry.deletions.entry(version).or_default().insert(name);
                        *expiry.bytes.entry(version).or_default() += line.len();
                    }
                }
            }
        });
        Self { expiry, reading }
    }

    /// Waits until at least so many objects have been deleted.
    async fn of(&self, count: usize) -> Expiry {
        let deleted = || self.expiry.lock().deletions.values().map(BTreeSet::len).sum::<usize>();
        until("all have expired", || deleted() >= count).await;
        self.expiry.lock().clone()
    }
}

impl Drop for Reported {
    fn drop(&mut self) {
        self.reading.abort();
    }
}

// === impl Resuming ===

impl Resuming {
    /// Watches at a server; a client that leaves does so after its second deletion, and later where it makes no progress
    /// otherwise.
    fn start(url: &str, selection: Selection, is_leaving: bool) -> Self {
        let folded = Arc::new(Mutex::new(Folded::default()));
        let running = tokio::spawn(resume(url.to_owned(), selection, is_leaving, Arc::clone(&folded)));
        Self { folded, running }
    }

    /// Starts one that stays, one that leaves, and one that leaves under COALESCE.
    fn three(url: &str) -> Vec<Self> {
        let coalescing = Selection::default().slow(FullChannelPolicy::Coalesce, 4, Duration::ZERO);
        let selections = [(Selection::default(), false), (Selection::default(), true), (coalescing, true)];
        selections.map(|(selection, is_leaving)| Self::start(url, selection, is_leaving)).into()
    }

    fn folded(&self) -> Folded {
        self.folded.lock().clone()
    }
}

impl Drop for Resuming {
    fn drop(&mut self) {
        self.running.abort();
    }
}

// === impl Folded ===

impl Folded {
    fn take(&mut self, message: pb::WatchResponse) {
        if let Some(bookmark) = &message.bookmark {
            self.history.clone_from(&bookmark.history);
        }
        if let Some(object) = &message.object {
            let (name, version) = (format!("{}/{}", object.namespace, object.name), object.resource_version.parse());
            if message.r#type() == pb::EventType::Deleted {
                self.state.remove(&name);
                self.deletions.entry(version.unwrap()).or_default().insert(name);
            } else {
                self.state.insert(name, version.unwrap());
            }
        }
        self.version = message.resource_version;
    }

    /// Clears the state if the server cannot resume.
    fn note_end(&mut self, status: &Status) {
        if status.code() == Code::OutOfRange {
            self.refused.push(status.get_details_error_info().map(|info| info.reason).unwrap_or_default());
            self.version.clear();
        }
    }
}

async fn resume(url: String, selection: Selection, is_leaving: bool, folded: Arc<Mutex<Folded>>) {
    let (mut stays_for, mut left_at) = (2, String::new());
    loop {
        tokio::time::sleep(Duration::from_millis(10)).await;
        let Ok(client) = InformerServiceClient::connect(url.clone()).await else { continue };
        let stays = if is_leaving { stays_for } else { usize::MAX };
        if let Err(status) = stay(client, &selection, stays, &folded).await {
            folded.lock().note_end(&status);
            continue;
        }
        let mut folded = folded.lock();
        folded.leaves += 1;
        stays_for = if folded.version == left_at { stays_for * 3 } else { 2 };
        left_at.clone_from(&folded.version);
    }
}

/// Reads one stream, up to so many deletions.
async fn stay(
    mut client: InformerServiceClient<Channel>,
    selection: &Selection,
    mut deletions: usize,
    folded: &Mutex<Folded>,
) -> Result<(), Status> {
    let mut request = selection.request.clone();
    {
        let mut folded = folded.lock();
        request.resource_version.clone_from(&folded.version);
        request.history.clone_from(&folded.history);
        if folded.version.is_empty() {
            request.set_initial_events(pb::InitialEvents::Send);
            folded.state.clear();
        }
    }
    let mut stream = client.watch(request).await?.into_inner();
    while deletions > 0 {
        tokio::time::sleep(selection.pace).await;
        let message = stream.message().await?.ok_or_else(|| Status::unknown("an end without a status"))?;
        deletions -= usize::from(message.r#type() == pb::EventType::Deleted);
        folded.lock().take(message);
    }
    Ok(())
}

/// Waits until informerd, its relay and every client have the state of the API.
async fn everybody_agrees(
    apiserver: &ApiServer,
    served: &KillableServer,
    relay: Option<&Served>,
    clients: &[Vec<Resuming>],
) {
    let (started, clients) = (Instant::now(), clients.iter().flatten());
    loop {
        let expected = apiserver.events().await;
        let mut lists = vec![bodies(served.client().await, "things").await];
        if let Some(relay) = relay {
            lists.push(bodies(relay.client().await, "things").await);
        }
        let parsed = |body: &String| entry(&serde_json::from_str(body).unwrap());
        let states = lists.iter().map(|list| list.values().map(parsed).collect());
        let states: Vec<State> = states.chain(clients.clone().map(|client| client.folded().state)).collect();
        let refused: Vec<_> = clients.clone().map(|client| client.folded().refused).collect();
        assert!(refused.iter().all(Vec::is_empty), "every client resumes everywhere: {refused:?}");
        if states.iter().all(|state| *state == expected) {
            return;
        }
        if started.elapsed() > AGREEMENT {
            let differences: Vec<_> = states.iter().map(|state| difference(state, &expected)).collect();
            panic!("informerd, its relay, each client: {differences:?}");
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Returns the numbers of objects that are unexpected, and that are missing or different.
fn difference(state: &State, expected: &State) -> String {
    let ghosts = state.keys().filter(|name| !expected.contains_key(*name)).count();
    let missing = expected.iter().filter(|(name, version)| state.get(*name) != Some(version)).count();
    format!("{ghosts} ghosts, {missing} missing")
}

fn entry(object: &Value) -> (String, i64) {
    let metadata = &object["metadata"];
    let text = |field: &str| metadata[field].as_str().unwrap();
    (format!("{}/{}", text("namespace"), text("name")), text("resourceVersion").parse().unwrap())
}

async fn until(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < DEADLINE / 2, "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
