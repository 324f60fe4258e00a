//! Cost of the Kubernetes API beside that of the API server: watches of pods, and lists.
//!
//! ```sh
//! tests/upstreams/run --exec cargo bench --features kubernetes-api --bench kubernetes       # 1,000 watches, 10,000 pods, three runs
//! tests/upstreams/run --exec cargo bench --features kubernetes-api --bench kubernetes -- \
//!   --watches 100 --pods 1000 --seconds 5 --runs 1
//! ```
//!
//! Starts an API server with pods, and two informerd over it: one without the managedFields, as its documentation has it, and one that
//! serves the same bytes. In turns, watches of all pods are opened at each, and pods are changed at the API server at a constant rate.
//! Each watch has a connection of its own, HTTP/2 over TLS, and checks that it receives each change exactly once, and in order. The
//! processor time of a server is that of its process, less that in the same time with the same writes without watches; its memory is
//! what it grows by. Then each lists all pods from its cache, in turns, after a change each time, with gzip and without.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "the figures; and a bench that cannot go on ends, and says so"
)]

#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../tests/upstreams/apiserver.rs"]
mod apiserver;
mod client;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../tests/upstreams/etcd.rs"]
mod etcd;
#[path = "../pods.rs"]
mod pods;
#[path = "../../tests/upstreams/port.rs"]
mod port;
#[allow(dead_code, reason = "other benches use the rest")]
#[path = "../running.rs"]
mod running;
mod server;

use std::{
    env,
    process::ExitCode,
    time::{Duration, Instant},
};

use clap::Parser;
use serde_json::json;

use crate::{
    apiserver::{ApiServer, ask},
    client::{Target, Watches, tls},
    pods::{PODS, fill},
    running::{memory, processor},
    server::Server,
};

/// Compares the Kubernetes API with that of the API server.
#[derive(Debug, Clone, Parser)]
struct Arguments {
    /// Watches of all pods, each on its own connection.
    #[arg(long, default_value_t = 1000)]
    watches: usize,
    /// Pods while they are watched.
    #[arg(long, default_value_t = 1000)]
    watched: usize,
    /// Pods in a list.
    #[arg(long, default_value_t = 10_000)]
    pods: usize,
    /// Changes a second.
    #[arg(long, default_value_t = 10)]
    rate: u32,
    /// Seconds of changes for each server.
    #[arg(long, default_value_t = 30)]
    seconds: u32,
    /// Lists of each form.
    #[arg(long, default_value_t = 10)]
    lists: usize,
    /// Runs.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    #[arg(long, hide = true)]
    bench: bool,
}

/// Servers of a run, and the writer.
struct Run {
    // Ended before their upstream.
    _servers: [Server; 2],
    arguments: Arguments,
    apiserver: ApiServer,
    writer: kube::Client,
    targets: [Target; SERVERS.len()],
    names: Vec<String>,
    /// Number of changes.
    changes: usize,
}

/// Figures of a server: a value for each of [`FIGURES`].
type Figures = [f64; FIGURES.len()];

const DEADLINE: Duration = Duration::from_secs(120);
/// Time after the opening of watches, and after changes, in which a server completes its work for them.
const SETTLING: Duration = Duration::from_secs(3);
const SERVERS: [&str; 3] = ["kube-apiserver", "informerd", "the same bytes"];
const FIGURES: [&str; 10] = [
    "watch: processor a delivery, µs",
    "  bytes a delivery",
    "  memory an open watch, KiB",
    "  the same after the changes, KiB",
    "list: processor, ms",
    "  time, ms",
    "  bytes, MB",
    "list with gzip: processor, ms",
    "  time, ms",
    "  bytes, MB",
];

fn main() -> ExitCode {
    for variable in ["INFORMERD_UPSTREAMS", "INFORMERD_KUBERNETES"] {
        if env::var_os(variable).is_none() {
            eprintln!("error: {variable} is not set: tests/upstreams/run --exec cargo bench --bench kubernetes");
            return ExitCode::FAILURE;
        }
    }
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut all = Vec::new();
    for at in 0..arguments.runs {
        println!("run {} of {}: {arguments:?}", at + 1, arguments.runs);
        let figures = runtime.block_on(async {
            let mut run = Run::start(&arguments).await;
            // Each run begins with another server.
            let order = [0, 1, 2].map(|server| (server + at) % SERVERS.len());
            run.measure(order).await
        });
        all.push(figures);
        print(&all[at..]);
    }
    if all.len() > 1 {
        println!("medians");
        print(&all);
    }
    ExitCode::SUCCESS
}

/// Prints the medians of runs, and of the ratios in each of them.
fn print(runs: &[[Figures; SERVERS.len()]]) {
    let [theirs, ours, whole] = SERVERS;
    println!("{:<34}{theirs:>16}{ours:>16}{whole:>16}   ratios to {theirs}", "");
    for (at, name) in FIGURES.iter().enumerate() {
        let median = |value: &dyn Fn(&[Figures; 3]) -> f64| {
            let mut values: Vec<f64> = runs.iter().map(value).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        let [theirs, ours, whole] = [0, 1, 2].map(|server| median(&|run| run[server][at]));
        let ratios = [1, 2].map(|server| median(&|run| run[server][at] / run[0][at]));
        println!("{name:<34}{theirs:>16.2}{ours:>16.2}{whole:>16.2}{:>9.3}{:>8.3}", ratios[0], ratios[1]);
    }
}

// === impl Run ===

impl Run {
    async fn start(arguments: &Arguments) -> Self {
        let apiserver = ApiServer::start().await;
        fill(&apiserver, 0..arguments.watched).await;
        let rcgen::CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).unwrap();
        let tls = tls(&[apiserver.authority(), cert.pem()]);
        let servers = [".metadata.managedFields", ""]
            .map(|fields| Server::start(&apiserver, &cert.pem(), &signing_key.serialize_pem(), fields));
        let [ours, whole] = &servers;
        let of = |server: &Server| (server.process.0.id(), server.address);
        let targets = [(apiserver.pid(), apiserver.address()), of(ours), of(whole)].map(|(pid, address)| Target {
            pid,
            address,
            tls: tls.clone(),
        });
        let list = apiserver.ask("GET", PODS, None).await.unwrap();
        let name = |item: &serde_json::Value| item["metadata"]["name"].as_str().unwrap().to_owned();
        let names = list["items"].as_array().unwrap().iter().map(name).collect();
        for target in &targets {
            target.has(arguments.watched).await;
        }
        let writer = apiserver.impatient_client().await;
        Self { _servers: servers, arguments: arguments.clone(), apiserver, writer, targets, names, changes: 0 }
    }

    async fn measure(&mut self, order: [usize; SERVERS.len()]) -> [Figures; SERVERS.len()] {
        let mut figures = [[0.0; FIGURES.len()]; SERVERS.len()];
        let (_, without) = self.change_for_a_time(None).await;
        for server in order {
            let target = self.targets[server].clone();
            let version = self.change().await;
            let before = memory(target.pid, "VmRSS");
            let watches = Watches::open(&target, self.arguments.watches, version).await;
            tokio::time::sleep(SETTLING).await;
            let open = memory(target.pid, "VmRSS");
            let (written, with) = self.change_for_a_time(Some(&watches)).await;
            let (after, deliveries) = (memory(target.pid, "VmRSS"), (written.len() * self.arguments.watches) as f64);
            let bytes = watches.end(&written).await;
            let each = |kib: f64| (kib - before) / self.arguments.watches as f64;
            figures[server][0] = (with[server] - without[server]) * 1e6 / deliveries;
            figures[server][1] = bytes as f64 / deliveries;
            (figures[server][2], figures[server][3]) = (each(open), each(after));
        }
        fill(&self.apiserver, self.arguments.watched..self.arguments.pods).await;
        for target in &self.targets {
            target.has(self.arguments.pods).await;
        }
        for (is_gzip, first) in [(false, 4), (true, 7)] {
            let mut seconds = [const { Vec::new() }; SERVERS.len()];
            for list in 0..=self.arguments.lists {
                self.change().await;
                for server in order {
                    let target = &self.targets[server];
                    let before = processor(target.pid);
                    let listed = target.list(self.arguments.pods, is_gzip).await;
                    let cost = processor(target.pid) - before;
                    // The first one pays what is done once.
                    if list > 0 {
                        figures[server][first] += cost * 1e3 / self.arguments.lists as f64;
                        figures[server][first + 2] = listed.bytes as f64 / 1e6;
                        seconds[server].push(listed.seconds);
                    }
                }
            }
            for (figures, mut seconds) in figures.iter_mut().zip(seconds) {
                seconds.sort_by(f64::total_cmp);
                figures[first + 1] = seconds[seconds.len() / 2] * 1e3;
            }
        }
        figures
    }

    /// Changes a pod, and returns its version.
    async fn change(&mut self) -> u64 {
        self.changes += 1;
        let path = format!("{PODS}/{}", self.names[self.changes % self.names.len()]);
        let annotations = json!({ "example.com/change": self.changes.to_string() });
        let body = json!({ "metadata": { "annotations": annotations } });
        let pod = ask(&self.writer, "PATCH", &path, Some(&body)).await.unwrap();
        pod["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap()
    }

    /// Changes pods at the rate, and waits until the watches have received it. Returns the versions, and the processor time of each server.
    async fn change_for_a_time(&mut self, watches: Option<&Watches>) -> (Vec<u64>, [f64; SERVERS.len()]) {
        let before = [0, 1, 2].map(|server: usize| processor(self.targets[server].pid));
        let (started, mut written) = (Instant::now(), Vec::new());
        for change in 0..self.arguments.rate * self.arguments.seconds {
            let due = Duration::from_secs_f64(f64::from(change) / f64::from(self.arguments.rate));
            tokio::time::sleep_until((started + due).into()).await;
            written.push(self.change().await);
        }
        if let Some(watches) = watches {
            watches.have(written.len() * self.arguments.watches).await;
        }
        tokio::time::sleep(SETTLING).await;
        (written, [0, 1, 2].map(|server: usize| processor(self.targets[server].pid) - before[server]))
    }
}
