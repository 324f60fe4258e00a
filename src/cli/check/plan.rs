//! `informerd check --plan`: what a number of subscribers needs, by the formula of docs/scale.md.

use std::{
    collections::HashSet,
    fmt,
    io::{self, Write},
    str::FromStr,
};

use crate::{app::MAX_CONNECTIONS, cli::print::quantity, config::Config};

/// Work to plan for, and the machines for it: `subscribers=100000,rate=10,bytes=1024`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Plan {
    /// Watches.
    subscribers: f64,
    /// Events that each of them receives in a second.
    rate: f64,
    /// Bytes of an object.
    bytes: f64,
    /// Connections on which the watches are, one each if left out.
    connections: Option<f64>,
    /// Bytes of JSON of all objects.
    objects: f64,
    /// Processors, network in gigabits a second, and memory in bytes of a machine.
    cores: f64,
    gbit: f64,
    memory: f64,
}

/// Needs of one process with some of the subscribers.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Needs {
    /// Processors, if each event is delivered at once; and if a busy server delivers several at a time.
    cores: f64,
    least_cores: f64,
    /// Bits a second.
    bits: f64,
    /// Bytes.
    memory: f64,
}

/// Processor seconds of an event: reading, applying and publishing it, whoever watches (benches/README.md, `w3`).
const EVENT: f64 = 6.8e-6;
/// Processor seconds of an event that is delivered at once: for each connection, and for each watch. Measured by `benches/tree`, as all
/// of the following, with objects of 1 KiB.
const SEND: f64 = 14.5e-6;
const DELIVERY: f64 = 2.9e-6;
/// Processor seconds of a delivery where a busy server sends several events at a time.
const MERGED: f64 = 0.8e-6;
/// Processor seconds of a watch in each second: its bookmarks.
const IDLE: f64 = 0.2e-6;
/// Bytes of a delivery beside the object: its message, HTTP/2's frame, TCP and IP.
const ENVELOPE: f64 = 80.0;
/// Bytes of a process without objects and clients.
const PROCESS: f64 = 64.0 * MIB;
/// Bytes in the cache for a byte of JSON.
const CACHED: f64 = 1.4;
/// Bytes of an open watch, and of a connection.
const WATCH: f64 = 5.1 * 1024.0;
const CONNECTION: f64 = 22.0 * 1024.0;
/// Processor seconds of a watch that is opened at its last version, and of a connection without TLS.
const OPENING: f64 = 40e-6;
const CONNECTING: f64 = 100e-6;
/// Longest random time after which a client of this project connects again, in seconds.
const JITTER: f64 = 1.0;
/// Part of a machine that the plan uses: the rest is for bursts, and for the clients of a process that is lost.
const USED: f64 = 0.6;
const MIB: f64 = 1024.0 * 1024.0;

// === impl Plan ===

impl Plan {
    /// Returns the needs of a process that serves a part of the subscribers.
    fn needs(&self, config: &Config, share: f64) -> Needs {
        let (watches, connections) = (self.subscribers * share, self.connections() * share);
        let deliveries = watches * self.rate;
        let sends = connections.min(watches) * self.rate;
        let fixed = self.rate * EVENT + watches * IDLE;
        let history = (config.history.size * config.resources.len()) as f64;
        let held = config.limits.memory.map_or(1024.0 * MIB, |bytes| bytes as f64);
        Needs {
            cores: fixed + sends * SEND + deliveries * DELIVERY,
            least_cores: fixed + deliveries * MERGED,
            bits: deliveries * (self.bytes + ENVELOPE) * 8.0,
            memory: PROCESS + self.objects * CACHED + history + held + watches * WATCH + connections * CONNECTION,
        }
    }

    fn connections(&self) -> f64 {
        self.connections.unwrap_or(self.subscribers)
    }

    /// Returns the number of processes, and the reason for it.
    ///
    /// # Errors
    ///
    /// If a machine has no room for a process without clients.
    fn processes(&self, config: &Config) -> Result<(f64, &'static str), String> {
        let (none, all) = (self.needs(config, 0.0), self.needs(config, 1.0));
        let room = self.memory * USED - none.memory;
        if room <= 0.0 {
            let [needed, used] = [none.memory, self.memory * USED].map(|bytes| quantity::bytes(bytes as u64));
            return Err(format!(
                "a process needs {needed} without subscribers (objects, history.bytes of each resource, limits.memory), and the plan uses {used} of a machine: plan for more memory, or lower these"
            ));
        }
        let counts = [
            (all.cores / (self.cores * USED), "its processors"),
            (all.bits / (self.gbit * 1e9 * USED), "its network"),
            ((all.memory - none.memory) / room, "its memory"),
            (self.connections() / MAX_CONNECTIONS as f64, "its connections"),
            (self.subscribers / config.watch.max_watchers as f64, "watch.max_watchers"),
        ];
        let counts = counts.into_iter().map(|(processes, reason)| (processes.ceil().max(1.0), reason));
        Ok(counts.max_by(|(one, _), (other, _)| one.total_cmp(other)).unwrap_or((1.0, "")))
    }

    /// Returns the seconds until the subscribers of a lost process have their place at the others.
    fn recovery(&self, processes: f64) -> f64 {
        let lost = OPENING * self.subscribers / processes + CONNECTING * self.connections() / processes;
        JITTER + lost / (self.cores * (processes - 1.0).max(1.0))
    }

    /// Prints the plan, or returns why there is none.
    pub(super) fn print(&self, config: &Config, out: &mut impl Write) -> io::Result<Result<(), String>> {
        let (processes, reason) = match self.processes(config) {
            Ok(processes) => processes,
            Err(problem) => return Ok(Err(problem)),
        };
        writeln!(out, "plan: {self}")?;
        let Needs { cores, bits, memory, .. } = self.needs(config, 1.0 / processes);
        let deliveries = self.subscribers * self.rate;
        let all = self.needs(config, 1.0);
        let (gbit, least) = (all.bits / 1e9, all.least_cores);
        writeln!(
            out,
            "  deliveries: {deliveries:.0} a second, {gbit:.2} Gbit/s, {:.2} processors; {least:.2} where several events are delivered at a time",
            all.cores
        )?;
        let size = |bytes: f64| quantity::bytes(bytes as u64);
        let each = self.subscribers / processes;
        let why = if processes > 1.0 { format!(" (what decides is {reason})") } else { String::new() };
        writeln!(
            out,
            "  processes: {processes}{why}, each with {each:.0} watches, {:.2} Gbit/s, {cores:.2} processors, {}",
            bits / 1e9,
            size(memory)
        )?;
        let replicas = processes + 1.0;
        if processes > 1.0 {
            writeln!(
                out,
                "  tree: one informerd at the upstream and {replicas} relays of it, one of them to spare; the upstream has one client"
            )?;
        } else {
            writeln!(out, "  replicas: {replicas}, one of them to spare; the upstream has {replicas} clients")?;
        }
        writeln!(out, "  a lost process: its watches are open again after {:.1} s", self.recovery(replicas))?;
        let share = config.watch.max_watchers as f64 * f64::from(config.limits.peer_share) / 100.0;
        if each > share {
            writeln!(
                out,
                "  one user or address has at most {share:.0} of these watches (limits.peer_share): add a gateway or NAT to limits.trusted_peers"
            )?;
        }
        Ok(Ok(()))
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { subscribers, rate, bytes, cores, gbit, memory, .. } = self;
        let memory = quantity::bytes(*memory as u64);
        write!(f, "{subscribers} subscribers on {} connections, ", self.connections())?;
        write!(
            f,
            "{rate} events a second of {bytes} bytes for each; machines of {cores} processors, {gbit} Gbit/s and {memory}"
        )
    }
}

impl FromStr for Plan {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut plan = Self {
            subscribers: f64::NAN,
            rate: 1.0,
            bytes: 1024.0,
            connections: None,
            objects: 0.0,
            cores: 4.0,
            gbit: 10.0,
            memory: 8192.0 * MIB,
        };
        let mut keys = HashSet::new();
        for part in text.split(',') {
            let (key, value) = part.split_once('=').ok_or_else(|| format!("expected KEY=NUMBER, found {part:?}"))?;
            let (key, value) = (key.trim(), value.trim());
            if !keys.insert(key) {
                return Err(format!("{key} is given twice"));
            }
            let number =
                value.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0 && *number <= 1e12);
            let number =
                number.ok_or_else(|| format!("{key}: expected a positive number up to 1e12, found {value:?}"))?;
            match key {
                "subscribers" => plan.subscribers = number,
                "rate" => plan.rate = number,
                "bytes" => plan.bytes = number,
                "connections" => plan.connections = Some(number),
                "objects" => plan.objects = number * MIB,
                "cores" => plan.cores = number,
                "gbit" => plan.gbit = number,
                "memory" => plan.memory = number * MIB,
                _ => {
                    let known = "subscribers, rate, bytes, connections, objects (MiB), cores, gbit, memory (MiB)";
                    return Err(format!("{key:?} is unknown; known: {known}"));
                }
            }
        }
        if plan.subscribers.is_nan() { Err("subscribers=NUMBER is missing".to_owned()) } else { Ok(plan) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ServeFlags;

    /// Loads a configuration with these other keys.
    fn config(other: &str) -> Config {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config.yaml");
        std::fs::write(&path, format!("resources: {{ a: {{ source: {{ files: {{ path: . }} }} }} }}\n{other}"))
            .unwrap();
        Config::load(&ServeFlags { config: Some(path), ..ServeFlags::default() }).unwrap()
    }

    fn plan(text: &str, other: &str) -> String {
        let mut out = Vec::new();
        match text.parse::<Plan>().unwrap().print(&config(other), &mut out).unwrap() {
            Ok(()) => String::from_utf8(out).unwrap(),
            Err(problem) => problem,
        }
    }

    fn needs(text: &str) -> Needs {
        text.parse::<Plan>().unwrap().needs(&config(""), 1.0)
    }

    #[test]
    fn a_plan_says_what_decides() {
        let one = plan("subscribers=1000", "");
        assert!(one.contains("processes: 1, ") && !one.contains("tree"), "{one}");
        assert!(
            one.contains("replicas: 2") && one.contains("a lost process: its watches are open again after"),
            "{one}"
        );
        for (text, reason) in [
            ("subscribers=100000,rate=100,bytes=10,gbit=1000,memory=1000000", "its processors"),
            ("subscribers=100000,rate=10,bytes=100000,cores=1000", "its network"),
            ("subscribers=100000,rate=0.001,memory=4096", "its memory"),
            ("subscribers=1000000,rate=0.001,connections=10000,memory=1000000", "watch.max_watchers"),
            ("subscribers=400000,rate=0.001,memory=1000000", "its connections"),
        ] {
            let plan = plan(text, if reason == "its connections" { "watch: { max_watchers: 1000000 }" } else { "" });
            assert!(plan.contains(&format!("what decides is {reason}")), "{text}: {plan}");
            assert!(plan.contains("one informerd at the upstream"), "{plan}");
        }
        let text = "subscribers=100000,rate=100,bytes=10,gbit=1000,memory=1000000";
        let processes = (needs(text).cores / (4.0 * USED)).ceil();
        let plan = plan(text, "");
        assert!(plan.contains(&format!("processes: {processes} ")), "{plan}");
        assert!(plan.contains(&format!("and {} relays", processes + 1.0)), "{plan}");
        // Half of the subscribers move to the other process.
        let recovery = text.parse::<Plan>().unwrap().recovery(2.0);
        assert!((recovery - JITTER - 50_000.0 * (OPENING + CONNECTING) / 4.0).abs() < 1e-9, "{recovery}");
    }

    #[test]
    fn a_machine_without_room_for_a_process_has_no_plan() {
        for text in ["subscribers=1,memory=1", "subscribers=1000,memory=4096,objects=1000000"] {
            let plan = plan(text, "");
            assert!(plan.contains("a process needs") && !plan.contains("processes:"), "{plan}");
        }
        let text = "subscribers=1,memory=3000";
        assert!(plan(text, "").contains("processes: 1"));
        let file = "history: { bytes: 1GiB }";
        assert!(plan(text, file).contains("a process needs"), "the history is part of it");
    }

    #[test]
    fn a_plan_grows_with_each_of_its_numbers() {
        let base = needs("subscribers=1000,rate=1,bytes=100,connections=10");
        let more = needs("subscribers=2000,rate=1,bytes=100,connections=10");
        assert!(more.cores > base.cores && more.memory > base.memory);
        assert!((more.bits / base.bits - 2.0).abs() < 1e-9);
        assert!(needs("subscribers=1000,rate=2,bytes=100,connections=10").bits > base.bits);
        assert!(needs("subscribers=1000,rate=1,bytes=200,connections=10").bits > base.bits);
        let connected = needs("subscribers=1000,rate=1,bytes=100,connections=20");
        assert!(connected.memory > base.memory && connected.cores > base.cores);
        let idle = needs("subscribers=1000,rate=1,bytes=100,connections=2000");
        assert!((idle.cores - needs("subscribers=1000,rate=1,bytes=100").cores).abs() < 1e-9, "one event for a watch");
        let fixed = config("").history.size as f64 + 1024.0 * MIB;
        assert!(base.memory > fixed && base.memory < fixed + PROCESS + 10.0 * MIB);
        let objects = needs("subscribers=1000,rate=1,bytes=100,connections=10,objects=1");
        assert!((objects.memory - base.memory - CACHED * MIB).abs() < 1.0);
    }

    /// Points of benches/README.md, on two processors.
    #[test]
    fn measured_points_lie_within_a_quarter_of_the_formula() {
        let near =
            |computed: f64, measured: f64| assert!((computed / measured - 1.0).abs() < 0.25, "{computed} {measured}");
        let (shared, own) = ("subscribers=100000,connections=1000", "subscribers=16000");
        near(needs(&format!("{shared},rate=1")).cores, 6.16 / 20.0);
        near(needs(&format!("{own},rate=1")).cores, 2.92 / 10.0);
        // A burst of 100 events, without what is fixed.
        near(100.0 * 100_000.0 * MERGED, 6.85);
        near(100.0 * 16_000.0 * MERGED, 1.62);
        near(needs(&format!("{shared},rate=10")).bits / 8.0, 22_047e6 / 20.2);
        for (text, watches, each) in [(shared, 100_000.0, 5.2), (own, 16_000.0, 27.4)] {
            near((needs(text).memory - needs("subscribers=1").memory) / watches / 1024.0, each);
        }
        // The longest delay of an event while 25,000 watches move.
        near(JITTER + 25_000.0 * OPENING / 2.0 + 250.0 * CONNECTING / 2.0, 1.80);
    }

    #[test]
    fn the_share_of_one_caller_is_named_if_it_is_less_than_the_watches_of_a_process() {
        let text = "subscribers=100000,rate=0.1";
        // A trusted peer has no share; one user behind it does.
        for file in ["", "limits: { trusted_peers: [10.0.0.0/8] }"] {
            assert!(plan(text, file).contains("has at most 25000 of these watches"), "{}", plan(text, file));
        }
        assert!(!plan(text, "limits: { peer_share: 100 }").contains("limits.trusted_peers"));
        assert!(!plan("subscribers=25000,rate=0.1", "").contains("limits.trusted_peers"));
    }

    #[test]
    fn bad_plans_are_refused_with_the_key() {
        for (text, problem) in [
            ("", "expected KEY=NUMBER, found \"\""),
            ("subscribers=1,", "expected KEY=NUMBER, found \"\""),
            ("subscribers=1, subscribers = 2", "subscribers is given twice"),
            ("subscribers=", "subscribers: expected a positive number"),
            ("rate=1", "subscribers=NUMBER is missing"),
            ("subscribers=0", "subscribers: expected a positive number"),
            ("subscribers=-1", "subscribers: expected a positive number"),
            ("subscribers=inf", "subscribers: expected a positive number"),
            ("subscribers=1,rate=x", "rate: expected a positive number"),
            ("subscribers=1,clients=2", "\"clients\" is unknown; known: subscribers"),
        ] {
            let error = text.parse::<Plan>().unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
