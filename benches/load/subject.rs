//! What is measured: an informerd, and the baselines that it is compared with. All of them are processes of their own, read
//! their events from outside and answer the same calls.

use std::{
    fs,
    io::Write,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::NamedTempFile;

use super::{
    BenchError,
    process::Process,
    template::{Form, INDEX, INDEX_PATH},
};

/// A server to be measured.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Subject {
    /// An informerd that is started for each run.
    Local {
        /// The program.
        program: PathBuf,
    },
    /// An informerd that runs already.
    Remote(Remote),
    /// tonic's generated code over a broadcast channel, started as `PROGRAM naive QUEUE`; it reads what a `stream` source
    /// reads, and serves `Watch`.
    Naive {
        /// The program.
        program: PathBuf,
    },
    /// Bytes that are copied to sockets, started as `PROGRAM floor CONNECTIONS STREAMS`.
    Floor {
        /// The program.
        program: PathBuf,
    },
}

/// An informerd that runs already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Remote {
    /// Where it listens.
    pub(super) address: SocketAddr,
    /// The resource that is watched; its source is `stream`.
    pub(super) resource: String,
    /// What that source reads: a named pipe.
    pub(super) feed: PathBuf,
    /// Its process, if that is on this machine.
    pub(super) pid: Option<u32>,
}

/// What a run needs of the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setup {
    pub(super) connections: usize,
    /// On each connection, at most.
    pub(super) streams: usize,
    pub(super) queue: u32,
    /// Events that are kept for those who come later.
    pub(super) history: u64,
    pub(super) block_timeout: Duration,
    pub(super) is_indexed: bool,
}

/// A server for one run.
pub(super) struct Running {
    pub(super) address: SocketAddr,
    pub(super) resource: String,
    pub(super) pid: Option<u32>,
    pub(super) process: Option<Process>,
}

/// What the resource of a server is called that is started here.
const RESOURCE: &str = "bench";
/// Standard input as the pipe that it is: it is read without a thread that blocks.
const STDIN: &str = "/dev/stdin";

// === impl Subject ===

impl Subject {
    /// What it is called in the report.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Local { .. } | Self::Remote(_) => "informerd",
            Self::Naive { .. } => "naive",
            Self::Floor { .. } => "floor",
        }
    }

    pub(super) fn form(&self) -> Form {
        match self {
            Self::Floor { .. } => Form::Records,
            _ => Form::Lines,
        }
    }

    /// Starts it, unless it runs already, and opens the way for its events.
    pub(super) fn start(&self, setup: &Setup) -> Result<(Running, Box<dyn Write + Send>), BenchError> {
        match self {
            Self::Local { program } => start_local(program, setup),
            Self::Remote(remote) => {
                let feed = fs::File::options().append(true).open(&remote.feed);
                let feed = feed.map_err(|error| BenchError::Feed { path: remote.feed.clone(), error })?;
                let Remote { address, resource, pid, .. } = remote.clone();
                Ok((Running { address, resource, pid, process: None }, Box::new(feed)))
            }
            Self::Naive { program } => launch(program, &["naive".to_owned(), setup.queue.to_string()], None),
            Self::Floor { program } => {
                let arguments = ["floor".to_owned(), setup.connections.to_string(), setup.streams.to_string()];
                launch(program, &arguments, None)
            }
        }
    }
}

fn start_local(program: &Path, setup: &Setup) -> Result<(Running, Box<dyn Write + Send>), BenchError> {
    let Setup { streams, history, block_timeout, is_indexed, .. } = setup;
    let indexes = if *is_indexed { format!("indexes: {{ {INDEX}: {{ path: {INDEX_PATH} }} }}") } else { String::new() };
    let config = written(&format!(
        "watch: {{ block_timeout: {block_timeout}ms }}\n\
         history: {{ events: {history} }}\n\
         limits: {{ streams_per_connection: {streams}, peer_share: 100 }}\n\
         resources:\n  {RESOURCE}:\n    source: {{ stream: {{ path: {STDIN} }} }}\n    {indexes}\n",
        block_timeout = block_timeout.as_millis(),
        streams = streams + 8,
    ))?;
    let arguments = [
        "serve",
        "--config",
        &config.path().display().to_string(),
        "--listen",
        "127.0.0.1:0",
        "--admin-listen",
        "none",
    ];
    launch(program, &arguments.map(str::to_owned), Some(config))
}

/// Writes a configuration to a file that is removed with its value.
fn written(config: &str) -> Result<NamedTempFile, BenchError> {
    let file = tempfile::Builder::new().prefix("informerd-load-").suffix(".yaml").tempfile();
    file.and_then(|mut file| file.write_all(config.as_bytes()).map(|()| file)).map_err(BenchError::System)
}

fn launch(
    program: &Path,
    arguments: &[String],
    config: Option<NamedTempFile>,
) -> Result<(Running, Box<dyn Write + Send>), BenchError> {
    let mut process = Process::start(program, arguments, config)?;
    let Some(stdin) = process.stdin.take() else { return Err(BenchError::Publish("no standard input".to_owned())) };
    let (address, pid) = (process.address, Some(process.pid()));
    Ok((Running { address, resource: RESOURCE.to_owned(), pid, process: Some(process) }, Box::new(stdin)))
}
