//! Load generator: a publisher, a load client as cheap as possible, and the cost of the server between them.
//!
//! ```text
//!                publisher ──▶ source ──▶ the server ──▶ load client ──▶ counts, latencies
//!               (one thread)            (its own process)  (one thread)
//!                                             └── /proc: processor time, memory
//! ```
//!
//! - It has its own HTTP/2 client: a complete client would add too much cost of its own. From the library it uses the messages
//!   and the shared parts of a command line.
//! - Every run checks its counts: a run with an event too many or too few for any watcher is an error, not a figure.
//! - Runs of the subjects alternate, so that other load on the machine affects all of them.
//! - Processor time is user and system time of the whole server process. On loopback it includes the receiving side of every
//!   write. A socket that is always full moves cost from the server to the client: compare the sum of both.
//!
//! Part of three programs: the benches `load` and `wire`, and the integration tests, which run it at a small scale and have its
//! unit tests. The baselines are not part of it: `main.rs` serves them.

mod client;
mod command;
mod fan_out;
mod flags;
mod frames;
mod idle;
mod messages;
mod print;
mod process;
mod publisher;
mod report;
mod run;
mod stats;
mod stopped;
mod storm;
mod subject;
mod template;
mod witness;

use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

use informerd::proto::pb;

pub(super) use self::command::execute;
use self::{
    client::ClientConfig,
    fan_out::FanOut,
    frames::MAX_WINDOW,
    idle::Idle,
    report::{Better, Metric, Report},
    stats::Spread,
    stopped::Stopped,
    storm::{Lists, Storm},
    subject::{Remote, Subject},
};

/// Settings of a benchmark.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bench {
    /// Subjects; the first is compared with the others.
    subjects: Vec<Subject>,
    /// Runs of each subject.
    repetitions: usize,
    /// Settings of the load client.
    client: ClientConfig,
    /// Policy that watchers request.
    policy: pb::FullChannelPolicy,
    /// Length of their queues, in events.
    queue: u32,
    /// Size of an object's JSON, in bytes.
    size: usize,
    /// Events that a server started here keeps in its history.
    history: u64,
}

/// Benchmark to run.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    /// W1, W2 and W3.
    FanOut(FanOut),
    /// Memory of watchers without events.
    Idle(Idle),
    /// One client that has stopped reading; each run is compared with one without it.
    Stopped(Stopped),
    /// Many clients that request everything at once.
    Storm(Storm),
    /// Lists of everything.
    Lists(Lists),
}

/// Reason why there are no figures.
#[derive(Debug, thiserror::Error)]
enum BenchError {
    /// Program that cannot be started.
    #[error("cannot start {name}: {error}")]
    Start {
        /// Name of the program.
        name: String,
        /// Error of the operating system.
        error: io::Error,
    },
    /// Program that ended before it listened.
    #[error("{name} exited before it listened: {said}")]
    NotListening {
        /// Name of the program.
        name: String,
        /// Last lines that it logged.
        said: String,
    },
    /// Server that ended during a run.
    #[error("server exited: {said}")]
    ServerEnded {
        /// Last lines that it logged.
        said: String,
    },
    /// Address without a listener.
    #[error(
        "cannot connect to {address}: {error}; is the server running, and are there enough open files (ulimit -n)?"
    )]
    Connect {
        /// Address of the server.
        address: SocketAddr,
        /// Error of the operating system.
        error: io::Error,
    },
    /// Connection that ended.
    #[error("server closed a connection: {0}")]
    Connection(String),
    /// Call that ended unexpectedly.
    #[error("server ended call {stream}: {how}; `informerd watch` shows more")]
    Ended {
        /// Number of the stream.
        stream: usize,
        /// Reason that the server reports.
        how: String,
    },
    /// Run in which no more data arrives.
    #[error("no message for {patience:?}; so far {tally}")]
    Stalled {
        /// Time without data.
        patience: Duration,
        /// Counts before that.
        tally: String,
    },
    /// Wrong count: the figures would be worthless.
    #[error("watch {stream} received {got} events instead of {expected}")]
    Miscounted {
        /// Number of the stream.
        stream: usize,
        /// Events published for it.
        expected: u64,
        /// Events received.
        got: u64,
    },
    /// Failure to write the events.
    #[error("cannot publish: {0}")]
    Publish(String),
    /// Pipe for the events that cannot be opened.
    #[error("cannot write to {}: {error}; --feed names the pipe that the server's stream source reads", path.display())]
    Feed {
        /// Path of the pipe.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// Failure of the operating system.
    #[error("{0}")]
    System(io::Error),
}

/// Runs the mode as often as requested, alternating the subjects; reports the name of each run before it.
///
/// # Errors
///
/// The error of the first run that fails or is miscounted.
fn run(bench: &Bench, mode: &Mode, mut say: impl FnMut(&str)) -> Result<Report, BenchError> {
    let mut report = Report::default();
    for repetition in 1..=bench.repetitions {
        for (name, subject, is_control) in mode.runs(&bench.subjects) {
            say(&format!("run {repetition} of {}: {name}", bench.repetitions));
            let measured = match mode {
                Mode::FanOut(fan_out) => fan_out.run(bench, subject)?,
                Mode::Idle(idle) => idle.run(bench, subject)?,
                Mode::Stopped(stopped) => stopped.run(bench, subject, !is_control)?,
                Mode::Storm(storm) => storm.run(bench, subject)?,
                Mode::Lists(lists) => lists.run(bench, subject)?,
            };
            report.add(name, measured);
        }
    }
    Ok(report)
}

// === impl Mode ===

impl Mode {
    /// Returns the runs of one repetition, with their names in the report: each subject that supports the mode, and as a control
    /// the first one again.
    fn runs<'a>(&self, subjects: &'a [Subject]) -> Vec<(&'static str, &'a Subject, bool)> {
        let has = |subject: &&Subject| match subject {
            Subject::Local { .. } | Subject::Remote(_) => true,
            Subject::Naive { .. } => matches!(self, Self::FanOut(_) | Self::Idle(_)),
            Subject::Floor { .. } => matches!(self, Self::FanOut(_)),
        };
        let mut runs: Vec<_> = subjects.iter().filter(has).map(|subject| (subject.name(), subject, false)).collect();
        if let (Self::Stopped(_), Some((_, subject, _))) = (self, runs.first().copied()) {
            runs = vec![("one stopped", subject, false), ("nobody stopped", subject, true)];
        }
        runs
    }
}

// === impl BenchError ===

impl From<frames::Padded> for BenchError {
    fn from(error: frames::Padded) -> Self {
        Self::Connection(error.to_string())
    }
}
