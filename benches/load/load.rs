//! The load generator: a publisher, a load client as cheap as possible, and the cost of the server between them.
//!
//! ```text
//!                publisher ──▶ source ──▶ the server ──▶ load client ──▶ counts, latencies
//!               (one thread)            (its own process)  (one thread)
//!                                             └── /proc: processor time, memory
//! ```
//!
//! - It has its own HTTP/2 client, since no client that does its work well is cheap enough to be left out of account. Of the
//!   library it uses the messages, and what a command line has in common with the others.
//! - Every run checks its counts: one with an event too many or too few for any watcher is an error, and not a figure.
//! - Runs of the subjects alternate, so that other load on the machine meets all of them.
//! - Processor time is user and system time of the whole process of the server. On loopback it has the receiving side of
//!   every write in it. A socket that stands full moves cost from the server to the client: compare both together.
//!
//! A module of three programs: the benches `load` and `wire`, and the integration tests, which run it in small and have its
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

/// What is measured, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Bench {
    /// The first is the one that the others are compared with.
    subjects: Vec<Subject>,
    /// Runs of each subject.
    repetitions: usize,
    /// How the load client presents itself.
    client: ClientConfig,
    /// What watchers ask for.
    policy: pb::FullChannelPolicy,
    /// The length of their queues, in events.
    queue: u32,
    /// Of the JSON of an object, in bytes.
    size: usize,
    /// Events that a server which is started here keeps for those who come later.
    history: u64,
}

/// What is done.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Mode {
    /// W1, W2 and W3.
    FanOut(FanOut),
    /// Memory of watchers that are told nothing.
    Idle(Idle),
    /// One client that has stopped reading; each run is compared with one in which nobody has.
    Stopped(Stopped),
    /// Many clients that ask for everything at once.
    Storm(Storm),
    /// Lists of everything.
    Lists(Lists),
}

/// Why there are no figures.
#[derive(Debug, thiserror::Error)]
enum BenchError {
    /// A program cannot be started.
    #[error("{name} cannot be started: {error}")]
    Start {
        /// The program.
        name: String,
        /// In the words of the operating system.
        error: io::Error,
    },
    /// A program has ended instead.
    #[error("{name} has ended before it listened: {said}")]
    NotListening {
        /// The program.
        name: String,
        /// Its last words.
        said: String,
    },
    /// The server has ended in the middle of a run.
    #[error("the server has ended: {said}")]
    ServerEnded {
        /// Its last words.
        said: String,
    },
    /// Nobody listens.
    #[error(
        "cannot connect to {address}: {error}; is the server running, and are there enough open files (ulimit -n)?"
    )]
    Connect {
        /// Where.
        address: SocketAddr,
        /// In the words of the operating system.
        error: io::Error,
    },
    /// A connection has ended.
    #[error("the server has ended a connection: {0}")]
    Connection(String),
    /// A call has ended that should not have.
    #[error("the server has ended call {stream}: {how}; `informerd watch` shows more")]
    Ended {
        /// Its number.
        stream: usize,
        /// In the words of the server.
        how: String,
    },
    /// Nothing comes any more.
    #[error("nothing has come for {patience:?}; so far {tally}")]
    Stalled {
        /// How long that was waited for.
        patience: Duration,
        /// What has come before.
        tally: String,
    },
    /// The counts do not fit: the figures would be worth nothing.
    #[error("watch {stream} has had {got} events instead of {expected}")]
    Miscounted {
        /// Its number.
        stream: usize,
        /// As many as were published for it.
        expected: u64,
        /// As many as came.
        got: u64,
    },
    /// The events cannot be written.
    #[error("cannot publish: {0}")]
    Publish(String),
    /// Where the events go cannot be opened.
    #[error("cannot write to {}: {error}; --feed names the pipe that the server's stream source reads", path.display())]
    Feed {
        /// The pipe.
        path: PathBuf,
        /// In the words of the operating system.
        error: io::Error,
    },
    /// The operating system does not play along.
    #[error("{0}")]
    System(io::Error),
}

/// Runs the mode as often as is asked for, with one subject after the other; before each run says which it is.
///
/// # Errors
///
/// At the first run that fails or whose counts do not fit.
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
    /// What is run in turns, with its name in the report: each subject that the mode means something for, and for control
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
