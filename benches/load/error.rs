//! Errors of a run, and of the command line.

use std::{io, net::SocketAddr, path::PathBuf, time::Duration};

use super::{deliveries, frames};

/// Reason why there are no figures.
#[derive(Debug, thiserror::Error)]
pub(super) enum BenchError {
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

/// Run without figures.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) message: String,
    pub(super) exit_code: u8,
}

/// Exit code of a run that failed or was miscounted.
const FAILED: u8 = 1;
/// Exit code of an invalid command line; clap's own code for it.
const WRONG_USAGE: u8 = 2;

// === impl BenchError ===

impl From<frames::Padded> for BenchError {
    fn from(error: frames::Padded) -> Self {
        Self::Connection(error.to_string())
    }
}

impl From<deliveries::Malformed> for BenchError {
    fn from(error: deliveries::Malformed) -> Self {
        Self::Connection(error.to_string())
    }
}

// === impl Failure ===

impl Failure {
    pub(super) fn new(message: String) -> Self {
        Self { message, exit_code: FAILED }
    }

    pub(super) fn usage(message: String) -> Self {
        Self { message, exit_code: WRONG_USAGE }
    }
}

impl From<BenchError> for Failure {
    fn from(error: BenchError) -> Self {
        Self::new(error.to_string())
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.message)
    }
}
