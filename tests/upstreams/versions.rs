//! Informers of several versions of client-go and reflectors of kube-rs, unchanged, over etcd, a relay and the API server: while
//! informerd is killed, drained and restarted, and etcd compacted, their stores become the upstream's state, and none lists again that
//! could resume.

use std::{
    collections::BTreeMap,
    env,
    process::Command,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    apiserver::{ApiServer, CONFIG_MAPS},
    etcd::{Driver, Etcd, Version},
    killable::KillableServer,
    kube_rs::Reflector,
    kubernetes::{Informers, Versions, config_maps},
    port::free_address,
};

/// Variables with programs of other versions than that of `kube/`; `tests/upstreams/run --strangers` sets them.
const PROGRAMS: [&str; 3] = ["INFORMERD_INFORMERS_032", "INFORMERD_INFORMERS_035", "INFORMERD_INFORMERS_037"];
/// Length of each test; `INFORMERD_INFORMERS_SECONDS` makes it minutes.
const SECONDS: u64 = 8;
const PREFIX: &str = "/things/";
/// Time in which each store has the state. client-go waits for up to a minute after a refused connection, and again before a list.
const SETTLES: Duration = Duration::from_secs(150);

/// Writer of config maps, and their state.
enum Writer {
    Etcd(Driver, Versions),
    Kube(Box<ApiServer>),
}

/// Clients that store config maps.
struct Clients {
    informers: Vec<Informers>,
    reflectors: [Reflector; 3],
}

/// Faults at a quiet point or between writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Kill,
    Drain,
    Compact,
    /// Kill during which etcd is compacted: the server lists again.
    Relist,
}

// === impl Writer ===

impl Writer {
    /// Writes some changes, of which etcd has up to five in a transaction.
    async fn write(&mut self, round: u64) {
        let mut random = fastrand::Rng::with_seed(round);
        let keys =
            (0..random.usize(1..=5)).map(|_| format!("{}/m{}", random.choice(["a", "b"]).unwrap(), random.u8(..40)));
        let keys: Vec<String> = keys.collect();
        match self {
            Self::Etcd(driver, state) => {
                let mut changes = BTreeMap::new();
                for key in &keys {
                    let object = json!({ "data": { "round": round.to_string() } }).to_string();
                    changes.insert(format!("{PREFIX}{key}"), random.bool().then_some(object));
                }
                let revision = driver.write(&changes).to_string();
                for (key, value) in changes {
                    let key = key.strip_prefix(PREFIX).unwrap().to_owned();
                    match value {
                        Some(_) => drop(state.insert(key, revision.clone())),
                        None => drop(state.remove(&key)),
                    }
                }
            }
            Self::Kube(apiserver) => {
                for key in &keys {
                    let (namespace, name) = key.split_once('/').unwrap();
                    let path = format!("{}/{name}", CONFIG_MAPS.path(namespace));
                    let object = CONFIG_MAPS.object(&json!({ "name": name }), &json!({ "round": round.to_string() }));
                    if apiserver.ask("PUT", &path, Some(&object)).await.is_err() {
                        apiserver.post(&CONFIG_MAPS.path(namespace), &object).await;
                    } else if random.bool() {
                        apiserver.ask("DELETE", &path, None).await.unwrap();
                    }
                }
            }
        }
    }

    /// Writes an object, and returns its version.
    async fn put(&mut self, round: u64) -> i64 {
        match self {
            Self::Etcd(driver, state) => {
                let object = json!({ "data": { "round": round.to_string() } }).to_string();
                let revision = driver.write(&BTreeMap::from([(format!("{PREFIX}a/last"), Some(object))]));
                state.insert("a/last".to_owned(), revision.to_string());
                revision
            }
            Self::Kube(apiserver) => {
                let object = CONFIG_MAPS.object(&json!({ "name": "last" }), &json!({ "round": round.to_string() }));
                let path = CONFIG_MAPS.path("a");
                let written = match apiserver.ask("PUT", &format!("{path}/last"), Some(&object)).await {
                    Ok(written) => written,
                    Err(_) => apiserver.ask("POST", &path, Some(&object)).await.unwrap(),
                };
                written["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
            }
        }
    }

    async fn truth(&self) -> Versions {
        match self {
            Self::Etcd(_, state) => state.clone(),
            Self::Kube(apiserver) => config_maps(apiserver).await,
        }
    }

    fn compact(&mut self, round: u64) {
        if let Self::Etcd(driver, _) = self {
            let revision = driver.write(&BTreeMap::from([(format!("/other/{}", round % 3), Some("x".to_owned()))]));
            driver.compact(revision);
        }
    }
}

// === impl Clients ===

impl Clients {
    /// Starts informers of each version, and reflectors.
    fn start(address: &str) -> Self {
        let versions = PROGRAMS.iter().filter_map(|name| {
            let mut command = Command::new(env::var_os(name)?);
            command.arg(address);
            Some(command)
        });
        // Informers that compare the first events of a watch with a list of that version, and panic when they differ.
        let start = |mut command: Command| {
            command.env("KUBE_WATCHLIST_INCONSISTENCY_DETECTOR", "true");
            Informers::of(command)
        };
        let informers = versions.chain([Informers::command(address)]).map(start).collect();
        Self { informers, reflectors: Reflector::of_each_mode(address) }
    }

    /// Waits until all stores are the truth. Returns how often each has been listed.
    async fn settle(&mut self, truth: &Versions) -> Vec<u64> {
        let started = Instant::now();
        loop {
            let of_informers = self.informers.iter_mut().flat_map(|informers| informers.stores().into_values());
            let stores: Vec<_> = of_informers.chain(self.reflectors.iter().map(Reflector::stored)).collect();
            if stores.iter().all(|(store, _)| store == truth) {
                return stores.iter().map(|(_, lists)| *lists).collect();
            }
            assert!(started.elapsed() < SETTLES, "not {truth:#?}: {stores:#?}");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Runs clients of each kind over the last of the servers, through faults of all.
#[allow(clippy::print_stdout, reason = "the figures of the run")]
async fn run(servers: &mut [KillableServer], address: &str, mut writer: Writer) {
    let seconds =
        env::var("INFORMERD_INFORMERS_SECONDS").map_or(SECONDS, |text| text.parse().expect("a number of seconds"));
    writer.write(0).await;
    for server in &*servers {
        server.synced().await;
    }
    let mut clients = Clients::start(address);
    let mut lists = clients.settle(&writer.truth().await).await;
    // Number of each fault, and of the lists after those after which clients may list.
    let mut faults: BTreeMap<Fault, (u32, u64)> = BTreeMap::new();
    let (began, mut round) = (Instant::now(), 0);
    // Each fault comes at least once.
    while round < 4 || began.elapsed() < Duration::from_secs(seconds) {
        round += 1;
        let fault = [Fault::Kill, Fault::Compact, Fault::Drain, Fault::Relist][usize::try_from(round % 4).unwrap()];
        let at = usize::try_from(round / 4).unwrap() % servers.len();
        // Every third fault comes at a quiet point, the others between writes: a kill loses what is not in the snapshot file then.
        let is_quiet = round % 3 == 0;
        for write in 0..20 {
            writer.write(round * 100 + write).await;
        }
        if is_quiet {
            let version = writer.put(round).await;
            lists = clients.settle(&writer.truth().await).await;
            servers[at].kept(version).await;
        }
        match fault {
            Fault::Kill | Fault::Relist => servers[at].kill(),
            Fault::Drain => servers[at].terminate(),
            Fault::Compact => writer.compact(round),
        }
        if fault != Fault::Compact {
            writer.write(round * 100 + 50).await;
            if fault == Fault::Relist {
                writer.compact(round);
            }
            servers[at].restart();
        }
        for write in 20..30 {
            writer.write(round * 100 + write).await;
        }
        let after = clients.settle(&writer.truth().await).await;
        let listed = after.iter().zip(&lists).map(|(after, before)| after - before).sum::<u64>();
        if is_quiet && fault != Fault::Relist {
            assert_eq!(after, lists, "round {round}: nobody lists again after {fault:?} of server {at}");
        }
        let (count, total) = faults.entry(fault).or_default();
        (*count, *total) = (*count + 1, *total + listed);
        lists = after;
    }
    println!(
        "{} stores, {} s, faults and the lists after each kind: {faults:?}",
        lists.len(),
        began.elapsed().as_secs()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn informers_agree_with_etcd() {
    let (etcd, address) = (Etcd::start(Version::Latest).await, free_address());
    let source = json!({ "etcd": { "endpoints": [etcd.url()], "prefix": PREFIX } });
    let server = KillableServer::of_config_maps(address, &source, None);
    run(&mut [server], &format!("http://{address}"), Writer::Etcd(etcd.driver(), Versions::new())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn informers_agree_with_etcd_through_a_relay() {
    let (etcd, address) = (Etcd::start(Version::Latest).await, free_address());
    let source = json!({ "etcd": { "endpoints": [etcd.url()], "prefix": PREFIX } });
    let upstream = KillableServer::of_config_maps(free_address(), &source, None);
    let source = json!({ "informerd": { "endpoint": format!("http://{}", upstream.address()) } });
    let relay = KillableServer::of_config_maps(address, &source, None);
    run(&mut [upstream, relay], &format!("http://{address}"), Writer::Etcd(etcd.driver(), Versions::new())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn informers_agree_with_the_api_server() {
    let (apiserver, address) = (ApiServer::start().await, free_address());
    let source = json!({ "kube": { "version": "v1", "plural": "configmaps", "kubeconfig": "kubeconfig" } });
    let server = KillableServer::of_config_maps(address, &source, Some(&apiserver));
    run(&mut [server], &format!("http://{address}"), Writer::Kube(Box::new(apiserver))).await;
}
