//! Informers of several versions of client-go, unchanged, over etcd, a relay and the API server: while informerd is killed, drained and
//! restarted, and etcd compacted, their stores become the upstream's state, and none lists again that could resume.

use std::{
    collections::BTreeMap,
    env,
    process::Command,
    time::{Duration, Instant},
};

use serde_json::json;

use crate::{
    DEADLINE,
    apiserver::{ApiServer, CONFIG_MAPS},
    etcd::{Driver, Etcd, Version},
    killable::KillableServer,
    kubernetes::{Informers, Versions, config_maps},
    port::free_address,
};

/// Variables with programs of other versions than that of `kube/`; `tests/upstreams/run --strangers` sets them.
const PROGRAMS: [&str; 3] = ["INFORMERD_INFORMERS_032", "INFORMERD_INFORMERS_035", "INFORMERD_INFORMERS_037"];
/// Length of each test; `INFORMERD_INFORMERS_SECONDS` makes it minutes.
const SECONDS: u64 = 8;
const PREFIX: &str = "/things/";

/// Writer of config maps, and their state.
enum Writer {
    Etcd(Driver, Versions),
    Kube(Box<ApiServer>),
}

/// Faults at a quiet point or between writes.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Kill,
    Drain,
    Compact,
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

/// Waits until the stores of all informers are the truth. Returns how often each has been listed.
async fn settle(clients: &mut [Informers], truth: &Versions) -> Vec<u64> {
    let started = Instant::now();
    loop {
        let stores: Vec<_> = clients.iter_mut().map(Informers::stores).collect();
        let all = || stores.iter().flat_map(BTreeMap::values);
        if all().all(|(store, _)| store == truth) {
            return all().map(|(_, lists)| *lists).collect();
        }
        assert!(started.elapsed() < DEADLINE, "not {truth:#?}: {stores:#?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Runs informers of each version over the last of the servers, through faults of all.
#[allow(clippy::print_stdout, reason = "the figures of the run")]
async fn run(servers: &mut [KillableServer], address: &str, mut writer: Writer) {
    let seconds =
        env::var("INFORMERD_INFORMERS_SECONDS").map_or(SECONDS, |text| text.parse().expect("a number of seconds"));
    writer.write(0).await;
    for server in &*servers {
        server.synced().await;
    }
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
    let mut clients: Vec<Informers> = versions.chain([Informers::command(address)]).map(start).collect();
    let mut lists = settle(&mut clients, &writer.truth().await).await;
    let (began, mut round, mut cut_lists) = (Instant::now(), 0, 0);
    while began.elapsed() < Duration::from_secs(seconds) {
        round += 1;
        let fault = [Fault::Kill, Fault::Compact, Fault::Drain][usize::try_from(round % 3).unwrap()];
        let at = usize::try_from(round / 3).unwrap() % servers.len();
        // Every other fault comes between writes: a kill may lose the last moments of the history then.
        let is_quiet = round % 2 == 0;
        for write in 0..20 {
            writer.write(round * 100 + write).await;
        }
        if is_quiet {
            lists = settle(&mut clients, &writer.truth().await).await;
        }
        match fault {
            Fault::Kill => {
                servers[at].kill();
                servers[at].restart();
            }
            Fault::Drain => {
                servers[at].terminate();
                servers[at].restart();
            }
            Fault::Compact => writer.compact(round),
        }
        for write in 20..30 {
            writer.write(round * 100 + write).await;
        }
        let after = settle(&mut clients, &writer.truth().await).await;
        if is_quiet {
            assert_eq!(after, lists, "round {round}: nobody lists again after {fault:?} of server {at}");
        } else {
            cut_lists += after.iter().zip(&lists).map(|(after, before)| after - before).sum::<u64>();
        }
        lists = after;
    }
    assert!(round >= 3, "each fault came");
    println!("{round} faults in {seconds} s, {} informers, {cut_lists} lists after faults between writes", lists.len());
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
