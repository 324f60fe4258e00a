//! What the server runs with: the sections of the table, and what is put together from several keys.

use std::{collections::BTreeMap, path::PathBuf, sync::Arc};

use super::{
    AdminConfig, DrainConfig, FilesResource, GeneralConfig, KubeResource, LimitsConfig, ResourceOptions,
    StreamResource, TlsConfig, WatchConfig,
};
use crate::{
    model::Indexers,
    watch::{BroadcasterConfig, FullChannelPolicy, QueueOptions, Retention},
};

/// What `informerd serve` runs with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// What is in no section; an address of `listen` that is not local is there with TLS or `insecure`, and `state_dir` is
    /// relative as TLS's files.
    pub general: GeneralConfig,
    /// The port for operators; not the one of gRPC.
    pub admin: AdminConfig,
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
    /// What is served, by name; at least one.
    pub resources: BTreeMap<String, ResourceConfig>,
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
    /// The rest. Its policy and queue are among what clients may ask for; `snapshot` is never true for files and streams,
    /// which have no state that a later start can begin with.
    pub options: ResourceOptions,
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
        Self { path: path.into(), ..Self::default() }
    }
}

// === impl StreamResource ===

impl StreamResource {
    /// A file or a named pipe, or standard input, with the defaults for everything else.
    pub fn new(path: Option<PathBuf>) -> Self {
        Self { path, ..Self::default() }
    }
}

// === impl Config ===

impl Config {
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

// === impl ResourceConfig ===

impl ResourceConfig {
    /// A client's queue for this resource when the client did not say.
    pub fn queue_options(&self, watch: &WatchConfig) -> QueueOptions {
        QueueOptions {
            policy: self.options.full_channel_policy.unwrap_or(watch.full_channel_policy),
            length: self.options.queue_length.unwrap_or(watch.queue_length),
        }
    }
}
