//! Many concurrent writers, and clients of every selection that follow them across faults.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use informerd::proto::pb::FullChannelPolicy;
use kube::Client;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::{
    DEADLINE,
    apiserver::{ADMIN, ApiServer, CONFIG_MAPS, Kind, THINGS, ask},
    follow::{Followed, Follower},
    hops::{Shared, SwitchingClient},
    journal::{Journal, MARK},
    kube::{config_maps, read, things},
    selection::Selection,
    served::Served,
    truth::Truth,
};

/// Number of writers of each kind.
const WRITERS: u64 = 3;
/// Least number of writes in each storm, of both kinds.
const WRITES: u64 = 1_000;
const CUTS: u32 = 10;
/// Pause between two faults.
const PAUSE: Duration = Duration::from_millis(500);
/// Pause of a client that cannot keep up.
const SLOW: Duration = Duration::from_millis(50);

/// All writers.
struct Storm {
    is_over: Arc<AtomicBool>,
    written: Arc<AtomicU64>,
    writers: JoinSet<()>,
}

/// One writer. It ignores failures: the journal has the writes.
struct Writer {
    client: Client,
    kind: Kind,
    id: u64,
    written: u64,
    random: u64,
}

/// One kind, and all its followers.
struct Watched {
    kind: Kind,
    journal: Journal,
    served: Served,
    followers: Vec<Follower>,
    /// Clients that leave and resume all the time.
    hoppers: JoinSet<Followed>,
    shared: Arc<Shared>,
}

/// Cuts connections, which loses nothing, and kills the API server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_selection_receives_all_of_a_storm_across_cuts_and_a_kill() {
    let mut apiserver = ApiServer::start().await;
    let mut kinds = Watched::both(&apiserver).await;
    let storm = Storm::start(&apiserver, 1).await;
    for cut in 0..CUTS {
        tokio::time::sleep(PAUSE).await;
        for watched in &mut kinds {
            watched.served.cut();
            if cut == CUTS / 2 {
                watched.join().await;
            }
        }
    }
    storm.end(WRITES).await;
    for watched in &kinds {
        assert_eq!(watched.check(&apiserver).await, 0, "what was cut is taken up again");
        let followed: Vec<_> = watched.followers.iter().map(Follower::followed).collect();
        assert!(followed.iter().any(|followed| !followed.holes.is_empty()), "it was too much for some");
        assert!(followed.iter().any(|followed| followed.told.iter().any(|told| told.coalesced > 0)), "and for others");
    }

    let storm = Storm::start(&apiserver, 2).await;
    tokio::time::sleep(PAUSE).await;
    apiserver.kill();
    apiserver.restart().await;
    tokio::time::sleep(PAUSE).await;
    storm.end(WRITES).await;
    for watched in kinds {
        assert!(watched.check(&apiserver).await <= 1, "what an API server has not seen it does not tell");
        println!("{}", watched.end(&apiserver).await);
    }
}

/// Compacts the missed events everywhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_selection_receives_the_result_of_a_storm_that_was_compacted() {
    let mut apiserver = ApiServer::start().await;
    let kinds = Watched::both(&apiserver).await;
    let storm = Storm::start(&apiserver, 1).await;
    tokio::time::sleep(PAUSE).await;
    for watched in &kinds {
        watched.served.refuse(true);
    }
    tokio::time::sleep(PAUSE).await;
    apiserver.kill();
    let missed = kinds.iter().map(|watched| watched.journal.latest()).max().unwrap();
    apiserver.etcd.driver().compact(missed);
    apiserver.restart().await;
    tokio::time::sleep(PAUSE).await;
    for watched in &kinds {
        watched.served.refuse(false);
    }
    tokio::time::sleep(PAUSE).await;
    storm.end(WRITES).await;
    for watched in kinds {
        assert_eq!(watched.check(&apiserver).await, 1, "it is listed once");
        println!("{}", watched.end(&apiserver).await);
    }
}

/// Returns selections of everything, by every kind of selector, in every format and way of reading.
fn selections() -> Vec<Selection> {
    let (all, a, b) = (Selection::default, || Selection::namespace("a"), || Selection::namespace("b"));
    let is_gold = |value: &str| tier(value) == "gold";
    let is_rare = "object.metadata.labels.tier == 'silver' && int(object.data.weight) > 4";
    vec![
        // The first one receives the relists.
        all(),
        a(),
        all().labels("tier=gold", is_gold),
        all().labels("tier!=gold", |value| tier(value) != "gold").metadata(),
        b().labels("!tier", |value| tier(value) == "none").metadata(),
        all().fields("data.phase=hot", |value| phase(value) == "hot"),
        a().expression(is_rare, |value| tier(value) == "silver" && weight(value) > 4),
        all().slow(FullChannelPolicy::Coalesce, 16, SLOW),
        all().labels("tier=gold", is_gold).slow(FullChannelPolicy::Coalesce, 16, SLOW),
        all().slow(FullChannelPolicy::Drop, 16, SLOW),
        all().labels("tier=gold", is_gold).metadata().slow(FullChannelPolicy::Drop, 16, SLOW),
    ]
}

/// Returns the tier of a value, which is a unique number and the properties that selections match.
fn tier(value: &str) -> &str {
    value.split(' ').nth(1).unwrap()
}

fn phase(value: &str) -> &str {
    value.split(' ').nth(2).unwrap()
}

fn weight(value: &str) -> u64 {
    value.split(' ').nth(3).unwrap().parse().unwrap()
}

// === impl Watched ===

impl Watched {
    /// Starts a built-in kind and a custom one, each with some objects.
    async fn both(apiserver: &ApiServer) -> [Self; 2] {
        Storm::start(apiserver, 0).await.end(100).await;
        [Self::start(apiserver, THINGS, things()).await, Self::start(apiserver, CONFIG_MAPS, config_maps()).await]
    }

    async fn start(apiserver: &ApiServer, kind: Kind, source: Value) -> Self {
        let journal = Journal::of(&apiserver.etcd, kind).await;
        let served = Served::kube(apiserver, ADMIN, source).await;
        let shared = Arc::new(Shared::default());
        let mut this = Self { kind, journal, served, followers: Vec::new(), hoppers: JoinSet::new(), shared };
        this.join().await;
        this
    }

    /// Adds one client of each selection that stays, and one that does not.
    async fn join(&mut self) {
        let mut joining = Vec::new();
        for (seed, selection) in (1..).zip(selections()) {
            let client = if selection.pace.is_zero() {
                let client = self.served.client().await;
                let hopper =
                    SwitchingClient::new(std::slice::from_ref(&client), &self.shared, selection.clone(), seed * 7919);
                self.hoppers.spawn(hopper.run());
                client
            } else {
                self.served.narrow_client().await
            };
            joining.push(Follower::of(client, selection));
        }
        self.followers.extend(futures_util::future::join_all(joining).await);
    }

    /// Returns every write and its last version, now that no other writer runs.
    async fn truth(&self, apiserver: &ApiServer) -> (Truth, i64) {
        let id = self.journal.latest() as u64;
        let last = Writer::new(apiserver.impatient_client().await, self.kind, id).last().await;
        (self.journal.up_to(last).await, last)
    }

    /// Compares every client that stayed with the writes. Returns the number of relists.
    async fn check(&self, apiserver: &ApiServer) -> usize {
        let (truth, last) = self.truth(apiserver).await;
        let relists = self.followers[0].reach(last).await.relists;
        for follower in &self.followers {
            let followed = follower.reach(last).await;
            // The test does not know the dropped part of a relist.
            if followed.selection.policy() != FullChannelPolicy::Drop || relists.is_empty() {
                truth.check_but(&read(followed, self.kind), &relists);
            }
        }
        assert_eq!(self.served.count("reflector_lists_total").await, 1 + relists.len() as u64);
        assert_eq!(self.served.count("cache_rewinds_total").await, 0);
        relists.len()
    }

    /// Compares those that did not stay, too. Returns a summary.
    async fn end(mut self, apiserver: &ApiServer) -> String {
        let (truth, last) = self.truth(apiserver).await;
        let relists = self.followers[0].reach(last).await.relists;
        self.shared.last.store(last, Ordering::SeqCst);
        let reached = async {
            while let Some(followed) = self.hoppers.join_next().await {
                let followed = followed.unwrap();
                truth.check_but(&read(followed, self.kind), &relists);
            }
        };
        tokio::time::timeout(DEADLINE, reached).await.expect("all get there in time");
        let hops = self.shared.hops.load(Ordering::SeqCst);
        assert!(hops > 50, "they left and came back");
        format!("{}: {} writes, {hops} hops, {} relists", self.kind.plural, truth.len(), relists.len())
    }
}

// === impl Storm ===

impl Storm {
    async fn start(apiserver: &ApiServer, seed: u64) -> Self {
        let client = apiserver.impatient_client().await;
        let (is_over, written) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let mut writers = JoinSet::new();
        for (kind, id) in [THINGS, CONFIG_MAPS].into_iter().flat_map(|kind| (0..WRITERS).map(move |id| (kind, id))) {
            let mut writer = Writer::new(client.clone(), kind, seed * WRITERS + id);
            let (is_over, written) = (Arc::clone(&is_over), Arc::clone(&written));
            writers.spawn(async move {
                while !is_over.load(Ordering::SeqCst) {
                    match writer.write().await {
                        Ok(_) => drop(written.fetch_add(1, Ordering::SeqCst)),
                        Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                    }
                }
            });
        }
        Self { is_over, written, writers }
    }

    /// Ends the storm once so much has been written.
    async fn end(self, writes: u64) {
        let enough = async {
            while self.written.load(Ordering::SeqCst) < writes {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(DEADLINE, enough).await.expect("enough is written in time");
        self.is_over.store(true, Ordering::SeqCst);
        self.writers.join_all().await;
    }
}

// === impl Writer ===

impl Writer {
    fn new(client: Client, kind: Kind, id: u64) -> Self {
        Self { client, kind, id, written: 0, random: id }
    }

    /// Creates, updates or deletes one object.
    async fn write(&mut self) -> Result<Value, String> {
        let (namespace, name) = (["a", "b", "c"][self.below(3)], self.below(12));
        if self.below(4) == 0 {
            let answer = ask(&self.client, "DELETE", &format!("{}/o-{name}", self.kind.path(namespace)), None).await;
            // The object may not exist.
            return answer.or_else(|error| if error.contains("not found") { Ok(Value::Null) } else { Err(error) });
        }
        self.put(namespace, &name.to_string()).await
    }

    /// Writes once more after the storm, and returns the version.
    async fn last(mut self) -> i64 {
        let written = self.put("a", "last").await.unwrap();
        written["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    }

    async fn put(&mut self, namespace: &str, name: &str) -> Result<Value, String> {
        self.written += 1;
        let (tier, phase) = (["gold", "silver", "none"][self.below(3)], ["hot", "cold"][self.below(2)]);
        let (id, n, weight) = (self.id, self.written, self.below(10));
        let value = format!("{MARK}{id}-{n} {tier} {phase} {weight} {MARK}");
        let data = json!({ "value": value, "phase": phase, "weight": weight.to_string() });
        let metadata = |labels: Value| json!({ "name": format!("o-{name}"), "labels": labels });
        let all = self.kind.path(namespace);
        let label = if tier == "none" { Value::Null } else { json!(tier) };
        let patch = self.kind.object(&metadata(json!({ "tier": label })), &data);
        match ask(&self.client, "PATCH", &format!("{all}/o-{name}"), Some(&patch)).await {
            Err(error) if error.contains("not found") => {
                let mut labels = json!({ "suite": "truth", "tier": tier });
                // In a new object, null would be the empty string.
                labels.as_object_mut().unwrap().retain(|_, value| value != "none");
                ask(&self.client, "POST", &all, Some(&self.kind.object(&metadata(labels), &data))).await
            }
            answer => answer,
        }
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as usize % bound
    }
}
