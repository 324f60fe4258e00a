//! Flags of the load generator.

mod policy;

use std::{
    env,
    net::{SocketAddr, ToSocketAddrs},
    path::PathBuf,
    time::Duration,
};

use clap::{ArgGroup, Args, Parser, Subcommand};
use informerd::{client::ServerAddress, config::parse_duration};

use self::policy::Policy;
use super::{
    client::ClientConfig,
    compressed::Compressed,
    error::Failure,
    fan_out::{FanOut, Watches},
    frames::MAX_WINDOW,
    idle::Idle,
    mode::Mode,
    print::Output,
    run::Bench,
    sink::Call,
    stopped::Stopped,
    storm::{Lists, Storm},
    subject::{Kind, Remote, Subject},
    template::Content,
    views::Views,
};

/// Measure the cost of watches for a server, and check that every watcher receives every event
#[derive(Debug, Clone, Parser)]
#[command(bin_name = concat!("cargo bench --bench ", env!("CARGO_CRATE_NAME"), " --"), max_term_width = 100)]
pub(super) struct Flags {
    #[command(subcommand)]
    mode: ModeFlags,
}

#[derive(Debug, Clone, Subcommand)]
enum ModeFlags {
    /// Watchers of everything, each on a connection of its own
    W1(W1Flags),
    /// Watchers of everything, on a few connections
    W2(W2Flags),
    /// Watchers of one index value each; each event goes to one watcher
    W3(W3Flags),
    /// Growth of the server's memory with watchers that receive no events
    Idle(IdleFlags),
    /// Latency of the others with and without a client that has stopped reading
    Stopped(StoppedFlags),
    /// Clients that begin with the initial events, all at once, and the latency of events meanwhile
    Storm(StormFlags),
    /// Lists of everything, and the latency of events meanwhile
    List(ListFlags),
    /// Bytes and processor time for subscribers of a small view without changes outside of it, and for those of whole objects
    Views(ViewsFlags),
    /// Bytes and processor time for clients that receive many pods at once, compressed and as they are
    Compressed(CompressedFlags),
}

/// Flags of all modes.
#[derive(Debug, Clone, Args)]
#[command(group = ArgGroup::new("target").args(["local", "server"]).required(true))]
#[expect(clippy::struct_excessive_bools, reason = "independent flags")]
pub(super) struct CommonFlags {
    /// Start an informerd for each run
    #[arg(long, help_heading = "Server")]
    local: bool,

    /// With --local: the program to start [default: the informerd of this build]
    #[arg(long, value_name = "FILE", conflicts_with = "server", help_heading = "Server")]
    program: Option<PathBuf>,

    /// Measure a running informerd: `HOST:PORT`
    #[arg(long, value_name = "ADDR", requires = "feed", help_heading = "Server")]
    server: Option<ServerAddress>,

    /// With --server: the named pipe that its `stream` source reads
    #[arg(long, value_name = "FILE", help_heading = "Server")]
    feed: Option<PathBuf>,

    /// With --server: the resource of that source; for w3 it has an index `node` of the path .spec.nodeName
    #[arg(long, value_name = "NAME", default_value = "bench", help_heading = "Server")]
    resource: String,

    /// With --server: id of its process, if it runs on this machine; needed for SERVER us
    #[arg(long, value_name = "PID", help_heading = "Server")]
    pid: Option<u32>,

    /// Also measure these baselines, alternately: `naive`, `floor`, `identity` (an informerd that authorizes each call), `watch` (with --subscribe, an informerd with a call of Watch for each), separated by commas; `naive=PROGRAM` is one of another build
    #[arg(long, value_name = "NAME[=PROGRAM]", value_delimiter = ',', value_parser = parse_baseline, help_heading = "Server")]
    baseline: Vec<Subject>,

    /// Events in the history of a server started by --local, a part of RSS; more where the mode needs more
    #[arg(long, value_name = "EVENTS", default_value_t = 10_000, help_heading = "Server")]
    history: u64,

    /// Runs of each server
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..))]
    reps: u16,

    /// Bytes of an object's JSON
    #[arg(long, value_name = "BYTES", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(..=1 << 20))]
    size: u32,

    /// Policy for a watcher whose queue is full
    #[arg(long, value_name = "POLICY", value_enum, default_value_t = Policy::Block, help_heading = "Watchers")]
    policy: Policy,

    /// Length of a watcher's queue, in events
    #[arg(long, value_name = "EVENTS", default_value_t = 512, value_parser = clap::value_parser!(u32).range(1..), help_heading = "Watchers")]
    queue: u32,

    /// Each initial event is a message of its own, as for a client that does not ask for batches
    #[arg(long, help_heading = "Watchers")]
    single_events: bool,

    /// HTTP/2 windows of the client, of each stream and each connection, in bytes
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = MAX_WINDOW,
        value_parser = clap::value_parser!(u32).range(65_535..=i64::from(MAX_WINDOW)),
        help_heading = "Watchers"
    )]
    window: u32,

    /// Maximum size of an HTTP/2 frame that the client accepts, in bytes
    #[arg(
        long,
        value_name = "BYTES",
        default_value_t = 16_384,
        value_parser = clap::value_parser!(u32).range(16_384..=16_777_215),
        help_heading = "Watchers"
    )]
    max_frame: u32,

    /// Print no progress on stderr
    #[arg(short, long)]
    pub(super) quiet: bool,

    /// Format of the output
    #[arg(short, long, value_name = "FORM", value_enum, default_value_t, help_heading = "Output")]
    pub(super) output: Output,

    /// Print no header line
    #[arg(long, help_heading = "Output")]
    pub(super) no_headers: bool,
}

/// Number of events, and their rate.
#[derive(Debug, Clone, Args)]
struct LoadFlags {
    /// Events to measure [default: 2,000,000 deliveries' worth, 400,000 for w3; with --rate, --seconds of it]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    events: Option<u64>,

    /// Events a second [default: as fast as the slowest watcher]
    #[arg(long, value_name = "N", value_parser = parse_rate)]
    rate: Option<f64>,

    /// With --rate: duration of the run in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

/// Calls and selections of the watches.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Watchers")]
struct WatchesFlags {
    /// The watches of a connection are those of one Subscribe call
    #[arg(long)]
    subscribe: bool,

    /// Each watch has a selector of its own, although all select the same objects
    #[arg(long)]
    own_selections: bool,
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
    watches: WatchesFlags,
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

#[derive(Debug, Clone, Args)]
struct IdleFlags {
    /// Watchers
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..))]
    watchers: u32,
    /// Connections that they share
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// Open all at once, and close them again: what such a storm costs, and what is left of it after a minute
    #[arg(long)]
    at_once: bool,
    #[command(flatten)]
    watches: WatchesFlags,
    #[command(flatten)]
    common: CommonFlags,
}

#[derive(Debug, Clone, Args)]
struct StoppedFlags {
    /// Watchers, each on a connection of its own; the last one stops, then receives what its policy promises
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(2..))]
    watchers: u32,
    /// Events a second
    #[arg(long, value_name = "N", default_value = "1000", value_parser = parse_rate)]
    rate: f64,
    /// Duration of the run in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// The `watch.block_timeout` of a server started by --local
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_duration)]
    block_timeout: Duration,
    #[command(flatten)]
    common: CommonFlags,
}

#[derive(Debug, Clone, Args)]
struct StormFlags {
    /// Watchers, each on a connection of its own
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    watchers: u32,
    #[command(flatten)]
    held: HeldFlags,
    #[command(flatten)]
    common: CommonFlags,
}

#[derive(Debug, Clone, Args)]
struct ListFlags {
    /// Lists, one after the other
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
    lists: u64,
    #[command(flatten)]
    held: HeldFlags,
    #[command(flatten)]
    common: CommonFlags,
}

#[derive(Debug, Clone, Args)]
struct ViewsFlags {
    /// Watchers, each on a connection of its own
    #[arg(long, value_name = "N", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    watchers: u32,
    /// Objects that the server holds, and that all change outside of the view
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..=999_999))]
    objects: u64,
    #[command(flatten)]
    load: LoadFlags,
    #[command(flatten)]
    common: CommonFlags,
}

#[derive(Debug, Clone, Args)]
struct CompressedFlags {
    /// Clients, each on a connection of its own
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    clients: u32,
    /// Pods that the server holds; --size has no effect
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u64).range(1..=9_999_999))]
    objects: u64,
    /// Each client lists; otherwise it watches with the initial events
    #[arg(long)]
    list: bool,
    /// Compression that the clients accept
    #[arg(long, value_name = "NAME", default_value = "zstd", value_parser = ["zstd", "gzip"])]
    compression: String,
    #[command(flatten)]
    common: CommonFlags,
}

/// Objects that the server holds, and events meanwhile.
#[derive(Debug, Clone, Args)]
struct HeldFlags {
    /// Objects that the server holds
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=9_999_999))]
    objects: u64,
    /// Events a second meanwhile, which a further watcher sees
    #[arg(long, value_name = "N", default_value = "100", value_parser = parse_rate)]
    rate: f64,
}

/// Default number of deliveries.
const DELIVERIES: u64 = 2_000_000;
/// Default number of deliveries of w3, where a delivery costs an event.
const SELECTED: u64 = 400_000;

fn parse_rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate: &f64| rate.is_finite() && *rate >= 0.01);
    rate.ok_or_else(|| "events a second, at least 0.01".to_owned())
}

fn parse_baseline(text: &str) -> Result<Subject, String> {
    let (name, program) = match text.split_once('=') {
        Some((_, "")) => return Err("the program is missing after `=`".to_owned()),
        Some((name, program)) => (name, program.into()),
        // The baselines are in the same program, `main.rs`.
        None => (text, env::current_exe().map_err(|error| format!("program not found: {error}"))?),
    };
    match name {
        "naive" => Ok(Subject::Naive { program }),
        "floor" => Ok(Subject::Floor { program }),
        "identity" | "watch" => {
            let kind = if name == "watch" { Kind::Watch } else { Kind::Identity };
            Ok(Subject::local((text != name).then_some(program), kind))
        }
        _ => Err("expected naive, floor, identity or watch, or one of them with =PROGRAM".to_owned()),
    }
}

// === impl Flags ===

impl Flags {
    pub(super) fn common(&self) -> &CommonFlags {
        match &self.mode {
            ModeFlags::W1(W1Flags { common, .. })
            | ModeFlags::W2(W2Flags { common, .. })
            | ModeFlags::W3(W3Flags { common, .. })
            | ModeFlags::Idle(IdleFlags { common, .. })
            | ModeFlags::Stopped(StoppedFlags { common, .. })
            | ModeFlags::Storm(StormFlags { common, .. })
            | ModeFlags::List(ListFlags { common, .. })
            | ModeFlags::Views(ViewsFlags { common, .. })
            | ModeFlags::Compressed(CompressedFlags { common, .. }) => common,
        }
    }

    pub(super) fn mode(&self) -> Result<Mode, Failure> {
        let mode = match &self.mode {
            ModeFlags::W1(W1Flags { watchers, load, .. }) => {
                Mode::FanOut(load.of(DELIVERIES, *watchers, *watchers, None))
            }
            ModeFlags::W2(W2Flags { watchers, connections, watches, load, .. }) => {
                let connections = dealt_out(*watchers, *connections)?;
                Mode::FanOut(FanOut { watches: watches.of(), ..load.of(DELIVERIES, *watchers, connections, None) })
            }
            ModeFlags::W3(W3Flags { watchers, connections, values, load, .. }) => {
                let (connections, values) = (dealt_out(*watchers, *connections)?, values.unwrap_or(*watchers));
                Mode::FanOut(load.of(SELECTED, *watchers, connections, Some(values)))
            }
            ModeFlags::Idle(IdleFlags { watchers, connections, watches, at_once, .. }) => {
                let connections = dealt_out(*watchers, *connections)? as usize;
                Mode::Idle(Idle { watchers: *watchers as usize, connections, watches: watches.of(), at_once: *at_once })
            }
            ModeFlags::Stopped(StoppedFlags { watchers, rate, seconds, block_timeout, .. }) => {
                let events = paced(*rate, *seconds);
                let (watchers, block_timeout) = (*watchers as usize, *block_timeout);
                Mode::Stopped(Stopped { watchers, events, rate: *rate, block_timeout })
            }
            ModeFlags::Storm(StormFlags { watchers, held: HeldFlags { objects, rate }, .. }) => {
                Mode::Storm(Storm { watchers: *watchers as usize, objects: *objects, rate: *rate })
            }
            ModeFlags::List(ListFlags { lists, held: HeldFlags { objects, rate }, .. }) => {
                Mode::Lists(Lists { count: *lists, objects: *objects, rate: *rate })
            }
            ModeFlags::Views(ViewsFlags { watchers, objects, load, .. }) => Mode::Views(Views {
                watchers: *watchers as usize,
                objects: *objects,
                events: load.events_or(*objects),
                rate: load.rate,
            }),
            ModeFlags::Compressed(CompressedFlags { clients, objects, list, compression, .. }) => {
                Mode::Compressed(Compressed {
                    clients: *clients as usize,
                    objects: *objects,
                    call: if *list { Call::List } else { Call::Watch },
                    compression: if compression == "gzip" { "gzip" } else { "zstd" },
                })
            }
        };
        Ok(mode)
    }
}

/// Returns the number of connections; fails unless there is a watcher for each.
fn dealt_out(watchers: u32, connections: u32) -> Result<u32, Failure> {
    if connections <= watchers {
        return Ok(connections);
    }
    let message = format!("{connections} connections are more than {watchers} watchers: lower --connections");
    Err(Failure::usage(message))
}

/// Returns the number of events in this time, at least one.
fn paced(rate: f64, seconds: u64) -> u64 {
    ((rate * seconds as f64).ceil() as u64).max(1)
}

// === impl LoadFlags ===

impl LoadFlags {
    /// Returns the number of events, by default this many if they are not paced.
    fn events_or(&self, saturated: u64) -> u64 {
        let paced = self.rate.map(|rate| paced(rate, self.seconds));
        self.events.or(paced).unwrap_or(saturated)
    }

    fn of(&self, deliveries: u64, watchers: u32, connections: u32, values: Option<u32>) -> FanOut {
        let saturated = if values.is_some() { deliveries } else { (deliveries / u64::from(watchers)).max(1) };
        FanOut {
            watchers: watchers as usize,
            connections: connections as usize,
            events: self.events_or(saturated),
            rate: self.rate,
            values: values.map(u64::from),
            watches: Watches::default(),
        }
    }
}

// === impl WatchesFlags ===

impl WatchesFlags {
    fn of(&self) -> Watches {
        Watches { subscribe: self.subscribe, own_selections: self.own_selections }
    }
}

// === impl CommonFlags ===

impl CommonFlags {
    pub(super) fn bench(&self) -> Result<Bench, Failure> {
        let mut subjects = vec![self.subject()?];
        subjects.extend(self.baseline.iter().cloned());
        Ok(Bench {
            subjects,
            repetitions: self.reps.into(),
            client: ClientConfig { window: self.window, max_frame: self.max_frame, accepts: None },
            policy: self.policy.into(),
            batches: !self.single_events,
            queue: self.queue,
            content: Content::Size(self.size as usize),
            history: self.history,
        })
    }

    fn subject(&self) -> Result<Subject, Failure> {
        let (Some(server), Some(feed)) = (&self.server, &self.feed) else {
            return Ok(Subject::local(self.program.clone(), Kind::Plain));
        };
        let (address, resource) = (resolve(server)?, self.resource.clone());
        Ok(Subject::Remote(Remote { address, resource, feed: feed.clone(), pid: self.pid }))
    }
}

fn resolve(server: &ServerAddress) -> Result<SocketAddr, Failure> {
    if server.is_unix() {
        return Err(Failure::usage("the load client speaks TCP: use --server HOST:PORT".to_owned()));
    }
    let found = server.to_string().to_socket_addrs().map(|mut addresses| addresses.next());
    let unknown = |why: String| Failure::usage(format!("cannot resolve {server}{why}"));
    found.map_err(|error| unknown(format!(": {error}")))?.ok_or_else(|| unknown(String::new()))
}

#[cfg(test)]
mod tests;
