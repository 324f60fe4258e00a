//! Cost of following 20,000 pods of a Kubernetes API: of informerd, and in turns of kube-rs' reflector of `Pod` and of
//! `DynamicObject`.
//!
//! ```sh
//! tests/upstreams/run --exec cargo bench --bench kube            # or: ... --bench kube -- 2000
//! ```
//!
//! Starts a kube-apiserver and fills it. Then each of them, as its own process, follows all pods without their managedFields.
//! Measures the time from its start until it has them, its processor time and peak memory by then, and its resident memory a
//! second later: once with an API server that streams the initial events of a watch, which all three then use, and once with one
//! that does not, where they list pages of 500. The yardstick is the JSON of the list, as received and as kept.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a bench that cannot go on ends, and says so"
)]

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/upstreams/apiserver.rs"]
mod apiserver;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../tests/upstreams/etcd.rs"]
mod etcd;
mod pods;
#[path = "../tests/upstreams/port.rs"]
mod port;
mod running;

use std::{
    env, fmt,
    fmt::Debug,
    hash::Hash,
    path::Path,
    process::{Command, ExitCode, Stdio},
    time::{Duration, Instant},
};

use futures_util::TryStreamExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Resource, ResourceExt,
    core::{ApiResource, DynamicObject},
    runtime::{
        reflector::{self, store::Writer},
        watcher,
    },
};
use serde::de::DeserializeOwned;
use tempfile::TempDir;

use crate::{
    apiserver::{ADMIN, ApiServer, owned},
    pods::fill,
    port::free_address,
    running::{Running, synced},
};

/// Program that follows the pods.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Follower {
    Informerd,
    Typed,
    Dynamic,
}

/// Cost of one follower.
#[derive(Debug, Clone, Copy)]
struct Cost {
    ready: f64,
    processor: f64,
    resident_kib: f64,
    peak_kib: f64,
}

const DEADLINE: Duration = Duration::from_secs(300);
const OBJECTS: usize = 20_000;
const REPETITIONS: usize = 5;
const FOLLOWERS: [Follower; 3] = [Follower::Informerd, Follower::Typed, Follower::Dynamic];
const STREAMED: &str = "streamed";
const PAGED: &str = "paged";

fn main() -> ExitCode {
    // cargo bench adds its own argument.
    let arguments: Vec<String> = env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["typed", mode] => runtime.block_on(reflect::<Pod>((), mode)),
        ["dynamic", mode] => runtime.block_on(reflect::<DynamicObject>(ApiResource::erase::<Pod>(&()), mode)),
        ref rest => {
            for variable in ["INFORMERD_UPSTREAMS", "INFORMERD_KUBERNETES"] {
                if env::var_os(variable).is_none() {
                    eprintln!("error: {variable} is not set: tests/upstreams/run --exec cargo bench --bench kube");
                    return ExitCode::FAILURE;
                }
            }
            let objects = rest.first().map_or(OBJECTS, |objects| objects.parse().expect("a number of objects"));
            runtime.block_on(compare(objects));
        }
    }
    ExitCode::SUCCESS
}

async fn compare(objects: usize) {
    let mut apiserver = ApiServer::start().await;
    let started = Instant::now();
    fill(&apiserver, 0..objects).await;
    println!("{objects} pods written in {:.0} s", started.elapsed().as_secs_f64());
    let (listed, kept) = json_bytes(&apiserver).await;
    let (listed, kept) = (listed as f64 / objects as f64, kept as f64 / objects as f64);
    println!("JSON of each: {listed:.0} bytes as they are listed, {kept:.0} as they are kept (without managedFields)");
    let directory = TempDir::new().unwrap();
    let kubeconfig = directory.path().join("kubeconfig");
    apiserver.kubeconfig(&kubeconfig, apiserver.address().port(), ADMIN);
    for (mode, flags) in [(STREAMED, &[][..]), (PAGED, &["--feature-gates=WatchList=false"])] {
        apiserver.kill();
        apiserver.flags = owned(flags);
        apiserver.restart().await;
        // A warm-up: the first of all waits for one-time work of the API server.
        Follower::Typed.cost(&kubeconfig, mode, objects).await;
        let mut costs = [const { Vec::new() }; FOLLOWERS.len()];
        for _ in 0..REPETITIONS {
            for (follower, costs) in FOLLOWERS.into_iter().zip(&mut costs) {
                costs.push(follower.cost(&kubeconfig, mode, objects).await);
            }
        }
        print(mode, &costs, objects, kept);
    }
}

fn print(mode: &str, costs: &[Vec<Cost>], objects: usize, kept: f64) {
    println!("\n{mode:<28}{:>10}{:>14}{:>20}{:>18}{:>12}", "ready", "processor", "resident", "an object", "peak");
    let median = |costs: &[Cost], of: fn(&Cost) -> f64| {
        let mut values: Vec<f64> = costs.iter().map(of).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    let of: [fn(&Cost) -> f64; 4] =
        [|cost| cost.ready, |cost| cost.processor, |cost| cost.resident_kib, |cost| cost.peak_kib];
    let ours = of.map(|of| median(&costs[0], of));
    for (follower, costs) in FOLLOWERS.into_iter().zip(costs) {
        let theirs = of.map(|of| median(costs, of));
        let [ready, processor, resident, peak] = theirs;
        let each = |total: f64| total / objects as f64;
        println!(
            "{:<28}{ready:>8.2} s{:>9.0} µs an object{:>8.1} MiB{:>8.2} KiB, {:.2} of JSON{:>8.1} MiB",
            follower.to_string(),
            each(processor) * 1e6,
            resident / 1024.0,
            each(resident),
            each(resident) * 1024.0 / kept,
            peak / 1024.0,
        );
        if follower != Follower::Informerd {
            let [ready, processor, resident, peak] = [0, 1, 2, 3].map(|at| ours[at] / theirs[at]);
            println!(
                "  informerd / this: ready {ready:.2}, processor {processor:.2}, resident {resident:.2}, peak {peak:.2}"
            );
        }
    }
}

/// Returns the sizes of the whole list, as received and as kept.
async fn json_bytes(apiserver: &ApiServer) -> (usize, usize) {
    let (mut listed, mut kept, mut next) = (0, 0, String::new());
    loop {
        let mut page = apiserver.ask("GET", &format!("/api/v1/pods?limit=500&continue={next}"), None).await.unwrap();
        for item in page["items"].as_array_mut().unwrap() {
            listed += item.to_string().len();
            item["metadata"].as_object_mut().unwrap().remove("managedFields");
            kept += item.to_string().len();
        }
        match page["metadata"]["continue"].as_str().filter(|next| !next.is_empty()) {
            Some(more) => more.clone_into(&mut next),
            None => return (listed, kept),
        }
    }
}

/// Runs a reflector until the process is killed.
async fn reflect<K>(kind: K::DynamicType, mode: &str)
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Clone + Debug + Eq + Hash + Unpin,
{
    let api: Api<K> = Api::all_with(Client::try_default().await.unwrap(), &kind);
    let config = watcher::Config::default();
    let config = if mode == STREAMED { config.streaming_lists() } else { config };
    let writer = Writer::new(kind);
    let reader = writer.as_reader();
    let events =
        watcher(api, config).map_ok(|event| event.modify(|object: &mut K| object.managed_fields_mut().clear()));
    let reflecting = reflector::reflector(writer, events).try_for_each(async |_| Ok(()));
    let ready = async {
        reader.wait_until_ready().await.unwrap();
        println!("{}", reader.len());
        std::future::pending::<()>().await;
    };
    tokio::select! {
        result = reflecting => panic!("{result:?}"),
        () = ready => {}
    }
}

// === impl Follower ===

impl Follower {
    async fn cost(self, kubeconfig: &Path, mode: &str, objects: usize) -> Cost {
        let (mut command, address) = self.command(mode);
        let started = Instant::now();
        let child = command.env("KUBECONFIG", kubeconfig).stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let mut running = Running(child);
        let has = match address {
            Some(address) => synced(&address).await,
            None => running.told(),
        };
        let ready = started.elapsed().as_secs_f64();
        assert_eq!(has, objects, "{self} has everything");
        let (processor, peak_kib) = (running.processor(), running.memory("VmHWM"));
        tokio::time::sleep(Duration::from_secs(1)).await;
        Cost { ready, processor, resident_kib: running.memory("VmRSS"), peak_kib }
    }

    /// Returns the command, with the address to query if the follower serves one.
    fn command(self, mode: &str) -> (Command, Option<String>) {
        if self == Self::Informerd {
            let address = free_address().to_string();
            let mut command = Command::new(env!("CARGO_BIN_EXE_informerd"));
            command.args(["serve", "--kube", "pods=v1/pods", "--admin-listen", "none", "--listen", &address]);
            return (command, Some(format!("http://{address}")));
        }
        let mut command = Command::new(env::current_exe().unwrap());
        command.args([if self == Self::Typed { "typed" } else { "dynamic" }, mode]).stdout(Stdio::piped());
        (command, None)
    }
}

impl fmt::Display for Follower {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Informerd => "informerd",
            Self::Typed => "kube-rs, Pod",
            Self::Dynamic => "kube-rs, DynamicObject",
        })
    }
}
