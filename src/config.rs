//! Configuration: from flags, environment and a YAML file to a [`Config`] that cannot be wrong.
//!
//! ```text
//!   ServeFlags (clap: flag, then environment) ──┐
//!                                               ├──▶ resolve ──▶ Config, or every problem at once (ConfigErrors)
//!   file ──▶ YAML ──▶ RawConfig, unknown keys ──┘
//! ```
//!
//! `app` reads it once, at the start; nothing changes it afterwards.
//!
//! - Precedence: flag, then environment (`INFORMERD_…`), then file, then default.
//! - A [`Config`] comes from [`Config::load`] alone; whatever it holds has been checked, by itself and against the rest.
//! - Nothing is ignored: a key that is not known is an error that names the nearest one, and a key of the design that
//!   this version does not serve says so. A key without a value (`listen:`) is as good as left out.
//! - [`reference()`] lists every key with its default; a test holds it to what is read and to the defaults below.
//!
//! Deliberately not here: whether the paths exist and the ports are free, which is for those who open them.

mod error;
mod etcd;
mod file;
mod keys;
mod kube;
mod limits;
mod listen;
mod raw;
mod relay;
mod resolve;
mod upstream;
mod value;

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

pub use self::{
    error::{ConfigError, ConfigErrors},
    keys::{Key, reference},
    limits::LimitsConfig,
    listen::ListenAddr,
    raw::{LogFormat, ServeFlags},
    value::{MAX_DURATION, ValueError, parse_duration, parse_size},
};
use crate::{
    model::{FieldCut, Indexers},
    watch::{BroadcasterConfig, FullChannelPolicy, QueueOptions, Retention},
};

/// What `informerd serve` runs with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Where gRPC listens; by default 127.0.0.1:50051.
    pub listen: ListenAddr,
    /// Where HTTP for operators listens; by default 127.0.0.1:9464. With `None`, nowhere.
    pub admin_listen: Option<SocketAddr>,
    /// Whether plain text gRPC beyond loopback is what the user wants; by default not, and then `listen` is local.
    pub insecure: bool,
    /// With which files TLS is served; without them, plain text is. Over TCP only.
    pub tls: Option<TlsConfig>,
    /// What clients may ask for, and what they get when they do not.
    pub watch: WatchConfig,
    /// How much of each resource's past is kept for watches that lag or come back. Age: 5 minutes by default; events:
    /// 100 000; bytes: 256 MiB. None of them is 0.
    pub history: Retention,
    /// Bounds of what clients may use.
    pub limits: LimitsConfig,
    /// How the server goes down.
    pub drain: DrainConfig,
    /// How long a source may be out of contact before its resource counts as stale; by default 15 seconds, never 0.
    pub stale_after: Duration,
    /// Where states are kept for the next start; relative as TLS's files. With `None`, nowhere.
    pub state_dir: Option<PathBuf>,
    /// How often a state is written when objects have changed; by default 1 minute, never 0.
    pub state_interval: Duration,
    /// What is served, by name; at least one.
    pub resources: BTreeMap<String, ResourceConfig>,
}

/// The files of TLS, in PEM; read again when they change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TlsConfig {
    /// The server's certificate, and those that lead from it to one that clients trust.
    pub cert: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// When it is given, clients need a certificate that one of these has signed.
    pub client_ca: Option<PathBuf>,
}

/// Watches: the defaults of the server and the bounds of what a client may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WatchConfig {
    /// What happens when a client's queue is full and the client did not say; by default REPLAY. It is one of
    /// `allowed_policies`.
    pub full_channel_policy: FullChannelPolicy,
    /// What a client may choose; each once, at least one. By default all of them.
    pub allowed_policies: Vec<FullChannelPolicy>,
    /// Events that make a client's queue full when it did not say; by default 1024. At most `max_queue_length`, and 0
    /// under BLOCK alone.
    pub queue_length: usize,
    /// The longest queue that a client may ask for, in events; by default 65 536, never 0.
    pub max_queue_length: usize,
    /// Encoded bytes that make a client's queue full whatever its length; by default 16 MiB, never 0.
    pub queue_bytes: usize,
    /// Bytes of memory that encoded events take which clients still have to read, of all clients of a resource together; what
    /// lies behind them is told from the history, and takes as much again. By default 16 MiB, never 0.
    pub window_bytes: usize,
    /// Bytes of memory for what has merged under COALESCE, of all clients of a resource together; from half of them on the
    /// watches that hold most end with `RESOURCE_VERSION_EXPIRED`. By default 64 MiB, never 0.
    pub coalesce_bytes: usize,
    /// Time for which the writer of a resource waits for all clients under BLOCK together, beside a tenth of any time; by
    /// default 5 seconds, never 0.
    pub block_timeout: Duration,
    /// The time of a publish cycle for selections that nothing leads to, and for expressions; those that do not fit are
    /// evaluated by threads. By default 200 microseconds, from 10 microseconds to 100 milliseconds.
    pub selection_budget: Duration,
    /// The time that they take of all the writer's, in percent; by default 20, from 1 to 100.
    pub selection_share: u32,
    /// How long a watch may be silent before it gets a bookmark; by default 30 seconds, never 0.
    pub bookmark_interval: Duration,
    /// How long a watch from a version that the resource has not reached yet waits for it; by default 90 seconds, never 0.
    pub future_wait: Duration,
    /// The least time between two wakes of the watchers of a resource; by default 0, for the least that pays.
    pub batch_window: Duration,
    /// A connection that takes nothing of what is to be written to it is cut after this, and a stream that takes nothing of
    /// what it is to be sent is reset; by default 30 seconds, never 0.
    pub progress_timeout: Duration,
    /// Watches open at the same time, of all clients together; by default 100 000, never 0.
    pub max_watchers: usize,
}

/// How the server goes down, from the first signal on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrainConfig {
    /// How long it serves as before while it already says that it is not ready; by default 0.
    pub delay: Duration,
    /// How long streams that are open then have to end; by default 5 seconds.
    pub period: Duration,
}

/// A resource: objects of one source under one name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResourceConfig {
    /// What clients call it: at most 253 lowercase letters, digits, `-` and `.`, with a letter or digit at both ends.
    pub name: String,
    /// Where the objects come from.
    pub source: SourceConfig,
    /// Its indexes; `namespace` is always there.
    pub indexers: Arc<Indexers>,
    /// Whether the server is ready without it; by default it is not.
    pub optional: bool,
    /// Whether its state is written to [`Config::state_dir`]; `None` leaves Secrets out. Never true for files and streams,
    /// which have no state that a later start can begin with.
    pub snapshot: Option<bool>,
    /// Instead of [`WatchConfig::full_channel_policy`]; one of the allowed ones.
    pub full_channel_policy: Option<FullChannelPolicy>,
    /// Instead of [`WatchConfig::queue_length`], within the same bounds.
    pub queue_length: Option<usize>,
}

/// The keys below a prefix of an etcd cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EtcdResource {
    /// `http://HOST:PORT` or `https://HOST:PORT` of the members of one cluster; at least one, each once.
    pub endpoints: Vec<String>,
    /// What the keys begin with; empty for all keys.
    pub prefix: String,
    /// A user, and the file that holds the password, relative as the files' directory.
    pub credentials: Option<(String, PathBuf)>,
    /// For endpoints with `https`.
    pub tls: EtcdTlsConfig,
}

/// Whom to trust under TLS, and who we are: files in PEM.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct EtcdTlsConfig {
    /// Those who may have signed etcd's certificate; with `None`, those that the system trusts.
    pub ca: Option<PathBuf>,
    /// Our own certificate, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// The name that etcd's certificate has; with `None`, the host of the endpoint.
    pub server_name: Option<String>,
}

/// One kind of object of a Kubernetes API.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct KubeResource {
    /// The API group; empty for the core.
    pub group: String,
    /// The version of the group.
    pub version: String,
    /// The kind as it is written in paths, such as `pods`.
    pub plural: String,
    /// Only this namespace; empty for all, and for what has none.
    pub namespace: String,
    /// Only these namespaces, 1 to 100; instead of `namespace`.
    pub namespaces: Vec<String>,
    /// Only namespaces with these labels, at most 100 at a time; instead of `namespace`.
    pub namespace_selector: String,
    /// Only objects with these labels; empty for all.
    pub label_selector: String,
    /// Only objects with these fields; empty for all.
    pub field_selector: String,
    /// Only the metadata of objects is requested and served.
    pub is_metadata_only: bool,
    /// Objects on a page of a list, 1 to 100,000; with `None`, 500 where pages are of use.
    pub page_size: Option<u32>,
    /// How long the API is asked to keep a watch open at least, 10 s to a day; with `None`, 5 minutes.
    pub watch_timeout: Option<Duration>,
    /// The API's versions are in no order, and are counted by this server instead.
    pub has_opaque_versions: bool,
    /// A kubeconfig file, relative as the files' directory; with `None`, `KUBECONFIG`, `~/.kube/config`, or the cluster that
    /// this runs in.
    pub kubeconfig: Option<PathBuf>,
    /// A context of the kubeconfig; with `None`, its current one.
    pub context: Option<String>,
    /// How long the API server may give no sign of life; with `None`, 15 s.
    pub contact_timeout: Option<Duration>,
    /// What is not kept of bodies; by default `metadata.managedFields` and kubectl's copy of what was applied last.
    pub drop_fields: FieldCut,
}

/// JSON and YAML files below a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilesResource {
    /// The directory; what was relative in a configuration file is relative to that file's directory.
    pub path: PathBuf,
    /// Only objects of this kind, such as `Pod`; with `None`, all of them.
    pub kind: Option<String>,
    /// The interval of full scans, 100 ms to 1 h; by default 5 s.
    pub rescan: Duration,
    /// How long the directory has to be quiet before a burst of changes is read, 10 ms to 10 s and at most `rescan`; by default
    /// 100 ms.
    pub quiet: Duration,
}

/// Watch events as JSON.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamResource {
    /// A file or a named pipe, relative as in [`FilesResource`]; with `None`, standard input, which one resource at most has.
    pub path: Option<PathBuf>,
    /// How long the next writer of a named pipe may go without repeating an object of the writers before it, 100 ms to 1 h; by
    /// default 10 s. With `None`, nothing is deleted that it does not repeat.
    pub confirm_after: Option<Duration>,
}

/// A resource of another informerd.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RelayResource {
    /// `http://HOST:PORT`, `https://HOST:PORT` or `unix:/path`.
    pub endpoint: String,
    /// What it is called there.
    pub resource: String,
    /// For https: those who may have signed the certificate; with `None`, those that the system trusts.
    pub ca: Option<PathBuf>,
    /// For https: our own certificate, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
}

/// Where the objects of a resource come from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SourceConfig {
    /// JSON and YAML files below a directory.
    Files(FilesResource),
    /// Watch events as JSON.
    Stream(StreamResource),
    /// Keys of an etcd cluster.
    Etcd(EtcdResource),
    /// Objects of a Kubernetes API.
    Kube(KubeResource),
    /// A resource of another informerd.
    Informerd(RelayResource),
}

// === impl FilesResource ===

impl FilesResource {
    /// A directory, with the defaults for everything else.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), kind: None, rescan: DEFAULT_RESCAN, quiet: DEFAULT_QUIET }
    }
}

// === impl StreamResource ===

impl StreamResource {
    /// A file or a named pipe, or standard input, with the defaults for everything else.
    pub fn new(path: Option<PathBuf>) -> Self {
        Self { path, confirm_after: Some(DEFAULT_CONFIRM_AFTER) }
    }
}

// === impl Config ===

impl Config {
    /// Reads the file that the flags name, if any, and puts it together with the flags.
    ///
    /// # Errors
    ///
    /// Hold everything that is wrong, in flags and file alike. Of a file that is not YAML, only the first problem.
    pub fn load(flags: &ServeFlags) -> Result<Self, ConfigErrors> {
        let mut errors = ConfigErrors::default();
        let raw = match &flags.config {
            None => Some(raw::RawConfig::default()),
            Some(path) => file::read(path, &mut errors),
        };
        let directory = flags.config.as_deref().and_then(Path::parent).unwrap_or(Path::new(""));
        let config = resolve::resolve(raw, directory, flags, &mut errors);
        if errors.is_empty() { Ok(config) } else { Err(errors) }
    }

    /// The bounds of the Broadcaster of each resource.
    pub fn broadcaster(&self) -> BroadcasterConfig {
        BroadcasterConfig {
            retention: Retention { size: self.watch.window_bytes, ..self.history },
            queue_size: self.watch.queue_bytes,
            coalesce_size: self.watch.coalesce_bytes,
            block_timeout: self.watch.block_timeout,
            selection_budget: self.watch.selection_budget,
            selection_share: self.watch.selection_share,
        }
    }
}

// === impl WatchConfig ===

impl WatchConfig {
    /// Whether a client may choose this policy.
    pub fn allows(&self, policy: FullChannelPolicy) -> bool {
        self.allowed_policies.contains(&policy)
    }
}

impl Default for WatchConfig {
    fn default() -> Self {
        let broadcaster = BroadcasterConfig::default();
        Self {
            full_channel_policy: FullChannelPolicy::Replay,
            allowed_policies: vec![
                FullChannelPolicy::Drop,
                FullChannelPolicy::Block,
                FullChannelPolicy::Replay,
                FullChannelPolicy::Coalesce,
            ],
            queue_length: 1024,
            max_queue_length: 65_536,
            queue_bytes: broadcaster.queue_size,
            window_bytes: broadcaster.retention.size,
            coalesce_bytes: broadcaster.coalesce_size,
            block_timeout: broadcaster.block_timeout,
            selection_budget: broadcaster.selection_budget,
            selection_share: broadcaster.selection_share,
            bookmark_interval: Duration::from_secs(30),
            future_wait: Duration::from_secs(90),
            batch_window: Duration::ZERO,
            progress_timeout: Duration::from_secs(30),
            max_watchers: 100_000,
        }
    }
}

// === impl DrainConfig ===

impl Default for DrainConfig {
    fn default() -> Self {
        Self { delay: Duration::ZERO, period: Duration::from_secs(5) }
    }
}

// === impl ResourceConfig ===

impl ResourceConfig {
    /// A client's queue for this resource when the client did not say.
    pub fn queue_options(&self, watch: &WatchConfig) -> QueueOptions {
        QueueOptions {
            policy: self.full_channel_policy.unwrap_or(watch.full_channel_policy),
            length: self.queue_length.unwrap_or(watch.queue_length),
        }
    }
}

const DEFAULT_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 50051);
const DEFAULT_ADMIN_LISTEN: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9464);
const DEFAULT_STALE_AFTER: Duration = Duration::from_secs(15);
const DEFAULT_STATE_INTERVAL: Duration = Duration::from_secs(60);
const DEFAULT_RESCAN: Duration = Duration::from_secs(5);
const DEFAULT_QUIET: Duration = Duration::from_millis(100);
const DEFAULT_CONFIRM_AFTER: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
