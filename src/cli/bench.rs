//! `informerd bench`.

use std::{
    io::Write,
    net::{SocketAddr, ToSocketAddrs},
    path::PathBuf,
};

use clap::{ArgGroup, Args, Subcommand, ValueEnum};
use serde_json::json;

use super::{
    FAILED,
    client_flags::FormatFlags,
    failure::Failure,
    print::{Record, json::Document, table::Cell, write_records},
    stdout,
};
use crate::{
    bench::{self, Bench, BenchError, ClientConfig, FanOut, MAX_WINDOW, Metric, Mode, Remote, Report, Spread, Subject},
    client::ServerAddress,
    proto::pb,
};

pub(super) const EXAMPLES: &str = "\
Examples:
  # what a delivery costs, saturated and at a fixed rate, of a server that is started for it
  informerd bench w1 --local
  informerd bench w1 --local --watchers 1000 --rate 20
  informerd bench w2 --local --rate 100 --seconds 10 -o json

  # of a server that runs already
  mkfifo /tmp/feed
  informerd serve --stream bench=/tmp/feed &
  informerd bench w1 --server 127.0.0.1:50051 --feed /tmp/feed --pid $!

  # beside the baselines, from the source tree
  cargo bench --bench wire -- w1 --watchers 100 --reps 7

Every run checks that each watcher has had each of its events once; if not, there are no figures. Medians of all runs, with
the least and the most; `naive / informerd` is how many times better informerd's median is.

  SERVER us   processor time of the server (user and system, all threads) for each delivery; for each event in w3
  CLIENT us   of the load client. BOTH us is what to compare when sockets stand full: cost then moves from server to client
  k/s         thousands of deliveries (w3: of events) a second
  P50, P99    from the publisher's write to the client's read; saturated, that is how full the queues and sockets are
  RSS         resident memory of the server, at most; SOCKETS: of all TCP sockets of the machine, both ends

Exit codes: 0 done; 1 a run failed, or its counts did not fit; 2 wrong usage.";

/// How to measure what.
#[derive(Debug, Clone, Args)]
pub(super) struct BenchFlags {
    #[command(subcommand)]
    mode: ModeFlags,
}

#[derive(Debug, Clone, Subcommand)]
enum ModeFlags {
    /// Everybody watches everything, each on a connection of its own
    W1(W1Flags),
    /// Everybody watches everything, on a few connections
    W2(W2Flags),
    /// Each watches the objects under one value of an index, and each event goes to one
    W3(W3Flags),
}

/// What all modes have.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("target").args(["local", "server"]).required(true))]
struct CommonFlags {
    /// Start an informerd of this program for each run, and end it afterwards
    #[arg(long, help_heading = "Server")]
    local: bool,

    /// Measure the informerd that runs there: `HOST:PORT`
    #[arg(long, value_name = "ADDR", requires = "feed", help_heading = "Server")]
    server: Option<ServerAddress>,

    /// With --server: the named pipe that its `stream` source reads
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    feed: Option<PathBuf>,

    /// With --server: the resource of that source; for w3 it has an index `node` of the path .spec.nodeName
    #[arg(long, value_name = "NAME", default_value = "bench", help_heading = "Server")]
    resource: String,

    /// With --server: its process, if it runs on this machine; without it there is no SERVER us
    #[arg(long, value_name = "PID", help_heading = "Server")]
    pid: Option<u32>,

    /// Measure these as well, in turns: `naive=PROGRAM`, `floor=PROGRAM`, separated by commas (benches/wire has both)
    #[arg(long, value_name = "NAME=PROGRAM", value_delimiter = ',', value_parser = parse_baseline, help_heading = "Server")]
    baseline: Vec<Subject>,

    /// Events that a server started by --local keeps in its history; it is part of RSS
    #[arg(long, value_name = "EVENTS", default_value_t = 10_000, help_heading = "Server")]
    history: u64,

    /// Runs of each server
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    reps: u16,

    /// Bytes of an object's JSON
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(..=1 << 20))]
    size: u32,

    /// What happens when a watcher's queue is full
    #[arg(long, value_name = "POLICY", value_enum, default_value_t = Policy::Block, help_heading = "Watchers")]
    policy: Policy,

    /// Length of a watcher's queue, in events
    #[arg(long, value_name = "EVENTS", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Watchers")]
    queue: u32,

    /// The client's windows, of each stream and each connection, in bytes
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = MAX_WINDOW,
        value_parser = clap::value_parser!(u32).range(65_535..=i64::from(MAX_WINDOW)),
        help_heading = "Watchers"
    )]
    window: u32,

    /// The largest HTTP/2 frame that the client takes, in bytes
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 16_384,
        value_parser = clap::value_parser!(u32).range(16_384..=16_777_215),
        help_heading = "Watchers"
    )]
    max_frame: u32,

    /// Do not tell on stderr which run it is
    #[arg(short, long)]
    quiet: bool,

    #[command(flatten)]
    format: FormatFlags,
}

/// How many events, and how fast.
#[derive(Debug, Clone, Args)]
struct LoadFlags {
    /// Events to measure [default: 2,000,000 deliveries' worth, or --rate for --seconds]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    events: Option<u64>,

    /// Events a second [default: as fast as the slowest watcher]
    #[arg(long, value_name = "N", value_parser = parse_rate)]
    rate: Option<f64>,

    /// With --rate: for how long
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

#[derive(Debug, Clone, Args)]
struct W1Flags {
    /// Watchers, and connections
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    watchers: u32,
    #[command(flatten)]
    load: LoadFlags,
    #[command(flatten)]
    common: CommonFlags,
}

#[derive(Debug, Clone, Args)]
struct W2Flags {
    /// Watchers
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    watchers: u32,
    /// Connections that they share
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    #[command(flatten)]
    load: LoadFlags,
    #[command(flatten)]
    common: CommonFlags,
}

#[derive(Debug, Clone, Args)]
struct W3Flags {
    /// Watchers; the naive baseline gets a hundredth of the events when there is no --rate
    #[arg(long, value_name = "N", default_value_t = 5000, value_parser = clap::value_parser!(u32).range(1..))]
    watchers: u32,
    /// Connections that they share
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Values of the index, each with one object [default: one for each watcher]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=9_999_999))]
    values: Option<u32>,
    #[command(flatten)]
    load: LoadFlags,
    #[command(flatten)]
    common: CommonFlags,
}

/// What happens when a queue is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Policy {
    /// Everybody waits, so that it is measured what the server can do
    Block,
    /// It is told from the history
    Replay,
    /// Events are lost
    Drop,
    /// Events merge
    Coalesce,
}

/// What is delivered when nobody says how many events.
const DELIVERIES: u64 = 2_000_000;
/// The same of w3, where a delivery costs an event.
const SELECTED: u64 = 400_000;

pub(super) fn run(flags: &BenchFlags) -> Result<(), Failure> {
    let common = flags.mode.common();
    let (bench, mode) = (common.bench()?, flags.mode.mode()?);
    let note = |note: &str| {
        if !common.quiet {
            // A closed stderr leaves nobody to tell.
            drop(writeln!(std::io::stderr(), "{note}"));
        }
    };
    let report = bench::run(&bench, &mode, note)?;
    print(&report, &common.format)
}

/// A row for each subject, and one for each that the first is compared with.
fn print(report: &Report, format: &FormatFlags) -> Result<(), Failure> {
    let metrics = report.metrics();
    let header: Vec<&str> = ["SUBJECT"].into_iter().chain(metrics.iter().map(|metric| metric.heading)).collect();
    let mut records: Vec<Record> = report.subjects().map(|subject| measured(report, subject, &metrics)).collect();
    records.extend(report.subjects().skip(1).map(|other| compared(report, other, &metrics)));
    Ok(write_records(stdout(), &format.options(), ("bench", &header), records)?)
}

fn measured(report: &Report, subject: &str, metrics: &[&'static Metric]) -> Record {
    let mut values = serde_json::Map::new();
    let mut cells = vec![Cell::new(subject)];
    for metric in metrics {
        let Some(Spread { median, min, max }) = report.spread(subject, metric) else {
            cells.push(Cell::new("<none>"));
            continue;
        };
        let runs = report.values(subject, metric);
        let text = if runs.len() == 1 {
            number(median)
        } else {
            format!("{} [{}-{}]", number(median), number(min), number(max))
        };
        cells.push(Cell::new(&text));
        let value = json!({ "median": median, "min": min, "max": max, "runs": runs });
        values.insert(metric.key.to_owned(), value);
    }
    let document = json!({ "subject": subject, "measured": values });
    Record { name: subject.to_owned(), cells, document: Document::from_value(&document) }
}

fn compared(report: &Report, other: &str, metrics: &[&'static Metric]) -> Record {
    let name = format!("{other} / {}", report.subjects().next().unwrap_or_default());
    let mut values = serde_json::Map::new();
    let mut cells = vec![Cell::new(&name)];
    for metric in metrics {
        let ratio = report.ratio(other, metric);
        cells.push(Cell::new(&ratio.map(|ratio| format!("{}x", number(ratio))).unwrap_or_default()));
        values.extend(ratio.map(|ratio| (metric.key.to_owned(), ratio.into())));
    }
    let document = json!({ "subject": name, "times_better": values });
    Record { name, cells, document: Document::from_value(&document) }
}

/// With three digits that count.
fn number(value: f64) -> String {
    match value.abs() {
        0.0 => "0".to_owned(),
        size if size >= 99.95 => format!("{value:.0}"),
        size if size >= 9.995 => format!("{value:.1}"),
        size if size >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate >= 0.01);
    rate.ok_or_else(|| "events a second, at least 0.01".to_owned())
}

fn parse_baseline(text: &str) -> Result<Subject, String> {
    match text.split_once('=') {
        Some((_, "")) => Err("the program is missing after `=`".to_owned()),
        Some(("naive", program)) => Ok(Subject::Naive { program: program.into() }),
        Some(("floor", program)) => Ok(Subject::Floor { program: program.into() }),
        _ => Err("expected naive=PROGRAM or floor=PROGRAM".to_owned()),
    }
}

// === impl ModeFlags ===

impl ModeFlags {
    fn common(&self) -> &CommonFlags {
        match self {
            Self::W1(W1Flags { common, .. }) | Self::W2(W2Flags { common, .. }) | Self::W3(W3Flags { common, .. }) => {
                common
            }
        }
    }

    fn mode(&self) -> Result<Mode, Failure> {
        let fan_out = match self {
            Self::W1(W1Flags { watchers, load, .. }) => load.of(DELIVERIES, *watchers, *watchers, None),
            Self::W2(W2Flags { watchers, connections, load, .. }) => load.of(DELIVERIES, *watchers, *connections, None),
            Self::W3(W3Flags { watchers, connections, values, load, .. }) => {
                load.of(SELECTED, *watchers, *connections, Some(values.unwrap_or(*watchers)))
            }
        };
        if let FanOut { watchers, connections, .. } = fan_out
            && connections > watchers
        {
            let message = format!("{connections} connections are more than {watchers} watchers; lower --connections");
            return Err(Failure::usage(message));
        }
        Ok(Mode::FanOut(fan_out))
    }
}

// === impl LoadFlags ===

impl LoadFlags {
    fn of(&self, deliveries: u64, watchers: u32, connections: u32, values: Option<u32>) -> FanOut {
        let saturated = if values.is_some() { deliveries } else { (deliveries / u64::from(watchers)).max(1) };
        let paced = self.rate.map(|rate| (rate * self.seconds as f64).ceil() as u64);
        FanOut {
            watchers: watchers as usize,
            connections: connections as usize,
            events: self.events.or(paced).unwrap_or(saturated).max(1),
            rate: self.rate,
            values: values.map(u64::from),
        }
    }
}

// === impl CommonFlags ===

impl CommonFlags {
    fn bench(&self) -> Result<Bench, Failure> {
        let mut subjects = vec![self.subject()?];
        subjects.extend(self.baseline.iter().cloned());
        Ok(Bench {
            subjects,
            repetitions: self.reps.into(),
            client: ClientConfig { window: self.window, max_frame: self.max_frame },
            policy: self.policy.into(),
            queue: self.queue,
            size: self.size as usize,
            history: self.history,
        })
    }

    fn subject(&self) -> Result<Subject, Failure> {
        let (Some(server), Some(feed)) = (&self.server, &self.feed) else {
            let program = std::env::current_exe();
            let program =
                program.map_err(|error| Failure::new(FAILED, format!("cannot find this program: {error}")))?;
            return Ok(Subject::Local { program });
        };
        let (address, resource) = (resolve(server)?, self.resource.clone());
        Ok(Subject::Remote(Remote { address, resource, feed: feed.clone(), pid: self.pid }))
    }
}

fn resolve(server: &ServerAddress) -> Result<SocketAddr, Failure> {
    if server.is_unix() {
        return Err(Failure::usage("the load client speaks TCP: give --server HOST:PORT"));
    }
    let found = server.to_string().to_socket_addrs().map(|mut addresses| addresses.next());
    let unknown = |why: String| Failure::usage(format!("{server} cannot be found{why}"));
    found.map_err(|error| unknown(format!(": {error}")))?.ok_or_else(|| unknown(String::new()))
}

// === impl Policy ===

impl From<Policy> for pb::FullChannelPolicy {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Block => Self::Block,
            Policy::Replay => Self::Replay,
            Policy::Drop => Self::Drop,
            Policy::Coalesce => Self::Coalesce,
        }
    }
}

// === impl Failure ===

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        Self::new(FAILED, super::print::escape(&error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Flags {
        #[command(flatten)]
        bench: BenchFlags,
    }

    fn parse(arguments: &str) -> Result<(Bench, Mode), String> {
        let flags = Flags::try_parse_from(["bench"].into_iter().chain(arguments.split_whitespace()));
        let mode = flags.map_err(|error| error.to_string())?.bench.mode;
        let parsed = mode.common().bench().and_then(|bench| Ok((bench, mode.mode()?)));
        parsed.map_err(|failure| failure.to_string())
    }

    fn fan_out(arguments: &str) -> FanOut {
        let Mode::FanOut(fan_out) = parse(arguments).unwrap().1;
        fan_out
    }

    #[test]
    fn a_mode_is_as_large_as_it_is_told() {
        let w1 = FanOut { watchers: 100, connections: 100, events: 20_000, rate: None, values: None };
        assert_eq!(fan_out("w1 --local"), w1);
        let w2 = FanOut { watchers: 1000, connections: 4, events: 1000, rate: Some(100.0), values: None };
        assert_eq!(fan_out("w2 --local --rate 100 --seconds 10"), w2);
        let w3 = FanOut { watchers: 10, connections: 5, events: 7, rate: None, values: Some(10_000) };
        assert_eq!(fan_out("w3 --local --watchers 10 --connections 5 --values 10000 --events 7"), w3);
        assert_eq!(fan_out("w3 --local").values, Some(5000));
        assert_eq!(fan_out("w1 --local --watchers 5000000").events, 1);
    }

    #[test]
    fn the_subject_and_its_baselines_are_told_apart() {
        let (bench, _) = parse("w1 --local --baseline naive=/a,floor=/b --policy replay --reps 7").unwrap();
        let names: Vec<&str> = bench.subjects.iter().map(Subject::name).collect();
        assert_eq!(names, ["informerd", "naive", "floor"]);
        assert_eq!((bench.repetitions, bench.policy), (7, pb::FullChannelPolicy::Replay));
        let (bench, _) = parse("w1 --server 127.0.0.1:5 --feed /tmp/feed --pid 7 --resource pods").unwrap();
        let address = ([127, 0, 0, 1], 5).into();
        let remote = Remote { address, resource: "pods".to_owned(), feed: "/tmp/feed".into(), pid: Some(7) };
        assert_eq!(bench.subjects, [Subject::Remote(remote)]);
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (arguments, hint) in [
            ("w1", "--local"),
            ("w1 --local --server 127.0.0.1:5 --feed x", "cannot be used with"),
            ("w1 --server 127.0.0.1:5", "--feed"),
            ("w1 --server unix:/run/x.sock --feed x", "speaks TCP"),
            ("w1 --local --baseline slow=/a", "naive=PROGRAM"),
            ("w1 --local --baseline naive=", "program is missing"),
            ("w1 --local --rate 0", "events a second"),
            ("w1 --local --watchers 0", "0 is not in"),
            ("w2 --local --watchers 3", "more than 3 watchers"),
            ("w1 --local --window 5", "65535"),
            ("w1 --local --max-frame 5", "16384"),
            ("w9 --local", "unrecognized subcommand"),
        ] {
            let error = parse(arguments).unwrap_err();
            assert!(error.contains(hint), "{arguments}: {hint} is not in {error}");
        }
    }

    #[test]
    fn a_number_has_three_digits_that_count() {
        let texts = [0.0, 0.1734, 0.99949, 1.734, 17.34, 99.96, 173.4, 17_340.0].map(number);
        assert_eq!(texts, ["0", "0.173", "0.999", "1.73", "17.3", "100", "173", "17340"]);
    }
}
