//! Tree of an etcd, a root, relays and many watches, and its faults.
//!
//! ```sh
//! tests/upstreams/run --etcd cargo bench --bench tree                      # 100,000 watches, three runs
//! tests/upstreams/run --etcd cargo bench --bench tree -- --watches 5000 --runs 1
//! ```
//!
//! Starts etcd, one informerd over it, and relays of that one as processes of their own, and opens the watches on connections to the relays
//! from addresses of 127.0.0.0/8. Each watch checks that it receives each event exactly once. Prints a row for each phase: deliveries a
//! second, processor time (of the root, the relays and the clients), delays, the time until 99 % and all of the watches have the last
//! event, resident memory of a relay for each watch, bytes, resumes, lists from etcd, and missed and repeated events, which must be 0.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "the figures; and a bench that cannot go on ends, and says so"
)]

mod client;
#[allow(dead_code, reason = "the tests use the rest")]
#[path = "../../tests/upstreams/etcd.rs"]
mod etcd;
#[path = "../load/frames.rs"]
#[allow(dead_code, unused_imports, reason = "the bench `load` uses the rest, and its tests")]
mod frames;
#[path = "../load/messages.rs"]
#[allow(dead_code, unused_imports, reason = "the bench `load` uses the rest, and its tests")]
mod messages;
#[path = "../../tests/upstreams/port.rs"]
mod port;
#[allow(dead_code, reason = "the bench `kube` uses the rest")]
#[path = "../running.rs"]
mod running;
mod servers;
#[path = "../load/stats.rs"]
#[allow(dead_code, unused_imports, reason = "the bench `load` uses the rest, and its tests")]
mod stats;

use std::{
    collections::BTreeMap,
    process::ExitCode,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use clap::Parser;

use crate::{
    client::{BETWEEN, Clients, Plan, SEQUENCE_DIGITS},
    etcd::{Driver, Etcd, Version},
    messages::SENT_DIGITS,
    running::{processor, synced},
    servers::Server,
};

/// Measures a tree of relays.
#[derive(Debug, Clone, Parser)]
struct Arguments {
    /// Watches, distributed evenly over the relays.
    #[arg(long, default_value_t = 100_000)]
    watches: usize,
    /// Relays.
    #[arg(long, default_value_t = 4)]
    relays: usize,
    /// Watches of a connection.
    #[arg(long, default_value_t = 100)]
    watches_per_connection: usize,
    /// Bytes of an object.
    #[arg(long, default_value_t = 1024)]
    bytes: usize,
    /// Objects.
    #[arg(long, default_value_t = 1000)]
    objects: u32,
    /// Longest random time before a client that has lost its relay connects to another one, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    jitter: u64,
    /// Seconds of each phase with a rate.
    #[arg(long, default_value_t = 20)]
    seconds: u64,
    /// Runs.
    #[arg(long, default_value_t = 3)]
    runs: usize,
    /// Only the phases with these words in their names; the idle phase is always first.
    #[arg(long)]
    only: Vec<String>,
    #[arg(long, hide = true)]
    bench: bool,
}

/// Servers and clients of one run.
struct Tree {
    arguments: Arguments,
    etcd: Etcd,
    driver: Driver,
    root: Server,
    relays: Vec<Server>,
    clients: Clients,
    epoch: Instant,
    /// Sequence number of the last event.
    sequence: u32,
    /// Revision of the last write.
    revision: i64,
    /// Resident memory of each relay before the watches were opened, in KiB.
    before: f64,
    /// True if watches have not caught up in time.
    is_late: bool,
}

/// Figures at the beginning of a phase.
struct Begun {
    at: Instant,
    processor: [f64; 3],
    delivered: u64,
    bytes: u64,
    resumed: u64,
    lists: u64,
    events: u32,
}

/// Time in which all watches must have caught up.
const DEADLINE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(10);
const PREFIX: &str = "/things/";

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut is_exact = true;
    for run in 0..arguments.runs {
        println!("run {} of {}: {arguments:?}", run + 1, arguments.runs);
        let mut tree = runtime.block_on(Tree::start(&arguments));
        tree.phases(&runtime);
        let counters = std::sync::Arc::clone(&tree.clients.counters);
        tree.clients.stop();
        let wrong = [&counters.missed, &counters.repeated].map(|counter| counter.load(Ordering::Relaxed));
        is_exact &= wrong == [0, 0] && !tree.is_late;
        if wrong != [0, 0] {
            println!("{} events were missed, {} repeated", wrong[0], wrong[1]);
        }
    }
    if is_exact { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

// === impl Tree ===

impl Tree {
    async fn start(arguments: &Arguments) -> Self {
        let etcd = Etcd::start(Version::Latest).await;
        let mut driver = etcd.driver();
        let (epoch, mut sequence, mut revision) = (Instant::now(), 0, 0);
        for _ in 0..arguments.objects {
            sequence += 1;
            revision = driver.write(&object(arguments, sequence, epoch));
        }
        let root = Server::root(&etcd.url(), PREFIX);
        synced(&root.url()).await;
        let relays: Vec<_> = (0..arguments.relays).map(|_| Server::relay(&root)).collect();
        for relay in &relays {
            synced(&relay.url()).await;
        }
        let before = relays.iter().map(|relay| relay.memory("VmRSS")).sum::<f64>() / relays.len() as f64;
        let per_relay = arguments.watches / arguments.relays;
        let plan = Plan {
            relays: relays.iter().map(Server::port).collect(),
            connections: per_relay.div_ceil(arguments.watches_per_connection),
            watches: arguments.watches_per_connection.min(per_relay),
            jitter: Duration::from_millis(arguments.jitter),
            slow_one_in: 100,
            began: sequence,
        };
        let opening = Instant::now();
        let clients = Clients::start(&plan, 2, epoch);
        let all = (plan.relays.len() * plan.connections * plan.watches) as u64;
        while clients.counters.opened.load(Ordering::Relaxed) < all {
            let (open, ends) = (clients.counters.opened.load(Ordering::Relaxed), clients.counters.take_ends());
            assert!(opening.elapsed() < DEADLINE, "{open} of {all} watches are open in time: {ends:?}");
            tokio::time::sleep(LOOK).await;
        }
        println!("{all} watches open after {:.1} s", opening.elapsed().as_secs_f64());
        let arguments = Arguments { watches: all as usize, ..arguments.clone() };
        // The first BOOKMARK, with the version to resume from, follows the head of the response.
        tokio::time::sleep(Duration::from_secs(2)).await;
        Self { arguments, etcd, driver, root, relays, clients, epoch, sequence, revision, before, is_late: false }
    }

    fn phases(&mut self, runtime: &tokio::runtime::Runtime) {
        println!(
            "{:<26} {:>7} {:>10} {:>6} {:>6} {:>6} {:>8} {:>8} {:>9} {:>7} {:>7} {:>8} {:>6} {:>8} {:>8} {:>5} {:>6} {:>8}",
            "PHASE",
            "EVENTS",
            "A SECOND",
            "ROOT",
            "RELAYS",
            "CLIENT",
            "P50 ms",
            "P99 ms",
            "MAX ms",
            "99% s",
            "ALL s",
            "KiB EACH",
            "PEAK",
            "MB",
            "RESUMES",
            "LISTS",
            "MISSED",
            "REPEATED"
        );
        let seconds = Duration::from_secs(self.arguments.seconds);
        self.phase("idle", |_| std::thread::sleep(Duration::from_secs(10)));
        self.phase("1 event a second", |tree| tree.write_for(seconds, 1.0));
        self.phase("10 events a second", |tree| tree.write_for(seconds, 10.0));
        self.phase("burst of 100", |tree| (0..100).for_each(|_| tree.write()));
        self.phase("kill -9 of a relay", |tree| {
            tree.write_for(Duration::from_secs(2), 10.0);
            tree.relays[0].kill();
            tree.write_for(Duration::from_secs(1), 10.0);
        });
        if self.relays[0].is_gone() {
            self.relays[0].start();
            runtime.block_on(synced(&self.relays[0].url()));
        }
        self.phase("slow link, 1 in 100", |tree| {
            tree.clients.counters.is_slow.store(true, Ordering::Relaxed);
            tree.write_for(seconds, 2.0);
            tree.clients.counters.is_slow.store(false, Ordering::Relaxed);
        });
        self.phase("rolling restart", |tree| {
            for at in 0..tree.relays.len() {
                tree.relays[at].terminate();
                tree.relays[at].start();
                runtime.block_on(synced(&tree.relays[at].url()));
                tree.write_for(Duration::from_secs(3), 2.0);
            }
        });
        self.phase("upstream gone for 30 s", |tree| {
            tree.etcd.kill();
            std::thread::sleep(Duration::from_secs(30));
            runtime.block_on(tree.etcd.restart());
            tree.driver.settle();
            tree.write();
        });
        self.phase("relist of the root", |tree| {
            tree.clients.counters.is_unordered.store(true, Ordering::Relaxed);
            tree.root.kill();
            (0..100).for_each(|_| tree.write());
            tree.driver.compact(tree.revision);
            tree.root.start();
        });
        self.clients.counters.is_unordered.store(false, Ordering::Relaxed);
    }

    /// Runs a phase, waits until all watches have its last event, and prints its row.
    fn phase(&mut self, name: &str, act: impl FnOnce(&mut Self)) {
        let is_wanted = self.arguments.only.is_empty() || self.arguments.only.iter().any(|word| name.contains(word));
        if !is_wanted && name != "idle" {
            return;
        }
        let begun = self.begin();
        act(self);
        let (written, all) = (Instant::now(), self.arguments.watches);
        let (mut most, mut peak) = (None, 0.0_f64);
        let counters = std::sync::Arc::clone(&self.clients.counters);
        loop {
            let have = counters.have(self.sequence);
            let now = written.elapsed().as_secs_f64();
            most = most.or((have * 100 >= all * 99).then_some(now));
            peak = peak.max(self.relays.iter().map(Server::peak).fold(0.0, f64::max));
            if have == all && counters.opened.load(Ordering::Relaxed) == all as u64 {
                break;
            }
            if written.elapsed() > DEADLINE {
                self.is_late = true;
                println!(
                    "{name}: {have} of {all} have caught up, {} are open",
                    counters.opened.load(Ordering::Relaxed)
                );
                break;
            }
            std::thread::sleep(LOOK);
        }
        let (caught_up, time) = (written.elapsed().as_secs_f64(), begun.at.elapsed().as_secs_f64());
        let load = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
        let processor: Vec<f64> = self.processor().iter().zip(begun.processor).map(|(now, then)| now - then).collect();
        let delivered = load(&counters.delivered) - begun.delivered;
        let ms =
            |share| counters.latency(share).filter(|_| delivered > 0).map_or(0.0, |delay| delay.as_secs_f64() * 1e3);
        let per_relay = all as f64 / self.relays.len() as f64;
        let resident = self.relays.iter().map(|relay| relay.memory("VmRSS")).sum::<f64>() / self.relays.len() as f64;
        println!(
            "{name:<26} {:>7} {:>10.0} {:>6.2} {:>6.2} {:>6.2} {:>8.2} {:>8.2} {:>9.1} {:>7.2} {:>7.2} {:>8.2} {:>6.0} {:>8.0} {:>8} {:>5} {:>6} {:>8}",
            self.sequence - begun.events,
            delivered as f64 / time,
            processor[0],
            processor[1],
            processor[2],
            ms(0.5),
            ms(0.99),
            ms(1.0),
            most.unwrap_or(f64::NAN),
            caught_up,
            (resident - self.before) / per_relay,
            peak / 1024.0,
            (load(&counters.bytes) - begun.bytes) as f64 / 1e6,
            load(&counters.resumed) - begun.resumed,
            self.root.lists().saturating_sub(begun.lists),
            load(&counters.missed),
            load(&counters.repeated),
        );
        for end in counters.take_ends() {
            println!("  a watch ended: {end}");
        }
        let (expired, failed) = (load(&counters.expired), load(&counters.connects_failed));
        if expired + failed > 0 {
            println!("  so far {expired} watches could not resume, {failed} connections failed");
        }
        for relay in &self.relays {
            relay.report_refusals();
        }
    }

    fn begin(&self) -> Begun {
        let counters = &self.clients.counters;
        counters.begin_latencies();
        Begun {
            at: Instant::now(),
            processor: self.processor(),
            delivered: counters.delivered.load(Ordering::Relaxed),
            bytes: counters.bytes.load(Ordering::Relaxed),
            resumed: counters.resumed.load(Ordering::Relaxed),
            lists: self.root.lists(),
            events: self.sequence,
        }
    }

    /// Returns the processor time of the root, the relays and the clients.
    fn processor(&self) -> [f64; 3] {
        let relays = self.relays.iter().map(Server::processor).sum();
        [self.root.processor(), relays, processor(std::process::id())]
    }

    /// Writes events at a rate for a time.
    fn write_for(&mut self, time: Duration, rate: f64) {
        let began = Instant::now();
        for event in 0..(time.as_secs_f64() * rate) as u32 {
            let due = began + Duration::from_secs_f64(f64::from(event) / rate);
            std::thread::sleep(due.saturating_duration_since(Instant::now()));
            self.write();
        }
        std::thread::sleep((began + time).saturating_duration_since(Instant::now()));
    }

    fn write(&mut self) {
        self.sequence += 1;
        self.revision = self.driver.write(&object(&self.arguments, self.sequence, self.epoch));
    }
}

/// Returns the write of an event, of which the sequence number and the time are the last fields.
fn object(arguments: &Arguments, sequence: u32, epoch: Instant) -> BTreeMap<String, Option<String>> {
    let number = sequence % arguments.objects;
    let head = format!("{{\"metadata\":{{\"name\":\"thing-{number}\"}},\"filler\":\"");
    let tail = format!(
        "\",\"n\":\"{sequence:0SEQUENCE_DIGITS$}{}{:0SENT_DIGITS$}\"}}",
        std::str::from_utf8(BETWEEN).unwrap(),
        epoch.elapsed().as_nanos()
    );
    let filler = "x".repeat(arguments.bytes.saturating_sub(head.len() + tail.len()));
    BTreeMap::from([(format!("{PREFIX}a/thing-{number}"), Some(format!("{head}{filler}{tail}")))])
}
