//! Servers to measure: an informerd, and its baselines. Each is a process of its own, reads its events from outside and serves
//! the same calls.

use std::{
    fs,
    io::Write,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::Duration,
};

use tempfile::NamedTempFile;

use super::{
    error::BenchError,
    process::Process,
    template::{Form, INDEX, INDEX_PATH},
};

/// Server to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Subject {
    /// Informerd started for each run.
    Local {
        /// Path of the program.
        program: PathBuf,
        kind: Kind,
    },
    /// Informerd that already runs.
    Remote(Remote),
    /// tonic's generated code over a broadcast channel, started as `PROGRAM naive QUEUE`; it reads the input of a `stream`
    /// source, and serves `Watch`.
    Naive {
        /// Path of the program.
        program: PathBuf,
    },
    /// Writer of given bytes to sockets, started as `PROGRAM floor CONNECTIONS STREAMS`.
    Floor {
        /// Path of the program.
        program: PathBuf,
    },
}

/// Variant of an informerd started for each run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing but what the mode measures.
    Plain,
    /// The same, authenticating and authorizing the caller of each call.
    Identity,
    /// Each watch a call of Watch, as a baseline of Subscribe.
    Watch,
}

/// Informerd that already runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Remote {
    /// Address that it listens on.
    pub(super) address: SocketAddr,
    /// Watched resource; its source is `stream`.
    pub(super) resource: String,
    /// Named pipe that this source reads.
    pub(super) feed: PathBuf,
    /// Process id, if it runs on this machine.
    pub(super) pid: Option<u32>,
}

/// Requirements of a run on the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Setup {
    pub(super) connections: usize,
    /// Most streams on each connection.
    pub(super) streams: usize,
    pub(super) queue: u32,
    /// Events that the server keeps in its history.
    pub(super) history: u64,
    pub(super) block_timeout: Duration,
    pub(super) is_indexed: bool,
    /// True if clients may accept a compression.
    pub(super) compresses: bool,
}

/// Server of one run.
pub(super) struct Running {
    pub(super) address: SocketAddr,
    pub(super) resource: String,
    pub(super) pid: Option<u32>,
    pub(super) process: Option<Process>,
}

/// Name of the resource of a server started here.
const RESOURCE: &str = "bench";
/// SHA-256 of the token that the client sends.
const TOKEN_SHA256: &str = "1b32c28cb38c05480eccc1bd60ff97029b57a05c96718b96dad7e9d84894f549";
/// Standard input as a pipe: it is read without a blocking thread.
const STDIN: &str = "/dev/stdin";

// === impl Subject ===

impl Subject {
    /// Returns an informerd to start; without a program, that of this build.
    pub(super) fn local(program: Option<PathBuf>, kind: Kind) -> Self {
        Self::Local { program: program.unwrap_or_else(|| env!("CARGO_BIN_EXE_informerd").into()), kind }
    }

    /// Returns its name in the report.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Self::Local { kind: Kind::Identity, .. } => "identity",
            Self::Local { kind: Kind::Watch, .. } => "watch",
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

    /// Starts it, unless it already runs, and opens its input for events.
    pub(super) fn start(&self, setup: &Setup) -> Result<(Running, Box<dyn Write + Send>), BenchError> {
        match self {
            Self::Local { program, kind } => start_local(program, *kind == Kind::Identity, setup),
            Self::Remote(remote) => {
                let feed = fs::File::options().append(true).open(&remote.feed);
                let feed = feed.map_err(|error| BenchError::Feed { path: remote.feed.clone(), error })?;
                let Remote { address, resource, pid, .. } = remote.clone();
                Ok((Running { address, resource, pid, process: None }, Box::new(feed)))
            }
            Self::Naive { program } => launch(program, &["naive".to_owned(), setup.queue.to_string()], Vec::new()),
            Self::Floor { program } => {
                let arguments = ["floor".to_owned(), setup.connections.to_string(), setup.streams.to_string()];
                launch(program, &arguments, Vec::new())
            }
        }
    }
}

fn start_local(
    program: &Path,
    has_identities: bool,
    setup: &Setup,
) -> Result<(Running, Box<dyn Write + Send>), BenchError> {
    let Setup { history, block_timeout, is_indexed, compresses, .. } = setup;
    let indexes = if *is_indexed { format!("indexes: {{ {INDEX}: {{ path: {INDEX_PATH} }} }}") } else { String::new() };
    let mut files = Vec::new();
    let compression = if *compresses { "compression: [zstd, gzip]\n" } else { "" };
    let mut access = String::new();
    if has_identities {
        let tokens = written(&format!("{TOKEN_SHA256} bench\n"))?;
        access = format!(
            "authentication: {{ token_file: {} }}\n\
             authorization: {{ rules: [{{ subjects: ['user:bench'], verbs: ['*'], resources: ['*'], namespaces: ['*'] }}] }}\n",
            tokens.path().display()
        );
        files.push(tokens);
    }
    let config = written(&format!(
        "{access}{compression}watch: {{ block_timeout: {block_timeout}ms }}\n\
         history: {{ events: {history} }}\n\
         limits: {{ peer_share: 100 }}\n\
         resources:\n  {RESOURCE}:\n    source: {{ stream: {{ path: {STDIN} }} }}\n    {indexes}\n",
        block_timeout = block_timeout.as_millis(),
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
    let arguments = arguments.map(str::to_owned);
    files.push(config);
    launch(program, &arguments, files)
}

/// Writes a configuration to a file that is removed on drop.
fn written(config: &str) -> Result<NamedTempFile, BenchError> {
    let file = tempfile::Builder::new().prefix("informerd-load-").suffix(".yaml").tempfile();
    file.and_then(|mut file| file.write_all(config.as_bytes()).map(|()| file)).map_err(BenchError::System)
}

fn launch(
    program: &Path,
    arguments: &[String],
    files: Vec<NamedTempFile>,
) -> Result<(Running, Box<dyn Write + Send>), BenchError> {
    let mut process = Process::start(program, arguments, files)?;
    let Some(stdin) = process.stdin.take() else { return Err(BenchError::Publish("no standard input".to_owned())) };
    let (address, pid) = (process.address, Some(process.pid()));
    Ok((Running { address, resource: RESOURCE.to_owned(), pid, process: Some(process) }, Box::new(stdin)))
}
